"""Local regression of hsi detail on msi detail: the prior of local FUSE.

Shapes: p components, M msi bands, h w coarse, H W fine, K neighbours of a coarse pixel (a square), s fine pixels of a
coarse cell.

Detail is what a grid's own interpolation cannot give back. On the coarse grid it is known for the hsi and for the msi
as the hsi's sensor sees it, so how one follows from the other can be learned there, neighbourhood by neighbourhood; on
the fine grid it is known for the msi only, and what was learned is applied to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse.methods.pair_model import diagonally_loaded, scene_covariance_and_count
from hyperfuse.methods.scene_stats import SceneComputation, in_one_pass, scene_moments
from hyperfuse.methods.window import Window
from hyperfuse.physics.operators import mix_bands
from hyperfuse.physics.resample import AxisPlacement, fine_positions

REACH = 3  # neighbours to each side, in coarse pixels
WIDTH = 1.5  # standard deviation of the spatial weight, in coarse pixels
LIKENESS = 0.3  # msi distance at which a neighbour counts half, in standard deviations of the msi
RIDGE_OF_SCENE = 0.03  # shrinkage of local slopes towards the scene's, in units of the scene's covariance of msi detail
FEW_PIXELS = 100  # in a scene of so few coarse pixels it is doubled, and grows fast below
RIDGE_OF_NEIGHBOURHOOD = 1e-3  # the same in units of the neighbourhood's own variance
# Detail on the fine grid has about this many times the variance of detail on the coarse one; noise matters that much
# less.
FINE_DETAIL_GAIN = 5.0
CHUNK_NUMBERS = 2_000_000  # floats held at once, about


@dataclass(frozen=True)
class LocalRegression:
    """Learned on the coarse grid: components of detail (p, h, w) from msi detail (M, h, w), weighted by likeness of the
    msi itself.

    The prediction is linear in the fine msi detail: slopes of the whole scene plus, per fine pixel, a weighted ridge
    regression of what these leave over the pixel's coarse neighbourhood. A neighbour weighs by its distance and by the
    likeness of its msi value to the pixel's own, so neighbourhoods follow the image.
    """

    detail: Tensor  # (p, h, w)
    msi_detail: Tensor  # (M, h, w)
    msi: Tensor  # (M, h, w)
    msi_noise: Tensor  # (M, M)
    scale: tuple[float, float]
    shift: tuple[float, float]

    def predict(self, fine_detail: Tensor, fine_msi: Tensor, window: Window) -> SceneComputation[Tensor]:
        """(M, H, W) twice -> (p, H, W)."""
        bands = len(self.msi_detail)
        noise = self.msi_noise / FINE_DETAIL_GAIN
        (moments, pixels), (_, msi_spread) = yield from in_one_pass(
            scene_covariance_and_count(lambda: window.coarse(torch.cat([self.msi_detail, self.detail]))),
            scene_moments(window.coarse(self.msi)),
        )
        spread, crossed = moments[:bands, :bands], moments[:bands, bands:]
        slopes = torch.linalg.solve(diagonally_loaded(spread + noise, 1e-6), crossed).T.to(fine_detail)
        left = self.detail - mix_bands(slopes, self.msi_detail)
        unit, msi_unit = _unit(spread), _unit(msi_spread)
        shrinkage = RIDGE_OF_SCENE * (1 + (FEW_PIXELS / pixels) ** 2)
        ridge = diagonally_loaded(unit**2 * (shrinkage * spread + noise), 1e-6).to(fine_detail) + 1e-8 * torch.eye(
            bands
        )
        learned = _Neighbourhoods(left, self.msi_detail * unit, self.msi * msi_unit, ridge, self.scale, self.shift)
        return learned.predict(fine_detail * unit, fine_msi * msi_unit).add_(mix_bands(slopes, fine_detail))


@dataclass(frozen=True)
class _Neighbourhoods:
    detail: Tensor
    msi_detail: Tensor
    msi: Tensor
    ridge: Tensor
    scale: tuple[float, float]
    shift: tuple[float, float]

    def predict(self, fine_detail: Tensor, fine_msi: Tensor) -> Tensor:
        height, width = self.detail.shape[1:]
        rows = CellAxis.of(height, fine_msi.shape[1], self.scale[0], self.shift[0], fine_msi)
        columns = CellAxis.of(width, fine_msi.shape[2], self.scale[1], self.shift[1], fine_msi)
        coarse = torch.cat([self.msi, self.msi_detail, self.detail])
        fine = torch.cat([fine_msi, fine_detail])
        neighbours_of_cell, pixels_of_cell, bands = (2 * REACH + 1) ** 2, rows.most * columns.most, len(self.msi)
        numbers_of_cell = neighbours_of_cell * len(coarse) + pixels_of_cell * (neighbours_of_cell + 2 * bands**2)
        step = max(1, CHUNK_NUMBERS // (width * numbers_of_cell))
        predicted = torch.empty(len(self.detail), *fine_msi.shape[1:], dtype=fine.dtype)
        column_places = columns.owned(slice(0, width))[1]
        for first in range(0, height, step):
            part = slice(first, min(first + step, height))
            neighbours = _squares(coarse, part)
            spatial = torch.einsum("asi,btj->abstij", rows.weights[part], columns.weights).flatten(4).flatten(2, 3)
            pixels = (
                fine[:, rows.members[part][:, None, :, None], columns.members[None, :, None, :]]
                .flatten(3)
                .permute(1, 2, 3, 0)
            )
            cells = _regress(neighbours, pixels, spatial, self.ridge)
            grid = cells.reshape(*cells.shape[:2], rows.most, columns.most, -1).permute(
                4, 0, 2, 1, 3
            )  # (p, a, s_y, b, s_x)
            fine_rows, places = rows.owned(part)
            predicted[:, fine_rows] = grid.flatten(1, 2)[:, places].flatten(2)[:, :, column_places]
        return predicted


@dataclass(frozen=True)
class CellAxis:
    """Which fine pixels lie in which coarse cell along one axis, and how near each is to the cell's neighbours.

    Cells of a fractional scale hold unequal numbers of pixels; short ones repeat their last pixel, which `owned` leaves
    out.
    """

    members: Tensor  # (cells, most pixels in a cell), fine indices
    weights: Tensor  # (cells, most pixels, 2 REACH + 1), Gaussian in distance, 0 beyond the border
    cell_of: Tensor  # (fine,)

    @property
    def most(self) -> int:
        return self.members.shape[1]

    @classmethod
    def of(cls, coarse: int, fine: int, scale: float, shift: float, like: Tensor) -> CellAxis:
        positions = fine_positions(AxisPlacement.from_scale(scale, shift), fine)
        cell_of = positions.round().clamp(0, coarse - 1).long()
        starts = torch.searchsorted(cell_of, torch.arange(coarse + 1))
        most = int((starts[1:] - starts[:-1]).max())
        members = (
            (starts[:-1, None] + torch.arange(most)).minimum((starts[1:, None] - 1).clamp_min(0)).clamp(0, fine - 1)
        )
        neighbours = torch.arange(coarse)[:, None, None] + torch.arange(-REACH, REACH + 1)
        inside = (neighbours >= 0) & (neighbours < coarse)
        distance = neighbours - positions[members][:, :, None]
        # Pixels far outside the coarse image must still see its edge.
        distance = distance.abs() - distance.abs().masked_fill(~inside, torch.inf).amin(2, keepdim=True).sub(
            0.5
        ).clamp_min(0)
        weights = torch.exp(-0.5 * (distance / WIDTH) ** 2) * inside
        return cls(members, weights.to(like), cell_of)

    def owned(self, cells: slice) -> tuple[Tensor, Tensor]:
        """Fine indices of these cells, and where each stands among their flattened members."""
        fine = ((self.cell_of >= cells.start) & (self.cell_of < cells.stop)).nonzero()[:, 0]
        rank = fine - self.members[self.cell_of[fine], 0]
        return fine, (self.cell_of[fine] - cells.start) * self.most + rank


def _squares(image: Tensor, rows: slice) -> Tensor:
    """(F, h, w) -> (rows, w, K, F): the square of neighbours around every coarse pixel, the edge repeated beyond the
    border.
    """
    side = 2 * REACH + 1
    padded = pad(image[None], (REACH, REACH, REACH, REACH), mode="replicate")[0, :, rows.start : rows.stop + 2 * REACH]
    return padded.unfold(1, side, 1).unfold(2, side, 1).permute(1, 2, 3, 4, 0).flatten(2, 3)


def _regress(neighbours: Tensor, pixels: Tensor, spatial: Tensor, ridge: Tensor) -> Tensor:
    """Weighted ridge regression through the origin, evaluated at each pixel's own msi detail.

    neighbours (a, b, K, M + M + p): msi, msi detail, detail; pixels (a, b, s, M + M); spatial (a, b, s, K) -> (a, b, s,
    p). Written through the equivalent kernel: the M x M system is solved once per pixel for v, and the prediction is
    the sum over neighbours of their detail with weights w_k v'd_k.
    """
    bands = ridge.shape[0]
    msi, inputs, outputs = neighbours[..., :bands], neighbours[..., bands : 2 * bands], neighbours[..., 2 * bands :]
    own, detail = pixels[..., :bands], pixels[..., bands:]
    lengths = own.square().sum(-1, keepdim=True) + msi.square().sum(-1)[:, :, None]
    distance = torch.baddbmm(lengths.flatten(0, 1), own.flatten(0, 1), msi.mT.flatten(0, 1), alpha=-2).view_as(spatial)
    weights = spatial / distance.clamp_min_(0).div_(LIKENESS**2).add_(1)
    weights /= weights.sum(-1, keepdim=True).clamp_min_(1e-30)
    upper = torch.triu_indices(bands, bands)
    moments = weights @ (inputs[..., upper[0]] * inputs[..., upper[1]])
    spread = torch.empty(*detail.shape, bands, dtype=detail.dtype)
    spread[..., upper[0], upper[1]] = spread[..., upper[1], upper[0]] = moments
    shrinkage = RIDGE_OF_NEIGHBOURHOOD * spread.diagonal(dim1=-2, dim2=-1).mean(-1)
    spread += ridge + shrinkage[..., None, None] * torch.eye(bands, dtype=detail.dtype)
    direction = solve_small(spread, detail)
    predicted: Tensor = weights.mul_(direction @ inputs.mT) @ outputs
    return predicted


def _unit(spread: Tensor) -> float:
    """One over the standard deviation of all bands together."""
    return 1 / math.sqrt(max(1e-30, float(spread.trace())))


def solve_small(system: Tensor, right: Tensor) -> Tensor:
    """Many symmetric positive systems (..., M, M) v = (..., M) at once."""
    return solve_lower([list(row.unbind(-1)) for row in system.unbind(-2)], right)


def solve_lower(lower: list[list[Tensor]], right: Tensor) -> Tensor:
    """The same where `lower[i][j]`, j <= i, is given, each (...): LDL' unrolled over M, vectorised over the rest."""
    size = right.shape[-1]
    columns: list[list[Tensor]] = [[] for _ in range(size)]
    scaled: list[list[Tensor]] = [[] for _ in range(size)]  # the same times their pivot
    pivots: list[Tensor] = []
    for j in range(size):
        pivot = lower[j][j]
        for k in range(j):
            pivot = pivot - columns[k][j - k - 1] * scaled[k][j - k - 1]
        # Rounding may eat a tiny pivot; the ridge says how small a true one can be.
        pivots.append(pivot.maximum(1e-6 * lower[j][j]).clamp_min(1e-30))
        for i in range(j + 1, size):
            entry = lower[i][j]
            for k in range(j):
                entry = entry - columns[k][i - k - 1] * scaled[k][j - k - 1]
            scaled[j].append(entry)
            columns[j].append(entry / pivots[j])
    solution = list(right.unbind(-1))
    for j in range(size):
        for i in range(j + 1, size):
            solution[i] = solution[i] - columns[j][i - j - 1] * solution[j]
    solution = [value / pivot for value, pivot in zip(solution, pivots, strict=True)]
    for j in reversed(range(size)):
        for i in range(j + 1, size):
            solution[j] = solution[j] - columns[j][i - j - 1] * solution[i]
    return torch.stack(solution, dim=-1)
