"""What the channels of one pair are, beyond its pixels: wavelengths, or the subspaces that its components span.

They are found once for a whole scene and are the same for all of its tiles.

Principal components of an image as the channels of a network: the same meaning for every sensor, and any number of
bands.

The components of an hsi come from the hsi itself. They are ordered by variance, so a prefix of them is always the best
basis of its size: nested in earnest, which is what Matryoshka kernels ask for.

B batch, C bands, K components.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.errors import BandError
from hyperfuse.models.config import Components, NetworkConfig, WavelengthBands

# A component below this share of the first one's deviation is rounding.
_SMALLEST_DEVIATION = 1e-4
_SMALLEST_NUMBER = 1e-12


@dataclass(frozen=True)
class Subspace:
    """mean (B, C), basis (B, C, K) with orthonormal columns, unit (B, K): the size of a coefficient that becomes 1.

    The units lie halfway, as ratios, between one unit for all and one for each: the network sees the faint components,
    and still which they are.
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


@dataclass(frozen=True)
class PairChannels:
    """wavelength_nm (C,), msi_wavelength_nm (M,) or (B, M): needed by channels of kind "wavelength"; subspaces by
    "components".
    """

    wavelength_nm: Tensor | None = None
    msi_wavelength_nm: Tensor | None = None
    hsi_subspace: Subspace | None = None
    msi_subspace: Subspace | None = None

    def of_hsi(self, image: Tensor) -> Tensor:
        return image if self.hsi_subspace is None else self.hsi_subspace.encode(image)

    def of_msi(self, image: Tensor) -> Tensor:
        return image if self.msi_subspace is None else self.msi_subspace.encode(image)

    def to_bands(self, residual: Tensor) -> Tensor:
        return residual if self.hsi_subspace is None else self.hsi_subspace.decode_change(residual)


def find_channels(
    config: NetworkConfig,
    hsi: Tensor,
    msi: Tensor,
    wavelength_nm: Tensor | None = None,
    msi_wavelength_nm: Tensor | None = None,
) -> PairChannels:
    """The channels of a pair (B, C, h, w), (B, M, H, W) for a network of this kind."""
    kind = config.channels
    if isinstance(kind, Components):
        return PairChannels(
            hsi_subspace=principal_subspace(hsi, kind.count), msi_subspace=principal_subspace(msi, config.max_msi_bands)
        )
    if isinstance(kind, WavelengthBands):
        for name, given in (("hsi", wavelength_nm), ("msi", msi_wavelength_nm)):
            if given is None:
                raise BandError(
                    f"no wavelengths of the {name}'s bands",
                    "one for each band: this network's channels are wavelengths",
                    "give wavelengths, or use a network with other channels",
                )
        return PairChannels(wavelength_nm=wavelength_nm, msi_wavelength_nm=msi_wavelength_nm)
    return PairChannels()
