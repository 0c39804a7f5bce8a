"""Products that hold a file for each band (Sentinel-2, Landsat, Hyperion): which bands were asked for, and the cube of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import xarray as xr

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.lazy import lazy_variable
from hyperfuse.cubes.nodata import fitting_nodata
from hyperfuse.cubes.products.delivery import DeliveredFile
from hyperfuse.cubes.products.rasters import facts_of, stacked
from hyperfuse.errors import OptionError

FILL = 0


@dataclass(frozen=True)
class BandFile:
    name: str
    file: DeliveredFile
    wavelength_nm: float
    fwhm_nm: float
    scale: float
    offset: float = 0.0
    good: bool = True


def plain_band(name: str) -> str:
    """B02, b2 and "band 2" are B2."""
    found = re.fullmatch(r"(?:band|b)[ _]?0*(\d+a?)", name.strip(), re.IGNORECASE)
    return f"B{found[1].upper()}" if found else name.strip().upper()


def chosen_bands(variable: str, sets: Mapping[str, Sequence[str]], known: Sequence[str]) -> list[str] | None:
    """The bands that a selection means, the name of a set or a list of bands; None where it means something else."""
    wanted = variable.strip().lower()
    for name, bands in sets.items():
        if wanted == name.lower():
            return list(bands)
    bands = list(dict.fromkeys(plain_band(part) for part in variable.split(",")))
    unknown = [band for band in bands if band not in known]
    if unknown and len(unknown) < len(bands):
        raise OptionError(f"no band {', '.join(unknown)}", f"some of {', '.join(known)}")
    return None if unknown else bands


def band_cube(bands: Sequence[BandFile], attributes: dict[str, str], nodata: float = FILL) -> xr.DataArray:
    """On the grid of the finest; coarser bands are repeated."""
    images = [facts_of(band.file) for band in bands]
    reader, finest = stacked(images)
    return make_cube(
        lazy_variable(reader),
        wavelength_nm=[band.wavelength_nm for band in bands],
        fwhm_nm=[band.fwhm_nm for band in bands],
        good=[band.good for band in bands],
        band_names=[band.name for band in bands],
        scale=[band.scale for band in bands],
        offset=[band.offset for band in bands],
        nodata=fitting_nodata(nodata, reader.dtype),
        crs=finest.crs,
        transform=finest.transform,
        attributes=attributes,
    )
