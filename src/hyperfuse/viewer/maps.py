"""Layers that are computed from several images, by name.

How the open pair was observed, from its middle: what the consistency maps and the page's estimation need.

Maps of where the fused image differs from its reference: root mean square over bands, and spectral angle.

Shapes: (1, y, x), NaN where nothing can be compared.

Where the fused image, degraded again, does not give its inputs back: once against the HSI, once against the MSI.

Shapes: C bands, M msi bands, h w coarse, H W fine. The HSI's map lies on the HSI's pixels, the MSI's on the MSI's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.errors import BandError, GridError, HyperfuseError, OptionError
from hyperfuse.io.cube import physical_values, place_cube, window_of
from hyperfuse.io.grid import Positions, grid_of
from hyperfuse.metrics.pairing import Comparison, Floats, blank_incomparable, plan_comparison
from hyperfuse.metrics.sums import spectral_angles_degrees
from hyperfuse.viewer.colours import Recipe
from hyperfuse.viewer.layers import Layer, Planes, image_layer
from hyperfuse.viewer.scene import OpenImage, Scene

if TYPE_CHECKING:
    from hyperfuse.physics.observation import Observation


# Fine pixels along a side of the part that is looked at.
LARGEST_SIDE = 768


@dataclass(frozen=True, eq=False)
class ObservedPair:
    """`observation` is None where there is no MSI: then the point spread is taken to be as wide as an HSI pixel."""

    sigma: tuple[float, float]
    misregistration: tuple[float, float]
    bands: NDArray[np.int64]
    observation: Observation | None


def observe_scene(scene: Scene) -> ObservedPair:
    from hyperfuse.fusion.observe import ObservationHints, observe
    from hyperfuse.fusion.pair import align_pair
    from hyperfuse.physics.observation import default_sigma

    hsi = scene.images["hsi"]
    if "msi" not in scene.images:
        assert hsi.placement is not None
        return ObservedPair(
            default_sigma(hsi.placement.scale), (0.0, 0.0), np.flatnonzero(hsi.cube["good"].values), None
        )
    hsi_cube, msi_cube = _middle(*_on_one_ground(hsi.cube, scene.images["msi"].cube))
    pair = align_pair(hsi_cube, msi_cube)
    observation = observe(pair, hsi_cube, ObservationHints())
    return ObservedPair(observation.sigma, observation.misregistration, np.flatnonzero(pair.usable_bands), observation)


def _on_one_ground(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Both georeferenced: images that are not, and so cover the same extent, get the MSI's pixels as their ground."""
    if grid_of(hsi).transform is not None and grid_of(msi).transform is not None:
        return hsi, msi
    scale = msi.sizes["x"] / hsi.sizes["x"], msi.sizes["y"] / hsi.sizes["y"]
    return place_cube(hsi, None, Affine.scale(*scale), None), place_cube(msi, None, Affine.scale(1, 1), None)


def _middle(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """The MSI cut to its middle; the pair will be cut to what the two share."""
    rows, columns = (
        slice(max(0, (size - LARGEST_SIDE) // 2), min(size, (size + LARGEST_SIDE) // 2))
        for size in (msi.sizes["y"], msi.sizes["x"])
    )
    return hsi, window_of(msi, rows, columns)


# Both images as float64 at once.
STRIP_BYTES = 32 * 2**20


def comparison_of(scene: Scene) -> Comparison:
    """Refused where the two cannot be compared."""
    fused, reference = scene.images["fused"], scene.images["reference"]
    return plan_comparison(fused.cube, reference.cube, scale=None, peak=1.0, max_bytes=STRIP_BYTES)


def difference_layer(scene: Scene) -> Layer:
    return _layer(scene, _root_mean_square_error, "difference", "fused - reference, root mean square over bands", "")


def angle_layer(scene: Scene) -> Layer:
    return _layer(scene, spectral_angles_degrees, "angle", "spectral angle between fused and reference", "°")


def _layer(scene: Scene, measure: Callable[[Floats, Floats], Floats], name: str, label: str, unit: str) -> Layer:
    comparison = comparison_of(scene)
    fused: OpenImage = scene.images["fused"]

    def window(rows: slice, columns: slice) -> Planes:
        values: Planes = np.empty((1, rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
        height = max(1, STRIP_BYTES // (16 * comparison.bands.size * values.shape[2]))
        for start in range(rows.start, rows.stop, height):
            strip = slice(start, min(start + height, rows.stop))
            pair = comparison.read_pair(strip, columns, comparison.bands)
            blank_incomparable(*pair)
            values[0, strip.start - rows.start : strip.stop - rows.start] = measure(*pair)
        return values

    return Layer(
        key=(scene.number, name),
        height=fused.height,
        width=fused.width,
        planes=1,
        bytes_per_pixel=2 * comparison.bands.size * fused.cube.dtype.itemsize,
        positions=fused.positions,
        window=window,
        decimated=None,
        label=label,
        unit=unit,
    )


def _root_mean_square_error(fused: Floats, reference: Floats) -> Floats:
    counts = np.isfinite(fused).sum(axis=0)
    squares = np.nan_to_num(np.square(fused - reference)).sum(axis=0)
    means: Floats = np.full(counts.shape, np.nan)
    np.divide(squares, counts, out=means, where=counts > 0)
    return np.sqrt(means)


# A coarse pixel of which less than this was seen through valid fine pixels is not compared.
LEAST_SEEN = 0.99


def require_consistency_with_hsi(scene: Scene) -> None:
    fused, hsi = scene.images["fused"], scene.images["hsi"]
    if fused.bands != hsi.bands:
        raise BandError(f"a fused image of {fused.bands} bands and an HSI of {hsi.bands}", "the same bands in both")
    if hsi.placement is None:
        raise GridError("an HSI whose grid is turned against the fused image's", "parallel grids")


def hsi_consistency_layer(scene: Scene, pair: ObservedPair) -> Layer:
    require_consistency_with_hsi(scene)
    fused, hsi = scene.images["fused"], scene.images["hsi"]

    def window(rows: slice, columns: slice) -> Planes:
        return root_mean_square(*degraded_and_hsi(fused, hsi, pair, rows, columns))

    assert hsi.placement is not None
    fine_per_coarse = math.prod(hsi.placement.scale)
    return Layer(
        key=(scene.number, "consistency_hsi"),
        height=hsi.height,
        width=hsi.width,
        planes=1,
        bytes_per_pixel=math.ceil(4 * pair.bands.size * (1 + fine_per_coarse)),
        positions=hsi.positions,
        window=window,
        decimated=None,
        label="fused, degraded to the HSI, - HSI, root mean square over bands",
    )


def msi_consistency_layer(scene: Scene, pair: ObservedPair) -> Layer:
    fused, msi = scene.images["fused"], scene.images["msi"]

    def window(rows: slice, columns: slice) -> Planes:
        return root_mean_square(*imitated_and_msi(fused, msi, pair, rows, columns))

    return Layer(
        key=(scene.number, "consistency_msi"),
        height=fused.height,
        width=fused.width,
        planes=1,
        bytes_per_pixel=4 * pair.bands.size,
        positions=fused.positions,
        window=window,
        decimated=None,
        label="fused, seen by the MSI's bands, - MSI, root mean square over bands",
    )


def degraded_and_hsi(
    fused: OpenImage, hsi: OpenImage, pair: ObservedPair, rows: slice, columns: slice
) -> tuple[Planes, Planes]:
    """Both as (C, h, w) for a window of the HSI."""
    import torch

    from hyperfuse.physics.operators import SpatialOperator

    assert hsi.placement is not None
    place, sigma, shift = hsi.placement, pair.sigma, pair.misregistration
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
    seen = operator.apply(known).numpy() * (down.inside[:, None] & across.inside[None, :])
    coarse = operator.apply(torch.from_numpy(np.nan_to_num(fine))).numpy()
    degraded: Planes = np.full_like(coarse, np.nan)
    np.divide(coarse, seen, out=degraded, where=seen > LEAST_SEEN)
    return degraded[:, :: down.direction, :: across.direction], observed


def imitated_and_msi(
    fused: OpenImage, msi: OpenImage, pair: ObservedPair, rows: slice, columns: slice
) -> tuple[Planes, Planes]:
    """Both as (M, H, W) for a window of the fused image; the MSI's nearest pixels where it lies on another grid."""
    assert pair.observation is not None
    srf, offset = pair.observation.srf.numpy(), pair.observation.offset.numpy()
    fine = physical_values(fused.cube, rows, columns, pair.bands)
    imitated = np.tensordot(srf.astype(np.float32), fine, axes=1) + offset.astype(np.float32)[:, None, None]
    return imitated, nearest_values(msi, rows, columns)


def nearest_values(image: OpenImage, rows: slice, columns: slice) -> Planes:
    """All bands of an image at the pixels of a window of the page, NaN beyond the image."""
    down, across = image.positions(_range(rows)[:, None], _range(columns)[None, :])
    inside = (down >= -0.5) & (down < image.height - 0.5) & (across >= -0.5) & (across < image.width - 0.5)
    values: Planes = np.full((image.bands, *inside.shape), np.nan, dtype=np.float32)
    if inside.any():
        (top, bottom), (left, right) = (_limits(np.broadcast_to(axis, inside.shape)[inside]) for axis in (down, across))
        read = physical_values(image.cube, slice(top, bottom), slice(left, right))
        picked = read[:, _whole(np.clip(down, top, bottom - 1)) - top, _whole(np.clip(across, left, right - 1)) - left]
        np.copyto(values, picked, where=inside)
    return values


def root_mean_square(computed: Planes, observed: Planes) -> Planes:
    """(1, y, x) over the bands that both have."""
    squares = np.square(computed - observed)
    known = np.isfinite(squares)
    counts = known.sum(axis=0)
    means: Planes = np.full(counts.shape, np.nan, dtype=np.float32)
    np.divide(np.where(known, squares, 0).sum(axis=0), counts, out=means, where=counts > 0)
    return np.sqrt(means)[None]


class _Axis:
    """One axis of a window of the HSI: which fine pixels its coarse ones see, and how the point spread lies in these."""

    def __init__(self, coarse: slice, start: float, step: float, sigma: float, shift: float, fine_size: int) -> None:
        from hyperfuse.physics.psf import psf_radius

        self.direction = 1 if step > 0 else -1
        centres = ((np.arange(coarse.start, coarse.stop) - start) / step + shift)[:: self.direction]
        reach = psf_radius(sigma) + 1
        self.inside: NDArray[np.bool_] = (centres > -0.5) & (centres < fine_size - 0.5)
        self.fine = slice(max(0, math.floor(centres[0]) - reach), min(fine_size, math.ceil(centres[-1]) + reach + 1))
        scale = 1 / abs(step)
        self.shift = float(centres[0]) - self.fine.start - (0.5 * scale - 0.5)


def _range(window: slice) -> Positions:
    return np.arange(window.start, window.stop, dtype=np.float64)


def _whole(positions: Positions) -> NDArray[np.int64]:
    return np.floor(positions + 0.5).astype(np.int64)


def _limits(positions: Positions) -> tuple[int, int]:
    whole = _whole(positions)
    return int(whole.min()), int(whole.max()) + 1


@dataclass(frozen=True)
class MapKind:
    title: str
    needs: tuple[str, ...]
    check: Callable[[Scene], object]
    layer: Callable[[Scene, Callable[[], ObservedPair]], Layer]


def uncertainty_layer(scene: Scene) -> Layer:
    """The mean over bands, where there are several."""
    image = scene.images["uncertainty"]

    def mean(values: Planes) -> Planes:
        known = np.isfinite(values)
        counts = known.sum(axis=0)
        means: Planes = np.full(counts.shape, np.nan, dtype=np.float32)
        np.divide(np.where(known, values, 0).sum(axis=0), counts, out=means, where=counts > 0)
        return means[None]

    label = "uncertainty" if image.bands == 1 else "uncertainty, mean over bands"
    return image_layer(image, Recipe("mean", np.arange(image.bands), 1, mean, label), scene.number)


MAPS: dict[str, MapKind] = {
    "difference": MapKind(
        "Difference", ("fused", "reference"), comparison_of, lambda scene, pair: difference_layer(scene)
    ),
    "angle": MapKind("Spectral angle", ("fused", "reference"), comparison_of, lambda scene, pair: angle_layer(scene)),
    "consistency_hsi": MapKind(
        "HSI consistency",
        ("fused", "hsi"),
        require_consistency_with_hsi,
        lambda scene, pair: hsi_consistency_layer(scene, pair()),
    ),
    "consistency_msi": MapKind(
        "MSI consistency",
        ("fused", "hsi", "msi"),
        require_consistency_with_hsi,
        lambda scene, pair: msi_consistency_layer(scene, pair()),
    ),
    "uncertainty_map": MapKind(
        "Uncertainty", ("uncertainty",), lambda scene: None, lambda scene, pair: uncertainty_layer(scene)
    ),
}


def map_layer(scene: Scene, name: str, pair: Callable[[], ObservedPair]) -> Layer:
    complaint = why_not(scene, name)
    if complaint is not None:
        raise OptionError(f"map {name!r}: {complaint}", "images that it can be computed from", "open them first")
    return MAPS[name].layer(scene, pair)


def why_not(scene: Scene, name: str) -> str | None:
    """In a few words why a map cannot be shown, or None."""
    missing = [role for role in MAPS[name].needs if role not in scene.images]
    if missing:
        return f"no {' and no '.join(missing)} open"
    try:
        MAPS[name].check(scene)
    except HyperfuseError as error:
        return str(error)
    return None
