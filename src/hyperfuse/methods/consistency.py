"""Data consistency as a last step: move any fused image onto what both sensors measured, as far as their noise allows.

Shapes: C bands, M msi bands, p components, H W fine.
"""

from __future__ import annotations

from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.methods.conditioning import condition_on_hsi, condition_on_msi, prior_from_error
from hyperfuse.methods.over_scene import SceneWise
from hyperfuse.methods.pair_model import NOISE_FLOOR, lifted, model_pair, scene_level, without_noise
from hyperfuse.methods.window import Window


def make_consistent(fused: Tensor, window: Window) -> SceneWise[Tensor]:
    """The fused image (C, H, W) taken as a prior whose error is read from the hsi it fails to explain, conditioned on both images.

    With noise zero the result reproduces the hsi exactly; with the noise levels of the observation only what exceeds noise moves.
    """
    model = yield from model_pair(window)
    before = model.components_of(fused)
    prior = yield from prior_from_error(before, model)
    mean, posterior = condition_on_msi(before, prior, model)
    after = condition_on_hsi(mean, lifted(posterior, 1e-6), model)
    moved = fused + mix_bands(model.basis, after - before)
    left = window.hsi - model.operator.apply(moved)
    level = yield from scene_level(window.coarse(window.hsi))
    variance = window.observation.hsi_noise**2 + (NOISE_FLOOR * level) ** 2
    signal = yield from without_noise(left, variance, window)
    return window.fine(moved + model.operator.pseudo_inverse(signal))
