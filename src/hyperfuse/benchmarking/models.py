"""Who is scored: methods by name, networks by their weights, each blind or told the truth.

Blind is what `hyperfuse.fuse(hsi, msi)` does, estimation included: nothing is given but the pair. Told (an oracle) is
the same method or network with the true point spread, shift, response and noise.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import CasePair
from hyperfuse.errors import BandError, HyperfuseError, OptionError
from hyperfuse.fusion.network import load_network, require_fitting_bands
from hyperfuse.fusion.observe import fuse_pair
from hyperfuse.fusion.pair import align_pair
from hyperfuse.fusion.run import fuse
from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.methods.catalogue import AUTO, METHODS, find_method
from hyperfuse.models.baselines.catalogue import AnyNetwork
from hyperfuse.models.weights import CONFIG_NAME
from hyperfuse.physics.observation import known_observation

BLIND, ORACLE = "blind", "oracle"
ALL = "all"
# Folders of weights are often called so; then the run they belong to says more.
NAMELESS = ("weights", "network")


@dataclass(frozen=True, eq=False)
class Competitor:
    name: str
    method: str | None = None
    weights: Path | None = None
    network: AnyNetwork | None = None
    warmed: set[tuple[int, int]] = field(default_factory=set)

    @property
    def digest(self) -> str | None:
        """Of the weights that it uses, in a folder or, as a method, in the package."""
        if self.network is not None:
            return self.network.weights_digest
        shipped = resources.files("hyperfuse") / "weights" / str(self.method) / CONFIG_NAME
        return f"{self.method} {zlib.crc32(shipped.read_bytes()):08x}" if shipped.is_file() else None

    def fits(self, pair: CasePair) -> bool:
        """Whether its bands are those that a network is made for."""
        if self.network is None:
            return True
        try:
            require_fitting_bands(self.network, pair.hsi.sizes["band"], pair.msi.sizes["band"])
        except BandError:
            return False
        return True

    def fused(self, pair: CasePair, knowledge: str) -> NDArray[np.float32]:
        """(C, H, W)"""
        if knowledge == BLIND:
            if self.weights is not None:
                return physical_values(fuse(pair.hsi, pair.msi, weights=self.weights))
            return physical_values(fuse(pair.hsi, pair.msi, method=self.method or AUTO))
        assert pair.truth is not None
        return fuse_pair(align_pair(pair.hsi, pair.msi), pair.truth, self.method or AUTO, self.network)

    def warm_up(self, pair: CasePair) -> None:
        """Once for every pair of band counts, on a few pixels, so that loading libraries is not counted."""
        bands, msi_bands = pair.hsi.sizes["band"], pair.msi.sizes["band"]
        if (bands, msi_bands) in self.warmed:
            return
        self.warmed.add((bands, msi_bands))
        small = _small_pair(bands, msi_bands)
        with warnings.catch_warnings(), suppress(HyperfuseError):
            warnings.simplefilter("ignore")
            self.fused(small, ORACLE)


def find_competitors(methods: Sequence[str], weights: Sequence[str]) -> list[Competitor]:
    """`methods` are names, or `all`; `weights` folders, `NAME=FOLDER` to call them something."""
    names = [name for wanted in methods for name in (METHODS if wanted == ALL else [wanted])]
    for name in names:
        if name != AUTO:
            find_method(name)
    found = [Competitor(name, method=name) for name in dict.fromkeys(names)]
    for text in weights:
        name, folder = _named_folder(text)
        found.append(Competitor(name, weights=folder, network=load_network(str(folder))))
    if not found:
        raise OptionError("nobody to score", "methods or weights", "name them with --methods and --weights")
    doubles = sorted({each.name for each in found if [other.name for other in found].count(each.name) > 1})
    if doubles:
        raise OptionError(
            f"two competitors called {doubles[0]}", "names that differ", "call weights something: --weights NAME=FOLDER"
        )
    return found


def _named_folder(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if equals and name.strip() and not Path(text).exists():
        return name.strip(), Path(folder)
    path = Path(text)
    return (path.absolute().parent.name if path.name in NAMELESS else path.name), path


def _small_pair(bands: int, msi_bands: int) -> CasePair:
    """Something to begin with: a slope with a little texture, every msi band an hsi band."""
    side, scale = 32, 4
    generator = np.random.default_rng(0)
    shape = np.indices((side, side)).sum(axis=0) / (2 * side) + 0.1 * generator.random((side, side))
    fine = (np.linspace(0.5, 1.0, bands)[:, None, None] * shape).astype(np.float32)
    seen = np.linspace(0, bands - 1, msi_bands).astype(int)
    coarse = fine.reshape(bands, side // scale, scale, side // scale, scale).mean(axis=(2, 4))
    truth = known_observation(torch.from_numpy(np.eye(bands)[seen]), float(scale))
    return CasePair(make_cube(coarse), make_cube(fine[seen]), make_cube(fine), None, truth, scale)
