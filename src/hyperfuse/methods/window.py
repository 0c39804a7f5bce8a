"""Missing pixels (NaN), handled once around all methods: filled smoothly before, masked again after.

Shapes: C bands, M msi bands, h w coarse, H W fine.

A pair, or a window of one with the surroundings that it must see.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from hyperfuse.errors import ValueRangeError
from hyperfuse.methods.scene_stats import SceneComputation, scene_statistic
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.resample import AxisPlacement, Placement, fine_positions, upsample_bicubic

Place = tuple[slice, slice]
EVERYWHERE: Place = (slice(None), slice(None))


@dataclass(frozen=True)
class Window:
    """hsi (C, h, w) and msi (M, H, W), with the observation as it is seen from the window's own corner.

    The cores are what the window is for: fine pixels that are wanted, and the coarse pixels under them. Beyond them
    lies the margin, at whose far border the images seem to end although the scene does not; no statistics are taken
    there.
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
        rows, columns = (
            len(range(*part.indices(size))) for part, size in zip(self.coarse_core, self.coarse_size, strict=True)
        )
        return rows * columns

    def for_everything(self) -> Window:
        """The same window, wanted with its margin; statistics are still taken in the core alone."""
        return replace(self, fine_core=EVERYWHERE)

    def upsample_to_core(self, coarse: Tensor) -> Tensor:
        """(..., h, w) interpolated at the fine pixels that are wanted."""
        placement = self.observation.placement
        axes = zip((placement.rows, placement.columns), self.fine_core, self.fine_size, strict=True)
        (rows, height), (columns, width) = (_core_placement(*axis) for axis in axes)
        return upsample_bicubic(coarse, (height, width), Placement(rows, columns))

    def near_core(self, halo: int) -> Cut:
        """The part that lies within `reach` coarse pixels of the fine pixels that are wanted."""
        axes = zip(
            self.fine_core,
            self.coarse_size,
            self.fine_size,
            self.observation.scale,
            self.observation.shift,
            strict=True,
        )
        (rows, fine_rows), (columns, fine_columns) = (_near(*axis, halo) for axis in axes)
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


def _core_placement(axis: AxisPlacement, core: slice, fine_size: int) -> tuple[AxisPlacement, int]:
    start, stop, _ = core.indices(fine_size)
    return axis.seen_from(start, 0), stop - start


def _near(core: slice, coarse_size: int, fine_size: int, scale: float, shift: float, halo: int) -> tuple[slice, slice]:
    start, stop, _ = core.indices(fine_size)
    under = [min(max(math.floor((fine + 0.5 - shift) / scale), 0), coarse_size - 1) for fine in (start, stop - 1)]
    first, last = max(0, under[0] - halo), min(coarse_size, under[1] + 1 + halo)
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


def fill_missing(image: Tensor) -> Tensor:
    """(B, H, W) with every hole filled from its surroundings, band by band; a band without any value becomes 0."""
    known = torch.isfinite(image)
    if bool(known.all()):
        return image
    return _filled(torch.where(known, image, torch.zeros_like(image)), known.to(image))


def _filled(values: Tensor, weights: Tensor) -> Tensor:
    """Push-pull: halve the image with known pixels only until no hole is left, then fill holes from the coarser level."""
    if min(values.shape[1:]) < 2 or bool((weights > 0).all()):
        total = weights.sum((1, 2), keepdim=True)
        mean = (values * weights).sum((1, 2), keepdim=True) / total.clamp_min(1e-30)
        return torch.where(weights > 0, values, mean)
    coarse_weights = avg_pool2d(weights[None], 2, ceil_mode=True)[0]
    coarse_values = avg_pool2d((values * weights)[None], 2, ceil_mode=True)[0] / coarse_weights.clamp_min(1e-30)
    coarse = _filled(coarse_values, coarse_weights)
    # By exactly two, whatever is cut off then: pixels must not drift with the size of the image.
    smooth = interpolate(coarse[None], scale_factor=2, mode="bilinear", align_corners=False)[0]
    return torch.where(weights > 0, values, smooth[:, : values.shape[1], : values.shape[2]])


def mask_missing(fused: Tensor, window: Window) -> Tensor:
    """NaN back, in the core of a window with holes, where the msi has none of its bands complete, and in each band
    where the hsi pixel underneath is missing.
    """
    missing = ~torch.isfinite(window.hsi)
    if bool(missing.any()):
        observation = window.observation
        axes = zip(
            window.fine_core, window.fine_size, window.coarse_size, observation.scale, observation.shift, strict=True
        )
        rows, columns = (_pixel_underneath(*axis) for axis in axes)
        fused = fused.masked_fill(missing[:, rows][:, :, columns], torch.nan)
    msi_missing = ~torch.isfinite(window.fine(window.msi)).all(0)
    return fused.masked_fill(msi_missing, torch.nan) if bool(msi_missing.any()) else fused


def _pixel_underneath(core: slice, fine: int, coarse: int, scale: float, shift: float) -> Tensor:
    """The coarse index in which each fine pixel of the core lies."""
    start, stop, _ = core.indices(fine)
    positions = fine_positions(AxisPlacement.from_scale(scale, shift).seen_from(start, 0), stop - start)
    return positions.round().long().clamp(0, coarse - 1)


def usable_msi_bands(window: Window) -> SceneComputation[tuple[Tensor, bool]]:
    """Indices of the msi bands that hold any value and, if there are such, more than one; and whether there are such."""
    msi = window.fine(window.msi)

    def share() -> tuple[Tensor, Tensor]:
        known = torch.isfinite(msi)
        return msi.masked_fill(~known, torch.inf).amin((1, 2)), msi.masked_fill(~known, -torch.inf).amax((1, 2))

    return scene_statistic(share, _varied_bands)


def _varied_bands(shares: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, bool]:
    lowest = torch.stack([low for low, _ in shares]).amin(0)
    highest = torch.stack([high for _, high in shares]).amax(0)
    filled, varied = highest >= lowest, highest > lowest
    if not bool(filled.any()):
        raise ValueRangeError("an msi without a single valid pixel", "some pixels with data", "check its nodata value")
    if not bool(varied.any()):
        warnings.warn("the msi is constant and adds nothing: the hsi is interpolated", stacklevel=2)
    return (varied if bool(varied.any()) else filled).nonzero()[:, 0], bool(varied.any())


def require_values(hsi: Tensor) -> None:
    if not bool(torch.isfinite(hsi).any()):
        raise ValueRangeError("an hsi without a single valid pixel", "some pixels with data", "check its nodata value")
