"""Layers that are computed from several images, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.viewer.comparison_maps import angle_layer, comparison_of, difference_layer
from hyperfuse.viewer.consistency_maps import hsi_consistency_layer, msi_consistency_layer, require_consistency_with_hsi
from hyperfuse.viewer.layers import Layer, Planes, image_layer
from hyperfuse.viewer.observed_pair import ObservedPair
from hyperfuse.viewer.recipes import Recipe
from hyperfuse.viewer.scene import Scene


@dataclass(frozen=True)
class MapKind:
    title: str
    needs: tuple[str, ...]
    check: Callable[[Scene], object]
    layer: Callable[[Scene, Callable[[], ObservedPair]], Layer]


def uncertainty_layer(scene: Scene) -> Layer:
    """The mean over bands, where there are several."""
    image = scene.images["uncertainty"]

    def mean(values: Planes) -> Planes:
        known = np.isfinite(values)
        counts = known.sum(axis=0)
        means: Planes = np.full(counts.shape, np.nan, dtype=np.float32)
        np.divide(np.where(known, values, 0).sum(axis=0), counts, out=means, where=counts > 0)
        return means[None]

    label = "uncertainty" if image.bands == 1 else "uncertainty, mean over bands"
    return image_layer(image, Recipe("mean", np.arange(image.bands), 1, mean, label), scene.number)


MAPS: dict[str, MapKind] = {
    "difference": MapKind("Difference", ("fused", "reference"), comparison_of, lambda scene, pair: difference_layer(scene)),
    "angle": MapKind("Spectral angle", ("fused", "reference"), comparison_of, lambda scene, pair: angle_layer(scene)),
    "consistency_hsi": MapKind(
        "HSI consistency",
        ("fused", "hsi"),
        require_consistency_with_hsi,
        lambda scene, pair: hsi_consistency_layer(scene, pair()),
    ),
    "consistency_msi": MapKind(
        "MSI consistency",
        ("fused", "hsi", "msi"),
        require_consistency_with_hsi,
        lambda scene, pair: msi_consistency_layer(scene, pair()),
    ),
    "uncertainty_map": MapKind("Uncertainty", ("uncertainty",), lambda scene: None, lambda scene, pair: uncertainty_layer(scene)),
}


def map_layer(scene: Scene, name: str, pair: Callable[[], ObservedPair]) -> Layer:
    complaint = why_not(scene, name)
    if complaint is not None:
        raise OptionError(f"map {name!r}: {complaint}", "images that it can be computed from", "open them first")
    return MAPS[name].layer(scene, pair)


def why_not(scene: Scene, name: str) -> str | None:
    """In a few words why a map cannot be shown, or None."""
    missing = [role for role in MAPS[name].needs if role not in scene.images]
    if missing:
        return f"no {' and no '.join(missing)} open"
    try:
        MAPS[name].check(scene)
    except HyperfuseError as error:
        return str(error)
    return None
