"""What is measured: presets of ours and of the rivals with fresh weights, trained networks from their folders, closed forms.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from hyperfuse.errors import BandError, OptionError
from hyperfuse.estimation.observation import Observation, known_observation
from hyperfuse.methods.catalogue import DEFAULT, METHODS
from hyperfuse.methods.fuse_arrays import fuse_arrays
from hyperfuse.methods.universal import shipped_network
from hyperfuse.networks.complexity import count_parameters, multiply_adds, performed_multiply_adds
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.network_config import PRESETS, NetworkConfig
from hyperfuse.networks.rivals.catalogue import RIVAL_PRESETS, AnyNetwork, AnyRivalConfig, build_rival
from hyperfuse.networks.rivals.rival_network import RivalNetwork
from hyperfuse.prediction.network_fusion import fuse_with_network, load_network, require_fitting_bands

NETWORK, RIVAL, METHOD = "network", "rival", "method"
# Folders of weights are often called so; then the run that they belong to says more.
NAMELESS = ("weights", "best")
Run = Callable[[], Tensor]
MOST_BANDS, LARGEST_SIDE = 4096, 16384
IMAGES_AT_ONCE = 8


@dataclass(frozen=True)
class PairSize:
    """One pair: `side` fine pixels along rows and columns, `scale` times fewer coarse ones."""

    bands: int
    msi_bands: int
    side: int
    scale: float

    def __post_init__(self) -> None:
        if not (1 <= self.bands <= MOST_BANDS and 1 <= self.msi_bands <= MOST_BANDS):
            raise OptionError(f"{self.bands} and {self.msi_bands} bands", f"1 to {MOST_BANDS} of the HSI and of the MSI")
        if not (2 <= self.side <= LARGEST_SIDE and 1 <= self.scale <= self.side / 2):
            raise OptionError(
                f"{self.side} pixels on a side at scale {self.scale:g}",
                f"at most {LARGEST_SIDE} pixels, and a scale from 1 up that leaves two coarse ones",
            )

    @property
    def coarse_side(self) -> int:
        return max(1, round(self.side / self.scale))

    @property
    def pixels(self) -> int:
        return self.side**2

    @property
    def bytes_in_use(self) -> int:
        """About what a fusion of such a pair holds at once."""
        return IMAGES_AT_ONCE * 4 * self.bands * self.pixels

    def random_pair(self) -> tuple[Tensor, Tensor]:
        """(C, h, w) and (M, H, W), always the same for the same size."""
        generator = torch.Generator().manual_seed(0)
        hsi = torch.rand(self.bands, self.coarse_side, self.coarse_side, generator=generator)
        return hsi, torch.rand(self.msi_bands, self.side, self.side, generator=generator)

    def observation(self) -> Observation:
        response = torch.zeros(self.msi_bands, self.bands, dtype=torch.float64)
        for band in range(self.bands):
            response[band * self.msi_bands // self.bands, band] = 1.0
        response = response / response.sum(dim=1, keepdim=True).clamp_min(1.0)
        return known_observation(response, self.side / self.coarse_side)


@dataclass(frozen=True, eq=False)
class Subject:
    """Something that fuses. `config` makes a network of fresh weights, `trained` is one from its folder; a method has neither."""

    name: str
    kind: str
    config: NetworkConfig | AnyRivalConfig | None = None
    trained: AnyNetwork | None = None

    def fits(self, size: PairSize) -> bool:
        network = self._network(size, "meta")
        try:
            if network is not None:
                require_fitting_bands(network, size.bands, size.msi_bands)
        except BandError:
            return False
        return True

    def parameters(self, size: PairSize) -> int:
        if self.kind == METHOD:
            return count_parameters(shipped_network()) if self.name == DEFAULT else 0
        network = self._network(size, "meta")
        assert network is not None
        return count_parameters(network)

    def multiply_adds(self, size: PairSize) -> int:
        """Of a method, or a network that leans on one: its matrix products; decompositions are not counted."""
        if self.config is None:
            return multiply_adds(self.prepared(size, "cpu"))
        fine, coarse = (size.side, size.side), (size.coarse_side, size.coarse_side)
        return performed_multiply_adds(_for_bands(self.config, size), size.bands, size.msi_bands, fine, coarse)

    def prepared(self, size: PairSize, device: str) -> Run:
        """Everything that happens once is done; what is left is the fusion of one pair, told how it was observed."""
        hsi, msi = size.random_pair()
        observation = size.observation()
        network = self._network(size, device)
        if network is None:
            return lambda: fuse_arrays(hsi, msi, observation, self.name)
        network = network.eval().to(device)
        if self.trained is not None and not isinstance(network, RivalNetwork):
            wavelength_nm = torch.linspace(450.0, 900.0, size.bands, dtype=torch.float64)
            return lambda: fuse_with_network(network, hsi, msi, observation, wavelength_nm)
        batch = hsi[None].to(device), msi[None].to(device)

        def run() -> Tensor:
            with torch.inference_mode():
                fused: Tensor = network(*batch)
            return fused

        return run

    def _network(self, size: PairSize, device: str) -> AnyNetwork | None:
        if self.trained is not None or self.config is None:
            return self.trained
        config = _for_bands(self.config, size)
        with torch.device(device):
            return FusionNetwork(config) if isinstance(config, NetworkConfig) else build_rival(config)


def _for_bands(config: NetworkConfig | AnyRivalConfig, size: PairSize) -> NetworkConfig | AnyRivalConfig:
    return config if isinstance(config, NetworkConfig) else config.with_bands(size.bands, size.msi_bands)


def find_subjects(networks: Sequence[str] | None, methods: Sequence[str] | None, weights: Sequence[str]) -> list[Subject]:
    """All presets and all methods where none are named; an empty list names none."""
    known: dict[str, Subject] = {name: Subject(name, NETWORK, config) for name, config in PRESETS.items()}
    known |= {name: Subject(name, RIVAL, config) for name, config in RIVAL_PRESETS.items()}
    chosen = [_named(known, name, "network") for name in (known if networks is None else networks)]
    listed = {name: Subject(name, METHOD) for name in METHODS}
    chosen += [_named(listed, name, "method") for name in (listed if methods is None else methods)]
    chosen += [_from_folder(folder) for folder in weights]
    if not chosen:
        raise OptionError("nothing to measure", "at least one network, method or folder of weights")
    return _distinct(chosen)


def _named(known: dict[str, Subject], name: str, what: str) -> Subject:
    if name not in known:
        raise OptionError(f"no {what} is called {name!r}", f"one of {', '.join(known)}")
    return known[name]


def _from_folder(folder: str) -> Subject:
    network = load_network(folder)
    path = Path(folder)
    name = path.parent.name if path.name in NAMELESS else path.name
    return Subject(name, RIVAL if isinstance(network, RivalNetwork) else NETWORK, trained=network)


def _distinct(subjects: list[Subject]) -> list[Subject]:
    seen: dict[str, int] = {}
    found = []
    for subject in subjects:
        seen[subject.name] = seen.get(subject.name, 0) + 1
        found.append(subject if seen[subject.name] == 1 else replace(subject, name=f"{subject.name} {seen[subject.name]}"))
    return found
