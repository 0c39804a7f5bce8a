"""Pairs whose HSI looks elsewhere than its georeference says, by an offset that may differ from place to place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates
from tests.methods.tiny_pairs import dead_leaves

from hyperfuse import make_cube
from hyperfuse.physics.observation import sigma_from_fwhm

FINE = Affine(10, 0, 500_000, 0, -10, 5_800_000)
SCALE, BANDS = 4, 8
# Scene around what the MSI shows, so that an HSI that looks beyond it still sees something true.
AROUND = 24
Field = Callable[[NDArray[np.float64], NDArray[np.float64]], tuple[NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True)
class ShiftedPair:
    hsi: xr.DataArray
    msi: xr.DataArray
    reference: NDArray[np.float32]
    rows: NDArray[np.float64]
    columns: NDArray[np.float64]
    """Fine positions of the HSI's pixels by georeference, and beside that where they look."""
    offsets: NDArray[np.float64]


@cache
def scene(size: int, seed: int) -> NDArray[np.float64]:
    return dead_leaves(BANDS, size, size, seed=seed).numpy()


def shifted_pair(
    field: Field, coarse: int = 40, seed: int = 0, noise: float = 0.003, msi_seed: int | None = None
) -> ShiftedPair:
    """`field` gives the offset (down, right) in fine pixels at shares of the scene's height and width."""
    fine = coarse * SCALE
    whole = scene(fine + 2 * AROUND, seed)
    cut = slice(AROUND, AROUND + fine)
    centres = (np.arange(coarse) + 0.5) * SCALE - 0.5
    rows, columns = np.meshgrid(centres, centres, indexing="ij")
    offsets = np.stack([np.broadcast_to(axis, rows.shape) for axis in field(rows / fine, columns / fine)]).astype(
        np.float64
    )
    looks = rows + AROUND + offsets[0], columns + AROUND + offsets[1]
    blurred = gaussian_filter(whole, (0, sigma_from_fwhm(SCALE), sigma_from_fwhm(SCALE)))
    random = np.random.default_rng(seed)
    hsi = np.stack([map_coordinates(band, looks, order=3) for band in blurred])
    shown = scene(fine + 2 * AROUND, seed if msi_seed is None else msi_seed)[:, cut, cut]
    msi = np.stack([shown[first : first + 3].mean(axis=0) for first in (0, 2, 5)])
    hsi, msi = ((image + noise * random.standard_normal(image.shape)).astype(np.float32) for image in (hsi, msi))
    return ShiftedPair(
        make_cube(hsi, crs=32633, transform=FINE @ Affine.scale(SCALE)),
        make_cube(msi, crs=32633, transform=FINE),
        whole[:, cut, cut].astype(np.float32),
        rows,
        columns,
        offsets,
    )


def psnr_db(fused: xr.DataArray, reference: NDArray[np.float32], margin: int = 16) -> float:
    inner = (slice(None), slice(margin, -margin), slice(margin, -margin))
    error = float(np.square(fused.values[inner] - reference[inner], dtype=np.float64).mean())
    return float(10 * np.log10(float(reference.max()) ** 2 / error))
