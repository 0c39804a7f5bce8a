"""The one way in: two images, in memory or in files, become one fused cube."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import as_cube
from hyperfuse.cubes.files import open_cube
from hyperfuse.cubes.output_options import AS_IT_IS, OutputOptions
from hyperfuse.cubes.provenance import provenance
from hyperfuse.degradation.response import ResponseSpec
from hyperfuse.methods.catalogue import DEFAULT
from hyperfuse.prediction.aligned_pair import align_pair
from hyperfuse.prediction.fuse_pair import ObservationHints
from hyperfuse.prediction.fused_cube import fused_cube
from hyperfuse.prediction.fusion_request import MSI, FusionChoices, FusionRequest, PathLike
from hyperfuse.prediction.overlap import INTERSECTION, Area
from hyperfuse.prediction.prepared_scene import fuse_whole, prepare_scene
from hyperfuse.prediction.running import run_fusion
from hyperfuse.progress import progress

Image = xr.DataArray | NDArray[Any] | PathLike


def fuse(
    hsi: Image,
    msi: Image,
    *,
    method: str = DEFAULT,
    weights: PathLike | None = None,
    estimate: bool = True,
    response: ResponseSpec | None = None,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] | None = None,
    local_shift: bool = False,
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
    to be shifted against each other, the result lies where the one named by `trust` ("msi" or "hsi") says. With `local_shift` the
    shift may differ from place to place.
    `consistency` makes a method's result agree once more with both images, as far as their noise allows.

    The result covers what both images show, or with `extent` "msi" or "hsi" all that one of them shows, on the MSI's grid
    continued; `bounds` (xmin, ymin, xmax, ymax, in the MSI's CRS or in `bounds_crs`) cut it further. Where `mask` is not 0 the MSI
    is not used, where `hsi_mask` is not 0 the HSI; both may lie on any grid.
    """
    hints, area = ObservationHints(estimate, response, psf_fwhm, shift), Area(extent, bounds, bounds_crs)
    choices = FusionChoices(method, weights, hints, trust, consistency, area, local_shift)
    hsi_cube, msi_cube = as_image(hsi), as_image(msi)
    msi_mask, coarse_mask = (None if image is None else as_image(image) for image in (mask, hsi_mask))
    with progress("Fusing", total=4) as advance:
        pair = align_pair(hsi_cube, msi_cube, area, mask=msi_mask, hsi_mask=coarse_mask, known_offset=choices.known_offset)
        advance(1)
        scene = prepare_scene(pair, hsi_cube, choices, advance)
        fused = fuse_whole(scene)
        advance(1)
    return fused_cube(fused, scene.pair, hsi_cube, provenance(method=scene.method_used, weights=scene.weights_digest))


def fuse_files(
    hsi: PathLike,
    msi: PathLike,
    output: PathLike,
    *,
    method: str = DEFAULT,
    weights: PathLike | None = None,
    estimate: bool = True,
    response: ResponseSpec | None = None,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] | None = None,
    local_shift: bool = False,
    trust: str = MSI,
    consistency: bool = False,
    extent: str = INTERSECTION,
    bounds: tuple[float, float, float, float] | None = None,
    bounds_crs: str | None = None,
    mask: PathLike | None = None,
    hsi_mask: PathLike | None = None,
    hsi_variable: str | None = None,
    msi_variable: str | None = None,
    hsi_band_axis: int | None = None,
    msi_band_axis: int | None = None,
    stored: OutputOptions = AS_IT_IS,
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
    ram_gb: float | None = None,
    resume: bool = False,
    workers: int | None = None,
    cluster: str | None = None,
) -> Path:
    """The same from file to file, for scenes of any size.

    What is not said at `fuse`: `stored` are bands and numbers of the output, `options` those of its format. The peak of the
    process's memory stays below `ram_gb` (half of the machine's memory unless given): a scene that does not fit is fused in
    tiles, with statistics from windows spread over it. Finished tiles are kept beside the output until it is whole, and `resume`
    continues an interrupted run from them. `workers` processes of this machine, or the Dask `cluster` at an address, work on
    tiles together; each of them keeps to `ram_gb`.

    Progress and a request to stop: `progress.listening`. What would be done, without doing it: `scene_plan.plan_scene`.
    """
    request = FusionRequest(
        hsi,
        msi,
        output,
        method=method,
        weights=weights,
        estimate=estimate,
        response=response,
        psf_fwhm=psf_fwhm,
        shift=shift,
        local_shift=local_shift,
        trust=trust,
        consistency=consistency,
        extent=extent,
        bounds=bounds,
        bounds_crs=bounds_crs,
        mask=mask,
        hsi_mask=hsi_mask,
        hsi_variable=hsi_variable,
        msi_variable=msi_variable,
        hsi_band_axis=hsi_band_axis,
        msi_band_axis=msi_band_axis,
        stored=stored,
        options=options or {},
        cog=cog,
        overwrite=overwrite,
        ram_gb=ram_gb,
        resume=resume,
        workers=workers,
        cluster=cluster,
    )
    return run_fusion(request).path


def as_image(image: Image) -> xr.DataArray:
    return open_cube(image) if isinstance(image, str | os.PathLike) else as_cube(image)
