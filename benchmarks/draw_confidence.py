"""The calibration of `confidence` (docs/real_pairs.md): estimates of imperfect pairs against their truth.

    python benchmarks/draw_confidence.py docs/images/real_pairs/confidence.png

Pairs are made of training scenes of HYPERFUSE_DATA, or of ../shared/data, at x4 and x8 with every imperfection whose
truth is one PSF and one shift, and with several at once; once as the georeference says and once displaced. An estimate
is right with a PSF within 10 % and a shift within 0.15 fine pixels on each axis.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hyperfuse
from hyperfuse.benchmarking.cases import Condition, choose_scenes, simulated_case
from hyperfuse.physics.imperfections import IMPERFECTIONS
from hyperfuse.reporting.style import COLOURS, MARKERS, MEDIUM, SMALL, clean_axes, new_figure, save_png

TRAIN = Path(os.environ.get("HYPERFUSE_DATA", "../shared/data")) / "train"
SCENES = ("samson", "muufl_munet", "paviacentre_a", "abu_urban_1", "enmap_potsdam_rect")
SCALES, SRF = (4.0, 8.0), "rgb"
SHIFTS = ((0.0, 0.0), (1.3, -0.7))
SEVERAL = ("change+light+gamma8", "objects+haze+noise")
KINDS = [None, *(kind for kind in IMPERFECTIONS if kind not in ("shift", "bend", "keystone", "boxpsf")), *SEVERAL]
PSF_TOLERANCE, SHIFT_TOLERANCE = 0.1, 0.15
SMALLEST_SHOWN = 1e-3
BINS = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0])


def errors() -> Iterator[tuple[str, float, float, float]]:
    """Kind, confidence, relative error of the PSF, and error of the shift in fine pixels."""
    for name in SCENES:
        (scored,) = choose_scenes([str(TRAIN / f"{name}.npz")], [SRF])
        for scale, kind, shift in itertools.product(SCALES, KINDS, SHIFTS):
            pair = simulated_case(scored, SRF, scale, Condition(imperfection=kind, shift=shift))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                found = hyperfuse.estimate(pair.hsi, pair.msi)
            assert pair.truth is not None  # of a simulated pair
            psf = max(abs(width / true - 1) for width, true in zip(found.sigma, pair.truth.sigma, strict=True))
            yield kind or "clean", found.confidence, psf, float(np.abs(np.subtract(found.misregistration, shift)).max())


def main(path: Path) -> None:
    rows = list(errors())
    figure = new_figure(12.0, 4.5, 110, layout="constrained")
    panels: Any = figure.subplots(1, 3)
    kinds = dict.fromkeys(row[0] for row in rows)
    for axes, column, tolerance, name in (
        (panels[0], 2, PSF_TOLERANCE, "PSF: relative error"),
        (panels[1], 3, SHIFT_TOLERANCE, "shift: error, fine pixels"),
    ):
        for place, kind in enumerate(kinds):
            points = np.array([(row[1], max(SMALLEST_SHOWN, row[column])) for row in rows if row[0] == kind])
            marker = MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]  # colours repeat with other markers
            look = {"color": COLOURS[place % len(COLOURS)], "marker": marker, "s": 18}
            axes.scatter(*points.T, label=kind, **look)
        axes.axhline(tolerance, color="grey", linewidth=1, linestyle="--")
        axes.set(yscale="log", xlabel="confidence", xlim=(-0.02, 1.02))
        axes.set_title(name, loc="left", fontsize=MEDIUM)
    confidence = np.array([row[1] for row in rows])
    right = np.array([row[2] <= PSF_TOLERANCE and row[3] <= SHIFT_TOLERANCE for row in rows])
    panels[2].plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    panels[2].plot(*reliability(confidence, right), color=COLOURS[0], marker="o")
    panels[2].set(xlabel="confidence, mean of a bin", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    panels[2].set_title("share of estimates within both tolerances", loc="left", fontsize=MEDIUM)
    for axes in panels:
        clean_axes(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, fontsize=SMALL, frameon=False)
    save_png(figure, path)
    print(f"{len(rows)} estimates, {right.mean():.0%} right; by bins of confidence:")
    for low, high in itertools.pairwise(BINS):
        inside = (confidence >= low) & (confidence < high + (high == 1))
        if inside.any():
            means = f"mean confidence {confidence[inside].mean():.2f}, right {right[inside].mean():.2f}"
            print(f"{low:.2f} to {high:.2f}: {inside.sum()} estimates, {means}")


def reliability(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[list[float], list[float]]:
    """Mean confidence and share of right estimates in every bin that is not empty."""
    bins = np.digitize(confidence, BINS[1:-1])
    groups = [bins == each for each in np.unique(bins)]
    return [float(confidence[each].mean()) for each in groups], [float(right[each].mean()) for each in groups]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
