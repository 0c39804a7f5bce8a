"""Statistics of the whole scene for methods that work on windows of it.

A method is a generator. It computes on one window, and wherever it needs something that belongs to the scene (a mean,
a covariance, a maximum) it yields a `SceneStatistic`: how to compute this window's part, and how to combine the parts
of all windows. `mean = yield from scene_mean(...)` reads like a call and returns the mean of the scene:

    run_on_scene(method(pair))                      the window is the scene
    gather_statistics(method, windows)              every statistic of a scene, from some of its windows
    run_with_statistics(method(window), statistics) one window of a scene whose statistics are known

Tiles and whole scenes therefore run the same code, and tiles share everything that must not change at their borders.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part")
Value = TypeVar("Value")
Result = TypeVar("Result")
Other = TypeVar("Other")


# Costly statistics come after all the work on fine pixels; of MANY_WINDOWS or more, every fourth window is enough.
WINDOWS_PER_COSTLY_ONE = 4
MANY_WINDOWS = 36


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
    with_values = zip(computations, values, strict=True)
    return tuple(run_with_statistics(each, [value], started=True) for each, value in with_values)


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
    method: Callable[[Other], SceneComputation[Any]], windows: Sequence[Callable[[], Other]]
) -> tuple[Any, ...]:
    """Compute every statistic that a method needs, in the order in which it needs them.

    Only one window is held at a time, read by one of `windows`: for each statistic the method starts again on every
    window, with the statistics found so far.
    """
    values: list[Any] = []
    while True:
        statistic = _next_statistic(method(windows[0]()), values)
        if statistic is None:
            return tuple(values)
        parts, combine = [statistic.part()], statistic.combine
        step = WINDOWS_PER_COSTLY_ONE if statistic.costly and len(windows) >= MANY_WINDOWS else 1
        del statistic  # it holds everything that was computed on its window
        for window in windows[step::step]:
            same = _next_statistic(method(window()), values)
            assert same is not None
            parts.append(same.part())
            del same
        values.append(combine(parts))


def run_with_statistics(
    method: SceneComputation[Result], statistics: Sequence[Any], *, started: bool = False
) -> Result:
    """Run a method on one window of a scene whose statistics were gathered."""
    try:
        if not started:
            next(method)
        for value in statistics:
            method.send(value)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("the method needs more statistics than were gathered")


def _next_statistic(method: SceneComputation[Any], values: Sequence[Any]) -> SceneStatistic[Any, Any] | None:
    """The first statistic whose value is not known, None if the method returns before it needs one."""
    try:
        statistic = next(method)
        for value in values:
            statistic = method.send(value)
    except StopIteration:
        return None
    return statistic


def scene_count(pixels: int) -> SceneComputation[int]:
    """Count the pixels of all windows."""
    return scene_statistic(lambda: pixels, lambda parts: sum(parts))


def scene_mean(part: Callable[[], tuple[Tensor, int]], *, costly: bool = False) -> SceneComputation[Tensor]:
    """Average over all pixels of the scene; a window's part is its own mean and the number of its pixels."""
    return scene_statistic(part, _pooled_mean, costly=costly)


def scene_moments(image: Tensor) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Mean (B,) and covariance (B, B) over all pixels of the scene, float64, of an image (B, h, w)."""
    return scene_statistic(lambda: _moments(image), _pooled_moments)


def scene_range(image: Callable[[], Tensor]) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Smallest and largest value (B,) in the scene of each band of the (B, h, w) that the function gives here."""
    return scene_statistic(lambda: image().flatten(1).aminmax(dim=1), pooled_range)


def _pooled_mean(parts: list[tuple[Tensor, int]]) -> Tensor:
    if len(parts) == 1:
        return parts[0][0]
    total = sum(count for _, count in parts)
    return torch.stack([mean * (count / total) for mean, count in parts]).sum(0)


def _moments(image: Tensor) -> tuple[Tensor, Tensor, int]:
    spectra = image.flatten(1).double()
    mean = spectra.mean(1)
    centred = spectra - mean[:, None]
    return mean, centred @ centred.T / spectra.shape[1], spectra.shape[1]


def _pooled_moments(parts: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Chan, Golub and LeVeque 1983: covariances within windows plus that of their means."""
    if len(parts) == 1:
        return parts[0][:2]
    mean = _pooled_mean([(mean, count) for mean, _, count in parts])
    within = [(spread + torch.outer(own - mean, own - mean), count) for own, spread, count in parts]
    return mean, _pooled_mean(within)


def pooled_range(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    smallest, largest = zip(*parts, strict=True)
    return torch.stack(smallest).amin(0), torch.stack(largest).amax(0)
