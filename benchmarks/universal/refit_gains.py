"""Fits the gains of a network of `universal` that is trained already, on all sensors (docs/model_card.md).

python benchmarks/universal/refit_gains.py FOLDER_OF_WEIGHTS NEW_FOLDER
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from hyperfuse.models.prior import PriorNetwork
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.gain_fitting import fit_gains
from hyperfuse.training.scene_sets import gather_scenes

EXPERIMENT = Path(__file__).parents[2] / "experiments" / "universal_sensors.toml"
FIRST_DRAW = 20400  # beyond those of any training


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("trained", type=Path, help="a folder of weights")
    arguments.add_argument("refitted", type=Path, help="a folder to write; it must not exist yet")
    chosen = arguments.parse_args()
    if not (chosen.trained / "config.json").is_file():
        arguments.error(f"{chosen.trained} is no folder of weights")
    if chosen.refitted.exists():
        arguments.error(f"{chosen.refitted} exists already")
    refit(chosen.trained, chosen.refitted)


def refit(trained: Path, refitted: Path) -> None:
    torch.set_num_threads(1)
    experiment = read_experiment(EXPERIMENT)
    network = PriorNetwork.from_pretrained(trained)
    buckets = gather_scenes(experiment, with_cases=False).buckets
    fit_gains(network, experiment, buckets, FIRST_DRAW)
    provenance = json.loads((trained / "config.json").read_text(encoding="utf-8"))["provenance"]
    gains = {"experiment": experiment.model_dump(mode="json"), "first_draw": FIRST_DRAW, "torch": torch.__version__}
    network.save_pretrained(refitted, provenance | {"gains_fitted_anew": gains})


if __name__ == "__main__":
    main()
