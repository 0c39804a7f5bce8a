"""How well a regression does where it has not looked: on coarse pixels that were left out, and one octave finer than it
learned.

Shapes: M msi bands, p components, h w coarse.

Regression of hsi detail on msi detail over neighbourhoods that a network guides.

Shapes: p components, B regressors, M of them msi bands, Q numbers that neighbours are compared by, h w coarse, H W
fine, K neighbours of a coarse pixel (a square), s fine pixels of a coarse cell.

The same regression as in `local_regression.py`, which see. Here a neighbour's weight also depends on what a network
says of it and of the pixel, and everything can be differentiated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse.methods.local_fuse import REACH, RIDGE_OF_NEIGHBOURHOOD, WIDTH, CellAxis, solve_lower
from hyperfuse.methods.pair_model import covariance, diagonally_loaded
from hyperfuse.methods.scene_stats import SceneComputation, scene_mean
from hyperfuse.methods.window import Window
from hyperfuse.physics.operators import SpatialOperator, sigma_from_fwhm
from hyperfuse.physics.resample import Placement, upsample_bicubic

NOWHERE = -1e4  # logarithm of the weight of a neighbour beyond the border: as good as 0, and it can be differentiated
NUMBERS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class GuidedRegression:
    """What is known on the coarse grid."""

    keys: Tensor  # (Q, h, w)
    weight: Tensor  # (1, h, w), logarithm
    inputs: Tensor  # (B, h, w), the first M of which are msi bands
    outputs: Tensor  # (2 p, h, w): what slopes on all inputs are to explain, and what slopes on the msi bands alone
    ridge: Tensor  # (B, B)
    bands: int  # M

    def predict(self, pixels: Tensor, scale: tuple[float, float], shift: tuple[float, float]) -> Tensor:
        """On the fine grid: (Q + 2 + B, H, W): keys, logarithms of nearness and ridge, inputs -> (2 p, H, W)."""
        height, width = self.keys.shape[1:]
        rows = CellAxis.of(height, pixels.shape[1], scale[0], shift[0], pixels)
        columns = CellAxis.of(width, pixels.shape[2], scale[1], shift[1], pixels)
        row_logs, column_logs = _logarithms(rows.weights), _logarithms(columns.weights)
        fine = _in_cells(pixels, columns, 2)
        coarse = self._coarse()
        column_places = columns.owned(slice(0, width))[1]
        everywhere = range(height), range(width)
        parts = []
        for part in self._chunks(height, width * rows.most * columns.most):
            # (a, s_y, i), (b, s_x, j) -> (a, b, s, K)
            spatial = row_logs[part][:, None, :, None, :, None] + column_logs[None, :, None, :, None, :]
            members = _in_cells(fine, rows, 1, part).reshape(len(fine), -1, rows.most, width, columns.most)
            members = members.permute(1, 3, 2, 4, 0).flatten(2, 3)
            cells = self._regress(
                _squares(coarse, everywhere[0][part], everywhere[1]), members, spatial.flatten(4).flatten(2, 3)
            )
            grid = cells.view(*cells.shape[:2], rows.most, columns.most, -1).permute(
                4, 0, 2, 1, 3
            )  # (2 p, a, s_y, b, s_x)
            parts.append(
                grid.flatten(1, 2).index_select(1, rows.owned(part)[1]).flatten(2).index_select(2, column_places)
            )
        return torch.cat(parts, dim=1)

    def predict_left_out(self, rows: range, columns: range) -> Tensor:
        """(2 p, rows, columns): these coarse pixels, each predicted from its neighbours alone."""
        height, width = self.keys.shape[1:]
        offsets = torch.arange(-REACH, REACH + 1)
        near = -0.5 * (offsets / WIDTH) ** 2
        near = (near[:, None] + near).flatten()
        near[len(near) // 2] = NOWHERE
        inside = [_inside(places, offsets, length) for places, length in ((rows, height), (columns, width))]
        spatial = torch.where((inside[0][:, None, :, None] & inside[1][None, :, None, :]).flatten(2), near, NOWHERE)
        silent = torch.zeros(2, height, width)
        pixels = torch.cat([self.keys, silent, self.inputs])[:, rows.start : rows.stop : rows.step, :]
        pixels = pixels[:, :, columns.start : columns.stop : columns.step].permute(1, 2, 0)[:, :, None]
        coarse = self._coarse()
        parts = []
        for part in self._chunks(len(rows), len(columns)):
            neighbours = _squares(coarse, rows[part], columns)
            parts.append(self._regress(neighbours, pixels[part], spatial[part, :, None])[:, :, 0])
        return torch.cat(parts).permute(2, 0, 1)

    @cached_property
    def _lower(self) -> tuple[list[int], list[int]]:
        """Rows and columns of a lower triangle, row after row."""
        bands = len(self.inputs)
        return [i for i in range(bands) for _ in range(i + 1)], [j for i in range(bands) for j in range(i + 1)]

    def _coarse(self) -> Tensor:
        """(h + border, w + border, F): all that a neighbour has to say, the edge repeated around it."""
        rows, columns = self._lower
        products = self.inputs[rows] * self.inputs[columns]
        own = RIDGE_OF_NEIGHBOURHOOD * self.inputs.square().mean(0, keepdim=True)
        image = torch.cat([self.keys, self.weight, self.inputs, products, own, self.outputs])
        return pad(image[None], (REACH, REACH, REACH, REACH), mode="replicate")[0].permute(1, 2, 0).contiguous()

    def _chunks(self, height: int, pixels_of_row: int) -> Iterator[slice]:
        """Coarse rows that are worked on together."""
        bands = len(self.inputs)
        per_pixel = 3 * (2 * REACH + 1) ** 2 + 2 * bands**2 + len(self.outputs)
        step = max(1, NUMBERS_AT_ONCE // (pixels_of_row * per_pixel))
        for first in range(0, height, step):
            yield slice(first, min(first + step, height))

    def _regress(self, neighbours: Tensor, pixels: Tensor, spatial: Tensor) -> Tensor:
        """neighbours (a, b, K, F), pixels (a, b, s, Q + 2 + B), logarithms of weights (a, b, s, K) -> (a, b, s, 2 p)."""
        bands, size = len(self.inputs), len(self.keys)
        sizes = [size, 1, bands, len(self._lower[0]) + 1, len(self.outputs)]
        keys, weight, inputs, products, outputs = torch.split(neighbours, sizes, dim=-1)
        queries, nearness, ridge, detail = torch.split(pixels, [size, 1, 1, bands], dim=-1)
        lengths = queries.square().sum(-1, keepdim=True) + (keys.square().sum(-1) + 1)[:, :, None]
        distance = lengths - (2 * queries) @ keys.mT
        logarithms = spatial * nearness.exp() + weight.mT
        # The heaviest neighbour weighs 1 before its distance counts, so that no sum of weights vanishes.
        weights = torch.exp(logarithms - logarithms.detach().amax(-1, keepdim=True)) / distance.clamp_min(1)
        weights = weights / weights.sum(-1, keepdim=True)
        system = self._system(products.mT @ weights.mT, ridge[..., 0].exp())
        with_features, plain = outputs.chunk(2, dim=-1)
        parts = []
        for count, explained in ((bands, with_features), (self.bands, plain)):
            direction = solve_lower(system[:count], detail[..., :count])
            parts.append((weights * (direction @ inputs[..., :count].mT)) @ explained)
        return torch.cat(parts, dim=-1)

    def _system(self, moments: Tensor, ridge: Tensor) -> list[list[Tensor]]:
        """Rows of the lower triangle: second moments (a, b, B (B + 1) / 2 + 1, s) of the neighbours' inputs, with the
        ridge.
        """
        *entries, own = moments.unbind(2)
        lower: list[list[Tensor]] = [[] for _ in self.inputs]
        for entry, row, column in zip(entries, *self._lower, strict=True):
            held = entry + self.ridge[row, column] * ridge if bool(self.ridge[row, column] != 0) else entry
            lower[row].append(held + own if row == column else held)
        return lower


def _squares(coarse: Tensor, rows: range, columns: range) -> Tensor:
    """(rows, columns, K, F): the square of neighbours around each of these coarse pixels."""
    side = 2 * REACH + 1
    part = coarse[rows.start : rows[-1] + side, columns.start : columns[-1] + side]
    near = part.unfold(0, side, rows.step).unfold(1, side, columns.step)
    return near.permute(0, 1, 3, 4, 2).flatten(2, 3)


def _in_cells(image: Tensor, axis: CellAxis, dim: int, cells: slice = slice(None)) -> Tensor:
    """The members of these cells, cell after cell, along a dimension. At a whole scale that is the image as it lies
    there.
    """
    members = axis.members[cells].flatten()
    first, last = int(members[0]), int(members[-1])
    in_order = last - first + 1 == len(members) and bool((members.diff() == 1).all())
    return image.narrow(dim, first, len(members)) if in_order else image.index_select(dim, members)


def _logarithms(weights: Tensor) -> Tensor:
    return torch.where(weights > 0, weights.clamp_min(1e-30).log(), NOWHERE)


def _inside(of: range, offsets: Tensor, length: int) -> Tensor:
    places = torch.tensor(of)[:, None] + offsets
    return (places >= 0) & (places < length)


ENOUGH_LEFT_OUT = 1500  # coarse pixels that show how well a prediction does on those that it has not seen
SMALLEST_RATIO = 1e-6


def octave_trend(coefficients: Tensor, msi: Tensor) -> SceneComputation[Tensor]:
    """(p, 2): slopes learned one octave coarser, tried here: the gain that would suit them, and the share they explain."""
    bands = len(msi)

    def share() -> tuple[Tensor, int]:
        fine, coarse = _octave_details(torch.cat([msi, coefficients]))
        return torch.stack([covariance(fine), covariance(coarse)]), msi[0].numel()

    fine, coarse = yield from scene_mean(share)
    slopes = torch.linalg.solve(diagonally_loaded(coarse[:bands, :bands], 1e-3), coarse[:bands, bands:]).T
    predicted = ((slopes @ fine[:bands, :bands]) * slopes).sum(1)
    agreeing = (slopes * fine[:bands, bands:].T).sum(1)
    total = fine[bands:, bands:].diagonal()
    explained = 1 - ratio(total - 2 * agreeing + predicted, total)
    return torch.stack([ratio(agreeing, predicted).clamp(-1, 3), explained.clamp(-2, 1)], dim=1)


def _octave_details(image: Tensor) -> tuple[Tensor, Tensor]:
    """What an image of half the resolution does not give back of this one, and what one of a quarter not of that."""
    size = (image.shape[1], image.shape[2])
    half = (max(2, round(size[0] / 2)), max(2, round(size[1] / 2)))
    scale = (size[0] / half[0], size[1] / half[1])
    operator = SpatialOperator.from_psf(size, half, scale, (sigma_from_fwhm(scale[0]), sigma_from_fwhm(scale[1])))
    coarse = operator.apply(image)
    interpolated = upsample_bicubic(coarse, size, Placement.from_scale(scale))
    return image - interpolated, coarse - operator.apply(interpolated)


@torch.no_grad()
def left_out_moments(regression: GuidedRegression, window: Window, of_scene: int) -> tuple[Tensor, int]:
    """(3, 2 p): second moments of what is predicted of left-out coarse pixels, of it with the truth, and of the error.

    In a scene of `of_scene` coarse pixels, of which a window leaves out as many as it would in one piece.
    """
    core = zip(window.coarse_core, window.coarse_size, strict=True)
    (top, bottom), (left, right) = (part.indices(size)[:2] for part, size in core)
    step = max(1, math.isqrt(of_scene // ENOUGH_LEFT_OUT))
    rows, columns = range(top, bottom, step), range(left, right, step)
    predicted = regression.predict_left_out(rows, columns).double()
    truth = regression.outputs[:, top:bottom:step, left:right:step].double()
    means = torch.stack([predicted.square(), predicted * truth, (truth - predicted).square()]).mean((2, 3))
    return means, truth[0].numel()


def ratio(one: Tensor, other: Tensor) -> Tensor:
    return one / (other + 1e-20)


def logarithm(ratio: Tensor) -> Tensor:
    return ratio.clamp_min(SMALLEST_RATIO).log10()
