"""Trained weights at any scale: PSNR of the network and of its base on the test scenes of an experiment.

    python benchmarks/training/score_weights.py experiments/joint_small.toml runs/*/weights --scales 4 8 3.2 5.7

One Markdown table per scale, one row for each folder of weights.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.scene_sets import gather_scenes
from hyperfuse.training.validation import ValidationCase, validate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--scales", type=float, nargs="+", default=[4.0])
    parser.add_argument("--set", dest="changes", action="append", default=[])
    arguments = parser.parse_args()
    networks = {folder: FusionNetwork.from_pretrained(folder) for folder in arguments.weights}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scenes are cut to whole coarse pixels
        for scale in arguments.scales:
            _print_table(arguments.experiment, arguments.changes, scale, networks)


def _print_table(experiment: Path, changes: list[str], scale: float, networks: dict[Path, FusionNetwork]) -> None:
    rows: dict[str, list[float]] = {}
    names: list[str] = []
    for folder, network in networks.items():
        base = f"network.base={network.config.base}"
        cases = gather_scenes(read_experiment(experiment, [*changes, base, f"validation.scales=[{scale}]"])).cases
        names = [case.name.rpartition(" ")[0] for case in cases]
        rows.setdefault(f"{network.config.base} alone", [case.base_psnr_db for case in cases])
        rows[folder.parent.name] = [_psnr_db(network, case) for case in cases]
    print(f"\nPSNR dB at x{scale:g}\n")
    print("| | " + " | ".join([*names, "mean"]) + " |")
    print("|---" * (len(names) + 2) + "|")
    for row, values in rows.items():
        print(f"| {row} | " + " | ".join(f"{value:.2f}" for value in [*values, sum(values) / len(values)]) + " |")


def _psnr_db(network: FusionNetwork, case: ValidationCase) -> float:
    """NaN where the pair does not fit the network."""
    try:
        network.check_bands(case.hsi.shape[0], case.msi.shape[0])
    except Exception:
        return float("nan")
    return validate(network, case)[0].psnr_db


if __name__ == "__main__":
    main()
