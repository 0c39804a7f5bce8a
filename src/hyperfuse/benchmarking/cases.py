"""Cases of the benchmark, scenes degraded by Wald's protocol and recorded pairs of two sensors, and its models.

A case is one scene under one SRF, scale and condition. Simulated pairs have a Gaussian PSF with a FWHM of one coarse
pixel, and the reference is cropped to whole coarse pixels. A scene without wavelengths gets evenly spaced ones to
simulate the msi; the models do not see them. The true observation of a recorded pair is unknown and given to no model.

A fused image is scored in the frame of its reference. `--shift` displaces the hsi, so that is the frame of the msi. The
reference of a recorded pair, and of one with an imperfection, lies where the hsi lies.

Blind is what `hyperfuse.fuse(hsi, msi)` does, estimation included. An oracle is the same method or network given the
true PSF, shift, SRF and noise. Nominal is without estimation: a PSF of one coarse pixel and the georeference.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.benchmarking.results import BLIND, NOMINAL, ORACLE, CaseName
from hyperfuse.config import FuseConfig, InputConfig, PairInputConfig, SimulateConfig
from hyperfuse.data.datasets import dataset_named, load_scenes
from hyperfuse.data.scenes import AS_STORED, Scene, scene_unit
from hyperfuse.data.splits import SplitKind, keep_for_testing, split_scenes
from hyperfuse.errors import BandError, GridError, HyperfuseError, OptionError
from hyperfuse.fusion.fusers import load_network
from hyperfuse.fusion.pair import align_pair
from hyperfuse.fusion.run import run_fusion
from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.io.files import open_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.io.wavelengths import supplied_to
from hyperfuse.methods.catalogue import AUTO, METHODS, find_method
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.weights import CONFIG_NAME
from hyperfuse.physics.imperfections import add_imperfection
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.physics.resample import exact_scale, largest_crop
from hyperfuse.physics.simulate import require_shift, require_signal_to_noise, simulate
from hyperfuse.physics.srf import srf_for
from hyperfuse.physics.srf_curves import named_curves

CLEAN, AS_RECORDED, RECORDED = "clean", "as recorded", "recorded"
PAIR_AS_STORED = PairInputConfig()
SOURCE_FORM = "[NAME=]SOURCE[@SRF,SRF], such as CAVE@nikon_d700.csv or valley=scenes/*.tif"
# Where a scene's wavelengths are unknown.
ASSUMED_NM = (400.0, 2500.0)
SMALLEST_COARSE_SIDE = 2
ALL = "all"
# Common names of weights folders; the name of the run above says more.
GENERIC_FOLDERS = ("weights", "network")


@dataclass(frozen=True)
class Condition:
    """Degradation of a simulated pair beside blur and decimation."""

    noise_db: tuple[float, float] | None = None
    """Signal-to-noise ratio of hsi and msi."""
    shift: tuple[float, float] = (0.0, 0.0)
    """(down, right) in fine pixels."""
    imperfection: str | None = None
    """A name of `IMPERFECTIONS`."""

    def __post_init__(self) -> None:
        for image, decibels in zip(("HSI", "MSI"), self.noise_db or (), strict=False):
            require_signal_to_noise(decibels, image)

    @property
    def name(self) -> str:
        noise = "" if self.noise_db is None else "noise {:g}/{:g} dB".format(*self.noise_db)
        shift = "" if self.shift == (0.0, 0.0) else "shift {:g} {:g}".format(*self.shift)
        return ", ".join(filter(None, (noise, shift, self.imperfection))) or CLEAN


@dataclass(frozen=True, eq=False)
class CasePair:
    """The pair of a case, its reference, and its true observation where that is known. Values are in 0 to 1."""

    hsi: xr.DataArray
    msi: xr.DataArray
    reference: xr.DataArray
    valid: NDArray[np.bool_] | None
    """(H, W), where the reference has values; None where it has them everywhere."""
    truth: Observation | None
    scale: float
    trust: Literal["msi", "hsi"] = "msi"
    """Which of the two images the reference is registered with."""


@dataclass(frozen=True, eq=False)
class RecordedPair:
    """Two images of one place. A missing hsi is simulated from the reference, at every scale."""

    name: str
    hsi: xr.DataArray | None
    msi: xr.DataArray
    reference: xr.DataArray

    @property
    def digest(self) -> str:
        """Identifies the pixels, so that a resumed run notices changes."""
        cubes = [cube for cube in (self.hsi, self.msi, self.reference) if cube is not None]
        return " ".join(_checksum(cube.values) for cube in cubes)

    def scales(self, requested: Sequence[float]) -> list[float]:
        """The requested ones, or the only one that a pair with an hsi has."""
        if self.hsi is None:
            return list(requested)
        return [float(np.mean(align_pair(self.hsi, self.msi).scale))]

    def case(self, scale: float) -> CasePair:
        if self.hsi is not None:
            return CasePair(self.hsi, self.msi, self.reference, None, None, scale, "hsi")
        one_band = np.eye(1, self.reference.sizes["band"])  # the msi simulated beside the hsi is not used
        with warnings.catch_warnings(action="ignore"):
            made = simulate(self.reference, scale, one_band)
        msi = self.msi.isel(y=slice(0, made.reference.sizes["y"]), x=slice(0, made.reference.sizes["x"]))
        return CasePair(made.hsi, msi, made.reference, None, None, scale, "hsi")


def read_pairs(texts: Sequence[str], config: PairInputConfig = PAIR_AS_STORED) -> list[RecordedPair]:
    """Read recorded pairs, named by the file of their first image; by its folder, too, where names are equal."""
    pairs = [read_pair(text, config) for text in texts]
    names = [pair.name for pair in pairs]
    folders = [Path(text.split(",")[0].strip()).absolute().parent.name for text in texts]
    named = [
        replace(pair, name=f"{folder}/{pair.name}") if names.count(pair.name) > 1 else pair
        for pair, folder in zip(pairs, folders, strict=True)
    ]
    require_unique("pairs", [pair.name for pair in named], "rename a file, or leave out one of the two --pair")
    return named


def read_pair(text: str, config: PairInputConfig) -> RecordedPair:
    """`HSI,MSI,REFERENCE`, or `REFERENCE,MSI` where the hsi is to be simulated.

    Of `REFERENCE,MSI`, an msi that is finer than the reference is degraded to its pixels first, as Wald's protocol does
    with both images. Reference and hsi are divided by the 99.95th percentile of the reference, the msi by its own.
    """
    paths = [Path(part.strip()) for part in text.split(",")]
    if len(paths) not in (2, 3) or not all(path.name for path in paths):
        raise OptionError(f"pair {text!r}", "HSI,MSI,REFERENCE, or REFERENCE,MSI to simulate the HSI")
    roles = ("reference", "msi") if len(paths) == 2 else ("hsi", "msi", "reference")
    cubes = supplied_to({role: open_cube(path) for role, path in zip(roles, paths, strict=True)}, config)
    hsi, msi, reference = cubes.get("hsi"), cubes["msi"], cubes["reference"]
    if hsi is None and reference.shape[1:] != msi.shape[1:]:
        height, width = (
            Fraction(fine, coarse) for fine, coarse in zip(msi.shape[1:], reference.shape[1:], strict=True)
        )
        if height != width or height < 1:
            sizes = [f"{cube.shape[1]}x{cube.shape[2]}" for cube in (reference, msi)]
            got = f"{paths[0].name} of {sizes[0]} pixels and {paths[1].name} of {sizes[1]}"
            remedy = "cut both to one grid, or give HSI,MSI,REFERENCE"
            raise GridError(got, "a reference and an MSI of the same pixels, or a finer MSI of the same extent", remedy)
        msi = simulate(msi, height, np.eye(1, msi.sizes["band"])).hsi
    unit, msi_unit = (scene_unit(physical_values(cube), np.nan) for cube in (reference, msi))
    scaled_hsi = None if hsi is None else _in_unit(hsi, unit)
    return RecordedPair(paths[0].stem, scaled_hsi, _in_unit(msi, msi_unit), _in_unit(reference, unit))


def _in_unit(cube: xr.DataArray, unit: float) -> xr.DataArray:
    grid = grid_of(cube)
    return make_cube(
        np.clip(physical_values(cube) / np.float32(unit), 0.0, 1.0),
        wavelength_nm=cube["wavelength"].values,
        fwhm_nm=cube["fwhm"].values,
        good=cube["good"].values,
        nodata=np.nan,
        crs=grid.crs,
        transform=grid.transform,
    )


@dataclass(frozen=True, eq=False)
class ScoredScene:
    """A scene, or a block of one, that the benchmark degrades and fuses."""

    dataset: str
    name: str
    scene: Scene
    rows: slice
    columns: slice
    srfs: tuple[str, ...]
    overlapping: bool = False
    """Whether networks trained by the same split have seen these pixels."""

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        missing = self.scene.missing_pixels
        return None if missing is None else ~missing[self.rows, self.columns]

    @property
    def digest(self) -> str:
        """Identifies the pixels, so that a resumed run notices changes."""
        return _checksum(self.scene.stored[:, self.rows, self.columns])

    def reference(self) -> xr.DataArray:
        """Clipped at 0, divided by the scene's 99.95th percentile, clipped at 1; with wavelengths."""
        scene = self.scene
        centres = np.linspace(*ASSUMED_NM, scene.bands) if scene.wavelength_nm is None else scene.wavelength_nm
        return make_cube(scene.patch(self.rows, self.columns).numpy(), wavelength_nm=centres, fwhm_nm=scene.fwhm_nm)


def choose_scenes(
    sources: Sequence[str],
    srfs: Sequence[str],
    split: SplitKind = "disjoint",
    folder: Path | None = None,
    inputs: InputConfig = AS_STORED,
) -> list[ScoredScene]:
    """Load every scene of every source `[NAME=]SOURCE[@SRF,SRF]`; `srfs` are for sources that name none.

    A source is a file, a folder, a pattern of files, or a data set of the catalogue. Of files all pixels are scored, of
    a data set the blocks that its split keeps for testing. Without NAME, a data set goes by its own name, files by
    their folder's.
    """
    chosen: list[ScoredScene] = []
    for text in sources:
        name, source, own = parse_source(text)
        scenes = load_scenes(source, folder, inputs=inputs)
        parts = split_scenes(scenes, split) if dataset_named(source) else keep_for_testing(scenes)
        chosen_srfs = tuple(dict.fromkeys(own or srfs))
        require_unique("SRFs", map(srf_name, chosen_srfs), "rename one of the two files")
        dataset = name or _name_of(source)
        if not chosen_srfs:
            raise OptionError(f"no SRF for the scenes of {dataset}", "--srfs, or @SRF after the source")
        blocks = [block.scene for block in parts.test]
        for block in parts.test:
            scene = scenes[block.scene]
            part = scene.name if blocks.count(block.scene) == 1 else f"{scene.name}[{block.top},{block.left}]"
            where = scene, block.rows, block.columns
            chosen.append(ScoredScene(dataset, part, *where, chosen_srfs, parts.overlapping))
    names = [f"{scene.dataset}/{scene.name}" for scene in chosen]
    require_unique("scenes", names, "leave out one of the two --scenes, or give it a NAME")
    return chosen


def parse_source(text: str) -> tuple[str, str, list[str]]:
    source, _, listed = text.partition("@")
    name, equals, rest = source.partition("=")
    name, source = (name, rest) if equals and not Path(source).exists() else ("", source)
    if not source.strip():
        raise OptionError(f"scenes {text!r}", SOURCE_FORM)
    return name.strip(), source.strip(), listed_srfs(listed)


def _name_of(source: str) -> str:
    dataset = dataset_named(source)
    if dataset is not None:
        return dataset.name
    path = Path(source)
    return path.name if path.is_dir() else path.absolute().parent.name


def listed_srfs(text: str) -> list[str]:
    """Split at commas, but not within a choice of bands: `Sentinel-2A:B2,B3,rgb` are two SRFs."""
    srfs: list[str] = []
    for part in (each.strip() for each in text.split(",") if each.strip()):
        if srfs and ":" in srfs[-1] and not _is_srf(part):
            srfs[-1] += f",{part}"
        else:
            srfs.append(part)
    return srfs


def _is_srf(text: str) -> bool:
    if ":" in text or Path(text).suffix or Path(text).is_file():
        return True
    try:
        named_curves(text)
    except OptionError:
        return False
    return True


def srf_name(srf: str) -> str:
    """How an SRF is called in results: files without folder and suffix."""
    return Path(srf).stem


def require_unique(kind: str, names: Iterable[str], remedy: str) -> None:
    """Refuse a name that occurs twice: results are found by name."""
    listed = list(names)
    if doubles := [name for name in listed if listed.count(name) > 1]:
        raise OptionError(f"two {kind} called {doubles[0]}", "names that differ", remedy)


def covers(reference: xr.DataArray, srf: str) -> bool:
    """Whether the scene has the bands that the SRF needs; an unknown SRF is an error."""
    with warnings.catch_warnings(action="ignore"):
        try:
            srf_for(reference, srf)
        except BandError:
            return False
    return True


def has_room(size: tuple[int, int], scale: float) -> bool:
    """Whether an image of this size makes at least 2x2 whole coarse pixels."""
    try:
        return min(largest_crop(size, exact_scale(scale)).coarse_size) >= SMALLEST_COARSE_SIDE
    except OptionError:
        return False


def simulated_case(scored: ScoredScene, srf: str, scale: float, condition: Condition, seed: int = 0) -> CasePair:
    hsi_db, msi_db = condition.noise_db or (None, None)
    config = SimulateConfig(shift=condition.shift, snr_hsi_db=hsi_db, snr_msi_db=msi_db, seed=seed)
    # The protocol crops scenes, and counts the covered part of a camera's SRF.
    with warnings.catch_warnings(action="ignore"):
        made = simulate(scored.reference(), scale, srf, config=config)
    kind = condition.imperfection
    imperfect = None if kind is None else add_imperfection(made, kind, seed, scored.name)
    pair = imperfect or made
    known = scored.scene.wavelength_nm is not None
    hsi, msi, fine = (cube if known else make_cube(cube.values) for cube in (pair.hsi, pair.msi, made.reference))
    valid = None if scored.valid is None else scored.valid[: fine.sizes["y"], : fine.sizes["x"]]
    record = made.record
    truth = known_observation(
        torch.from_numpy(record.srf.as_srf().weights),
        record.scale,
        sigma=record.psf_sigma if imperfect is None else imperfect.sigma,
        shift=record.shift if imperfect is None else imperfect.shift,
        hsi_noise=torch.tensor(record.noise_sigma_hsi or 0.0),
        msi_noise=torch.tensor((record.noise_sigma_msi or 0.0) if imperfect is None else imperfect.msi_noise),
    )
    truth = replace(truth, grid_shift=(0.0, 0.0))  # the georeference knows nothing of the shift
    return CasePair(hsi, msi, fine, valid, truth, record.scale, "msi" if imperfect is None else "hsi")


def _checksum(values: NDArray[np.generic]) -> str:
    return f"{zlib.crc32(np.ascontiguousarray(values).tobytes()):08x}"


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
            with warnings.catch_warnings(action="ignore"), suppress(HyperfuseError):
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
    """Every msi band is an hsi band."""
    srf = np.eye(bands)[np.linspace(0, bands - 1, msi_bands).astype(int)]
    fine = np.random.default_rng(0).random((bands, 32, 32), dtype=np.float32)
    made = simulate(make_cube(np.cumsum(fine, axis=1) / 32), 4, srf)
    return CasePair(made.hsi, made.msi, made.reference, None, known_observation(torch.from_numpy(srf), 4.0), 4.0)


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
            given = tuple(each for each in knowledge if each != ORACLE) or (BLIND,)
            cases.append(PlannedCase(name, given, partial(pair.case, scale)))
    if not cases:
        expected = "a scene that covers an SRF and has room for a scale"
        raise OptionError("no case to score", expected, "; ".join(left_out))
    return cases, left_out
