"""What a fusion network is made of, as frozen models, and the paper's four sizes of it."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from hyperfuse.errors import OptionError

# Far above any network that could be run, and small enough that the size of a tensor is still a number that torch can
# hold.
LARGEST_SIZE = 1_000_000
Positive = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class MatryoshkaBands(_Frozen):
    """The paper's channels: slot i of every kernel is band i, and a cube of C bands uses the first C slots (C_max of
    them).

    Where the msi is joined to the upsampled hsi, as in the paper, the two together have at most `max_channels` bands.
    """

    kind: Literal["bands"] = "bands"
    max_channels: Positive = 194


class WavelengthBands(_Frozen):
    """A kernel is a function of wavelength, given at evenly spaced knots and interpolated at the centres of the
    sensor's bands.

    Any number of bands, and a slot means the same light for every sensor; needs to know the wavelengths.
    """

    kind: Literal["wavelength"] = "wavelength"
    knots: Annotated[int, Field(ge=2, le=LARGEST_SIZE)] = 45
    shortest_nm: Annotated[float, Field(gt=0, lt=1e6)] = 350.0
    longest_nm: Annotated[float, Field(gt=0, lt=1e6)] = 2550.0

    @model_validator(mode="after")
    def _ordered(self) -> WavelengthBands:
        if self.shortest_nm >= self.longest_nm:
            raise ValueError(f"got {self.shortest_nm:g} to {self.longest_nm:g} nm, expected a range from short to long")
        return self


class Components(_Frozen):
    """Channel i is the i-th principal component of the input itself, so the slots are nested by variance, whatever the
    sensor.

    Any number of bands: those of fewer than `count` use the first slots, those of more have what lies beyond in the
    base alone.
    """

    kind: Literal["components"] = "components"
    count: Positive = 16


class FixedBands(_Frozen):
    """One sensor pair, plain convolutions: the paper's ablation "w/o MK"."""

    kind: Literal["fixed"] = "fixed"
    bands: Positive
    msi_bands: Positive


Channels = Annotated[MatryoshkaBands | WavelengthBands | Components | FixedBands, Field(discriminator="kind")]
BICUBIC = "bicubic"


class NetworkConfig(_Frozen):
    """Sizes of one fusion network. `channels` says what its input and output channels mean.

    width            D, features of both codes spectral_blocks  residual blocks of the encoder of the coarse hsi (E_spe)
    spatial_blocks   residual blocks of the encoder of the fine pair (E_spa) decoder_hidden   hidden widths of the
    decoder's MLP feature_width    features that the decoder hands to the output kernel msi_kernel       "joined": one
    kernel on hsi and msi one after the other, as in the paper; "own": one for each of the two max_msi_bands    most msi
    bands that a kernel of its own takes base             what the network adds its residual to: "bicubic" as in the
    paper, or the name of a closed form value_range      pixel values that the network expects, from 0 up; a scene is
    scaled to it before, and back after
    """

    width: Positive
    spectral_blocks: Positive
    spatial_blocks: Positive
    decoder_hidden: Annotated[tuple[Positive, ...], Field(min_length=1)] = (512, 512, 256, 256)
    feature_width: Positive = 256
    channels: Channels = MatryoshkaBands()
    msi_kernel: Literal["joined", "own"] = "joined"
    max_msi_bands: Positive = 16
    base: Annotated[str, Field(min_length=1)] = BICUBIC
    value_range: tuple[float, float] = (0.0, 1.0)

    @field_validator("value_range")
    @classmethod
    def _scales_from_zero(cls, value_range: tuple[float, float]) -> tuple[float, float]:
        low, high = value_range
        if low != 0.0 or not 0.0 < high < math.inf:
            raise ValueError(
                f"got {low:g} to {high:g}, expected 0 to a finite number above it: scenes are scaled, not shifted"
            )
        return value_range

    @model_validator(mode="after")
    def _separable(self) -> NetworkConfig:
        if self.msi_kernel == "joined" and isinstance(self.channels, WavelengthBands | Components):
            raise ValueError(
                f'got msi_kernel = "joined", expected "own": channels of kind "{self.channels.kind}" do not line up'
            )
        return self

    def with_fixed_bands(self, bands: int, msi_bands: int) -> NetworkConfig:
        """The same network without Matryoshka kernels, for one pair of sensors."""
        return self.model_copy(update={"channels": FixedBands(bands=bands, msi_bands=msi_bands)})

    def with_max_channels(self, max_channels: int) -> NetworkConfig:
        """The same network with Matryoshka kernels of another width, for sensors of more bands."""
        return self.model_copy(update={"channels": MatryoshkaBands(max_channels=max_channels)})


# The numbers are the depths (E_spe, E_spa) of the paper's table of model scaling. Its smallest row is also half as
# wide.
PRESETS: dict[str, NetworkConfig] = {
    "ssa-1-1": NetworkConfig(width=128, spectral_blocks=1, spatial_blocks=1),
    "ssa-2-2": NetworkConfig(width=256, spectral_blocks=2, spatial_blocks=2),
    "ssa-4-4": NetworkConfig(width=256, spectral_blocks=4, spatial_blocks=4),
    "ssa-6-6": NetworkConfig(width=256, spectral_blocks=6, spatial_blocks=6),
    "ssa-small": NetworkConfig(
        width=48, spectral_blocks=3, spatial_blocks=3, decoder_hidden=(96, 96, 48), feature_width=48
    ),
}


def preset(name: str) -> NetworkConfig:
    """The configuration of that name; an unknown name is an error that lists the known ones."""
    if name not in PRESETS:
        raise OptionError(f'no network is called "{name}"', f"one of {', '.join(PRESETS)}")
    return PRESETS[name]


def preset_name(config: NetworkConfig) -> str | None:
    """The name of the preset that this configuration is, if it is one."""
    return next((name for name, known in PRESETS.items() if known == config), None)
