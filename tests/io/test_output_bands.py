"""Selecting bands by number, by wavelength and by their flag."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse.config import OutputConfig
from hyperfuse.errors import BandError, HyperfuseError, OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube
from hyperfuse.io.output import check_selection, output_template, select_bands, selected

# Two detectors that overlap, so that the centres are not sorted.
CENTRES = np.array([400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 750.0, 850.0, 1000.0, 1100.0])
BAD = (1, 8)


def cube(centres: np.ndarray | None = CENTRES) -> xr.DataArray:
    good = ~np.isin(np.arange(10), BAD)
    return make_cube(np.arange(10 * 4).reshape(10, 2, 2), wavelength_nm=centres, good=good)


@pytest.mark.parametrize(
    ("selection", "numbers"),
    [
        ("1", [1]),
        ("10", [10]),
        ("2-4", [2, 3, 4]),
        ("3,2,1", [3, 2, 1]),
        ("1-3,2-4", [1, 2, 3, 4]),
        (" 1 - 3 , 7 ", [1, 2, 3, 7]),
        ("700-900nm", [4, 5, 6, 7, 8]),
        ("0.7-0.9um", [4, 5, 6, 7, 8]),
        ("0.7-.9µm", [4, 5, 6, 7, 8]),
        ("700nm-0.9um", [4, 5, 6, 7, 8]),
        ("0.7 - 0.9 UM", [4, 5, 6, 7, 8]),
        ("7000-9000 angstrom", [4, 5, 6, 7, 8]),
        ("660nm", [4]),
        ("0.66um", [4]),
        ("1180nm", [10]),
        ("good", [1, 3, 4, 5, 6, 7, 8, 10]),
        ("400-600nm,good", [1, 3]),
        ("good,400-600nm,10", [1, 3, 10]),
        ("660nm,560nm,480nm", [4, 3, 2]),
        ("9,400-500nm", [9, 1, 2]),
    ],
)
def test_what_is_meant(selection: str, numbers: list[int]) -> None:
    check_selection(selection)
    assert (select_bands(cube(), selection) + 1).tolist() == numbers


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ("0", r"band 0 of a cube of 10; expected 1 to 10.*count from 1"),
        ("11", r"band 11 of a cube of 10; expected 1 to 10"),
        ("400-1000", r"bands 400-1000 of a cube of 10; expected 1 to 10.*needs its unit \(400-1000nm\)"),
        ("5-2", r"bands 5-2 of a cube of 10.*smaller number first"),
        ("2000-2500nm", r"no band between 2000 and 2500 nm in a cube of 10 bands from 400 to 1100 nm"),
        ("610-690nm", r"no band between 610 and 690 nm"),
        ("3um", r"no band near 3000 nm in a cube of 10 bands from 400 to 1100 nm"),
        ("2,9,good", r"every one of them is flagged bad"),
    ],
)
def test_what_a_cube_does_not_have(selection: str, message: str) -> None:
    check_selection(selection)
    with pytest.raises(BandError, match=message):
        select_bands(cube(), selection)


@pytest.mark.parametrize(
    "selection", ["", "x", "0.4-1.0", "1,,2", "400-1000nmm", "-3", "1-", "nm", "bad", "400nm-1000", "4e2nm", "1-2-3"]
)
def test_what_is_no_selection(selection: str) -> None:
    if selection == "400nm-1000":
        assert (select_bands(cube(), selection) + 1).tolist() == list(range(1, 10))
        return
    with pytest.raises(
        OptionError, match=r"not a selection; expected numbers from 1 \(1-50,60\), wavelengths .* or good"
    ):
        check_selection(selection)
    with pytest.raises(OptionError):
        write_cube(cube(), "never.tif", bands=selection)


def test_the_smaller_wavelength_comes_first() -> None:
    with pytest.raises(OptionError, match="from 1000 to 400 nm; expected the smaller wavelength first"):
        check_selection("1.0-0.4um")


def test_without_wavelengths() -> None:
    blind = cube(None)
    assert select_bands(blind, "2-3").tolist() == [1, 2]
    with pytest.raises(BandError, match=r"whose wavelengths are unknown; expected band numbers; choose from 1-10"):
        select_bands(blind, "400-500nm")


def test_unknown_wavelengths_are_in_no_range() -> None:
    centres = np.where(np.arange(10) == 2, np.nan, CENTRES)
    assert (select_bands(cube(centres), "400-700nm") + 1).tolist() == [1, 2, 4]
    assert (select_bands(cube(centres), "620nm") + 1).tolist() == [4]


def test_the_band_table_follows() -> None:
    output = OutputConfig(bands="1.0um,2-3")
    part, template = selected(cube(), output), output_template(cube(), output)
    for each in (part, template):
        assert each["wavelength"].values.tolist() == [1000.0, 500.0, 600.0]
        assert each["good"].values.tolist() == [False, False, True]
    np.testing.assert_array_equal(part.values, cube().values[[8, 1, 2]])


ENTRIES = st.one_of(
    st.integers(0, 12).map(str),
    st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: f"{ends[0]}-{ends[1]}"),
    st.tuples(st.integers(300, 1200), st.integers(300, 1200)).map(lambda ends: f"{ends[0]}-{ends[1]}nm"),
    st.integers(300, 1200).map(lambda length: f"{length / 1000}um"),
    st.just("good"),
    st.text("0123456789.-,nmugod ", max_size=8),
)


@given(selection=st.lists(ENTRIES, min_size=1, max_size=4).map(",".join))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_text_selects_bands_or_says_why_not(selection: str) -> None:
    try:
        positions = select_bands(cube(), selection)
    except HyperfuseError as error:
        assert str(error)
    else:
        check_selection(selection)
        assert len(set(positions.tolist())) == positions.size > 0
        assert set(positions.tolist()) <= set(range(10))


def test_a_template_of_chosen_bands_takes_no_memory() -> None:
    """All values of these would take 20 TB."""
    side = 1_000_000
    large = make_cube(np.broadcast_to(np.float32(0), (5, side, side)), wavelength_nm=CENTRES[:5])
    template = output_template(large, OutputConfig(bands="5,2-4"))
    assert template.shape == (4, side, side) and template["wavelength"].values.tolist() == [800, 500, 600, 700]
