"""Tiles of the output, the windows of both images that each tile needs, and how large tiles may be.

Windows are clipped only at the border of the scene, so border effects occur there and nowhere else. The memory limit
(`--ram`) is the peak resident memory of the process: the interpreter, the libraries and GDAL's cache are subtracted
first; the rest is shared by the running tiles. The constants were measured (docs/large_scenes.md) and rounded up.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import rasterio
import torch

from hyperfuse.errors import OptionError
from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.methods.catalogue import find_method
from hyperfuse.methods.pair_model import MOST_COMPONENTS, conditioning_halo
from hyperfuse.methods.window import Place, Window
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.physics.observation import Observation

# Holes are filled from an image pyramid: windows that start at multiples of these have the same pyramid in every tile.
COARSE_ALIGNMENT, FINE_ALIGNMENT = 8, 32
# Side of the output's compressed blocks, each of which must be written at once.
OUTPUT_BLOCK = 256
TILE_SIZES = (
    *((2048, 2048), (1024, 2048), (1024, 1024), (512, 1024), (512, 512), (256, 512)),
    *((256, 256), (128, 256), (128, 128), (64, 128), (64, 64)),
)


@dataclass(frozen=True)
class Tile:
    """A piece of the output, in pixels of the output's grid."""

    index: int
    rows: slice
    columns: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def pixels(self) -> int:
        return self.shape[0] * self.shape[1]


@dataclass(frozen=True)
class WindowPlace:
    """Windows of both images for some fine pixels of a pair, and within them the cores."""

    coarse: Place
    fine: Place
    coarse_core: Place
    fine_core: Place

    @property
    def coarse_pixels(self) -> int:
        return _pixels(self.coarse)

    @property
    def fine_pixels(self) -> int:
        return _pixels(self.fine)

    @property
    def core_pixels(self) -> int:
        return _pixels(self.fine_core)

    def observation(self, scene: Observation) -> Observation:
        """The observation relative to the corner of the windows."""
        return scene.in_window(*((rows.start, columns.start) for rows, columns in (self.coarse, self.fine)))


def plan_tiles(size: tuple[int, int], tile_size: tuple[int, int]) -> list[Tile]:
    """Tiles that cover an output of this size; those of one output block follow each other."""
    height, width = tile_size
    corners = itertools.product(range(0, size[0], height), range(0, size[1], width))
    blocks = max(OUTPUT_BLOCK, height), max(OUTPUT_BLOCK, width)
    order = sorted(corners, key=lambda corner: (corner[0] // blocks[0], corner[1] // blocks[1]))
    return [
        Tile(index, slice(top, min(top + height, size[0])), slice(left, min(left + width, size[1])))
        for index, (top, left) in enumerate(order)
    ]


def place_for(pair: AlignedPair, observation: Observation, rows: slice, columns: slice, halo: int) -> WindowPlace:
    """The windows that these fine pixels of the pair need, with `halo` coarse pixels around them."""
    axes = zip((rows, columns), pair.coarse_shape[1:], pair.fine_shape[1:], pair.scale, observation.shift, strict=True)
    y, x = (_axis(*axis, halo) for axis in axes)
    return WindowPlace((y[0], x[0]), (y[1], x[1]), (y[2], x[2]), (y[3], x[3]))


def covered_part(tile: Tile, pair: AlignedPair) -> tuple[slice, slice] | None:
    """The fine pixels of the pair, counted from its corner, in a tile; None where there are none."""
    rows, columns = (
        slice(max(part.start, covered.start) - covered.start, min(part.stop, covered.stop) - covered.start)
        for part, covered in ((tile.rows, pair.fine_rows), (tile.columns, pair.fine_columns))
    )
    return (rows, columns) if rows.stop > rows.start and columns.stop > columns.start else None


def _axis(
    core: slice, coarse_size: int, fine_size: int, scale: float, shift: float, halo: int
) -> tuple[slice, slice, slice, slice]:
    first, last = (
        min(max(math.floor((centre - shift) / scale), 0), coarse_size - 1)
        for centre in (core.start + 0.5, core.stop - 0.5)
    )
    last += 1
    start = max(0, first - halo) // COARSE_ALIGNMENT * COARSE_ALIGNMENT
    stop = min(coarse_size, last + halo)
    fine_start = 0 if start == 0 else max(0, math.floor(start * scale + shift)) // FINE_ALIGNMENT * FINE_ALIGNMENT
    fine_stop = fine_size if stop == coarse_size else min(fine_size, math.ceil(stop * scale + shift))
    # Pixels outside the coarse image, and windows without a halo, still need themselves.
    fine_start, fine_stop = min(fine_start, core.start), max(fine_stop, core.stop)
    return (
        slice(start, stop),
        slice(fine_start, fine_stop),
        slice(first - start, last - start),
        slice(core.start - fine_start, core.stop - fine_start),
    )


def read_window(pair: AlignedPair, observation: Observation, place: WindowPlace, *, all_bands: bool = False) -> Window:
    """A window of the pair with the usable bands of the HSI, or all of them; NaN where there is no data."""
    hsi = pair.hsi_values(*place.coarse)
    hsi, msi = hsi if all_bands else hsi[pair.usable_bands], pair.msi_values(*place.fine)
    images = torch.from_numpy(hsi), torch.from_numpy(msi)
    return Window(*images, place.observation(observation), place.coarse_core, place.fine_core)


def _pixels(place: Place) -> int:
    rows, columns = (int(part.stop - part.start) for part in place)
    return rows * columns


GIGABYTE = 1_000_000_000
PROGRAM_BYTES = 420_000_000
CACHE_BYTES = 48_000_000
DEFAULT_SHARE = 0.5  # of the machine's memory
SHARE_OF_PREPARING = 0.8  # of what is available, for the work before the first tile
# Slices of windows, small matrices, and what the allocator does not return at once.
OVERHEAD_OF_TILE = 40_000_000
ROOM = 1.2
# Two tiles at once are planned on every machine. A tile whose halo costs no more than this factor is not enlarged.
TILES_AT_ONCE = 2
TOLERABLE_HALO = 1.3
# Every thread of a library has its own buffers, and every heap of the allocator keeps freed memory: hundreds of
# megabytes on a machine with many cores.
MOST_THREADS = 16
MOST_HEAPS = 2
M_ARENA_MAX = -8  # of glibc's malloc.h
# A scene up to this side is a single tile where memory allows.
LARGEST_WHOLE_SIDE = 2048
# Feature maps that a network holds at the same time.
FEATURE_IMAGES = 8


@dataclass(frozen=True)
class Workload:
    """What determines the memory of a tile beside its size; copies are float32 images of all bands."""

    bands: int
    msi_bands: int
    itemsize: int  # of an output value
    core_copies: float
    window_copies: float
    components: int  # images of the size of the window without its outer halo

    def input_bytes(self, place: WindowPlace) -> int:
        return 4 * (self.bands * place.coarse_pixels + self.msi_bands * place.fine_pixels)

    def block_bytes(self, place: WindowPlace) -> int:
        return self.bands * self.itemsize * place.core_pixels

    def working_bytes(self, place: WindowPlace, near_pixels: int) -> int:
        """Peak memory of one tile; `near_pixels` are the fine pixels that the last step needs."""
        core, window, coarse = place.core_pixels, place.fine_pixels, place.coarse_pixels
        denoising = 20 * coarse * (self.msi_bands + 1) * (self.msi_bands + MOST_COMPONENTS)
        on_inputs = 20 * self.msi_bands * window + 36 * self.bands * coarse
        on_bands = 4 * self.bands * (self.core_copies * core + self.window_copies * window)
        on_components = 4 * self.components * near_pixels
        return int(ROOM * (on_inputs + denoising + max(on_components, on_bands + on_components / 4)) + OVERHEAD_OF_TILE)


def method_workload(pair: AlignedPair, method: str, *, consistency: bool, itemsize: int) -> Workload:
    footprint = find_method(method)
    bands, msi_bands = pair.coarse_shape[0], pair.fine_shape[0]
    window_copies = footprint.window_copies + (4 if consistency else 0)
    components = footprint.component_images * min(MOST_COMPONENTS, bands)
    return Workload(bands, msi_bands, itemsize, footprint.core_copies, window_copies, components)


def network_workload(pair: AlignedPair, network: AnyNetwork, *, itemsize: int) -> Workload:
    """A network computes features of the whole window, and so does the method that it refines."""
    bands, msi_bands = pair.coarse_shape[0], pair.fine_shape[0]
    components = max(FEATURE_IMAGES * network.config.width, 10 * min(MOST_COMPONENTS, bands))
    return Workload(bands, msi_bands, itemsize, core_copies=2.0, window_copies=5.0, components=components)


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of tiles and the memory they need; `whole` means that the scene is a single tile."""

    tile_size: tuple[int, int]
    tile_bytes: int  # of one tile under way, with its inputs and its result
    budget: int
    whole: bool = False

    @property
    def tiles_at_once(self) -> int:
        return max(1, min(_processors(), self.budget // max(1, self.tile_bytes)))


def plan_memory(
    pair: AlignedPair,
    observation: Observation,
    workload: Workload,
    halo: int,
    ram_gb: float,
    sizes: Sequence[tuple[int, int]] | None = None,
) -> MemoryPlan:
    """The whole scene as one tile where it fits, else the largest useful tiles; `sizes` restricts the choice."""
    budget = available_bytes(ram_gb)
    output = (pair.output_grid.height, pair.output_grid.width)
    if max(output) <= LARGEST_WHOLE_SIDE and sizes is None:
        everything = place_for(pair, observation, slice(0, pair.fine_shape[1]), slice(0, pair.fine_shape[2]), 0)
        # The inputs, the fused image, and that image as it is stored.
        stored = (4 + workload.itemsize) * workload.bands * everything.fine_pixels
        needed = workload.working_bytes(everything, everything.fine_pixels) + stored
        needed += 2 * workload.input_bytes(everything)
        if needed <= budget:
            return MemoryPlan(output, needed, budget, whole=True)
    best, most_done, needed = None, 0.0, 0
    for size in sizes or TILE_SIZES[::-1]:
        place = place_for(pair, observation, *_middle(pair, size), halo)
        near = near_pixels(pair, observation, size, halo)
        needed = workload.working_bytes(place, near) + 2 * workload.input_bytes(place) + 2 * workload.block_bytes(place)
        # Useful pixels at once, without halos.
        done = min(TILES_AT_ONCE, budget // needed) * place.core_pixels / near
        if done > most_done:
            best, most_done = MemoryPlan(size, needed, budget), done
        if done >= TILES_AT_ONCE / TOLERABLE_HALO or needed > budget:
            break
    if best is None:
        least = (needed + PROGRAM_BYTES + CACHE_BYTES) / GIGABYTE
        height, width = (sizes or TILE_SIZES)[-1]
        expected = f"at least {least:.2g} GB for a tile of {height}x{width} pixels"
        raise OptionError(f"{ram_gb:g} GB of memory", expected, "raise --ram")
    return best


def available_bytes(ram_gb: float) -> int:
    return int(ram_gb * GIGABYTE) - PROGRAM_BYTES - CACHE_BYTES


def default_ram_gb() -> float:
    """Half of the memory that the machine, or the container, has."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [8 * GIGABYTE]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return DEFAULT_SHARE * min(limits) / GIGABYTE


@contextlib.contextmanager
def bounded_pools() -> Iterator[None]:
    """Limit threads, heaps and GDAL's cache (by default 5 % of the memory), so that every machine needs the same."""
    threads = torch.get_num_threads()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, MOST_HEAPS)
    torch.set_num_threads(min(MOST_THREADS, threads))
    try:
        with rasterio.Env(GDAL_CACHEMAX=CACHE_BYTES):
            yield
    finally:
        torch.set_num_threads(threads)


def release_memory() -> None:
    """Return freed memory to the system, which glibc would otherwise keep."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def near_pixels(pair: AlignedPair, observation: Observation, size: tuple[int, int], halo: int) -> int:
    """How many fine pixels the last step processes for a tile of this size."""
    return place_for(pair, observation, *_middle(pair, size), min(halo, conditioning_halo(observation))).fine_pixels


def _processors() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _middle(pair: AlignedPair, size: tuple[int, int]) -> tuple[slice, slice]:
    """A tile of this size in the middle of the scene, with its full halo."""
    axes = zip(pair.fine_shape[1:], size, strict=True)
    starts = [(max(0, (length - side) // 2), length, side) for length, side in axes]
    rows, columns = (slice(start, min(length, start + side)) for start, length, side in starts)
    return rows, columns
