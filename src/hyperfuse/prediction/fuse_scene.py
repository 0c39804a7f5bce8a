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
from hyperfuse.degradation.response import ResponseSpec
from hyperfuse.errors import OptionError
from hyperfuse.methods.catalogue import AUTO, find_method
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.prediction.aligned_pair import align_pair
from hyperfuse.prediction.fuse_pair import ObservationHints, fuse_pair, observe, resolved_method
from hyperfuse.prediction.fused_cube import fused_cube
from hyperfuse.prediction.moving import moved
from hyperfuse.prediction.network_fusion import load_network, require_fitting_bands
from hyperfuse.prediction.overlap import INTERSECTION, Area
from hyperfuse.progress import progress

PathLike = str | os.PathLike[str]
Image = xr.DataArray | NDArray[Any] | PathLike
HSI, MSI = "hsi", "msi"


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
    """Fuse a coarse hyperspectral image with a fine multispectral one.

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
    if method != AUTO:
        find_method(method)
    if method != AUTO and weights is not None:
        raise OptionError(f"method {method!r} and weights", "one of the two", "leave out --method or --weights")
    if trust not in (MSI, HSI):
        raise OptionError(f"trust {trust!r}", f"{MSI} or {HSI}", "name the image whose georeference is right")
    area = Area(extent, bounds, bounds_crs)
    network = None if weights is None else load_network(str(weights))
    hsi_cube, msi_cube = as_image(hsi), as_image(msi)
    masks = {name: None if image is None else as_image(image) for name, image in (("mask", mask), ("hsi_mask", hsi_mask))}
    with progress("Fusing", total=4) as advance:
        pair = align_pair(hsi_cube, msi_cube, area, **masks)
        if network is not None:
            require_fitting_bands(network, int(pair.usable_bands.sum()), pair.msi.shape[0])
        advance(1)
        observation = observe(pair, hsi_cube, ObservationHints(estimate, response, psf_fwhm, shift))
        advance(1)
        method = resolved_method(pair, observation, method) if network is None else method
        advance(1)
        fused = fuse_pair(pair, observation, method, network, consistency=consistency)
        advance(1)
    if trust == HSI:
        fused = moved(fused, observation.misregistration)
    return fused_cube(fused, pair, hsi_cube, _provenance(method, network))


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


def _provenance(method: str, network: FusionNetwork | None) -> dict[str, str]:
    return {"hyperfuse_method": method} if network is None else {"hyperfuse_weights": network.weights_digest or "unsaved"}


def as_image(image: Image) -> xr.DataArray:
    return open_cube(image) if isinstance(image, str | os.PathLike) else as_cube(image)
