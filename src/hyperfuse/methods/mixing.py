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
from hyperfuse.physics.observation import mix_bands
from hyperfuse.physics.resample import bicubic_along_columns, bicubic_taps

# Of a fine intensity to a blurred one: a larger ratio, or one below the inverse, is an artefact of a dark pixel.
LARGEST_RATIO = 4.0


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
            image = self._mixed(part)
        else:
            rows, columns = self.window.at(part).core_placement[1]
            image = torch.empty(len(self.matrix), rows, columns)
            compiled.mix_bands_into(image.numpy(), *self._mixture(part))
        return image if self.given is None else mask_missing(image, self.given.at(part))

    def _mixed(self, part: Place) -> Tensor:
        image = self.window.at(part).upsample_to_core(self.smooth)
        image.flatten(1).addmm_(self.matrix, self.components[:, *part].flatten(1))
        return image

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

    def _mixture(self, part: Place) -> tuple[compiled.Bicubic, Tensor, Tensor, compiled.Modulation | None]:
        near = self.window.at(part)
        cut = near.near_core(INTERPOLATION_HALO)
        coarse = cut.of_coarse(self.smooth)
        placement, (rows, columns) = cut.window(near).core_placement
        neighbours, weights = bicubic_taps(placement.rows, rows, coarse.shape[1])
        along = bicubic_along_columns(placement.columns, columns, coarse)
        bicubic = compiled.Bicubic(along, neighbours, weights.to(coarse))
        return bicubic, self.matrix, self.components[:, *part], self._modulation(part)

    def _modulation(self, part: Place) -> compiled.Modulation | None:
        return None


@dataclass(frozen=True, kw_only=True)
class ModulatedCore(MixedCore):
    """The interpolated `smooth` times the ratio of a mixture of components to one of their interpolated coarse copies.

    Both mixtures have the same constant. The ratio is trusted to a degree, and not where the denominator is too small.
    """

    coarse_components: Tensor  # (p, h, w)
    constant: Tensor  # (C,), like the following
    trust: Tensor
    dark: Tensor

    def _mixed(self, part: Place) -> Tensor:
        constant, trust, dark = (each[:, None, None] for each in (self.constant, self.trust, self.dark))
        below = mix_bands(self.matrix, self._coarse_components(part)).add_(constant)
        ratio = mix_bands(self.matrix, self.components[:, *part]).add_(constant).div_(below.clamp_min(1e-30))
        if not bool((below.amin((1, 2), keepdim=True) > dark).all()):
            ratio = torch.where(below > dark, ratio, 1.0)
        ratio = ratio.clamp_(1 / LARGEST_RATIO, LARGEST_RATIO).sub_(1).mul_(trust).add_(1)
        return ratio.mul_(self.window.at(part).upsample_to_core(self.smooth))

    def in_unit(self, unit: float, given: Window) -> ModulatedCore:
        return replace(self, smooth=self.smooth * unit, given=given)

    def bands(self, bands: Sequence[int]) -> ModulatedCore:
        of_bands = ("smooth", "matrix", "constant", "trust", "dark")
        return replace(self, **{name: getattr(self, name)[list(bands)] for name in of_bands})

    def _coarse_components(self, part: Place) -> Tensor:
        # Interpolation is linear: that of the few components is enough.
        return self.window.at(part).upsample_to_core(self.coarse_components)

    def _modulation(self, part: Place) -> compiled.Modulation:
        numbers = torch.stack([self.constant, self.trust, self.dark], dim=1)
        return compiled.Modulation(self._coarse_components(part).contiguous(), numbers)


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
