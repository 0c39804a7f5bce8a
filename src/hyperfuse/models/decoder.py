"""The implicit decoder: features at any fine position from two codes (paper section 3.3).

Shapes: B batch, D code features, F decoded features, N hidden features, h w coarse, H W fine, r fine rows of one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hyperfuse.physics.resample import NeighbourPair, Placement, fine_positions, neighbour_pair

_CHUNK_BYTES_ON_CPU = 8 * 2**20
_CHUNK_BYTES_ELSEWHERE = 1024 * 2**20
NEIGHBOURS = 4


class ImplicitDecoder(nn.Module):
    """Decode features at fine pixels from the coarse spectral code around them and the fine spatial code at them.

    Every fine pixel p evaluates one MLP for each of its four coarse neighbours q, eq. (7), and takes the mean weighted
    by the predicted weights, eq. (9):

        candidate_q, weight_q = MLP(spectral_code(q), spatial_code(p), p - q, cell)
        features(p) = sum_q softmax(weight)_q candidate_q

    This is computed exactly, with about two thirds of the multiplications of the direct form:

    - the first layer is linear before its ReLU, so it is split: its spectral part runs once per coarse pixel, its
      spatial part once per fine pixel instead of four times, its offset part once per row and once per column;
    - the last layer is linear, so it commutes with the weighted mean and runs once per fine pixel; only its weight
      output runs four times;
    - neighbours are taken as whole rows, then whole columns, so that the backward pass adds slices and never scatters
      single elements;
    - fine rows are decoded in chunks that stay in the cache.

    References
    ----------
    .. [1] Y.-J. Liang et al., "Hyperspectral image fusion with spectral-band and fusion-scale agnosticism", 2026,
       section 3.3.
    .. [2] Y. Chen, S. Liu, X. Wang, "Learning continuous image representation with local implicit image function",
       CVPR 2021.

    Examples
    --------
    >>> from hyperfuse.physics.resample import shared_edges
    >>> decoder = ImplicitDecoder(code_width=4, hidden_widths=(8, 8), feature_width=6)
    >>> features = decoder(torch.rand(1, 4, 5, 5), torch.rand(1, 4, 16, 16), shared_edges((16, 16), (5, 5)))
    >>> tuple(features.shape)
    (1, 6, 16, 16)
    """

    def __init__(self, code_width: int, hidden_widths: Sequence[int], feature_width: int) -> None:
        super().__init__()
        self.code_width = code_width
        # Input order: spectral code, spatial code, offset (row, column), cell (row, column). Output order: features,
        # weight.
        widths = [2 * code_width + 4, *hidden_widths, feature_width + 1]
        self.first, *middle, self.last = (nn.Linear(a, b) for a, b in pairwise(widths))
        self.middle = nn.ModuleList(middle)
        self.widest = max(widths[1:])
        self.queries_per_chunk: int | None = None

    def forward(self, spectral_code: Tensor, spatial_code: Tensor, placement: Placement) -> Tensor:
        """(B, D, h, w) spectral and (B, D, H, W) spatial code -> (B, F, H, W)."""
        coarse_part = self._coarse_part(spectral_code, placement)
        rows, columns = neighbours_of_queries(spectral_code, spatial_code, placement)
        spatial_rows = spatial_code.permute(0, 2, 3, 1)
        chunk = self._rows_per_chunk(spatial_rows)
        if chunk is None:
            return self._decode_rows(coarse_part, spatial_rows, rows, columns).permute(0, 3, 1, 2)
        # `split`, unlike slices, has a backward pass that joins the pieces once.
        pieces = [
            self._decode_rows(coarse_part, piece, rows.between(number * chunk, (number + 1) * chunk), columns)
            for number, piece in enumerate(torch.split(spatial_rows, chunk, dim=1))
        ]
        return torch.cat(pieces, dim=1).permute(0, 3, 1, 2)

    def _decode_rows(
        self, coarse_part: Tensor, spatial_rows: Tensor, rows: NeighbourPair, columns: NeighbourPair
    ) -> Tensor:
        """(B, h, w, N) coarse part and (B, r, W, D) spatial code -> (B, r, W, F)."""
        hidden = self._first_layer(coarse_part, spatial_rows, rows, columns)
        for layer in self.middle:
            hidden = F.relu(layer(hidden), inplace=True)
        logits = F.linear(hidden, self.last.weight[-1:], self.last.bias[-1:])
        weights = torch.softmax(torch.stack(_four(logits)), dim=0).to(hidden.dtype)
        first, *others = _four(hidden)
        mean = weights[0] * first
        for weight, candidate in zip(weights[1:], others, strict=True):
            mean = torch.addcmul(mean, weight, candidate)
        return F.linear(mean, self.last.weight[:-1], self.last.bias[:-1])

    def _first_layer(
        self, coarse_part: Tensor, spatial_rows: Tensor, rows: NeighbourPair, columns: NeighbourPair
    ) -> Tensor:
        """The first layer and its ReLU for all four neighbours, (B, 2, r, 2, W, N)."""
        _, spatial, row_offset, column_offset, _ = self._first_weight()
        batch, _, coarse_columns, width = coarse_part.shape
        row_count, column_count = spatial_rows.shape[1], spatial_rows.shape[2]

        neighbour_rows = coarse_part.index_select(1, rows.indices.flatten())
        neighbour_rows = neighbour_rows.view(batch, 2 * row_count, coarse_columns, width)
        neighbour_rows = neighbour_rows + _outer(rows.offsets.flatten(), row_offset, like=coarse_part)[:, None, :]
        neighbours = neighbour_rows.index_select(2, columns.indices.flatten())
        neighbours = neighbours.view(batch, 2, row_count, 2, column_count, width)

        column_part = _outer(columns.offsets, column_offset, like=coarse_part)
        fine_part = F.linear(spatial_rows, spatial)[:, :, None] + column_part
        return F.relu(neighbours.add_(fine_part[:, None]), inplace=True)

    def _coarse_part(self, spectral_code: Tensor, placement: Placement) -> Tensor:
        """The first layer's part of the spectral code, the cell and the bias, once per coarse pixel: (B, h, w, N)."""
        spectral, _, _, _, cell = self._first_weight()
        cell_size = torch.tensor([placement.rows.step, placement.columns.step], dtype=cell.dtype, device=cell.device)
        constant = self.first.bias + (cell * cell_size).sum(dim=1)
        return F.linear(spectral_code.permute(0, 2, 3, 1), spectral, constant)

    def _first_weight(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Its columns: spectral (N, D), spatial (N, D), row offset (N,), column offset (N,), cell (N, 2)."""
        parts = torch.split(self.first.weight, [self.code_width, self.code_width, 1, 1, 2], dim=1)
        spectral, spatial, row_offset, column_offset, cell = parts
        return spectral, spatial, row_offset[:, 0], column_offset[:, 0], cell

    def _rows_per_chunk(self, spatial_rows: Tensor) -> int | None:
        """How many fine rows are decoded together; None for all of them."""
        queries = self.queries_per_chunk
        if queries is None:
            # An exported file must not depend on the size, and a compiler would unroll the loop over the chunks.
            if torch.compiler.is_compiling() or spatial_rows.is_meta:
                return None
            budget = _CHUNK_BYTES_ON_CPU if spatial_rows.device.type == "cpu" else _CHUNK_BYTES_ELSEWHERE
            queries = budget // (NEIGHBOURS * 4 * self.widest)
        return max(1, queries // (spatial_rows.shape[0] * spatial_rows.shape[2]))


def neighbours_of_queries(
    spectral_code: Tensor, spatial_code: Tensor, placement: Placement
) -> tuple[NeighbourPair, NeighbourPair]:
    """Find the two coarse rows and the two coarse columns around every fine pixel: together the four neighbours."""
    rows = fine_positions(placement.rows, spatial_code.shape[2])
    columns = fine_positions(placement.columns, spatial_code.shape[3])
    return (
        neighbour_pair(rows, spectral_code.shape[2], spectral_code.device),
        neighbour_pair(columns, spectral_code.shape[3], spectral_code.device),
    )


def _four(candidates: Tensor) -> list[Tensor]:
    """(B, 2, r, 2, W, N) -> four views (B, r, W, N), one for each neighbour."""
    return [each for two in candidates.unbind(dim=1) for each in two.unbind(dim=2)]


def _outer(offsets: Tensor, weight: Tensor, *, like: Tensor) -> Tensor:
    """(..., ) offsets times (N,) weight -> (..., N)."""
    return (offsets[..., None] * weight).to(like.dtype)
