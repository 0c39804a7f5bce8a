"""Regression of hsi components on msi bands over neighbourhoods: the local statistics behind local FUSE and the denoising before it.

Shapes: p components, M msi bands, h w coarse, H W fine, K neighbours of a coarse pixel (a square), s pixels of a coarse cell.

All statistics are taken on the coarse grid, where the hsi and the blurred msi see the same thing, and applied to fine msi values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from hyperfuse.degradation.operators import separable
from hyperfuse.methods.pair_model import covariance, lifted, positive_part

REACH = 3  # neighbours to each side, in coarse pixels
WIDTH = 1.0  # standard deviation of the spatial weight, in coarse pixels
LIKENESS = 0.3  # msi distance at which a neighbour counts half, in standard deviations of the msi
RIDGE_OF_SCENE = 1e-3  # shrinkage of local slopes towards the scene's, in units of the scene's msi covariance
RIDGE_OF_NEIGHBOURHOOD = 5e-4  # the same in units of the neighbourhood's own msi variance
RIDGE = 2e-3  # the same in standard deviations of the msi; keeps flat neighbourhoods flat
DENOISING_WIDTH = 4.0
CHUNK_NUMBERS = 8_000_000  # floats of neighbour weights held at once


@dataclass(frozen=True)
class LocalRegression:
    """Components predicted from the msi: scene-wide slopes, plus per fine pixel a weighted regression over its coarse neighbourhood.

    A neighbour weighs by its distance and by the likeness of its msi value to the pixel's own, so neighbourhoods follow the image.
    """

    coarse_components: Tensor  # (p, h, w)
    coarse_msi: Tensor  # (M, h, w), mean 0
    msi_noise: Tensor  # (M, M)
    scale: tuple[float, float]
    shift: tuple[float, float]

    def predict(self, msi: Tensor) -> Tensor:
        """(M, H, W), with the same mean removed as from `coarse_msi` -> (p, H, W)."""
        scene = covariance(self.coarse_msi)
        crossed = self.coarse_msi.flatten(1).double() @ self.coarse_components.flatten(1).double().T
        slopes = torch.linalg.solve(lifted(scene + self.msi_noise, 1e-6), crossed / self.coarse_msi[0].numel()).T.to(msi)
        residual = self.coarse_components - _mix(slopes, self.coarse_msi)
        unit = float(scene.trace().clamp_min(1e-300)) ** -0.5
        ridge = unit**2 * (RIDGE_OF_SCENE * scene + self.msi_noise) + RIDGE**2 / len(scene) * torch.eye(len(scene))
        local = self._local_part(residual, self.coarse_msi * unit, msi * unit, ridge.to(msi))
        return local.add_(_mix(slopes, msi))

    def _local_part(self, residual: Tensor, coarse_msi: Tensor, msi: Tensor, ridge: Tensor) -> Tensor:
        height, width = residual.shape[1:]
        rows = CellAxis.of(height, msi.shape[1], self.scale[0], self.shift[0], msi)
        columns = CellAxis.of(width, msi.shape[2], self.scale[1], self.shift[1], msi)
        spectra = _neighbourhoods(torch.cat([coarse_msi, residual]))  # (h, w, K, M + p)
        per_row = width * rows.members.shape[1] * columns.members.shape[1] * spectra.shape[2]
        step = max(1, CHUNK_NUMBERS // per_row)
        predicted = torch.empty(len(residual), msi.shape[1], msi.shape[2], dtype=msi.dtype)
        for first in range(0, height, step):
            part = slice(first, first + step)
            spatial = torch.einsum("asi,btj->abstij", rows.weights[part], columns.weights).flatten(4).flatten(2, 3)
            pixels = msi[:, rows.members[part][:, None, :, None], columns.members[None, :, None, :]].flatten(3)  # (M, a, b, s)
            cells = _regress(spectra[part], pixels.permute(1, 2, 3, 0), spatial, ridge)  # (a, b, s, p)
            grid = cells.unflatten(2, (rows.members.shape[1], -1)).permute(4, 0, 2, 1, 3)
            fine_rows, sources = rows.owned(part)
            picked = grid.flatten(1, 2)[:, sources]
            predicted[:, fine_rows] = picked.flatten(2)[:, :, columns.owned(slice(0, width))[1]]
        return predicted


@dataclass(frozen=True)
class CellAxis:
    """Which fine pixels lie in which coarse cell along one axis, and how near each is to the cell's neighbours.

    Cells of a fractional scale hold unequal numbers of pixels; short ones repeat their last pixel, which `owned` leaves out.
    """

    members: Tensor  # (cells, most pixels in a cell), fine indices
    weights: Tensor  # (cells, most pixels, 2 REACH + 1), Gaussian in distance, 0 beyond the border
    cell_of: Tensor  # (fine,)

    @classmethod
    def of(cls, coarse: int, fine: int, scale: float, shift: float, like: Tensor) -> CellAxis:
        positions = (torch.arange(fine, dtype=torch.float64) + 0.5 - shift) / scale - 0.5
        cell_of = positions.round().clamp(0, coarse - 1).long()
        starts = torch.searchsorted(cell_of, torch.arange(coarse + 1))
        most = int((starts[1:] - starts[:-1]).max())
        members = (starts[:-1, None] + torch.arange(most)).minimum((starts[1:, None] - 1).clamp_min(0)).clamp(0, fine - 1)
        neighbours = torch.arange(coarse)[:, None, None] + torch.arange(-REACH, REACH + 1)
        inside = (neighbours >= 0) & (neighbours < coarse)
        distance = neighbours - positions[members][:, :, None]
        # Pixels far outside the coarse image must still see its edge.
        distance = distance.abs() - distance.abs().masked_fill(~inside, torch.inf).amin(2, keepdim=True).sub(0.5).clamp_min(0)
        weights = torch.exp(-0.5 * (distance / WIDTH) ** 2) * inside
        return cls(members, weights.to(like), cell_of)

    def owned(self, cells: slice) -> tuple[Tensor, Tensor]:
        """Fine indices of these cells, and where each stands among their flattened members."""
        first, most = cells.start, self.members.shape[1]
        last = min(cells.stop, len(self.members))
        fine = ((self.cell_of >= first) & (self.cell_of < last)).nonzero()[:, 0]
        rank = fine - self.members[self.cell_of[fine], 0]
        return fine, (self.cell_of[fine] - first) * most + rank


def _neighbourhoods(image: Tensor) -> Tensor:
    """(F, h, w) -> (h, w, K, F): the square of neighbours around every coarse pixel, the edge repeated beyond the border."""
    side = 2 * REACH + 1
    padded = pad(image[None], (REACH, REACH, REACH, REACH), mode="replicate")[0]
    return padded.unfold(1, side, 1).unfold(2, side, 1).flatten(3).permute(1, 2, 3, 0).contiguous()


def _regress(neighbours: Tensor, pixels: Tensor, spatial: Tensor, ridge: Tensor) -> Tensor:
    """Weighted ridge regression of components on msi, evaluated at each pixel's own msi value.

    neighbours (a, b, K, M + p), pixels (a, b, s, M), spatial (a, b, s, K) -> (a, b, s, p). Written through the equivalent kernel:
    the prediction is a weighted sum of the neighbours' components, with weights w_k (1 + v'(z_k - mean)), where the M x M system
    is solved once per pixel for v.
    """
    msi_bands = pixels.shape[-1]
    msi, components = neighbours[..., :msi_bands], neighbours[..., msi_bands:]
    distance = pixels.square().sum(-1, keepdim=True) + msi.square().sum(-1)[:, :, None] - 2 * pixels @ msi.mT
    weights = spatial / distance.clamp_min_(0).div_(LIKENESS**2).add_(1)
    weights /= weights.sum(-1, keepdim=True).clamp_min(1e-30)
    upper = torch.triu_indices(msi_bands, msi_bands)
    moments = weights @ torch.cat([msi, msi[..., upper[0]] * msi[..., upper[1]]], dim=-1)
    mean = moments[..., :msi_bands]
    spread = torch.empty(*mean.shape, msi_bands, dtype=mean.dtype)
    spread[..., upper[0], upper[1]] = spread[..., upper[1], upper[0]] = moments[..., msi_bands:]
    spread -= mean[..., :, None] * mean[..., None, :]
    own = RIDGE_OF_NEIGHBOURHOOD * spread.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(0)
    system = spread + ridge + own[..., None, None] * torch.eye(msi_bands, dtype=mean.dtype)
    direction = solve_small(system, pixels - mean)
    tilt = direction @ msi.mT
    tilt += 1 - (direction * mean).sum(-1, keepdim=True)
    return weights.mul_(tilt) @ components


def solve_small(system: Tensor, right: Tensor) -> Tensor:
    """Many symmetric positive systems (..., M, M) v = (..., M) at once: an LDL' factorisation unrolled over M, vectorised over the rest."""
    size = right.shape[-1]
    columns: list[list[Tensor]] = [[] for _ in range(size)]
    pivots: list[Tensor] = []
    for j in range(size):
        pivot = system[..., j, j]
        for k in range(j):
            pivot = pivot - columns[k][j - k - 1].square() * pivots[k]
        # Rounding may eat a tiny pivot; the ridge says how small a true one can be.
        pivots.append(pivot.maximum(1e-6 * system[..., j, j]).clamp_min(1e-30))
        for i in range(j + 1, size):
            entry = system[..., i, j]
            for k in range(j):
                entry = entry - columns[k][i - k - 1] * columns[k][j - k - 1] * pivots[k]
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


def denoised_coefficients(coefficients: Tensor, coarse_msi: Tensor, noise: Tensor) -> Tensor:
    """Hsi components (p, h, w) with the noise that their local regression on the msi exposes shrunk away (Wiener's matrix)."""
    predicted = _smooth_regression(coefficients.double(), coarse_msi.double())
    residual = coefficients.double() - predicted
    spread = covariance(residual)
    keep = torch.linalg.solve(lifted(spread + 1e-3 * noise), positive_part(spread - noise)).T
    return (predicted + _mix(keep, residual)).to(coefficients)


def _smooth_regression(components: Tensor, msi: Tensor) -> Tensor:
    """Components predicted from the msi by regressions under a wide Gaussian around every coarse pixel; coarse grid only."""
    size, bands = len(components), len(msi)
    rows, columns = (_gaussian_weights(length) for length in msi.shape[1:])
    products = torch.cat([msi, components, (msi[:, None] * msi).flatten(0, 1), (components[:, None] * msi).flatten(0, 1)])
    moments = separable(rows, columns, products)
    msi_mean, mean, squares, crossed = moments.split([bands, size, bands * bands, size * bands])
    spread = squares.unflatten(0, (bands, bands)) - msi_mean[:, None] * msi_mean
    crossed = crossed.unflatten(0, (size, bands)) - mean[:, None] * msi_mean
    scene = covariance(msi)
    own = 1e-3 * spread.diagonal(dim1=0, dim2=1).mean(-1)
    ridge = lifted(1e-3 * scene, 1e-3) + own[..., None, None] * torch.eye(bands)
    direction = solve_small(spread.permute(2, 3, 0, 1) + ridge, (msi - msi_mean).permute(1, 2, 0))
    return mean + torch.einsum("pmij,ijm->pij", crossed, direction)


def _gaussian_weights(length: int) -> Tensor:
    index = torch.arange(length, dtype=torch.float64)
    return torch.softmax(-0.5 * ((index[:, None] - index) / DENOISING_WIDTH) ** 2, dim=1)


def _mix(matrix: Tensor, image: Tensor) -> Tensor:
    return (matrix @ image.flatten(1)).unflatten(1, image.shape[1:])
