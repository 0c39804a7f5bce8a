"""What is in a cube, for a person and for a program."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import xarray as xr

from hyperfuse.cubes.cube import as_cube, missing_values, nodata_of, physical_values
from hyperfuse.cubes.grid import Grid, grid_of

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
        return asdict(self)


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
        attributes={key: str(value) for key, value in cube.attrs.items() if key != "_FillValue"},
        sampled_minimum=minimum,
        sampled_maximum=maximum,
        sampled_missing_share=missing,
    )


def _sampled_range(cube: xr.DataArray) -> tuple[float | None, float | None, float]:
    """One compact window from the middle, because single scattered pixels cost a whole block each."""
    bands, height, width = cube.shape
    rows = slice(max(0, (height - SAMPLED_ROWS) // 2), (height + SAMPLED_ROWS) // 2 + 1)
    columns = slice(max(0, (width - SAMPLED_COLUMNS) // 2), (width + SAMPLED_COLUMNS) // 2 + 1)
    chosen = np.unique(np.linspace(0, bands - 1, min(bands, SAMPLED_BANDS)).round().astype(np.int64))
    window = cube.isel(band=chosen, y=rows, x=columns).load()
    missing = float(missing_values(window.values, nodata_of(cube)).mean())
    values = physical_values(window, dtype=np.float64)
    if missing == 1:
        return None, None, 1.0
    return float(np.nanmin(values)), float(np.nanmax(values)), missing


def _without_nan(values: Any) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _crs_text(grid: Grid) -> str | None:
    if grid.crs is None:
        return None
    code = grid.crs.to_epsg()
    return f"EPSG:{code}" if code else str(grid.crs.to_wkt())


def _bounds(grid: Grid) -> list[float] | None:
    """Left, bottom, right, top."""
    if grid.transform is None:
        return None
    corners = [grid.transform @ corner for corner in ((0, 0), (grid.width, 0), (0, grid.height), (grid.width, grid.height))]
    xs, ys = zip(*corners, strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]
