"""A product as written by a fixture: its path, and the cube expected from it."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from affine import Affine
from numpy.typing import NDArray

HEIGHT, WIDTH = 12, 10
UTM_32 = 32632
GRID = Affine(30.0, 0.0, 650010.0, 0.0, -30.0, 5340000.0)


@dataclass(frozen=True)
class Written:
    path: Path
    """What a user would name."""
    physical: NDArray[np.float64]
    """(band, y, x), NaN where there is nothing."""
    wavelength_nm: NDArray[np.float64]
    fwhm_nm: NDArray[np.float64]
    good: NDArray[np.bool_]
    crs: int | None
    transform: Affine | None
    product: str
    sensor: str
    shown: Sequence[str] = ()
    """Text that `hyperfuse info` must print."""


def counts(seed: int, shape: tuple[int, ...], low: int, high: int, dtype: Any) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def write_tif(
    path: Path, values: NDArray[Any], transform: Affine | None = GRID, nodata: float | None = None, **profile: Any
) -> None:
    bands, height, width = values.shape
    place = {} if transform is None else {"crs": f"EPSG:{UTM_32}", "transform": transform}
    shape: dict[str, Any] = {
        "count": bands,
        "height": height,
        "width": width,
        "dtype": values.dtype.name,
        "nodata": nodata,
    }
    with rasterio.open(path, "w", **({"driver": "GTiff"} | profile), **shape, **place) as target:
        target.write(values)


def zipped(folder: Path, archive: Path, *, compressed: bool = True) -> Path:
    """The folder as agencies pack it: with its own name on top."""
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(archive, "w", how) as target:
        for file in sorted(folder.rglob("*")):
            target.write(file, file.relative_to(folder.parent))
    return archive


def tarred(folder: Path, archive: Path, *, inside: str | None = None) -> Path:
    with tarfile.open(archive, "w:gz" if archive.suffix == ".gz" else "w") as target:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            target.add(file, f"{folder.name if inside is None else inside}/{file.relative_to(folder)}".lstrip("/"))
    return archive
