"""The gains of `universal`'s network, fitted on thousands of pairs while the rest of it stays as it is.

How far each prediction is trusted is decided by a few thousand weights from a few statistics. With a handful of pairs
in each step of the training these weights never settle. But the squared error of the fused image is quadratic in the
gains: once the predictions of a pair are known, one small matrix for each component tells the error of any gains, and
steps of many pairs cost next to nothing.

Shapes: N pairs, p components, G gains (of predictions at all their smoothings, and where they are unfamiliar), H W
fine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.data.sampler import Bucket, draw_batch
from hyperfuse.errors import TrainingError
from hyperfuse.methods.fuse import FEWEST_PIXELS
from hyperfuse.methods.pair_model import prior_from_error
from hyperfuse.methods.run import prepare_pair
from hyperfuse.methods.scene_stats import SceneComputation, run_on_scene
from hyperfuse.methods.universal import MOST_COMPONENTS, guided_predictions
from hyperfuse.methods.window import Window
from hyperfuse.models.prior import (
    COMPONENT_STATISTICS,
    LIKE_LOCAL_FUSE,
    NO_SMOOTHING,
    PREDICTIONS,
    SMOOTHINGS,
    Prediction,
    PriorNetwork,
)
from hyperfuse.physics.observation import Observation
from hyperfuse.progress import progress
from hyperfuse.training.experiment import Experiment, GainFitting
from hyperfuse.training.objective import assumed_observations

GAINS = SMOOTHINGS * PREDICTIONS + PREDICTIONS  # of familiar pixels, and of unfamiliar ones
AS_LOCAL_FUSE = [*LIKE_LOCAL_FUSE, *NO_SMOOTHING, *LIKE_LOCAL_FUSE]
# Few scenes have unfamiliar pixels: between what is learned of them and local FUSE.
KEPT_OF_UNFAMILIAR = 0.5
LEAST_DAMPING = 1e-6
SMALLEST_ERROR = 1e-20
CLIP_NORM = 1.0


@dataclass(frozen=True)
class Lesson:
    """Of one pair: what its gains are decided from, and what their error is."""

    statistics: Tensor  # (p, 18)
    numbers: Tensor  # (5,)
    products: Tensor  # (p, G + 1, G + 1), of every prediction and of the truth, as far as the hsi cannot correct them


def fit_gains(
    network: PriorNetwork,
    experiment: Experiment,
    buckets: Sequence[Bucket],
    first_draw: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> bool:
    """In place, on draws from `first_draw` on; whether it came to an end."""
    settings = experiment.gains
    assert settings is not None
    network.zero_gains()  # so that what is fitted does not depend on what was there
    lessons: list[Lesson] = []
    with progress("Pairs for the gains", total=settings.draws) as advance:
        for draw in range(first_draw, first_draw + settings.draws):
            if interrupted():
                return False
            lessons += _lessons(network, experiment, buckets, draw)
            advance(1)
    if not lessons:
        raise TrainingError(
            f"[gains], but none of {settings.draws} pairs has {FEWEST_PIXELS} coarse pixels",
            "pairs that the network is made for",
            "train with larger patches or at smaller scales, or leave [gains] out",
        )
    torch.manual_seed(experiment.seed)
    fit_to_lessons(network, lessons, settings)
    return True


def _lessons(network: PriorNetwork, experiment: Experiment, buckets: Sequence[Bucket], draw: int) -> list[Lesson]:
    """One, or none of a pair that is fused without the network."""
    batch = draw_batch(buckets, experiment.simulation, seed=experiment.seed, draw=draw, batch_size=1)
    (observation,) = assumed_observations(batch.srf, batch.scale, batch.assumed)
    if batch.hsi[0, 0].numel() < FEWEST_PIXELS:
        return []
    with torch.no_grad():
        lesson = run_on_scene(lesson_of(network, batch.hsi[0], batch.msi[0], observation, batch.reference[0]))
    return [] if lesson is None else [lesson]


def lesson_of(
    network: PriorNetwork, hsi: Tensor, msi: Tensor, observation: Observation, reference: Tensor
) -> SceneComputation[Lesson | None]:
    pair = yield from prepare_pair(Window(hsi, msi, observation))
    if not pair.msi_varies:
        return None
    model, details, predictions = yield from guided_predictions(pair.window, network, simulated=True)
    mean = details.interpolated + predictions.weighted(network.gains(predictions.statistics, predictions.numbers))
    error = yield from prior_from_error(mean, model)
    damping = (model.hsi_noise.diagonal() / error.diagonal()).clamp_min(LEAST_DAMPING)

    def beyond_hsi(image: Tensor) -> Tensor:
        corrected: Tensor = image - model.operator.damped_inverse(model.operator.apply(image), damping)
        return corrected.flatten(1)

    truth = model.components_of(reference / pair.hsi_unit) - details.interpolated
    vectors = torch.stack([beyond_hsi(image) for image in (*predictions.as_images(), truth)], dim=1)
    return Lesson(predictions.statistics, predictions.numbers, (vectors @ vectors.mT).double() / vectors.shape[-1])


def fit_to_lessons(network: PriorNetwork, lessons: Sequence[Lesson], settings: GainFitting) -> None:
    """Most decibels on the average, as in the training, but for errors outside of the components; few pairs below local
    FUSE.
    """
    statistics = torch.zeros(len(lessons), MOST_COMPONENTS, COMPONENT_STATISTICS)
    products = torch.zeros(len(lessons), MOST_COMPONENTS, GAINS + 1, GAINS + 1, dtype=torch.float64)
    for place, lesson in enumerate(lessons):
        statistics[place, : len(lesson.statistics)] = lesson.statistics
        products[place, : len(lesson.products)] = lesson.products
    numbers = torch.stack([lesson.numbers for lesson in lessons])
    of_local_fuse = decibels_of(torch.tensor(AS_LOCAL_FUSE).expand(*statistics.shape[:2], -1), products)
    network.reset_gains(
        torch.cat([lesson.statistics for lesson in lessons]),
        torch.cat([lesson.numbers.expand(len(lesson.statistics), -1) for lesson in lessons]),
    )
    weights = [*network.trust.parameters(), *network.trust_of_unfamiliar.parameters()]
    for weight in weights:
        weight.requires_grad_(True)
    optimiser = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    with progress("Fitting the gains", total=settings.steps) as advance:
        for _ in range(settings.steps):
            chosen = torch.randint(len(lessons), (settings.batch_size,))
            error = decibels_of(torch.cat(network.gains(statistics[chosen], numbers[chosen]), dim=-1), products[chosen])
            worse = (error - of_local_fuse[chosen]).clamp_min(0)
            optimiser.zero_grad()
            (error + settings.caution * worse).mean().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights, CLIP_NORM)
            optimiser.step()
            schedule.step()
            advance(1)
    with torch.no_grad():
        for parameter in network.trust_of_unfamiliar[-1].parameters():
            parameter.mul_(KEPT_OF_UNFAMILIAR)
            parameter[Prediction.MSI_RESIDUAL] = 0.0  # an outlier of the msi is unfamiliar, too


def decibels_of(gains: Tensor, products: Tensor) -> Tensor:
    """The error (N,) in decibels: the lower, the better."""
    return 10 * torch.log10(error_of(gains, products) + SMALLEST_ERROR)


def error_of(gains: Tensor, products: Tensor) -> Tensor:
    """(N,), from gains (N, p, G) and products (N, p, G + 1, G + 1)."""
    weights = torch.cat([gains.double(), -torch.ones_like(gains[..., :1], dtype=torch.float64)], dim=-1)
    return torch.einsum("npi,npij,npj->n", weights, products, weights)
