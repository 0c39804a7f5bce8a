"""`universal` trained without whole sensors, and tested on pairs of these sensors: over local FUSE, and over the better
of local FUSE and the lift.

python benchmarks/universal/rotations.py FOLDER [--steps 400] [--draws 1000] [--pairs 24]
python benchmarks/universal/rotations.py --guidance FOLDER_OF_WEIGHTS [--draws 1000] [--pairs 24]

The first trains guidance and gains. Every rotation is a run in the folder; one that was interrupted is resumed, one
that is there is only tested. The second only fits gains anew, to the guidance of some weights, which may have seen the
sensors.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import Bucket, draw_batch
from hyperfuse.fusion.fusers import fuse_with_network
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.fuse import FEWEST_PIXELS
from hyperfuse.methods.window import run_on_scene
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.training.experiment import Experiment, GainFitting, read_experiment
from hyperfuse.training.gain_fitting import GainSample, fit_to_samples, gain_sample
from hyperfuse.training.objective import assumed_observations
from hyperfuse.training.run_folder import WEIGHTS
from hyperfuse.training.scene_sets import gather_scenes
from hyperfuse.training.train import train

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "universal.toml"
# Sensors left out together, and the names of their scenes.
ROTATIONS = (
    {"microscope": ("himspec*",), "Samson": ("samson*",)},
    {"mosaic camera": ("imec16*",), "EnMAP": ("enmap*",)},
    {"24-band camera": ("lego24*",), "ROSIS": ("pavia*", "abu_beach_4*")},
    {"line scanner": ("hbahadori*",), "CASI": ("muufl*",)},
    {"CAVE": ("cave*",), "Moon (M3)": ("moon*",)},
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, nargs="?", help="where the runs of the rotations go")
    arguments.add_argument("--guidance", type=Path, help="a folder of weights")
    arguments.add_argument("--steps", type=int, default=400, help="of each training")
    arguments.add_argument("--draws", type=int, default=1000, help="pairs that the gains are fitted on")
    arguments.add_argument("--pairs", type=int, default=24, help="pairs of each sensor to fuse")
    chosen = arguments.parse_args()
    if (chosen.folder is None) == (chosen.guidance is None):
        arguments.error("expected a folder for the runs, or --guidance")
    torch.set_num_threads(1)
    changes = [f"length.steps={chosen.steps}", f"gains.draws={chosen.draws}"]
    experiment = read_experiment(EXPERIMENT, changes)
    every = gather_scenes(experiment, with_cases=False).buckets
    over = "over local FUSE, mean | worst | over the better of it and the lift, mean | worst"
    print(f"| sensor left out | pairs | {over} |\n|---|---|---|---|---|---|")
    found = []
    guidance = None if chosen.guidance is None else PriorNetwork.from_pretrained(chosen.guidance)
    samples = [] if guidance is None else list(gain_samples(guidance, experiment, every))
    for number, sensors in enumerate(ROTATIONS, 1):
        if guidance is None:
            network = trained_without(experiment, sensors, chosen.folder / f"rotation_{number}")
        else:
            network, left_out = guidance, names_of(sensors)
            torch.manual_seed(experiment.seed)
            others = [sample for names, sample in samples if not any_matches(names, left_out)]
            fit_to_samples(network, others, experiment.gains or GainFitting())
        for sensor, names in sensors.items():
            own = [each for each in every if any_matches([scene.name for scene in each.scenes], names)]
            found.append(np.array([differences(network, batch) for batch in pairs(experiment, own, chosen.pairs)]))
            print(row(sensor, found[-1]), flush=True)
    print(row("**mean of sensors**", np.stack([each.mean(0) for each in found]), np.concatenate(found)))


def any_matches(names: list[str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def names_of(sensors: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(name for patterns in sensors.values() for name in patterns)


def gain_samples(
    network: PriorNetwork, experiment: Experiment, buckets: list[Bucket]
) -> Iterator[tuple[list[str], GainSample]]:
    """The scenes that a pair is drawn from, and what its gains depend on."""
    network.zero_gains()
    scenes = {each.name: [scene.name for scene in each.scenes] for each in buckets}
    assert experiment.gains is not None and experiment.length.steps is not None
    for draw in range(experiment.gains.draws):
        seen = experiment.length.steps * experiment.loop.accumulate
        batch = draw_batch(buckets, experiment.simulation, seed=experiment.seed, draw=seen + draw, batch_size=1)
        if batch.hsi[0, 0].numel() >= FEWEST_PIXELS:
            (observation,) = assumed_observations(batch)
            pair = batch.hsi[0], batch.msi[0], observation, batch.reference[0]
            with torch.no_grad():
                sample = run_on_scene(gain_sample(network, *pair))
            if sample is not None:
                yield scenes[batch.bucket], sample


def trained_without(experiment: Experiment, sensors: dict[str, tuple[str, ...]], folder: Path) -> PriorNetwork:
    """The network of a training that has seen none of these sensors."""
    names = names_of(sensors)
    scenes = tuple(
        each.model_copy(update={"exclude": (*each.exclude, *names)})
        for each in experiment.scenes
        if not any_matches([Path(each.source).stem.rstrip("_*")], names)
    )
    if not (folder / WEIGHTS).exists():
        without = experiment.model_copy(update={"scenes": scenes})
        if not train(without, folder, resume=folder.exists()).finished:
            raise SystemExit("interrupted; the same command resumes")
    return PriorNetwork.from_pretrained(folder / WEIGHTS)


def pairs(experiment: Experiment, buckets: list[Bucket], count: int) -> Iterator[PairBatch]:
    """Pairs with enough coarse pixels for the network."""
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
