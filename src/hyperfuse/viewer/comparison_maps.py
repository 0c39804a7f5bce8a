"""Maps of where the fused image differs from its reference: root mean square over bands, and spectral angle.

Shapes: (1, y, x), NaN where nothing can be compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hyperfuse.quality.comparison import Comparison, plan_comparison
from hyperfuse.quality.pairing import Floats, blank_incomparable
from hyperfuse.quality.spectral_angle import spectral_angles_degrees
from hyperfuse.viewer.layers import Layer, Planes
from hyperfuse.viewer.scene import OpenImage, Scene

# Both images as float64 at once.
STRIP_BYTES = 32 * 2**20


def comparison_of(scene: Scene) -> Comparison:
    """Refused where the two cannot be compared."""
    fused, reference = scene.images["fused"], scene.images["reference"]
    return plan_comparison(fused.cube, reference.cube, scale=None, peak=1.0, max_bytes=STRIP_BYTES)


def difference_layer(scene: Scene) -> Layer:
    return _layer(scene, _root_mean_square_error, "difference", "fused - reference, root mean square over bands", "")


def angle_layer(scene: Scene) -> Layer:
    return _layer(scene, spectral_angles_degrees, "angle", "spectral angle between fused and reference", "°")


def _layer(scene: Scene, measure: Callable[[Floats, Floats], Floats], name: str, label: str, unit: str) -> Layer:
    comparison = comparison_of(scene)
    fused: OpenImage = scene.images["fused"]

    def window(rows: slice, columns: slice) -> Planes:
        values: Planes = np.empty((1, rows.stop - rows.start, columns.stop - columns.start), dtype=np.float32)
        height = max(1, STRIP_BYTES // (16 * comparison.bands.size * values.shape[2]))
        for start in range(rows.start, rows.stop, height):
            strip = slice(start, min(start + height, rows.stop))
            pair = comparison.read_pair(strip, columns, comparison.bands)
            blank_incomparable(*pair)
            values[0, strip.start - rows.start : strip.stop - rows.start] = measure(*pair)
        return values

    return Layer(
        key=(scene.number, name),
        height=fused.height,
        width=fused.width,
        planes=1,
        bytes_per_pixel=2 * comparison.bands.size * fused.cube.dtype.itemsize,
        positions=fused.positions,
        window=window,
        decimated=None,
        label=label,
        unit=unit,
    )


def _root_mean_square_error(fused: Floats, reference: Floats) -> Floats:
    counts = np.isfinite(fused).sum(axis=0)
    squares = np.nan_to_num(np.square(fused - reference)).sum(axis=0)
    means: Floats = np.full(counts.shape, np.nan)
    np.divide(squares, counts, out=means, where=counts > 0)
    return np.sqrt(means)
