"""Synthetic scenes beside real ones: a table of statistics, and the picture in docs/scenes.md.

    python benchmarks/loading/synthetic_against_real.py FOLDER_OF_REAL_SCENES --picture docs/images/synthetic_scenes.png

Of both kinds the middle 128 x 128 pixels at most are looked at. Columns are the 10th, 50th and 90th percentile over
scenes.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray

from hyperfuse.data.datasets import load_scenes
from hyperfuse.data.synthetic import synthetic_scene, usual_wavelengths

SIDE = 128
SYNTHETIC_SCENES = 24
FEW_BANDS = 40
PICTURED_BANDS = 200
COLUMNS, ROWS = 7, 2
RGB_NM = (650.0, 550.0, 460.0)


def statistics(cube: NDArray[np.float64]) -> dict[str, float]:
    """Of (bands, rows, columns) in [0, 1]."""
    bands = len(cube)
    pixels = cube.reshape(bands, -1)
    values = np.clip(np.linalg.eigvalsh(np.cov(pixels))[::-1], 0, None)
    beyond = 1 - np.cumsum(values) / values.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = np.nan_to_num(np.corrcoef(pixels))
    image = cube.mean(axis=0)
    steps = np.concatenate([np.diff(image, axis=axis).ravel() for axis in (0, 1)])
    far = np.random.default_rng(0).integers(0, pixels.shape[1], (2, 4000))
    detail, unexplained = _detail(cube)
    return {
        "variance beyond 1 component, log10": np.log10(beyond[0]),
        "variance beyond 3 components, log10": np.log10(beyond[2]),
        "variance beyond 5 components, log10": np.log10(beyond[4]),
        "correlation of neighbouring bands": float(np.median(np.diag(correlation, 1))),
        "correlation at a tenth of the bands": float(np.median(np.diag(correlation, max(1, bands // 10)))),
        "correlation at half of the bands": float(np.median(np.diag(correlation, bands // 2))),
        "spectral angle of neighbours, degrees": _angle(cube[:, :, 1:], cube[:, :, :-1]),
        "spectral angle of any two, degrees": _angle(pixels[:, far[0]], pixels[:, far[1]]),
        "steps over deviation": float(steps.std() / image.std()),
        "kurtosis of steps": float(np.mean((steps - steps.mean()) ** 4) / steps.var() ** 2),
        "slope of the power spectrum": _power_slope(image),
        "lost at x4, share of deviation": detail,
        "of that, not linear in 4 msi bands": unexplained,
        "mean": float(cube.mean()),
        "deviation": float(cube.std()),
    }


def _angle(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    lengths = np.linalg.norm(first, axis=0) * np.linalg.norm(second, axis=0)
    cosine = (first * second).sum(axis=0) / np.maximum(lengths, 1e-12)
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))).mean())


def _power_slope(image: NDArray[np.float64]) -> float:
    side = min(image.shape)
    taper = np.hanning(side)
    power = np.abs(np.fft.fft2((image[:side, :side] - image.mean()) * taper[:, None] * taper)) ** 2
    radius = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None])
    edges = np.linspace(2 / side, 0.45, 14)
    means = [power[(radius >= low) & (radius < high)].mean() for low, high in pairwise(edges)]
    return float(np.polyfit(np.log((edges[1:] + edges[:-1]) / 2), np.log(means), 1)[0])


def _detail(cube: NDArray[np.float64]) -> tuple[float, float]:
    """What means over 4 x 4 pixels lose, and how much of that four broad bands do not tell by regression."""
    bands, rows, columns = (cube.shape[0], *(size // 4 * 4 for size in cube.shape[1:]))
    fine = cube[:, :rows, :columns]
    coarse = fine.reshape(bands, rows // 4, 4, columns // 4, 4).mean(axis=(2, 4))
    lost = (fine - coarse.repeat(4, axis=1).repeat(4, axis=2)).reshape(bands, -1)
    srf = np.exp(-0.5 * ((np.arange(bands) - np.linspace(0.1, 0.6, 4)[:, None] * bands) / (0.06 * bands)) ** 2)
    seen = srf @ lost
    rest = lost - lost @ np.linalg.pinv(seen) @ seen
    return float(np.sqrt(np.mean(lost**2)) / cube.std()), float(np.sqrt(np.mean(rest**2) / np.mean(lost**2)))


def middle(size: tuple[int, int]) -> tuple[slice, slice]:
    rows, columns = (slice(max(0, (length - SIDE) // 2), max(0, (length - SIDE) // 2) + SIDE) for length in size)
    return rows, columns


def print_table(groups: dict[str, list[dict[str, float]]]) -> None:
    print("|  |", " | ".join(f"{name} ({len(rows)})" for name, rows in groups.items()), "|")
    print("|---|" + "---|" * len(groups))
    for key in next(iter(groups.values()))[0]:
        cells = []
        for rows in groups.values():
            quantiles = np.quantile([row[key] for row in rows], (0.1, 0.5, 0.9))
            cells.append(", ".join(f"{value:.3g}" for value in quantiles))
        print(f"| {key} |", " | ".join(cells), "|")


def draw_picture(path: Path) -> None:
    """Scenes in colour, and below each the spectra of some of its pixels."""
    nm = usual_wavelengths(PICTURED_BANDS)
    shown = [int(np.abs(nm - wanted).argmin()) for wanted in RGB_NM]
    figure, axes = plt.subplots(2 * ROWS, COLUMNS, figsize=(2 * COLUMNS, 2.9 * ROWS), height_ratios=[2.2, 1] * ROWS)
    for number in range(ROWS * COLUMNS):
        cube = synthetic_scene((2, number), nm, SIDE, SIDE).numpy()
        image = cube[shown].transpose(1, 2, 0)
        picture, spectra = (
            axes[2 * (number // COLUMNS)][number % COLUMNS],
            axes[2 * (number // COLUMNS) + 1][number % COLUMNS],
        )
        picture.imshow(np.clip(image / np.quantile(image, 0.99, axis=(0, 1)), 0, 1) ** 0.6)
        picture.axis("off")
        places = np.random.default_rng(number).integers(0, SIDE, (2, 6))
        gaps = np.where(np.diff(nm, prepend=nm[0]) > 50, np.nan, 1.0)
        spectra.plot(nm, (cube[:, places[0], places[1]]) * gaps[:, None], linewidth=0.8)
        spectra.set(xlim=(400, 2450), ylim=(0, None), xticks=[500, 1500], yticks=[])
        spectra.tick_params(labelsize=6, length=2)
        for side in ("top", "right", "left"):
            spectra.spines[side].set_visible(False)
    figure.subplots_adjust(left=0.005, right=0.995, top=0.995, bottom=0.045, wspace=0.03, hspace=0.2)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("real", help="folder of real scenes")
    parser.add_argument("--picture", type=Path, help="where to draw a sheet of synthetic scenes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    groups: dict[str, list[dict[str, float]]] = {"real, up to 40 bands": [], "real, more": []}
    for scene in load_scenes(arguments.real):
        found = statistics(scene.patch(*middle(scene.size)).double().numpy())
        groups["real, up to 40 bands" if scene.bands <= FEW_BANDS else "real, more"].append(found)
    for bands in (31, 102, 200):
        cubes = [synthetic_scene((1, seed), usual_wavelengths(bands), SIDE, SIDE) for seed in range(SYNTHETIC_SCENES)]
        groups[f"synthetic, {bands} bands"] = [statistics(cube.double().numpy()) for cube in cubes]
    print_table(groups)
    start = time.process_time()
    for seed in range(SYNTHETIC_SCENES):
        synthetic_scene((2, seed), usual_wavelengths(200), SIDE, SIDE)
    print(f"\n{1000 * (time.process_time() - start) / SYNTHETIC_SCENES:.1f} ms of one core for {SIDE} x {SIDE} x 200")
    if arguments.picture:
        draw_picture(arguments.picture)


if __name__ == "__main__":
    main()
