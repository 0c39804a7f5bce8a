"""An MSI that is corrected when it is read: tone curves, light, a warp onto the HSI, and what disagrees with the HSI.

All of it is a function of the scene's parameters and of the surroundings of a pixel, so tiles and whole scenes see the
same MSI. Shapes: M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.fusion.engine import relative
from hyperfuse.fusion.pair import AlignedPair, CutImage
from hyperfuse.fusion.regrid import FLOAT32, SURROUNDINGS, derived_cube, interpolated
from hyperfuse.io.cube import WindowReader, lazy_variable, make_cube
from hyperfuse.io.grid import Grid, window_of_grid
from hyperfuse.methods.missing import fill_missing
from hyperfuse.methods.window import Place, all_finite
from hyperfuse.physics.change import CORE_HALO, HALO, Agreement, reconcile
from hyperfuse.physics.corrections import Correction, SmoothField
from hyperfuse.physics.observation import Observation

# The share of a coarse pixel's PSF that must lie on known pixels for a difference to count.
ENOUGH_KNOWN = 0.99


@dataclass(frozen=True)
class Harmonisation:
    """Everything that is done to the MSI of a pair; with nothing to do the pair stays as it is."""

    corrections: tuple[Correction, ...] = ()
    offsets: SmoothField | None = None
    """What the warped MSI shows at q, the recorded one shows at q + offsets(q), in fine pixels."""
    observation: Observation | None = None
    """Of the corrected and warped MSI."""
    agreement: Agreement | None = None
    """None where no disagreement is looked for."""

    def applied(self, pair: AlignedPair) -> AlignedPair:
        """The pair with an MSI that is corrected when it is read."""
        if not self.corrections and self.offsets is None and self.agreement is None:
            return pair
        _, height, width = pair.fine_shape
        cube = derived_cube(HarmonisedReader(pair, self).read, pair.msi_source.cube, Grid(height, width, None, None))
        return replace(pair, msi_source=CutImage(cube, slice(0, height), slice(0, width)))

    def weight_map(self, pair: AlignedPair) -> xr.DataArray:
        """A lazy cube of one band on the pair's fine grid: how far the MSI is used, from 0 to 1, NaN where missing.

        `pair` is the one that the corrections were applied to.
        """
        grid = window_of_grid(pair.output_grid, pair.fine_rows, pair.fine_columns)
        weights = lazy_variable(WindowReader((1, grid.height, grid.width), FLOAT32, WeightReader(pair, self).read))
        names = ["weight of the MSI"]
        return make_cube(weights, band_names=names, nodata=np.nan, crs=grid.crs, transform=grid.transform)


NOTHING_TO_DO = Harmonisation()


@dataclass(frozen=True)
class HarmonisedReader:
    pair: AlignedPair
    harmonisation: Harmonisation

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        if self.harmonisation.agreement is None:
            return self._corrected((rows, columns))[1][bands]
        return self.reconciled(rows, columns)[0][bands]

    def reconciled(self, rows: slice, columns: slice) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The MSI (M, ...) and the weight with which it is used, NaN where it is missing."""
        observation, agreement = self.harmonisation.observation, self.harmonisation.agreement
        assert observation is not None and agreement is not None
        coarse, fine = self._surroundings((rows, columns), observation, HALO)
        near, _ = self._surroundings((rows, columns), observation, CORE_HALO)
        raw, corrected = (torch.from_numpy(image) for image in self._corrected(fine))
        hsi = torch.from_numpy(self.pair.usable_values(*coarse))
        local = observation.in_window(*((part[0].start, part[1].start) for part in (coarse, fine)))
        values, weight = reconcile(
            fill_missing(hsi),
            fill_missing(corrected),
            raw,
            local,
            agreement,
            _known_on_coarse_grid(hsi, corrected, local),
            relative(near, (coarse[0].start, coarse[1].start)),
        )
        if not all_finite(corrected):
            missing = ~torch.isfinite(corrected)
            values, weight = values.masked_fill(missing, torch.nan), weight.masked_fill(missing.all(0), torch.nan)
        inner = relative((rows, columns), (fine[0].start, fine[1].start))
        return values[:, *inner].numpy(), weight[inner].numpy()

    def _corrected(self, window: Place) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(M, ...) The recorded and the corrected MSI of a window, both warped."""
        offsets, source = self.harmonisation.offsets, self.pair.msi_source
        if offsets is None:
            raw = source.values(*window)
            return raw, self._radiometry(raw, (window[0].start, window[1].start))
        sizes = self.pair.fine_shape[1:]
        axes = [np.arange(part.start, part.stop, dtype=np.float64) for part in window]
        moves = offsets.at(*((axis + 0.5) / size for axis, size in zip(axes, sizes, strict=True)))
        targets = zip((axes[0][:, None], axes[1][None, :]), moves, sizes, strict=True)
        places = [(axis + move).clip(0, size - 1) for axis, move, size in targets]
        needed = [
            slice(max(0, math.floor(place.min()) - SURROUNDINGS), min(size, math.ceil(place.max()) + SURROUNDINGS + 1))
            for place, size in zip(places, sizes, strict=True)
        ]
        raw = source.values(needed[0], needed[1])
        corrected = self._radiometry(raw, (needed[0].start, needed[1].start))
        at = places[0] - needed[0].start, places[1] - needed[1].start
        nearest = tuple(np.rint(axis).astype(np.int64) for axis in at)
        return raw[:, *nearest], interpolated(corrected, at)

    def _radiometry(self, values: NDArray[np.float32], start: tuple[int, int]) -> NDArray[np.float32]:
        for correction in self.harmonisation.corrections:
            values = correction.apply(values, start)
        return values

    def _surroundings(self, window: Place, observation: Observation, halo: int) -> tuple[Place, Place]:
        """The coarse and the fine pixels within some coarse pixels of a window."""
        coarse, fine = [], []
        axes = zip(window, self.pair.coarse_shape[1:], self.pair.fine_shape[1:], observation.scale, strict=True)
        for (part, size, fine_size, scale), shift in zip(axes, observation.shift, strict=True):
            first = min(size - 1, max(0, math.floor((part.start - shift) / scale) - halo))
            last = min(size, max(first + 1, math.ceil((part.stop - shift) / scale) + halo))
            start = 0 if first == 0 else max(0, math.floor(first * scale + shift))
            stop = fine_size if last == size else min(fine_size, math.ceil(last * scale + shift))
            coarse.append(slice(first, last))
            fine.append(slice(min(start, part.start), max(stop, part.stop)))
        return (coarse[0], coarse[1]), (fine[0], fine[1])


@dataclass(frozen=True)
class WeightReader:
    pair: AlignedPair
    harmonisation: Harmonisation

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        reader = HarmonisedReader(self.pair, self.harmonisation)
        if self.harmonisation.agreement is not None:
            return reader.reconciled(rows, columns)[1][None][bands]
        values = reader.read(np.arange(self.pair.fine_shape[0]), rows, columns)
        return np.where(np.isfinite(values).any(axis=0), np.float32(1), np.float32(np.nan))[None][bands]


def _known_on_coarse_grid(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """(h, w) Coarse pixels that are known and see known fine pixels only."""
    if all_finite(hsi):
        known = torch.ones_like(hsi[0], dtype=torch.bool)
    else:
        finite = torch.isfinite(hsi)
        known = finite[finite.flatten(1).any(1)].all(0)
    if all_finite(msi):
        return known
    fine = torch.isfinite(msi).all(0)
    operator = observation.spatial_operator((msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2]))
    return known & (operator.apply(fine.double()) > ENOUGH_KNOWN)
