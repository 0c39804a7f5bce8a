"""From a request to a plan: both images opened and brought together, how they were observed, what fuses them, in which tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.band_selection import select_bands
from hyperfuse.cubes.cube import wavelengths_nm
from hyperfuse.cubes.files import open_cube
from hyperfuse.cubes.output_options import output_template, refuse_unfit, selected
from hyperfuse.cubes.provenance import provenance
from hyperfuse.errors import OptionError
from hyperfuse.methods.window import Window
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.networks.network_config import BICUBIC
from hyperfuse.prediction.aligned_pair import align_pair
from hyperfuse.prediction.fused_cube import cannot_miss, fused_template
from hyperfuse.prediction.fusion_request import HSI, FusionRequest
from hyperfuse.prediction.memory import (
    LARGEST_WHOLE_SIDE,
    MemoryPlan,
    Workload,
    available_bytes,
    default_ram_gb,
    method_workload,
    network_workload,
    plan_memory,
)
from hyperfuse.prediction.prepared_scene import PreparedScene, prepare_scene
from hyperfuse.prediction.scene_job import SceneJob
from hyperfuse.prediction.scene_sample import SAMPLED_FINE_PIXELS, read_window, sample_places
from hyperfuse.prediction.tile_plan import Tile, WindowPlace, plan_tiles
from hyperfuse.prediction.window_fusion import MethodFusion, NetworkFusion, learn_method, learn_network, method_reach, network_reach
from hyperfuse.progress import progress

# Of the memory, for windows that are kept because they are looked at again.
SHARE_OF_KEPT_WINDOWS = 0.25


@dataclass(frozen=True)
class ScenePlan:
    request: FusionRequest
    scene: PreparedScene
    memory: MemoryPlan
    workload: Workload
    reach: int
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
        return provenance(method=scene.method_used, weights=scene.weights_digest, inputs=request.inputs, options=options)

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
        memory = plan_memory(scene.pair, scene.observation, self.workload, self.reach, ram_of(self.request), (size,))
        return replace(self, memory=memory)


def ram_of(request: FusionRequest) -> float:
    return default_ram_gb() if request.ram_gb is None else request.ram_gb


def plan_scene(request: FusionRequest, decided: str | None = None) -> ScenePlan:
    """Reads as much of both images as the estimation needs, and writes nothing. `decided`: see `prepare_scene`."""
    ram_gb = ram_of(request)
    budget = available_bytes(ram_gb)
    if budget <= 0:
        least = ram_gb - budget / 1e9
        raise OptionError(f"{ram_gb:g} GB of memory", f"more than {least:.2g} GB, which the program itself needs", "raise --ram")
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
    reach, workload = _reach(scene), _workload(scene, request)
    memory = plan_memory(scene.pair, scene.observation, workload, reach, ram_gb)
    _require_whole_for_rivals(scene, memory)
    return ScenePlan(request, scene, memory, workload, reach)


def _require_whole_for_rivals(scene: PreparedScene, memory: MemoryPlan) -> None:
    if scene.network is not None and scene.network.margin is None and not memory.whole:
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
    reach = math.ceil(plan.reach / 2) if is_large else plan.reach

    def fits(place: WindowPlace) -> bool:
        pixels = place.fine_size[0] * place.fine_size[1]
        return plan.workload.working_bytes(place, pixels) < (1 - SHARE_OF_KEPT_WINDOWS) * budget

    places = sample_places(pair, observation, reach, fits)
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


def _reach(scene: PreparedScene) -> int:
    if scene.network is None:
        return method_reach(scene.method, scene.choices.consistency, scene.observation)
    own, base = network_reach(scene.network, scene.observation), scene.network.config.base
    return own if base == BICUBIC else own + method_reach(base, False, scene.observation)


def _workload(scene: PreparedScene, request: FusionRequest) -> Workload:
    itemsize = np.dtype(request.stored.dtype or scene.hsi.dtype).itemsize
    if scene.network is None:
        return method_workload(scene.pair, scene.method, consistency=scene.choices.consistency, itemsize=itemsize)
    return network_workload(scene.pair, scene.network, itemsize=itemsize)
