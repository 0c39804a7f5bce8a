"""Which axis of an array without names holds the bands, and how masks find the pixels of their image."""

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.config import PairConfig
from hyperfuse.errors import CubeFileError, GridError
from hyperfuse.fusion.plan import open_pair
from hyperfuse.io.arrays import unlabelled_band_axis
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, open_mask, write_cube
from hyperfuse.io.grid import grid_of

IMAGE = make_cube(np.zeros((4, 60, 80), np.float32))


def clouds() -> NDArray[np.bool_]:
    mask = np.zeros((60, 80), dtype=bool)
    mask[5:20, 40:70] = True
    return mask


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((4, 60, 80), 0),
        ((1, 60, 80), 0),
        ((60, 80, 1), 2),
        ((60, 80, 4), 2),
        ((103, 340, 610), 0),
        ((198, 100, 100), 0),
        # Public scenes as they are distributed: Jasper Ridge, Houston 2013, Pavia University, a coarse HSI.
        ((100, 100, 198), 2),
        ((349, 1905, 144), 2),
        ((610, 340, 103), 2),
        ((36, 36, 200), 2),
        ((50, 60, 200), 2),
    ],
)
def test_bands_are_first_or_last(shape: tuple[int, int, int], axis: int) -> None:
    assert unlabelled_band_axis(shape) == axis


def test_a_doubtful_choice_is_said() -> None:
    """The first is Salinas, the second may have 224 bands."""
    for shape in ((512, 217, 204), (224, 60, 80)):
        with pytest.warns(
            UserWarning, match=f"taken as {shape[2]} bands of .*; if bands come first, say --band-axis 0"
        ):
            assert unlabelled_band_axis(shape) == 2


def test_a_partner_decides() -> None:
    assert unlabelled_band_axis((60, 15, 20), (60, 80)) == 0
    assert unlabelled_band_axis((15, 20, 60), (60, 80)) == 2
    # Sides rounded to whole pixels: 61 / 4 and 82 / 4.
    assert unlabelled_band_axis((15, 20, 40), (61, 82)) == 2


def test_what_remains_ambiguous_is_refused(tmp_path: Path) -> None:
    for shape in ((7, 7, 7), (100, 120, 100)):
        with pytest.raises(CubeFileError, match=r"bands first .* or last .* --band-axis 0 or --band-axis 2"):
            unlabelled_band_axis(shape)
    np.save(tmp_path / "s.npy", np.zeros((4, 9, 50), np.uint8))
    with pytest.raises(
        CubeFileError, match=r"bands first \(4 bands of 9 x 50\) or last \(50 bands of 4 x 9\)"
    ) as caught:
        open_cube(tmp_path / "s.npy")
    assert "--band-axis 0" in str(caught.value)
    assert open_cube(tmp_path / "s.npy", band_axis=2).shape == (50, 4, 9)


def test_our_own_arrays_are_not_guessed(tmp_path: Path) -> None:
    cube = make_cube(np.arange(8 * 2 * 8, dtype=np.int16).reshape(8, 2, 8))
    for name in ("s.npy", "s.npz", "s.mat"):
        np.testing.assert_array_equal(open_cube(write_cube(cube, tmp_path / name)).values, cube.values)


@pytest.mark.parametrize("name", ["m.npy", "m.npz", "m.mat"])
def test_two_dimensions_are_one_band(name: str, tmp_path: Path) -> None:
    values = np.arange(60 * 80, dtype=np.uint16).reshape(60, 80)
    path = tmp_path / name
    if name == "m.npy":
        np.save(path, values)
    elif name == "m.npz":
        np.savez(path, mask=values, wavelength=np.arange(4.0))
    else:
        scipy.io.savemat(path, {"mask": values, "list": np.arange(5.0)})
    cube = open_cube(path, *([] if name == "m.npy" else ["mask"]))
    np.testing.assert_array_equal(cube.values, values[None])
    np.testing.assert_array_equal(cube.isel(y=slice(3, 9), x=[70, 2]).values, values[None, 3:9, [70, 2]])


@pytest.mark.parametrize("layout", ["yx", "byx", "yxb"])
@pytest.mark.parametrize("in_file", [True, False])
def test_a_mask_of_any_layout_marks_the_same_pixels(layout: str, in_file: bool, tmp_path: Path) -> None:
    mask = {"yx": clouds(), "byx": clouds()[None], "yxb": clouds()[:, :, None]}[layout]
    if in_file:
        np.save(tmp_path / "mask.npy", mask)
    opened = open_mask(tmp_path / "mask.npy" if in_file else mask, IMAGE)
    np.testing.assert_array_equal(opened.values[0] != 0, clouds())
    _, _, masks = open_pair(IMAGE[:, ::4, ::4], IMAGE, PairConfig(mask=tmp_path / "mask.npy" if in_file else mask))
    assert masks["mask"] is not None
    np.testing.assert_array_equal(masks["mask"].values[0] != 0, clouds())


def test_a_mask_of_other_proportions_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "mask.npy", clouds().T)
    with pytest.raises(GridError, match="a mask of 80 x 60 pixels without georeference for an image of 60 x 80"):
        open_mask(tmp_path / "mask.npy", IMAGE)


def test_a_plane_with_coordinates_keeps_its_place() -> None:
    placed = make_cube(clouds()[None].astype(np.uint8), crs=32633, transform=Affine(10, 0, 5e5, 0, -10, 5e6))
    mask = open_mask(placed.isel(band=0), IMAGE)
    assert isinstance(mask, xr.DataArray)
    assert grid_of(mask) == grid_of(placed)


def test_the_hsi_is_read_by_the_proportions_of_the_msi(tmp_path: Path) -> None:
    np.save(tmp_path / "hsi.npy", np.zeros((60, 15, 20), np.float32))
    np.save(tmp_path / "msi.npy", np.zeros((4, 60, 80), np.float32))
    hsi, msi, _ = open_pair(tmp_path / "hsi.npy", tmp_path / "msi.npy", PairConfig())
    assert hsi.shape == (60, 15, 20) and msi.shape == (4, 60, 80)
