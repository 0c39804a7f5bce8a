"""What a training step costs beside the bare forward and backward pass of the same network, and how long it waits for
data.

    python benchmarks/training/measure_cost.py experiments/cave_small.toml --steps 200

The bare passes run before and after the training, in the same process: compare the ratio, not the seconds. Needs the
scenes of the experiment.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch

from hyperfuse.data.observing import PairBatch
from hyperfuse.data.sampler import draw_batch
from hyperfuse.models.ssa import SSA
from hyperfuse.training.experiment import Experiment, read_experiment
from hyperfuse.training.objective import NetworkOnBatch, add_base
from hyperfuse.training.run_folder import read_log
from hyperfuse.training.scene_sets import GatheredScenes, gather_scenes
from hyperfuse.training.train import train

WARM_UP = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    arguments = parser.parse_args()
    changes = [f"length.steps={arguments.steps}", f"loop.log_every={arguments.steps // 4}", f"validation.every={10**9}"]
    experiment = read_experiment(arguments.experiment, [*arguments.changes, *changes]).with_srf_files()
    print(json.dumps(measure(experiment), indent=2))


def measure(experiment: Experiment) -> dict[str, float]:
    scenes = gather_scenes(experiment)
    batches = [_batch(experiment, scenes, draw) for draw in range(20)]
    before = _bare_seconds(experiment, batches)
    with tempfile.TemporaryDirectory() as folder:
        # The last step validates; the scores are not what is measured here.
        train(experiment, Path(folder) / "run", scenes=_without_cases(scenes))
        # The first quarter holds the start of the worker.
        lines = [line for line in read_log(Path(folder) / "run") if line["event"] == "train"][1:]
    after = _bare_seconds(experiment, batches)
    steps_per_second = statistics.median(line["steps_per_second"] for line in lines)
    bare = (before + after) / 2
    return {
        "bare_forward_backward_ms": round(1000 * bare, 1),
        "training_step_ms": round(1000 / steps_per_second, 1),
        "ratio": round(1 / steps_per_second / bare, 3),
        "steps_per_second": steps_per_second,
        "waiting_for_data": statistics.median(line["waiting_for_data"] for line in lines),
        "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "threads": torch.get_num_threads(),
    }


def _batch(experiment: Experiment, scenes: GatheredScenes, draw: int) -> PairBatch:
    pairs = draw_batch(
        scenes.buckets, experiment.simulation, seed=experiment.seed, draw=draw, batch_size=experiment.loop.batch_size
    )
    return add_base(pairs, experiment.network.base)


def _bare_seconds(experiment: Experiment, batches: list[PairBatch]) -> float:
    """Of one forward and backward pass with the simplest loss, the gradients thrown away."""
    torch.manual_seed(experiment.seed)
    module = NetworkOnBatch(SSA(experiment.network).train())
    seconds = []
    for round_ in range(3):
        for batch in batches[: WARM_UP if round_ == 0 else None]:
            start = time.perf_counter()
            module(batch).sum().backward()
            seconds.append(time.perf_counter() - start)
            module.zero_grad(set_to_none=True)
    return statistics.mean(seconds[WARM_UP:])


def _without_cases(scenes: GatheredScenes) -> GatheredScenes:
    from dataclasses import replace

    return replace(scenes, cases=[])


if __name__ == "__main__":
    main()
