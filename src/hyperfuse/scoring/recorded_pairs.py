"""Pairs that two sensors took: whole (hsi, msi and a reference), or with an hsi that is made of the reference.

Of such a pair nobody knows how it was truly observed, so it is only fused blind. Reference and hsi are divided by the 99.95th
percentile of the reference, the msi by its own.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import xarray as xr

from hyperfuse.cubes.cube import make_cube, physical_values
from hyperfuse.cubes.files import open_cube
from hyperfuse.cubes.grid import grid_of
from hyperfuse.degradation.simulation import simulate_pair
from hyperfuse.errors import GridError, OptionError
from hyperfuse.loading.scene import scene_unit
from hyperfuse.prediction.aligned_pair import align_pair
from hyperfuse.scoring.case import CasePair

DATASET = "recorded"


@dataclass(frozen=True, eq=False)
class RecordedPair:
    """What two sensors took of one place. Without an hsi it is made of the reference, at every scale."""

    name: str
    hsi: xr.DataArray | None
    msi: xr.DataArray
    reference: xr.DataArray

    @property
    def digest(self) -> str:
        """Tells whether a run that is continued still has the pixels that it began with."""
        cubes = [cube for cube in (self.hsi, self.msi, self.reference) if cube is not None]
        return " ".join(f"{zlib.crc32(np.ascontiguousarray(cube.values).tobytes()):08x}" for cube in cubes)

    def scales(self, wanted: Sequence[float]) -> list[float]:
        """Those asked for, or the one that the pair has."""
        if self.hsi is None:
            return list(wanted)
        return [float(np.mean(align_pair(self.hsi, self.msi).scale))]

    def case(self, scale: float) -> CasePair:
        if self.hsi is not None:
            return CasePair(self.hsi, self.msi, self.reference, None, None, scale)
        one_band = np.eye(1, self.reference.sizes["band"])
        with warnings.catch_warnings():
            # The msi that is made beside the hsi is of no use here.
            warnings.simplefilter("ignore")
            made = simulate_pair(self.reference, scale, one_band)
        rows, columns = made.reference.sizes["y"], made.reference.sizes["x"]
        return CasePair(made.hsi, self.msi.isel(y=slice(0, rows), x=slice(0, columns)), made.reference, None, None, scale)


def read_pairs(texts: Sequence[str]) -> list[RecordedPair]:
    """Called by the file of the first image, and where several are called the same, by its folder, too."""
    pairs = [read_pair(text) for text in texts]
    names = [pair.name for pair in pairs]
    folders = [Path(text.split(",")[0].strip()).absolute().parent.name for text in texts]
    named = [
        replace(pair, name=f"{folder}/{pair.name}") if names.count(pair.name) > 1 else pair
        for pair, folder in zip(pairs, folders, strict=True)
    ]
    doubles = [pair.name for place, pair in enumerate(named) if pair.name in [other.name for other in named[:place]]]
    if doubles:
        raise OptionError(
            f"two pairs called {doubles[0]}", "names that differ", "rename a file, or leave out one of the two --pair"
        )
    return named


def read_pair(text: str) -> RecordedPair:
    """`HSI,MSI,REFERENCE`, or `REFERENCE,MSI` where the hsi is to be made of the reference."""
    paths = [Path(part.strip()) for part in text.split(",")]
    if len(paths) not in (2, 3) or not all(path.name for path in paths):
        raise OptionError(f"pair {text!r}", "HSI,MSI,REFERENCE, or REFERENCE,MSI to make the HSI of the reference")
    cubes = [open_cube(path) for path in paths]
    if len(cubes) == 2:
        reference, msi = cubes
        if reference.shape[1:] != msi.shape[1:]:
            raise GridError(
                f"{paths[0].name} of {reference.shape[1]}x{reference.shape[2]} pixels and {paths[1].name} of "
                f"{msi.shape[1]}x{msi.shape[2]}",
                "a reference and an MSI of the same pixels",
                "cut both to one grid, or give HSI,MSI,REFERENCE",
            )
        return RecordedPair(paths[0].stem, None, _in_unit(msi, _unit(msi)), _in_unit(reference, _unit(reference)))
    hsi, msi, reference = cubes
    unit = _unit(reference)
    return RecordedPair(paths[0].stem, _in_unit(hsi, unit), _in_unit(msi, _unit(msi)), _in_unit(reference, unit))


def _unit(cube: xr.DataArray) -> float:
    return scene_unit(physical_values(cube), np.nan)


def _in_unit(cube: xr.DataArray, unit: float) -> xr.DataArray:
    grid = grid_of(cube)
    return make_cube(
        np.clip(physical_values(cube) / np.float32(unit), 0.0, 1.0),
        wavelength_nm=cube["wavelength"].values,
        fwhm_nm=cube["fwhm"].values,
        good=cube["good"].values,
        nodata=np.nan,
        crs=grid.crs,
        transform=grid.transform,
    )
