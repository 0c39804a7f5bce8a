"""Score trained networks and methods on the test scenes of an experiment, at any scale: PSNR and SAM.

    python benchmarks/training/score_weights.py experiments/joint_small.toml runs/*/weights --scales 4 8 3.2 5.7
    --methods fuse

One Markdown table per scale, one row for each method and each folder of weights. All of them see the same pairs;
methods, and networks that add to one, are told how these were observed.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

from hyperfuse.methods.catalogue import MethodFuser
from hyperfuse.methods.window import Window
from hyperfuse.metrics.metrics import psnr_db, sam_degrees
from hyperfuse.models.catalogue import AnyNetwork, load_model
from hyperfuse.models.ssa import SSA
from hyperfuse.training.experiment import read_experiment
from hyperfuse.training.scene_sets import Score, ValidationCase, gather_scenes, validate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--methods", nargs="*", default=["bicubic"])
    parser.add_argument("--scales", type=float, nargs="+", default=[4.0])
    parser.add_argument(
        "--conditioned", action="store_true", help="also condition on both images, as --method ssa does"
    )
    parser.add_argument("--set", dest="changes", action="append", default=[])
    arguments = parser.parse_args()
    rows: dict[str, Callable[[ValidationCase], Score | None]] = {name: _by_method(name) for name in arguments.methods}
    for folder in arguments.weights:
        network = load_model(folder)
        name = folder.parent.name or str(folder)
        rows[name] = _by_network(network)
        if arguments.conditioned and isinstance(network, SSA):
            rows[f"{name}, conditioned"] = _by_fuser(MethodFuser("ssa", network=network))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scenes are cut to whole coarse pixels
        for scale in arguments.scales:
            experiment = read_experiment(arguments.experiment, [*arguments.changes, f"validation.scales=[{scale}]"])
            _print_table(gather_scenes(experiment).cases, scale, rows)


def _print_table(
    cases: list[ValidationCase], scale: float, rows: dict[str, Callable[[ValidationCase], Score | None]]
) -> None:
    print(f"\nPSNR dB / SAM degrees at x{scale:g}\n")
    print("| | " + " | ".join([*(case.name.rpartition(" ")[0] for case in cases), "mean"]) + " |")
    print("|---" * (len(cases) + 2) + "|", flush=True)
    for name, score in rows.items():
        scores = [score(case) for case in cases]
        known = [each for each in scores if each is not None]
        mean = None
        if len(known) == len(scores):
            angles = sum(each.spectral_angle_degrees for each in known)
            mean = Score(sum(each.psnr_db for each in known) / len(known), angles / len(known))
        print(f"| {name} | " + " | ".join(map(_shown, [*scores, mean])) + " |", flush=True)


def _by_method(name: str) -> Callable[[ValidationCase], Score | None]:
    return _by_fuser(MethodFuser(name))


def _by_fuser(fuser: MethodFuser) -> Callable[[ValidationCase], Score | None]:
    def score(case: ValidationCase) -> Score:
        fused = fuser.fuse_window(Window(case.hsi, case.msi, case.observation)).clamp(0, 1).numpy()
        reference = case.reference.numpy()
        return Score(psnr_db(fused, reference, 1.0), sam_degrees(fused, reference))

    return score


def _by_network(network: AnyNetwork) -> Callable[[ValidationCase], Score | None]:
    def score(case: ValidationCase) -> Score | None:
        """None where the pair does not fit the network."""
        try:
            network.check_bands(case.hsi.shape[0], case.msi.shape[0])
        except Exception:
            return None
        return validate(network, case)[0]

    return score


def _shown(score: Score | None) -> str:
    return "-" if score is None else f"{score.psnr_db:.2f} / {score.spectral_angle_degrees:.2f}"


if __name__ == "__main__":
    main()
