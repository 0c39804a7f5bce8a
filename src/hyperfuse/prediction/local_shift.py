"""Where the HSI looks, place by place: the shift of the whole scene, refined on windows spread over it, read one at a time.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from hyperfuse.estimation.observation import Observation
from hyperfuse.estimation.offset_field import OffsetField, WindowOffset, constant_field, fit_offset_field
from hyperfuse.estimation.registration import Block, register
from hyperfuse.estimation.sampling import MARGIN_OF_BLOCK, PairSamples
from hyperfuse.prediction.aligned_pair import AlignedPair
from hyperfuse.prediction.straightening import find_straightening
from hyperfuse.progress import progress

WINDOW = 16  # coarse pixels along each side
MOST_WINDOWS = 12  # along each side of the scene
FEWEST_PIXELS = 60
# A window shows the offset as it is on average over it; once the HSI is straightened by that, it shows what is left.
MOST_PASSES = 3
SETTLED = 0.05  # root mean square, fine pixels


def estimate_offset_field(pair: AlignedPair, observation: Observation) -> OffsetField:
    """`observation` tells the shift of the whole scene, around which windows are searched, its response and point spread."""
    places = [(rows, columns) for rows in _spans(pair.coarse_shape[1]) for columns in _spans(pair.coarse_shape[2])]
    fine_size, start = (pair.fine_shape[1], pair.fine_shape[2]), observation.misregistration
    field, looked_at = constant_field(fine_size, start, (0.0, 0.0)), pair
    with progress("Local shifts", MOST_PASSES * len(places)) as advance:
        for _ in range(MOST_PASSES):
            windows = []
            for rows, columns in places:
                windows.append(_window_offset(looked_at, observation, rows, columns, field))
                advance(1)
            before = field
            field = fit_offset_field([window for window in windows if window is not None], fine_size, start)
            if field.difference(before) < SETTLED:
                break
            looked_at = find_straightening(pair, observation, field).straightened(pair)
    return field


def _spans(size: int) -> list[slice]:
    """Windows along one axis: half overlapping, or more where that makes only two; spread out where there is room for many."""
    side = min(size, WINDOW)
    count = max(3 if size >= 1.5 * side else 1, min(MOST_WINDOWS, round(2 * (size - side) / side) + 1))
    starts = [round(index * (size - side) / max(1, count - 1)) for index in range(count)]
    return [slice(start, start + side) for start in starts]


def _window_offset(
    pair: AlignedPair, observation: Observation, rows: slice, columns: slice, removed: OffsetField
) -> WindowOffset | None:
    """The offset of one window; what was removed from the pair already is added again. None where too little is known."""
    block = _block(pair, observation, rows, columns)
    if block is None:
        return None
    found = register([block], observation.scale, observation.sigma, (0.0, 0.0), sigma_known=True)
    usable = block.usable.numpy()
    place = [
        float((np.flatnonzero(usable.any(axis=1 - axis)).mean() + span.start + 0.5) * scale - 0.5 + shift)
        for axis, (span, scale, shift) in enumerate(zip((rows, columns), pair.scale, pair.grid_shift, strict=True))
    ]
    base = removed.at(*(np.array([axis]) for axis in place))[:, 0]
    return WindowOffset(
        place=(place[0], place[1]),
        offset=(float(base[0]) + found.shift[0], float(base[1]) + found.shift[1]),
        error=found.shift_error,
        explained=found.explained,
    )


def _block(pair: AlignedPair, observation: Observation, rows: slice, columns: slice) -> Block | None:
    """The HSI as the MSI's bands would show it, which needs no regression on many bands in few pixels, beside the MSI itself."""
    fine = [
        slice(
            max(0, math.floor((span.start - MARGIN_OF_BLOCK) * scale + shift)),
            min(size, math.ceil((span.stop + MARGIN_OF_BLOCK) * scale + shift)),
        )
        for span, scale, shift, size in zip((rows, columns), pair.scale, observation.shift, pair.fine_shape[1:], strict=True)
    ]
    if any(part.stop - part.start < 2 for part in fine):
        return None
    spectra = torch.from_numpy(pair.hsi_values(rows, columns)[pair.usable_bands])
    hsi = torch.einsum("mc,cyx->myx", observation.response.to(spectra), torch.nan_to_num(spectra))
    msi = torch.from_numpy(pair.msi_values(fine[0], fine[1]))
    local = observation.in_window((rows.start, columns.start), (fine[0].start, fine[1].start))
    samples = PairSamples(
        hsi=hsi,
        msi=torch.nan_to_num(msi),
        hsi_known=torch.isfinite(spectra[torch.isfinite(spectra).flatten(1).any(1)]).all(0),
        msi_known=torch.isfinite(msi).all(0),
        scale=observation.scale,
        shift=local.shift,
    )
    usable = samples.usable(observation.sigma)
    if int(usable.sum()) < FEWEST_PIXELS or not _is_textured(hsi[:, usable]) or not _is_textured(samples.msi.flatten(1)):
        return None
    return Block(samples.hsi, samples.msi, local.shift, usable)


def _is_textured(values: torch.Tensor) -> bool:
    """Whether any band varies at all, beyond rounding."""
    return bool((values.double().std(1) > 1e-6 * values.double().abs().mean(1) + 1e-30).any())
