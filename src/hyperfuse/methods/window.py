"""What a method works on: a window of a pair with its missing pixels (NaN), and statistics of the whole scene.

Shapes: C bands, M msi bands, h w coarse, H W fine.

A method is a generator. It computes on one window, and wherever it needs something that belongs to the scene (a mean,
a covariance, a maximum) it yields a `SceneStatistic`: how to compute this window's part, and how to combine the parts
of all windows. `mean = yield from scene_mean(...)` reads like a call and returns the mean of the scene:

    run_on_scene(method(pair))                      the window is the scene
    gather_statistics(method, windows)              every statistic of a scene, from some of its windows
    run_with_statistics(method(window), statistics) one window of a scene whose statistics are known

Tiles and whole scenes therefore run the same code, and tiles share everything that must not change at their borders.
Missing pixels are handled once around all methods: filled before (`missing.py`), masked again after.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hyperfuse.errors import ValueRangeError
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.resample import CENTRE_SLACK, Placement, fine_positions, upsample_bicubic

Part = TypeVar("Part")
Value = TypeVar("Value")
Result = TypeVar("Result")
Other = TypeVar("Other")

Place = tuple[slice, slice]
MOSTLY_MISSING = 0.5  # share of the msi bands that must be known, or more
EVERYWHERE: Place = (slice(None), slice(None))
INTERPOLATION_HALO = 2  # coarse pixels on each side that bicubic interpolation reads

# Costly statistics come after all the work on fine pixels; of MANY_WINDOWS or more, every fourth window is enough.
WINDOWS_PER_COSTLY_ONE = 4
MANY_WINDOWS = 36


FusedCore = Callable[[Place], Tensor]
"""What a method makes of a window: any part of its core, (C, rows, columns). All bands of a large core at once would
take most of the memory, and most of the time to move through it.
"""


@dataclass(frozen=True)
class SceneStatistic(Generic[Part, Value]):
    """`part` computes what one window contributes, `combine` turns the parts of all windows into the statistic."""

    part: Callable[[], Part]
    combine: Callable[[list[Part]], Value]
    costly: bool = False


SceneComputation = Generator[SceneStatistic[Any, Any], Any, Result]
"""What a method returns: a generator that yields the statistics it needs and returns its result."""


def scene_statistic(
    part: Callable[[], Part], combine: Callable[[list[Part]], Value], *, costly: bool = False
) -> SceneComputation[Value]:
    """Yield one statistic and return its value over the scene."""
    value: Value = yield SceneStatistic(part, combine, costly)
    return value


def in_one_pass(*computations: SceneComputation[Any]) -> SceneComputation[tuple[Any, ...]]:
    """Run computations of one statistic each as one, which saves passes over the windows."""
    statistics = [next(each) for each in computations]
    values = yield SceneStatistic(
        lambda: [each.part() for each in statistics],
        lambda parts: [each.combine(list(own)) for each, own in zip(statistics, zip(*parts, strict=True), strict=True)],
        any(each.costly for each in statistics),
    )
    return tuple(_last_step(each, value) for each, value in zip(computations, values, strict=True))


def run_on_scene(method: SceneComputation[Result]) -> Result:
    """Run a method on a window that is the whole scene.

    Examples
    --------
    >>> def centred(image):
    ...     mean, _ = yield from scene_moments(image)
    ...     return image - mean[:, None, None]
    >>> run_on_scene(centred(torch.tensor([[[1.0, 3.0]]]))).tolist()
    [[[-1.0, 1.0]]]
    """
    try:
        statistic = next(method)
        while True:
            statistic = method.send(statistic.combine([statistic.part()]))
    except StopIteration as end:
        result: Result = end.value
        return result


def gather_statistics(
    method: Callable[[Other], SceneComputation[Any]],
    windows: Sequence[Callable[[], Other]],
    most_held: int | None = None,
) -> tuple[Any, ...]:
    """Compute every statistic that a method needs, in the order in which it needs them.

    The method runs on all windows in step, each read by one of `windows`. Of these, `most_held` fit into memory with
    what the method has computed on them so far; on the others it starts again for each statistic.
    """
    values: list[Any] = [None]  # starts a generator
    indices: Sequence[int] = range(len(windows))
    held = indices if most_held is None else indices[:most_held]
    runs: dict[int, SceneComputation[Any]] = {}

    def next_statistic(index: int) -> SceneStatistic[Any, Any] | None:
        run, known = runs.get(index), values[-1:]
        if run is None:
            run, known = method(windows[index]()), values
            if index in held:
                runs[index] = run
        try:
            return [run.send(value) for value in known][-1]
        except StopIteration:
            return None

    def part_of(index: int) -> Any:
        statistic = next_statistic(index)
        assert statistic is not None
        return statistic.part()

    at_once = torch.get_num_threads() if len(held) == len(windows) else 1
    with ThreadPoolExecutor(at_once) as pool, one_torch_thread():
        while True:
            statistic = next_statistic(0)
            if statistic is None:
                return tuple(values[1:])
            if statistic.costly and len(indices) >= MANY_WINDOWS:
                indices = indices[::WINDOWS_PER_COSTLY_ONE]
                for left_out in runs.keys() - set(indices):
                    del runs[left_out]  # and the memory that it holds
            values.append(statistic.combine([statistic.part(), *pool.map(part_of, indices[1:])]))


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Compute in one thread of torch, so that sums do not depend on the number of processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_with_statistics(method: SceneComputation[Result], statistics: Sequence[Any]) -> Result:
    """Run a method on one window of a scene whose statistics were gathered."""
    first, *others = (None, *statistics)  # None starts a generator
    while others:
        method.send(first)
        first, *others = others
    return _last_step(method, first)


def _last_step(method: SceneComputation[Result], value: Any) -> Result:
    try:
        method.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("the method needs more statistics than were gathered")


def scene_count(pixels: int) -> SceneComputation[int]:
    """Count the pixels of all windows."""
    return scene_statistic(lambda: pixels, lambda parts: sum(parts))


def scene_mean(part: Callable[[], tuple[Tensor, int]], *, costly: bool = False) -> SceneComputation[Tensor]:
    """Average over all pixels of the scene; a window's part is its own mean and the number of its pixels."""
    return scene_statistic(part, pooled_mean, costly=costly)


def scene_moments(image: Tensor) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Mean (B,) and covariance (B, B) over all pixels of the scene, float64, of an image (B, h, w)."""

    def part() -> tuple[Tensor, Tensor, int]:
        spectra = image.flatten(1).double()
        mean = spectra.mean(1)
        centred = spectra - mean[:, None]
        return mean, centred @ centred.T / spectra.shape[1], spectra.shape[1]

    return scene_statistic(part, _pooled_moments)


def scene_range(image: Callable[[], Tensor]) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Smallest and largest value (B,) in the scene of each band of the (B, h, w) that the function gives here."""
    return scene_statistic(lambda: image().flatten(1).aminmax(dim=1), pooled_range)


def pooled_mean(parts: list[tuple[Tensor, int]]) -> Tensor:
    if len(parts) == 1:
        return parts[0][0]
    total = sum(count for _, count in parts)
    return torch.stack([mean * (count / total) for mean, count in parts]).sum(0)


def _pooled_moments(parts: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Chan, Golub and LeVeque 1983: covariances within windows plus that of their means."""
    if len(parts) == 1:
        return parts[0][:2]
    mean = pooled_mean([(mean, count) for mean, _, count in parts])
    within = [(spread + torch.outer(own - mean, own - mean), count) for own, spread, count in parts]
    return mean, pooled_mean(within)


def pooled_range(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    smallest, largest = zip(*parts, strict=True)
    return torch.stack(smallest).amin(0), torch.stack(largest).amax(0)


@dataclass(frozen=True)
class Window:
    """hsi (C, h, w) and msi (M, H, W), with the observation as it is seen from the window's own corner.

    The cores are the fine pixels to fuse and the coarse pixels under them. Around them lies the halo, at whose outer
    border the images end although the scene does not: no statistics are taken there.
    """

    hsi: Tensor
    msi: Tensor
    observation: Observation
    coarse_core: Place = EVERYWHERE
    fine_core: Place = EVERYWHERE
    fine_counted: Place | None = None
    """The fine pixels that statistics are taken of, where more of them are fused; None is the core."""
    msi_weight: Tensor | None = None
    """(H, W) How far the msi is used, from 0 to 1, NaN where it is missing; None is 1."""

    @property
    def coarse_size(self) -> tuple[int, int]:
        return self.hsi.shape[1], self.hsi.shape[2]

    @property
    def fine_size(self) -> tuple[int, int]:
        return self.msi.shape[1], self.msi.shape[2]

    def coarse(self, image: Tensor) -> Tensor:
        """Crop an image on the coarse grid to the core."""
        return image[..., self.coarse_core[0], self.coarse_core[1]]

    def fine(self, image: Tensor) -> Tensor:
        """Crop an image on the fine grid to the core."""
        return image[..., self.fine_core[0], self.fine_core[1]]

    def counted(self, image: Tensor) -> Tensor:
        """Crop an image on the fine grid to what statistics are taken of."""
        rows, columns = self.fine_counted or self.fine_core
        return image[..., rows, columns]

    def every_second_counted(self, image: Tensor) -> Tensor:
        """Every second of these pixels along both axes, the same ones in every window of a scene."""
        bounds = _bounds(self.fine_counted or self.fine_core, self.fine_size)
        rows, columns = (slice(start + start % 2, stop, 2) for start, stop in bounds)
        return image[..., rows, columns]

    def widened(self, fine_core: Place = EVERYWHERE) -> Window:
        """The same window with a larger core, some of which other windows hold, too."""
        return replace(self, fine_core=fine_core, fine_counted=self.fine_counted or self.fine_core)

    @property
    def coarse_pixels(self) -> int:
        """The number of coarse pixels in the core."""
        return self.coarse(self.hsi)[0].numel()

    @property
    def core_placement(self) -> tuple[Placement, tuple[int, int]]:
        """Where the fine pixels of the core lie on the window's coarse grid, and how many there are."""
        (top, bottom), (left, right) = _bounds(self.fine_core, self.fine_size)
        placement = self.observation.placement
        in_core = Placement(placement.rows.seen_from(top, 0), placement.columns.seen_from(left, 0))
        return in_core, (bottom - top, right - left)

    def at(self, part: Place) -> Window:
        """The same window with a part of its core, counted from the core's corner, as the core."""
        bounds = _bounds(self.fine_core, self.fine_size)
        spans = [(first, axis.indices(last - first)) for axis, (first, last) in zip(part, bounds, strict=True)]
        rows, columns = (slice(first + start, first + stop) for first, (start, stop, _) in spans)
        return replace(self, fine_core=(rows, columns))

    def upsample_to_core(self, coarse: Tensor) -> Tensor:
        """Interpolate (..., h, w) at the fine pixels of the core."""
        cut = self.near_core(INTERPOLATION_HALO)
        placement, size = cut.window(self).core_placement
        return upsample_bicubic(cut.of_coarse(coarse), size, placement)

    def nearest_in_core(self, coarse: Tensor) -> Tensor:
        """Take (..., h, w) at the coarse pixel nearest to each fine pixel of the core."""
        placement, size = self.core_placement
        axes = zip((placement.rows, placement.columns), size, self.coarse_size, strict=True)
        rows, columns = (fine_positions(axis, fine).round().long().clamp(0, coarse - 1) for axis, fine, coarse in axes)
        return coarse[..., rows, :][..., columns]

    def near_core(self, halo: int) -> Cut:
        """The part within `halo` coarse pixels of the fine core."""
        cores, scale, shift = _bounds(self.fine_core, self.fine_size), self.observation.scale, self.observation.shift
        axes = zip(cores, self.coarse_size, self.fine_size, scale, shift, strict=True)
        (rows, fine_rows, _), (columns, fine_columns, _) = (near_on_axis(*axis, halo) for axis in axes)
        return Cut((rows, columns), (fine_rows, fine_columns))


@dataclass(frozen=True)
class Cut:
    """A part of a window, given on both grids."""

    coarse: Place
    fine: Place

    def window(self, window: Window) -> Window:
        """Crop a window, cores and observation included."""
        return Window(
            self.of_coarse(window.hsi),
            self.of_fine(window.msi),
            window.observation.in_window(*((rows.start, columns.start) for rows, columns in (self.coarse, self.fine))),
            _inside(window.coarse_core, self.coarse, window.coarse_size),
            _inside(window.fine_core, self.fine, window.fine_size),
            window.fine_counted and _inside(window.fine_counted, self.fine, window.fine_size),
            None if window.msi_weight is None else self.of_fine(window.msi_weight),
        )

    def of_coarse(self, image: Tensor) -> Tensor:
        return image[..., self.coarse[0], self.coarse[1]]

    def of_fine(self, image: Tensor) -> Tensor:
        return image[..., self.fine[0], self.fine[1]]


def _bounds(core: Place, size: tuple[int, int]) -> list[tuple[int, int]]:
    """First and last (exclusive) index of the core along both axes."""
    return [part.indices(length)[:2] for part, length in zip(core, size, strict=True)]


def near_on_axis(
    core: tuple[int, int],
    coarse_size: int,
    fine_size: int,
    scale: float,
    shift: float,
    halo: int,
) -> tuple[slice, slice, slice]:
    """Along one axis: what lies within `halo` coarse pixels of some fine ones, and the coarse pixels under these.

    Both parts begin at even pixels, so that what takes every second pixel takes the same ones in every window.
    """
    under = [min(max(math.floor((fine + 0.5 - shift) / scale), 0), coarse_size - 1) for fine in (core[0], core[1] - 1)]
    first, last = max(0, under[0] - halo) // 2 * 2, min(coarse_size, under[1] + 1 + halo)
    # Fine pixels whose centres lie on these coarse ones, so that at a whole scale each of those has as many of them; at
    # the ends of the images everything that is left of the fine one belongs to it.
    start, stop = (math.ceil(edge * scale + shift - 0.5 - CENTRE_SLACK) for edge in (first, last))
    start = 0 if first == 0 else max(0, start)
    stop = fine_size if last == coarse_size else min(fine_size, stop)
    # Pixels outside the coarse image, and windows without a halo, still need themselves.
    return slice(first, last), slice(min(start, core[0]) // 2 * 2, max(stop, core[1])), slice(under[0], under[1] + 1)


def _inside(core: Place, part: Place, size: tuple[int, int]) -> Place:
    """A core as it is seen from the corner of the part."""
    rows, columns = (
        slice(max(0, start - cut.start), min(cut.stop, stop) - cut.start)
        for (start, stop), cut in zip(_bounds(core, size), part, strict=True)
    )
    return rows, columns


def all_finite(image: Tensor) -> bool:
    """Whether no value is NaN or infinite: one pass over the image usually tells, by its sum."""
    return math.isfinite(float(image.sum())) or bool(torch.isfinite(image).all())


def mask_missing(fused: Tensor, window: Window) -> Tensor:
    """Set the core of a fused window to NaN: all bands where most msi bands are NaN, each band where its hsi pixel is.

    A single msi band that equals nodata, such as 0 in a dark pixel of 8 bit, was filled from its surroundings.
    """
    near = window.near_core(INTERPOLATION_HALO).window(window)
    if not all_finite(near.hsi):
        fused = fused.masked_fill(near.nearest_in_core(~torch.isfinite(near.hsi)), torch.nan)
    msi = near.fine(near.msi)
    if all_finite(msi):
        return fused
    return fused.masked_fill(torch.isfinite(msi).double().mean(0) <= MOSTLY_MISSING, torch.nan)


def raise_negative(fused: Tensor, window: Window) -> Tensor:
    """Raise negative values of the core to minus the noise of their band where the hsi pixel is not negative."""
    near = window.near_core(INTERPOLATION_HALO).window(window)
    raised = fused.maximum(-window.observation.hsi_noise.to(fused)[:, None, None])
    if bool(near.hsi.amin() >= 0):
        return raised
    return torch.where(near.nearest_in_core(near.hsi >= 0), raised, fused)


def in_parts(fused: Tensor) -> FusedCore:
    """A core that was computed as a whole."""
    return lambda part: fused[:, *part]


def usable_msi_bands(window: Window) -> SceneComputation[tuple[Tensor, bool]]:
    """Find the msi bands that vary and return True, or those with any value and False where none varies."""
    msi = window.counted(window.msi)

    def part() -> tuple[Tensor, Tensor]:
        known = torch.isfinite(msi)
        return msi.masked_fill(~known, torch.inf).amin((1, 2)), msi.masked_fill(~known, -torch.inf).amax((1, 2))

    def combine(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, bool]:
        smallest, largest = pooled_range(parts)
        filled, varying = largest >= smallest, largest > smallest
        if not bool(filled.any()):
            raise ValueRangeError("an msi without a single valid pixel", "pixels with data", "check its nodata value")
        if not bool(varying.any()):
            warnings.warn("the msi is constant and adds nothing: the hsi is interpolated", stacklevel=2)
            return filled.nonzero()[:, 0], False
        return varying.nonzero()[:, 0], True

    return scene_statistic(part, combine)
