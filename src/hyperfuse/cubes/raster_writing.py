"""Writing rasters through GDAL (rasterio), window by window, with every band's metadata: GeoTIFF, COG, ENVI."""

from __future__ import annotations

import json
import re
import urllib.parse
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
import xarray as xr
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from hyperfuse.cubes.cube import nodata_of
from hyperfuse.cubes.grid import Grid, grid_of
from hyperfuse.cubes.raster import ENVI_OWN_KEY
from hyperfuse.errors import CubeWriteError

BLOCK = 256
# Integers beyond this are rounded on their way through GDAL's floating-point nodata.
LARGEST_EXACT_NODATA = 2**53
ENVI_TYPES = {"uint8", "int16", "int32", "float32", "float64", "uint16", "uint32", "int64", "uint64"}
TIFF_TYPES = ENVI_TYPES | {"int8"}


class RasterWriter:
    def __init__(self, target: Any) -> None:
        self._target = target

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        window = Window(columns.start, rows.start, columns.stop - columns.start, rows.stop - rows.start)
        self._target.write(block, window=window)


@contextmanager
def created_geotiff(path: Path, template: xr.DataArray, options: Mapping[str, str], *, cog: bool = False) -> Iterator[RasterWriter]:
    """A tiled, compressed GeoTIFF; a cloud-optimised one is a copy made at the end."""
    profile = {"driver": "GTiff", "bigtiff": "IF_SAFER", "compress": "deflate", "interleave": "band", "num_threads": "all_cpus"}
    profile["predictor"] = "3" if template.dtype.kind == "f" else "2"
    if template.sizes["y"] >= BLOCK and template.sizes["x"] >= BLOCK:
        profile |= {"tiled": "yes", "blockxsize": str(BLOCK), "blockysize": str(BLOCK)}
    chosen = {key.lower(): value for key, value in options.items()}
    if "compress" in chosen:
        del profile["predictor"]
    first = path.with_name(f"plain.{path.name}") if cog else path
    with _created(first, template, TIFF_TYPES, profile | ({} if cog else chosen)) as target:
        _tag_tiff(target, template)
        yield RasterWriter(target)
    if cog:
        with _gdal_errors(path):
            rasterio.shutil.copy(first, path, driver="COG", **({"compress": "deflate", "bigtiff": "IF_SAFER"} | chosen))
        first.unlink()
    _verify(path)


@contextmanager
def created_envi(header: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[RasterWriter]:
    """`scene.hdr` with its pixels in `scene.img`."""
    data = header.with_suffix(".img")
    profile = {"driver": "ENVI", "interleave": "bsq"} | {key.lower(): value for key, value in options.items()}
    with _created(data, template, ENVI_TYPES, profile) as target:
        _tag_envi(target, template)
        yield RasterWriter(target)
    _verify(data)
    text = header.read_text(encoding="utf-8")
    # GDAL puts the path of the moment there.
    header.write_text(re.sub(r"description = \{[^}]*\}", f"description = {{{header.stem}}}", text, count=1), encoding="utf-8")


@contextmanager
def _created(path: Path, template: xr.DataArray, types: set[str], profile: Mapping[str, str]) -> Iterator[Any]:
    if template.dtype.name not in types:
        raise CubeWriteError(
            f"{profile['driver']} cannot hold {template.dtype.name}",
            f"one of {', '.join(sorted(types))}",
            "convert the values first",
        )
    grid = grid_of(template)
    bands, height, width = template.shape
    shape: dict[str, Any] = {"count": bands, "height": height, "width": width, "dtype": template.dtype.name}
    place = {"crs": grid.crs, "transform": grid.transform} if grid.transform else {"crs": grid.crs}
    with _gdal_errors(path), rasterio.Env(GDAL_PAM_ENABLED="NO"), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "w", nodata=_gdal_nodata(template), **profile, **shape, **place) as target:
            target.scales = tuple(template["scale"].values)
            target.offsets = tuple(template["offset"].values)
            yield target


@contextmanager
def _gdal_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except RasterioError as error:
        reason = str(error.__cause__ or error).splitlines()[0].replace(str(path), path.name)
        raise CubeWriteError(
            f"cannot write {path.name}: {reason}", remedy="nothing was left behind; check space and options"
        ) from error


def _verify(path: Path) -> None:
    """GDAL keeps quiet about blocks that did not fit on the disk when a file is closed: look at every block's presence."""
    with _gdal_errors(path), warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path) as written:
            promised = written.width * written.height * sum(np.dtype(name).itemsize for name in written.dtypes)
            if written.driver == "ENVI" and path.stat().st_size < promised:
                raise OSError(28, "No space left on device", str(path))
            last = Window(written.width - 1, written.height - 1, 1, 1)
            written.read(window=last)


def _gdal_nodata(template: xr.DataArray) -> float | None:
    nodata = nodata_of(template)
    return None if nodata is not None and template.dtype.kind != "f" and abs(nodata) > LARGEST_EXACT_NODATA else nodata


def _tag_tiff(target: Any, template: xr.DataArray) -> None:
    texts = {key: str(value) for key, value in template.attrs.items() if key != "_FillValue"}
    if _gdal_nodata(template) != nodata_of(template) and nodata_of(template) == nodata_of(template):
        texts["HYPERFUSE_NODATA"] = str(nodata_of(template))
    target.update_tags(**texts)
    for index, (wavelength, fwhm, good, name) in enumerate(_band_rows(template), start=1):
        tags = {} if good else {"bbl": "0"}
        imagery = {}
        if not np.isnan(wavelength):
            tags |= {"wavelength": repr(float(wavelength)), "wavelength_units": "Nanometers"}
            imagery["CENTRAL_WAVELENGTH_UM"] = f"{wavelength / 1e3:.6f}"
        if not np.isnan(fwhm):
            tags |= {"fwhm": repr(float(fwhm)), "wavelength_units": "Nanometers"}
            imagery["FWHM_UM"] = f"{fwhm / 1e3:.6f}"
        description = name or ("" if np.isnan(wavelength) else f"B{index:03d} {wavelength:.1f} nm")
        if description:
            target.set_band_description(index, description)
        target.update_tags(index, **tags)
        if imagery:
            target.update_tags(index, ns="IMAGERY", **imagery)


def _tag_envi(target: Any, template: xr.DataArray) -> None:
    keys = {}
    for key in ("wavelength", "fwhm"):
        values = template[key].values
        if not np.isnan(values).all():
            keys[key] = "{" + ", ".join(repr(float(value)) for value in values) + "}"
            keys["wavelength_units"] = "Nanometers"
    good = template["good"].values
    if not good.all():
        keys["bbl"] = "{" + ", ".join("1" if flag else "0" for flag in good) + "}"
    scale = template["scale"].values
    if scale[0] != 1 and (scale == scale[0]).all() and (template["offset"].values == 0).all():
        keys["reflectance_scale_factor"] = f"{1 / scale[0]:.12g}"
    for index, name in enumerate(template["band_name"].values, start=1):
        target.set_band_description(index, re.sub(r"[,{}=]", ";", str(name)) or f"Band {index}")
    record = json.dumps(_exact_record(template, grid_of(template)))
    keys[ENVI_OWN_KEY] = "{" + urllib.parse.quote(record, safe="") + "}"
    target.update_tags(ns="ENVI", **keys)


def _exact_record(template: xr.DataArray, grid: Grid) -> dict[str, Any]:
    nodata = nodata_of(template)
    return {
        "band_name": [str(name) for name in template["band_name"].values],
        "crs": grid.crs.to_wkt() if grid.crs else None,
        "transform": list(grid.transform)[:6] if grid.transform else None,
        "nodata": None if nodata is None else repr(nodata),
        "attributes": {key: str(value) for key, value in template.attrs.items() if key != "_FillValue"},
    }


def _band_rows(template: xr.DataArray) -> list[tuple[float, float, bool, str]]:
    columns = (template[name].values for name in ("wavelength", "fwhm", "good", "band_name"))
    return list(zip(*columns, strict=True))
