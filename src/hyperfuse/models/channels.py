"""What the channels of a network mean: bands, wavelengths, or principal components of the image itself.

The channels of a pair are found once for a whole scene and are the same for all of its tiles.

Shapes: B batch, C hsi bands, M msi bands, K components, H W rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from hyperfuse.models.weights import LARGEST_SIZE, Positive

# A component below this share of the first one's deviation is rounding.
_SMALLEST_DEVIATION = 1e-4
_SMALLEST_NUMBER = 1e-12


class _ChannelKind(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MatryoshkaBands(_ChannelKind):
    """Channel i is band i, as in the paper: C bands use the first C of `max_channels` (C_max) slots of every kernel.

    Where the msi is concatenated to the upsampled hsi, as in the paper, the two together have at most `max_channels`
    bands.
    """

    kind: Literal["bands"] = "bands"
    max_channels: Positive = 194


class WavelengthBands(_ChannelKind):
    """A kernel is a function of wavelength, given at evenly spaced knots and interpolated at the band centres.

    Takes any number of bands, and a slot means the same light for every sensor. Needs the wavelengths.
    """

    kind: Literal["wavelength"] = "wavelength"
    knots: Annotated[int, Field(ge=2, le=LARGEST_SIZE)] = 45
    shortest_nm: Annotated[float, Field(gt=0, lt=1e6)] = 350.0
    longest_nm: Annotated[float, Field(gt=0, lt=1e6)] = 2550.0

    @model_validator(mode="after")
    def _check_order(self) -> WavelengthBands:
        if self.shortest_nm >= self.longest_nm:
            raise ValueError(f"got {self.shortest_nm:g} to {self.longest_nm:g} nm, expected a range from short to long")
        return self


class Components(_ChannelKind):
    """Channel i is the i-th principal component of the input itself: nested by variance, whatever the sensor.

    Takes any number of bands: fewer than `count` use the first slots; of more, the base carries the remaining
    components.
    """

    kind: Literal["components"] = "components"
    count: Positive = 16


class FixedBands(_ChannelKind):
    """One pair of sensors: plain convolutions, the paper's ablation "w/o MK"."""

    kind: Literal["fixed"] = "fixed"
    bands: Positive
    msi_bands: Positive


Channels = Annotated[MatryoshkaBands | WavelengthBands | Components | FixedBands, Field(discriminator="kind")]


@dataclass(frozen=True)
class Subspace:
    """Principal components of an image.

    mean   (B, C)
    basis  (B, C, K) with orthonormal columns
    unit   (B, K) the coefficient that is encoded as 1: the geometric mean of the component's own deviation and the
           first one's, so that the network sees faint components and still which they are
    """

    mean: Tensor
    basis: Tensor
    unit: Tensor

    def encode(self, image: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, K, H, W) coefficients of about 1."""
        weights = (self.basis / self.unit[:, None, :]).to(image)
        return torch.einsum("bck,bchw->bkhw", weights, image - self.mean.to(image)[:, :, None, None])

    def decode_change(self, change: Tensor) -> Tensor:
        """(B, K, H, W) change of the coefficients -> (B, C, H, W) change of the image."""
        return torch.einsum("bck,bkhw->bchw", (self.basis * self.unit[:, None, :]).to(change), change)


@torch.no_grad()
def principal_subspace(image: Tensor, count: int) -> Subspace:
    """Find the first `count` principal components of (B, C, H, W), at most as many as it has bands."""
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
    # A constant image has no deviation; its brightness, or at least a positive number, stands in for it.
    brightness = values.square().mean(dim=(1, 2)).sqrt()[:, None]
    first = deviation[:, :1].maximum(_SMALLEST_DEVIATION * brightness).clamp(min=_SMALLEST_NUMBER)
    unit = (first * deviation.maximum(_SMALLEST_DEVIATION * first)).sqrt()
    return Subspace(mean, basis, unit)


@dataclass(frozen=True)
class PairChannels:
    """The channels of one pair; all None for channels that are bands.

    wavelength_nm (C,), msi_wavelength_nm (M,) or (B, M)  for channels of kind "wavelength"
    hsi_subspace, msi_subspace                            for channels of kind "components"
    """

    wavelength_nm: Tensor | None = None
    msi_wavelength_nm: Tensor | None = None
    hsi_subspace: Subspace | None = None
    msi_subspace: Subspace | None = None

    def encode_hsi(self, image: Tensor) -> Tensor:
        return image if self.hsi_subspace is None else self.hsi_subspace.encode(image)

    def encode_msi(self, image: Tensor) -> Tensor:
        return image if self.msi_subspace is None else self.msi_subspace.encode(image)

    def decode_residual(self, residual: Tensor) -> Tensor:
        return residual if self.hsi_subspace is None else self.hsi_subspace.decode_change(residual)
