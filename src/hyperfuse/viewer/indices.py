"""Spectral indices by name, computed from the bands nearest to their wavelengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import BandError, OptionError

Planes = NDArray[np.float32]
# A band further than this from the wavelength that an index is made for measures something else.
FAR_NM = 30.0
BLUE, GREEN, RED, RED_EDGE, NEAR, SHORTWAVE, LONGER = 490.0, 560.0, 665.0, 720.0, 850.0, 1610.0, 2200.0


@dataclass(frozen=True)
class SpectralIndex:
    meaning: str
    reference: str
    wavelengths_nm: tuple[float, ...]
    formula: Callable[..., Planes]
    reflectance_only: bool = False
    """Its constants are made for reflectances of 0 to 1."""


def normalised_difference(first: Planes, second: Planes) -> Planes:
    return ratio(first - second, first + second)


def ratio(above: Planes, below: Planes) -> Planes:
    """NaN where the denominator is zero."""
    quotient: Planes = np.full_like(above, np.nan)
    np.divide(above, below, out=quotient, where=below != 0)
    return quotient


def enhanced_vegetation(near: Planes, red: Planes, blue: Planes) -> Planes:
    return ratio(2.5 * (near - red), near + 6 * red - 7.5 * blue + 1)


def soil_adjusted_vegetation(near: Planes, red: Planes) -> Planes:
    return ratio(1.5 * (near - red), near + red + 0.5)


INDICES: dict[str, SpectralIndex] = {
    "NDVI": SpectralIndex("green vegetation", "Rouse et al. 1974", (NEAR, RED), normalised_difference),
    "GNDVI": SpectralIndex("chlorophyll", "Gitelson, Kaufman and Merzlyak 1996", (NEAR, GREEN), normalised_difference),
    "NDRE": SpectralIndex("chlorophyll in dense canopies", "Barnes et al. 2000", (790.0, RED_EDGE), normalised_difference),
    "EVI": SpectralIndex("vegetation, less haze and soil", "Huete et al. 2002", (NEAR, RED, BLUE), enhanced_vegetation, True),
    "SAVI": SpectralIndex("vegetation over bare soil", "Huete 1988", (NEAR, RED), soil_adjusted_vegetation, True),
    "PRI": SpectralIndex("use of light in photosynthesis", "Gamon, Penuelas and Field 1992", (531.0, 570.0), normalised_difference),
    "NDWI": SpectralIndex("open water", "McFeeters 1996", (GREEN, NEAR), normalised_difference),
    "MNDWI": SpectralIndex("open water among buildings", "Xu 2006", (GREEN, SHORTWAVE), normalised_difference),
    "NDMI": SpectralIndex("water in leaves", "Wilson and Sader 2002", (NEAR, SHORTWAVE), normalised_difference),
    "NDSI": SpectralIndex("snow", "Hall, Riggs and Salomonson 1995", (GREEN, SHORTWAVE), normalised_difference),
    "NBR": SpectralIndex("burnt ground", "Key and Benson 2006", (NEAR, LONGER), normalised_difference),
    "NDBI": SpectralIndex("buildings", "Zha, Gao and Ni 2003", (SHORTWAVE, NEAR), normalised_difference),
    "clay": SpectralIndex("clay minerals", "ratio of 1610 to 2200 nm", (SHORTWAVE, LONGER), ratio),
    "iron oxide": SpectralIndex("ferric iron", "ratio of 665 to 490 nm", (RED, BLUE), ratio),
}


def index_bands(cube: xr.DataArray, name: str) -> list[int]:
    """The good bands of a cube that an index is computed from, in the order of its formula."""
    if name not in INDICES:
        raise OptionError(f"index {name!r}", f"one of {', '.join(INDICES)}")
    return [nearest_band(cube, wavelength, FAR_NM, f"{name} ") for wavelength in INDICES[name].wavelengths_nm]


def available_indices(cube: xr.DataArray, *, is_reflectance: bool) -> list[str]:
    """Those for which the cube has a good band near every wavelength."""
    names = []
    for name, index in INDICES.items():
        try:
            index_bands(cube, name)
        except BandError:
            continue
        if is_reflectance or not index.reflectance_only:
            names.append(name)
    return names


def nearest_band(cube: xr.DataArray, wavelength_nm: float, far_nm: float, purpose: str = "") -> int:
    """The good band nearest to a wavelength, or refused if even that one is far."""
    distance = np.where(cube["good"].values, np.abs(cube["wavelength"].values - wavelength_nm), np.nan)
    if not np.isfinite(distance).any() or np.nanmin(distance) > far_nm:
        raise BandError(
            f"no good band within {far_nm:g} nm of {wavelength_nm:g} nm", f"one, which {purpose}needs", "choose other colours"
        )
    return int(np.nanargmin(distance))
