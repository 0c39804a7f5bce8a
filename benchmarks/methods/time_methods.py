"""Seconds, peak memory and the ratio to one bicubic upsampling of all bands, per method and for the estimation, as Markdown.

python benchmarks/methods/time_methods.py            512x512x31 x4, and how both grow with pixels and bands
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from hyperfuse.estimation.estimate import estimate_observation
from hyperfuse.estimation.observation import Observation, known_observation
from hyperfuse.methods.catalogue import METHODS

ROUNDS = 5
SIZES = ((512, 31), (256, 31), (512, 124))


def main() -> None:
    if len(sys.argv) > 1:
        print(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
        return
    for side, bands in SIZES:
        print(f"\n{side}x{side} pixels, {bands} bands, x4, {torch.get_num_threads()} threads\n")
        print("| | seconds | times bicubic | peak memory, MB over the inputs |")
        print("|---|---|---|---|")
        for name in (*METHODS, "estimation"):
            # Its own process for its own peak; bicubic is timed in the same process, turn by turn, so that the ratio is fair.
            command = [sys.executable, str(Path(__file__)), name, str(side), str(bands)]
            seconds, ratio, megabytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            print(f"| {name} | {seconds} | {ratio} | {megabytes} |", flush=True)


def measure(name: str, side: int, bands: int) -> str:
    hsi, msi, observation = _pair(side, bands)

    def work() -> object:
        return estimate_observation(hsi, msi) if name == "estimation" else METHODS[name].function(hsi, msi, observation)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rounds = ROUNDS if name not in ("cnmf", "hysure") else 2
    times, bicubic_times = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        METHODS["bicubic"].function(hsi, msi, observation)
        bicubic_times.append(time.perf_counter() - started)
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    # The least of several runs is the one that was disturbed least.
    return f"{min(times):.3f} {min(times) / min(bicubic_times):.1f} {(peak - before) / 1024:.0f}"


def _pair(side: int, bands: int) -> tuple[torch.Tensor, torch.Tensor, Observation]:
    """Smooth shapes with a little texture, made band by band so that the inputs themselves leave no peak of memory behind."""
    generator = torch.Generator().manual_seed(0)
    shapes = torch.rand(1, 8, side // 8, side // 8, generator=generator)
    shapes = torch.nn.functional.interpolate(shapes, size=(side, side), mode="bicubic")[0]
    response = torch.zeros(3, bands)
    for row, part in enumerate(np.array_split(np.arange(bands), 3)):
        response[row, part] = 1 / len(part)
    observation = known_observation(response, 4.0)
    operator = observation.spatial_operator((side, side), (side // 4, side // 4))
    hsi, msi = torch.empty(bands, side // 4, side // 4), torch.zeros(3, side, side)
    for band in range(bands):
        fine = torch.einsum("k,kyx->yx", torch.rand(8, generator=generator), shapes) + 0.01 * torch.rand(
            side, side, generator=generator
        )
        hsi[band] = operator.apply(fine)
        msi += response[:, band, None, None] * fine
    return hsi, msi, observation


if __name__ == "__main__":
    main()
