"""`fuse` from Python and from the command line: every method, files of several formats, bad bands, hints, networks,
refusals.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from affine import Affine

from hyperfuse import evaluate, fuse, make_cube, open_cube, simulate, write_cube
from hyperfuse.cli.app import run
from hyperfuse.errors import BandError, HyperfuseError, OptionError
from hyperfuse.io.cube import physical_values
from hyperfuse.io.grid import grid_of
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.models.ssa import PRESETS, SSA
from hyperfuse.physics.simulate import Simulation

SCALE = 4


@pytest.fixture(scope="module")
def scene() -> xr.DataArray:
    """Patches of a few mixed materials with edges and texture: something that can be fused."""
    random = np.random.default_rng(5)
    bands, size = 24, 96
    wavelength = np.linspace(420, 980, bands)
    spectra = np.stack(
        [0.3 + 0.2 * np.sin(wavelength / scale + phase) for scale, phase in ((90, 0), (140, 1), (70, 2), (200, 3))]
    )
    labels = np.kron(random.integers(0, 4, (12, 12)), np.ones((size // 12, size // 12), int))
    texture = 1 + 0.1 * random.standard_normal((size, size))
    values = spectra[labels].transpose(2, 0, 1) * texture
    return make_cube(
        values.astype(np.float32),
        wavelength_nm=wavelength,
        fwhm_nm=20.0,
        crs=32633,
        transform=Affine(10, 0, 5e5, 0, -10, 5e6),
        attributes={"sensor": "synthetic"},
    )


@pytest.fixture(scope="module")
def pair(scene: xr.DataArray) -> Simulation:
    return simulate(scene, SCALE, "rgb+nir")


@pytest.fixture(scope="module")
def files(pair: Simulation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    write_cube(pair.hsi, folder / "hsi.hdr")
    write_cube(pair.msi, folder / "msi.tif")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_every_method_beats_or_equals_bicubic(pair: Simulation, scene: xr.DataArray, method: str) -> None:
    known = {"srf": "rgb+nir", "psf_fwhm": float(SCALE), "shift": (0.0, 0.0)}
    fused = fuse(pair.hsi, pair.msi, method=method, **known)
    assert fused.shape == scene.shape
    assert np.isfinite(fused.values).all()
    baseline = evaluate(fuse(pair.hsi, pair.msi, method="bicubic", **known), scene).psnr_db
    assert evaluate(fused, scene).psnr_db >= baseline - 0.1


def test_command_line_keeps_metadata(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "fused.nc"
    assert run(["fuse", str(files / "hsi.hdr"), str(files / "msi.tif"), "-o", str(target)]) == 0
    assert str(target) in capsys.readouterr().out
    fused, hsi, msi = open_cube(target), open_cube(files / "hsi.hdr"), open_cube(files / "msi.tif")
    np.testing.assert_allclose(fused["wavelength"], hsi["wavelength"], atol=1e-6)
    np.testing.assert_allclose(fused["fwhm"], hsi["fwhm"], atol=1e-6)
    assert fused.rio.crs == msi.rio.crs
    assert grid_of(fused).transform == grid_of(msi).transform
    assert fused.attrs["hyperfuse_hsi"] == "hsi.hdr"
    assert fused.attrs["hyperfuse_scale"] == "4"
    assert fused.attrs["hyperfuse_method"] in METHODS


def test_consistency_brings_a_result_back_to_the_hsi(pair: Simulation) -> None:
    """Degraded by the true point spread, the fused image must give the HSI; interpolation alone does not."""
    known = {"method": "bicubic", "psf_fwhm": float(SCALE), "shift": (0.0, 0.0), "srf": "rgb+nir"}
    residual = []
    for consistency in (False, True):
        fused = fuse(pair.hsi, pair.msi, consistency=consistency, **known)
        residual.append(float(np.abs(simulate(fused, SCALE, "rgb").hsi.values - pair.hsi.values).mean()))
    assert residual[1] < 0.2 * residual[0]


def test_bad_and_empty_bands_keep_their_place(pair: Simulation) -> None:
    values = physical_values(pair.hsi)
    values[3] = 9.0
    values[7] = np.nan
    good = np.ones(values.shape[0], bool)
    good[3] = False
    hsi = make_cube(values, wavelength_nm=pair.hsi["wavelength"].values, good=good)
    fused = fuse(hsi, make_cube(physical_values(pair.msi)), method="fuse", estimate=False)
    assert fused["good"].values.tolist() == good.tolist()
    np.testing.assert_allclose(fused.values[3], 9.0, rtol=1e-5)
    assert np.isnan(fused.values[7]).all()
    assert np.isfinite(np.delete(fused.values, 7, axis=0)).all()
    assert fused.values[0].max() < 2


def test_a_trained_network_can_be_used_instead(pair: Simulation, files: Path, tmp_path: Path) -> None:
    network = SSA(PRESETS["ssa-small"])
    network.save_pretrained(tmp_path / "weights")
    target = tmp_path / "fused.tif"
    command = [
        "fuse",
        str(files / "hsi.hdr"),
        str(files / "msi.tif"),
        "-o",
        str(target),
        "--weights",
        str(tmp_path / "weights"),
    ]
    assert run([*command, "--no-estimate"]) == 0
    fused = open_cube(target)
    assert fused.shape == (24, 96, 96)
    assert np.isfinite(fused.values).all()
    assert fused.attrs["hyperfuse_weights"] == SSA.from_pretrained(tmp_path / "weights").weights_digest


def test_network_with_too_few_slots_says_so(pair: Simulation, tmp_path: Path) -> None:
    SSA(PRESETS["ssa-small"].with_max_channels(12)).save_pretrained(tmp_path / "weights")
    with pytest.raises(BandError, match="at most 12 together"):
        fuse(pair.hsi, pair.msi, weights=tmp_path / "weights", estimate=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "magic"], "one of auto, bicubic"),
        (["--srf", "sentinel-99"], "sentinel-99"),
        (["--psf-fwhm", "-1"], "a number above 0"),
        (["--weights", "nowhere"], "nowhere"),
        (["--weights", "nowhere", "--method", "gsa"], "leave out --method or --weights"),
        (["--shift", "nan", "0"], "less than half of the MSI"),
        (["--shift", "0", "1e9"], "less than half of the MSI"),
        (["--srf", "rgb"], "one SRF band per MSI band"),
        (["--co", "COMPRESS"], "NAME=VALUE"),
    ],
)
def test_bad_options(
    files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    target = tmp_path / "fused.tif"
    assert run(["fuse", str(files / "hsi.hdr"), str(files / "msi.tif"), "-o", str(target), *options]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_target_is_checked_before_the_work(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "fused.tif"
    target.write_bytes(b"mine")
    for bad in (target, tmp_path / "nowhere" / "fused.tif", tmp_path / "fused.jpeg"):
        assert run(["fuse", "missing.hdr", "missing.tif", "-o", str(bad)]) == 2
        assert "missing" not in capsys.readouterr().err
    assert target.read_bytes() == b"mine"


def test_swapped_images_are_an_error(files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fuse", str(files / "msi.tif"), str(files / "hsi.hdr"), "-o", str(tmp_path / "fused.tif")]) == 2
    assert "swap the two images" in capsys.readouterr().err


def test_an_output_never_replaces_an_input(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hsi, msi, pixels = files / "hsi.hdr", files / "msi.tif", (files / "hsi.img").read_bytes()
    (files / "linked").symlink_to(files)
    for inputs, target, words in (
        ((hsi, msi), hsi, "which is the hsi itself"),
        ((hsi.with_suffix(".img"), msi), hsi, "which is the hsi itself"),
        ((hsi, msi), msi, "which is the msi itself"),
        ((hsi, msi), hsi.parent / "linked" / hsi.name, "which is the hsi itself"),
        ((hsi, msi), hsi.parent / ".." / hsi.parent.name / hsi.name, "which is the hsi itself"),
        ((msi, msi), files / "fused.tif", "as both HSI and MSI"),
    ):
        assert run(["fuse", *map(str, inputs), "-o", str(target), "--overwrite"]) == 2
        assert words in capsys.readouterr().err
    assert (files / "hsi.img").read_bytes() == pixels


def test_errors_are_ours(pair: Simulation) -> None:
    with pytest.raises(OptionError):
        fuse(pair.hsi, pair.msi, method="magic")
    with pytest.raises(HyperfuseError):
        fuse(pair.hsi, "no such file.tif")
