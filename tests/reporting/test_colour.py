"""Colour composites: the right bands, the right stretch, and no surprise where data or wavelengths are missing."""

from __future__ import annotations

import numpy as np
import pytest

from hyperfuse.io.cube import make_cube
from hyperfuse.reporting.colour import colour_composite, composite_bands, stretch_limits


def test_bands_nearest_to_red_green_and_blue() -> None:
    cube = make_cube(np.zeros((6, 2, 2)), wavelength_nm=[860, 645, 2200, 480, 552, 700])
    assert composite_bands(cube) == (1, 4, 3)
    bad_red = cube.assign_coords(good=("band", [True, False, True, True, True, True]))
    assert composite_bands(bad_red) == (5, 4, 3)


@pytest.mark.parametrize(
    ("bands", "wavelength_nm", "expected"),
    [
        (8, None, (6, 4, 2)),
        (8, list(range(1000, 1800, 100)), (6, 4, 2)),
        (4, [480, 490, 1600, 2200], (3, 2, 1)),
        (1, None, (0, 0, 0)),
        (1, [560], (0, 0, 0)),
        (2, None, (1, 1, 0)),
        (3, [np.nan, 550, np.nan], (2, 1, 0)),
    ],
)
def test_position_decides_where_wavelength_cannot(
    bands: int, wavelength_nm: list[float] | None, expected: tuple[int, int, int]
) -> None:
    assert composite_bands(make_cube(np.zeros((bands, 2, 2)), wavelength_nm=wavelength_nm)) == expected


def test_the_stretch_runs_from_black_to_full() -> None:
    ramp = np.linspace(10, 20, 101).reshape(1, 1, 101)
    cube = make_cube(np.concatenate([ramp, 2 * ramp, 3 * ramp]), wavelength_nm=[470, 550, 650])
    limits = stretch_limits(cube)
    np.testing.assert_allclose(limits, [[30.6, 59.4], [20.4, 39.6], [10.2, 19.8]])
    picture = colour_composite(cube)
    assert picture.shape == (1, 101, 3) and picture.dtype == np.uint8
    assert picture[0, 0].tolist() == [0, 0, 0] and picture[0, -1].tolist() == [255, 255, 255]
    assert np.abs(picture[0, 50].astype(int) - 127.5).max() <= 0.5
    assert colour_composite(cube, every=10).shape == (1, 11, 3)


def test_shared_limits_keep_images_comparable() -> None:
    cube = make_cube(np.random.default_rng(0).uniform(0, 1, (3, 20, 20)), wavelength_nm=[470, 550, 650])
    limits = stretch_limits(cube)
    assert colour_composite(cube * 0.5, limits).mean() < 0.7 * colour_composite(cube, limits).mean()
    assert abs(colour_composite(cube * 0.5).mean() - colour_composite(cube).mean()) < 1


def test_no_data_is_white_and_a_flat_image_is_no_error() -> None:
    values = np.full((3, 4, 4), 7, np.int16)
    values[:, 0, 0] = -1
    picture = colour_composite(make_cube(values, nodata=-1))
    assert picture[0, 0].tolist() == [255, 255, 255] and picture[1, 1].tolist() == [0, 0, 0]
    assert (colour_composite(make_cube(np.full((3, 4, 4), np.nan))) == 255).all()
