"""From an observed pair to how it was observed: shift, point spread, response and noise, with a confidence.

Shapes: C bands, M msi bands, h w coarse, H W fine. NaN marks missing pixels in either image.

The response that turns hsi bands into msi bands, from the pair: smooth, non-negative least squares.

Shapes: C bands, M msi bands, n coarse pixels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor

from hyperfuse.errors import BandError, ValueRangeError
from hyperfuse.physics.observation import Observation, as_pair, default_sigma, require_pair
from hyperfuse.physics.operators import SpatialOperator
from hyperfuse.physics.register import SIGMA_LIMITS, Block, Registration, register
from hyperfuse.physics.sampling import PairSamples, Samples, weakest_components

SMOOTHNESS_LADDER = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
# A smoother response is preferred as long as it explains the msi nearly as well as the roughest.
TOLERATED_MISFIT = 1.05
# A constant offset between the sensors is believed only if it explains this share of the misfit.
OFFSET_MUST_EXPLAIN = 0.2
FOLDS, FEWEST_PER_FOLD = 4, 6


@dataclass(frozen=True)
class SRFFit:
    srf: Tensor  # (M, C), never negative
    offset: Tensor  # (M,)
    misfit: Tensor  # (M,) variance of what is left on the coarse grid
    largest_misfit: (
        Tensor  # (M,) what it may truly be, given that the weights were fitted to it; infinite where nothing is known
    )


def fit_srf(hsi: Tensor, msi: Tensor, wavelength_nm: NDArray[np.float64] | None = None) -> SRFFit:
    """hsi (C, n) and msi (M, n) of the same coarse pixels."""
    hsi, msi = hsi.double(), msi.double()
    roughness = torch.from_numpy(roughness_matrix(hsi.shape[0], wavelength_nm))
    plain, plain_misfit = _smooth_nnls(hsi, msi, roughness)
    mean, level = hsi.mean(1, keepdim=True), msi.mean(1, keepdim=True)
    centred, centred_misfit = _smooth_nnls(hsi - mean, msi - level, roughness)
    rough = plain_misfit > 1e-8 * msi.square().mean(1)
    shifted = rough & (centred_misfit < (1 - OFFSET_MUST_EXPLAIN) * plain_misfit)
    offset = (level - centred @ mean)[:, 0]
    srf, misfit = torch.where(shifted[:, None], centred, plain), torch.where(shifted, centred_misfit, plain_misfit)
    pixels = hsi.shape[1]
    freedom = pixels - (srf > 0).sum(1)
    enough = freedom > pixels / 3
    largest = misfit * pixels / freedom.clamp_min(1)
    if not bool(enough.all()):
        # More weights than pixels can tell apart: what a fit to some of the pixels leaves of the others tells.
        largest = torch.where(enough, largest, _left_out_misfit(hsi, msi, roughness))
    return SRFFit(srf, torch.where(shifted, offset, torch.zeros_like(offset)), misfit, largest)


def _left_out_misfit(hsi: Tensor, msi: Tensor, roughness: Tensor) -> Tensor:
    """(M,) Mean squared error of responses on pixels that they were not fitted to; infinite where there are too few."""
    pixels = hsi.shape[1]
    if pixels < FEWEST_PER_FOLD * FOLDS:
        return torch.full((len(msi),), torch.inf, dtype=torch.float64)
    fold = torch.arange(pixels) % FOLDS
    total = torch.zeros(len(msi), dtype=torch.float64)
    for place in range(FOLDS):
        fitted, left = fold != place, fold == place
        srf, _ = _smooth_nnls(hsi[:, fitted], msi[:, fitted], roughness)
        total += (srf @ hsi[:, left] - msi[:, left]).square().sum(1)
    return total / pixels


def _smooth_nnls(hsi: Tensor, msi: Tensor, roughness: Tensor) -> tuple[Tensor, Tensor]:
    """Per msi band the smoothest rung of the ladder whose misfit is close to the best of all rungs: (M, C) and (M,)."""
    bands, pixels = hsi.shape
    gram, crossed = hsi @ hsi.T / pixels, hsi @ msi.T / pixels
    level = float(gram.trace()) / bands + 1e-300
    rungs = []
    for smoothness in SMOOTHNESS_LADDER:
        root = torch.linalg.cholesky(
            gram + smoothness * level * roughness + 1e-10 * level * torch.eye(bands, dtype=torch.float64)
        )
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
    """D'D of first differences between bands that are neighbours in wavelength, weaker across gaps; scaled to about 1."""
    if wavelength_nm is None or len(wavelength_nm) != bands or not np.isfinite(wavelength_nm).all():
        wavelength_nm = np.arange(bands, dtype=np.float64)
    order = np.argsort(wavelength_nm, kind="stable")
    if bands < 2:
        return np.zeros((bands, bands))
    steps = np.diff(wavelength_nm[order])
    typical = float(np.median(steps[steps > 0])) if (steps > 0).any() else 1.0
    weights = np.minimum(1.0, typical / np.maximum(steps, 1e-9))
    differences = np.zeros((bands - 1, bands))
    rows = np.arange(bands - 1)
    differences[rows, order[:-1]] = -weights
    differences[rows, order[1:]] = weights
    return np.asarray(differences.T @ differences, dtype=np.float64)


FEWEST_PIXELS = 36  # a scene of 8x8
LEAST_EXPLAINED = 0.3
MORE_IN_FEW_PIXELS = 40  # pixels that unrelated images match by chance when the best shift and point spread are picked
MOST_SHIFT_ERROR = 0.2  # of a coarse pixel
LEAST_EVIDENCE = 10.0  # log likelihood that a point spread other than the expected one must gain
OTHER_UNIT = 10.0  # factor between the msi and what a known response makes of the hsi


@dataclass(frozen=True)
class KnownParts:
    """What the caller knows already and the estimation must not touch; None is unknown. Pairs are (y, x) in fine
    pixels.

    `misregistration` is the shift beyond what the georeference says; (0, 0) states that the two are registered.
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
    """hsi (C, h, w), msi (M, H, W). Without a scale both images are taken to cover the same extent.

    `grid_shift` is what the georeference says of where the hsi looks, beyond grids that share their top left corner.
    """
    require_pair(hsi, msi)
    pair_scale = (msi.shape[1] / hsi.shape[1], msi.shape[2] / hsi.shape[2]) if scale is None else as_pair(scale)
    return estimate_from_samples(_samples(hsi, msi, pair_scale, grid_shift), wavelength_nm, known)


def estimate_from_samples(
    samples: Samples, wavelength_nm: NDArray[np.float64] | None = None, known: KnownParts = NOTHING_KNOWN
) -> Observation:
    """The same from parts of a pair, whose `shift` is what the georeference says."""
    registration, notes = _registered(samples, known)
    blocks = samples.at_shift(registration.shift).blocks(registration.sigma)
    spectra, seen, noise_gain = _coarse_spectra(blocks, samples.scale, registration.sigma)
    hsi_noise = _stated_or(known.hsi_noise, samples.hsi_noise, spectra.shape[0])
    msi_noise = _stated_or(known.msi_noise, samples.msi_noise, seen.shape[0])
    fit = _srf(spectra, seen, wavelength_nm, known.srf)
    if known.hsi_noise is None:
        hsi_noise = hsi_noise * weakest_components(spectra, hsi_noise)
    if known.msi_noise is None:
        msi_noise = _believable_msi_noise(msi_noise, hsi_noise, fit, noise_gain)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return Observation(
        scale=samples.scale,
        sigma=registration.sigma,
        shift=registration.shift,
        srf=fit.srf,
        offset=fit.offset,
        hsi_noise=hsi_noise,
        msi_noise=msi_noise,
        grid_shift=samples.shift,
        confidence=_confidence(registration, samples.scale),
        notes=tuple(notes),
    )


def _samples(hsi: Tensor, msi: Tensor, scale: tuple[float, float], shift: tuple[float, float]) -> PairSamples:
    live_hsi, live_msi = (torch.isfinite(image).flatten(1).any(1) for image in (hsi, msi))
    if not bool(live_hsi.any()) or not bool(live_msi.any()):
        raise ValueRangeError(
            "a pair in which one image has no valid pixel", "some pixels with data", "check its nodata value"
        )
    hsi_known, msi_known = torch.isfinite(hsi[live_hsi]).all(0), torch.isfinite(msi[live_msi]).all(0)
    return PairSamples(
        hsi=torch.nan_to_num(hsi, nan=0.0, posinf=0.0, neginf=0.0),
        msi=torch.nan_to_num(msi, nan=0.0, posinf=0.0, neginf=0.0),
        hsi_known=hsi_known,
        msi_known=msi_known,
        scale=scale,
        shift=shift,
    )


def _registered(samples: Samples, known: KnownParts) -> tuple[Registration, list[str]]:
    """The best point spread and shift, or what is expected of any pair where the evidence for another is weak."""
    start = known.sigma or default_sigma(samples.scale)
    if known.misregistration is not None:
        moved = (samples.shift[0] + known.misregistration[0], samples.shift[1] + known.misregistration[1])
        samples = samples.at_shift(moved)
    expected = Registration(start, samples.shift, (0.0, 0.0), (0.0, 0.0), 0.0, 0.0, 0.0)
    if known.sigma is not None and known.misregistration is not None:
        return replace(expected, explained=1.0), []
    blocks = samples.blocks(start)
    pixels = sum(int(block.usable.sum()) for block in blocks)
    if pixels < FEWEST_PIXELS:
        return expected, [
            f"shift and point spread not estimated: {pixels} usable coarse pixels, at least {FEWEST_PIXELS} are needed"
        ]
    if _flat(blocks):
        return expected, ["shift and point spread not estimated: one of the images is constant"]
    # Blocks already lie where the grids say; the search starts from no shift beyond that.
    found = register(
        blocks, samples.scale, start, (0.0, 0.0), known.sigma is not None, known.misregistration is not None
    )
    expected = replace(expected, explained=found.explained_at_start)
    if found.explained < LEAST_EXPLAINED + min(0.55, MORE_IN_FEW_PIXELS / pixels):
        share = max(0.0, found.explained)
        return expected, [
            f"shift and point spread not estimated: the hsi explains {share:.0%} of the msi, too little to align by"
        ]
    if any(sigma >= 0.99 * SIGMA_LIMITS[1] * scale for sigma, scale in zip(found.sigma, samples.scale, strict=True)):
        return expected, [
            "shift and point spread not estimated: the hsi explains the msi only if that is blurred beyond reason"
        ]
    if max(error / scale for error, scale in zip(found.shift_error, samples.scale, strict=True)) > MOST_SHIFT_ERROR:
        return expected, ["shift and point spread not estimated: too little texture to fix them"]
    if found.evidence < LEAST_EVIDENCE:
        return expected, []
    return replace(found, shift=(samples.shift[0] + found.shift[0], samples.shift[1] + found.shift[1])), []


def _flat(blocks: list[Block]) -> bool:
    hsi = torch.cat([block.hsi[:, block.usable] for block in blocks], dim=1).double()
    msi = torch.cat([block.msi.flatten(1) for block in blocks], dim=1).double()
    return any(float(image.var(1).max()) <= 1e-12 * float(image.square().mean()) + 1e-300 for image in (hsi, msi))


def _coarse_spectra(
    blocks: list[Block], scale: tuple[float, float], sigma: tuple[float, float]
) -> tuple[Tensor, Tensor, float]:
    """Usable hsi spectra (C, n), the msi as the hsi's sensor sees the same pixels (M, n), and how much msi noise is
    left in it.
    """
    spectra, seen, gain = [], [], 1.0
    for block in blocks:
        sizes = [(image.shape[1], image.shape[2]) for image in (block.msi, block.hsi)]
        operator = SpatialOperator.from_psf(sizes[0], sizes[1], scale, sigma, block.origin_shift)
        usable = block.usable if bool(block.usable.any()) else torch.ones_like(block.usable)
        spectra.append(block.hsi[:, usable])
        seen.append(operator.apply(block.msi)[:, usable])
        gain = operator.mean_noise_gain()
    return torch.cat(spectra, dim=1).double(), torch.cat(seen, dim=1).double(), gain


def _srf(spectra: Tensor, seen: Tensor, wavelength_nm: NDArray[np.float64] | None, known: Tensor | None) -> SRFFit:
    if known is None:
        return fit_srf(spectra, seen, wavelength_nm)
    srf = torch.as_tensor(known, dtype=torch.float64)
    if tuple(srf.shape) != (seen.shape[0], spectra.shape[0]):
        raise BandError(
            f"response of shape {tuple(srf.shape)}",
            f"({seen.shape[0]}, {spectra.shape[0]}): one row per msi band, one column per hsi band",
        )
    srf = _in_the_msi_unit(srf, spectra, seen)
    misfit = (srf @ spectra - seen).square().mean(1)
    return SRFFit(srf, torch.zeros(seen.shape[0], dtype=torch.float64), misfit, misfit)


def _in_the_msi_unit(srf: Tensor, spectra: Tensor, seen: Tensor) -> Tensor:
    """A known response says the shape of a band; where its level is far off, the images are in different units."""
    predicted = srf @ spectra
    gains = (predicted * seen).sum(1) / predicted.square().sum(1).clamp_min(1e-300)
    other_unit = (gains > OTHER_UNIT) | ((gains > 0) & (gains < 1 / OTHER_UNIT))
    return srf * torch.where(other_unit, gains, 1.0)[:, None]


def _stated_or(stated: float | Tensor | None, estimate: Callable[[], Tensor], bands: int) -> Tensor:
    return estimate() if stated is None else torch.as_tensor(stated, dtype=torch.float64).expand(bands)


def _believable_msi_noise(msi_noise: Tensor, hsi_noise: Tensor, fit: SRFFit, noise_gain: float) -> Tensor:
    """Noise that the hsi does not see shows as misfit on the coarse grid; detail that it sees does not, however rough
    it is.

    Misfit beyond both images' noise is an error of the model and counts as noise.
    """
    variance = torch.minimum(msi_noise.square(), fit.largest_misfit / noise_gain)
    expected = fit.srf.square() @ hsi_noise.square() + noise_gain * variance
    return (variance + (fit.misfit - expected).clamp_min(0)).sqrt()


def _confidence(registration: Registration, scale: tuple[float, float]) -> float:
    """0 to 1: the share of the msi that the hsi explains, lowered by how loosely the shift is fixed."""
    looseness = max(error / axis_scale for error, axis_scale in zip(registration.shift_error, scale, strict=True))
    return max(0.0, min(1.0, registration.explained)) * max(0.0, 1 - looseness / MOST_SHIFT_ERROR)
