"""What all commands have in common: settings, help, roles of the images, and how much they import."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from tests.processes import Program

import hyperfuse
from hyperfuse.cli.app import COMMANDS, run
from hyperfuse.io.files import open_cube, write_cube

# Is ended from outside when the command itself is done.
AT_EXIT = """
import atexit, signal, sys
from hyperfuse.cli.app import main
atexit.register(signal.raise_signal, int(sys.argv[1]))
sys.argv[1:] = ["--version"]
main()
"""

IN_A_LIBRARY = """
import signal, sys
from hyperfuse.cli import app
def build(*arguments, **options):
    try:
        signal.raise_signal(int(sys.argv[1]))
    except BaseException as error:
        raise ValueError("the model cannot be built") from error
app.app.__class__.__call__ = build
app.main()
"""

IN_A_DESTRUCTOR = """
import signal, sys, time
from hyperfuse.cli import app
class Ended:
    def __del__(self):
        signal.raise_signal(int(sys.argv[1]))
def work(*arguments, **options):
    Ended()
    time.sleep(60)
app.app.__class__.__call__ = work
app.main()
"""

IGNORED = """
import signal, sys
for number in (signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
from hyperfuse.cli import app
run = app.run
def interrupted(arguments):
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.raise_signal(number)
    return run(["methods"])
app.run = interrupted
app.main()
"""

UTM = Affine(30, 0, 4e5, 0, -30, 5e6)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    rng = np.random.default_rng(0)
    steps = np.cumsum(rng.normal(size=(24, 48, 48)), axis=0)
    values = np.kron(steps[:, ::6, ::6], np.ones((1, 6, 6))) + 0.2 * steps + 30
    cube = hyperfuse.make_cube(values, wavelength_nm=np.linspace(420, 900, 24), crs=32633, transform=UTM)
    simulated = hyperfuse.simulate(cube, scale=4, srf="rgb+nir")
    for name in ("hsi", "msi", "reference"):
        write_cube(getattr(simulated, name), folder / f"{name}.tif")
    return folder


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"hyperfuse {hyperfuse.__version__}\n"


@pytest.mark.parametrize("function", COMMANDS, ids=lambda each: each.__name__)
def test_help_of_every_command(function: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Flags take no value, and every command can be quiet or verbose."""
    assert run([function.__name__, "--help"]) == 0  # type: ignore[attr-defined]
    text = capsys.readouterr().out
    assert "<bool>" not in text and "--quiet" in text and "--verbose" in text


def test_an_interrupt_before_the_command_starts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hyperfuse.cli.app.app.__class__.__call__", interrupted)
    assert run(["methods"]) == 130


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_while_a_library_turns_every_exception_into_its_own(number: int) -> None:
    """pydantic does so while it builds a model."""
    program = Program(IN_A_LIBRARY, number)
    _, messages = program.communicate()
    assert (program.returncode, messages) == (128 + number, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_where_python_ignores_exceptions(number: int) -> None:
    program = Program(IN_A_DESTRUCTOR, number)
    _, messages = program.communicate()
    assert (program.returncode, messages) == (128 + number, "")


def test_an_interrupt_during_the_imports_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import signal; signal.raise_signal(signal.SIGINT)")
    places = (tmp_path, Path(hyperfuse.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    command = [sys.executable, "-m", "hyperfuse", "methods"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_ignored_signals_stay_ignored() -> None:
    """As nohup asks for."""
    program = Program(IGNORED)
    output, messages = program.communicate()
    assert (program.returncode, messages) == (0, "") and "universal" in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ended_while_it_ends(number: int) -> None:
    program = Program(AT_EXIT, number)
    _, messages = program.communicate()
    assert (program.returncode, messages) == (-number, "")


def test_all_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(re.search(rf"\b{each.__name__}\b", text) for each in COMMANDS)
    assert run(["fus"]) == 2


def test_info_of_a_raster_imports_little(pair: Path) -> None:
    """Half of the time that `info` took was the import of libraries that it did not use, also where it opens files."""
    code = (
        "import sys; from hyperfuse.io import isolation; isolation._is_child = True; "
        "from hyperfuse.cli.app import run; run(['info', sys.argv[1], '-q']); "
        "sys.exit(','.join(sorted({'torch', 'scipy', 'dask', 'h5py', 'zarr', 'rioxarray', 'pyproj', 'matplotlib',"
        "'rich.progress'} & sys.modules.keys())) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(pair / "msi.tif")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


class TestRoles:
    def test_swapped_images(self, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for command in (["fuse", "-o", str(tmp_path / "out.tif")], ["estimate"], ["register"]):
            assert run([*command, str(pair / "msi.tif"), str(pair / "hsi.tif")]) == 2
            message = capsys.readouterr().err
            assert "an HSI of 4 bands and an MSI of 24" in message and "swap the two images" in message
        assert list(tmp_path.iterdir()) == []

    def test_equal_pixels(self, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        images = [str(pair / "reference.tif"), str(pair / "msi.tif")]
        assert run(["fuse", *images, "-o", str(tmp_path / "out.tif")]) == 2
        assert "pixels of the same size in HSI and MSI (scale 1" in capsys.readouterr().err
        options = ["--method", "gsa", "--no-estimate", "--allow-scale-1"]
        assert run(["fuse", *images, "-o", str(tmp_path / "out.tif"), *options]) == 0
        assert open_cube(tmp_path / "out.tif").shape == (24, 48, 48)

    def test_a_missing_folder_is_said_before_any_work(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Neither image exists, and yet it is the folder that is refused."""
        for option in (["-o", "absent/out.tif"], ["-o", str(tmp_path / "o.tif"), "--uncertainty", "absent/u.tif"]):
            assert run(["fuse", "no_hsi.tif", "no_msi.tif", *option]) == 2
            assert "absent is not a folder" in capsys.readouterr().err


class TestPairs:
    def test_every_input_option_of_fuse(self, pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
        bounds = ["--bounds", "400000", "4999040", "400960", "5000000", "--bounds-crs", "EPSG:32633"]
        for command in ("estimate", "register"):
            assert run([command, str(pair / "hsi.tif"), str(pair / "msi.tif"), *bounds, "--extent", "msi"]) == 0
            assert re.search(r"PSF +\d\.\d+ \d\.\d+ fine pixels \(FWHM\)", capsys.readouterr().out)

    def test_bands_that_the_hsi_does_not_cover(
        self, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The MSI has a band at 1600 nm, where the HSI sees nothing."""
        msi = open_cube(pair / "msi.tif")
        bands = hyperfuse.make_cube(
            np.concatenate([msi.values, msi.values[:1]]), crs=32633, transform=Affine(30, 0, 4e5, 0, -30, 5e6)
        )
        write_cube(bands, tmp_path / "msi.tif")
        fuse = ["fuse", str(pair / "hsi.tif"), str(tmp_path / "msi.tif"), "-o", str(tmp_path / "out.tif")]
        fuse += ["--srf", "Sentinel-2A:B2,B3,B4,B8,B11", "--method", "gsa"]
        assert run(fuse) == 2
        assert "--skip-uncovered" in capsys.readouterr().err
        assert run([*fuse, "--skip-uncovered"]) == 0
        assert open_cube(tmp_path / "out.tif").shape == (24, 48, 48)

    def test_auto_says_what_it_chose(self, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        fuse = ["fuse", str(pair / "hsi.tif"), str(pair / "msi.tif"), "--method", "auto", "--overwrite"]
        assert run([*fuse, "-o", str(tmp_path / "out.tif")]) == 0
        assert "hyperfuse: auto chose universal, the default: " in capsys.readouterr().err
        assert run([*fuse, "-o", str(tmp_path / "out.tif"), "-v"]) == 0
        assert "hyperfuse: Observation(scale 4 4" in capsys.readouterr().err
        assert run([*fuse, "-o", str(tmp_path / "out.tif"), "-q"]) == 0
        assert capsys.readouterr().err == ""


class TestHabitsOfGdal:
    def test_output_as_third_argument(self, pair: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        images = ["fuse", str(pair / "hsi.tif"), str(pair / "msi.tif")]
        quick = ["-r", "bicubic", "--no-estimate", "-q"]
        out = tmp_path / "fused.tif"
        assert run([*images, str(out), *quick, "-of", "gtiff", "-ot", "Byte", "-co", "TILED=NO", "-b", "1-3"]) == 0
        assert open_cube(out).shape[0] == 3 and open_cube(out).dtype == np.uint8
        assert run([*images, str(out), *quick, "-overwrite", "-te", "400000", "4999000", "400600", "5000000"]) == 0
        assert open_cube(out).sizes["x"] == 20
        capsys.readouterr()
        assert run([*images, str(out), "-o", str(out), *quick]) == 2
        assert "two outputs" in capsys.readouterr().err
        assert run([*images, *quick]) == 2
        assert "no output; expected one file to write; hyperfuse fuse HSI MSI -o OUT" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("name", "suffix"), [("ENVI", ".hdr"), ("Zarr", ".zarr"), ("netCDF", ".nc"), ("COG", ".tif")]
    )
    def test_format_by_name(
        self, pair: Path, tmp_path: Path, name: str, suffix: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        convert = ["convert", str(pair / "msi.tif")]
        assert run([*convert, str(tmp_path / f"out{suffix}"), "--of", name.lower()]) == 0
        assert run([*convert, str(tmp_path / "out.npy"), "--of", name]) == 2
        assert f"--of {name} for out.npy; expected a name that ends in {suffix}" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has /dev/full")
def test_a_full_disk_under_stdout_does_not_deny_the_output(pair: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy.tif"
    command = [sys.executable, "-c", "from hyperfuse.cli.app import main; main()", "convert", pair / "hsi.tif", target]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "hyperfuse: no space left on the disk of the output; free space or choose another one\n"
    assert target.exists()
