"""The whole network: the paper's sizes, any bands and scales, what it adds to, its receptive field; its encoders."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.decoder_oracle import fuse_plainly
from tests.models.network_fixtures import TINY, random_pair, tiny_network

from hyperfuse.errors import BandError, GridError, OptionError
from hyperfuse.models.analysis import count_parameters
from hyperfuse.models.catalogue import build_network
from hyperfuse.models.matryoshka import FixedBands
from hyperfuse.models.ssa import PRESETS, SSA, Encoder, SSAConfig, preset
from hyperfuse.models.weights import ReceptiveField
from hyperfuse.physics.resample import AxisPlacement, Placement, shared_edges, upsample_bicubic

PAPER_PARAMETERS = {"ssa-1-1": 2_734_531, "ssa-2-2": 9_213_123, "ssa-4-4": 13_933_763, "ssa-6-6": 18_654_403}


@pytest.mark.parametrize(("name", "parameters"), PAPER_PARAMETERS.items())
def test_presets_have_the_paper_s_parameters(name, parameters):
    with torch.device("meta"):
        assert count_parameters(build_network(name)) == parameters


def test_the_small_preset_is_small():
    assert count_parameters(build_network("ssa-small")) < 1_000_000


def test_presets_are_found_by_name_and_by_content():
    with torch.device("meta"):
        assert all(SSA(preset(name)).preset == name for name in PRESETS)
        assert SSA(TINY).preset is None
    assert preset("ssa-small").with_max_channels(300).channels.max_channels == 300
    with pytest.raises(OptionError, match='no network is called "ssa-9"; expected one of ssa-1-1, '):
        preset("ssa-9")


@pytest.mark.parametrize("scale", [1, 2, 3.2, 4, 5.7, 8, 16, 32])
def test_any_scale(scale):
    fine = (round(3 * scale), round(2 * scale))
    hsi, msi = random_pair(5, 3, (3, 2), fine)
    with torch.no_grad():
        assert tiny_network()(hsi, msi).shape == (1, 5, *fine)


@given(
    bands=st.integers(1, 12),
    msi_bands=st.integers(1, 4),
    coarse=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    extra=st.tuples(st.integers(0, 13), st.integers(0, 13)),
    batch=st.integers(1, 2),
)
@settings(max_examples=30, deadline=None)
def test_any_bands_sizes_and_scales_as_in_the_plain_form(bands, msi_bands, coarse, extra, batch):
    network = tiny_network()
    hsi, msi = random_pair(bands, msi_bands, coarse, (coarse[0] + extra[0], coarse[1] + extra[1]), batch)
    with torch.no_grad():
        torch.testing.assert_close(network(hsi, msi), fuse_plainly(network, hsi, msi), atol=1e-5, rtol=0.0)


def test_samples_of_a_batch_do_not_touch():
    network = tiny_network()
    hsi, msi = random_pair(5, 3, (4, 3), (13, 11), batch=3)
    with torch.no_grad():
        together = network(hsi, msi)
        for i in range(3):
            torch.testing.assert_close(network(hsi[i : i + 1], msi[i : i + 1])[0], together[i], atol=1e-6, rtol=0.0)


def test_the_residual_is_added_to_bicubic():
    network = tiny_network()
    hsi, msi = random_pair(5, 3, (4, 5), (13, 16))
    with torch.no_grad():
        network.output_kernel.weight.zero_()
        network.output_kernel.bias.zero_()
        expected = upsample_bicubic(hsi, (13, 16), shared_edges((13, 16), (4, 5)))
        assert torch.equal(network(hsi, msi), expected)


def test_the_full_width_path_is_the_sliced_one():
    network = tiny_network()
    most = TINY.channels.max_channels
    hsi, msi = random_pair(most - 3, 3, (4, 5), (13, 16))
    wider = SSA(TINY.with_max_channels(most + 5)).eval()
    state = wider.state_dict()
    for name, tensor in network.state_dict().items():
        state[name][tuple(slice(0, size) for size in tensor.shape)] = tensor
    with torch.no_grad():
        torch.testing.assert_close(network(hsi, msi), wider(hsi, msi), atol=1e-6, rtol=0.0)


def test_more_bands_than_the_kernels_hold_are_refused_with_the_remedy():
    with pytest.raises(
        BandError, match="14 hsi bands and 3 msi bands; expected at most 16 together; select fewer bands"
    ):
        tiny_network()(*random_pair(14, 3, (4, 4), (8, 8)))


def test_without_matryoshka_kernels_only_one_sensor_fits():
    network = tiny_network(config=TINY.with_fixed_bands(bands=5, msi_bands=3))
    assert network.config.channels == FixedBands(bands=5, msi_bands=3)
    with torch.no_grad():
        assert network(*random_pair(5, 3, (4, 4), (13, 10))).shape == (1, 5, 13, 10)
        for bands, msi_bands in ((4, 3), (5, 1), (4, 4)):
            with pytest.raises(
                BandError, match=f"{bands} hsi bands and {msi_bands} msi bands; expected exactly 5 and 3"
            ):
                network(*random_pair(bands, msi_bands, (4, 4), (8, 8)))


def test_without_matryoshka_kernels_the_same_weights_give_the_same_image():
    network = tiny_network()
    fixed = tiny_network(config=TINY.with_fixed_bands(bands=5, msi_bands=3))
    state = {
        name: network.state_dict()[name][tuple(slice(0, size) for size in tensor.shape)]
        for name, tensor in fixed.state_dict().items()
    }
    fixed.load_state_dict(state)
    hsi, msi = random_pair(5, 3, (4, 4), (13, 10))
    with torch.no_grad():
        torch.testing.assert_close(network(hsi, msi), fixed(hsi, msi), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize(
    ("hsi", "msi"),
    [
        ((3, 4, 4), (1, 3, 8, 8)),
        ((2, 3, 4, 4), (1, 3, 8, 8)),
        ((1, 3, 4, 4), (1, 3, 8, 3)),
        ((0, 3, 4, 4), (0, 3, 8, 8)),
        ((1, 0, 4, 4), (1, 3, 8, 8)),
        ((1, 3, 0, 4), (1, 3, 8, 8)),
        ((1, 3, 4, 4), (1, 0, 8, 8)),
    ],
)
def test_a_pair_that_is_none_is_refused(hsi, msi):
    with pytest.raises(GridError, match="expected"):
        tiny_network()(torch.zeros(hsi), torch.zeros(msi))


@pytest.mark.parametrize(
    "types", [(torch.float64, torch.float64), (torch.float32, torch.float64), (torch.int16, torch.float32)]
)
def test_other_number_types_are_refused_with_the_remedy(types):
    hsi, msi = (image.to(each) for image, each in zip(random_pair(3, 2, (4, 4), (8, 8)), types, strict=True))
    with pytest.raises(
        OptionError, match=r"expected torch.float32, as the weights are; convert both with \.to\(torch.float32\)"
    ):
        tiny_network()(hsi, msi)


def test_a_double_network_takes_doubles():
    hsi, msi = random_pair(3, 2, (4, 4), (13, 10))
    with torch.no_grad():
        found = tiny_network().double()(hsi.double(), msi.double())
        torch.testing.assert_close(found, tiny_network()(hsi, msi).double(), atol=1e-5, rtol=0.0)


def touched(gradient: torch.Tensor) -> tuple[int, int, int, int]:
    """First and last row, first and last column with any gradient."""
    rows, columns = gradient.abs().sum(dim=(0, 1)).nonzero(as_tuple=True)
    return int(rows.min()), int(rows.max()), int(columns.min()), int(columns.max())


@pytest.mark.parametrize("blocks", [(1, 1), (1, 2), (2, 1)])
def test_the_margin_is_the_receptive_field_exactly(blocks):
    config = TINY.model_copy(update={"spectral_blocks": blocks[0], "spatial_blocks": blocks[1]})
    network = tiny_network(config=config)
    assert network.receptive_field == ReceptiveField(fine=2 * blocks[1] + 4, coarse=2 * blocks[0] + 3)
    scale, coarse, (row, column) = 3, 27, (40, 37)
    hsi, msi = (image.requires_grad_() for image in random_pair(4, 2, (coarse, coarse), (scale * coarse,) * 2))
    network(hsi, msi)[0, :, row, column].abs().sum().backward()
    fine, halo = network.receptive_field
    assert touched(msi.grad) == (row - fine, row + fine, column - fine, column + fine)
    below = [math.floor((i + 0.5) / scale - 0.5) for i in (row - 1, row + 1, column - 1, column + 1)]
    assert touched(hsi.grad) == (below[0] - halo, below[1] + 1 + halo, below[2] - halo, below[3] + 1 + halo)


def test_a_shifted_msi_is_placed_where_it_is_told():
    """Cutting a row off the msi and saying so gives the same pixels, far from the cut."""
    network = tiny_network()
    hsi, msi = random_pair(4, 2, (12, 12), (48, 48))
    whole = shared_edges((48, 48), (12, 12))
    cut = Placement(AxisPlacement(whole.rows.position(1), whole.rows.step), whole.columns)
    with torch.no_grad():
        expected = network(hsi, msi)[:, :, 1:]
        found = network(hsi, msi[:, :, 1:], cut)
    receptive_field = network.receptive_field.fine
    torch.testing.assert_close(found[:, :, receptive_field:], expected[:, :, receptive_field:], atol=1e-5, rtol=0.0)


def test_bfloat16_stays_close():
    network = tiny_network()
    hsi, msi = random_pair(5, 3, (4, 5), (13, 16))
    with torch.no_grad():
        expected = network(hsi, msi)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = network(hsi, msi)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=0.0)


def test_descent_reduces_the_error():
    network = tiny_network().train()
    hsi, msi = random_pair(5, 3, (4, 4), (16, 16))
    reference = torch.rand(1, 5, 16, 16, generator=torch.Generator().manual_seed(9))
    optimiser = torch.optim.AdamW(network.parameters(), lr=5e-3, weight_decay=0.0)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (network(hsi, msi) - reference).abs().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.detach().item())
    assert losses[-1] < 0.9 * losses[0]


def test_a_configuration_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="depth"):
        SSAConfig.model_validate({"width": 8, "spectral_blocks": 1, "spatial_blocks": 1, "depth": 3})


def convolve(image: torch.Tensor, convolution: torch.nn.Conv2d) -> torch.Tensor:
    """(D, H, W), zeros beyond the border: each tap of the kernel shifts the image and mixes its features."""
    height, width = image.shape[1:]
    padded = torch.zeros(image.shape[0], height + 2, width + 2, dtype=image.dtype)
    padded[:, 1:-1, 1:-1] = image
    result = convolution.bias[:, None, None].expand(-1, height, width)
    for m in range(3):
        for n in range(3):
            shifted = padded[:, m : m + height, n : n + width]
            result = result + torch.einsum("dc,chw->dhw", convolution.weight[:, :, m, n], shifted)
    return result


@pytest.mark.parametrize("blocks", [1, 3])
def test_is_head_blocks_tail_and_long_skip(blocks):
    torch.manual_seed(0)
    encoder = Encoder(4, blocks).double()
    embedded = torch.randn(4, 6, 5, dtype=torch.float64)
    with torch.no_grad():
        start = convolve(embedded, encoder.head)
        code = start
        for block in encoder.blocks:
            code = code + convolve(convolve(code, block.first).clamp(min=0.0), block.second)
        expected = start + convolve(code, encoder.tail)
        torch.testing.assert_close(encoder(embedded[None])[0], expected, atol=1e-12, rtol=0.0)
    assert len(encoder.blocks) == blocks


def test_derivatives_survive_the_additions_in_place():
    torch.manual_seed(0)
    encoder = Encoder(2, 2).double()
    assert torch.autograd.gradcheck(encoder, torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True))
