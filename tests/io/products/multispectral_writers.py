"""Tiny Sentinel-2 and Landsat products in their true layout."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from tests.io.products.written import GRID, HEIGHT, UTM_32, WIDTH, Written, counts, write_tif

TILE = Affine(10.0, 0.0, 600000.0, 0.0, -10.0, 5400000.0)
FINE = 24
# Band -> metres, centre and width in nm of Sentinel-2A.
S2_BANDS = {
    "B1": (60, 442.7, 20.0),
    "B2": (10, 492.7, 65.0),
    "B3": (10, 559.8, 35.0),
    "B4": (10, 664.6, 30.0),
    "B5": (20, 704.1, 14.0),
    "B6": (20, 740.5, 14.0),
    "B7": (20, 782.8, 19.0),
    "B8": (10, 832.8, 105.0),
    "B8A": (20, 864.7, 21.0),
    "B9": (60, 945.1, 19.0),
    "B10": (60, 1373.5, 29.0),
    "B11": (20, 1613.7, 90.0),
    "B12": (20, 2202.4, 174.0),
}
LANDSAT_ID = {"L1": "LC08_L1TP_193026_20220719_20220726_02_T1", "L2": "LC09_L2SP_193026_20220727_20230406_02_T1"}
SUN_ELEVATION = 57.3


def write_sentinel2(folder: Path, level: str = "L2A") -> Written:
    """A .SAFE folder; the expectation is that of the 10 m bands."""
    safe = folder / f"S2A_MSI{level}_20220724T101601_N0400_R065_T32UPU_20220724T143055.SAFE"
    granule = f"GRANULE/{level}_T32UPU_A037008_20220724T102123"
    images = sentinel2_counts(level)
    listed = []
    for band, stored in images.items():
        metres = S2_BANDS[band][0]
        sub = f"R{metres}m/" if level == "L2A" else ""
        name = f"T32UPU_20220724T101601_B{band[1:].zfill(2)}{f'_{metres}m' if level == 'L2A' else ''}"
        _write_jp2(safe / granule / "IMG_DATA" / f"{sub}{name}.jp2", stored, metres)
        listed.append(f"{granule}/IMG_DATA/{sub}{name}")
    if level == "L2A":
        # Coarser copies of fine bands, which are not the bands themselves, and the classes of the ground.
        for copy in ("B02_20m", "SCL_20m"):
            name = f"T32UPU_20220724T101601_{copy}"
            _write_jp2(safe / granule / "IMG_DATA" / "R20m" / f"{name}.jp2", counts(11, (12, 12), 0, 12, np.uint16), 20)
            listed.append(f"{granule}/IMG_DATA/R20m/{name}")
    (safe / f"MTD_MSI{level}.xml").write_text(sentinel2_xml(level, safe.name, listed))
    (safe / "manifest.safe").write_text("<xfdu/>")
    (safe / granule / "MTD_TL.xml").write_text("<tile/>")
    chosen = ["B2", "B3", "B4", "B8"]
    physical = np.stack(
        [np.where(images[band] == 0, np.nan, (images[band].astype(np.float64) - 1000) / 10000) for band in chosen]
    )
    wavelength, fwhm = (np.array([S2_BANDS[band][column] for band in chosen]) for column in (1, 2))
    everything = np.ones(4, dtype=bool)
    shown = (
        f"Sentinel-2 {level}",
        "2022-07-24T10:16:01",
        "B2, B3, B4, B8 on a grid of 10 m",
        "20m",
        "stored * 0.0001 - 0.1",
    )
    return Written(
        safe, physical, wavelength, fwhm, everything, UTM_32, TILE, f"Sentinel-2 {level}", "Sentinel-2A", shown
    )


def sentinel2_counts(level: str) -> dict[str, NDArray[np.uint16]]:
    images = {}
    for i, (band, (metres, _, _)) in enumerate(S2_BANDS.items()):
        if level == "L2A" and band == "B10":
            continue
        size = FINE * 10 // metres
        images[band] = counts(20 + i, (size, size), 1, 12000, np.uint16)
        images[band][0, 0] = 0
    return images


def _write_jp2(path: Path, stored: NDArray[Any], metres: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    transform = TILE @ Affine.scale(metres / 10)
    write_tif(path, stored[np.newaxis], transform, driver="JP2OpenJPEG", QUALITY="100", REVERSIBLE="YES")


def sentinel2_xml(level: str, name: str, listed: list[str]) -> str:
    prefix = "BOA" if level == "L2A" else "RADIO"
    offsets = "".join(f'<{prefix}_ADD_OFFSET band_id="{i}">-1000</{prefix}_ADD_OFFSET>' for i in range(13))
    offset_list = "BOA_ADD_OFFSET_VALUES_LIST" if level == "L2A" else "Radiometric_Offset_List"
    quantification = f"{'BOA_' if level == 'L2A' else ''}QUANTIFICATION_VALUE"
    spectral = "".join(
        f'<Spectral_Information bandId="{i}" physicalBand="{band}"><RESOLUTION>{metres}</RESOLUTION><Wavelength>'
        f'<MIN unit="nm">{centre - width:g}</MIN><MAX unit="nm">{centre + width:g}</MAX>'
        f'<CENTRAL unit="nm">{centre}</CENTRAL></Wavelength>'
        f'<Spectral_Response><STEP unit="nm">1</STEP><VALUES>{_triangle(width)}</VALUES></Spectral_Response>'
        "</Spectral_Information>"
        for i, (band, (metres, centre, width)) in enumerate(S2_BANDS.items())
    )
    images = "".join(f"<IMAGE_FILE>{image}</IMAGE_FILE>" for image in listed)
    return f"""<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<n1:Level-{level[1:]}_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/PSD/User_Product_Level-{level[1:]}.xsd">
  <n1:General_Info>
    <Product_Info><PRODUCT_START_TIME>2022-07-24T10:16:01.024Z</PRODUCT_START_TIME><PRODUCT_URI>{name}</PRODUCT_URI>
      <PROCESSING_LEVEL>Level-{level[1:]}</PROCESSING_LEVEL><PROCESSING_BASELINE>04.00</PROCESSING_BASELINE>
      <Datatake><SPACECRAFT_NAME>Sentinel-2A</SPACECRAFT_NAME>
        <DATATAKE_SENSING_START>2022-07-24T10:16:01.024Z</DATATAKE_SENSING_START></Datatake>
      <Product_Organisation><Granule_List>
        <Granule imageFormat="JPEG2000">{images}</Granule>
      </Granule_List></Product_Organisation>
    </Product_Info>
    <Product_Image_Characteristics>
      <Special_Values><SPECIAL_VALUE_TEXT>NODATA</SPECIAL_VALUE_TEXT><SPECIAL_VALUE_INDEX>0</SPECIAL_VALUE_INDEX></Special_Values>
      <Special_Values><SPECIAL_VALUE_TEXT>SATURATED</SPECIAL_VALUE_TEXT><SPECIAL_VALUE_INDEX>65535</SPECIAL_VALUE_INDEX></Special_Values>
      <QUANTIFICATION_VALUES_LIST><{quantification} unit="none">10000</{quantification}></QUANTIFICATION_VALUES_LIST>
      <{offset_list}>{offsets}</{offset_list}>
      <Spectral_Information_List>{spectral}</Spectral_Information_List>
    </Product_Image_Characteristics>
  </n1:General_Info>
</n1:Level-{level[1:]}_User_Product>
"""


def _triangle(width: float) -> str:
    """A response that is above half of its maximum over `width` nm."""
    places = np.arange(-int(width), int(width) + 1)
    return " ".join(f"{value:.6f}" for value in np.clip(1 - np.abs(places) / width, 0, 1))


def landsat_counts(level: str) -> dict[str, NDArray[np.uint16]]:
    """Band 8 on the grid of half the size that shares the centre of the first pixel."""
    names = [f"B{i}" for i in range(1, 12)] if level == "L1" else [*(f"B{i}" for i in range(1, 8)), "B10"]
    images = {}
    for i, band in enumerate(names):
        shape = (2 * HEIGHT - 1, 2 * WIDTH - 1) if band == "B8" else (HEIGHT, WIDTH)
        images[band] = counts(40 + i, shape, 1, 60000, np.uint16)
        images[band][-1, :2] = 0
    return images


def write_landsat(folder: Path, level: str = "L2", form: str = "txt") -> Written:
    scene = LANDSAT_ID[level]
    folder = folder / scene
    folder.mkdir(parents=True)
    images = landsat_counts(level)
    files = {}
    for band, stored in images.items():
        thermal = band in ("B10", "B11")
        files[band] = f"{scene}_{'' if level == 'L1' else 'ST_' if thermal else 'SR_'}{band}.TIF"
        half = Affine(15.0, 0.0, GRID.c + 7.5, 0.0, -15.0, GRID.f - 7.5)
        write_tif(folder / files[band], stored[np.newaxis], half if band == "B8" else GRID)
    write_tif(folder / f"{scene}_QA_PIXEL.TIF", counts(60, (1, HEIGHT, WIDTH), 1, 60000, np.uint16))
    groups = landsat_groups(level, files)
    (folder / f"{scene}_MTL.{form}").write_text({"txt": _odl, "json": _json, "xml": _xml}[form](groups))
    chosen = [f"B{i}" for i in range(1, 8)]
    scale, offset = (2.75e-05, -0.2) if level == "L2" else (2.0e-05, -0.1)
    sun = 1.0 if level == "L2" else math.sin(math.radians(SUN_ELEVATION))
    physical = np.stack([np.where(images[b] == 0, np.nan, (images[b] * scale + offset) / sun) for b in chosen])
    oli = [
        (442.96, 15.98),
        (482.04, 60.04),
        (561.41, 57.33),
        (654.59, 37.47),
        (864.67, 28.25),
        (1608.86, 84.72),
        (2200.73, 186.66),
    ]
    oli2 = [(442.7, 15.5), (481.8, 59.9), (561.0, 56.3), (654.3, 36.7), (864.6, 28.7), (1608.1, 86.1), (2200.1, 189.5)]
    wavelength, fwhm = np.array(oli if level == "L1" else oli2).T
    everything = np.ones(7, dtype=bool)
    kind, sensor = ("L1TP", "Landsat-8") if level == "L1" else ("L2SP", "Landsat-9")
    shown = (f"Landsat {kind}", "2022-07-", "B1, B2, B3, B4, B5, B6, B7", "QA_PIXEL", "thermal")
    return Written(folder, physical, wavelength, fwhm, everything, UTM_32, GRID, f"Landsat {kind}", sensor, shown)


def landsat_groups(level: str, files: dict[str, str]) -> dict[str, dict[str, str]]:
    contents = {"LANDSAT_PRODUCT_ID": LANDSAT_ID[level], "PROCESSING_LEVEL": "L1TP" if level == "L1" else "L2SP"}
    for band, name in files.items():
        contents[f"FILE_NAME_BAND_{f'ST_{band}' if level == 'L2' and band == 'B10' else band[1:]}"] = name
    numbers = range(1, 10)
    groups = {
        "PRODUCT_CONTENTS": contents,
        "IMAGE_ATTRIBUTES": {
            "SPACECRAFT_ID": "LANDSAT_8" if level == "L1" else "LANDSAT_9",
            "SENSOR_ID": "OLI_TIRS",
            "DATE_ACQUIRED": "2022-07-19" if level == "L1" else "2022-07-27",
            "SCENE_CENTER_TIME": "10:03:04.1234560Z",
            "SUN_ELEVATION": str(SUN_ELEVATION),
        },
        # Level 2 carries the scaling of the level 1 that it was made of as well.
        "LEVEL1_RADIOMETRIC_RESCALING": {f"REFLECTANCE_MULT_BAND_{i}": "2.0000E-05" for i in numbers}
        | {f"REFLECTANCE_ADD_BAND_{i}": "-0.100000" for i in numbers}
        | {f"RADIANCE_MULT_BAND_{i}": "3.3420E-04" for i in (10, 11)}
        | {f"RADIANCE_ADD_BAND_{i}": "0.10000" for i in (10, 11)},
    }
    if level == "L2":
        groups["LEVEL2_SURFACE_REFLECTANCE_PARAMETERS"] = {
            f"REFLECTANCE_MULT_BAND_{i}": "2.75e-05" for i in range(1, 8)
        } | {f"REFLECTANCE_ADD_BAND_{i}": "-0.2" for i in range(1, 8)}
        groups["LEVEL2_SURFACE_TEMPERATURE_PARAMETERS"] = {
            "TEMPERATURE_MULT_BAND_ST_B10": "0.00341802",
            "TEMPERATURE_ADD_BAND_ST_B10": "149.0",
        }
    return groups


def _odl(groups: dict[str, dict[str, str]]) -> str:
    lines = ["GROUP = LANDSAT_METADATA_FILE"]
    for name, entries in groups.items():
        lines += [
            f"  GROUP = {name}",
            *(f'    {key} = "{value}"' for key, value in entries.items()),
            f"  END_GROUP = {name}",
        ]
    return "\n".join([*lines, "END_GROUP = LANDSAT_METADATA_FILE", "END", ""])


def _json(groups: dict[str, dict[str, str]]) -> str:
    return json.dumps({"LANDSAT_METADATA_FILE": groups})


def _xml(groups: dict[str, dict[str, str]]) -> str:
    inner = "".join(
        f"<{g}>{''.join(f'<{k}>{v}</{k}>' for k, v in entries.items())}</{g}>" for g, entries in groups.items()
    )
    return f"<LANDSAT_METADATA_FILE>{inner}</LANDSAT_METADATA_FILE>"


WRITERS: dict[str, Callable[[Path], Written]] = {
    "sentinel2-l2a": write_sentinel2,
    "sentinel2-l1c": lambda folder: write_sentinel2(folder, "L1C"),
    "landsat-l2": write_landsat,
    "landsat-l1": lambda folder: write_landsat(folder, "L1"),
}
