"""What a method must know of the whole scene, asked in a way that lets the method work on windows of it.

A method is written as a generator. It computes on one window, and wherever it needs something that belongs to the scene (a mean, a
covariance, a brightest value) it yields a `Question`: how to work out this window's share, and how shares become the answer.
`spectrum = yield from scene_mean(...)` reads like a call and returns the scene's mean, whoever answers:

    alone(method(pair))                   the window is the scene: it answers its own questions
    learned(of_window, windows)           the answers that some windows of a scene give together
    answered(method(window), answers)     one window of a scene whose answers are known; nothing is worked out anew

so tiles of a scene and the whole of it are the same code, and tiles share everything that must not change at their borders.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

Share = TypeVar("Share")
Answer = TypeVar("Answer")
Result = TypeVar("Result")
Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Question(Generic[Share, Answer]):
    share: Callable[[], Share]
    answer: Callable[[list[Share]], Answer]


SceneWise = Generator[Question[Any, Any], Any, Result]


def ask(share: Callable[[], Share], answer: Callable[[list[Share]], Answer]) -> SceneWise[Answer]:
    reply: Answer = yield Question(share, answer)
    return reply


def alone(method: SceneWise[Result]) -> Result:
    """The result on a window that is the whole scene."""
    try:
        question = next(method)
        while True:
            question = method.send(question.answer([question.share()]))
    except StopIteration as end:
        result: Result = end.value
        return result


def learned(of_window: Callable[[Piece], SceneWise[Any]], windows: Callable[[], Iterable[Piece]]) -> tuple[Any, ...]:
    """Every answer that the method asks for, from these windows together; they are gone through once per question.

    Only one window is held at a time: for each question the method begins anew on every window, with the answers so far.
    """
    answers: list[Any] = []
    while True:
        shares: list[Any] = []
        for piece in windows():
            question = _next_question(of_window(piece), answers)
            if question is None:
                return tuple(answers)
            shares.append(question.share())
            # The question itself must go: it holds everything that was worked out on this window.
            combine = question.answer
            del question
        answers.append(combine(shares))


def answered(method: SceneWise[Result], answers: Sequence[Any]) -> Result:
    """The result on one window of a scene whose answers were `learned`."""
    try:
        next(method)
        for answer in answers:
            method.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result
    raise AssertionError("the method asks for more than was learned")


def _next_question(method: SceneWise[Any], answers: Sequence[Any]) -> Question[Any, Any] | None:
    try:
        question = next(method)
        for answer in answers:
            question = method.send(answer)
    except StopIteration:
        return None
    return question


def scene_mean(share: Callable[[], tuple[Tensor, int]]) -> SceneWise[Tensor]:
    """The mean over all pixels of the scene; a window's share is its own mean and the number of its pixels."""
    return ask(share, _pooled_mean)


def scene_moments(image: Tensor) -> SceneWise[tuple[Tensor, Tensor]]:
    """Mean (B,) and covariance (B, B) over all pixels of the scene, float64, of an image (B, h, w)."""
    return ask(lambda: _moments(image), _pooled_moments)


def scene_range(image: Callable[[], Tensor]) -> SceneWise[tuple[Tensor, Tensor]]:
    """Lowest and highest value (B,) in the scene of each band of what the function gives on this window, (B, h, w)."""

    def share() -> tuple[Tensor, Tensor]:
        values = image()
        return values.amin((1, 2)), values.amax((1, 2))

    return ask(share, _pooled_range)


def scene_count(pixels: int) -> SceneWise[int]:
    """How many pixels the windows have together."""
    return ask(lambda: pixels, _total)


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
