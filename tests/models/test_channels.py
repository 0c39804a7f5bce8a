"""What a channel can mean (bands, wavelengths, components), and bases other than bicubic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models.network_fixtures import TINY, random_pair, tiny_network

from hyperfuse.errors import BandError, GridError
from hyperfuse.models.matryoshka import (
    Components,
    PairChannels,
    WavelengthBands,
    WavelengthInputKernel,
    knot_weights,
    principal_subspace,
    spectral_shares,
)
from hyperfuse.models.ssa import SSA, SSAConfig
from hyperfuse.physics.resample import shared_edges, upsample_bicubic

AXIS = WavelengthBands(knots=12)
OWN = {"msi_kernel": "own"}
WAVELENGTH = TINY.model_copy(update={"channels": AXIS, **OWN})
COMPONENTS = TINY.model_copy(update={"channels": Components(count=6), **OWN})
OWN_BANDS = TINY.model_copy(update=OWN)
STANDARDISED = OWN_BANDS.model_copy(update={"standardise": "correlated", "equalise_inputs": True})
REGRESSED = STANDARDISED.model_copy(update={"standardise": "regressed", "feature_width": 8})
KINDS = [OWN_BANDS, WAVELENGTH, COMPONENTS, STANDARDISED, REGRESSED]
FINE, COARSE = (23, 18), (7, 6)


def pair_and_channels(config: SSAConfig, bands: int = 9, msi_bands: int = 3, batch: int = 2):
    hsi, msi = random_pair(bands, msi_bands, COARSE, FINE, batch)
    centres = torch.linspace(430, 2300, bands, dtype=torch.float64)
    msi_centres = torch.linspace(480, 900, msi_bands, dtype=torch.float64)
    return hsi, msi, tiny_network(config=config).find_channels(hsi, msi, centres, msi_centres)


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.channels.kind)
def test_saved_and_loaded_it_is_the_same(config, tmp_path):
    network = tiny_network(config=config)
    network.save_pretrained(tmp_path / "weights")
    loaded = SSA.from_pretrained(tmp_path / "weights")
    hsi, msi, channels = pair_and_channels(config)
    with torch.no_grad():
        assert torch.equal(network(hsi, msi, channels=channels), loaded(hsi, msi, channels=channels))


@pytest.mark.parametrize("config", KINDS, ids=lambda config: config.channels.kind)
def test_another_base_is_added_to_and_seen(config):
    network = tiny_network(config=config.model_copy(update={"base": "local_fuse"}))
    hsi, msi, channels = pair_and_channels(config)
    base = torch.rand(2, 9, *FINE)
    with torch.no_grad():
        residual = network(hsi, msi, base=base, channels=channels) - base
        other = network(hsi, msi, base=base + 0.3, channels=channels) - (base + 0.3)
        assert (residual - other).abs().max() > 1e-5
        network.output_kernel.weight.zero_()
        network.output_kernel.bias.zero_()
        assert torch.equal(network(hsi, msi, base=base, channels=channels), base)
    with pytest.raises(GridError, match="no base; expected the image of local_fuse"):
        network(hsi, msi, channels=channels)
    with pytest.raises(GridError, match="a base of shape"):
        network(hsi, msi, base=base[:, 1:], channels=channels)


@pytest.mark.parametrize(("bands", "msi_bands"), [(1, 1), (3, 2), (40, 7), (300, 16)])
@pytest.mark.parametrize("config", [WAVELENGTH, COMPONENTS], ids=lambda config: config.channels.kind)
def test_any_number_of_bands(config, bands, msi_bands):
    hsi, msi, channels = pair_and_channels(config, bands, msi_bands, batch=1)
    with torch.no_grad():
        assert tiny_network(config=config)(hsi, msi, channels=channels).shape == (1, bands, *FINE)


def test_slots_of_an_own_msi_kernel_do_not_move_with_the_sensor():
    """With the paper's concatenation an msi lands in other slots for another band count; with its own kernel it does
    not.
    """
    network = tiny_network(config=OWN_BANDS)
    hsi, msi = random_pair(5, 3, COARSE, FINE)
    wider = torch.cat([hsi, torch.zeros(1, 4, *COARSE)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(network(hsi, msi), network(wider, msi)[:, :5], atol=1e-6, rtol=0)
    with pytest.raises(BandError, match="expected at most 16 and 16"):
        network(*random_pair(5, 17, COARSE, FINE))


def test_knots_interpolate_linearly_and_hold_at_the_ends():
    centres = torch.tensor([100.0, 350.0, 450.0, 470.0, 2550.0, 9000.0])
    weights = knot_weights(centres, WavelengthBands(knots=23))
    assert torch.allclose(weights.sum(dim=-1), torch.ones(6, dtype=torch.float64))
    positions = weights @ (350 + 100 * torch.arange(23, dtype=torch.float64))
    torch.testing.assert_close(positions, centres.double().clamp(350, 2550))


def test_twice_the_bands_weigh_half_each_in_any_order():
    sparse, dense = (torch.arange(400, 1001, step, dtype=torch.float64) for step in (20, 10))
    assert abs(spectral_shares(sparse, AXIS).sum() / spectral_shares(dense, AXIS).sum() - 1) < 0.05
    order = torch.randperm(len(dense), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(spectral_shares(dense[order], AXIS), spectral_shares(dense, AXIS)[order])
    gap = torch.tensor([400.0, 410, 420, 2400, 2410, 2420])
    assert spectral_shares(gap, AXIS).max() < 4 * spectral_shares(gap, AXIS).min()
    assert spectral_shares(torch.tensor([500.0]), AXIS).tolist() == [1.0]


def test_a_finer_sampled_spectrum_gives_the_same_code():
    torch.manual_seed(0)
    kernel = WavelengthInputKernel(AXIS, 8)

    def code(step: float) -> torch.Tensor:
        centres = torch.arange(400.0, 2400.0, step, dtype=torch.float64)
        return kernel(torch.sin(centres / 300).float()[None, :, None, None].expand(1, -1, 5, 5), centres)

    with torch.no_grad():
        torch.testing.assert_close(code(10.0), code(5.0), atol=0.02, rtol=0)


def test_every_sample_may_have_its_own_wavelengths():
    torch.manual_seed(0)
    kernel = WavelengthInputKernel(AXIS, 8)
    images = torch.rand(3, 4, 9, 8)
    centres = 400 + 1500 * torch.rand(3, 4, dtype=torch.float64)
    with torch.no_grad():
        together = kernel(images, centres)
        for i in range(3):
            torch.testing.assert_close(together[i : i + 1], kernel(images[i : i + 1], centres[i]), atol=1e-5, rtol=0)


def test_wavelength_kernels_need_wavelengths():
    with pytest.raises(BandError, match="no wavelengths of the hsi's bands"):
        tiny_network(config=WAVELENGTH)(*random_pair(5, 3, COARSE, FINE))


def test_components_rebuild_the_image_and_are_ordered():
    image = torch.rand(2, 7, 30, 20)
    subspace = principal_subspace(image, 7)
    rebuilt = subspace.decode_change(subspace.encode(image)) + subspace.mean[:, :, None, None]
    torch.testing.assert_close(rebuilt.float(), image, atol=1e-5, rtol=0)
    deviations = subspace.encode(image).std(dim=(2, 3)) * subspace.unit
    assert (deviations.diff(dim=1) < 1e-6).all()
    fewer = principal_subspace(image, 3)
    assert torch.equal(fewer.basis, subspace.basis[:, :, :3])  # a prefix is the basis of its size


def test_components_are_blind_to_the_order_of_the_bands():
    network = tiny_network(config=COMPONENTS)
    hsi, msi = random_pair(9, 3, COARSE, FINE)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(network(hsi[:, order], msi), network(hsi, msi)[:, order], atol=1e-4, rtol=0)


def test_a_constant_image_has_components_too():
    hsi, msi = torch.full((1, 5, 4, 4), 0.5), torch.full((1, 3, 16, 16), 0.5)
    with torch.no_grad():
        fused = tiny_network(config=COMPONENTS)(hsi, msi)
    assert torch.isfinite(fused).all()
    torch.testing.assert_close(
        fused, upsample_bicubic(hsi, (16, 16), shared_edges((16, 16), (4, 4))), atol=1e-3, rtol=0
    )


def test_standardised_bands_know_no_units_and_no_sign():
    torch.manual_seed(0)
    network = tiny_network(config=STANDARDISED)
    hsi, msi = random_pair(5, 3, COARSE, FINE)
    gains, offsets = torch.tensor([1.0, 30.0, -0.1, 2.0, -5.0])[:, None, None], torch.rand(5, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(
            network(gains * hsi + offsets, 7 * msi - 1), gains * network(hsi, msi) + offsets, atol=2e-3, rtol=1e-4
        )


def test_residuals_follow_the_correlation_with_the_brightness_of_the_msi():
    network = tiny_network(config=STANDARDISED)
    bright = torch.rand(1, 1, *COARSE).repeat_interleave(4, 2).repeat_interleave(4, 3)
    other = torch.rand(1, 1, *COARSE)
    coarse = bright[:, :, ::4, ::4]
    hsi = torch.cat([0.2 + coarse, 3 - 2 * coarse, other], dim=1)
    found = network.find_channels(hsi, bright.expand(1, 2, -1, -1)).hsi_coding
    ((gain,),), (unit,) = found.gain, found.unit
    assert gain[0] > 0.9 and gain[1] > 0.9 and gain[2] < 0.6
    assert unit[0] > 0 > unit[1]
    correlation = np.corrcoef(other.flatten(), coarse.flatten())[0, 1]
    by_srf = network.find_channels(hsi, bright, srf=torch.tensor([[1.0, 0.0, 0.0]]))
    assert by_srf.hsi_coding.gain[0, 0, 2] == pytest.approx(max(0.2, abs(correlation)), abs=1e-4)
    signed = tiny_network(config=STANDARDISED.model_copy(update={"standardise": "signed"}))
    assert torch.equal(signed.find_channels(hsi, bright).hsi_coding.gain, torch.ones(1, 1, 3))


def test_regressed_units_predict_bands_that_are_sums_of_msi_bands():
    """Of bands that the msi determines, its components and their gains are the whole detail that the base lacks."""
    torch.manual_seed(0)
    reference = torch.rand(1, 3, *FINE, dtype=torch.float64)
    srf = torch.tensor([[0.9, 0.1, 0.0], [0.1, 0.8, 0.1], [0.0, 0.3, 0.7]], dtype=torch.float64)
    msi = torch.einsum("mc,bchw->bmhw", srf, reference)
    hsi = torch.nn.functional.interpolate(reference, COARSE, mode="area")
    base = upsample_bicubic(hsi, FINE, shared_edges(FINE, COARSE))
    channels = tiny_network(config=REGRESSED).find_channels(hsi, msi, srf=srf)
    missing = channels.encode_msi(msi, channels.encode_hsi(base))[:, 3:6]
    detail = torch.einsum("bkc,bkhw->bchw", channels.hsi_coding.gain[:, :3].to(missing), missing)
    error = (base + channels.decode_residual(detail) - reference).std()
    assert error < 0.15 * (base - reference).std()
    for bands in (1, 2, 5):  # fewer msi bands than components, and more
        channels = tiny_network(config=REGRESSED).find_channels(hsi, torch.rand(1, bands, *FINE))
        assert torch.isfinite(channels.encode_msi(torch.rand(1, bands, *FINE), base)).all()


def test_he_initialisation_starts_from_the_base_and_few_channels_embed_as_strongly_as_many():
    torch.manual_seed(0)
    network = SSA(STANDARDISED.model_copy(update={"initialisation": "he"}))
    hsi, msi = random_pair(5, 3, COARSE, FINE)
    with torch.no_grad():
        assert torch.equal(network(hsi, msi), upsample_bicubic(hsi, FINE, shared_edges(FINE, COARSE)))
        few, many = (network._embed(network.hsi_kernel, torch.randn(1, bands, 30, 30)) for bands in (2, 6))
    assert few.std() == pytest.approx(float(many.std()), rel=0.35)


def test_the_msi_may_take_the_first_slots():
    torch.manual_seed(0)
    first = tiny_network(config=TINY.model_copy(update={"msi_kernel": "first"}))
    joined = tiny_network(config=TINY)
    joined.load_state_dict(first.state_dict())
    order = [2, 3, 4, 5, 6, 0, 1]  # of five hsi and two msi bands, as the joined kernel sees them
    joined.pair_kernel.weight.data[:, :7] = first.pair_kernel.weight.data[:, order]
    pair = random_pair(5, 2, COARSE, FINE)
    with torch.no_grad():
        torch.testing.assert_close(first(*pair), joined(*pair), atol=1e-5, rtol=0)


def test_channels_that_do_not_line_up_are_not_joined():
    for channels in (AXIS, Components()):
        with pytest.raises(ValueError, match='expected "own"'):
            SSAConfig(width=8, spectral_blocks=1, spatial_blocks=1, channels=channels)
    with pytest.raises(ValueError, match="short to long"):
        WavelengthBands(shortest_nm=900, longest_nm=400)


def test_plain_bands_need_no_description():
    assert tiny_network().find_channels(*random_pair(5, 3, COARSE, FINE)) == PairChannels()
