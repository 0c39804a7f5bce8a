"""Every option of every request, defined once.

A request is a frozen pydantic model; a field has a type, a default and a docstring, which is its help text. Everything
else derives from the model: the options of the command line (`cli/options.py`), the keywords of the Python functions
(`takes_options`), the columns of a batch list, the form of the viewer, the provenance record of the output and the
tables in `docs/options.md` (`options_table`). To add an option, add a field here and use it where the work is done.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import re
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from hyperfuse.errors import OptionError, RenamedWarning

P = ParamSpec("P")
R = TypeVar("R")

OBSERVATION = "How the pair was observed"
INPUTS = "Inputs"
OUTPUT = "Output"
LARGE_SCENES = "Large scenes"
SIMULATION = "How pairs are simulated"
TABLES = "Tables and figures"

Dtype = Literal["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float32", "float64"]
DTYPES = get_args(Dtype)
# As GDAL calls them.
FormatName = Literal["GTiff", "COG", "ENVI", "netCDF", "HDF5", "Zarr"]
Compression = Literal["deflate", "zstd", "lzw", "none"]
COMPRESSIONS = get_args(Compression)
DEFAULT_METHOD = "universal"
# Still accepted, with a warning.
FORMER_NAMES = {
    "response": "srf",
    "responses": "srfs",
    "with_q2n": "q2n",
    "belief": "perturbation",
    "HYPERFUSE_SCENES": "HYPERFUSE_DATA",
}
# "psf_fwhm=4.0 shift=(0.0, 1.0) trust=hsi": a value ends where the next name begins.
RECORDED_OPTION = re.compile(r"(\w+)=(.*?)(?= \w+=|$)")
# Constraints on numbers, by their names in pydantic's errors, in our words.
LIMITS = {"gt": "a number above {:g}", "ge": "at least {:g}", "lt": "a number below {:g}", "le": "at most {:g}"}
LARGEST_SIDE, MOST_BANDS = 16384, 4096

SRF_HELP = (
    "The MSI's spectral response. A sensor: Sentinel-2A/2B/2C, Landsat-4/5/7/8/9, SPOT-1/2/3 (HRV1, HRV2), "
    "SPOT-4 (HRVIR1, HRVIR2), SPOT-5 (HRG1, HRG2), RapidEye, MODIS-Terra, MODIS-Aqua, ASTER, optionally with bands "
    "(Sentinel-2A:B2,B3,B4,B8). Gaussian bands: rgb, rgb+nir, rgb+nir+swir. A CSV file of curves (header "
    "wavelength_nm,name,...). A matrix (MSI bands, HSI bands): CSV without header, .npy, .npz, .mat."
)

WAVELENGTHS_HELP = (
    "Band centres of a cube that has none: a file with one number per band (a table, an ENVI header, another cube), "
    "FIRST:LAST in nm for even spacing, or a sensor (Sentinel-2A/2B/2C, Landsat-4/5/7/8/9, Hyperion), optionally with "
    "bands (Sentinel-2A:B2,B3,B4,B8)."
)

# In forms.
INPUT_TYPES = {
    bool: "checkbox",
    int: "number",
    float: "number",
    Literal: "select",
    str: "text",
    tuple: "text",
    dict: "text",
}
ACRONYMS = ("hsi", "msi", "psf", "fwhm", "crs", "ram", "gb", "stac", "cog", "srf", "snr", "db")


@dataclass(frozen=True)
class Option:
    """What the interfaces need to know about a field besides its type, default and docstring."""

    metavar: str | None = None
    panel: str | None = None
    flag: str | None = None
    """On the command line, where it differs from the field's name."""
    gdal: str | None = None
    """What GDAL's programs call it, which the command line also accepts."""
    aliases: tuple[str, ...] = ()
    """Further names of the field in batch lists."""
    changes_result: bool = True
    """False for options of how a run is carried out, which leave the result as it is."""
    is_path: bool = False
    """In a batch list, relative to the list's folder."""
    is_output: bool = False
    """Whether a path is written, not read."""
    default_text: str | None = None
    repeat: bool = False
    """Whether a sequence is given by repeating the option, not by commas."""
    help: str = ""
    """By default the docstring of the field."""


def _numbers(value: Any) -> Any:
    """Accept "0.5 1", "0.5,1" and "(0.5, 1)" for a tuple of numbers."""
    return tuple(re.split(r"[\s,;]+", value.strip("()[] "))) if isinstance(value, str) else value


def _assignments(value: Any) -> Any:
    """Accept ["NAME=VALUE", ...] and "NAME=VALUE NAME=VALUE" for a mapping."""
    if isinstance(value, str):
        value = re.split(r"[\s;]+", value.strip())
    if value is None or isinstance(value, Mapping):
        return value or {}
    pairs = [str(text).partition("=") for text in value]
    for name, equals, text in pairs:
        if not name or not equals:
            raise OptionError(f"--co {name}{equals}{text}", "--co NAME=VALUE", "for example --co COMPRESS=ZSTD")
    return {name: text for name, _, text in pairs}


def _names(value: Any) -> Any:
    """Accept "a,b" for ("a", "b") and "none" for ()."""
    if not isinstance(value, str):
        return value
    names = tuple(part.strip() for part in value.split(",") if part.strip())
    return () if names == ("none",) else names


def _gdal_type(value: Any) -> Any:
    """Accept GDAL's names of data types: Byte, UInt16, Float32."""
    name = value.lower() if isinstance(value, str) else value
    return "uint8" if name == "byte" else name


def _format_name(value: Any) -> Any:
    """Accept names of formats in any case, as GDAL does."""
    return next((name for name in get_args(FormatName) if str(value).lower() == name.lower()), value)


def _repeated(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _scales(value: Any) -> Any:
    """Accept "4,3.2,10/3"."""
    try:
        return tuple(float(Fraction(part)) if isinstance(part, str) else part for part in _names(value))
    except (ValueError, ZeroDivisionError, TypeError):
        raise OptionError(f"scales {value!r}", "numbers such as 4, 3.2 or 10/3", "fix --scales") from None


def _knowledge(value: Any) -> Any:
    return ("blind", "oracle") if value == "both" else _names(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Repeated = Annotated[tuple[str, ...], BeforeValidator(_repeated)]
Pair = Annotated[tuple[float, float], BeforeValidator(_numbers)]
Pairs = Annotated[tuple[Pair, ...], BeforeValidator(_repeated)]
Bounds = Annotated[tuple[float, float, float, float], BeforeValidator(_numbers)]
Assignments = Annotated[dict[str, str], BeforeValidator(_assignments)]
Scales = Annotated[tuple[Annotated[float, Field(gt=1)], ...], Field(min_length=1), BeforeValidator(_scales)]
BandAxis = Literal[0, 1, 2]
BandCount = Annotated[int, Field(ge=1, le=MOST_BANDS)]
Knowledge = Literal["blind", "oracle", "nominal"]


class Request(BaseModel):
    """Base of all requests: frozen, no unknown options, errors that name the option."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, use_attribute_docstrings=True, defer_build=True
    )

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            if isinstance(value, str | Path) and "\0" in str(value):
                raise OptionError(f"{name.replace('_', ' ')} with a NUL character", "none", f"fix {name}")
        try:
            names = field_names(type(self))
            current = with_current_names(options, type(self).model_fields)
            super().__init__(**{names.get(name, name): value for name, value in current.items()})
        except ValidationError as error:
            raise _option_error(type(self), error) from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"

    __str__ = __repr__

    def replace(self, **changes: Any) -> Self:
        """The same request with some options changed, validated again."""
        return type(self)(**({name: getattr(self, name) for name in self.model_fields_set} | changes))

    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        defaults = type(self).model_fields
        values = {name: getattr(self, name) for name in defaults}
        return {name: value for name, value in values.items() if not _same(value, default_of(defaults[name]))}

    def recorded(self) -> dict[str, Any]:
        """The options that change the result and differ from their defaults, in plain types."""
        given = self.given()
        return {name: _plain(given[name]) for name in given if option_of(type(self), name).changes_result}

    @classmethod
    def from_record(cls, text: str) -> Self:
        """The request behind a provenance record, "psf_fwhm=4.0 shift=(0.0, 1.0)"; what cannot be used is left out."""
        names, found = field_names(cls), cls()
        for key, value in RECORDED_OPTION.findall(text):
            with contextlib.suppress(OptionError, KeyError):
                found = found.replace(**{names[key]: value})
        return found


class OutputConfig(Request):
    """How a cube is stored; None leaves it as it is."""

    bands: Annotated[str | None, Option("LIST", OUTPUT, gdal="-b")] = None
    """Only these bands: by number from 1 (1-50,60,70), by wavelength (400-1000nm, 0.4-1.0um, 660nm), `good` to leave
    out bad ones; several joined by commas (400-1000nm,good).
    """
    dtype: Annotated[Dtype | None, BeforeValidator(_gdal_type), Option("TYPE", OUTPUT, gdal="-ot")] = None
    """Store as uint8, int16, ... float64; values that do not fit are clipped and counted."""
    scale_factor: Annotated[float | None, Field(gt=0, allow_inf_nan=False), Option("F", OUTPUT)] = None
    """Store physical / F: 0.0001 with --dtype int16 as reflectance products do, 1 for physical values."""
    nodata: Annotated[float | None, Option("N", OUTPUT, gdal="-a_nodata")] = None
    """Stored value of pixels without data; nan with floats."""
    compress: Annotated[Compression | None, Option("NAME", OUTPUT)] = None
    """deflate, zstd, lzw or none, where the format supports it; by default deflate, zstd in .zarr."""
    overviews: Annotated[bool, Option(panel=OUTPUT)] = False
    """Add overviews (reduced resolutions) to the GeoTIFF, for viewers."""
    stac: Annotated[bool, Option(panel=OUTPUT)] = False
    """Also write a STAC item: OUT with .json instead."""
    cog: Annotated[bool, Option(panel=OUTPUT)] = False
    """Write a cloud-optimised GeoTIFF."""
    format: Annotated[
        FormatName | None,
        BeforeValidator(_format_name),
        Option("NAME", OUTPUT, flag="--of", gdal="-of", aliases=("of",)),
    ] = None
    """GTiff, COG, ENVI, netCDF, HDF5 or Zarr; must fit the suffix of OUT, which says it by default."""
    creation_options: Annotated[
        Assignments, Option("NAME=VALUE", OUTPUT, flag="--co", gdal="-co", aliases=("co", "options"))
    ] = Field(default_factory=dict)
    """The format's own option, e.g. INTERLEAVE=bip, TILED=no, VERSION=7.3; may be repeated."""
    overwrite: Annotated[bool, Option(panel=OUTPUT, gdal="-overwrite", changes_result=False)] = False
    """Replace OUT if it exists."""

    @property
    def writes_cog(self) -> bool:
        return self.cog or self.format == "COG"


class InputConfig(Request):
    """What is to be known about an image that its file does not say."""

    wavelengths: Annotated[Any, Option("FILE|FIRST:LAST|SENSOR", INPUTS, help=WAVELENGTHS_HELP)] = None
    nodata_in: Annotated[float | None, Option("VALUE", INPUTS)] = None
    """Stored value of pixels without data, in files that declare none."""


class ConvertConfig(InputConfig, OutputConfig):
    """Options of `hyperfuse convert`."""


class PairInputConfig(InputConfig):
    """The same for a pair."""

    msi_wavelengths: Annotated[Any, Option("FILE|FIRST:LAST|SENSOR", INPUTS)] = None
    """Band centres of the MSI; --wavelengths are those of the other images."""


class PairFilesConfig(PairInputConfig):
    """Masks of a pair, and which arrays of its files."""

    mask: Annotated[Any, Option("FILE", INPUTS, is_path=True)] = None
    """Mask of the MSI, such as clouds: pixels where this raster, on any grid, is not 0 are ignored."""
    hsi_mask: Annotated[Any, Option("FILE", INPUTS, is_path=True)] = None
    """Mask of the HSI."""
    hsi_variable: Annotated[str | None, Option(panel=INPUTS)] = None
    """Array to read from an HSI file that holds several."""
    msi_variable: Annotated[str | None, Option(panel=INPUTS)] = None
    """Array to read from an MSI file that holds several."""
    hsi_band_axis: Annotated[BandAxis | None, Option("0|1|2", INPUTS)] = None
    """Axis of the bands in an unlabelled HSI array."""
    msi_band_axis: Annotated[BandAxis | None, Option("0|1|2", INPUTS)] = None
    """Axis of the bands in an unlabelled MSI array."""


class PairConfig(PairFilesConfig):
    """How to read a pair: what every command that opens an HSI and an MSI takes."""

    extent: Annotated[Literal["intersection", "msi", "hsi"], Option("intersection|msi|hsi", INPUTS)] = "intersection"
    """Area to fuse: the overlap of both images, or the whole of one of them."""
    bounds: Annotated[Bounds | None, Option("XMIN YMIN XMAX YMAX", INPUTS, gdal="-te")] = None
    """Fuse only this area, in the MSI's coordinates."""
    bounds_crs: Annotated[str | None, Option("CRS", INPUTS, gdal="-te_srs")] = None
    """CRS of --bounds, e.g. EPSG:4326."""
    allow_scale_1: Annotated[bool, Option(panel=INPUTS)] = False
    """Accept an MSI with pixels as large as the HSI's."""

    def model_post_init(self, context: Any) -> None:
        if self.bounds is None and self.bounds_crs is not None:
            raise OptionError("a CRS for bounds, and no bounds", "both or none", "add --bounds XMIN YMIN XMAX YMAX")
        if self.bounds is not None:
            xmin, ymin, xmax, ymax = self.bounds
            if not (xmin < xmax and ymin < ymax and abs(sum(self.bounds)) < float("inf")):
                raise OptionError(
                    f"bounds {xmin:g} {ymin:g} {xmax:g} {ymax:g}", "XMIN YMIN XMAX YMAX with XMIN < XMAX, YMIN < YMAX"
                )

    @property
    def known_offset(self) -> tuple[float, float] | None:
        """The shift that the cut must follow."""
        return None


class ObservationConfig(PairConfig):
    """What is known about how a pair was observed; the rest is estimated from the pair."""

    estimate: Annotated[bool, Option(panel=OBSERVATION)] = True
    """Estimate shift, PSF, SRF and noise from the pair; otherwise trust the georeference and assume FWHM = scale."""
    srf: Annotated[Any, Option("SRF", OBSERVATION, help="Known SRF, not estimated. " + SRF_HELP)] = None
    psf_fwhm: Annotated[float | None, Field(gt=0, lt=1e4), Option("FWHM", OBSERVATION)] = None
    """Known PSF of the HSI, FWHM in fine pixels."""
    shift: Annotated[Pair | None, Option("DY DX", OBSERVATION)] = None
    """Known shift of the HSI against its georeference, down and right, fine pixels."""
    local_shift: Annotated[bool, Option(panel=OBSERVATION)] = False
    """Correct any shift that varies over the scene, even a weak one. See `hyperfuse register`."""
    harmonise: Annotated[Literal["auto", "off"], Option("auto|off", OBSERVATION)] = "auto"
    """Correct differences of tone, light, shadows and change between the two images (docs/real_pairs.md)."""
    skip_uncovered: Annotated[bool, Option(panel=OBSERVATION)] = False
    """Leave out MSI bands whose --srf lies outside the HSI's spectral range."""

    @property
    def known_offset(self) -> tuple[float, float] | None:
        return self.shift


class FuseConfig(ObservationConfig, OutputConfig):
    """Options of `hyperfuse fuse`, `hyperfuse.fuse` and `hyperfuse batch`."""

    method: Annotated[str, Option("NAME", gdal="-r")] = DEFAULT_METHOD
    """One of `hyperfuse methods`; `auto` chooses by reduced-resolution assessment and says why."""
    weights: Annotated[Any, Option("FOLDER", is_path=True)] = None
    """Fuse with this trained network instead of a method."""
    trust: Annotated[Literal["msi", "hsi"], Option("msi|hsi", OBSERVATION)] = "msi"
    """Whose georeference is right where the two disagree; the result lies there."""
    precision: Annotated[Literal["float32", "bfloat16", "auto"], Option("float32|bfloat16|auto")] = "float32"
    """Numbers that networks compute with; auto: bfloat16 where the processor multiplies it, in about half the time."""
    consistency: bool = False
    """Project the result onto both images, as far as their noise allows."""
    non_negative: Annotated[Literal["auto", "off"], Option("auto|off", OUTPUT)] = "auto"
    """Keep values from falling below zero, by more than noise, where the HSI does not."""
    uncertainty: Annotated[Path | None, Option("FILE", is_path=True, is_output=True, changes_result=False)] = None
    """Also write the expected error of each value, a standard deviation (docs/model_card.md)."""
    change_mask: Annotated[Path | None, Option("FILE", is_path=True, is_output=True, changes_result=False)] = None
    """Also write the weight of the MSI: from 1 where both images agree to 0 where it shows something else."""
    ram_gb: Annotated[
        float | None,
        Field(gt=0, lt=1e6),
        Option("GB", LARGE_SCENES, flag="--ram", aliases=("ram",), changes_result=False),
    ] = None
    """Peak memory; larger scenes are fused in tiles. By default half of the machine's."""
    resume: Annotated[bool, Option(panel=LARGE_SCENES, changes_result=False)] = False
    """Continue an interrupted run from its finished tiles."""
    workers: Annotated[int | None, Field(ge=1), Option("N", LARGE_SCENES, changes_result=False)] = None
    """Fuse tiles in N processes of this machine."""
    cluster: Annotated[str | None, Option("ADDRESS", LARGE_SCENES, changes_result=False)] = None
    """Fuse tiles on a Dask cluster, e.g. tcp://host:8786."""

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        expected = "one of the two"
        if self.method != DEFAULT_METHOD and self.weights is not None:
            raise OptionError(f"method {self.method!r} and weights", expected, "leave out --method or --weights")
        if self.workers is not None and self.cluster is not None:
            raise OptionError("workers of this machine and a cluster", expected, "leave out --workers or --cluster")
        if self.uncertainty is not None and (self.method != DEFAULT_METHOD or self.weights or self.consistency):
            raise OptionError(
                "--uncertainty with another method, weights or consistency",
                f"the method {DEFAULT_METHOD}, whose errors it estimates",
                "leave out --method, --weights and --consistency, or --uncertainty",
            )

    @property
    def known_offset(self) -> tuple[float, float] | None:
        """An HSI that is trusted is cut where its georeference says."""
        return self.shift if self.trust == "msi" else None


class SimulateConfig(InputConfig):
    """Options of `hyperfuse simulate` and `hyperfuse.simulate` beside scale and SRF."""

    psf_fwhm: Annotated[float | None, Option("FWHM", default_text="the scale")] = None
    """Width (FWHM) of the Gaussian PSF in fine pixels."""
    shift: Annotated[Pair, Option("DY DX")] = (0.0, 0.0)
    """Shift of the HSI against its georeference, down and right, fine pixels."""
    snr_hsi_db: Annotated[float | None, Option("DB", flag="--snr-hsi", default_text="no noise")] = None
    """Signal-to-noise ratio of the HSI, dB."""
    snr_msi_db: Annotated[float | None, Option("DB", flag="--snr-msi", default_text="no noise")] = None
    """Signal-to-noise ratio of the MSI, dB."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the noise."""
    skip_uncovered: bool = False
    """Drop SRF bands outside the reference's spectral range."""


class FusedFilesConfig(InputConfig):
    """Which arrays of the files of a fused image and its reference."""

    fused_variable: Annotated[str | None, Option(panel=INPUTS)] = None
    """Array to read from a fused file that holds several."""
    reference_variable: Annotated[str | None, Option(panel=INPUTS)] = None
    """Array to read from a reference file that holds several."""
    fused_band_axis: Annotated[BandAxis | None, Option("0|1|2", INPUTS)] = None
    """Axis of the bands in an unlabelled fused array."""
    reference_band_axis: Annotated[BandAxis | None, Option("0|1|2", INPUTS)] = None
    """Axis of the bands in an unlabelled reference array."""


class EvaluateConfig(FusedFilesConfig):
    """Options of `hyperfuse evaluate` and `hyperfuse.evaluate`."""

    scale: Annotated[float | None, Option("S", default_text="what FUSED has recorded")] = None
    """Fine over coarse, for ERGAS."""
    peak: Annotated[float | None, Option("P", default_text="1 for a reference within 0 to 1, else its maximum")] = None
    """Peak of the signal for PSNR and SSIM."""
    q2n: bool = False
    """Also compute Q2n, the hypercomplex quality index."""


class ReportConfig(PairFilesConfig, FusedFilesConfig):
    """Options of `hyperfuse report` and `hyperfuse.report`."""

    method: Annotated[str | None, Option("NAME", default_text="the one that FUSED was made by")] = None
    """Method to assess at reduced resolution."""
    weights: Annotated[Any, Option("FOLDER")] = None
    """The same for a trained network: the weights that FUSED was made by."""
    srf: Annotated[Any, Option("SRF", help="Known SRF of the MSI, not estimated. " + SRF_HELP)] = None
    overwrite: bool = False
    """Replace the page if it exists."""


class BenchmarkConfig(PairInputConfig):
    """Options of `hyperfuse benchmark` and `hyperfuse.benchmark`."""

    scenes: Annotated[Repeated, Option("[NAME=]SOURCE[@SRF,SRF]", repeat=True)] = ()
    """Scenes to degrade: file, folder, pattern or data set of `hyperfuse scenes`, optionally with a name and SRFs."""
    pairs: Annotated[Repeated, Option("HSI,MSI,REFERENCE", flag="--pair", repeat=True)] = ()
    """A pair recorded by two sensors, with its reference; REFERENCE,MSI simulates the HSI from the reference. Never
    fused as oracle.
    """
    methods: Annotated[Names, Option("NAME,NAME")] = ("all",)
    """Names of `hyperfuse methods`, all or none."""
    weights: Annotated[Repeated, Option("[NAME=]FOLDER", repeat=True)] = ()
    """A trained network, SSA or a baseline; repeat for more."""
    knowledge: Annotated[tuple[Knowledge, ...], Field(min_length=1), BeforeValidator(_knowledge)] = ("blind",)
    """blind: only the pair is given; oracle: also the true PSF, shift, SRF and noise; nominal: without estimation;
    both: blind and oracle.
    """
    scales: Annotated[Scales, Option("S,S", SIMULATION)] = (4.0,)
    """Fine over coarse, also fractions."""
    srfs: Annotated[Repeated, Option("SRF,SRF", SIMULATION)] = ("rgb",)
    """rgb, rgb+nir, rgb+nir+swir, sensors or files; those that a scene does not cover are left out."""
    noise: Annotated[Pairs, Option("HSI,MSI", SIMULATION, repeat=True)] = ()
    """Also with noise: signal-to-noise ratios in dB, such as 30,40."""
    shift: Annotated[Pairs, Option("DY,DX", SIMULATION, repeat=True)] = ()
    """Also with a shift: fine pixels down and right, such as 0.5,0.5."""
    imperfections: Annotated[Names, Option("KIND,KIND", SIMULATION)] = ()
    """Also with what a second sensor does to a pair, such as change,shadow,gamma8; or all; several at once as
    boxpsf+shift+light. See docs/real_pairs.md.
    """
    clean: Annotated[bool, Option(panel=SIMULATION)] = True
    """The pairs without noise, shift and imperfections."""
    split: Annotated[Literal["disjoint", "paper"], Option("disjoint|paper", SIMULATION)] = "disjoint"
    """Which blocks of a data set are tested."""
    scenes_folder: Annotated[Any, Option("DIR", SIMULATION, flag="--folder")] = None
    """Where data sets lie."""
    seed: Annotated[int, Field(ge=0), Option(panel=SIMULATION)] = 0
    """Seed of noise and imperfections."""
    pictures: Annotated[bool, Option(panel=TABLES)] = True
    """Error maps, close-ups and spectra of the first scene of each data set."""


class EfficiencyConfig(Request):
    """Options of `hyperfuse efficiency`."""

    networks: Annotated[Names | None, Option("A,B", default_text="all")] = None
    """Presets of SSA and of the baselines, or none."""
    methods: Annotated[Names | None, Option("A,B", default_text="all")] = None
    """Methods that need no weights, or none."""
    weights: Annotated[Repeated, Option("FOLDER", repeat=True)] = ()
    """Also this trained network; repeatable."""
    size: Annotated[int, Field(ge=2, le=LARGEST_SIDE)] = 128
    """Fine pixels on a side of the pair."""
    scale: Annotated[float, Field(ge=1)] = 4.0
    """Fine pixels per coarse pixel."""
    bands: BandCount = 31
    """Bands of the HSI."""
    msi_bands: BandCount = 3
    """Bands of the MSI."""
    warm_up: Annotated[int, Field(ge=1)] = 20
    """Warm-up runs, at most."""
    repeats: Annotated[int, Field(ge=3)] = 50
    """Measured runs, at most."""
    seconds: Annotated[float, Field(ge=0)] = 5.0
    """About how long to measure each; at least one warm-up and three measured runs."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Option("auto|cpu|cuda")] = "auto"
    """Where networks run; methods use the CPU."""
    threads: Annotated[int | None, Field(ge=1, le=256), Option("N", default_text="all cores")] = None
    """CPU threads."""
    growth: bool = True
    """Also measure how time and memory grow with pixels and bands."""
    overwrite: bool = False
    """Replace an earlier measurement in DIR."""

    def model_post_init(self, context: Any) -> None:
        if self.scale > self.size / 2:
            got = f"{self.size} pixels on a side at scale {self.scale:g}"
            raise OptionError(got, "at least two coarse pixels", "choose a larger --size or a smaller --scale")


class FinetuneConfig(InputConfig):
    """Options of `hyperfuse finetune`."""

    test_scenes: Annotated[Repeated, Option("S", repeat=True, default_text="a part of --scenes that is held out")] = ()
    """Scenes to score on."""
    iterations: Annotated[int, Field(ge=1), Option("N")] = 500
    """Steps of the optimiser."""
    freeze: Annotated[Repeated, Option("PART", repeat=True)] = ()
    """kernels, spectral_encoder, spatial_encoder or decoder; repeatable."""
    learning_rate: Annotated[float, Option("LR")] = 1e-4
    """At the start; it decays to a tenth."""
    patch_size: Annotated[int, Field(ge=8), Option("N")] = 64
    """Fine pixels on a side of a training patch."""
    scale: Annotated[float, Option("S")] = 4.0
    """Fine pixels per coarse pixel, in training and test."""
    srf: Annotated[str, Option("SRF")] = "rgb"
    """SRF of the simulated MSI, as in `hyperfuse simulate`."""
    batch_size: Annotated[int, Field(ge=1), Option("N")] = 4
    """Pairs per step."""
    workers: Annotated[int, Field(ge=0), Option("N")] = 1
    """Processes that simulate pairs."""
    seed: Annotated[int, Field(ge=0), Option("N")] = 0
    """Seed of everything random."""
    resume: bool = False
    """Resume from the checkpoint in the folder, if there is one."""
    scenes_folder: Annotated[Any, Option("DIR", flag="--folder")] = None
    """Where data sets of `hyperfuse scenes` and relative paths are looked for."""


class ReproduceConfig(Request):
    """Options of `hyperfuse reproduce`."""

    scenes: Annotated[Repeated, Option("[NAME=]SOURCE", repeat=True, default_text="synthetic scenes")] = ()
    """Scenes to train and test on: file, folder, pattern or data set of `hyperfuse scenes`; repeatable. NAME instead of
    the sensor that a file names.
    """
    test_scenes: Annotated[Repeated, Option("[NAME=]SOURCE", repeat=True)] = ()
    """Scenes to test on; of sensors without any, a part of --scenes is held out."""
    left_out: Annotated[Names | None, Option("SENSOR,SENSOR", default_text="up to three")] = None
    """Sensors that are not trained on (patterns), or none."""
    weights: Annotated[str | None, Option("FOLDER", default_text="the shipped SSA network")] = None
    """Trained network of seen, unseen, scales, fractional, kernels and efficiency; unseen trains its own by default, as
    the others do if given --minutes or --steps.
    """
    recipe: Annotated[Path | None, Option("EXPERIMENT.toml", default_text="benchmarking/recipe.toml")] = None
    """Network, simulation, optimiser and loop of all trainings."""
    minutes: Annotated[float | None, Field(gt=0), Option("M", default_text="30")] = None
    """Length of a training."""
    steps: Annotated[int | None, Field(ge=1), Option("N")] = None
    """The same in steps of the optimiser."""
    iterations: Annotated[int, Field(ge=1), Option("N")] = 500
    """Steps of fine-tuning on a sensor that was left out, and of training on it from scratch."""
    seed: Annotated[int, Field(ge=0), Option("N")] = 0
    """Seed of everything random."""

    def model_post_init(self, context: Any) -> None:
        if self.minutes is not None and self.steps is not None:
            raise OptionError("minutes and steps", "one of the two", "leave out --minutes or --steps")


def option_of(model: type[Request], name: str) -> Option:
    """The `Option` of a field, with its help text on one line."""
    field = model.model_fields[name]
    option = next((item for item in field.metadata if isinstance(item, Option)), Option())
    return replace(option, help=option.help or " ".join((field.description or "").split()))


def field_names(model: type[Request]) -> dict[str, str]:
    """Every name under which a batch list may give a field, and the field's own name."""
    names = {name: name for name in model.model_fields}
    for name in model.model_fields:
        names |= dict.fromkeys(option_of(model, name).aliases, name)
    return names | {former: name for former, name in FORMER_NAMES.items() if name in model.model_fields}


def flag_of(model: type[Request], name: str) -> str:
    """The field's option on the command line."""
    return option_of(model, name).flag or "--" + name.replace("_", "-")


def default_of(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def plain_type(annotation: Any) -> Any:
    """A field's type without None: `float` for `float | None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return plain_type(parts[0]) if len(parts) == 1 else annotation
    return plain_type(get_args(annotation)[0]) if get_origin(annotation) is Annotated else annotation


def takes_options(model: type[Request]) -> Callable[[Callable[P, R]], Callable[..., R]]:
    """Let a function that takes `config` also take the model's options as keywords.

    The wrapped function receives a validated `config`; its signature and docstring list every option, so that `help`
    and notebooks show them.
    """

    def decorate(function: Callable[P, R]) -> Callable[..., R]:
        own = inspect.signature(function).parameters
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default_of(field))
            for name, field in model.model_fields.items()
            if name not in own
        ]

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            keywords = with_current_names(keywords, {*own, *model.model_fields})
            given = {key: value for key, value in keywords.items() if key not in own}
            bound = inspect.signature(function).bind(
                *arguments, **{key: value for key, value in keywords.items() if key in own}
            )
            config = bound.arguments.get("config")
            if config is not None and not isinstance(config, model):
                raise OptionError(f"config of type {type(config).__name__}", model.__name__)
            bound.arguments["config"] = model(**given) if config is None else config.replace(**given)
            return function(*bound.args, **bound.kwargs)

        call.__signature__ = inspect.Signature([*own.values(), *options])  # type: ignore[attr-defined]
        described = "\n".join(f"{each.name}\n    {option_of(model, each.name).help}" for each in options)
        heading = f"Other Parameters\n----------------\n{described}"
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{heading}\n"
        return call

    return decorate


def describe_options(model: type[Request]) -> list[dict[str, Any]]:
    """The options of a request as plain data, for programs that make a form of them.

    `input` is checkbox, number, text, select, file, output (a file that is written) or any (text or a file).
    """
    described = []
    for name, field in model.model_fields.items():
        option, kind = option_of(model, name), plain_type(field.annotation)
        flag, default = flag_of(model, name), default_of(field)
        path_input = "output" if option.is_output else "file"
        label = " ".join(word.upper() if word in ACRONYMS else word for word in name.split("_"))
        described.append(
            {
                "name": name,
                "flag": flag,
                "negative_flag": f"--no-{flag.removeprefix('--')}" if default is True else None,
                "label": label[0].upper() + label[1:],
                "help": option.help,
                "group": option.panel,
                "input": path_input if option.is_path else INPUT_TYPES.get(get_origin(kind) or kind, "any"),
                "choices": list(get_args(kind)) if get_origin(kind) is Literal else [],
                "values": len(get_args(kind)) if get_origin(kind) is tuple and not option.repeat else 1,
                "repeat": option.repeat or get_origin(kind) is dict,
                "placeholder": option.metavar or "",
                "default": default,
            }
        )
    return described


def options_table(model: type[Request]) -> str:
    """The options of a request as a Markdown table, for the documentation."""
    rows = ["| command line | Python, batch list | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        option, default = option_of(model, name), default_of(field)
        if isinstance(default, tuple):
            default = ",".join(f"{each:g}" if isinstance(each, float) else str(each) for each in default) or None
        flag = f"{flag_of(model, name)} {option.metavar or ''}".strip()
        if isinstance(default, bool):
            flag += f"/--no-{flag.removeprefix('--')}" if default else ""
            default = "yes" if default else "no"
        elif default not in (None, {}):
            default = f"`{default}`"
        shown = option.default_text or default or ""
        cells = (f"`{flag}`", f"`{name}`", shown, option.help)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows) + "\n"


def update_options_page(text: str) -> str:
    """A page with its tables between `<!-- options NAME -->` and `<!-- end -->` regenerated."""
    for model in all_requests():
        mark = f"<!-- options {model.__name__} -->\n"
        before, found, rest = text.partition(mark)
        if found:
            text = before + mark + options_table(model) + "<!-- end -->" + rest.partition("<!-- end -->")[2]
    return text


def with_current_names(options: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The same options; a former name of a known one warns, and is an error beside its current name."""
    current = {}
    for key, value in options.items():
        name = key if key in known or FORMER_NAMES.get(key) not in known else FORMER_NAMES[key]
        if name != key:
            if name in options:
                raise OptionError(f"both {key!r} and {name!r}", f"{name!r} only: {key!r} is its former name")
            warnings.warn(f"{key!r} is now called {name!r}", RenamedWarning, stacklevel=3)
        current[name] = value
    return current


def _same(value: Any, default: Any) -> bool:
    """Whether an option has its default; arrays and cubes, which cannot be compared by ==, never have."""
    return value is default or (isinstance(value, str | int | float | tuple | dict) and value == default)


def _plain(value: Any) -> Any:
    """A value that text can hold: paths by their name, arrays and cubes by a digest of their values."""
    if isinstance(value, str | int | float | bool | tuple | list | dict):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    values = getattr(value, "values", value)
    if not hasattr(values, "tobytes"):
        return type(value).__name__
    return f"array{list(values.shape)}-{hashlib.sha256(values.tobytes()).hexdigest()[:12]}".replace(" ", "")


def _option_error(model: type[Request], error: ValidationError) -> OptionError:
    """The first problem that pydantic found, as got, expected, remedy."""
    first = error.errors()[0]
    name = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        close = get_close_matches(name, model.model_fields, n=1)
        return OptionError(
            f"unknown option {name!r}",
            f"one of {', '.join(model.model_fields)}" if not close else "",
            f"did you mean {close[0]!r}?" if close else "",
        )
    got = first["input"]
    shown = f"{got:g}" if isinstance(got, float) else " ".join(map(str, got)) if isinstance(got, tuple) else repr(got)
    got = f"{name.replace('_', ' ')} {shown or 'none'}"
    return OptionError(got, _expectation(model, name, first.get("ctx", {})), f"fix {flag_of(model, name)}")


def _expectation(model: type[Request], name: str, context: Mapping[str, Any]) -> str:
    expected = plain_type(model.model_fields[name].annotation)
    if not LIMITS.keys().isdisjoint(context):
        metadata = model.model_fields[name].metadata
        declared = {limit: getattr(each, limit) for each in metadata for limit in LIMITS if hasattr(each, limit)}
        limits = declared | {limit: context[limit] for limit in LIMITS if limit in context}
        first, *others = (words.format(limits[limit]) for limit, words in LIMITS.items() if limit in limits)
        return " and ".join([first, *(other.removeprefix("a number ") for other in others)])
    if "min_length" in context:
        return f"at least {context['min_length']} of them"
    is_list = get_origin(expected) is tuple and get_args(expected)[-1] is Ellipsis
    expected = plain_type(get_args(expected)[0]) if is_list else expected
    if get_origin(expected) is Literal:
        *most, last = map(str, get_args(expected))
        return f"{', '.join(most)} or {last}"
    if get_origin(expected) is tuple:
        return f"{len(get_args(expected))} numbers{' with a comma between them' if is_list else ''}"
    return {bool: "yes or no", int: "a whole number", float: "a number", str: "text"}.get(expected, "another value")


def all_requests() -> Iterable[type[Request]]:
    """The requests that users see, for the documentation."""
    first = (FuseConfig, OutputConfig, InputConfig, ObservationConfig, SimulateConfig, EvaluateConfig)
    return (*first, ReportConfig, BenchmarkConfig, EfficiencyConfig, FinetuneConfig, ReproduceConfig)
