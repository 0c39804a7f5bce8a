"""`universal` on a pair that is looked at from several sides, mirrored and transposed, and the mean of what it sees.

Shapes: C bands, M msi bands, h w coarse, H W fine. Its network was not told that a scene has no up and no left, so it is wrong in
another way from each side. The squared error of a mean is never larger than the mean of the squared errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.over_scene import SceneWise, apart
from hyperfuse.methods.universal import universal
from hyperfuse.methods.window import Place, Window


@dataclass(frozen=True)
class Side:
    """Mirrored top to bottom, left to right, and then rows and columns exchanged."""

    upside_down: bool
    left_right: bool
    transposed: bool

    def of_image(self, image: Tensor) -> Tensor:
        """(bands, rows, columns) as it is seen from this side."""
        mirrored = image.flip(self._mirrored_axes)
        return mirrored.transpose(1, 2).contiguous() if self.transposed else mirrored

    def back(self, image: Tensor) -> Tensor:
        """The inverse of `of_image`."""
        upright = image.transpose(1, 2) if self.transposed else image
        return upright.flip(self._mirrored_axes)

    def of_window(self, window: Window) -> Window:
        return Window(
            self.of_image(window.hsi),
            self.of_image(window.msi),
            self._of_observation(window),
            self._of_place(window.coarse_core, window.coarse_size),
            self._of_place(window.fine_core, window.fine_size),
        )

    @property
    def _mirrored_axes(self) -> list[int]:
        return [axis for axis, mirrored in ((1, self.upside_down), (2, self.left_right)) if mirrored]

    def _of_observation(self, window: Window) -> Observation:
        observation = window.observation
        return replace(
            observation,
            scale=self._of_pair(observation.scale),
            sigma=self._of_pair(observation.sigma),
            shift=self._of_shift(observation.shift, window),
            grid_shift=self._of_shift(observation.grid_shift, window),
        )

    def _of_shift(self, shift: tuple[float, float], window: Window) -> tuple[float, float]:
        """Shifts are counted from the first pixels of both grids; mirrored, the last ones come first."""
        beyond = [
            fine - scale * coarse
            for fine, scale, coarse in zip(window.fine_size, window.observation.scale, window.coarse_size, strict=True)
        ]
        return self._of_pair(
            (
                beyond[0] - shift[0] if self.upside_down else shift[0],
                beyond[1] - shift[1] if self.left_right else shift[1],
            )
        )

    def _of_place(self, place: Place, size: tuple[int, int]) -> Place:
        rows = _mirrored(place[0], size[0]) if self.upside_down else place[0]
        columns = _mirrored(place[1], size[1]) if self.left_right else place[1]
        return (columns, rows) if self.transposed else (rows, columns)

    def _of_pair(self, pair: tuple[float, float]) -> tuple[float, float]:
        return (pair[1], pair[0]) if self.transposed else pair


# The first two are the farthest from each other: as it is, and turned by half.
SIDES = tuple(
    Side(upside_down, left_right, transposed)
    for transposed in (False, True)
    for upside_down, left_right in ((False, False), (True, True), (True, False), (False, True))
)


def universal_from_sides(window: Window, sides: int) -> SceneWise[Tensor]:
    """(C, H, W) of the window's core: the mean over the first so many of `SIDES`."""
    return apart([partial(_from_side, window, side) for side in SIDES[:sides]], _mean)


def _from_side(window: Window, side: Side) -> SceneWise[Tensor]:
    fused = yield from universal(side.of_window(window))
    return side.back(fused)


def _mean(images: Iterator[Tensor]) -> Tensor:
    """Summed in place, and none of them is kept while the next is made: images of all bands are what takes memory."""
    total, count = next(images), 1
    for image in images:
        total, count = total.add_(image), count + 1
        del image
    return total.div_(count)


def _mirrored(part: slice, size: int) -> slice:
    start, stop, _ = part.indices(size)
    return slice(size - stop, size - start)
