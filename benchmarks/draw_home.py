"""Draw the picture of the documentation's first page from the files of `hyperfuse demo`: HSI, MSI, fused image.

python benchmarks/draw_home.py demo docs/images/fusion.png
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

import hyperfuse

PARTS = {"hsi": "HSI: {} bands, coarse", "msi": "MSI: {} bands, fine", "fused": "fused: {} bands, fine"}


def main(folder: Path, picture: Path) -> None:
    figure, axes = plt.subplots(1, len(PARTS), figsize=(9, 3.2), layout="constrained")
    for axis, (name, title) in zip(axes, PARTS.items(), strict=True):
        cube = hyperfuse.open_cube(folder / f"{name}.tif")
        axis.imshow(cube.hyperfuse.rgb())
        axis.set_title(title.format(cube.sizes["band"]), fontsize=10)
        axis.set_axis_off()
    figure.savefig(picture, dpi=160, bbox_inches="tight")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
