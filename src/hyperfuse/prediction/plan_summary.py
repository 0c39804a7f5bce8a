"""A plan in words and numbers, for people who want to know before they start."""

from __future__ import annotations

import shutil
import time

from hyperfuse.methods.window import Window
from hyperfuse.prediction.fusion_request import FusionRequest
from hyperfuse.prediction.memory import CACHE_BYTES, GIGABYTE, PROGRAM_BYTES, bounded_pools, near_pixels
from hyperfuse.prediction.scene_job import one_thread_per_tile
from hyperfuse.prediction.scene_plan import ScenePlan, learn_from, plan_scene, ram_of
from hyperfuse.prediction.scene_sample import SAMPLED_FINE_PIXELS, representative_window
from hyperfuse.prediction.window_fusion import WindowFusion

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
        f"{_bytes(template.nbytes)} before compression" + ("" if memory.whole else ", and as much for tiles while it runs"),
        "disk": f"{_bytes(free)} free",
    }


def _tiles(plan: ScenePlan) -> str:
    if plan.memory.whole:
        return "1, the whole scene"
    height, width = plan.memory.tile_size
    return (
        f"{len(plan.tiles)} of {_size(height, width)} pixels, which look {plan.reach} HSI pixels around them; "
        f"{plan.memory.tiles_at_once} at once"
    )


def _peak(plan: ScenePlan) -> int:
    memory = plan.memory
    return PROGRAM_BYTES + CACHE_BYTES + memory.tile_bytes * (1 if memory.whole else memory.tiles_at_once)


def _expected_seconds(plan: ScenePlan) -> float:
    """From the time that a small part takes: every tile as much longer as it has more pixels, and the statistics before it."""
    scene = plan.scene
    side = max(SMALLEST_TIMED_SIDE, round(TIMED_SIDE / max(scene.pair.scale)))
    window = representative_window(scene.pair, scene.observation, side, plan.reach)
    with one_thread_per_tile():
        fusion = learn_from(plan, [lambda: window])
        per_pixel = min(_seconds_to_fuse(fusion, window) for _ in range(2)) / (window.fine_size[0] * window.fine_size[1])
    pixels = near_pixels(scene.pair, scene.observation, plan.memory.tile_size, plan.reach)
    sampled = min(SAMPLED_FINE_PIXELS, scene.pair.fine_shape[1] * scene.pair.fine_shape[2])
    return per_pixel * (len(plan.tiles) * pixels / plan.memory.tiles_at_once + (0 if plan.memory.whole else 2 * sampled))


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
