"""Physical values of integers by compiled.c are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hyperfuse import compiled
from hyperfuse.io.cube import make_cube, physical_values

WINDOW = slice(2, 20), slice(5, 33), np.array([1, 3])


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler at installation")
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
@pytest.mark.parametrize("nodata", [None, 3])
def test_a_window_of_integers(monkeypatch, dtype, nodata):
    limits = np.iinfo(dtype)
    stored = np.random.default_rng(0).integers(limits.min, limits.max, (5, 30, 41)).astype(dtype)
    stored[:, 2:4] = 3
    cube = make_cube(stored, scale=1.7e-4 * np.arange(1, 6), nodata=nodata)
    quickly = physical_values(cube, *WINDOW)
    monkeypatch.setattr(compiled, "library", lambda: None)
    slowly = physical_values(cube, *WINDOW)
    np.testing.assert_array_equal(quickly, slowly)
    assert quickly.dtype == slowly.dtype == np.float32
    assert np.isnan(quickly).any() == (nodata is not None)


def test_what_becomes_infinite_is_missing():
    cube = make_cube(np.array([[[0, 1, 9]]], np.uint8), scale=1e38)
    assert np.isnan(physical_values(cube)).tolist() == [[[False, False, True]]]
