"""An offset that differs from place to place is found, and fusing gains what it costs."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates
from tests.fusion.large_scenes import small_tiles
from tests.fusion.shifted_pairs import FINE, SCALE, ShiftedPair, psnr_db, shifted_pair

from hyperfuse import fuse, make_cube, open_cube, write_cube
from hyperfuse.config import ObservationConfig
from hyperfuse.errors import Cancelled
from hyperfuse.fusion.observe import estimate_offset_field, estimate_pair, observe, register_pair
from hyperfuse.fusion.pair import align_pair
from hyperfuse.fusion.warp import Warp, find_warp
from hyperfuse.physics.observation import sigma_from_fwhm
from hyperfuse.physics.offset_field import OffsetField
from hyperfuse.progress import ProgressReport, listening

METHOD = "local_fuse"


def across(y: NDArray[np.float64], x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return y + x**2, 2 * x * (1 - y)


@pytest.fixture(scope="module")
def bent() -> ShiftedPair:
    """From 0 to 2 fine pixels across the scene."""
    return shifted_pair(across)


@pytest.fixture(scope="module")
def straight() -> ShiftedPair:
    return shifted_pair(lambda y, x: (0 * y, 0 * x))


@pytest.fixture(scope="module")
def field(bent: ShiftedPair) -> OffsetField:
    pair = align_pair(bent.hsi, bent.msi)
    return estimate_offset_field(pair, observe(pair, bent.hsi, ObservationConfig()))


def test_a_smooth_field_is_recovered(bent: ShiftedPair, field: OffsetField) -> None:
    error = field.at(bent.rows, bent.columns) - bent.offsets
    assert np.sqrt(np.square(error).mean()) < 0.15
    assert field.confidence > 0.9
    assert field.variation == pytest.approx(np.sqrt(bent.offsets.var(axis=(1, 2)).sum()), rel=0.15)


def test_fusing_gains_what_the_offsets_cost(bent: ShiftedPair, straight: ShiftedPair) -> None:
    mean = tuple(bent.offsets.mean(axis=(1, 2)))
    one_shift = psnr_db(
        fuse(bent.hsi, bent.msi, method=METHOD, shift=mean, harmonise="off", extent="msi"), bent.reference
    )
    ideal = psnr_db(fuse(straight.hsi, straight.msi, method=METHOD), straight.reference)
    assert ideal - one_shift > 1.5
    for flag in (False, True):
        with pytest.warns(UserWarning, match="a shift that varies"):
            local = psnr_db(fuse(bent.hsi, bent.msi, method=METHOD, local_shift=flag), bent.reference)
        assert local - one_shift > 0.75 * (ideal - one_shift)


def test_a_pair_without_offsets_stays_as_it_is(straight: ShiftedPair) -> None:
    found = register_pair(
        align_pair(straight.hsi, straight.msi),
        lambda pair, bend: estimate_pair(pair, straight.hsi, ObservationConfig(), bend=bend),
        local_shift=True,
        search_further=True,
    )
    assert found.warp is None
    assert max(map(abs, found.observation.misregistration)) < 0.05


@pytest.fixture(scope="module")
def how(bent: ShiftedPair, field: OffsetField) -> Warp:
    pair = align_pair(bent.hsi, bent.msi)
    return find_warp(pair, observe(pair, bent.hsi, ObservationConfig(psf_fwhm=float(SCALE), shift=(1.0, 1.0))), field)


def test_a_straightened_hsi_is_read_by_windows_and_elsewhere(bent: ShiftedPair, how: Warp) -> None:
    pair = align_pair(bent.hsi, bent.msi)
    straight_pair = how.warped(pair)
    whole = straight_pair.hsi
    assert whole.shape == pair.coarse_shape
    travelled = pickle.loads(pickle.dumps(straight_pair))
    for rows, columns in ((slice(0, 9), slice(20, 40)), (slice(17, 18), slice(3, 4)), (slice(30, None), slice(0, 7))):
        np.testing.assert_allclose(travelled.hsi_values(rows, columns), whole[:, rows, columns], atol=1e-5)


def test_the_msi_guides_the_splines(bent: ShiftedPair, how: Warp) -> None:
    """Where the straightened HSI shall look, the true scene is known; plain splines miss much of it."""
    pair = align_pair(shifted_pair(across, noise=0.0).hsi, bent.msi)
    guided, plain = (each.warped(pair) for each in (how, replace(how, weights=None)))
    looks = bent.rows + 1.0, bent.columns + 1.0
    blurred = gaussian_filter(bent.reference, (0, *how.sigma))
    true = np.stack([map_coordinates(band, looks, order=3, mode="nearest") for band in blurred])
    inner = (slice(None), slice(4, -4), slice(4, -4))
    errors = [float(np.square((each.hsi - true)[inner]).mean()) for each in (guided, plain)]
    assert errors[0] < 0.2 * errors[1]


def test_tiles_of_a_continued_run_know_the_field(
    bent: ShiftedPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.warns(UserWarning, match="a shift that varies"):
        whole = fuse(bent.hsi, bent.msi, method="glp", local_shift=True).values
    paths = write_cube(bent.hsi, tmp_path / "hsi.tif"), write_cube(bent.msi, tmp_path / "msi.tif")
    small_tiles(monkeypatch)
    target, stop = tmp_path / "fused.tif", threading.Event()

    def stop_at_the_second(report: ProgressReport) -> None:
        if report.unit == "tiles" and report.done == 2:
            stop.set()

    with (
        pytest.warns(UserWarning, match="a shift that varies"),
        pytest.raises(Cancelled),
        listening(stop_at_the_second, cancel=stop),
    ):
        fuse(*paths, target, method="glp", local_shift=True)
    with pytest.warns(UserWarning, match="a shift that varies"):
        fused = open_cube(fuse(*paths, target, method="glp", local_shift=True, resume=True)).values
    np.testing.assert_allclose(fused, whole, atol=1e-3 * float(np.ptp(whole)))


def test_holes_of_the_hsi_stay_holes(bent: ShiftedPair, how: Warp) -> None:
    values = bent.hsi.values.copy()
    values[:, 18:21, 10:13] = np.nan
    hsi = make_cube(values, crs=32633, transform=FINE @ Affine.scale(SCALE))
    missing = np.isnan(how.warped(align_pair(hsi, bent.msi)).hsi).all(axis=0)
    assert missing[19, 11]
    assert 4 <= missing[15:24, 7:16].sum() <= 16
    assert not missing[:15].any()


def test_a_turned_hsi_is_fused_as_well_as_a_parallel_one() -> None:
    """The same scene taken along the MSI's axes, and turned by 25 degrees."""
    upright = shifted_pair(lambda y, x: (0 * y, 0 * x), coarse=40)
    coarse, middle = 30, 80.0
    pixels = np.stack(np.meshgrid(np.arange(coarse) - coarse / 2 + 0.5, np.arange(coarse) - coarse / 2 + 0.5))
    turn = Affine.translation(middle, middle) @ Affine.rotation(25) @ Affine.scale(SCALE)
    columns, rows = turn @ tuple(pixels)
    sigma = sigma_from_fwhm(SCALE)
    blurred = gaussian_filter(upright.reference, (0, sigma, sigma))
    hsi = np.stack([map_coordinates(band, (rows - 0.5, columns - 0.5), order=3) for band in blurred])
    hsi += 0.003 * np.random.default_rng(0).standard_normal(hsi.shape)
    transform = FINE @ turn @ Affine.translation(-coarse / 2, -coarse / 2)
    turned = make_cube(hsi.astype(np.float32), crs=32633, transform=transform)
    with pytest.warns(UserWarning, match="resampled"):
        fused = fuse(turned, upright.msi, method=METHOD, extent="msi")
    parallel = fuse(upright.hsi, upright.msi, method=METHOD)
    inner = slice(60, 100)
    errors = [
        float(np.sqrt(np.square(each.values[:, inner, inner] - upright.reference[:, inner, inner]).mean()))
        for each in (fused, parallel)
    ]
    assert errors[0] < 1.15 * errors[1]
