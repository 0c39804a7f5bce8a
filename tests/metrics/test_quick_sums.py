"""The compiled sums are those of numpy."""

from __future__ import annotations

import numpy as np
import pytest

from hyperfuse import compiled
from hyperfuse.io.cube import make_cube
from hyperfuse.metrics.evaluation import evaluate

pytestmark = pytest.mark.skipif(compiled.library() is None, reason="no C compiler at installation")

EXACT = ("scale", "peak", "bands", "compared_bands", "compared_fraction", "notes")


def evaluate_twice(monkeypatch, fused, reference, **options):
    quickly = evaluate(fused, reference, **options).as_dict()
    with monkeypatch.context() as without:
        without.setattr(compiled, "library", lambda: None)
        slowly = evaluate(fused, reference, **options).as_dict()
    return quickly, slowly


def require_equal(quickly, slowly):
    for name, expected in slowly.items():
        if name == "per_band":
            for found, band in zip(quickly[name], expected, strict=True):
                require_equal(found, band)
        elif name in EXACT or expected is None:
            assert quickly[name] == expected
        else:
            assert quickly[name] == pytest.approx(expected, rel=1e-9, abs=1e-9)


# With windows across several chunks of columns, and images in which no window of SSIM, or just one, fits.
@pytest.mark.parametrize("shape", [(5, 40, 50), (2, 30, 530), (2, 11, 11), (2, 8, 30), (3, 33, 277)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_real_numbers(monkeypatch, shape, dtype):
    rng = np.random.default_rng(0)
    reference = rng.random(shape).cumsum(1).cumsum(2)
    fused = reference * (1 + 0.01 * rng.normal(size=shape))
    fused, reference = fused.astype(dtype), reference.astype(dtype)
    require_equal(*evaluate_twice(monkeypatch, make_cube(fused), make_cube(reference), scale=4))
    fused[:, :3, 5:9], reference[1, 6:, 0], reference[0] = np.nan, np.inf, 3
    pair = make_cube(fused), make_cube(reference)
    # Small windows: their halos meet in the middle of the image.
    require_equal(*evaluate_twice(monkeypatch, *pair, scale=4, max_bytes=4 * shape[0] * 32 * 64))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
def test_integers_with_nodata_and_other_units(monkeypatch, dtype):
    rng = np.random.default_rng(1)
    reference = rng.random((4, 45, 61)).cumsum(1).cumsum(2)
    fused = reference * (1 + 0.01 * rng.normal(size=reference.shape))
    unit = np.iinfo(dtype).max / fused.max()
    fused, reference = ((image * unit).astype(dtype) for image in (fused, reference))
    fused[:, 2:4], reference[0, 7, 9] = 0, 0
    good = np.array([True, False, True, True])
    pair = make_cube(fused, scale=2e-4, nodata=0, good=good), make_cube(reference, scale=1e-4, offset=0.5, nodata=0)
    require_equal(*evaluate_twice(monkeypatch, *pair, scale=4))


def test_types_that_are_not_known_take_the_other_way(monkeypatch):
    rng = np.random.default_rng(2)
    reference = rng.integers(1, 9000, (2, 20, 20), dtype=np.int64)
    pair = make_cube(reference + 3), make_cube(reference.astype(np.uint16))
    require_equal(*evaluate_twice(monkeypatch, *pair, scale=4))


@pytest.mark.parametrize("dtype", [">f4", ">u2"])
def test_bytes_in_the_other_order(monkeypatch, dtype):
    rng = np.random.default_rng(2)
    reference = (1000 * rng.random((3, 30, 40))).astype(dtype)
    fused = (reference + 20 * rng.random(reference.shape)).astype(dtype)
    quickly, slowly = evaluate_twice(monkeypatch, make_cube(fused), make_cube(reference), scale=4)
    require_equal(quickly, slowly)
    assert quickly["psnr_db"] > 30
