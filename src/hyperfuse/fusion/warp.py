"""Warp an HSI onto a grid that one shift describes, guided by the MSI.

Where the HSI's grid is rotated against the MSI's, or its offset varies over the scene, no single shift describes the
pair, but the methods need one. Spline interpolation between coarse pixels blurs. The MSI m shows by how much: A m is
what the HSI's sensor would record of it, at the original and at the new positions q, so that

    hsi'(q) = spline(hsi)(q) + W [ (A m)(q) - spline(A m)(q) ]

where W is the regression of the HSI's bands on the MSI's. Bands that lie at different places are brought to one
place in the same way. Shapes: C bands, M msi bands, n pixels, h w coarse, H W fine.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates, spline_filter

from hyperfuse.fusion.pair import AlignedPair, CutImage
from hyperfuse.fusion.regrid import PixelPositions as Positions
from hyperfuse.fusion.regrid import (
    Window,
    derived_cube,
    filled_from_nearest,
    interpolated,
    needed_window,
    within,
)
from hyperfuse.io.cube import spread_slices
from hyperfuse.io.grid import Grid, grid_of, positions_in, window_of_grid
from hyperfuse.physics.observation import TRUNCATION_SIGMAS, Observation
from hyperfuse.physics.offset_field import OffsetField
from hyperfuse.physics.register import BandDisplacement


def original_hsi(pair: AlignedPair) -> tuple[CutImage, Grid, Grid]:
    """The HSI before any resampling, its grid, and that of the pair's MSI, by georeference alone."""
    if pair.rotated_hsi is not None:
        grid = grid_of(pair.rotated_hsi)
        image = CutImage(pair.rotated_hsi, slice(0, grid.height), slice(0, grid.width))
        return image, grid, window_of_grid(pair.output_grid, pair.fine_rows, pair.fine_columns)
    cut = pair.hsi_source
    height, width = cut.cube.sizes["y"], cut.cube.sizes["x"]
    first_row = cut.rows.start if cut.row_direction > 0 else height - cut.rows.stop
    first_column = cut.columns.start if cut.column_direction > 0 else width - cut.columns.stop
    # In fine pixels from the first corner of the pair's MSI.
    to_fine = Affine.translation(*pair.grid_shift[::-1]) @ Affine.scale(*pair.scale[::-1])
    grid = Grid(height, width, to_fine @ Affine.translation(-first_column, -first_row), None)
    whole = replace(cut, rows=slice(0, height), columns=slice(0, width))
    return whole, grid, Grid(*pair.fine_shape[1:], Affine.identity(), None)


# Coarse pixels outside the cut that can still be read, to support fine pixels at its edges.
BORDER = 1
# W is fitted on this many windows along each side, of this many coarse pixels plus the support of the splines.
WINDOWS, WINDOW = 4, 8
FEWEST_PIXELS_PER_WEIGHT = 5
# Ridge as a share of the MSI's variance, so that redundant bands share their weight.
RIDGE = 1e-5
FIXED_POINT_STEPS = 4
STEPS_PER_COARSE_PIXEL = 16  # of the places of displaced bands


@dataclass(frozen=True)
class Warp:
    """All parameters of a warp. Pairs are (y, x) in fine pixels."""

    misregistration: tuple[float, float]
    """The shift against the georeference that the warped HSI has everywhere."""
    sigma: tuple[float, float]
    field: OffsetField | None
    """The shift that the HSI has, where it varies; None for an HSI that is only rotated."""
    weights: NDArray[np.float32] | None
    """(C, M) W; None for plain splines."""
    band_offsets: NDArray[np.float64] | None = None
    """(C, 2) Where each band lies beside the shift, in steps that many bands share; None for all in one place."""

    def warped(self, pair: AlignedPair) -> AlignedPair:
        """The pair with an HSI that is warped when it is read."""
        reader = WarpedReader(pair, self, *original_hsi(pair))
        _, height, width = pair.coarse_shape
        grid = Grid(height + 2 * BORDER, width + 2 * BORDER, None, None)
        cube = derived_cube(reader.read, reader.image.cube, grid)
        source = CutImage(cube, slice(BORDER, BORDER + height), slice(BORDER, BORDER + width))
        return replace(pair, hsi_source=source, rotated_hsi=None)


def find_warp(pair: AlignedPair, observation: Observation, field: OffsetField | None = None) -> Warp:
    """The warp that gives all of the HSI the shift of the observation."""
    plain = Warp(observation.misregistration, observation.sigma, field, None)
    return replace(plain, weights=_msi_weights(WarpedReader(pair, plain, *original_hsi(pair))))


def find_band_warp(pair: AlignedPair, observation: Observation, displacement: BandDisplacement) -> Warp:
    """The warp that brings the bands of an HSI to their mean place."""
    y, x = (move + mean for move, mean in zip(observation.misregistration, displacement.mean, strict=True))
    step = np.array(pair.scale) / STEPS_PER_COARSE_PIXEL
    offsets = np.zeros((len(pair.usable_bands), 2))
    offsets[pair.usable_bands] = np.rint(displacement.of_bands(int(pair.usable_bands.sum())) / step) * step
    plain = Warp((y, x), observation.sigma, None, None, offsets)
    reader = WarpedReader(pair, plain, *original_hsi(pair))
    weights = np.zeros((len(offsets), pair.fine_shape[0]), dtype=np.float32)
    for part, bands in reader.parts(np.arange(len(offsets))):
        found = _msi_weights(part)
        if found is None:
            return plain
        weights[bands] = found[bands]
    return replace(plain, weights=weights)


@dataclass(frozen=True)
class WarpedReader:
    """The warped HSI of a pair, with `BORDER` more pixels on all sides."""

    pair: AlignedPair
    warp: Warp
    image: CutImage
    grid: Grid
    msi_grid: Grid

    move: tuple[float, float] = (0.0, 0.0)
    """Where the bands that are read lie beside the shift."""

    def parts(self, bands: NDArray[np.int64]) -> list[tuple[WarpedReader, NDArray[np.int64]]]:
        """Readers of the bands that lie in one place, and which of the bands these are."""
        assert self.warp.band_offsets is not None
        moves, which = np.unique(self.warp.band_offsets[bands], axis=0, return_inverse=True)
        one_place = replace(self.warp, band_offsets=None)
        return [
            (replace(self, warp=one_place, move=(move[0], move[1])), np.flatnonzero(which.ravel() == index))
            for index, move in enumerate(moves)
        ]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        if self.warp.band_offsets is not None:
            result = np.empty((len(bands), rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
            for part, which in self.parts(bands):
                result[which] = part.read(bands[which], rows, columns)
            return result
        positions = self.target_positions(rows, columns)
        pixels = self.source_pixels(positions)
        needed = needed_window(pixels, self.image.shape[1:])
        if needed is None:
            return np.full((len(bands), *positions[0].shape), np.nan, dtype=np.float32)
        values, at = self.image.values(*needed, bands), within(pixels, needed)
        between = interpolated(values, at)
        if self.warp.weights is None:
            return between
        seen, wanted = self.blurred_msi_at(self.source_positions(needed), positions)
        # Where the HSI is missing, its splines use neighbours; the MSI's must too, for the same blur.
        seen[:, ~np.isfinite(values).any(axis=0)] = np.nan
        between += np.tensordot(self.warp.weights[bands], np.nan_to_num(wanted - interpolated(seen, at)), 1)
        return between

    def target_positions(self, rows: slice, columns: slice) -> Positions:
        """The fine positions of the warped pixels."""
        pixels = _pixel_positions((rows, columns))
        axes = zip(pixels, self.pair.scale, self.pair.grid_shift, self.warp.misregistration, strict=True)
        y, x = ((axis - BORDER + 0.5) * scale - 0.5 + shift + move for axis, scale, shift, move in axes)
        return y, x

    def source_positions(self, window: Window) -> Positions:
        """The fine positions of the original pixels of a window of the HSI."""
        rows, columns = positions_in(self.msi_grid, self.grid, *_pixel_positions(window))
        down, right = self._offsets(rows, columns)
        return rows + down, columns + right

    def source_pixels(self, positions: Positions) -> Positions:
        """Positions in the original HSI; offsets vary slowly, so a few fixed-point steps invert them."""
        rows, columns = positions
        for _ in range(FIXED_POINT_STEPS):
            down, right = self._offsets(rows, columns)
            rows, columns = positions[0] - down, positions[1] - right
        return positions_in(self.grid, self.msi_grid, rows, columns)

    def _offsets(self, rows: NDArray[np.float64], columns: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.warp.field is not None:
            return self.warp.field.at(rows, columns)
        return (np.array(self.warp.misregistration) + self.move)[:, None, None]

    def blurred_msi_at(self, *sets: Positions) -> list[NDArray[np.float32]]:
        """(M, ...) for each set of fine positions: the MSI under the HSI's PSF, with holes filled."""
        window = self._msi_window(*sets)
        msi = filled_from_nearest(self.pair.msi_source.values(*window))
        blurred = gaussian_filter(msi, (0.0, *self.warp.sigma), mode="nearest", truncate=TRUNCATION_SIGMAS)
        coefficients = [spline_filter(plane, 3, np.float64, mode="mirror") for plane in blurred]
        found = []
        for positions in sets:
            axes = zip(within(positions, window), msi.shape[1:], strict=True)
            inside = [axis.clip(0, size - 1) for axis, size in axes]
            planes = [map_coordinates(plane, inside, order=3, mode="mirror", prefilter=False) for plane in coefficients]
            found.append(np.stack(planes).astype(np.float32))
        return found

    def _msi_window(self, *sets: Positions) -> Window:
        """The part of the MSI under the PSF at some fine positions."""
        parts = []
        for axis, (size, sigma) in enumerate(zip(self.pair.fine_shape[1:], self.warp.sigma, strict=True)):
            halo = TRUNCATION_SIGMAS * sigma + 3
            first, last = (min(each[axis].min() for each in sets) - halo, max(each[axis].max() for each in sets) + halo)
            start = min(max(0, math.floor(first)), size - 1)
            parts.append(slice(start, max(start + 1, min(size, math.ceil(last) + 1))))
        return parts[0], parts[1]


def _pixel_positions(window: Window) -> Positions:
    rows, columns = (np.arange(part.start, part.stop, dtype=np.float64) for part in window)
    grid = np.meshgrid(rows, columns, indexing="ij")
    return grid[0], grid[1]


def _msi_weights(reader: WarpedReader) -> NDArray[np.float32] | None:
    """(C, M) Slopes of the HSI's bands on the MSI's under the PSF, fitted on windows spread over the scene.

    None where there are too few pixels. Unusable bands have slope 0.
    """
    usable = reader.pair.usable_bands
    spectra, seen = [], []
    rows, columns = (spread_slices(size + 2 * BORDER, WINDOW, WINDOWS) for size in reader.pair.coarse_shape[1:])
    for window in itertools.product(rows, columns):
        if (samples := _samples(reader, window, np.flatnonzero(usable))) is not None:
            spectra.append(samples[0])
            seen.append(samples[1])
    if sum(part.shape[1] for part in seen) < FEWEST_PIXELS_PER_WEIGHT * (reader.pair.fine_shape[0] + 1):
        return None
    y, x = (np.concatenate(parts, axis=1).astype(np.float64) for parts in (spectra, seen))
    y, x = y - y.mean(axis=1, keepdims=True), x - x.mean(axis=1, keepdims=True)
    spread = x @ x.T
    ridge = RIDGE * np.trace(spread) / len(x) + 1e-300
    weights = np.zeros((len(usable), len(x)), dtype=np.float32)
    weights[usable] = np.linalg.solve(spread + ridge * np.eye(len(x)), x @ y.T).T
    return weights


def _samples(
    reader: WarpedReader, window: Window, bands: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """(bands, n) and (M, n): spectra of the original HSI around a window, and the MSI under the PSF of these pixels."""
    needed = needed_window(reader.source_pixels(reader.target_positions(*window)), reader.image.shape[1:])
    if needed is None:
        return None
    values, positions = reader.image.values(*needed, bands), reader.source_positions(needed)
    live = np.isfinite(values).any(axis=(1, 2))
    known = np.isfinite(values[live]).all(axis=0) if live.any() else np.zeros(values.shape[1:], bool)
    for axis, size in zip(positions, reader.pair.fine_shape[1:], strict=True):
        known &= (axis > 0) & (axis < size - 1)
    if not known.any():
        return None
    (seen,) = reader.blurred_msi_at(positions)
    return np.nan_to_num(values[:, known]), seen[:, known]
