"""SRFs by name, from files and as matrices, on the bands of an HSI."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse.errors import BandError, CubeFileError, HyperfuseError, OptionError
from hyperfuse.physics.srf import SRF, find_srf
from hyperfuse.physics.srf_curves import GAUSSIAN_BANDS, known_srfs, named_curves

VISIBLE = np.arange(400.0, 701.0, 10.0)
AVIRIS_LIKE = np.arange(370.0, 2500.0, 9.8)
# 1360-1400 and 1820-1940 nm, where water vapour lets no light through, are usually removed.
DRY = AVIRIS_LIKE[~((AVIRIS_LIKE > 1355) & (AVIRIS_LIKE < 1405)) & ~((AVIRIS_LIKE > 1815) & (AVIRIS_LIKE < 1945))]


def gaussian(wavelength: np.ndarray, centre: float, fwhm: float) -> np.ndarray:
    return np.exp(-4 * math.log(2) * ((wavelength - centre) / fwhm) ** 2)


@pytest.mark.parametrize("name", [*known_srfs(), "rgb+nir+swir"])
def test_every_known_name_resolves(name: str) -> None:
    srf = find_srf(name, np.arange(350.0, 2600.0, 5.0))
    assert srf.weights.shape == (len(srf.names), 450)
    np.testing.assert_allclose(srf.weights.sum(axis=1), 1, atol=1e-12)
    assert (srf.weights >= 0).all()
    assert srf.wavelength_nm is not None and (srf.wavelength_nm < 3000).all()
    # The spectrum l itself is seen as the band's centre.
    np.testing.assert_allclose(srf.weights @ np.arange(350.0, 2600.0, 5.0), srf.wavelength_nm, atol=1.5)


def test_every_sensor_of_the_package_is_known() -> None:
    import pyrsr

    folders = [path for path in Path(pyrsr.__path__[0], "data").glob("*/*") if path.is_dir()]
    # The Gaussian sets, and Sentinel-2C, whose curves are those of 2A at other centres.
    assert len(known_srfs()) == len(folders) + 4
    for folder in folders:
        for spelling in (f"{folder.parent.name} {folder.name}", f"{folder.name}_{folder.parent.name}".upper()):
            files = {f"B{path.name.removeprefix('band_')}" for path in folder.glob("band_*")}
            curves = {curve.name for curve in named_curves(spelling)}
            assert curves and curves <= files


@pytest.mark.parametrize(
    ("spelling", "full"),
    [
        ("sentinel2b", "Sentinel-2B"),
        ("S2A", "Sentinel-2A"),
        ("Sentinel-2", "Sentinel-2A"),
        ("sentinel 2a MSI", "Sentinel-2A"),
        ("Landsat 8", "Landsat-8"),
        ("landsat8 OLI", "Landsat-8"),
        ("L9", "Landsat-9"),
        ("landsat_7 etm+", "Landsat-7"),
        ("SPOT5", "SPOT-5 HRG1"),
        ("spot-4 hrvir2", "SPOT-4 HRVIR2"),
        ("RapidEye-3", "RapidEye"),
        ("Terra MODIS", "MODIS-Terra"),
        ("modis aqua", "MODIS-Aqua"),
        ("Terra-ASTER", "ASTER"),
        ("RGB + NIR", "rgb+nir"),
    ],
)
def test_forgiving_spelling(spelling: str, full: str) -> None:
    for one, other in zip(named_curves(spelling), named_curves(full), strict=True):
        assert one.name == other.name
        np.testing.assert_array_equal(one.values, other.values)


def test_chosen_bands_come_in_the_order_chosen() -> None:
    srf = find_srf("Sentinel-2A:B8A, b04,2", AVIRIS_LIKE)
    assert srf.names == ("B8A", "B4", "B2")
    assert srf.wavelength_nm is not None
    np.testing.assert_allclose(srf.wavelength_nm, [865, 665, 492], atol=1)


def test_thermal_bands_only_by_name() -> None:
    assert "B10" not in [curve.name for curve in named_curves("Landsat-8")]
    assert [curve.name for curve in named_curves("Landsat-8", ["B10"])] == ["B10"]
    with pytest.raises(BandError, match=r"B10 \(10\d\d\d-11\d\d\d nm, 0% covered\)"):
        find_srf("Landsat-8:B10", AVIRIS_LIKE)


@pytest.mark.parametrize("name", ["Sentinel-3A", "Lansat-8", "SPOT", "nonsense"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(OptionError) as error:
        find_srf(name, VISIBLE)
    assert "Sentinel-2A" in str(error.value) and "rgb+nir" in str(error.value)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"nearest: Landsat-8"):
        find_srf("Lansat 8", VISIBLE)


def test_unknown_band() -> None:
    with pytest.raises(OptionError, match="Sentinel-2A has no band B13; expected some of B1, "):
        find_srf("S2A:B2,B13", AVIRIS_LIKE)
    with pytest.raises(OptionError, match="empty choice"):
        find_srf("S2A:", AVIRIS_LIKE)


def test_gaussians_at_centres_where_widths_are_unknown() -> None:
    wavelength = np.arange(380.0, 1000.0, 4.0)
    srf = find_srf("rgb+nir", wavelength)
    for row, name in zip(srf.weights, srf.names, strict=True):
        expected = gaussian(wavelength, *GAUSSIAN_BANDS[name])
        np.testing.assert_allclose(row, expected / expected.sum(), atol=2e-6)


def test_known_widths_widen_the_srf() -> None:
    # A Gaussian response averaged over Gaussian bands is a Gaussian whose variances add.
    wavelength = np.arange(380.0, 1000.0, 5.0)
    srf = find_srf("rgb", wavelength, np.full(wavelength.size, 40.0))
    expected = gaussian(wavelength, 665, math.hypot(60, 40))
    np.testing.assert_allclose(srf.weights[0], expected / expected.sum(), atol=1e-5)


def test_order_of_bands_does_not_matter() -> None:
    shuffle = np.random.default_rng(0).permutation(AVIRIS_LIKE.size)
    fwhm = np.linspace(9, 12, AVIRIS_LIKE.size)
    sorted_bands = find_srf("Sentinel-2A", AVIRIS_LIKE, fwhm)
    shuffled = find_srf("Sentinel-2A", AVIRIS_LIKE[shuffle], fwhm[shuffle])
    np.testing.assert_allclose(shuffled.weights, sorted_bands.weights[:, shuffle], atol=1e-12)


def test_overlapping_detectors_share_their_width() -> None:
    # Two detectors between 800 and 860 nm: a flat and a linear spectrum must still be seen right.
    wavelength = np.concatenate([np.arange(400.0, 861.0, 6.0), np.arange(800.0, 1100.0, 10.0)])
    srf = find_srf("rgb+nir", wavelength)
    assert srf.wavelength_nm is not None
    np.testing.assert_allclose(srf.weights @ wavelength, srf.wavelength_nm, atol=0.5)
    single = find_srf("rgb+nir", np.arange(400.0, 1100.0, 6.0))
    seen_twice, seen_once = (
        (wavelength - 835) ** 2 @ srf.weights[3],
        (np.arange(400.0, 1100.0, 6.0) - 835) ** 2 @ single.weights[3],
    )
    assert seen_twice == pytest.approx(seen_once, rel=0.02)


def test_identical_bands_count_once() -> None:
    wavelength = np.repeat(VISIBLE, 2)
    srf = find_srf("rgb", wavelength)
    np.testing.assert_allclose(srf.weights[:, ::2], find_srf("rgb", VISIBLE).weights / 2, atol=1e-12)


def test_bad_bands_get_no_weight() -> None:
    good = np.ones(VISIBLE.size, dtype=bool)
    good[[7, 8, 9, 26]] = False
    for spec in ("rgb", np.ones((3, VISIBLE.size)), find_srf("rgb", VISIBLE)):
        srf = find_srf(spec, VISIBLE, None, good)
        assert not srf.weights[:, ~good].any()
        np.testing.assert_allclose(srf.weights.sum(axis=1), 1)


def test_narrow_srf_between_bands_is_not_lost() -> None:
    # MODIS band 9 is 10 nm wide and has faint tails over hundreds of nm; bands 40 nm apart straddle it.
    wavelength = np.arange(383.0, 1200.0, 40.0)
    for fwhm in (None, np.full(wavelength.size, 5.0)):
        srf = find_srf("MODIS-Terra:B9", wavelength, fwhm)
        assert srf.wavelength_nm is not None
        assert srf.weights[0] @ wavelength == pytest.approx(srf.wavelength_nm[0], abs=10)


def test_uncovered_bands_are_named() -> None:
    with pytest.raises(BandError) as error:
        find_srf("rgb+nir+swir", VISIBLE)
    message = str(error.value)
    assert "395-705 nm" in message and "nir (785-885 nm, 0% covered)" in message and "swir1" in message
    assert "red (" not in message and "--skip-uncovered" in message


def test_uncovered_bands_are_dropped_on_request() -> None:
    srf = find_srf("rgb+nir+swir", VISIBLE, skip_uncovered=True)
    assert srf.names == ("red", "green", "blue")
    assert srf.uncovered == ("nir", "swir1", "swir2")
    with pytest.raises(BandError, match="choose another SRF"):
        find_srf("rgb", np.arange(1000.0, 2000.0, 10.0), skip_uncovered=True)


def test_removed_water_bands_are_gaps_but_single_missing_bands_are_not() -> None:
    with pytest.raises(BandError, match=r"without 13\d\d-14\d\d, 18\d\d-19\d\d\) does not cover band B10 "):
        find_srf("Sentinel-2A", DRY)
    srf = find_srf("Sentinel-2A", DRY, skip_uncovered=True)
    assert srf.uncovered == ("B10",)
    thinned = np.delete(AVIRIS_LIKE, np.arange(7, AVIRIS_LIKE.size - 7, 9))
    assert find_srf("Sentinel-2A", thinned).uncovered == ()


def test_wide_band_across_a_gap_is_kept() -> None:
    wavelength = np.arange(1900.0, 2450.0, 10.0)
    assert find_srf("Sentinel-2A:B12", wavelength[(wavelength < 2130) | (wavelength > 2180)]).names == ("B12",)


def test_unknown_wavelengths_need_a_matrix() -> None:
    for wavelength in (None, np.full(31, np.nan)):
        with pytest.raises(BandError, match=r"wavelengths are unknown; expected .* matrix"):
            find_srf("Sentinel-2A", wavelength, None, np.ones(31, dtype=bool))
        assert find_srf(np.ones((2, 31)), wavelength, None, np.ones(31, dtype=bool)).wavelength_nm is None
    partly = VISIBLE.copy()
    partly[3] = np.nan
    with pytest.raises(BandError, match=r"1 good bands without wavelength \(first: 4\)"):
        find_srf("rgb", partly)
    assert find_srf("rgb", partly, None, ~np.isnan(partly)).weights[:, 3].sum() == 0


def test_all_bands_bad() -> None:
    with pytest.raises(BandError, match="all 31 bands are marked bad"):
        find_srf("rgb", VISIBLE, None, np.zeros(31, dtype=bool))


@pytest.mark.parametrize("bands", [1, 2, 3])
def test_few_bands(bands: int) -> None:
    srf = find_srf(np.ones((1, bands)), np.linspace(500, 600, bands))
    np.testing.assert_allclose(srf.weights, 1 / bands)
    with pytest.raises(BandError):
        find_srf("rgb", [560.0] * bands)


def write_curves(path: Path, header: str = "wavelength_nm,cyan,amber") -> Path:
    rows = [
        f"{nm},{math.exp(-(((nm - 480) / 40) ** 2))},{math.exp(-(((nm - 600) / 30) ** 2))}" for nm in range(380, 721)
    ]
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_curves_from_csv_are_plain_interpolation(tmp_path: Path) -> None:
    path = write_curves(tmp_path / "camera.csv")
    srf = find_srf(path, VISIBLE)
    assert srf.names == ("cyan", "amber")
    assert srf.source == "camera.csv"
    expected = np.exp(-(((VISIBLE - 480) / 40) ** 2))
    np.testing.assert_allclose(srf.weights[0], expected / expected.sum(), atol=1e-12)
    chosen = find_srf(f"{path}:amber", VISIBLE)
    assert chosen.names == ("amber",)


@pytest.mark.parametrize(
    ("header", "delimiter", "unit"), [("Wavelength_um;a", ";", 1000), ("wavelength\ta", "\t", 1000), ("nm a", " ", 1)]
)
def test_curves_with_other_delimiters_and_units(tmp_path: Path, header: str, delimiter: str, unit: float) -> None:
    path = tmp_path / "curve.txt"
    rows = [f"{nm / unit}{delimiter}{1 if 500 <= nm <= 600 else 0}" for nm in range(700, 400, -1)]
    path.write_text("\n".join(["# a comment", header, *rows]))
    srf = find_srf(str(path), VISIBLE)
    np.testing.assert_allclose(srf.weights[0], np.where((VISIBLE >= 500) & (VISIBLE <= 600), 1 / 11, 0), atol=1e-9)


def test_curve_beyond_the_hsi_is_truncated_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "camera.csv"
    rows = [f"{nm},{1 if nm > 600 else 0},{1 if nm < 550 else 0.001},{1 if nm > 900 else 0}" for nm in range(400, 951)]
    path.write_text("\n".join(["wavelength_nm,infrared,blue,far", *rows]))
    with pytest.warns(UserWarning, match=r"only a part of SRF band infrared \(73%\) of camera.csv"):
        srf = find_srf(f"{path}:infrared,blue", np.arange(400.0, 851.0, 10.0))
    assert srf.weights[0, 21:].all() and not srf.weights[0, :20].any()
    with pytest.raises(BandError, match="does not cover band far"):
        find_srf(f"{path}:far", np.arange(400.0, 851.0, 10.0))


@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".mat"])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrix_files(tmp_path: Path, suffix: str, transposed: bool) -> None:
    matrix = np.random.default_rng(0).uniform(0, 2, (4, 31))
    stored = matrix.T if transposed else matrix
    path = tmp_path / f"response{suffix}"
    if suffix == ".csv":
        np.savetxt(path, stored, delimiter=",", fmt="%.17g")
    elif suffix == ".npy":
        np.save(path, stored)
    elif suffix == ".npz":
        np.savez(path, R=stored, note="not a matrix")
    else:
        scipy.io.savemat(path, {"R": stored})
    srf = find_srf(path, VISIBLE)
    np.testing.assert_allclose(srf.weights, matrix / matrix.sum(axis=1, keepdims=True), atol=1e-12)
    assert srf.names == ("B1", "B2", "B3", "B4")
    assert srf.wavelength_nm is not None
    np.testing.assert_allclose(srf.wavelength_nm, srf.weights @ VISIBLE)
    assert find_srf(f"{path}:B3,B1", VISIBLE).names == ("B3", "B1")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty SRF file"),
        ("wavelength_nm,a\n500,1\n", "1 wavelengths"),
        ("wavelength_nm,a\n500,1\n500,2\n", "occurs twice"),
        ("wavelength_nm,a\n500,1\n510,x\n", "row 2"),
        ("wavelength_nm,a\n500,1\n510\n", "row 2"),
        ("wavelength_nm,a,a\n500,1,1\n510,1,1\n", "not all different"),
        ("wavelength_nm,a\n500,0\n510,0\n", "nowhere above zero"),
        ("red,green\n1,2\n", "header `wavelength_nm,name,...`"),
        ("wavelength_nm\n500\n", "header `wavelength_nm,name,...`"),
        ("1,2,3\n1,2\n", "row 2"),
        ("1,2,nan\n", "first line"),
        ("1,2,3\n4,5,6\n", "one side of 31"),
        ("\n".join(["0" + ",0" * 30]), "no weight"),
    ],
)
def test_bad_files(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "response.csv"
    path.write_text(content)
    with pytest.raises(HyperfuseError) as error:
        find_srf(path, VISIBLE)
    assert words in str(error.value)


def test_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    for suffix in (".npy", ".npz", ".mat", ".csv"):
        path = tmp_path / f"broken{suffix}"
        path.write_bytes(b"\xff\xfe\x00 no such thing")
        with pytest.raises(CubeFileError):
            find_srf(path, VISIBLE)
        with pytest.raises(CubeFileError, match="no such SRF file"):
            find_srf(tmp_path / f"absent{suffix}", VISIBLE)
    np.savez(tmp_path / "two.npz", a=np.ones((2, 31)), b=np.ones((3, 31)))
    with pytest.raises(CubeFileError, match=r"a \(2x31 .*, b \(3x31"):
        find_srf(tmp_path / "two.npz", VISIBLE)


@pytest.mark.parametrize(
    "matrix", [np.ones((2, 5)), np.ones(31), np.full((1, 31), np.nan), -np.ones((1, 31)), np.ones((0, 31))]
)
def test_impossible_matrices(matrix: np.ndarray) -> None:
    with pytest.raises(BandError):
        find_srf(matrix, VISIBLE)


def test_an_srf_object() -> None:
    srf = find_srf("rgb", VISIBLE)
    again = find_srf(srf, VISIBLE)
    np.testing.assert_array_equal(again.weights, srf.weights)
    with pytest.raises(BandError, match="31 HSI bands, HSI of 30"):
        find_srf(srf, VISIBLE[:30])
    with pytest.raises(BandError, match="sum to 1"):
        SRF(("a",), np.ones((1, 3)))
    with pytest.raises(BandError, match="one row of weights per name"):
        SRF(("a", "b"), np.ones((1, 1)))


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_any_bands_give_rows_that_sum_to_one(data: st.DataObject) -> None:
    bands = data.draw(st.integers(1, 40))
    column = st.lists(st.floats(300, 2600), min_size=bands, max_size=bands)
    widths = st.lists(st.floats(0, 200) | st.just(np.nan), min_size=bands, max_size=bands)
    wavelength, fwhm = np.array(data.draw(column)), np.array(data.draw(widths))
    good = np.array(data.draw(st.lists(st.booleans(), min_size=bands, max_size=bands)))
    try:
        srf = find_srf("Landsat-8", wavelength, fwhm, good, skip_uncovered=True)
    except BandError:
        return
    np.testing.assert_allclose(srf.weights.sum(axis=1), 1, atol=1e-9)
    assert (srf.weights >= 0).all() and not srf.weights[:, ~good].any()
