"""The implicit decoder of section 3.3, one query and one neighbour at a time, in float64 and with exact fractions for
positions.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch

from hyperfuse.models.decoder import ImplicitDecoder


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
