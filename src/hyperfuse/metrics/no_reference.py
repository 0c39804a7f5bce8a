"""Quality without a reference: how far relations that the inputs have among themselves are lost in the fused image.

    D_lambda  mean over pairs of bands of |Q(F_i, F_j) - Q(H_i, H_j)|                    (Alparone et al. 2008)
    D_s       mean over bands of |Q(F_i, P_i) - Q(H_i, p_i)|, P_i the msi band that follows band i best, p_i the same
              through the hsi's point spread
    QNR       (1 - D_lambda) (1 - D_s)
    D_K       1 - Q2n(F degraded, H)                                                      (Khan et al. 2009)
    HQNR      (1 - D_K) (1 - D_s)                                                         (Aiazzi et al. 2014)

Q is the universal quality index of two bands in a block of pixels (Wang and Bovik 2002), averaged over whole blocks.
D_s was made for a panchromatic image in the unit of the bands; here P_i gets the mean and the deviation that band i has
at the coarse scale.

Shapes: F fused (C, H, W), H hsi and degraded (C, h, w), msi (M, H, W), coarse msi (M, h, w); NaN where there is no
data.

What a fused image gives back of its inputs: degraded to the hsi, and seen through the msi's bands.

Shapes: C bands, M msi bands, h w coarse, H W fine; NaN where there is no data.

A method judged one scale coarser: both inputs are degraded once more, fused, and compared with the true hsi (Wald's
protocol).

Shapes: C bands, M msi bands, h w coarse, H W fine; NaN where there is no data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.methods.run import at_reduced_resolution
from hyperfuse.methods.window import fill_missing
from hyperfuse.metrics.metrics import psnr_db, spectral_angle_degrees
from hyperfuse.metrics.pairing import Floats, default_peak
from hyperfuse.metrics.similarity import block_quality
from hyperfuse.metrics.sums import angle_sum
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.operators import mix_bands
from hyperfuse.physics.resample import upsample_bicubic

# A coarse pixel of which less than this was seen through valid fine pixels is not compared.
LEAST_SEEN = 0.99
# Nor is one from whose centre the edge of the fine image is nearer than this many sigma of the point spread.
REACH_IN_SIGMA = 2.0


@dataclass(frozen=True, eq=False)
class Agreement:
    """One input against what the fused image gives back of it. Scores are None where nothing can be compared."""

    rmse: float | None
    relative: float | None
    """The error's share of the signal: root mean square over root mean square."""
    spectral_angle_degrees: float | None
    band_relative: Floats
    """(bands,) NaN where a band cannot be compared."""
    error_map: Floats
    """(rows, columns) root mean square over bands."""


@dataclass(frozen=True, eq=False)
class Consistency:
    with_hsi: Agreement
    with_msi: Agreement
    degraded: Floats
    """(C, h, w) the fused image as the hsi would have seen it; NaN where that cannot be known."""
    coarse_msi: Floats
    """(M, h, w) the msi, likewise."""


def consistency(fused: Tensor, hsi: Tensor, msi: Tensor, observation: Observation) -> Consistency:
    """`observation` says how the pair was observed, over the bands of `fused` and `hsi`."""
    coarse_size = (hsi.shape[1], hsi.shape[2])
    degraded, coarse_msi = (as_seen_by_hsi(image, coarse_size, observation) for image in (fused, msi))
    imitated = mix_bands(observation.srf, fused) + observation.offset.to(fused)[:, None, None]
    with_hsi = agreement(degraded, hsi.double().numpy())
    return Consistency(
        with_hsi, agreement(imitated.double().numpy(), msi.double().numpy(), with_angle=False), degraded, coarse_msi
    )


def as_seen_by_hsi(fine: Tensor, coarse_size: tuple[int, int], observation: Observation) -> Floats:
    """(bands, H, W) -> (bands, h, w)."""
    fine_size = (fine.shape[1], fine.shape[2])
    operator = observation.spatial_operator(fine_size, coarse_size)
    seen = operator.apply(torch.isfinite(fine).all(dim=0).double())
    coarse: Floats = operator.apply(fill_missing(fine).double()).numpy()
    axes = zip(coarse_size, fine_size, observation.scale, observation.sigma, observation.shift, strict=True)
    inside = [_far_from_edges(*axis) for axis in axes]
    coarse[:, (seen.numpy() < LEAST_SEEN) | ~(inside[0][:, None] & inside[1])] = np.nan
    return coarse


def agreement(given_back: Floats, given: Floats, *, with_angle: bool = True) -> Agreement:
    known = np.isfinite(given_back) & np.isfinite(given)
    first, second = np.where(known, given_back, np.nan), np.where(known, given, np.nan)
    squares, energy = np.square(first - second), np.square(second)
    counts = known.sum(axis=0)
    error_map: Floats = np.full(counts.shape, np.nan)
    np.divide(np.nansum(squares, axis=0), counts, out=error_map, where=counts > 0)
    band_energy = np.nansum(energy, axis=(1, 2))
    band_relative: Floats = np.full(len(given), np.nan)
    np.divide(np.nansum(squares, axis=(1, 2)), band_energy, out=band_relative, where=band_energy > 0)
    angle, pixels = angle_sum(first, second) if with_angle else (0.0, 0)
    total, count = float(np.nansum(squares)), int(known.sum())
    return Agreement(
        rmse=math.sqrt(total / count) if count else None,
        relative=math.sqrt(total / band_energy.sum()) if band_energy.sum() > 0 else None,
        spectral_angle_degrees=angle / pixels if pixels else None,
        band_relative=np.sqrt(band_relative),
        error_map=np.sqrt(error_map),
    )


def _far_from_edges(coarse: int, fine: int, scale: float, sigma: float, shift: float) -> NDArray[np.bool_]:
    """Beyond the edge lies what the hsi saw and the fine image does not show; all pixels where there is no other."""
    centres = (np.arange(coarse) + 0.5) * scale + shift
    far: NDArray[np.bool_] = (centres >= REACH_IN_SIGMA * sigma) & (centres <= fine - REACH_IN_SIGMA * sigma)
    return far if far.any() else np.ones(coarse, dtype=bool)


Fuse = Callable[[Tensor, Tensor, Observation], Tensor]


@dataclass(frozen=True)
class OnceMoreScores:
    """Bicubic stands beside the method: what interpolation alone would have reached."""

    psnr_db: float
    spectral_angle_degrees: float
    bicubic_psnr_db: float
    bicubic_angle_degrees: float
    peak: float
    coarser_size: tuple[int, int]
    scale: tuple[float, float]


def scored_at_reduced_resolution(
    hsi: Tensor, msi: Tensor, observation: Observation, fuse: Fuse
) -> OnceMoreScores | None:
    """None where the hsi has too few pixels to be degraded."""
    missing = torch.where(torch.isfinite(hsi), 0.0, torch.nan)
    task = at_reduced_resolution(fill_missing(hsi), fill_missing(msi), observation)
    if task is None:
        return None
    # The task looks at the middle of the hsi; its holes must not be scored.
    top, left = ((whole - part) // 2 for whole, part in zip(hsi.shape[1:], task.reference.shape[1:], strict=True))
    holes = missing[:, top : top + task.reference.shape[1], left : left + task.reference.shape[2]]
    reference = (task.reference + holes).numpy()
    by_method = fuse(task.hsi, task.msi, task.observation).numpy()
    fine_size = (task.msi.shape[1], task.msi.shape[2])
    interpolated = upsample_bicubic(task.hsi, fine_size, task.observation.placement).numpy()
    peak = default_peak(reference)
    return OnceMoreScores(
        psnr_db=psnr_db(by_method, reference, peak),
        spectral_angle_degrees=spectral_angle_degrees(by_method, reference),
        bicubic_psnr_db=psnr_db(interpolated, reference, peak),
        bicubic_angle_degrees=spectral_angle_degrees(interpolated, reference),
        peak=peak,
        coarser_size=(task.hsi.shape[1], task.hsi.shape[2]),
        scale=task.observation.scale,
    )


FINE_BLOCK = 32
# A block of fewer pixels says little about variances.
SMALLEST_BLOCK = 8


@dataclass(frozen=True)
class NoReferenceScores:
    """None where the images hold no whole block of valid pixels. Distortions are 0 at best, the others 1."""

    spectral_distortion: float | None
    spatial_distortion: float | None
    qnr: float | None
    khan_distortion: float | None
    hqnr: float | None
    coarse_block: int


def no_reference_scores(
    fused: Floats, hsi: Floats, msi: Floats, degraded: Floats, coarse_msi: Floats, scale: float
) -> NoReferenceScores:
    """`degraded` and `coarse_msi` are fused and msi through the hsi's point spread. All in float64, of the same ground."""
    coarse_block = int(np.clip(round(FINE_BLOCK / scale), SMALLEST_BLOCK, FINE_BLOCK))
    d_lambda = spectral_distortion(fused, hsi, FINE_BLOCK, coarse_block)
    d_s = spatial_distortion(fused, hsi, msi, coarse_msi, FINE_BLOCK, coarse_block)
    d_k = khan_distortion(degraded, hsi, coarse_block)
    return NoReferenceScores(d_lambda, d_s, _product(d_lambda, d_s), d_k, _product(d_k, d_s), coarse_block)


def spectral_distortion(fused: Floats, hsi: Floats, fine_block: int, coarse_block: int) -> float | None:
    """D_lambda. With a single band there is no relation to lose: 0."""
    if len(fused) == 1:
        return 0.0
    of_fused, of_hsi = quality_of_all_pairs(fused, fine_block), quality_of_all_pairs(hsi, coarse_block)
    if of_fused is None or of_hsi is None:
        return None
    pairs = ~np.eye(len(fused), dtype=bool)
    return float(np.abs(of_fused - of_hsi)[pairs].mean())


def spatial_distortion(
    fused: Floats, hsi: Floats, msi: Floats, coarse_msi: Floats, fine_block: int, coarse_block: int
) -> float | None:
    """D_s."""
    followed = _followed_band(hsi, coarse_msi)
    if followed is None:
        return None
    gain, offset = _moments_matched(hsi, coarse_msi[followed])
    with np.errstate(over="ignore"):
        fine, coarse = (image[followed] * gain + offset for image in (msi, coarse_msi))
    of_fused, of_hsi = quality_of_partners(fused, fine, fine_block), quality_of_partners(hsi, coarse, coarse_block)
    return None if of_fused is None or of_hsi is None else float(np.abs(of_fused - of_hsi).mean())


def khan_distortion(degraded: Floats, hsi: Floats, block: int) -> float | None:
    """D_K."""
    found = [
        block_quality(first, second)
        for first, second in zip(whole_blocks(degraded, block), whole_blocks(hsi, block), strict=True)
        if np.isfinite(first).all() and np.isfinite(second).all()
    ]
    return 1 - float(np.mean(found)) if found else None


def quality_of_all_pairs(image: Floats, block: int) -> Floats | None:
    """(C, C) Q of every band with every other, averaged over whole valid blocks."""
    total, count = np.zeros((len(image), len(image))), 0
    for pixels in whole_blocks(image, block):
        if np.isfinite(pixels).all():
            mean, rest = _centred(pixels)
            variance = np.square(rest).mean(axis=1)
            total += _index(
                mean[:, None], mean[None, :], variance[:, None], variance[None, :], rest @ rest.T / pixels.shape[1]
            )
            count += 1
    return total / count if count else None


def quality_of_partners(first: Floats, second: Floats, block: int) -> Floats | None:
    """(C,) Q of each band of one image with the same of the other."""
    total, count = np.zeros(len(first)), 0
    for one, other in zip(whole_blocks(first, block), whole_blocks(second, block), strict=True):
        if np.isfinite(one).all() and np.isfinite(other).all():
            (mean, rest), (other_mean, other_rest) = _centred(one), _centred(other)
            variances = np.square(rest).mean(axis=1), np.square(other_rest).mean(axis=1)
            total += _index(mean, other_mean, *variances, (rest * other_rest).mean(axis=1))
            count += 1
    return total / count if count else None


def whole_blocks(image: Floats, side: int) -> Iterator[Floats]:
    """(C, pixels) of each block that lies wholly within the image."""
    rows, columns = image.shape[1:]
    for y in range(0, rows - side + 1, side):
        for x in range(0, columns - side + 1, side):
            yield image[:, y : y + side, x : x + side].reshape(len(image), -1)


def _centred(pixels: Floats) -> tuple[Floats, Floats]:
    mean = pixels.mean(axis=1)
    return mean, pixels - mean[:, None]


def _index(mean: Floats, other_mean: Floats, variance: Floats, other_variance: Floats, covariance: Floats) -> Floats:
    """Q; a factor that compares nothing with nothing is 1."""
    return _ratio(2 * covariance, variance + other_variance) * _ratio(2 * mean * other_mean, mean**2 + other_mean**2)


def _ratio(above: Floats, below: Floats) -> Floats:
    above, below = np.broadcast_arrays(above, below)
    ratio = np.ones(above.shape)
    np.divide(above, below, out=ratio, where=below > 0)
    return ratio


def _followed_band(hsi: Floats, coarse_msi: Floats) -> NDArray[np.int64] | None:
    """(C,) For each hsi band the msi band that correlates with it best."""
    known = np.isfinite(hsi).all(axis=0) & np.isfinite(coarse_msi).all(axis=0)
    if not known.any():
        return None
    (_, bands), (_, msi_bands) = _centred(hsi[:, known]), _centred(coarse_msi[:, known])
    lengths = np.linalg.norm(msi_bands, axis=1)
    directions = msi_bands / np.where(lengths > 0, lengths, 1)[:, None]
    followed: NDArray[np.int64] = (bands @ directions.T).argmax(axis=1)
    return followed


def _moments_matched(hsi: Floats, partners: Floats) -> tuple[Floats, Floats]:
    """(C, 1, 1) gain and offset that give each partner the mean and deviation of its hsi band."""
    known = np.isfinite(hsi).all(axis=0) & np.isfinite(partners).all(axis=0)
    (mean, rest), (partner_mean, partner_rest) = _centred(hsi[:, known]), _centred(partners[:, known])
    gain = _ratio(np.linalg.norm(rest, axis=1), np.linalg.norm(partner_rest, axis=1))
    return gain[:, None, None], (mean - gain * partner_mean)[:, None, None]


def _product(distortion: float | None, other: float | None) -> float | None:
    return None if distortion is None or other is None else (1 - distortion) * (1 - other)
