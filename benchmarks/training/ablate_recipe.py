"""What each ingredient of the recipe contributes: short trainings of one SSA network, several seeds, one table.

    python benchmarks/training/ablate_recipe.py runs/ablation [--seeds 0 1 2] [--steps 800] [--only NAME ...]

All variants see the same scenes, pairs and number of steps. Scores are gains over bicubic on scenes that are not
trained on: of sensors that are, and of sensors that are left out. Runs that are finished are not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import warnings
from pathlib import Path
from typing import Any

from hyperfuse.training.experiment import parse_experiment
from hyperfuse.training.run_folder import read_log
from hyperfuse.training.scene_sets import GatheredScenes, gather_scenes
from hyperfuse.training.train import train

LEFT_OUT = ("himspec", "enmap", "lego")  # sensors of the training folder that no run sees
UNSEEN_TOO = ("samson*", "muufl*", "paviacentre*", "abu_beach_4*")  # sensors of the final table: not looked at here
HELD_OUT = {
    "seen": ("cave_paints", "abu_airport_1", "salinasa_224"),
    "left out": ("himspec_liver_h9", "enmap_potsdam_rect", "lego24"),
}

# Settings as "table.key"; those that a variant does not name are the paper's.
OWN_SLOTS = {"network.msi_kernel": "own"}
MSI_FIRST = {"network.msi_kernel": "first"}
STANDARDISED = {"network.standardise": "bands"}
CORRELATED = {"network.standardise": "correlated"}
REGRESSED = {"network.standardise": "regressed"}
EQUALISED = {"network.equalise_inputs": True}
ZERO_START = {"network.initialisation": "he", "network.residual_factor": 0.1}
RELATIVE = {"loop.loss": "relative"}
FOUR_BUCKETS = {"loop.batch_size": 1, "loop.accumulate": 4}  # as many patches
RATES = {"optimiser.learning_rate": 1e-3, "optimiser.warmup_steps": 30, "optimiser.clip_norm": 1.0, "loop.ema": 0.99}
WITHOUT_UNITS = EQUALISED | ZERO_START | RELATIVE | FOUR_BUCKETS | RATES
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's settings": {},
    "only bands standardised": STANDARDISED,
    "only correlated units": CORRELATED,
    "only inputs scaled by sqrt(C_max / C)": EQUALISED,
    "only He, output kernel zero, residual x 0.1": ZERO_START,
    "only the MSI in the first slots": MSI_FIRST,
    "only slots of its own for the MSI": OWN_SLOTS,
    "only the loss relative to bicubic's": RELATIVE,
    "only four buckets per step": FOUR_BUCKETS,
    "only learning rate, warm-up, clipping, EMA": RATES,
    "all, correlated units": WITHOUT_UNITS | OWN_SLOTS | CORRELATED,
    "all, bands standardised": WITHOUT_UNITS | OWN_SLOTS | STANDARDISED,
    "all, correlated, MSI in the first slots": WITHOUT_UNITS | MSI_FIRST | CORRELATED,
    "all, correlated, MSI after the bands (the paper's order)": WITHOUT_UNITS | CORRELATED,
    "all, regressed units": WITHOUT_UNITS | OWN_SLOTS | REGRESSED,
}


def experiment_tables(changes: dict[str, Any], seed: int, steps: int) -> dict[str, Any]:
    """The paper's settings in a network that trains within half a minute of one core, changed as a variant says."""
    held_out = [f"{name}*" for names in HELD_OUT.values() for name in names]
    kept_out = [*UNSEEN_TOO, *held_out, *(f"{sensor}*" for sensor in LEFT_OUT)]
    tables: dict[str, Any] = {
        "name": "ablation",
        "seed": seed,
        "network": {
            "preset": "ssa-small",
            "width": 32,
            "feature_width": 32,
            "decoder_hidden": [64, 64, 32],
            "spectral_blocks": 2,
            "spatial_blocks": 2,
            "channels": {"kind": "bands", "max_channels": 416},
        },
        "scenes": [
            {"source": "train/*.npz", "use": "train", "exclude": kept_out, "assumed_nm": [400.0, 2500.0]},
            *(
                {"source": f"train/{name}.npz", "use": "test", "assumed_nm": [400.0, 2500.0]}
                for names in HELD_OUT.values()
                for name in names
            ),
        ],
        "split": {"patch_size": 32, "stride": 8},
        "simulation": {"scale": 4, "srfs": "rgb", "msi_bands": 3},
        "optimiser": {"learning_rate": 2e-4, "final_learning_rate": 1e-5},
        "length": {"steps": steps},
        "loop": {"batch_size": 4, "precision": "bfloat16", "workers": 0, "checkpoint_every": 100000},
        "validation": {"every": steps, "scales": [4.0], "srf": "rgb", "largest": 128},
    }
    for key, value in changes.items():
        table, _, name = key.partition(".")
        tables[table][name] = value
    return tables


def gains(folder: Path) -> dict[str, float]:
    """Mean gain over bicubic at the end of a run, on held-out scenes of seen and of left-out sensors."""
    last = [line for line in read_log(folder) if "psnr_db" in line][-1]
    bicubic = json.loads((folder / "bicubic.json").read_text())
    means = {}
    for group, names in HELD_OUT.items():
        scenes = [case for case in bicubic if case.startswith(names)]
        assert len(scenes) == len(names), (scenes, names)
        means[group] = statistics.mean(last["psnr_db"][case] - bicubic[case] for case in scenes)
    return means


def run(folder: Path, changes: dict[str, Any], seed: int, steps: int, scenes: GatheredScenes) -> None:
    """Train one variant with one seed, unless it is there."""
    experiment = parse_experiment(experiment_tables(changes, seed, steps), "ablation")
    if not train(experiment, folder, scenes=scenes, resume=folder.exists()).finished:
        raise SystemExit(130)
    (folder / "bicubic.json").write_text(json.dumps({case.name: case.base.psnr_db for case in scenes.cases}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # random SRFs where a scene has no wavelengths
    scenes = gather_scenes(parse_experiment(experiment_tables({}, 0, 1), "ablation"))  # the same for all
    for seed in arguments.seeds:
        for name in arguments.only:
            folder = arguments.folder / f"{list(VARIANTS).index(name):02d}-{seed}"
            if not (folder / "bicubic.json").exists():
                run(folder, VARIANTS[name], seed, arguments.steps, scenes)
            print(f"{name}, seed {seed}: {gains(folder)}", flush=True)
    print("\n| | " + " | ".join(HELD_OUT) + " |\n|---|" + "---|" * len(HELD_OUT))
    for name in arguments.only:
        folders = [arguments.folder / f"{list(VARIANTS).index(name):02d}-{seed}" for seed in arguments.seeds]
        scores = [gains(folder) for folder in folders]
        columns = [[score[group] for score in scores] for group in HELD_OUT]
        spreads = [statistics.stdev(column) if len(column) > 1 else 0.0 for column in columns]
        shown = [f"{statistics.mean(column):+.2f} ± {s:.2f}" for column, s in zip(columns, spreads, strict=True)]
        print(f"| {name} | " + " | ".join(shown) + " |")


if __name__ == "__main__":
    main()
