"""The one way in: two images, in memory or in files, become one fused cube."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import as_cube
from hyperfuse.cubes.files import open_cube, refuse_target, write_cube
from hyperfuse.cubes.provenance import provenance
from hyperfuse.degradation.response import ResponseSpec
from hyperfuse.methods.catalogue import AUTO
from hyperfuse.prediction.aligned_pair import align_pair
from hyperfuse.prediction.fuse_pair import ObservationHints, fuse_pair
from hyperfuse.prediction.fused_cube import fused_cube
from hyperfuse.prediction.fusion_request import HSI, MSI, FusionChoices, PathLike
from hyperfuse.prediction.moving import moved
from hyperfuse.prediction.overlap import INTERSECTION, Area
from hyperfuse.prediction.prepared_scene import PreparedScene, prepare_scene
from hyperfuse.progress import progress

Image = xr.DataArray | NDArray[Any] | PathLike


def fuse(
    hsi: Image,
    msi: Image,
    *,
    method: str = AUTO,
    weights: PathLike | None = None,
    estimate: bool = True,
    response: ResponseSpec | None = None,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] | None = None,
    trust: str = MSI,
    consistency: bool = False,
    extent: str = INTERSECTION,
    bounds: tuple[float, float, float, float] | None = None,
    bounds_crs: str | None = None,
    mask: Image | None = None,
    hsi_mask: Image | None = None,
) -> xr.DataArray:
    """Fuse a coarse hyperspectral image with a fine multispectral one, in memory.

    Both may be cubes, (band, y, x) arrays or files. The result lies on the MSI's grid and has the HSI's bands, data type, scale and
    nodata. Without georeference on both images they are taken to cover the same extent.

    `method` is a name from `hyperfuse methods`, `weights` the folder of a trained network to use instead. Shift, point spread,
    response and noise are estimated from the pair; what is known may be given (`psf_fwhm` and `shift` in fine pixels), and without
    `estimate` the georeference is trusted and the point spread taken to be as wide as a coarse pixel. Where the two images turn out
    to be shifted against each other, the result lies where the one named by `trust` ("msi" or "hsi") says.
    `consistency` makes a method's result agree once more with both images, as far as their noise allows.

    The result covers what both images show, or with `extent` "msi" or "hsi" all that one of them shows, on the MSI's grid
    continued; `bounds` (xmin, ymin, xmax, ymax, in the MSI's CRS or in `bounds_crs`) cut it further. Where `mask` is not 0 the MSI
    is not used, where `hsi_mask` is not 0 the HSI; both may lie on any grid.
    """
    hints, area = ObservationHints(estimate, response, psf_fwhm, shift), Area(extent, bounds, bounds_crs)
    choices = FusionChoices(method, weights, hints, trust, consistency, area)
    hsi_cube, msi_cube = as_image(hsi), as_image(msi)
    msi_mask, coarse_mask = (None if image is None else as_image(image) for image in (mask, hsi_mask))
    with progress("Fusing", total=4) as advance:
        pair = align_pair(hsi_cube, msi_cube, area, mask=msi_mask, hsi_mask=coarse_mask)
        advance(1)
        scene = prepare_scene(pair, hsi_cube, choices, advance)
        fused = fuse_whole(scene)
        advance(1)
    return fused_cube(fused, scene.pair, hsi_cube, provenance(method=scene.method_used, weights=scene.weights_digest))


def fuse_whole(scene: PreparedScene) -> NDArray[Any]:
    """(C, H, W) All of a scene at once."""
    choices = scene.choices
    fused = fuse_pair(scene.pair, scene.observation, scene.method, scene.network, consistency=choices.consistency)
    return moved(fused, scene.observation.misregistration) if choices.trust == HSI else fused


def fuse_files(
    hsi: PathLike,
    msi: PathLike,
    output: PathLike,
    *,
    method: str = AUTO,
    weights: PathLike | None = None,
    estimate: bool = True,
    response: ResponseSpec | None = None,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] | None = None,
    trust: str = MSI,
    consistency: bool = False,
    extent: str = INTERSECTION,
    bounds: tuple[float, float, float, float] | None = None,
    bounds_crs: str | None = None,
    mask: PathLike | None = None,
    hsi_mask: PathLike | None = None,
    hsi_variable: str | None = None,
    msi_variable: str | None = None,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
) -> Path:
    """The same from file to file. What cannot be written is said before the work, not after it."""
    output = Path(output)
    refuse_target(output, options=options, cog=cog, overwrite=overwrite)
    fused = fuse(
        open_cube(hsi, hsi_variable),
        open_cube(msi, msi_variable),
        method=method,
        weights=weights,
        estimate=estimate,
        response=response,
        psf_fwhm=psf_fwhm,
        shift=shift,
        trust=trust,
        consistency=consistency,
        extent=extent,
        bounds=bounds,
        bounds_crs=bounds_crs,
        mask=mask,
        hsi_mask=hsi_mask,
    )
    fused.attrs |= {"hyperfuse_hsi": Path(hsi).name, "hyperfuse_msi": Path(msi).name}
    return write_cube(fused, output, options=options, cog=cog, overwrite=overwrite)


def as_image(image: Image) -> xr.DataArray:
    return open_cube(image) if isinstance(image, str | os.PathLike) else as_cube(image)
