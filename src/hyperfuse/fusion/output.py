"""Fused values -> a cube on the MSI's grid with the HSI's bands, data type, scale, nodata and metadata, and how it was
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.io.bands import select_bands
from hyperfuse.io.cube import make_cube, nodata_of, usual_nodata
from hyperfuse.io.output import AS_IT_IS, Clipping, OutputOptions, output_template, to_stored


def fused_cube(
    fused: NDArray[np.float32],
    pair: AlignedPair,
    hsi: xr.DataArray,
    record: Mapping[str, str],
    output: OutputOptions = AS_IT_IS,
    clipping: Clipping | None = None,
) -> xr.DataArray:
    """`fused` covers the pair's part of the output grid; everything else becomes nodata. Bands and numbers are as
    `output` asks.
    """
    complete = covers_output(pair) and bool(np.isfinite(fused).all())
    template = output_template(fused_template(pair, hsi, record, complete=complete), output)
    nodata = nodata_of(template)
    stored = np.full(template.shape, 0 if nodata is None else nodata, dtype=template.dtype)
    chosen = fused if output.bands is None else fused[select_bands(hsi, output.bands)]
    stored[:, pair.fine_rows, pair.fine_columns] = to_stored(chosen, template, clipping)
    return template.copy(data=stored)


def fused_template(pair: AlignedPair, hsi: xr.DataArray, record: Mapping[str, str], *, complete: bool) -> xr.DataArray:
    """The fused cube without its values, which take no memory. `complete` promises that no pixel will be missing."""
    grid = pair.output_grid
    shape = (hsi.sizes["band"], grid.height, grid.width)
    attributes = {key: value for key, value in hsi.attrs.items() if key != "_FillValue"}
    return make_cube(
        np.broadcast_to(np.zeros((), hsi.dtype), shape),
        wavelength_nm=hsi["wavelength"].values,
        fwhm_nm=hsi["fwhm"].values,
        good=hsi["good"].values,
        band_names=[str(name) for name in hsi["band_name"].values],
        scale=hsi["scale"].values,
        offset=hsi["offset"].values,
        nodata=_nodata_for(hsi, complete=complete),
        crs=grid.crs,
        transform=grid.transform,
        attributes=attributes
        | {"hyperfuse_version": version("hyperfuse"), "hyperfuse_scale": _scale_text(pair.scale)}
        | dict(record),
    )


def covers_output(pair: AlignedPair) -> bool:
    return pair.fine_shape[1:] == (pair.output_grid.height, pair.output_grid.width)


def cannot_miss(pair: AlignedPair) -> bool:
    """Whether it is clear, without reading them, that the images have a value for every pixel of the output."""
    images = (pair.hsi_source.cube, pair.msi_source.cube)
    return covers_output(pair) and all(cube.dtype.kind in "iu" and nodata_of(cube) is None for cube in images)


def _scale_text(scale: tuple[float, float]) -> str:
    y, x = scale
    return f"{y:.9g}" if abs(y - x) < 1e-6 * y else f"{y:.9g} {x:.9g}"


def _nodata_for(hsi: xr.DataArray, *, complete: bool) -> float | None:
    """The HSI's nodata; where it has none and some pixels are missing, NaN or the integer least likely to be a
    measurement.
    """
    nodata = nodata_of(hsi)
    return nodata if nodata is not None or complete else usual_nodata(hsi.dtype)
