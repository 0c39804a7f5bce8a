"""Maps computed from several images: difference to the reference, consistency with the inputs, uncertainty.

Shapes: maps (1, y, x), NaN where nothing can be compared; C bands, M MSI bands, h w coarse, H W fine. The map of
consistency with the HSI lies on the HSI's pixels, all others on the fused image's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.config import ObservationConfig
from hyperfuse.errors import BandError, GridError, HyperfuseError, OptionError
from hyperfuse.io.cube import physical_values, place_cube, window_of
from hyperfuse.io.grid import GridPlacement, grid_of
from hyperfuse.metrics.sums import Floats, mask_incomparable, plan_comparison, spectral_angles_degrees
from hyperfuse.reporting.colour import nan_mean, pixel_rmse
from hyperfuse.viewer.colours import Composite, Planes
from hyperfuse.viewer.images import OpenImage, OpenImages
from hyperfuse.viewer.tiles import Layer, covering_window, image_layer, nearest

if TYPE_CHECKING:
    from hyperfuse.physics.observation import Observation

# Fine pixels along a side of the part of the pair that is estimated from.
LARGEST_SIDE = 768
# Both images as float64 at once.
STRIP_BYTES = 32 * 2**20
# A coarse pixel is compared where at least this share of its PSF falls on valid fine pixels.
LEAST_COVERED = 0.99


@dataclass(frozen=True, eq=False)
class ObservedPair:
    """How the open pair was observed; without an MSI `observation` is None and the PSF as wide as an HSI pixel."""

    sigma: tuple[float, float]
    misregistration: tuple[float, float]
    bands: NDArray[np.int64]
    observation: Observation | None
    detector: tuple[float, float] = (0.0, 0.0)


PairOf = Callable[[], ObservedPair]


def observe_pair(opened: OpenImages) -> ObservedPair:
    """Estimate from the middle of the open pair what consistency needs."""
    from hyperfuse.fusion.observe import observe
    from hyperfuse.fusion.pair import align_pair
    from hyperfuse.physics.observation import default_sigma

    hsi = opened.images["hsi"]
    if "msi" not in opened.images:
        sigma = default_sigma(_consistent_placement(opened).scale)
        return ObservedPair(sigma, (0.0, 0.0), np.flatnonzero(hsi.cube["good"].values), None)
    hsi_cube, msi_cube = _georeferenced(hsi.cube, opened.images["msi"].cube)
    rows, columns = (
        slice(max(0, (size - LARGEST_SIDE) // 2), min(size, (size + LARGEST_SIDE) // 2)) for size in msi_cube.shape[1:]
    )
    pair = align_pair(hsi_cube, window_of(msi_cube, rows, columns))
    observation = observe(pair, hsi_cube, ObservationConfig())
    bands = np.flatnonzero(pair.usable_bands)
    return ObservedPair(observation.sigma, observation.misregistration, bands, observation, observation.detector)


def _georeferenced(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Both images; those that merely cover the same extent get the MSI's pixels as their coordinates."""
    if grid_of(hsi).transform is not None and grid_of(msi).transform is not None:
        return hsi, msi
    scale = msi.sizes["x"] / hsi.sizes["x"], msi.sizes["y"] / hsi.sizes["y"]
    return place_cube(hsi, None, Affine.scale(*scale), None), place_cube(msi, None, Affine.scale(1, 1), None)


def reference_layer(
    name: str, label: str, unit: str, measure: Callable[..., Floats], opened: OpenImages, pair: PairOf
) -> Layer:
    fused, reference = opened.images["fused"], opened.images["reference"]
    comparison = plan_comparison(fused.cube, reference.cube, scale=None, peak=1.0, max_bytes=STRIP_BYTES)

    def window(rows: slice, columns: slice) -> Planes:
        values: Planes = np.empty((1, rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
        height = max(1, STRIP_BYTES // (16 * comparison.bands.size * values.shape[2]))
        for start in range(rows.start, rows.stop, height):
            strip = slice(start, min(start + height, rows.stop))
            both = comparison.read_pair(strip, columns, comparison.bands)
            mask_incomparable(*both)
            values[0, strip.start - rows.start : strip.stop - rows.start] = measure(*both)
        return values

    cost = 2 * comparison.bands.size * fused.cube.dtype.itemsize
    return Layer(name, fused, 1, cost, window, label, unit)


def hsi_layer(opened: OpenImages, pair: PairOf) -> Layer:
    fused, hsi = opened.images["fused"], opened.images["hsi"]
    cost = math.ceil(4 * fused.bands * (1 + math.prod(_consistent_placement(opened).scale)))

    def window(rows: slice, columns: slice) -> Planes:
        return pixel_rmse(*degraded_and_hsi(fused, hsi, pair(), rows, columns)).astype(np.float32)[None]

    return Layer("consistency_hsi", hsi, 1, cost, window, "fused, degraded to the HSI, - HSI, RMSE over bands")


def msi_layer(opened: OpenImages, pair: PairOf) -> Layer:
    fused, msi = opened.images["fused"], opened.images["msi"]
    _consistent_placement(opened)

    def window(rows: slice, columns: slice) -> Planes:
        return pixel_rmse(*degraded_and_msi(fused, msi, pair(), rows, columns)).astype(np.float32)[None]

    label = "fused, integrated over the SRF, - MSI, RMSE over bands"
    return Layer("consistency_msi", fused, 1, 4 * fused.bands, window, label)


def uncertainty_layer(opened: OpenImages, pair: PairOf) -> Layer:
    image = opened.images["uncertainty"]
    label = "uncertainty" if image.bands == 1 else "uncertainty, mean over bands"

    def mean(values: Planes) -> Planes:
        return nan_mean(values, axis=0).astype(np.float32)[None]

    return image_layer(image, Composite("mean", np.arange(image.bands), 1, mean, label))


def change_layer(opened: OpenImages, pair: PairOf) -> Layer:
    """From 1, where both images agree, to 0, where the MSI shows something else."""
    image = opened.images["change_mask"]
    label = "how far the MSI was used, 0: not at all"
    composite = Composite("first", np.arange(1), 1, lambda values: values.astype(np.float32), label)
    return replace(image_layer(image, composite), limits=(0.0, 1.0))


def _consistent_placement(opened: OpenImages) -> GridPlacement:
    """How the fused image's pixels lie in the HSI's; raises where it cannot be degraded to the HSI."""
    fused, hsi = opened.images["fused"], opened.images["hsi"]
    if fused.bands != hsi.bands:
        raise BandError(f"a fused image of {fused.bands} bands and an HSI of {hsi.bands}", "the same bands in both")
    if hsi.placement is None:
        raise GridError("an HSI whose grid is rotated against the fused image's", "parallel grids")
    return hsi.placement


def degraded_and_hsi(
    fused: OpenImage, hsi: OpenImage, pair: ObservedPair, rows: slice, columns: slice
) -> tuple[Planes, Planes]:
    """The spatially degraded fused image and the HSI, (C, h, w), in a window of the HSI."""
    import torch

    from hyperfuse.physics.observation import SpatialOperator

    assert hsi.placement is not None
    place, sigma, shift = hsi.placement, pair.sigma, pair.misregistration
    down = _Axis(rows, place.start_y, place.step_y, sigma[0], shift[0], fused.height)
    across = _Axis(columns, place.start_x, place.step_x, sigma[1], shift[1], fused.width)
    observed = physical_values(hsi.cube, rows, columns, pair.bands)
    if down.fine.stop <= down.fine.start or across.fine.stop <= across.fine.start:
        return np.full_like(observed, np.nan), observed
    fine = physical_values(fused.cube, down.fine, across.fine, pair.bands)
    sizes = (fine.shape[1], fine.shape[2]), (observed.shape[1], observed.shape[2])
    operator = SpatialOperator.from_psf(*sizes, place.scale, sigma, (down.shift, across.shift), pair.detector)
    known = torch.from_numpy(np.isfinite(fine).astype(np.float32))
    covered = operator.apply(known).numpy() * (down.inside[:, None] & across.inside[None, :])
    coarse = operator.apply(torch.from_numpy(np.nan_to_num(fine))).numpy()
    degraded: Planes = np.divide(coarse, covered, out=np.full_like(coarse, np.nan), where=covered > LEAST_COVERED)
    return degraded[:, :: down.direction, :: across.direction], observed


class _Axis:
    """One axis of a window of the HSI: the fine pixels under its PSF, and where the coarse pixels lie in these."""

    def __init__(self, coarse: slice, start: float, step: float, sigma: float, shift: float, fine_size: int) -> None:
        from hyperfuse.physics.observation import psf_radius

        self.direction = 1 if step > 0 else -1
        centres = ((np.arange(coarse.start, coarse.stop) - start) / step + shift)[:: self.direction]
        radius = psf_radius(sigma) + 1
        self.inside: NDArray[np.bool_] = (centres > -0.5) & (centres < fine_size - 0.5)
        self.fine = slice(max(0, math.floor(centres[0]) - radius), min(fine_size, math.ceil(centres[-1]) + radius + 1))
        self.shift = float(centres[0]) - self.fine.start - (0.5 / abs(step) - 0.5)


def degraded_and_msi(
    fused: OpenImage, msi: OpenImage, pair: ObservedPair, rows: slice, columns: slice
) -> tuple[Planes, Planes]:
    """The spectrally degraded fused image and the MSI's nearest pixels, (M, H, W), in a window of the fused image."""
    assert pair.observation is not None
    srf, offset = (part.numpy().astype(np.float32) for part in (pair.observation.srf, pair.observation.offset))
    fine = physical_values(fused.cube, rows, columns, pair.bands)
    return np.tensordot(srf, fine, axes=1) + offset[:, None, None], nearest_values(msi, rows, columns)


def nearest_values(image: OpenImage, rows: slice, columns: slice) -> Planes:
    """All bands of an image at the pixels of a window of the page, NaN outside the image."""
    pixels = (np.arange(axis.start, axis.stop, dtype=np.float64) for axis in (rows, columns))
    down, across = image.positions(*np.meshgrid(*pixels, indexing="ij", sparse=True))
    inside = image.contains(down, across)
    values: Planes = np.full((image.bands, *inside.shape), np.nan, dtype=np.float32)
    if inside.any():
        read_rows = covering_window(down, inside, image.height)
        read_columns = covering_window(across, inside, image.width)
        read = physical_values(image.cube, read_rows, read_columns)
        np.copyto(values, read[:, nearest(down, read_rows), nearest(across, read_columns)], where=inside)
    return values


@dataclass(frozen=True)
class MapKind:
    title: str
    needs: tuple[str, ...]
    layer: Callable[[OpenImages, PairOf], Layer]


MAPS: dict[str, MapKind] = {
    "difference": MapKind(
        "Difference",
        ("fused", "reference"),
        partial(reference_layer, "difference", "fused - reference, RMSE over bands", "", pixel_rmse),
    ),
    "angle": MapKind(
        "Spectral angle",
        ("fused", "reference"),
        partial(reference_layer, "angle", "spectral angle between fused and reference", "°", spectral_angles_degrees),
    ),
    "consistency_hsi": MapKind("HSI consistency", ("fused", "hsi"), hsi_layer),
    "consistency_msi": MapKind("MSI consistency", ("fused", "hsi", "msi"), msi_layer),
    "uncertainty_map": MapKind("Uncertainty", ("uncertainty",), uncertainty_layer),
    "change": MapKind("Change mask", ("change_mask",), change_layer),
}


def map_layer(opened: OpenImages, name: str, pair: PairOf) -> Layer:
    """The layer of a map; raises where it cannot be computed."""
    missing = [role for role in MAPS[name].needs if role not in opened.images]
    if missing:
        raise OptionError(f"no {' and no '.join(missing)} open", f"images for map {name!r}", "open them first")
    return MAPS[name].layer(opened, pair)


def unavailable(opened: OpenImages, name: str) -> str | None:
    """Why a map cannot be shown, or None."""
    try:
        map_layer(opened, name, lambda: observe_pair(opened))
    except HyperfuseError as error:
        return error.got
    return None
