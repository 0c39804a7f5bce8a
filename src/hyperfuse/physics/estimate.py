"""From an observed pair to how it was observed: shift, PSF, SRF and noise, with a confidence.

Shapes: C bands, M msi bands, n coarse pixels, h w coarse, H W fine. NaN marks missing pixels in either image.

Shift and PSF come from `register`; the SRF is then a smooth, non-negative least-squares fit of the blurred msi to the
hsi, and the noise levels are those of `sampling`, limited by what the fit leaves unexplained. Where the hsi does not
explain the msi exactly, pixels that disagree lose their weight, and the corrections of `harmonise` are found first.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from hyperfuse.errors import BandError
from hyperfuse.physics.change import Agreement, clipped_ends, measure_agreement
from hyperfuse.physics.corrections import Correction, SmoothField
from hyperfuse.physics.harmonise import Bend
from hyperfuse.physics.locate import (
    LEAST_EVIDENCE,
    LEAST_EVIDENCE_OF_FEW,
    Registered,
    Search,
    find_registration,
    pixel_weights,
    seen_by,
)
from hyperfuse.physics.observation import Observation, as_pair, default_sigma, require_pair
from hyperfuse.physics.register import (
    SIGMA_LIMITS,
    BandDisplacement,
    Block,
    Registration,
    find_band_displacement,
)
from hyperfuse.physics.sampling import PairSamples, Samples, weakest_components

FEWEST_PIXELS = 36  # a scene of 8x8
LEAST_EXPLAINED = 0.3
MORE_IN_FEW_PIXELS = 40  # pixels that unrelated images match by chance when the best shift and PSF are picked
MOST_SHIFT_ERROR = 0.2  # of a coarse pixel
# Confidence is the probability of errors below these: of log sigma, and of the shift in fine pixels. Standard errors
# assume that misfit is white noise; true errors are larger by the first factor or, where the images disagree, by the
# second (docs/real_pairs.md has the calibration). Before any evidence, the expected ones are right with log odds of:
TOLERATED_LOG_SIGMA, TOLERATED_SHIFT, ERROR_FACTORS = 0.1, 0.15, (3.0, 4.0)
PRIOR_LOG_ODDS = 2.0
LEAST_WEIGHT = 0.3  # of pixels that the SRF is fitted to
# Share of a pixel that counts as clipped; refits of the SRF to such pixels, and how many times the usual misfit they
# may have besides.
LEAST_CLIPPED, ROUNDS_BEYOND, CLIPPED_AGREE = 0.02, 5, 8.0
ALL_BUT_CLIPPED = 0.97  # share of the pixels that are not clipped that must agree, for clipping to be all that is wrong
OTHER_UNIT = 10.0  # factor between the msi and the hsi under a known SRF
SMOOTHNESS_LADDER = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
# A smoother SRF is preferred as long as it explains the msi nearly as well as the roughest.
TOLERATED_MISFIT = 1.05
# A constant offset between the sensors is used only if it explains this share of the misfit.
OFFSET_MUST_EXPLAIN = 0.2
FOLDS, FEWEST_PER_FOLD = 4, 6
# Beyond what sensors have (AVIRIS-NG has 425 bands), an SRF is interpolated between so many weights.
MOST_FITTED_BANDS, MOST_WEIGHTS = 450, 200


@dataclass(frozen=True)
class KnownParts:
    """Parameters that are known and kept; None is unknown. Pairs are (y, x) in fine pixels.

    `misregistration` is the shift beside that of the georeference; (0, 0) states that the two images are registered.
    """

    sigma: tuple[float, float] | None = None
    misregistration: tuple[float, float] | None = None
    srf: Tensor | None = None  # (M, C)
    hsi_noise: float | Tensor | None = None
    msi_noise: float | Tensor | None = None


NOTHING_KNOWN = KnownParts()


def estimate_observation(
    hsi: Tensor,
    msi: Tensor,
    *,
    scale: float | tuple[float, float] | None = None,
    grid_shift: tuple[float, float] = (0.0, 0.0),
    wavelength_nm: NDArray[np.float64] | None = None,
    known: KnownParts = NOTHING_KNOWN,
) -> Observation:
    """Estimate how a pair was observed.

    Parameters
    ----------
    hsi, msi
        (C, h, w) and (M, H, W); NaN marks missing pixels.
    scale
        Fine pixels per coarse pixel; by default both images cover the same extent.
    grid_shift
        (y, x) in fine pixels: where the georeference places the hsi, counted from grids with a shared top left corner.
    wavelength_nm
        (C,) band centres, which say what neighbouring bands are for the smoothness of the SRF.
    known
        Parameters that are known and kept.

    Returns
    -------
    Observation
        Where the evidence for another PSF or shift is weak, the default PSF and no misregistration, with a note and a
        warning.

    Examples
    --------
    >>> from hyperfuse.physics.observation import known_observation
    >>> fine = torch.rand(6, 96, 96, generator=torch.Generator().manual_seed(0)).cumsum(0)
    >>> truth = known_observation(torch.eye(2, 6), scale=4.0, shift=(1.0, -0.5))
    >>> hsi = truth.spatial_operator((96, 96), (24, 24)).apply(fine)
    >>> found = estimate_observation(hsi, fine[:2])
    >>> [round(length, 1) for length in found.shift]
    [1.0, -0.5]
    """
    require_pair(hsi, msi)
    pair_scale = (msi.shape[1] / hsi.shape[1], msi.shape[2] / hsi.shape[2]) if scale is None else as_pair(scale)
    samples = PairSamples.of(hsi, msi, pair_scale, grid_shift)
    return estimate_from_samples(samples, wavelength_nm, known, harmonise=False, bend="off").observation


@dataclass(frozen=True)
class Estimate:
    """How a pair was observed, and what has to be done to its msi before that describes it."""

    observation: Observation
    corrections: tuple[Correction, ...]
    bend: SmoothField | None
    """Offset (y, x) in fine pixels besides the shift, where it varies over the scene."""
    agreement: Agreement
    displacement: BandDisplacement | None = None
    """Of the hsi's bands against each other."""


def estimate_from_samples(
    samples: Samples,
    wavelength_nm: NDArray[np.float64] | None = None,
    known: KnownParts = NOTHING_KNOWN,
    *,
    harmonise: bool = True,
    bend: Bend = "auto",
) -> Estimate:
    """Estimate from parts of a pair, whose `shift` is that of the georeference.

    `harmonise` corrects the radiometry of the msi, `bend` a shift that varies over the scene, as far as the pair
    supports it; "force" accepts any improvement.
    """
    found = _register(samples, known, harmonise, bend)
    registration, note = found.registration, found.note
    there = samples.at_shift(registration.shift)
    recorded = seen_by(there.blocks(registration.sigma), registration.detector)
    blocks = found.correct(recorded, samples.fine_size)
    pixels = _CoarseSpectra.of(blocks, recorded, samples.scale, registration.sigma, found.is_robust)
    spectra, blurred, noise_gain = pixels.hsi[:, pixels.agreeing], pixels.msi[:, pixels.agreeing], pixels.noise_gain
    if known.srf is not None:
        fit = _known_srf(known.srf, spectra, blurred)
    else:
        fit = pixels.fit_srf(wavelength_nm, only_clipped=not found.corrections)
    if known.hsi_noise is None:
        hsi_noise = samples.hsi_noise()
        hsi_noise = hsi_noise * weakest_components(spectra, hsi_noise)
    else:
        hsi_noise = torch.as_tensor(known.hsi_noise, dtype=torch.float64).expand(spectra.shape[0])
    if known.msi_noise is None:
        # Limited by the misfit on the coarse grid, where detail that the hsi sees as well does not appear. Misfit
        # beyond both images' noise is an error of the model and counts as noise.
        own = found.msi_noise(samples, blocks)
        variance = torch.minimum(own.square(), fit.largest_misfit / noise_gain)
        expected = fit.srf.square() @ hsi_noise.square() + noise_gain * variance
        msi_noise = (variance + (fit.misfit - expected).clamp_min(0)).sqrt()
    else:
        msi_noise = torch.as_tensor(known.msi_noise, dtype=torch.float64).expand(blurred.shape[0])
    if note:
        warnings.warn(note, stacklevel=2)
    error = _relative_shift_error(registration, samples.scale)
    explained = max(0.0, min(1.0, registration.explained)) * max(0.0, 1 - error / MOST_SHIFT_ERROR)
    observation = Observation(
        scale=samples.scale,
        sigma=registration.sigma,
        shift=registration.shift,
        srf=fit.srf,
        offset=fit.offset,
        hsi_noise=hsi_noise,
        msi_noise=msi_noise,
        grid_shift=samples.shift,
        confidence=explained * found.probability,
        explained=explained,
        detector=registration.detector,
        notes=(note,) if note else (),
    )
    spread = there.blocks(registration.sigma, spread=True)
    agreement = measure_agreement(spread, found.correct(spread, samples.fine_size), observation)
    displacement = None
    if harmonise and bend != "off" and known.misregistration is None:
        displacement = find_band_displacement(blocks, samples.scale, registration.sigma)
    return Estimate(observation, found.corrections, found.bend, agreement, displacement)


def _register(samples: Samples, known: KnownParts, harmonise: bool, bend: Bend) -> Registered:
    """The best PSF and shift or, where the evidence for them is weak, the expected ones; and a note why."""
    start = known.sigma or default_sigma(samples.scale)
    if known.misregistration is not None:
        moved = (samples.shift[0] + known.misregistration[0], samples.shift[1] + known.misregistration[1])
        samples = samples.at_shift(moved)
    expected = Registration(start, samples.shift, (0.0, 0.0), 0.0, 0.0, 0.0)
    everything_known = known.sigma is not None and known.misregistration is not None
    blocks = samples.blocks(start)
    pixels = sum(int(block.usable.sum()) for block in blocks)
    unknown = "shift and PSF not estimated: "
    if pixels < FEWEST_PIXELS:
        note = f"{unknown}{pixels} usable coarse pixels, at least {FEWEST_PIXELS} are needed"
        return Registered(
            replace(expected, explained=1.0) if everything_known else expected, "" if everything_known else note
        )
    if _is_constant(blocks):
        note = unknown + "one of the images is constant"
        return Registered(
            replace(expected, explained=1.0) if everything_known else expected, "" if everything_known else note
        )
    # Blocks already lie where the georeference places them; the search starts from no shift.
    sigma_known, shift_known = known.sigma is not None, known.misregistration is not None
    found, evidence = find_registration(
        Search(samples, blocks, blocks, start, sigma_known, shift_known, harmonise, bend)
    )
    best = found.registration
    if everything_known:
        return replace(found, registration=replace(expected, explained=best.explained))
    expected = replace(expected, explained=best.explained_at_start)
    if best.explained < LEAST_EXPLAINED + min(0.55, MORE_IN_FEW_PIXELS / pixels):
        return Registered(
            expected, f"{unknown}the hsi explains {max(0.0, best.explained):.0%} of the msi, too little to align by"
        )
    if any(sigma >= 0.99 * SIGMA_LIMITS[1] * scale for sigma, scale in zip(best.sigma, samples.scale, strict=True)):
        return Registered(expected, unknown + "the hsi explains the msi only under an implausibly wide PSF")
    if _relative_shift_error(best, samples.scale) > MOST_SHIFT_ERROR:
        return Registered(expected, unknown + "too little texture")
    least = LEAST_EVIDENCE_OF_FEW if found.is_robust and not any(best.detector) else LEAST_EVIDENCE
    if evidence < least and found.bend is None:
        near_best = _probability(replace(expected, shift=(0.0, 0.0)), best, found.is_robust)
        probability = max(near_best, 1 / (1 + math.exp(evidence - PRIOR_LOG_ODDS)))
        if not sigma_known and found.is_robust:
            expected = replace(expected, sigma=_narrower(best.sigma, start))
        note = "the images disagree too much to tell another shift or PSF: those expected are kept"
        return replace(found, registration=expected, probability=probability, note=note if probability < 0.5 else "")
    shift = samples.shift[0] + best.shift[0], samples.shift[1] + best.shift[1]
    return replace(
        found, registration=replace(best, shift=shift), probability=_probability(best, best, found.is_robust)
    )


def _narrower(found: tuple[float, float], expected: tuple[float, float]) -> tuple[float, float]:
    """The expected width or, if the one found is less, that of its mean over both axes.

    Changes, noise and bends look like blur of the hsi. What makes it look sharper than expected is the PSF.
    """
    factor = min(1.0, math.exp(sum(math.log(a / b) for a, b in zip(found, expected, strict=True)) / 2))
    return factor * expected[0], factor * expected[1]


def _probability(used: Registration, best: Registration, is_robust: bool) -> float:
    """Of a PSF and shift near those that are used, if the truth lies around the best ones as their errors say."""
    parts = [
        (math.log(width / likely), error, TOLERATED_LOG_SIGMA)
        for width, likely, error in zip(used.sigma, best.sigma, best.log_sigma_error, strict=True)
    ] + [
        (place - likely, error, TOLERATED_SHIFT)
        for place, likely, error in zip(used.shift, best.shift, best.shift_error, strict=True)
    ]
    total = 1.0
    for distance, error, tolerated in parts:
        unit = math.sqrt(2) * max(1e-9, ERROR_FACTORS[is_robust] * error)
        total *= 0.5 * (math.erf((tolerated - distance) / unit) + math.erf((tolerated + distance) / unit))
    return total


def _relative_shift_error(registration: Registration, scale: tuple[float, float]) -> float:
    return max(error / axis_scale for error, axis_scale in zip(registration.shift_error, scale, strict=True))


def _is_constant(blocks: list[Block]) -> bool:
    hsi = torch.cat([block.hsi[:, block.usable] for block in blocks], dim=1).double()
    msi = torch.cat([block.msi.flatten(1) for block in blocks], dim=1).double()
    return any(float(image.var(1).max()) <= 1e-12 * float(image.square().mean()) + 1e-300 for image in (hsi, msi))


@dataclass(frozen=True)
class SRFFit:
    """An SRF fitted to a pair."""

    srf: Tensor  # (M, C), never negative
    offset: Tensor  # (M,)
    misfit: Tensor  # (M,) variance that is left on the coarse grid
    largest_misfit: Tensor  # (M,) the same corrected for the fitted weights; infinite where there are too few pixels


@dataclass(frozen=True)
class _CoarseSpectra:
    """Usable coarse pixels of both images."""

    hsi: Tensor  # (C, n)
    msi: Tensor  # (M, n), blurred
    noise_gain: float
    """Share of the msi's noise that is left."""
    agreeing: Tensor  # (n,)
    clipped: Tensor  # (2, M, n): whether they see pixels clipped at the low, or the high, end of the recorded msi

    @classmethod
    def of(
        cls,
        blocks: list[Block],
        recorded: list[Block],
        scale: tuple[float, float],
        sigma: tuple[float, float],
        robust: bool,
    ) -> _CoarseSpectra:
        """`robust` finds pixels that do not agree."""
        spectra, blurred, clipped, gain = [], [], [], 1.0
        ends = torch.from_numpy(clipped_ends(recorded)).float()[..., None, None]
        for block, raw in zip(blocks, recorded, strict=True):
            operator = block.operator(scale, sigma)
            usable = block.usable if bool(block.usable.any()) else torch.ones_like(block.usable)
            spectra.append(block.hsi[:, usable])
            blurred.append(operator.apply(block.msi)[:, usable])
            beyond = torch.stack([raw.msi <= ends[:, 0], raw.msi >= ends[:, 1]])
            clipped.append(operator.apply(beyond.float())[..., usable] > LEAST_CLIPPED)
            gain = operator.mean_noise_gain()
        agreeing = torch.ones(sum(each.shape[1] for each in spectra), dtype=torch.bool)
        if robust and all(bool(block.usable.any()) for block in blocks):
            agreeing = pixel_weights(blocks, scale, sigma, (0.0, 0.0)) > LEAST_WEIGHT
        hsi, msi = (torch.cat(parts, dim=1).double() for parts in (spectra, blurred))
        return cls(hsi, msi, gain, agreeing, torch.cat(clipped, dim=2))

    def fit_srf(self, wavelength_nm: NDArray[np.float64] | None, *, only_clipped: bool) -> SRFFit:
        """To the pixels that agree and, where being clipped is all that is wrong with the others, to those as far as
        the hsi does not tell of more beyond the end.
        """
        fit = fit_srf(self.hsi[:, self.agreeing], self.msi[:, self.agreeing], wavelength_nm)
        others = ~self.clipped.flatten(0, 1).any(0)
        agree = int((others & self.agreeing).sum()) >= ALL_BUT_CLIPPED * int(others.sum())
        if not (only_clipped and agree and bool(self.clipped.any())):
            return fit
        low, high = self.clipped
        for _ in range(ROUNDS_BEYOND):
            predicted = fit.srf @ self.hsi + fit.offset[:, None]
            target = torch.where(low, self.msi.minimum(predicted), self.msi)
            target = torch.where(high, self.msi.maximum(predicted), target)
            misfit = (target - predicted).abs()
            usual = misfit[:, self.agreeing].square().mean(1, keepdim=True).sqrt()
            kept = self.agreeing | (misfit <= CLIPPED_AGREE * usual).all(0)
            fit = fit_srf(self.hsi[:, kept], target[:, kept], wavelength_nm)
        return fit


def _known_srf(known: Tensor, spectra: Tensor, blurred: Tensor) -> SRFFit:
    srf = torch.as_tensor(known, dtype=torch.float64)
    if tuple(srf.shape) != (blurred.shape[0], spectra.shape[0]):
        expected = f"({blurred.shape[0]}, {spectra.shape[0]}): one row per msi band, one column per hsi band"
        raise BandError(f"SRF of shape {tuple(srf.shape)}", expected)
    # A known SRF gives the shape of a band; where its level is far off, the images are in different units.
    predicted = srf @ spectra
    gains = (predicted * blurred).sum(1) / predicted.square().sum(1).clamp_min(1e-300)
    other_unit = (gains > OTHER_UNIT) | ((gains > 0) & (gains < 1 / OTHER_UNIT))
    srf = srf * torch.where(other_unit, gains, 1.0)[:, None]
    misfit = (srf @ spectra - blurred).square().mean(1)
    return SRFFit(srf, torch.zeros(blurred.shape[0], dtype=torch.float64), misfit, misfit)


def fit_srf(hsi: Tensor, msi: Tensor, wavelength_nm: NDArray[np.float64] | None = None) -> SRFFit:
    """Fit a smooth, non-negative SRF to spectra hsi (C, n) and msi (M, n) of the same coarse pixels."""
    hsi, msi = hsi.double(), msi.double()
    roughness = torch.from_numpy(roughness_matrix(hsi.shape[0], wavelength_nm))
    interpolation = None
    if len(hsi) > MOST_FITTED_BANDS:
        # The time grows with the third power of their number.
        places, knots = np.arange(len(hsi)), np.linspace(0, len(hsi) - 1, MOST_WEIGHTS)
        interpolation = torch.from_numpy(np.stack([np.interp(places, knots, row) for row in np.eye(MOST_WEIGHTS)]))
        hsi, roughness = interpolation @ hsi, interpolation @ roughness @ interpolation.T
    plain, plain_misfit = _smooth_nnls(hsi, msi, roughness)
    mean, level = hsi.mean(1, keepdim=True), msi.mean(1, keepdim=True)
    centred, centred_misfit = _smooth_nnls(hsi - mean, msi - level, roughness)
    inexact = plain_misfit > 1e-8 * msi.square().mean(1)
    shifted = inexact & (centred_misfit < (1 - OFFSET_MUST_EXPLAIN) * plain_misfit)
    offset = torch.where(shifted, (level - centred @ mean)[:, 0], 0.0)
    srf, misfit = torch.where(shifted[:, None], centred, plain), torch.where(shifted, centred_misfit, plain_misfit)
    pixels = hsi.shape[1]
    freedom = pixels - (srf > 0).sum(1)
    enough = freedom > pixels / 3
    largest = misfit * pixels / freedom.clamp_min(1)
    if not bool(enough.all()):
        largest = torch.where(enough, largest, _cross_validated_misfit(hsi, msi, roughness))
    srf = srf if interpolation is None else srf @ interpolation
    return SRFFit(srf, offset, misfit, largest)


def _cross_validated_misfit(hsi: Tensor, msi: Tensor, roughness: Tensor) -> Tensor:
    """(M,) Mean squared error on pixels that were left out of the fit; infinite where there are too few."""
    pixels = hsi.shape[1]
    if pixels < FEWEST_PER_FOLD * FOLDS:
        return torch.full((len(msi),), torch.inf, dtype=torch.float64)
    total = torch.zeros(len(msi), dtype=torch.float64)
    for fold in range(FOLDS):
        left_out = torch.arange(pixels) % FOLDS == fold
        srf, _ = _smooth_nnls(hsi[:, ~left_out], msi[:, ~left_out], roughness)
        total += (srf @ hsi[:, left_out] - msi[:, left_out]).square().sum(1)
    return total / pixels


def _smooth_nnls(hsi: Tensor, msi: Tensor, roughness: Tensor) -> tuple[Tensor, Tensor]:
    """Per msi band the smoothest rung of the ladder whose misfit is close to the best of all rungs: (M, C) and (M,)."""
    bands, pixels = hsi.shape
    gram, crossed = hsi @ hsi.T / pixels, hsi @ msi.T / pixels
    level = float(gram.trace()) / bands + 1e-300
    rungs = []
    for smoothness in SMOOTHNESS_LADDER:
        loading = 1e-10 * level * torch.eye(bands, dtype=torch.float64)
        root = torch.linalg.cholesky(gram + smoothness * level * roughness + loading)
        targets = torch.linalg.solve_triangular(root, crossed, upper=False)
        rows = [nnls(root.T.numpy(), target.numpy(), maxiter=30 * bands)[0] for target in targets.T]
        rungs.append(torch.from_numpy(np.stack(rows)))
    srfs = torch.stack(rungs)
    misfits = (srfs @ hsi - msi).square().mean(2)
    good_enough = misfits <= TOLERATED_MISFIT * misfits.amin(0) + 1e-300
    chosen = good_enough.to(torch.int8).argmax(0)
    index = torch.arange(msi.shape[0])
    return srfs[chosen, index], misfits[chosen, index]


def roughness_matrix(bands: int, wavelength_nm: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """D'D of first differences between neighbours in wavelength, weaker across gaps; scaled to about 1."""
    if bands < 2:
        return np.zeros((bands, bands))
    if wavelength_nm is None or len(wavelength_nm) != bands or not np.isfinite(wavelength_nm).all():
        wavelength_nm = np.arange(bands, dtype=np.float64)
    order = np.argsort(wavelength_nm, kind="stable")
    steps = np.diff(wavelength_nm[order])
    typical = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
    weights = np.minimum(1.0, typical / np.maximum(steps, 1e-9))
    differences = weights[:, None] * (np.eye(bands)[order[1:]] - np.eye(bands)[order[:-1]])
    return np.asarray(differences.T @ differences, dtype=np.float64)
