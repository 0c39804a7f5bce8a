"""Principal components of an image as the channels of a network: the same meaning for every sensor, and any number of bands.

The components of an hsi come from the hsi itself. They are ordered by variance, so a prefix of them is always the best basis of its
size: nested in earnest, which is what Matryoshka kernels ask for.

B batch, C bands, K components.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# A component below this share of the first one's deviation is rounding.
_SMALLEST_DEVIATION = 1e-4
_SMALLEST_NUMBER = 1e-12


@dataclass(frozen=True)
class Subspace:
    """mean (B, C), basis (B, C, K) with orthonormal columns, unit (B, K): the size of a coefficient that becomes 1.

    The units lie halfway, as ratios, between one unit for all and one for each: the network sees the faint components, and still
    which they are.
    """

    mean: Tensor
    basis: Tensor
    unit: Tensor

    def encode(self, image: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K, H, W) coefficients of about 1."""
        batch, _, rows, columns = image.shape
        centred = image.flatten(2) - self.mean.to(image)[:, :, None]
        weights = (self.basis / self.unit[:, None, :]).to(image).transpose(1, 2)
        return (weights @ centred).view(batch, self.basis.shape[2], rows, columns)

    def decode_change(self, change: Tensor) -> Tensor:
        """(B, K, H, W) change of the coefficients -> (B, C, H, W) change of the image."""
        batch, _, rows, columns = change.shape
        weights = (self.basis * self.unit[:, None, :]).to(change)
        return (weights @ change.flatten(2)).view(batch, self.basis.shape[1], rows, columns)


@torch.no_grad()
def principal_subspace(image: Tensor, count: int) -> Subspace:
    """The first components of (B, C, h, w), at most as many as it has bands."""
    values = image.detach().double().flatten(2)
    mean = values.mean(dim=2)
    centred = values - mean[:, :, None]
    covariance = centred @ centred.transpose(1, 2) / values.shape[2]
    variances, vectors = torch.linalg.eigh(covariance)
    count = min(count, image.shape[1])
    basis = vectors.flip(dims=(2,))[:, :, :count]
    deviation = variances.flip(dims=(1,))[:, :count].clamp(min=0).sqrt()
    # The sign of an eigenvector is arbitrary; brighter is positive.
    basis = basis * torch.where(basis.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)
    # A constant image has no deviation; its brightness, or at least something that can be divided by, stands in for it.
    brightness = values.square().mean(dim=(1, 2)).sqrt()[:, None]
    first = deviation[:, :1].maximum(_SMALLEST_DEVIATION * brightness).clamp(min=_SMALLEST_NUMBER)
    unit = (first * deviation.maximum(_SMALLEST_DEVIATION * first)).sqrt()
    return Subspace(mean, basis, unit)
