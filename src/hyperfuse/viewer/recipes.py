"""From a look to what must be read of one image and what to do with it.

Shapes: combine: (bands of the recipe, y, x) -> (K, y, x), K = 3 for colour pictures, 1 for maps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import BandError
from hyperfuse.reporting.colour import FAR_NM, composite_bands
from hyperfuse.viewer.indices import INDICES, index_bands, nearest_band
from hyperfuse.viewer.looks import Look
from hyperfuse.viewer.principal_colours import PrincipalAxes

Planes = NDArray[np.float32]
INFRARED_NM = (850.0, 665.0, 560.0)


@dataclass(frozen=True, eq=False)
class Recipe:
    key: Hashable
    bands: NDArray[np.int64]
    """Ascending, none twice: as readers like it."""
    planes: int
    combine: Callable[[Planes], Planes]
    label: str


def recipe_for(look: Look, cube: xr.DataArray, lead: xr.DataArray, axes: Callable[[], PrincipalAxes]) -> Recipe:
    """`lead` is the image whose bands the look counts; `axes` finds the principal axes of `cube` where they are needed."""
    if look.style == "pca":
        found = axes()
        return Recipe(("pca", found.key), found.bands, 3, found.project, "principal components 1, 2, 3")
    if look.style == "index":
        formula = INDICES[look.index].formula if look.index in INDICES else None
        bands = index_bands(cube, look.index)
        assert formula is not None
        return _picked(bands, lambda planes: formula(*planes)[None], 1, ("index", look.index), look.index)
    bands = _bands_of(look, cube, lead)
    return _picked(bands, lambda planes: planes, len(bands), tuple(bands), ", ".join(band_label(cube, band) for band in bands))


def infrared_bands(cube: xr.DataArray) -> list[int]:
    """Near infrared, red and green."""
    return [nearest_band(cube, wavelength, FAR_NM, "colour infrared ") for wavelength in INFRARED_NM]


def band_label(cube: xr.DataArray, band: int) -> str:
    wavelength = float(cube["wavelength"].values[band])
    return f"{wavelength:.0f} nm" if np.isfinite(wavelength) else str(cube["band_name"].values[band]) or f"band {band + 1}"


def _bands_of(look: Look, cube: xr.DataArray, lead: xr.DataArray) -> list[int]:
    if look.style == "true":
        return list(composite_bands(cube))
    if look.style == "infrared":
        return infrared_bands(cube)
    for band in look.bands:
        if not 0 <= band < lead.sizes["band"]:
            raise BandError(f"band {band + 1}", f"1 to {lead.sizes['band']}", "choose one of them")
    return [corresponding_band(cube, lead, band) for band in look.bands]


def corresponding_band(cube: xr.DataArray, lead: xr.DataArray, band: int) -> int:
    """The band of a cube that shows what a band of the leading image shows: by wavelength, or where unknown by number."""
    wanted, bands = float(lead["wavelength"].values[band]), cube.sizes["band"]
    if bands == lead.sizes["band"]:
        return band
    distance = np.abs(cube["wavelength"].values - wanted)
    if np.isfinite(distance).any():
        return int(np.nanargmin(distance))
    return round(band * (bands - 1) / max(1, lead.sizes["band"] - 1))


def _picked(bands: Sequence[int], combine: Callable[[Planes], Planes], planes: int, key: Hashable, label: str) -> Recipe:
    unique, places = np.unique(np.array(bands, dtype=np.int64), return_inverse=True)
    return Recipe(key, unique, planes, lambda values: combine(values[places]), label)
