"""Tiny files that are built and named like those of the public data sets."""

from __future__ import annotations

import warnings

import h5py
import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning
from scipy.io import savemat

from hyperfuse.data.datasets import DATASETS


def random_cube(name, rows=12, columns=10, dtype=np.uint16, bands=None):
    """(bands, rows, columns), counts without a zero."""
    generator = np.random.default_rng(sum(map(ord, name)))
    return generator.integers(1, 4000, (bands or DATASETS[name].bands, rows, columns)).astype(dtype)


def write_raster(path, cube, driver, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        count, height, width = cube.shape
        profile = {"driver": driver, "count": count, "height": height, "width": width, "dtype": cube.dtype, **options}
        with rasterio.open(path, "w", **profile) as target:
            target.write(cube)


def write_cave(folder, names):
    """One 16-bit PNG per band; watercolors has 8 bits in four channels."""
    cubes = {}
    for name in names:
        cube = random_cube("CAVE") + len(name)
        place = folder / "complete_ms_data" / f"{name}_ms" / f"{name}_ms"
        for band, values in enumerate(cube, start=1):
            if name == "watercolors":
                image = np.stack([(values >> 4).astype(np.uint8)] * 3 + [np.full(values.shape, 255, np.uint8)])
            else:
                image = values[None]
            write_raster(place / f"{name}_ms_{band:02d}.png", image, "PNG")
        cubes[f"cave_{name}"] = cube >> 4 if name == "watercolors" else cube
        write_raster(place / f"{name}_RGB.bmp", np.zeros((3, 12, 10), np.uint8), "BMP")
    return cubes


def write_mat(path, **arrays):
    """Version 5, (rows, columns, bands)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {key: value.transpose(1, 2, 0) if value.ndim == 3 else value for key, value in arrays.items()})


def write_mat73(path, name, cube):
    """Version 7.3: HDF5 with all axes the other way round, behind MATLAB's own header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", userblock_size=512) as file:
        stored = file.create_dataset(
            name, data=cube.transpose(0, 2, 1), chunks=(1, *cube.transpose(0, 2, 1).shape[1:]), compression=1
        )
        stored.attrs["MATLAB_class"] = np.bytes_({"d": "double", "H": "uint16"}[cube.dtype.char])
    with path.open("r+b") as raw:
        raw.write(
            b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Tue Jul 29 10:00:00 2014 HDF5 schema 1.00 .".ljust(
                116
            )
        )
        raw.write(bytes(8) + b"\x00\x02IM")


def write_envi(header, cube, suffix, wavelength_nm=None):
    """(bands, rows, columns) as bsq, with a header that may hold wavelengths."""
    header.parent.mkdir(parents=True, exist_ok=True)
    header.with_suffix(suffix).write_bytes(cube.tobytes())
    bands, rows, columns = cube.shape
    lines = [
        "ENVI",
        f"samples = {columns}",
        f"lines = {rows}",
        f"bands = {bands}",
        "header offset = 0",
        "file type = ENVI Standard",
    ]
    lines += ["file type = ENVI Standard", "data type = 12", "interleave = bsq", "byte order = 0"]
    if wavelength_nm is not None:
        lines += ["wavelength units = Nanometers", f"wavelength = {{{', '.join(map(str, wavelength_nm))}}}"]
    header.write_text("\n".join(lines) + "\n", encoding="utf-8")
