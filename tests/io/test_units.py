"""Wavelengths in any unit become nanometres; a missing unit is guessed with exactly one warning; the order of bands
stays.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
from spectral.io import envi

from hyperfuse.io.cube import lengths_in_nanometres
from hyperfuse.io.envi import braced_numbers, parse_braced_list
from hyperfuse.io.files import open_cube

CENTRES_NM = [500.0, 400.0, 2400.5, 401.0]


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("nm", 1),
        ("Nanometers", 1),
        ("nanometre", 1),
        (" {nm} ", 1),
        ("um", 1e3),
        ("µm", 1e3),
        ("μm", 1e3),
        ("microns", 1e3),
        ("Micrometers", 1e3),
        ("mm", 1e6),
        ("m", 1e9),
        ("Angstroms", 0.1),
    ],
)
def test_units(unit: str, factor: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted = lengths_in_nanometres(np.array(CENTRES_NM) / factor, None, unit, None)[0]
    assert converted is not None
    np.testing.assert_allclose(converted, CENTRES_NM, rtol=1e-12)


@pytest.mark.parametrize("unit", ["Index", "Wavenumber", "GHz", "cm-1"])
def test_numbers_that_are_no_wavelengths(unit: str) -> None:
    assert lengths_in_nanometres([1.0, 2.0], None, unit, None)[0] is None


@pytest.mark.parametrize("unit", [None, "", "Unknown", "furlongs"])
@pytest.mark.parametrize(
    ("values", "guess"), [([0.4, 2.5], "micrometres"), ([400, 2500], "nanometres"), ([0.4, np.nan], "micrometres")]
)
def test_a_missing_unit_is_guessed_with_one_warning(unit: str | None, values: list[float], guess: str) -> None:
    with pytest.warns(UserWarning, match=f"s.hdr gives no wavelength unit: taken as {guess}") as caught:
        converted = lengths_in_nanometres(values, None, unit, None, "s.hdr")[0]
    assert len(caught) == 1
    assert converted is not None and converted[0] == pytest.approx(400)


def test_nothing_known_is_no_reason_to_warn() -> None:
    assert lengths_in_nanometres([np.nan, np.nan], None, None, None)[0] is None
    assert lengths_in_nanometres(None, None, None, None) == (None, None)


def test_widths_follow_the_unit_of_the_wavelengths() -> None:
    """A width of 10 without a unit is 10 nm beside 500, and was never 10 micrometres."""
    with pytest.warns(UserWarning, match="nanometres") as caught:
        centres, widths = lengths_in_nanometres([500, 600], [10, 12], None, None)
    assert len(caught) == 1
    assert centres is not None and widths is not None
    assert widths.tolist() == [10, 12]
    with pytest.warns(UserWarning, match="micrometres"):
        _, widths = lengths_in_nanometres([0.5, 0.6], [0.01, 0.012], None, None)
    np.testing.assert_allclose(np.asarray(widths), [10, 12])
    _, widths = lengths_in_nanometres([500], [0.01], "nm", "um")
    np.testing.assert_allclose(np.asarray(widths), [10])
    with pytest.warns(UserWarning, match="nanometres"):
        _, widths = lengths_in_nanometres(None, [10, 12], None, None)
    assert np.asarray(widths).tolist() == [10, 12]


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_envi_without_unit_warns_once(scale: float, tmp_path: Path) -> None:
    metadata = {"wavelength": [value * scale for value in CENTRES_NM], "fwhm": [12 * scale] * 4}
    envi.save_image(str(tmp_path / "s.hdr"), np.zeros((2, 3, 4), np.uint8), metadata=metadata)
    with pytest.warns(UserWarning, match="no wavelength unit") as caught:
        cube = open_cube(tmp_path / "s.hdr")
    assert len(caught) == 1
    np.testing.assert_allclose(cube["wavelength"], CENTRES_NM, rtol=0, atol=1e-6)
    np.testing.assert_allclose(cube["fwhm"], 12, rtol=0, atol=1e-6)


def test_hdf5_without_unit_warns_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["cube"], file["wavelength"], file["fwhm"] = np.zeros((4, 7, 8)), CENTRES_NM, [12.0] * 4
    with pytest.warns(UserWarning, match="taken as nanometres") as caught:
        cube = open_cube(tmp_path / "s.h5")
    assert len(caught) == 1
    assert cube["wavelength"].values.tolist() == CENTRES_NM
    assert cube["fwhm"].values.tolist() == [12.0] * 4


def test_a_wavelength_list_that_is_none_is_left_out_with_a_word(tmp_path: Path) -> None:
    envi.save_image(
        str(tmp_path / "s.hdr"), np.zeros((2, 3, 4), np.uint8), metadata={"wavelength": ["a", "b", "c", "d"]}
    )
    with pytest.warns(UserWarning, match="`wavelength` is not a list of numbers"):
        assert np.isnan(open_cube(tmp_path / "s.hdr")["wavelength"]).all()


def test_braced_lists() -> None:
    assert parse_braced_list("{ a , b,c }") == ["a", "b", "c"]
    assert parse_braced_list("") == []
    assert np.asarray(braced_numbers("{1, 2.5,\n 3e2, }")).tolist() == [1, 2.5, 300]
    assert braced_numbers("{1, two}") is None
