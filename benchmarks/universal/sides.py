"""What `fuse --adapt` brings: gains of `universal` seen from several sides, and what the pair degraded once more says of them.

python benchmarks/universal/sides.py
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scenes import CASES, NOISES, make_case

from hyperfuse.estimation.estimate import estimate_observation
from hyperfuse.methods.catalogue import DEFAULT, FROM_SIDES
from hyperfuse.methods.fuse_arrays import fuse_arrays, scores_of
from hyperfuse.methods.window import Window
from hyperfuse.prediction.adaptation import LEAST_GAIN_DB
from hyperfuse.quality.metrics import psnr_db

METHODS = (DEFAULT, *FROM_SIDES.values())


def main() -> None:
    cases = [(name, response, scale, noise) for name, response in CASES for scale in (4, 8) for noise in NOISES]
    print(f"| case | {DEFAULT}, dB |" + "".join(f" {sides} sides | once more |" for sides in FROM_SIDES))
    print("|---" * (2 + 2 * len(FROM_SIDES)) + "|")
    found = np.array([measure(*case) for case in cases])
    for index, sides in enumerate(FROM_SIDES):
        gains, kept = found[:, index, 0], found[:, index, 1] >= LEAST_GAIN_DB
        print(f"{sides} sides: {_summary(gains)}; only where the pair says so, {kept.mean():.0%}: {_summary(gains * kept)}")


def _summary(gains: NDArray[np.float64]) -> str:
    return f"{gains.mean():+.3f} dB ({gains.min():+.2f} to {gains.max():+.2f})"


def measure(name: str, response: str, scale: int, noise: tuple[float, float] | None) -> NDArray[np.float64]:
    """(sides, 2): gains in dB at the true scale and on the pair degraded once more."""
    case = make_case(name, response, scale, noise)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observation = estimate_observation(case.hsi, case.msi)
    reference = case.reference.numpy()
    true = [psnr_db(fuse_arrays(case.hsi, case.msi, observation, method).numpy(), reference) for method in METHODS]
    scores = scores_of(Window(case.hsi, case.msi, observation), METHODS) or dict.fromkeys(METHODS, 0.0)
    gains = np.array([(own - true[0], scores[method] - scores[DEFAULT]) for method, own in zip(METHODS, true, strict=True)])[1:]
    cells = " | ".join(f"{gain:+.3f}" for gain in gains.flatten())
    print(f"| {name}, {response}, x{scale}{', noisy' if noise else ''} | {true[0]:.2f} | {cells} |", flush=True)
    return gains


if __name__ == "__main__":
    main()
