"""Fused values -> a cube on the MSI's grid with the HSI's bands, data type, scale, nodata and metadata, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import make_cube, nodata_of
from hyperfuse.prediction.aligned_pair import AlignedPair


def fused_cube(fused: NDArray[np.float32], pair: AlignedPair, hsi: xr.DataArray, record: Mapping[str, str]) -> xr.DataArray:
    """`fused` covers the pair's part of the output grid; everything else becomes nodata."""
    grid = pair.output_grid
    nodata = _nodata_for(hsi, complete=_is_complete(fused, pair, grid.height, grid.width))
    stored = np.full((fused.shape[0], grid.height, grid.width), 0 if nodata is None else nodata, dtype=hsi.dtype)
    stored[:, pair.fine_rows, pair.fine_columns] = to_stored(fused, hsi, nodata)
    attributes = {key: value for key, value in hsi.attrs.items() if key != "_FillValue"}
    return make_cube(
        stored,
        wavelength_nm=hsi["wavelength"].values,
        fwhm_nm=hsi["fwhm"].values,
        good=hsi["good"].values,
        band_names=[str(name) for name in hsi["band_name"].values],
        scale=hsi["scale"].values,
        offset=hsi["offset"].values,
        nodata=nodata,
        crs=grid.crs,
        transform=grid.transform,
        attributes=attributes
        | dict(record)
        | {"hyperfuse_version": version("hyperfuse"), "hyperfuse_scale": _scale_text(pair.scale)},
    )


def to_stored(physical: NDArray[np.float32], like: xr.DataArray, nodata: float | None) -> NDArray[Any]:
    """Physical values as the cube `like` stores them: scaled back, rounded, kept inside the data type and off the nodata value."""
    column = (-1, 1, 1)
    stored = (physical - like["offset"].values.reshape(column)) / like["scale"].values.reshape(column)
    missing = ~np.isfinite(stored)
    if like.dtype.kind == "f":
        values: NDArray[Any] = stored.astype(like.dtype)
    else:
        limits = np.iinfo(like.dtype)
        # float64 cannot name the largest 64-bit integers; the next smaller float can be cast.
        top = np.nextafter(float(limits.max), 0) if limits.bits == 64 else float(limits.max)
        values = np.clip(np.where(missing, 0, stored).round(), limits.min, top).astype(like.dtype)
        if nodata is not None:
            values[~missing & (values == nodata)] += 1 if nodata < limits.max else -1
    if nodata is not None:
        values[missing] = nodata
    return values


def _nodata_for(hsi: xr.DataArray, *, complete: bool) -> float | None:
    """The HSI's nodata; where it has none and some pixels are missing, NaN or the integer least likely to be a measurement."""
    nodata = nodata_of(hsi)
    if nodata is not None or complete:
        return nodata
    if hsi.dtype.kind == "f":
        return float("nan")
    limits = np.iinfo(hsi.dtype)
    return int(limits.min) if limits.min < 0 else int(limits.max)


def _is_complete(fused: NDArray[np.float32], pair: AlignedPair, height: int, width: int) -> bool:
    return fused.shape[1:] == (height, width) and bool(np.isfinite(fused).all())


def _scale_text(scale: tuple[float, float]) -> str:
    y, x = scale
    return f"{y:.9g}" if abs(y - x) < 1e-6 * y else f"{y:.9g} {x:.9g}"
