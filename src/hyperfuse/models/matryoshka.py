"""Matryoshka kernels: one nested weight for every channel count up to C_max (paper section 3.2, algorithms 1 and 2).

A cube of C channels uses the first C slices of the weight and nothing else, so the kernel learned on few channels is
the prefix of the kernel used on many. `WavelengthInputKernel` and `WavelengthOutputKernel` are a variant without an
upper limit: the weight is a function of wavelength, interpolated at the centres of the bands.

Shapes: B batch, C channels, D features, K knots, k kernel size, H W rows and columns.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.errors import BandError
from hyperfuse.models.channels import WavelengthBands

# Where bands were removed, their neighbours do not stand for the whole gap.
_WIDEST_SHARE = 3.0


class MatryoshkaInputKernel(nn.Conv2d):
    """Convolution from any number of channels to a fixed number of features (algorithm 1).

    Parameters are those of `torch.nn.Conv2d`, with C_max, the largest number of channels, as `in_channels`. The nested
    weight (D, C_max, k, k) and the bias are initialised like those of a convolution of the full width.

    References
    ----------
    .. [1] Y.-J. Liang et al., "Hyperspectral image fusion with spectral-band and fusion-scale agnosticism", 2026,
       section 3.2.
    .. [2] A. Kusupati et al., "Matryoshka representation learning", NeurIPS 2022.

    Examples
    --------
    >>> kernel = MatryoshkaInputKernel(194, 8, kernel_size=3, padding=1)
    >>> [tuple(kernel(torch.rand(1, bands, 5, 5)).shape) for bands in (3, 31, 194)]
    [(1, 8, 5, 5), (1, 8, 5, 5), (1, 8, 5, 5)]
    """

    def forward(self, image: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, H', W')."""
        channels = image.shape[1]
        _check_channels(channels, self.in_channels)
        # Eq. (2) and (3): W_valid = W_nested[:, :C]
        features: Tensor = self._conv_forward(image, self.weight[:, :channels], self.bias)
        return features


class MatryoshkaOutputKernel(nn.Conv2d):
    """Convolution from features to any requested number of channels (algorithm 2).

    Parameters are those of `torch.nn.Conv2d`, with C_max as `out_channels`. The nested weight is (C_max, D, k, k), the
    nested bias (C_max,).

    Examples
    --------
    >>> kernel = MatryoshkaOutputKernel(8, 194, kernel_size=3, padding=1)
    >>> features = torch.rand(1, 8, 5, 5)
    >>> torch.allclose(kernel(features, 31), kernel(features, 194)[:, :31], atol=1e-6)
    True
    """

    def forward(self, features: Tensor, channels: int) -> Tensor:  # type: ignore[override]
        """(B, D, H, W) -> (B, channels, H', W')."""
        _check_channels(channels, self.out_channels)
        # Eq. (4) and (5): W_valid = W_nested[:C], b_valid = b_nested[:C]
        bias = None if self.bias is None else self.bias[:channels]
        image: Tensor = self._conv_forward(features, self.weight[:channels], bias)
        return image


def _check_channels(channels: int, max_channels: int) -> None:
    if channels > max_channels:
        raise BandError(
            f"{channels} channels",
            f"at most {max_channels}, the width of this Matryoshka kernel",
            f"select at most {max_channels} channels, or build the network with max_channels={channels} and train it",
        )


class WavelengthInputKernel(nn.Conv2d):
    """Convolution whose weight is a function of wavelength, integrated over the spectrum of the bands.

    A band at wavelength l uses the weight (1 - t) W_k + t W_(k+1) between its two knots, times its share of the
    spectrum. Bands outside the knots use the outermost one.
    """

    def __init__(self, axis: WavelengthBands, features: int) -> None:
        super().__init__(axis.knots, features, kernel_size=3, padding=1)
        self.axis = axis

    def forward(self, image: Tensor, wavelength_nm: Tensor) -> Tensor:  # type: ignore[override]
        """(B, C, H, W) and wavelengths (C,) or (B, C) -> (B, D, H, W)."""
        at_knots = knot_weights(wavelength_nm, self.axis) * spectral_shares(wavelength_nm, self.axis)[..., None]
        weight = torch.einsum("...ck,dkij->...dcij", at_knots.to(self.weight), self.weight)
        if wavelength_nm.ndim == 1:
            return F.conv2d(image, weight, self.bias, padding=1)
        # Every sample has kernels of its own: a convolution in as many groups as samples.
        batch, channels, rows, columns = image.shape
        grouped = image.reshape(1, batch * channels, rows, columns)
        features = F.conv2d(grouped, weight.flatten(0, 1), padding=1, groups=batch)
        assert self.bias is not None
        return features.view(batch, self.out_channels, rows, columns) + self.bias[:, None, None]


class WavelengthOutputKernel(nn.Conv2d):
    """Convolution from features to bands at any wavelengths."""

    def __init__(self, features: int, axis: WavelengthBands) -> None:
        super().__init__(features, axis.knots, kernel_size=3, padding=1)
        self.axis = axis

    def forward(self, features: Tensor, wavelength_nm: Tensor) -> Tensor:  # type: ignore[override]
        """(B, D, H, W) and wavelengths (C,) -> (B, C, H, W)."""
        assert self.bias is not None
        at_knots = knot_weights(wavelength_nm, self.axis).to(self.weight)
        weight = torch.einsum("ck,kdij->cdij", at_knots, self.weight)
        return F.conv2d(features, weight, at_knots @ self.bias, padding=1)


def knot_weights(wavelength_nm: Tensor, axis: WavelengthBands) -> Tensor:
    """(..., C) wavelengths -> (..., C, K) weights of the knots, linear between two of them, each row summing to 1."""
    position = ((wavelength_nm.double() - axis.shortest_nm) / _spacing_nm(axis)).clamp(0, axis.knots - 1)
    knots = torch.arange(axis.knots, dtype=torch.float64, device=position.device)
    return (1 - (position[..., None] - knots).abs()).clamp(min=0)


def spectral_shares(wavelength_nm: Tensor, axis: WavelengthBands) -> Tensor:
    """(..., C) -> how much of the spectrum each band stands for, in knot spacings, whatever the order of the bands."""
    ordered, order = wavelength_nm.double().sort(dim=-1)
    if ordered.shape[-1] == 1:
        return torch.ones_like(ordered)
    gaps = ordered.diff(dim=-1)
    widths = F.pad(gaps, (1, 0)) / 2 + F.pad(gaps, (0, 1)) / 2
    # An outer band has a neighbour on one side only.
    widths[..., 0], widths[..., -1] = gaps[..., 0], gaps[..., -1]
    widths = widths.minimum(_WIDEST_SHARE * widths.median(dim=-1, keepdim=True).values)
    return torch.zeros_like(widths).scatter(-1, order, widths / _spacing_nm(axis))


def _spacing_nm(axis: WavelengthBands) -> float:
    return (axis.longest_nm - axis.shortest_nm) / (axis.knots - 1)
