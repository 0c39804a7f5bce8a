"""Extents, bounds, holes and masks: output pixels without support are nodata, and only those."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse import fuse, make_cube, open_cube, write_cube
from hyperfuse.cli.app import run
from hyperfuse.errors import GridError, OptionError
from hyperfuse.io.cube import nodata_of, physical_values
from hyperfuse.io.grid import grid_of

FINE = Affine(10, 0, 500_000, 0, -10, 5_800_000)
SCALE = 4
# The HSI begins 20 fine columns right of the MSI and 8 rows above it, and the images end apart.
COARSE = FINE @ Affine.translation(20, -8) @ Affine.scale(SCALE)
MSI_SIZE, HSI_SIZE = (60, 70), (15, 16)


def hsi_image(holes: NDArray[np.bool_] | None = None) -> xr.DataArray:
    values = np.random.default_rng(1).integers(1000, 3000, (5, *HSI_SIZE)).astype(np.int16)
    if holes is not None:
        values[:, holes] = -9999
    return make_cube(values, scale=1e-4, nodata=-9999, crs=32633, transform=COARSE)


def msi_image(holes: NDArray[np.bool_] | None = None) -> xr.DataArray:
    values = np.random.default_rng(2).integers(1, 200, (2, *MSI_SIZE)).astype(np.uint8)
    if holes is not None:
        values[1, holes] = 0  # one missing band is enough
    return make_cube(values, nodata=0, crs=32633, transform=FINE)


def has_support(
    grid: xr.DataArray, hsi_holes: NDArray[np.bool_] | None = None, msi_holes: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:
    """From the map coordinates of each pixel: a valid HSI pixel underneath, and a valid MSI pixel at the same place."""
    supported = np.ones(grid.shape[1:], bool)
    places = grid_of(grid).transform @ tuple(
        np.meshgrid(np.arange(grid.sizes["x"]) + 0.5, np.arange(grid.sizes["y"]) + 0.5)
    )
    for transform, size, holes in ((COARSE, HSI_SIZE, hsi_holes), (FINE, MSI_SIZE, msi_holes)):
        x, y = (np.floor(axis).astype(int) for axis in ~transform @ places)
        supported &= (y >= 0) & (y < size[0]) & (x >= 0) & (x < size[1])
        if holes is not None:
            supported &= ~holes[y.clip(0, size[0] - 1), x.clip(0, size[1] - 1)]
    return supported


def random_holes(size: tuple[int, int], seed: int) -> NDArray[np.bool_]:
    holes = np.random.default_rng(seed).random(size) < 0.1
    holes[5:8, 7:9] = True
    return holes


@pytest.mark.parametrize("method", ["bicubic", "gsa", "fuse"])
@pytest.mark.parametrize(
    ("extent", "corner", "size"),
    [("intersection", (20, 0), (52, 50)), ("msi", (0, 0), MSI_SIZE), ("hsi", (20, -8), (60, 64))],
)
def test_only_pixels_without_support_are_nodata(
    extent: str, corner: tuple[int, int], size: tuple[int, int], method: str
) -> None:
    hsi_holes, msi_holes = random_holes(HSI_SIZE, 3), random_holes(MSI_SIZE, 4)
    fused = fuse(hsi_image(hsi_holes), msi_image(msi_holes), method=method, estimate=False, extent=extent)
    assert grid_of(fused).transform.almost_equals(FINE @ Affine.translation(*corner))
    assert fused.shape[1:] == size
    assert (fused.dtype, nodata_of(fused)) == (np.int16, -9999)
    known = np.isfinite(physical_values(fused))
    np.testing.assert_array_equal(known.all(axis=0), has_support(fused, hsi_holes, msi_holes))
    np.testing.assert_array_equal(known.any(axis=0), known.all(axis=0))


def test_hsi_pixels_at_the_edge_count_although_they_are_hardly_covered() -> None:
    """A quarter of the first HSI row and half of the last are covered, too little to fit them; yet their holes are
    holes.
    """
    holes = np.zeros(HSI_SIZE, bool)
    holes[2, 3:6] = holes[11, 8] = True
    rows = slice(3, 38)  # of the MSI's grid: three of four rows of HSI row 2 are cut off, two of HSI row 11
    msi = make_cube(
        msi_image().values[:, rows], nodata=0, crs=32633, transform=FINE @ Affine.translation(0, rows.start)
    )
    fused = fuse(hsi_image(holes), msi, method="bicubic", estimate=False)
    assert fused.sizes["y"] == 35
    np.testing.assert_array_equal(np.isfinite(physical_values(fused)).all(axis=0), has_support(fused, holes))


@pytest.mark.parametrize(
    ("extent", "bounds", "corner", "size"),
    [
        ("intersection", (500_303, 5_799_705, 500_497, 5_799_896), (30, 10), (20, 20)),  # snapped outwards
        ("intersection", (500_300, 5_799_700, 500_500, 5_799_900), (30, 10), (20, 20)),  # exact edges stay
        ("intersection", (500_000, 5_799_700, 500_500, 5_799_900), (20, 10), (20, 30)),  # cut to what both show
        ("msi", (500_000, 5_799_700, 500_500, 5_799_900), (0, 10), (20, 50)),
        ("hsi", (500_300, 5_799_700, 500_800, 5_800_050), (30, -5), (35, 50)),
    ],
)
def test_bounds(
    extent: str, bounds: tuple[float, float, float, float], corner: tuple[int, int], size: tuple[int, int]
) -> None:
    fused = fuse(hsi_image(), msi_image(), method="bicubic", estimate=False, extent=extent, bounds=bounds)
    assert grid_of(fused).transform.almost_equals(FINE @ Affine.translation(*corner))
    assert fused.shape[1:] == size
    np.testing.assert_array_equal(np.isfinite(physical_values(fused)).all(axis=0), has_support(fused))


def test_bounds_in_another_crs() -> None:
    import pyproj

    to_degrees = pyproj.Transformer.from_crs(32633, 4326, always_xy=True)
    west, south, east, north = to_degrees.transform_bounds(500_300, 5_799_700, 500_500, 5_799_900)
    fused = fuse(
        hsi_image(),
        msi_image(),
        method="bicubic",
        estimate=False,
        bounds=(west, south, east, north),
        bounds_crs="EPSG:4326",
    )
    offset = ~FINE @ grid_of(fused).transform
    assert (round(offset.c), round(offset.f)) == (pytest.approx(30, abs=1), pytest.approx(10, abs=1))
    assert fused.shape[1:] == (pytest.approx(20, abs=2), pytest.approx(20, abs=2))


def masked_by(transform: Affine, size: tuple[int, int], cloud: tuple[slice, slice], epsg: int = 32633) -> xr.DataArray:
    values = np.zeros((1, *size), np.uint8)
    values[0][cloud] = 3
    return make_cube(values, crs=epsg, transform=transform)


@pytest.mark.parametrize(
    ("transform", "size", "cloud"),
    [
        (FINE, MSI_SIZE, (slice(20, 30), slice(33, 41))),  # the MSI's own grid
        (FINE @ Affine.scale(0.5), (120, 140), (slice(40, 60), slice(66, 82))),  # finer
        (
            FINE @ Affine.translation(25, 15) @ Affine.scale(4, 5),
            (5, 6),
            (slice(1, 3), slice(2, 4)),
        ),  # coarser, only a part
        (
            FINE @ Affine.translation(0, 60) @ Affine.scale(1, -1),
            MSI_SIZE,
            (slice(30, 40), slice(33, 41)),
        ),  # upside down
    ],
)
def test_clouds_in_the_msi(transform: Affine, size: tuple[int, int], cloud: tuple[slice, slice]) -> None:
    fused = fuse(
        hsi_image(), msi_image(), method="bicubic", estimate=False, extent="msi", mask=masked_by(transform, size, cloud)
    )
    holes = np.zeros(MSI_SIZE, bool)
    holes[20:30, 33:41] = True
    np.testing.assert_array_equal(np.isfinite(physical_values(fused)).all(axis=0), has_support(fused, None, holes))


def test_a_mask_finer_than_the_image_takes_every_pixel_that_it_touches() -> None:
    cloud = masked_by(FINE, (60, 84), (slice(13, 14), slice(30, 37)))  # the HSI's columns 2 to 4, row 5
    fused = fuse(hsi_image(), msi_image(), method="bicubic", estimate=False, hsi_mask=cloud)
    holes = np.zeros(HSI_SIZE, bool)
    holes[5, 2:5] = True
    np.testing.assert_array_equal(np.isfinite(physical_values(fused)).all(axis=0), has_support(fused, holes))


def test_a_mask_in_another_crs() -> None:
    import pyproj

    x, y = pyproj.Transformer.from_crs(32633, 3857, always_xy=True).transform(500_400, 5_799_700)
    # Half of a mask of two pixels, each larger than the scene, that meet 400 m right of its left edge.
    cloud = masked_by(Affine(2000, 0, x - 2000, 0, -4000, y + 2000), (1, 2), (slice(0, 1), slice(1, 2)), 3857)
    fused = fuse(hsi_image(), msi_image(), method="bicubic", estimate=False, extent="msi", mask=cloud)
    known = np.isfinite(physical_values(fused)).all(axis=0)
    assert known[:52, 20:39].all()
    assert not known[:, 41:].any()


def test_a_mask_without_georeference_covers_the_same_extent() -> None:
    mask = np.zeros((1, 30, 35), np.uint8)
    mask[0, 10:15, 20:22] = 1
    fused = fuse(hsi_image(), msi_image(), method="bicubic", estimate=False, extent="msi", mask=mask)
    holes = np.zeros(MSI_SIZE, bool)
    holes[20:30, 40:44] = True
    np.testing.assert_array_equal(np.isfinite(physical_values(fused)).all(axis=0), has_support(fused, None, holes))


def test_impossible_areas_and_masks_are_refused() -> None:
    hsi, msi = hsi_image(), msi_image()
    for options, error, words in (
        ({"extent": "both"}, OptionError, "intersection, msi or hsi"),
        ({"bounds": (2, 0, 1, 1)}, OptionError, "XMIN < XMAX"),
        ({"bounds": (0, float("nan"), 1, 1)}, OptionError, "XMIN < XMAX"),
        ({"bounds": (0, 0, 1, 1)}, GridError, "share only 0 HSI pixels along an axis within the bounds"),
        (
            {"bounds": (500_300, 5_799_700, 500_310, 5_799_900)},
            GridError,
            "share only 1 HSI pixels along an axis within the bounds",
        ),
        ({"bounds": (0, 0, 1, 1), "bounds_crs": "EPSG:0"}, OptionError, "a CRS such as EPSG:4326"),
        ({"bounds_crs": "EPSG:4326"}, OptionError, "add --bounds"),
        (
            {"mask": masked_by(Affine(10, 0, 0, 0, -10, 0), (4, 4), (slice(1), slice(1)))},
            GridError,
            "lies beside its image",
        ),
    ):
        with pytest.raises(error, match=words):
            fuse(hsi, msi, method="bicubic", estimate=False, **options)
    with pytest.raises(OptionError, match="without georeference"):
        fuse(hsi.values, msi.values, method="bicubic", estimate=False, bounds=(0, 0, 1, 1))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_cube(hsi_image(), tmp_path / "hsi.tif")
    write_cube(msi_image(), tmp_path / "msi.tif")
    write_cube(masked_by(FINE, MSI_SIZE, (slice(20, 30), slice(33, 41))), tmp_path / "clouds.tif")
    command = [
        "fuse",
        *(str(tmp_path / name) for name in ("hsi.tif", "msi.tif")),
        "-o",
        str(tmp_path / "fused.tif"),
        "--no-estimate",
    ]
    options = ["--extent", "msi", "--mask", str(tmp_path / "clouds.tif"), "--hsi-mask", str(tmp_path / "clouds.tif")]
    assert run([*command, *options, "--bounds", "500300", "5799700", "500500", "5799900", "--method", "gsa"]) == 0
    fused = open_cube(tmp_path / "fused.tif")
    assert grid_of(fused).transform == FINE @ Affine.translation(30, 10)
    assert fused.shape == (5, 20, 20)
    known = np.isfinite(physical_values(fused)).all(axis=0)
    assert not known[10:20, 3:11].any()
    assert known[:10].all()
    capsys.readouterr()
    assert run([*command, "--overwrite", "--mask", str(tmp_path / "none.tif")]) == 2
    assert "none.tif does not exist" in capsys.readouterr().err
