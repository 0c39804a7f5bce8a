"""What a stretched 8-bit MSI costs, and what of it could be won back (docs/real_pairs.md).

    python benchmarks/limits_of_tone.py

Pairs are made of training scenes of HYPERFUSE_DATA, or of ../shared/data. What no method knows is given step by step:
the true line from stretched to linear values; values that were only rounded, or only clipped; for clipped pixels the
values of a linear MSI under the PSF, without noise, and what the fusion of the linear MSI finds there.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import hyperfuse
from hyperfuse.benchmarking.cases import Condition, ScoredScene, choose_scenes, simulated_case
from hyperfuse.io.cube import physical_values
from hyperfuse.physics.resample import Placement, upsample_bicubic

Floats = NDArray[np.float64]
TRAIN = Path(os.environ.get("HYPERFUSE_DATA", "../shared/data")) / "train"
SCENES = {
    **dict.fromkeys(("paviacentre_a", "himspec_kidney_h7", "cave_watercolors"), "rgb"),
    **dict.fromkeys(("samson", "muufl_munet"), "rgb+nir"),
    **dict.fromkeys(
        ("abu_urban_1", "abu_airport_1", "enmap_potsdam_rect", "indianpines", "salinasa_224"), "rgb+nir+swir"
    ),
}
SCALES, SIDE, ROUNDS = (4.0, 8.0), 128, 100


def middle(scene: ScoredScene) -> ScoredScene:
    sizes = scene.scene.stored.shape[1:]
    starts = [max(0, (size - SIDE) // 2) for size in sizes]
    rows, columns = (slice(start, min(size, start + SIDE)) for start, size in zip(starts, sizes, strict=True))
    return replace(scene, rows=rows, columns=columns)


def scores(name: str, scale: float) -> dict[str, float]:
    """PSNR in dB."""
    (scene,) = choose_scenes([str(TRAIN / f"{name}.npz")], ["rgb"])
    pair = simulated_case(middle(scene), SCENES[name], scale, Condition())
    reference, msi = (physical_values(cube).astype(np.float64) for cube in (pair.reference, pair.msi))

    def fused(values: Floats, harmonise: str = "auto") -> Floats:
        cube = hyperfuse.fuse(pair.hsi, pair.msi.copy(data=values.astype(np.float32)), harmonise=harmonise)
        return np.clip(physical_values(cube), 0, 1).astype(np.float64)

    def psnr(values: Floats) -> float:
        return float(-10 * np.log10(((values - reference) ** 2).mean()))

    low, high = np.quantile(msi, (0.02, 0.98), axis=(1, 2), keepdims=True)
    share = (msi - low) / (high - low)
    clipped = (share < 0) | (share > 1)
    rounded, tone = np.round(255 * share) / 255, np.round(255 * share.clip(0, 1)) / 255
    clean, stretched = fused(msi), fused(tone)
    observation = hyperfuse.estimate(pair.hsi, pair.msi)
    operator = observation.spatial_operator(msi.shape[1:], (pair.hsi.sizes["y"], pair.hsi.sizes["x"]))
    placement = Placement.from_scale(observation.scale, observation.shift)
    ends, seen = torch.from_numpy(msi.clip(low, high)), operator.apply(torch.from_numpy(msi))
    known, filled = torch.from_numpy(~clipped), ends
    for _ in range(ROUNDS):
        moved = filled + 0.9 * upsample_bicubic(seen - operator.apply(filled), ends.shape[1:], placement)
        beyond = torch.where(torch.from_numpy(share > 1), moved.maximum(ends), moved.minimum(ends))
        filled = torch.where(known, ends, beyond)
    return {
        "linear": psnr(clean),
        "stretched": psnr(stretched),
        "true line given": psnr(fused(tone * (high - low) + low)),
        "only rounded": psnr(fused(rounded * (high - low) + low)),
        "only clipped": psnr(fused(msi.clip(low, high))),
        "coarse truth of clipped pixels": psnr(fused(filled.numpy(), "off")),
        "clipped pixels of the linear result": psnr(np.where(clipped.any(axis=0), clean, stretched)),
    }


def main() -> None:
    warnings.simplefilter("ignore", UserWarning)
    rows = {(name, scale): scores(name, scale) for name in SCENES for scale in SCALES}
    for scale in SCALES:
        chosen = [row for (_, each), row in rows.items() if each == scale]
        print(f"x{scale:g}", {title: round(float(np.mean([row[title] for row in chosen])), 2) for title in chosen[0]})


if __name__ == "__main__":
    main()
