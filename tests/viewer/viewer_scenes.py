"""A small landscape with a true pair: fields, a lake and a road, seen by a coarse HSI and a fine MSI."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
from affine import Affine

from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube
from hyperfuse.physics.simulate import simulate

WAVELENGTH_NM = np.concatenate([np.arange(430, 1330, 50), np.arange(1480, 1800, 50), np.arange(2020, 2400, 50)]).astype(
    float
)
BAD = (18, 25)
PIXEL = 10.0


def make_reference(side: int = 96) -> xr.DataArray:
    rng = np.random.default_rng(7)
    x = (WAVELENGTH_NM - 430) / 1950
    edge = 1 / (1 + np.exp(-(WAVELENGTH_NM - 720) / 18))
    spectra = np.stack(
        [
            0.03 + 0.42 * edge * np.exp(-1.1 * x) * (1 + 0.1 * np.sin(9 * x)),
            0.12 + 0.28 * np.sqrt(x),
            0.06 * np.exp(-4 * x) + 0.01,
            0.3 + 0.1 * x - 0.08 * np.exp(-(((WAVELENGTH_NM - 2200) / 60) ** 2)),
        ]
    )
    rows, columns = np.mgrid[0:side, 0:side] / side
    surface = (np.floor(rows * 5) + np.floor(columns * 4 + 0.4 * rows)).astype(int) % 2
    surface[(rows - 0.55) ** 2 + (columns - 0.35) ** 2 < 0.03] = 2
    surface[np.abs(rows - 0.8 * columns - 0.05) < 0.02] = 3
    shade = 1 + 0.25 * np.sin(14 * columns + 5 * rows) * np.cos(11 * rows) + 0.03 * rng.standard_normal((side, side))
    values = np.moveaxis(spectra[surface], -1, 0) * shade
    good = np.ones(len(WAVELENGTH_NM), dtype=bool)
    good[list(BAD)] = False
    return make_cube(
        values.astype(np.float32),
        wavelength_nm=WAVELENGTH_NM,
        fwhm_nm=np.full(len(WAVELENGTH_NM), 12.0),
        good=good,
        crs="EPSG:32633",
        transform=Affine(PIXEL, 0, 400_000, 0, -PIXEL, 5_800_000),
    )


def write_pair(folder: Path, side: int = 96, scale: int = 4) -> xr.DataArray:
    """reference.tif, hsi.tif and msi.tif of one scene."""
    reference = make_reference(side)
    pair = simulate(reference, scale=scale, srf="rgb+nir")
    for name, cube in (("reference", reference), ("hsi", pair.hsi), ("msi", pair.msi)):
        write_cube(cube, folder / f"{name}.tif")
    return reference
