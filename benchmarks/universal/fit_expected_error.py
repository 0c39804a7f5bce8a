"""The powers of `universal`'s expected error: fitted to true errors on simulated pairs of all training scenes, where
each sensor counts by the root of its pairs, and tested with the sensor left out of the fit.

python benchmarks/universal/fit_expected_error.py [--draws 600]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr

from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import draw_batch
from hyperfuse.methods.catalogue import prepare_pair
from hyperfuse.methods.fuse import FEWEST_PIXELS
from hyperfuse.methods.pair_model import condition_on_hsi
from hyperfuse.methods.universal import SMALLEST_IN_MAP, error_energies, error_maps, guided_prior, shipped_network
from hyperfuse.methods.window import EVERYWHERE, Window, run_on_scene
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.objective import assumed_observations
from hyperfuse.training.scene_sets import gather_scenes

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "universal.toml"
SEED = 5  # other pairs than those of the training
PIXELS = 600  # of each pair, for the fit of the maps
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    sensor: str
    error: float
    """Logarithm of the mean squared error, all bands together."""
    energies: Floats
    """Logarithms, in the order of `error_energies`."""
    pixel_errors: Floats
    maps: Floats
    """(pixels, maps): logarithms over those of the scene's mean."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--draws", type=int, default=600)
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    experiment = read_experiment(EXPERIMENT)
    buckets = gather_scenes(experiment, with_cases=False).buckets
    samples, names = [], ([], [])
    for draw in range(chosen.draws):
        batch = draw_batch(buckets, experiment.simulation, seed=SEED, draw=draw, batch_size=1)
        if batch.hsi[0, 0].numel() >= FEWEST_PIXELS and (found := sample(batch)) is not None:
            samples.append(found[0])
            names = found[1:]
    sensors = np.array([each.sensor for each in samples])
    weights = np.array([1 / np.sqrt((sensors == each).sum()) for each in sensors])

    constant, powers = fit_level(samples, weights)
    of_maps = fit_maps(samples, weights)
    print(f"ERROR_LEVEL = {10**constant:.3g}")
    print(f"LEVEL_POWERS = {dict(zip(names[0], powers.round(2).tolist(), strict=True))}")
    print(f"MAP_POWERS = {dict(zip(names[1], of_maps.round(2).tolist(), strict=True))}\n")
    ratios, ranks = np.zeros(len(samples)), np.zeros(len(samples))
    for sensor in np.unique(sensors):
        others = weights * (sensors != sensor)
        constant, powers = fit_level(samples, others)
        of_maps = fit_maps(samples, others)
        for index in np.flatnonzero(sensors == sensor):
            own = samples[index]
            ratios[index] = 10 ** ((constant + own.energies @ powers - own.error) / 2)
            ranks[index] = spearmanr(own.maps @ of_maps, own.pixel_errors).statistic
    print("| sensor left out | pairs | expected over true | within a factor of two | rank correlation |")
    print("|---|---|---|---|---|")
    for sensor in [*np.unique(sensors), "**all**"]:
        own = sensors == sensor if sensor in sensors else np.ones(len(samples), dtype=bool)
        within = np.mean(np.abs(np.log2(ratios[own])) < 1)
        mean = np.exp(np.log(ratios[own]).mean())
        print(f"| {sensor} | {own.sum()} | {mean:.2f} | {within:.0%} | {np.nanmean(ranks[own]):.2f} |")


@torch.inference_mode()
def sample(batch: PairBatch) -> tuple[Sample, list[str], list[str]] | None:
    """A pair, and the names of energies and maps; None if the msi is constant."""
    (observation,) = assumed_observations(batch)
    pair = run_on_scene(prepare_pair(Window(batch.hsi[0], batch.msi[0], observation)))
    if not pair.msi_varies:
        return None
    model, mean, prior, predictions = run_on_scene(guided_prior(pair.window, shipped_network()))
    fused = model.image(condition_on_hsi(mean, prior, model))(EVERYWHERE)
    error = (fused - batch.reference[0] / pair.hsi_unit).square().sum(0).double().flatten()
    detail = mean - model.upsample(model.operator.apply(mean))
    maps = error_maps(model, mean, detail, predictions)
    averages = {name: max(1e-30, float(image.double().mean())) for name, image in maps.items()}
    energies = error_energies(model, predictions, averages)
    some = torch.randperm(len(error), generator=torch.Generator().manual_seed(0))[:PIXELS]
    relative = [(image.flatten()[some] / averages[name]).clamp_min(SMALLEST_IN_MAP) for name, image in maps.items()]
    return (
        Sample(
            sensor=batch.bucket.split(",")[0].split(" (")[0],
            error=float(error.mean().clamp_min(1e-30).log10()),
            energies=np.log10(np.maximum(1e-30, list(energies.values()))),
            pixel_errors=error[some].numpy(),
            maps=torch.stack(relative, dim=1).double().log10().numpy(),
        ),
        list(energies),
        list(maps),
    )


def fit_level(samples: list[Sample], weights: Floats) -> tuple[float, Floats]:
    """Logarithm of the factor, and powers whose sum is 1."""
    energies = np.stack([each.energies for each in samples])
    over_first = np.column_stack([np.ones(len(samples)), energies[:, 1:] - energies[:, :1]])
    target = np.array([each.error for each in samples]) - energies[:, 0]
    root = np.sqrt(weights)[:, None]
    constant, *others = np.linalg.lstsq(root * over_first, root[:, 0] * target, rcond=None)[0]
    return constant, np.array([1 - sum(others), *others])


def fit_maps(samples: list[Sample], weights: Floats) -> Floats:
    """Powers by which the logarithm of the error follows those of the maps within a scene."""
    count = samples[0].maps.shape[1]
    matrix, right = np.zeros((count, count)), np.zeros(count)
    for each, weight in zip(samples, weights, strict=True):
        centred = each.maps - each.maps.mean(0)
        # Errors that happen to be small say little.
        error = np.log10(np.maximum(each.pixel_errors, 0.01 * np.median(each.pixel_errors)) + 1e-30)
        matrix += weight * centred.T @ centred / len(centred)
        right += weight * centred.T @ (error - error.mean()) / len(centred)
    powers: Floats = np.linalg.solve(matrix + 1e-3 * weights.sum() * np.eye(len(matrix)), right)
    return powers


if __name__ == "__main__":
    main()
