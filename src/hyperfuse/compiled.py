"""Functions of compiled.c, which is compiled at installation where there is a C compiler; torch is the alternative.

Arrays are float32 without gradients. Shapes: C bands, p components, B regressors, Q keys, h w coarse, H W fine.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


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
        *((name, ctypes.c_void_p) for name in ("along", "neighbours", "weights", "matrix", "image", "mixed")),
    )


@cache
def library() -> ctypes.CDLL | None:
    """None where no compiler was found."""
    try:
        return ctypes.CDLL(str(Path(__file__).with_name("libcompiled.so")))
    except OSError:
        return None


def can_compute(*tensors: Tensor) -> bool:
    """Whether the functions on tensors are there and made for these."""
    import torch

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
    _in_threads("local_regression", task, height)
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
    _in_threads("weighted_sum", task, height)
    return total


def interpolate_and_mix(
    along: Tensor, neighbours: Tensor, weights: Tensor, matrix: Tensor, components: Tensor
) -> Tensor:
    """Rows interpolated between lines, and a mixture of components: (C, H, W).

    Parameters
    ----------
    along
        (C, n, W): lines of the coarse image, already interpolated along the columns.
    neighbours, weights
        (H, 4): the four lines around every row, and their weights.
    matrix
        (C, p)
    components
        (p, H, W), of which the columns are contiguous.
    """
    along, neighbours, weights, matrix = (each.contiguous() for each in (along, neighbours, weights, matrix))
    components = components if components.stride(2) == 1 else components.contiguous()
    (bands, lines, columns), rows = along.shape, len(neighbours)
    mixed = along.new_empty(bands, rows, columns)
    addresses = [each.data_ptr() for each in (along, neighbours, weights, matrix, components, mixed)]
    sizes = bands, rows, columns, len(components), lines, *components.stride()[:2]
    _in_threads("interpolate_and_mix", _Bands(*sizes, *addresses), rows)
    return mixed


Rounding = Callable[[NDArray[np.float32], float, NDArray[Any]], bool]


def rounding_to(dtype: np.dtype[Any], nodata: float | None) -> Rounding | None:
    """A function that stores `values / scale`, rounded, in an array of integers, both contiguous; None for other types.

    It returns False, and leaves nothing of use, where a number is missing, does not fit or equals nodata.
    """
    found = library()
    if found is None or dtype.name not in ("uint8", "int16", "uint16", "int32"):
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


def _in_threads(name: str, task: ctypes.Structure, rows: int) -> None:
    """Call a function on all rows, some in each of torch's threads."""
    import torch

    function: Callable[..., int] = getattr(library(), name)
    step = math.ceil(rows / torch.get_num_threads())

    def compute(top: int) -> int:
        return function(ctypes.byref(task), ctypes.c_int64(top), ctypes.c_int64(min(top + step, rows)))

    tops = range(0, rows, step)
    if len(tops) == 1:
        failed = compute(0)
    else:
        with ThreadPoolExecutor() as pool:
            failed = max(pool.map(compute, tops))
    if failed:
        raise MemoryError
