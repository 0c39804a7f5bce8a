"""Tiles against the whole: where they lie, that they agree, and that nothing shows where they meet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
import xarray as xr
from affine import Affine
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fusion.large_scenes import FINE, KNOWN, made_pair, small_tiles, written_pair
from tests.methods.tiny_pairs import TinyPair, tiny_pair

from hyperfuse import fuse, make_cube, open_cube, write_cube
from hyperfuse.cli.app import run
from hyperfuse.config import FuseConfig
from hyperfuse.fusion.engine import covered_part, place_for, read_window
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.fusion.plan import plan_tiles
from hyperfuse.fusion.sample import sample_places
from hyperfuse.io.cube import physical_values
from hyperfuse.methods.catalogue import METHODS, MethodFuser, fuse_arrays
from hyperfuse.models.ssa import PRESETS, SSA
from hyperfuse.physics.observation import Observation, known_observation

AGREEMENT = 1e-5  # of the range of the data
STORED = 1.1e-4  # a step of the integers that cubes are stored as


def as_pair(pair: TinyPair) -> AlignedPair:
    scale = pair.observation.scale
    hsi = make_cube(pair.hsi.numpy(), crs=32633, transform=FINE @ Affine.scale(scale[1], scale[0]))
    return align_pair(hsi, make_cube(pair.msi.numpy(), crs=32633, transform=FINE))


def noisy_observation(pair: TinyPair) -> Observation:
    bands, msi_bands = len(pair.hsi), len(pair.msi)
    return replace(
        pair.observation,
        hsi_noise=torch.full((bands,), 4e-3).double(),
        msi_noise=torch.full((msi_bands,), 4e-3).double(),
    )


def learned(pair: AlignedPair, observation: Observation, method: str, consistency: bool = False) -> MethodFuser:
    fuser = MethodFuser(method, consistency)
    places = sample_places(pair, observation, fuser.halo(observation), lambda place: True)
    windows = [read_window(pair, observation, place) for place in places]
    return fuser.gather([lambda window=window: window for window in windows])


def fused_in_tiles(pair: AlignedPair, observation: Observation, fusion: MethodFuser, side: int) -> torch.Tensor:
    fused = torch.full((pair.coarse_shape[0], *pair.fine_shape[1:]), torch.nan)
    for tile in plan_tiles((pair.fine_shape[1], pair.fine_shape[2]), (side, side)):
        rows, columns = covered_part(tile, pair)
        place = place_for(pair, observation, rows, columns, fusion.halo(observation))
        fused[:, rows, columns] = fusion.fuse_window(read_window(pair, observation, place))
    return fused


@settings(max_examples=30, deadline=None)
@given(
    scale=st.floats(1.0, 9.0),
    shift=st.floats(-5.0, 5.0),
    coarse=st.integers(4, 60),
    tile=st.integers(3, 40),
    halo=st.integers(0, 20),
)
def test_windows_hold_what_tiles_need(scale: float, shift: float, coarse: int, tile: int, halo: int) -> None:
    """Tiles cover everything once; windows hold their cores, their coarse pixels and the reach around these, and
    nothing beyond.
    """
    fine = max(2, round(coarse * scale))
    hsi = make_cube(np.zeros((1, coarse, coarse), np.float32), transform=Affine.scale(fine / coarse))
    msi = make_cube(np.zeros((1, fine, fine), np.float32), transform=Affine.identity())
    pair = align_pair(hsi, msi, FuseConfig(allow_scale_1=True))
    observation = known_observation(torch.ones(1, 1), (fine / coarse, fine / coarse), shift=shift)
    covered = np.zeros(pair.fine_shape[1:], int)
    for each in plan_tiles((fine, fine), (tile, tile)):
        rows, columns = covered_part(each, pair)
        covered[rows, columns] += 1
        place = place_for(pair, observation, rows, columns, halo)
        for axis, part in enumerate((rows, columns)):
            window, core = place.fine[axis], place.fine_core[axis]
            assert (window.start + core.start, window.start + core.stop) == (part.start, part.stop)
            assert 0 <= window.start < window.stop <= fine
            own, wide = place.coarse_core[axis], place.coarse[axis]
            first, last = wide.start + own.start, wide.start + own.stop - 1
            # The coarse pixel under a fine one holds its centre, but for rounding.
            for fine_pixel, coarse_pixel in ((part.start, first), (part.stop - 1, last)):
                position = np.clip((fine_pixel + 0.5 - shift) * coarse / fine, 0, coarse)
                assert coarse_pixel - 1e-9 <= position <= coarse_pixel + 1 + 1e-9
            assert wide.start <= max(0, first - halo)
            assert wide.stop == min(coarse, last + 1 + halo)
    assert (covered == 1).all()


@pytest.mark.parametrize("has_holes", [False, True])
@pytest.mark.parametrize(("method", "msi_bands"), [*((method, 3) for method in METHODS), ("universal", 10)])
def test_tiles_of_every_method_agree_with_the_whole(method: str, msi_bands: int, has_holes: bool) -> None:
    """Also around holes: small ones, in one band, at the border, and larger than what a tile needs."""
    pair = tiny_pair(16, msi_bands, (40, 36), 3.25, shift=(0.3, -0.4), snr_db=40.0)
    if has_holes:
        pair.hsi[:, 12:15, 20:23], pair.hsi[2, 30, 30], pair.hsi[:, :, :5] = torch.nan, torch.nan, torch.nan
        pair.msi[:, 60:75, 30:60], pair.msi[1, 100:103, 80:90], pair.msi[:, 90:, 95:] = torch.nan, torch.nan, torch.nan
    aligned, observation = as_pair(pair), noisy_observation(pair)
    whole = fuse_arrays(pair.hsi, pair.msi, observation, method)
    tiles = fused_in_tiles(aligned, observation, learned(aligned, observation, method), 48)
    assert torch.equal(torch.isnan(tiles), torch.isnan(whole))
    error = torch.nan_to_num(tiles - whole)
    span = float(pair.reference.max() - pair.reference.min())
    assert float(error.abs().max()) < AGREEMENT * span
    assert float(error.square().mean().sqrt()) < 0.1 * AGREEMENT * span


@pytest.mark.parametrize(("method", "consistency", "sigma"), [("bicubic", True, None), ("local_fuse", False, 2.4)])
def test_tiles_with_consistency_or_a_wide_point_spread(method: str, consistency: bool, sigma: float | None) -> None:
    pair = tiny_pair(8, 3, (36, 30), 3.0, sigma=sigma, snr_db=40.0)
    aligned, observation = as_pair(pair), noisy_observation(pair)
    whole = fuse_arrays(pair.hsi, pair.msi, observation, method, consistency)
    tiles = fused_in_tiles(aligned, observation, learned(aligned, observation, method, consistency), 40)
    assert float((tiles - whole).abs().max()) < AGREEMENT * float(pair.reference.max() - pair.reference.min())


@pytest.mark.parametrize("trust", ["msi", "hsi"])
def test_tiles_that_estimate_by_themselves_agree_with_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trust: str
) -> None:
    """With holes, an odd number of pixels, noise, and a part of the MSI that shows something else."""
    hsi, msi = (physical_values(cube) for cube in made_pair((61, 59), 8, 4))
    noise = np.random.default_rng(0)
    hsi, msi = (image + 1e-3 * noise.standard_normal(image.shape).astype(np.float32) for image in (hsi, msi))
    msi[:, 180:200, 30:60] += 0.2
    hsi[:, 12:15, 20:23], hsi[2, 30, 30], hsi[:, :, -4:] = np.nan, np.nan, np.nan
    msi[:, 60:95, 30:60], msi[1, 150:156, 70:76], msi[:, :20, :40] = np.nan, np.nan, np.nan
    coarse = make_cube(hsi, wavelength_nm=np.linspace(430, 900, 8), crs=32633, transform=FINE @ Affine.scale(4))
    fine = make_cube(msi, crs=32633, transform=FINE @ Affine.translation(0.4, -0.3))
    with pytest.warns(UserWarning, match="disagrees"):
        whole = fuse(coarse, fine, trust=trust)
    small_tiles(monkeypatch)
    with pytest.warns(UserWarning, match="disagrees"):
        tiles = open_cube(fuse(coarse, fine, tmp_path / "tiles.nc", trust=trust))
    np.testing.assert_allclose(tiles.values, whole.values, atol=AGREEMENT * float(np.nanmax(hsi) - np.nanmin(hsi)))


def test_no_seam_where_tiles_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps from pixel to pixel across the borders of tiles are as large as those of the whole image there, and as
    elsewhere.
    """
    hsi, msi = written_pair(tmp_path, (48, 48))
    whole = physical_values(open_cube(fuse(hsi, msi, tmp_path / "whole.tif", **KNOWN)))
    small_tiles(monkeypatch)
    tiles = physical_values(open_cube(fuse(hsi, msi, tmp_path / "tiles.tif", **KNOWN)))
    np.testing.assert_allclose(tiles, whole, atol=STORED)
    borders = np.arange(64, tiles.shape[2], 64) - 1
    steps, own_steps = (np.abs(np.diff(image, axis=2)) for image in (tiles, whole))
    for found in (steps, np.abs(np.diff(tiles, axis=1)).transpose(0, 2, 1)):
        inside = np.delete(found, borders, axis=2)
        # Fields of the scene end at every eighth pixel, as tiles do: compared with the other ends of fields.
        ends = np.delete(found[:, :, 7::8], (borders - 7) // 8, axis=2)
        assert found[:, :, borders].mean() < 1.2 * ends.mean()
        assert inside.mean() > 0
    np.testing.assert_allclose(steps[:, :, borders], own_steps[:, :, borders], atol=2 * STORED)


@pytest.mark.parametrize("base", ["bicubic", "glp"])
def test_a_network_in_tiles_is_the_network_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    torch.manual_seed(0)
    network = SSA(PRESETS["ssa-small"].model_copy(update={"base": base}))
    network.save_pretrained(tmp_path / "weights")
    hsi, msi = written_pair(tmp_path, (40, 40), bands=6)
    whole = physical_values(fuse(hsi, msi, weights=tmp_path / "weights", **KNOWN))
    small_tiles(monkeypatch, (128, 128))
    path = fuse(hsi, msi, tmp_path / "tiles.tif", weights=tmp_path / "weights", **KNOWN)
    np.testing.assert_allclose(physical_values(open_cube(path)), whole, atol=STORED)
    assert open_cube(path).attrs["hyperfuse_weights"] == network.from_pretrained(tmp_path / "weights").weights_digest


@pytest.mark.parametrize("suffix", [".tif", ".hdr", ".zarr", ".nc", ".h5", ".npy", ".mat"])
def test_every_streaming_format_holds_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    hsi, msi = written_pair(tmp_path, (36, 30), bands=5)
    expected = physical_values(fuse(hsi, msi, method="glp", **KNOWN))
    small_tiles(monkeypatch)
    fused = open_cube(fuse(hsi, msi, tmp_path / f"fused{suffix}", method="glp", **KNOWN))
    np.testing.assert_allclose(physical_values(fused), expected, atol=STORED)
    np.testing.assert_allclose(fused["wavelength"].values, open_cube(hsi)["wavelength"].values, atol=1e-3)
    assert fused.attrs["hyperfuse_method"] == "glp"
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_format_that_needs_everything_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hsi, msi = written_pair(tmp_path, (20, 20), bands=5)
    small_tiles(monkeypatch)
    with pytest.raises(Exception, match=r"\.npz for a scene larger than the memory"):
        fuse(hsi, msi, tmp_path / "fused.npz", method="bicubic", **KNOWN)


def test_bad_bands_trust_and_extent_in_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HSI covers a part of the MSI; one band is bad, one empty; the result lies where the HSI says; some pixels are
    missing.
    """
    hsi, msi = made_pair((30, 30), 6, 4)
    values = physical_values(hsi)
    values[2], values[4], values[:, 10, 12] = 0.5, np.nan, np.nan
    hsi = make_cube(
        values, wavelength_nm=hsi["wavelength"].values, good=[True] * 5 + [False], crs=32633,
        transform=FINE @ Affine.translation(8, 4) @ Affine.scale(4),
    )  # fmt: skip
    options = {"estimate": False, "method": "local_fuse", "shift": (0.7, -0.4), "trust": "hsi", "extent": "msi"}
    whole = fuse(hsi, msi, **options)
    paths = write_cube(hsi, tmp_path / "hsi.nc"), write_cube(msi, tmp_path / "msi.tif")
    small_tiles(monkeypatch, (64, 32))
    tiles = open_cube(fuse(*paths, tmp_path / "tiles.nc", **options))
    assert tiles.shape == whole.shape
    np.testing.assert_allclose(tiles.values, whole.values, atol=AGREEMENT)
    assert np.isnan(tiles.values[:, :4]).all()
    assert np.isnan(tiles.values[4]).all()


def test_band_selection_and_data_type_in_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hsi, msi = written_pair(tmp_path, (20, 20), bands=6)
    whole = physical_values(fuse(hsi, msi, method="glp", **KNOWN))
    small_tiles(monkeypatch)
    stored = {"bands": "1,3,5", "dtype": "float32", "scale_factor": 1.0}
    fused = open_cube(fuse(hsi, msi, tmp_path / "fused.tif", method="glp", **stored, **KNOWN))
    assert fused.dtype == np.float32
    np.testing.assert_allclose(fused.values, whole[[0, 2, 4]], atol=STORED)


def test_options_of_the_file_in_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cloud-optimised, compressed otherwise, with overviews and a STAC item: as a scene in one piece is written."""
    hsi, msi = written_pair(tmp_path, (80, 80), bands=5)
    options = [
        "--no-estimate",
        "--method",
        "glp",
        "--bands",
        "1,4",
        "--dtype",
        "int32",
        "--scale-factor",
        "1e-5",
        "--nodata",
        "-9",
    ]
    found = []
    for name in ("whole", "tiles"):
        if name == "tiles":
            small_tiles(monkeypatch, (128, 256))
        target = tmp_path / f"{name}.tif"
        command = [
            "-q",
            "fuse",
            str(hsi),
            str(msi),
            "-o",
            str(target),
            *options,
            "--cog",
            "--compress",
            "zstd",
            "--stac",
        ]
        assert run(command) == 0
        with rasterio.open(target) as source:
            tags = source.tags(ns="IMAGE_STRUCTURE")
            found.append(
                (source.read(), tags["COMPRESSION"], tags["LAYOUT"], source.overviews(1), source.nodata, source.scales)
            )
        assert json.loads(target.with_suffix(".json").read_text())["type"] == "Feature"
    whole, tiles = found
    assert tiles[1:] == whole[1:]
    assert tiles[1:4] == ("ZSTD", "COG", [2])
    np.testing.assert_allclose(tiles[0], whole[0], atol=1)


def test_estimation_from_parts_is_that_of_the_whole(tmp_path: Path) -> None:
    from hyperfuse.config import ObservationConfig
    from hyperfuse.fusion.observe import observe
    from hyperfuse.io.cube import wavelengths_nm
    from hyperfuse.physics.estimate import estimate_observation

    hsi, msi = made_pair((90, 90), 8, 4)
    pair = align_pair(hsi, msi)
    centres = wavelengths_nm(hsi)
    images = torch.from_numpy(pair.hsi), torch.from_numpy(pair.msi)
    whole = estimate_observation(*images, grid_shift=pair.grid_shift, wavelength_nm=centres)
    parts = observe(pair, hsi, ObservationConfig())
    np.testing.assert_allclose(parts.sigma, whole.sigma, rtol=0.02)
    np.testing.assert_allclose(parts.shift, whole.shift, atol=0.05)
    np.testing.assert_allclose(parts.srf, whole.srf, atol=0.02)


def test_statistics_of_a_large_scene_come_from_parts_that_hold_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperfuse.fusion import sample as scene_sample

    values = np.random.default_rng(0).random((2, 200, 200)).astype(np.float32)
    values[:, :, :100] = np.nan
    hsi = make_cube(values, transform=Affine.scale(2))
    pair = align_pair(
        hsi, make_cube(np.random.default_rng(1).random((1, 400, 400)).astype(np.float32), transform=Affine.identity())
    )
    observation = known_observation(torch.ones(1, 2), 2.0)
    monkeypatch.setattr(scene_sample, "MOST_SAMPLED_FINE_PIXELS", 4000)
    places = scene_sample.sample_places(pair, observation, 3, lambda place: True)
    assert len(places) == scene_sample.FEWEST_WINDOWS
    assert all(place.coarse[1].stop > 100 for place in places)
    assert len({place.coarse[0].start for place in places}) > 3


def test_one_tile_is_the_present_result(tmp_path: Path) -> None:
    hsi, msi = written_pair(tmp_path, (24, 20), bands=6)
    fused: xr.DataArray = open_cube(fuse(hsi, msi, tmp_path / "fused.tif"))
    np.testing.assert_array_equal(fused.values, fuse(hsi, msi).values)
