"""Spectra of all open images: at one pixel of the page, and the mean of a region drawn on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.io.cube import physical_values
from hyperfuse.viewer.scene import OpenImage, Scene

# What is read of one image for the mean of a region: beyond this, evenly spread parts of the region.
LARGEST_REGION_BYTES = 128 * 2**20
PART_SIDE = 64
MOST_CORNERS = 2000
Corner = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Spectrum:
    role: str
    row: int
    column: int
    pixels: int
    """How many pixels it is the mean of."""
    sampled: bool
    """The region was too large to read all of it."""
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    def as_dict(self) -> dict[str, object]:
        return {
            "role": self.role,
            "row": self.row,
            "column": self.column,
            "pixels": self.pixels,
            "sampled": self.sampled,
            "mean": strict(self.mean),
            "deviation": strict(self.deviation),
        }


def strict(values: NDArray[np.float64]) -> list[float | None]:
    """As JSON can hold them."""
    return [float(value) if math.isfinite(value) else None for value in values]


def spectra_at(scene: Scene, row: float, column: float) -> list[Spectrum]:
    """Of every image that has a pixel there; `row` and `column` count the page's pixels, 0 is the centre of the first."""
    places = {role: _pixel_at(image, row, column) for role, image in scene.images.items()}
    return [_spectrum_of_pixel(scene.images[role], *place) for role, place in places.items() if place is not None]


def region_spectra(scene: Scene, corners: Sequence[Corner]) -> list[Spectrum]:
    """Mean and standard deviation over the pixels whose centres lie inside a polygon of (row, column) corners on the
    page.
    """
    if not 3 <= len(corners) <= MOST_CORNERS or not np.isfinite(corners).all():
        raise OptionError(f"a region of {len(corners)} corners", f"3 to {MOST_CORNERS} corners", "draw it again")
    spectra = []
    for image in scene.images.values():
        spectrum = _region_of(image, np.array(corners, dtype=np.float64))
        if spectrum is not None:
            spectra.append(spectrum)
    return spectra


def _spectrum_of_pixel(image: OpenImage, row: int, column: int) -> Spectrum:
    values = physical_values(image.cube, slice(row, row + 1), slice(column, column + 1), dtype=np.float64)
    return Spectrum(image.role, row, column, 1, False, values[:, 0, 0], np.zeros(image.bands))


def _position(image: OpenImage, row: float, column: float) -> tuple[float, float]:
    rows, columns = image.positions(np.array([[row]]), np.array([[column]]))
    return float(rows[0, 0]), float(columns[0, 0])


def _pixel_at(image: OpenImage, row: float, column: float) -> tuple[int, int] | None:
    down, across = _position(image, row, column)
    if not (-0.5 <= down < image.height - 0.5 and -0.5 <= across < image.width - 0.5):
        return None
    return math.floor(down + 0.5), math.floor(across + 0.5)


def _region_of(image: OpenImage, corners: NDArray[np.float64]) -> Spectrum | None:
    """None where the image has no pixel there."""
    moved = np.array([_position(image, row, column) for row, column in corners])
    if not np.isfinite(moved).all():
        return None
    top, left = np.clip(np.ceil(moved.min(axis=0)), 0, (image.height, image.width)).astype(int)
    bottom, right = np.clip(np.floor(moved.max(axis=0)) + 1, (top, left), (image.height, image.width)).astype(int)
    parts, sampled = _parts(image, slice(int(top), int(bottom)), slice(int(left), int(right)))
    sums = _BandSums(image.bands)
    for rows, columns in parts:
        inside = _inside(moved, rows, columns)
        if inside.any():
            sums.add(physical_values(image.cube, rows, columns, dtype=np.float64)[:, inside])
    if sums.pixels == 0:
        # Smaller than a pixel of this image: the one that its middle lies in.
        place = _pixel_at(image, *corners.mean(axis=0))
        return None if place is None else _spectrum_of_pixel(image, *place)
    middle = int((top + bottom) // 2), int((left + right) // 2)
    return Spectrum(image.role, *middle, sums.pixels, sampled, *sums.mean_and_deviation())


class _BandSums:
    """Sums over pixels, band by band, of what is known."""

    def __init__(self, bands: int) -> None:
        self.pixels = 0
        self._count = np.zeros(bands, dtype=np.int64)
        self._total, self._squares = np.zeros(bands), np.zeros(bands)

    def add(self, values: NDArray[np.float64]) -> None:
        """(C, n)"""
        known = np.isfinite(values)
        self.pixels += int(known.any(axis=0).sum())
        self._count += known.sum(axis=1)
        self._total += np.where(known, values, 0).sum(axis=1)
        self._squares += np.where(known, np.square(values), 0).sum(axis=1)

    def mean_and_deviation(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        count = np.where(self._count > 0, self._count, np.nan)
        mean = self._total / count
        return mean, np.sqrt(np.maximum(0, self._squares / count - mean**2))


def _parts(image: OpenImage, rows: slice, columns: slice) -> tuple[list[tuple[slice, slice]], bool]:
    """Windows to read of a region's surroundings, and whether they are only a sample of it."""
    height, width = rows.stop - rows.start, columns.stop - columns.start
    if height < 1 or width < 1:
        return [], False
    down, across = (list(range(part.start, part.stop, PART_SIDE)) for part in (rows, columns))
    affordable = max(1, LARGEST_REGION_BYTES // (8 * image.bands * PART_SIDE**2))
    every = max(1, math.ceil(math.sqrt(len(down) * len(across) / affordable)))
    parts = [
        (slice(y, min(y + PART_SIDE, rows.stop)), slice(x, min(x + PART_SIDE, columns.stop)))
        for y in down[every // 2 :: every] or down[:1]
        for x in across[every // 2 :: every] or across[:1]
    ]
    return parts, every > 1


def _inside(corners: NDArray[np.float64], rows: slice, columns: slice) -> NDArray[np.bool_]:
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
