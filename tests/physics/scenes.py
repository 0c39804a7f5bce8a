"""Small seeded references with a true CRS and wavelengths, and where the real scenes are."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from affine import Affine

from hyperfuse.io.cube import make_cube

TRANSFORM = Affine(30.0, 0.0, 399_960.0, 0.0, -30.0, 4_500_000.0)


def small_reference(bands: int = 9, height: int = 24, width: int = 32, seed: int = 0) -> xr.DataArray:
    """Reflectance in 400-1000 nm, UTM 33N, float64."""
    values = np.random.default_rng(seed).uniform(0.05, 0.9, (bands, height, width))
    return make_cube(
        values,
        wavelength_nm=np.linspace(400, 1000, bands),
        fwhm_nm=np.full(bands, 12.0),
        band_names=[f"channel {i}" for i in range(bands)],
        crs=32633,
        transform=TRANSFORM,
    )


def real_folder() -> Path:
    """The folder of real scenes; skips the test where there is none."""
    repository = Path(__file__).resolve().parents[2]
    folder = Path(os.environ.get("HYPERFUSE_DATA", repository.parent / "shared" / "data"))
    if not (folder / "index.csv").is_file():
        pytest.skip("real scenes are not here (../shared/data or HYPERFUSE_DATA)")
    return folder
