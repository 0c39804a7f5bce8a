"""The fused core of a tile, part by part: all bands exist only for a part that stays in the processor's cache."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse import compiled
from hyperfuse.io.cube import nodata_of
from hyperfuse.io.output import Clipping
from hyperfuse.methods.mixing import MixedCore, nothing_missing
from hyperfuse.methods.window import EVERYWHERE, FusedCore, Place, Window, raise_negative

# A part of all bands as numbers: where it passes through memory several times, it stays in the processor's cache.
PART_BYTES, STORED_AT_ONCE_BYTES, PART_WIDTH = 2_500_000, 7_000_000, 128


@dataclass(frozen=True)
class TileCore:
    """The fused core of a tile in the bands of the output, to be computed part by part."""

    good: Window  # of the usable bands
    bad: Window  # of the others
    fused: FusedCore
    interpolated: MixedCore | None  # the others; None where nothing is known of them
    usable: Tensor
    bands: NDArray[np.int64]
    non_negative: bool
    storage: compiled.Storage | None

    def parts(self, shape: tuple[int, ...]) -> Iterator[Place]:
        """Of a block (bands, rows, columns)."""
        bands, height, width = shape
        part_bytes = PART_BYTES if self.storage is None or self._mixtures is None else STORED_AT_ONCE_BYTES
        rows_at_once = max(8, part_bytes // (4 * bands * min(PART_WIDTH, width)))
        for top, left in itertools.product(range(0, height, rows_at_once), range(0, width, PART_WIDTH)):
            yield slice(top, min(top + rows_at_once, height)), slice(left, min(left + PART_WIDTH, width))

    def values(self, part: Place) -> Tensor:
        """Physical values, NaN where there is no data."""
        values = self.fused(part)
        values = raise_negative(values, self.good.at(part)) if self.non_negative else values
        if not self.usable.all():
            known, values = values, values.new_full((len(self.usable), *values.shape[1:]), torch.nan)
            values[self.usable] = known
            if self.interpolated is not None:
                values[~self.usable] = self.interpolated(part)
        is_selection = not np.array_equal(self.bands, np.arange(len(self.usable)))
        return values[torch.from_numpy(self.bands)] if is_selection else values

    def store(self, part: Place, target: NDArray[Any], clipping: Clipping) -> bool:
        """Store a part at once, where its pixels have values and a compiled function can; whether that was so."""
        if self.storage is None or self._mixtures is None:
            return False
        if not (self._nothing_missing or self._has_everything(part)):
            return False
        counts = [
            core.store(part, target, planes, self.storage.of_bands(planes), lowest)
            for core, planes, lowest in self._mixtures
        ]
        if None in counts:
            return False
        clipping.count(target.size, sum(filter(None, counts)))
        return True

    @cached_property
    def _nothing_missing(self) -> bool:
        return self._has_everything(EVERYWHERE)

    def _has_everything(self, part: Place) -> bool:
        """Whether all pixels that a part is made of have values, and none that may have to be raised."""
        complete = nothing_missing(self.good, part, negative=not self.non_negative)
        return complete and nothing_missing(self.bad, part, negative=True)

    @cached_property
    def _mixtures(self) -> list[tuple[MixedCore, list[int], Tensor | None]] | None:
        """What the planes of the output are made of, and how far down their values may go."""
        if not isinstance(self.fused, MixedCore) or not self.fused.is_compiled:
            return None
        noise = self.good.observation.hsi_noise
        cores = (
            (self.usable, self.fused, -noise if self.non_negative else None),
            (~self.usable, self.interpolated, None),
        )
        found = []
        for those, core, lowest in cores:
            place_of = those.cumsum(0) - 1
            planes = [plane for plane, band in enumerate(self.bands) if those[band]]
            if planes and core is None:
                return None
            if planes and core is not None:
                own = place_of[self.bands[planes]]
                found.append((core.bands(own.tolist()), planes, None if lowest is None else lowest[own]))
        return found


def storage_of(pixel: xr.DataArray | None) -> compiled.Storage | None:
    """How compiled functions store values like this pixel; None where they cannot."""
    if pixel is None or compiled.library() is None:
        return None
    return compiled.Storage.of(pixel.dtype, pixel["scale"].values, pixel["offset"].values, nodata_of(pixel))
