"""A shifted pair comes out where the trusted image says."""

from __future__ import annotations

import numpy as np
import pytest
from affine import Affine

from hyperfuse import fuse, make_cube
from hyperfuse.errors import OptionError
from hyperfuse.fusion.engine import moved
from hyperfuse.io.cube import physical_values


def waves(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return (2 + np.sin(rows / 7) + np.cos(columns / 9)).astype(np.float32)


def test_moving_takes_each_pixel_from_where_it_was_seen() -> None:
    rows, columns = np.meshgrid(np.arange(60.0), np.arange(50.0), indexing="ij")
    result = moved(waves(rows, columns)[None], (0.3, -1.6))
    expected = waves(rows + 0.3, columns - 1.6)
    np.testing.assert_allclose(result[0, 5:-5, 5:-5], expected[5:-5, 5:-5], atol=1e-3)


def test_a_tiny_move_changes_nothing() -> None:
    image = np.random.default_rng(0).random((2, 8, 8)).astype(np.float32)
    assert moved(image, (0.001, -0.002)) is image


def test_holes_move_along() -> None:
    image = np.ones((1, 20, 20), np.float32)
    image[0, 10, 10] = np.nan
    result = moved(image, (2.2, -3.1))
    assert np.argwhere(np.isnan(result[0])).tolist() == [[8, 13]]
    np.testing.assert_allclose(result[np.isfinite(result)], 1, atol=1e-5)


def test_trusting_the_hsi_puts_the_result_into_its_frame() -> None:
    """The HSI looks 2 rows further down than its georeference says; trusted, its content stays where its georeference
    is.
    """
    coarse = waves(np.arange(12)[:, None] * 4.0 + 1.5 + 2.0, np.arange(12)[None] * 4.0 + 1.5)
    hsi = make_cube(coarse[None], transform=Affine(4, 0, 0, 0, -4, 0), crs=32633)
    fine = waves(np.arange(48.0)[:, None], np.arange(48.0)[None])
    msi = make_cube(fine[None], transform=Affine(1, 0, 0, 0, -1, 0), crs=32633)
    known = {"method": "bicubic", "psf_fwhm": 4.0, "shift": (2.0, 0.0)}
    in_msi_frame = physical_values(fuse(hsi, msi, trust="msi", extent="msi", **known))[0]
    in_hsi_frame = physical_values(fuse(hsi, msi, trust="hsi", **known))[0]
    inner = (slice(12, -12), slice(12, -12))
    np.testing.assert_allclose(in_msi_frame[inner], fine[inner], atol=0.02)
    np.testing.assert_allclose(
        in_hsi_frame[inner], waves(np.arange(48.0)[:, None] + 2, np.arange(48.0)[None])[inner], atol=0.02
    )
    with pytest.raises(OptionError, match="msi or hsi"):
        fuse(hsi, msi, trust="both", **known)
