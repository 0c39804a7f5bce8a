"""What a method works on: a pair, or a window of one with a halo; and its missing pixels (NaN).

Missing pixels are handled once around all methods: filled smoothly before, masked again after.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from hyperfuse.errors import ValueRangeError
from hyperfuse.methods.scene_stats import SceneComputation, pooled_range, scene_statistic
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.resample import Placement, fine_positions, upsample_bicubic

Place = tuple[slice, slice]
EVERYWHERE: Place = (slice(None), slice(None))


@dataclass(frozen=True)
class Window:
    """hsi (C, h, w) and msi (M, H, W), with the observation as it is seen from the window's own corner.

    The cores are the fine pixels to fuse and the coarse pixels under them. Around them lies the halo, at whose outer
    border the images end although the scene does not: no statistics are taken there.
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
        """Crop an image on the coarse grid to the core."""
        return image[..., self.coarse_core[0], self.coarse_core[1]]

    def fine(self, image: Tensor) -> Tensor:
        """Crop an image on the fine grid to the core."""
        return image[..., self.fine_core[0], self.fine_core[1]]

    @property
    def coarse_pixels(self) -> int:
        """The number of coarse pixels in the core."""
        return self.coarse(self.hsi)[0].numel()

    @property
    def core_placement(self) -> tuple[Placement, tuple[int, int]]:
        """Where the fine pixels of the core lie on the window's coarse grid, and how many there are."""
        (top, bottom), (left, right) = _bounds(self.fine_core, self.fine_size)
        placement = self.observation.placement
        in_core = Placement(placement.rows.seen_from(top, 0), placement.columns.seen_from(left, 0))
        return in_core, (bottom - top, right - left)

    def upsample_to_core(self, coarse: Tensor) -> Tensor:
        """Interpolate (..., h, w) at the fine pixels of the core."""
        placement, size = self.core_placement
        return upsample_bicubic(coarse, size, placement)

    def near_core(self, halo: int) -> Cut:
        """The part within `halo` coarse pixels of the fine core."""
        cores, scale, shift = _bounds(self.fine_core, self.fine_size), self.observation.scale, self.observation.shift
        axes = zip(cores, self.coarse_size, self.fine_size, scale, shift, strict=True)
        (rows, fine_rows), (columns, fine_columns) = (_near(*axis, halo) for axis in axes)
        return Cut((rows, columns), (fine_rows, fine_columns))


@dataclass(frozen=True)
class Cut:
    """A part of a window, given on both grids."""

    coarse: Place
    fine: Place

    def window(self, window: Window) -> Window:
        """Crop a window, cores and observation included."""
        return Window(
            self.of_coarse(window.hsi),
            self.of_fine(window.msi),
            window.observation.in_window(*((rows.start, columns.start) for rows, columns in (self.coarse, self.fine))),
            _inside(window.coarse_core, self.coarse, window.coarse_size),
            _inside(window.fine_core, self.fine, window.fine_size),
        )

    def of_coarse(self, image: Tensor) -> Tensor:
        return image[..., self.coarse[0], self.coarse[1]]

    def of_fine(self, image: Tensor) -> Tensor:
        return image[..., self.fine[0], self.fine[1]]


def _bounds(core: Place, size: tuple[int, int]) -> list[tuple[int, int]]:
    """First and last (exclusive) index of the core along both axes."""
    return [part.indices(length)[:2] for part, length in zip(core, size, strict=True)]


def _near(
    core: tuple[int, int], coarse_size: int, fine_size: int, scale: float, shift: float, halo: int
) -> tuple[slice, slice]:
    under = [min(max(math.floor((fine + 0.5 - shift) / scale), 0), coarse_size - 1) for fine in (core[0], core[1] - 1)]
    first, last = max(0, under[0] - halo), min(coarse_size, under[1] + 1 + halo)
    # At the window's own ends everything that is left of the fine image belongs to it.
    fine_first = 0 if first == 0 else max(0, math.floor(first * scale + shift))
    fine_last = fine_size if last == coarse_size else min(fine_size, math.ceil(last * scale + shift))
    return slice(first, last), slice(fine_first, fine_last)


def _inside(core: Place, part: Place, size: tuple[int, int]) -> Place:
    """A core as it is seen from the corner of the part."""
    rows, columns = (
        slice(max(0, start - cut.start), min(cut.stop, stop) - cut.start)
        for (start, stop), cut in zip(_bounds(core, size), part, strict=True)
    )
    return rows, columns


def fill_missing(image: Tensor) -> Tensor:
    """Fill the NaN of (B, H, W) from their surroundings, band by band; a band without any value becomes 0."""
    known = torch.isfinite(image)
    if bool(known.all()):
        return image
    return _push_pull(torch.where(known, image, torch.zeros_like(image)), known.to(image))


def _push_pull(values: Tensor, weights: Tensor) -> Tensor:
    """Halve the image, known pixels only, until no hole is left; then fill holes from the coarser level."""
    if min(values.shape[1:]) < 2 or bool((weights > 0).all()):
        total = weights.sum((1, 2), keepdim=True)
        mean = (values * weights).sum((1, 2), keepdim=True) / total.clamp_min(1e-30)
        return torch.where(weights > 0, values, mean)
    coarse_weights = avg_pool2d(weights[None], 2, ceil_mode=True)[0]
    coarse_values = avg_pool2d((values * weights)[None], 2, ceil_mode=True)[0] / coarse_weights.clamp_min(1e-30)
    coarse = _push_pull(coarse_values, coarse_weights)
    # By exactly two, then cropped: pixels must not drift with the size of the image.
    smooth = interpolate(coarse[None], scale_factor=2, mode="bilinear", align_corners=False)[0]
    return torch.where(weights > 0, values, smooth[:, : values.shape[1], : values.shape[2]])


def mask_missing(fused: Tensor, window: Window) -> Tensor:
    """Set the core of a fused window to NaN: all bands where an msi band is NaN, each band where its hsi pixel is."""
    missing = ~torch.isfinite(window.hsi)
    if bool(missing.any()):
        placement, size = window.core_placement
        axes = zip((placement.rows, placement.columns), size, window.coarse_size, strict=True)
        rows, columns = (fine_positions(axis, fine).round().long().clamp(0, coarse - 1) for axis, fine, coarse in axes)
        fused = fused.masked_fill(missing[:, rows][:, :, columns], torch.nan)
    msi_missing = ~torch.isfinite(window.fine(window.msi)).all(0)
    return fused.masked_fill(msi_missing, torch.nan) if bool(msi_missing.any()) else fused


def usable_msi_bands(window: Window) -> SceneComputation[tuple[Tensor, bool]]:
    """Find the msi bands that vary and return True, or those with any value and False where none varies."""
    msi = window.fine(window.msi)

    def part() -> tuple[Tensor, Tensor]:
        known = torch.isfinite(msi)
        return msi.masked_fill(~known, torch.inf).amin((1, 2)), msi.masked_fill(~known, -torch.inf).amax((1, 2))

    def combine(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, bool]:
        smallest, largest = pooled_range(parts)
        filled, varying = largest >= smallest, largest > smallest
        if not bool(filled.any()):
            raise ValueRangeError("an msi without a single valid pixel", "pixels with data", "check its nodata value")
        if not bool(varying.any()):
            warnings.warn("the msi is constant and adds nothing: the hsi is interpolated", stacklevel=2)
            return filled.nonzero()[:, 0], False
        return varying.nonzero()[:, 0], True

    return scene_statistic(part, combine)
