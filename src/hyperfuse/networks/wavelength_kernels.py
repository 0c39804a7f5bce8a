"""Kernels that are functions of wavelength: given at knots, interpolated at the centres of whatever bands the sensor has.

A band at wavelength l uses the weight (1 - t) W_k + t W_(k+1) between its two knots; the sum over input bands is an integral over
wavelength, so every band counts with its share of the spectrum. Bands beyond the knots use the outermost one.

B batch, C channels, D features, K knots.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.networks.network_config import WavelengthBands

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
        features = F.conv2d(image.reshape(1, batch * channels, rows, columns), weight, padding=self.padding, groups=batch)
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
