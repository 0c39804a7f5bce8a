"""A sample of a layer's values, spread over all of it, at a bounded cost.

Shapes: (K, n).
"""

from __future__ import annotations

import numpy as np

from hyperfuse.viewer.layers import Layer, Planes
from hyperfuse.viewer.painting import Limits

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
