"""An HSI resampled so that all of it looks where one shift says, guided by the MSI.

Where the HSI's grid is turned against the MSI's, or its offset differs from place to place, no single shift describes
it, and the methods want one. Splines between coarse pixels blur what is sharp. By how much, the MSI m can tell: it
shows what the HSI's sensor would see, A m, both where it looked and where it shall look, so that

    hsi'(q) = spline(hsi)(q) + W [ (A m)(q) - spline(A m)(q) ]

with splines between the pixels as they are, and with W, which tells how the HSI's bands go along with the MSI's.

Shapes: C bands, M msi bands, n pixels, h w coarse, H W fine.

The HSI of a pair as its sensor took it, whole and unresampled, and where its georeference puts its pixels in the pair's
MSI.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter

from hyperfuse.fusion.pair import AlignedPair, CutImage
from hyperfuse.fusion.regrid import (
    DERIVED_TYPE,
    Window,
    derived_cube,
    filled_from_nearest,
    interpolated,
    needed_window,
    within,
)
from hyperfuse.fusion.regrid import PixelPositions as Positions
from hyperfuse.io.grid import Grid, grid_of, positions_in, window_of_grid
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.offset_field import OffsetField
from hyperfuse.physics.operators import TRUNCATION_SIGMAS


class TakenHsi(Protocol):
    @property
    def image(self) -> CutImage: ...

    def placed(self, pixels: Positions) -> Positions:
        """Positions of the image -> positions of the pair's MSI, by georeference alone."""

    def unplaced(self, fine: Positions) -> Positions:
        """The way back."""


@dataclass(frozen=True)
class ParallelHsi:
    image: CutImage
    first: tuple[int, int]
    """Which of its rows and columns is the pair's first."""
    scale: tuple[float, float]
    grid_shift: tuple[float, float]

    def placed(self, pixels: Positions) -> Positions:
        (row, column), scale, shift = self.first, self.scale, self.grid_shift
        return (pixels[0] - row + 0.5) * scale[0] - 0.5 + shift[0], (pixels[1] - column + 0.5) * scale[1] - 0.5 + shift[
            1
        ]

    def unplaced(self, fine: Positions) -> Positions:
        (row, column), scale, shift = self.first, self.scale, self.grid_shift
        return (fine[0] + 0.5 - shift[0]) / scale[0] - 0.5 + row, (fine[1] + 0.5 - shift[1]) / scale[1] - 0.5 + column


@dataclass(frozen=True)
class TurnedHsi:
    image: CutImage
    grid: Grid
    msi_grid: Grid

    def placed(self, pixels: Positions) -> Positions:
        return positions_in(self.msi_grid, self.grid, *pixels)

    def unplaced(self, fine: Positions) -> Positions:
        return positions_in(self.grid, self.msi_grid, *fine)


def hsi_as_taken(pair: AlignedPair) -> TakenHsi:
    if pair.turned_hsi is not None:
        grid = grid_of(pair.turned_hsi)
        image = CutImage(pair.turned_hsi, slice(0, grid.height), slice(0, grid.width))
        return TurnedHsi(image, grid, window_of_grid(pair.output_grid, pair.fine_rows, pair.fine_columns))
    cut = pair.hsi_source
    height, width = cut.cube.sizes["y"], cut.cube.sizes["x"]
    first_row = cut.rows.start if cut.row_direction > 0 else height - cut.rows.stop
    first_column = cut.columns.start if cut.column_direction > 0 else width - cut.columns.stop
    whole = replace(cut, rows=slice(0, height), columns=slice(0, width))
    return ParallelHsi(whole, (first_row, first_column), pair.scale, pair.grid_shift)


# Coarse pixels beyond the cut that can still be read, for the support of fine pixels at its edges.
BEYOND = 1
# From how many windows along each side of the scene W is learnt, and of how many coarse pixels besides what their
# splines need.
WINDOWS, WINDOW = 4, 8
FEWEST_PIXELS_PER_WEIGHT = 5
# Share of the MSI's variance that is added to it, so that bands which say the same share their weight.
RIDGE = 1e-5
FIXED_POINT_STEPS = 4


@dataclass(frozen=True)
class Warp:
    """Everything that must be known to straighten the HSI of a pair. Pairs are (y, x) in fine pixels."""

    misregistration: tuple[float, float]
    """How far beyond its georeference all of the HSI shall look."""
    sigma: tuple[float, float]
    field: OffsetField | None
    """How far it does look, where that differs from place to place; None: so far already, but from a turned grid."""
    weights: NDArray[np.float32] | None
    """(C, M) W; None: plain splines."""

    def warped(self, pair: AlignedPair) -> AlignedPair:
        """The same pair with an HSI that is straightened when it is read."""
        taken = hsi_as_taken(pair)
        _, height, width = pair.coarse_shape
        grid = Grid(height + 2 * BEYOND, width + 2 * BEYOND, None, None)
        cube = derived_cube(WarpedReader(pair, taken, self), taken.image.cube, grid)
        source = CutImage(cube, slice(BEYOND, BEYOND + height), slice(BEYOND, BEYOND + width))
        return replace(pair, hsi_source=source, turned_hsi=None)

    def notes(self) -> dict[str, Any]:
        """The same as plain numbers and tensors, to be kept; what single windows said is left out."""
        field = None
        if self.field is not None:
            arrays = {"offsets": torch.from_numpy(self.field.offsets), "errors": torch.from_numpy(self.field.errors)}
            field = {"fine_size": self.field.fine_size, "start": self.field.start, **arrays}
        weights = None if self.weights is None else torch.from_numpy(self.weights)
        return {"misregistration": self.misregistration, "sigma": self.sigma, "field": field, "weights": weights}

    @classmethod
    def from_notes(cls, notes: Mapping[str, Any]) -> Warp:
        field, weights = notes["field"], notes["weights"]
        if field is not None:
            arrays = {name: field[name].numpy() for name in ("offsets", "errors")}
            field = OffsetField(tuple(field["fine_size"]), tuple(field["start"]), **arrays, windows=(), used=())
        misregistration, sigma = tuple(notes["misregistration"]), tuple(notes["sigma"])
        return cls(misregistration, sigma, field, None if weights is None else weights.numpy())


def find_warp(pair: AlignedPair, observation: Observation, field: OffsetField | None = None) -> Warp:
    """How to make all of the HSI look where the observation's shift says."""
    plain = Warp(observation.misregistration, observation.sigma, field, None)
    return replace(plain, weights=_msi_weights(WarpedReader(pair, hsi_as_taken(pair), plain)))


@dataclass(frozen=True)
class WarpedReader:
    """The straightened HSI of a pair, with `BEYOND` more pixels on all sides."""

    pair: AlignedPair
    taken: TakenHsi
    how: Warp

    @property
    def shape(self) -> tuple[int, int, int]:
        bands, height, width = self.pair.coarse_shape
        return bands, height + 2 * BEYOND, width + 2 * BEYOND

    @property
    def dtype(self) -> np.dtype[Any]:
        return DERIVED_TYPE

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        looks = self.wanted_looks(rows, columns)
        pixels = self.pixels_looking_at(looks)
        needed = needed_window(pixels, self.taken.image.shape[1:])
        if needed is None:
            return np.full((len(bands), *looks[0].shape), np.nan, dtype=np.float32)
        values, at = self.taken.image.values(*needed, bands), within(pixels, needed)
        between = interpolated(values, at)
        if self.how.weights is None:
            return between
        seen, wanted = self.msi_seen_at(self.looks_of(needed), looks)
        # Where the HSI is missing, its splines run on neighbours; the MSI's must do so too, to show what that costs.
        seen[:, ~np.isfinite(values).any(axis=0)] = np.nan
        between += np.tensordot(self.how.weights[bands], np.nan_to_num(wanted - interpolated(seen, at)), 1)
        return between

    def wanted_looks(self, rows: slice, columns: slice) -> Positions:
        """At which fine positions the straightened pixels shall look."""
        pixels = _pixel_positions((rows, columns))
        (scale_y, scale_x), (shift_y, shift_x), (move_y, move_x) = (
            self.pair.scale,
            self.pair.grid_shift,
            self.how.misregistration,
        )
        y = (pixels[0] - BEYOND + 0.5) * scale_y - 0.5 + shift_y + move_y
        x = (pixels[1] - BEYOND + 0.5) * scale_x - 0.5 + shift_x + move_x
        return y, x

    def looks_of(self, window: Window) -> Positions:
        """At which fine positions the pixels of a window of the HSI look as it was taken."""
        rows, columns = self.taken.placed(_pixel_positions(window))
        down, right = self._offsets(rows, columns)
        return rows + down, columns + right

    def pixels_looking_at(self, looks: Positions) -> Positions:
        """Positions between the pixels of the HSI as it was taken. Offsets vary slowly: few steps find whose offset
        leads there.
        """
        rows, columns = looks
        for _ in range(FIXED_POINT_STEPS):
            down, right = self._offsets(rows, columns)
            rows, columns = looks[0] - down, looks[1] - right
        return self.taken.unplaced((rows, columns))

    def _offsets(self, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.how.field is not None:
            return self.how.field.at(rows, columns)
        return np.array(self.how.misregistration)[:, None, None]

    def msi_seen_at(self, *looks: Positions) -> list[NDArray[np.float32]]:
        """(M, ...) for each set of fine positions: what the HSI's sensor would see of the MSI there. The MSI's holes
        are filled.
        """
        window = self._msi_window(*looks)
        msi = filled_from_nearest(self.pair.msi_source.values(*window))
        blurred = gaussian_filter(msi, (0.0, *self.how.sigma), mode="nearest", truncate=TRUNCATION_SIGMAS)
        coefficients = [spline_filter(plane, 3, np.float64, mode="mirror") for plane in blurred]
        found = []
        for positions in looks:
            inside = [
                axis.clip(0, size - 1) for axis, size in zip(within(positions, window), msi.shape[1:], strict=True)
            ]
            planes = [map_coordinates(plane, inside, order=3, mode="mirror", prefilter=False) for plane in coefficients]
            found.append(np.stack(planes).astype(np.float32))
        return found

    def _msi_window(self, *looks: Positions) -> Window:
        """The part of the MSI that is seen from some fine positions."""
        parts = []
        for axis, (size, sigma) in enumerate(zip(self.pair.fine_shape[1:], self.how.sigma, strict=True)):
            halo = TRUNCATION_SIGMAS * sigma + 3
            first, last = (
                min(each[axis].min() for each in looks) - halo,
                max(each[axis].max() for each in looks) + halo,
            )
            start = min(max(0, math.floor(first)), size - 1)
            parts.append(slice(start, max(start + 1, min(size, math.ceil(last) + 1))))
        return parts[0], parts[1]


def _pixel_positions(window: Window) -> Positions:
    rows, columns = (np.arange(part.start, part.stop, dtype=np.float64) for part in window)
    grid = np.meshgrid(rows, columns, indexing="ij")
    return grid[0], grid[1]


def _msi_weights(reader: WarpedReader) -> NDArray[np.float32] | None:
    """(C, M) Slopes of the HSI's bands on the MSI's, as the HSI's sensor sees them, learnt from windows all over the
    scene.

    None where there are too few pixels to tell. Bands that are not usable have no slope.
    """
    usable = reader.pair.usable_bands
    spectra, seen = [], []
    for rows in _spread(reader.shape[1]):
        for columns in _spread(reader.shape[2]):
            found = _samples(reader, (rows, columns), np.flatnonzero(usable))
            spectra.append(found[0])
            seen.append(found[1])
    y, x = (np.concatenate(parts, axis=1).astype(np.float64) for parts in (spectra, seen))
    if x.shape[1] < FEWEST_PIXELS_PER_WEIGHT * (len(x) + 1):
        return None
    y, x = y - y.mean(axis=1, keepdims=True), x - x.mean(axis=1, keepdims=True)
    spread = x @ x.T
    ridge = RIDGE * np.trace(spread) / len(x) + 1e-300
    weights = np.zeros((len(usable), len(x)), dtype=np.float32)
    weights[usable] = np.linalg.solve(spread + ridge * np.eye(len(x)), x @ y.T).T
    return weights


def _samples(
    reader: WarpedReader, window: Window, bands: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(bands, n) and (M, n): spectra of the HSI as it was taken around a window, and the MSI as seen by the same
    pixels.
    """
    nothing = np.empty((len(bands), 0), np.float32), np.empty((reader.pair.fine_shape[0], 0), np.float32)
    needed = needed_window(reader.pixels_looking_at(reader.wanted_looks(*window)), reader.taken.image.shape[1:])
    if needed is None:
        return nothing
    values, looks = reader.taken.image.values(*needed, bands), reader.looks_of(needed)
    live = np.isfinite(values).any(axis=(1, 2))
    known = np.isfinite(values[live]).all(axis=0) if live.any() else np.zeros(values.shape[1:], bool)
    for axis, size in zip(looks, reader.pair.fine_shape[1:], strict=True):
        known &= (axis > 0) & (axis < size - 1)
    if not known.any():
        return nothing
    (seen,) = reader.msi_seen_at(looks)
    return np.nan_to_num(values[:, known]), seen[:, known]


def _spread(size: int) -> list[slice]:
    side = min(WINDOW, size)
    count = max(1, min(WINDOWS, size // side))
    starts = [round(index * (size - side) / max(1, count - 1)) for index in range(count)]
    return [slice(start, start + side) for start in starts]


# Below a hundredth of a pixel, interpolation would cost more than the shift does.
SMALLEST_MOVE = 0.01


def moved(fused: NDArray[np.float32], misregistration: tuple[float, float]) -> NDArray[np.float32]:
    """(C, H, W) -> the same, pixel (i, j) taken from (i, j) + misregistration by cubic splines; holes move by whole
    pixels.
    """
    if max(abs(distance) for distance in misregistration) < SMALLEST_MOVE:
        return fused
    back = [-distance for distance in misregistration]
    whole = fill_missing(torch.from_numpy(fused)).numpy()
    result = np.stack([spline_shift(band, back, order=3, mode="nearest") for band in whole])
    missing = np.isnan(fused)
    if missing.any():
        nearest = [round(distance) for distance in back]
        holes = np.stack([spline_shift(band.astype(np.uint8), nearest, order=0, mode="nearest") for band in missing])
        result[holes > 0] = np.nan
    return result
