"""The paper's network: a coarse hsi and a fine msi in, the hsi on the msi's grid out. `forward` reads like figure 2 of
the paper.

B batch, C hsi bands, M msi bands, D features, h w coarse, H W fine.

The two encoders phi and psi of the paper: EDSR trunks (Lim et al. 2017) without batch norm and without an upsampler.

B batch, D features.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.errors import BandError, GridError, OptionError, WeightsError
from hyperfuse.models import weights as weights_folder
from hyperfuse.models.channels import PairChannels, find_channels
from hyperfuse.models.config import (
    BICUBIC,
    Components,
    FixedBands,
    MatryoshkaBands,
    NetworkConfig,
    WavelengthBands,
    preset,
    preset_name,
)
from hyperfuse.models.decoder import ImplicitDecoder
from hyperfuse.models.matryoshka import (
    FixedInputKernel,
    FixedOutputKernel,
    MatryoshkaInputKernel,
    MatryoshkaOutputKernel,
    WavelengthInputKernel,
    WavelengthOutputKernel,
)
from hyperfuse.models.pixel_centres import Placement, shared_edges, upsample_bicubic


class ResidualBlock(nn.Module):
    """conv - ReLU - conv, added to its input with residual scale 1."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(features, features, kernel_size=3, padding=1)
        self.second = nn.Conv2d(features, features, kernel_size=3, padding=1)

    def forward(self, code: Tensor) -> Tensor:
        change = self.second(F.relu(self.first(code), inplace=True))
        # In place: a convolution does not need its own output for the backward pass, and a fine feature map is large.
        return change.add_(code)  # type: ignore[no-any-return]


def encoder_receptive_field(blocks: int) -> int:
    """How many pixels to each side one output pixel of an encoder depends on."""
    return 2 + 2 * blocks


class Encoder(nn.Module):
    """Head convolution, residual blocks, tail convolution, and the long skip from head to end: (B, D, H, W) -> the
    same.
    """

    def __init__(self, features: int, blocks: int) -> None:
        super().__init__()
        self.head = nn.Conv2d(features, features, kernel_size=3, padding=1)
        self.blocks = nn.ModuleList(ResidualBlock(features) for _ in range(blocks))
        self.tail = nn.Conv2d(features, features, kernel_size=3, padding=1)

    def forward(self, embedded: Tensor) -> Tensor:
        start = self.head(embedded)
        code = start
        for block in self.blocks:
            code = block(code)
        return self.tail(code).add_(start)  # type: ignore[no-any-return]


class ReceptiveField(NamedTuple):
    """How far beyond itself a piece of the result looks.

    fine    fine pixels of the msi around the piece coarse  coarse pixels of the hsi around the four neighbours of every
    fine pixel of the piece and of the ring one pixel around it
    """

    fine: int
    coarse: int


class FusionNetwork(nn.Module):
    """Call it with `hsi` (B, C, h, w) and `msi` (B, M, H, W): the answer is (B, C, H, W)."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.weights_digest: str | None = None  # sha256 of the file that the weights were read from
        self.hsi_kernel, self.pair_kernel, self.output_kernel = _kernels(config)
        self.msi_kernel = _msi_kernel(config)
        self.spectral_encoder = Encoder(config.width, config.spectral_blocks)
        self.spatial_encoder = Encoder(config.width, config.spatial_blocks)
        self.implicit_decoder = ImplicitDecoder(config.width, config.decoder_hidden, config.feature_width)

    def forward(
        self,
        hsi: Tensor,
        msi: Tensor,
        placement: Placement | None = None,
        base: Tensor | None = None,
        channels: PairChannels | None = None,
    ) -> Tensor:
        """Without a placement both images cover the same ground, so that the scale is H/h along rows and W/w along
        columns.

        `base` (B, C, H, W) is what the residual is added to, where that is not bicubic; `channels` those of the whole
        scene, where this pair is a tile of it.
        """
        self._check_pair(hsi, msi, base)
        fine_size, coarse_size = (msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3])
        placement = placement or shared_edges(fine_size, coarse_size)
        channels = channels or find_channels(self.config, hsi, msi)

        if base is None:
            base = upsample_bicubic(hsi, fine_size, placement)
        spectral_code = self.spectral_encoder(self._embed_hsi(channels.of_hsi(hsi), channels))
        spatial_code = self.spatial_encoder(self._embed_pair(channels.of_hsi(base), channels.of_msi(msi), channels))
        features = self.implicit_decoder(spectral_code, spatial_code, placement)
        return base + channels.to_bands(self._residual(features, hsi.shape[1], channels))

    def _embed_hsi(self, hsi: Tensor, channels: PairChannels) -> Tensor:
        return _on_channels(self.hsi_kernel, hsi, channels.wavelength_nm)

    def _embed_pair(self, base: Tensor, msi: Tensor, channels: PairChannels) -> Tensor:
        if self.msi_kernel is None:
            return _on_channels(self.pair_kernel, torch.cat([base, msi], dim=1), None)
        embedded_msi = _on_channels(self.msi_kernel, msi, channels.msi_wavelength_nm)
        return _on_channels(self.pair_kernel, base, channels.wavelength_nm) + embedded_msi

    def _residual(self, features: Tensor, bands: int, channels: PairChannels) -> Tensor:
        kernel = self.output_kernel
        if isinstance(kernel, WavelengthOutputKernel):
            assert channels.wavelength_nm is not None
            by_wavelength: Tensor = kernel(features, channels.wavelength_nm)
            return by_wavelength
        subspace = channels.hsi_subspace
        residual: Tensor = kernel(features, bands if subspace is None else subspace.unit.shape[1])
        return residual

    @property
    def receptive_field(self) -> ReceptiveField:
        return receptive_field(self.config)

    def save_pretrained(self, folder: str | Path, provenance: Mapping[str, object] | None = None) -> None:
        """Write config.json and a safetensors file into `folder`; `provenance` (data, steps, versions) is kept in the
        config.
        """
        described = {
            "preset": preset_name(self.config),
            "network": self.config.model_dump(mode="json"),
            "margin": self.receptive_field._asdict(),
            "provenance": dict(provenance or {}),
        }
        weights_folder.write(Path(folder), self.state_dict(), described)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> FusionNetwork:
        """The network of a folder written by `save_pretrained`, or of `hf://owner/name[@revision]` (needs the extra
        `hub`).
        """
        tensors, described, folder = weights_folder.read(source)
        config = weights_folder.parse_network(described, folder)
        expected = receptive_field(config)._asdict()
        if expected != described.get("margin"):
            raise WeightsError(
                f"{folder}: its config says margin {described.get('margin')}",
                f"{expected}, the receptive field of that network",
                "the config was edited or damaged; fetch the weights again",
            )
        with torch.device(
            "meta"
        ):  # a config that claims a huge network is compared with the file before it costs memory
            network = cls(config)
        weights_folder.refuse_other_tensors(tensors, network.state_dict(), folder)
        network.load_state_dict(tensors, assign=True)
        network.weights_digest = weights_folder.listed_digest(described)
        return network.eval()

    def check_bands(self, bands: int, msi_bands: int) -> None:
        """Refuse a pair that has not the bands this network is made for."""
        channels, got = self.config.channels, f"{bands} hsi bands and {msi_bands} msi bands"
        remedy = "select fewer bands, use weights of a wider network, or fuse by a method that needs no weights"
        if isinstance(channels, FixedBands):
            if (bands, msi_bands) != (channels.bands, channels.msi_bands):
                raise BandError(
                    got,
                    f"exactly {channels.bands} and {channels.msi_bands}: this network has fixed channels",
                    "use a network with Matryoshka kernels for other sensors",
                )
        elif self.config.msi_kernel == "joined":
            assert isinstance(channels, MatryoshkaBands)
            if bands + msi_bands > channels.max_channels:
                raise BandError(got, f"at most {channels.max_channels} together", remedy)
        elif isinstance(channels, MatryoshkaBands) and (
            bands > channels.max_channels or msi_bands > self.config.max_msi_bands
        ):
            raise BandError(got, f"at most {channels.max_channels} and {self.config.max_msi_bands}", remedy)

    def _check_pair(self, hsi: Tensor, msi: Tensor, base: Tensor | None) -> None:
        if hsi.ndim != 4 or msi.ndim != 4 or hsi.shape[0] != msi.shape[0] or 0 in hsi.shape or 0 in msi.shape:
            raise GridError(
                f"hsi {tuple(hsi.shape)} and msi {tuple(msi.shape)}",
                "(batch, bands, rows, columns) for both, of the same batch, none of them 0",
                "add a batch dimension with [None]",
            )
        precision = self.hsi_kernel.weight.dtype
        if hsi.dtype != precision or msi.dtype != precision:
            raise OptionError(
                f"hsi of {hsi.dtype} and msi of {msi.dtype}",
                f"{precision}, as the weights are",
                f"convert both with .to({precision})",
            )
        self.check_bands(hsi.shape[1], msi.shape[1])
        expected = (hsi.shape[0], hsi.shape[1], msi.shape[2], msi.shape[3])
        if base is None and self.config.base != BICUBIC:
            raise GridError(
                "no base",
                f"the image of {self.config.base}, which this network adds to",
                f"run {self.config.base} before it",
            )
        if base is not None and tuple(base.shape) != expected:
            raise GridError(
                f"a base of shape {tuple(base.shape)}", f"{expected}: the hsi's bands on the msi's pixels"
            )


def receptive_field(config: NetworkConfig) -> ReceptiveField:
    """One pixel for each input kernel and for the output kernel, the rest in the encoders."""
    return ReceptiveField(
        fine=encoder_receptive_field(config.spatial_blocks) + 2,
        coarse=encoder_receptive_field(config.spectral_blocks) + 1,
    )


def build_network(name: str) -> FusionNetwork:
    """A network of a preset's shape with fresh, untrained weights."""
    return FusionNetwork(preset(name))


InputKernel = MatryoshkaInputKernel | WavelengthInputKernel | FixedInputKernel
OutputKernel = MatryoshkaOutputKernel | WavelengthOutputKernel | FixedOutputKernel


def _kernels(config: NetworkConfig) -> tuple[InputKernel, InputKernel, OutputKernel]:
    """The kernels on the hsi, on the pair (or on the base alone, where the msi has its own), and on the decoded
    features.
    """
    channels, width, features = config.channels, config.width, config.feature_width
    if isinstance(channels, FixedBands):
        joined = channels.msi_bands if config.msi_kernel == "joined" else 0
        return (
            FixedInputKernel(channels.bands, width),
            FixedInputKernel(channels.bands + joined, width),
            FixedOutputKernel(features, channels.bands),
        )
    if isinstance(channels, WavelengthBands):
        return (
            WavelengthInputKernel(channels, width),
            WavelengthInputKernel(channels, width),
            WavelengthOutputKernel(features, channels),
        )
    slots = channels.count if isinstance(channels, Components) else channels.max_channels
    return (
        MatryoshkaInputKernel(slots, width),
        MatryoshkaInputKernel(slots, width),
        MatryoshkaOutputKernel(features, slots),
    )


def _msi_kernel(config: NetworkConfig) -> InputKernel | None:
    if config.msi_kernel == "joined":
        return None
    if isinstance(config.channels, WavelengthBands):
        return WavelengthInputKernel(config.channels, config.width)
    if isinstance(config.channels, FixedBands):
        return FixedInputKernel(config.channels.msi_bands, config.width)
    return MatryoshkaInputKernel(config.max_msi_bands, config.width)


def _on_channels(kernel: InputKernel, image: Tensor, wavelength_nm: Tensor | None) -> Tensor:
    image = _channels_last(image)
    embedded: Tensor = kernel(image, wavelength_nm) if isinstance(kernel, WavelengthInputKernel) else kernel(image)
    return embedded


def _channels_last(image: Tensor) -> Tensor:
    # Convolutions are about a tenth faster in this layout on CPU, and the decoder then reads rows of features without
    # copying.
    return image.contiguous(memory_format=torch.channels_last)
