"""Nested kernels: a prefix of the channels uses exactly the prefix of the weights."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperfuse.errors import BandError
from hyperfuse.models.matryoshka import MatryoshkaInputKernel, MatryoshkaOutputKernel

MAX_CHANNELS = 7


def loop_convolution(image, weight, bias, stride, padding, dilation):
    """The paper's sum for Y_{d,i,j}, with padding and dilation, by loops."""
    features, channels, k, _ = weight.shape
    image = F.pad(image, (padding,) * 4)
    _, height, width = image.shape
    image, weight = image.tolist(), weight.tolist()
    halo = dilation * (k - 1)
    rows, columns = (height - halo - 1) // stride + 1, (width - halo - 1) // stride + 1
    result = torch.zeros(features, rows, columns, dtype=torch.float64)
    for d, i, j in itertools.product(range(features), range(rows), range(columns)):
        total = 0.0 if bias is None else bias[d].item()
        for c, m, n in itertools.product(range(channels), range(k), range(k)):
            total += image[c][i * stride + m * dilation][j * stride + n * dilation] * weight[d][c][m][n]
        result[d, i, j] = total
    return result


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 1, 1), (2, 1, 1), (1, 2, 2), (3, 0, 1)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("channels", [1, 3, MAX_CHANNELS])
def test_both_layers_are_the_paper_s_sum(channels, bias, stride, padding, dilation):
    torch.manual_seed(1)
    options = {"kernel_size": 3, "stride": stride, "padding": padding, "dilation": dilation, "bias": bias}
    into = MatryoshkaInputKernel(MAX_CHANNELS, 3, **options)
    image = torch.randn(channels, 7, 6)
    expected = loop_convolution(image, into.weight[:, :channels], into.bias, stride, padding, dilation)
    torch.testing.assert_close(into(image[None])[0].double(), expected, atol=1e-5, rtol=1e-5)

    out = MatryoshkaOutputKernel(3, MAX_CHANNELS, **options)
    features = torch.randn(3, 7, 6)
    sliced_bias = None if out.bias is None else out.bias[:channels]
    expected = loop_convolution(features, out.weight[:channels], sliced_bias, stride, padding, dilation)
    torch.testing.assert_close(out(features[None], channels)[0].double(), expected, atol=1e-5, rtol=1e-5)


@given(channels=st.integers(1, MAX_CHANNELS), seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_absent_channels_count_as_zero(channels, seed):
    torch.manual_seed(seed)
    kernel = MatryoshkaInputKernel(MAX_CHANNELS, 4, 3, padding=1)
    image = torch.randn(2, channels, 5, 4)
    filled_up = torch.cat([image, torch.zeros(2, MAX_CHANNELS - channels, 5, 4)], dim=1)
    torch.testing.assert_close(kernel(image), kernel(filled_up), atol=1e-6, rtol=1e-5)


@given(channels=st.integers(1, MAX_CHANNELS), seed=st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_fewer_output_channels_are_the_first_of_all(channels, seed):
    torch.manual_seed(seed)
    kernel = MatryoshkaOutputKernel(4, MAX_CHANNELS, 3, padding=1)
    features = torch.randn(2, 4, 5, 4)
    torch.testing.assert_close(
        kernel(features, channels), kernel(features, MAX_CHANNELS)[:, :channels], atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize("channels", [1, 4, MAX_CHANNELS])
def test_gradients_reach_only_the_slice_used(channels):
    into, out = (
        MatryoshkaInputKernel(MAX_CHANNELS, 4, 3, padding=1),
        MatryoshkaOutputKernel(4, MAX_CHANNELS, 3, padding=1),
    )
    out(into(torch.randn(1, channels, 6, 6)), channels).square().sum().backward()
    for gradient in (into.weight.grad.transpose(0, 1), out.weight.grad, out.bias.grad):
        assert (gradient[:channels] != 0).any(dim=tuple(range(1, gradient.ndim))).all()
        assert (gradient[channels:] == 0).all()


def test_more_channels_than_the_kernel_has_is_an_error_with_the_remedy():
    with pytest.raises(BandError, match=r"^8 channels; expected at most 7.*; .*max_channels=8"):
        MatryoshkaInputKernel(MAX_CHANNELS, 4, 3, padding=1)(torch.zeros(1, 8, 3, 3))
    with pytest.raises(BandError, match="9 channels; expected at most 7"):
        MatryoshkaOutputKernel(4, MAX_CHANNELS, 3, padding=1)(torch.zeros(1, 4, 3, 3), 9)
