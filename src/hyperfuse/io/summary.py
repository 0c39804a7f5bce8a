"""What is in a cube, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.io.cube import as_cube, nodata_of, physical_values, sample_of, spread_slices, text_attributes
from hyperfuse.io.grid import Grid, grid_of

# Where missing pixels are counted: windows of this side, this many along each axis.
WINDOW, WINDOWS = 16, 5


def html_table(title: str, rows: Mapping[str, str]) -> str:
    """Return a table of labels and values, as notebooks show it."""
    cells = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in rows.items())
    return f"<table><caption>{escape(title)}</caption>{cells}</table>"


@dataclass(frozen=True)
class CubeSummary:
    """Everything known about a cube; `bounds` is left, bottom, right, top."""

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

    def __repr__(self) -> str:
        known = [value for value in self.wavelength_nm if value is not None]
        spectrum = f", {min(known):g} to {max(known):g} nm" if known else ""
        size = f"{self.bands} bands{spectrum}, {self.height} x {self.width} pixels of {self.dtype}"
        values = "no data" if self.sampled_minimum is None else f"{self.sampled_minimum:g} to {self.sampled_maximum:g}"
        return f"CubeSummary({size}, {self.crs or 'no CRS'}, values {values})"

    def as_dict(self) -> dict[str, Any]:
        """Return only what strict JSON can hold: a number that is not finite becomes None."""
        record: dict[str, Any] = strict_json(asdict(self))
        return record


def summarise(cube: xr.DataArray) -> CubeSummary:
    """Summarise a cube; the range of values comes from a window in its middle.

    Parameters
    ----------
    cube
        A cube, lazy or in memory.

    Returns
    -------
    CubeSummary
        Size, band table, georeference, attributes and sampled range.

    Examples
    --------
    >>> import numpy as np
    >>> from hyperfuse.io.cube import make_cube
    >>> summary = summarise(make_cube(np.full((2, 3, 4), 5000, np.uint16), scale=1e-4))
    >>> summary.bands, summary.dtype, summary.sampled_maximum
    (2, 'uint16', 0.5)
    """
    cube = as_cube(cube)
    grid, nodata = grid_of(cube), nodata_of(cube)
    values = physical_values(sample_of(cube), dtype=np.float64)
    missing = np.isnan(values)
    bands, height, width = cube.shape
    code = grid.crs.to_epsg() if grid.crs else None
    return CubeSummary(
        bands=bands,
        height=height,
        width=width,
        dtype=cube.dtype.name,
        wavelength_nm=strict_json(cube["wavelength"].values),
        fwhm_nm=strict_json(cube["fwhm"].values),
        good=cube["good"].values.tolist(),
        band_name=[str(name) for name in cube["band_name"].values],
        scale=cube["scale"].values.tolist(),
        offset=cube["offset"].values.tolist(),
        nodata=str(nodata) if nodata is not None and not np.isfinite(nodata) else nodata,
        crs=None if grid.crs is None else f"EPSG:{code}" if code else str(grid.crs.to_wkt()),
        transform=list(grid.transform)[:6] if grid.transform else None,
        pixel_size=list(grid.pixel_size),
        bounds=_bounds(grid),
        attributes=text_attributes(cube),
        sampled_minimum=None if missing.all() else float(np.nanmin(values)),
        sampled_maximum=None if missing.all() else float(np.nanmax(values)),
        sampled_missing_share=_missing_share(cube, missing),
    )


def _missing_share(cube: xr.DataArray, missing_in_sample: NDArray[np.bool_]) -> float:
    """The share of missing pixels: scenes of satellites are tilted, so that the middle alone has no fill values."""
    if missing_in_sample.shape == cube.shape:
        return float(missing_in_sample.mean())
    middle = cube.sizes["band"] // 2
    band = cube[middle : middle + 1]
    rows, columns = (spread_slices(size, WINDOW, WINDOWS) for size in band.shape[1:])
    windows = (physical_values(band, y, x) for y in rows for x in columns)
    return float(np.isnan(np.concatenate([window.ravel() for window in windows])).mean())


def _bounds(grid: Grid) -> list[float] | None:
    if grid.transform is None:
        return None
    corners = [(0, 0), (grid.width, 0), (0, grid.height), (grid.width, grid.height)]
    xs, ys = zip(*(grid.transform @ corner for corner in corners), strict=True)
    return [min(xs), min(ys), max(xs), max(ys)]


def strict_json(value: Any) -> Any:
    """Arrays as lists, and None for numbers that are not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: strict_json(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [strict_json(each) for each in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
