"""A pair, or a window of one with the surroundings that it must see.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from torch import Tensor

from hyperfuse.degradation.operators import separable
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.bicubic import interpolation_matrix

Place = tuple[slice, slice]
EVERYWHERE: Place = (slice(None), slice(None))


@dataclass(frozen=True)
class Window:
    """hsi (C, h, w) and msi (M, H, W), with the observation as it is seen from the window's own corner.

    The cores are what the window is for: fine pixels that are wanted, and the coarse pixels under them. Beyond them lies the
    margin, at whose far border the images seem to end although the scene does not; no statistics are taken there.
    """

    hsi: Tensor
    msi: Tensor
    observation: Observation
    coarse_core: Place = EVERYWHERE
    fine_core: Place = EVERYWHERE

    @property
    def coarse_size(self) -> tuple[int, int]:
        return self.hsi.shape[1], self.hsi.shape[2]

    @property
    def fine_size(self) -> tuple[int, int]:
        return self.msi.shape[1], self.msi.shape[2]

    def coarse(self, image: Tensor) -> Tensor:
        """The core of an image on the coarse grid."""
        return image[..., self.coarse_core[0], self.coarse_core[1]]

    def fine(self, image: Tensor) -> Tensor:
        """The core of an image on the fine grid."""
        return image[..., self.fine_core[0], self.fine_core[1]]

    @property
    def coarse_pixels(self) -> int:
        """In the core."""
        rows, columns = (len(range(*part.indices(size))) for part, size in zip(self.coarse_core, self.coarse_size, strict=True))
        return rows * columns

    def for_everything(self) -> Window:
        """The same window, wanted with its margin; statistics are still taken in the core alone."""
        return replace(self, fine_core=EVERYWHERE)

    def upsample_to_core(self, coarse: Tensor) -> Tensor:
        """(..., h, w) interpolated at the fine pixels that are wanted."""
        axes = zip(self.coarse_size, self.fine_core, self.fine_size, self.observation.scale, self.observation.shift, strict=True)
        rows, columns = (_wanted_rows(*axis) for axis in axes)
        return separable(rows, columns, coarse)

    def near_core(self, reach: int) -> Cut:
        """The part that lies within `reach` coarse pixels of the fine pixels that are wanted."""
        axes = zip(self.fine_core, self.coarse_size, self.fine_size, self.observation.scale, self.observation.shift, strict=True)
        (rows, fine_rows), (columns, fine_columns) = (_near(*axis, reach) for axis in axes)
        return Cut((rows, columns), (fine_rows, fine_columns))


@dataclass(frozen=True)
class Cut:
    """A part of a window, given on both grids."""

    coarse: Place
    fine: Place

    def window(self, window: Window) -> Window:
        starts = [(part[0].start, part[1].start) for part in (self.coarse, self.fine)]
        return Window(
            self.of_coarse(window.hsi),
            self.of_fine(window.msi),
            window.observation.in_window(starts[0], starts[1]),
            _moved(window.coarse_core, self.coarse, window.coarse_size),
            _moved(window.fine_core, self.fine, window.fine_size),
        )

    def of_coarse(self, image: Tensor) -> Tensor:
        return image[..., self.coarse[0], self.coarse[1]]

    def of_fine(self, image: Tensor) -> Tensor:
        return image[..., self.fine[0], self.fine[1]]


def whole(hsi: Tensor, msi: Tensor, observation: Observation) -> Window:
    """A pair that is the whole scene."""
    return Window(hsi, msi, observation)


def _wanted_rows(coarse_size: int, core: slice, fine_size: int, scale: float, shift: float) -> Tensor:
    start, stop, _ = core.indices(fine_size)
    return interpolation_matrix(coarse_size, stop - start, scale, shift - start)


def _near(core: slice, coarse_size: int, fine_size: int, scale: float, shift: float, reach: int) -> tuple[slice, slice]:
    start, stop, _ = core.indices(fine_size)
    under = [min(max(math.floor((fine + 0.5 - shift) / scale), 0), coarse_size - 1) for fine in (start, stop - 1)]
    first, last = max(0, under[0] - reach), min(coarse_size, under[1] + 1 + reach)
    # At the window's own ends everything that is left of the fine image belongs to it.
    fine_first = 0 if first == 0 else max(0, math.floor(first * scale + shift))
    fine_last = fine_size if last == coarse_size else min(fine_size, math.ceil(last * scale + shift))
    return slice(first, last), slice(fine_first, fine_last)


def _moved(core: Place, part: Place, size: tuple[int, int]) -> Place:
    rows, columns = (
        slice(max(0, own.indices(length)[0] - cut.start), min(cut.stop, own.indices(length)[1]) - cut.start)
        for own, cut, length in zip(core, part, size, strict=True)
    )
    return rows, columns
