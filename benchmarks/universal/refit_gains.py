"""Fits the gains of a network of `universal` that is trained already, as the end of `experiments/universal.toml` does.

python benchmarks/universal/refit_gains.py FOLDER_OF_WEIGHTS NEW_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from hyperfuse.networks.prior_network import PriorNetwork
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.gain_fitting import fit_gains
from hyperfuse.training.scene_sets import gather_scenes

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "universal.toml"


def main(trained: str, refitted: str) -> None:
    torch.set_num_threads(1)
    experiment = read_experiment(EXPERIMENT)
    assert experiment.gains is not None and experiment.length.steps is not None
    network = PriorNetwork.from_pretrained(trained)
    network.trust.requires_grad_(True)
    buckets = gather_scenes(experiment, with_cases=False).buckets
    first_draw = experiment.length.steps * experiment.loop.accumulate
    fit_gains(network, experiment, buckets, first_draw)
    provenance = json.loads((Path(trained) / "config.json").read_text(encoding="utf-8"))["provenance"]
    gains = {"experiment": experiment.model_dump(mode="json"), "first_draw": first_draw, "torch": torch.__version__}
    network.save_pretrained(refitted, provenance | {"gains_fitted_anew": gains})


if __name__ == "__main__":
    main(*sys.argv[1:])
