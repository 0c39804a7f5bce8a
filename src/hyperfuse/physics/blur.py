"""A reference seen by both sensors, one window at a time, so that memory holds the outputs and a few windows, never the
reference.

Shapes: C bands, M msi bands, h w coarse, H W fine.

    hsi[c] = rows @ reference[c] @ columns.T         msi[m] = sum_c weights[m, c] reference[c]

Windows come in strips of full width, top to bottom. A window is blurred along x at once; its rows, shorter by the
scale, wait until a coarse row has all the fine rows it looks at. Every pixel of the reference is read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy import sparse

from hyperfuse.io.cube import iterate_windows, physical_values
from hyperfuse.physics.psf import Crop, psf_taps
from hyperfuse.progress import progress

FloatArray = NDArray[np.float64]

WINDOW_BYTES = 32 * 2**20
BLOCK_COLUMNS = 256
# A coarse pixel that sees more than this share of missing fine pixels is missing itself; below it, the rest stand in.
TOLERATED_MISSING = 0.01


@dataclass(frozen=True)
class Taps:
    """Blur and decimation along one axis: (coarse, fine) sparse weights, and the first and last fine pixel each coarse
    one sees.
    """

    weights: sparse.csr_array
    first: NDArray[np.int64]
    last: NDArray[np.int64]


def axis_taps(fine_size: int, coarse_size: int, scale: float, sigma: float, shift: float) -> Taps:
    indices, weights = (tensor.numpy() for tensor in psf_taps(fine_size, coarse_size, scale, sigma, shift))
    coarse = np.repeat(np.arange(coarse_size), indices.shape[1])
    matrix = sparse.csr_array((weights.ravel(), (coarse, indices.ravel())), shape=(coarse_size, fine_size))
    return Taps(matrix, indices.min(axis=1), indices.max(axis=1))


def observe(
    reference: xr.DataArray, crop: Crop, rows: Taps, columns: Taps, srf: FloatArray
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The HSI (C, h, w) and the MSI (M, H, W) of a reference (C, H, W) in physical values, NaN where there is no data."""
    bands = reference.sizes["band"]
    hsi = np.empty((bands, *crop.coarse_size), dtype=np.float32)
    msi = np.empty((srf.shape[0], *crop.fine_size), dtype=np.float32)
    waiting = _WaitingRows(rows, bands, crop.coarse_size[1])
    windows = list(iterate_windows(reference, WINDOW_BYTES))
    with progress("Simulating", len(windows)) as advance:
        for (start, stop), strip in groupby(windows, key=lambda window: (window[0].start, window[0].stop)):
            values = np.zeros((bands, stop - start, crop.coarse_size[1]))
            missing: FloatArray | None = None
            for window_rows, window_columns in strip:
                window = physical_values(reference, window_rows, window_columns, dtype=np.float64)
                gaps = np.isnan(window)
                has_gaps = bool(gaps.any())
                if has_gaps:
                    window[gaps] = 0.0
                msi[:, window_rows, window_columns] = _mix_bands(window, gaps if has_gaps else None, srf)
                _add_along_x(window, columns, window_columns.start, values)
                if has_gaps:
                    missing = np.zeros_like(values) if missing is None else missing
                    _add_along_x(gaps.astype(np.float64), columns, window_columns.start, missing)
                advance(1)
            for coarse_row, image_row in waiting.add(values, missing):
                hsi[:, coarse_row] = image_row
    return hsi, msi


def _mix_bands(window: FloatArray, gaps: NDArray[np.bool_] | None, srf: FloatArray) -> FloatArray:
    """(C, r, c) -> (M, r, c); missing where a band with weight is missing."""
    mixed: FloatArray = np.tensordot(srf, window, axes=1)
    if gaps is not None:
        for msi_band, weights in enumerate(srf):
            mixed[msi_band][gaps[weights != 0].any(axis=0)] = np.nan
    return mixed


def _add_along_x(window: FloatArray, columns: Taps, start: int, strip: FloatArray) -> None:
    """What a window (C, r, c) that starts at column `start` contributes to its strip (C, r, w)."""
    # One dense product of a narrow block runs at the speed of the matrix library, several times faster than a sparse
    # one.
    for offset in range(0, window.shape[2], BLOCK_COLUMNS):
        block = window[:, :, offset : offset + BLOCK_COLUMNS]
        left, right = start + offset, start + offset + block.shape[2]
        seen_by = np.flatnonzero((columns.first < right) & (columns.last >= left))
        if seen_by.size:
            coarse = slice(int(seen_by[0]), int(seen_by[-1]) + 1)
            product = block.reshape(-1, block.shape[2]) @ columns.weights[coarse, left:right].toarray().T
            strip[:, :, coarse] += product.reshape(*block.shape[:2], -1)


def _along_y(weights: FloatArray, fine: FloatArray) -> FloatArray:
    """(rows, r) and (C, r, w) -> (C, rows, w)."""
    return np.moveaxis(np.tensordot(weights, fine, axes=(1, 1)), 0, 1)


@dataclass
class _WaitingRows:
    """Fine rows, already coarse along x, until every coarse row that looks at them is done."""

    taps: Taps
    bands: int
    width: int
    start: int = 0
    next_row: int = 0
    values: FloatArray = field(init=False)
    missing: FloatArray | None = None

    def __post_init__(self) -> None:
        self.values = np.zeros((self.bands, 0, self.width))

    def add(self, values: FloatArray, missing: FloatArray | None) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """Take the next fine rows; yields the coarse rows that are now complete, as a slice and (C, rows, w)."""
        if missing is not None or self.missing is not None:
            before = np.zeros_like(self.values) if self.missing is None else self.missing
            self.missing = np.concatenate([before, np.zeros_like(values) if missing is None else missing], axis=1)
        self.values = np.concatenate([self.values, values], axis=1)
        end = self.start + self.values.shape[1]
        ready = self.next_row
        while ready < self.taps.last.size and self.taps.last[ready] < end:
            ready += 1
        if ready > self.next_row:
            done = slice(self.next_row, ready)
            yield done, self._finished(done, end)
            self.next_row = ready
            self._forget()

    def _finished(self, done: slice, end: int) -> NDArray[np.float32]:
        weights = self.taps.weights[done, self.start : end].toarray()
        seen = _along_y(weights, self.values)
        if self.missing is not None:
            lost = _along_y(weights, self.missing)
            with np.errstate(invalid="ignore", divide="ignore"):
                seen = np.where(lost > TOLERATED_MISSING, np.nan, seen / (1 - lost))
        image: NDArray[np.float32] = seen.astype(np.float32)
        return image

    def _forget(self) -> None:
        still_needed = self.taps.first[self.next_row :].min(initial=self.start + self.values.shape[1])
        drop = int(still_needed) - self.start
        self.values = self.values[:, drop:].copy()
        if self.missing is not None:
            kept = self.missing[:, drop:]
            self.missing = kept.copy() if kept.any() else None
        self.start += drop
