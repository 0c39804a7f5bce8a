"""From a look to what must be read of one image and what to do with it.

Shapes: combine: (bands of the recipe, y, x) -> (K, y, x), K = 3 for colour pictures, 1 for maps.

Spectral indices by name, computed from the bands nearest to their wavelengths.

The three directions in which the spectra of an image differ most, from a sample of its pixels.

How a person wants to see the images: which bands or index, which colours, how stretched.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from scipy.linalg import eigh

from hyperfuse.errors import BandError, OptionError, ValueRangeError
from hyperfuse.reporting.colour import FAR_NM, composite_bands

Planes = NDArray[np.float32]
# A band further than this from the wavelength that an index is made for measures something else.
FARTHEST_BAND_NM = 30.0
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
    "NDRE": SpectralIndex(
        "chlorophyll in dense canopies", "Barnes et al. 2000", (790.0, RED_EDGE), normalised_difference
    ),
    "EVI": SpectralIndex(
        "vegetation, less haze and soil", "Huete et al. 2002", (NEAR, RED, BLUE), enhanced_vegetation, True
    ),
    "SAVI": SpectralIndex("vegetation over bare soil", "Huete 1988", (NEAR, RED), soil_adjusted_vegetation, True),
    "PRI": SpectralIndex(
        "use of light in photosynthesis", "Gamon, Penuelas and Field 1992", (531.0, 570.0), normalised_difference
    ),
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
    return [nearest_band(cube, wavelength, FARTHEST_BAND_NM, f"{name} ") for wavelength in INDICES[name].wavelengths_nm]


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
            f"no good band within {far_nm:g} nm of {wavelength_nm:g} nm",
            f"one, which {purpose}needs",
            "choose other colours",
        )
    return int(np.nanargmin(distance))


FEWEST_SAMPLES = 4
# A band that is filled to no more than this share of the fullest one does not count.
SPARSE = 0.5


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    key: str
    bands: NDArray[np.int64]
    mean: NDArray[np.float32]  # (C,)
    axes: NDArray[np.float32]  # (3, C)

    def project(self, values: Planes) -> Planes:
        """(C, y, x) -> (3, y, x)"""
        bands, height, width = values.shape
        spectra = values.reshape(bands, -1) - self.mean[:, None]
        return (self.axes @ spectra).reshape(3, height, width)


def principal_axes(samples: Planes, bands: NDArray[np.int64], key: str) -> PrincipalAxes:
    """From spectra (C, n); neither those with holes count nor nearly empty bands. With fewer than three the last axes
    are empty.
    """
    known = np.isfinite(samples)
    filled = known.sum(axis=1) > SPARSE * known.sum(axis=1).max(initial=0)
    bands, samples, known = bands[filled], samples[filled], known[filled]
    spectra = samples[:, known.all(axis=0)].astype(np.float64)
    if bands.size == 0 or spectra.shape[1] < FEWEST_SAMPLES:
        raise ValueRangeError(
            "hardly a pixel has data in all good bands", "whole spectra to find principal components from"
        )
    mean = spectra.mean(axis=1)
    covariance = np.cov(spectra, ddof=0).reshape(mean.size, mean.size)
    _, vectors = eigh(covariance, subset_by_index=[max(0, mean.size - 3), mean.size - 1])
    axes = np.zeros((3, mean.size))
    leading = vectors[:, ::-1].T
    # An axis has no direction of its own; bright shall mean much of what it stands for.
    axes[: len(leading)] = leading * np.where(leading.sum(axis=1, keepdims=True) < 0, -1, 1)
    return PrincipalAxes(key, bands, mean.astype(np.float32), axes.astype(np.float32))


Style = Literal["true", "infrared", "bands", "band", "pca", "index"]
ColourMap = Literal["viridis", "cividis", "magma", "grey", "blue-orange"]


class Look(BaseModel):
    """One for all images, so that they can be compared; `bands` are those of the leading image, counted from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: Style = "true"
    bands: tuple[int, ...] = ()
    index: str = Field(default="NDVI", max_length=20)
    colours: ColourMap = "viridis"
    low: float = Field(default=2.0, ge=0, le=100)
    high: float = Field(default=98.0, ge=0, le=100)
    """Percentiles that become dark and bright."""
    linked: bool = True
    """The leading image's limits for all images that are in comparable units."""

    @field_validator("bands", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]
        if isinstance(value, str):
            return tuple(part for part in value.split(",") if part)
        return value

    @model_validator(mode="after")
    def _whole(self) -> Look:
        wanted = {"bands": 3, "band": 1}.get(self.style)
        if wanted is not None and len(self.bands) != wanted:
            raise ValueError(f"{wanted} bands are needed, not {len(self.bands)}")
        if not self.low < self.high:
            raise ValueError("the low percentile must lie below the high one")
        return self


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
    return _picked(
        bands, lambda planes: planes, len(bands), tuple(bands), ", ".join(band_label(cube, band) for band in bands)
    )


def infrared_bands(cube: xr.DataArray) -> list[int]:
    """Near infrared, red and green."""
    return [nearest_band(cube, wavelength, FAR_NM, "colour infrared ") for wavelength in INFRARED_NM]


def band_label(cube: xr.DataArray, band: int) -> str:
    wavelength = float(cube["wavelength"].values[band])
    return (
        f"{wavelength:.0f} nm" if np.isfinite(wavelength) else str(cube["band_name"].values[band]) or f"band {band + 1}"
    )


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


def _picked(
    bands: Sequence[int], combine: Callable[[Planes], Planes], planes: int, key: Hashable, label: str
) -> Recipe:
    unique, places = np.unique(np.array(bands, dtype=np.int64), return_inverse=True)
    return Recipe(key, unique, planes, lambda values: combine(values[places]), label)
