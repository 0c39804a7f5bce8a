"""Parts of the spectrum, thinned and added-up bands: wavelengths stay with their bands."""

from __future__ import annotations

import numpy as np
import torch

from hyperfuse.data.observing import ALL_BANDS, BandSelection, BandTable, draw_selection
from hyperfuse.data.settings import BandVariation

WAVELENGTH_NM = np.array([410.0, 420.0, 432.0, 445.0, 460.0, 480.0, 495.0, 520.0, 540.0, 570.0, 600.0])
BANDS = BandTable(11, WAVELENGTH_NM, np.linspace(8.0, 12.0, 11))
ALWAYS = BandVariation(probability=1.0, least=3)


def kind_of(selection: BandSelection) -> str:
    if selection.bin_size > 1:
        return "added up"
    return "part" if isinstance(selection.kept, slice) else "thinned"


def test_each_kind_comes_as_often_and_wavelengths_stay_with_bands() -> None:
    cube = torch.from_numpy(WAVELENGTH_NM)[:, None, None].expand(-1, 2, 3)
    kinds, counts = [], set()
    for seed in range(600):
        selection = draw_selection(np.random.default_rng(seed), ALWAYS, BandTable(11))
        table = selection.of_bands(BANDS)
        chosen = selection.of_cube(cube)
        assert table.wavelength_nm is not None and table.fwhm_nm is not None
        np.testing.assert_allclose(chosen[:, 1, 2].numpy(), table.wavelength_nm, rtol=1e-12)
        assert (np.diff(table.wavelength_nm) > 0).all()
        assert len(chosen) == table.count == table.fwhm_nm.size and 3 <= table.count < 11
        kinds.append(kind_of(selection))
        counts.add(table.count)
    for kind in ("part", "thinned", "added up"):
        assert abs(kinds.count(kind) - 200) < 4 * np.sqrt(600 * 2 / 9)
    assert counts == set(range(3, 11))


def test_added_up_bands_lie_in_the_middle_and_are_as_wide_as_all_of_them() -> None:
    table = BandSelection(slice(1, 7), 3).of_bands(BANDS)
    assert table.wavelength_nm is not None and table.fwhm_nm is not None
    np.testing.assert_allclose(table.wavelength_nm, [(420 + 432 + 445) / 3, (460 + 480 + 495) / 3])
    np.testing.assert_allclose(table.fwhm_nm, [25 + np.mean([8.4, 8.8, 9.2]), 35 + np.mean([9.6, 10.0, 10.4])])


def test_probability() -> None:
    half = BandVariation(probability=0.5, least=3)
    changed = sum(
        draw_selection(np.random.default_rng(seed), half, BandTable(11)) is not ALL_BANDS for seed in range(400)
    )
    assert abs(changed - 200) < 40


def test_few_bands_stay_as_they_are() -> None:
    for bands in (1, 2, 3):
        assert draw_selection(np.random.default_rng(0), ALWAYS, BandTable(bands)) is ALL_BANDS
    assert draw_selection(np.random.default_rng(0), None, BandTable(100)) is ALL_BANDS


def test_unknown_wavelengths_stay_unknown() -> None:
    table = BandSelection(slice(0, 10), 2).of_bands(BandTable(11))
    assert table.count == 5 and table.wavelength_nm is None and table.fwhm_nm is None


def test_mixed_bands_are_those_of_another_sensor() -> None:
    """Every band of this cube holds its own wavelength."""
    nm = np.linspace(400.0, 1000.0, 30)
    mixed = BandVariation(probability=1.0, least=6, mixed=1.0)
    for seed in range(10):
        selection = draw_selection(np.random.default_rng(seed), mixed, BandTable(30, nm))
        table = selection.of_bands(BandTable(30, nm))
        cube = selection.of_cube(torch.from_numpy(nm.astype(np.float32))[:, None, None].expand(-1, 2, 2))
        assert 6 <= table.count < 30 and cube.shape == (table.count, 2, 2) and table.wavelength_nm is not None
        np.testing.assert_allclose(cube[:, 0, 0].numpy(), table.wavelength_nm, rtol=1e-5)
