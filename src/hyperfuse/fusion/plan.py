"""Everything that is decided about a scene before its first pixel is fused: pair, observation, fuser, tiles.

`make_plan` reads as much of both images as the estimation needs and writes nothing. The memory limit (`--ram`) is the
peak resident memory of the process: the interpreter, the libraries and GDAL's cache are subtracted first; the rest is
shared by the running tiles. The constants were measured (docs/large_scenes.md) and rounded up.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import shutil
import timeit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.config import DEFAULT_METHOD, FuseConfig, ObservationConfig, PairConfig
from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.fusion.engine import CACHE_BYTES, Tile, TileJob, WindowPlace, place_for, place_to_fill, read_window
from hyperfuse.fusion.fusers import Fuser, load_network, method_of, network_fuser, network_halo
from hyperfuse.fusion.observe import (
    RegisteredPair,
    estimate_pair,
    register_pair,
    resolve_method,
    warn_of_corrections,
    warn_of_worse_method,
)
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.fusion.sample import representative_window, sample_places, sampled_fine_pixels
from hyperfuse.io.cube import block_bytes, in_memory, make_cube, nodata_of, usual_nodata, wavelengths_nm
from hyperfuse.io.files import as_opened, open_mask
from hyperfuse.io.isolation import start_server
from hyperfuse.io.output import check_fits, output_template, provenance, select_bands, selected
from hyperfuse.io.wavelengths import supplied_to
from hyperfuse.methods.catalogue import MethodFuser, find_method
from hyperfuse.methods.pair_model import MOST_COMPONENTS, conditioning_halo
from hyperfuse.methods.window import Window, one_torch_thread
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.weights import BICUBIC
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.srf import srf_for
from hyperfuse.progress import progress

log = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]
Image = xr.DataArray | NDArray[Any] | PathLike

# Side of the output's compressed blocks, each of which must be written at once.
OUTPUT_BLOCK = 256
TILE_SIZES = (
    *((1024, 1024), (512, 1024), (512, 512), (256, 512)),
    *((256, 256), (128, 256), (128, 128), (64, 128), (64, 64)),
)
GIGABYTE = 1_000_000_000
PROGRAM_BYTES = 420_000_000
DEFAULT_SHARE = 0.5  # of the machine's memory
SHARE_OF_PREPARING = 0.8  # of what is available, for the work before the first tile
# Parts of the tile in all bands, slices of windows, small matrices.
OVERHEAD_OF_TILE = 80_000_000
ROOM = 1.2
# Images that are together no larger, as they are stored, are read once; of others, many windows overlap.
# The share of the memory available lies within ROOM, so that tiles need not leave room for them.
HELD_BYTES, SHARE_HELD = 100_000_000, 0.05
# A block is there packed and unpacked, in GDAL also band by band.
LARGEST_USUAL_BLOCK, BLOCK_COPIES = 16_000_000, 2.5
# Two tiles at once are planned on every machine. A tile whose halo costs no more than this factor is not enlarged.
TILES_AT_ONCE = 2
TOLERABLE_HALO = 1.35
# Up to this factor, tiles are not enlarged either where two of them would take more than this.
LARGEST_HALO, LARGEST_TILES_BYTES = 2.0, 1_600_000_000
# A scene up to this side is a single tile where memory allows and the tile takes no more than this: several tiles keep
# several processors busy, and what they need stays in memory that was used before.
LARGEST_WHOLE_SIDE, LARGEST_WHOLE_BYTES = 2048, 1_000_000_000
# Feature maps that a network holds at the same time.
FEATURE_IMAGES = 8
# What a window holds while it waits for a statistic of the scene, of what it needs at its peak.
SHARE_THAT_WAITS = 0.25
# A window of this side, in fine pixels, is fused to measure the time it takes.
TIMED_SIDE = 128
SMALLEST_TIMED_SIDE = 8  # coarse pixels


@dataclass(frozen=True)
class Plan:
    """How one pair is fused. Pairs of numbers are (y, x)."""

    config: FuseConfig
    inputs: Mapping[str, Path]
    """The files that are read, by their role."""
    hsi: xr.DataArray
    """As it was opened: the fused cube has its bands, data type and metadata."""
    aligned: AlignedPair
    pair: AlignedPair
    """The same, registered and harmonised."""
    change_mask: xr.DataArray
    """Lazy, of one band: how far the MSI is used."""
    observation: Observation
    method: str
    network: AnyNetwork | None
    workload: Workload
    halo: int
    """Coarse pixels around a tile."""
    memory: MemoryPlan
    uncertainty: bool = False
    """Whether the output is the expected error instead of the fused image."""

    @cached_property
    def tiles(self) -> list[Tile]:
        grid = self.pair.output_grid
        return plan_tiles((grid.height, grid.width), self.memory.tile_size)

    @cached_property
    def bands(self) -> NDArray[np.int64]:
        """Bands of the HSI that the output has."""
        if self.config.bands is None:
            return np.arange(self.hsi.sizes["band"])
        return np.asarray(select_bands(self.hsi, self.config.bands), dtype=np.int64)

    def record(self) -> dict[str, str]:
        """The provenance of the output."""
        left_out = ("method", "weights", "mask", "hsi_mask", "creation_options")
        options = {name: value for name, value in self.config.recorded().items() if name not in left_out}
        method = "uncertainty" if self.uncertainty else None if self.network is not None else self.method
        return provenance(method=method, weights=self.weights_digest, inputs=self.inputs, options=options)

    @property
    def weights_digest(self) -> str | None:
        return None if self.network is None else self.network.weights_digest or "unsaved"

    def template(self, record: Mapping[str, str], *, complete: bool | None = None) -> xr.DataArray:
        """The output without its values: the MSI's grid with the HSI's bands, data type, scale, nodata and metadata.

        `complete` promises that no pixel will be missing, which integers may show. Otherwise, where the HSI has no
        nodata, it is NaN or an unusual integer.
        """
        hsi, grid = self.hsi, self.pair.output_grid
        if complete is None:
            images = self.pair.hsi_source.cube, self.pair.msi_source.cube
            is_covered = self.pair.fine_shape[1:] == (grid.height, grid.width)
            complete = is_covered and all(cube.dtype.kind in "iu" and nodata_of(cube) is None for cube in images)
        nodata = nodata_of(hsi)
        y, x = self.pair.scale
        scale = f"{y:.9g}" if abs(y - x) < 1e-6 * y else f"{y:.9g} {x:.9g}"
        attributes = {key: value for key, value in hsi.attrs.items() if key != "_FillValue"}
        fused = make_cube(
            np.broadcast_to(np.zeros((), hsi.dtype), (hsi.sizes["band"], grid.height, grid.width)),
            wavelength_nm=hsi["wavelength"].values,
            fwhm_nm=hsi["fwhm"].values,
            good=hsi["good"].values,
            band_names=[str(name) for name in hsi["band_name"].values],
            scale=hsi["scale"].values,
            offset=hsi["offset"].values,
            nodata=usual_nodata(hsi.dtype) if nodata is None and not complete else nodata,
            crs=grid.crs,
            transform=grid.transform,
            attributes={**attributes, "hyperfuse_version": version("hyperfuse"), "hyperfuse_scale": scale, **record},
        )
        return output_template(fused, self.config)

    def job(self, fuser: Fuser, template: xr.DataArray | None) -> TileJob:
        move = self.observation.misregistration if self.config.trust == "hsi" else (0.0, 0.0)
        pixel = None if template is None else template.isel(y=slice(0, 1), x=slice(0, 1)).copy(deep=True)
        non_negative = self.config.non_negative == "auto"
        precision = self.config.precision
        return TileJob(self.pair, self.observation, fuser, self.bands, move, non_negative, precision, pixel)

    def with_tile_size(self, size: tuple[int, int]) -> Plan:
        """The same with tiles of an earlier plan."""
        if size == self.memory.tile_size:
            return self
        inputs = self.pair, self.observation, self.workload, self.halo, ram_of(self.config)
        return replace(self, memory=plan_memory(*inputs, (size,)))

    def fuser(self) -> Fuser:
        """What fuses the tiles, with the statistics of the scene from windows spread over it."""
        if self.memory.whole:
            rows, columns = (slice(0, size) for size in self.pair.fine_shape[1:])
            place = place_for(self.pair, self.observation, rows, columns, self.halo)
            return self.fuser_from([lambda: read_window(self.pair, self.observation, place)], whole=True)
        # In a large scene, errors at the borders of windows are rare among many pixels.
        is_large = math.prod(self.pair.fine_shape[1:]) > sampled_fine_pixels(self.pair)
        halo = math.ceil(self.halo / 3) if is_large else self.halo

        budget = self.memory.budget

        def needed(place: WindowPlace) -> int:
            return self.workload.working_bytes(place, place.fine_pixels)

        places = sample_places(self.pair, self.observation, halo, lambda place: needed(place) < 0.75 * budget)
        largest = max(map(needed, places))
        most_held = max(0, int((budget - largest) / (SHARE_THAT_WAITS * (largest - OVERHEAD_OF_TILE))))
        read = partial(read_window, self.pair, self.observation)
        return self.fuser_from([partial(read, place) for place in places], most_held)

    def fuser_from(
        self, windows: Sequence[Callable[[], Window]], most_held: int | None = None, *, whole: bool = False
    ) -> Fuser:
        if self.network is None:
            fuser = MethodFuser(self.method, self.config.consistency, uncertainty=self.uncertainty)
            return fuser if whole else fuser.gather(windows, most_held)
        centres = wavelengths_nm(self.pair.hsi_source.cube)
        wavelength_nm = None if centres is None else torch.from_numpy(centres[self.pair.usable_bands])
        return network_fuser(self.network, self.observation, wavelength_nm, windows, most_held, whole=whole)


def ram_of(config: FuseConfig) -> float:
    return default_ram_gb() if config.ram_gb is None else config.ram_gb


def open_pair(
    hsi: Image, msi: Image, config: PairConfig
) -> tuple[xr.DataArray, xr.DataArray, dict[str, xr.DataArray | None]]:
    """Cubes of both images, and the masks of `config` by their names, from files, arrays (band, y, x) or cubes."""
    _refuse_bands_last(hsi, msi)
    # The MSI first: its few bands leave less doubt about the axes of an unlabelled array.
    msi_cube = as_opened(msi, config.msi_variable, config.msi_band_axis)
    size = msi_cube.sizes["y"], msi_cube.sizes["x"]
    hsi_cube = as_opened(hsi, config.hsi_variable, config.hsi_band_axis, fitting=size)
    hsi_cube, msi_cube = supplied_to({"hsi": hsi_cube, "msi": msi_cube}, config).values()
    for name, cube in (("HSI", hsi_cube), ("MSI", msi_cube)):
        if cube.dtype.kind == "b":
            raise ValueRangeError(f"{name} of True and False", "numbers", "a mask is given as mask or hsi_mask")
    hsi_bands, msi_bands = hsi_cube.sizes["band"], msi_cube.sizes["band"]
    if msi_bands > hsi_bands:
        got = f"an HSI of {hsi_bands} band{'s' * (hsi_bands > 1)} and an MSI of {msi_bands}"
        raise BandError(got, "more bands in the HSI, which comes first", "swap the two images")
    if isinstance(config, ObservationConfig) and config.srf is not None and config.skip_uncovered:
        found = srf_for(hsi_cube, config.srf, skip_uncovered=True)
        if msi_cube.sizes["band"] == len(found.kept) + len(found.uncovered) > len(found.kept):
            msi_cube = msi_cube.isel(band=list(found.kept))
    masks = {"mask": (config.mask, msi_cube), "hsi_mask": (config.hsi_mask, hsi_cube)}
    opened = {name: None if mask is None else open_mask(mask, cube) for name, (mask, cube) in masks.items()}
    return hsi_cube, msi_cube, opened


def _refuse_bands_last(hsi: Image, msi: Image) -> None:
    """Arrays are (band, y, x); say so where the shapes of two of them fit each other only as (y, x, band)."""
    shapes = [np.shape(each) for each in (hsi, msi) if not isinstance(each, xr.DataArray | str | os.PathLike)]
    if [len(shape) for shape in shapes] != [3, 3]:
        return

    def fit(coarse: tuple[int, int, int], fine: tuple[int, int, int]) -> bool:
        """Whether (band, y, x) of both make sense: more bands in the HSI, more pixels in the MSI, one scale."""
        y, x = fine[1] / max(1, coarse[1]), fine[2] / max(1, coarse[2])
        return coarse[0] >= fine[0] and min(y, x) >= 1 and max(y, x) < 1.25 * min(y, x)

    (a, b, c), (d, e, f) = shapes
    if fit((c, a, b), (f, d, e)) and not fit((a, b, c), (d, e, f)):
        got = f"arrays of shape {shapes[0]} and {shapes[1]}, which look like (y, x, band)"
        raise GridError(got, "(band, y, x)", "transpose both with .transpose(2, 0, 1)")


def input_paths(hsi: Image, msi: Image, config: PairConfig) -> dict[str, Path]:
    """The files among the inputs, by their role."""
    inputs = {"hsi": hsi, "msi": msi, "mask": config.mask, "hsi_mask": config.hsi_mask}
    return {role: Path(image) for role, image in inputs.items() if isinstance(image, str | os.PathLike)}


def make_plan(
    hsi: Image,
    msi: Image,
    config: FuseConfig,
    *,
    method: str | None = None,
    uncertainty: bool = False,
    observation: Observation | None = None,
) -> Plan:
    """Align both images, estimate the observation, choose the method and divide the scene into tiles.

    `method` is the one that an interrupted run had chosen, `observation` one that is known.
    """
    ram_gb = ram_of(config)
    budget = available_bytes(ram_gb)
    if budget <= 0:
        expected = f"more than {ram_gb - budget / 1e9:.2g} GB, which the program itself needs"
        raise OptionError(f"{ram_gb:g} GB of memory", expected, "raise --ram")
    # Before the bar's thread: the server is then forked, and need not be started anew.
    start_server()
    with progress("Preparing", total=3) as advance:
        hsi_cube, msi_cube, masks = open_pair(hsi, msi, config)
        blocks = unpacking_bytes(hsi_cube, msi_cube)
        if blocks > budget:
            got = f"{ram_gb:g} GB of memory for images stored in blocks of {blocks / BLOCK_COPIES / 1e6:.0f} MB"
            expected = f"at least {ram_gb + (blocks - budget) / GIGABYTE:.2g} GB"
            raise OptionError(got, expected, "raise --ram, or rewrite them with `hyperfuse convert`")
        most_held = min(HELD_BYTES, SHARE_HELD * budget)
        if hsi_cube.nbytes + msi_cube.nbytes <= most_held and config.workers is None and config.cluster is None:
            hsi_cube, msi_cube = in_memory(hsi_cube), in_memory(msi_cube)
            blocks = 0
        check_fits(selected(hsi_cube, config), output_template(hsi_cube, config))
        aligned = align_pair(hsi_cube, msi_cube, config, **masks)
        advance(1)
        network = None if config.weights is None else load_network(config.weights)
        if network is not None:
            network.check_bands(int(aligned.usable_bands.sum()), aligned.fine_shape[0])
        most_bytes = int(SHARE_OF_PREPARING * budget)
        found = None if observation is None else RegisteredPair(aligned, aligned, observation)
        if found is None:
            found = register_pair(
                aligned,
                lambda each, bend: estimate_pair(each, hsi_cube, config, bend=bend),
                local_shift=config.local_shift,
                search_further=config.estimate and config.shift is None,
                reconcile=config.harmonise == "auto",
                trust=config.trust,
            )
            warn_of_corrections(found)
        pair, observation = found.pair, found.observation
        advance(1)
        if network is None:
            method = method or resolve_method(pair, observation, config.method, most_bytes)
            if method == DEFAULT_METHOD and found.harmonisation.agreement is not None:
                warn_of_worse_method(pair, observation)
        advance(1)
    # A resumed run of uncertainties has recorded that instead of a method.
    method = config.method if uncertainty else method or config.method
    # Copies, so that what the estimation has read of a small pair is not kept in memory twice.
    weight = found.change_mask if uncertainty and found.harmonisation.agreement is not None else None
    aligned, pair = replace(aligned), replace(pair, msi_weight=weight)
    bands = pair.coarse_shape[0]
    sizes = bands, pair.fine_shape[0], np.dtype(config.dtype or hsi_cube.dtype).itemsize
    own_method = method if network is None else method_of(network)
    if own_method is not None:
        held = find_method(own_method)
        window_copies = held.window_copies + (4 if config.consistency else 0)
        workload = Workload(*sizes, window_copies, held.component_images * min(MOST_COMPONENTS, bands), blocks)
        halo = MethodFuser(own_method, config.consistency).halo(observation)
    else:
        assert network is not None
        # A network computes features of the whole window, and so does the method that it refines.
        features = max(FEATURE_IMAGES * network.config.width, 10 * min(MOST_COMPONENTS, bands))
        workload, base = Workload(*sizes, 7.0, features, blocks), network.config.base
        halo = network_halo(network, observation) + (0 if base == BICUBIC else MethodFuser(base).halo(observation))
    memory = plan_memory(pair, observation, workload, halo, ram_gb)
    log.debug("%r", observation)
    log.debug(f"{method if network is None else type(network).__name__}, tiles of {_size(*memory.tile_size)} pixels")
    if network is not None and network.receptive_field is None and not memory.whole:
        grid = pair.output_grid
        raise OptionError(
            f"a scene of {grid.height} x {grid.width} pixels for {type(network).__name__}",
            f"one that fits into memory ({memory.budget / 1e9:.2g} GB) and has at most {LARGEST_WHOLE_SIDE} pixels on "
            "a side: this network weighs its features by the whole scene, so it cannot work in tiles",
            "cut the scene with --bounds, raise --ram, or use the weights of a fusion network",
        )
    inputs = input_paths(hsi, msi, config)
    return Plan(
        config=config,
        inputs=inputs,
        hsi=hsi_cube,
        aligned=aligned,
        pair=pair,
        change_mask=found.change_mask,
        observation=observation,
        method=method,
        network=network,
        workload=workload,
        halo=halo,
        memory=memory,
        uncertainty=uncertainty,
    )


def summarise_plan(plan: Plan, target: Path, seconds_so_far: float = 0.0) -> dict[str, str]:
    """What would be done, in which time, in how much memory and disk space."""
    seconds = seconds_so_far + _expected_seconds(plan)
    pair, memory, template = plan.pair, plan.memory, plan.template(plan.record())
    (bands, *coarse), (msi_bands, *fine) = pair.coarse_shape, pair.fine_shape
    height, width = template.sizes["y"], template.sizes["x"]
    tiles, at_once = "1, the whole scene", 1
    if not memory.whole:
        size, at_once = _size(*memory.tile_size), memory.tiles_at_once
        tiles = f"{len(plan.tiles)} of {size} pixels with a halo of {plan.halo} HSI pixels; {at_once} at once"
    peak = PROGRAM_BYTES + CACHE_BYTES + memory.tile_bytes * at_once
    usable = int(pair.usable_bands.sum())
    return {
        "HSI": f"{_size(*coarse)} pixels in common with the MSI, {bands} bands, {usable} of them usable",
        "MSI": f"{_size(*fine)} pixels in common with the HSI, {msi_bands} bands",
        "scale": " x ".join(dict.fromkeys(f"{axis:.4g}" for axis in pair.scale)),
        "fused by": plan.method if plan.network is None else f"network {(plan.weights_digest or '')[:12]}",
        "tiles": tiles,
        "memory": f"{peak / GIGABYTE:.2g} of {ram_of(plan.config):.3g} GB at the peak",
        "time": f"about {_duration(seconds)}, {height * width / seconds / 1e6:.2g} MPix/s",
        "output": f"{_size(height, width)} pixels, {template.sizes['band']} bands of {template.dtype}: "
        f"{_bytes(template.nbytes)} before compression"
        + ("" if memory.whole else ", and as much for tiles while it runs"),
        "disk": f"{_bytes(shutil.disk_usage(target.absolute().parent).free)} free",
    }


def _expected_seconds(plan: Plan) -> float:
    """Extrapolated from the time that a small window takes."""
    pair, observation = plan.pair, plan.observation
    side = max(SMALLEST_TIMED_SIDE, round(TIMED_SIDE / max(pair.scale)))
    window = representative_window(pair, observation, side, plan.halo)
    with one_torch_thread():
        fuser = plan.fuser_from([lambda: window])
        seconds = min(timeit.repeat(lambda: fuser.fuse_window(window), number=1, repeat=2))
    pixels = len(plan.tiles) * near_pixels(pair, observation, plan.memory.tile_size, plan.halo)
    sampled = 0 if plan.memory.whole else 2 * min(sampled_fine_pixels(pair), math.prod(pair.fine_shape[1:]))
    return seconds / math.prod(window.fine_size) * (pixels / plan.memory.tiles_at_once + sampled)


def _size(height: int, width: int) -> str:
    return f"{height} x {width}"


def _bytes(count: int) -> str:
    return f"{count / GIGABYTE:.3g} GB" if count >= 0.1 * GIGABYTE else f"{count / 1e6:.3g} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


@dataclass(frozen=True)
class Workload:
    """What determines the memory of a tile beside its size; copies are float32 images of all bands."""

    bands: int
    msi_bands: int
    itemsize: int  # of an output value
    window_copies: float
    components: int  # images of the size of the window without its outer halo
    blocks: int = 0  # bytes for unpacking blocks of the inputs' files

    def input_bytes(self, place: WindowPlace) -> int:
        return 4 * (self.bands * place.coarse_pixels + self.msi_bands * place.fine_pixels)

    def working_bytes(self, place: WindowPlace, near_pixels: int) -> int:
        """Peak memory of one tile; `near_pixels` are the fine pixels that the last step needs."""
        window, coarse = place.fine_pixels, place.coarse_pixels
        denoising = 20 * coarse * (self.msi_bands + 1) * (self.msi_bands + MOST_COMPONENTS)
        on_inputs = 40 * self.msi_bands * window + 36 * self.bands * coarse
        on_bands = 4 * self.bands * self.window_copies * window
        on_components = 4 * self.components * near_pixels
        on_image = max(on_components, on_bands + on_components / 4)
        return int(ROOM * (on_inputs + denoising + on_image)) + OVERHEAD_OF_TILE + self.blocks


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
        needed = stored + workload.working_bytes(everything, everything.fine_pixels)
        needed += 2 * workload.input_bytes(everything)
        if needed <= min(budget, LARGEST_WHOLE_BYTES):
            return MemoryPlan(output, needed, budget, whole=True)
    best, most_done, needed = None, 0.0, 0
    for size in sizes or TILE_SIZES[::-1]:
        place = place_for(pair, observation, *_middle(pair, size), halo)
        near = near_pixels(pair, observation, size, halo)
        stored = workload.bands * workload.itemsize * place.core_pixels
        inputs = workload.input_bytes(place_to_fill(pair, observation, place))
        needed = workload.working_bytes(place, near) + 2 * inputs + 2 * stored
        if most_done >= TILES_AT_ONCE / LARGEST_HALO and TILES_AT_ONCE * needed > LARGEST_TILES_BYTES:
            break
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


def unpacking_bytes(*cubes: xr.DataArray) -> int:
    """Memory for blocks of the cubes' files beside the windows that are read; usual ones are part of the overhead."""
    largest = max(map(block_bytes, cubes))
    return int(BLOCK_COPIES * largest) if largest > LARGEST_USUAL_BLOCK else 0


def available_bytes(ram_gb: float) -> int:
    return int(ram_gb * GIGABYTE) - PROGRAM_BYTES - CACHE_BYTES


def default_ram_gb() -> float:
    """Half of the memory that the machine, or the container, has."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")] if hasattr(os, "sysconf") else [8 * GIGABYTE]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return DEFAULT_SHARE * min(limits) / GIGABYTE


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
