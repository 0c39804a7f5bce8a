"""Tiny PRISMA (HDF-EOS5) and EMIT (NetCDF-4) products, with their true band lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np
from affine import Affine
from numpy.typing import NDArray
from pyproj import Transformer
from rasterio.crs import CRS
from tests.io.products import band_lists as bands
from tests.io.products.written import GRID, HEIGHT, UTM_32, WIDTH, Written, counts

TO_DEGREES = Transformer.from_crs(UTM_32, 4326, always_xy=True)
TO_METRES = Transformer.from_crs(4326, UTM_32, always_xy=True)
SCALES = {"Vnir": (0.0, 0.9), "Swir": (0.01, 0.7), "Pan": (0.0, 1.0)}
PRISMA_DETECTORS = {
    "Vnir": (bands.PRISMA_VNIR_NM, bands.PRISMA_VNIR_FWHM_NM),
    "Swir": (bands.PRISMA_SWIR_NM, bands.PRISMA_SWIR_FWHM_NM),
}
EMIT_ID = "EMIT_L2A_RFL_001_20220810T034103_2222203_001"
EMIT_GRID = (8.5, 0.000542232520256367, 0.0, 48.2, 0.0, -0.000542232520256367)


def prisma_bands() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """From short waves to long ones, detector by detector, without the empty slots; single precision, as the attributes
    are.
    """
    lists = [
        (wavelength[wavelength > 0][::-1], fwhm[wavelength > 0][::-1]) for wavelength, fwhm in PRISMA_DETECTORS.values()
    ]
    centres, widths = (
        np.concatenate(parts).astype(np.float32).astype(np.float64) for parts in zip(*lists, strict=True)
    )
    return centres, widths


def write_prisma(folder: Path, level: str = "L2D") -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"PRS_{level}_STD_20200116101454_20200116101458_0001.he5"
    stored = {
        word: counts(len(word) + i, (HEIGHT, lists[0].size, WIDTH), 1, 65536, np.uint16)
        for i, (word, lists) in enumerate(PRISMA_DETECTORS.items())
    }
    for word, (wavelength, _) in PRISMA_DETECTORS.items():
        stored[word][:, wavelength == 0] = 0
        stored[word][0, :, :2] = 0
    with h5py.File(path, "w") as file:
        _prisma_attributes(file, level)
        swath = file.create_group(f"HDFEOS/SWATHS/PRS_{level}_HCO")
        for word, cube in stored.items():
            swath.create_dataset(f"Data Fields/{word.upper()}_Cube", data=cube, chunks=(4, cube.shape[1], WIDTH))
            swath.create_dataset(f"Data Fields/{word.upper()}_PIXEL_L2_ERR_MATRIX", data=np.zeros(cube.shape, np.uint8))
        pan = counts(9, (6 * HEIGHT, 6 * WIDTH), 1, 65536, np.uint16)
        file.create_dataset(f"HDFEOS/SWATHS/PRS_{level}_PCO/Data Fields/Cube", data=pan)
        latitude, longitude = sensor_geometry()
        for name, values in (("Latitude", latitude), ("Longitude", longitude)):
            swath.create_dataset(f"Geolocation Fields/{name}{'_VNIR' if level == 'L1' else ''}", data=values)
    return _prisma_expected(path, stored, level)


def _prisma_attributes(file: Any, level: str) -> None:
    left, top = GRID.c + 15, GRID.f - 15
    attributes: dict[str, Any] = {
        "Product_ID": np.bytes_(f"PRS_{level}_STD"),
        "Product_Name": np.bytes_(f"PRS_{level}_STD_20200116101454_20200116101458_0001"),
        "Processing_Level": np.bytes_(level[1:]),
        "Product_StartTime": np.bytes_("2020-01-16T10:14:54.126"),
    }
    if level == "L2D":
        # The centres of the corner pixels.
        attributes |= {
            "Epsg_Code": np.uint32(UTM_32),
            "Product_ULcorner_easting": left,
            "Product_ULcorner_northing": top,
        }
        attributes |= {
            "Product_LRcorner_easting": left + 30.0 * (WIDTH - 1),
            "Product_LRcorner_northing": top - 30.0 * (HEIGHT - 1),
        }
    for word, (low, high) in SCALES.items():
        if level == "L1":
            attributes |= {f"ScaleFactor_{word}": np.float32(100), f"Offset_{word}": np.float32(0.5)}
        else:
            attributes |= {f"L2Scale{word}Min": np.float32(low), f"L2Scale{word}Max": np.float32(high)}
    for word, (wavelength, fwhm) in PRISMA_DETECTORS.items():
        attributes |= {f"List_Cw_{word}": wavelength.astype(np.float32), f"List_Fwhm_{word}": fwhm.astype(np.float32)}
        flags = (wavelength > 0).astype(np.uint8)
        flags[10] = 0
        attributes[f"List_Cw_{word}_Flags"] = flags
    file.attrs.update(attributes)


def prisma_scaling(level: str, word: str) -> tuple[float, float]:
    low, high = (float(np.float32(end)) for end in SCALES[word])
    return (0.01, -0.5) if level == "L1" else ((high - low) / 65535, low)


def _prisma_expected(path: Path, stored: dict[str, NDArray[Any]], level: str) -> Written:
    parts, flags = [], []
    for word, (wavelength, _) in PRISMA_DETECTORS.items():
        scale, offset = prisma_scaling(level, word)
        used = stored[word].transpose(1, 0, 2)[wavelength > 0][::-1]
        parts.append(np.where(used == 0, np.nan, used * scale + offset))
        flags.append((np.arange(wavelength.size) != 10)[wavelength > 0][::-1])
    physical, good = np.concatenate(parts), np.concatenate(flags)
    transform = GRID
    if level != "L2D":
        physical, transform = on_a_map(physical)
    wavelength, fwhm = prisma_bands()
    shown = (
        f"PRISMA {level}",
        "2020-01-16T10:14:54",
        "VNIR 63 bands",
        "SWIR 171 bands",
        "5 slots without a wavelength",
    )
    return Written(path, physical, wavelength, fwhm, good, UTM_32, transform, f"PRISMA {level}", "PRISMA", shown)


def sensor_geometry() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Latitude and longitude of the pixels of a descending orbit: turned by 13 degrees, a little wider than 30 m."""
    columns, rows = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    angle = np.radians(-13.0)
    east = 650300.0 + 31.0 * (np.cos(angle) * columns + np.sin(angle) * rows)
    north = 5340000.0 + 31.0 * (np.sin(angle) * columns - np.cos(angle) * rows)
    longitude, latitude = TO_DEGREES.transform(east, north)
    return latitude, longitude


def on_a_map(image: NDArray[np.float64]) -> tuple[NDArray[np.float64], Affine]:
    """The slow way: for each pixel of the map, look at all of the sensor's and take the nearest."""
    latitude, longitude = sensor_geometry()
    x, y = TO_METRES.transform(longitude, latitude)
    left, top = np.floor(x.min() / 30 - 0.5) * 30, np.ceil(y.max() / 30 + 0.5) * 30
    width, height = (
        round((np.ceil(x.max() / 30 + 0.5) * 30 - left) / 30),
        round((top - np.floor(y.min() / 30 - 0.5) * 30) / 30),
    )
    mapped = np.full((image.shape[0], height, width), np.nan)
    for row in range(height):
        for column in range(width):
            distance = np.hypot(x - (left + 30 * (column + 0.5)), y - (top - 30 * (row + 0.5)))
            if distance.min() < 0.75 * 31:
                mapped[:, row, column] = image[:, *np.unravel_index(distance.argmin(), distance.shape)]
    return mapped, Affine(30.0, 0.0, left, 0.0, -30.0, top)


def write_emit(folder: Path, name: str = "reflectance") -> Written:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{EMIT_ID}.nc" if name == "reflectance" else f"{EMIT_ID}.nc".replace("L2A_RFL", "L1B_RAD"))
    stored = np.random.default_rng(8).random((HEIGHT, WIDTH, 285)).astype(np.float32)
    stored[3, 4] = -9999
    stored[:, :, ~bands.EMIT_GOOD] = -0.01
    rows, columns = _lookup_table()
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {
            "downtrack": HEIGHT,
            "crosstrack": WIDTH,
            "bands": 285,
            "ortho_y": rows.shape[0],
            "ortho_x": rows.shape[1],
        }
        file.attrs.update(
            {
                "instrument": "EMIT",
                "platform": "ISS",
                "time_coverage_start": "2022-08-10T03:41:03+0000",
                "geotransform": np.array(EMIT_GRID),
                "spatial_ref": CRS.from_epsg(4326).to_wkt(),
                "granule_id": path.stem,
            }
        )
        cube = file.create_variable(
            name, ("downtrack", "crosstrack", "bands"), "f4", data=stored, fillvalue=np.float32(-9999)
        )
        cube.attrs["units"] = "unitless"
        parameters = file.create_group("sensor_band_parameters")
        parameters.create_variable("wavelengths", ("bands",), "f8", data=bands.EMIT_NM)
        parameters.create_variable("fwhm", ("bands",), "f8", data=bands.EMIT_FWHM_NM)
        if name == "reflectance":
            parameters.create_variable("good_wavelengths", ("bands",), "f4", data=bands.EMIT_GOOD.astype(np.float32))
        location = file.create_group("location")
        location.create_variable("glt_x", ("ortho_y", "ortho_x"), "i4", data=columns, fillvalue=np.int32(0))
        location.create_variable("glt_y", ("ortho_y", "ortho_x"), "i4", data=rows, fillvalue=np.int32(0))
    physical = np.full((285, *rows.shape), np.nan)
    for place, row in np.ndenumerate(rows):
        if row:
            physical[:, *place] = stored[row - 1, columns[place] - 1]
    physical[physical == -9999] = np.nan
    good = bands.EMIT_GOOD if name == "reflectance" else np.ones(285, dtype=bool)
    product = "EMIT L2A" if name == "reflectance" else "EMIT L1B"
    shown = (product, "2022-08-10T03:41:03", "285 bands", "by the geometry lookup table")
    return Written(
        path,
        physical,
        bands.EMIT_NM,
        bands.EMIT_FWHM_NM,
        good,
        4326,
        Affine.from_gdal(*EMIT_GRID),
        product,
        "EMIT",
        shown,
    )


def _lookup_table() -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """A geometry lookup table of a rotated image; it counts from 1, 0 for none."""
    y, x = np.meshgrid(np.arange(17), np.arange(19), indexing="ij")
    rows = np.rint(0.9 * y - 0.35 * x + 2).astype(np.int32)
    columns = np.rint(0.35 * y + 0.9 * x - 6).astype(np.int32)
    seen = (rows >= 1) & (rows <= HEIGHT) & (columns >= 1) & (columns <= WIDTH)
    return np.where(seen, rows, 0), np.where(seen, columns, 0)


WRITERS: dict[str, Callable[[Path], Written]] = {
    "prisma-l2d": write_prisma,
    "prisma-l2c": lambda folder: write_prisma(folder, "L2C"),
    "prisma-l1": lambda folder: write_prisma(folder, "L1"),
    "emit": write_emit,
    "emit-radiance": lambda folder: write_emit(folder, "radiance"),
}
