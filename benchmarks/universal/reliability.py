"""How well `--uncertainty` is calibrated: expected against true errors on test scenes.

python benchmarks/universal/reliability.py docs/images/universal_reliability.png
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch
from numpy.typing import NDArray
from scenes import NOISES, TEST_CASES, make_case, scene
from scipy.stats import spearmanr

from hyperfuse import fuse, make_cube, uncertainty
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.physics.estimate import estimate_observation
from hyperfuse.physics.imperfections import add_imperfection
from hyperfuse.physics.simulate import simulate

BINS = 20


@dataclass(frozen=True)
class Reliability:
    name: str
    expected: NDArray[np.float64]
    """Root mean square of each bin of pixels, sorted by what is expected."""
    true: NDArray[np.float64]
    ratio: float
    rank_correlation: float
    within: tuple[float, float, float]
    """Shares of values that are off by at most one, two, three expected deviations."""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("picture")
    chosen = arguments.parse_args()
    found = [measure(name, srf, scale, noise) for name, srf in TEST_CASES for scale in (4, 8) for noise in NOISES]
    draw(found, chosen.picture)
    print("| case | true over expected | rank correlation | within 1, 2, 3 deviations |\n|---|---|---|---|")
    for each in found:
        shares = ", ".join(f"{share:.0%}" for share in each.within)
        print(f"| {each.name} | {each.ratio:.2f} | {each.rank_correlation:.2f} | {shares} |")
    ratios, ranks = np.array([each.ratio for each in found]), np.array([each.rank_correlation for each in found])
    shares = ", ".join(f"{share:.0%}" for share in np.mean([each.within for each in found], axis=0))
    print(f"| **mean** (ratio: geometric) | {np.exp(np.log(ratios).mean()):.2f} | {ranks.mean():.2f} | {shares} |")
    print("\n| pair | changed over unchanged, expected | true | expected over true, changed |\n|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in TEST_CASES):
        for kind in ("change", "objects"):
            for scale in (4, 8):
                expected, true, inside = changed(name, kind, scale)
                print(f"| {name}, {kind}, x{scale} | {expected:.1f} | {true:.1f} | {inside:.2f} |", flush=True)


def measure(name: str, srf: str, scale: int, noise: tuple[float, float] | None) -> Reliability:
    case = make_case(name, srf, scale, noise, "test")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observation = estimate_observation(case.hsi, case.msi)
    fused = fuse_arrays(case.hsi, case.msi, observation, "universal")
    expected = fuse_arrays(case.hsi, case.msi, observation, uncertainty=True)
    error = (fused - case.reference).abs()
    pixel_error, pixel_expected = (
        image.square().mean(0).sqrt().flatten().double().numpy() for image in (error, expected)
    )
    order = np.array_split(np.argsort(pixel_expected), BINS)
    return Reliability(
        f"{name}, {srf}, x{scale}{', noisy' if noise else ''}",
        np.array([np.sqrt(np.mean(pixel_expected[part] ** 2)) for part in order]),
        np.array([np.sqrt(np.mean(pixel_error[part] ** 2)) for part in order]),
        float(torch.sqrt(error.square().mean() / expected.square().mean())),
        float(spearmanr(pixel_error, pixel_expected).statistic),
        tuple(float((error <= count * expected).float().mean()) for count in (1, 2, 3)),  # type: ignore[arg-type]
    )


def changed(name: str, kind: str, scale: int) -> tuple[float, float, float]:
    """The error in areas where the MSI shows something else over that elsewhere, expected and true; and expected over
    true there. Root mean square.
    """
    values, wavelength_nm = scene(name, "test", scale)
    simulated = simulate(make_cube(values.astype(np.float32), wavelength_nm=wavelength_nm), scale, "rgb")
    pair = add_imperfection(simulated, kind, 0, name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fused = fuse(pair.hsi, pair.msi, trust="hsi").values
        expected = np.square(uncertainty(pair.hsi, pair.msi, trust="hsi").values).mean(0)
    true = np.square(fused - simulated.reference.values).mean(0)
    (inside, other), (true_inside, true_other) = (
        [np.sqrt(energy[part].mean()) for part in (pair.disagreeing, ~pair.disagreeing)] for energy in (expected, true)
    )
    return float(inside / other), float(true_inside / true_other), float(inside / true_inside)


def draw(found: list[Reliability], path: str) -> None:
    figure, axes = plt.subplots(figsize=(6.4, 5.6), layout="constrained")
    for each in found:
        axes.plot(each.expected, each.true, color="#3b6ea5", alpha=0.45, linewidth=1.2)
    low, high = 1e-3, 0.2
    axes.plot([low, high], [low, high], color="black", linewidth=1, label="as expected")
    axes.fill_between(
        [low, high], [low / 2, high / 2], [low * 2, high * 2], color="0.9", label="within a factor of two", zorder=0
    )
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    axes.set(xlabel="expected error (share of the scene's range)", ylabel="true error (of a twentieth of the pixels)")
    axes.set_title(f"Expected and true errors of universal, blind: {len(found)} pairs, one line each")
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
