"""Pairs that are cheap to make and not trivial to fuse, and a way to have small scenes fused in tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from affine import Affine
from scipy.ndimage import gaussian_filter, zoom

from hyperfuse import make_cube, write_cube
from hyperfuse.fusion import plan, run

FINE = Affine(10, 0, 500000, 0, -10, 5800000)
KNOWN = {"estimate": False}


def made_pair(coarse: tuple[int, int], bands: int, scale: int, seed: int = 0) -> tuple[xr.DataArray, xr.DataArray]:
    """Fields of five materials under uneven light: int16 with a scale, georeferenced."""
    random = np.random.default_rng(seed)
    fine = (coarse[0] * scale, coarse[1] * scale)
    wavelength = np.linspace(430, 900, bands)
    spectra = 0.2 + 0.15 * np.stack(
        [np.sin(wavelength / period + 2 * index) for index, period in enumerate((60, 90, 140, 70, 200))]
    )
    fields = zoom(random.integers(0, 5, (fine[0] // 8 + 1, fine[1] // 8 + 1)), 8, order=0)[: fine[0], : fine[1]]
    light = 1 + 0.3 * gaussian_filter(random.standard_normal(fine), 2)
    shares = [light * (fields == index) for index in range(len(spectra))]
    seen = [gaussian_filter(share, 0.42 * scale)[scale // 2 :: scale, scale // 2 :: scale] for share in shares]
    srf = np.stack([np.exp(-(((wavelength - centre) / 40) ** 2)) for centre in (490, 560, 665, 840)])
    srf /= srf.sum(axis=1, keepdims=True)
    hsi = np.tensordot(spectra.T, np.stack(seen), axes=1)
    msi = np.tensordot(srf @ spectra.T, np.stack(shares), axes=1)
    return (
        make_cube(stored(hsi), wavelength_nm=wavelength, scale=1e-4, crs=32633, transform=FINE @ Affine.scale(scale)),
        make_cube(stored(msi), scale=1e-4, crs=32633, transform=FINE),
    )


def stored(values: np.ndarray) -> np.ndarray:
    return (1e4 * values).round().astype(np.int16)


def written_pair(
    folder: Path, coarse: tuple[int, int] = (40, 44), bands: int = 12, scale: int = 4
) -> tuple[Path, Path]:
    hsi, msi = made_pair(coarse, bands, scale)
    return write_cube(hsi, folder / "hsi.hdr"), write_cube(msi, folder / "msi.hdr")


def small_tiles(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int] = (64, 64)) -> None:
    """As if memory allowed tiles of this size and no others, all of which are kept."""
    monkeypatch.setattr(plan, "TILE_SIZES", (size,))
    monkeypatch.setattr(plan, "LARGEST_WHOLE_SIDE", 0)
    monkeypatch.setattr(run, "SECONDS_NOT_KEPT", 0.0)
