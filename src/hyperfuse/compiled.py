"""Functions of compiled.c, which is compiled at installation where there is a C compiler; torch is the alternative.

Arrays are float32 without gradients. Shapes: C bands, p components, B regressors, Q keys, h w coarse, H W fine.
"""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

# The numbers that compiled.c knows types by.
STORED_TYPES = {"uint8": 0, "uint16": 1, "int16": 2, "float32": 3, "float64": 4}
LARGEST_SCALE = 1e33  # of integers that stay finite in single precision
MOST = 64  # keys, or inputs, of a local regression


class _Regression(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("height", "width", "fine_height", "fine_width")),
        *((name, ctypes.c_int64) for name in ("keys", "inputs", "outputs", "groups")),
        *((name, ctypes.c_void_p) for name in ("inputs_of", "coarse", "planes", "above", "beside")),
        *((name, ctypes.c_void_p) for name in ("rows", "columns", "ridge", "predicted")),
    )


class _Mixture(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("height", "width", "components", "planes", "images")),
        *((name, ctypes.c_void_p) for name in ("plane", "image", "mixing", "gains", "familiarity", "sum")),
    )


class _Bands(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("bands", "rows", "columns", "components", "lines", "plane", "row")),
        *((name, ctypes.c_int64) for name in ("target_plane", "target_row", "nodata", "instead")),
        *((name, ctypes.c_void_p) for name in ("along", "neighbours", "weights", "matrix", "image")),
        *((name, ctypes.c_void_p) for name in ("below", "modulation", "lowest")),
        *((name, ctypes.c_void_p) for name in ("factors", "planes", "target", "clipped")),
    )


class _Scaling(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("bands", "height", "width", "plane", "row", "type")),
        *(("values", ctypes.c_void_p), ("scales", ctypes.c_void_p)),
        *(("nodata", ctypes.c_double), ("scaled", ctypes.c_void_p)),
    )


class _Separable(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("height", "width", "out_height", "out_width")),
        *((name, ctypes.c_int64) for name in ("row_taps", "column_taps", "plane", "row")),
        *((name, ctypes.c_void_p) for name in ("row_first", "row_weights", "column_first", "column_weights")),
        *((name, ctypes.c_void_p) for name in ("images", "results")),
    )


class _Spline(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("planes", "height", "width", "points", "slopes")),
        *((name, ctypes.c_void_p) for name in ("coefficients", "rows", "columns", "results")),
    )


@cache
def library() -> ctypes.CDLL | None:
    """None where no compiler was found, or another source was compiled."""
    source = Path(__file__).with_suffix(".c")
    try:
        found = ctypes.CDLL(str(source.with_name("libcompiled.so")))
        digest = ctypes.c_uint32.in_dll(found, "source_digest").value
        return found if digest == zlib.crc32(source.read_bytes()) else None
    except (OSError, ValueError):
        return None


_LEFT_TO_TORCH: ContextVar[bool] = ContextVar("left_to_torch", default=False)


@contextmanager
def left_to_torch() -> Iterator[None]:
    """Use none of the functions on tensors, so that torch sees and counts all products."""
    token = _LEFT_TO_TORCH.set(True)
    try:
        yield
    finally:
        _LEFT_TO_TORCH.reset(token)


def can_compute(*tensors: Tensor) -> bool:
    """Whether the functions on tensors are there and made for these."""
    import torch

    if _LEFT_TO_TORCH.get():
        return False
    suitable = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in tensors)
    return suitable and library() is not None and not any(each.requires_grad for each in tensors)


def local_regression(
    coarse: Tensor,
    planes: Sequence[Tensor],
    log_weights: tuple[Tensor, Tensor],
    cells: tuple[Tensor, Tensor],
    ridge: Tensor,
    inputs_of: Sequence[int],
    keys: int,
) -> Tensor:
    """What `LocalRegression.predict` computes: (outputs, H, W).

    Parameters
    ----------
    coarse
        (h + 6, w + 6, F), see `LocalRegression._coarse`.
    planes
        Q + 2 + B images (H, W).
    log_weights
        (H, 7) and (W, 7), by the distance to the neighbours.
    cells
        (h + 1) and (w + 1): the first fine row and column of every coarse pixel.
    ridge
        (B, B).
    inputs_of
        How many inputs each group of outputs has.
    keys
        Q.
    """
    import torch

    count = len(ridge)
    outputs = coarse.shape[-1] - (keys + 3 + count + count * (count + 1) // 2 + 2)
    planes = [each.contiguous() for each in planes]
    addresses = _addresses(planes)
    predicted = planes[0].new_empty(outputs, *planes[0].shape)
    arrays = {
        "inputs_of": torch.tensor(inputs_of),
        "coarse": coarse.contiguous(),
        "above": log_weights[0].contiguous(),
        "beside": log_weights[1].contiguous(),
        "rows": cells[0],
        "columns": cells[1],
        "ridge": ridge.contiguous(),
        "predicted": predicted,
    }
    height, width = (len(each) - 1 for each in cells)
    sizes = height, width, *planes[0].shape, keys, count, outputs // len(inputs_of), len(inputs_of)
    pointers = {name: array.data_ptr() for name, array in arrays.items()}
    task = _Regression(*sizes, planes=ctypes.addressof(addresses), **pointers)
    _in_threads_of_torch("local_regression", task, height)
    return predicted


def weighted_sum(
    planes: Sequence[Tensor], images: Sequence[Tensor], mixing: Tensor, gains: Tensor, familiarity: Tensor
) -> Tensor:
    """Mix planes and images four times, smooth, and add: (p, H, W).

    With h a binomial filter of three pixels and f the familiarity of a pixel, the sum is
    f (plain + h (once + h twice)) + (1 - f) unfamiliar.

    Parameters
    ----------
    planes
        n images (H, W), of which every component gets its own mixture.
    images
        k images (p, H, W), of which it gets its own component.
    mixing, gains
        (4, p, n) and (4, p, k): the factors of plain, once, twice and unfamiliar.
    familiarity
        (H, W)
    """
    planes, images = [each.contiguous() for each in planes], [each.contiguous() for each in images]
    mixing, gains, familiarity = (each.to(familiarity).contiguous() for each in (mixing, gains, familiarity))
    height, width = familiarity.shape
    total = familiarity.new_empty(mixing.shape[1], height, width)
    addresses = _addresses(planes), _addresses(images)
    pointers = [ctypes.addressof(each) for each in addresses]
    pointers += [each.data_ptr() for each in (mixing, gains, familiarity, total)]
    task = _Mixture(height, width, len(total), len(planes), len(images), *pointers)
    if not _in_threads_of_torch("weighted_sum", task, height):
        raise MemoryError(f"no memory for rows of {len(total)} x {width} numbers")
    return total


class Taps(NamedTuple):
    """A matrix whose rows have few entries that are not 0, next to each other."""

    first: Tensor  # (n,), of the columns with entries
    weights: Tensor  # (n, K), float32


def combine_neighbours(rows: Taps, columns: Taps, image: Tensor) -> Tensor:
    """rows @ image @ columns.T of (..., h, w) in single precision."""
    planes = image.reshape(-1, *image.shape[-2:])
    planes = planes if planes.stride(2) == 1 else planes.contiguous()
    size = len(rows.first), len(columns.first)
    result = planes.new_empty(len(planes), *size)
    taps = rows.weights.shape[1], columns.weights.shape[1]
    arrays = (*rows, *columns, planes, result)
    pointers = [each.data_ptr() for each in arrays]
    task = _Separable(*planes.shape[1:], *size, *taps, *planes.stride()[:2], *pointers)
    if not _in_threads_of_torch("combine_neighbours", task, len(planes)):
        raise MemoryError(f"no memory for {planes.shape[1]} x {size[1]} numbers")
    return result.reshape(*image.shape[:-2], *size)


def sample_spline(
    coefficients: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64], *, slopes: bool
) -> NDArray[np.float64]:
    """Cubic B-splines (M, H, W), mirrored at their borders, at points (n,) inside: (M, n); with slopes (3, M, n)."""
    arrays = [np.ascontiguousarray(each, dtype=np.float64) for each in (coefficients, rows, columns)]
    results = np.empty((3 if slopes else 1, len(coefficients), len(rows)))
    addresses = [each.ctypes.data for each in (*arrays, results)]
    in_threads("sample_spline", _Spline(*coefficients.shape, len(rows), slopes, *addresses), len(rows), 1)
    return results if slopes else results[0]


class Storage(NamedTuple):
    """How values are stored as integers: multiplied, rounded, clipped and kept apart from nodata."""

    factors: Tensor  # (C,), float64
    nodata: int | None

    @classmethod
    def of(cls, dtype: np.dtype[Any], scale: NDArray[Any], offset: NDArray[Any], nodata: float | None) -> Self | None:
        """None where a compiled function cannot do it."""
        import torch

        known = dtype.isnative and dtype.name in ("uint8", "uint16", "int16")
        if not known or offset.any() or not scale.all():
            return None
        return cls(torch.from_numpy(1 / scale.astype(np.float64)), None if nodata is None else int(nodata))

    def of_bands(self, bands: Sequence[int]) -> Storage:
        return self._replace(factors=self.factors[list(bands)])


class Bicubic(NamedTuple):
    """A coarse image (C, h, w) that is interpolated along the columns already, (C, h, W)."""

    along: Tensor
    neighbours: Tensor  # (H, 4): the four coarse rows around every fine one
    weights: Tensor  # (H, 4): theirs


class Modulation(NamedTuple):
    """What mixtures are divided by where an image is multiplied by a ratio, kept between 1/4 and 4."""

    components: Tensor  # (p, H, W)
    numbers: Tensor  # (C, 3): a constant of both mixtures, the trust in the ratio, what the denominator must exceed


def mix_bands_into(
    target: NDArray[Any],
    smooth: Bicubic,
    matrix: Tensor,
    components: Tensor,
    modulation: Modulation | None = None,
    lowest: Tensor | None = None,
    storage: Storage | None = None,
    planes: Sequence[int] | None = None,
) -> int | None:
    """Store an interpolated image plus a mixture of components, or times a ratio; return how many values were clipped.

    None, and nothing of use in the target, where a number to be rounded is missing.

    Parameters
    ----------
    target
        (n, H, W) of float32, or as `storage` says, of which the columns are contiguous.
    matrix
        (C, p)
    components
        (p, H, W)
    lowest
        (C,): smaller values are raised to it.
    planes
        (C,): the planes of the target; by default all, in their order.
    """
    import torch

    components = components if components.stride(2) == 1 else components.contiguous()
    bands, (height, width) = len(matrix), target.shape[1:]
    assert target.strides[2] == target.itemsize
    strides = [target.strides[0] // target.itemsize, target.strides[1] // target.itemsize]
    limits = (0, 0) if storage is None else (np.iinfo(target.dtype).min, np.iinfo(target.dtype).max)
    nodata = None if storage is None else storage.nodata
    outside = limits[0] - 1
    clipped = ctypes.c_int64(0)
    arrays = [
        *(smooth.along, smooth.neighbours, smooth.weights, matrix),
        components,
        *((matrix, matrix) if modulation is None else modulation),
        torch.full((bands,), -math.inf) if lowest is None else lowest.to(matrix),
        torch.ones(bands, dtype=torch.float64) if storage is None else storage.factors,
        torch.arange(bands) if planes is None else torch.tensor(planes),
    ]
    arrays = [each if each is components else each.contiguous() for each in arrays]
    task = _Bands(
        *(bands, height, width, len(components), smooth.along.shape[1], *components.stride()[:2], *strides),
        *((outside, outside) if nodata is None else (nodata, nodata + 1 if nodata < limits[1] else nodata - 1)),
        *(each.data_ptr() for each in arrays),
        *(target.ctypes.data, ctypes.addressof(clipped)),
    )
    name = "float32" if storage is None else target.dtype.name
    function = f"{'mix' if modulation is None else 'modulate'}_to_{name}"
    return clipped.value if _in_threads_of_torch(function, task, height) else None


def scaled(values: NDArray[Any], scale: NDArray[Any], nodata: float | None) -> NDArray[np.float32] | None:
    """Integers (C, H, W) times the scale (C,) of each band, NaN where nodata; None where torch or numpy must do it."""
    kind = STORED_TYPES.get(values.dtype.name)
    if library() is None or kind is None or values.dtype.kind == "f" or not (abs(scale) < LARGEST_SCALE).all():
        return None
    if not values.size or values.strides[2] != values.itemsize or not values.dtype.isnative:
        return None
    scale, result = np.ascontiguousarray(scale, dtype=np.float64), np.empty(values.shape, np.float32)
    strides = [stride // values.itemsize for stride in values.strides[:2]]
    addresses = values.ctypes.data, scale.ctypes.data
    number = math.nan if nodata is None else nodata
    in_threads(
        "scale_values", _Scaling(*values.shape, *strides, kind, *addresses, number, result.ctypes.data), len(scale), 1
    )
    return result


Rounding = Callable[[NDArray[np.float32], float, NDArray[Any]], bool]


def rounding_to(dtype: np.dtype[Any], nodata: float | None) -> Rounding | None:
    """A function that stores `values / scale`, rounded, in an array of integers, both contiguous; None for other types.

    It returns False, and leaves nothing of use, where a number is missing, does not fit or equals nodata.
    """
    found = library()
    if found is None or not dtype.isnative or dtype.name not in ("uint8", "int16", "uint16", "int32"):
        return None
    function: Callable[..., int] = getattr(found, f"round_to_{dtype.name}")
    limits = np.iinfo(dtype)
    numbers = [ctypes.c_double(each) for each in (limits.min, limits.max, math.nan if nodata is None else nodata)]

    def store(values: NDArray[np.float32], scale: float, stored: NDArray[Any]) -> bool:
        addresses = ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(stored.ctypes.data)
        return not function(*addresses, ctypes.c_int64(values.size), ctypes.c_double(1 / scale), *numbers)

    return store


def _addresses(arrays: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(arrays))(*(each.data_ptr() for each in arrays))


def in_threads(name: str, task: ctypes.Structure, rows: int, threads: int) -> bool:
    """Call a function on all rows, some in each thread: whether it succeeded on all."""
    if not rows:
        return True
    function: Callable[..., int] = getattr(library(), name)
    step = math.ceil(rows / threads)

    def compute(top: int) -> int:
        return function(ctypes.byref(task), ctypes.c_int64(top), ctypes.c_int64(min(top + step, rows)))

    tops = range(0, rows, step)
    if len(tops) == 1:
        return not compute(0)
    with ThreadPoolExecutor(len(tops)) as pool:
        return not any(pool.map(compute, tops))


def _in_threads_of_torch(name: str, task: ctypes.Structure, rows: int) -> bool:
    import torch

    return in_threads(name, task, rows, torch.get_num_threads())
