"""Kernels that are functions of wavelength: given at knots, interpolated at the centres of whatever bands the sensor
has.

A band at wavelength l uses the weight (1 - t) W_k + t W_(k+1) between its two knots; the sum over input bands is an
integral over wavelength, so every band counts with its share of the spectrum. Bands beyond the knots use the outermost
one.

B batch, C channels, D features, K knots.

Matryoshka kernel layers: one nested weight serves every channel count up to C_max (paper section 3.2, algorithms 1 and
2).

A cube of C channels uses the first C slices of the weight and nothing else, so what is learned on few channels is the
prefix of what is used on many. At C = C_max the whole weight is used as it is.

B batch, C channels, D features, k kernel size.

Plain convolutions in the place of the Matryoshka kernels: the variant "w/o MK" of the ablation in the paper.

Such a network is made for one sensor: one number of hsi bands, one of msi bands (`FusionNetwork.check_bands` refuses
others).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.errors import BandError
from hyperfuse.models.config import WavelengthBands


class MatryoshkaInputKernel(nn.Conv2d):
    """Algorithm 1: (B, C, H, W) -> (B, D, H', W') for any C up to `max_channels`.

    The weight W_nested (D, C_max, k, k), the bias and their initial values are those of a convolution of the full
    width.
    """

    def __init__(
        self,
        max_channels: int,
        features: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(max_channels, features, kernel_size, stride, padding, dilation, bias=bias)

    def forward(self, image: Tensor) -> Tensor:
        channels = image.shape[1]
        _refuse_more_channels(channels, self.in_channels)
        # Eq. (2): W_valid = W_nested[:, :C]
        weight = self.weight if channels == self.in_channels else self.weight[:, :channels]
        return F.conv2d(image, weight, self.bias, self.stride, self.padding, self.dilation)


class MatryoshkaOutputKernel(nn.Conv2d):
    """Algorithm 2: (B, D, H, W) -> (B, C, H', W') for any asked C up to `max_channels`."""

    def __init__(
        self,
        features: int,
        max_channels: int,
        kernel_size: int = 3,
        *,
        stride: int = 1,
        padding: int = 1,
        dilation: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(features, max_channels, kernel_size, stride, padding, dilation, bias=bias)

    def forward(self, features: Tensor, channels: int) -> Tensor:  # type: ignore[override]
        _refuse_more_channels(channels, self.out_channels)
        if channels == self.out_channels:
            return F.conv2d(features, self.weight, self.bias, self.stride, self.padding, self.dilation)
        # Eq. (4) and (5): W_valid = W_nested[:C], b_valid = b_nested[:C]
        bias = None if self.bias is None else self.bias[:channels]
        return F.conv2d(features, self.weight[:channels], bias, self.stride, self.padding, self.dilation)


def _refuse_more_channels(channels: int, max_channels: int) -> None:
    if channels > max_channels:
        raise BandError(
            f"{channels} channels",
            f"at most {max_channels}, the width of this Matryoshka kernel",
            f"select at most {max_channels} channels, or build the network with max_channels={channels} and train it",
        )


class FixedInputKernel(nn.Conv2d):
    """(B, C, H, W) -> (B, D, H, W) for one C."""

    def __init__(self, channels: int, features: int) -> None:
        super().__init__(channels, features, kernel_size=3, padding=1)


class FixedOutputKernel(nn.Conv2d):
    """(B, D, H, W) -> (B, C, H, W) for one C."""

    def __init__(self, features: int, channels: int) -> None:
        super().__init__(features, channels, kernel_size=3, padding=1)

    def forward(self, features: Tensor, channels: int) -> Tensor:  # type: ignore[override]
        assert channels == self.out_channels
        return F.conv2d(features, self.weight, self.bias, padding=self.padding)


# Where bands were removed, their neighbours do not stand for the whole gap.
_WIDEST_SHARE = 3.0


class WavelengthInputKernel(nn.Conv2d):
    """(B, C, H, W) and the wavelengths of its C channels -> (B, D, H, W)."""

    def __init__(self, axis: WavelengthBands, features: int) -> None:
        super().__init__(axis.knots, features, kernel_size=3, padding=1)
        self.axis = axis

    def forward(self, image: Tensor, wavelength_nm: Tensor) -> Tensor:  # type: ignore[override]
        """Wavelengths are (C,) for the whole batch, or (B, C)."""
        placing = knot_weights(wavelength_nm, self.axis) * spectral_shares(wavelength_nm, self.axis)[..., None]
        placing = placing.to(self.weight)
        if placing.ndim == 2:
            return F.conv2d(image, torch.einsum("ck,dkij->dcij", placing, self.weight), self.bias, padding=self.padding)
        # Every sample has kernels of its own: a convolution in as many groups as samples.
        batch, channels, rows, columns = image.shape
        weight = torch.einsum("bck,dkij->bdcij", placing, self.weight).flatten(0, 1)
        features = F.conv2d(
            image.reshape(1, batch * channels, rows, columns), weight, padding=self.padding, groups=batch
        )
        assert self.bias is not None
        return features.view(batch, self.out_channels, rows, columns) + self.bias[:, None, None]


class WavelengthOutputKernel(nn.Conv2d):
    """(B, D, H, W) and the wavelengths asked for (C,) -> (B, C, H, W)."""

    def __init__(self, features: int, axis: WavelengthBands) -> None:
        super().__init__(features, axis.knots, kernel_size=3, padding=1)
        self.axis = axis

    def forward(self, features: Tensor, wavelength_nm: Tensor) -> Tensor:  # type: ignore[override]
        assert self.bias is not None
        placing = knot_weights(wavelength_nm, self.axis).to(self.weight)
        weight = torch.einsum("ck,kdij->cdij", placing, self.weight)
        return F.conv2d(features, weight, placing @ self.bias, padding=self.padding)


def knot_weights(wavelength_nm: Tensor, axis: WavelengthBands) -> Tensor:
    """(..., C) wavelengths -> (..., C, K) weights of the knots, linear between two of them, each row summing to 1."""
    spacing = (axis.longest_nm - axis.shortest_nm) / (axis.knots - 1)
    position = ((wavelength_nm.double() - axis.shortest_nm) / spacing).clamp(0, axis.knots - 1)
    knots = torch.arange(axis.knots, dtype=torch.float64, device=position.device)
    return (1 - (position[..., None] - knots).abs()).clamp(min=0)


def spectral_shares(wavelength_nm: Tensor, axis: WavelengthBands) -> Tensor:
    """(..., C) -> how much of the spectrum each band stands for, in knot spacings, whatever the order of the bands."""
    spacing = (axis.longest_nm - axis.shortest_nm) / (axis.knots - 1)
    ordered, order = wavelength_nm.double().sort(dim=-1)
    if ordered.shape[-1] == 1:
        return torch.ones_like(ordered)
    gaps = ordered.diff(dim=-1)
    widths = F.pad(gaps, (1, 0)) / 2 + F.pad(gaps, (0, 1)) / 2
    # An outer band has a neighbour on one side only.
    widths[..., 0], widths[..., -1] = gaps[..., 0], gaps[..., -1]
    widths = widths.minimum(_WIDEST_SHARE * widths.median(dim=-1, keepdim=True).values)
    return torch.zeros_like(widths).scatter(-1, order, widths / spacing)
