"""The implicit decoder word for word from the equations of section 3.3, for counting, comparing and timing.

`ImplicitDecoder` is the same function in fewer multiplications.

B batch, D code features, F decoded features, h w coarse, H W fine.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hyperfuse.networks.implicit_decoder import ImplicitDecoder, neighbours_of_queries
from hyperfuse.networks.pixel_centres import Placement


def decode_plainly(decoder: ImplicitDecoder, spectral_code: Tensor, spatial_code: Tensor, placement: Placement) -> Tensor:
    """(B, F, H, W) features: the softmax-weighted mean of the four candidates."""
    candidates, weights = decode_candidates(decoder, spectral_code, spatial_code, placement)
    return (torch.softmax(weights, dim=0) * candidates).sum(dim=0)


def decode_candidates(
    decoder: ImplicitDecoder, spectral_code: Tensor, spatial_code: Tensor, placement: Placement
) -> tuple[Tensor, Tensor]:
    """The four candidates (4, B, F, H, W) and their weights before the softmax (4, B, 1, H, W)."""
    rows, columns = neighbours_of_queries(spectral_code, spatial_code, placement)
    batch, _, height, width = spatial_code.shape
    cell = torch.tensor([placement.rows.step, placement.columns.step], device=spatial_code.device)
    answers = []
    for row in range(2):
        for column in range(2):
            spectral = spectral_code[:, :, rows.indices[row][:, None], columns.indices[column][None, :]]
            offset = torch.stack(
                [
                    rows.offsets[row][:, None].expand(height, width),
                    columns.offsets[column][None, :].expand(height, width),
                ]
            ).expand(batch, 2, height, width)
            cells = cell[None, :, None, None].expand(batch, 2, height, width)
            question = torch.cat([spectral, spatial_code, offset, cells], dim=1)
            answers.append(_perceptron(decoder, question.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
    answer = torch.stack(answers)
    return answer[:, :, :-1], answer[:, :, -1:]


def _perceptron(decoder: ImplicitDecoder, question: Tensor) -> Tensor:
    hidden = question.reshape(-1, question.shape[-1])
    for layer in (decoder.first, *decoder.middle):
        hidden = F.relu(layer(hidden))
    answer: Tensor = decoder.last(hidden)
    return answer.view(*question.shape[:-1], -1)
