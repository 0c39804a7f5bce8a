"""Maps read from rotated images: the same values for every window, with bounded overhead."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hyperfuse.io.products.swath import LARGEST_OVERHEAD, on_map

HEIGHT, WIDTH, MAP = 300, 280, 400


@dataclass(frozen=True)
class RotatedLookup:
    """A map turned by 50 degrees, as EMIT's maps are; a few entries point outside of the image."""

    shape: tuple[int, int] = (MAP, MAP)

    def window(self, rows: slice, columns: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        y, x = np.mgrid[0:MAP, 0:MAP][:, rows, columns]
        angle = np.radians(50.0)
        from_rows = np.rint(np.cos(angle) * y - np.sin(angle) * x + 150).astype(np.int64)
        from_columns = np.rint(np.sin(angle) * y + np.cos(angle) * x - 120).astype(np.int64)
        return from_rows, from_columns


@dataclass(frozen=True)
class Counting:
    image: NDArray[Any]
    boxes: list[int] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, int, int]:
        bands, height, width = self.image.shape
        return bands, height, width

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.image.dtype

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        window = self.image[bands][:, rows, columns]
        self.boxes.append(window[0].size)
        return window


@pytest.mark.parametrize(
    "window", [(slice(0, MAP), slice(0, MAP)), (slice(190, 200), slice(0, MAP)), (slice(7, 390), slice(200, 201))]
)
def test_windows_of_a_rotated_map(window: tuple[slice, slice]) -> None:
    image = np.random.default_rng(0).integers(1, 1000, (3, HEIGHT, WIDTH))
    source = Counting(image)
    rows, columns = window
    read = on_map(source, RotatedLookup(), -1).read(np.array([2, 0]), rows, columns)
    from_rows, from_columns = RotatedLookup().window(rows, columns)
    pixels = 0
    for place in np.ndindex(from_rows.shape):
        inside = 0 <= from_rows[place] < HEIGHT and 0 <= from_columns[place] < WIDTH
        expected = image[[2, 0], from_rows[place], from_columns[place]] if inside else -1
        assert (read[:, *place] == expected).all()
        pixels += inside
    assert pixels > 0
    assert sum(source.boxes) <= (LARGEST_OVERHEAD + 1) * pixels + 33 * 33 * len(source.boxes)
    assert max(source.boxes) <= max(LARGEST_OVERHEAD * pixels, 33 * 33)


def test_a_window_without_pixels_reads_nothing() -> None:
    source = Counting(np.ones((1, HEIGHT, WIDTH)))
    read = on_map(source, RotatedLookup(), -1).read(np.array([0]), slice(0, 3), slice(390, 400))
    assert (read == -1).all() and not source.boxes
