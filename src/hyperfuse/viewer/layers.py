"""A layer: something that has a picture. It says how to compute any window of itself, and where that window lies on the page.

Shapes: K planes (three for a colour picture, one for a map), y x pixels of the layer. Values are float32, NaN where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyperfuse.cubes.cube import physical_values
from hyperfuse.cubes.grid import Positions
from hyperfuse.viewer.raster_source import read_decimated
from hyperfuse.viewer.recipes import Recipe
from hyperfuse.viewer.scene import OpenImage

Planes = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Layer:
    key: Hashable
    """Equal keys, equal pictures."""
    height: int
    width: int
    planes: int
    bytes_per_pixel: int
    """What must be decoded and held to compute one pixel."""
    positions: Callable[[Positions, Positions], tuple[Positions, Positions]]
    """Pixels of the page as pixels of the layer, see `OpenImage.positions`."""
    window: Callable[[slice, slice], Planes]
    """Rows and columns of the layer at full resolution -> (K, y, x). With `can_skip` the slices may have steps."""
    decimated: Callable[[slice, slice, int], Planes] | None
    """The same of every n-th pixel, where that costs less; the window begins at multiples of n."""
    label: str
    unit: str = ""
    can_skip: bool = False

    @property
    def bytes(self) -> int:
        return self.height * self.width * self.bytes_per_pixel


def image_layer(image: OpenImage, recipe: Recipe, number: int) -> Layer:
    """An image seen through a recipe; `number` tells scenes apart."""
    cube, raster = image.cube, image.raster

    def window(rows: slice, columns: slice) -> Planes:
        return recipe.combine(physical_values(cube, rows, columns, recipe.bands))

    def decimated(rows: slice, columns: slice, factor: int) -> Planes:
        assert raster is not None
        stored = read_decimated(raster, recipe.bands, rows, columns, factor, cube.dtype)
        small = cube.isel(band=recipe.bands, y=slice(0, stored.shape[1]), x=slice(0, stored.shape[2])).copy(data=stored)
        return recipe.combine(physical_values(small))

    decoded = image.bands if raster is not None and raster.bands_together else recipe.bands.size
    return Layer(
        key=(number, image.role, recipe.key),
        height=image.height,
        width=image.width,
        planes=recipe.planes,
        bytes_per_pixel=decoded * cube.dtype.itemsize,
        positions=image.positions,
        window=window,
        decimated=decimated if raster is not None and raster.overviews else None,
        label=recipe.label,
        can_skip=True,
    )
