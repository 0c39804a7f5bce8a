"""A STAC item: what catalogues of satellite images want to know about a cube, as a JSON file beside it (STAC 1.1)."""

from __future__ import annotations

import itertools
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import xarray as xr
from affine import Affine
from rasterio.crs import CRS
from rasterio.errors import RasterioError
from rasterio.warp import transform_geom

from hyperfuse.io.cube import nodata_of
from hyperfuse.io.grid import Grid, grid_of
from hyperfuse.io.provenance import provenance_of, text_attributes, time_of_writing

STAC_VERSION = "1.1.0"
EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
WGS84 = "EPSG:4326"
# Straight edges of a projected image are curves on the globe.
POINTS_PER_EDGE = 16
# Seven decimals of a degree are a centimetre.
DECIMALS = 7
ACQUISITION_NAMES = ("acquired", "acquisition_time", "datetime", "time_coverage_start", "acquisition_date")
MEDIA_TYPES = {
    ".tif": "image/tiff; application=geotiff",
    ".tiff": "image/tiff; application=geotiff",
    ".nc": "application/netcdf",
    ".nc4": "application/netcdf",
    ".h5": "application/x-hdf5",
    ".hdf5": "application/x-hdf5",
    ".he5": "application/x-hdf5",
    ".zarr": "application/vnd.zarr",
    ".mat": "application/x-matlab-data",
    ".json": "application/json",
    ".hdr": "text/plain",
    ".xml": "application/xml",
    ".zip": "application/zip",
}
UNKNOWN_TYPE = "application/octet-stream"


def item_file(target: Path) -> Path:
    """fused.tif -> fused.json"""
    return target.with_suffix(".json")


def stac_item(
    target: Path,
    cube: xr.DataArray,
    beside: Sequence[Path] = (),
    inputs: Sequence[str | os.PathLike[str]] = (),
    *,
    cog: bool = False,
) -> dict[str, Any]:
    """The item of a cube that is, or will be, at `target` with the files `beside`, made from `inputs`. Values are not
    looked at.
    """
    grid, attributes = grid_of(cube), text_attributes(cube)
    footprint = _footprint(grid)
    if footprint is None:
        warnings.warn(f"{target.name} has no georeference: its STAC item has no geometry", stacklevel=2)
    properties = _times(target, attributes) | _place(grid) | _making(attributes)
    if footprint is not None:
        properties["gsd"] = _ground_metres(grid)
    knows_spectrum = not np.isnan([cube["wavelength"].values, cube["fwhm"].values]).all()
    extensions = ["projection/v2.0.0", "raster/v2.0.0", "processing/v1.1.0"] + ["eo/v2.0.0"] * knows_spectrum
    return {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "stac_extensions": [EXTENSION.format(name) for name in extensions],
        "id": target.stem,
        "geometry": footprint,
        **({} if footprint is None else {"bbox": _bounding_box(footprint)}),
        "properties": properties,
        "links": [_derived_from(Path(path), target) for path in inputs],
        "assets": _assets(target, cube, beside, cog=cog),
    }


def write_item(path: Path, item: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(item, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _footprint(grid: Grid) -> dict[str, Any] | None:
    """The outline in longitude and latitude, anticlockwise, cut in two where it crosses the date line."""
    if grid.transform is None or grid.crs is None:
        return None
    corners = [(0, 0), (0, grid.height), (grid.width, grid.height), (grid.width, 0), (0, 0)]
    steps = np.arange(POINTS_PER_EDGE)[:, None] / POINTS_PER_EDGE
    edges = [np.array(start) * (1 - steps) + np.array(end) * steps for start, end in itertools.pairwise(corners)]
    outline = [grid.transform @ (float(column), float(row)) for column, row in np.concatenate([*edges, [corners[0]]])]
    try:
        moved = transform_geom(grid.crs, WGS84, {"type": "Polygon", "coordinates": [outline]}, precision=DECIMALS)
    except RasterioError:
        return None
    parts = moved["coordinates"] if moved["type"] == "MultiPolygon" else [moved["coordinates"]]
    turned = [[_anticlockwise(ring) for ring in polygon] for polygon in parts]
    if not np.isfinite([point for polygon in turned for ring in polygon for point in ring]).all():
        return None
    return (
        {"type": "Polygon", "coordinates": turned[0]}
        if len(turned) == 1
        else {"type": "MultiPolygon", "coordinates": turned}
    )


def _anticlockwise(ring: Sequence[Sequence[float]]) -> list[list[float]]:
    points = np.array(ring, dtype=np.float64)
    doubled_area = np.sum(points[:-1, 0] * points[1:, 1] - points[1:, 0] * points[:-1, 1])
    ordered: list[list[float]] = (points if doubled_area > 0 else points[::-1]).tolist()
    return ordered


def _bounding_box(footprint: Mapping[str, Any]) -> list[float]:
    """West, south, east, north; across the date line west is the larger number (RFC 7946)."""
    crossing = footprint["type"] == "MultiPolygon"
    polygons = footprint["coordinates"] if crossing else [footprint["coordinates"]]
    longitudes, latitudes = np.array([point for polygon in polygons for ring in polygon for point in ring]).T
    west, east = longitudes.min(), longitudes.max()
    if crossing:
        west, east = longitudes[longitudes >= 0].min(), longitudes[longitudes < 0].max()
    return [float(west), float(latitudes.min()), float(east), float(latitudes.max())]


def _times(target: Path, attributes: Mapping[str, str]) -> dict[str, str]:
    created = time_of_writing()
    moments = [_moment(attributes[name]) for name in ACQUISITION_NAMES if name in attributes]
    acquired = next((moment for moment in moments if moment), None)
    if acquired is None:
        warnings.warn(
            f"when {target.name} was acquired is unknown: its STAC item says when it was written", stacklevel=3
        )
    return {"datetime": acquired or created, "created": created}


def _moment(text: str) -> str | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return in_utc.isoformat().replace("+00:00", "Z")


def _place(grid: Grid) -> dict[str, Any]:
    place: dict[str, Any] = {"proj:shape": [grid.height, grid.width]}
    if grid.transform is not None:
        place["proj:transform"] = [float(number) for number in grid.transform[:6]]
    if grid.crs is not None:
        code = grid.crs.to_epsg()
        place |= {"proj:code": f"EPSG:{code}"} if code else {"proj:code": None, "proj:wkt2": _wkt2(grid.crs)}
    return place


def _wkt2(crs: CRS) -> str:
    return pyproj.CRS.from_wkt(crs.to_wkt()).to_wkt()


def _ground_metres(grid: Grid) -> float:
    """How far apart pixels are on the ground: exact in a projection, measured on the ellipsoid where units are degrees."""
    assert grid.crs is not None and grid.transform is not None
    if not grid.crs.is_geographic:
        return round(max(grid.pixel_size) * float(grid.crs.linear_units_factor[1]), 6)
    transform: Affine = grid.transform
    centre = (grid.width / 2, grid.height / 2)
    (x, y), right, down = (transform @ (centre[0] + dx, centre[1] + dy) for dx, dy in ((0, 0), (1, 0), (0, 1)))
    distances = [float(pyproj.Geod(ellps="WGS84").inv(x, y, *end)[2]) for end in (right, down)]
    return round(max(distances), 6)


def _making(attributes: Mapping[str, str]) -> dict[str, Any]:
    made = provenance_of(attributes)
    software = {"hyperfuse": made.pop("version", version("hyperfuse"))}
    sensor = {"instruments": [attributes["sensor"]]} if attributes.get("sensor") else {}
    return sensor | {"processing:software": software} | {f"hyperfuse:{key}": text for key, text in made.items()}


def _derived_from(source: Path, target: Path) -> dict[str, str]:
    away = os.path.relpath(source.absolute(), target.absolute().parent)
    link = {"rel": "derived_from", "href": _relative(Path(away)), "title": source.name}
    media_type = MEDIA_TYPES.get(source.suffix.lower())
    return link | ({"type": media_type} if media_type else {})


def _relative(path: Path) -> str:
    text = path.as_posix().encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text if text.startswith("..") else f"./{text}"


def _assets(target: Path, cube: xr.DataArray, beside: Sequence[Path], *, cog: bool) -> dict[str, Any]:
    """The cube with its bands; ENVI's header, and what lies beside others, as metadata."""
    is_envi = target.suffix.lower() == ".hdr"
    data = next((path for path in beside if path.suffix == ".img"), target) if is_envi else target
    media_type = MEDIA_TYPES.get(data.suffix.lower(), UNKNOWN_TYPE) + ("; profile=cloud-optimized" if cog else "")
    nodata = nodata_of(cube)
    numbers = {"data_type": cube.dtype.name} | ({} if nodata is None else {"nodata": _json_number(nodata)})
    assets = {
        "cube": {"href": f"./{data.name}", "type": media_type, "roles": ["data"], **numbers, "bands": _bands(cube)},
    }
    for path in (each for each in (target, *beside) if each != data):
        media_type = MEDIA_TYPES.get(path.suffix.lower(), UNKNOWN_TYPE)
        assets["header" if is_envi else "table"] = {"href": f"./{path.name}", "type": media_type, "roles": ["metadata"]}
    return assets


def _bands(cube: xr.DataArray) -> list[dict[str, Any]]:
    rows = zip(
        *(cube[name].values for name in ("band_name", "wavelength", "fwhm", "scale", "offset", "good")), strict=True
    )
    bands = []
    for index, (name, wavelength, fwhm, scale, offset, good) in enumerate(rows, start=1):
        band: dict[str, Any] = {"name": str(name) or f"B{index:03d}"}
        for key, length in (("center_wavelength", wavelength), ("full_width_half_max", fwhm)):
            if not math.isnan(length):
                band[f"eo:{key}"] = round(float(length) / 1e3, 9)
        band |= {"raster:scale": float(scale), "raster:offset": float(offset)}
        bands.append(band if good else band | {"hyperfuse:good": False})
    return bands


def _json_number(number: float) -> float | str:
    """JSON knows no NaN; STAC writes it as a text."""
    return number if math.isfinite(number) else str(number)
