"""Pictures for a page that needs nothing but itself: PNG inside of the HTML.

Shapes: picture (y, x, 3) bytes, map (y, x).
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import uniform_filter

from hyperfuse.quality.pairing import Floats

Picture = NDArray[np.uint8]
COLOURS = "cividis"
NO_DATA = (216, 216, 216)
# The largest errors are few and would leave the rest of a map dark.
PERCENTILE = 99.0
LARGEST_SIDE = 900


@dataclass(frozen=True)
class MapPicture:
    picture: Picture
    highest: float
    """The value of the brightest colour; 0 is the darkest."""


def data_address(picture: Picture) -> str:
    """A picture as the address of itself."""
    from matplotlib.image import imsave

    contents = io.BytesIO()
    imsave(contents, np.ascontiguousarray(picture), format="png")
    return "data:image/png;base64," + base64.b64encode(contents.getvalue()).decode("ascii")


def map_picture(values: Floats) -> MapPicture:
    from matplotlib import colormaps

    values = thinned(values)
    known = np.isfinite(values)
    highest = float(np.percentile(values[known], PERCENTILE)) if known.any() else 0.0
    shares = np.clip(np.where(known, values, 0) / (highest or 1.0), 0, 1)
    picture: Picture = np.round(255 * colormaps[COLOURS](shares)[..., :3]).astype(np.uint8)
    picture[~known] = NO_DATA
    return MapPicture(picture, highest)


def colour_bar() -> Picture:
    """One row of pixels, from 0 to the highest."""
    from matplotlib import colormaps

    bar: Picture = np.round(255 * colormaps[COLOURS](np.linspace(0, 1, 256))[None, :, :3]).astype(np.uint8)
    return bar


def thinned(values: Floats) -> Floats:
    """Means of blocks, so that no side is longer than a page shows."""
    every = -(-max(values.shape) // LARGEST_SIDE)
    if every == 1:
        return values
    rows, columns = -(-values.shape[0] // every), -(-values.shape[1] // every)
    whole = np.full((rows * every, columns * every), np.nan)
    whole[: values.shape[0], : values.shape[1]] = values
    blocks = whole.reshape(rows, every, columns, every)
    known = np.isfinite(blocks).sum(axis=(1, 3))
    means: Floats = np.full(known.shape, np.nan)
    np.divide(np.nansum(blocks, axis=(1, 3)), known, out=means, where=known > 0)
    return means


def most_detailed(image: NDArray[np.float32], side: int) -> tuple[slice, slice]:
    """The square of this side with the strongest edges; image (bands, y, x)."""
    filled = np.nan_to_num(image.astype(np.float64))
    level = filled.std(axis=(1, 2), keepdims=True)
    rows, columns = np.gradient((filled / np.where(level > 0, level, 1)).mean(axis=0))
    edges = np.hypot(rows, columns)
    # A hole has edges, too, but shows nothing.
    edges[~np.isfinite(image).all(axis=0)] = 0
    return highest_square(np.minimum(edges, np.percentile(edges, PERCENTILE)), side)


def highest_square(values: Floats, side: int) -> tuple[slice, slice]:
    """The square of this side, or what the map has of it, with the highest mean."""
    height, width = values.shape
    tall, wide = min(side, height), min(side, width)
    means = uniform_filter(np.nan_to_num(values), (tall, wide), mode="constant")
    means = means[tall // 2 : height - (tall - 1) // 2, wide // 2 : width - (wide - 1) // 2]
    top, left = np.unravel_index(int(means.argmax()), means.shape)
    return slice(int(top), int(top) + tall), slice(int(left), int(left) + wide)
