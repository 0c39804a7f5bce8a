"""The network's part in taking noise off the hsi: it begins with none, leaves a quiet hsi alone, and knows no sign."""

from __future__ import annotations

from dataclasses import replace

import torch

from hyperfuse.methods.denoising import denoised_coefficients
from hyperfuse.methods.hsi_denoising import quiet_coefficients
from hyperfuse.methods.over_scene import alone
from hyperfuse.methods.pair_model import PairModel, model_pair
from hyperfuse.methods.window import Window
from hyperfuse.networks.prior_network import PriorConfig, PriorNetwork
from methods.tiny_pairs import tiny_pair


def model_and_msi(noise: float) -> tuple[PairModel, torch.Tensor]:
    pair = tiny_pair(20, 3, (9, 10), 4.0)
    observation = replace(pair.observation, hsi_noise=torch.full((20,), noise, dtype=torch.float64))
    hsi = pair.hsi + noise * torch.randn(pair.hsi.shape, generator=torch.Generator().manual_seed(2))
    model = alone(model_pair(Window(hsi.float(), pair.msi.float(), observation), 5))
    return model, model.operator.apply(model.msi)


def trained(seed: int = 0) -> PriorNetwork:
    """As if training had changed something."""
    torch.manual_seed(seed)
    network = PriorNetwork(PriorConfig(width=4, blocks=0, hsi_denoiser=4)).eval().requires_grad_(False)
    assert network.hsi_denoiser is not None
    network.hsi_denoiser.last.weight.normal_()
    return network


def closed_form(model: PairModel, seen: torch.Tensor) -> torch.Tensor:
    centred = seen - seen.mean((1, 2), keepdim=True)
    return alone(denoised_coefficients(model.coefficients, centred, model.hsi_noise, model.window))


def test_begins_as_the_closed_form():
    model, seen = model_and_msi(0.02)
    untrained = PriorNetwork(PriorConfig(width=4, blocks=0, hsi_denoiser=4)).requires_grad_(False)
    for network in (untrained, PriorNetwork(PriorConfig(width=4, blocks=0))):
        torch.testing.assert_close(alone(quiet_coefficients(model, seen, network)), closed_form(model, seen), atol=1e-6, rtol=1e-5)


def test_changes_a_noisy_hsi_and_leaves_a_quiet_one():
    model, seen = model_and_msi(0.02)
    assert not torch.allclose(alone(quiet_coefficients(model, seen, trained())), closed_form(model, seen), atol=1e-4)
    model, seen = model_and_msi(0.0)
    torch.testing.assert_close(alone(quiet_coefficients(model, seen, trained())), closed_form(model, seen), atol=1e-6, rtol=1e-5)


def test_the_sign_of_a_component_does_not_matter():
    denoiser = trained().hsi_denoiser
    assert denoiser is not None
    kept, dropped, msi = (
        torch.randn(count, 7, 8, generator=torch.Generator().manual_seed(seed)) for seed, count in enumerate((5, 5, 3))
    )
    loudness = torch.linspace(-1, 0, 5)
    answer = denoiser(kept, dropped, msi, loudness)
    torch.testing.assert_close(denoiser(-kept, -dropped, msi, loudness), -answer)
