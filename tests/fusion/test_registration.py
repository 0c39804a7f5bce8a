"""Pairs that are far apart, pairs that are none, and what `hyperfuse register` says about them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from matplotlib.image import imread
from tests.fusion.shifted_pairs import FINE, SCALE, ShiftedPair, shifted_pair

from hyperfuse import fuse, make_cube, write_cube
from hyperfuse.cli.app import run
from hyperfuse.fusion.registration import register
from hyperfuse.io.cube import physical_values
from hyperfuse.io.grid import Grid, grid_of, metres_per_pixel

FAR = (21.0, -17.0)  # fine pixels: more than five HSI pixels


@pytest.fixture(scope="module")
def far() -> ShiftedPair:
    return shifted_pair(lambda y, x: FAR, coarse=32)


@pytest.fixture(scope="module")
def unrelated() -> ShiftedPair:
    return shifted_pair(lambda y, x: (0.0, 0.0), coarse=32, msi_seed=7)


def files_of(pair: ShiftedPair, folder: Path) -> list[str]:
    return [str(write_cube(cube, folder / f"{name}.tif")) for name, cube in (("hsi", pair.hsi), ("msi", pair.msi))]


def test_a_large_offset_is_found_and_measured(far: ShiftedPair) -> None:
    report = register(far.hsi, far.msi)
    assert report.whole.offset == pytest.approx(FAR, abs=0.2)
    assert not report.whole.absorbed
    assert report.whole.confidence > 0.8
    assert report.in_metres(report.whole.offset) == pytest.approx((210, -170), abs=2)
    assert report.field.mean == pytest.approx(FAR, abs=0.3)


def test_fuse_warns_with_the_number_before_it_starts(far: ShiftedPair, unrelated: ShiftedPair) -> None:
    number = r"shifted by \+2[01]\.\d -1[67]\.\d fine pixels \(6\.\d HSI pixels\) .* give --shift 2[01]\.\d"
    for pair, words in ((far, number), (unrelated, "do not seem to show the same place")):
        with pytest.warns(UserWarning, match="not estimated"), pytest.warns(UserWarning, match=words):
            fuse(pair.hsi, pair.msi, method="bicubic")


def test_a_shift_of_more_than_a_pixel_is_worth_a_word() -> None:
    pair = shifted_pair(lambda y, x: (5.0, 2.0), coarse=32)
    with pytest.warns(UserWarning, match=r"shifted by \+5\.0 \+2\.0 fine pixels \(1\.3 HSI pixels\)"):
        fuse(pair.hsi, pair.msi, method="bicubic")


def test_a_known_offset_decides_what_the_images_share(far: ShiftedPair) -> None:
    """With its shift given, the HSI covers other fine pixels: these are fused, and no others."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fused = fuse(far.hsi, far.msi, method="bicubic", shift=FAR, extent="msi")
    known = np.isfinite(physical_values(fused)).all(axis=0)
    expected = np.zeros(known.shape, bool)
    expected[21:, : known.shape[1] - 17] = True
    np.testing.assert_array_equal(known, expected)
    inner = (slice(None), slice(40, 110), slice(16, 90))
    assert np.abs(fused.values[inner] - far.reference[inner]).mean() < 0.03
    assert grid_of(fuse(far.hsi, far.msi, method="bicubic", shift=FAR)).transform == FINE @ Affine.translation(0, 21)


def test_register_prints_and_draws(far: ShiftedPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "offsets.png"
    assert run(["register", *files_of(far, tmp_path), "-o", str(picture)]) == 0
    words = capsys.readouterr().out
    assert "+21.0" in words
    assert "HSI pixels; confidence " in words
    assert "fuse with --shift 2" in words
    assert imread(picture).shape[0] > 400


def test_register_as_json_knows_what_is_no_pair(
    unrelated: ShiftedPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["register", *files_of(unrelated, tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["same_place"] is False
    assert found["metres_per_fine_pixel"] == [10, 10]
    assert np.shape(found["local"]["field"]) == (2, 9, 9)


def test_register_refuses_what_it_cannot_do(
    far: ShiftedPair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = files_of(far, tmp_path)
    for arguments, words in (
        ([*images, "-o", str(tmp_path / "offsets.jpg")], "ends in .png"),
        ([*images, "-o", str(tmp_path / "nowhere" / "offsets.png")], "nowhere"),
        ([images[1], images[0]], "swap the two images"),
        ([images[0], str(tmp_path / "none.tif")], "does not exist"),
        ([*images, "--mask", str(tmp_path / "none.tif")], "does not exist"),
    ):
        assert run(["register", *arguments]) == 2
        assert words in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hsi.tif", "msi.tif"]


def test_metres_per_pixel() -> None:
    assert metres_per_pixel(Grid(4, 4, None, None)) is None
    assert metres_per_pixel(grid_of(make_cube(np.ones((1, 4, 4)), transform=FINE))) is None
    assert metres_per_pixel(
        grid_of(make_cube(np.ones((1, 4, 4)), crs=32633, transform=FINE @ Affine.scale(SCALE, 2)))
    ) == (20, 40)
    feet = make_cube(np.ones((1, 4, 4)), crs=2263, transform=Affine(10, 0, 980_000, 0, -10, 200_000))
    assert metres_per_pixel(grid_of(feet)) == pytest.approx((3.048, 3.048), rel=1e-4)
    degrees = make_cube(np.ones((1, 101, 101)), crs=4326, transform=Affine(0.001, 0, 10, 0, -0.001, 60.0505))
    height, width = metres_per_pixel(grid_of(degrees)) or (0, 0)
    assert height == pytest.approx(111.41, abs=0.05)
    assert width == pytest.approx(55.8, abs=0.05)
