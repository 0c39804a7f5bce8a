"""Scenes of a few pixels for the benchmark, from seeds, and results made by hand."""

from __future__ import annotations

import numpy as np

from hyperfuse.benchmarking.results import SCORED, CaseName, Result
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube

WAVELENGTH_NM = np.linspace(420.0, 900.0, 12)


def write_scene(path, seed=0, size=32, bands=12, wavelengths=True):
    """Patches of three materials with a little texture, counts up to 4000."""
    generator = np.random.default_rng(seed)
    materials = generator.uniform(0.1, 1.0, (3, bands))
    which = np.kron(generator.integers(0, 3, (size // 4, size // 4)), np.ones((4, 4), int))
    texture = generator.uniform(0.8, 1.2, (size, size))
    values = (4000 / 1.3 * materials[which].transpose(2, 0, 1) * texture).astype(np.uint16)
    write_cube(make_cube(values, wavelength_nm=WAVELENGTH_NM[:bands] if wavelengths else None), path)
    return path


def result(model, psnr_db, scene="one", scale=4.0, knowledge="blind", state=SCORED, **others):
    name = CaseName("valley", scene, "rgb", scale, others.pop("condition", "clean"))
    figures = (
        {"spectral_angle_degrees": 90.0 - psnr_db, "ergas": 100.0 / psnr_db, "ssim": psnr_db / 100.0} if psnr_db else {}
    )
    return Result(name, model, knowledge, state, psnr_db=psnr_db, **(figures | others))
