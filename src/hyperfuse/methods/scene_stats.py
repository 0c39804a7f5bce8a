"""What a method must know of the whole scene, asked in a way that lets the method work on windows of it.

A method is written as a generator. It computes on one window, and wherever it needs something that belongs to the scene
(a mean, a covariance, a brightest value) it yields a `Question`: how to work out this window's share, and how shares
become the answer. `spectrum = yield from scene_mean(...)` reads like a call and returns the scene's mean, whoever
answers:

    run_on_scene(method(pair))          the window is the scene: it answers its own questions
    learned(of_window, windows)           the answers that some windows of a scene give together
    answered(method(window), answers)     one window of a scene whose answers are known; nothing is worked out anew

so tiles of a scene and the whole of it are the same code, and tiles share everything that must not change at their
borders.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Share = TypeVar("Share")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
Piece = TypeVar("Piece")


# Of many windows that answer cheap questions, one in so many answers costly ones, which are asked after all the fine
# work.
WINDOWS_PER_COSTLY_ONE = 4
MANY_WINDOWS = 36


@dataclass(frozen=True)
class SceneStatistic(Generic[Share, Answer]):
    share: Callable[[], Share]
    answer: Callable[[list[Share]], Answer]
    costly: bool = False


SceneComputation = Generator[SceneStatistic[Any, Any], Any, Result]


def scene_statistic(
    share: Callable[[], Share], answer: Callable[[list[Share]], Answer], *, costly: bool = False
) -> SceneComputation[Answer]:
    reply: Answer = yield SceneStatistic(share, answer, costly)
    return reply


def in_one_pass(one: SceneComputation[Result], other: SceneComputation[Piece]) -> SceneComputation[tuple[Result, Piece]]:
    """Two that ask one question each, asked as one: windows are gone through once less."""
    first, second = next(one), next(other)
    replies = yield SceneStatistic(
        lambda: (first.share(), second.share()),
        lambda shares: (first.answer([share[0] for share in shares]), second.answer([share[1] for share in shares])),
        first.costly or second.costly,
    )
    return _ended(one, replies[0]), _ended(other, replies[1])


def run_on_scene(method: SceneComputation[Result]) -> Result:
    """The result on a window that is the whole scene."""
    try:
        question = next(method)
        while True:
            question = method.send(question.answer([question.share()]))
    except StopIteration as end:
        result: Result = end.value
        return result


def gather_statistics(of_window: Callable[[Piece], SceneComputation[Any]], windows: Sequence[Callable[[], Piece]]) -> tuple[Any, ...]:
    """Every answer that the method asks for, from these windows together, each read when it is needed.

    Only one window is worked on at a time: for each question the method begins anew on every window, with the answers
    so far.
    """
    answers: list[Any] = []
    while True:
        question = _next_question(of_window(windows[0]()), answers)
        if question is None:
            return tuple(answers)
        shares, combine = [question.share()], question.answer
        step = WINDOWS_PER_COSTLY_ONE if question.costly and len(windows) >= MANY_WINDOWS else 1
        # The question itself must go: it holds everything that was worked out on its window.
        del question
        shares += [_share(of_window(window()), answers) for window in windows[step::step]]
        answers.append(combine(shares))


def run_with_statistics(method: SceneComputation[Result], answers: Sequence[Any]) -> Result:
    """The result on one window of a scene whose answers were `learned`."""
    try:
        next(method)
        for answer in answers:
            method.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("the method asks for more than was learned")


def _share(method: SceneComputation[Any], answers: Sequence[Any]) -> Any:
    question = _next_question(method, answers)
    assert question is not None
    return question.share()


def _ended(method: SceneComputation[Result], reply: Any) -> Result:
    try:
        method.send(reply)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("more than one question")


def _next_question(method: SceneComputation[Any], answers: Sequence[Any]) -> SceneStatistic[Any, Any] | None:
    try:
        question = next(method)
        for answer in answers:
            question = method.send(answer)
    except StopIteration:
        return None
    return question


def scene_mean(share: Callable[[], tuple[Tensor, int]]) -> SceneComputation[Tensor]:
    """The mean over all pixels of the scene; a window's share is its own mean and the number of its pixels."""
    mean, _ = yield from scene_mean_and_count(share)
    return mean


def scene_mean_and_count(
    share: Callable[[], tuple[Tensor, int]], *, costly: bool = False
) -> SceneComputation[tuple[Tensor, int]]:
    """The same, and how many pixels the windows have together."""
    return scene_statistic(share, lambda shares: (_pooled_mean(shares), sum(count for _, count in shares)), costly=costly)


def scene_moments(image: Tensor) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Mean (B,) and covariance (B, B) over all pixels of the scene, float64, of an image (B, h, w)."""
    return scene_statistic(lambda: _moments(image), _pooled_moments)


def scene_range(image: Callable[[], Tensor]) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Lowest and highest value (B,) in the scene of each band of what the function gives on this window, (B, h, w)."""

    def share() -> tuple[Tensor, Tensor]:
        values = image()
        return values.amin((1, 2)), values.amax((1, 2))

    return scene_statistic(share, _pooled_range)


def scene_count(pixels: int) -> SceneComputation[int]:
    """How many pixels the windows have together."""
    return scene_statistic(lambda: pixels, _total)


def _total(shares: list[int]) -> int:
    return sum(shares)


def _pooled_mean(shares: list[tuple[Tensor, int]]) -> Tensor:
    if len(shares) == 1:
        return shares[0][0]
    total = sum(count for _, count in shares)
    return torch.stack([mean * (count / total) for mean, count in shares]).sum(0)


def _moments(image: Tensor) -> tuple[Tensor, Tensor, int]:
    spectra = image.flatten(1).double()
    mean = spectra.mean(1)
    centred = spectra - mean[:, None]
    return mean, centred @ centred.T / spectra.shape[1], spectra.shape[1]


def _pooled_moments(shares: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Chan, Golub and LeVeque 1983: covariances within windows plus that of their means."""
    if len(shares) == 1:
        return shares[0][:2]
    mean = _pooled_mean([(mean, count) for mean, _, count in shares])
    within = [(spread + torch.outer(own - mean, own - mean), count) for own, spread, count in shares]
    return mean, _pooled_mean(within)


def _pooled_range(shares: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    lowest, highest = zip(*shares, strict=True)
    return torch.stack(lowest).amin(0), torch.stack(highest).amax(0)
