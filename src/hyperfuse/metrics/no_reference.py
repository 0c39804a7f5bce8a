"""Assess a fused image without a reference, and a method at reduced resolution.

=========  ==============================================================================================
D_lambda   mean over pairs of bands of |Q(F_i, F_j) - Q(H_i, H_j)| [1]_
D_s        mean over bands of |Q(F_i, P_i) - Q(H_i, p_i)| [1]_
QNR        (1 - D_lambda) (1 - D_s) [1]_
D_K        1 - Q2n(F through the PSF, H) [2]_
HQNR       (1 - D_K) (1 - D_s) [3]_
=========  ==============================================================================================

F is the fused image, H the HSI, P_i the MSI band that correlates best with band i and p_i the same through the PSF of
the HSI. Q is the UIQI of two bands in a block of pixels, averaged over whole blocks. D_s was defined for a panchromatic
image in the unit of the bands; here P_i is given the mean and the deviation of band i at the coarse scale.

Shapes: fused (C, H, W), hsi and degraded (C, h, w), msi (M, H, W), coarse msi (M, h, w); NaN where there is no data.

References
----------
.. [1] L. Alparone et al., "Multispectral and panchromatic data fusion assessment without reference", PE&RS 74, 2008.
.. [2] M. M. Khan et al., "Pansharpening quality assessment using the modulation transfer functions", IEEE TGRS, 2009.
.. [3] B. Aiazzi et al., "Full scale assessment of pansharpening methods and data products", SPIE 9244, 2014.
.. [4] L. Wald et al., "Fusion of satellite images of different spatial resolutions", PE&RS 63, 1997.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.methods.catalogue import at_reduced_resolution
from hyperfuse.methods.missing import fill_missing
from hyperfuse.metrics.metrics import psnr_db, sam_degrees
from hyperfuse.metrics.sums import (
    ErrorSums,
    Floats,
    angle_sum,
    default_peak,
    mask_incomparable,
    per_band_mean,
    q2n_sum,
    ratio_or_one,
    whole_blocks,
)
from hyperfuse.physics.observation import Observation, mix_bands

# A coarse pixel with a smaller share of valid fine pixels than this is not compared.
LEAST_VALID = 0.99
# Nor is one whose centre is closer to the edge of the fine image than this many sigma of the PSF.
EDGE_IN_SIGMA = 2.0
FINE_BLOCK = 32
# The variance of fewer pixels is too uncertain.
SMALLEST_BLOCK = 8

Fuse = Callable[[Tensor, Tensor, Observation], Tensor]


@dataclass(frozen=True, eq=False)
class Agreement:
    """An input against its simulation from the fused image. Scores are None where nothing can be compared."""

    rmse: float | None
    relative: float | None  # root mean square of the error over that of the input
    spectral_angle_degrees: float | None
    band_relative: Floats  # (bands,), NaN where a band cannot be compared
    error_map: Floats  # (rows, columns), root mean square over bands


@dataclass(frozen=True, eq=False)
class Consistency:
    """How well a fused image reproduces its inputs."""

    with_hsi: Agreement
    with_msi: Agreement
    degraded: Floats  # (C, h, w), the fused image through the PSF of the HSI; NaN where unknown
    coarse_msi: Floats  # (M, h, w), the MSI through the PSF of the HSI; NaN where unknown


def consistency(fused: Tensor, hsi: Tensor, msi: Tensor, observation: Observation) -> Consistency:
    """Compare the inputs with their simulations from the fused image; the observation is over the bands of `fused`."""
    coarse_size = (hsi.shape[1], hsi.shape[2])
    degraded, coarse_msi = (degrade_to_hsi(image, coarse_size, observation) for image in (fused, msi))
    simulated = mix_bands(observation.srf, fused) + observation.offset.to(fused)[:, None, None]
    with_hsi = _agreement(degraded, hsi.double().numpy())
    with_msi = _agreement(simulated.double().numpy(), msi.double().numpy(), with_angle=False)
    return Consistency(with_hsi, with_msi, degraded, coarse_msi)


def degrade_to_hsi(fine: Tensor, coarse_size: tuple[int, int], observation: Observation) -> Floats:
    """Apply the PSF and sampling of the HSI: (bands, H, W) -> (bands, h, w), NaN near edges and missing pixels."""
    fine_size = (fine.shape[1], fine.shape[2])
    psf = observation.spatial_operator(fine_size, coarse_size)
    valid = psf.apply(torch.isfinite(fine).all(dim=0).double()).numpy() >= LEAST_VALID
    coarse: Floats = psf.apply(fill_missing(fine).double()).numpy()
    axes = zip(coarse_size, fine_size, observation.scale, observation.sigma, observation.shift, strict=True)
    inner_rows, inner_columns = (_far_from_edges(*axis) for axis in axes)
    coarse[:, ~(valid & inner_rows[:, None] & inner_columns)] = np.nan
    return coarse


def _far_from_edges(coarse: int, fine: int, scale: float, sigma: float, shift: float) -> NDArray[np.bool_]:
    """Whether the PSF of coarse pixels lies within the fine image along one axis; all if none does."""
    centres = (np.arange(coarse) + 0.5) * scale + shift
    far: NDArray[np.bool_] = (centres >= EDGE_IN_SIGMA * sigma) & (centres <= fine - EDGE_IN_SIGMA * sigma)
    return far if far.any() else np.ones(coarse, dtype=bool)


def _agreement(simulated: Floats, given: Floats, *, with_angle: bool = True) -> Agreement:
    first, second = simulated.copy(), given.copy()
    counts = mask_incomparable(first, second).sum(axis=0)
    errors = ErrorSums.of(first, second)
    energy = errors.squared_reference.sum()
    angle, pixels = angle_sum(first, second) if with_angle else (0.0, 0)
    return Agreement(
        rmse=math.sqrt(errors.mse) if counts.any() else None,
        relative=math.sqrt(errors.squared_error.sum() / energy) if energy > 0 else None,
        spectral_angle_degrees=angle / pixels if pixels else None,
        band_relative=np.sqrt(per_band_mean(errors.squared_error, errors.squared_reference)),
        error_map=np.sqrt(per_band_mean(np.nansum(np.square(first - second), axis=0), counts)),
    )


@dataclass(frozen=True)
class ReducedResolutionScores:
    """Scores of a method one scale coarser, and of bicubic interpolation for comparison."""

    psnr_db: float
    spectral_angle_degrees: float
    bicubic_psnr_db: float
    bicubic_angle_degrees: float
    peak: float
    coarser_size: tuple[int, int]
    scale: tuple[float, float]


def assess_at_reduced_resolution(
    hsi: Tensor, msi: Tensor, observation: Observation, fuse: Fuse
) -> ReducedResolutionScores | None:
    """Assess a method by Wald's protocol [4]_: degrade both inputs, fuse them, compare the result with the HSI.

    None if the HSI has too few pixels to be degraded.
    """
    reduced = at_reduced_resolution(fill_missing(hsi), fill_missing(msi), observation)
    if reduced is None:
        return None
    pair, middle = reduced
    # The reference is the middle of the HSI; pixels that were missing there are not scored.
    height, width = middle.shape[1:]
    top, left = (hsi.shape[1] - height) // 2, (hsi.shape[2] - width) // 2
    missing = ~torch.isfinite(hsi[:, top : top + height, left : left + width])
    reference = middle.masked_fill(missing, torch.nan).numpy()
    fused = fuse(pair.hsi, pair.msi, pair.observation).numpy()
    bicubic = pair.upsample_to_core(pair.hsi).numpy()
    peak = default_peak(reference)
    return ReducedResolutionScores(
        psnr_db=psnr_db(fused, reference, peak),
        spectral_angle_degrees=sam_degrees(fused, reference),
        bicubic_psnr_db=psnr_db(bicubic, reference, peak),
        bicubic_angle_degrees=sam_degrees(bicubic, reference),
        peak=peak,
        coarser_size=pair.coarse_size,
        scale=pair.observation.scale,
    )


@dataclass(frozen=True)
class NoReferenceScores:
    """Indices without a reference; None where no block is complete. Distortions are 0 at best, QNR and HQNR 1."""

    spectral_distortion: float | None
    spatial_distortion: float | None
    qnr: float | None
    khan_distortion: float | None
    hqnr: float | None
    coarse_block: int


def no_reference_scores(
    fused: Floats, hsi: Floats, msi: Floats, degraded: Floats, coarse_msi: Floats, scale: float
) -> NoReferenceScores:
    """Compute D_lambda, D_s, QNR, D_K and HQNR.

    Parameters
    ----------
    fused, hsi, msi
        (C, H, W), (C, h, w) and (M, H, W) images of the same ground, in float64.
    degraded, coarse_msi
        (C, h, w) and (M, h, w), the fused image and the MSI through the PSF of the HSI, see `consistency`.
    scale
        Ratio of the coarse to the fine pixel size, which determines the size of coarse blocks.

    Examples
    --------
    >>> image = np.random.default_rng(0).random((3, 64, 64)) + 0.1
    >>> no_reference_scores(image, image, image, image, image, scale=1.0).qnr
    1.0
    """
    coarse_block = int(np.clip(round(FINE_BLOCK / scale), SMALLEST_BLOCK, FINE_BLOCK))
    spectral = d_lambda(fused, hsi, FINE_BLOCK, coarse_block)
    spatial = d_s(fused, hsi, msi, coarse_msi, FINE_BLOCK, coarse_block)
    khan = d_k(degraded, hsi, coarse_block)
    return NoReferenceScores(spectral, spatial, qnr(spectral, spatial), khan, qnr(khan, spatial), coarse_block)


def qnr(spectral: float | None, spatial: float | None) -> float | None:
    """Compute QNR from D_lambda and D_s, or HQNR from D_K and D_s; None if either is."""
    return None if spectral is None or spatial is None else (1 - spectral) * (1 - spatial)


def d_lambda(fused: Floats, hsi: Floats, fine_block: int, coarse_block: int) -> float | None:
    """Compute the spectral distortion D_lambda [1]_ in blocks of these sides: 0 at best, and for a single band.

    None if no block is complete; see `no_reference_scores` for the images.
    """
    if len(fused) == 1:
        return 0.0
    of_fused, of_hsi = band_pair_quality(fused, fine_block), band_pair_quality(hsi, coarse_block)
    if of_fused is None or of_hsi is None:
        return None
    return float(np.abs(of_fused - of_hsi)[~np.eye(len(fused), dtype=bool)].mean())


def d_s(
    fused: Floats, hsi: Floats, msi: Floats, coarse_msi: Floats, fine_block: int, coarse_block: int
) -> float | None:
    """Compute the spatial distortion D_s [1]_ in blocks of these sides: 0 at best.

    None if no block is complete; see `no_reference_scores` for the images.
    """
    known = np.isfinite(hsi).all(axis=0) & np.isfinite(coarse_msi).all(axis=0)
    if not known.any():
        return None
    partners = _best_correlated(hsi[:, known], coarse_msi[:, known])
    known = np.isfinite(hsi).all(axis=0) & np.isfinite(coarse_msi[partners]).all(axis=0)
    gain, offset = _match_moments(hsi[:, known], coarse_msi[partners][:, known])
    with np.errstate(over="ignore"):
        fine, coarse = (image[partners] * gain + offset for image in (msi, coarse_msi))
    of_fused, of_hsi = band_quality(fused, fine, fine_block), band_quality(hsi, coarse, coarse_block)
    return None if of_fused is None or of_hsi is None else float(np.abs(of_fused - of_hsi).mean())


def d_k(degraded: Floats, hsi: Floats, block: int) -> float | None:
    """Compute Khan's spectral distortion D_K [2]_ in blocks of this side: 0 at best.

    None if no block is complete; see `no_reference_scores` for the images.
    """
    first, second = degraded.copy(), hsi.copy()
    mask_incomparable(first, second)
    total, count = q2n_sum(first, second, block)
    return 1 - total / count if count else None


def band_pair_quality(image: Floats, block: int) -> Floats | None:
    """Compute the UIQI (C, C) of every band with every other, averaged over complete blocks."""
    total, count = np.zeros((len(image), len(image))), 0
    for pixels in whole_blocks(image, block):
        if np.isfinite(pixels).all():
            mean, rest = _centre(pixels)
            variance = np.square(rest).mean(axis=1)
            total += _uiqi(mean[:, None], mean, variance[:, None], variance, rest @ rest.T / pixels.shape[1])
            count += 1
    return total / count if count else None


def band_quality(first: Floats, second: Floats, block: int) -> Floats | None:
    """Compute the UIQI (C,) of each band with the same band of the other image, averaged over complete blocks."""
    total, count = np.zeros(len(first)), 0
    for pixels, others in zip(whole_blocks(first, block), whole_blocks(second, block), strict=True):
        if np.isfinite(pixels).all() and np.isfinite(others).all():
            (mean, rest), (other_mean, other_rest) = _centre(pixels), _centre(others)
            variances = np.square(rest).mean(axis=1), np.square(other_rest).mean(axis=1)
            total += _uiqi(mean, other_mean, *variances, (rest * other_rest).mean(axis=1))
            count += 1
    return total / count if count else None


def _centre(pixels: Floats) -> tuple[Floats, Floats]:
    mean = pixels.mean(axis=1)
    return mean, pixels - mean[:, None]


def _uiqi(mean: Floats, other_mean: Floats, variance: Floats, other_variance: Floats, covariance: Floats) -> Floats:
    variances, squares = variance + other_variance, mean**2 + other_mean**2
    contrast = ratio_or_one(2 * covariance, variances, variances > 0)
    return contrast * ratio_or_one(2 * mean * other_mean, squares, squares > 0)


def _best_correlated(hsi: Floats, msi: Floats) -> NDArray[np.int64]:
    """For each HSI band (C, pixel), the MSI band (M, pixel) that correlates best with it."""
    (_, bands), (_, msi_bands) = _centre(hsi), _centre(msi)
    norms = np.linalg.norm(msi_bands, axis=1)
    return np.asarray((bands @ (msi_bands / np.where(norms > 0, norms, 1)[:, None]).T).argmax(axis=1))


def _match_moments(hsi: Floats, partners: Floats) -> tuple[Floats, Floats]:
    """Gain and offset (C, 1, 1) that give each partner (C, pixel) the mean and deviation of its HSI band."""
    (mean, rest), (partner_mean, partner_rest) = _centre(hsi), _centre(partners)
    norms = np.linalg.norm(partner_rest, axis=1)
    gain = ratio_or_one(np.linalg.norm(rest, axis=1), norms, norms > 0)
    return gain[:, None, None], (mean - gain * partner_mean)[:, None, None]
