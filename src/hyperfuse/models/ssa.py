"""SSA, the network of Liang et al.: a coarse hsi and a fine msi in, the hsi on the msi's grid out.

`SSA.forward` reads like figure 2 of the paper; docs/paper_notes.md lists every equation and every deviation.

Shapes: B batch, C hsi bands, M msi bands, D features, h w coarse, H W fine.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from hyperfuse.errors import BandError, GridError, OptionError
from hyperfuse.models.decoder import ImplicitDecoder
from hyperfuse.models.matryoshka import (
    MSI_COMPONENTS,
    BandUnits,
    Channels,
    Components,
    FixedBands,
    MatryoshkaBands,
    MatryoshkaInputKernel,
    MatryoshkaOutputKernel,
    MsiComponents,
    PairChannels,
    Subspace,
    WavelengthBands,
    WavelengthInputKernel,
    WavelengthOutputKernel,
    band_units,
    correlated_units,
    principal_subspace,
    regressed_units,
)
from hyperfuse.models.weights import (
    BICUBIC,
    UNIVERSAL,
    ModelConfig,
    Positive,
    PretrainedNetwork,
    ReceptiveField,
    ValueRange,
    full_precision,
)
from hyperfuse.physics.observation import mix_bands
from hyperfuse.physics.resample import Placement, bicubic_matrix, separable, shared_edges, upsample_bicubic

# Of the regression that stands in for an SRF that is not given, relative to the mean variance.
RIDGE = 1e-2
# Expected errors are seen as logarithms, of at least this share of a component's unit.
SMALLEST_ERROR = 1e-3
# Of the long skip from the msi's components to the output kernel, so that small weights of the kernel suffice.
SKIP_GAIN = 30.0


class SSAConfig(ModelConfig):
    """Sizes of an SSA network.

    width            D, features of both codes
    spectral_blocks  residual blocks of the encoder of the coarse hsi (phi)
    spatial_blocks   residual blocks of the encoder of the fine pair (psi)
    decoder_hidden   hidden widths of the decoder's MLP
    feature_width    features that the decoder passes to the output kernel
    channels         what the input and output channels mean
    msi_kernel       "joined": one kernel on hsi and msi concatenated, as in the paper; "first": the same with the msi
                     in the first slots; "own": one kernel for each
    max_msi_bands    most msi bands that a kernel of its own takes
    base             the image that the residual is added to: "bicubic" as in the paper, or the name of a method
    expected_error   whether the network is given the expected error of its base, and predicts in units of it
    value_range      pixel values that the network expects, from 0 up; scenes are scaled to it and back

    What makes joint training of sliced kernels start (docs/training.md); the defaults are the paper's:

    standardise      "off"; "bands": the network sees bands of mean 0 and deviation 1 and predicts in these units;
                     "signed": in addition, bands that are dark where the msi is bright change their sign; "correlated":
                     and the residual of a band is multiplied by its correlation with the brightness of the msi;
                     "regressed": instead, by the coefficients of its regression on brightness, slope and curvature of
                     the msi's spectrum, one for each quarter of the decoder's features, and the network sees these
                     components and what the base lacks of them
    equalise_inputs  multiply the C channels of an input kernel by sqrt(C_max / C), so that few channels embed as
                     strongly as many
    initialisation   "torch", or "he": He et al. 2015 and an output kernel of zeros
    residual_factor  multiplies the residual, so that early steps of the output kernel are small
    """

    width: Positive
    spectral_blocks: Positive
    spatial_blocks: Positive
    decoder_hidden: Annotated[tuple[Positive, ...], Field(min_length=1)] = (512, 512, 256, 256)
    feature_width: Positive = 256
    channels: Channels = MatryoshkaBands()
    msi_kernel: Literal["joined", "first", "own"] = "joined"
    max_msi_bands: Positive = 16
    base: Annotated[str, Field(min_length=1)] = BICUBIC
    expected_error: bool = False
    value_range: ValueRange = (0.0, 1.0)
    standardise: Literal["off", "bands", "signed", "correlated", "regressed"] = "off"
    equalise_inputs: bool = False
    initialisation: Literal["torch", "he"] = "torch"
    residual_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _check_kernels(self) -> SSAConfig:
        kind = self.channels.kind
        if self.msi_kernel != "own" and isinstance(self.channels, WavelengthBands | Components):
            raise ValueError(
                f'got msi_kernel = "{self.msi_kernel}", expected "own": channels of kind "{kind}" do not line up'
            )
        if self.standardise != "off" and isinstance(self.channels, Components):
            raise ValueError(f'got standardise = "{self.standardise}", expected "off": components have units already')
        if self.expected_error and not (isinstance(self.channels, Components) and self.base == UNIVERSAL):
            raise ValueError(
                f'got expected_error with base = "{self.base}" and channels of kind "{kind}", '
                f'expected it with base = "{UNIVERSAL}" and components'
            )
        if self.standardise == "regressed":
            if self.msi_kernel != "own" or isinstance(self.channels, WavelengthBands):
                raise ValueError(
                    'got standardise = "regressed", expected it with msi_kernel = "own" and bands as channels'
                )
            if self.feature_width % (MSI_COMPONENTS + 1):
                raise ValueError(
                    f"got feature_width = {self.feature_width}, expected a multiple of {MSI_COMPONENTS + 1}"
                )
        return self

    @property
    def receptive_field(self) -> ReceptiveField:
        """One pixel for every 3x3 convolution: input kernel, encoder and, on the fine grid, output kernel."""
        return ReceptiveField(fine=2 * self.spatial_blocks + 4, coarse=2 * self.spectral_blocks + 3)

    def with_fixed_bands(self, bands: int, msi_bands: int) -> SSAConfig:
        """The same network without Matryoshka kernels, for one pair of sensors."""
        return self.model_copy(update={"channels": FixedBands(bands=bands, msi_bands=msi_bands)})

    def with_max_channels(self, max_channels: int) -> SSAConfig:
        """The same network with Matryoshka kernels of another width, for sensors of more bands."""
        return self.model_copy(update={"channels": MatryoshkaBands(max_channels=max_channels)})


# The numbers are the depths (phi, psi) of the paper's table of model scaling. Its smallest row is also half as wide.
PRESETS: dict[str, SSAConfig] = {
    "ssa-1-1": SSAConfig(width=128, spectral_blocks=1, spatial_blocks=1),
    "ssa-2-2": SSAConfig(width=256, spectral_blocks=2, spatial_blocks=2),
    "ssa-4-4": SSAConfig(width=256, spectral_blocks=4, spatial_blocks=4),
    "ssa-6-6": SSAConfig(width=256, spectral_blocks=6, spatial_blocks=6),
    "ssa-small": SSAConfig(
        width=48, spectral_blocks=3, spatial_blocks=3, decoder_hidden=(96, 96, 48), feature_width=48
    ),
}


def preset(name: str) -> SSAConfig:
    """Return the SSA configuration of that name."""
    if name not in PRESETS:
        raise OptionError(f'no network is called "{name}"', f"one of {', '.join(PRESETS)}")
    return PRESETS[name]


class ResidualBlock(nn.Module):
    """conv - ReLU - conv, added to its input with residual scale 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, kernel_size=3, padding=1)
        self.second = nn.Conv2d(features, features, kernel_size=3, padding=1)

    def forward(self, code: Tensor) -> Tensor:
        change: Tensor = self.second(F.relu(self.first(code), inplace=True))
        # In place: a convolution does not need its own output for the backward pass, and a fine feature map is large.
        return change.add_(code)


class Encoder(nn.Module):
    """EDSR trunk (Lim et al. 2017) without batch norm and upsampler: head, residual blocks, tail, long skip."""

    def __init__(self, features: int, blocks: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(features, features, kernel_size=3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(features) for _ in range(blocks))
        self.tail = nn.Conv2d(features, features, kernel_size=3, padding=1)

    def forward(self, embedded: Tensor) -> Tensor:
        start = code = self.head(embedded)
        for block in self.blocks:
            code = block(code)
        end: Tensor = self.tail(code)
        return end.add_(start)


InputKernel = MatryoshkaInputKernel | WavelengthInputKernel
OutputKernel = MatryoshkaOutputKernel | WavelengthOutputKernel


class SSA(PretrainedNetwork):
    """Spectral-band and fusion-scale agnostic network for hyperspectral and multispectral image fusion [1]_.

    One set of weights takes any number of bands (Matryoshka kernels) and any real scale (implicit decoder).

    Parameters
    ----------
    config
        Sizes of the network; `PRESETS` holds those of the paper. Weights are initialised as torch does.

    See Also
    --------
    hyperfuse.load_model : Load trained weights.

    References
    ----------
    .. [1] Y.-J. Liang, Z. Cao, L.-J. Deng, Y. Yang, M. Zhang, "Hyperspectral image fusion with spectral-band and
       fusion-scale agnosticism", 2026.

    Examples
    --------
    >>> network = SSA(preset("ssa-small")).eval()
    >>> with torch.inference_mode():
    ...     fused = network(torch.rand(1, 31, 8, 8), torch.rand(1, 3, 26, 32))
    >>> tuple(fused.shape)
    (1, 31, 26, 32)
    >>> network.receptive_field
    ReceptiveField(fine=10, coarse=9)
    """

    config: SSAConfig
    config_class = SSAConfig

    def __init__(self, config: SSAConfig) -> None:
        super().__init__(config)
        # K_inp of the paper twice, as its parameter counts need: on the hsi, and on the pair or the base alone.
        self.hsi_kernel: InputKernel
        self.pair_kernel: InputKernel
        self.output_kernel: OutputKernel
        self.msi_kernel: InputKernel | None = None
        self.error_kernel: MatryoshkaInputKernel | None = None
        channels, width = config.channels, config.width
        if isinstance(channels, WavelengthBands):
            self.hsi_kernel, self.pair_kernel = (WavelengthInputKernel(channels, width) for _ in range(2))
            self.output_kernel = WavelengthOutputKernel(config.feature_width, channels)
            self.msi_kernel = WavelengthInputKernel(channels, width)
        else:
            hsi_slots, pair_slots, msi_slots = _slots(config, channels)
            self.hsi_kernel = MatryoshkaInputKernel(hsi_slots, width, kernel_size=3, padding=1)
            self.pair_kernel = MatryoshkaInputKernel(pair_slots, width, kernel_size=3, padding=1)
            self.output_kernel = MatryoshkaOutputKernel(config.feature_width, hsi_slots, kernel_size=3, padding=1)
            if config.msi_kernel == "own":
                self.msi_kernel = MatryoshkaInputKernel(msi_slots, width, kernel_size=3, padding=1)
            if config.expected_error:
                self.error_kernel = MatryoshkaInputKernel(hsi_slots, width, kernel_size=3, padding=1)
        self.spectral_encoder = Encoder(width, config.spectral_blocks)
        self.spatial_encoder = Encoder(width, config.spatial_blocks)
        self.implicit_decoder = ImplicitDecoder(width, config.decoder_hidden, config.feature_width)
        if config.initialisation == "he":
            self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        # The first output is the base, and the first gradients are those of the output kernel alone.
        nn.init.zeros_(self.output_kernel.weight)

    def forward(
        self,
        hsi: Tensor,
        msi: Tensor,
        placement: Placement | None = None,
        base: Tensor | None = None,
        channels: PairChannels | None = None,
        base_error: Tensor | None = None,
    ) -> Tensor:
        """Fuse a batch of pairs.

        Parameters
        ----------
        hsi, msi
            (B, C, h, w) and (B, M, H, W), values in `config.value_range`.
        placement
            Where the msi lies on the hsi. By default both images cover the same ground, so that the scale is H/h along
            rows and W/w along columns.
        base
            (B, C, H, W), the image that the residual is added to; needed where `config.base` is not "bicubic".
        channels
            The channels of the whole scene, where this pair is a tile of it; see `find_channels`.
        base_error
            (B, C, H, W), the expected error of the base; needed with `config.expected_error`.

        Returns
        -------
        Tensor
            (B, C, H, W).
        """
        self.check_pair(hsi, msi)
        self._check_base(hsi, msi, base, base_error)
        fine_size, coarse_size = (msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3])
        placement = placement or shared_edges(fine_size, coarse_size)
        channels = channels or self.find_channels(hsi, msi)

        if base is None:  # Y_HR
            base = upsample_bicubic(hsi, fine_size, placement)
        # Section 3.3: E_pe = phi(K_inp(Y)), E_pa = psi(K_inp([Y_HR; Z]))
        embedded = self._embed(self.hsi_kernel, channels.encode_hsi(hsi), channels.wavelength_nm)
        spectral_code = self.spectral_encoder(embedded)
        encoded_base = channels.encode_hsi(base)
        encoded_msi = channels.encode_msi(msi, encoded_base)
        embedded_pair = self._embed_pair(encoded_base, encoded_msi, channels)
        if self.error_kernel is not None and base_error is not None:
            error = channels.encode_error(base_error).clamp_min(SMALLEST_ERROR)
            embedded_pair = embedded_pair + self._embed(self.error_kernel, 1 + error.log10())
        spatial_code = self.spatial_encoder(embedded_pair)
        # Eq. (6), (7) and (9)
        features = self.implicit_decoder(spectral_code, spatial_code, placement)
        if self.config.standardise == "regressed":
            features = self._add_missing(features, encoded_msi)
        # Eq. (8): X = Y_HR + K_outp(X_res); in bfloat16 these small products would be most of the rounding error.
        with full_precision(features.device.type):
            residual = self._output(features.to(base.dtype), hsi.shape[1], channels)
            if base_error is not None:
                residual = error * residual
            return base + channels.decode_residual(residual)

    def _add_missing(self, features: Tensor, encoded_msi: Tensor) -> Tensor:
        """A long skip: what the base lacks of a component of the msi is added to the first feature of its group."""
        missing = SKIP_GAIN * encoded_msi[:, MSI_COMPONENTS : 2 * MSI_COMPONENTS]
        *following, rest = features.chunk(MSI_COMPONENTS + 1, dim=1)
        skips = zip(following, missing.chunk(MSI_COMPONENTS, dim=1), strict=True)
        changed = [part for group, skip in skips for part in (group[:, :1] + skip, group[:, 1:])]
        return torch.cat([*changed, rest], dim=1)

    def _embed_pair(self, base: Tensor, msi: Tensor, channels: PairChannels) -> Tensor:
        if self.msi_kernel is None:
            joined = [base, msi] if self.config.msi_kernel == "joined" else [msi, base]
            return self._embed(self.pair_kernel, torch.cat(joined, dim=1))
        embedded = self._embed(self.pair_kernel, base, channels.wavelength_nm)
        return embedded + self._embed(self.msi_kernel, msi, channels.msi_wavelength_nm)

    def _embed(self, kernel: InputKernel, image: Tensor, wavelength_nm: Tensor | None = None) -> Tensor:
        if self.config.equalise_inputs:
            # As a tensor: an exported file must not know the number of bands.
            image = image * (kernel.in_channels / torch.ones(image.shape[1], device=image.device).sum()).sqrt()
        # About a tenth faster on CPU than the default layout, and the decoder reads rows of features without copying.
        image = image.contiguous(memory_format=torch.channels_last)
        embedded: Tensor = kernel(image) if wavelength_nm is None else kernel(image, wavelength_nm)
        return embedded

    def _output(self, features: Tensor, bands: int, channels: PairChannels) -> Tensor:
        coding = channels.hsi_coding
        if coding is not None:
            bands = coding.unit.shape[1]
        wavelengths = channels.wavelength_nm
        residual: Tensor
        if self.config.standardise == "regressed":
            assert isinstance(coding, BandUnits) and isinstance(self.output_kernel, MatryoshkaOutputKernel)
            residual = self.output_kernel.forward_groups(features, coding.gain.to(features))
        else:
            residual = self.output_kernel(features, bands if wavelengths is None else wavelengths)
            if isinstance(coding, BandUnits):
                residual = residual * coding.gain[:, 0, :, None, None].to(residual)
        return self.config.residual_factor * residual

    def find_channels(
        self,
        hsi: Tensor,
        msi: Tensor,
        wavelength_nm: Tensor | None = None,
        msi_wavelength_nm: Tensor | None = None,
        srf: Tensor | None = None,
    ) -> PairChannels:
        """Find the channels of a pair (B, C, h, w), (B, M, H, W) for this network, for a scene and all of its tiles.

        Where the pixels of the two images are samples that do not lie side by side, the SRF relates them: (M, C), or
        with `standardise = "regressed"` also (B, M, C).
        """
        kind, standardise = self.config.channels, self.config.standardise
        coding: tuple[Subspace | BandUnits | None, Subspace | BandUnits | MsiComponents | None] = (None, None)
        if isinstance(kind, Components):
            coding = principal_subspace(hsi, kind.count), principal_subspace(msi, self.config.max_msi_bands)
        elif standardise != "off":
            units, msi_units = (band_units(*_moments(image)) for image in (hsi, msi))
            coding = units, msi_units
            if standardise == "regressed":
                coding = _regressed(units, msi_units, hsi, msi, srf)
            elif standardise != "bands":
                if srf is None:
                    brightness = _on_coarse_grid(msi_units.encode(msi).mean(dim=1, keepdim=True), hsi)
                else:
                    brightness = mix_bands((srf / msi_units.unit[0, :, None]).mean(dim=0, keepdim=True), hsi)
                correlation = _correlation(units.encode(hsi), brightness)
                coding = correlated_units(units, correlation, signs_only=standardise == "signed"), msi_units
        if not isinstance(kind, WavelengthBands):
            return PairChannels(None, None, *coding)
        for name, wavelengths in (("hsi", wavelength_nm), ("msi", msi_wavelength_nm)):
            if wavelengths is None:
                raise BandError(
                    f"no wavelengths of the {name}'s bands",
                    "one for each band: this network's channels are wavelengths",
                    "give wavelengths, or use a network with other channels",
                )
        return PairChannels(wavelength_nm, msi_wavelength_nm, *coding)

    @property
    def preset(self) -> str | None:
        return next((name for name, config in PRESETS.items() if config == self.config), None)

    def check_bands(self, bands: int, msi_bands: int) -> None:
        channels, got = self.config.channels, f"{bands} hsi bands and {msi_bands} msi bands"
        remedy = "select fewer bands, use weights of a wider network, or fuse by a method that needs no weights"
        if isinstance(channels, FixedBands):
            if (bands, msi_bands) != (channels.bands, channels.msi_bands):
                raise BandError(
                    got,
                    f"exactly {channels.bands} and {channels.msi_bands}: this network has fixed channels",
                    "use a network with Matryoshka kernels for other sensors",
                )
        elif isinstance(channels, MatryoshkaBands):
            most, most_msi = channels.max_channels, self.config.max_msi_bands
            if self.config.msi_kernel != "own":
                if bands + msi_bands > most:
                    raise BandError(got, f"at most {most} together", remedy)
            elif bands > most or msi_bands > most_msi:
                raise BandError(got, f"at most {most} and {most_msi}", remedy)

    def _check_base(self, hsi: Tensor, msi: Tensor, base: Tensor | None, base_error: Tensor | None) -> None:
        name, expected = self.config.base, (hsi.shape[0], hsi.shape[1], msi.shape[2], msi.shape[3])
        if base is None and name != BICUBIC:
            raise GridError("no base", f"the image of {name}, which this network adds to", f"run {name} before it")
        if base is not None and tuple(base.shape) != expected:
            raise GridError(f"a base of shape {tuple(base.shape)}", f"{expected}: the hsi's bands on the msi's pixels")
        got = None if base_error is None else tuple(base_error.shape)
        if got != (expected if self.config.expected_error else None):
            raise GridError(f"an expected error of shape {got}", f"{expected if self.config.expected_error else None}")


def _slots(config: SSAConfig, channels: MatryoshkaBands | Components | FixedBands) -> tuple[int, int, int]:
    """Most channels of the kernels on the hsi, on the pair, and on the msi alone."""
    components = 2 * MSI_COMPONENTS if config.standardise == "regressed" else 0
    if isinstance(channels, FixedBands):  # a Matryoshka kernel of full width is a plain convolution
        joined = channels.msi_bands if config.msi_kernel != "own" else 0
        return channels.bands, channels.bands + joined, channels.msi_bands + components
    slots = channels.count if isinstance(channels, Components) else channels.max_channels
    return slots, slots, config.max_msi_bands + components


def _moments(image: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (B, C) of the bands of (B, C, H, W)."""
    variance, mean = torch.var_mean(image.detach().float(), dim=(2, 3), correction=0)
    return mean, variance


def _correlation(standardised: Tensor, brightness: Tensor) -> Tensor:
    """(B, C) correlation of standardised bands (B, C, h, w) with (B, 1, h, w)."""
    centred = brightness - brightness.mean(dim=(2, 3), keepdim=True)
    deviation = centred.square().mean(dim=(2, 3)).sqrt().clamp(min=1e-12)
    return (standardised * centred).mean(dim=(2, 3)) / deviation


def _regressed(
    units: BandUnits, msi_units: BandUnits, hsi: Tensor, msi: Tensor, srf: Tensor | None
) -> tuple[BandUnits, MsiComponents]:
    """`regressed_units` of a pair. Without an SRF, (M, C) or (B, M, C), the smallest that explains the msi is used."""
    bands = units.encode(hsi.detach().float()).flatten(2)
    pixels = bands.shape[2]
    if srf is None:
        level = torch.ones_like(msi[:1, :1])
        seen = _on_coarse_grid(msi_units.encode(msi.detach().float()), hsi) / _on_coarse_grid(level, hsi)
        seen = seen.flatten(2)
        gram = bands.transpose(1, 2) @ bands
        ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).mean(dim=1)[:, None, None]
        inverse = torch.linalg.inv(gram + ridge * torch.eye(pixels).to(gram))
        standardised = seen @ inverse @ bands.transpose(1, 2)
    else:
        standardised = (srf * units.unit[:, None, :] / msi_units.unit[:, :, None]).float()
    seen = standardised @ bands
    return regressed_units(
        units, msi_units, standardised, *(each @ seen.transpose(1, 2) / pixels for each in (seen, bands))
    )


def _on_coarse_grid(image: Tensor, hsi: Tensor) -> Tensor:
    """(B, 1, H, W) -> (B, 1, h, w) by the adjoint of bicubic interpolation, so that correlating with the result is
    correlating the interpolated hsi with the image.
    """
    fine_size, coarse_size = (image.shape[2], image.shape[3]), (hsi.shape[2], hsi.shape[3])
    placement = shared_edges(fine_size, coarse_size)
    rows = bicubic_matrix(placement.rows, fine_size[0], coarse_size[0])
    columns = bicubic_matrix(placement.columns, fine_size[1], coarse_size[1])
    return separable(rows.T, columns.T, image)
