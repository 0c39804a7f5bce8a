"""What pictures of a case need, kept while it is run: fused cubes themselves would fill the disk.

Of every competitor a colour composite, the map of its error and the spectra of a few pixels. Shapes: H W fine pixels, C bands,
P pixels.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.publishing import published
from hyperfuse.reporting.colour import colour_composite, stretch_limits
from hyperfuse.reporting.error_map import error_map
from hyperfuse.reporting.spectra import distinct_pixels, spectral_axis
from hyperfuse.scoring.case import CaseName, CasePair

FOLDER = "pictures"
INPUTS = "inputs"
SPECTRA = 4


@dataclass(frozen=True, eq=False)
class InputViews:
    """Of the pair and its reference."""

    hsi: NDArray[np.uint8]
    msi: NDArray[np.uint8]
    reference: NDArray[np.uint8]
    pixels: NDArray[np.int64]
    """(P, 2), rows and columns."""
    spectra: NDArray[np.float32]
    """(P, C) of the reference."""
    positions: NDArray[np.float64]
    """(C,) wavelengths, or band numbers."""
    axis_name: str


@dataclass(frozen=True, eq=False)
class FusedViews:
    composite: NDArray[np.uint8]
    error: NDArray[np.float32]
    """(H, W) root mean square error over the bands."""
    spectra: NDArray[np.float32]


def case_folder(folder: Path, case: CaseName) -> Path:
    words = re.sub(r"[^A-Za-z0-9.+]+", "_", f"{case.dataset} {case}")
    return folder / FOLDER / f"{words[:80]}_{zlib.crc32(repr(case).encode()):08x}"


def keep_views(folder: Path, pair: CasePair, competitor: str, fused: NDArray[np.float32]) -> None:
    """Into the folder of the case; what is common to all competitors is made once."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = folder / f"{INPUTS}.npz"
    if not inputs.exists():
        _save(inputs, _input_views(pair))
    pixels = load_inputs(folder).pixels
    cube = make_cube(np.clip(fused, 0.0, 1.0), wavelength_nm=pair.reference["wavelength"].values)
    views = FusedViews(
        colour_composite(cube, stretch_limits(pair.reference)),
        error_map(cube, _bare(pair.reference)).astype(np.float32),
        fused[:, pixels[:, 0], pixels[:, 1]].T.astype(np.float32),
    )
    _save(_fused_file(folder, competitor), views)


def load_inputs(folder: Path) -> InputViews:
    with np.load(folder / f"{INPUTS}.npz") as stored:
        return InputViews(**{name: stored[name] for name in stored} | {"axis_name": str(stored["axis_name"])})


def load_fused(folder: Path, competitors: Iterable[str]) -> dict[str, FusedViews]:
    """Of those that were kept, in the order asked for."""
    found = {}
    for competitor in competitors:
        path = _fused_file(folder, competitor)
        if path.exists():
            with np.load(path) as stored:
                found[competitor] = FusedViews(**{name: stored[name] for name in stored})
    return found


def _fused_file(folder: Path, competitor: str) -> Path:
    """Users call their weights as they like: names that are no file names, or the inputs', get another one."""
    words = re.sub(r"[^\w.+ -]+", "_", competitor)
    return folder / (f"{words}.npz" if words == competitor != INPUTS else f"{words}_{zlib.crc32(competitor.encode()):08x}.npz")


def _input_views(pair: CasePair) -> InputViews:
    reference = pair.reference
    pixels = np.array(distinct_pixels(reference, SPECTRA))
    positions, axis_name = spectral_axis(reference)
    return InputViews(
        colour_composite(pair.hsi, stretch_limits(reference)),
        colour_composite(pair.msi),
        colour_composite(reference),
        pixels,
        reference.values[:, pixels[:, 0], pixels[:, 1]].T.astype(np.float32),
        np.asarray(positions, dtype=np.float64),
        axis_name,
    )


def _bare(cube: xr.DataArray) -> xr.DataArray:
    """Without a place, which a fused image of plain arrays has not."""
    return make_cube(cube.values, wavelength_nm=cube["wavelength"].values)


def _save(path: Path, views: Any) -> None:
    with published(path, overwrite=True) as target, target.open("wb") as file:
        np.savez_compressed(file, **{each.name: getattr(views, each.name) for each in fields(views)})
