"""STAC items (version 1.1): a JSON file beside a cube for catalogues of satellite images."""

from __future__ import annotations

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
import xarray as xr
from numpy.typing import NDArray
from rasterio.errors import RasterioError
from rasterio.warp import transform_geom

from hyperfuse.io.cube import nodata_of, text_attributes
from hyperfuse.io.grid import Grid, grid_of, metres_per_pixel
from hyperfuse.io.output import provenance_of, time_of_writing

STAC_VERSION = "1.1.0"
EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
# Straight edges of a projected image are curves on the globe.
POINTS_PER_EDGE = 16
# Seven decimals of a degree are a centimetre.
DECIMALS = 7
ACQUISITION_NAMES = ("acquired", "acquisition_time", "datetime", "time_coverage_start", "acquisition_date")
MEDIA_TYPES = (
    dict.fromkeys((".tif", ".tiff"), "image/tiff; application=geotiff")
    | dict.fromkeys((".nc", ".nc4"), "application/netcdf")
    | dict.fromkeys((".h5", ".hdf5", ".he5"), "application/x-hdf5")
    | {".zarr": "application/vnd.zarr", ".mat": "application/x-matlab-data", ".json": "application/json"}
    | {".hdr": "text/plain", ".xml": "application/xml", ".zip": "application/zip"}
)
UNKNOWN_TYPE = "application/octet-stream"


def item_file(target: Path) -> Path:
    """Return the path of a target's item: fused.tif -> fused.json."""
    return target.with_suffix(".json")


def stac_item(
    target: Path,
    cube: xr.DataArray,
    beside: Sequence[Path] = (),
    inputs: Sequence[str | os.PathLike[str]] = (),
    *,
    cog: bool = False,
) -> dict[str, Any]:
    """Describe a cube that is, or will be, at `target` with the files `beside`, made from `inputs`.

    The values of the cube are not read.
    """
    grid, attributes = grid_of(cube), text_attributes(cube)
    footprint = _footprint(grid)
    if footprint["geometry"] is None:
        warnings.warn(f"{target.name} has no georeference: its STAC item has no geometry", stacklevel=2)
    record = provenance_of(attributes)
    properties = _times(target, attributes) | _projection(grid)
    if attributes.get("sensor"):
        properties["instruments"] = [attributes["sensor"]]
    properties["processing:software"] = {"hyperfuse": record.pop("version", version("hyperfuse"))}
    properties |= {f"hyperfuse:{key}": text for key, text in record.items()}
    size = metres_per_pixel(grid)
    if footprint["geometry"] is not None and size is not None:
        properties["gsd"] = round(max(size), 6)
    knows_spectrum = not np.isnan([cube["wavelength"].values, cube["fwhm"].values]).all()
    extensions = ["projection/v2.0.0", "raster/v2.0.0", "processing/v1.1.0"] + ["eo/v2.0.0"] * knows_spectrum
    return {
        "type": "Feature",
        "stac_version": STAC_VERSION,
        "stac_extensions": [EXTENSION.format(name) for name in extensions],
        "id": target.stem,
        **footprint,
        "properties": properties,
        "links": [_derived_from(Path(path), target) for path in inputs],
        "assets": _assets(target, cube, beside, cog=cog),
    }


def stac_bands(path: Path, bands: int) -> dict[str, Any]:
    """Return what the STAC item beside a raster says about its bands: band_name, wavelength and fwhm in nm.

    The item is `scene.stac.json`, `scene.json` or `scene.tif.json`; STAC has had three places for bands.
    """
    names = (f"{path.stem}.stac.json", f"{path.stem}.json", f"{path.name}.json")
    for file in (path.with_name(name) for name in names):
        rows = _rows_of_item(_read_item(file), path.name)
        if len(rows) == bands:
            columns = {
                "wavelength": [_micrometres(row, "center_wavelength") for row in rows],
                "fwhm": [_micrometres(row, "full_width_half_max") for row in rows],
            }
            known = {key: np.array(column) for key, column in columns.items() if not np.isnan(column).all()}
            return known | {"band_name": [str(row.get("name", "")) for row in rows]}
    return {}


def _read_item(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes()) if file.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None


def _rows_of_item(item: Any, name: str) -> list[dict[str, Any]]:
    """One mapping per band, joined from every list that describes the bands of the asset called `name`."""
    if not isinstance(item, dict):
        return []
    assets = item.get("assets")
    named = [
        asset
        for asset in (assets.values() if isinstance(assets, dict) else ())
        if isinstance(asset, dict) and str(asset.get("href", "")).rpartition("/")[2] == name
    ]
    holders = [each for each in (*named, item.get("properties"), item) if isinstance(each, dict)]
    lists = [each[key] for each in holders for key in ("bands", "eo:bands", "raster:bands") if key in each]
    lists = [each for each in lists if isinstance(each, list) and all(isinstance(row, dict) for row in each)]
    length = len(lists[0]) if lists else 0
    merged: list[dict[str, Any]] = [{} for _ in range(length)]
    for rows in reversed([each for each in lists if len(each) == length]):
        for row, more in zip(merged, rows, strict=True):
            row |= {str(key).removeprefix("eo:"): value for key, value in more.items()}
    return merged


def _micrometres(row: Mapping[str, Any], key: str) -> float:
    value = row.get(key)
    return value * 1e3 if isinstance(value, int | float) and value > 0 else math.nan


def write_item(path: Path, item: Mapping[str, Any]) -> None:
    """Write an item as strict JSON."""
    path.write_text(json.dumps(item, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _footprint(grid: Grid) -> dict[str, Any]:
    """The outline in longitude and latitude, anticlockwise, cut in two where it crosses the date line, and its box."""
    nowhere = {"geometry": None}
    if grid.transform is None or grid.crs is None:
        return nowhere
    corners = np.array([(0, 0), (0, 1), (1, 1), (1, 0), (0, 0)]) * (grid.width, grid.height)
    steps = np.linspace(0, 4, 4 * POINTS_PER_EDGE + 1)
    columns, rows = (np.interp(steps, range(5), axis).tolist() for axis in corners.T)
    outline = [grid.transform @ point for point in zip(columns, rows, strict=True)]
    try:
        moved = transform_geom(grid.crs, "EPSG:4326", {"type": "Polygon", "coordinates": [outline]}, precision=DECIMALS)
    except RasterioError:
        return nowhere
    is_cut = moved["type"] == "MultiPolygon"
    # Each polygon is one ring: an image has no holes.
    rings = [
        np.array(ring, dtype=np.float64) for (ring,) in (moved["coordinates"] if is_cut else [moved["coordinates"]])
    ]
    longitudes, latitudes = np.concatenate(rings).T
    if not np.isfinite([longitudes, latitudes]).all():
        return nowhere
    coordinates = [[(ring if _is_anticlockwise(ring) else ring[::-1]).tolist()] for ring in rings]
    # West, south, east, north; across the date line west is the larger number (RFC 7946).
    west = longitudes[longitudes >= 0].min() if is_cut else longitudes.min()
    east = longitudes[longitudes < 0].max() if is_cut else longitudes.max()
    return {
        "geometry": {"type": moved["type"], "coordinates": coordinates if is_cut else coordinates[0]},
        "bbox": [float(edge) for edge in (west, latitudes.min(), east, latitudes.max())],
    }


def _is_anticlockwise(ring: NDArray[np.float64]) -> bool:
    return bool(np.sum(ring[:-1, 0] * ring[1:, 1] - ring[1:, 0] * ring[:-1, 1]) > 0)


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


def _projection(grid: Grid) -> dict[str, Any]:
    import pyproj

    fields: dict[str, Any] = {"proj:shape": [grid.height, grid.width]}
    if grid.transform is not None:
        fields["proj:transform"] = [float(number) for number in grid.transform[:6]]
    if grid.crs is not None:
        code = grid.crs.to_epsg()
        fields["proj:code"] = f"EPSG:{code}" if code else None
        if not code:
            fields["proj:wkt2"] = pyproj.CRS.from_wkt(grid.crs.to_wkt()).to_wkt()
    return fields


def _derived_from(source: Path, target: Path) -> dict[str, str]:
    relative = Path(os.path.relpath(source.absolute(), target.absolute().parent)).as_posix()
    href = relative.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    link = {"rel": "derived_from", "href": href if href.startswith("..") else f"./{href}", "title": source.name}
    media_type = MEDIA_TYPES.get(source.suffix.lower())
    return link | ({"type": media_type} if media_type else {})


def _assets(target: Path, cube: xr.DataArray, beside: Sequence[Path], *, cog: bool) -> dict[str, Any]:
    """The cube with its bands; ENVI's header, and what lies beside others, as metadata."""
    is_envi = target.suffix.lower() == ".hdr"
    data = next((path for path in beside if path.suffix == ".img"), target) if is_envi else target
    nodata = nodata_of(cube)
    cube_asset = _asset(data, "data") | {"data_type": cube.dtype.name, "bands": _bands(cube)}
    if cog:
        cube_asset["type"] += "; profile=cloud-optimized"
    if nodata is not None:
        # JSON has no NaN; STAC writes it as a text.
        cube_asset["nodata"] = nodata if math.isfinite(nodata) else str(nodata)
    others = {"header" if is_envi else "table": _asset(path, "metadata") for path in (target, *beside) if path != data}
    return {"cube": cube_asset} | others


def _asset(path: Path, role: str) -> dict[str, Any]:
    return {"href": f"./{path.name}", "type": MEDIA_TYPES.get(path.suffix.lower(), UNKNOWN_TYPE), "roles": [role]}


def _bands(cube: xr.DataArray) -> list[dict[str, Any]]:
    columns = (cube[name].values for name in ("band_name", "wavelength", "fwhm", "scale", "offset", "good"))
    bands = []
    for index, (name, wavelength, fwhm, scale, offset, good) in enumerate(zip(*columns, strict=True), start=1):
        band: dict[str, Any] = {"name": str(name) or f"B{index:03d}"}
        for key, length in (("center_wavelength", wavelength), ("full_width_half_max", fwhm)):
            if not math.isnan(length):
                band[f"eo:{key}"] = round(float(length) / 1e3, 9)
        band |= {"raster:scale": float(scale), "raster:offset": float(offset)}
        bands.append(band if good else band | {"hyperfuse:good": False})
    return bands
