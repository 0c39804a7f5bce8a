"""Tiny EnMAP, DESIS, AVIRIS and Hyperion products, laid out as their specifications say, with their true band lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray
from tests.io.products import band_lists as bands
from tests.io.products.written import GRID, HEIGHT, UTM_32, WIDTH, Written, counts, write_tif

from hyperfuse.io.products import hyperion as hyperion_bands

ENMAP_ID = "ENMAP01-____L2A-DT0000001867_20220724T104526Z_008_V010302_20230628T165614Z"
DESIS_ID = "DESIS-HSI-L2A-DT0485529167_001-20220712T223540-V0220"
HYPERION_ID = "EO1H1930262004123110KZ"
AVIRIS_ID = "f110512t01p00r11rdn_b_sc01_ort_img"
AVIRIS_NG_ID = "ang20220318t192455_rfl_v2aa1_img"
FILL = -32768

Array = NDArray[Any]


def write_enmap(folder: Path, name: str = ENMAP_ID, grid: Affine = GRID) -> Written:
    folder = folder / name
    folder.mkdir(parents=True)
    stored = counts(1, (224, HEIGHT, WIDTH), -200, 9000, np.int16)
    stored[:, 0, :3] = FILL
    stored[bands.ENMAP_EMPTY] = FILL
    write_tif(
        folder / f"{name}-SPECTRAL_IMAGE.TIF",
        stored,
        grid,
        nodata=FILL,
        interleave="band",
        tiled=True,
        blockxsize=16,
        blockysize=16,
    )
    for layer in ("QL_QUALITY_CLOUD", "QL_PIXELMASK", "QL_VNIR"):
        write_tif(folder / f"{name}-{layer}.TIF", counts(2, (1, HEIGHT, WIDTH), 0, 2, np.uint8))
    (folder / f"{name}-HISTORY.XML").write_text("<history/>")
    (folder / f"{name}-METADATA.XML").write_text(enmap_xml("L2A", 1e-4, 0.0))
    physical = np.where(stored == FILL, np.nan, stored * 1e-4)
    shown = ("EnMAP L2A", "2022-07-24T10:45:26", "VNIR 91 bands", "SWIR 133 bands", "overlap", "QL_QUALITY_CLOUD")
    good = ~bands.ENMAP_EMPTY
    return Written(
        folder, physical, bands.ENMAP_NM, bands.ENMAP_FWHM_NM, good, UTM_32, grid, "EnMAP L2A", "EnMAP", shown
    )


def enmap_xml(level: str, gain: float, offset: float) -> str:
    numbers = np.arange(1, 225)
    # Level 1B lists all bands of the first detector before those of the second.
    vnir = bands.ENMAP_VNIR if level != "L1B" else numbers <= 91
    order = (
        np.arange(224)
        if level != "L1B"
        else np.concatenate([np.flatnonzero(bands.ENMAP_VNIR), np.flatnonzero(~bands.ENMAP_VNIR)])
    )
    described = "".join(
        f'<bandID number="{number}"><wavelengthCenterOfBand>{bands.ENMAP_NM[i]:g}</wavelengthCenterOfBand>'
        f"<FWHMOfBand>{bands.ENMAP_FWHM_NM[i]:g}</FWHMOfBand><GainOfBand>{gain}</GainOfBand><OffsetOfBand>{offset}</OffsetOfBand></bandID>"
        for number, i in zip(numbers, order, strict=True)
    )
    statistics = "".join(
        f'<bandID number="{number}"><mean>{"-1000000" if bands.ENMAP_EMPTY[i] else "2500.5"}</mean>'
        f"<stdDeviation>{'0' if bands.ENMAP_EMPTY[i] else '310.2'}</stdDeviation></bandID>"
        for number, i in zip(numbers, order, strict=True)
    )
    channels = {name: ",".join(map(str, numbers[mask])) for name, mask in (("vnir", vnir), ("swir", ~vnir))}
    if level == "L1B":
        channels["swir"] = ",".join(map(str, range(1, 134)))
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<level_X xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="../level_X.xsd">
  <metadata><schema><processingLevel>{level}</processingLevel></schema></metadata>
  <base><level>{level}</level><temporalCoverage><startTime>2022-07-24T10:45:26.161945Z</startTime></temporalCoverage></base>
  <specific>
    <datatakeStart>2022-07-24T10:45:26.161945Z</datatakeStart><backgroundValue>{FILL}</backgroundValue>
    <numberOfVNIRBands>91</numberOfVNIRBands><numberOfSWIRBands>133</numberOfSWIRBands>
    <vnirProductQuality><expectedChannelsList>{channels["vnir"]}</expectedChannelsList></vnirProductQuality>
    <swirProductQuality><expectedChannelsList>{channels["swir"]}</expectedChannelsList></swirProductQuality>
    <bandCharacterisation>{described}</bandCharacterisation>
  </specific>
  <product><bandStatistics>{statistics}</bandStatistics></product>
</level_X>
"""


def write_enmap_l1b(folder: Path) -> tuple[Path, dict[str, Array]]:
    """An image of each detector, with the meaningless transform that they come with."""
    name = ENMAP_ID.replace("L2A", "L1B")
    folder = folder / name
    folder.mkdir(parents=True)
    images = {}
    for detector, count in (("VNIR", 91), ("SWIR", 133)):
        images[detector] = counts(count, (count, HEIGHT, WIDTH), 1, 30000, np.uint16)
        write_tif(
            folder / f"{name}-SPECTRAL_IMAGE_{detector}.TIF",
            images[detector],
            Affine(1.0, 0.0, 0.0, 0.0, 1.0, 5.0),
            nodata=0,
        )
    (folder / f"{name}-METADATA.XML").write_text(enmap_xml("L1B", 5.16e-06, 0.0459))
    return folder, images


def write_desis(folder: Path) -> Written:
    folder = folder / DESIS_ID
    folder.mkdir(parents=True)
    stored = counts(3, (235, HEIGHT, WIDTH), -100, 8000, np.int16)
    stored[:, :2, 0] = FILL
    write_tif(folder / f"{DESIS_ID}-SPECTRAL_IMAGE.tif", stored, nodata=FILL, interleave="pixel", compress="lzw")
    write_tif(folder / f"{DESIS_ID}-QL_QUALITY-2.tif", counts(4, (10, HEIGHT, WIDTH), 0, 2, np.uint8))
    described = "".join(
        f"<band><bandNumber>{number}</bandNumber><wavelengthCenterOfBand>{wavelength}</wavelengthCenterOfBand>"
        f"<wavelengthWidthOfBand>{width}</wavelengthWidthOfBand><response>0.1,1.0,0.1</response><wavelengths>1,2,3</wavelengths>"
        f"<gainOfBand>0.0001</gainOfBand><offsetOfBand>0.0</offsetOfBand><deadPixels>0</deadPixels></band>"
        for number, wavelength, width in zip(range(1, 236), bands.DESIS_NM, bands.DESIS_FWHM_NM, strict=True)
    )
    (folder / f"{DESIS_ID}-METADATA.xml").write_text(
        '<?xml version="1.0"?><hsi_doc><metadata/><base><temporalCoverage><startTime>2022-07-12T22:35:40.1Z</startTime>'
        f"</temporalCoverage></base><processing/><specific><bandCharacterisation>{described}</bandCharacterisation></specific></hsi_doc>"
    )
    physical = np.where(stored == FILL, np.nan, stored * 1e-4)
    everything = np.ones(235, dtype=bool)
    shown = ("DESIS L2A", "2022-07-12T22:35:40", "QL_QUALITY-2")
    return Written(
        folder, physical, bands.DESIS_NM, bands.DESIS_FWHM_NM, everything, UTM_32, GRID, "DESIS L2A", "DESIS", shown
    )


def write_aviris(folder: Path) -> Written:
    """Radiances as integers, the gains beside them; the header says nothing of a fill value."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = counts(5, (224, HEIGHT, WIDTH), 0, 9000, np.int16)
    stored[:, -1, -2:] = -9999
    header = _envi_header(stored, bands.AVIRIS_NM, bands.AVIRIS_FWHM_NM, data_type=2, rotation=-44.0)
    flags = ", ".join("0" if bad else "1" for bad in bands.AVIRIS_BAD)
    (folder / f"{AVIRIS_ID}.hdr").write_text(f"{header}bbl = {{{flags}}}\n")
    stored.transpose(1, 0, 2).tofile(folder / AVIRIS_ID)
    gains = np.repeat([300.0, 600.0, 1200.0], [110, 50, 64])
    (folder / "f110512t01p00r11rdn_b.gain").write_text(
        "".join(f"{gain:10.2f} {i}\n" for i, gain in enumerate(gains, start=1))
    )
    for companion in ("f110512t01p00r11rdn_b_ort_glt", "f110512t01p00r11rdn_b_obs_ort"):
        (folder / f"{companion}.hdr").write_text(_envi_header(stored[:2], None, None, data_type=2, rotation=-44.0))
        stored[:2].transpose(1, 0, 2).tofile(folder / companion)
    physical = np.where(stored == -9999, np.nan, stored / gains[:, None, None])
    transform = _turned(-44.0)
    shown = ("AVIRIS L1", "2011-05-12", "map, rotated", "f110512t01p00r11rdn_b_ort_glt")
    good = ~bands.AVIRIS_BAD
    return Written(
        folder, physical, bands.AVIRIS_NM, bands.AVIRIS_FWHM_NM, good, UTM_32, transform, "AVIRIS L1", "AVIRIS", shown
    )


def write_aviris_ng(folder: Path) -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    stored = np.random.default_rng(6).random((425, HEIGHT, WIDTH)).astype(np.float32)
    stored[:, 0, 0] = -9999
    header = _envi_header(stored, bands.AVIRIS_NG_NM, bands.AVIRIS_NG_FWHM_NM, data_type=4, rotation=4.0)
    (folder / f"{AVIRIS_NG_ID}.hdr").write_text(f"{header}data ignore value = -9999\n")
    stored.transpose(1, 0, 2).tofile(folder / AVIRIS_NG_ID)
    physical = np.where(stored == -9999, np.nan, stored.astype(np.float64))
    everything = np.ones(425, dtype=bool)
    return Written(
        folder / f"{AVIRIS_NG_ID}.hdr",
        physical,
        bands.AVIRIS_NG_NM,
        bands.AVIRIS_NG_FWHM_NM,
        everything,
        UTM_32,
        _turned(4.0),
        "AVIRIS-NG L2",
        "AVIRIS-NG",
        ("AVIRIS-NG L2", "2022-03-18T19:24:55Z", "surface reflectance"),
    )


def _envi_header(stored: Array, wavelength: Array | None, fwhm: Array | None, data_type: int, rotation: float) -> str:
    count, lines, samples = stored.shape
    lists = "".join(
        f"{key} = {{ {' , '.join(repr(float(value)) for value in values)} }}\n"
        for key, values in (("wavelength", wavelength), ("fwhm", fwhm))
        if values is not None
    )
    units = "wavelength units = Nanometers\n" if lists else ""
    return (
        f"ENVI\ndescription = {{ AVIRIS }}\nsamples = {samples}\nlines = {lines}\nbands = {count}\nheader offset = 0\n"
        f"file type = ENVI Standard\ndata type = {data_type}\ninterleave = bil\nbyte order = 0\n"
        "map info = { UTM , 1 , 1 , 650010.0 , 5340000.0 , 3.0 , 3.0 , 32 , North , WGS-84 , units=Meters , "
        f"rotation={rotation:.7f} }}\n"
        f"{lists}{units}"
    )


def _turned(degrees: float) -> Affine:
    """Counter-clockwise about the first corner: along a line of the image one goes east and, for positive angles,
    north.
    """
    angle = np.radians(degrees)
    east, north = 3.0 * np.cos(angle), 3.0 * np.sin(angle)
    return Affine(east, north, 650010.0, north, -east, 5340000.0)


def write_hyperion(folder: Path, *, metadata: bool = True) -> Written:
    folder = folder / f"{HYPERION_ID}_1T"
    folder.mkdir(parents=True)
    stored = counts(7, (242, HEIGHT, WIDTH), 1, 12000, np.int16)
    stored[:, :, -1] = 0
    stored[~hyperion_bands.GOOD] = 0
    with rasterio.Env(GDAL_PAM_ENABLED="NO"):
        for number, band in enumerate(stored, start=1):
            write_tif(folder / f"{HYPERION_ID}_B{number:03d}_L1T.TIF", band[np.newaxis])
    if metadata:
        names = "".join(
            f'    BAND{number}_FILE_NAME = "{HYPERION_ID}_B{number:03d}_L1T.TIF"\n' for number in range(1, 243)
        )
        (folder / f"{HYPERION_ID}_MTL_L1T.TXT").write_text(
            'GROUP = L1_METADATA_FILE\n  GROUP = PRODUCT_METADATA\n    PRODUCT_TYPE = "L1T"\n'
            '    SPACECRAFT_ID = "EO1"\n'
            f'    SENSOR_ID = "HYPERION"\n    ACQUISITION_DATE = 2004-05-02\n{names}  END_GROUP = PRODUCT_METADATA\n'
            "  GROUP = RADIANCE_SCALING\n    SCALING_FACTOR_VNIR = 40.000000\n    SCALING_FACTOR_SWIR = 80.000000\n"
            "  END_GROUP = RADIANCE_SCALING\nEND_GROUP = L1_METADATA_FILE\nEND\n"
        )
    factor = np.where(np.arange(242) < 70, 40.0, 80.0)[:, None, None]
    physical = np.where(stored == 0, np.nan, stored / factor)
    shown = (
        "Hyperion L1T",
        "44 of 242 bands are flagged bad",
        "VNIR 70 bands",
        "VNIR stored * 0.025; SWIR stored * 0.0125",
    )
    table = hyperion_bands
    return Written(
        folder,
        physical,
        table.WAVELENGTH_NM,
        table.FWHM_NM,
        table.GOOD,
        UTM_32,
        GRID,
        "Hyperion L1T",
        "Hyperion",
        shown,
    )


WRITERS: dict[str, Callable[[Path], Written]] = {
    "enmap": write_enmap,
    "desis": write_desis,
    "aviris": write_aviris,
    "aviris-ng": write_aviris_ng,
    "hyperion": write_hyperion,
}
