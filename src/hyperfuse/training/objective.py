"""The paper's loss: L1 + lambda (1 - SSIM), on the unclipped output (section 3.4); one that counts decibels; and
MIMO-SST's own.

B batch, C bands, H W fine.

A batch as the network takes it: the simulated pairs, the base that the residual is added to, the channels.

B batch, C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn

from hyperfuse.data.observing import PairBatch
from hyperfuse.fusion.network import fuse_with_network, msi_centres_nm
from hyperfuse.methods.run import fuse_arrays
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.baselines.catalogue import AnyNetwork
from hyperfuse.models.baselines.mimo_sst import MimoSst, ScaleOutputs, loss_over_scales
from hyperfuse.models.channels import find_channels
from hyperfuse.models.config import BICUBIC
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.training.experiment import LoopSettings


@dataclass(frozen=True, eq=False)
class TrainingBatch(PairBatch):
    base: Tensor | None = None  # (B, C, H, W); None: bicubic, which the network makes itself


@dataclass(frozen=True)
class BaseMaker:
    """Runs the closed form of the network's base on every pair of a batch; travels to the loader's workers."""

    method: str | None  # None: the network runs it itself

    def __call__(self, batch: PairBatch) -> TrainingBatch:
        pairs = {field.name: getattr(batch, field.name) for field in fields(PairBatch)}
        base = None if self.method in (None, BICUBIC) else closed_form(batch, str(self.method))
        return TrainingBatch(**pairs, base=base)


def closed_form(batch: PairBatch, method: str) -> Tensor:
    """(B, C, H, W) by a method that is told how each pair was observed."""
    observations = believed_observations(batch.srf, batch.scale, batch.believed)
    pairs = zip(batch.hsi, batch.msi, observations, strict=True)
    return torch.stack([fuse_arrays(hsi, msi, observation, method) for hsi, msi, observation in pairs])


def believed_observations(srf: Tensor, scale: float, believed: Tensor) -> list[Observation]:
    """How each pair of a batch was observed, as far as a closed form is told."""
    return [
        known_observation(own_srf, scale, sigma, (down, right), hsi_noise, msi_noise)
        for own_srf, (sigma, down, right, hsi_noise, msi_noise) in zip(srf, believed.tolist(), strict=True)
    ]


class NetworkOnBatch(nn.Module):
    """The network with its channels found from the pair itself. Takes tensors only, which every engine can move and
    convert.
    """

    def __init__(self, network: AnyNetwork, *, bfloat16: bool = False) -> None:
        super().__init__()
        self.network, self.in_bfloat16 = network, bfloat16

    def forward(
        self,
        hsi: Tensor,
        msi: Tensor,
        base: Tensor | None,
        wavelength_nm: Tensor | None,
        msi_centres_nm: Tensor | None,
        srf: Tensor,
        believed: Tensor,
        scale: float,
    ) -> Tensor | ScaleOutputs:
        """(B, C, H, W), and at smaller scales too where a network is trained on them.

        Coarse pixels lie where their grid says: a simulated shift is an error that the network has to bear.
        """
        if isinstance(self.network, PriorNetwork):
            pairs = zip(hsi, msi, believed_observations(srf, scale, believed), strict=True)
            guided = torch.stack([fuse_with_network(self.network, *pair) for pair in pairs])
            # A pair of very few coarse pixels is fused without the network, which must still have a gradient.
            return guided + 0 * sum(parameter.sum() for parameter in self.network.parameters())
        with torch.autocast(hsi.device.type, dtype=torch.bfloat16, enabled=self.in_bfloat16):
            if isinstance(self.network, MimoSst):
                return self.network.forward_scales(hsi, msi)
            if isinstance(self.network, BaselineNetwork):
                by_baseline: Tensor = self.network(hsi, msi)
                return by_baseline
            channels = find_channels(self.network.config, hsi, msi, wavelength_nm, msi_centres_nm)
            fused: Tensor = self.network(hsi, msi, None, base, channels)
        return fused


def run_network(module: nn.Module, batch: TrainingBatch) -> Tensor | ScaleOutputs:
    centres = msi_centres_nm(batch.srf, batch.wavelength_nm)
    outputs: Tensor | ScaleOutputs = module(
        batch.hsi, batch.msi, batch.base, batch.wavelength_nm, centres, batch.srf, batch.believed, batch.scale
    )
    return outputs


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
    """Minus the mean PSNR of the samples, for values whose peak is 1, plus the weighted logarithm of their mean
    spectral angle.
    """
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
    """Mean SSIM (Wang et al. 2004) over the windows that fit, per band, Gaussian 11 x 11 of sigma 1.5, for values whose
    peak is 1.

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
