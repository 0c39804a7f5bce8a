"""Which pixels of two parallel grids belong together, and which part of the MSI's grid the fused image covers.

One axis at a time, except for bounds given in map coordinates. Fine positions count pixels of the MSI; they may lie
beyond it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.errors import GridError, OptionError
from hyperfuse.io.grid import Grid, Placement, crs_name, grid_nodes, positions_in

SMALLEST_HSI = 2
# An HSI pixel at the edge of the MSI that is covered less than this saw too much ground that the MSI does not show.
SMALLEST_COVERAGE = 0.7
INTERSECTION, WHOLE_MSI, WHOLE_HSI = "intersection", "msi", "hsi"
EXTENTS = (INTERSECTION, WHOLE_MSI, WHOLE_HSI)
# Transforms carry rounding errors; a millionth of a pixel is none.
ROUNDING = 1e-6
# People write bounds with few digits; a hundredth of a pixel beyond a pixel's edge does not ask for the next pixel.
SNAPPED = 0.01


@dataclass(frozen=True)
class Area:
    """What the fused image shall cover: what both images show, or all that one of them shows; and within that, some
    bounds.
    """

    extent: str = INTERSECTION
    bounds: tuple[float, float, float, float] | None = None
    """xmin, ymin, xmax, ymax."""
    bounds_crs: str | None = None
    """Of the bounds, where it is not the MSI's."""

    def __post_init__(self) -> None:
        if self.extent not in EXTENTS:
            raise OptionError(f"extent {self.extent!r}", "intersection, msi or hsi")
        if self.bounds is None:
            if self.bounds_crs is not None:
                raise OptionError("a CRS for bounds, and no bounds", "both or none", "add --bounds XMIN YMIN XMAX YMAX")
            return
        xmin, ymin, xmax, ymax = self.bounds
        # Written so that NaN fails too.
        if not (xmin < xmax and ymin < ymax and all(map(math.isfinite, self.bounds))):
            raise OptionError(
                f"bounds {xmin:g} {ymin:g} {xmax:g} {ymax:g}", "XMIN YMIN XMAX YMAX with XMIN < XMAX, YMIN < YMAX"
            )


@dataclass(frozen=True)
class AxisOverlap:
    """Along one axis: the pixels of the pair, and those of the fused image."""

    coarse: slice
    fine: slice
    output: slice
    direction: int  # -1 where the HSI runs the other way
    shift: float
    """Where the first coarse pixel looks beyond grids that share their first corner, in fine pixels."""


def overlaps(hsi: Grid, msi: Grid, placement: Placement, area: Area) -> tuple[AxisOverlap, AxisOverlap]:
    """Along y and x."""
    bounds = _fine_bounds(msi, area)
    return (
        _overlap(placement.start_y, placement.step_y, hsi.height, msi.height, area.extent, bounds[0]),
        _overlap(placement.start_x, placement.step_x, hsi.width, msi.width, area.extent, bounds[1]),
    )


def _overlap(
    start: float, step: float, coarse_size: int, fine_size: int, extent: str, bounds: tuple[int, int] | None
) -> AxisOverlap:
    """Fine pixel i lies at coarse index start + i * step; the pair's fine pixels are those whose centres lie inside the
    HSI.

    At the ends, coarse pixels that are only partly covered are left out where enough others remain: the methods would
    look for their share of the ground beyond the edge in the fine pixels before it.
    """
    direction = 1 if step > 0 else -1
    edges = sorted(((-0.5 - start) / step, (coarse_size - 0.5 - start) / step))
    in_hsi = math.ceil(edges[0] - ROUNDING), math.ceil(edges[1] - ROUNDING)
    in_both = max(0, in_hsi[0]), min(fine_size, in_hsi[1])
    wanted = {INTERSECTION: in_both, WHOLE_MSI: (0, fine_size), WHOLE_HSI: in_hsi}[extent]
    in_msi = 0, fine_size
    if bounds is not None:
        wanted, in_both, in_msi = (_shared(part, bounds) for part in (wanted, in_both, in_msi))
    first_coarse, stop_coarse = _coarse_pixels(start, step, coarse_size, in_both, in_msi, bounded=bounds is not None)
    scale = 1 / abs(step)
    # Position of the first fine pixel of the overlap in the cut (and turned) coarse image.
    index = start + in_both[0] * step
    inner = index - first_coarse if direction > 0 else stop_coarse - 1 - index
    shift = 0.5 - (inner + 0.5) * scale
    return AxisOverlap(
        coarse=slice(first_coarse, stop_coarse),
        fine=slice(*in_both),
        output=slice(*wanted),
        direction=direction,
        shift=0.0 if abs(shift) < ROUNDING else shift,
    )


def _shared(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


def _coarse_pixels(
    start: float, step: float, coarse_size: int, fine: tuple[int, int], covering: tuple[int, int], *, bounded: bool
) -> tuple[int, int]:
    """First and one past the last coarse pixel that some fine pixels touch and that `covering` ones show enough of."""
    reached = sorted((start + fine[0] * step, start + (fine[1] - 1) * step))
    first = max(0, math.floor(reached[0] + 0.5 + ROUNDING))
    stop = min(coarse_size, math.floor(reached[1] + 0.5 + ROUNDING) + 1)
    shared = max(0, stop - first) if fine[1] > fine[0] else 0
    if shared < SMALLEST_HSI:
        raise GridError(
            f"the two images share only {shared} HSI pixels along an axis{' within the bounds' if bounded else ''}",
            "at least 2x2 HSI pixels in common",
            "check their coordinates with `hyperfuse info`",
        )
    covered = [index for index in range(first, stop) if _coverage(index, start, step, covering) > SMALLEST_COVERAGE]
    return (covered[0], covered[-1] + 1) if len(covered) >= SMALLEST_HSI else (first, stop)


def _coverage(index: int, start: float, step: float, fine: tuple[int, int]) -> float:
    """Which share of a coarse pixel's width lies in some fine pixels, of which i reaches from i - 0.5 to i + 0.5."""
    first, last = sorted(((index - 0.5 - start) / step, (index + 0.5 - start) / step))
    return (min(last, fine[1] - 0.5) - max(first, fine[0] - 0.5)) / (last - first)


def _fine_bounds(msi: Grid, area: Area) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
    """The bounds as fine rows and columns, first and one past the last, snapped outwards to whole pixels."""
    if area.bounds is None:
        return None, None
    if msi.transform is None:
        raise OptionError("bounds for an MSI without georeference", "a georeferenced MSI", "leave out --bounds")
    xmin, ymin, xmax, ymax = area.bounds
    # The box as an image of one pixel; its inside counts too, because edges may bulge in another CRS.
    box = Grid(1, 1, Affine(xmax - xmin, 0, xmin, 0, ymax - ymin, ymin), _bounds_crs(msi, area))
    rows, columns = (axis[np.isfinite(axis)] for axis in positions_in(msi, box, *grid_nodes(box)))
    if not rows.size:
        raise OptionError(
            f"bounds outside of {crs_name(msi.crs)}", "bounds around the images", "check --bounds and --bounds-crs"
        )
    return _snapped(rows), _snapped(columns)


def _snapped(positions: NDArray[np.float64]) -> tuple[int, int]:
    return math.floor(positions.min() + 0.5 + SNAPPED), math.ceil(positions.max() + 0.5 - SNAPPED)


def _bounds_crs(msi: Grid, area: Area) -> CRS | None:
    if area.bounds_crs is None:
        return msi.crs
    if msi.crs is None:
        raise OptionError(
            "a CRS for bounds of an MSI that has none", "bounds in the MSI's coordinates", "leave out --bounds-crs"
        )
    try:
        return CRS.from_user_input(area.bounds_crs)
    except CRSError as error:
        raise OptionError(f"bounds in {area.bounds_crs!r}", "a CRS such as EPSG:4326") from error
