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
from hyperfuse.physics.change import Agreement, measure_agreement
from hyperfuse.physics.harmonise import (
    MUST_LEAVE,
    Bend,
    CoarsePixels,
    Correction,
    Light,
    SmoothField,
    ToneCurves,
    find_corrections,
    negligible_shares,
    warped,
)
from hyperfuse.physics.observation import Observation, as_pair, default_sigma, require_pair
from hyperfuse.physics.register import (
    SEARCH_STEP,
    SIGMA_LIMITS,
    BandDisplacement,
    Block,
    Registration,
    find_band_displacement,
    register,
    search_shift,
    unexplained_share,
)
from hyperfuse.physics.sampling import PairSamples, Samples, estimate_noise, weakest_components

FEWEST_PIXELS = 36  # a scene of 8x8
LEAST_EXPLAINED = 0.3
MORE_IN_FEW_PIXELS = 40  # pixels that unrelated images match by chance when the best shift and PSF are picked
MOST_SHIFT_ERROR = 0.2  # of a coarse pixel
# Confidence is the probability of errors below these: of log sigma, and of the shift in fine pixels. Standard errors
# assume that misfit is white noise; true errors are larger by the first factor or, where the images disagree, by the
# second (docs/real_pairs.md has the calibration). Before any evidence, the expected ones are right with log odds of:
TOLERATED_LOG_SIGMA, TOLERATED_SHIFT, ERROR_FACTORS = 0.1, 0.15, (3.0, 4.0)
PRIOR_LOG_ODDS = 2.0
# A PSF that is a mean over the detector's pixel is expected to have this standard deviation, in coarse pixels (0.29
# and some blur by optics and motion), and by this factor less than the Gaussian closest to it. It is tried where one of
# that width leaves at most so many times what the Gaussian leaves, and taken before anything else is corrected where
# the best one leaves less than this share.
DETECTOR_SIGMA, LESS_WIDE, DETECTOR_WORTH_TRYING, DETECTOR_LEAVES = 0.35, 0.94, 4.0, 0.5
# Log likelihood that a PSF and shift other than the expected ones must gain, and where the images disagree, so that
# pixels already count as few, a Gaussian PSF.
LEAST_EVIDENCE, LEAST_EVIDENCE_OF_FEW = 10.0, 5.0
# Where the images disagree, misfit is alike in all msi bands and in so many neighbouring pixels.
PIXELS_THAT_DISAGREE_ALIKE = 4
ROUNDS = 3  # of finding corrections and weights, and of registering what they leave
MOVED_LOG_SIGMA, MOVED_SHIFT = 0.01, 0.005  # from one round to the next, of a coarse pixel: less is settled
NOISE_LEAVES = 0.85  # mean weight of pixels that differ by nothing but Gaussian noise, or a little less
LEAST_WEIGHT = 0.3  # of pixels that the SRF is fitted to
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
    blocks = found.correct(_seen_by(there.blocks(registration.sigma), registration.detector), samples.fine_size)
    spectra, blurred, noise_gain = _coarse_spectra(blocks, samples.scale, registration.sigma, found.is_robust)
    fit = _known_srf(known.srf, spectra, blurred) if known.srf is not None else fit_srf(spectra, blurred, wavelength_nm)
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


@dataclass(frozen=True)
class _Registered:
    """A PSF and shift, the corrections under which they were found, and a note where they could not be found."""

    registration: Registration
    note: str = ""
    corrections: tuple[Correction, ...] = ()
    bend: SmoothField | None = None
    is_robust: bool = False
    mean_weight: float = 1.0
    probability: float = 1.0
    """Of a PSF and shift that are about right."""

    def correct(self, blocks: list[Block], fine_size: tuple[int, int]) -> list[Block]:
        if not self.corrections and self.bend is None:
            return blocks
        return [
            replace(
                block,
                msi=torch.from_numpy(
                    _corrected(block.msi.numpy(), self.corrections, self.bend, block.fine_start, fine_size)
                ),
            )
            for block in blocks
        ]

    def msi_noise(self, samples: Samples, corrected: list[Block]) -> Tensor:
        if not self.corrections:
            return samples.msi_noise()
        return torch.stack([estimate_noise(block.msi) for block in corrected]).median(0).values


def _corrected(
    msi: NDArray[np.float32],
    corrections: tuple[Correction, ...],
    bend: SmoothField | None,
    start: tuple[int, int],
    fine_size: tuple[int, int],
) -> NDArray[np.float32]:
    for correction in corrections:
        msi = correction.apply(msi, start)
    return msi if bend is None else warped(msi, bend, start, fine_size)


def _register(samples: Samples, known: KnownParts, harmonise: bool, bend: Bend) -> _Registered:
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
        return _Registered(
            replace(expected, explained=1.0) if everything_known else expected, "" if everything_known else note
        )
    if _is_constant(blocks):
        note = unknown + "one of the images is constant"
        return _Registered(
            replace(expected, explained=1.0) if everything_known else expected, "" if everything_known else note
        )
    # Blocks already lie where the georeference places them; the search starts from no shift.
    sigma_known, shift_known = known.sigma is not None, known.misregistration is not None
    found, evidence = _find(samples, blocks, start, sigma_known, shift_known, harmonise, bend)
    best = found.registration
    if everything_known:
        return replace(found, registration=replace(expected, explained=best.explained))
    expected = replace(expected, explained=best.explained_at_start)
    if best.explained < LEAST_EXPLAINED + min(0.55, MORE_IN_FEW_PIXELS / pixels):
        return _Registered(
            expected, f"{unknown}the hsi explains {max(0.0, best.explained):.0%} of the msi, too little to align by"
        )
    if any(sigma >= 0.99 * SIGMA_LIMITS[1] * scale for sigma, scale in zip(best.sigma, samples.scale, strict=True)):
        return _Registered(expected, unknown + "the hsi explains the msi only under an implausibly wide PSF")
    if _relative_shift_error(best, samples.scale) > MOST_SHIFT_ERROR:
        return _Registered(expected, unknown + "too little texture")
    least = LEAST_EVIDENCE_OF_FEW if found.is_robust and not any(best.detector) else LEAST_EVIDENCE
    if evidence < least and found.bend is None:
        near_best = _probability(replace(expected, shift=(0.0, 0.0)), best, found.is_robust)
        probability = max(near_best, 1 / (1 + math.exp(evidence - PRIOR_LOG_ODDS)))
        note = "the images disagree too much to tell another shift or PSF: those expected are kept"
        return replace(found, registration=expected, probability=probability, note=note if probability < 0.5 else "")
    shift = samples.shift[0] + best.shift[0], samples.shift[1] + best.shift[1]
    return replace(
        found, registration=replace(best, shift=shift), probability=_probability(best, best, found.is_robust)
    )


def _find(
    samples: Samples,
    blocks: list[Block],
    start: tuple[float, float],
    sigma_known: bool,
    shift_known: bool,
    harmonise: bool,
    bend: Bend,
) -> tuple[_Registered, float]:
    """The PSF, of either shape, and the shift that explain the msi best, and the evidence for them."""
    best = register(blocks, samples.scale, start, (0.0, 0.0), sigma_known, shift_known)
    found = _Registered(best)
    begin, averaging = start, None
    if not sigma_known:
        averaging, _ = _averaging(found, blocks, samples, shift_known)
    if averaging is not None:
        found = _Registered(averaging)
        if 1 - averaging.explained < DETECTOR_LEAVES * (1 - best.explained):
            blocks, begin = _seen_by(blocks, averaging.detector), _detector_sigma(samples.scale)
    if 1 - found.registration.explained > _negligible(blocks, samples.scale, found.registration):
        robust = _register_robustly(samples, blocks, begin, sigma_known, shift_known, harmonise, bend)
        # Noise alone, which all pixels share, is better averaged over all of them.
        found = robust if robust.corrections or robust.bend or robust.mean_weight < NOISE_LEAVES else found
    is_plausible = False
    if found.is_robust and not sigma_known and not any(found.registration.detector):
        averaging, is_plausible = _averaging(found, blocks, samples, shift_known)
        found = found if averaging is None else replace(found, registration=averaging)
    evidence = _evidence(found, blocks, samples, start)
    if is_plausible and evidence < LEAST_EVIDENCE:
        # Corrections that were found under a PSF of the wrong shape explain little.
        averaged, begin = _seen_by(blocks, samples.scale), _detector_sigma(samples.scale)
        other = _register_robustly(samples, averaged, begin, sigma_known, shift_known, harmonise, bend)
        if (gained := _evidence(other, blocks, samples, start)) >= LEAST_EVIDENCE:
            found, evidence = other, gained
    return found, evidence


def _evidence(found: _Registered, blocks: list[Block], samples: Samples, start: tuple[float, float]) -> float:
    """Log likelihood that the PSF and shift gain against the expected ones: a Gaussian of the width at the start, and
    no shift.
    """
    best, scale, expected = found.registration, samples.scale, (start, (0.0, 0.0))
    if not found.is_robust:
        return best.evidence
    corrected = found.correct(blocks, samples.fine_size)
    gaussian, seen = _seen_by(corrected, (0.0, 0.0)), _seen_by(corrected, best.detector)
    evidence = best.evidence
    if any(best.detector):
        weights = _weights(seen, scale, best.sigma, best.shift)
        evidence = _log_likelihood(gaussian, seen, scale, expected, (best.sigma, best.shift), weights)
    evidence /= PIXELS_THAT_DISAGREE_ALIKE * len(blocks[0].msi)
    if found.bend is not None or evidence < LEAST_EVIDENCE_OF_FEW:
        return evidence
    # The weights suit what was found; the expected ones may explain as much under their own.
    before, after = _robust_level(gaussian, scale, *expected), _robust_level(seen, scale, best.sigma, best.shift)
    return evidence if after < MUST_LEAVE * before else 0.0


def _averaging(
    found: _Registered, blocks: list[Block], samples: Samples, shift_known: bool
) -> tuple[Registration | None, bool]:
    """A PSF that averages over the coarse pixel, as a detector does, where it explains the msi better than found; and
    whether it is plausible at all.
    """
    scale, gaussian = samples.scale, found.registration
    corrected = found.correct(blocks, samples.fine_size)
    averaged = _seen_by(corrected, scale)
    if found.is_robust:
        weights = _weights(corrected, scale, gaussian.sigma, gaussian.shift)
    else:
        weights = torch.ones(sum(int(block.usable.sum()) for block in blocks), dtype=torch.float64)
    here = gaussian.sigma, gaussian.shift
    left = unexplained_share(corrected, scale, *here, weights)
    y, x = (max(LESS_WIDE * own, side / math.sqrt(12)) for own, side in zip(gaussian.sigma, scale, strict=True))
    if unexplained_share(averaged, scale, (y, x), gaussian.shift, weights) > DETECTOR_WORTH_TRYING * left:
        return None, False
    start = _detector_sigma(scale)
    trial = register(averaged, scale, start, (0.0, 0.0), False, shift_known, weights, gaussian.shift)
    evidence = _log_likelihood(corrected, averaged, scale, here, (trial.sigma, trial.shift), weights)
    alike = PIXELS_THAT_DISAGREE_ALIKE * len(blocks[0].msi) if found.is_robust else 1
    if evidence < alike * LEAST_EVIDENCE:
        return None, True
    evidence += gaussian.evidence
    return replace(trial, evidence=evidence, explained_at_start=gaussian.explained_at_start), True


def _log_likelihood(
    one: list[Block],
    other: list[Block],
    scale: tuple[float, float],
    of_one: tuple[tuple[float, float], tuple[float, float]],
    of_other: tuple[tuple[float, float], tuple[float, float]],
    weights: Tensor,
) -> float:
    """By how much it is higher under the PSF and shift of the other blocks, which differ by their detector."""
    ratio = unexplained_share(one, scale, *of_one, weights) / unexplained_share(other, scale, *of_other, weights)
    return 0.5 * float(weights.sum()) * len(one[0].msi) * math.log(ratio)


def _detector_sigma(scale: tuple[float, float]) -> tuple[float, float]:
    return DETECTOR_SIGMA * scale[0], DETECTOR_SIGMA * scale[1]


def _seen_by(blocks: list[Block], detector: tuple[float, float]) -> list[Block]:
    return [replace(block, detector=detector) for block in blocks]


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


def _robust_level(
    blocks: list[Block], scale: tuple[float, float], sigma: tuple[float, float], shift: tuple[float, float]
) -> float:
    """The median misfit at a PSF and shift, under weights of its own."""
    pixels = CoarsePixels.of(blocks, scale, sigma, shift, (1, 1))
    return pixels.level(pixels.explain([block.msi.numpy() for block in blocks]).shares)


def _negligible(blocks: list[Block], scale: tuple[float, float], best: Registration) -> float:
    """The unexplained share of the msi below which it agrees with the hsi everywhere."""
    blurred = [block.operator(scale, best.sigma, best.shift).apply(block.msi) for block in blocks]
    return float(np.exp(np.log(negligible_shares(blurred)).mean()))


def _register_robustly(
    samples: Samples,
    blocks: list[Block],
    start: tuple[float, float],
    sigma_known: bool,
    shift_known: bool,
    harmonise: bool,
    bend: Bend,
) -> _Registered:
    """Alternate between corrections and weights at a PSF and shift, and the PSF and shift under them."""
    scale, fine_size = samples.scale, samples.fine_size
    spread = _seen_by(samples.blocks(start, spread=True), blocks[0].detector)
    sigma, shift = start, (0.0, 0.0) if shift_known else search_shift(blocks, scale, start)
    found = _Registered(Registration(start, shift, (0.0, 0.0), 0.0, 0.0, 0.0), is_robust=True)
    tried: tuple[type[Correction], ...] = (ToneCurves, Light) if harmonise else ()
    for turn in range(ROUNDS):
        pixels = CoarsePixels.of(spread, scale, sigma, shift, fine_size)
        # A wrong PSF looks like a bend in places: there is none before the first registration.
        allowed: Bend = bend if not shift_known and (turn == 1 or found.bend is not None) else "off"
        corrections = find_corrections(pixels, radiometry=tried, bend=allowed)
        found = replace(found, corrections=corrections.corrections, bend=corrections.bend)
        corrected = found.correct(blocks, fine_size)
        weights = _weights(corrected, scale, sigma, shift)
        if turn == 1 and not shift_known and found.corrections and found.bend is None:
            shift = search_shift(corrected, scale, start, weights, shift, SEARCH_STEP)
        registration = register(
            corrected, scale, start, (0.0, 0.0), sigma_known, shift_known, weights, None if shift_known else shift
        )
        moved = max(
            abs(math.log(new / old)) for new, old in zip(registration.sigma, sigma, strict=True)
        ) > MOVED_LOG_SIGMA or math.dist(registration.shift, shift) > MOVED_SHIFT * min(scale)
        sigma, shift = registration.sigma, registration.shift
        found = replace(found, registration=registration, mean_weight=float(weights.mean()))
        if turn > 0 or not moved:
            # From here on, what has been found is only refined.
            tried = tuple(type(correction) for correction in found.corrections)
        if turn > 0 and not moved:
            break
    return found


def _weights(
    blocks: list[Block], scale: tuple[float, float], sigma: tuple[float, float], shift: tuple[float, float]
) -> Tensor:
    """(n,) Of all usable pixels, from 0 for those that disagree to 1."""
    pixels = CoarsePixels.of(blocks, scale, sigma, shift, (1, 1), most=None)
    return torch.from_numpy(pixels.explain([block.msi.numpy() for block in blocks]).weights).clamp_min(1e-6)


def _relative_shift_error(registration: Registration, scale: tuple[float, float]) -> float:
    return max(error / axis_scale for error, axis_scale in zip(registration.shift_error, scale, strict=True))


def _is_constant(blocks: list[Block]) -> bool:
    hsi = torch.cat([block.hsi[:, block.usable] for block in blocks], dim=1).double()
    msi = torch.cat([block.msi.flatten(1) for block in blocks], dim=1).double()
    return any(float(image.var(1).max()) <= 1e-12 * float(image.square().mean()) + 1e-300 for image in (hsi, msi))


def _coarse_spectra(
    blocks: list[Block], scale: tuple[float, float], sigma: tuple[float, float], robust: bool
) -> tuple[Tensor, Tensor, float]:
    """Usable hsi spectra (C, n), the blurred msi at the same pixels (M, n), and the share of msi noise left in it.

    `robust` leaves out pixels that disagree.
    """
    spectra, blurred, gain = [], [], 1.0
    for block in blocks:
        operator = block.operator(scale, sigma)
        usable = block.usable if bool(block.usable.any()) else torch.ones_like(block.usable)
        spectra.append(block.hsi[:, usable])
        blurred.append(operator.apply(block.msi)[:, usable])
        gain = operator.mean_noise_gain()
    coarse, seen = torch.cat(spectra, dim=1).double(), torch.cat(blurred, dim=1).double()
    if robust and all(bool(block.usable.any()) for block in blocks):
        agreeing = _weights(blocks, scale, sigma, (0.0, 0.0)) > LEAST_WEIGHT
        coarse, seen = coarse[:, agreeing], seen[:, agreeing]
    return coarse, seen, gain


@dataclass(frozen=True)
class SRFFit:
    """An SRF fitted to a pair."""

    srf: Tensor  # (M, C), never negative
    offset: Tensor  # (M,)
    misfit: Tensor  # (M,) variance that is left on the coarse grid
    largest_misfit: Tensor  # (M,) the same corrected for the fitted weights; infinite where there are too few pixels


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
