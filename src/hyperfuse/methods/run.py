"""The one entry on tensors: a pair in, the fused image out, whatever the method, the units and the holes.

Shapes: C bands, M msi bands, h w coarse, H W fine. NaN marks missing pixels in either image and in the result.

Data consistency as a last step: move any fused image onto what both sensors measured, as far as their noise allows.

Shapes: C bands, M msi bands, p components, H W fine.

Which method suits a pair: degrade the pair once more and see who gives the hsi back best.

Shapes: C bands, M msi bands, h w coarse, H W fine. The task (hsi degraded, msi degraded) -> hsi needs no reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.errors import BandError, ValueRangeError
from hyperfuse.methods.catalogue import AUTO, DEFAULT, METHODS, find_method
from hyperfuse.methods.injection import bicubic
from hyperfuse.methods.pair_model import (
    NOISE_FLOOR,
    condition_on_hsi,
    condition_on_msi,
    diagonally_loaded,
    model_pair,
    prior_from_error,
    scene_level,
    without_noise,
)
from hyperfuse.methods.scene_stats import SceneComputation, in_one_pass, run_on_scene
from hyperfuse.methods.window import Window, fill_missing, mask_missing, usable_msi_bands
from hyperfuse.physics.estimate import NOTHING_KNOWN, KnownParts, estimate_observation
from hyperfuse.physics.observation import Observation, require_pair
from hyperfuse.physics.operators import mix_bands


def make_consistent(fused: Tensor, window: Window) -> SceneComputation[Tensor]:
    """The fused image (C, H, W) taken as a prior whose error is read from the hsi it fails to explain, conditioned on
    both images.

    With noise zero the result reproduces the hsi exactly; with the noise levels of the observation only what exceeds
    noise moves.
    """
    model = yield from model_pair(window)
    before = model.components_of(fused)
    prior = yield from prior_from_error(before, model)
    mean, posterior = condition_on_msi(before, prior, model)
    after = condition_on_hsi(mean, diagonally_loaded(posterior, 1e-6), model)
    moved = fused + mix_bands(model.basis, after - before)
    left = window.hsi - model.operator.apply(moved)
    level = yield from scene_level(window.coarse(window.hsi))
    variance = window.observation.hsi_noise**2 + (NOISE_FLOOR * level) ** 2
    signal = yield from without_noise(left, variance, window)
    return window.fine(moved + model.operator.pseudo_inverse(signal))


# Another method must beat the default by this many decibels: the test is one scale coarser than the task.
MARGIN_DB = 1.0
IGNORED_SHARE = 0.02
FEWEST_COARSER_PIXELS = 5
SMALLEST_SCALE = 1.5
MOST_PIXELS = 128  # side of the coarse image that the test looks at


@dataclass(frozen=True)
class ReducedPair:
    """The pair one scale coarser; the true hsi is its reference."""

    hsi: Tensor
    msi: Tensor
    observation: Observation
    reference: Tensor


def choose_method(hsi: Tensor, msi: Tensor, observation: Observation) -> str:
    scores = scores_at_reduced_resolution(hsi, msi, observation)
    if not scores:
        return DEFAULT
    best = max(scores, key=lambda name: scores[name])
    return best if scores[best] > scores[DEFAULT] + MARGIN_DB else DEFAULT


def scores_at_reduced_resolution(hsi: Tensor, msi: Tensor, observation: Observation) -> dict[str, float]:
    """Peak signal to noise ratio in dB per method, on the hsi's own grid; empty where the hsi is too small to degrade."""
    task = at_reduced_resolution(hsi, msi, observation)
    if task is None:
        return {}
    peak = float(task.reference.abs().max().clamp_min(1e-30))
    scores = {}
    for name, method in METHODS.items():
        error = method.function(task.hsi, task.msi, task.observation) - task.reference
        per_pixel = error.double().square().mean(0).flatten().sort().values
        # A handful of glaring pixels would decide alone, and they are not where the finer scale is won or lost.
        kept = per_pixel[: max(1, int(len(per_pixel) * (1 - IGNORED_SHARE)))]
        scores[name] = float(-10 * torch.log10(kept.mean() / peak**2 + 1e-30))
    return scores


def at_reduced_resolution(hsi: Tensor, msi: Tensor, observation: Observation) -> ReducedPair | None:
    """Both images through the hsi's point spread; the scale shrinks where the hsi has too few pixels for it."""
    coarse = observation.spatial_operator((msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2])).apply(msi)
    rows, columns = (slice(max(0, (size - MOST_PIXELS) // 2), (size + MOST_PIXELS) // 2) for size in hsi.shape[1:])
    reference, coarse = hsi[:, rows, columns], coarse[:, rows, columns]
    sizes = reference.shape[1:]
    coarser = [
        int(min(size / SMALLEST_SCALE, max(FEWEST_COARSER_PIXELS, round(size / scale))))
        for size, scale in zip(sizes, observation.scale, strict=True)
    ]
    if min(coarser) < FEWEST_COARSER_PIXELS:
        return None
    scale = (sizes[0] / coarser[0], sizes[1] / coarser[1])
    moved = replace(
        observation,
        scale=scale,
        sigma=(
            observation.sigma[0] * scale[0] / observation.scale[0],
            observation.sigma[1] * scale[1] / observation.scale[1],
        ),
        shift=(0.0, 0.0),
        grid_shift=(0.0, 0.0),
    )
    operator = moved.spatial_operator((sizes[0], sizes[1]), (coarser[0], coarser[1]))
    quieter = operator.mean_noise_gain() ** 0.5
    moved = replace(moved, hsi_noise=observation.hsi_noise * quieter, msi_noise=observation.msi_noise * quieter)
    return ReducedPair(operator.apply(reference), coarse, moved, reference)


def fuse_arrays(
    hsi: Tensor,
    msi: Tensor,
    observation: Observation | KnownParts | None = None,
    method: str = DEFAULT,
    consistency: bool = False,
) -> Tensor:
    """hsi (C, h, w) and msi (M, H, W) -> (C, H, W), on the msi's grid, in the hsi's units.

    What the observation leaves open is estimated from the pair. `consistency` appends a noise-weighted step onto both
    images.
    """
    require_pair(hsi, msi)
    if not bool(torch.isfinite(hsi).any()):
        raise ValueRangeError("an hsi without a single valid pixel", "pixels with data", "check its nodata value")
    if method != AUTO:
        find_method(method)
    if not isinstance(observation, Observation):
        observation = estimate_observation(hsi, msi, known=observation or NOTHING_KNOWN)
    _require_fitting(hsi, msi, observation)
    window = Window(hsi, msi, observation)
    return run_on_scene(fuse_window(window, suitable_method(window) if method == AUTO else method, consistency))


def suitable_method(window: Window) -> str:
    """The method that `auto` stands for on this pair."""
    pair = run_on_scene(prepare_pair(window))
    return choose_method(pair.window.hsi, pair.window.msi, pair.window.observation) if pair.msi_varies else "bicubic"


def fuse_window(window: Window, method: str, consistency: bool = False) -> SceneComputation[Tensor]:
    """The core of a window, fused by the method of this name: NaN marks missing pixels, units are the hsi's."""
    found = find_method(method)
    return fuse_window_by(found.over_scene, window, consistency, found.without_msi)


def fuse_window_by(
    over_scene: Callable[[Window], SceneComputation[Tensor]],
    window: Window,
    consistency: bool = False,
    without_msi: Callable[[Window], SceneComputation[Tensor]] = bicubic,
) -> SceneComputation[Tensor]:
    """The same by a method that has no name, such as one with weights of its own; `without_msi` where the msi is
    constant.
    """
    pair = yield from prepare_pair(window)
    if not pair.msi_varies:
        over_scene, consistency = without_msi, False
    if consistency:
        fused = yield from over_scene(pair.window.with_halo_in_core())
        fused = yield from make_consistent(fused, pair.window)
    else:
        fused = yield from over_scene(pair.window)
    return mask_missing(fused * pair.hsi_unit, replace(window, msi=window.msi[pair.msi_bands]))


@dataclass(frozen=True)
class PreparedPair:
    window: Window
    hsi_unit: float
    msi_bands: Tensor
    msi_varies: bool


def prepare_pair(window: Window) -> SceneComputation[PreparedPair]:
    """Without holes, without msi bands that hold nothing, as float32 numbers of about 1, the observation in the same
    units.
    """
    kept, msi_varies = yield from usable_msi_bands(window)
    hsi, msi, observation = (
        fill_missing(window.hsi.double()),
        fill_missing(window.msi[kept].double()),
        window.observation,
    )
    hsi_unit, msi_unit = yield from in_one_pass(scene_level(window.coarse(hsi)), scene_level(window.fine(msi)))
    in_units = replace(
        observation,
        srf=observation.srf[kept] * (hsi_unit / msi_unit),
        offset=observation.offset[kept] / msi_unit,
        hsi_noise=observation.hsi_noise / hsi_unit,
        msi_noise=observation.msi_noise[kept] / msi_unit,
    )
    prepared = replace(window, hsi=(hsi / hsi_unit).float(), msi=(msi / msi_unit).float(), observation=in_units)
    return PreparedPair(prepared, hsi_unit, kept, msi_varies)


def _require_fitting(hsi: Tensor, msi: Tensor, observation: Observation) -> None:
    expected = (msi.shape[0], hsi.shape[0])
    if tuple(observation.srf.shape) != expected:
        raise BandError(
            f"an observation whose response has shape {tuple(observation.srf.shape)}",
            f"{expected}: one row per msi band, one column per hsi band",
        )
    assert torch.isfinite(observation.srf).all()
