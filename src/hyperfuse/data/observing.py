"""Simulation on the fly: patches of a reference become pairs, each observed in a way of its own.

Shapes: B batch, C bands, M msi bands, h w coarse, H W fine (here h = w and H = W = the size of the patches).

What the samples of a batch share (scale, hsi bands, kind and number of the msi bands) is drawn once, as a `BatchPlan`;
the rest is drawn per sample. The patch is all there is: beyond its border the point spread sees it mirrored. A setting
takes as many random numbers when it is fixed as when it varies, so that one variation more or less leaves the others as
they were.

Other scenes out of one: in light of another colour, with another contrast, with highlights cut off as a sensor cuts
them.

Shapes: C bands, H W rows and columns.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.data.pair_settings import (
    RANDOM_SRF,
    BandSelection,
    BandTable,
    ScaleChoices,
    SimulationSettings,
    draw_selection,
    random_srf,
)
from hyperfuse.errors import BandError, OptionError
from hyperfuse.physics.operators import SpatialOperator, mix_bands
from hyperfuse.physics.psf import sigma_from_fwhm
from hyperfuse.physics.srf import find_srf

LIKELY, SOMETIMES = 0.7, 0.5
# The logarithm of the light is a sum of waves with so many turns along the spectrum, slow ones the strongest, times
# this strength.
TURNS, COLOURFUL = np.array([0.5, 1.0, 2.0, 3.0, 4.0]), 0.8
CONTRAST = 0.5  # the logarithm of the exponent is up to so much
CUT = (0.97, 0.9995)  # quantiles
SPARSE = 17  # quantiles of one value in so many are near enough


def vary_light(generator: np.random.Generator, patch: Tensor) -> None:
    """In place; patch (C, H, W) in 0 .. 1."""
    coloured, contrasted, cut = generator.random(3) < (LIKELY, LIKELY, SOMETIMES)
    strengths, phases = generator.normal(size=len(TURNS)), generator.random(len(TURNS))
    exponent, quantile = math.exp(generator.uniform(-CONTRAST, CONTRAST)), generator.uniform(*CUT)
    if coloured:
        along = np.linspace(0.0, 1.0, len(patch))[:, None]
        light = np.exp(COLOURFUL * (strengths / (1 + TURNS) * np.sin(2 * np.pi * (TURNS * along + phases))).sum(1))
        patch.mul_(torch.from_numpy(light).to(patch)[:, None, None])
        patch.div_(patch.max().clamp_min(1e-6))
    if contrasted:
        patch.pow_(exponent)
    if cut:
        brightest = float(np.quantile(patch.numpy().ravel()[::SPARSE], quantile))
        patch.div_(max(brightest, 1e-6)).clamp_(0, 1)


__all__ = [
    "BatchPlan",
    "ObservedPatch",
    "PairBatch",
    "SimulationSettings",
    "draw_plan",
    "named_srf",
    "observe_patch",
]

FloatArray = NDArray[np.float64]

# One coarse pixel alone says nothing about where things are.
FEWEST_COARSE_PIXELS = 2


@dataclass(frozen=True, eq=False)
class PairBatch:
    """B simulated pairs and how each was observed; images are float32, everything else float64. Lengths are in fine
    pixels.
    """

    hsi: Tensor  # (B, C, h, w)
    msi: Tensor  # (B, M, H, W)
    reference: Tensor  # (B, C, H, W), in [0, 1]
    scale: float
    sigma: Tensor  # (B,) of the point spread
    shift: Tensor  # (B, 2): down, right
    srf: Tensor  # (B, M, C), rows sum to 1
    hsi_noise: Tensor  # (B,) standard deviation, 0 without noise
    msi_noise: Tensor  # (B,)
    believed: Tensor  # (B, 5): sigma, shift down and right, noise of hsi and msi, as a closed form is told them
    wavelength_nm: Tensor | None  # (C,)
    bucket: str

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        return self._with_tensors(Tensor.pin_memory)

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What all samples of a batch have in common."""

    patch_size: int
    coarse_size: int
    selection: BandSelection
    bands: BandTable
    """Of the selection."""
    msi_bands: int
    srf: FloatArray | None
    """(M, C) of a sensor known by name; None: each sample has a random one."""

    @property
    def scale(self) -> float:
        return self.patch_size / self.coarse_size


@dataclass(frozen=True, eq=False)
class ObservedPatch:
    """One sample of a batch, its parts named as there."""

    hsi: Tensor
    msi: Tensor
    sigma: float
    shift: tuple[float, float]
    srf: FloatArray
    hsi_noise: float
    msi_noise: float
    believed: tuple[float, ...]


def draw_plan(
    generator: np.random.Generator, settings: SimulationSettings, patch_size: int, bands: BandTable
) -> BatchPlan:
    for_scale, for_kind, for_count = generator.random(3)
    coarse_size = coarse_pixels(settings, patch_size, for_scale)
    selection = draw_selection(generator, settings.keep_bands, bands.count)
    kept = selection.of_bands(bands)
    name = _one_of(settings, for_kind)
    srf = None if name == RANDOM_SRF else named_srf(name, kept)
    if srf is not None:
        return BatchPlan(patch_size, coarse_size, selection, kept, len(srf), srf)
    fewest, most = settings.msi_bands
    msi_bands = min(fewest + int(for_count * (most - fewest + 1)), kept.count)
    return BatchPlan(patch_size, coarse_size, selection, kept, msi_bands, None)


def observe_patch(
    generator: np.random.Generator, settings: SimulationSettings, plan: BatchPlan, patch: Tensor, reference: Tensor
) -> ObservedPatch:
    """Observe a patch (all bands of the scene) and put its selected bands, flipped and turned, into `reference` (C, H,
    W).
    """
    symmetry = int(generator.integers(8))
    for_fwhm, *for_shift = generator.random(3)
    for_noise = generator.random(4)
    _copy_turned(plan.selection.of_cube(patch), symmetry if settings.flips else 0, reference)
    if settings.vary_light and generator.random() < settings.vary_light:
        vary_light(generator, reference)

    sigma = sigma_from_fwhm(_between(settings.psf_fwhm, for_fwhm) * plan.scale)
    down, right = (settings.shift * (2 * part - 1) for part in for_shift)
    fine_size, coarse_size = (plan.patch_size,) * 2, (plan.coarse_size,) * 2
    blur = SpatialOperator.from_psf(fine_size, coarse_size, (plan.scale,) * 2, (sigma,) * 2, (down, right))
    srf = plan.srf
    if srf is None:
        srf = random_srf(generator, plan.msi_bands, plan.bands.count, plan.bands.wavelength_nm)
    hsi, msi = blur.apply(reference), mix_bands(torch.from_numpy(srf), reference)

    hsi_noise = _noise_level(hsi, settings.snr_hsi_db, settings.noise_free, for_noise[:2])
    msi_noise = _noise_level(msi, settings.snr_msi_db, settings.noise_free, for_noise[2:])
    _add_noise(generator, hsi, hsi_noise)
    _add_noise(generator, msi, msi_noise)
    levels = (float(hsi.square().mean().sqrt()), float(msi.square().mean().sqrt()))
    believed = _believed(generator, settings, (sigma, down, right, hsi_noise, msi_noise), levels)
    return ObservedPatch(hsi, msi, sigma, (down, right), srf, hsi_noise, msi_noise, believed)


def coarse_pixels(settings: SimulationSettings, patch_size: int, part: float) -> int:
    """How many coarse pixels span a patch at the scale that lies at this part (0 to 1) of the range or list."""
    if isinstance(settings.scale, ScaleChoices):
        choices = settings.scale.choices
        scale = choices[min(int(part * len(choices)), len(choices) - 1)]
        count = round(patch_size / scale)
    else:
        low, high = settings.scale
        scale = _between(settings.scale, part)
        # Rounding must not leave the range where whole numbers of pixels lie in it.
        fewest, most = math.ceil(patch_size / high), math.floor(patch_size / low)
        count = round(patch_size / scale)
        count = min(max(count, fewest), most) if fewest <= most else count
    if count < FEWEST_COARSE_PIXELS:
        raise OptionError(
            f"scale {scale:g} in patches of {patch_size}x{patch_size} pixels",
            f"at least {FEWEST_COARSE_PIXELS} coarse pixels across a patch",
            "train at smaller scales or with larger patches",
        )
    return count


def named_srf(name: str, bands: BandTable) -> FloatArray | None:
    """(M, C) weights of a sensor's bands, or of a file's, that these hsi bands cover; None where they cover none or are
    unknown.
    """
    columns = [None if column is None else column.tobytes() for column in (bands.wavelength_nm, bands.fwhm_nm)]
    return _named_srf(name, bands.count, *columns)


# A sensor's curves on one set of bands take milliseconds; scenes come back, random selections of bands mostly do not.
@lru_cache(maxsize=256)
def _named_srf(name: str, count: int, wavelength_nm: bytes | None, fwhm_nm: bytes | None) -> FloatArray | None:
    wavelength, fwhm = (None if column is None else np.frombuffer(column) for column in (wavelength_nm, fwhm_nm))
    with warnings.catch_warnings():
        # That a camera's curve reaches beyond the scene would be said for every batch.
        warnings.simplefilter("ignore")
        try:
            return find_srf(name, wavelength, fwhm, np.ones(count, dtype=bool), skip_uncovered=True).weights
        except BandError:
            return None


def _one_of(settings: SimulationSettings, part: float) -> str:
    heights = np.cumsum([choice.weight for choice in settings.srfs])
    return settings.srfs[int(np.searchsorted(heights[:-1], part * heights[-1], side="right"))].name


def _between(span: tuple[float, float], part: float) -> float:
    return span[0] + (span[1] - span[0]) * part


def _copy_turned(patch: Tensor, symmetry: int, target: Tensor) -> None:
    """One of the eight symmetries of the square, 0 to 7, in one pass: numpy has views that run backwards."""
    view = patch.numpy()
    if symmetry & 4:
        view = view.swapaxes(1, 2)
    if symmetry & 2:
        view = view[:, ::-1]
    if symmetry & 1:
        view = view[:, :, ::-1]
    np.copyto(target.numpy(), view)


def _noise_level(image: Tensor, snr_db: tuple[float, float] | None, noise_free: float, parts: FloatArray) -> float:
    """Standard deviation of white noise at a signal-to-noise ratio of the range, one for all bands; 0 where there is
    none.
    """
    if snr_db is None or parts[0] < noise_free:
        return 0.0
    return float(image.double().square().mean().sqrt()) / 10 ** (_between(snr_db, parts[1]) / 20)


def _believed(
    generator: np.random.Generator, settings: SimulationSettings, truth: tuple[float, ...], levels: tuple[float, float]
) -> tuple[float, ...]:
    """Sigma, shift down and right, noise of hsi and msi, as an estimate might find them. Drawn last: nothing else
    changes.
    """
    if settings.perturbation is None:
        return truth
    sigma, down, right, hsi_noise, msi_noise = truth
    errors = generator.standard_normal(5).clip(-2.5, 2.5)
    floors = settings.perturbation.floor * generator.random(2) * levels
    relative, absolute, noise = settings.perturbation.sigma, settings.perturbation.shift, settings.perturbation.noise
    return (
        sigma * (1 + relative * errors[0]),
        down + absolute * errors[1],
        right + absolute * errors[2],
        math.hypot(hsi_noise * (1 + noise * errors[3]), floors[0]),
        math.hypot(msi_noise * (1 + noise * errors[4]), floors[1]),
    )


def _add_noise(generator: np.random.Generator, image: Tensor, level: float) -> None:
    if level > 0:
        image.add_(torch.from_numpy(generator.standard_normal(image.shape, dtype=np.float32)), alpha=level)
