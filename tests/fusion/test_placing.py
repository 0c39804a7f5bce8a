"""A scene that is a linear function of the map coordinates comes out of bicubic fusing as just that, wherever the grids
lie.
"""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse import fuse, make_cube
from hyperfuse.errors import BandError, GridError, ValueRangeError
from hyperfuse.io.cube import nodata_of, physical_values
from hyperfuse.io.grid import grid_of

WAVELENGTHS = np.array([450.0, 550.0, 650.0])


def texture(bands: int, height: int, width: int) -> np.ndarray:
    """An MSI that says nothing about the planes, but is not constant."""
    return np.random.default_rng(0).random((bands, height, width)).astype(np.float32)


def plane(transform: Affine, height: int, width: int) -> np.ndarray:
    columns, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    x, y = transform @ (columns, rows)
    return np.stack([0.5 + 0.001 * x + 0.002 * y, 1.0 - 0.001 * y, 0.003 * x]).astype(np.float32)


def plane_cube(transform: Affine, height: int, width: int, crs: int | None = 32633) -> xr.DataArray:
    return make_cube(plane(transform, height, width), wavelength_nm=WAVELENGTHS, crs=crs, transform=transform)


def interior_error(fused: xr.DataArray, hsi: xr.DataArray, msi: xr.DataArray) -> float:
    """Largest deviation from the plane, at fine pixels two coarse pixels inside the HSI and 12 inside the MSI."""
    transform = grid_of(fused).transform
    values = physical_values(fused)
    nodes = np.meshgrid(np.arange(fused.sizes["x"]) + 0.5, np.arange(fused.sizes["y"]) + 0.5)
    inside = np.ones(fused.shape[1:], bool)
    for image, margin in ((hsi, 2), (msi, 12)):
        for pixels, size in zip(
            ~grid_of(image).transform @ (transform @ nodes), (image.sizes["x"], image.sizes["y"]), strict=True
        ):
            inside &= (pixels > margin) & (pixels < size - margin)
    assert inside.sum() > 10
    return float(np.abs(values - plane(transform, *values.shape[1:]))[:, inside].max())


@settings(max_examples=40, deadline=None)
@given(
    scale_y=st.floats(1.0, 6.0),
    scale_x=st.floats(1.0, 6.0),
    offset_x=st.floats(-15.0, 15.0),
    offset_y=st.floats(-15.0, 15.0),
    flip=st.booleans(),
)
def test_any_scale_offset_and_orientation(
    scale_y: float, scale_x: float, offset_x: float, offset_y: float, flip: bool
) -> None:
    fine = Affine(1.0, 0, 0, 0, -1.0, 0)
    size = (24, 26)
    coarse = Affine(scale_x, 0, offset_x, 0, -scale_y, offset_y)
    if flip:
        coarse = coarse @ Affine.translation(0, size[0]) @ Affine.scale(1, -1)
    height, width = int(size[0] * scale_y) + 40, int(size[1] * scale_x) + 40
    fine = Affine.translation(-20, 20) @ fine
    hsi, msi = plane_cube(coarse, *size), make_cube(texture(2, height, width), crs=32633, transform=fine)
    fused = fuse(hsi, msi, method="bicubic", estimate=False, non_negative="off", allow_scale_1=True)
    offset = ~fine @ grid_of(fused).transform
    assert offset.almost_equals(Affine.translation(round(offset.c), round(offset.f)))
    assert interior_error(fused, hsi, msi) < 1e-4


def test_without_georeference_both_cover_the_same_extent() -> None:
    hsi = plane_cube(Affine(4, 0, 0, 0, -4, 0), 12, 12)
    plain = make_cube(physical_values(hsi))
    fused = fuse(plain, texture(2, 48, 48), method="bicubic", estimate=False)
    inner = slice(12, 36)
    expected = plane(Affine(1, 0, 0, 0, -1, 0), 48, 48)
    np.testing.assert_allclose(physical_values(fused)[:, inner, inner], expected[:, inner, inner], atol=1e-5)


def test_one_georeference_is_handed_on() -> None:
    hsi = plane_cube(Affine(4, 0, 1000, 0, -4, 2000), 12, 12)
    with pytest.warns(UserWarning, match="only one of the two images is georeferenced"):
        fused = fuse(hsi, texture(2, 48, 48), method="bicubic", estimate=False)
    assert grid_of(fused).transform.almost_equals(Affine(1, 0, 1000, 0, -1, 2000))
    assert grid_of(fused).crs.to_epsg() == 32633


def test_metadata_dtype_scale_and_nodata_are_the_hsis() -> None:
    stored = np.random.default_rng(0).integers(0, 9000, (3, 10, 10)).astype(np.int16)
    stored[:, 4, 4] = -9999
    hsi = make_cube(
        stored,
        wavelength_nm=WAVELENGTHS,
        fwhm_nm=[5, 6, 7],
        good=[True, False, True],
        band_names=["a", "b", "c"],
        scale=1e-4,
        nodata=-9999,
        crs=32633,
        transform=Affine(40, 0, 0, 0, -40, 0),
        attributes={"sensor": "test"},
    )
    msi = texture(2, 40, 40)
    msi[:, 30, 31] = np.nan
    fused = fuse(
        hsi, make_cube(msi, crs=32633, transform=Affine(10, 0, 0, 0, -10, 0)), method="bicubic", estimate=False
    )
    assert fused.dtype == np.int16
    assert nodata_of(fused) == -9999
    for name in ("wavelength", "fwhm", "good", "band_name", "scale", "offset"):
        np.testing.assert_array_equal(fused[name].values, hsi[name].values)
    assert fused.attrs["sensor"] == "test"
    assert fused.attrs["hyperfuse_method"] == "bicubic"
    assert fused.attrs["hyperfuse_scale"] == "4"
    assert (fused.values[:, 30, 31] == -9999).all()
    assert (fused.values[[0, 2], 0, 0] != -9999).all()


def test_refusals() -> None:
    fine, coarse = Affine(1, 0, 0, 0, -1, 0), Affine(4, 0, 0, 0, -4, 0)
    msi = make_cube(np.ones((1, 40, 40), np.float32), crs=32633, transform=fine)
    hsi = plane_cube(coarse, 10, 10)
    with pytest.raises(BandError, match="swap the two images"):
        fuse(msi, hsi, method="bicubic", estimate=False)
    with pytest.raises(GridError, match="finer than the MSI"):
        fuse(msi, hsi[:1], method="bicubic", estimate=False)
    with pytest.raises(GridError, match="do not overlap"):
        fuse(plane_cube(Affine(4, 0, 1e6, 0, -4, 0), 10, 10), msi, method="bicubic", estimate=False)
    with pytest.raises(GridError, match="1x1 pixels"):
        fuse(
            make_cube(np.ones((3, 1, 1), np.float32)), np.ones((1, 4, 4), np.float32), method="bicubic", estimate=False
        )
    with pytest.raises(ValueRangeError, match="HSI contains only nodata"):
        fuse(
            make_cube(np.full((3, 10, 10), np.nan, np.float32)),
            np.ones((1, 40, 40), np.float32),
            method="bicubic",
            estimate=False,
        )
    with pytest.raises(ValueRangeError, match="MSI contains only nodata"):
        fuse(
            make_cube(np.ones((3, 10, 10), np.float32)),
            np.full((1, 40, 40), np.nan, np.float32),
            method="bicubic",
            estimate=False,
        )
    with pytest.raises(BandError, match="wavelength list of 2 entries for 3 bands"):
        make_cube(np.ones((3, 4, 4)), wavelength_nm=[1, 2])
