"""Pairs on which `universal` does little, or worse than local FUSE, blind: the scene, both errors on one scale, a
spectrum.

python benchmarks/universal/failures.py docs/images/universal_failures.png
"""

from __future__ import annotations

import argparse
import warnings

import matplotlib.pyplot as plt
import numpy as np
from scenes import make_case

from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.metrics.metrics import psnr_db
from hyperfuse.physics.estimate import estimate_observation

# Folder, scene, response, scale: bright roofs that the msi's bands do not tell apart; eight by eight coarse pixels.
SHOWN = [("test", "abu_urban_4", "rgb+nir", 8), ("test", "enmap_potsdam_c", "rgb", 8)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("picture")
    chosen = arguments.parse_args()
    figure, rows = plt.subplots(len(SHOWN), 4, figsize=(13, 3.4 * len(SHOWN)), layout="constrained")
    for axes, (folder, name, srf, scale) in zip(rows, SHOWN, strict=True):
        case = make_case(name, srf, scale, None, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            observation = estimate_observation(case.hsi, case.msi)
        fused = {method: fuse_arrays(case.hsi, case.msi, observation, method) for method in ("local_fuse", "universal")}
        reference = case.reference.numpy()
        colours = np.stack([np.asarray(case.msi[band]) for band in (0, 1, 2)], axis=-1)
        axes[0].imshow(np.clip(colours / np.quantile(colours, 0.99), 0, 1))
        axes[0].set_title(f"{name}, {srf.upper()}, x{scale}: the MSI", fontsize=9)
        errors = {method: np.sqrt(np.mean((image.numpy() - reference) ** 2, axis=0)) for method, image in fused.items()}
        top = np.quantile(np.stack(list(errors.values())), 0.99)
        for place, (method, error) in zip(axes[1:3], errors.items(), strict=True):
            shown = place.imshow(error, vmin=0, vmax=top, cmap="cividis")
            score = psnr_db(np.clip(fused[method].numpy(), 0, 1), reference, 1.0)
            place.set_title(f"error of {method}: {score:.2f} dB", fontsize=9)
        figure.colorbar(shown, ax=axes[2], shrink=0.8)
        row, column = np.unravel_index(errors["universal"].argmax(), errors["universal"].shape)
        axes[3].plot(reference[:, row, column], color="black", label="true")
        for method, colour in (("local_fuse", "#d08a2e"), ("universal", "#3b6ea5")):
            axes[3].plot(fused[method][:, row, column].numpy(), color=colour, label=method)
        axes[3].set_title(f"spectrum of the worst pixel ({row}, {column})", fontsize=9)
        axes[3].set(xlabel="band")
        axes[3].legend(fontsize=8, frameon=False)
        for place in axes[:3]:
            place.set_axis_off()
    figure.savefig(chosen.picture, dpi=100)


if __name__ == "__main__":
    main()
