"""What the channels of one pair are, beyond its pixels: wavelengths, or the subspaces that its components span.

They are found once for a whole scene and are the same for all of its tiles.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hyperfuse.networks.components import Subspace, principal_subspace
from hyperfuse.networks.network_config import Components, NetworkConfig, WavelengthBands
from hyperfuse.networks.network_errors import ChannelCountError


@dataclass(frozen=True)
class PairChannels:
    """wavelength_nm (C,), msi_wavelength_nm (M,) or (B, M): needed by channels of kind "wavelength"; subspaces by "components"."""

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
    config: NetworkConfig, hsi: Tensor, msi: Tensor, wavelength_nm: Tensor | None = None, msi_wavelength_nm: Tensor | None = None
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
                raise ChannelCountError(
                    f"no wavelengths of the {name}'s bands",
                    "one for each band: this network's channels are wavelengths",
                    "give wavelengths, or use a network with other channels",
                )
        return PairChannels(wavelength_nm=wavelength_nm, msi_wavelength_nm=msi_wavelength_nm)
    return PairChannels()
