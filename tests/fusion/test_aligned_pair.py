"""How two grids are cut to what they share, above all where the MSI ends in the middle of an HSI pixel."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from affine import Affine

from hyperfuse import fuse, make_cube, open_cube, simulate, write_cube
from hyperfuse.fusion.pair import align_pair
from hyperfuse.io.cube import physical_values
from hyperfuse.io.grid import grid_of

FINE = Affine(10, 0, 500000, 0, -10, 5800000)
SCALE = 4


def scene(height: int, width: int) -> xr.DataArray:
    """Patches of five materials, lit differently: what an MSI of three bands says much about."""
    random = np.random.default_rng(0)
    spectra = np.cumsum(random.random((12, 5)) - 0.4, axis=0) ** 2 * 0.05 + 0.1
    rows, columns = np.mgrid[:height, :width]
    fields = (rows // 7 * 3 + columns // 5 * 7) % 5
    values = spectra[:, fields] * (0.7 + 0.3 * random.random((height, width)))
    return make_cube(values.astype(np.float32), wavelength_nm=np.linspace(430, 700, 12), crs=32633, transform=FINE)


def window(cube: xr.DataArray, rows: slice, columns: slice) -> xr.DataArray:
    transform = FINE @ Affine.translation(columns.start, rows.start)
    return make_cube(cube.values[:, rows, columns], crs=32633, transform=transform)


def upside_down(cube: xr.DataArray) -> xr.DataArray:
    transform = grid_of(cube).transform @ Affine.translation(0, cube.sizes["y"]) @ Affine.scale(1, -1)
    return make_cube(cube.values[:, ::-1], good=cube["good"].values, crs=32633, transform=transform)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "coarse_rows", "shift"),
    [
        (slice(8, 32), slice(2, 8), 0.0),  # whole pixels
        (slice(9, 31), slice(2, 8), -1.0),  # three quarters of the first and the last: they stay
        (
            slice(10, 30),
            slice(3, 7),
            2.0,
        ),  # half of them: they go, and the first that stays begins two fine pixels later
        (slice(11, 33), slice(3, 8), 1.0),  # a quarter of each
        (slice(10, 17), slice(2, 5), -2.0),  # one alone would remain: all stay
    ],
)
def test_hsi_pixels_that_the_msi_covers_too_little_of_are_left_out(
    rows: slice, coarse_rows: slice, shift: float, turned: bool
) -> None:
    hsi = make_cube(
        np.arange(200, dtype=np.float32).reshape(2, 10, 10), crs=32633, transform=FINE @ Affine.scale(SCALE)
    )
    msi = window(scene(40, 40), rows, slice(0, 40))
    pair = align_pair(upside_down(hsi) if turned else hsi, msi)
    np.testing.assert_array_equal(pair.hsi, hsi.values[:, coarse_rows])
    np.testing.assert_array_equal(pair.msi, msi.values)
    assert pair.grid_shift == (pytest.approx(shift), 0.0)


@pytest.mark.parametrize("method", ["fuse", "hysure", "local_fuse"])
def test_an_msi_that_ends_within_hsi_pixels_is_fused_as_well_as_any(method: str) -> None:
    pair = simulate(scene(96, 96), SCALE, "rgb")

    def error(rows: slice, columns: slice) -> float:
        fused = fuse(pair.hsi, window(pair.msi, rows, columns), method=method, estimate=False)
        return float(np.sqrt(np.mean((physical_values(fused) - pair.reference.values[:, rows, columns]) ** 2)))

    assert error(slice(15, 75), slice(11, 90)) < 1.15 * error(slice(16, 76), slice(12, 92))


@pytest.mark.parametrize("turned", [False, True])
def test_windows_are_read_one_by_one_and_anywhere(turned: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(1).random((5, 10, 11)).astype(np.float32)
    values[2] = np.nan
    values[3, :7] = np.nan
    hsi = make_cube(values, good=[True, True, True, True, False], crs=32633, transform=FINE @ Affine.scale(SCALE))
    msi = window(scene(40, 44), slice(8, 36), slice(4, 40))
    pair = align_pair(
        open_cube(write_cube(upside_down(hsi) if turned else hsi, tmp_path / "hsi.tif")),
        open_cube(write_cube(msi, tmp_path / "msi.tif")),
    )
    assert pair.usable_bands.tolist() == [True, True, False, True, False]
    assert (pair.coarse_shape, pair.fine_shape) == ((5, 7, 9), (12, 28, 36))
    assert pair.hsi.shape == pair.coarse_shape
    message = pickle.dumps(pair)
    assert len(message) < 20_000  # where to read, not what was read
    travelled = pickle.loads(message)
    rows, columns = slice(2, 5), slice(1, None)
    np.testing.assert_array_equal(travelled.hsi_values(rows, columns), hsi.values[:, 2:9, 1:10][:, rows, columns])
    np.testing.assert_array_equal(travelled.msi_values(rows, columns), msi.values[:, rows, columns])
