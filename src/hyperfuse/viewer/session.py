"""Work for one request, in a thread: only a few at a time, and not for ever.

What the page is told about the open images.

Answers kept for the next time, within a bound; whoever asks for one that is being made waits for it.

What one running page knows: the open scene, the folder, the jobs, and pictures made before.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import xarray as xr
from fastapi import Depends, Request
from numpy.typing import NDArray

from hyperfuse.errors import BandError, HyperfuseError, OptionError
from hyperfuse.io.summary import summarise
from hyperfuse.reporting.colour import composite_bands
from hyperfuse.viewer.colours import (
    INDICES,
    Look,
    PrincipalAxes,
    Recipe,
    available_indices,
    infrared_bands,
    principal_axes,
    recipe_for,
)
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.jobs import Jobs
from hyperfuse.viewer.layers import (
    COLOUR_MAPS,
    Layer,
    Limits,
    Planes,
    as_png,
    colour_table,
    image_layer,
    paint,
    sampled,
    stretch_limits,
)
from hyperfuse.viewer.maps import MAPS, ObservedPair, map_layer, observe_scene, why_not
from hyperfuse.viewer.scene import ROLES, OpenImage, Scene, open_scene
from hyperfuse.viewer.tiles import SIDE, Preview, TilePlace, highest_level, tile_planes

# An image with more pixels than this is slow to look at from afar without overviews.
LARGE_PIXELS = 4096 * 4096
# Reflectances may exceed 1 on glints; counts and scaled integers exceed it everywhere.
LARGEST_REFLECTANCE = 5.0


def describe_scene(scene: Scene, folder: Folder) -> dict[str, Any]:
    return {
        "number": scene.number,
        "lead": scene.lead.role,
        "height": scene.grid.height,
        "width": scene.grid.width,
        "crs": _crs(scene),
        "transform": list(scene.grid.transform)[:6] if scene.grid.transform else None,
        "tile": SIDE,
        "levels": highest_level(scene.longer_side),
        "images": [describe_image(image, folder) for image in scene.images.values()],
        "maps": [{"name": name, "title": kind.title, "why_not": why_not(scene, name)} for name, kind in MAPS.items()],
        "styles": _styles(scene.lead),
        "indices": [
            {"name": name, "meaning": INDICES[name].meaning, "reference": INDICES[name].reference}
            for name in available_indices(scene.lead.cube, is_reflectance=_is_reflectance(scene.lead.cube))
        ],
        "colour_maps": list(COLOUR_MAPS),
        "notes": list(scene.notes),
    }


def describe_image(image: OpenImage, folder: Folder) -> dict[str, Any]:
    cube = image.cube
    return {
        "role": image.role,
        "title": ROLES[image.role],
        "file": image.path.name,
        "path": folder.name_of(image.path),
        "height": image.height,
        "width": image.width,
        "bands": image.bands,
        "wavelength_nm": finite(cube["wavelength"].values),
        "fwhm_nm": finite(cube["fwhm"].values),
        "good": cube["good"].values.tolist(),
        "band_name": [str(name) for name in cube["band_name"].values],
        "scale": None if image.placement is None else list(image.placement.scale),
        "has_overviews": bool(image.raster and image.raster.overviews),
        "offers_overviews": offers_overviews(image),
    }


def describe_file(cube: xr.DataArray, found: Mapping[str, str]) -> dict[str, Any]:
    """What `hyperfuse info` says."""
    return summarise(cube).as_dict() | {"found": dict(found)}


def offers_overviews(image: OpenImage) -> bool:
    is_geotiff = image.raster is not None and image.raster.driver == "GTiff"
    return is_geotiff and not (image.raster and image.raster.overviews) and image.height * image.width >= LARGE_PIXELS


def finite(values: NDArray[np.float64]) -> list[float | None]:
    return [float(value) if math.isfinite(value) else None for value in values]


def _styles(lead: OpenImage) -> dict[str, Any]:
    """The bands that the named styles use, counted from 0; None where the image has none for a style."""
    try:
        infrared: list[int] | None = infrared_bands(lead.cube)
    except BandError:
        infrared = None
    return {"true": list(composite_bands(lead.cube)), "infrared": infrared}


def _is_reflectance(cube: xr.DataArray) -> bool:
    highest = summarise(cube).sampled_maximum
    return highest is not None and highest <= LARGEST_REFLECTANCE


def _crs(scene: Scene) -> str | None:
    crs = scene.grid.crs
    if crs is None:
        return None
    code = crs.to_epsg()
    return f"EPSG:{code}" if code else crs.to_wkt()[:60]


Value = TypeVar("Value")


def _counted(value: object) -> int:
    return 1


class Remembered(Generic[Value]):
    """The most recently used values, as many as weigh `most` together; each is made once, in the thread that asks
    first.
    """

    def __init__(
        self, most: int, weight: Callable[[Value], int] = _counted, forget: Callable[[Value], None] | None = None
    ) -> None:
        self._most = most
        self._weight = weight
        self._forget = forget
        self._futures: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        with self._lock:
            future = self._futures.get(key)
            is_ours = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
        if not is_ours:
            return future.result()
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                self._futures.pop(key, None)
            future.set_exception(error)
            raise
        future.set_result(value)
        self._shrink()
        return value

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._futures.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            gone = [future for future in self._futures.values() if future.done()]
            self._futures.clear()
        self._say_goodbye(gone)

    def _shrink(self) -> None:
        gone = []
        with self._lock:
            made = [
                (key, future) for key, future in self._futures.items() if future.done() and future.exception() is None
            ]
            weight = sum(self._weight(future.result()) for _, future in made)
            # The newest stays, however heavy it is.
            for key, future in made[:-1]:
                if weight <= self._most:
                    break
                weight -= self._weight(future.result())
                gone.append(self._futures.pop(key))
        self._say_goodbye(gone)

    def _say_goodbye(self, gone: list[Future[Value]]) -> None:
        for future in gone:
            if self._forget is not None and future.exception() is None:
                self._forget(future.result())


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
            for cache in (
                self._layers,
                self._axes,
                self._pairs,
                self._limits,
                self._samples,
                self._previews,
                self._tiles,
            ):
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
        if (
            not look.linked
            or name in (*MAPS, lead)
            or (look.style == "pca" and scene.images[name].bands != scene.lead.bands)
        ):
            return own, name == lead
        try:
            leading = self._own_limits(scene, lead, look)
        except HyperfuseError:
            return own, False
        return (leading, True) if _comparable(own, leading) else (own, False)

    def layer(self, scene: Scene, name: str, look: Look) -> Layer:
        if name in MAPS:
            return self._layers.get(
                (scene.number, name), lambda: map_layer(scene, name, lambda: self.observed_pair(scene))
            )
        if name not in scene.images:
            raise OptionError(
                f"layer {name[:40]!r}", f"one of {', '.join([*scene.images, *MAPS])}", "open such an image first"
            )
        image, key = (
            scene.images[name],
            look.model_copy(update={"low": 0.0, "high": 100.0, "linked": True, "colours": "viridis"}),
        )
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
        planes, complete = tile_planes(
            layer, place, scene.grid, lambda: self._previews.get(layer.key, lambda: Preview(layer))
        )
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


Answer = TypeVar("Answer")
AT_ONCE = 4
# A request that gave up leaves its thread at work; no more than these in all.
MOST_THREADS = 12
SECONDS = 30.0


class BusyError(HyperfuseError):
    """It took too long; asking again may find it done."""


class Workers:
    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._threads = anyio.CapacityLimiter(MOST_THREADS)

    async def run(self, work: Callable[[], Answer]) -> Answer:
        try:
            async with asyncio.timeout(self._seconds), self._turns:
                return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
        except TimeoutError as error:
            raise BusyError(
                f"no answer within {self._seconds:g} s", "a shorter piece of work", "ask again in a moment"
            ) from error


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


def _workers(request: Request) -> Workers:
    workers: Workers = request.app.state.workers
    return workers


SessionHere = Annotated[Session, Depends(_session)]
WorkersHere = Annotated[Workers, Depends(_workers)]
