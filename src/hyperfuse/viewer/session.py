"""The state of one running page: the folder, the jobs, the open images and what was computed from them."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import numpy as np
import xarray as xr

from hyperfuse.config import PairInputConfig
from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.io.summary import strict_json, summarise
from hyperfuse.reporting.colour import percentile_limits
from hyperfuse.viewer import tiles
from hyperfuse.viewer.colours import (
    Composite,
    Planes,
    Rendering,
    composite_for,
    offered_renderings,
    principal_components,
)
from hyperfuse.viewer.folder import Folder, RequestError
from hyperfuse.viewer.images import AS_STORED, ROLES, OpenImage, OpenImages, open_images
from hyperfuse.viewer.jobs import Jobs
from hyperfuse.viewer.maps import MAPS, ObservedPair, map_layer, observe_pair, unavailable
from hyperfuse.viewer.tiles import Layer, Limits, Preview, TilePlace, highest_level, sampled

# An image with more pixels than this is slow to show at low zoom without overviews.
LARGE_PIXELS = 4096 * 4096
# Reflectance may exceed 1 on glints; counts and scaled integers exceed this everywhere.
LARGEST_REFLECTANCE = 5.0
# Images whose limits differ by more than this factor are in other units and get a stretch of their own.
OTHER_UNITS = 3.0
TILE_CACHE_BYTES = 128 * 2**20
PREVIEW_CACHE_BYTES = 256 * 2**20
# Requests at work, and threads: one that timed out still has its thread.
MOST_REQUESTS = 4
MOST_THREADS = 12
SECONDS_OF_WORK = 30.0
DEFAULT_RENDERING = Rendering()

Value = TypeVar("Value")


class Cache(Generic[Value]):
    """The most recently used values up to a total weight; each is computed once, in the first thread that needs it."""

    def __init__(self, limit: int, weight: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit = limit
        self._weight = weight
        self._futures: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], Value]) -> Value:
        with self._lock:
            is_new = key not in self._futures
            future = self._futures.setdefault(key, Future())
            self._futures.move_to_end(key)
        if is_new:
            try:
                future.set_result(compute())
            except BaseException as error:
                self.drop(key)
                future.set_exception(error)
            self._shrink()
        return future.result()

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._futures.pop(key, None)

    def _shrink(self) -> None:
        with self._lock:
            weights = {key: self._weight(future.result()) for key, future in self._futures.items() if future.done()}
            # The newest stays, however heavy it is.
            for key in list(weights)[:-1]:
                if sum(weights.values()) > self._limit:
                    del self._futures[key], weights[key]


@dataclass(frozen=True)
class TileImage:
    png: bytes
    complete: float
    """The share of it that is final."""


class View:
    """The open images and the layers, limits and tiles computed from them; `number` counts what was opened."""

    def __init__(self, number: int, opened: OpenImages) -> None:
        self.number = number
        self.opened = opened
        self._layers: Cache[Layer] = Cache(200)
        self._components: Cache[Composite] = Cache(20)
        self._limits: Cache[Limits] = Cache(500)
        self._samples: Cache[Planes] = Cache(40)
        self._previews: Cache[Preview] = Cache(PREVIEW_CACHE_BYTES, lambda preview: preview.bytes)
        self._tiles: Cache[TileImage] = Cache(TILE_CACHE_BYTES, lambda tile: len(tile.png))
        self._others: Cache[Any] = Cache(2)

    def describe(self, folder: Folder) -> dict[str, Any]:
        """What the page needs to know."""
        description: dict[str, Any] = self._others.get("description", lambda: _describe(self.opened, folder))
        return {"number": self.number} | description

    def observed_pair(self) -> ObservedPair:
        pair: ObservedPair = self._others.get("pair", lambda: observe_pair(self.opened))
        return pair

    def tile(self, name: str, place: TilePlace, rendering: Rendering) -> TileImage:
        highest = highest_level(self.opened.grid)
        if place.level > highest:
            raise OptionError(f"level {place.level}", f"0 to {highest}")

        def compute() -> TileImage:
            layer = self.layer(name, rendering)
            limits, _ = self.limits(name, rendering)
            planes, complete = tiles.tile_planes(
                layer, place, self.opened.grid, lambda: self._previews.get(layer.key, lambda: Preview(layer))
            )
            return TileImage(tiles.as_png(tiles.paint(planes, limits, rendering.colours)), complete)

        key = (name, place, rendering)
        tile = self._tiles.get(key, compute)
        if tile.complete < 1:
            self._tiles.drop(key)
        return tile

    def limits(self, name: str, rendering: Rendering) -> tuple[Limits, bool]:
        """The limits of the stretch, and whether they are the lead's."""
        own, lead = self._own_limits(name, rendering), self.opened.lead
        if not rendering.linked or name in (*MAPS, lead.role):
            return own, name == lead.role
        if rendering.style == "pca" and self.opened.images[name].bands != lead.bands:
            return own, False
        try:
            leading = self._own_limits(lead.role, rendering)
        except HyperfuseError:
            return own, False
        first, second = (np.abs(limits).max(axis=1) for limits in (own, leading))
        comparable = first.shape == second.shape and bool(
            (first <= OTHER_UNITS * second).all() and (second <= OTHER_UNITS * first).all()
        )
        return (leading, True) if comparable else (own, False)

    def _own_limits(self, name: str, rendering: Rendering) -> Limits:
        layer, low, high = self.layer(name, rendering), rendering.low, rendering.high
        if layer.limits is not None:
            return np.array([layer.limits])
        sample = self._samples.get(layer.key, lambda: sampled(layer))
        return self._limits.get((layer.key, low, high), lambda: percentile_limits(sample, low, high))

    def layer(self, name: str, rendering: Rendering) -> Layer:
        """An image, by role, in a rendering, or a map."""
        if name in MAPS:
            return self._layers.get(name, lambda: map_layer(self.opened, name, self.observed_pair))
        if name not in self.opened.images:
            offered = ", ".join([*self.opened.images, *MAPS])
            raise OptionError(f"layer {name[:40]!r}", f"one of {offered}", "open such an image first")
        image, lead = self.opened.images[name], self.opened.lead

        def compute() -> Layer:
            if rendering.style == "pca":
                # The lead's for all images with its bands, so that equal colours mean equal spectra.
                fitted = lead if image.bands == lead.bands else image
                composite = self._components.get(fitted.role, lambda: _fit_components(fitted))
            else:
                composite = composite_for(rendering, image.cube, lead.cube)
            return tiles.image_layer(image, composite)

        return self._layers.get((name, rendering.style, rendering.bands, rendering.index), compute)


def _fit_components(image: OpenImage) -> Composite:
    good = np.flatnonzero(image.cube["good"].values)
    bands = good if good.size else np.arange(image.bands)
    everything = Composite("all", bands, bands.size, lambda planes: planes, "all bands")
    return principal_components(sampled(tiles.image_layer(image, everything)), bands, image.role)


class Session:
    """One running page."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.jobs = Jobs()
        self.view: View | None = None
        self._opening = threading.Lock()
        self._thumbnails: Cache[bytes] = Cache(100)
        self._turns = asyncio.Semaphore(MOST_REQUESTS)
        self._threads = anyio.CapacityLimiter(MOST_THREADS)

    async def run(self, work: Callable[[], Any]) -> Any:
        """Run the work of a request in a thread, with limits on time and on requests at once."""
        try:
            async with asyncio.timeout(SECONDS_OF_WORK), self._turns:
                return await anyio.to_thread.run_sync(work, limiter=self._threads, abandon_on_cancel=True)
        except TimeoutError as error:
            # Repeating the request may find the work done.
            got = f"no answer within {SECONDS_OF_WORK:g} s"
            raise RequestError(503, got, "less work", "try again in a moment") from error

    def open(self, paths: Mapping[str, Path], inputs: PairInputConfig = AS_STORED) -> View:
        """Replace the open images; when that fails, they stay."""
        with self._opening:
            self.view = View(self.view.number + 1 if self.view else 1, open_images(paths, inputs))
            return self.view

    def require_view(self, number: int | None = None) -> View:
        view = self.view
        if view is None:
            raise OptionError("no image is open", "an open image", "open one first")
        if number not in (None, view.number):
            raise RequestError(410, "a request about images that were replaced", "the open ones", "reload the page")
        return view

    def prepare(self) -> None:
        """Compute what will be requested first: the description, the stretch, and the first tile."""
        with suppress(HyperfuseError):
            if self.view is not None:
                place = TilePlace(highest_level(self.view.opened.grid), 0, 0)
                self.view.tile(self.view.opened.lead.role, place, DEFAULT_RENDERING)
                self.view.describe(self.folder)
        # Matplotlib takes its time to load.
        tiles.colour_table(DEFAULT_RENDERING.colours)

    def thumbnail(self, path: Path) -> bytes:
        """A small PNG of a file that is not open."""

        def compute() -> bytes:
            view = View(0, open_images({"fused": path}))
            grid, level = view.opened.grid, highest_level(view.opened.grid)
            layer = view.layer("fused", DEFAULT_RENDERING)
            planes, _ = tiles.tile_planes(layer, TilePlace(level, 0, 0), grid, lambda: Preview(layer))
            height, width = (-(-size // 2**level) for size in (grid.height, grid.width))
            limits, _ = view.limits("fused", DEFAULT_RENDERING)
            return tiles.as_png(tiles.paint(planes[:, :height, :width], limits, DEFAULT_RENDERING.colours))

        return self._thumbnails.get((path, path.stat().st_mtime_ns), compute)


def _describe(opened: OpenImages, folder: Folder) -> dict[str, Any]:
    grid, cube = opened.grid, opened.lead.cube
    code = None if grid.crs is None else grid.crs.to_epsg()
    highest = summarise(cube).sampled_maximum
    return {
        "lead": opened.lead.role,
        "height": grid.height,
        "width": grid.width,
        "crs": f"EPSG:{code}" if code else grid.crs and grid.crs.to_wkt()[:60],
        "transform": list(grid.transform)[:6] if grid.transform else None,
        "tile": tiles.SIDE,
        "levels": highest_level(grid),
        "images": [_describe_image(image, folder) for image in opened.images.values()],
        "maps": [
            {"name": name, "title": kind.title, "unavailable": unavailable(opened, name)} for name, kind in MAPS.items()
        ],
        **offered_renderings(cube, is_reflectance=highest is not None and highest <= LARGEST_REFLECTANCE),
        "notes": list(opened.notes),
    }


def _describe_image(image: OpenImage, folder: Folder) -> dict[str, Any]:
    cube = image.cube
    return {
        "role": image.role,
        "title": ROLES[image.role],
        "file": image.path.name,
        "path": folder.name_of(image.path),
        "height": image.height,
        "width": image.width,
        "bands": image.bands,
        "wavelength_nm": strict_json(cube["wavelength"].values),
        "fwhm_nm": strict_json(cube["fwhm"].values),
        "good": cube["good"].values.tolist(),
        "band_name": [str(name) for name in cube["band_name"].values],
        "scale": None if image.placement is None else list(image.placement.scale),
        "has_overviews": bool(image.raster and image.raster.overviews),
        "offers_overviews": offers_overviews(image),
    }


def describe_file(cube: xr.DataArray, notes: Mapping[str, str]) -> dict[str, Any]:
    """What `hyperfuse info` prints."""
    return summarise(cube).as_dict() | {"found": dict(notes)}


def offers_overviews(image: OpenImage) -> bool:
    """Whether building overviews would make a large GeoTIFF faster to show."""
    raster = image.raster
    is_plain = raster is not None and raster.driver == "GTiff" and not raster.overviews
    return is_plain and image.height * image.width >= LARGE_PIXELS
