"""`--adapt`: from how many sides to look at a pair in the time that the user gives, and whether that helps on the pair itself."""

from __future__ import annotations

import math
import time
import warnings

from hyperfuse.errors import Notice
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.catalogue import DEFAULT, FROM_SIDES
from hyperfuse.methods.fuse_arrays import fuse_window, scores_of
from hyperfuse.methods.over_scene import alone
from hyperfuse.methods.selection import MOST_PIXELS
from hyperfuse.methods.window import Window
from hyperfuse.prediction.aligned_pair import AlignedPair
from hyperfuse.prediction.fuse_pair import judged_window
from hyperfuse.prediction.memory import (
    CACHE_BYTES,
    GIGABYTE,
    PROGRAM_BYTES,
    SHARE_OF_PREPARING,
    method_workload,
    plan_memory,
)
from hyperfuse.prediction.scene_sample import CORE_SIDES, SAMPLED_FINE_PIXELS, representative_window
from hyperfuse.prediction.window_fusion import method_reach

# A window of this side, in fine pixels, is fused to see how long it takes.
TIMED_SIDE = 128
SMALLEST_TIMED_SIDE = 8  # coarse pixels
# On the pair degraded once more, which is a poor judge of small gains: it only keeps what goes wrong from being kept.
LEAST_GAIN_DB = -0.25
# Statistics of a scene that is fused in tiles take as long as so many looks at the windows they are taken from: every question
# begins the method anew.
LOOKS_FOR_STATISTICS = 2.5


def adapted_method(pair: AlignedPair, observation: Observation, seconds: float, budget: int | None = None) -> str:
    """The default method or its mean over as many sides as can be had in so many seconds more. Says which, and why.

    `budget` limits the memory, in bytes.
    """
    method, said = _decided(pair, observation, seconds, budget)
    warnings.warn(said, Notice, stacklevel=2)
    return method


def _decided(pair: AlignedPair, observation: Observation, seconds: float, budget: int | None) -> tuple[str, str]:
    start = time.perf_counter()
    per_pixel = _seconds_per_pixel(pair, observation)
    look = per_pixel * _pixels_of_a_look(pair, observation, budget)
    look_once_more = per_pixel * math.prod(min(size, MOST_PIXELS) for size in pair.coarse_shape[1:])
    spent = time.perf_counter() - start
    needed = {sides: spent + (sides - 1) * look + (sides + 1) * look_once_more for sides in FROM_SIDES}
    affordable = [sides for sides in FROM_SIDES if needed[sides] <= seconds]
    if not affordable:
        return DEFAULT, f"not adapted: {seconds:.3g} s are too short, one more look takes about {needed[min(FROM_SIDES)]:.2g} s"
    sides = max(affordable)
    name = FROM_SIDES[sides]
    window = judged_window(pair, observation, None if budget is None else int(SHARE_OF_PREPARING * budget))
    scores = scores_of(window, (DEFAULT, name))
    gain = scores[name] - scores[DEFAULT] if scores else math.nan
    if not math.isfinite(gain):
        return DEFAULT, "not adapted: the pair is too small, or its MSI too flat, to be degraded once more and judged"
    if gain < LEAST_GAIN_DB:
        return DEFAULT, f"not adapted: seen from {sides} sides the pair degraded once more is fused worse ({gain:+.2f} dB)"
    if gain < 0:
        return name, f"adapted: seen from {sides} sides, though the pair degraded once more is fused no better ({gain:+.2f} dB)"
    return name, f"adapted: seen from {sides} sides, {gain:+.2f} dB on the pair degraded once more"


def _seconds_per_pixel(pair: AlignedPair, observation: Observation) -> float:
    """Of the default method, from the time that it takes for a part."""
    side = max(SMALLEST_TIMED_SIDE, round(TIMED_SIDE / max(pair.scale)))
    window = representative_window(pair, observation, side, 0)
    # The first time, weights are loaded and memory is taken.
    return min(_seconds_to_fuse(window) for _ in range(2)) / math.prod(window.fine_size)


def _pixels_of_a_look(pair: AlignedPair, observation: Observation, budget: int | None) -> float:
    """Those of the scene, and where it is fused in tiles, their margins and the windows of its statistics."""
    pixels = math.prod(pair.fine_shape[1:])
    if budget is None:
        return pixels
    workload, reach = method_workload(pair, DEFAULT, consistency=False, itemsize=4), method_reach(DEFAULT, False, observation)
    memory = plan_memory(pair, observation, workload, reach, (budget + PROGRAM_BYTES + CACHE_BYTES) / GIGABYTE)
    if memory.whole:
        return pixels

    def with_margin(sides: tuple[float, float]) -> float:
        axes = zip(pair.fine_shape[1:], sides, pair.scale, strict=True)
        return math.prod(min(size, side + 2 * reach * scale) / min(size, side) for size, side, scale in axes)

    sampled = (CORE_SIDES[0] * pair.scale[0], CORE_SIDES[0] * pair.scale[1])
    statistics = LOOKS_FOR_STATISTICS * min(pixels, SAMPLED_FINE_PIXELS) * with_margin(sampled)
    return pixels * with_margin(memory.tile_size) + statistics


def _seconds_to_fuse(window: Window) -> float:
    start = time.perf_counter()
    alone(fuse_window(window, DEFAULT))
    return time.perf_counter() - start
