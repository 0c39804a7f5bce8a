"""Two images that do not match: other CRS, orientation, pixel sizes and extents. A smooth scene must come out where it
is.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pyproj
import pytest
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from scipy.ndimage import binary_erosion

from hyperfuse import make_cube
from hyperfuse.config import FuseConfig
from hyperfuse.errors import GridError
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.io.cube import lazy_variable
from hyperfuse.io.grid import Grid, grid_of, parallel_placement

HOME = 32633  # the MSI's CRS, in which the scene is defined
FINE = Affine(10, 0, 300_000, 0, -10, 5_800_000)
WAVELENGTHS = np.array([450.0, 550.0, 650.0])


def seen_at(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float32]:
    """Waves of 500 m and more, so that pixels of 40 m show all of them."""
    x, y = x - 300_000, y - 5_800_000
    return np.stack([np.sin(x / 80), np.cos(y / 90), np.sin((x + y) / 110)]).astype(np.float32) * 0.3 + 0.5


def centres(grid: Grid) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    columns, rows = np.meshgrid(np.arange(grid.width) + 0.5, np.arange(grid.height) + 0.5)
    return grid.transform @ (columns, rows)


def image(grid: Grid, **options: object) -> xr.DataArray:
    """The scene as it looks on some grid."""
    x, y = centres(grid)
    if grid.crs is not None and grid.crs.to_epsg() != HOME:
        x, y = pyproj.Transformer.from_crs(grid.crs.to_epsg(), HOME, always_xy=True).transform(x, y)
    return make_cube(seen_at(x, y), wavelength_nm=WAVELENGTHS, crs=grid.crs, transform=grid.transform, **options)


def grid(height: int, width: int, transform: Affine, epsg: int = HOME) -> Grid:
    return grid_of(make_cube(np.zeros((1, height, width), np.uint8), crs=epsg, transform=transform))


def in_other_crs(epsg: int, size: float, pixels: int = 60) -> Grid:
    """North-up in another CRS, its middle where FINE's first 200x200 pixels have theirs."""
    x, y = pyproj.Transformer.from_crs(HOME, epsg, always_xy=True).transform(301_000, 5_799_000)
    return grid(pixels, pixels, Affine(size, 0, x - size * pixels / 2, 0, -size, y + size * pixels / 2), epsg)


def placed_error(pair: AlignedPair) -> float:
    """Largest deviation of the HSI from the scene at the places where its pixels are said to look, two pixels off any
    edge.

    At the edges of a resampled image half a pixel is extrapolated.
    """
    hsi = pair.hsi
    rows, columns = (
        (np.arange(size) + 0.5) * scale - 0.5 + shift
        for size, scale, shift in zip(hsi.shape[1:], pair.scale, pair.grid_shift, strict=True)
    )
    corner = pair.output_grid.transform @ Affine.translation(pair.fine_columns.start, pair.fine_rows.start)
    x, y = corner @ tuple(np.meshgrid(columns + 0.5, rows + 0.5))
    error = np.abs(hsi - seen_at(x, y))
    assert np.nanmax(error) < 0.2
    inner = binary_erosion(np.isfinite(hsi).all(axis=0), iterations=2)
    assert inner.mean() > 0.3
    return float(error[:, inner].max())


TURNED = (
    Affine.translation(301_000, 5_799_000) @ Affine.rotation(20) @ Affine.scale(40, -40) @ Affine.translation(-20, -20)
)
HSI_GRIDS = {
    "rotated": grid(40, 40, TURNED),
    "rotated, oblong pixels": grid(40, 60, TURNED @ Affine.scale(0.8, 1.1)),
    "mirrored and rotated": grid(40, 40, TURNED @ Affine.translation(0, 40) @ Affine.scale(1, -1)),
    "upside down": grid(50, 50, Affine(37, 0, 300_100, 0, 37, 5_798_020)),
    "right to left": grid(50, 50, Affine(-37, 0, 301_950, 0, -37, 5_799_900)),
    "quarter turn": grid(45, 50, Affine(0, 40, 300_080, 40, 0, 5_798_000)),
    "other zone": in_other_crs(32632, 40.0),
    "degrees": in_other_crs(4326, 0.0004),
    "web mercator": in_other_crs(3857, 65.0),
}


@pytest.mark.parametrize("name", HSI_GRIDS)
def test_the_hsi_lies_where_its_georeference_says(name: str) -> None:
    hsi_grid, msi_grid = HSI_GRIDS[name], grid(200, 200, FINE)
    parallel = parallel_placement(hsi_grid, msi_grid) is not None
    assert parallel == (name in ("upside down", "right to left"))
    with nullcontext() if parallel else pytest.warns(UserWarning, match="resampled by cubic splines"):
        pair = align_pair(image(hsi_grid), image(msi_grid))
    assert placed_error(pair) < (1e-4 if parallel else 2e-3)
    # The MSI is not resampled, and the HSI keeps about its pixel size.
    known = np.isfinite(pair.msi)
    np.testing.assert_array_equal(pair.msi[known], seen_at(*centres(pair.output_grid))[known])
    assert all(2.5 < scale < 6 for scale in pair.scale)


def test_a_turned_msi_keeps_its_grid() -> None:
    """As AVIRIS is delivered: the MSI along the flight line, the HSI north-up or along the same line."""
    along_line = grid(200, 180, Affine.translation(300_500, 5_799_700) @ Affine.rotation(-33) @ Affine.scale(10, -10))
    with pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(image(grid(60, 60, FINE @ Affine.scale(4))), image(along_line))
    assert placed_error(pair) < 2e-3
    same_line = grid(50, 45, along_line.transform @ Affine.scale(4))
    pair = align_pair(image(same_line), image(along_line))
    assert (pair.scale, pair.grid_shift) == (pytest.approx((4, 4)), pytest.approx((0, 0), abs=1e-6))
    assert placed_error(pair) < 1e-4


def test_a_quarter_turn_loses_nothing() -> None:
    hsi = image(HSI_GRIDS["quarter turn"])
    with pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(hsi, image(grid(200, 200, FINE)))
    np.testing.assert_allclose(pair.hsi, hsi.values.transpose(0, 2, 1)[:, ::-1], atol=1e-5)


@pytest.mark.parametrize(("degrees", "ignored"), [(0.005, True), (0.1, False)])
def test_a_turn_too_small_to_see_is_ignored(degrees: float, ignored: bool) -> None:
    turned = grid(50, 50, FINE @ Affine.rotation(degrees) @ Affine.scale(4))
    with nullcontext() if ignored else pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(image(turned), image(grid(200, 200, FINE)))
    assert pair.scale == pytest.approx((4, 4), abs=0.05)


def test_the_same_crs_in_other_words_is_the_same() -> None:
    words = pyproj.CRS.from_epsg(HOME).to_wkt("WKT1_ESRI")
    hsi = make_cube(image(grid(50, 50, FINE @ Affine.scale(4))).values, crs=words, transform=FINE @ Affine.scale(4))
    pair = align_pair(hsi, image(grid(200, 200, FINE)))
    assert (pair.scale, pair.grid_shift) == ((4, 4), (0, 0))


def test_a_resampled_window_equals_that_part_of_the_whole() -> None:
    hsi = image(HSI_GRIDS["other zone"])
    hsi.values[:, 22:25, 31:33] = np.nan
    hsi.values[1, 40:, 20] = np.nan
    with pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(hsi, image(grid(200, 200, FINE)))
    whole = pair.hsi
    for rows, columns in ((slice(0, 7), slice(9, 30)), (slice(20, 21), slice(30, 31)), (slice(13, None), slice(0, 12))):
        np.testing.assert_allclose(pair.hsi_values(rows, columns), whole[:, rows, columns], atol=1e-5)


def test_missing_pixels_do_not_bleed() -> None:
    source = image(HSI_GRIDS["rotated"])
    values = np.round(source.values * 1e4).astype(np.int16)
    values[:, 15:19, 20:22] = -32768
    hsi = make_cube(values, scale=1e-4, nodata=-32768, crs=HOME, transform=TURNED)
    with pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(hsi, image(grid(200, 200, FINE)))
    # Missing are the pixels whose centre lies in a missing one, or outside of the turned image; nothing else.
    x, y = centres(grid_of(pair.hsi_source.cube))
    columns, rows = (np.floor(axis).astype(int) for axis in ~TURNED @ (x, y))
    inside = (rows >= 0) & (rows < 40) & (columns >= 0) & (columns < 40)
    expected = ~inside | ((rows >= 15) & (rows < 19) & (columns >= 20) & (columns < 22))
    np.testing.assert_array_equal(np.isnan(pair.hsi[0]), expected[pair.hsi_source.rows, pair.hsi_source.columns])
    assert placed_error(pair) < 0.01


@pytest.mark.parametrize("extent", ["intersection", "msi", "hsi"])
def test_extents_of_a_turned_hsi(extent: str) -> None:
    msi_grid = grid(150, 120, FINE)
    with pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(image(HSI_GRIDS["rotated"]), image(msi_grid), FuseConfig(extent=extent))
    assert placed_error(pair) < 2e-3
    offset = ~FINE @ pair.output_grid.transform
    assert offset.almost_equals(Affine.translation(round(offset.c), round(offset.f)), 1e-6)
    corners = [~FINE @ (TURNED @ corner) for corner in ((0, 0), (40, 0), (0, 40), (40, 40))]
    left, top = min(x for x, _ in corners), min(y for _, y in corners)
    if extent == "hsi":
        assert (offset.c, offset.f) == (pytest.approx(left, abs=5), pytest.approx(top, abs=5))
        assert pair.output_grid.width > 200
    elif extent == "msi":
        assert pair.output_grid == msi_grid
    else:
        assert (offset.c, offset.f) == (pytest.approx(max(0, left), abs=5), pytest.approx(max(0, top), abs=5))
        assert pair.output_grid.height == pair.fine_shape[1]


@dataclass(frozen=True)
class GreyReader:
    shape: tuple[int, int, int]
    dtype = np.dtype(np.float32)
    block = None

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[np.float32]:
        return np.full((len(bands), rows.stop - rows.start, columns.stop - columns.start), 0.5, np.float32)


def test_any_window_of_a_large_image_is_enough() -> None:
    """An HSI of half the Earth: far away, the MSI's CRS does not even reach."""
    degrees = 0.001
    corner = pyproj.Transformer.from_crs(HOME, 4326, always_xy=True).transform(300_000, 5_800_000)
    transform = Affine(degrees, 0, corner[0] - 100, 0, -degrees, corner[1] + 30)
    whole = make_cube(lazy_variable(GreyReader((3, 60_000, 180_000))), crs=4326, transform=transform)
    with pytest.warns(UserWarning, match="resampled"):
        pair = align_pair(whole, image(grid(200, 200, FINE)))
    assert max(pair.coarse_shape) < 50
    np.testing.assert_allclose(pair.hsi, 0.5, atol=1e-6)


def test_images_of_different_places_are_refused() -> None:
    msi = image(grid(200, 200, FINE))
    far = grid(50, 50, Affine(0.0004, 0, 120.0, 0, -0.0004, -30.0), 4326)
    beside = grid(50, 50, FINE @ Affine.translation(200, 0) @ Affine.scale(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in (far, beside):
            with pytest.raises(GridError, match="do not overlap"):
                align_pair(make_cube(np.ones((2, 50, 50), np.float32), crs=other.crs, transform=other.transform), msi)
