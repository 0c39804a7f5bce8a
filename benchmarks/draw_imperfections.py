"""Pictures of docs/real_pairs.md: what each imperfection does to the images of a pair.

    python benchmarks/draw_imperfections.py docs/images/real_pairs

Of each kind, from left to right: the image as simulated, with the imperfection, and the difference of the two (grey: no
difference). Of kinds that concern the HSI, its first, middle and last band are shown as blue, green and red. The scene
is MUUFL Gulfport (CASI-1500) of HYPERFUSE_DATA, or of ../shared/data.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hyperfuse.benchmarking.cases import choose_scenes
from hyperfuse.physics.imperfections import IMPERFECTIONS, add_imperfection
from hyperfuse.physics.simulate import simulate

SCENE = Path(os.environ.get("HYPERFUSE_DATA", "../shared/data")) / "train" / "muufl_munet.npz"
SCALE, SRF = 4, "rgb"
SIDE, GAP, WIDTH = 88, 6, 220
QUALITY = 85


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (scored,) = choose_scenes([str(SCENE)], [SRF])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # 90 rows are no multiple of the scale
        pair = simulate(scored.reference(), SCALE, SRF)
    for kind in IMPERFECTIONS:
        imperfect = add_imperfection(pair, kind, scene=scored.name)
        of_msi = not np.array_equal(imperfect.msi.values, pair.msi.values)
        before, after = (_composite(each.msi.values if of_msi else each.hsi.values) for each in (pair, imperfect))
        brightest = max(np.quantile(each, 0.995) for each in (before, after))
        shown = [each / brightest for each in (before, after)]
        difference = 0.5 + shown[1] - shown[0]
        panels = [_panel(each) for each in (*shown, difference)]
        gap = np.full((WIDTH, GAP, 3), 255, np.uint8)
        row = np.concatenate([panels[0], gap, panels[1], gap, panels[2]], axis=1)
        Image.fromarray(row).save(folder / f"{kind}.jpg", quality=QUALITY)


def _composite(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """(rows, columns, 3), of more bands than three the last, the middle and the first."""
    bands = [0, 1, 2] if len(image) == 3 else [len(image) - 1, len(image) // 2, 0]
    return np.moveaxis(image[bands], 0, -1)


def _panel(values: NDArray[np.floating]) -> NDArray[np.uint8]:
    """The upper left of an image, enlarged to the width of a panel."""
    side = min(SIDE, *values.shape[:2])
    bright = np.clip(values[:side, :side], 0, 1) ** 0.7
    image = Image.fromarray(np.round(255 * bright).astype(np.uint8))
    return np.asarray(
        image.resize((WIDTH, WIDTH), Image.Resampling.LANCZOS if side == SIDE else Image.Resampling.NEAREST)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
