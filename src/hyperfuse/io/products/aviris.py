"""AVIRIS, AVIRIS-NG, AVIRIS-3 and -5: ENVI files with a complete band table, on a grid along the flight line.

The sensor, the date, the fill value and the gains of stored radiances come from file names and the files beside.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.io.cube import fitting_nodata, nodata_of, numbers, place_cube
from hyperfuse.io.products.product import Product, ProductFile, ProductFiles, describe, identity
from hyperfuse.io.products.rasters import find_by_name, is_envi_or_tiff
from hyperfuse.io.raster import open_raster

CLASSIC = re.compile(r"f(\d\d)(\d\d)(\d\d)t\d\dp\d\d_?r\d\d\w*(\.\w+)*", re.IGNORECASE)
NEXT_GENERATION = re.compile(r"(ang|av3|av5)(\d{4})(\d\d)(\d\d)t(\d\d)(\d\d)(\d\d)\w*(\.\w+)*", re.IGNORECASE)
IMAGE = re.compile(rf"{CLASSIC.pattern}|{NEXT_GENERATION.pattern}", re.IGNORECASE)
KEY = re.compile(rf"({IMAGE.pattern})\.hdr", re.IGNORECASE)
# Rasters beside the image: locations of pixels, observation geometry, intermediate retrievals.
COMPANIONS = re.compile(r"(glt|igm|obs|loc|h2o|mask)", re.IGNORECASE)
REFLECTANCE = re.compile(r"(rfl|corr)", re.IGNORECASE)
LEVELS = {True: ("L2", "surface reflectance"), False: ("L1", "radiance at the sensor, uW cm-2 sr-1 nm-1")}
FILL = -9999
SENSORS = {"ang": "AVIRIS-NG", "av3": "AVIRIS-3", "av5": "AVIRIS-5"}
LENGTH_OF_FLIGHT = len("f110512t01p00r11")


def choose_keys(keys: Iterable[ProductFile]) -> list[ProductFile]:
    """Keep the headers of images; of a flight with radiance and reflectance, those of the reflectance."""
    images = [key for key in keys if _is_image(key.base_name)]
    return [key for key in images if REFLECTANCE.search(key.base_name)] or images


def open_aviris(files: ProductFiles, key: ProductFile, variable: str | None) -> Product:
    if variable is not None:
        headers = _headers(files)
        key = find_by_name(headers, variable, [header.stem for header in headers], files.path)
    cube = _open_envi(files, key)
    return _complete(cube, files, key.base_name) if _is_image(key.base_name) else Product(cube)


def open_image(files: ProductFiles, image: ProductFile, variable: str | None) -> Product | None:
    """Open an image by the name of its data file, or a GeoTIFF of it."""
    path = Path(image.container)
    if variable is not None or not is_envi_or_tiff(path) or not _is_image(path.name):
        return None
    return _complete(open_raster(path), files, path.name)


def _is_image(name: str) -> bool:
    return not COMPANIONS.search(name[LENGTH_OF_FLIGHT:])


def _complete(cube: xr.DataArray, files: ProductFiles, name: str) -> Product:
    """Add what the header lacks from the name and the files beside it."""
    sensor, acquired = _sensor_and_date(name)
    if nodata_of(cube) is None and fitting_nodata(FILL, cube.dtype) is not None:
        cube = place_cube(cube, None, None, FILL)
    gains = _read_gains(files, cube, name)
    if gains is not None:
        cube = cube.assign_coords(scale=("band", 1 / gains))
    level, quantity = LEVELS[bool(REFLECTANCE.search(name))]
    cube.attrs = identity(f"{sensor} {level}", sensor, acquired, quantity) | cube.attrs
    others = [header.stem for header in _headers(files) if header.base_name != name]
    scene = name.rpartition(".")[0] or name
    return Product(cube, describe(cube, scene, flagged="by the bbl of the header", others=others))


def _headers(files: ProductFiles) -> list[ProductFile]:
    return [file for file in files if KEY.fullmatch(file.base_name)]


def _open_envi(files: ProductFiles, header: ProductFile) -> xr.DataArray:
    if not header.is_member:
        return open_raster(Path(header.container))
    data = files.find(header.stem) or files.find(f"{header.stem}.img")
    if data is None:
        raise files.incomplete(header.stem)
    # GDAL needs the header beside the image, so neither is read in place.
    data = replace(data, offset=None, siblings=(header,))
    return open_raster(data.local_path(), data)


def _sensor_and_date(name: str) -> tuple[str, str]:
    modern, classic = NEXT_GENERATION.fullmatch(name), CLASSIC.fullmatch(name)
    if classic:
        century = "19" if int(classic[1]) >= 80 else "20"
        return "AVIRIS", f"{century}{classic[1]}-{classic[2]}-{classic[3]}"
    if modern:
        return SENSORS[modern[1].lower()], "{}-{}-{}T{}:{}:{}Z".format(*modern.groups()[1:])
    return "AVIRIS", ""


def _read_gains(files: ProductFiles, cube: xr.DataArray, name: str) -> NDArray[np.float64] | None:
    """Read the gains of stored radiances (radiance = stored / gain): a file with a gain and a number for each band."""
    flight = re.match(r"[a-z]+\d+t\d+(p\d\d_?r\d\d)?", name, re.IGNORECASE)
    file = next(
        (f for f in files if flight and f.base_name.startswith(flight[0]) and f.base_name.lower().endswith(".gain")),
        None,
    )
    if file is None or cube.dtype.kind == "f" or REFLECTANCE.search(name) or (cube["scale"].values != 1).any():
        return None
    rows = [line.split() for line in file.read_bytes().decode("ascii", "replace").splitlines() if line.strip()]
    gains = numbers([row[0] for row in rows])
    if gains is None or gains.size != cube.sizes["band"] or (gains <= 0).any():
        warnings.warn(f"{file} has no gain for each of {cube.sizes['band']} bands and is ignored", stacklevel=4)
        return None
    return gains
