"""Simulate pairs on the fly: patches of a reference become HSI and MSI, each observed differently.

Shapes: B batch, C bands of the scene, K of a selection of them, M msi bands, h w coarse, H W fine (here h = w and
H = W = the patch size).

What the samples of a batch share (scale, hsi bands, kind and number of the msi bands) is drawn once, as a `BatchPlan`;
the rest is drawn per sample. At the border of a patch the PSF sees it mirrored. A setting consumes as many random
numbers when it is fixed as when it varies, so that changing one leaves the other draws unchanged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from hyperfuse.data.settings import RANDOM_SRF, BandVariation, ScaleChoices, SimulationSettings
from hyperfuse.errors import BandError, OptionError
from hyperfuse.physics.observation import SpatialOperator, mix_bands, sigma_from_fwhm
from hyperfuse.physics.srf import find_srf

FloatArray = NDArray[np.float64]

# A single coarse pixel holds no spatial information.
FEWEST_COARSE_PIXELS = 2
# Random SRFs. FWHM over band spacing, and exponent of the flanks (2 is a Gaussian, 8 nearly a box): log-uniform.
FILLING = (0.3, 2.0)
FLATNESS = (1.5, 8.0)
FULL_COVERAGE_PROBABILITY, SMALLEST_COVERAGE = 0.5, 0.3
PANCHROMATIC_PROBABILITY = 0.15
SECOND_LOBE_PROBABILITY = 0.2
# A narrower curve could fall between two hsi bands.
NARROWEST_IN_BANDS = 1.5
# A gap of more than this many median spacings (of this many neighbours) is a hole: removed water bands.
HOLE_IN_SPACINGS, NEIGHBOURS = 2.5, 11
# Variation of the light. The logarithm of the illuminant is a sum of waves with these cycles along the spectrum.
WAVE_CYCLES, WAVE_STRENGTH = np.array([0.5, 1.0, 2.0, 3.0, 4.0]), 0.8
LARGEST_LOG_GAMMA = 0.5
CLIPPING_QUANTILES = (0.97, 0.9995)
QUANTILE_STEP = 17  # quantiles of every 17th value are close enough
COMPONENT_VARIATION = 0.5  # of the logarithm of a component's size
# Remainders of faults: probability of each; coarse pixels; fine pixels; relative; logarithm of the exponent.
FAULT_PROBABILITY, LARGEST_KEYSTONE, LARGEST_BEND, LARGEST_LIGHT, LARGEST_LOG_TONE = 0.4, 0.2, 0.7, 0.15, 0.25
# Relative error of an SRF at its knots; sides of a changed area over those of the patch.
LARGEST_SRF_ERROR, SRF_KNOTS, CHANGED_SIDES = 0.1, 5, (0.05, 0.25)


@dataclass(frozen=True, eq=False)
class BandTable:
    """How many bands there are and, where known, their wavelengths and widths."""

    count: int
    wavelength_nm: FloatArray | None = None
    fwhm_nm: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class BandSelection:
    """Which bands are kept, in order, and how many neighbours of these are averaged into one, or all mixed."""

    kept: slice | NDArray[np.int64]
    bin_size: int = 1
    mixed: FloatArray | None = None  # (K, C) weights whose rows sum to 1

    def of_cube(self, cube: Tensor) -> Tensor:
        """(C, H, W) -> (K, H, W); a view where that is possible."""
        if self.mixed is not None:
            return mix_bands(torch.from_numpy(self.mixed), cube)
        chosen = cube[self.kept]
        return chosen if self.bin_size == 1 else chosen.reshape(-1, self.bin_size, *cube.shape[1:]).mean(dim=1)

    def of_bands(self, bands: BandTable) -> BandTable:
        """An average of neighbours has their mean wavelength; its width is their range plus the width of one band."""
        if self.mixed is not None:
            return BandTable(len(self.mixed), None if bands.wavelength_nm is None else self.mixed @ bands.wavelength_nm)
        count = len(self._binned(np.arange(float(bands.count))))
        if bands.wavelength_nm is None:
            return BandTable(count)
        wavelength_nm = self._binned(bands.wavelength_nm)
        if bands.fwhm_nm is None:
            return BandTable(count, wavelength_nm.mean(axis=1))
        widths = self._binned(bands.fwhm_nm).mean(axis=1) + np.ptp(wavelength_nm, axis=1)
        return BandTable(count, wavelength_nm.mean(axis=1), widths)

    def _binned(self, column: FloatArray) -> FloatArray:
        """(C,) -> (K, bin size)."""
        return column[self.kept].reshape(-1, self.bin_size)


ALL_BANDS = BandSelection(slice(None))


def draw_selection(generator: np.random.Generator, variation: BandVariation | None, table: BandTable) -> BandSelection:
    """Draw which bands of a scene a batch has."""
    bands = table.count
    if variation is None or generator.random() >= variation.probability or bands <= variation.least:
        return ALL_BANDS
    if variation.mixed and generator.random() < variation.mixed:
        count = int(generator.integers(variation.least, bands))
        return BandSelection(slice(None), mixed=random_srf(generator, count, bands, table.wavelength_nm))
    kind = generator.integers(3)
    bin_size = 1
    if kind == 2 and bands >= 2 * variation.least:
        bin_size = int(generator.integers(2, bands // variation.least + 1))
        count = bands // bin_size * bin_size
    else:
        count = int(generator.integers(variation.least, bands))
    if kind == 1:
        return BandSelection(np.sort(generator.choice(bands, count, replace=False)))
    start = int(generator.integers(bands - count + 1))
    return BandSelection(slice(start, start + count), bin_size)


def random_srf(
    generator: np.random.Generator, msi_bands: int, bands: int, wavelength_nm: FloatArray | None = None
) -> FloatArray:
    """Draw an SRF that could be a sensor's: smooth, non-negative, in the order of the wavelengths.

    The curves lie on an axis from 0 to 1 along the HSI's spectrum: wavelength, its logarithm (real sensors have many
    narrow bands in the visible and few wide ones in the infrared), or the band index where wavelengths are unknown.
    Coverage, regularity, width (from gaps to strong overlap, sometimes a panchromatic band), flatness, skew, ripples
    and a small second lobe vary. Returns (M, C) weights; rows sum to 1, sorted by centre.
    """
    logarithmic = generator.random() < 0.5
    position, width = _spectral_axis(bands, wavelength_nm, logarithmic=logarithmic)
    centres, fwhm = _draw_centres(generator, msi_bands)
    # A centre in a hole of the spectrum moves to the nearest band, so that no curve is empty.
    nearest = np.abs(position - centres[:, None]).argmin(axis=1)
    centres = position[nearest] + width[nearest] * generator.uniform(-0.5, 0.5, msi_bands)
    order = np.argsort(centres)
    centres, fwhm = centres[order], np.maximum(fwhm, NARROWEST_IN_BANDS * width[nearest])[order]
    weights = _draw_curves(generator, position, centres, fwhm) * width
    normalised: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _spectral_axis(bands: int, wavelength_nm: FloatArray | None, *, logarithmic: bool) -> tuple[FloatArray, FloatArray]:
    """Position of each band between 0 and 1, and the length of the axis that it represents."""
    if bands == 1:
        return np.zeros(1), np.ones(1)
    position = np.arange(bands, dtype=np.float64) if wavelength_nm is None else wavelength_nm
    if wavelength_nm is not None and logarithmic:
        position = np.log(wavelength_nm)
    length = float(np.ptp(position))
    position = (position - position.min()) / (length if length > 0 else 1.0)
    order = np.argsort(position, kind="stable")
    # Bands of the same wavelength still need a width.
    gaps = np.maximum(np.diff(position[order]), 1e-6)
    usual = median_filter(gaps, NEIGHBOURS, mode="nearest")
    half_cells = np.where(gaps > HOLE_IN_SPACINGS * usual, usual, gaps) / 2
    width = np.empty(bands)
    width[order] = np.concatenate([half_cells[:1], half_cells]) + np.concatenate([half_cells, half_cells[-1:]])
    return position, width


def _draw_centres(generator: np.random.Generator, msi_bands: int) -> tuple[FloatArray, FloatArray]:
    """Centres and FWHM on the axis: each band in a cell of its own of the covered range."""
    length = 1.0 if generator.random() < FULL_COVERAGE_PROBABILITY else generator.uniform(SMALLEST_COVERAGE, 1.0)
    start = generator.uniform(0.0, 1.0 - length)
    # Gamma-distributed cells range from nearly arbitrary (shape 1) to nearly regular.
    cells = generator.gamma(generator.uniform(1.0, 8.0), size=msi_bands) + 1e-3
    cells *= length / cells.sum()
    centres = start + np.cumsum(cells) - cells * generator.uniform(0.35, 0.65, msi_bands)
    fwhm = cells * _log_uniform(generator, *FILLING) * np.exp(0.25 * generator.standard_normal(msi_bands))
    if msi_bands > 1 and generator.random() < PANCHROMATIC_PROBABILITY:
        wide = generator.integers(msi_bands)
        centres[wide] = start + length * generator.uniform(0.35, 0.65)
        fwhm[wide] = length * generator.uniform(0.5, 1.0)
    return centres, fwhm


def _draw_curves(
    generator: np.random.Generator, position: FloatArray, centres: FloatArray, fwhm: FloatArray
) -> FloatArray:
    """(M, C): a skewed generalised Gaussian each, with ripples, some with a second lobe."""
    count = centres.size
    flatness = _log_uniform(generator, *FLATNESS) * np.exp(generator.uniform(-0.2, 0.2, count))
    skew = generator.uniform(-0.3, 0.3, count)
    ripple = generator.uniform(0.0, 0.2, count)
    frequency, phase = generator.uniform(0.5, 1.5, count), generator.random(count)
    lobe = np.where(generator.random(count) < SECOND_LOBE_PROBABILITY, generator.uniform(0.0, 0.15, count), 0.0)
    lobe_centre = generator.random(count)

    offset = (position - centres[:, None]) / fwhm[:, None]
    side = np.exp(np.where(offset < 0, skew[:, None], -skew[:, None]))
    main = np.exp2(-(np.abs(2 * offset * side) ** flatness[:, None]))
    main *= 1 + ripple[:, None] * np.cos(2 * math.pi * (frequency[:, None] * offset + phase[:, None]))
    second = np.exp2(-((2 * (position - lobe_centre[:, None]) / fwhm[:, None]) ** 2))
    curves: FloatArray = main + lobe[:, None] * second
    return curves


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(high)))


# Interpolating a sensor's curves takes milliseconds; the tables of buckets come back, random selections do not.
@lru_cache(maxsize=256)
def named_srf(name: str, bands: BandTable) -> FloatArray | None:
    """(M, C) weights of those bands of a sensor or file that these hsi bands cover; None if there are none, or if
    wavelengths are needed and unknown.
    """
    # The warning that a curve extends beyond the scene would repeat for every batch.
    with warnings.catch_warnings(action="ignore"):
        try:
            good = np.ones(bands.count, dtype=bool)
            return find_srf(name, bands.wavelength_nm, bands.fwhm_nm, good, skip_uncovered=True).weights
        except BandError:
            return None


@dataclass(frozen=True, eq=False)
class PairBatch:
    """B simulated pairs and how each was observed. Images are float32, everything else float64; lengths are in fine
    pixels.
    """

    hsi: Tensor  # (B, C, h, w)
    msi: Tensor  # (B, M, H, W)
    reference: Tensor  # (B, C, H, W), in [0, 1]
    scale: float
    sigma: Tensor  # (B,) of the PSF
    shift: Tensor  # (B, 2): down, right
    srf: Tensor  # (B, M, C), rows sum to 1
    hsi_noise: Tensor  # (B,) standard deviation, 0 without noise
    msi_noise: Tensor  # (B,)
    assumed: Tensor  # (B, 5): sigma, shift down and right, noise of hsi and msi, as given to a method
    wavelength_nm: Tensor | None  # (C,)
    bucket: str
    base: Tensor | None = None  # (B, C, H, W) that a network's residual is added to; None: the network computes it
    base_error: Tensor | None = None  # (B, C, H, W) expected error of the base

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """Move all tensors to a device."""
        return self._map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy all tensors to page-locked memory."""
        return self._map_tensors(Tensor.pin_memory)

    def _map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(each) for name, each in vars(self).items() if isinstance(each, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """What all samples of a batch have in common."""

    patch_size: int
    coarse_size: int
    selection: BandSelection
    bands: BandTable  # after the selection
    msi_bands: int
    srf: FloatArray | None  # (M, C) of a named sensor; None: each sample has a random one

    @property
    def scale(self) -> float:
        return self.patch_size / self.coarse_size


def draw_plan(
    generator: np.random.Generator, settings: SimulationSettings, patch_size: int, bands: BandTable
) -> BatchPlan:
    """Draw what the samples of a batch share."""
    for_scale, for_srf, for_count = generator.random(3)
    coarse_size = coarse_pixels(settings, patch_size, for_scale)
    selection = draw_selection(generator, settings.keep_bands, bands)
    kept = bands if selection is ALL_BANDS else selection.of_bands(bands)
    heights = np.cumsum([choice.weight for choice in settings.srfs])
    name = settings.srfs[int(np.searchsorted(heights[:-1], for_srf * heights[-1], side="right"))].name
    srf = None if name == RANDOM_SRF else named_srf(name, kept)
    fewest, most = settings.msi_bands
    msi_bands = min(fewest + int(for_count * (most - fewest + 1)), kept.count) if srf is None else len(srf)
    return BatchPlan(patch_size, coarse_size, selection, kept, msi_bands, srf)


def coarse_pixels(settings: SimulationSettings, patch_size: int, quantile: float) -> int:
    """Number of coarse pixels across a patch, at the scale that is this quantile (0 to 1) of the range or list."""
    if isinstance(settings.scale, ScaleChoices):
        choices = settings.scale.choices
        low = high = scale = choices[min(int(quantile * len(choices)), len(choices) - 1)]
    else:
        low, high = settings.scale
        scale = _interpolate(settings.scale, quantile)
    count = round(patch_size / scale)
    # Rounding must not leave the range if it contains whole numbers of pixels.
    fewest, most = math.ceil(patch_size / high), math.floor(patch_size / low)
    count = min(max(count, fewest), most) if fewest <= most else count
    if count < FEWEST_COARSE_PIXELS:
        raise OptionError(
            f"scale {scale:g} in patches of {patch_size}x{patch_size} pixels",
            f"at least {FEWEST_COARSE_PIXELS} coarse pixels across a patch",
            "train at smaller scales or with larger patches",
        )
    return count


def observe_patch(
    generator: np.random.Generator, settings: SimulationSettings, plan: BatchPlan, patch: Tensor, reference: Tensor
) -> dict[str, Tensor]:
    """Observe a patch (C, H, W) of all bands; return the sample's fields of `PairBatch` without the batch axis.

    `reference` receives the selected bands (K, H, W), flipped, turned and lit as drawn.
    """
    symmetry = int(generator.integers(8))
    for_fwhm, *for_shift = generator.random(3)
    for_noise = generator.random(4)
    _copy_flipped(plan.selection.of_cube(patch), symmetry if settings.flips else 0, reference)
    if settings.vary_light and generator.random() < settings.vary_light:
        vary_light(generator, reference)
    if settings.vary_spectra and generator.random() < settings.vary_spectra:
        vary_spectra(generator, reference)

    sigma = sigma_from_fwhm(_interpolate(settings.psf_fwhm, for_fwhm) * plan.scale)
    down, right = (settings.shift * (2 * quantile - 1) for quantile in for_shift)
    fine_size, coarse_size = (plan.patch_size,) * 2, (plan.coarse_size,) * 2
    blur = SpatialOperator.from_psf(fine_size, coarse_size, (plan.scale,) * 2, (sigma,) * 2, (down, right))
    srf = plan.srf
    if srf is None:
        srf = random_srf(generator, plan.msi_bands, plan.bands.count, plan.bands.wavelength_nm)
    hsi, msi = blur.apply(reference), mix_bands(torch.from_numpy(srf), reference)
    if settings.imperfect and generator.random() < settings.imperfect:
        hsi, msi = make_imperfect(generator, reference, blur, srf, hsi, msi)
    hsi_noise = _noise_level(hsi, settings.snr_hsi_db, settings.noise_free, for_noise[:2])
    msi_noise = _noise_level(msi, settings.snr_msi_db, settings.noise_free, for_noise[2:])
    for image, level in ((hsi, hsi_noise), (msi, msi_noise)):
        if level > 0:
            image.add_(torch.from_numpy(generator.standard_normal(image.shape, dtype=np.float32)), alpha=level)
    rms = (float(hsi.square().mean().sqrt()), float(msi.square().mean().sqrt()))
    assumed = _perturb(generator, settings, (sigma, down, right, hsi_noise, msi_noise), rms)
    parameters = {"sigma": sigma, "shift": (down, right), "hsi_noise": hsi_noise, "msi_noise": msi_noise}
    return {"hsi": hsi, "msi": msi, "srf": torch.from_numpy(srf)} | {
        name: torch.tensor(value, dtype=torch.float64) for name, value in (parameters | {"assumed": assumed}).items()
    }


def vary_light(generator: np.random.Generator, patch: Tensor) -> None:
    """Change the illuminant, the contrast and the clipping of a patch (C, H, W) in [0, 1], in place."""
    coloured, contrasted, clipped = generator.random(3) < (0.7, 0.7, 0.5)
    strengths, phases = generator.normal(size=len(WAVE_CYCLES)), generator.random(len(WAVE_CYCLES))
    gamma = math.exp(generator.uniform(-LARGEST_LOG_GAMMA, LARGEST_LOG_GAMMA))
    quantile = generator.uniform(*CLIPPING_QUANTILES)
    if coloured:
        along = np.linspace(0.0, 1.0, len(patch))[:, None]
        waves = strengths / (1 + WAVE_CYCLES) * np.sin(2 * np.pi * (WAVE_CYCLES * along + phases))
        patch.mul_(torch.from_numpy(np.exp(WAVE_STRENGTH * waves.sum(1))).to(patch)[:, None, None])
        patch.div_(patch.max().clamp_min(1e-6))
    if contrasted:
        patch.pow_(gamma)
    if clipped:
        brightest = float(np.quantile(patch.numpy().ravel()[::QUANTILE_STEP], quantile))
        patch.div_(max(brightest, 1e-6)).clamp_(0, 1)


def vary_spectra(generator: np.random.Generator, patch: Tensor) -> None:
    """Scale the principal components of a patch (C, H, W) in [0, 1] at random, in place: materials like other ones."""
    values = patch.flatten(1)
    some = values[:, ::QUANTILE_STEP].double()
    _, axes = torch.linalg.eigh(torch.cov(some) if len(some) > 1 else torch.ones(1, 1, dtype=torch.float64))
    factors = torch.from_numpy(np.exp(COMPONENT_VARIATION * generator.standard_normal(len(axes)).clip(-2, 2)))
    change = ((axes * (factors - 1)) @ axes.T).to(values)
    values += change @ (values - some.mean(1, keepdim=True).to(values))
    values.clamp_(min=0).div_(values.max().clamp_min(1e-6))


def make_imperfect(
    generator: np.random.Generator, reference: Tensor, blur: SpatialOperator, srf: FloatArray, hsi: Tensor, msi: Tensor
) -> tuple[Tensor, Tensor]:
    """The faults of a recorded pair that an estimation does not see or leaves a remainder of, each with probability
    0.4: a PSF that is no Gaussian, hsi bands displaced against each other, an msi of another SRF (M, C), with a changed
    area, bent, in other light and other tones.
    """
    wide, displaced, misjudged, changed, bent, lit, toned = generator.random(7) < FAULT_PROBABILITY
    if wide:  # with tails, or a box
        if generator.random() < 0.5:
            tails = SpatialOperator(*(_widened(matrix) for matrix in (blur.rows, blur.columns)))
            hsi = torch.lerp(hsi, tails.apply(reference), generator.uniform(0.05, 0.2))
        else:
            box = SpatialOperator(*(_box(matrix) for matrix in (blur.rows, blur.columns)))
            hsi = torch.lerp(hsi, box.apply(reference), generator.uniform(0.3, 1.0))
    if displaced:
        down, right = generator.uniform(-LARGEST_KEYSTONE, LARGEST_KEYSTONE, 2)
        along = torch.linspace(-1, 1, len(hsi))[:, None, None]
        # Half the difference of neighbours is the derivative along an axis, in coarse pixels.
        by_row, by_column = torch.gradient(hsi, dim=(1, 2))
        hsi = hsi + along * (down * by_row + right * by_column)
    if misjudged:
        knots = LARGEST_SRF_ERROR * generator.uniform(-1, 1, (len(srf), SRF_KNOTS))
        spectrum = np.linspace(0, SRF_KNOTS - 1, srf.shape[1])
        errors = np.stack([np.interp(spectrum, np.arange(SRF_KNOTS), row) for row in knots])
        msi = msi + mix_bands(torch.from_numpy(srf * errors), reference)
    if changed:
        msi = msi.clone()
        sizes = [max(1, int(size * generator.uniform(*CHANGED_SIDES))) for size in msi.shape[1:]]
        here, there = (
            [int(generator.integers(whole - size + 1)) for whole, size in zip(msi.shape[1:], sizes, strict=True)]
            for _ in range(2)
        )
        rows, columns, other_rows, other_columns = (
            slice(start, start + size) for place in (here, there) for start, size in zip(place, sizes, strict=True)
        )
        msi[:, rows, columns] = msi[:, other_rows, other_columns].clone()
    if bent:
        offsets = LARGEST_BEND * generator.uniform(0.2, 1.0) * _smooth_fields(generator, msi)
        grid = torch.stack(torch.meshgrid(*(torch.linspace(-1, 1, size) for size in msi.shape[1:]), indexing="ij"))
        grid = grid + offsets * (2 / (torch.tensor(msi.shape[1:]) - 1))[:, None, None]
        places = grid.flip(0).permute(1, 2, 0)[None]
        msi = grid_sample(msi[None], places, mode="bicubic", padding_mode="border", align_corners=True)[0]
    if lit:
        gain, offset = generator.uniform(0, LARGEST_LIGHT), generator.uniform(0, 0.03)
        msi = msi * (1 + gain * _smooth_fields(generator, msi)[0]) + offset
    if toned:
        msi = msi.clamp(0, 1) ** math.exp(generator.uniform(-LARGEST_LOG_TONE, LARGEST_LOG_TONE))
    return hsi, msi


def _widened(matrix: Tensor) -> Tensor:
    """(h, H): each coarse pixel also sees half of what its neighbours see."""
    padded = torch.cat([matrix[:1], matrix, matrix[-1:]])
    return (padded[:-2] + 2 * matrix + padded[2:]) / 4


def _box(matrix: Tensor) -> Tensor:
    """(h, H): means over the fine pixels in which the PSF has at least half of its maximum."""
    inside = (matrix >= matrix.amax(1, keepdim=True) / 2).to(matrix)
    return inside / inside.sum(1, keepdim=True)


def _smooth_fields(generator: np.random.Generator, like: Tensor) -> Tensor:
    """(2, H, W) random smooth fields within -1 to 1."""
    knots = torch.from_numpy(generator.uniform(-1, 1, (1, 2, 4, 4)).astype(np.float32))
    return interpolate(knots, like.shape[1:], mode="bicubic", align_corners=True)[0].clamp(-1, 1)


def _interpolate(span: tuple[float, float], quantile: float) -> float:
    return span[0] + (span[1] - span[0]) * quantile


def _copy_flipped(patch: Tensor, symmetry: int, target: Tensor) -> None:
    """Apply one of the eight symmetries of the square, 0 to 7, in one pass: numpy allows negative strides."""
    view = patch.numpy()
    if symmetry & 4:
        view = view.swapaxes(1, 2)
    if symmetry & 2:
        view = view[:, ::-1]
    if symmetry & 1:
        view = view[:, :, ::-1]
    np.copyto(target.numpy(), view)


def _noise_level(image: Tensor, snr_db: tuple[float, float] | None, noise_free: float, draws: FloatArray) -> float:
    """Standard deviation of white noise, the same for all bands, at an SNR drawn from the range; 0 without noise."""
    if snr_db is None or draws[0] < noise_free:
        return 0.0
    return float(image.double().square().mean().sqrt()) / 10 ** (_interpolate(snr_db, draws[1]) / 20)


def _perturb(
    generator: np.random.Generator, settings: SimulationSettings, truth: tuple[float, ...], rms: tuple[float, float]
) -> tuple[float, ...]:
    """Sigma, shift down and right, noise of hsi and msi, as an estimate might find them. Drawn last, so that the pair
    does not depend on it.
    """
    errors = settings.perturbation
    if errors is None:
        return truth
    sigma, down, right, hsi_noise, msi_noise = truth
    normal = generator.standard_normal(5).clip(-2.5, 2.5)
    floors = errors.floor * generator.random(2) * rms
    return (
        sigma * (1 + errors.sigma * normal[0]),
        down + errors.shift * normal[1],
        right + errors.shift * normal[2],
        math.hypot(hsi_noise * (1 + errors.noise * normal[3]), floors[0]),
        math.hypot(msi_noise * (1 + errors.noise * normal[4]), floors[1]),
    )
