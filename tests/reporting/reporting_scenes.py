"""A tiny scene made of four surfaces, with wavelengths, CRS and a gap where water vapour would be."""

from __future__ import annotations

import numpy as np
import xarray as xr
from affine import Affine

from hyperfuse.io.cube import make_cube

WAVELENGTH_NM = np.concatenate([np.arange(420, 1340, 40), np.arange(1460, 1800, 40), np.arange(1980, 2400, 40)]).astype(
    float
)


def transform(pixel: float) -> Affine:
    return Affine(pixel, 0, 500_000, 0, -pixel, 4_200_000)


def make_reference(height: int = 40, width: int = 48) -> xr.DataArray:
    """Quarters of four different spectra, with a little noise."""
    rng = np.random.default_rng(0)
    x = (WAVELENGTH_NM - 420) / 2000
    surfaces = np.stack([0.05 + 0.02 * x, 0.1 + 0.6 * (x > 0.15), 0.2 + 0.5 * x, 0.8 - 0.3 * x])
    quarter = 2 * (np.arange(height)[:, None] >= height // 2) + (np.arange(width) >= width // 2)
    values = np.moveaxis(surfaces[quarter], -1, 0) + 0.01 * rng.standard_normal((len(x), height, width))
    return make_cube(values, wavelength_nm=WAVELENGTH_NM, crs="EPSG:32632", transform=transform(10))


def make_hsi(reference: xr.DataArray, scale: int = 4) -> xr.DataArray:
    bands, height, width = reference.shape
    means = reference.values.reshape(bands, height // scale, scale, width // scale, scale).mean(axis=(2, 4))
    return make_cube(means, wavelength_nm=WAVELENGTH_NM, crs="EPSG:32632", transform=transform(10 * scale))


def make_msi(reference: xr.DataArray) -> xr.DataArray:
    bands = [1, 3, 6, 11]
    return make_cube(
        reference.values[bands], wavelength_nm=WAVELENGTH_NM[bands], crs="EPSG:32632", transform=transform(10)
    )


def repeated(hsi: xr.DataArray, scale: int = 4) -> xr.DataArray:
    values = hsi.values.repeat(scale, axis=1).repeat(scale, axis=2)
    return make_cube(values, wavelength_nm=WAVELENGTH_NM, crs="EPSG:32632", transform=transform(10))
