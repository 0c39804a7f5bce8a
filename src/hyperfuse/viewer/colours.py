"""From a chosen rendering to the bands to read of an image and the planes to compute from them.

Shapes: combine: (bands read, y, x) -> (K, y, x), K = 3 for colour composites, 1 for maps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.linalg import eigh

from hyperfuse.errors import BandError, OptionError, ValueRangeError
from hyperfuse.io.output import FAR_NM
from hyperfuse.reporting.colour import composite_bands

Planes = NDArray[np.float32]
Style = Literal["true", "infrared", "bands", "band", "pca", "index"]
ColourMap = Literal["viridis", "cividis", "magma", "grey", "blue-orange"]

# An index is not computed from a band further than this from its wavelength.
FARTHEST_BAND_NM = 30.0
INFRARED_NM = (850.0, 665.0, 560.0)
BLUE, GREEN, RED, RED_EDGE, NEAR, SHORTWAVE, LONGER = 490.0, 560.0, 665.0, 720.0, 850.0, 1610.0, 2200.0
# Principal components need this many complete spectra, and ignore bands with less than this share of valid values.
FEWEST_SAMPLES = 4
SPARSE = 0.5


class Rendering(BaseModel):
    """How all images are shown, one for all so that they can be compared; `bands` are those of the lead, from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: Style = "true"
    bands: tuple[int, ...] = ()
    index: str = Field(default="NDVI", max_length=20)
    colours: ColourMap = "viridis"
    low: float = Field(default=2.0, ge=0, le=100)
    high: float = Field(default=98.0, ge=0, le=100)
    """Percentiles of the stretch."""
    linked: bool = True
    """Stretch all images in comparable units like the lead."""

    @model_validator(mode="after")
    def _check(self) -> Rendering:
        count = {"bands": 3, "band": 1}.get(self.style)
        if count is not None and len(self.bands) != count:
            raise ValueError(f"{count} bands are needed, not {len(self.bands)}")
        if not self.low < self.high:
            raise ValueError("the low percentile must lie below the high one")
        return self


def ratio(above: Planes, below: Planes) -> Planes:
    """Divide; NaN where the denominator is zero."""
    quotient: Planes = np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)
    return quotient


def normalised_difference(first: Planes, second: Planes) -> Planes:
    return ratio(first - second, first + second)


def enhanced_vegetation(near: Planes, red: Planes, blue: Planes) -> Planes:
    return ratio(2.5 * (near - red), near + 6 * red - 7.5 * blue + 1)


def soil_adjusted_vegetation(near: Planes, red: Planes) -> Planes:
    return ratio(1.5 * (near - red), near + red + 0.5)


@dataclass(frozen=True)
class SpectralIndex:
    meaning: str
    reference: str
    wavelengths_nm: tuple[float, ...]
    formula: Callable[..., Planes] = normalised_difference
    reflectance_only: bool = False
    """Its constants are made for reflectances of 0 to 1."""


INDICES: dict[str, SpectralIndex] = {
    "NDVI": SpectralIndex("green vegetation", "Rouse et al. 1974", (NEAR, RED)),
    "GNDVI": SpectralIndex("chlorophyll", "Gitelson, Kaufman and Merzlyak 1996", (NEAR, GREEN)),
    "NDRE": SpectralIndex("chlorophyll in dense canopies", "Barnes et al. 2000", (790.0, RED_EDGE)),
    "EVI": SpectralIndex(
        "vegetation, less haze and soil", "Huete et al. 2002", (NEAR, RED, BLUE), enhanced_vegetation, True
    ),
    "SAVI": SpectralIndex("vegetation over bare soil", "Huete 1988", (NEAR, RED), soil_adjusted_vegetation, True),
    "PRI": SpectralIndex("light use of photosynthesis", "Gamon, Penuelas and Field 1992", (531.0, 570.0)),
    "NDWI": SpectralIndex("open water", "McFeeters 1996", (GREEN, NEAR)),
    "MNDWI": SpectralIndex("open water among buildings", "Xu 2006", (GREEN, SHORTWAVE)),
    "NDMI": SpectralIndex("water in leaves", "Wilson and Sader 2002", (NEAR, SHORTWAVE)),
    "NDSI": SpectralIndex("snow", "Hall, Riggs and Salomonson 1995", (GREEN, SHORTWAVE)),
    "NBR": SpectralIndex("burnt ground", "Key and Benson 2006", (NEAR, LONGER)),
    "NDBI": SpectralIndex("buildings", "Zha, Gao and Ni 2003", (SHORTWAVE, NEAR)),
    "clay": SpectralIndex("clay minerals", "ratio of 1610 to 2200 nm", (SHORTWAVE, LONGER), ratio),
    "iron oxide": SpectralIndex("ferric iron", "ratio of 665 to 490 nm", (RED, BLUE), ratio),
}


def nearest_band(cube: xr.DataArray, wavelength_nm: float, far_nm: float, purpose: str) -> int:
    """The good band nearest to a wavelength; raises where even that one is far."""
    distance = np.where(cube["good"].values, np.abs(cube["wavelength"].values - wavelength_nm), np.nan)
    if not np.isfinite(distance).any() or np.nanmin(distance) > far_nm:
        got = f"no good band within {far_nm:g} nm of {wavelength_nm:g} nm"
        raise BandError(got, f"one, which {purpose} needs", "choose other colours")
    return int(np.nanargmin(distance))


def index_bands(cube: xr.DataArray, name: str) -> list[int]:
    """The good bands that an index is computed from, in the order of its formula."""
    if name not in INDICES:
        raise OptionError(f"index {name!r}", f"one of {', '.join(INDICES)}")
    return [nearest_band(cube, nm, FARTHEST_BAND_NM, name) for nm in INDICES[name].wavelengths_nm]


def infrared_bands(cube: xr.DataArray) -> list[int]:
    """Near infrared, red and green."""
    return [nearest_band(cube, nm, FAR_NM, "colour infrared") for nm in INFRARED_NM]


def offered_renderings(cube: xr.DataArray, *, is_reflectance: bool) -> dict[str, Any]:
    """The bands of the named styles (from 0, None where there are none), the indices and the colour maps."""

    def bands_or_none(choose: Callable[..., list[int]], *arguments: Any) -> list[int] | None:
        try:
            return choose(cube, *arguments)
        except BandError:
            return None

    return {
        "styles": {"true": list(composite_bands(cube)), "infrared": bands_or_none(infrared_bands)},
        "indices": [
            {"name": name, "meaning": index.meaning, "reference": index.reference}
            for name, index in INDICES.items()
            if (is_reflectance or not index.reflectance_only) and bands_or_none(index_bands, name)
        ],
        "colour_maps": list(get_args(ColourMap)),
    }


@dataclass(frozen=True, eq=False)
class Composite:
    """The bands to read, ascending and without repetition, and how planes are computed from them."""

    key: Hashable
    bands: NDArray[np.int64]
    planes: int
    combine: Callable[[Planes], Planes]
    label: str


def principal_components(samples: Planes, bands: NDArray[np.int64], key: str) -> Composite:
    """Fit to the complete spectra of (C, n); with fewer than three bands the last planes are zero."""
    valid = np.isfinite(samples)
    filled = valid.sum(axis=1) > SPARSE * valid.sum(axis=1).max(initial=0)
    bands, spectra = bands[filled], samples[filled][:, valid[filled].all(axis=0)].astype(np.float64)
    if bands.size == 0 or spectra.shape[1] < FEWEST_SAMPLES:
        raise ValueRangeError("too few pixels with data in all good bands", "complete spectra for principal components")
    mean = spectra.mean(axis=1)
    covariance = np.cov(spectra, ddof=0).reshape(mean.size, mean.size)
    _, vectors = eigh(covariance, subset_by_index=[max(0, mean.size - 3), mean.size - 1])
    leading = vectors[:, ::-1].T
    axes = np.zeros((3, mean.size), np.float32)
    # The sign of an axis is arbitrary: positive is brighter.
    axes[: len(leading)] = leading * np.where(leading.sum(axis=1, keepdims=True) < 0, -1, 1)
    centre = mean.astype(np.float32)[:, None]

    def project(values: Planes) -> Planes:
        planes: Planes = axes @ (values.reshape(len(values), -1) - centre)
        return planes.reshape(3, *values.shape[1:])

    return Composite(("pca", key), bands, 3, project, "principal components 1, 2, 3")


def composite_for(rendering: Rendering, cube: xr.DataArray, lead: xr.DataArray) -> Composite:
    """What to show of `cube`, principal components excepted; the rendering's bands are those of `lead`."""
    if rendering.style == "index":
        bands = index_bands(cube, rendering.index)
    elif rendering.style == "true":
        bands = list(composite_bands(cube))
    elif rendering.style == "infrared":
        bands = infrared_bands(cube)
    else:
        bands = [corresponding_band(cube, lead, band) for band in rendering.bands]
    unique, places = np.unique(bands, return_inverse=True)
    if rendering.style == "index":
        name, formula = rendering.index, INDICES[rendering.index].formula
        return Composite(("index", name), unique, 1, lambda values: formula(*values[places])[None], name)
    label = ", ".join(_band_label(cube, band) for band in bands)
    return Composite(tuple(bands), unique, len(bands), lambda values: values[places], label)


def corresponding_band(cube: xr.DataArray, lead: xr.DataArray, band: int) -> int:
    """The band of a cube that shows what a band of the lead shows: by wavelength, or where unknown by number."""
    bands, lead_bands = cube.sizes["band"], lead.sizes["band"]
    if not 0 <= band < lead_bands:
        raise BandError(f"band {band + 1}", f"1 to {lead_bands}", "choose one of them")
    if bands == lead_bands:
        return band
    distance = np.abs(cube["wavelength"].values - float(lead["wavelength"].values[band]))
    if np.isfinite(distance).any():
        return int(np.nanargmin(distance))
    return round(band * (bands - 1) / max(1, lead_bands - 1))


def _band_label(cube: xr.DataArray, band: int) -> str:
    wavelength, name = float(cube["wavelength"].values[band]), str(cube["band_name"].values[band])
    return f"{wavelength:.0f} nm" if np.isfinite(wavelength) else name or f"band {band + 1}"
