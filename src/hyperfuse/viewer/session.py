"""What one running page knows: the open scene, the folder, the jobs, and pictures made before."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.viewer.description import describe_scene
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.jobs import Jobs
from hyperfuse.viewer.layers import Layer, Planes, image_layer
from hyperfuse.viewer.looks import Look
from hyperfuse.viewer.map_layers import MAPS, map_layer
from hyperfuse.viewer.observed_pair import ObservedPair, observe_scene
from hyperfuse.viewer.painting import Limits, as_png, colour_table, paint
from hyperfuse.viewer.previews import Preview
from hyperfuse.viewer.principal_colours import PrincipalAxes, principal_axes
from hyperfuse.viewer.recipes import Recipe, recipe_for
from hyperfuse.viewer.remembered import Remembered
from hyperfuse.viewer.sampling import sampled, stretch_limits
from hyperfuse.viewer.scene import OpenImage, Scene, open_scene
from hyperfuse.viewer.tiles import TilePlace, highest_level, tile_planes

TILE_CACHE_BYTES = 128 * 2**20
PREVIEW_CACHE_BYTES = 256 * 2**20
# Images whose brightest values differ by more than this factor are in other units and look better by themselves.
OTHER_UNITS = 3.0
DEFAULT_LOOK = Look()


class GoneError(HyperfuseError):
    """Asked about a scene that has been replaced."""


@dataclass(frozen=True)
class Tile:
    png: bytes
    complete: float


class Session:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.jobs = Jobs()
        self.scene: Scene | None = None
        self._opened = 0
        self._opening = threading.Lock()
        self._layers: Remembered[Layer] = Remembered(200)
        self._axes: Remembered[PrincipalAxes] = Remembered(20)
        self._pairs: Remembered[ObservedPair] = Remembered(4)
        self._limits: Remembered[Limits] = Remembered(500)
        self._samples: Remembered[Planes] = Remembered(40)
        self._previews: Remembered[Preview] = Remembered(PREVIEW_CACHE_BYTES, lambda made: made.bytes, Preview.stop)
        self._descriptions: Remembered[dict[str, Any]] = Remembered(2)
        self._quick_looks: Remembered[bytes] = Remembered(100)
        self._tiles: Remembered[Tile] = Remembered(TILE_CACHE_BYTES, lambda tile: len(tile.png))

    def open(self, paths: Mapping[str, Path]) -> Scene:
        """Replaces what was open; when that fails, what was open stays."""
        with self._opening:
            scene = open_scene(paths, self._opened + 1)
            self._opened += 1
            self.scene = scene
            for cache in (self._layers, self._axes, self._pairs, self._limits, self._samples, self._previews, self._tiles):
                cache.clear()
        return scene

    def describe(self, scene: Scene) -> dict[str, Any]:
        return self._descriptions.get(scene.number, lambda: describe_scene(scene, self.folder))

    def prepare(self) -> None:
        """What will be asked first: the description, the stretch, and the picture from afar."""
        scene = self.scene
        with suppress(HyperfuseError):
            if scene is not None:
                place = TilePlace(highest_level(scene.longer_side), 0, 0)
                self.tile(scene.number, scene.lead.role, place, DEFAULT_LOOK)
                self.describe(scene)
        # The library that knows the colours takes its time to load.
        colour_table(DEFAULT_LOOK.colours)

    def require_scene(self, number: int | None = None) -> Scene:
        scene = self.scene
        if scene is None:
            raise OptionError("no image is open", "an open image", "open one first")
        if number is not None and number != scene.number:
            raise GoneError("a question about images that were replaced", "the ones that are open", "reload the page")
        return scene

    def close(self) -> None:
        self.jobs.stop_all()
        self._previews.clear()

    def tile(self, number: int, name: str, place: TilePlace, look: Look) -> Tile:
        scene = self.require_scene(number)
        if not 0 <= place.level <= highest_level(scene.longer_side):
            raise OptionError(f"level {place.level}", f"0 to {highest_level(scene.longer_side)}")
        if min(place.row, place.column) < 0 or max(place.row, place.column) > 2**24:
            raise OptionError(f"tile {place.row}, {place.column}", "one of the page")
        key = (number, name, place, look)
        tile = self._tiles.get(key, lambda: self._make_tile(scene, name, place, look))
        if tile.complete < 1:
            self._tiles.drop(key)
        return tile

    def limits(self, scene: Scene, name: str, look: Look) -> tuple[Limits, bool]:
        """What becomes dark and bright, and whether that is the leading image's stretch."""
        own = self._own_limits(scene, name, look)
        lead = scene.lead.role
        if not look.linked or name in (*MAPS, lead) or (look.style == "pca" and scene.images[name].bands != scene.lead.bands):
            return own, name == lead
        try:
            leading = self._own_limits(scene, lead, look)
        except HyperfuseError:
            return own, False
        return (leading, True) if _comparable(own, leading) else (own, False)

    def layer(self, scene: Scene, name: str, look: Look) -> Layer:
        if name in MAPS:
            return self._layers.get((scene.number, name), lambda: map_layer(scene, name, lambda: self.observed_pair(scene)))
        if name not in scene.images:
            raise OptionError(f"layer {name[:40]!r}", f"one of {', '.join([*scene.images, *MAPS])}", "open such an image first")
        image, key = scene.images[name], look.model_copy(update={"low": 0.0, "high": 100.0, "linked": True, "colours": "viridis"})
        return self._layers.get((scene.number, name, key), lambda: self._image_layer(scene, image, look))

    def quick_look(self, path: Path) -> bytes:
        """A small picture of a file that is not open."""
        return self._quick_looks.get((path, path.stat().st_mtime_ns), lambda: _quick_look(path))

    def observed_pair(self, scene: Scene) -> ObservedPair:
        return self._pairs.get(scene.number, lambda: observe_scene(scene))

    def _image_layer(self, scene: Scene, image: OpenImage, look: Look) -> Layer:
        recipe = recipe_for(look, image.cube, scene.lead.cube, lambda: self._principal_axes(scene, image))
        return image_layer(image, recipe, scene.number)

    def _principal_axes(self, scene: Scene, image: OpenImage) -> PrincipalAxes:
        """Those of the leading image for all images with its bands, so that equal colours mean equal spectra."""
        source = scene.lead if image.bands == scene.lead.bands else image

        def find() -> PrincipalAxes:
            good = np.flatnonzero(source.cube["good"].values)
            bands = good if good.size else np.arange(source.bands)
            everything = Recipe("all", bands, bands.size, lambda planes: planes, "all bands")
            return principal_axes(sampled(image_layer(source, everything, scene.number)), bands, source.role)

        return self._axes.get((scene.number, source.role), find)

    def _make_tile(self, scene: Scene, name: str, place: TilePlace, look: Look) -> Tile:
        layer = self.layer(scene, name, look)
        limits, _ = self.limits(scene, name, look)
        planes, complete = tile_planes(layer, place, scene.grid, lambda: self._previews.get(layer.key, lambda: Preview(layer)))
        return Tile(as_png(paint(planes, limits, look.colours)), complete)

    def _own_limits(self, scene: Scene, name: str, look: Look) -> Limits:
        layer = self.layer(scene, name, look)
        key: Hashable = (layer.key, look.low, look.high)
        return self._limits.get(key, lambda: stretch_limits(self._sample_of(layer), look.low, look.high))

    def _sample_of(self, layer: Layer) -> Planes:
        return self._samples.get(layer.key, lambda: sampled(layer))


def _quick_look(path: Path) -> bytes:
    scene = open_scene({"fused": path})
    recipe = recipe_for(DEFAULT_LOOK, scene.lead.cube, scene.lead.cube, _no_axes)
    layer = image_layer(scene.lead, recipe, scene.number)
    level = highest_level(scene.longer_side)
    planes, _ = tile_planes(layer, TilePlace(level, 0, 0), scene.grid, lambda: Preview(layer))
    limits = stretch_limits(sampled(layer), DEFAULT_LOOK.low, DEFAULT_LOOK.high)
    height, width = (-(-size // 2**level) for size in (scene.grid.height, scene.grid.width))
    return as_png(paint(planes[:, :height, :width], limits, DEFAULT_LOOK.colours))


def _no_axes() -> PrincipalAxes:
    raise AssertionError("a plain look needs no principal axes")


def _comparable(own: Limits, leading: Limits) -> bool:
    first, second = (np.abs(limits).max(axis=1) for limits in (own, leading))
    if first.shape != second.shape:
        return False
    return bool((first <= OTHER_UNITS * second).all() and (second <= OTHER_UNITS * first).all())
