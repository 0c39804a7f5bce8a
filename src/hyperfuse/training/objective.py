"""The paper's loss: L1 + lambda (1 - SSIM), on the unclipped output (section 3.4); one that counts decibels; and MIMO-SST's own.

B batch, C bands, H W fine.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.networks.rivals.mimo_sst import ScaleOutputs, loss_over_scales
from hyperfuse.training.experiment import LoopSettings

WINDOW, WINDOW_SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
SMALLEST_ERROR = 1e-12
SMALLEST_SINE = 1e-4


def training_loss(outputs: Tensor | ScaleOutputs, reference: Tensor, loop: LoopSettings) -> Tensor:
    """Of what a network answers in training. A network that answers at several scales is defined by its loss over them."""
    if isinstance(outputs, ScaleOutputs):
        return loss_over_scales(outputs, reference)
    if loop.loss == "decibels":
        return decibel_loss(outputs, reference, loop.angle_weight)
    return fusion_loss(outputs, reference, loop.ssim_weight)


def decibel_loss(fused: Tensor, reference: Tensor, angle_weight: float) -> Tensor:
    """Minus the mean PSNR of the samples, for values whose peak is 1, plus the weighted logarithm of their mean spectral angle."""
    error = (fused - reference).square().mean((1, 2, 3))
    decibels = 10 * torch.log10(error + SMALLEST_ERROR)
    lengths = fused.square().sum(1) * reference.square().sum(1)
    cosine = (fused * reference).sum(1).square() / lengths.clamp_min(SMALLEST_ERROR)
    sine = (1 - cosine).clamp_min(SMALLEST_SINE**2).sqrt()
    return (decibels + angle_weight * sine.mean((1, 2)).log()).mean()


def fusion_loss(fused: Tensor, reference: Tensor, ssim_weight: float) -> Tensor:
    """Mean over samples, bands and pixels, for values whose peak is 1."""
    loss = (fused - reference).abs().mean()
    return loss + ssim_weight * (1 - structural_similarity(fused, reference)) if ssim_weight else loss


def structural_similarity(fused: Tensor, reference: Tensor) -> Tensor:
    """Mean SSIM (Wang et al. 2004) over the windows that fit, per band, Gaussian 11 x 11 of sigma 1.5, for values whose peak is 1.

    The window shrinks to an image smaller than itself. Blurring along an axis is one product with a small matrix.
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
    """(windows, size): each row is the Gaussian window at one place where it fits."""
    width = min(WINDOW, size)
    taps = torch.exp(-0.5 * ((torch.arange(width) - (width - 1) / 2) / WINDOW_SIGMA).square())
    matrix = torch.zeros(size - width + 1, size)
    for row in range(len(matrix)):
        matrix[row, row : row + width] = taps / taps.sum()
    return matrix
