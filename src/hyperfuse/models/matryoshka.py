"""Matryoshka kernels: one nested weight for every channel count up to C_max (paper section 3.2, algorithms 1 and 2).

A cube of C channels uses the first C slices of the weight and nothing else, so the kernel learned on few channels is
the prefix of the kernel used on many. Channels are bands as in the paper, wavelengths (`WavelengthInputKernel` and
`WavelengthOutputKernel`, without an upper limit: the weight is a function of wavelength, interpolated at the centres of
the bands), or principal components of the image itself. The channels of a pair are found once for a whole scene and are
the same for all of its tiles.

Shapes: B batch, C channels or bands, M msi bands, D features, K knots or components, k kernel size, H W rows, columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from hyperfuse.errors import BandError
from hyperfuse.models.weights import LARGEST_SIZE, Positive, Strict

# Where bands were removed, their neighbours do not stand for the whole gap.
_WIDEST_SHARE = 3.0
# A component below this share of the first one's deviation is rounding.
_SMALLEST_DEVIATION = 1e-4
_SMALLEST_NUMBER = 1e-12
# A band that is not correlated with the brightness of the msi may still follow one of its bands.
SMALLEST_FOLLOWING = 0.2
# Brightness, slope and curvature: all that three bands have. Features of the decoder are divided among these and what
# does not follow them.
MSI_COMPONENTS = 3
# Added to the variance of a component when it is divided by its deviation, in units of a standardised band.
FAINTEST_COMPONENT = 3e-4


class MatryoshkaBands(Strict):
    """Channel i is band i, as in the paper: C bands use the first C of `max_channels` (C_max) slots of every kernel.

    Where the msi is concatenated to the upsampled hsi, as in the paper, the two together have at most `max_channels`
    bands.
    """

    kind: Literal["bands"] = "bands"
    max_channels: Positive = 194


class WavelengthBands(Strict):
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


class Components(Strict):
    """Channel i is the i-th principal component of the input itself: nested by variance, whatever the sensor.

    Takes any number of bands: fewer than `count` use the first slots; of more, the base carries the remaining
    components.
    """

    kind: Literal["components"] = "components"
    count: Positive = 16


class FixedBands(Strict):
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

    def encode_error(self, error: Tensor) -> Tensor:
        """(B, C, H, W) standard deviations of errors that are independent between bands -> (B, K, H, W).

        In truth bands err together, so a faint component is not given more error than it has deviation.
        """
        weights = (self.basis / self.unit[:, None, :]).square().to(error)
        deviation = (self.unit / self.unit[:, :1]).to(error)[:, :, None, None]
        return torch.einsum("bck,bchw->bkhw", weights, error.square()).sqrt().minimum(deviation)

    def decode_change(self, change: Tensor) -> Tensor:
        """(B, K, H, W) change of the coefficients -> (B, C, H, W) change of the image."""
        return torch.einsum("bck,bkhw->bchw", (self.basis * self.unit[:, None, :]).to(change), change)


@torch.no_grad()
def principal_subspace(image: Tensor, count: int) -> Subspace:
    """Find the first `count` principal components of (B, C, H, W), at most as many as it has bands."""
    values = image.detach().double().flatten(2)
    mean = values.mean(dim=2)
    centred = values - mean[:, :, None]
    return subspace_of_moments(mean, centred @ centred.transpose(1, 2) / values.shape[2], count)


def subspace_of_moments(mean: Tensor, covariance: Tensor, count: int) -> Subspace:
    """The same of an image whose bands have this mean (B, C) and covariance (B, C, C)."""
    variances, vectors = torch.linalg.eigh(covariance)
    count = min(count, mean.shape[1])
    basis = vectors.flip(dims=(2,))[:, :, :count]
    deviation = variances.flip(dims=(1,))[:, :count].clamp(min=0).sqrt()
    # The sign of an eigenvector is arbitrary; brighter is positive.
    basis = basis * torch.where(basis.sum(dim=1, keepdim=True) < 0, -1.0, 1.0)
    # A constant image has no deviation; its brightness, or at least a positive number, stands in for it.
    brightness = (mean.square() + covariance.diagonal(dim1=1, dim2=2)).mean(dim=1, keepdim=True).sqrt()
    first = deviation[:, :1].maximum(_SMALLEST_DEVIATION * brightness).clamp(min=_SMALLEST_NUMBER)
    unit = (first * deviation.maximum(_SMALLEST_DEVIATION * first)).sqrt()
    return Subspace(mean, basis, unit)


@dataclass(frozen=True)
class BandUnits:
    """Standardisation of an image's bands.

    mean  (B, C)
    unit  (B, C) what is encoded as 1 above the mean: the band's deviation, negative for a band that is dark where the
          msi is bright
    gain  (B, G, C) multiplies what the output kernel makes of each of G groups of features: how far the band follows
          the msi, or each of its components
    """

    mean: Tensor
    unit: Tensor
    gain: Tensor

    def encode(self, image: Tensor) -> Tensor:
        """(B, C, H, W) -> the same with bands of mean 0 and deviation 1."""
        return (image - self.mean.to(image)[:, :, None, None]) / self.unit.to(image)[:, :, None, None]

    def decode_change(self, change: Tensor) -> Tensor:
        """(B, C, H, W) change in these units -> change of the image."""
        return change * self.unit.to(change)[:, :, None, None]


def band_units(mean: Tensor, variance: Tensor) -> BandUnits:
    """Standardise bands of this mean and variance (B, C)."""
    level = (variance + mean.square()).mean(dim=1, keepdim=True).sqrt()
    unit = variance.sqrt().maximum(_SMALLEST_DEVIATION * level).clamp(min=_SMALLEST_NUMBER)
    return BandUnits(mean, unit, torch.ones_like(unit)[:, None])


def correlated_units(units: BandUnits, correlation: Tensor, *, signs_only: bool = False) -> BandUnits:
    """Units whose signs and gains follow the correlation (B, C) of each band with the brightness of the msi.

    Detail of the msi then has the same sign in all bands, and a band that does not follow the msi changes little.
    """
    unit = torch.where(correlation < 0, -units.unit, units.unit)
    gain = units.gain if signs_only else correlation.abs().clamp(SMALLEST_FOLLOWING, 1.0).to(units.gain)[:, None]
    return BandUnits(units.mean, unit, gain)


@dataclass(frozen=True)
class MsiComponents:
    """Brightness, slope and curvature of the msi's spectrum, uncorrelated at the resolution of the hsi.

    bands  units of the msi's bands
    basis  (B, K, M) the components as sums of standardised msi bands
    seen   (B, K, C) the same as sums of encoded hsi bands: how the hsi would show them
    """

    bands: BandUnits
    basis: Tensor
    seen: Tensor

    def encode(self, msi: Tensor, base: Tensor) -> Tensor:
        """(B, M, H, W) and the encoded base (B, C, H, W) -> (B, 2 K + M, H, W): the components, what the base lacks of
        them, and the bands.
        """
        bands = self.bands.encode(msi)
        components = _weighted_sums(self.basis, bands)
        return torch.cat([components, components - _weighted_sums(self.seen, base), bands], dim=1)


def _weighted_sums(weights: Tensor, image: Tensor) -> Tensor:
    """(B, K, C), (B, C, H, W) -> (B, K, H, W), also in autocast with the precision of the image: results are
    subtracted from each other.
    """
    rows = weights.to(image)[..., None, None].unbind(dim=1)
    return torch.stack([(row * image).sum(dim=1) for row in rows], dim=1)


def regressed_units(
    units: BandUnits, msi_units: BandUnits, srf: Tensor, covariance: Tensor, cross: Tensor
) -> tuple[BandUnits, MsiComponents]:
    """Units whose gains are the coefficients of each band's regression on the components of the msi, and the share of
    its deviation that they do not explain.

    Everything is in standardised bands: the SRF (B, M, C), the covariance of the msi seen at the hsi's resolution
    (B, M, M), and the covariance of the hsi with it (B, C, M).
    """
    basis = _msi_basis(covariance)
    following = basis @ cross.transpose(1, 2)
    sign = torch.where(following[:, :1] < 0, -1.0, 1.0)
    unexplained = (1 - following.square().sum(dim=1, keepdim=True)).clamp(SMALLEST_FOLLOWING**2, 1.0).sqrt()
    gain = torch.cat([following.clamp(-1, 1) * sign, unexplained], dim=1).to(units.gain)
    seen = (basis @ srf) * sign
    return BandUnits(units.mean, units.unit * sign[:, 0], gain), MsiComponents(msi_units, basis, seen)


def _msi_basis(covariance: Tensor) -> Tensor:
    """(B, M, M) -> (B, K, M): polynomials of degree 0, 1, 2 along the bands, made uncorrelated one after the other.

    Unlike principal components they mean the same on every pair, and need no eigenvectors, which ONNX lacks. What is
    faint beside the brightness is kept faint; of fewer bands than components the remaining ones are zero.
    """
    ones = torch.ones_like(covariance[:, 0])
    along = ones.cumsum(dim=1) - 0.5 * (ones.sum(dim=1, keepdim=True) + 1)
    along = along / along.abs().amax(dim=1, keepdim=True).clamp(min=1)
    vectors: list[Tensor] = []
    basis = []
    power = ones / ones.sum(dim=1, keepdim=True)
    for _ in range(MSI_COMPONENTS):
        vector, power = power, power * along
        for earlier in vectors:
            vector = vector - (earlier * _times(covariance, vector)).sum(dim=1, keepdim=True) * earlier
        variance = (vector * _times(covariance, vector)).sum(dim=1, keepdim=True).clamp(min=0)
        vectors.append(vector / (variance + _SMALLEST_NUMBER).sqrt())
        basis.append(vector / (variance + FAINTEST_COMPONENT).sqrt())
    return torch.stack(basis, dim=1)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """(B, M, M), (B, M) -> (B, M)."""
    return (matrix @ vector[:, :, None])[:, :, 0]


@dataclass(frozen=True)
class PairChannels:
    """The channels of one pair; all None for channels that are bands as they are.

    wavelength_nm (C,), msi_wavelength_nm (M,) or (B, M)  for channels of kind "wavelength"
    hsi_coding, msi_coding                                how components or standardised bands are encoded
    """

    wavelength_nm: Tensor | None = None
    msi_wavelength_nm: Tensor | None = None
    hsi_coding: Subspace | BandUnits | None = None
    msi_coding: Subspace | BandUnits | MsiComponents | None = None

    def encode_hsi(self, image: Tensor) -> Tensor:
        return image if self.hsi_coding is None else self.hsi_coding.encode(image)

    def encode_msi(self, image: Tensor, base: Tensor) -> Tensor:
        """Encode the msi, where the encoded base is needed for it."""
        if isinstance(self.msi_coding, MsiComponents):
            return self.msi_coding.encode(image, base)
        return image if self.msi_coding is None else self.msi_coding.encode(image)

    def encode_error(self, error: Tensor) -> Tensor:
        """Encode the expected error of the base, where channels are components."""
        assert isinstance(self.hsi_coding, Subspace)
        return self.hsi_coding.encode_error(error)

    def decode_residual(self, residual: Tensor) -> Tensor:
        return residual if self.hsi_coding is None else self.hsi_coding.decode_change(residual)


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

    def forward_groups(self, features: Tensor, gain: Tensor) -> Tensor:
        """The same with features in G groups and a gain (B, G, C) for what each channel takes from each of them."""
        groups, channels = gain.shape[1:]
        _check_channels(channels, self.out_channels)
        weights = self.weight[:channels].chunk(groups, dim=1)
        parts = zip(features.chunk(groups, dim=1), weights, gain.unbind(dim=1), strict=True)
        image = sum(factor[:, :, None, None] * self._conv_forward(part, weight, None) for part, weight, factor in parts)
        assert isinstance(image, Tensor) and self.bias is not None
        return image + self.bias[:channels, None, None]


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
    """(..., C) -> how much of the spectrum each band stands for, in knot spacings, whatever the order of the bands.

    Without a branch on C and without a median, which ONNX lacks.
    """
    ordered, order = wavelength_nm.double().sort(dim=-1)
    number = torch.ones_like(order).cumsum(-1)  # 1, 2, ..., C
    count = number[..., -1:]
    before = ordered - torch.cat([ordered[..., :1], ordered[..., :-1]], dim=-1)
    after = torch.cat([ordered[..., 1:], ordered[..., -1:]], dim=-1) - ordered
    # An outer band has a neighbour on one side only.
    widths = (before + after) * torch.where((number == 1) | (number == count), 1.0, 0.5)
    median = widths.sort(dim=-1).values.gather(-1, (count - 1) // 2)
    widths = widths.minimum(_WIDEST_SHARE * median)
    shares = torch.where(count == 1, 1.0, widths / _spacing_nm(axis))
    return torch.zeros_like(shares).scatter(-1, order, shares)


def _spacing_nm(axis: WavelengthBands) -> float:
    return (axis.longest_nm - axis.shortest_nm) / (axis.knots - 1)
