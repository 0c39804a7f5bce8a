"""A pair of any size, generated strip by strip, so that making it takes less memory than fusing it.

Fields of a few materials with uneven light; the HSI sees them through a Gaussian point spread, the MSI through four
wide bands.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from hyperfuse.config import OutputConfig
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import created_cube

SCALE = 4
SIGMA = SCALE / 2.355
MATERIALS = 9
FIELD = 23  # fine pixels along the side of a field
STRIP = 32  # coarse rows made at once
MARGIN = 4  # coarse rows around a strip, for the point spread
FINE = Affine(10, 0, 500000, 0, -10, 5800000)


def write_pair(folder: Path, side: int, bands: int) -> tuple[Path, Path]:
    """`hsi.tif` of side x side pixels and `msi.tif` of four times as many along each side, uint16 reflectance times
    10000, not compressed.
    """
    random = np.random.default_rng(0)
    wavelength = np.linspace(420, 2450, bands)
    spectra = np.stack([_spectrum(wavelength, random) for _ in range(MATERIALS)])
    srf = np.stack([np.exp(-(((wavelength - centre) / width) ** 2)) for centre, width in BANDS])
    srf /= srf.sum(axis=1, keepdims=True)
    hsi_like = _template((bands, side, side), FINE @ Affine.scale(SCALE), wavelength)
    msi_like = _template((len(BANDS), side * SCALE, side * SCALE), FINE, np.array([centre for centre, _ in BANDS]))
    paths = folder / "hsi.tif", folder / "msi.tif"
    plain = OutputConfig(compress="none", overwrite=True)
    with created_cube(paths[0], hsi_like, plain) as hsi, created_cube(paths[1], msi_like, plain) as msi:
        for top in range(0, side, STRIP):
            rows = slice(top, min(side, top + STRIP))
            shares, seen = _strip(rows, side)
            hsi.write(rows, slice(0, side), _stored(np.tensordot(spectra.T, seen, 1)))
            fine_rows = slice(rows.start * SCALE, rows.stop * SCALE)
            msi.write(fine_rows, slice(0, side * SCALE), _stored(np.tensordot(srf @ spectra.T, shares, 1)))
    return paths


BANDS = ((490, 45), (560, 25), (665, 25), (842, 75))


def _strip(rows: slice, side: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Shares of the materials (K, fine rows, fine columns) in a strip of coarse rows, and as the HSI sees them."""
    first, last = max(0, rows.start - MARGIN), min(side, rows.stop + MARGIN)
    y, x = np.arange(first * SCALE, last * SCALE)[:, None], np.arange(side * SCALE)[None, :]
    field = (y // FIELD * 7919 + x // FIELD * 104729) * 2654435761 % 2**32 // 8 % MATERIALS
    waves = sum(np.sin((y * a + x * b) / 29.0 + a) for a, b in ((1.0, 0.3), (-0.4, 1.1), (0.2, -0.7)))
    grain = np.sin(y * 12.9898 + x * 78.233) * 43758.5453 % 1.0
    light = (1 + 0.08 * waves + 0.1 * (grain - 0.5)).astype(np.float32)
    shares = np.stack([np.where(field == material, light, np.float32(0)) for material in range(MATERIALS)])
    blurred = gaussian_filter(shares, (0, SIGMA, SIGMA), mode="reflect", truncate=4.0)
    # A coarse pixel looks at the middle of its four fine ones, between the second and the third.
    halves = (blurred[:, 1::SCALE] + blurred[:, 2::SCALE]) / 2
    seen = (halves[:, :, 1::SCALE] + halves[:, :, 2::SCALE]) / 2
    own = slice(rows.start - first, rows.stop - first)
    return shares[:, own.start * SCALE : own.stop * SCALE], seen[:, own]


def _spectrum(wavelength: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    bumps = [
        random.normal(0, 0.12) * np.exp(-(((wavelength - random.uniform(400, 2500)) / random.uniform(60, 500)) ** 2))
        for _ in range(8)
    ]
    return np.clip(0.25 + sum(bumps), 0.02, 0.9)


def _template(shape: tuple[int, int, int], transform: Affine, wavelength: NDArray[np.float64]) -> xr.DataArray:
    values = np.broadcast_to(np.zeros((), np.uint16), shape)
    return make_cube(values, wavelength_nm=wavelength, scale=1e-4, crs=32633, transform=transform)


def _stored(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    return (values * 1e4).round().astype(np.uint16)
