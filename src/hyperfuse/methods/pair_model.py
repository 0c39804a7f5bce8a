"""A pair written in the hsi's own subspace: what every Bayesian method here starts from.

Shapes: C bands, M msi bands, p components, h w coarse, H W fine.

    x = mean + basis u          u: p components per fine pixel
    hsi coefficients = A u + noise of covariance S
    msi - offset - response mean = F u + noise of covariance L,  F = response basis

The components are the principal axes of the hsi itself, so nothing here depends on the number of bands or their
wavelengths. Big arrays stay in the precision of the images, small matrices are float64.

Gaussian conditioning in closed form: what the msi says, what the hsi says, and how much of either is noise.

Shapes: p components, M msi bands, h w coarse, H W fine. A prior is a mean (p, H, W) and one covariance (p, p) for every
fine pixel.

The exact solution of FUSE's Sylvester equation (Wei et al. 2015) needs no Sylvester solver when it is taken in two
steps. The msi is observed pixel by pixel, so conditioning on it changes the covariance alike everywhere. The hsi then
adds  y = A u + noise with prior covariance P x I, and  P x AA' + S x I  is diagonal in the eigenvectors of (P, S) and
the singular vectors of A.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.methods.scene_stats import SceneComputation, in_one_pass, scene_mean, scene_mean_and_count, scene_moments
from hyperfuse.methods.window import Cut, Window
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.operators import SpatialOperator, mix_bands
from hyperfuse.physics.resample import upsample_bicubic

BORDER = 3
BEYOND_REACH = 1e-2


def condition_on_msi(mean: Tensor, prior: Tensor, model: PairModel) -> tuple[Tensor, Tensor]:
    """The posterior mean (p, H, W) and covariance (p, p) once every fine pixel has seen its msi value."""
    seen = model.msi_from_components
    # A response in a wrong unit makes the noise vanish beside the rest: even then this can be inverted.
    gain = torch.linalg.solve(diagonally_loaded(seen @ prior @ seen.T + model.msi_noise, 1e-13), seen @ prior).T
    innovation = model.msi - mix_bands(seen, mean)
    return mean + mix_bands(gain, innovation), positive_part(prior - gain @ seen @ prior)


def condition_on_hsi(mean: Tensor, prior: Tensor, model: PairModel) -> Tensor:
    """The posterior mean once the whole image has seen the coarse hsi; exact."""
    return mean + hsi_correction(
        model.coefficients - model.operator.apply(mean), prior, model.hsi_noise, model.operator
    )


def hsi_correction(innovation: Tensor, prior: Tensor, noise: Tensor, operator: SpatialOperator) -> Tensor:
    """(P x A') (P x AA' + S x I)^-1 r. In coordinates where S = I and P = diag(d): A' (AA' + 1/d)^-1, component by
    component.
    """
    root = torch.linalg.cholesky(noise)
    half_whitened = torch.linalg.solve_triangular(root, prior, upper=False)
    whitened = torch.linalg.solve_triangular(root, half_whitened.T, upper=False)
    signal_to_noise, axes = torch.linalg.eigh((whitened + whitened.T) / 2)
    to_axes = torch.linalg.solve_triangular(root.T, axes, upper=True).T
    correction = operator.damped_inverse(mix_bands(to_axes, innovation), 1 / signal_to_noise.clamp_min(1e-12))
    return mix_bands(root @ axes, correction)


def prior_from_error(mean: Tensor, model: PairModel) -> SceneComputation[Tensor]:
    """How far a prediction is off, (p, p) per fine pixel, read from what it leaves of the hsi beyond noise (empirical
    Bayes).
    """

    def left() -> Tensor:
        return model.window.coarse(model.coefficients - model.operator.apply(mean))

    spread, pixels = yield from scene_covariance_and_count(left, costly=True)
    return diagonally_loaded(signal_covariance(spread, model.hsi_noise, pixels) / model.noise_gain, 1e-8)


def conditioning_halo(observation: Observation) -> int:
    """Coarse pixels around a pixel beyond which the hsi's correction of it does not look, but for a hundredth of
    itself.

    Blurs of neighbouring coarse pixels overlap by q = exp(-(scale / 2 sigma)^2), and the inverse of such an overlap
    falls off by q from pixel to pixel. The border that it must not see is itself a few pixels wide.
    """
    widest = max(sigma / scale for sigma, scale in zip(observation.sigma, observation.scale, strict=True))
    overlap = math.exp(-1 / (4 * max(0.1, widest) ** 2))
    return BORDER + math.ceil(math.log(BEYOND_REACH) / math.log(overlap))


MOST_COMPONENTS = 24
# No sensor is better than this; it also keeps every small matrix invertible. As a share of the image's root mean
# square.
NOISE_FLOOR = 1e-4
BANDS_AT_ONCE = 32

# (C, h, w) and how many at most -> mean (C,) and axes (C, p); one question to the scene
FindAxes = Callable[[Tensor, int], SceneComputation[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class PairModel:
    window: Window
    operator: SpatialOperator
    noise_gain: float  # the share of white fine noise that survives the blur
    mean: Tensor  # (C,)
    basis: Tensor  # (C, p)
    coefficients: Tensor  # (p, h, w) of the hsi
    remainder: Tensor  # (C, h, w), what of the hsi lies outside the subspace and is not noise
    hsi_noise: Tensor  # (p, p) covariance S
    msi: Tensor  # (M, H, W) without offset and mean
    msi_from_components: Tensor  # (M, p), F
    msi_noise: Tensor  # (M, M) covariance L

    @property
    def observation(self) -> Observation:
        return self.window.observation

    @property
    def fine_size(self) -> tuple[int, int]:
        return self.operator.fine_size

    def upsample(self, coarse: Tensor) -> Tensor:
        return upsample_bicubic(coarse, self.fine_size, self.observation.placement)

    def image(self, components: Tensor) -> Tensor:
        """Components (p, H, W) back to all bands, with the interpolated remainder, where the window is wanted."""
        wanted = self.window.fine(components)
        smooth = self.mean[:, None, None].to(self.remainder) + self.remainder
        image = wanted.new_empty(len(self.basis), *wanted.shape[1:])
        for start in range(0, len(image), BANDS_AT_ONCE):
            part = slice(start, start + BANDS_AT_ONCE)
            image[part] = mix_bands(self.basis[part], wanted).add_(self.window.upsample_to_core(smooth[part]))
        return image

    def components_of(self, image: Tensor) -> Tensor:
        """A (C, H, W) image in the subspace."""
        offset = self.basis.T @ self.mean
        return mix_bands(self.basis.T, image) - offset[:, None, None].to(image)

    def within(self, cut: Cut) -> PairModel:
        """The same model of a part of the window."""
        window = cut.window(self.window)
        return replace(
            self,
            window=window,
            operator=window.observation.spatial_operator(window.fine_size, window.coarse_size),
            coefficients=cut.of_coarse(self.coefficients),
            remainder=cut.of_coarse(self.remainder),
            msi=cut.of_fine(self.msi),
        )


def model_pair(
    window: Window, most_components: int = MOST_COMPONENTS, find_axes: FindAxes | None = None
) -> SceneComputation[PairModel]:
    """In the subspace of the axes that `find_axes` finds; plain principal axes without it."""
    hsi, msi, observation = window.hsi, window.msi, window.observation
    operator = observation.spatial_operator(window.fine_size, window.coarse_size)
    (mean, basis), (hsi_level, msi_level) = yield from in_one_pass(
        (find_axes or principal_axes)(window.coarse(hsi), most_components),
        scene_levels(window.coarse(hsi), window.fine(msi)),
    )
    centred = hsi - mean[:, None, None].to(hsi)
    coefficients = mix_bands(basis.T, centred)
    hsi_variance = observation.hsi_noise**2 + (NOISE_FLOOR * hsi_level) ** 2
    msi_variance = observation.msi_noise**2 + (NOISE_FLOOR * msi_level) ** 2
    msi_mean = observation.srf @ mean + observation.offset
    outside, noise_gain = yield from in_one_pass(
        without_noise(centred - mix_bands(basis, coefficients), hsi_variance, window),
        scene_noise_gain(operator, window),
    )
    seen_outside = yield from seen_outside_subspace(window.coarse(outside), noise_gain, observation.srf)
    return PairModel(
        window=window,
        operator=operator,
        noise_gain=noise_gain,
        mean=mean,
        basis=basis,
        coefficients=coefficients,
        remainder=outside,
        hsi_noise=(basis.T * hsi_variance) @ basis,
        msi=msi - msi_mean[:, None, None].to(msi),
        msi_from_components=observation.srf @ basis,
        msi_noise=torch.diag(msi_variance) + seen_outside,
    )


def seen_outside_subspace(outside: Tensor, noise_gain: float, srf: Tensor) -> SceneComputation[Tensor]:
    """(M, M): the msi also sees what the components cannot express, and to them that is noise.

    On the coarse grid it can be read off. On the fine grid it is as strong if it is smooth and 1/gain times as strong
    if it is white; this is the geometric mean of the two. Narrow msi bands need it: 13 of them, and FUSE gains 2.4 dB
    on Indian Pines.
    """
    seen = yield from scene_covariance(lambda: mix_bands(srf, outside))
    return seen / math.sqrt(noise_gain)


def principal_axes(hsi: Tensor, most: int) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Mean spectrum (C,) and the leading principal axes (C, p), by descending variance."""
    mean, spread = yield from scene_moments(hsi)
    variances, axes = torch.linalg.eigh(spread)
    significant = int((variances > 1e-12 * variances[-1].clamp_min(1e-300)).sum())
    kept = max(1, min(most, significant, hsi.shape[0]))
    return mean, axes.flip(1)[:, :kept].contiguous()


def scene_noise_gain(operator: SpatialOperator, window: Window) -> SceneComputation[float]:
    rows, columns = window.coarse_core

    def share() -> tuple[Tensor, int]:
        kept = SpatialOperator(operator.rows[rows], operator.columns[columns])
        return torch.tensor(kept.mean_noise_gain(), dtype=torch.float64), window.coarse_pixels

    return float((yield from scene_mean(share)))


def scene_covariance(components: Callable[[], Tensor]) -> SceneComputation[Tensor]:
    """Second moments (p, p) over the scene, float64, of what the function gives on this window, (p, h, w)."""

    spread, _ = yield from scene_covariance_and_count(components)
    return spread


def scene_covariance_and_count(
    components: Callable[[], Tensor], *, costly: bool = False
) -> SceneComputation[tuple[Tensor, int]]:
    """The same, and over how many pixels."""

    def share() -> tuple[Tensor, int]:
        image = components()
        return covariance(image), image[0].numel()

    return scene_mean_and_count(share, costly=costly)


def scene_levels(hsi: Tensor, msi: Tensor) -> SceneComputation[tuple[float, float]]:
    """Root mean squares over the scene."""
    return in_one_pass(scene_level(hsi), scene_level(msi))


def scene_level(image: Tensor) -> SceneComputation[float]:
    square = yield from scene_mean(lambda: (image.double().square().mean(), image.numel()))
    return float(square.sqrt().clamp_min(1e-30))


def without_noise(remainder: Tensor, variance: Tensor, window: Window) -> SceneComputation[Tensor]:
    """Each band of the remainder (C, h, w) shrunk by the share of its energy that noise explains (Wiener's scalar)."""
    inner = window.coarse(remainder)
    energy = yield from scene_mean(lambda: (inner.double().square().mean((1, 2)), inner[0].numel()))
    share = (1 - variance / energy.clamp_min(1e-300)).clamp_min(0)
    return remainder * share[:, None, None].to(remainder)


def covariance(components: Tensor) -> Tensor:
    """Second moments (p, p) of (p, h, w), float64."""
    flat = components.flatten(1).double()
    return flat @ flat.T / flat.shape[1]


def positive_part(matrix: Tensor) -> Tensor:
    """The nearest positive semidefinite matrix."""
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    positive: Tensor = (vectors * values.clamp_min(0)) @ vectors.T
    return positive


def signal_covariance(observed: Tensor, noise: Tensor, samples: int) -> Tensor:
    """What of a covariance (p, p) of `samples` pixels is not noise of covariance `noise`.

    In units of the noise, eigenvalues of pure noise spread up to (1 + sqrt(p / samples))^2 by chance alone; those
    inside are dropped, those beyond are corrected for the same bias (the spiked model: Baik and Silverstein 2006,
    Donoho, Gavish and Johnstone 2018).
    """
    root = torch.linalg.cholesky(noise)
    half = torch.linalg.solve_triangular(root, observed, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.T, upper=False)
    values, axes = torch.linalg.eigh((whitened + whitened.T) / 2)
    aspect = min(1.0, observed.shape[0] / samples)
    middle = values + 1 - aspect
    spiked = (middle + (middle.square() - 4 * values).clamp_min(0).sqrt()) / 2 - 1
    kept = torch.where(values > (1 + aspect**0.5) ** 2, spiked, torch.zeros_like(values))
    coloured = root @ axes
    signal: Tensor = (coloured * kept) @ coloured.T
    return signal


def diagonally_loaded(matrix: Tensor, share: float = 1e-9) -> Tensor:
    """A little on the diagonal, so that a semidefinite covariance can be inverted."""
    size = matrix.shape[0]
    return matrix + torch.eye(size, dtype=matrix.dtype) * (share * float(matrix.detach().trace()) / size + 1e-300)
