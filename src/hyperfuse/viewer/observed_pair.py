"""How the open pair was observed, from its middle: what the consistency maps and the page's estimation need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.cubes.cube import place_cube, window_of
from hyperfuse.cubes.grid import grid_of
from hyperfuse.viewer.scene import Scene

if TYPE_CHECKING:
    from hyperfuse.estimation.observation import Observation

# Fine pixels along a side of the part that is looked at.
LARGEST_SIDE = 768


@dataclass(frozen=True, eq=False)
class ObservedPair:
    """`observation` is None where there is no MSI: then the point spread is taken to be as wide as an HSI pixel."""

    sigma: tuple[float, float]
    misregistration: tuple[float, float]
    bands: NDArray[np.int64]
    observation: Observation | None


def observe_scene(scene: Scene) -> ObservedPair:
    from hyperfuse.estimation.observation import default_sigma
    from hyperfuse.prediction.aligned_pair import align_pair
    from hyperfuse.prediction.fuse_pair import ObservationHints, observe

    hsi = scene.images["hsi"]
    if "msi" not in scene.images:
        assert hsi.placement is not None
        return ObservedPair(default_sigma(hsi.placement.scale), (0.0, 0.0), np.flatnonzero(hsi.cube["good"].values), None)
    hsi_cube, msi_cube = _middle(*_on_one_ground(hsi.cube, scene.images["msi"].cube))
    pair = align_pair(hsi_cube, msi_cube)
    observation = observe(pair, hsi_cube, ObservationHints())
    return ObservedPair(observation.sigma, observation.misregistration, np.flatnonzero(pair.usable_bands), observation)


def _on_one_ground(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Both georeferenced: images that are not, and so cover the same extent, get the MSI's pixels as their ground."""
    if grid_of(hsi).transform is not None and grid_of(msi).transform is not None:
        return hsi, msi
    scale = msi.sizes["x"] / hsi.sizes["x"], msi.sizes["y"] / hsi.sizes["y"]
    return place_cube(hsi, None, Affine.scale(*scale), None), place_cube(msi, None, Affine.scale(1, 1), None)


def _middle(hsi: xr.DataArray, msi: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """The MSI cut to its middle; the pair will be cut to what the two share."""
    rows, columns = (
        slice(max(0, (size - LARGEST_SIDE) // 2), min(size, (size + LARGEST_SIDE) // 2))
        for size in (msi.sizes["y"], msi.sizes["x"])
    )
    return hsi, window_of(msi, rows, columns)
