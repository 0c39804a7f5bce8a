"""Difference, angle and consistency maps, and the scores that belong to them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from tests.viewer.viewer_scenes import write_pair

from hyperfuse.errors import OptionError
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.metrics.sums import spectral_angles_degrees
from hyperfuse.reporting.colour import error_map
from hyperfuse.viewer.colours import Rendering
from hyperfuse.viewer.images import open_images
from hyperfuse.viewer.jobs import consistency_scores, scores
from hyperfuse.viewer.maps import MAPS, degraded_and_hsi, nearest_values, observe_pair, unavailable
from hyperfuse.viewer.session import View

EVERYTHING = slice(0, 96), slice(0, 96)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference itself as the fused image, once exact and once with errors."""
    folder = tmp_path_factory.mktemp("maps")
    reference = write_pair(folder)
    noise = np.random.default_rng(0).standard_normal(reference.shape).astype(np.float32)
    wrong = reference.copy(data=reference.values + 0.02 * noise)
    wrong.values[:, 10:20, 10:20] = np.nan
    write_cube(wrong, folder / "wrong.tif")
    return folder


def view_of(folder: Path, **files: str) -> View:
    return View(1, open_images({role: folder / name for role, name in files.items()}))


def map_of(view: View, name: str) -> np.ndarray:
    layer = view.layer(name, Rendering())
    return layer.window(slice(0, layer.image.height), slice(0, layer.image.width))[0]


def test_difference_and_angle(folder: Path) -> None:
    view = view_of(folder, fused="wrong.tif", reference="reference.tif")
    fused, reference = open_cube(folder / "wrong.tif"), open_cube(folder / "reference.tif")
    np.testing.assert_allclose(map_of(view, "difference"), error_map(fused, reference), rtol=1e-5)
    good = fused["good"].values
    angles = spectral_angles_degrees(fused.values[good].astype(float), reference.values[good].astype(float))
    np.testing.assert_allclose(map_of(view, "angle"), angles, rtol=1e-5)
    assert np.isnan(map_of(view, "angle")[10:20, 10:20]).all()


def test_windows_of_maps_agree_with_the_whole(folder: Path) -> None:
    view = view_of(folder, fused="wrong.tif", reference="reference.tif", hsi="hsi.tif", msi="msi.tif")
    for name in ("difference", "angle", "consistency_hsi", "consistency_msi"):
        layer = view.layer(name, Rendering())
        whole = map_of(view, name)
        height, width = layer.image.height, layer.image.width
        rows, columns = slice(height // 3, height // 2), slice(width // 4, width)
        np.testing.assert_allclose(layer.window(rows, columns)[0], whole[rows, columns], atol=1e-6, err_msg=name)


def test_the_true_image_is_consistent_with_both(folder: Path) -> None:
    true, wrong = (view_of(folder, fused=name, hsi="hsi.tif", msi="msi.tif") for name in ("reference.tif", "wrong.tif"))
    for name, tolerance in (("consistency_hsi", 2e-3), ("consistency_msi", 1e-2)):
        exact, noisy = map_of(true, name), map_of(wrong, name)
        assert np.nanmedian(exact) < tolerance
        assert np.nanmedian(noisy) > 2 * np.nanmedian(exact)
        assert np.isnan(noisy).any()


@pytest.mark.parametrize("turn", ["rows", "columns"])
def test_consistency_with_a_flipped_hsi(folder: Path, tmp_path: Path, turn: str) -> None:
    hsi = open_cube(folder / "hsi.tif")
    flipped: xr.DataArray = (
        hsi.load().isel(y=slice(None, None, -1)) if turn == "rows" else hsi.load().isel(x=slice(None, None, -1))
    )
    transform = grid_of(flipped).transform
    assert transform is not None
    assert (transform.e > 0) == (turn == "rows")
    from hyperfuse.io.cube import place_cube

    write_cube(place_cube(flipped, None, transform, None), tmp_path / "flipped.tif")
    scene = open_images({"fused": folder / "reference.tif", "hsi": tmp_path / "flipped.tif"})
    pair = observe_pair(scene)
    degraded, observed = degraded_and_hsi(scene.images["fused"], scene.images["hsi"], pair, slice(3, 20), slice(2, 24))
    np.testing.assert_allclose(degraded, observed, atol=1e-4)


def test_scores(folder: Path) -> None:
    view = view_of(folder, fused="wrong.tif", reference="reference.tif", hsi="hsi.tif", msi="msi.tif")
    scene = view.opened
    assert scores(scene, view.observed_pair)["reference"]["rmse"] == pytest.approx(0.02, rel=0.05)
    consistency = consistency_scores(scene, view.observed_pair)
    assert consistency["estimated"]
    blurred = map_of(view, "consistency_hsi")
    assert consistency["hsi_rmse"] == pytest.approx(float(np.sqrt(np.nanmean(np.square(blurred)))), rel=1e-3)
    sharp = map_of(view, "consistency_msi")
    assert consistency["msi_rmse"] == pytest.approx(float(np.sqrt(np.nanmean(np.square(sharp)))), rel=1e-3)


def test_without_msi_the_point_spread_is_assumed(folder: Path) -> None:
    view = view_of(folder, fused="reference.tif", hsi="hsi.tif")
    scene = view.opened
    assert unavailable(scene, "consistency_hsi") is None
    assert unavailable(scene, "consistency_msi") == "no msi open"
    scores = consistency_scores(scene, view.observed_pair)
    assert not scores["estimated"]
    assert scores["msi_rmse"] is None
    assert scores["hsi_rmse"] < 1e-3


def test_maps_say_why_they_cannot_be_shown(folder: Path) -> None:
    scene = open_images({"fused": folder / "reference.tif", "reference": folder / "msi.tif", "hsi": folder / "msi.tif"})
    reasons = {name: unavailable(scene, name) for name in MAPS}
    assert "33 bands, the reference 4" in str(reasons["difference"])
    assert "33 bands" in str(reasons["consistency_hsi"])
    assert reasons["uncertainty_map"] == "no uncertainty open"
    with pytest.raises(OptionError, match="33 bands"):
        consistency_scores(scene, lambda: observe_pair(scene))
    with pytest.raises(OptionError, match="no hsi open"):
        alone = open_images({"fused": folder / "reference.tif"})
        consistency_scores(alone, lambda: observe_pair(alone))


def test_uncertainty_is_the_mean_over_bands(folder: Path) -> None:
    view = view_of(folder, fused="reference.tif", uncertainty="wrong.tif")
    expected = np.full((96, 96), np.nan)
    values = open_cube(folder / "wrong.tif").values
    some = np.isfinite(values).any(axis=0)
    expected[some] = np.nanmean(values[:, some], axis=0)
    np.testing.assert_allclose(map_of(view, "uncertainty_map"), expected, rtol=1e-5)


def test_change_mask(folder: Path, tmp_path: Path) -> None:
    """Its colours span 0 to 1, whatever its values are."""
    reference = open_cube(folder / "reference.tif")
    weight = reference.isel(band=[0]).copy(data=np.full((1, *reference.shape[1:]), 0.5, dtype=np.float32))
    write_cube(weight, tmp_path / "weight.tif")
    view = View(1, open_images({"fused": folder / "reference.tif", "change_mask": tmp_path / "weight.tif"}))
    layer = view.layer("change", Rendering())
    np.testing.assert_array_equal(layer.window(slice(0, 3), slice(0, 4)), np.full((1, 3, 4), 0.5))
    assert view.limits("change", Rendering())[0].tolist() == [[0, 1]]


def test_nearest_values_of_a_coarse_image(folder: Path) -> None:
    scene = open_images({"fused": folder / "reference.tif", "hsi": folder / "hsi.tif"})
    coarse = scene.images["hsi"].cube.values
    found = nearest_values(scene.images["hsi"], slice(5, 30), slice(40, 90))
    np.testing.assert_array_equal(found, coarse.repeat(4, axis=1).repeat(4, axis=2)[:, 5:30, 40:90])
