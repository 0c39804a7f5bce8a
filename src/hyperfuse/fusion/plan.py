"""What was found out about a scene, as plain containers of tensors and numbers, to be kept on disk, and back.

Everything that is found out about a scene before its first pixel is fused, and is the same for all of its pixels.

From a request to a plan: both images opened and brought together, how they were observed, what fuses them, in which
tiles.

A plan in words and numbers, for people who want to know before they start.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.errors import OptionError
from hyperfuse.fusion.engine import SceneJob, one_thread_per_tile
from hyperfuse.fusion.memory import (
    CACHE_BYTES,
    GIGABYTE,
    LARGEST_WHOLE_SIDE,
    PROGRAM_BYTES,
    SHARE_OF_PREPARING,
    MemoryPlan,
    Workload,
    available_bytes,
    bounded_pools,
    default_ram_gb,
    method_workload,
    near_pixels,
    network_workload,
    plan_memory,
)
from hyperfuse.fusion.network import (
    MethodFusion,
    NetworkFusion,
    WindowFusion,
    learn_method,
    learn_network,
    load_network,
    method_halo,
    network_halo,
    require_fitting_bands,
)
from hyperfuse.fusion.observe import fuse_pair, observe, resolved_method
from hyperfuse.fusion.output import cannot_miss, fused_template
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.fusion.register import moved, register_pair
from hyperfuse.fusion.request import HSI, FusionChoices, FusionRequest
from hyperfuse.fusion.sample import SAMPLED_FINE_PIXELS, read_window, representative_window, sample_places
from hyperfuse.fusion.tiles import Tile, WindowPlace, plan_tiles
from hyperfuse.fusion.warp import Warp
from hyperfuse.io.bands import select_bands
from hyperfuse.io.cube import wavelengths_nm
from hyperfuse.io.files import open_cube
from hyperfuse.io.output import output_template, refuse_unfit, selected
from hyperfuse.io.provenance import provenance
from hyperfuse.methods.window import Window
from hyperfuse.models.baselines.catalogue import AnyNetwork
from hyperfuse.models.channels import PairChannels, Subspace
from hyperfuse.models.config import BICUBIC
from hyperfuse.models.ssa import FusionNetwork
from hyperfuse.physics.observation import Observation
from hyperfuse.progress import Advance, progress


@dataclass(frozen=True)
class PreparedScene:
    pair: AlignedPair
    hsi: xr.DataArray
    """As it was opened: whose bands, data type and metadata the fused cube has."""
    choices: FusionChoices
    observation: Observation
    method: str
    network: AnyNetwork | None
    aligned: AlignedPair
    """The pair before its HSI was straightened, where that was needed; else the same."""
    warp: Warp | None

    @property
    def method_used(self) -> str | None:
        return self.method if self.network is None else None

    @property
    def weights_digest(self) -> str | None:
        return None if self.network is None else self.network.weights_digest or "unsaved"


def prepare_scene(
    pair: AlignedPair,
    hsi: xr.DataArray,
    choices: FusionChoices,
    advance: Advance,
    budget: int | None = None,
    decided: str | None = None,
) -> PreparedScene:
    """How the pair was observed and what to fuse it with, in two steps.

    With a `budget` of memory, in bytes, large pairs are read in parts.
    `decided` is the method that an earlier run found to suit the pair: the choice is not made twice.
    """
    most_bytes = None if budget is None else int(SHARE_OF_PREPARING * budget)
    network = None if choices.weights is None else load_network(str(choices.weights))
    if network is not None:
        require_fitting_bands(network, int(pair.usable_bands.sum()), pair.fine_shape[0])
    found = register_pair(
        pair,
        lambda each: observe(each, hsi, choices.hints, most_bytes),
        local_shift=choices.local_shift,
        look_further=choices.hints.estimate and choices.hints.shift is None,
    )
    advance(1)
    method = decided or choices.method
    if network is None:
        method = resolved_method(found.pair, found.observation, method, most_bytes)
    advance(1)
    return PreparedScene(found.pair, hsi, choices, found.observation, method, network, pair, found.warp)


def fuse_whole(scene: PreparedScene) -> NDArray[np.float32]:
    """(C, H, W) All of a scene at once, where the user wants it to lie."""
    fused = fuse_pair(scene.pair, scene.observation, scene.method, scene.network, consistency=scene.choices.consistency)
    return moved(fused, scene.observation.misregistration) if scene.choices.trust == HSI else fused


# Of the memory, for windows that are kept because they are looked at again.
SHARE_OF_KEPT_WINDOWS = 0.25


@dataclass(frozen=True)
class ScenePlan:
    request: FusionRequest
    scene: PreparedScene
    memory: MemoryPlan
    workload: Workload
    halo: int
    """Coarse pixels around a tile."""

    @cached_property
    def tiles(self) -> list[Tile]:
        grid = self.scene.pair.output_grid
        return plan_tiles((grid.height, grid.width), self.memory.tile_size)

    @cached_property
    def bands(self) -> NDArray[np.int64]:
        """Of the HSI, which the output has."""
        wanted, hsi = self.request.stored.bands, self.scene.hsi
        return np.arange(hsi.sizes["band"]) if wanted is None else np.asarray(select_bands(hsi, wanted), dtype=np.int64)

    def record(self) -> dict[str, str]:
        """How the output came about."""
        scene, request = self.scene, self.request
        left_out = ("method", "weights", "stored")
        options = {name: value for name, value in request.options_of_result().items() if name not in left_out}
        options |= request.stored.asked_for()
        return provenance(
            method=scene.method_used, weights=scene.weights_digest, inputs=request.inputs, options=options
        )

    def template(self, record: Mapping[str, str]) -> xr.DataArray:
        """The output without its values."""
        scene = self.scene
        like_hsi = fused_template(scene.pair, scene.hsi, record, complete=cannot_miss(scene.pair))
        return output_template(like_hsi, self.request.stored)

    def job(self, fusion: MethodFusion | NetworkFusion, template: xr.DataArray) -> SceneJob:
        scene = self.scene
        move = scene.observation.misregistration if scene.choices.trust == HSI else (0.0, 0.0)
        pixel = template.isel(y=slice(0, 1), x=slice(0, 1)).copy(deep=True)
        return SceneJob(scene.pair, scene.observation, fusion, pixel, self.bands, move)

    def in_tiles_of(self, size: tuple[int, int]) -> ScenePlan:
        """The same with tiles of an earlier plan."""
        if size == self.memory.tile_size:
            return self
        scene = self.scene
        memory = plan_memory(scene.pair, scene.observation, self.workload, self.halo, ram_of(self.request), (size,))
        return replace(self, memory=memory)


def ram_of(request: FusionRequest) -> float:
    return default_ram_gb() if request.ram_gb is None else request.ram_gb


def plan_scene(request: FusionRequest, decided: str | None = None) -> ScenePlan:
    """Reads as much of both images as the estimation needs, and writes nothing. `decided`: see `prepare_scene`."""
    ram_gb = ram_of(request)
    budget = available_bytes(ram_gb)
    if budget <= 0:
        least = ram_gb - budget / 1e9
        raise OptionError(
            f"{ram_gb:g} GB of memory", f"more than {least:.2g} GB, which the program itself needs", "raise --ram"
        )
    choices = request.choices
    with progress("Preparing", total=3) as advance:
        hsi = open_cube(request.hsi, request.hsi_variable, request.hsi_band_axis)
        msi = open_cube(request.msi, request.msi_variable, request.msi_band_axis)
        refuse_unfit(selected(hsi, request.stored), output_template(hsi, request.stored))
        mask, hsi_mask = (None if path is None else open_cube(path) for path in (request.mask, request.hsi_mask))
        pair = align_pair(hsi, msi, choices.area, mask=mask, hsi_mask=hsi_mask, known_offset=choices.known_offset)
        advance(1)
        scene = prepare_scene(pair, hsi, choices, advance, budget, decided)
    # What the estimation has read of a small pair is not kept: it would count twice.
    scene = replace(scene, pair=replace(scene.pair), aligned=replace(scene.aligned))
    halo, workload = _halo(scene), _workload(scene, request)
    memory = plan_memory(scene.pair, scene.observation, workload, halo, ram_gb)
    _require_whole_for_baselines(scene, memory)
    return ScenePlan(request, scene, memory, workload, halo)


def _require_whole_for_baselines(scene: PreparedScene, memory: MemoryPlan) -> None:
    if scene.network is not None and scene.network.receptive_field is None and not memory.whole:
        grid = scene.pair.output_grid
        raise OptionError(
            f"a scene of {grid.height} x {grid.width} pixels for {type(scene.network).__name__}",
            f"one that fits into memory ({memory.budget / 1e9:.2g} GB) and has at most {LARGEST_WHOLE_SIDE} pixels on a side: "
            "this network weighs its features by what it sees in the whole scene, so it cannot work in tiles",
            "cut the scene with --bounds, raise --ram, or take weights of a fusion network",
        )


def learn_scene(plan: ScenePlan) -> MethodFusion | NetworkFusion:
    """What tiles must know of the scene, from windows spread over it."""
    scene, budget = plan.scene, plan.memory.budget
    pair, observation = scene.pair, scene.observation
    # In a large scene, errors at the borders of windows are rare among many pixels.
    is_large = pair.fine_shape[1] * pair.fine_shape[2] > SAMPLED_FINE_PIXELS
    halo = math.ceil(plan.halo / 2) if is_large else plan.halo

    def fits(place: WindowPlace) -> bool:
        pixels = place.fine_size[0] * place.fine_size[1]
        return plan.workload.working_bytes(place, pixels) < (1 - SHARE_OF_KEPT_WINDOWS) * budget

    places = sample_places(pair, observation, halo, fits)
    kept: dict[int, Window] = {}
    most_kept = int(SHARE_OF_KEPT_WINDOWS * budget / max(map(plan.workload.input_bytes, places)))

    def window(index: int) -> Window:
        if index in kept:
            return kept[index]
        found = read_window(pair, observation, places[index])
        if len(kept) < most_kept:
            kept[index] = found
        return found

    return learn_from(plan, [partial(window, index) for index in range(len(places))])


def learn_from(plan: ScenePlan, windows: Sequence[Callable[[], Window]]) -> MethodFusion | NetworkFusion:
    scene = plan.scene
    pair, observation = scene.pair, scene.observation
    if scene.network is None:
        return learn_method(scene.method, scene.choices.consistency, windows)
    assert isinstance(scene.network, FusionNetwork), "rivals are run on whole scenes"
    centres = wavelengths_nm(pair.hsi_source.cube)
    wavelength_nm = None if centres is None else torch.from_numpy(centres[pair.usable_bands])
    return learn_network(scene.network, observation, wavelength_nm, windows)


def _halo(scene: PreparedScene) -> int:
    if scene.network is None:
        return method_halo(scene.method, scene.choices.consistency, scene.observation)
    own, base = network_halo(scene.network, scene.observation), scene.network.config.base
    return own if base == BICUBIC else own + method_halo(base, False, scene.observation)


def _workload(scene: PreparedScene, request: FusionRequest) -> Workload:
    itemsize = np.dtype(request.stored.dtype or scene.hsi.dtype).itemsize
    if scene.network is None:
        return method_workload(scene.pair, scene.method, consistency=scene.choices.consistency, itemsize=itemsize)
    return network_workload(scene.pair, scene.network, itemsize=itemsize)


# A window of this side, in fine pixels, is fused to see how long it takes.
TIMED_SIDE = 128
SMALLEST_TIMED_SIDE = 8  # coarse pixels


def summarise_plan(request: FusionRequest) -> dict[str, str]:
    """What would be done, in which time, in how much memory and space. Nothing is written."""
    start = time.perf_counter()
    with bounded_pools():
        plan = plan_scene(request)
        prepared = time.perf_counter() - start
        seconds = prepared + _expected_seconds(plan)
    pair, memory, template = plan.scene.pair, plan.memory, plan.template(plan.record())
    (bands, *coarse), (msi_bands, *fine) = pair.coarse_shape, pair.fine_shape
    pixels = template.sizes["y"] * template.sizes["x"]
    free = shutil.disk_usage(request.target.absolute().parent).free
    return {
        "HSI": f"{_size(*coarse)} pixels in common with the MSI, {bands} bands, {int(pair.usable_bands.sum())} of them usable",
        "MSI": f"{_size(*fine)} pixels in common with the HSI, {msi_bands} bands",
        "scale": " x ".join(dict.fromkeys(f"{axis:.4g}" for axis in pair.scale)),
        "fused by": plan.scene.method_used or f"network {(plan.scene.weights_digest or '')[:12]}",
        "tiles": _tiles(plan),
        "memory": f"{_peak(plan) / GIGABYTE:.2g} of {ram_of(request):.3g} GB at the peak",
        "time": f"about {_duration(seconds)}, {pixels / seconds / 1e6:.2g} MPix/s",
        "output": f"{_size(template.sizes['y'], template.sizes['x'])} pixels, {template.sizes['band']} bands of {template.dtype}: "
        f"{_bytes(template.nbytes)} before compression"
        + ("" if memory.whole else ", and as much for tiles while it runs"),
        "disk": f"{_bytes(free)} free",
    }


def _tiles(plan: ScenePlan) -> str:
    if plan.memory.whole:
        return "1, the whole scene"
    height, width = plan.memory.tile_size
    return (
        f"{len(plan.tiles)} of {_size(height, width)} pixels, which look {plan.halo} HSI pixels around them; "
        f"{plan.memory.tiles_at_once} at once"
    )


def _peak(plan: ScenePlan) -> int:
    memory = plan.memory
    return PROGRAM_BYTES + CACHE_BYTES + memory.tile_bytes * (1 if memory.whole else memory.tiles_at_once)


def _expected_seconds(plan: ScenePlan) -> float:
    """From the time that a small part takes: every tile as much longer as it has more pixels, and the statistics before
    it.
    """
    scene = plan.scene
    side = max(SMALLEST_TIMED_SIDE, round(TIMED_SIDE / max(scene.pair.scale)))
    window = representative_window(scene.pair, scene.observation, side, plan.halo)
    with one_thread_per_tile():
        fusion = learn_from(plan, [lambda: window])
        per_pixel = min(_seconds_to_fuse(fusion, window) for _ in range(2)) / (
            window.fine_size[0] * window.fine_size[1]
        )
    pixels = near_pixels(scene.pair, scene.observation, plan.memory.tile_size, plan.halo)
    sampled = min(SAMPLED_FINE_PIXELS, scene.pair.fine_shape[1] * scene.pair.fine_shape[2])
    return per_pixel * (
        len(plan.tiles) * pixels / plan.memory.tiles_at_once + (0 if plan.memory.whole else 2 * sampled)
    )


def _seconds_to_fuse(fusion: WindowFusion, window: Window) -> float:
    start = time.perf_counter()
    fusion.fuse_window(window)
    return time.perf_counter() - start


def _size(height: int, width: int) -> str:
    return f"{height} x {width}"


def _bytes(count: int) -> str:
    return f"{count / GIGABYTE:.3g} GB" if count >= 0.1 * GIGABYTE else f"{count / 1e6:.3g} MB"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


SUBSPACES = ("hsi_subspace", "msi_subspace")


def notes_of(
    observation: Observation, fusion: MethodFusion | NetworkFusion, warp: Warp | None = None
) -> dict[str, Any]:
    network = fusion if isinstance(fusion, NetworkFusion) else None
    method = fusion.base if isinstance(fusion, NetworkFusion) else fusion
    return {
        "observation": _contents(observation),
        "method": None if method is None else _contents(method),
        "network": None if network is None else _network_notes(network),
        "straightening": None if warp is None else warp.notes(),
    }


def observation_from(notes: Mapping[str, Any]) -> Observation:
    return Observation(**notes["observation"])


def warp_from(notes: Mapping[str, Any]) -> Warp | None:
    found = notes["straightening"]
    return None if found is None else Warp.from_notes(found)


def fusion_from(notes: Mapping[str, Any], network: AnyNetwork | None) -> MethodFusion | NetworkFusion:
    method = None if notes["method"] is None else MethodFusion(**notes["method"])
    if network is None:
        assert method is not None
        return method
    assert isinstance(network, FusionNetwork), "rivals are run on whole scenes"
    found = notes["network"]
    channels = dict(found["channels"])
    for name in SUBSPACES:
        channels[name] = None if channels[name] is None else Subspace(**channels[name])
    return NetworkFusion(network, found["hsi_unit"], found["msi_unit"], PairChannels(**channels), method)


def _network_notes(fusion: NetworkFusion) -> dict[str, Any]:
    channels = _contents(fusion.channels)
    for name in SUBSPACES:
        channels[name] = None if channels[name] is None else _contents(channels[name])
    return {"hsi_unit": fusion.hsi_unit, "msi_unit": fusion.msi_unit, "channels": channels}


def _contents(item: Any) -> dict[str, Any]:
    return {field.name: getattr(item, field.name) for field in fields(item)}
