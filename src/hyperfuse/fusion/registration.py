"""The misregistration of a pair: one shift of the whole scene, local deviations from it, and their confidence."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from hyperfuse.config import ObservationConfig, PairConfig, takes_options
from hyperfuse.fusion.observe import (
    ABSORBED,
    Misregistration,
    estimate_offset_field,
    find_misregistration,
    moved_start,
    observe,
)
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.fusion.plan import Image, open_pair
from hyperfuse.io.grid import metres_per_pixel, window_of_grid
from hyperfuse.io.summary import html_table
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.offset_field import OffsetField

PAIR_DEFAULTS = PairConfig()
# A local shift that varies by less, in fine pixels, is not worth a correction.
REMARKABLE_VARIATION = 0.1


@dataclass(frozen=True, repr=False)
class RegistrationReport:
    """The shift (down, right) of the HSI against its georeference, in fine pixels: of the whole scene, and locally."""

    pair: AlignedPair
    whole: Misregistration
    field: OffsetField
    metres: tuple[float, float] | None
    """Height and width of a fine pixel; None without georeference."""
    psf_fwhm: tuple[float, float]
    """Of the HSI, along y and x, in fine pixels."""

    def in_metres(self, offset: tuple[float, float]) -> tuple[float, float] | None:
        return None if self.metres is None else (offset[0] * self.metres[0], offset[1] * self.metres[1])

    def __repr__(self) -> str:
        return f"RegistrationReport({'; '.join(f'{label}: {text}' for label, text in self.described().items())})"

    def _repr_html_(self) -> str:
        return html_table("Registration", self.described())

    @property
    def verdict(self) -> str:
        """How to fuse the pair, in one sentence."""
        if not self.whole.same_place:
            return "the two images do not seem to show the same place at the same time"
        if not self.whole.absorbed:
            shift = "--shift {:.2f} {:.2f}".format(*self.whole.offset)
            return f"further apart than the estimation absorbs ({ABSORBED:g} HSI pixels): fuse with {shift}"
        if any(self.field.used) and self.field.variation > REMARKABLE_VARIATION:
            return "the shift differs from place to place: fuse with --local-shift"
        return "nothing to do: fusing finds and absorbs this shift"

    def described(self) -> dict[str, str]:
        """The results as text by their names."""
        whole, field = self.whole, self.field
        metres = self.in_metres(whole.offset)
        on_earth = "" if metres is None else f" ({metres[0]:+.2f} {metres[1]:+.2f} m)"
        local = "not estimated: too few parts of the scene have texture that both images show"
        if any(field.used):
            local = (
                f"varies by {field.variation:.2f}, at most {field.largest:.2f} fine pixels, "
                f"standard error {field.error:.2f}, confidence {field.confidence:.2f}, "
                f"{sum(field.used)} of {len(field.windows)} windows agree"
            )
        return {
            "shift": f"{whole.offset[0]:+.2f} {whole.offset[1]:+.2f} fine pixels{on_earth} down, right of the "
            f"georeference; {whole.coarse_pixels:.2f} HSI pixels; confidence {whole.confidence:.2f}",
            "PSF": "{:.2f} {:.2f} fine pixels (FWHM)".format(*self.psf_fwhm),
            "local": local,
            "verdict": self.verdict,
        }

    def summary(self) -> dict[str, object]:
        """As plain numbers and lists, for JSON."""
        field, whole = self.field, self.whole
        return {
            "scale": list(self.pair.scale),
            "metres_per_fine_pixel": None if self.metres is None else list(self.metres),
            "psf_fwhm": list(self.psf_fwhm),
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


@takes_options(PairConfig)
def register(hsi: Image, msi: Image, config: PairConfig = PAIR_DEFAULTS) -> RegistrationReport:
    """Measure the misregistration of a pair, over the whole scene and locally.

    Parameters
    ----------
    hsi, msi : cube, array (band, y, x) or path
        The coarse and the fine image.
    config : PairConfig, optional
        Masks, variables and bounds; also accepted as keywords.

    Returns
    -------
    RegistrationReport
        Shifts in fine pixels with their confidence, and the PSF's FWHM.

    Examples
    --------
    >>> import numpy as np, hyperfuse
    >>> scene = hyperfuse.make_cube(np.random.default_rng(0).random((4, 64, 64)))
    >>> pair = hyperfuse.simulate(scene, 4, np.eye(2, 4), shift=(1.0, -0.5))
    >>> report = hyperfuse.register(pair.hsi, pair.msi)
    >>> [round(length, 2) for length in report.whole.offset]
    [1.0, -0.5]
    >>> report.verdict
    'nothing to do: fusing finds and absorbs this shift'
    """
    hsi_cube, msi_cube, masks = open_pair(hsi, msi, config)

    def aligned(shift: tuple[float, float] | None = None) -> AlignedPair:
        given = {name: getattr(config, name) for name in config.model_fields_set}
        return align_pair(hsi_cube, msi_cube, ObservationConfig(**given, shift=shift), **masks)

    def observed(pair: AlignedPair) -> Observation:
        return observe(pair, hsi_cube, ObservationConfig())

    # The report gives in numbers what the estimation would warn about.
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        pair = aligned()
        observation = observed(pair)
        whole = find_misregistration(pair, observation, observed)
        start = (0.0, 0.0)
        if not whole.absorbed:
            # Cut again to the true overlap, then continue as if the georeference contained the shift.
            start = whole.offset
            pair = moved_start(replace(aligned(start), known_offset=(0.0, 0.0)), start)
            observation = observed(pair)
            rest = observation.misregistration
            whole = replace(whole, offset=(start[0] + rest[0], start[1] + rest[1]), confidence=observation.confidence)
        field = estimate_offset_field(pair, observation).moved(start)
    grid = window_of_grid(pair.output_grid, pair.fine_rows, pair.fine_columns)
    return RegistrationReport(pair, whole, field, metres_per_pixel(grid), observation.psf_fwhm)
