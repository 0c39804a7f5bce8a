"""Data consistency as a last step: move any fused image onto what both sensors measured, as far as their noise allows.

Shapes: C bands, M msi bands, p components, H W fine.
"""

from __future__ import annotations

from torch import Tensor

from hyperfuse.degradation.operators import mix_bands
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.conditioning import condition_on_hsi, condition_on_msi, prior_from_error
from hyperfuse.methods.pair_model import NOISE_FLOOR, lifted, model_pair, root_mean_square, without_noise


def make_consistent(fused: Tensor, hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """The fused image taken as a prior whose error is read from the hsi it fails to explain, conditioned on the msi and the hsi.

    With noise zero the result reproduces the hsi exactly; with the noise levels of the observation only what exceeds noise moves.
    """
    model = model_pair(hsi, msi, observation)
    before = model.components_of(fused)
    mean, posterior = condition_on_msi(before, prior_from_error(before, model), model)
    after = condition_on_hsi(mean, lifted(posterior, 1e-6), model)
    moved = fused + mix_bands(model.basis, after - before)
    left = hsi - model.operator.apply(moved)
    variance = observation.hsi_noise**2 + (NOISE_FLOOR * root_mean_square(hsi)) ** 2
    return moved + model.operator.pseudo_inverse(without_noise(left, variance))
