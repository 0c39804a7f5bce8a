"""Where the fused image, degraded again, does not give its inputs back: once against the HSI, once against the MSI.

Shapes: C bands, M msi bands, h w coarse, H W fine. The HSI's map lies on the HSI's pixels, the MSI's on the MSI's.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hyperfuse.cubes.cube import physical_values
from hyperfuse.cubes.grid import Positions
from hyperfuse.errors import BandError, GridError
from hyperfuse.viewer.layers import Layer, Planes
from hyperfuse.viewer.observed_pair import ObservedPair
from hyperfuse.viewer.scene import OpenImage, Scene

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


def degraded_and_hsi(fused: OpenImage, hsi: OpenImage, pair: ObservedPair, rows: slice, columns: slice) -> tuple[Planes, Planes]:
    """Both as (C, h, w) for a window of the HSI."""
    import torch

    from hyperfuse.degradation.operators import SpatialOperator

    assert hsi.placement is not None
    place, sigma, shift = hsi.placement, pair.sigma, pair.misregistration
    down = _Axis(rows, place.start_y, place.step_y, sigma[0], shift[0], fused.height)
    across = _Axis(columns, place.start_x, place.step_x, sigma[1], shift[1], fused.width)
    observed = physical_values(hsi.cube, rows, columns, pair.bands)
    if down.fine.stop <= down.fine.start or across.fine.stop <= across.fine.start:
        return np.full_like(observed, np.nan), observed
    fine = physical_values(fused.cube, down.fine, across.fine, pair.bands)
    operator = SpatialOperator.from_point_spread(
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


def imitated_and_msi(fused: OpenImage, msi: OpenImage, pair: ObservedPair, rows: slice, columns: slice) -> tuple[Planes, Planes]:
    """Both as (M, H, W) for a window of the fused image; the MSI's nearest pixels where it lies on another grid."""
    assert pair.observation is not None
    response, offset = pair.observation.response.numpy(), pair.observation.offset.numpy()
    fine = physical_values(fused.cube, rows, columns, pair.bands)
    imitated = np.tensordot(response.astype(np.float32), fine, axes=1) + offset.astype(np.float32)[:, None, None]
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
        from hyperfuse.degradation.point_spread import point_spread_reach

        self.direction = 1 if step > 0 else -1
        centres = ((np.arange(coarse.start, coarse.stop) - start) / step + shift)[:: self.direction]
        reach = point_spread_reach(sigma) + 1
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
