"""A scene in memory: values as stored, so that large data sets fit, and patches of it in [0, 1].

Shapes: C bands, H W rows and columns of the scene, r c of a patch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.cubes.nodata import missing_values
from hyperfuse.errors import ValueRangeError

# Values above this share of all are highlights: one glint must not make the rest of a scene dark.
UNIT_QUANTILE = 0.9995
LARGEST_SAMPLE = 4_000_000


@dataclass(frozen=True, eq=False)
class Scene:
    name: str
    sensor: str
    stored: NDArray[Any]
    """(C, H, W), as stored: uint16, int16, float32 ...; may be a memory map."""
    unit: float
    """What values are divided by; what is then above 1 or below 0 is clipped."""
    wavelength_nm: NDArray[np.float64] | None = None
    fwhm_nm: NDArray[np.float64] | None = None
    nodata: float | None = None
    dataset: str = ""
    """The data set of the catalogue that it belongs to, if any."""

    @property
    def bands(self) -> int:
        return int(self.stored.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.stored.shape[1]), int(self.stored.shape[2])

    def patch(self, rows: slice, columns: slice) -> Tensor:
        """(C, r, c) float32 in [0, 1]; what is missing becomes the mean of its band in this patch, or 0 where all of it is."""
        window = np.asarray(self.stored[:, rows, columns])
        values = window.astype(np.float32)
        values /= np.float32(self.unit)
        if self.missing_pixels is not None and self.missing_pixels[rows, columns].any():
            _fill(values, missing_values(window, self.nodata))
        return torch.from_numpy(np.clip(values, 0.0, 1.0, out=values))

    @cached_property
    def missing_pixels(self) -> NDArray[np.bool_] | None:
        """(H, W), true where some band has no value; None where nothing is missing."""
        if self.nodata is None and self.stored.dtype.kind != "f":
            return None
        missing = np.zeros(self.size, dtype=bool)
        for band in self.stored:
            missing |= missing_values(np.asarray(band), self.nodata)
        return missing if missing.any() else None


def scene_unit(stored: NDArray[Any], nodata: float | None = None) -> float:
    """The quantile of the values that becomes 1, of an evenly spread sample where there are many."""
    bands, rows, columns = stored.shape
    step = max(1, int(np.ceil(np.sqrt(bands * rows * columns / LARGEST_SAMPLE))))
    sample = np.asarray(stored[:, ::step, ::step])
    present = sample[~missing_values(sample, nodata)]
    unit = float(np.quantile(present.astype(np.float32), UNIT_QUANTILE)) if present.size else 0.0
    if not unit > 0:
        raise ValueRangeError("a scene without positive values", "reflectance, radiance or counts", "check the file")
    return unit


def _fill(values: NDArray[np.float32], missing: NDArray[np.bool_]) -> None:
    if not missing.any():
        return
    values[missing] = 0.0
    present = np.maximum(1, (~missing).sum(axis=(1, 2)))
    means = values.sum(axis=(1, 2), dtype=np.float64) / present
    np.copyto(values, means.astype(np.float32)[:, None, None], where=missing)
