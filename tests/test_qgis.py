"""The QGIS plug-in: how it calls the command, and, where QGIS is installed, the algorithms in `qgis_process`."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from affine import Affine

import hyperfuse
from hyperfuse.cli.app import run
from hyperfuse.config import FuseConfig, describe_options

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "integrations" / "qgis" / "hyperfuse_qgis"
# Debian's qgis_process passes options of QGIS on, which the program does not know.
QGIS_PROCESS = shutil.which("qgis_process.bin") or shutil.which("qgis_process")


@pytest.fixture(scope="module")
def command() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hyperfuse_qgis_command", PLUGIN / "command.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    values = np.random.default_rng(0).random((24, 24, 24), dtype=np.float32)
    cube = hyperfuse.make_cube(
        values, wavelength_nm=np.linspace(420, 900, 24), crs=32633, transform=Affine(10, 0, 4e5, 0, -10, 5e6)
    )
    simulated = hyperfuse.simulate(cube, scale=4, srf="rgb+nir")
    for name in ("hsi", "msi", "reference"):
        hyperfuse.write_cube(getattr(simulated, name), folder / f"{name}.tif")
    return folder


class TestCommand:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("psf_fwhm", 3.5, ["--psf-fwhm", "3.5"]),
            ("workers", 2.0, ["--workers", "2"]),
            ("scale_factor", 1e-4, ["--scale-factor", "0.0001"]),
            ("estimate", False, ["--no-estimate"]),
            ("estimate", True, []),
            ("cog", True, ["--cog"]),
            ("harmonise", "off", ["--harmonise", "off"]),
            ("harmonise", "auto", []),
            ("shift", "0.5, 1", ["--shift", "0.5", "1"]),
            ("creation_options", "TILED=no BLOCKXSIZE=64", ["--co", "TILED=no", "--co", "BLOCKXSIZE=64"]),
            ("srf", "Sentinel-2A:B2,B3", ["--srf", "Sentinel-2A:B2,B3"]),
            ("mask", "", []),
        ],
    )
    def test_words_of_an_option(self, command: ModuleType, name: str, value: object, words: list[str]) -> None:
        option = next(one for one in describe_options(FuseConfig) if one["name"] == name)
        assert command.arguments_for(option, value) == words

    def test_progress_and_output(self, command: ModuleType, tmp_path: Path) -> None:
        script = tmp_path / "work.py"
        script.write_text(
            "import sys\n"
            'print(\'{"step": "Fusing", "done": 1, "total": 4}\', file=sys.stderr)\n'
            "print('hyperfuse: a note', file=sys.stderr)\n"
            "print('out.tif')\n"
            "sys.exit(int(sys.argv[1]))\n"
        )
        steps: list[tuple[str, float]] = []
        said: list[str] = []
        words = [sys.executable, str(script)]
        printed = command.run([*words, "0"], lambda *step: steps.append(step), said.append, lambda: False)
        assert (printed, steps, said) == ("out.tif\n", [("Fusing", 25.0)], ["hyperfuse: a note"])
        with pytest.raises(command.CommandError, match="hyperfuse: a note"):
            command.run([*words, "2"], lambda *step: None, said.append, lambda: False)

    def test_cancelled(self, command: ModuleType) -> None:
        steps: list[str] = []
        line = '{"step": "Fusing", "done": 0, "total": 1}'
        code = f"import sys, time; print({line!r}, file=sys.stderr, flush=True); time.sleep(60)"
        words = [sys.executable, "-c", code]
        with pytest.raises(command.CommandError, match="cancelled"):
            command.run(words, lambda step, _: steps.append(step), lambda line: None, lambda: bool(steps))

    def test_missing_command(self, command: ModuleType) -> None:
        with pytest.raises(command.CommandError, match="pip install hyperfuse"):
            command.find_command("/nowhere/hyperfuse")


def test_the_command_describes_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["options", "fuse", "report"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert list(described) == ["fuse", "report"]
    assert [one["name"] for one in described["fuse"]["options"]] == list(FuseConfig.model_fields)
    method = next(one for one in described["fuse"]["options"] if one["name"] == "method")
    assert method["default"] in method["choices"] and "auto" in method["choices"]
    assert run(["options", "demo"]) == 2
    assert "one of fuse, estimate" in capsys.readouterr().err


def test_lines_of_progress(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYPERFUSE_PROGRESS", "json")
    files = [str(pair / "hsi.tif"), str(pair / "msi.tif"), str(tmp_path / "fused.tif")]
    assert run(["fuse", *files, "-r", "bicubic", "--no-estimate"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert lines[-1]["done"] == lines[-1]["total"] > 0


def test_the_plug_in_has_the_version_of_the_package() -> None:
    metadata = ConfigParser()
    metadata.read(PLUGIN / "metadata.txt", encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["general"]["version"] == project["version"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A profile of QGIS with the plug-in from the archive, and the command on the PATH."""
    folder = tmp_path_factory.mktemp("qgis")
    subprocess.run(["make", "qgis", f"DIST={folder}"], cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(folder / "hyperfuse_qgis.zip") as archive:
        assert "hyperfuse_qgis/LICENSE" in archive.namelist()
        archive.extractall(folder / "plugins")
    script = folder / "bin" / "hyperfuse"
    script.parent.mkdir()
    # The plug-in removes QGIS's PYTHONPATH.
    start = f'PYTHONPATH={ROOT / "src"} exec {sys.executable} -c "from hyperfuse.cli.app import main; main()" "$@"'
    script.write_text(f"#!/bin/sh\n{start}\n")
    script.chmod(0o755)
    return {
        **{name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")},
        "PATH": f"{script.parent}{os.pathsep}/usr/bin:/bin",
        "QGIS_PLUGINPATH": str(folder / "plugins"),
        "QGIS_CUSTOM_CONFIG_PATH": str(folder / "profile"),
        "QT_QPA_PLATFORM": "offscreen",
    }


@pytest.mark.skipif(QGIS_PROCESS is None, reason="QGIS is not installed")
def test_fuse_and_evaluate_in_qgis(environment: dict[str, str], pair: Path, tmp_path: Path) -> None:
    def qgis_process(*words: str) -> str:
        assert QGIS_PROCESS is not None
        command = [QGIS_PROCESS, *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    qgis_process("plugins", "enable", "hyperfuse_qgis")
    # QGIS itself cannot read this format.
    hyperfuse.write_cube(hyperfuse.open_cube(pair / "msi.tif"), tmp_path / "msi.npz")
    fused, scores = tmp_path / "fused.tif", tmp_path / "scores.json"
    images = [f"HSI={pair / 'hsi.tif'}", f"MSI={tmp_path / 'msi.npz'}"]
    options = ["method=gsa", "estimate=false", "creation_options=TILED=no"]
    shown = qgis_process("run", "hyperfuse:fuse", "--", *images, *options, f"OUTPUT={fused}")
    assert "--co TILED=no --no-estimate --method gsa --overwrite" in shown
    assert hyperfuse.open_cube(fused).shape == (24, 24, 24)
    evaluated = [f"FUSED={fused}", f"REFERENCE={pair / 'reference.tif'}", f"OUTPUT={scores}"]
    qgis_process("run", "hyperfuse:evaluate", "--", *evaluated)
    assert json.loads(scores.read_text())["psnr_db"] > 0
