"""`hyperfuse evaluate`, on real files: table, bands, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from affine import Affine
from typer.testing import CliRunner

from hyperfuse.cli.cubes import evaluate as evaluate_command
from hyperfuse.errors import CubeFileError, GridError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.metrics import metrics


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("evaluate")
    rng = np.random.default_rng(0)
    reference = rng.uniform(0.1, 0.9, (3, 40, 40)).astype(np.float32)
    fused = (reference + 0.05 * rng.standard_normal(reference.shape)).astype(np.float32)
    known = {
        "wavelength_nm": [470, 550, 650],
        "crs": "EPSG:32632",
        "transform": Affine(10, 0, 500_000, 0, -10, 4_200_000),
    }
    for name, values in (("fused.tif", fused), ("reference.tif", reference), ("small.tif", reference[:, :20])):
        write_cube(make_cube(values, **known), folder / name)
    return folder / "fused.tif", folder / "reference.tif"


def run(*arguments: object) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(evaluate_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_json_holds_every_figure(files: tuple[Path, Path]) -> None:
    result = json.loads(run(*files, "--json", "--scale", 4, "--q2n"))
    fused, reference = (open_cube(file).values for file in files)
    assert result["psnr_db"] == pytest.approx(metrics.psnr_db(fused, reference, 1.0), rel=1e-9)
    assert result["ergas"] == pytest.approx(metrics.ergas(fused, reference, 4), rel=1e-9)
    assert result["q2n"] == pytest.approx(metrics.q2n(fused, reference), rel=1e-9)
    assert result["peak"] == 1 and result["scale"] == 4
    assert [band["wavelength_nm"] for band in result["per_band"]] == pytest.approx([470, 550, 650])


def test_the_table_says_peak_and_what_is_missing(files: tuple[Path, Path]) -> None:
    text = run(*files)
    assert "PSNR dB" in text and "peak" in text and "Q2n" not in text and "550.0" not in text
    assert "note: no ERGAS" in text
    text = run(*files, "--per-band", "--peak", 2.5, "--scale", 4)
    assert "550.0" in text and "2.5" in text and "note:" not in text


def test_grids_that_differ_are_an_error(files: tuple[Path, Path]) -> None:
    with pytest.raises(GridError, match="40x40 pixels, the reference 40x20"):
        run(files[0], files[0].with_name("small.tif"))


def test_arrays_are_chosen_in_files_that_hold_several(files: tuple[Path, Path], tmp_path: Path) -> None:
    arrays = {file.stem: np.moveaxis(open_cube(file).values, 0, -1) for file in files}
    np.savez(tmp_path / "both.npz", **arrays)
    with pytest.raises(CubeFileError, match=r"2 3-D arrays in .*; expected one; name it .*fused .*reference"):
        run(tmp_path / "both.npz", tmp_path / "both.npz")
    chosen = ("--fused-variable", "fused", "--reference-variable", "reference")
    result = json.loads(run(tmp_path / "both.npz", tmp_path / "both.npz", *chosen, "--json"))
    assert result["rmse"] == pytest.approx(json.loads(run(*files, "--json"))["rmse"], rel=1e-12)
