"""Which pixels are shown, and where their lines are interrupted."""

from __future__ import annotations

import numpy as np
import pytest
from tests.reporting.reporting_scenes import WAVELENGTH_NM, make_reference

from hyperfuse.errors import ValueRangeError
from hyperfuse.io.cube import make_cube
from hyperfuse.reporting.colour import distinct_pixels
from hyperfuse.reporting.style import broken_line, spectral_axis


def test_one_pixel_of_each_surface_from_dark_to_bright() -> None:
    reference = make_reference()
    pixels = distinct_pixels(reference, 4)
    assert {(row >= 20, column >= 24) for row, column in pixels} == {
        (False, False),
        (False, True),
        (True, False),
        (True, True),
    }
    levels = [float(np.linalg.norm(reference.values[:, row, column])) for row, column in pixels]
    assert levels == sorted(levels)
    assert distinct_pixels(reference, 4) == pixels


def test_pixels_without_data_are_not_shown() -> None:
    values = make_reference().values.copy()
    values[:, :20, :24] = np.nan
    values[3, 20:, :24] = np.nan
    assert all(column >= 24 for _, column in distinct_pixels(make_cube(values), 4))
    with pytest.raises(ValueRangeError, match="no pixel has data"):
        distinct_pixels(make_cube(np.full((3, 5, 5), np.nan)))


def test_a_band_without_data_does_not_hide_all_pixels() -> None:
    values = make_reference().values.copy()
    values[5] = np.nan
    assert len(distinct_pixels(make_cube(values), 4)) == 4


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 1, 7), (4, 3, 2)])
def test_small_and_uniform_images_have_fewer_pixels_to_show(shape: tuple[int, int, int]) -> None:
    assert distinct_pixels(make_cube(np.ones(shape))) == [(0, 0)]


def test_pixels_of_large_scenes_come_from_their_middle() -> None:
    values = np.random.default_rng(0).uniform(0, 1, (2, 3, 2000))
    assert all(744 <= column < 1256 for _, column in distinct_pixels(make_cube(values)))


def test_lines_break_at_gaps_and_bad_bands() -> None:
    good = np.ones(WAVELENGTH_NM.size, bool)
    good[5] = False
    along, heights = broken_line(WAVELENGTH_NM, np.where(good, 1.0, np.nan))
    assert along.size == WAVELENGTH_NM.size + 2
    interrupted = along[np.isnan(heights)]
    assert interrupted.tolist() == [WAVELENGTH_NM[5], (1300 + 1460) / 2, (1780 + 1980) / 2]


def test_lines_follow_wavelength_where_detectors_overlap() -> None:
    positions = np.array([400.0, 500.0, 600.0, 450.0, 550.0])
    along, heights = broken_line(positions, positions * 2)
    assert along.tolist() == [400, 450, 500, 550, 600]
    assert heights.tolist() == [800, 900, 1000, 1100, 1200]


@pytest.mark.parametrize("positions", [[500.0], [500.0, 900.0], [500.0, 500.0, 500.0]])
def test_lines_of_few_bands_are_left_whole(positions: list[float]) -> None:
    along, heights = broken_line(np.array(positions), np.ones(len(positions)))
    assert along.tolist() == positions and np.isfinite(heights).all()


def test_the_axis_is_in_nanometres_where_known() -> None:
    assert spectral_axis(make_reference())[1] == "wavelength (nm)"
    positions, name = spectral_axis(make_cube(np.zeros((3, 1, 1)), wavelength_nm=[400, np.nan, 600]))
    assert positions.tolist() == [1, 2, 3] and name == "band"
