"""Spectra of pixels and regions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.viewer.viewer_scenes import write_pair

from hyperfuse.io.files import open_cube
from hyperfuse.viewer import images as images
from hyperfuse.viewer.images import OpenImages, open_images, region_spectra, spectra_at


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> OpenImages:
    folder = tmp_path_factory.mktemp("spectra")
    write_pair(folder)
    return open_images({"fused": folder / "reference.tif", "hsi": folder / "hsi.tif", "msi": folder / "msi.tif"})


def values_of(scene: OpenImages, role: str) -> np.ndarray:
    return np.asarray(open_cube(Path(scene.images[role].path)).values)


def test_pixel(scene: OpenImages) -> None:
    found = {spectrum.role: spectrum for spectrum in spectra_at(scene, 50, 31)}
    assert set(found) == {"fused", "hsi", "msi"}
    assert (found["hsi"].row, found["hsi"].column) == (12, 7)
    np.testing.assert_allclose(found["fused"].mean, values_of(scene, "fused")[:, 50, 31])
    np.testing.assert_allclose(found["hsi"].mean, values_of(scene, "hsi")[:, 12, 7])


def test_pixel_outside(scene: OpenImages) -> None:
    assert spectra_at(scene, -3, 5) == []
    assert spectra_at(scene, 1e300, -1e300) == []


def test_region_is_the_mean_of_the_pixels_inside(scene: OpenImages) -> None:
    corners = [(9.3, 9.3), (9.3, 49.2), (40.2, 49.2), (44.7, 20.3)]
    found = {spectrum.role: spectrum for spectrum in region_spectra(scene, corners)}
    from matplotlib.path import Path as Polygon

    for role, scale in (("fused", 1), ("hsi", 4)):
        values = values_of(scene, role)
        rows, columns = np.mgrid[: values.shape[1], : values.shape[2]]
        centres = np.stack([rows.ravel(), columns.ravel()], axis=1) * scale + (scale - 1) / 2
        inside = Polygon(corners).contains_points(centres)
        pixels = values.reshape(len(values), -1)[:, inside]
        assert found[role].pixels == inside.sum()
        np.testing.assert_allclose(found[role].mean, pixels.mean(axis=1), rtol=1e-5)
        np.testing.assert_allclose(found[role].deviation, pixels.std(axis=1), rtol=1e-3, atol=1e-6)
        assert not found[role].sampled


def test_region_smaller_than_a_pixel(scene: OpenImages) -> None:
    found = {spectrum.role: spectrum for spectrum in region_spectra(scene, [(20.1, 20.1), (20.1, 20.3), (20.3, 20.2)])}
    assert found["fused"].pixels == 1
    np.testing.assert_allclose(found["fused"].mean, values_of(scene, "fused")[:, 20, 20])


def test_large_region_is_sampled(scene: OpenImages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LARGEST_REGION_BYTES", 2**20)
    monkeypatch.setattr(images, "PART_SIDE", 16)
    whole = [(-1.0, -1.0), (-1.0, 200.0), (200.0, 200.0), (200.0, -1.0)]
    fused = region_spectra(scene, whole)[0]
    assert fused.sampled
    assert 0 < fused.pixels < 96 * 96
    np.testing.assert_allclose(fused.mean, values_of(scene, "fused").mean(axis=(1, 2)), rtol=0.5)


def test_region_outside_of_everything(scene: OpenImages) -> None:
    assert region_spectra(scene, [(-50.0, -50.0), (-50.0, -20.0), (-20.0, -20.0)]) == []
