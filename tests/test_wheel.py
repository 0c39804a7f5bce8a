"""What a stranger does: build the wheel, install it into a clean environment, ask for help, fuse two small files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from affine import Affine

from hyperfuse import make_cube, open_cube, write_cube

REPOSITORY = Path(__file__).parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(os.environ.get("HYPERFUSE_SKIP_WHEEL")), reason="HYPERFUSE_SKIP_WHEEL is set"),
]


def run(*command: str | Path) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_wheel_installs_and_fuses(tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, REPOSITORY)
    wheel = next(tmp_path.glob("hyperfuse-*.whl"))
    run(sys.executable, "-m", "venv", tmp_path / "clean")
    clean = tmp_path / "clean" / "bin"
    run(clean / "pip", "install", "-q", "-c", REPOSITORY / "constraints.txt", wheel)

    assert "fuse" in run(clean / "hyperfuse", "--help")
    random = np.random.default_rng(1)
    hsi = random.random((6, 8, 8)).astype(np.float32)
    msi = random.random((2, 32, 32)).astype(np.float32)
    write_cube(
        make_cube(hsi, wavelength_nm=np.linspace(450, 900, 6), crs=32633, transform=Affine(40, 0, 0, 0, -40, 0)),
        tmp_path / "h.tif",
    )
    write_cube(make_cube(msi, crs=32633, transform=Affine(10, 0, 0, 0, -10, 0)), tmp_path / "m.tif")
    run(clean / "hyperfuse", "fuse", tmp_path / "h.tif", tmp_path / "m.tif", "-o", tmp_path / "fused.tif")
    fused = open_cube(tmp_path / "fused.tif")
    assert fused.shape == (6, 32, 32)
    assert np.allclose(fused["wavelength"], np.linspace(450, 900, 6))
