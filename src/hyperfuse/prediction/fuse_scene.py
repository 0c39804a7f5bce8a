"""The one way in: two images, in memory or in files, become one fused cube."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import as_cube
from hyperfuse.cubes.files import creator_for, open_cube, write_cube
from hyperfuse.cubes.publishing import refuse_unwritable
from hyperfuse.estimation.observation import known_observation
from hyperfuse.methods.bicubic import bicubic
from hyperfuse.prediction.aligned_pair import AlignedPair, align_pair
from hyperfuse.prediction.fused_cube import fused_cube

Image = xr.DataArray | NDArray[Any] | str | os.PathLike[str]


def fuse(hsi: Image, msi: Image, *, method: str = "bicubic") -> xr.DataArray:
    """Fuse a coarse hyperspectral image with a fine multispectral one.

    Both may be cubes, (band, y, x) arrays or files. The result lies on the MSI's grid and has the HSI's bands, data type, scale and
    nodata. Without georeference on both images they are taken to cover the same extent.
    """
    hsi_cube, msi_cube = _as_image(hsi), _as_image(msi)
    pair = align_pair(hsi_cube, msi_cube)
    fused = fuse_pair(pair, method)
    return fused_cube(fused, pair, hsi_cube, msi_cube, {"hyperfuse_method": method})


def fuse_files(
    hsi: str | os.PathLike[str],
    msi: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    method: str = "bicubic",
    options: Mapping[str, str] | None = None,
    cog: bool = False,
    overwrite: bool = False,
) -> Path:
    """The same from file to file. What cannot be written is said before the work, not after it."""
    output = Path(output)
    creator_for(output)
    refuse_unwritable(output, overwrite=overwrite)
    fused = fuse(hsi, msi, method=method)
    fused.attrs |= {"hyperfuse_hsi": Path(hsi).name, "hyperfuse_msi": Path(msi).name}
    return write_cube(fused, output, options=options, cog=cog, overwrite=overwrite)


def fuse_pair(pair: AlignedPair, method: str) -> NDArray[np.float32]:
    """(C, H, W) physical values; NaN where the MSI has no data."""
    hsi, msi = torch.from_numpy(np.ascontiguousarray(pair.hsi)), torch.from_numpy(pair.msi)
    response = torch.zeros(msi.shape[0], hsi.shape[0], dtype=torch.float64)
    observation = known_observation(response, pair.scale, shift=pair.grid_shift)
    fused = bicubic(hsi, msi, observation)
    fused[:, torch.isnan(msi).any(dim=0)] = torch.nan
    return fused.numpy()


def _as_image(image: Image) -> xr.DataArray:
    return open_cube(image) if isinstance(image, str | os.PathLike) else as_cube(image)
