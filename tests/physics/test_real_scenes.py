"""Simulation on real scenes: the protocol of the field, and responses on bands as sensors really have them."""

from __future__ import annotations

import numpy as np
import pytest
from tests.physics.degradation_oracles import axis_weights
from tests.physics.scenes import real_folder

from hyperfuse.io.cube import make_cube
from hyperfuse.physics.simulate import simulate
from hyperfuse.physics.srf import find_srf

pytestmark = pytest.mark.real
CAMERA_REACHES_INTO_THE_INFRARED = "ignore:the HSI covers:UserWarning"


@pytest.mark.filterwarnings(CAMERA_REACHES_INTO_THE_INFRARED)
def test_cave_and_nikon_are_plain_interpolation() -> None:
    folder = real_folder()
    scene = np.load(folder / "test" / "cave_balloons.npz")
    camera = folder.parent / "responses" / "nikon_d700.csv"
    table = np.loadtxt(camera, delimiter=",", skiprows=1)
    wavelength = scene["wavelength_nm"]
    expected = np.stack([np.interp(wavelength, table[:, 0], table[:, i]) for i in (1, 2, 3)])
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(find_srf(camera, wavelength).weights, expected, rtol=1e-12)

    values = scene["cube"].transpose(2, 0, 1) / 65535
    pair = simulate(make_cube(values, wavelength_nm=wavelength), 8, camera)
    np.testing.assert_allclose(pair.msi.values, np.einsum("mc,cyx->myx", expected, values), rtol=1e-6, atol=1e-7)
    blur = axis_weights(512, 64, 8, 8, 0)
    np.testing.assert_allclose(pair.hsi.values[10], blur @ values[10] @ blur.T, rtol=1e-6, atol=1e-7)


def test_matrix_for_the_real_pair() -> None:
    folder = real_folder()
    scene = np.load(folder / "test" / "paris_hyperion.npz")
    srf = find_srf(folder.parent / "responses" / "ali_on_hyperion.csv", scene["wavelength_nm"])
    assert srf.weights.shape == (9, 128)
    np.testing.assert_allclose(srf.weights.sum(axis=1), 1)
    assert srf.wavelength_nm is not None and (np.diff(srf.wavelength_nm) > 0).sum() >= 7


@pytest.mark.parametrize(
    ("scene", "uncovered"),
    [
        ("train/salinasa_224", ()),
        ("test/jasperridge", ("B10",)),
        ("test/enmap_potsdam_c", ("B10",)),
        ("test/paris_hyperion", ("B9", "B10")),
        ("train/samson", ("B9", "B10", "B11", "B12")),
    ],
)
def test_sentinel_on_real_bands(scene: str, uncovered: tuple[str, ...]) -> None:
    data = np.load(real_folder() / f"{scene}.npz")
    wavelength = data["wavelength_nm"]
    srf = find_srf("Sentinel-2A", wavelength, skip_uncovered=True)
    assert srf.uncovered == uncovered
    assert srf.wavelength_nm is not None
    np.testing.assert_allclose(srf.weights @ wavelength, srf.wavelength_nm, atol=4)
