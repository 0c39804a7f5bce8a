"""Scores of every closed-form method on real scenes, oracle and blind, clean and noisy, as Markdown.

python benchmarks/methods/score_methods.py test > scores.md
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from protocol import SCENES, Case, make_case, scores

from hyperfuse.estimation.estimate import estimate_observation
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.methods.fuse_arrays import fuse_arrays

SCALES = (4, 8, 16)
Key = tuple[str, str, int, bool]
Row = dict[str, tuple[float, float]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", choices=SCENES)
    arguments.add_argument("--methods", nargs="+", default=list(METHODS))
    arguments.add_argument("--blind", nargs="*", default=["glp", "fuse", "local_fuse"], help="methods to score with estimates too")
    arguments.add_argument("--scales", nargs="+", type=int, default=list(SCALES))
    chosen = arguments.parse_args()
    oracle: dict[Key, Row] = {}
    blind: dict[Key, Row] = {}
    for case in _cases(chosen.folder, chosen.scales):
        key = (case.name, case.response, case.scale, case.noisy)
        oracle[key] = {name: _score(case, name, blind=False) for name in chosen.methods}
        blind[key] = {name: _score(case, name, blind=True) for name in chosen.blind}
        print(key, {name: round(score[0], 2) for name, score in oracle[key].items()}, file=sys.stderr, flush=True)
    print(*_report(oracle, blind, chosen.methods, chosen.blind), sep="\n")


def _cases(folder: str, scales: list[int]) -> Iterable[Case]:
    for noisy in (False, True):
        for name, responses in SCENES[folder].items():
            for response in responses:
                for scale in scales:
                    yield make_case(folder, name, response, scale, noisy)


def _score(case: Case, method: str, blind: bool) -> tuple[float, float]:
    observation = case.observation
    if blind:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            observation = estimate_observation(case.hsi, case.msi)
    return scores(fuse_arrays(case.hsi, case.msi, observation, method), case.reference)


def _report(oracle: dict[Key, Row], blind: dict[Key, Row], methods: list[str], blind_methods: list[str]) -> Iterable[str]:
    for noisy in (False, True):
        chosen = {key: row for key, row in oracle.items() if key[3] == noisy}
        yield f"\n### {'Noise of 30 dB in the HSI, 40 dB in the MSI' if noisy else 'Without noise'}\n"
        yield from _table(chosen, methods)
    yield "\n### Blind against oracle, dB lost (mean, worst)\n"
    yield "| | " + " | ".join(blind_methods) + " |"
    yield "|---" * (len(blind_methods) + 1) + "|"
    for noisy in (False, True):
        for few in (False, True):
            keys = [key for key in blind if key[3] == noisy and (_coarse_pixels(key) < 100) == few]
            if keys:
                cells = []
                for name in blind_methods:
                    lost = [oracle[key][name][0] - blind[key][name][0] for key in keys]
                    cells.append(f"{np.mean(lost):+.2f}, {max(lost):+.2f}")
                size = "fewer than 100" if few else "100 or more"
                yield f"| {'noisy' if noisy else 'clean'}, {size} coarse pixels ({len(keys)}) | " + " | ".join(cells) + " |"


def _table(rows: dict[Key, Row], methods: list[str]) -> Iterable[str]:
    yield "| scene, MSI, scale | " + " | ".join(methods) + " |"
    yield "|---" * (len(methods) + 1) + "|"
    sums: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (name, response, scale, _), row in rows.items():
        yield f"| {name}, {response}, x{scale} | " + " | ".join(f"{row[m][0]:.2f} / {row[m][1]:.2f}" for m in methods) + " |"
        for method in methods:
            sums[method].append(row[method])
    means = (f"**{np.mean([s[0] for s in sums[m]]):.2f} / {np.mean([s[1] for s in sums[m]]):.2f}**" for m in methods)
    yield "| **mean** | " + " | ".join(means) + " |"
    if "bicubic" in methods:
        floor = [min(row[m][0] - row["bicubic"][0] for row in rows.values()) for m in methods]
        yield "| least gain over bicubic | " + " | ".join(f"{gain:+.2f}" for gain in floor) + " |"
    if "fuse" in methods and "local_fuse" in methods:
        gains = [row["local_fuse"][0] - row["fuse"][0] for row in rows.values()]
        yield f"\nLocal FUSE over FUSE: {np.mean(gains):+.2f} dB on average, {min(gains):+.2f} at least, {max(gains):+.2f} at most."


def _coarse_pixels(key: Key) -> int:
    sizes = {"cave_balloons": 512, "cave_face": 512, "enmap_potsdam_c": 64, "cave_paints": 256, "cave_flowers": 256}
    return (sizes.get(key[0], 100) // key[2]) ** 2


if __name__ == "__main__":
    main()
