"""Regression of hsi detail on msi detail over neighbourhoods that a network guides.

Shapes: p components, B regressors, Q numbers that neighbours are compared by, h w coarse, H W fine, K neighbours of a coarse pixel
(a square), s fine pixels of a coarse cell.

The same regression as in `local_regression.py`, which see. Here a neighbour's weight also depends on what a network says of it and
of the pixel, and everything can be differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hyperfuse.methods.local_regression import REACH, RIDGE_OF_NEIGHBOURHOOD, WIDTH, CellAxis, solve_small, squares

FARTHEST = -1e9  # logarithm of the weight of a neighbour beyond the border
NUMBERS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class GuidedRegression:
    """What is known on the coarse grid."""

    keys: Tensor  # (Q, h, w)
    weight: Tensor  # (1, h, w), logarithm
    inputs: Tensor  # (B, h, w)
    outputs: Tensor  # (p, h, w)
    ridge: Tensor  # (B, B)

    def predict(
        self,
        queries: Tensor,
        inputs: Tensor,
        nearness: Tensor,
        ridge: Tensor,
        scale: tuple[float, float],
        shift: tuple[float, float],
    ) -> Tensor:
        """On the fine grid: queries (Q, H, W), inputs (B, H, W), logarithms of nearness and ridge (H, W) -> (p, H, W)."""
        height, width = self.keys.shape[1:]
        rows = CellAxis.of(height, queries.shape[1], scale[0], shift[0], queries)
        columns = CellAxis.of(width, queries.shape[2], scale[1], shift[1], queries)
        fine = torch.cat([queries, nearness[None], ridge[None], inputs])
        coarse = self._coarse()
        column_places = columns.owned(slice(0, width))[1]
        parts = []
        for part in self._chunks(height, width * rows.most * columns.most):
            spatial = torch.einsum("asi,btj->abstij", rows.weights[part], columns.weights).flatten(4).flatten(2, 3)
            pixels = fine[:, rows.members[part][:, None, :, None], columns.members[None, :, None, :]].flatten(3).permute(1, 2, 3, 0)
            cells = self._regress(squares(coarse, part), pixels, spatial)
            grid = cells.reshape(*cells.shape[:2], rows.most, columns.most, -1).permute(4, 0, 2, 1, 3)  # (p, a, s_y, b, s_x)
            parts.append(grid.flatten(1, 2)[:, rows.owned(part)[1]].flatten(2)[:, :, column_places])
        return torch.cat(parts, dim=1)

    def predict_left_out(self) -> Tensor:
        """(p, h, w): every coarse pixel predicted from its neighbours alone."""
        height, width = self.keys.shape[1:]
        offsets = torch.arange(-REACH, REACH + 1)
        near = torch.exp(-0.5 * (offsets / WIDTH) ** 2)
        near = (near[:, None] * near).flatten()
        near[len(near) // 2] = 0
        inside = [_inside(offsets, length) for length in (height, width)]
        spatial = (inside[0][:, None, :, None] & inside[1][None, :, None, :]).flatten(2) * near
        silent = torch.zeros(2, height, width)
        pixels = torch.cat([self.keys, silent, self.inputs]).permute(1, 2, 0)[:, :, None]
        coarse = self._coarse()
        parts = [
            self._regress(squares(coarse, part), pixels[part], spatial[part, :, None])[:, :, 0]
            for part in self._chunks(height, width)
        ]
        return torch.cat(parts).permute(2, 0, 1)

    def _coarse(self) -> Tensor:
        return torch.cat([self.keys, self.weight, self.inputs, self.outputs])

    def _chunks(self, height: int, pixels_of_row: int) -> Iterator[slice]:
        """Coarse rows that are worked on together."""
        bands = len(self.inputs)
        per_pixel = 3 * (2 * REACH + 1) ** 2 + 2 * bands**2 + len(self.outputs)
        step = max(1, NUMBERS_AT_ONCE // (pixels_of_row * per_pixel))
        for first in range(0, height, step):
            yield slice(first, min(first + step, height))

    def _regress(self, neighbours: Tensor, pixels: Tensor, spatial: Tensor) -> Tensor:
        """neighbours (a, b, K, Q + 1 + B + p), pixels (a, b, s, Q + 2 + B), spatial (a, b, s, K) -> (a, b, s, p)."""
        bands, size = len(self.inputs), len(self.keys)
        keys, weight, inputs, outputs = torch.split(neighbours, [size, 1, bands, len(self.outputs)], dim=-1)
        queries, nearness, ridge, detail = torch.split(pixels, [size, 1, 1, bands], dim=-1)
        distance = queries.square().sum(-1, keepdim=True) + keys.square().sum(-1)[:, :, None] - 2 * queries @ keys.mT
        logarithms = spatial.clamp_min(1e-30).log() * nearness.exp() + weight.mT - distance.clamp_min(0).log1p()
        weights = torch.softmax(logarithms.masked_fill(spatial == 0, FARTHEST), dim=-1)
        spread = self._spread(weights, inputs)
        own = RIDGE_OF_NEIGHBOURHOOD * spread.diagonal(dim1=-2, dim2=-1).mean(-1)
        system = spread + self.ridge * ridge.exp()[..., None] + own[..., None, None] * torch.eye(bands)
        direction = solve_small(system, detail)
        predicted: Tensor = (weights * (direction @ inputs.mT)) @ outputs
        return predicted

    def _spread(self, weights: Tensor, inputs: Tensor) -> Tensor:
        """Weighted second moments of the neighbours' inputs, (a, b, s, B, B); each product is formed once."""
        bands = len(self.inputs)
        upper = torch.triu_indices(bands, bands)
        place = torch.empty(bands, bands, dtype=torch.long)
        place[upper[0], upper[1]] = place[upper[1], upper[0]] = torch.arange(upper.shape[1])
        moments = weights @ (inputs[..., upper[0]] * inputs[..., upper[1]])
        return moments[..., place]


def _inside(offsets: Tensor, length: int) -> Tensor:
    places = torch.arange(length)[:, None] + offsets
    return (places >= 0) & (places < length)
