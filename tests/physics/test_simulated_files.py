"""`hyperfuse simulate`: four files or none, readable by others, and one line where something is wrong."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import rasterio
import typer
from tests.physics.degradation_oracles import blurred
from tests.physics.scenes import TRANSFORM, small_reference
from typer.testing import CliRunner

from hyperfuse.cli.pairs import simulate as simulate_command
from hyperfuse.config import SRF_HELP, SimulateConfig
from hyperfuse.errors import BandError, CubeFileError, CubeWriteError, OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.physics import simulate as simulation
from hyperfuse.physics.simulate import OUTPUTS, read_simulation_record, simulate, simulate_files
from hyperfuse.physics.srf_curves import known_srfs


@pytest.fixture
def reference_file(tmp_path: Path) -> Path:
    stored = np.random.default_rng(3).integers(1, 9000, (9, 32, 48)).astype(np.int16)
    cube = make_cube(
        stored, wavelength_nm=np.linspace(400, 1000, 9), scale=1e-4, nodata=-1, crs=32633, transform=TRANSFORM
    )
    return write_cube(cube, tmp_path / "scene.tif")


def run_command(*arguments: object) -> str:
    app = typer.Typer()
    app.command()(simulate_command)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_command_writes_a_pair_that_others_read(reference_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pair"
    printed = run_command(
        reference_file, out, "--scale", "3.2", "--srf", "rgb+nir", "--psf-fwhm", 3, "--shift", -0.5, 1.25, "--seed", 7
    )
    assert sorted(path.name for path in out.iterdir()) == sorted(OUTPUTS)
    assert leftovers(tmp_path) == []
    assert str(out / "hsi.tif") in printed and "10x15" in printed and "red, green, blue, nir" in printed
    with rasterio.open(reference_file) as scene, rasterio.open(out / "hsi.tif") as hsi:
        assert hsi.crs == scene.crs
        assert (hsi.transform.a, hsi.transform.e) == (96.0, -96.0)
        assert hsi.bounds == scene.bounds
        assert hsi.dtypes[0] == "float32"
        expected = blurred(scene.read(4) * 1e-4, (10, 15), 3.2, 3.0, (-0.5, 1.25))
        np.testing.assert_allclose(hsi.read(4), expected, rtol=1e-6)
    with rasterio.open(out / "msi.tif") as msi:
        assert (msi.count, msi.height, msi.width) == (4, 32, 48)
        assert msi.transform == TRANSFORM
    with rasterio.open(out / "reference.tif") as reference, rasterio.open(reference_file) as scene:
        assert reference.dtypes[0] == "int16"
        np.testing.assert_array_equal(reference.read(), scene.read())
    assert open_cube(out / "msi.tif")["wavelength"].values == pytest.approx([665, 560, 480, 835], abs=2)
    np.testing.assert_allclose(open_cube(out / "hsi.tif")["wavelength"].values, np.linspace(400, 1000, 9))


def test_record_repeats_the_pair(reference_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pair"
    config = SimulateConfig(shift=(0.5, 0.0), snr_hsi_db=25, snr_msi_db=35, seed=11)
    made = simulate_files(reference_file, out, 4, "rgb", config)
    record = read_simulation_record(out / "observation.json")
    assert record == made
    assert record.reference == "scene.tif"
    text = json.loads((out / "observation.json").read_text())
    assert text["scale_fraction"] == [4, 1] and text["seed"] == 11 and text["shift"] == [0.5, 0.0]
    assert text["srf"]["names"] == ["red", "green", "blue"]
    earlier = {"response" if key == "srf" else key: value for key, value in text.items()}
    (tmp_path / "earlier.json").write_text(json.dumps(earlier))
    assert read_simulation_record(tmp_path / "earlier.json") == made
    assert text["psf_sigma"] == pytest.approx(4 / 2.3548, rel=1e-4)
    assert str(tmp_path) not in json.dumps(text)
    again = simulate(open_cube(reference_file), **record.simulation_arguments())
    np.testing.assert_array_equal(again.hsi.values, open_cube(out / "hsi.tif").values)
    np.testing.assert_array_equal(again.msi.values, open_cube(out / "msi.tif").values)


def test_crop_warns_and_is_recorded(reference_file: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="cropped from 32x48 to 30x48"):
        observation = simulate_files(reference_file, tmp_path / "pair", 3, "rgb")
    assert observation.fine_size == (30, 48)
    assert open_cube(tmp_path / "pair" / "reference.tif").shape == (9, 30, 48)


def test_nothing_is_overwritten_without_the_option(reference_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pair"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    (out / "msi.tif").write_text("old")
    with pytest.raises(CubeWriteError, match=r"msi.tif exists already; .*--overwrite"):
        simulate_files(reference_file, out, 4, "rgb")
    assert sorted(path.name for path in out.iterdir()) == ["msi.tif", "notes.txt"]
    simulate_files(reference_file, out, 4, "rgb", overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    assert open_cube(out / "msi.tif").shape == (3, 32, 48)
    assert leftovers(tmp_path) == leftovers(out) == []


@pytest.mark.parametrize(
    ("error", "raised"),
    [(OSError(28, "No space left on device"), CubeWriteError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
@pytest.mark.parametrize("existing", [False, True])
def test_failure_while_writing_leaves_everything_as_it_was(
    reference_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    raised: type,
    existing: bool,
) -> None:
    out = tmp_path / "pair"
    if existing:
        simulate_files(reference_file, out, 2, "rgb")
    before = {path.name: path.read_bytes() for path in out.iterdir()} if existing else None

    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(simulation, "write_simulation_record", fail)
    with pytest.raises(raised):
        simulate_files(reference_file, out, 4, "rgb", overwrite=True)
    assert leftovers(tmp_path) == []
    assert ({path.name: path.read_bytes() for path in out.iterdir()} if existing else None) == before
    assert out.exists() == existing


@pytest.mark.parametrize("existing", [False, True])
def test_failure_while_moving_restores_the_old_files(
    reference_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool
) -> None:
    out = tmp_path / "pair"
    if existing:
        simulate_files(reference_file, out, 2, "rgb")
    before = {path.name: path.read_bytes() for path in out.iterdir()} if existing else {}
    rename = Path.rename

    def fail_at_third(self: Path, target: Path) -> Path:
        if target == out / "reference.tif" and self.parent.name == "made":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail_at_third)
    with pytest.raises(CubeWriteError, match="nothing was left behind"):
        simulate_files(reference_file, out, 4, "rgb", overwrite=True)
    assert leftovers(tmp_path) == []
    assert out.exists() == existing
    if existing:
        assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_a_full_disk_names_the_output_folder(
    reference_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill_up(cube: object, path: Path) -> None:
        raise CubeWriteError(f"no space left while writing {path}")

    monkeypatch.setattr(simulation, "write_cube", fill_up)
    with pytest.raises(CubeWriteError) as raised:
        simulate_files(reference_file, tmp_path / "pair", 4, "rgb")
    assert str(raised.value) == f"no space left while writing {tmp_path / 'pair' / 'hsi.tif'}"
    assert leftovers(tmp_path) == []


def test_bad_requests_leave_nothing_behind(reference_file: Path, tmp_path: Path) -> None:
    plain_file = tmp_path / "a file"
    plain_file.touch()
    cases = [
        ((tmp_path / "absent.tif", tmp_path / "pair", 4, "rgb"), CubeFileError),
        ((reference_file, tmp_path / "no" / "such" / "pair", 4, "rgb"), CubeWriteError),
        ((reference_file, plain_file, 4, "rgb"), CubeWriteError),
        ((reference_file, tmp_path / "pair", 50, "rgb"), OptionError),
        ((reference_file, tmp_path / "pair", 4, "Sentinel-2A"), BandError),
        ((reference_file, tmp_path / "pair", 4, "absent.csv"), CubeFileError),
    ]
    for arguments, kind in cases:
        with pytest.raises(kind):
            simulate_files(*arguments)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a file", "scene.tif"]


def test_reference_without_place(tmp_path: Path) -> None:
    np.save(tmp_path / "scene.npy", small_reference(3, 16, 16).values.transpose(1, 2, 0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        simulate_files(tmp_path / "scene.npy", tmp_path / "pair", 4, np.eye(3))
        assert open_cube(tmp_path / "pair" / "hsi.tif").shape == (3, 4, 4)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"kind": "something else"}', b"\xff\xff"])
def test_damaged_records(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "observation.json"
    path.write_bytes(content)
    with pytest.raises(CubeFileError, match=r"observation\.json"):
        read_simulation_record(path)
    with pytest.raises(CubeFileError):
        read_simulation_record(tmp_path / "absent.json")


def test_record_with_an_unknown_key_or_wrong_sizes(reference_file: Path, tmp_path: Path) -> None:
    simulate_files(reference_file, tmp_path / "pair", 4, "rgb")
    path = tmp_path / "pair" / "observation.json"
    good = json.loads(path.read_text())
    for change, words in (({"colour": 1}, "colour"), ({"coarse_size": [9, 9]}, "do not have the scale")):
        path.write_text(json.dumps(good | change))
        with pytest.raises(CubeFileError, match=words):
            read_simulation_record(path)


def test_help_names_every_srf() -> None:
    for name in known_srfs():
        satellite, _, instrument = name.partition(" ")
        family, _, number = satellite.rpartition("-")
        assert family in SRF_HELP and number in SRF_HELP and instrument in SRF_HELP
