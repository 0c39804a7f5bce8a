"""Pairs that are made of a reference by Wald's protocol.

The point spread is a Gaussian with a full width at half maximum of one coarse pixel; the reference is cropped to whole
coarse pixels. A scene without wavelengths is given evenly spaced ones to make the msi; the competitors do not learn
them.

One case of the benchmark: a scene under one response, scale and condition, and the pair that every competitor gets of
it.

Pairs that two sensors took: whole (hsi, msi and a reference), or with an hsi that is made of the reference.

Of such a pair nobody knows how it was truly observed, so it is only fused blind. Reference and hsi are divided by the
99.95th percentile of the reference, the msi by its own.

Which scenes are asked for: `[NAME=]SOURCE[@RESPONSE,RESPONSE]`, each with the part of it that is scored.

A source is a file, a folder, a pattern of files, or a data set of the catalogue. Of files all pixels are scored; of a
data set the blocks that its split keeps for testing. NAME stands over the tables; without it a data set is called by
its own name, files by their folder's.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.data.reading import load_scenes
from hyperfuse.data.scenes import Scene, dataset_named, scene_unit
from hyperfuse.data.splits import Split, SplitKind, keep_for_testing, split_scenes
from hyperfuse.errors import BandError, GridError, OptionError
from hyperfuse.fusion.pair import align_pair
from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.io.files import open_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.physics.psf import exact_scale, largest_crop
from hyperfuse.physics.simulate import Simulation, require_signal_to_noise, simulate_pair
from hyperfuse.physics.srf import srf_for
from hyperfuse.physics.srf_curves import named_curves

AS_RECORDED = "as recorded"


@dataclass(frozen=True)
class Condition:
    """What a simulated pair suffers beside blur and decimation."""

    noise_db: tuple[float, float] | None = None
    """Signal-to-noise ratio of hsi and msi."""
    shift: tuple[float, float] = (0.0, 0.0)
    """(down, right) in fine pixels."""

    def __post_init__(self) -> None:
        if self.noise_db is not None:
            for image, decibels in zip(("HSI", "MSI"), self.noise_db, strict=True):
                require_signal_to_noise(decibels, image)

    @property
    def name(self) -> str:
        words = []
        if self.noise_db is not None:
            words.append("noise {:g}/{:g} dB".format(*self.noise_db))
        if self.shift != (0.0, 0.0):
            words.append("shift {:g} {:g}".format(*self.shift))
        return ", ".join(words) or "clean"


@dataclass(frozen=True)
class CaseName:
    """What a case is called, in all results and tables."""

    dataset: str
    scene: str
    srf: str
    scale: float
    condition: str

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys([self.scene, self.srf, f"x{self.scale:g}", self.condition]))


@dataclass(frozen=True, eq=False)
class CasePair:
    """The pair of a case, what it should become, and how it was truly observed where that is known. Values are in 0 to
    1.
    """

    hsi: xr.DataArray
    msi: xr.DataArray
    reference: xr.DataArray
    valid: NDArray[np.bool_] | None
    """(H, W), where the reference has values; None where it has them everywhere."""
    truth: Observation | None
    scale: float


DATASET = "recorded"


@dataclass(frozen=True, eq=False)
class RecordedPair:
    """What two sensors took of one place. Without an hsi it is made of the reference, at every scale."""

    name: str
    hsi: xr.DataArray | None
    msi: xr.DataArray
    reference: xr.DataArray

    @property
    def digest(self) -> str:
        """Tells whether a run that is continued still has the pixels that it began with."""
        cubes = [cube for cube in (self.hsi, self.msi, self.reference) if cube is not None]
        return " ".join(f"{zlib.crc32(np.ascontiguousarray(cube.values).tobytes()):08x}" for cube in cubes)

    def scales(self, wanted: Sequence[float]) -> list[float]:
        """Those asked for, or the one that the pair has."""
        if self.hsi is None:
            return list(wanted)
        return [float(np.mean(align_pair(self.hsi, self.msi).scale))]

    def case(self, scale: float) -> CasePair:
        if self.hsi is not None:
            return CasePair(self.hsi, self.msi, self.reference, None, None, scale)
        one_band = np.eye(1, self.reference.sizes["band"])
        with warnings.catch_warnings():
            # The msi that is made beside the hsi is of no use here.
            warnings.simplefilter("ignore")
            made = simulate_pair(self.reference, scale, one_band)
        rows, columns = made.reference.sizes["y"], made.reference.sizes["x"]
        return CasePair(
            made.hsi, self.msi.isel(y=slice(0, rows), x=slice(0, columns)), made.reference, None, None, scale
        )


def read_pairs(texts: Sequence[str]) -> list[RecordedPair]:
    """Called by the file of the first image, and where several are called the same, by its folder, too."""
    pairs = [read_pair(text) for text in texts]
    names = [pair.name for pair in pairs]
    folders = [Path(text.split(",")[0].strip()).absolute().parent.name for text in texts]
    named = [
        replace(pair, name=f"{folder}/{pair.name}") if names.count(pair.name) > 1 else pair
        for pair, folder in zip(pairs, folders, strict=True)
    ]
    doubles = [pair.name for place, pair in enumerate(named) if pair.name in [other.name for other in named[:place]]]
    if doubles:
        raise OptionError(
            f"two pairs called {doubles[0]}", "names that differ", "rename a file, or leave out one of the two --pair"
        )
    return named


def read_pair(text: str) -> RecordedPair:
    """`HSI,MSI,REFERENCE`, or `REFERENCE,MSI` where the hsi is to be made of the reference."""
    paths = [Path(part.strip()) for part in text.split(",")]
    if len(paths) not in (2, 3) or not all(path.name for path in paths):
        raise OptionError(f"pair {text!r}", "HSI,MSI,REFERENCE, or REFERENCE,MSI to make the HSI of the reference")
    cubes = [open_cube(path) for path in paths]
    if len(cubes) == 2:
        reference, msi = cubes
        if reference.shape[1:] != msi.shape[1:]:
            raise GridError(
                f"{paths[0].name} of {reference.shape[1]}x{reference.shape[2]} pixels and {paths[1].name} of "
                f"{msi.shape[1]}x{msi.shape[2]}",
                "a reference and an MSI of the same pixels",
                "cut both to one grid, or give HSI,MSI,REFERENCE",
            )
        return RecordedPair(paths[0].stem, None, _in_unit(msi, _unit(msi)), _in_unit(reference, _unit(reference)))
    hsi, msi, reference = cubes
    unit = _unit(reference)
    return RecordedPair(paths[0].stem, _in_unit(hsi, unit), _in_unit(msi, _unit(msi)), _in_unit(reference, unit))


def _unit(cube: xr.DataArray) -> float:
    return scene_unit(physical_values(cube), np.nan)


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


SOURCE_FORM = "[NAME=]SOURCE[@RESPONSE,RESPONSE], such as CAVE@nikon_d700.csv or valley=scenes/*.tif"


@dataclass(frozen=True, eq=False)
class ScoredScene:
    """A scene, or a block of one, that the benchmark degrades and wants back."""

    dataset: str
    name: str
    scene: Scene
    rows: slice
    columns: slice
    srfs: tuple[str, ...]
    overlapping: bool = False
    """Whether networks trained by the same split have seen these pixels."""

    @property
    def values(self) -> NDArray[np.float32]:
        """(C, H, W) in 0 to 1: clipped at 0, divided by the 99.95th percentile of the scene, clipped at 1."""
        return self.scene.patch(self.rows, self.columns).numpy()

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        missing = self.scene.missing_pixels
        return None if missing is None else ~missing[self.rows, self.columns]

    @property
    def digest(self) -> str:
        """Tells whether a run that is continued still has the pixels that it began with."""
        block = np.ascontiguousarray(self.scene.stored[:, self.rows, self.columns])
        return f"{zlib.crc32(block.tobytes()):08x}"


def choose_scenes(
    wanted: Sequence[str], srfs: Sequence[str], split: SplitKind = "disjoint", folder: Path | None = None
) -> list[ScoredScene]:
    """Every scene of every source, in the order asked for; `responses` are for sources that name none of their own."""
    chosen: list[ScoredScene] = []
    for text in wanted:
        name, source, own = _parts(text)
        scenes = load_scenes(source, folder)
        parts = split_scenes(scenes, split) if dataset_named(source) else keep_for_testing(scenes)
        wanted_srfs = tuple(dict.fromkeys(own or srfs))
        _require_different_names(wanted_srfs)
        chosen += _scored(scenes, parts, name or _name_of(source), wanted_srfs)
    _require_different(chosen)
    return chosen


def _scored(scenes: Sequence[Scene], parts: Split, dataset: str, srfs: tuple[str, ...]) -> list[ScoredScene]:
    if not srfs:
        raise OptionError(f"no response for the scenes of {dataset}", "--responses, or @RESPONSE behind the source")
    blocks = [block.scene for block in parts.test]
    scored = []
    for block in parts.test:
        scene = scenes[block.scene]
        alone = blocks.count(block.scene) == 1
        name = scene.name if alone else f"{scene.name}[{block.top},{block.left}]"
        scored.append(ScoredScene(dataset, name, scene, block.rows, block.columns, srfs, parts.overlapping))
    return scored


def _parts(text: str) -> tuple[str, str, list[str]]:
    source, _, listed = text.partition("@")
    name, equals, rest = source.partition("=")
    if equals and not Path(source).exists():
        source = rest
    else:
        name = ""
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
    """Parted at commas, but not within a choice of bands: `Sentinel-2A:B2,B3,rgb` are two responses."""
    found: list[str] = []
    for part in (each.strip() for each in text.split(",") if each.strip()):
        if found and ":" in found[-1] and not _is_srf(part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def _is_srf(text: str) -> bool:
    if ":" in text or Path(text).suffix or Path(text).is_file():
        return True
    try:
        named_curves(text)
    except OptionError:
        return False
    return True


def srf_name(srf: str) -> str:
    """What a response is called in results: files without folder and ending."""
    return Path(srf).stem


def _require_different_names(srfs: Sequence[str]) -> None:
    names = [srf_name(srf) for srf in srfs]
    if doubles := [name for name in names if names.count(name) > 1]:
        raise OptionError(f"two responses called {doubles[0]}", "files whose names differ", "rename one of the two")


def _require_different(chosen: Sequence[ScoredScene]) -> None:
    seen: set[tuple[str, str]] = set()
    for scene in chosen:
        if (scene.dataset, scene.name) in seen:
            raise OptionError(
                f"scene {scene.name} of {scene.dataset} twice", "every scene once", "leave out one of the two --scenes"
            )
        seen.add((scene.dataset, scene.name))


# Where a scene's wavelengths are unknown.
ASSUMED_NM = (400.0, 2500.0)
SMALLEST_COARSE_SIDE = 2


def reference_cube(scored: ScoredScene) -> xr.DataArray:
    """The scored part of a scene in 0 to 1, with wavelengths, assumed ones where it has none."""
    scene = scored.scene
    centres = np.linspace(*ASSUMED_NM, scene.bands) if scene.wavelength_nm is None else scene.wavelength_nm
    return make_cube(scored.values, wavelength_nm=centres, fwhm_nm=scene.fwhm_nm)


def covers(reference: xr.DataArray, srf: str) -> bool:
    """Whether the scene has the bands that the response needs; a response that does not exist at all is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
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
    reference = reference_cube(scored)
    hsi_db, msi_db = condition.noise_db or (None, None)
    with warnings.catch_warnings():
        # The protocol itself says that scenes are cropped, and that of a camera's curve the covered part counts.
        warnings.simplefilter("ignore")
        made = simulate_pair(
            reference, scale, srf, shift=condition.shift, snr_hsi_db=hsi_db, snr_msi_db=msi_db, seed=seed
        )
    known = scored.scene.wavelength_nm is not None
    hsi, msi, fine = (cube if known else make_cube(cube.values) for cube in (made.hsi, made.msi, made.reference))
    return CasePair(hsi, msi, fine, _cropped(scored.valid, fine), _truth(made), made.record.scale)


def _truth(made: Simulation) -> Observation:
    record = made.record
    return known_observation(
        torch.from_numpy(record.find_srf().weights),
        record.scale,
        sigma=record.psf_sigma,
        shift=record.shift,
        hsi_noise=torch.tensor(record.noise_sigma_hsi or 0.0),
        msi_noise=torch.tensor(record.noise_sigma_msi or 0.0),
    )


def _cropped(valid: NDArray[np.bool_] | None, reference: xr.DataArray) -> NDArray[np.bool_] | None:
    return None if valid is None else valid[: reference.sizes["y"], : reference.sizes["x"]]
