"""The last step of most methods: all bands of the fine image from a few components and a smooth coarse image.

Only here do all bands exist at the fine pixels, part by part. Shapes: C bands, p components, h w coarse, H W fine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse import compiled
from hyperfuse.methods.window import INTERPOLATION_HALO, Place, Window, all_finite, mask_missing
from hyperfuse.physics.resample import bicubic_matrix, bicubic_taps


@dataclass(frozen=True)
class MixedCore:
    """The core of a window: matrix (C, p) times components (p, H, W), plus the interpolated `smooth` (C, h, w).

    It is evaluated part by part.
    """

    window: Window
    smooth: Tensor
    matrix: Tensor
    components: Tensor
    """Of the core."""
    given: Window | None = None
    """The window with NaN where there is no data: nothing is fused there."""

    def __call__(self, part: Place) -> Tensor:
        if not self.is_compiled:
            image = self.window.at(part).upsample_to_core(self.smooth)
            image.flatten(1).addmm_(self.matrix, self.components[:, *part].flatten(1))
        else:
            rows, columns = self.window.at(part).core_placement[1]
            image = torch.empty(len(self.matrix), rows, columns)
            compiled.mix_bands_into(image.numpy(), *self._mixture(part))
        return image if self.given is None else mask_missing(image, self.given.at(part))

    @property
    def is_compiled(self) -> bool:
        return compiled.can_compute(self.smooth, self.matrix, self.components)

    def in_unit(self, unit: float, given: Window) -> MixedCore:
        """The same times a number, and without what is missing in a window."""
        return replace(self, smooth=self.smooth * unit, matrix=self.matrix * unit, given=given)

    def bands(self, bands: Sequence[int]) -> MixedCore:
        """The same of these bands, of which the window still has all."""
        if list(bands) == list(range(len(self.matrix))):
            return self
        return replace(self, smooth=self.smooth[list(bands)], matrix=self.matrix[list(bands)])

    def store(
        self,
        part: Place,
        target: NDArray[Any],
        planes: Sequence[int],
        storage: compiled.Storage,
        lowest: Tensor | None = None,
    ) -> int | None:
        """Store a part of which nothing is missing in some planes of the target; return how many values were clipped.

        `lowest` (C,): smaller values are raised to it. None where that needs another way.
        """
        return compiled.mix_bands_into(target, *self._mixture(part), lowest, storage, planes)

    def _mixture(self, part: Place) -> tuple[compiled.Bicubic, Tensor, Tensor]:
        near = self.window.at(part)
        cut = near.near_core(INTERPOLATION_HALO)
        coarse = cut.of_coarse(self.smooth)
        placement, (rows, columns) = cut.window(near).core_placement
        neighbours, weights = bicubic_taps(placement.rows, rows, coarse.shape[1])
        along = coarse @ bicubic_matrix(placement.columns, columns, coarse.shape[2]).to(coarse).T
        return compiled.Bicubic(along, neighbours, weights.to(coarse)), self.matrix, self.components[:, *part]


def mixed_core(window: Window, smooth: Tensor, matrix: Tensor, components: Tensor) -> MixedCore:
    """A `MixedCore` whose matrix has the precision of the components."""
    return MixedCore(window, smooth, matrix.to(components), components)


def interpolated_core(window: Window, smooth: Tensor) -> MixedCore:
    """A smooth image alone."""
    nothing = window.fine(window.msi)[:0].to(smooth)
    return mixed_core(window, smooth, smooth.new_zeros(len(smooth), 0), nothing)


def nothing_missing(window: Window, part: Place, *, negative: bool) -> bool:
    """Whether all pixels that a part of the core is made of have values, and those of the hsi none below zero.

    `negative` allows these.
    """
    cut = window.at(part).near_core(INTERPOLATION_HALO)
    hsi, msi = cut.of_coarse(window.hsi), window.at(part).fine(window.msi)
    return all_finite(hsi) and all_finite(msi) and (negative or bool(hsi.amin() >= 0))
