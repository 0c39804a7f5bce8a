"""The public data sets that experiments name: the paper's seven, and its two unseen sensors.

What stands here is what the data sets' own pages and files say, and where nothing says it, how else it is known.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.loading.scene_wavelengths import BOTSWANA_BANDS, HYRANK_BANDS, hyperion_centres, washington_centres

FOLDER_VARIABLE = "HYPERFUSE_SCENES"
DEFAULT_FOLDER = Path("scenes")


@dataclass(frozen=True)
class ExpectedFile:
    """How a data set lies on disk: a name, perhaps with its folder and wildcards, compared without regard to case."""

    pattern: str
    variable: str | None = None
    """The array in a file that holds several."""
    band_suffixes: tuple[str, ...] = ()
    """Where every band is a file of its own: how their names end, in order; the pattern is that of the first."""


@dataclass(frozen=True)
class SceneDataset:
    name: str
    sensor: str
    images: int
    rows: int
    columns: int
    bands: int
    pixel_metres: float
    wavelength_nm: NDArray[np.float64]
    wavelength_source: str
    files: tuple[ExpectedFile, ...]
    """Any one of these will do; the first that is found is read."""
    page: str
    fetch: str
    licence: str
    note: str = ""


@dataclass(frozen=True)
class FoundDataset:
    """Where a data set lies: one path per image, in alphabetical order, and how they are to be read."""

    dataset: SceneDataset
    paths: tuple[Path, ...]
    kind: ExpectedFile


EHU_PAGE = "https://www.ehu.eus/ccwintco/index.php/Hyperspectral_Remote_Sensing_Scenes"
CAVE_BANDS = tuple(f"_ms_{band:02d}.png" for band in range(1, 32))

_DATASETS = (
    SceneDataset(
        name="CAVE",
        sensor="Apogee Alta U260 with VariSpec filter",
        images=32,
        rows=512,
        columns=512,
        bands=31,
        pixel_metres=0.001,
        wavelength_nm=np.arange(400.0, 701.0, 10.0),
        wavelength_source="the data set's page: 400 to 700 nm by 10",
        files=(ExpectedFile("*_ms_01.png", band_suffixes=CAVE_BANDS),),
        page="https://cave.cs.columbia.edu/repository/Multispectral",
        fetch="complete_ms_data.zip, unpacked: a folder NAME_ms/NAME_ms per scene, with NAME_ms_01.png to NAME_ms_31.png",
        licence="no licence stated, offered to the research community; cite Yasuma et al. 2010",
        note="reflectance, 16 bits; the PNGs of watercolors hold 8 bits in several equal channels, of which the first is read",
    ),
    SceneDataset(
        name="Harvard",
        sensor="Nuance FX",
        images=77,
        rows=1040,
        columns=1392,
        bands=31,
        pixel_metres=0.001,
        wavelength_nm=np.arange(420.0, 721.0, 10.0),
        wavelength_source="the data set's page: 420 to 720 nm by 10",
        files=(
            ExpectedFile("*hsdb*/img*.mat", "ref"),
            ExpectedFile("*harvard*/img*.mat", "ref"),
        ),
        page="http://vision.seas.harvard.edu/hyperspec/",
        fetch="CZ_hsdb.tgz (50 images) and CZ_hsdbi.tgz (27), unpacked: CZ_hsdb/img*.mat, CZ_hsdbi/img*.mat, each with ref and lbl",
        licence="non-commercial research; cite Chakrabarti and Zickler 2011",
        note="radiance up to the gains of calib.txt, which are not applied; pixels that moved (lbl) are not masked",
    ),
    SceneDataset(
        name="PaviaC",
        sensor="ROSIS",
        images=1,
        rows=1096,
        columns=715,
        bands=102,
        pixel_metres=1.3,
        wavelength_nm=np.linspace(430.0, 860.0, 102),
        wavelength_source="approximate: the published range 430 to 860 nm, evenly divided; the dropped bands are not listed",
        files=(ExpectedFile("Pavia.mat", "pavia"), ExpectedFile("paviaC.mat")),
        page=f"{EHU_PAGE}#Pavia_Centre_scene",
        fetch="Pavia.mat",
        licence="no licence stated; credit P. Gamba, University of Pavia",
        note="1096 x 1096 less a wide strip without data: two parts of the city that are no neighbours meet inside it",
    ),
    SceneDataset(
        name="PaviaU",
        sensor="ROSIS",
        images=1,
        rows=610,
        columns=340,
        bands=103,
        pixel_metres=1.3,
        wavelength_nm=np.linspace(430.0, 860.0, 103),
        wavelength_source="approximate: the published range 430 to 860 nm, evenly divided; the dropped bands are not listed",
        files=(ExpectedFile("PaviaU.mat", "paviaU"),),
        page=f"{EHU_PAGE}#Pavia_University_scene",
        fetch="PaviaU.mat",
        licence="no licence stated; credit P. Gamba, University of Pavia",
    ),
    SceneDataset(
        name="Chikusei",
        sensor="Headwall Hyperspec-VNIR-C",
        images=1,
        rows=2517,
        columns=2335,
        bands=128,
        pixel_metres=2.5,
        wavelength_nm=np.linspace(363.0, 1018.0, 128),
        wavelength_source="the ENVI header; for the .mat file the published range 363 to 1018 nm, evenly divided",
        files=(
            ExpectedFile("HyperspecVNIR_Chikusei_20140729.hdr"),
            ExpectedFile("HyperspecVNIR_Chikusei_20140729.mat", "chikusei"),
        ),
        page="https://naotoyokoya.com/Download.html",
        fetch="the ENVI or MATLAB archive, unpacked: HyperspecVNIR_Chikusei_20140729.hdr with .bsq, or .mat",
        licence="CC BY 3.0; acknowledge the Space Application Laboratory, University of Tokyo; cite Yokoya and Iwasaki 2016",
        note="1.5 GB in memory; the borders are black where the flight lines end",
    ),
    SceneDataset(
        name="Botswana",
        sensor="EO-1 Hyperion",
        images=1,
        rows=1476,
        columns=256,
        bands=145,
        pixel_metres=30.0,
        wavelength_nm=hyperion_centres(BOTSWANA_BANDS),
        wavelength_source="Hyperion's centres (within 0.2 nm) of the bands that the page says are kept",
        files=(ExpectedFile("Botswana.mat", "Botswana"),),
        page=f"{EHU_PAGE}#Botswana",
        fetch="Botswana.mat",
        licence="no licence stated; recorded by NASA's EO-1, prepared by the University of Texas",
    ),
    SceneDataset(
        name="WDC",
        sensor="HYDICE",
        images=1,
        rows=1280,
        columns=307,
        bands=191,
        pixel_metres=2.5,
        wavelength_nm=washington_centres(),
        wavelength_source="the list that goes around with the scene, not in dc.tif itself",
        files=(ExpectedFile("dc.tif"),),
        page="https://engineering.purdue.edu/~biehl/MultiSpec/hyperspectral.html",
        fetch="Hyperspectral_Project.zip, unpacked: dc.tif",
        licence="no licence stated; credit the Spectral Information Technology Application Center of Virginia",
        note="the file has 1280 rows, though its page says 1208",
    ),
    SceneDataset(
        name="Houston",
        sensor="ITRES CASI-1500",
        images=1,
        rows=1202,
        columns=4172,
        bands=48,
        pixel_metres=1.0,
        wavelength_nm=np.linspace(380.0, 1050.0, 48),
        wavelength_source="the ENVI header where it has them; else approximate: the published range 380 to 1050 nm, evenly divided",
        files=(
            ExpectedFile("20170218_UH_CASI_S4_NAD83.pix"),
            ExpectedFile("20170218_UH_CASI_S4_NAD83.tif"),
            ExpectedFile("Houston18.mat", "ori_data"),
        ),
        page="https://machinelearning.ee.uh.edu/2018-ieee-grss-data-fusion-challenge-fusion-of-multispectral-lidar-and-hyperspectral-data/",
        fetch="the 2018 contest's archive, unpacked: FullHSIDataset/20170218_UH_CASI_S4_NAD83.pix with .hdr",
        licence="research, after registration; acknowledge the University of Houston and the IEEE GRSS IADF committee",
        note="the file holds 50 channels, the last two of which are no spectral bands; Houston18.mat is a part that others cut out",
    ),
    SceneDataset(
        name="Loukia",
        sensor="EO-1 Hyperion",
        images=1,
        rows=249,
        columns=945,
        bands=176,
        pixel_metres=30.0,
        wavelength_nm=hyperion_centres(HYRANK_BANDS),
        wavelength_source="approximate: Hyperion's 196 calibrated bands without the 20 usual water bands; the files do not say",
        files=(ExpectedFile("Loukia.tif"), ExpectedFile("Loukia.mat", "ori_data"), ExpectedFile("Loukia.hdr")),
        page="https://zenodo.org/records/1222202",
        fetch="HyRANK_satellite.zip, unpacked: TrainingSet/Loukia.tif",
        licence="open data of the ISPRS benchmark HyRANK, terms on its page; cite Karantzalos et al. 2018",
    ),
)
DATASETS: dict[str, SceneDataset] = {dataset.name: dataset for dataset in _DATASETS}


def dataset_named(name: str) -> SceneDataset | None:
    """A data set by its name in any case."""
    return next((dataset for known, dataset in DATASETS.items() if known.casefold() == name.casefold()), None)


def require_dataset(name: str) -> SceneDataset:
    dataset = dataset_named(name)
    if dataset is None:
        raise OptionError(f"data set {name!r}", f"one of {', '.join(DATASETS)}", "see `hyperfuse scenes`")
    return dataset


def scenes_folder(folder: Path | None = None) -> Path:
    """Where data sets are looked for: as asked, else where HYPERFUSE_SCENES says, else ./scenes."""
    return folder or Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER)


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, the shallow ones first; none where there is no such folder."""
    found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(found, key=lambda path: (len(path.parts), str(path)))


def find_dataset(dataset: SceneDataset, folder: Path, files: Iterable[Path]) -> FoundDataset | None:
    """The data set among some files below a folder."""
    within = {path: f"/{folder.absolute().name}/{path.relative_to(folder).as_posix()}".casefold() for path in files}
    for kind in dataset.files:
        pattern = f"*/{kind.pattern}".casefold()
        by_name: dict[str, Path] = {}
        for path, name in within.items():
            if fnmatch.fnmatchcase(name, pattern):
                by_name.setdefault(scene_name(dataset, kind, path), path)
        if by_name:
            paths = tuple(by_name[name] for name in sorted(by_name))
            return FoundDataset(dataset, paths, kind)
    return None


def require_found(dataset: SceneDataset, folder: Path) -> FoundDataset:
    found = find_dataset(dataset, folder, files_below(folder))
    if found is None:
        where = (
            f"no file of {dataset.name} in {folder}" if folder.is_dir() else f"no folder {folder}, where {dataset.name} should be"
        )
        raise CubeFileError(
            where,
            f"{' or '.join(kind.pattern for kind in dataset.files)}, there or in a folder below",
            f"get {dataset.fetch}, from {dataset.page}, or name another folder (--folder, {FOLDER_VARIABLE})",
        )
    return found


def scene_name(dataset: SceneDataset, kind: ExpectedFile, path: Path) -> str:
    """What the scene of a file is called: `cave_balloons`, `harvard_imga1`, `wdc`."""
    if dataset.images == 1:
        return dataset.name.lower()
    ending = kind.band_suffixes[0] if kind.band_suffixes else path.suffix
    return f"{dataset.name.lower()}_{path.name[: -len(ending)].lower()}"
