"""Values become colours, and colours a PNG.

Shapes: planes (K, y, x), limits (K, 2); three planes are red, green and blue, one is looked up in a colour map. Pixels
without data are transparent.

A layer: something that has a picture. It says how to compute any window of itself, and where that window lies on the
page.

Shapes: K planes (three for a colour picture, one for a map), y x pixels of the layer. Values are float32, NaN where
there are none.

A sample of a layer's values, spread over all of it, at a bounded cost.

Shapes: (K, n).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hyperfuse.io.cube import physical_values
from hyperfuse.io.grid import Positions
from hyperfuse.viewer.colours import Recipe
from hyperfuse.viewer.scene import OpenImage, read_decimated

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


# Of the sample, in values of all planes together.
LARGEST_SAMPLE = 800_000
DIRECT_BYTES = 64 * 2**20
# Where neither overviews nor the whole layer can be had cheaply: so many small windows along each side.
WINDOWS = 6
WINDOW_SIDE = 48


def sampled(layer: Layer) -> Planes:
    side = max(32, int((LARGEST_SAMPLE / layer.planes) ** 0.5))
    step = max(1, -(-max(layer.height, layer.width) // side))
    everything = slice(0, layer.height), slice(0, layer.width)
    if layer.bytes <= DIRECT_BYTES:
        # From the middle of each block, so that a picture smaller than a step still gives a pixel.
        start = min(step // 2, layer.height - 1, layer.width - 1)
        planes = layer.window(*everything)[:, start::step, start::step]
    elif layer.decimated is not None:
        planes = layer.decimated(*everything, 2 ** int(np.ceil(np.log2(step))))
    else:
        windows = [layer.window(rows, columns) for rows in _spread(layer.height) for columns in _spread(layer.width)]
        return np.concatenate([window.reshape(layer.planes, -1) for window in windows], axis=1)
    return planes.reshape(layer.planes, -1)


def stretch_limits(samples: Planes, low: float, high: float) -> Limits:
    """(K, 2) percentiles of each plane; 0 to 1 where there is nothing."""
    limits = np.empty((len(samples), 2))
    for plane, values in enumerate(samples):
        seen = values[np.isfinite(values)]
        limits[plane] = np.percentile(seen.astype(np.float64), (low, high)) if seen.size else (0.0, 1.0)
    return limits


def _spread(size: int) -> list[slice]:
    centres = (np.arange(WINDOWS) + 0.5) * size / WINDOWS
    starts = np.clip(centres - WINDOW_SIDE / 2, 0, max(0, size - WINDOW_SIDE)).astype(int)
    return [slice(int(start), min(size, int(start) + WINDOW_SIDE)) for start in starts]


Limits = NDArray[np.float64]
# Perceptually even ones that people with any colour vision can read; the last is for values around a middle.
COLOUR_MAPS = {"viridis": "viridis", "cividis": "cividis", "magma": "magma", "grey": "gray", "blue-orange": "PuOr_r"}
FAST = 1


def paint(planes: Planes, limits: Limits, colours: str) -> NDArray[np.uint8]:
    """(y, x, 4) red, green, blue, alpha."""
    low, high = limits.T.reshape(2, -1, 1, 1).astype(np.float32)
    span = np.where(high > low, high - low, np.float32(1))
    known = np.isfinite(planes).all(axis=0)
    shown = np.clip((np.where(known, planes, low) - low) / span, 0, 1)
    levels = np.round(255 * shown).astype(np.uint8)
    picture = np.empty((*planes.shape[1:], 4), dtype=np.uint8)
    picture[..., :3] = np.moveaxis(levels, 0, -1) if len(planes) == 3 else colour_table(colours)[levels[0]]
    picture[..., 3] = np.where(known, 255, 0)
    return picture


@cache
def colour_table(colours: str) -> NDArray[np.uint8]:
    """(256, 3)"""
    import matplotlib

    table: NDArray[np.uint8] = matplotlib.colormaps[COLOUR_MAPS[colours]](np.arange(256), bytes=True)[:, :3]
    return table


def as_png(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    Image.fromarray(picture).save(target, format="PNG", compress_level=FAST)
    return target.getvalue()
