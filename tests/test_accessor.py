"""`cube.hyperfuse`, and cubes in Python and notebooks."""

from __future__ import annotations

import numpy as np
import pytest
from affine import Affine
from matplotlib.figure import Figure

import hyperfuse


@pytest.fixture(scope="module")
def pair() -> object:
    rng = np.random.default_rng(1)
    materials = np.cumsum(np.cumsum(rng.normal(size=(4, 48, 48)), axis=1), axis=2)
    values = np.einsum("bm,myx->byx", rng.random((16, 4)), materials) + 500
    cube = hyperfuse.make_cube(values.astype(np.float32), wavelength_nm=np.linspace(420, 900, 16))
    return hyperfuse.simulate(cube, scale=4, srf="rgb+nir")


def small_cube() -> object:
    values = np.arange(60, dtype=np.uint16).reshape(5, 3, 4)
    place = {"crs": 32633, "transform": Affine(10, 0, 4e5, 0, -10, 5e6)}
    return hyperfuse.make_cube(values, wavelength_nm=[450, 500, 550, 600, 650], scale=0.1, nodata=0, **place)


def test_physical_values_keep_their_coordinates() -> None:
    values = hyperfuse.physical_values(small_cube(), slice(0, 2), slice(1, 3), [0, 4])
    np.testing.assert_allclose(values, [[[0.1, 0.2], [0.5, 0.6]], [[4.9, 5.0], [5.3, 5.4]]], rtol=1e-6)
    assert values["wavelength"].values.tolist() == [450, 650] and values["x"].values.tolist() == [400015, 400025]
    assert values.rio.crs == 32633 and values["scale"].values.tolist() == [1, 1] and "_FillValue" not in values.attrs
    np.testing.assert_array_equal(hyperfuse.physical_values(values), values)


def test_spectrum_and_colours() -> None:
    cube = small_cube()
    spectrum = cube.hyperfuse.spectrum(x=400012, y=4999988)  # type: ignore[attr-defined]
    np.testing.assert_allclose(spectrum, 0.1 * np.arange(5, 60, 12), rtol=1e-6)
    assert spectrum.dims == ("band",) and spectrum["wavelength"].values[-1] == 650
    with pytest.raises(hyperfuse.HyperfuseError, match=r"x = 7 outside the cube; expected 400005 to 400035"):
        cube.hyperfuse.spectrum(x=7, y=4999990)  # type: ignore[attr-defined]
    assert cube.hyperfuse.rgb().shape == (3, 4, 3) and cube.hyperfuse.rgb().dtype == np.uint8  # type: ignore[attr-defined]
    axes = cube.hyperfuse.plot(Figure().subplots())  # type: ignore[attr-defined]
    assert axes.get_xlim() == (4e5, 400040) and axes.get_ylim() == (4999970, 5e6)


def test_bands_at_the_wrong_end(pair) -> None:  # type: ignore[no-untyped-def]
    hsi, msi = (np.moveaxis(cube.values, 0, -1) for cube in (pair.hsi, pair.msi))
    with pytest.raises(hyperfuse.HyperfuseError, match=r"look like \(y, x, band\); expected \(band, y, x\); transpose"):
        hyperfuse.fuse(hsi, msi)
    assert hyperfuse.fuse(pair.hsi.values, pair.msi.values, method="bicubic", estimate=False).shape == (16, 48, 48)


@pytest.mark.parametrize("dtype", [np.complex64, object, "U3"])
def test_values_that_are_no_numbers(dtype: object, pair) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(hyperfuse.HyperfuseError, match="expected integers or floating-point numbers; convert it"):
        hyperfuse.fuse(pair.hsi.values.astype(dtype), pair.msi)
    with pytest.raises(hyperfuse.HyperfuseError, match="expected integers or floating-point numbers; convert it"):
        hyperfuse.fuse(pair.hsi.astype(dtype), pair.msi)


def test_a_mask_for_an_image(pair) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(hyperfuse.HyperfuseError, match="HSI of True and False; expected numbers"):
        hyperfuse.fuse(pair.hsi > 3, pair.msi)


def test_dask_is_computed_and_said_so(pair) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("dask")
    with pytest.warns(UserWarning, match="computes arrays of Dask at once"):
        fused = hyperfuse.fuse(pair.hsi.chunk({"y": 5}), pair.msi.chunk({"x": 7}), method="gsa", estimate=False)
    np.testing.assert_array_equal(fused, hyperfuse.fuse(pair.hsi, pair.msi, method="gsa", estimate=False))


def test_estimation_and_uncertainty(pair) -> None:  # type: ignore[no-untyped-def]
    observation = hyperfuse.estimate(pair.hsi, pair.msi)
    assert isinstance(observation, hyperfuse.Observation)
    assert np.asarray(observation.psf_fwhm) == pytest.approx([4, 4], rel=0.3)
    fused = hyperfuse.fuse(pair.hsi, pair.msi, observation=observation)
    np.testing.assert_array_equal(fused, hyperfuse.fuse(pair.hsi, pair.msi))
    error = hyperfuse.uncertainty(pair.hsi, pair.msi, observation=observation)
    assert error.shape == fused.shape and error.dtype == np.float32 and (error > 0).all()
    scores = hyperfuse.evaluate(fused, pair.reference, scale=4)
    for shown, words in ((observation, "fine pixels (FWHM)"), (scores, "PSNR")):
        assert shown._repr_html_().startswith("<table>") and words in shown._repr_html_()
