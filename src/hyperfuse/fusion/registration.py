"""How well two images lie on each other: the shift of the whole scene, and where it differs, with how sure that is."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from hyperfuse.config import FuseConfig, ObservationConfig, PairConfig
from hyperfuse.fusion.observe import (
    ABSORBED,
    Misregistration,
    estimate_offset_field,
    find_misregistration,
    moved_start,
    observe,
)
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.fusion.plan import Image, as_image, masks_of
from hyperfuse.io.grid import metres_per_pixel, window_of_grid
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.offset_field import OffsetField

MOST_BYTES = 1_000_000_000
PAIR_DEFAULTS = PairConfig()


@dataclass(frozen=True)
class RegistrationReport:
    """Offsets say how far down and right of its georeference the HSI looks, in fine pixels."""

    pair: AlignedPair
    whole: Misregistration
    field: OffsetField
    metres: tuple[float, float] | None
    """Height and width of a fine pixel, where the images say where on Earth they lie."""

    def in_metres(self, offset: tuple[float, float]) -> tuple[float, float] | None:
        return None if self.metres is None else (offset[0] * self.metres[0], offset[1] * self.metres[1])

    def summary(self) -> dict[str, object]:
        """As plain numbers and lists, for JSON."""
        field, whole = self.field, self.whole
        return {
            "scale": list(self.pair.scale),
            "metres_per_fine_pixel": None if self.metres is None else list(self.metres),
            "same_place": whole.same_place,
            "offset": list(whole.offset),
            "offset_metres": None if self.metres is None else list(self.in_metres(whole.offset) or ()),
            "offset_coarse_pixels": whole.coarse_pixels,
            "absorbed_by_estimation": whole.absorbed,
            "confidence": whole.confidence,
            "local": {
                "estimated": any(field.used),
                "mean": list(field.mean),
                "variation": field.variation,
                "largest": field.largest,
                "standard_error": field.error,
                "confidence": field.confidence,
                "windows": len(field.windows),
                "windows_used": sum(field.used),
                "field": field.offsets[:, ::4, ::4].tolist(),
            },
        }


def register(hsi: Image, msi: Image, config: PairConfig = PAIR_DEFAULTS) -> RegistrationReport:
    """Measure the misregistration of a pair, over the whole scene and locally."""
    hsi_cube = as_image(hsi, config.hsi_variable, config.hsi_band_axis)
    msi_cube = as_image(msi, config.msi_variable, config.msi_band_axis)
    masks = {name: None if mask is None else as_image(mask) for name, mask in masks_of(config).items()}

    def aligned(shift: tuple[float, float] | None = None) -> AlignedPair:
        return align_pair(hsi_cube, msi_cube, FuseConfig(shift=shift), **masks)

    with warnings.catch_warnings():
        # The report gives in numbers what the estimation would warn about.
        warnings.simplefilter("ignore", UserWarning)
        return _report(aligned(), lambda pair: observe(pair, hsi_cube, ObservationConfig(), MOST_BYTES), aligned)


def _report(
    pair: AlignedPair,
    observed: Callable[[AlignedPair], Observation],
    aligned: Callable[[tuple[float, float]], AlignedPair],
) -> RegistrationReport:
    """`aligned` gives the pair that the images make with an offset."""
    observation = observed(pair)
    whole = find_misregistration(pair, observation, observed)
    start = (0.0, 0.0)
    if not whole.absorbed:
        # Cut to what the images share in truth, and from there on as if the georeference had said so.
        start = whole.offset
        pair = moved_start(replace(aligned(start), known_offset=(0.0, 0.0)), start)
        observation = observed(pair)
        rest = observation.misregistration
        whole = replace(whole, offset=(start[0] + rest[0], start[1] + rest[1]), confidence=observation.confidence)
    field = estimate_offset_field(pair, observation).moved(start)
    grid = window_of_grid(pair.output_grid, pair.fine_rows, pair.fine_columns)
    return RegistrationReport(pair, whole, field, metres_per_pixel(grid))


def verdict(report: RegistrationReport) -> str:
    """One sentence on what to do."""
    whole, field = report.whole, report.field
    if not whole.same_place:
        return "the two images do not seem to show the same place at the same time"
    if not whole.absorbed:
        y, x = whole.offset
        return f"further apart than the estimation absorbs ({ABSORBED:g} HSI pixels): fuse with --shift {y:.2f} {x:.2f}"
    if any(field.used) and field.variation > 0.1:
        return "the shift differs from place to place: fuse with --local-shift"
    return "nothing to do: fusing finds and absorbs this shift"
