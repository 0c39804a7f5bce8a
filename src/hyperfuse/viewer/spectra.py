"""Spectra of all open images: at one pixel of the page, and the mean over a region drawn on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.io.cube import physical_values
from hyperfuse.viewer.images import OpenImage, OpenImages

# What is read of one image for the mean of a region; of a larger region, evenly spread parts.
LARGEST_REGION_BYTES = 128 * 2**20
PART_SIDE = 64
MOST_CORNERS = 2000
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Mean and standard deviation over `pixels` pixels; `sampled` where the region was too large to read all."""

    role: str
    row: int
    column: int
    pixels: int
    sampled: bool
    mean: Floats
    deviation: Floats

    def as_dict(self) -> dict[str, object]:
        return vars(self) | {"mean": finite(self.mean), "deviation": finite(self.deviation)}


def finite(values: Floats) -> list[float | None]:
    """As JSON can hold them."""
    return [float(value) if math.isfinite(value) else None for value in values]


def spectra_at(opened: OpenImages, row: float, column: float) -> list[Spectrum]:
    """The spectrum of every image that has a pixel at a position of the page, 0 is the centre of the first pixel."""
    spectra = (_pixel_spectrum(image, row, column) for image in opened.images.values())
    return [spectrum for spectrum in spectra if spectrum is not None]


def region_spectra(opened: OpenImages, corners: Sequence[tuple[float, float]]) -> list[Spectrum]:
    """The spectra over the pixels whose centres lie inside a polygon of (row, column) corners on the page."""
    if not 3 <= len(corners) <= MOST_CORNERS or not np.isfinite(corners).all():
        raise OptionError(f"a region of {len(corners)} corners", f"3 to {MOST_CORNERS} corners", "draw it again")
    spectra = (_region_spectrum(image, np.array(corners, dtype=np.float64)) for image in opened.images.values())
    return [spectrum for spectrum in spectra if spectrum is not None]


def _pixel_spectrum(image: OpenImage, row: float, column: float) -> Spectrum | None:
    """None where the image has no pixel there."""
    down, across = image.positions(np.array([[row]]), np.array([[column]]))
    if not image.contains(down, across).all():
        return None
    y, x = math.floor(down[0, 0] + 0.5), math.floor(across[0, 0] + 0.5)
    values = physical_values(image.cube, slice(y, y + 1), slice(x, x + 1), dtype=np.float64)
    return Spectrum(image.role, y, x, 1, False, values[:, 0, 0], np.zeros(image.bands))


def _region_spectrum(image: OpenImage, corners: Floats) -> Spectrum | None:
    moved = np.hstack(image.positions(corners[:, :1], corners[:, 1:]))
    if not np.isfinite(moved).all():
        return None
    size = image.height, image.width
    top, left = (int(value) for value in np.clip(np.ceil(moved.min(axis=0)), 0, size))
    bottom, right = (int(value) for value in np.clip(np.floor(moved.max(axis=0)) + 1, (top, left), size))
    windows, sampled = _windows(image.bands, slice(top, bottom), slice(left, right))
    parts = []
    for rows, columns in windows:
        inside = _inside_polygon(moved, rows, columns)
        if inside.any():
            parts.append(physical_values(image.cube, rows, columns, dtype=np.float64)[:, inside])
    pixels = sum(int(np.isfinite(part).any(axis=0).sum()) for part in parts)
    if pixels == 0:
        # Smaller than a pixel of this image: the pixel at its middle.
        return _pixel_spectrum(image, *corners.mean(axis=0))
    # Band by band, so that there is never a second copy of all values.
    mean, deviation = np.array([_mean_and_deviation(np.concatenate(band)) for band in zip(*parts, strict=True)]).T
    return Spectrum(image.role, (top + bottom) // 2, (left + right) // 2, pixels, sampled, mean, deviation)


def _mean_and_deviation(values: Floats) -> tuple[float, float]:
    known = values[np.isfinite(values)]
    return (float(known.mean()), float(known.std())) if known.size else (np.nan, np.nan)


def _windows(bands: int, rows: slice, columns: slice) -> tuple[list[tuple[slice, slice]], bool]:
    """Windows to read of a region's bounding box, and whether they are only a sample of it."""
    down, across = (range(axis.start, axis.stop, PART_SIDE) for axis in (rows, columns))
    affordable = max(1, LARGEST_REGION_BYTES // (8 * bands * PART_SIDE**2))
    every = max(1, math.ceil(math.sqrt(len(down) * len(across) / affordable)))
    windows = [
        (slice(y, min(y + PART_SIDE, rows.stop)), slice(x, min(x + PART_SIDE, columns.stop)))
        for y in down[every // 2 :: every] or down[:1]
        for x in across[every // 2 :: every] or across[:1]
    ]
    return windows, every > 1


def _inside_polygon(corners: Floats, rows: slice, columns: slice) -> NDArray[np.bool_]:
    """Which pixel centres of a window lie in the polygon."""
    from rasterio.features import geometry_mask

    ring = [(column + 0.5, row + 0.5) for row, column in corners]
    inside: NDArray[np.bool_] = geometry_mask(
        [{"type": "Polygon", "coordinates": [[*ring, ring[0]]]}],
        (rows.stop - rows.start, columns.stop - columns.start),
        Affine.translation(columns.start, rows.start),
        invert=True,
    )
    return inside
