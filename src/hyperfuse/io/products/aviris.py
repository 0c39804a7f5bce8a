"""AVIRIS and AVIRIS-NG: ENVI files that describe their bands themselves, on a grid that is turned along the flight.

What they leave to their names and to files beside them: the sensor, the day, the fill value, and the gains of stored
radiances.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.bands import numbers
from hyperfuse.io.cube import fitting_nodata, nodata_of, place_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.io.products.delivery import DeliveredFile, Delivery, unpacked
from hyperfuse.io.products.product import Product, flag_note, formula, identity, selection_note
from hyperfuse.io.products.rasters import with_reader
from hyperfuse.io.raster import RasterReader, open_raster_file

CLASSIC = re.compile(r"f(\d\d)(\d\d)(\d\d)t\d\dp\d\d_?r\d\d\w*(\.\w+)*", re.IGNORECASE)
NEXT_GENERATION = re.compile(r"ang(\d{4})(\d\d)(\d\d)t(\d\d)(\d\d)(\d\d)\w*(\.\w+)*", re.IGNORECASE)
# Rasters beside the image: where each pixel is, how it was seen, what was retrieved on the way.
COMPANIONS = re.compile(r"(glt|igm|obs|loc|h2o|mask)", re.IGNORECASE)
REFLECTANCE = re.compile(r"(rfl|corr)", re.IGNORECASE)
LEVELS = {True: ("L2", "surface reflectance"), False: ("L1", "radiance at the sensor, uW cm-2 sr-1 nm-1")}
FILL = -9999
LENGTH_OF_FLIGHT = len("f110512t01p00r11")


@dataclass(frozen=True)
class PairReader:
    """An ENVI image in an archive: GDAL wants its header beside it."""

    header: DeliveredFile
    data: DeliveredFile
    shape: tuple[int, int, int]
    dtype: np.dtype[Any]

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        _, data = unpacked([self.header, self.data])
        return RasterReader(str(data), "ENVI", self.shape, self.dtype).read(bands, rows, columns)


def is_aviris(name: str) -> bool:
    return bool(CLASSIC.fullmatch(name) or NEXT_GENERATION.fullmatch(name))


def is_image(name: str) -> bool:
    return is_aviris(name) and not COMPANIONS.search(name[LENGTH_OF_FLIGHT:])


def aviris_keys(delivery: Delivery) -> list[DeliveredFile]:
    """The header of each image; of a flight that comes with both, the reflectance."""
    headers = list(_images(delivery))
    reflectances = [file for file in headers if REFLECTANCE.search(file.base_name)]
    return reflectances or headers


def open_aviris(delivery: Delivery, key: DeliveredFile, variable: str | None) -> Product:
    if variable is not None:
        key = _chosen(delivery, variable)
    cube = _opened(delivery, key)
    return completed(cube, delivery, key.base_name) if is_image(key.base_name) else Product(cube)


def completed(cube: xr.DataArray, delivery: Delivery, name: str) -> Product:
    """What the header says counts; the rest comes from the name and the files beside it."""
    sensor, acquired = _sensor_and_day(name)
    if nodata_of(cube) is None and fitting_nodata(FILL, cube.dtype) is not None:
        cube = place_cube(cube, None, None, FILL)
    gains = _gains(delivery, cube, name)
    if gains is not None:
        cube = cube.assign_coords(scale=("band", 1 / gains))
    level, quantity = LEVELS[bool(REFLECTANCE.search(name))]
    cube.attrs = identity(f"{sensor} {level}", sensor, acquired, quantity) | cube.attrs
    scaling = (
        formula(cube["scale"].values[0], cube["offset"].values[0])
        if gains is None
        else "stored / gain, which differs by band"
    )
    notes = {
        "product": f"{cube.attrs['product']}, {name.rpartition('.')[0] or name}",
        "scaling": scaling,
        "flags": flag_note(cube["good"].values, "the header's bbl says so"),
        "geometry": _geometry(cube),
        "also in it": selection_note(_others(delivery, name)),
    }
    return Product(cube, notes)


def _geometry(cube: xr.DataArray) -> str:
    transform = grid_of(cube).transform
    if transform is None:
        return "without a place on the map"
    return "on a map, turned along the flight" if transform.b != 0 or transform.d != 0 else "on a map"


def _images(delivery: Delivery) -> Iterator[DeliveredFile]:
    for file in delivery:
        if file.base_name.lower().endswith(".hdr") and is_image(file.base_name):
            yield file


def _headers(delivery: Delivery) -> list[DeliveredFile]:
    return [file for file in delivery if file.base_name.lower().endswith(".hdr") and is_aviris(file.base_name)]


def _others(delivery: Delivery, name: str) -> list[str]:
    return [file.base_name[: -len(".hdr")] for file in _headers(delivery) if file.base_name != name]


def _chosen(delivery: Delivery, variable: str) -> DeliveredFile:
    headers = _headers(delivery)
    found = [file for file in headers if variable.lower() in file.base_name.lower()]
    exact = [file for file in headers if file.base_name.lower() in (variable.lower(), f"{variable.lower()}.hdr")]
    if len(exact or found) != 1:
        raise OptionError(
            f"{len(found)} images called {variable!r} in {delivery.path}",
            f"one of {', '.join(file.base_name for file in headers)}",
        )
    return (exact or found)[0]


def _opened(delivery: Delivery, header: DeliveredFile) -> xr.DataArray:
    if not header.is_member:
        return open_raster_file(Path(header.container))
    stem = header.base_name[: -len(".hdr")]
    data = next((found for name in (stem, f"{stem}.img") if (found := delivery.named(name)) is not None), None)
    if data is None:
        raise CubeFileError(
            f"{delivery.path} is incomplete: {stem} is missing", "a header and its image", "fetch it again"
        )
    path, _ = unpacked([header, data])
    cube = open_raster_file(path)
    return with_reader(
        cube, PairReader(header, data, (cube.sizes["band"], cube.sizes["y"], cube.sizes["x"]), cube.dtype)
    )


def _sensor_and_day(name: str) -> tuple[str, str]:
    modern = NEXT_GENERATION.fullmatch(name)
    if modern:
        return "AVIRIS-NG", "{}-{}-{}T{}:{}:{}Z".format(*modern.groups())
    classic = CLASSIC.fullmatch(name)
    assert classic
    century = "19" if int(classic[1]) >= 80 else "20"
    return "AVIRIS", f"{century}{classic[1]}-{classic[2]}-{classic[3]}"


def _gains(delivery: Delivery, cube: xr.DataArray, name: str) -> NDArray[np.float64] | None:
    """Radiance = stored / gain; the file lists a gain and a number for each band."""
    flight = re.match(r"[a-z]+\d+t\d+(p\d\d_?r\d\d)?", name, re.IGNORECASE)
    is_gain = [
        f for f in delivery if flight and f.base_name.startswith(flight[0]) and f.base_name.lower().endswith(".gain")
    ]
    if not is_gain or cube.dtype.kind == "f" or REFLECTANCE.search(name) or (cube["scale"].values != 1).any():
        return None
    rows = [line.split() for line in is_gain[0].content().decode("ascii", "replace").splitlines() if line.strip()]
    gains = numbers([row[0] for row in rows])
    if gains is None or gains.size != cube.sizes["band"] or (gains <= 0).any():
        warnings.warn(
            f"{is_gain[0].shown} holds no gain for each of {cube.sizes['band']} bands and is left out", stacklevel=4
        )
        return None
    return gains
