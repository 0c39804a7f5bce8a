"""The gains of `universal` fitted without one sensor at a time, on pairs of that sensor: over local FUSE, and over the
better of local FUSE and the lift. The guidance is that of the weights; they have seen what their training record says.

python benchmarks/universal/left_out_sensors.py [FOLDER_OF_WEIGHTS] [--draws 6000] [--pairs 30]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import Bucket, draw_batch
from hyperfuse.fusion.fusers import fuse_with_network
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.fuse import FEWEST_PIXELS
from hyperfuse.methods.universal import shipped_network
from hyperfuse.methods.window import run_on_scene
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.training.experiment import Experiment, read_experiment
from hyperfuse.training.gain_fitting import GainSample, fit_to_samples, gain_sample
from hyperfuse.training.objective import assumed_observations
from hyperfuse.training.scene_sets import gather_scenes

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "universal_sensors.toml"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("weights", nargs="?", type=Path, help="default: those that ship")
    arguments.add_argument("--draws", type=int, default=6000, help="pairs that gains are fitted on")
    arguments.add_argument("--pairs", type=int, default=30, help="pairs of each sensor to fuse")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    network = copy.deepcopy(
        shipped_network() if chosen.weights is None else PriorNetwork.from_pretrained(chosen.weights)
    )
    experiment = read_experiment(EXPERIMENT)
    assert experiment.gains is not None and experiment.length.steps is not None
    buckets = gather_scenes(experiment, with_cases=False).buckets
    first = experiment.length.steps * experiment.loop.accumulate
    network.zero_gains()
    samples = list(gain_samples(network, experiment, buckets, range(first, first + chosen.draws)))
    print(
        "| sensor left out | pairs | over local FUSE, mean | worst | over the better of it and the lift, mean | worst |"
    )
    print("|---|---|---|---|---|---|")
    found = []
    for sensor in sorted({sensor for sensor, _ in samples}):
        torch.manual_seed(experiment.seed)
        fit_to_samples(network, [sample for other, sample in samples if other != sensor], experiment.gains)
        own = [bucket for bucket in buckets if sensor_of(bucket.name) == sensor]
        found.append(np.array([differences(network, batch) for batch in pairs(experiment, own, chosen.pairs)]))
        print(row(sensor, found[-1]), flush=True)
    print(row("**mean of sensors**", np.stack([each.mean(0) for each in found]), np.concatenate(found)))


def sensor_of(bucket: str) -> str:
    """Buckets of one sensor differ in bands and sizes."""
    return bucket.split(",")[0].split(" (")[0]


def gain_samples(
    network: PriorNetwork, experiment: Experiment, buckets: list[Bucket], draws: range
) -> Iterator[tuple[str, GainSample]]:
    for draw in draws:
        batch = draw_batch(buckets, experiment.simulation, seed=experiment.seed, draw=draw, batch_size=1)
        if batch.hsi[0, 0].numel() >= FEWEST_PIXELS:
            (observation,) = assumed_observations(batch)
            with torch.no_grad():
                pair = batch.hsi[0], batch.msi[0], observation, batch.reference[0]
                sample = run_on_scene(gain_sample(network, *pair))
            if sample is not None:
                yield sensor_of(batch.bucket), sample


def pairs(experiment: Experiment, buckets: list[Bucket], count: int) -> Iterator[PairBatch]:
    """Other pairs than those of the fit, with enough coarse pixels for the network."""
    draw = 0
    while count > 0:
        batch = draw_batch(buckets, experiment.simulation, seed=experiment.seed + 1, draw=draw, batch_size=1)
        draw += 1
        if batch.hsi[0, 0].numel() >= FEWEST_PIXELS:
            count -= 1
            yield batch


@torch.inference_mode()
def differences(network: PriorNetwork, batch: PairBatch) -> tuple[float, float]:
    """PSNR of the network over that of local FUSE, and over the better of local FUSE and the lift."""
    (observation,) = assumed_observations(batch)
    pair = batch.hsi[0], batch.msi[0], observation

    def error_db(fused: Tensor) -> float:
        return float(10 * torch.log10((fused.clamp(0, 1) - batch.reference[0]).square().mean() + 1e-12))

    own = error_db(fuse_with_network(network, *pair))
    local, lift = (error_db(fuse_arrays(*pair, method)) for method in ("local_fuse", "lift"))
    return local - own, min(local, lift) - own


def row(name: str, found: np.ndarray, every: np.ndarray | None = None) -> str:
    every = found if every is None else every
    (local, better), (worst, worst_better) = found.mean(0), every.min(0)
    return f"| {name} | {len(every)} | {local:+.2f} | {worst:+.2f} | {better:+.2f} | {worst_better:+.2f} |"


if __name__ == "__main__":
    main()
