"""Representative windows of a pair that is too large to be read at once.

The estimation, the choice of a method and the statistics of the scene are computed from them.
Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.fusion.engine import WindowPlace, place_for, read_window
from hyperfuse.fusion.pair import AlignedPair
from hyperfuse.methods.window import EVERYWHERE, Place, Window
from hyperfuse.physics.observation import Observation, default_sigma
from hyperfuse.physics.register import Block
from hyperfuse.physics.sampling import (
    MARGINS,
    MOST_BLOCKS,
    SPREAD_WHOLE_FINE_PIXELS,
    PairSamples,
    block_places,
    block_surroundings,
    estimate_noise,
    inside_fine_image,
    spread_places,
)

Candidate = TypeVar("Candidate")

# Bands that are read to find out whether a window holds data and texture.
INSPECTED_BANDS = 12
ENOUGH_KNOWN = 0.3
# Windows for the statistics: sides of their cores in coarse pixels, and how many coarse pixels all cores have together,
# or at most fine ones.
CORE_SIDES = (48, 32, 24, 16, 12, 8)
SAMPLED_COARSE_PIXELS, MOST_SAMPLED_FINE_PIXELS = 24_000, 600_000
FEWEST_WINDOWS = 9
# Windows that are looked at for each that is needed: some hold no data.
MOST_TRIED = 4
# Where to search for data: centres of windows as shares of height and width.
CORNERS = ((0.25, 0.25), (0.75, 0.75), (0.25, 0.75), (0.75, 0.25))
MIDDLE_FIRST = ((0.5, 0.5), *CORNERS, (0.5, 0.1), (0.5, 0.9), (0.1, 0.5), (0.9, 0.5))
SMALLEST_NOISE_SIDE, LARGEST_NOISE_SIDE = 64, 512
NOISE_COPIES = 7  # second differences in double precision and what is left of them
# For the noise of one image. Not what is available: the estimate must not depend on the machine.
NOISE_BYTES = 128_000_000


def sample_places(
    pair: AlignedPair, observation: Observation, halo: int, fits: Callable[[WindowPlace], bool]
) -> list[WindowPlace]:
    """Windows whose cores represent the scene: all of a small one, else evenly spread parts that hold data."""
    for side in CORE_SIDES:
        cores = _cores(pair, side)
        places = [place_for(pair, observation, *_fine_part(core, pair, observation), halo) for core in cores]
        count = max(FEWEST_WINDOWS, round(sampled_fine_pixels(pair) / (side * side * math.prod(pair.scale))))
        leave_a_choice = count >= len(places) or len(places) >= MOST_TRIED * FEWEST_WINDOWS
        if (leave_a_choice and all(fits(place) for place in places)) or side == CORE_SIDES[-1]:
            break
    if count >= len(places):
        return places
    order = _scattered(cores)
    with_data = (index for index in order[: MOST_TRIED * count] if _known_share(pair, cores[index]) >= ENOUGH_KNOWN)
    chosen = list(islice(with_data, count))
    return [places[index] for index in sorted(chosen or order[:count])]


def sampled_fine_pixels(pair: AlignedPair) -> int:
    """How many fine pixels of a large scene the statistics are computed from."""
    return min(MOST_SAMPLED_FINE_PIXELS, int(SAMPLED_COARSE_PIXELS * math.prod(pair.scale)))


def representative_window(pair: AlignedPair, observation: Observation, side: int, halo: int) -> Window:
    """The middle of the scene, `side` coarse pixels wide, or a part with more data, as a scene of its own."""
    cores = _spread_windows(pair.coarse_shape[1:], side)
    core = _best_known((_known_share(pair, core), core) for core in cores)
    place = place_for(pair, observation, *_fine_part(core, pair, observation), halo)
    return replace(read_window(pair, observation, place), coarse_core=EVERYWHERE, fine_core=EVERYWHERE)


@dataclass(frozen=True)
class StreamedSamples:
    """The blocks that the estimation would choose of the whole pair, read one by one; noise from a smaller window."""

    pair: AlignedPair
    shift: tuple[float, float]
    places: tuple[Place, ...] = ()

    @classmethod
    def of(cls, pair: AlignedPair) -> StreamedSamples:
        found = cls(pair, pair.grid_shift)
        return replace(found, places=found._textured_places())

    @property
    def fine_size(self) -> tuple[int, int]:
        return self.pair.fine_shape[1:]

    @property
    def scale(self) -> tuple[float, float]:
        return self.pair.scale

    def at_shift(self, shift: tuple[float, float]) -> StreamedSamples:
        return replace(self, shift=shift)

    def blocks(self, sigma: tuple[float, float], *, spread: bool = False) -> list[Block]:
        if spread and max(self.fine_size) <= SPREAD_WHOLE_FINE_PIXELS:
            images = torch.from_numpy(self.pair.hsi[self.pair.usable_bands]), torch.from_numpy(self.pair.msi)
            return PairSamples.of(*images, self.scale, self.shift).blocks(sigma, spread=True)
        places = spread_places(self.pair.coarse_shape[1:]) if spread else self.places
        return [self._block(place, sigma) for place in places]

    def hsi_noise(self) -> Tensor:
        coarse = self.pair.coarse_shape
        return self._noise(coarse, self.pair.usable_values)

    def msi_noise(self) -> Tensor:
        return self._noise(self.pair.fine_shape, self.pair.msi_values)

    def _noise(self, shape: tuple[int, int, int], read: Callable[[slice, slice], NDArray[np.float32]]) -> Tensor:
        side = int(math.sqrt(NOISE_BYTES / (NOISE_COPIES * 8 * shape[0])))
        side = min(max(SMALLEST_NOISE_SIDE, side), LARGEST_NOISE_SIDE)
        images = (torch.from_numpy(read(*place)) for place in _spread_windows(shape[1:], side))
        candidates = ((image, _known(image)) for image in images)
        image, known = _best_known((float(known.float().mean()), (image, known)) for image, known in candidates)
        return estimate_noise(torch.nan_to_num(image), None if bool(known.all()) else known)

    def _textured_places(self) -> tuple[Place, ...]:
        """The most textured blocks of a grid that hold enough data in both images."""
        places = block_places(self.pair.coarse_shape[1:], self.scale)
        texture = [self._texture(place) for place in places]
        order = sorted(range(len(places)), key=lambda index: -texture[index])
        chosen: list[Place] = []
        for index in order:
            block = self._block(places[index], default_sigma(self.scale))
            if int(block.usable.sum()) >= ENOUGH_KNOWN * block.usable.numel():
                chosen.append(places[index])
            if len(chosen) == MOST_BLOCKS or texture[index] < 0:
                break
        return tuple(chosen or [places[order[0]]])

    def _texture(self, place: Place) -> float:
        """Variance of the hsi's mean over some bands; negative for blocks that hold hardly any data."""
        values = _few_bands(self.pair, place)
        known = np.isfinite(values).all(axis=0)
        if known.sum() < ENOUGH_KNOWN * known.size:
            return -1.0
        return float(values.mean(axis=0)[known].var(ddof=1))

    def _block(self, place: Place, sigma: tuple[float, float]) -> Block:
        coarse_size, fine_size = self.pair.coarse_shape[1:], self.pair.fine_shape[1:]
        fine, origin_shift = block_surroundings(place, fine_size, self.scale, self.shift)
        values = self.pair.usable_values(*place), self.pair.msi_values(*fine)
        hsi, msi = map(torch.from_numpy, values)
        filled = torch.nan_to_num(hsi), torch.nan_to_num(msi)
        samples = PairSamples(*filled, _known(hsi), _known(msi), self.scale, origin_shift)
        rows, columns = (
            inside_fine_image(coarse, size, scale, shift, MARGINS[0])[span]
            for coarse, size, scale, shift, span in zip(
                coarse_size, fine_size, self.scale, self.shift, place, strict=True
            )
        )
        usable = samples.far_from_holes(sigma) & rows[:, None] & columns[None, :]
        return Block(samples.hsi, samples.msi, origin_shift, usable, (fine[0].start, fine[1].start))


def _cores(pair: AlignedPair, side: int) -> list[Place]:
    """The coarse image in squares of about this side, none much smaller."""
    spans = []
    for size in pair.coarse_shape[1:]:
        count = max(1, round(size / side))
        edges = [round(index * size / count) for index in range(count + 1)]
        spans.append([slice(start, stop) for start, stop in pairwise(edges)])
    return [(rows, columns) for rows in spans[0] for columns in spans[1]]


def _fine_part(core: Place, pair: AlignedPair, observation: Observation) -> tuple[slice, slice]:
    """The fine pixels over some coarse ones; those beyond the coarse image belong to its edge."""
    parts = []
    for span, coarse, fine, scale, shift in zip(
        core, pair.coarse_shape[1:], pair.fine_shape[1:], pair.scale, observation.shift, strict=True
    ):
        start = 0 if span.start == 0 else min(fine - 1, max(0, round(span.start * scale + shift)))
        stop = fine if span.stop == coarse else min(fine, max(start + 1, round(span.stop * scale + shift)))
        parts.append(slice(start, stop))
    return parts[0], parts[1]


def _known_share(pair: AlignedPair, core: Place) -> float:
    return float(np.isfinite(_few_bands(pair, core)).all(axis=0).mean())


def _few_bands(pair: AlignedPair, place: Place) -> NDArray[np.float32]:
    usable = np.flatnonzero(pair.usable_bands)
    return pair.hsi_source.values(*place, usable[:: math.ceil(usable.size / INSPECTED_BANDS)])


def _known(image: Tensor) -> Tensor:
    """(H, W) Where every band that holds anything at all holds a value."""
    finite = torch.isfinite(image)
    live = finite.flatten(1).any(1)
    return finite[live].all(0) if bool(live.any()) else torch.zeros(image.shape[1:], dtype=torch.bool)


def _spread_windows(size: tuple[int, int], side: int) -> Iterator[Place]:
    """The middle of an image, then other parts of it."""
    for centre in MIDDLE_FIRST:
        axes = zip(centre, size, strict=True)
        starts = [(max(0, min(length - side, round(share * length - side / 2))), length) for share, length in axes]
        rows, columns = (slice(start, min(length, start + side)) for start, length in starts)
        yield rows, columns


def _best_known(candidates: Iterable[tuple[float, Candidate]]) -> Candidate:
    """The first of some candidates, given with their known shares, that holds enough data; else the one with most."""
    best: list[tuple[float, Candidate]] = []
    for share, candidate in candidates:
        if not best or share > best[0][0]:
            best = [(share, candidate)]
        if share > 1 - ENOUGH_KNOWN:
            break
    return best[0][1]


def _scattered(cores: list[Place]) -> list[int]:
    """Indices in a low-discrepancy order: the first n are spread evenly over the scene, for any n (Roberts, 2018)."""
    rows, columns = (sorted({core[axis].start for core in cores}) for axis in (0, 1))
    step_y, step_x = 0.7548776662466927, 0.5698402909980532
    keys = [(rows.index(y.start) * step_y + columns.index(x.start) * step_x) % 1.0 for y, x in cores]
    return sorted(range(len(cores)), key=lambda index: keys[index])
