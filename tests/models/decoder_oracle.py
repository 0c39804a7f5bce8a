"""The implicit decoder of section 3.3 in two other forms: by loops in exact positions, and by tensors as printed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hyperfuse.models.decoder import ImplicitDecoder, neighbours_of_queries
from hyperfuse.models.ssa import SSA
from hyperfuse.physics.resample import Placement, shared_edges, upsample_bicubic


def decode_slowly(decoder: ImplicitDecoder, spectral_code: torch.Tensor, spatial_code: torch.Tensor) -> np.ndarray:
    """(B, D, h, w), (B, D, H, W) covering the same ground -> (B, F, H, W)."""
    layers = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy())
        for layer in (decoder.first, *decoder.middle, decoder.last)
    ]
    spectral, spatial = spectral_code.detach().double().numpy(), spatial_code.detach().double().numpy()
    batch, _, h, w = spectral.shape
    height, width = spatial.shape[2:]
    result = np.zeros((batch, layers[-1][0].shape[0] - 1, height, width))
    for b in range(batch):
        for i in range(height):
            for j in range(width):
                candidates, logits = [], []
                for q_row in two_nearest(i, height, h):
                    for q_column in two_nearest(j, width, w):
                        question = [
                            *spectral[b, :, q_row, q_column],
                            *spatial[b, :, i, j],
                            float(position(i, height, h) - q_row),
                            float(position(j, width, w) - q_column),
                            h / height,
                            w / width,
                        ]
                        answer = perceptron(layers, np.array(question))
                        candidates.append(answer[:-1])
                        logits.append(answer[-1])
                total = sum(math.exp(logit) for logit in logits)
                for candidate, logit in zip(candidates, logits, strict=True):
                    result[b, :, i, j] += math.exp(logit) / total * candidate
    return result


def position(fine_index: int, fine_size: int, coarse_size: int) -> Fraction:
    """Where a fine pixel's centre lies, in coarse pixels: the same fraction of the image from its left edge."""
    return Fraction(2 * fine_index + 1, 2 * fine_size) * coarse_size - Fraction(1, 2)


def two_nearest(fine_index: int, fine_size: int, coarse_size: int) -> list[int]:
    """The coarse pixels to the left and to the right, or the border pixel twice."""
    left = math.floor(position(fine_index, fine_size, coarse_size))
    return [min(max(k, 0), coarse_size - 1) for k in (left, left + 1)]


def perceptron(layers: list[tuple[np.ndarray, np.ndarray]], question: np.ndarray) -> np.ndarray:
    hidden = question
    for weight, bias in layers[:-1]:
        hidden = np.maximum(weight @ hidden + bias, 0.0)
    weight, bias = layers[-1]
    return weight @ hidden + bias


def decode_plainly(
    decoder: ImplicitDecoder, spectral_code: Tensor, spatial_code: Tensor, placement: Placement
) -> Tensor:
    """`ImplicitDecoder.forward` directly from eq. (7) and (9)."""
    candidates, weights = decode_candidates(decoder, spectral_code, spatial_code, placement)
    return (torch.softmax(weights, dim=0) * candidates).sum(dim=0)


def decode_candidates(
    decoder: ImplicitDecoder, spectral_code: Tensor, spatial_code: Tensor, placement: Placement
) -> tuple[Tensor, Tensor]:
    """Eq. (7): the four candidates (4, B, F, H, W) and their weights before the softmax (4, B, 1, H, W)."""
    rows, columns = neighbours_of_queries(spectral_code, spatial_code, placement)
    batch, _, height, width = spatial_code.shape
    cell = torch.tensor([placement.rows.step, placement.columns.step], device=spatial_code.device)
    outputs = []
    for row in range(2):
        for column in range(2):
            spectral = spectral_code[:, :, rows.indices[row][:, None], columns.indices[column][None, :]]
            offset = torch.stack(torch.meshgrid(rows.offsets[row], columns.offsets[column], indexing="ij"))
            offset_and_cell = torch.cat([offset, cell[:, None, None].expand(2, height, width)])
            inputs = torch.cat([spectral, spatial_code, offset_and_cell.expand(batch, 4, height, width)], dim=1)
            hidden = inputs.permute(0, 2, 3, 1)
            for layer in (decoder.first, *decoder.middle):
                hidden = F.relu(layer(hidden))
            outputs.append(decoder.last(hidden).permute(0, 3, 1, 2))
    output = torch.stack(outputs)
    return output[:, :, :-1], output[:, :, -1:]


def fuse_plainly(network: SSA, hsi: Tensor, msi: Tensor) -> Tensor:
    """`SSA.forward` for channels that are bands, with the decoder directly from its equations."""
    fine_size, coarse_size = (msi.shape[2], msi.shape[3]), (hsi.shape[2], hsi.shape[3])
    placement = shared_edges(fine_size, coarse_size)
    hsi_upsampled = upsample_bicubic(hsi, fine_size, placement)
    spectral_code = network.spectral_encoder(network.hsi_kernel(hsi))
    spatial_code = network.spatial_encoder(network.pair_kernel(torch.cat([hsi_upsampled, msi], dim=1)))
    features = decode_plainly(network.implicit_decoder, spectral_code, spatial_code, placement)
    return hsi_upsampled + network.output_kernel(features, hsi.shape[1])
