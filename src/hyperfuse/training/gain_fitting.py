"""Fit the gains of `universal`'s network on thousands of pairs; the rest of the network is fixed.

A few thousand weights decide from a few statistics how much each prediction counts. With a few pairs per training step
these weights do not converge. But the squared error of the fused image is quadratic in the gains: once the predictions
of a pair are computed, one small matrix per component gives the error of any gains, and large batches cost little.

Shapes: N pairs, p components, G gains (of predictions at all smoothings, and of unfamiliar pixels), H W fine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.data.sampler import Bucket, draw_batch
from hyperfuse.errors import TrainingError
from hyperfuse.methods.catalogue import prepare_pair
from hyperfuse.methods.fuse import FEWEST_PIXELS
from hyperfuse.methods.pair_model import prior_from_error
from hyperfuse.methods.universal import MOST_COMPONENTS, guided_predictions
from hyperfuse.methods.window import SceneComputation, Window, run_on_scene
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
# Few scenes have unfamiliar pixels, so their gains are halfway between the fit and local FUSE.
KEPT_OF_UNFAMILIAR = 0.5
LEAST_DAMPING = 1e-6
SMALLEST_ERROR = 1e-20
CLIP_NORM = 1.0


@dataclass(frozen=True)
class GainSample:
    """What the gains of one pair depend on, and the quadratic form of their error."""

    statistics: Tensor  # (p, 21)
    numbers: Tensor  # (5,)
    products: Tensor  # (p, G + 1, G + 1) of all predictions and the truth, without what the hsi corrects


def fit_gains(
    network: PriorNetwork,
    experiment: Experiment,
    buckets: Sequence[Bucket],
    first_draw: int,
    interrupted: Callable[[], bool] = lambda: False,
) -> bool:
    """Fit the gains in place, on draws from `first_draw` on; return false if interrupted."""
    settings = experiment.gains or GainFitting()
    network.zero_gains()  # so that the fit does not depend on earlier gains
    samples: list[GainSample] = []
    with progress("Pairs for the gains", total=settings.draws) as advance:
        for draw in range(first_draw, first_draw + settings.draws):
            if interrupted():
                return False
            batch = draw_batch(buckets, experiment.simulation, seed=experiment.seed, draw=draw, batch_size=1)
            if batch.hsi[0, 0].numel() >= FEWEST_PIXELS:  # others are fused without the network
                (observation,) = assumed_observations(batch)
                pair = batch.hsi[0], batch.msi[0], observation, batch.reference[0]
                with torch.no_grad():
                    sample = run_on_scene(gain_sample(network, *pair))
                samples += [] if sample is None else [sample]
            advance(1)
    if not samples:
        raise TrainingError(
            f"[gains], but none of {settings.draws} pairs has {FEWEST_PIXELS} coarse pixels",
            "larger pairs",
            "train with larger patches or at smaller scales, or leave [gains] out",
        )
    torch.manual_seed(experiment.seed)
    fit_to_samples(network, samples, settings)
    return True


def gain_sample(
    network: PriorNetwork, hsi: Tensor, msi: Tensor, observation: Observation, reference: Tensor
) -> SceneComputation[GainSample | None]:
    """Compute the sample of one pair; None if the msi is constant."""
    pair = yield from prepare_pair(Window(hsi, msi, observation))
    if not pair.msi_varies:
        return None
    model, details, predictions = yield from guided_predictions(pair.window, network, simulated=True)
    mean = details.interpolated + predictions.weighted(network.gains(predictions.statistics, predictions.numbers))
    error = yield from prior_from_error(mean, model)
    damping = (model.hsi_noise.diagonal() / error.diagonal()).clamp_min(LEAST_DAMPING)

    def residual(image: Tensor) -> Tensor:
        corrected: Tensor = image - model.operator.damped_inverse(model.operator.apply(image), damping)
        return corrected.flatten(1)

    truth = model.components_of(reference / pair.hsi_unit) - details.interpolated
    vectors = torch.stack([residual(image) for image in (*predictions.as_images(), truth)], dim=1)
    return GainSample(predictions.statistics, predictions.numbers, (vectors @ vectors.mT).double() / vectors.shape[-1])


def fit_to_samples(network: PriorNetwork, samples: Sequence[GainSample], settings: GainFitting) -> None:
    """Minimise the mean error in decibels, as the training does but within the components only, and penalise pairs that
    get worse than local FUSE.
    """
    statistics = torch.zeros(len(samples), MOST_COMPONENTS, COMPONENT_STATISTICS)
    products = torch.zeros(len(samples), MOST_COMPONENTS, GAINS + 1, GAINS + 1, dtype=torch.float64)
    for index, sample in enumerate(samples):
        statistics[index, : len(sample.statistics)] = sample.statistics
        products[index, : len(sample.products)] = sample.products
    numbers = torch.stack([sample.numbers for sample in samples])
    of_local_fuse = decibels_of(torch.tensor(AS_LOCAL_FUSE).expand(*statistics.shape[:2], -1), products)
    of_training = (
        torch.cat([sample.statistics for sample in samples]),
        torch.cat([sample.numbers.expand(len(sample.statistics), -1) for sample in samples]),
    )
    network.reset_gains(*of_training)
    weights = [*network.trust.parameters(), *network.trust_of_unfamiliar.parameters()]
    for weight in weights:
        weight.requires_grad_(True)
    optimiser = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    with progress("Fitting the gains", total=settings.steps) as advance:
        for _ in range(settings.steps):
            chosen = torch.randint(len(samples), (settings.batch_size,))
            # Noise in the statistics makes the gains smooth functions of them: sensors left out gain by it.
            noisy = statistics[chosen] + settings.jitter * network.spread[:COMPONENT_STATISTICS] * torch.randn(
                settings.batch_size, *statistics.shape[1:]
            )
            noise = settings.jitter * network.spread[COMPONENT_STATISTICS:] * torch.randn(len(chosen), len(numbers[0]))
            gains = torch.cat(network.gains(noisy, numbers[chosen] + noise), dim=-1)
            error = decibels_of(gains, products[chosen])
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
            # An outlier of the msi is unfamiliar, too; random features know nothing of what is far from the scene.
            parameter[[Prediction.FUSE, Prediction.MSI_RESIDUAL, Prediction.LIFT]] = 0.0
    network.learn_usual(*of_training)


def decibels_of(gains: Tensor, products: Tensor) -> Tensor:
    """(N,) error in decibels."""
    return 10 * torch.log10(error_of(gains, products) + SMALLEST_ERROR)


def error_of(gains: Tensor, products: Tensor) -> Tensor:
    """(N,) squared error, from gains (N, p, G) and products (N, p, G + 1, G + 1)."""
    weights = torch.cat([gains.double(), -torch.ones_like(gains[..., :1], dtype=torch.float64)], dim=-1)
    return torch.einsum("npi,npij,npj->n", weights, products, weights)
