"""Other sensors out of one: a part of its spectrum, some of its bands, or neighbouring bands added up.

Shapes: C bands of the scene, K of the selection, H W rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BandTable:
    """How many bands there are and, where known, where they lie."""

    count: int
    wavelength_nm: FloatArray | None = None
    fwhm_nm: FloatArray | None = None


class BandVariation(BaseModel):
    """With this `probability` a batch gets other bands than its scenes have, at least `least` of them.

    A contiguous part of the spectrum, a random part of the bands, or means of 2, 3, ... neighbours: each as often as the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    least: Annotated[int, Field(ge=1)] = 8


@dataclass(frozen=True, eq=False)
class BandSelection:
    """Which bands are kept, in order, and how many neighbours of these make one."""

    kept: slice | NDArray[np.int64]
    bin_size: int = 1

    def of_cube(self, cube: Tensor) -> Tensor:
        """(C, H, W) -> (K, H, W); a view where that is possible."""
        chosen = cube[self.kept]
        return chosen if self.bin_size == 1 else chosen.reshape(-1, self.bin_size, *cube.shape[1:]).mean(dim=1)

    def of_bands(self, bands: BandTable) -> BandTable:
        """A band made of neighbours lies in their middle and is as wide as their distance and one band's own width."""
        count = len(self._grouped(np.arange(float(bands.count))))
        if bands.wavelength_nm is None:
            return BandTable(count)
        wavelength_nm = self._grouped(bands.wavelength_nm)
        if bands.fwhm_nm is None:
            return BandTable(count, wavelength_nm.mean(axis=1))
        widths = self._grouped(bands.fwhm_nm).mean(axis=1) + np.ptp(wavelength_nm, axis=1)
        return BandTable(count, wavelength_nm.mean(axis=1), widths)

    def _grouped(self, column: FloatArray) -> FloatArray:
        """(C,) -> (K, neighbours)."""
        return column[self.kept].reshape(-1, self.bin_size)


ALL_BANDS = BandSelection(slice(None))


def draw_selection(generator: np.random.Generator, variation: BandVariation | None, bands: int) -> BandSelection:
    if variation is None or generator.random() >= variation.probability or bands <= variation.least:
        return ALL_BANDS
    kind = generator.integers(3)
    if kind == 2 and bands >= 2 * variation.least:
        return _neighbours_added(generator, bands, variation.least)
    # Fewer than all, or it would be no variation.
    count = int(generator.integers(variation.least, bands))
    if kind == 1:
        return BandSelection(np.sort(generator.choice(bands, count, replace=False)))
    start = int(generator.integers(bands - count + 1))
    return BandSelection(slice(start, start + count))


def _neighbours_added(generator: np.random.Generator, bands: int, least: int) -> BandSelection:
    bin_size = int(generator.integers(2, bands // least + 1))
    count = bands // bin_size
    start = int(generator.integers(bands - count * bin_size + 1))
    return BandSelection(slice(start, start + count * bin_size), bin_size)
