"""What is in a cube, for a person and for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

from hyperfuse.io.cube import as_cube, nodata_of, physical_values
from hyperfuse.io.grid import Grid, grid_of
from hyperfuse.io.provenance import text_attributes

# A look at the values, not a pass over the whole file.
SAMPLED_ROWS = 64
SAMPLED_COLUMNS = 64
SAMPLED_BANDS = 32


@dataclass(frozen=True)
class CubeSummary:
    bands: int
    height: int
    width: int
    dtype: str
    wavelength_nm: list[float | None]
    fwhm_nm: list[float | None]
    good: list[bool]
    band_name: list[str]
    scale: list[float]
    offset: list[float]
    nodata: float | str | None
    crs: str | None
    transform: list[float] | None
    pixel_size: list[float]
    bounds: list[float] | None
    attributes: dict[str, str]
    sampled_minimum: float | None
    sampled_maximum: float | None
    sampled_missing_share: float

    def as_dict(self) -> dict[str, Any]:
        """Only what strict JSON can hold: a number that is not finite becomes None."""
        return {name: _strict(value) for name, value in asdict(self).items()}


def summarise(cube: xr.DataArray) -> CubeSummary:
    """Everything known about a cube; the range of values comes from a sample spread over it."""
    cube = as_cube(cube)
    grid = grid_of(cube)
    minimum, maximum, missing = _sampled_range(cube)
    bands, height, width = cube.shape
    nodata = nodata_of(cube)
    return CubeSummary(
        bands=bands,
        height=height,
        width=width,
        dtype=cube.dtype.name,
        wavelength_nm=_without_nan(cube["wavelength"].values),
        fwhm_nm=_without_nan(cube["fwhm"].values),
        good=cube["good"].values.tolist(),
        band_name=[str(name) for name in cube["band_name"].values],
        scale=cube["scale"].values.tolist(),
        offset=cube["offset"].values.tolist(),
        nodata=str(nodata) if nodata is not None and not np.isfinite(nodata) else nodata,
        crs=_crs_text(grid),
        transform=list(grid.transform)[:6] if grid.transform else None,
        pixel_size=list(grid.pixel_size),
        bounds=_bounds(grid),
        attributes=text_attributes(cube),
        sampled_minimum=minimum,
        sampled_maximum=maximum,
        sampled_missing_share=missing,
    )


def sample_of(cube: xr.DataArray) -> xr.DataArray:
    """One compact window from the middle, still lazy, because single scattered pixels cost a whole block each."""
    bands, height, width = cube.shape
    rows = slice(max(0, (height - SAMPLED_ROWS) // 2), (height + SAMPLED_ROWS) // 2 + 1)
    columns = slice(max(0, (width - SAMPLED_COLUMNS) // 2), (width + SAMPLED_COLUMNS) // 2 + 1)
    chosen = np.unique(np.linspace(0, bands - 1, min(bands, SAMPLED_BANDS)).round().astype(np.int64))
    return cube.isel(band=chosen, y=rows, x=columns)


def _sampled_range(cube: xr.DataArray) -> tuple[float | None, float | None, float]:
    values = physical_values(sample_of(cube), dtype=np.float64)
    missing = np.isnan(values)
    if missing.all():
        return None, None, 1.0
    return float(np.nanmin(values)), float(np.nanmax(values)), float(missing.mean())


def _without_nan(values: Any) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _strict(value: Any) -> Any:
    if isinstance(value, list):
        return [_strict(entry) for entry in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _crs_text(grid: Grid) -> str | None:
    if grid.crs is None:
        return None
    code = grid.crs.to_epsg()
    return f"EPSG:{code}" if code else str(grid.crs.to_wkt())


def _bounds(grid: Grid) -> list[float] | None:
    """Left, bottom, right, top."""
    if grid.transform is None:
        return None
    corners = [
        grid.transform @ corner for corner in ((0, 0), (grid.width, 0), (0, grid.height), (grid.width, grid.height))
    ]
    xs, ys = zip(*corners, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]
