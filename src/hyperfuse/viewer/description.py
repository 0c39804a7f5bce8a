"""What the page is told about the open images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.summary import summarise
from hyperfuse.errors import BandError
from hyperfuse.reporting.colour import composite_bands
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.indices import INDICES, available_indices
from hyperfuse.viewer.map_layers import MAPS, why_not
from hyperfuse.viewer.painting import COLOUR_MAPS
from hyperfuse.viewer.recipes import infrared_bands
from hyperfuse.viewer.scene import ROLES, OpenImage, Scene
from hyperfuse.viewer.tiles import SIDE, highest_level

# An image with more pixels than this is slow to look at from afar without overviews.
LARGE_PIXELS = 4096 * 4096
# Reflectances may exceed 1 on glints; counts and scaled integers exceed it everywhere.
LARGEST_REFLECTANCE = 5.0


def describe_scene(scene: Scene, folder: Folder) -> dict[str, Any]:
    return {
        "number": scene.number,
        "lead": scene.lead.role,
        "height": scene.grid.height,
        "width": scene.grid.width,
        "crs": _crs(scene),
        "transform": list(scene.grid.transform)[:6] if scene.grid.transform else None,
        "tile": SIDE,
        "levels": highest_level(scene.longer_side),
        "images": [describe_image(image, folder) for image in scene.images.values()],
        "maps": [{"name": name, "title": kind.title, "why_not": why_not(scene, name)} for name, kind in MAPS.items()],
        "styles": _styles(scene.lead),
        "indices": [
            {"name": name, "meaning": INDICES[name].meaning, "reference": INDICES[name].reference}
            for name in available_indices(scene.lead.cube, is_reflectance=_is_reflectance(scene.lead.cube))
        ],
        "colour_maps": list(COLOUR_MAPS),
        "notes": list(scene.notes),
    }


def describe_image(image: OpenImage, folder: Folder) -> dict[str, Any]:
    cube = image.cube
    return {
        "role": image.role,
        "title": ROLES[image.role],
        "file": image.path.name,
        "path": folder.name_of(image.path),
        "height": image.height,
        "width": image.width,
        "bands": image.bands,
        "wavelength_nm": finite(cube["wavelength"].values),
        "fwhm_nm": finite(cube["fwhm"].values),
        "good": cube["good"].values.tolist(),
        "band_name": [str(name) for name in cube["band_name"].values],
        "scale": None if image.placement is None else list(image.placement.scale),
        "has_overviews": bool(image.raster and image.raster.overviews),
        "offers_overviews": offers_overviews(image),
    }


def describe_file(cube: xr.DataArray, found: Mapping[str, str]) -> dict[str, Any]:
    """What `hyperfuse info` says."""
    return summarise(cube).as_dict() | {"found": dict(found)}


def offers_overviews(image: OpenImage) -> bool:
    is_geotiff = image.raster is not None and image.raster.driver == "GTiff"
    return is_geotiff and not (image.raster and image.raster.overviews) and image.height * image.width >= LARGE_PIXELS


def finite(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _styles(lead: OpenImage) -> dict[str, Any]:
    """The bands that the named styles use, counted from 0; None where the image has none for a style."""
    try:
        infrared: list[int] | None = infrared_bands(lead.cube)
    except BandError:
        infrared = None
    return {"true": list(composite_bands(lead.cube)), "infrared": infrared}


def _is_reflectance(cube: xr.DataArray) -> bool:
    highest = summarise(cube).sampled_maximum
    return highest is not None and highest <= LARGEST_REFLECTANCE


def _crs(scene: Scene) -> str | None:
    crs = scene.grid.crs
    if crs is None:
        return None
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()[:60]
