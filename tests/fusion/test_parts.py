"""What compiled.c stores of a tile is what torch and numpy compute and store."""

from __future__ import annotations

import ctypes
import shutil

import numpy as np
import pytest

import hyperfuse
from hyperfuse import compiled
from hyperfuse.fusion import parts

pytestmark = [
    pytest.mark.skipif(compiled.library() is None, reason="no C compiler at installation"),
    pytest.mark.filterwarnings("ignore:.*were clipped:UserWarning"),
]


def pair(dtype: str, *, scale: float, nodata: float | None = None, bad: bool = False):
    rng = np.random.default_rng(5)
    smooth = rng.random((9, 12, 15)).cumsum(1).cumsum(2)
    limits = np.iinfo(dtype)
    # Some values lie near both ends of the type's range, where details are clipped.
    level = smooth / smooth.max() * limits.max
    hsi = np.rint(level).clip(limits.min, limits.max).astype(dtype)
    msi = np.kron(level[[2, 6]], np.ones((1, 4, 4))) * (1 + 0.2 * rng.random((2, 48, 60)))
    good = np.ones(9, dtype=bool)
    good[[3, 4]] = not bad
    coarse = hyperfuse.make_cube(hsi, scale=scale, nodata=nodata, good=good)
    return coarse, hyperfuse.make_cube((msi * scale).astype(np.float32))


def fused_twice(monkeypatch: pytest.MonkeyPatch, hsi, msi, **options):
    """By compiled.c and without it."""
    options = {"method": "glp", "estimate": False, "ram_gb": None} | options
    found = []
    store = parts.TileCore.store
    monkeypatch.setattr(parts.TileCore, "store", lambda *given: found.append(store(*given)) or found[-1])
    # Tiles, because the only tile of a small scene is converted when it is known whether any pixel is missing.
    monkeypatch.setattr("hyperfuse.fusion.plan.LARGEST_WHOLE_BYTES", 0)
    quickly = hyperfuse.fuse(hsi, msi, **options)
    with monkeypatch.context() as without:
        without.setattr(compiled, "library", lambda: None)
        slowly = hyperfuse.fuse(hsi, msi, **options)
    return quickly, slowly, found


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16"])
@pytest.mark.parametrize("nodata", [None, 7])
@pytest.mark.parametrize("method", ["glp", "sfim"])
def test_integers(monkeypatch, dtype, nodata, method):
    hsi, msi = pair(dtype, scale=0.02, nodata=nodata)
    hsi.values[hsi.values == 7] = 8
    quickly, slowly, found = fused_twice(monkeypatch, hsi, msi, method=method)
    assert any(found)
    difference = np.abs(quickly.values.astype(int) - slowly.values.astype(int))
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01
    assert nodata is None or not (quickly.values == nodata).any()


@pytest.mark.parametrize("options", [{"bands": "9,2-5"}, {"bands": "4"}, {"scale_factor": 0.5}, {"nodata": 0}])
@pytest.mark.parametrize("method", ["fuse", "sfim"])
def test_selections_and_bad_bands(monkeypatch, options, method):
    hsi, msi = pair("uint16", scale=0.02, bad=True)
    quickly, slowly, found = fused_twice(monkeypatch, hsi, msi, method=method, **options)
    assert any(found)
    difference = np.abs(quickly.values.astype(int) - slowly.values.astype(int))
    assert quickly.shape == slowly.shape
    assert difference.max() <= 1 and (difference > 0).mean() < 0.01


def test_ratios_out_of_bounds_and_dark_pixels():
    """Of real numbers, which compiled.c mixes and does not round."""
    hsi, msi = (each.astype(np.float32) for each in pair("uint16", scale=0.02))
    hsi, msi = hsi.values / 65535, msi.values
    msi[:, :9, :20] = 1e-6
    msi[:, 12:20, :20] *= 50
    quickly = hyperfuse.fuse(hsi, msi, method="sfim", estimate=False, harmonise="off").values
    with compiled.left_to_torch():
        slowly = hyperfuse.fuse(hsi, msi, method="sfim", estimate=False, harmonise="off").values
    assert not np.array_equal(quickly, slowly)
    np.testing.assert_allclose(quickly, slowly, atol=2e-6)


def test_missing_and_negative_pixels_take_the_other_way(monkeypatch):
    hsi, msi = pair("int16", scale=0.02, nodata=-999)
    hsi.values[:, 3:5, 4:7] = -999
    msi.values[:, 30:40, 50:] = np.nan
    monkeypatch.setattr(parts, "STORED_AT_ONCE_BYTES", 4 * 9 * 16 * 16)
    monkeypatch.setattr(parts, "PART_WIDTH", 16)
    quickly, slowly, found = fused_twice(monkeypatch, hsi, msi)
    assert any(found) and not all(found)
    assert ((quickly.values == -999) == (slowly.values == -999)).all()
    assert np.abs(quickly.values.astype(int) - slowly.values.astype(int)).max() <= 1


@pytest.mark.parametrize("dtype", ["uint16", "int16"])
def test_bytes_in_the_other_order(dtype):
    hsi, msi = pair(dtype, scale=0.5)
    swapped = hyperfuse.make_cube(hsi.values.astype(np.dtype(dtype).newbyteorder()), scale=0.5)
    native, other = (hyperfuse.fuse(each, msi, method="glp", estimate=False) for each in (hsi, swapped))
    assert other.dtype == swapped.dtype
    np.testing.assert_array_equal(other.values, native.values)


def test_what_is_no_number_is_left_to_the_caller():
    target = np.zeros((1, 1, 3), np.uint8)
    found = compiled.Storage.of(target.dtype, np.ones(1), np.zeros(1), None)
    import torch

    along, image = torch.tensor([[[1.0, 300.0, -4.0]]]), torch.zeros(0, 1, 3)
    rows = compiled.Bicubic(along, torch.zeros(1, 4, dtype=torch.int64), torch.full((1, 4), 0.25))
    assert compiled.mix_bands_into(target, rows, torch.zeros(1, 0), image, None, None, found) == 2
    assert target.tolist() == [[[1, 255, 0]]]
    along[0, 0, 1] = torch.nan
    assert compiled.mix_bands_into(target, rows, torch.zeros(1, 0), image, None, None, found) is None


def test_a_library_of_another_source_is_not_used(tmp_path, monkeypatch):
    for name in ("compiled.c", "libcompiled.so"):
        shutil.copy(f"{compiled.__file__.removesuffix('compiled.py')}{name}", tmp_path)
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "compiled.py"))
    assert isinstance(compiled.library.__wrapped__(), ctypes.CDLL)
    with (tmp_path / "compiled.c").open("a") as file:
        file.write("\n")
    assert compiled.library.__wrapped__() is None
    (tmp_path / "libcompiled.so").unlink()
    assert compiled.library.__wrapped__() is None
    (tmp_path / "libcompiled.so").write_bytes(b"of another architecture")
    assert compiled.library.__wrapped__() is None
