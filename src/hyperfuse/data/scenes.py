"""The public data sets that experiments name: the paper's seven, and its two unseen sensors.

What stands here is what the data sets' own pages and files say, and where nothing says it, how else it is known.

Band centres of data sets whose files do not hold them.

A scene in memory: values as stored, so that large data sets fit, and patches of it in [0, 1].

Shapes: C bands, H W rows and columns of the scene, r c of a patch.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from torch import Tensor

from hyperfuse.errors import CubeFileError, OptionError, ValueRangeError
from hyperfuse.io.cube import missing_values

FIRST_SWIR_BAND_OF_HYPERION = 71
# Botswana's page lists the bands it kept. For HyRANK nobody does: the 196 calibrated bands of Hyperion without the 20
# that are usually dropped for water (121-126, 167-180) are as many as HyRANK has.
BOTSWANA_BANDS = ((10, 55), (82, 97), (102, 119), (134, 164), (187, 220))
HYRANK_BANDS = ((8, 57), (79, 120), (127, 166), (181, 224))
# HYDICE disperses with a prism, so its spacing varies from 3 to 15 nm. Knots of the list that goes around with the
# Washington DC scene: number in an unbroken count of bands, centre in nm. The spline meets the whole list within 0.1
# nm.
HYDICE_KNOTS = (
    (0, 401.3), (10, 435.9), (20, 475.9), (30, 524.6), (40, 586.4), (50, 666.7), (60, 770.4), (70, 897.3), (80, 1040.5),
    (90, 1189.6), (100, 1336.2), (101, 1350.6), (110, 1476.2), (120, 1608.2), (130, 1732.2), (150, 1958.6), (160, 2062.6),
    (170, 2161.4), (180, 2255.5), (190, 2345.3), (200, 2431.4), (205, 2473.2),
)  # fmt: skip
WASHINGTON_BANDS = ((0, 101), (106, 136), (148, 205))


def hyperion_centres(kept: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Centres of some ranges of Hyperion's bands, counted from 1: two spectrometers, each linear within 0.2 nm."""
    bands = _numbers(kept)
    visible = 355.59 + 10.1752 * (bands - 1)
    infrared = 851.92 + 10.0887 * (bands - FIRST_SWIR_BAND_OF_HYPERION)
    return np.where(bands < FIRST_SWIR_BAND_OF_HYPERION, visible, infrared)


def washington_centres() -> NDArray[np.float64]:
    numbers, centres = zip(*HYDICE_KNOTS, strict=True)
    return np.asarray(CubicSpline(numbers, centres)(_numbers(WASHINGTON_BANDS)), dtype=np.float64)


def _numbers(ranges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(first, last + 1) for first, last in ranges])


# Values above this share of all are highlights: one glint must not make the rest of a scene dark.
UNIT_QUANTILE = 0.9995
LARGEST_SAMPLE = 4_000_000


@dataclass(frozen=True, eq=False)
class Scene:
    name: str
    sensor: str
    stored: NDArray[Any]
    """(C, H, W), as stored: uint16, int16, float32 ...; may be a memory map."""
    unit: float
    """What values are divided by; what is then above 1 or below 0 is clipped."""
    wavelength_nm: NDArray[np.float64] | None = None
    fwhm_nm: NDArray[np.float64] | None = None
    nodata: float | None = None
    dataset: str = ""
    """The data set of the catalogue that it belongs to, if any."""

    @property
    def bands(self) -> int:
        return int(self.stored.shape[0])

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return int(self.stored.shape[1]), int(self.stored.shape[2])

    def patch(self, rows: slice, columns: slice) -> Tensor:
        """(C, r, c) float32 in [0, 1]; what is missing becomes the mean of its band in this patch, or 0 where all of it
        is.
        """
        window = np.asarray(self.stored[:, rows, columns])
        values = window.astype(np.float32)
        values /= np.float32(self.unit)
        if self.missing_pixels is not None and self.missing_pixels[rows, columns].any():
            _fill(values, missing_values(window, self.nodata))
        return torch.from_numpy(np.clip(values, 0.0, 1.0, out=values))

    @cached_property
    def missing_pixels(self) -> NDArray[np.bool_] | None:
        """(H, W), true where some band has no value; None where nothing is missing."""
        if self.nodata is None and self.stored.dtype.kind != "f":
            return None
        missing = np.zeros(self.size, dtype=bool)
        for band in self.stored:
            missing |= missing_values(np.asarray(band), self.nodata)
        return missing if missing.any() else None


def scene_unit(stored: NDArray[Any], nodata: float | None = None) -> float:
    """The quantile of the values that becomes 1, of an evenly spread sample where there are many."""
    bands, rows, columns = stored.shape
    step = max(1, int(np.ceil(np.sqrt(bands * rows * columns / LARGEST_SAMPLE))))
    sample = np.asarray(stored[:, ::step, ::step])
    present = sample[~missing_values(sample, nodata)]
    unit = float(np.quantile(present.astype(np.float32), UNIT_QUANTILE)) if present.size else 0.0
    if not unit > 0:
        raise ValueRangeError("a scene without positive values", "reflectance, radiance or counts", "check the file")
    return unit


def _fill(values: NDArray[np.float32], missing: NDArray[np.bool_]) -> None:
    if not missing.any():
        return
    values[missing] = 0.0
    present = np.maximum(1, (~missing).sum(axis=(1, 2)))
    means = values.sum(axis=(1, 2), dtype=np.float64) / present
    np.copyto(values, means.astype(np.float32)[:, None, None], where=missing)


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
            f"no file of {dataset.name} in {folder}"
            if folder.is_dir()
            else f"no folder {folder}, where {dataset.name} should be"
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
