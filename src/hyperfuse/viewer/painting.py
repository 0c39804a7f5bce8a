"""Values become colours, and colours a PNG.

Shapes: planes (K, y, x), limits (K, 2); three planes are red, green and blue, one is looked up in a colour map. Pixels without data
are transparent.
"""

from __future__ import annotations

import io
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hyperfuse.viewer.layers import Planes

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
