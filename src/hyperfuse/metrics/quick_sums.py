"""The sums of `sums.py` in one compiled pass over values as they are stored, where compiled.c was compiled.

Shapes: stored values (band, y, x) of both images in a window, fused first.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyperfuse import compiled

Floats = NDArray[np.float64]


class _Comparison(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("bands", "height", "width", "top", "bottom", "left", "right")),
        *(("types", ctypes.c_int64 * 2), ("values", ctypes.c_void_p * 2), ("scales", ctypes.c_void_p * 2)),
        *(("offsets", ctypes.c_void_p * 2), ("nodata", ctypes.c_double * 2)),
        *((name, ctypes.c_double) for name in ("c1", "c2", "flat")),
        *((name, ctypes.c_void_p) for name in ("taps", "found", "difference", "total")),
    )


class StoredWindow(NamedTuple):
    """Values (band, y, x) as they are stored; a physical value is stored * scale + offset, missing where nodata."""

    values: NDArray[Any]
    scale: Floats  # (band,)
    offset: Floats  # (band,)
    nodata: float | None

    @property
    def is_known(self) -> bool:
        dtype = self.values.dtype
        return compiled.library() is not None and dtype.isnative and dtype.name in compiled.STORED_TYPES


@dataclass(frozen=True)
class BandSums:
    """Sums of each band (band,): values of both images and of the reference, over the core; complete windows."""

    count: NDArray[np.int64]
    reference_count: NDArray[np.int64]
    windows: NDArray[np.int64]
    squared_error: Floats
    reference: Floats
    squared_reference: Floats
    ssim: Floats
    uiqi: Floats


def band_sums(
    images: Sequence[StoredWindow], core: tuple[slice, slice], taps: Floats, constants: tuple[float, float, float]
) -> BandSums:
    """Compare a window of two images; `taps` are weights along an axis, the constants c1, c2 and what is flat."""
    task, found, kept = _task(images, core, taps, constants)
    if not compiled.in_threads("compare_bands", task, len(found), _processors()):
        raise MemoryError("no memory for a few rows")
    del kept
    count, squared_error, reference, squared_reference, reference_count, windows, ssim, uiqi = found.T
    counted, known, complete = (each.astype(np.int64) for each in (count, reference_count, windows))
    return BandSums(counted, known, complete, squared_error, reference, squared_reference, ssim, uiqi)


def angle_parts(images: Sequence[StoredWindow], core: tuple[slice, slice]) -> tuple[Floats, Floats]:
    """|u - v|^2 and |u|^2 + |v|^2 of the unit spectra of the core, (y, x); NaN where they share no band."""
    task, _, kept = _task(images, core)
    rows, columns = core
    difference, total = (np.empty((rows.stop - rows.start, columns.stop - columns.start)) for _ in range(2))
    task.difference, task.total = difference.ctypes.data, total.ctypes.data
    if not compiled.in_threads("compare_spectra", task, len(difference), _processors()):
        raise MemoryError("no memory for a few rows")
    del kept
    return difference, total


def value_range(image: StoredWindow) -> tuple[float, float]:
    """The smallest and the largest value; infinity and minus infinity where there is none."""
    _, height, width = image.values.shape
    task, found, kept = _task([image, image], (slice(0, height), slice(0, width)))
    compiled.in_threads("find_range", task, len(found), _processors())
    del kept
    return float(found[:, 0].min()), float(found[:, 1].max())


def _task(
    images: Sequence[StoredWindow],
    core: tuple[slice, slice],
    taps: Floats | None = None,
    constants: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> tuple[_Comparison, Floats, list[NDArray[Any]]]:
    """With the array for what is found, and those that must live as long as the task."""
    shape, (rows, columns) = images[0].values.shape, core
    found = np.empty((shape[0], 8))
    values = [np.ascontiguousarray(image.values) for image in images]
    scales, offsets = (
        [np.ascontiguousarray(getattr(image, name), dtype=np.float64) for image in images]
        for name in ("scale", "offset")
    )
    weights = np.empty(0) if taps is None else np.ascontiguousarray(taps)
    task = _Comparison(*shape, rows.start, rows.stop, columns.start, columns.stop)
    for index, image in enumerate(images):
        task.types[index] = compiled.STORED_TYPES[image.values.dtype.name]
        task.values[index] = values[index].ctypes.data
        task.scales[index], task.offsets[index] = scales[index].ctypes.data, offsets[index].ctypes.data
        task.nodata[index] = math.nan if image.nodata is None else image.nodata
    task.c1, task.c2, task.flat = constants
    task.taps, task.found = weights.ctypes.data, found.ctypes.data
    return task, found, [*values, *scales, *offsets, weights]


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
