"""Regression of hsi detail on msi detail over neighbourhoods: the prior of local FUSE and of `universal`.

Shapes: p components, M msi bands, B regressors, Q keys, G groups of outputs, h w coarse, H W fine, K neighbours of a
coarse pixel (a square), s fine pixels of a coarse cell.

Detail is what a grid's own interpolation loses. On the coarse grid it is known for the hsi and for the msi (blurred to
the hsi's resolution), so the regression of one on the other can be fitted there, neighbourhood by neighbourhood; on
the fine grid it is known for the msi only, and the regression is applied to it. A neighbour k of a fine pixel weighs

    w_k = exp(-distance_k^2 / 2 WIDTH^2) / (1 + |key_k - key|^2),

so neighbourhoods follow the image. The weighted ridge regression is written through its equivalent kernel: one B x B
system is solved per pixel for v, and the prediction is the sum over neighbours of w_k (v' inputs_k) outputs_k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse import compiled
from hyperfuse.methods.pair_model import PairModel, diagonally_loaded, scene_covariance, solve_lower
from hyperfuse.methods.window import SceneComputation, in_one_pass, scene_count, scene_moments
from hyperfuse.physics.resample import AxisPlacement, Placement, fine_positions

RADIUS = 3  # neighbours to each side, in coarse pixels
WIDTH = 1.5  # standard deviation of the spatial weight, in coarse pixels
MSI_DISTANCE = 0.3  # msi distance at which a neighbour counts half, in standard deviations of the msi
RIDGE_OF_SCENE = 0.03  # shrinkage of local slopes towards the scene's, in units of the covariance of msi detail
FEW_PIXELS = 100  # in a scene of so few coarse pixels that shrinkage is doubled; it grows quadratically below
RIDGE_OF_NEIGHBOURHOOD = 1e-3  # shrinkage in units of the neighbourhood's own variance
FINE_DETAIL_GAIN = 5.0  # variance of fine detail over that of coarse detail, about: noise matters that much less
OUTSIDE = -1e4  # log weight of a neighbour outside the image: numerically 0, but differentiable
NUMBERS_AT_ONCE = 4_000_000  # floats held by one chunk of rows, about


@dataclass(frozen=True)
class Details:
    """Both images and their detail on both grids, the msi in units of about 1."""

    interpolated: Tensor  # (p, H, W)
    detail: Tensor  # (p, h, w)
    msi: Tensor  # (M, h, w), blurred to the hsi's resolution
    fine_msi: Tensor  # (M, H, W)
    msi_detail: Tensor  # (M, h, w)
    fine_msi_detail: Tensor  # (M, H, W)
    moments: Tensor  # (M + p, M + p) of msi_detail and detail
    msi_spread: Tensor  # (M, M) covariance of msi
    noise: Tensor  # (M, M) covariance of the noise in msi_detail, as far as it matters on the fine grid
    ridge: Tensor  # (M, M) of a pixel's own slopes
    unit: float  # what made msi_detail of the msi's own values
    pixels: int  # coarse pixels of the scene
    few: float  # factor of ridges in scenes of few pixels


def find_details(model: PairModel, coefficients: Tensor, seen: Tensor) -> SceneComputation[Details]:
    """Find the detail of denoised components (p, h, w) and of the msi `seen` (M, h, w) at the hsi's resolution."""
    interpolated, interpolated_msi = model.upsample(coefficients), model.upsample(seen)
    detail = coefficients - model.operator.apply(interpolated)
    msi_detail = seen - model.operator.apply(interpolated_msi)
    window, bands = model.window, len(seen)
    moments, pixels, (_, spread) = yield from in_one_pass(
        scene_covariance(lambda: window.coarse(torch.cat([msi_detail, detail]))),
        scene_count(window.coarse_pixels),
        scene_moments(window.coarse(seen)),
    )
    unit, msi_unit = (1 / math.sqrt(max(1e-30, float(of.trace()))) for of in (moments[:bands, :bands], spread))
    noise = unit**2 * model.msi_noise / FINE_DETAIL_GAIN
    few = 1 + (FEW_PIXELS / pixels) ** 2
    ridge = diagonally_loaded(RIDGE_OF_SCENE * few * unit**2 * moments[:bands, :bands] + noise, 1e-6)
    units = torch.cat([torch.full((bands,), unit), torch.ones(len(detail))]).double()
    return Details(
        interpolated=interpolated,
        detail=detail,
        msi=seen * msi_unit,
        fine_msi=model.msi * msi_unit,
        msi_detail=msi_detail * unit,
        fine_msi_detail=(model.msi - interpolated_msi) * unit,
        moments=units[:, None] * moments * units,
        msi_spread=spread * msi_unit**2,
        noise=noise,
        ridge=ridge + 1e-8 * torch.eye(bands),
        unit=unit,
        pixels=pixels,
        few=few,
    )


@dataclass(frozen=True)
class LocalRegression:
    """What is known on the coarse grid. Everything can be differentiated.

    The outputs come in G groups of equal size; group g is regressed on the first `inputs_of[g]` inputs.
    """

    keys: Tensor  # (Q, h, w)
    log_weight: Tensor  # (1, h, w), of a pixel as a neighbour
    inputs: Tensor  # (B, h, w)
    outputs: Tensor  # (G p, h, w)
    ridge: Tensor  # (B, B)
    inputs_of: tuple[int, ...]

    def predict(self, images: Sequence[Tensor], placement: Placement) -> Tensor:
        """Predict on the fine grid: images (k, H, W) of together Q + 2 + B planes -> (G p, H, W).

        They hold keys, the log of how fast neighbours lose weight with distance, the log of a factor of the ridge, and
        inputs.
        """
        height, width = self.keys.shape[1:]
        rows = CellAxis.of(height, images[0].shape[1], placement.rows, images[0])
        columns = CellAxis.of(width, images[0].shape[2], placement.columns, images[0])
        coarse = self._coarse()
        if compiled.can_compute(*images, coarse) and max(len(self.keys), len(self.inputs)) <= compiled.MOST:
            log_weights = rows.log_weights_of_pixels(), columns.log_weights_of_pixels()
            starts, ridge = (rows.starts, columns.starts), self.ridge.to(self.outputs)
            planes = [plane for image in images for plane in image]
            return compiled.local_regression(coarse, planes, log_weights, starts, ridge, self.inputs_of, len(self.keys))
        pixels = torch.cat(list(images))
        fine = _in_cells(self._with_lengths(pixels), columns, 2)
        column_places = columns.owned(slice(0, width))
        # (a, s_y, i), (b, s_x, j) -> (a, s K), (b, s K), whose sums are long rows.
        whole = rows.most, columns.most, 2 * RADIUS + 1, 2 * RADIUS + 1
        above = rows.log_weights[:, :, None, :, None].expand(-1, *whole).flatten(1)
        beside = columns.log_weights[:, None, :, None, :].expand(-1, *whole).flatten(1)
        predicted, top = pixels.new_empty(len(self.outputs), *pixels.shape[1:]), 0
        for part in self._chunks(height, width * rows.most * columns.most):
            spatial = (above[part, None] + beside).view(-1, width, rows.most * columns.most, (2 * RADIUS + 1) ** 2)
            members = _in_cells(fine, rows, 1, part).reshape(len(fine), -1, rows.most, width, columns.most)
            members = members.permute(1, 3, 2, 4, 0).flatten(2, 3)
            neighbours = _squares(coarse, range(height)[part], range(width))
            cells = self._regress(neighbours, members, spatial)
            # (G p, a, s_y, b, s_x)
            grid = cells.view(*cells.shape[:2], rows.most, columns.most, -1).permute(4, 0, 2, 1, 3)
            grid = _selected(grid.flatten(1, 2), rows.owned(part), 1).flatten(2)
            predicted[:, top : top + grid.shape[1]] = _selected(grid, column_places, 2)
            top += grid.shape[1]
        return predicted

    def predict_left_out(self, rows: range, columns: range) -> Tensor:
        """Predict these coarse pixels, each from its neighbours alone: (G p, rows, columns)."""
        height, width = self.keys.shape[1:]
        offsets = torch.arange(-RADIUS, RADIUS + 1)
        near = -0.5 * (offsets / WIDTH) ** 2
        near = (near[:, None] + near).flatten()
        near[len(near) // 2] = OUTSIDE
        y, x = (torch.tensor(places)[:, None] + offsets for places in (rows, columns))
        inside_y, inside_x = (y >= 0) & (y < height), (x >= 0) & (x < width)
        spatial = torch.where((inside_y[:, None, :, None] & inside_x[None, :, None, :]).flatten(2), near, OUTSIDE)
        pixels = torch.cat([self.keys, torch.zeros(2, height, width), self.inputs])
        pixels = pixels[:, rows.start : rows.stop : rows.step, columns.start : columns.stop : columns.step]
        pixels = self._with_lengths(pixels).permute(1, 2, 0)[:, :, None]
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
        """(h + border, w + border, F): everything about a neighbour, the edge repeated around the image."""
        rows, columns = self._lower
        products = self.inputs[rows] * self.inputs[columns]
        own = RIDGE_OF_NEIGHBOURHOOD * self.inputs.square().mean(0, keepdim=True)
        lengths, one = self.keys.square().sum(0, keepdim=True), torch.ones_like(own)
        # So ordered that distances and moments are products with some channels that follow each other.
        image = torch.cat([self.keys, one, lengths, self.log_weight, self.inputs, products, own, one, self.outputs])
        return pad(image[None], (RADIUS, RADIUS, RADIUS, RADIUS), mode="replicate")[0].permute(1, 2, 0).contiguous()

    def _with_lengths(self, pixels: Tensor) -> Tensor:
        """(Q + 4 + B, H, W): keys whose product with those of `_coarse` is 1 + |key_k - key|^2, and the rest."""
        keys, others = pixels[: len(self.keys)], pixels[len(self.keys) :]
        lengths = keys.square().sum(0, keepdim=True) + 1
        return torch.cat([-2 * keys, lengths, torch.ones_like(lengths), others])

    def _chunks(self, height: int, pixels_of_row: int) -> Iterator[slice]:
        """Coarse rows that are worked on together."""
        per_pixel = 3 * (2 * RADIUS + 1) ** 2 + 2 * len(self.inputs) ** 2 + len(self.outputs)
        step = max(1, NUMBERS_AT_ONCE // (pixels_of_row * per_pixel))
        for first in range(0, height, step):
            yield slice(first, min(first + step, height))

    def _regress(self, neighbours: Tensor, pixels: Tensor, spatial: Tensor) -> Tensor:
        """neighbours (a, b, K, F), pixels (a, b, s, Q + 4 + B), log weights (a, b, s, K) -> (a, b, s, G p)."""
        bands, size = len(self.inputs), len(self.keys) + 2
        sizes = [size, 1, bands, len(self._lower[0]) + 2, len(self.outputs)]
        keys, log_weight, inputs, products, outputs = torch.split(neighbours, sizes, dim=-1)
        queries, nearness, ridge, detail = torch.split(pixels, [size, 1, 1, bands], dim=-1)
        distance = (queries @ keys.mT).clamp_min_(1)
        # Their sum is 1 before the distance counts, so that no sum of weights vanishes.
        weights = torch.softmax(torch.addcmul(log_weight.mT, spatial, nearness.exp()), dim=-1) / distance
        # The sum of weights is the last of the moments, each of which is a plane for all pixels.
        *moments, total = (products.mT @ weights.mT).permute(2, 0, 1, 3).contiguous()
        share = total.reciprocal()
        system = self._system([moment * share for moment in moments], ridge[..., 0].exp())
        right = (detail * share[..., None]).permute(3, 0, 1, 2).contiguous()
        parts = []
        for count, group in zip(self.inputs_of, outputs.chunk(len(self.inputs_of), dim=-1), strict=True):
            direction = solve_lower(system[:count], list(right[:count]))
            parts.append((torch.stack(direction, dim=-1) @ inputs[..., :count].mT).mul_(weights) @ group)
        return torch.cat(parts, dim=-1)

    def _system(self, moments: list[Tensor], ridge: Tensor) -> list[list[Tensor]]:
        """Rows of the lower triangle: B (B + 1) / 2 + 1 second moments (a, b, s) of the inputs, with the ridge."""
        *entries, own = moments
        lower: list[list[Tensor]] = [[] for _ in self.inputs]
        for entry, row, column in zip(entries, *self._lower, strict=True):
            held = entry + self.ridge[row, column] * ridge if bool(self.ridge[row, column] != 0) else entry
            lower[row].append(held + own if row == column else held)
        return lower


@dataclass(frozen=True)
class CellAxis:
    """Which fine pixels lie in which coarse cell along one axis, and how near each is to the cell's neighbours.

    Cells of a fractional scale hold unequal numbers of pixels; short ones repeat their last pixel, which `owned` skips.
    """

    members: Tensor  # (cells, most pixels in a cell), fine indices
    log_weights: Tensor  # (cells, most pixels, 2 RADIUS + 1)
    cell_of: Tensor  # (fine,)

    @property
    def most(self) -> int:
        return self.members.shape[1]

    @classmethod
    def of(cls, coarse: int, fine: int, axis: AxisPlacement, like: Tensor) -> CellAxis:
        positions = fine_positions(axis, fine)
        cell_of = positions.round().clamp(0, coarse - 1).long()
        starts = torch.searchsorted(cell_of, torch.arange(coarse + 1))
        last = (starts[1:, None] - 1).clamp_min(0)
        members = (starts[:-1, None] + torch.arange(int(starts.diff().max()))).minimum(last).clamp(0, fine - 1)
        neighbours = torch.arange(coarse)[:, None, None] + torch.arange(-RADIUS, RADIUS + 1)
        inside = (neighbours >= 0) & (neighbours < coarse)
        distance = (neighbours - positions[members][:, :, None]).abs()
        # Pixels far outside the coarse image must still see its edge.
        nearest = distance.masked_fill(~inside, torch.inf).amin(2, keepdim=True)
        # Rounded as weights, not as logs, like when the network was trained: `universal` amplifies rounding errors.
        weights = torch.exp(-0.5 * ((distance - nearest.sub(0.5).clamp_min(0)) / WIDTH) ** 2).to(like)
        return cls(members, torch.where(inside, weights.log(), OUTSIDE), cell_of)

    @property
    def starts(self) -> Tensor:
        """(cells + 1,): the first fine pixel of every cell."""
        return torch.searchsorted(self.cell_of, torch.arange(len(self.members) + 1))

    def log_weights_of_pixels(self) -> Tensor:
        """(fine, 2 RADIUS + 1)"""
        return self.log_weights.flatten(0, 1)[self.owned(slice(0, len(self.members)))]

    def owned(self, cells: slice) -> Tensor:
        """Where each fine pixel of these cells stands among their flattened members."""
        fine = ((self.cell_of >= cells.start) & (self.cell_of < cells.stop)).nonzero()[:, 0]
        cell = self.cell_of[fine]
        places: Tensor = (cell - cells.start) * self.most + fine - self.members[cell, 0]
        return places


def _squares(coarse: Tensor, rows: range, columns: range) -> Tensor:
    """(rows, columns, K, F): the square of neighbours around each of these coarse pixels."""
    side = 2 * RADIUS + 1
    part = coarse[rows.start : rows[-1] + side, columns.start : columns[-1] + side]
    near = part.unfold(0, side, rows.step).unfold(1, side, columns.step)
    return near.permute(0, 1, 3, 4, 2).flatten(2, 3)


def _in_cells(image: Tensor, axis: CellAxis, dim: int, cells: slice = slice(None)) -> Tensor:
    """The members of these cells, cell after cell; at a whole scale a view of the image."""
    return _selected(image, axis.members[cells].flatten(), dim)


def _selected(image: Tensor, indices: Tensor, dim: int) -> Tensor:
    """`index_select`, but a view where the indices follow each other."""
    in_order = int(indices[-1] - indices[0]) + 1 == len(indices) and bool((indices.diff() == 1).all())
    return image.narrow(dim, int(indices[0]), len(indices)) if in_order else image.index_select(dim, indices)
