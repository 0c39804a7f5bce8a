"""The public data sets that experiments can name, and scenes by name: a data set, a file, a folder, a pattern of files.

The catalogue holds the paper's seven data sets and its two unseen sensors. Its entries state what the data sets' own
pages and files say, and otherwise how it is known.
"""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from hyperfuse.data.scenes import Scene, read_scene, scene_from_cube
from hyperfuse.data.synthetic import SYNTHETIC, synthetic_scenes
from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import FORMATS, open_cube
from hyperfuse.progress import progress

FOLDER_VARIABLE = "HYPERFUSE_SCENES"
CUBE_SUFFIXES = set(FORMATS)

FIRST_SWIR_BAND_OF_HYPERION = 71
# Botswana's page lists the bands it kept. For HyRANK no source does: the 196 calibrated bands of Hyperion without the
# 20 that are usually dropped for water (121-126, 167-180) are as many as HyRANK has.
BOTSWANA_BANDS = ((10, 55), (82, 97), (102, 119), (134, 164), (187, 220))
HYRANK_BANDS = ((8, 57), (79, 120), (127, 166), (181, 224))
# HYDICE disperses with a prism, so its spacing varies from 3 to 15 nm. Knots of the list that circulates with the
# Washington DC scene: band number before any were dropped, centre in nm. The spline meets the list within 0.1 nm.
HYDICE_KNOTS = (
    (0, 401.3), (10, 435.9), (20, 475.9), (30, 524.6), (40, 586.4), (50, 666.7), (60, 770.4), (70, 897.3),
    (80, 1040.5), (90, 1189.6), (100, 1336.2), (101, 1350.6), (110, 1476.2), (120, 1608.2), (130, 1732.2),
    (150, 1958.6), (160, 2062.6), (170, 2161.4), (180, 2255.5), (190, 2345.3), (200, 2431.4), (205, 2473.2),
)  # fmt: skip
WASHINGTON_BANDS = ((0, 101), (106, 136), (148, 205))


def hyperion_centres(kept: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Centres of ranges of Hyperion's bands, counted from 1: two spectrometers, each linear within 0.2 nm."""
    bands = _band_numbers(kept)
    visible = 355.59 + 10.1752 * (bands - 1)
    infrared = 851.92 + 10.0887 * (bands - FIRST_SWIR_BAND_OF_HYPERION)
    return np.where(bands < FIRST_SWIR_BAND_OF_HYPERION, visible, infrared)


def washington_centres() -> NDArray[np.float64]:
    numbers, centres = zip(*HYDICE_KNOTS, strict=True)
    return np.asarray(CubicSpline(numbers, centres)(_band_numbers(WASHINGTON_BANDS)), dtype=np.float64)


def _band_numbers(ranges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(first, last + 1) for first, last in ranges])


@dataclass(frozen=True)
class ExpectedFile:
    """File name of a data set, perhaps with folder and wildcards, case-insensitive."""

    pattern: str
    variable: str | None = None
    """The array in a file that holds several."""
    band_suffixes: tuple[str, ...] = ()
    """Where every band is a file of its own: how their names end, in order; the pattern is that of the first."""


@dataclass(frozen=True)
class SceneDataset:
    """What is known of a public data set."""

    name: str
    sensor: str
    size: tuple[int, int]  # rows, columns
    pixel_metres: float
    wavelength_nm: NDArray[np.float64]
    wavelength_source: str
    files: tuple[ExpectedFile, ...]  # the first that is found is read
    page: str
    fetch: str
    licence: str
    note: str = ""
    images: int = 1

    @property
    def bands(self) -> int:
        return len(self.wavelength_nm)


@dataclass(frozen=True)
class FoundDataset:
    """Where a data set lies: one path per image, in alphabetical order, and how to read them."""

    dataset: SceneDataset
    paths: tuple[Path, ...]
    kind: ExpectedFile

    @property
    def found(self) -> str:
        if len(self.paths) in (0, self.dataset.images):
            return "yes" if self.paths else "no"
        return f"{len(self.paths)} of {self.dataset.images}"

    def as_dict(self) -> dict[str, Any]:
        """Return values that JSON can hold."""
        entry = asdict(self.dataset)
        rows, columns = entry.pop("size")
        entry |= {"rows": rows, "columns": columns, "bands": self.dataset.bands}
        entry["wavelength_nm"] = self.dataset.wavelength_nm.round(2).tolist()
        entry["files"] = [{"pattern": kind.pattern, "variable": kind.variable} for kind in self.dataset.files]
        return entry | {"found": len(self.paths), "paths": [str(path) for path in self.paths]}


EHU_PAGE = "https://www.ehu.eus/ccwintco/index.php/Hyperspectral_Remote_Sensing_Scenes"
ROSIS_WAVELENGTHS = "approximate: the published range 430 to 860 nm, evenly divided; the dropped bands are not listed"

_DATASETS = (
    SceneDataset(
        name="CAVE", sensor="Apogee Alta U260 with VariSpec filter", images=32, size=(512, 512), pixel_metres=0.001,
        wavelength_nm=np.arange(400.0, 701.0, 10.0), wavelength_source="the data set's page: 400 to 700 nm by 10",
        files=(ExpectedFile("*_ms_01.png", band_suffixes=tuple(f"_ms_{band:02d}.png" for band in range(1, 32))),),
        page="https://cave.cs.columbia.edu/repository/Multispectral",
        fetch="complete_ms_data.zip, unpacked: a folder NAME_ms/NAME_ms per scene, NAME_ms_01.png to NAME_ms_31.png",
        licence="no licence stated, offered to the research community; cite Yasuma et al. 2010",
        note="reflectance, 16 bits; the PNGs of watercolors hold 8 bits in several equal channels; the first is read",
    ),
    SceneDataset(
        name="Harvard", sensor="Nuance FX", images=77, size=(1040, 1392), pixel_metres=0.001,
        wavelength_nm=np.arange(420.0, 721.0, 10.0), wavelength_source="the data set's page: 420 to 720 nm by 10",
        files=(ExpectedFile("*hsdb*/img*.mat", "ref"), ExpectedFile("*harvard*/img*.mat", "ref")),
        page="http://vision.seas.harvard.edu/hyperspec/",
        fetch="CZ_hsdb.tgz (50 images) and CZ_hsdbi.tgz (27), unpacked: CZ_hsdb/img*.mat, CZ_hsdbi/img*.mat (ref, lbl)",
        licence="non-commercial research; cite Chakrabarti and Zickler 2011",
        note="radiance up to the gains of calib.txt, which are not applied; pixels that moved (lbl) are not masked",
    ),
    SceneDataset(
        name="PaviaC", sensor="ROSIS", size=(1096, 715), pixel_metres=1.3, wavelength_nm=np.linspace(430.0, 860.0, 102),
        wavelength_source=ROSIS_WAVELENGTHS,
        files=(ExpectedFile("Pavia.mat", "pavia"), ExpectedFile("paviaC.mat")),
        page=f"{EHU_PAGE}#Pavia_Centre_scene",
        fetch="Pavia.mat",
        licence="no licence stated; credit P. Gamba, University of Pavia",
        note="1096 x 1096 without a wide strip of missing data: two distant parts of the city meet inside the scene",
    ),
    SceneDataset(
        name="PaviaU", sensor="ROSIS", size=(610, 340), pixel_metres=1.3, wavelength_nm=np.linspace(430.0, 860.0, 103),
        wavelength_source=ROSIS_WAVELENGTHS,
        files=(ExpectedFile("PaviaU.mat", "paviaU"),),
        page=f"{EHU_PAGE}#Pavia_University_scene",
        fetch="PaviaU.mat",
        licence="no licence stated; credit P. Gamba, University of Pavia",
    ),
    SceneDataset(
        name="Chikusei", sensor="Headwall Hyperspec-VNIR-C", size=(2517, 2335), pixel_metres=2.5,
        wavelength_nm=np.linspace(363.0, 1018.0, 128),
        wavelength_source="the ENVI header; for the .mat file the published range 363 to 1018 nm, evenly divided",
        files=(ExpectedFile("HyperspecVNIR_Chikusei_20140729.hdr"),
               ExpectedFile("HyperspecVNIR_Chikusei_20140729.mat", "chikusei")),
        page="https://naotoyokoya.com/Download.html",
        fetch="the ENVI or MATLAB archive, unpacked: HyperspecVNIR_Chikusei_20140729.hdr with .bsq, or .mat",
        licence="CC BY 3.0; acknowledge Space Application Laboratory, Univ. of Tokyo; cite Yokoya and Iwasaki 2016",
        note="1.5 GB in memory; the borders are black where the flight lines end",
    ),
    SceneDataset(
        name="Botswana", sensor="EO-1 Hyperion", size=(1476, 256), pixel_metres=30.0,
        wavelength_nm=hyperion_centres(BOTSWANA_BANDS),
        wavelength_source="Hyperion's centres (within 0.2 nm) of the bands that the page lists as kept",
        files=(ExpectedFile("Botswana.mat", "Botswana"),),
        page=f"{EHU_PAGE}#Botswana",
        fetch="Botswana.mat",
        licence="no licence stated; recorded by NASA's EO-1, prepared by the University of Texas",
    ),
    SceneDataset(
        name="WDC", sensor="HYDICE", size=(1280, 307), pixel_metres=2.5, wavelength_nm=washington_centres(),
        wavelength_source="the list that circulates with the scene; dc.tif itself has none",
        files=(ExpectedFile("dc.tif"),),
        page="https://engineering.purdue.edu/~biehl/MultiSpec/hyperspectral.html",
        fetch="Hyperspectral_Project.zip, unpacked: dc.tif",
        licence="no licence stated; credit the Spectral Information Technology Application Center of Virginia",
        note="the file has 1280 rows, though its page says 1208",
    ),
    SceneDataset(
        name="Houston", sensor="ITRES CASI-1500", size=(1202, 4172), pixel_metres=1.0,
        wavelength_nm=np.linspace(380.0, 1050.0, 48),
        wavelength_source="the ENVI header, else approximate: the published range 380 to 1050 nm, evenly divided",
        files=(ExpectedFile("20170218_UH_CASI_S4_NAD83.pix"), ExpectedFile("20170218_UH_CASI_S4_NAD83.tif"),
               ExpectedFile("Houston18.mat", "ori_data")),
        page="https://machinelearning.ee.uh.edu/"
        "2018-ieee-grss-data-fusion-challenge-fusion-of-multispectral-lidar-and-hyperspectral-data/",
        fetch="the 2018 contest's archive, unpacked: FullHSIDataset/20170218_UH_CASI_S4_NAD83.pix with .hdr",
        licence="research, after registration; acknowledge the University of Houston and the IEEE GRSS IADF committee",
        note="of the file's 50 channels the last two are not spectral bands; Houston18.mat is a crop made by others",
    ),
    SceneDataset(
        name="Loukia", sensor="EO-1 Hyperion", size=(249, 945), pixel_metres=30.0,
        wavelength_nm=hyperion_centres(HYRANK_BANDS),
        wavelength_source="approximate: Hyperion's 196 calibrated bands without the usual 20 water bands",
        files=(ExpectedFile("Loukia.tif"), ExpectedFile("Loukia.mat", "ori_data"), ExpectedFile("Loukia.hdr")),
        page="https://zenodo.org/records/1222202",
        fetch="HyRANK_satellite.zip, unpacked: TrainingSet/Loukia.tif",
        licence="open data of the ISPRS benchmark HyRANK, terms on its page; cite Karantzalos et al. 2018",
    ),
)  # fmt: skip
DATASETS: dict[str, SceneDataset] = {dataset.name: dataset for dataset in _DATASETS}


def dataset_named(name: str) -> SceneDataset | None:
    """Return a data set by its name, case-insensitive."""
    return next((dataset for known, dataset in DATASETS.items() if known.casefold() == name.casefold()), None)


def require_dataset(name: str) -> SceneDataset:
    dataset = dataset_named(name)
    if dataset is None:
        raise OptionError(f"data set {name!r}", f"one of {', '.join(DATASETS)}", "see `hyperfuse scenes`")
    return dataset


def scenes_folder(folder: Path | None = None) -> Path:
    """Return where data sets are searched: the given folder, else HYPERFUSE_SCENES, else ./scenes."""
    return folder or Path(os.environ.get(FOLDER_VARIABLE) or "scenes")


def list_datasets(datasets: Iterable[SceneDataset], folder: Path) -> list[FoundDataset]:
    """Search a folder and those below it for data sets; those without files have no paths."""
    files = sorted(
        (Path(parent, name) for parent, _, names in os.walk(folder) for name in names),
        key=lambda path: (len(path.parts), str(path)),  # the shallow ones first
    )
    names = {path: f"/{folder.absolute().name}/{path.relative_to(folder).as_posix()}".casefold() for path in files}
    return [_find_dataset(dataset, names) for dataset in datasets]


def _find_dataset(dataset: SceneDataset, names: dict[Path, str]) -> FoundDataset:
    for kind in dataset.files:
        paths: dict[str, Path] = {}
        for path, name in names.items():
            if fnmatch.fnmatchcase(name, f"*/{kind.pattern}".casefold()):
                paths.setdefault(_scene_name(dataset, kind, path), path)
        if paths:
            return FoundDataset(dataset, tuple(paths[name] for name in sorted(paths)), kind)
    return FoundDataset(dataset, (), dataset.files[0])


def _scene_name(dataset: SceneDataset, kind: ExpectedFile, path: Path) -> str:
    """`cave_balloons`, `harvard_imga1`, `wdc`."""
    if dataset.images == 1:
        return dataset.name.lower()
    ending = kind.band_suffixes[0] if kind.band_suffixes else path.suffix
    return f"{dataset.name.lower()}_{path.name[: -len(ending)].lower()}"


def load_scenes(source: str, folder: Path | None = None, variable: str | None = None) -> list[Scene]:
    """Read the scenes of one source into memory, in alphabetical order.

    A `source` is `CAVE` or another name of `hyperfuse scenes`, `my/folder`, `my/folder/*.tif`, `scene.mat`, or
    `synthetic`; `folder` is where data sets and relative paths are searched, see `scenes_folder`; `variable` is the
    array in files that hold several.
    """
    folder = scenes_folder(folder)
    if source == SYNTHETIC:
        return synthetic_scenes()
    dataset = dataset_named(source)
    found = None if dataset is None else _require_found(dataset, folder)
    paths = _cube_paths(source, folder) if found is None else found.paths
    scenes = []
    with progress(f"Reading {dataset.name if dataset else 'scenes'}", len(paths)) as advance:
        for path in paths:
            scenes.append(read_scene(path, variable) if found is None else _read_image(found, path))
            advance(1)
    return scenes


def _require_found(dataset: SceneDataset, folder: Path) -> FoundDataset:
    (found,) = list_datasets([dataset], folder)
    if not found.paths:
        raise CubeFileError(
            f"no file of {dataset.name} in {folder}" if folder.is_dir() else f"no folder {folder} with {dataset.name}",
            f"{' or '.join(kind.pattern for kind in dataset.files)}, there or in a folder below",
            f"get {dataset.fetch}, from {dataset.page}, or name another folder (--folder, {FOLDER_VARIABLE})",
        )
    return found


def _read_image(found: FoundDataset, path: Path) -> Scene:
    dataset, kind = found.dataset, found.kind
    cube = _stack_bands(path, kind.band_suffixes) if kind.band_suffixes else open_cube(path, kind.variable)
    # More bands than the data set has are channels of another kind, at the end; fewer mean another file.
    if cube.sizes["band"] < dataset.bands:
        got, expected = f"{path} has {cube.sizes['band']} bands", f"the {dataset.bands} of {dataset.name}"
        raise BandError(got, expected, f"get {dataset.fetch}, from {dataset.page}")
    return scene_from_cube(
        cube.isel(band=slice(0, dataset.bands)),
        _scene_name(dataset, kind, path),
        dataset.sensor,
        dataset=dataset.name,
        wavelength_nm=dataset.wavelength_nm,
        path=path,
    )


def _stack_bands(first: Path, suffixes: tuple[str, ...]) -> xr.DataArray:
    """A cube of single images, one per band; of images with several channels the first."""
    stem = first.name[: -len(suffixes[0])]
    paths = [first.with_name(stem + suffix) for suffix in suffixes]
    missing = [path.name for path in paths if not path.is_file()]
    remedy = "unpack the archive again"
    if missing:
        raise CubeFileError(f"{first.parent} lacks {', '.join(missing)}", f"{len(paths)} bands", remedy)
    bands = [open_cube(path).isel(band=0).values for path in paths]
    if len({band.shape for band in bands}) > 1:
        raise CubeFileError(f"the bands in {first.parent} have different sizes", "one size", remedy)
    return make_cube(np.stack(bands))


def _cube_paths(source: str, folder: Path) -> list[Path]:
    """The files that a path or pattern means, relative to the working directory or to the folder of scenes."""
    for path in (start / Path(source).expanduser() for start in (Path(), folder)):
        if path.is_dir() and path.suffix.lower() != ".zarr":
            names = sorted(each for each in path.iterdir() if not each.name.startswith("."))
            if paths := [each for each in names if each.suffix.lower() in CUBE_SUFFIXES]:
                return paths
            expected = f"files of {', '.join(sorted(CUBE_SUFFIXES))}"
            raise CubeFileError(f"no cubes in {path}", expected, "name the folder that holds them")
        if path.exists():
            return [path]
        if glob.has_magic(source) and (paths := sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))):
            return paths
    known = {name.casefold(): name for name in (*DATASETS, SYNTHETIC)}
    near = difflib.get_close_matches(source.casefold(), known, n=1)
    expected = f"a file, folder or pattern of files, here or in {folder}; {SYNTHETIC}; or one of {', '.join(DATASETS)}"
    check_path = f"check the path, or name the folder of scenes (--folder, {FOLDER_VARIABLE})"
    raise OptionError(f"scenes {source!r}", expected, f"did you mean {known[near[0]]}?" if near else check_path)


def overview(listed: Sequence[FoundDataset]) -> str:
    """Format a line of numbers for each data set, and below it the file, where to get it, and its licence."""
    lines = [f"{'name':<10}{'found':<10}{'images':>6}  {'size':<11}{'bands':>5}  {'nm':<11}{'sensor'}"]
    for entry in listed:
        dataset, nm = entry.dataset, entry.dataset.wavelength_nm
        size = f"{dataset.size[0]}x{dataset.size[1]}"
        approximate = "~" if dataset.wavelength_source.startswith("approximate") else ""
        nm_range = f"{approximate}{nm.min():.0f}-{nm.max():.0f}"
        lines.append(
            f"{dataset.name:<10}{entry.found:<10}{dataset.images:>6}  {size:<11}{dataset.bands:>5}  {nm_range:<11}"
            f"{dataset.sensor}"
        )
        lines += [f"{'':<10}{key:<10}{value}" for key, value in _origin(dataset).items()]
    return "\n".join(lines)


def details(entry: FoundDataset) -> str:
    """Format everything about one data set."""
    dataset = entry.dataset
    shown = ", ".join(f"{nm:.1f}".removesuffix(".0") for nm in dataset.wavelength_nm)
    rows = {
        "name": dataset.name,
        "found": entry.found,
        "sensor": dataset.sensor,
        "images": f"{dataset.images} of {dataset.size[0]}x{dataset.size[1]} pixels",
        "pixels": f"{dataset.pixel_metres:g} m, {dataset.bands} bands",
        **_origin(dataset),
        "get": dataset.fetch,
        "bands nm": f"{shown} ({dataset.wavelength_source})",
        "note": dataset.note,
    }
    lines = [f"{key:<10}{value}" for key, value in rows.items() if value]
    return "\n".join([*lines, *(f"{'':<10}{path}" for path in entry.paths)])


def _origin(dataset: SceneDataset) -> dict[str, str]:
    files = []
    for kind in dataset.files:
        last_band = f" to {kind.band_suffixes[-1]}" if kind.band_suffixes else ""
        files.append(f"{kind.pattern}{last_band}" + (f" ({kind.variable})" if kind.variable else ""))
    return {"file": " or ".join(files), "from": dataset.page, "licence": dataset.licence}
