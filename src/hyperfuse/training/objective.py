"""What a training step computes: the base of a batch, the network on the batch, the loss.

Shapes: B batch, C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from hyperfuse.data.observing import PairBatch
from hyperfuse.fusion.fusers import fuse_with_network, msi_centres_nm
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.universal import universal_with_error
from hyperfuse.methods.window import Window, run_on_scene
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.baselines.mimo_sst import MIMOSST, ScaleOutputs, loss_over_scales
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.weights import BICUBIC
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.physics.resample import shared_edges, upsample_bicubic
from hyperfuse.training.experiment import LoopSettings


def add_base(batch: PairBatch, method: str, *, expected_error: bool = False) -> PairBatch:
    """Run the method of the network's base on every pair of a batch; bicubic is computed by the network."""
    if method == BICUBIC:
        return batch
    pairs = zip(batch.hsi, batch.msi, assumed_observations(batch), strict=True)
    if expected_error:
        both = [run_on_scene(universal_with_error(Window(*pair))) for pair in pairs]
        base, error = (torch.stack(images) for images in zip(*both, strict=True))
        return replace(batch, base=base, base_error=error)
    return replace(batch, base=torch.stack([fuse_arrays(*pair, method) for pair in pairs]))


def assumed_observations(batch: PairBatch) -> list[Observation]:
    """Return how each pair of a batch was observed, as assumed by a method."""
    return [
        known_observation(srf, batch.scale, sigma, (down, right), hsi_noise, msi_noise)
        for srf, (sigma, down, right, hsi_noise, msi_noise) in zip(batch.srf, batch.assumed.tolist(), strict=True)
    ]


class NetworkOnBatch(nn.Module):
    """Any network as a function of a batch: (B, C, H, W), or outputs at several scales where it is trained on them.

    Networks assume that coarse pixels lie on their nominal grid: a simulated shift is an error to become robust to.
    """

    def __init__(self, network: AnyNetwork, *, bfloat16: bool = False) -> None:
        super().__init__()
        self.network, self.in_bfloat16 = network, bfloat16

    def forward(self, batch: PairBatch) -> Tensor | ScaleOutputs:
        network, hsi, msi = self.network, batch.hsi, batch.msi
        if isinstance(network, PriorNetwork):
            pairs = zip(hsi, msi, assumed_observations(batch), strict=True)
            guided = torch.stack([fuse_with_network(network, *pair) for pair in pairs])
            # A pair of very few coarse pixels is fused without the network, which must still have a gradient.
            return guided + 0 * sum(parameter.sum() for parameter in network.parameters())
        channels = None
        if not isinstance(network, BaselineNetwork):  # in full precision
            centres = msi_centres_nm(batch.srf, batch.wavelength_nm)
            srf = batch.srf if network.config.standardise == "regressed" else None
            channels = network.find_channels(hsi, msi, batch.wavelength_nm, centres, srf)
        with torch.autocast(hsi.device.type, dtype=torch.bfloat16, enabled=self.in_bfloat16):
            if isinstance(network, MIMOSST):
                return network.forward_scales(hsi, msi)
            if isinstance(network, BaselineNetwork):
                return cast(Tensor, network(hsi, msi))
            return cast(Tensor, network(hsi, msi, None, batch.base, channels, batch.base_error))


WINDOW, WINDOW_SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
SMALLEST_ERROR = 1e-12
SMALLEST_SINE = 1e-4
SMALLEST_RELATIVE_TO = 1e-4  # a smooth patch, which bicubic interpolates without error, does not outweigh the others


def training_loss(outputs: Tensor | ScaleOutputs, batch: PairBatch, loop: LoopSettings) -> Tensor:
    """Return the loss of a network's outputs; one with outputs at several scales has its own loss."""
    if isinstance(outputs, ScaleOutputs):
        return loss_over_scales(outputs, batch.reference)
    if loop.loss == "decibels":
        return decibel_loss(outputs, batch.reference, loop.angle_weight)
    if loop.loss == "relative":
        return relative_loss(outputs, batch)
    return fusion_loss(outputs, batch.reference, loop.ssim_weight)


def relative_loss(fused: Tensor, batch: PairBatch) -> Tensor:
    """Return the mean over samples of the L1 error divided by that of bicubic interpolation."""
    fine_size, coarse_size = ((image.shape[2], image.shape[3]) for image in (batch.reference, batch.hsi))
    bicubic = upsample_bicubic(batch.hsi, fine_size, shared_edges(fine_size, coarse_size))
    errors = [(image - batch.reference).abs().mean((1, 2, 3)) for image in (fused, bicubic)]
    return (errors[0] / errors[1].clamp_min(SMALLEST_RELATIVE_TO)).mean()


def decibel_loss(fused: Tensor, reference: Tensor, angle_weight: float) -> Tensor:
    """Return minus the mean PSNR of the samples (peak 1) plus the weighted logarithm of their mean spectral angle."""
    error = (fused - reference).square().mean((1, 2, 3))
    decibels = 10 * torch.log10(error + SMALLEST_ERROR)
    lengths = fused.square().sum(1) * reference.square().sum(1)
    cosine = (fused * reference).sum(1).square() / lengths.clamp_min(SMALLEST_ERROR)
    sine = (1 - cosine).clamp_min(SMALLEST_SINE**2).sqrt()
    return (decibels + angle_weight * sine.mean((1, 2)).log()).mean()


def fusion_loss(fused: Tensor, reference: Tensor, ssim_weight: float) -> Tensor:
    """Return L1 + ssim_weight (1 - SSIM) of the unclipped output, for values whose peak is 1 (paper, section 3.4)."""
    loss = (fused - reference).abs().mean()
    return loss + ssim_weight * (1 - structural_similarity(fused, reference)) if ssim_weight else loss


def structural_similarity(fused: Tensor, reference: Tensor) -> Tensor:
    """Return the mean SSIM over bands and whole windows (Gaussian, 11 x 11, sigma 1.5), for values whose peak is 1.

    The window shrinks to an image smaller than itself. Blurring along an axis is one product with a small matrix.

    References
    ----------
    Z. Wang et al., "Image quality assessment: from error visibility to structural similarity", IEEE Transactions on
    Image Processing 13(4), 2004.
    """
    fused, reference = fused.float(), reference.float()
    rows, columns = (_window_matrix(size).to(fused) for size in fused.shape[-2:])

    def blurred(image: Tensor) -> Tensor:
        return rows @ image @ columns.T

    mean_f, mean_r = blurred(fused), blurred(reference)
    product, square_sum = mean_f * mean_r, mean_f.square() + mean_r.square()
    covariance = blurred(fused * reference) - product
    variance_sum = blurred(fused.square() + reference.square()) - square_sum
    c1, c2 = K1**2, K2**2
    similarity = (2 * product + c1) * (2 * covariance + c2) / ((square_sum + c1) * (variance_sum + c2))
    return similarity.mean()


def _window_matrix(size: int) -> Tensor:
    """(windows, size): each row is the Gaussian window at one position."""
    width = min(WINDOW, size)
    taps = torch.exp(-0.5 * ((torch.arange(width) - (width - 1) / 2) / WINDOW_SIGMA).square())
    matrix = torch.zeros(size - width + 1, size)
    for row in range(len(matrix)):
        matrix[row, row : row + width] = taps / taps.sum()
    return matrix
