"""Maps computed from several images: difference to the reference, consistency with the inputs, uncertainty.

Shapes: maps (1, y, x), NaN where nothing can be compared; C bands, M MSI bands, h w coarse, H W fine. The map of
consistency with the HSI lies on the HSI's pixels, all others on the fused image's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.config import ObservationConfig
from hyperfuse.errors import BandError, GridError, HyperfuseError, OptionError
from hyperfuse.io.cube import physical_values, place_cube, window_of
from hyperfuse.io.grid import Placement, Positions, grid_of
from hyperfuse.metrics.pairing import Comparison, Floats, mask_incomparable, plan_comparison
from hyperfuse.metrics.sums import spectral_angles_degrees
from hyperfuse.viewer.colours import Composite, Planes
from hyperfuse.viewer.images import OpenImage, OpenImages
from hyperfuse.viewer.tiles import Layer, image_layer, inside_image, nan_mean

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


def observe_pair(opened: OpenImages) -> ObservedPair:
    """Estimate from the middle of the open pair what consistency needs."""
    from hyperfuse.fusion.observe import observe
    from hyperfuse.fusion.pair import align_pair
    from hyperfuse.physics.observation import default_sigma

    hsi = opened.images["hsi"]
    if "msi" not in opened.images:
        sigma = default_sigma(_placement(hsi).scale)
        return ObservedPair(sigma, (0.0, 0.0), np.flatnonzero(hsi.cube["good"].values), None)
    hsi_cube, msi_cube = _georeferenced(hsi.cube, opened.images["msi"].cube)
    rows, columns = (
        slice(max(0, (size - LARGEST_SIDE) // 2), min(size, (size + LARGEST_SIDE) // 2)) for size in msi_cube.shape[1:]
    )
    pair = align_pair(hsi_cube, window_of(msi_cube, rows, columns))
    observation = observe(pair, hsi_cube, ObservationConfig())
    return ObservedPair(observation.sigma, observation.misregistration, np.flatnonzero(pair.usable_bands), observation)


def _georeferenced(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Both images; those that merely cover the same extent get the MSI's pixels as their coordinates."""
    if grid_of(hsi).transform is not None and grid_of(msi).transform is not None:
        return hsi, msi
    scale = msi.sizes["x"] / hsi.sizes["x"], msi.sizes["y"] / hsi.sizes["y"]
    return place_cube(hsi, None, Affine.scale(*scale), None), place_cube(msi, None, Affine.scale(1, 1), None)


def _placement(hsi: OpenImage) -> Placement:
    if hsi.placement is None:
        raise GridError("an HSI whose grid is rotated against the fused image's", "parallel grids")
    return hsi.placement


def comparison_of(opened: OpenImages) -> Comparison:
    """Plan the comparison of fused image and reference; raises where they cannot be compared."""
    fused, reference = opened.images["fused"].cube, opened.images["reference"].cube
    return plan_comparison(fused, reference, scale=None, peak=1.0, max_bytes=STRIP_BYTES)


def root_mean_square_error(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    """(y, x) over the bands that both have."""
    error: NDArray[Any] = np.sqrt(nan_mean(np.square(first - second), axis=0))
    return error


def _reference_layer(opened: OpenImages, name: str, label: str, unit: str, measure: Callable[..., Floats]) -> Layer:
    comparison, fused = comparison_of(opened), opened.images["fused"]

    def window(rows: slice, columns: slice) -> Planes:
        values: Planes = np.empty((1, rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
        height = max(1, STRIP_BYTES // (16 * comparison.bands.size * values.shape[2]))
        for start in range(rows.start, rows.stop, height):
            strip = slice(start, min(start + height, rows.stop))
            pair = comparison.read_pair(strip, columns, comparison.bands)
            mask_incomparable(*pair)
            values[0, strip.start - rows.start : strip.stop - rows.start] = measure(*pair)
        return values

    cost = 2 * comparison.bands.size * fused.cube.dtype.itemsize
    return Layer(name, fused.height, fused.width, 1, cost, fused.positions, window, label, unit)


def require_consistency_with_hsi(opened: OpenImages) -> None:
    """Raise where the fused image cannot be degraded to the HSI."""
    fused, hsi = opened.images["fused"], opened.images["hsi"]
    if fused.bands != hsi.bands:
        raise BandError(f"a fused image of {fused.bands} bands and an HSI of {hsi.bands}", "the same bands in both")
    _placement(hsi)


def _hsi_layer(opened: OpenImages, pair: ObservedPair) -> Layer:
    fused, hsi = opened.images["fused"], opened.images["hsi"]

    def window(rows: slice, columns: slice) -> Planes:
        return root_mean_square_error(*degraded_and_hsi(fused, hsi, pair, rows, columns))[None]

    cost = math.ceil(4 * pair.bands.size * (1 + math.prod(_placement(hsi).scale)))
    label = "fused, degraded to the HSI, - HSI, RMSE over bands"
    return Layer("consistency_hsi", hsi.height, hsi.width, 1, cost, hsi.positions, window, label)


def _msi_layer(opened: OpenImages, pair: ObservedPair) -> Layer:
    fused, msi = opened.images["fused"], opened.images["msi"]

    def window(rows: slice, columns: slice) -> Planes:
        return root_mean_square_error(*degraded_and_msi(fused, msi, pair, rows, columns))[None]

    label = "fused, integrated over the SRF, - MSI, RMSE over bands"
    return Layer("consistency_msi", fused.height, fused.width, 1, 4 * pair.bands.size, fused.positions, window, label)


def _uncertainty_layer(opened: OpenImages) -> Layer:
    image = opened.images["uncertainty"]
    label = "uncertainty" if image.bands == 1 else "uncertainty, mean over bands"
    mean = Composite("mean", np.arange(image.bands), 1, lambda values: nan_mean(values, axis=0)[None], label)
    return image_layer(image, mean)


def degraded_and_hsi(
    fused: OpenImage, hsi: OpenImage, pair: ObservedPair, rows: slice, columns: slice
) -> tuple[Planes, Planes]:
    """The spatially degraded fused image and the HSI, (C, h, w), in a window of the HSI."""
    import torch

    from hyperfuse.physics.operators import SpatialOperator

    place, sigma, shift = _placement(hsi), pair.sigma, pair.misregistration
    down = _Axis(rows, place.start_y, place.step_y, sigma[0], shift[0], fused.height)
    across = _Axis(columns, place.start_x, place.step_x, sigma[1], shift[1], fused.width)
    observed = physical_values(hsi.cube, rows, columns, pair.bands)
    if down.fine.stop <= down.fine.start or across.fine.stop <= across.fine.start:
        return np.full_like(observed, np.nan), observed
    fine = physical_values(fused.cube, down.fine, across.fine, pair.bands)
    operator = SpatialOperator.from_psf(
        (fine.shape[1], fine.shape[2]),
        (observed.shape[1], observed.shape[2]),
        place.scale,
        sigma,
        (down.shift, across.shift),
    )
    known = torch.from_numpy(np.isfinite(fine).astype(np.float32))
    covered = operator.apply(known).numpy() * (down.inside[:, None] & across.inside[None, :])
    coarse = operator.apply(torch.from_numpy(np.nan_to_num(fine))).numpy()
    degraded: Planes = np.divide(coarse, covered, out=np.full_like(coarse, np.nan), where=covered > LEAST_COVERED)
    return degraded[:, :: down.direction, :: across.direction], observed


class _Axis:
    """One axis of a window of the HSI: the fine pixels under its PSF, and where the coarse pixels lie in these."""

    def __init__(self, coarse: slice, start: float, step: float, sigma: float, shift: float, fine_size: int) -> None:
        from hyperfuse.physics.operators import psf_radius

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
    page_rows, page_columns = (np.arange(axis.start, axis.stop, dtype=np.float64) for axis in (rows, columns))
    down, across = image.positions(page_rows[:, None], page_columns[None, :])
    inside = inside_image(down, across, image.height, image.width)
    values: Planes = np.full((image.bands, *inside.shape), np.nan, dtype=np.float32)
    if inside.any():
        (read_rows, row), (read_columns, column) = _nearest_pixels(down, inside), _nearest_pixels(across, inside)
        np.copyto(values, physical_values(image.cube, read_rows, read_columns)[:, row, column], where=inside)
    return values


def _nearest_pixels(positions: Positions, inside: NDArray[np.bool_]) -> tuple[slice, NDArray[np.int64]]:
    """The slice that holds all positions inside, and the pixels nearest to all positions within it."""
    kept = np.floor(np.broadcast_to(positions, inside.shape)[inside] + 0.5).astype(np.int64)
    low, high = int(kept.min()), int(kept.max())
    return slice(low, high + 1), np.floor(np.clip(positions, low, high) + 0.5).astype(np.int64) - low


@dataclass(frozen=True)
class MapKind:
    title: str
    needs: tuple[str, ...]
    check: Callable[[OpenImages], object]
    layer: Callable[[OpenImages, Callable[[], ObservedPair]], Layer]


MAPS: dict[str, MapKind] = {
    "difference": MapKind(
        "Difference",
        ("fused", "reference"),
        comparison_of,
        lambda opened, pair: _reference_layer(
            opened, "difference", "fused - reference, RMSE over bands", "", root_mean_square_error
        ),
    ),
    "angle": MapKind(
        "Spectral angle",
        ("fused", "reference"),
        comparison_of,
        lambda opened, pair: _reference_layer(
            opened, "angle", "spectral angle between fused and reference", "°", spectral_angles_degrees
        ),
    ),
    "consistency_hsi": MapKind(
        "HSI consistency",
        ("fused", "hsi"),
        require_consistency_with_hsi,
        lambda opened, pair: _hsi_layer(opened, pair()),
    ),
    "consistency_msi": MapKind(
        "MSI consistency",
        ("fused", "hsi", "msi"),
        require_consistency_with_hsi,
        lambda opened, pair: _msi_layer(opened, pair()),
    ),
    "uncertainty_map": MapKind(
        "Uncertainty", ("uncertainty",), lambda opened: None, lambda opened, pair: _uncertainty_layer(opened)
    ),
}


def map_layer(opened: OpenImages, name: str, pair: Callable[[], ObservedPair]) -> Layer:
    """The layer of a map; raises where it cannot be computed."""
    reason = unavailable(opened, name)
    if reason is not None:
        raise OptionError(f"map {name!r}: {reason}", "images that it can be computed from", "open them first")
    return MAPS[name].layer(opened, pair)


def unavailable(opened: OpenImages, name: str) -> str | None:
    """Why a map cannot be shown, or None."""
    missing = [role for role in MAPS[name].needs if role not in opened.images]
    if missing:
        return f"no {' and no '.join(missing)} open"
    try:
        MAPS[name].check(opened)
    except HyperfuseError as error:
        return str(error)
    return None
