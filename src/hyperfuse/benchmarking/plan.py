"""Models of a benchmark, its cases, and what each model is given.

Blind is what `hyperfuse.fuse(hsi, msi)` does, estimation included. An oracle is the same method or network given the
true PSF, shift, SRF and noise. Nominal is without estimation: a PSF of one coarse pixel and the georeference.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hyperfuse.benchmarking.cases import (
    AS_RECORDED,
    RECORDED,
    CaseName,
    CasePair,
    Condition,
    RecordedPair,
    ScoredScene,
    covers,
    has_room,
    require_unique,
    simulated_case,
    srf_name,
)
from hyperfuse.benchmarking.results import BLIND, NOMINAL, ORACLE
from hyperfuse.config import FuseConfig
from hyperfuse.errors import BandError, HyperfuseError, OptionError
from hyperfuse.fusion.fusers import load_network
from hyperfuse.fusion.run import run_fusion
from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.methods.catalogue import AUTO, METHODS, find_method
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.weights import CONFIG_NAME
from hyperfuse.physics.observation import known_observation
from hyperfuse.physics.resample import exact_scale, largest_crop
from hyperfuse.physics.simulate import require_shift

ALL = "all"
# Common names of weights folders; the name of the run above says more.
GENERIC_FOLDERS = ("weights", "network")


@dataclass(frozen=True, eq=False)
class BenchmarkModel:
    """A method by its name, or a trained network."""

    name: str
    method: str | None = None
    network: AnyNetwork | None = None
    warmed: set[tuple[int, int]] = field(default_factory=set)

    @property
    def digest(self) -> str | None:
        """Of the weights that it uses, its own or those shipped with a method."""
        if self.network is not None:
            return self.network.weights_digest
        shipped = resources.files("hyperfuse") / "weights" / str(self.method) / CONFIG_NAME
        return f"{self.method} {zlib.crc32(shipped.read_bytes()):08x}" if shipped.is_file() else None

    def fits(self, pair: CasePair) -> bool:
        return takes_bands(self.network, pair.hsi.sizes["band"], pair.msi.sizes["band"])

    def fuse(self, pair: CasePair, knowledge: str) -> NDArray[np.float32]:
        """(C, H, W)"""
        config = FuseConfig(trust=pair.trust, estimate=knowledge != NOMINAL)
        config = config.replace(method=self.method) if self.network is None else config.replace(weights=self.network)
        run = run_fusion(pair.hsi, pair.msi, None, config, observation=pair.truth if knowledge == ORACLE else None)
        assert run.cube is not None  # without an output file
        return physical_values(run.cube)

    def warm_up(self, pair: CasePair) -> None:
        """Fuse a few pixels once per combination of band counts, so that loading libraries is not timed."""
        bands = pair.hsi.sizes["band"], pair.msi.sizes["band"]
        if bands not in self.warmed:
            self.warmed.add(bands)
            with warnings.catch_warnings(), suppress(HyperfuseError):
                warnings.simplefilter("ignore")
                self.fuse(_small_pair(*bands), ORACLE)


def takes_bands(network: AnyNetwork | None, bands: int, msi_bands: int) -> bool:
    """Whether a network was made for these numbers of bands; methods, which have none, take all."""
    try:
        if network is not None:
            network.check_bands(bands, msi_bands)
    except BandError:
        return False
    return True


def find_models(methods: Sequence[str], weights: Sequence[str]) -> list[BenchmarkModel]:
    """`methods` are names, or `all`; `weights` are folders, optionally `NAME=FOLDER`."""
    names = [name for given in methods for name in (METHODS if given == ALL else [given])]
    for name in names:
        if name != AUTO:
            find_method(name)
    models = [BenchmarkModel(name, method=name) for name in dict.fromkeys(names)]
    for text in weights:
        name, folder = named_folder(text)
        models.append(BenchmarkModel(name, network=load_network(str(folder))))
    if not models:
        raise OptionError("no model to score", "methods or weights", "name them with --methods and --weights")
    require_unique("models", [model.name for model in models], "give weights another name: --weights NAME=FOLDER")
    return models


def named_folder(text: str, generic: Sequence[str] = GENERIC_FOLDERS) -> tuple[str, Path]:
    """Of `NAME=FOLDER` or `FOLDER`: a folder is called as it is, or where that is generic, as the one above."""
    name, equals, folder = text.partition("=")
    if equals and name.strip() and not Path(text).exists():
        return name.strip(), Path(folder)
    path = Path(text)
    return (path.absolute().parent.name if path.name in generic else path.name), path


def _small_pair(bands: int, msi_bands: int) -> CasePair:
    """A slope with a little texture; every msi band is an hsi band."""
    side, scale = 32, 4
    generator = np.random.default_rng(0)
    shape = np.indices((side, side)).sum(axis=0) / (2 * side) + 0.1 * generator.random((side, side))
    fine = (np.linspace(0.5, 1.0, bands)[:, None, None] * shape).astype(np.float32)
    chosen_bands = np.linspace(0, bands - 1, msi_bands).astype(int)
    coarse = fine.reshape(bands, side // scale, scale, side // scale, scale).mean(axis=(2, 4))
    truth = known_observation(torch.from_numpy(np.eye(bands)[chosen_bands]), float(scale))
    return CasePair(make_cube(coarse), make_cube(fine[chosen_bands]), make_cube(fine), None, truth, scale)


@dataclass(frozen=True)
class PlannedCase:
    name: CaseName
    knowledge: tuple[str, ...]
    make: Callable[[], CasePair]


def plan_cases(
    scenes: Sequence[ScoredScene],
    pairs: Sequence[RecordedPair],
    scales: Sequence[float],
    conditions: Sequence[Condition],
    knowledge: tuple[str, ...],
    seed: int,
) -> tuple[list[PlannedCase], list[str]]:
    """All combinations that are possible, and what had to be left out."""
    cases: list[PlannedCase] = []
    left_out: list[str] = []
    for scored in scenes:
        reference = scored.reference()
        size = (reference.sizes["y"], reference.sizes["x"])
        fitting = [scale for scale in scales if has_room(size, scale)]
        left_out += [f"{scored.name} has no room for x{scale:g}" for scale in scales if scale not in fitting]
        for srf in scored.srfs:
            if not covers(reference, srf):
                left_out.append(f"{scored.name} does not cover {srf}")
                continue
            for scale, condition in itertools.product(fitting, conditions):
                require_shift(condition.shift, largest_crop(size, exact_scale(scale)).fine_size)
                name = CaseName(scored.dataset, scored.name, srf_name(srf), float(scale), condition.name)
                make = partial(simulated_case, scored, srf, scale, condition, seed)
                cases.append(PlannedCase(name, knowledge, make))
    for pair in pairs:
        for scale in pair.scales(scales):
            if pair.hsi is None and not has_room((pair.reference.sizes["y"], pair.reference.sizes["x"]), scale):
                left_out.append(f"{pair.name} has no room for x{scale:g}")
                continue
            name = CaseName(RECORDED, pair.name, AS_RECORDED, float(scale), AS_RECORDED)
            told = tuple(each for each in knowledge if each != ORACLE) or (BLIND,)
            cases.append(PlannedCase(name, told, partial(pair.case, scale)))
    if not cases:
        expected = "a scene that covers an SRF and has room for a scale"
        raise OptionError("no case to score", expected, "; ".join(left_out))
    return cases, left_out
