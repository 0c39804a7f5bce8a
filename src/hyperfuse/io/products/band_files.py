"""Folders of single-band rasters without metadata: patches of BigEarthNet and Major-TOM, Sentinel Hub exports, ...

Each file is called after its band: `S2A_..._B02.tif`, `B8A.tif`, `..._Sentinel-2_L2A_B02_(Raw).tiff`, `band_3.jp2`.
"""

from __future__ import annotations

import math
import re

from hyperfuse.io.products import landsat, sentinel2
from hyperfuse.io.products.product import SENSOR_BANDS, Band, Product, ProductFile, ProductFiles, identity, make_product
from hyperfuse.io.products.rasters import (
    RASTER_SUFFIXES,
    RasterInfo,
    normalise_band_name,
    read_info,
    select_bands,
    stack,
)

BAND = re.compile(
    r"(?P<scene>.*?)(?:[-_. ](?:sr|st|toa|boa))?[-_. ]?(?<![a-z0-9])(?P<band>b(?:and)?[ _]?\d{1,3}a?)"
    r"(?:_(?P<metres>\d\d)m)?(?:[-_ ]?\(\w+\))?",
    re.IGNORECASE,
)
# The folders of Sentinel-2 L2A, one for each resolution.
RESOLUTION_FOLDER = re.compile(r"(^|/)R\d\dm$")
# Names of satellites in names of scenes, and the tables of their bands.
SATELLITES = {
    r"s(?:entinel)?-?2c": "Sentinel-2C",
    r"s(?:entinel)?-?2b": "Sentinel-2B",
    r"s(?:entinel)?-?2a?": "Sentinel-2A",
    r"t\d\d[a-z]{3}_\d{8}t\d{6}|hls\.s30": "Sentinel-2A",
    r"hls\.l30": "Landsat-8",
} | {
    # LC08_..., LC8 with path, row and date (before the collections), Landsat-8.
    rf"l[cote]0?{number}(?:\d{{13}}\w*)?|landsat-?{number}": f"Landsat-{number}"
    for number in (4, 5, 7, 8, 9)
}
CIRRUS = {"Sentinel": sentinel2.CIRRUS, "Landsat": landsat.CIRRUS}
FEWEST = 2


def open_band_files(files: ProductFiles, variable: str | None) -> Product | None:
    """Stack the rasters of a folder or archive by band name; None where they are something else."""
    found = _by_band(files)
    if found is None:
        return None
    scene, images = found
    chosen = select_bands(variable or "all", {"all": list(images)}, list(images), images, files.path)
    if chosen is None:
        return None
    infos = [read_info(images[band]) for band in chosen]
    if any(info.bands != 1 for info in infos):
        return None
    reader, finest = stack(infos)
    coarse = [band for band, info in zip(chosen, infos, strict=True) if info.width < finest.width]
    repeated = f"; pixels of {', '.join(coarse)} are repeated, not interpolated" if coarse else ""
    sensor = _sensor(scene, list(images))
    return make_product(
        reader,
        [_band(band, sensor, info) for band, info in zip(chosen, infos, strict=True)],
        identity("single-band files", sensor, None, ""),
        scene or files.path.name,
        nodata=finest.nodata,
        grid=finest.grid,
        flagged="the cirrus band does not see the ground",
        others=[f"a list such as {','.join(list(images)[:3])}"],
        notes={"bands": f"{', '.join(chosen)}{repeated}"},
    )


def _by_band(files: ProductFiles) -> tuple[str, dict[str, ProductFile]] | None:
    """The name of the one scene and its files, all in one folder, by their bands; None where there is no such scene."""
    images: dict[str, ProductFile] = {}
    metres: dict[str, int] = {}
    scenes = set()
    for file in files:
        match = BAND.fullmatch(file.stem)
        if match is None or not file.base_name.lower().endswith(RASTER_SUFFIXES):
            continue
        band = normalise_band_name(match["band"])
        scenes.add((RESOLUTION_FOLDER.sub("", file.name.rpartition("/")[0]), match["scene"].lower()))
        if len(scenes) > 1 or (band in images and not match["metres"]):
            return None
        # Of copies at several resolutions, the finest.
        if band not in images or int(match["metres"]) < metres[band]:
            images[band], metres[band] = file, int(match["metres"] or 0)
    if len(images) < FEWEST:
        return None
    ordered = sorted(images, key=lambda band: (int(re.sub(r"\D", "", band)), band))
    return scenes.pop()[1], {band: images[band] for band in ordered}


def _sensor(scene: str, bands: list[str]) -> str:
    """The satellite that the names of the files name; Sentinel-2 also by its band B8A, which no other sensor has."""
    named = (name for part, name in SATELLITES.items() if re.search(rf"(?<![a-z0-9])(?:{part})(?![a-z0-9])", scene))
    sensor = next(named, "Sentinel-2A" if "B8A" in bands else "")
    return sensor if set(bands) <= set(SENSOR_BANDS.get(sensor, ())) else ""


def _band(band: str, sensor: str, info: RasterInfo) -> Band:
    centre, width = SENSOR_BANDS.get(sensor, {}).get(band, (math.nan, math.nan))
    good = band != CIRRUS.get(sensor.partition("-")[0])
    return Band(band, centre, width, info.scale, info.offset, good=good)
