"""How training pairs are simulated, as the table of an experiment file says it."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from hyperfuse.loading.band_selection import BandVariation

RANDOM_RESPONSE = "random"
LARGEST_SNR_DB = 300.0


def _as_span(value: Any) -> Any:
    """One number is a range from itself to itself."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"got {value!r}, expected a number or a range [low, high]")
    return tuple(value)


def _ordered(span: tuple[float, float]) -> tuple[float, float]:
    if not (math.isfinite(span[0]) and math.isfinite(span[1]) and span[0] <= span[1]):
        raise ValueError(f"got the range {list(span)}, expected two finite numbers, the smaller one first")
    return span


def _within(low: float, high: float, unit: str) -> AfterValidator:
    def check(span: tuple[float, float]) -> tuple[float, float]:
        if span[0] < low or span[1] > high:
            raise ValueError(f"got {span[0]:g} to {span[1]:g}, expected {low:g} to {high:g} {unit}")
        return span

    return AfterValidator(check)


Span = Annotated[tuple[float, float], AfterValidator(_ordered), BeforeValidator(_as_span)]
ScaleSpan = Annotated[Span, _within(1.0, 1000.0, "fine pixels per coarse pixel")]
FwhmSpan = Annotated[Span, _within(0.01, 100.0, "coarse pixels")]
SnrSpan = Annotated[Span, _within(-LARGEST_SNR_DB, LARGEST_SNR_DB, "dB")]
BandSpan = Annotated[tuple[int, int], AfterValidator(_ordered), _within(1, 1000, "msi bands"), BeforeValidator(_as_span)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScaleChoices(_Table):
    """One of these scales, each as likely as the others: `scale = {choices = [2, 4, 8]}`."""

    choices: Annotated[tuple[Annotated[float, Field(ge=1, le=1000)], ...], Field(min_length=1)]


def _kind_of_scale(value: Any) -> str:
    return "choices" if isinstance(value, dict | ScaleChoices) else "range"


Scale = Annotated[Annotated[ScaleSpan, Tag("range")] | Annotated[ScaleChoices, Tag("choices")], Discriminator(_kind_of_scale)]


class ResponseChoice(_Table):
    """ "random", or whatever `find_response` takes: a sensor with or without a choice of its bands, "rgb+nir", a file."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | ResponseChoice) else value


def _as_choice(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class BeliefSettings(_Table):
    """How wrong what is believed of an observation may be, as standard deviations: an estimate is never exact.

    sigma  of the point spread and noise of its levels: relative; shift: fine pixels
    floor  up to so much noise, as a share of the image's root mean square, is believed where there is none
    """

    sigma: Annotated[float, Field(ge=0, le=0.3)] = 0.02
    shift: Annotated[float, Field(ge=0, le=10)] = 0.02
    noise: Annotated[float, Field(ge=0, le=0.3)] = 0.1
    floor: Annotated[float, Field(ge=0, le=0.3)] = 0.0


class SimulationSettings(_Table):
    """Every range is a number, or `[low, high]` from which each batch or sample draws uniformly.

    scale        of a batch; a number, a range or `{choices = [2, 4, 8]}`. In patches of P pixels it becomes P / round(P / scale),
                 so that whole coarse pixels fill them
    psf_fwhm     of a sample: full width at half maximum of the point spread, in coarse pixels
    shift        of a sample: up to so many fine pixels down or up, and right or left
    responses    of a batch: names, or `{name = "rgb+nir", weight = 2.0}` for what shall come more or less often. Bands that the
                 scene does not cover are left out; where it covers none, or its wavelengths are unknown, a random one is taken
    msi_bands    of a batch: how many bands a random response has; its curves are each sample's own
    snr_hsi_db   of a sample: white noise so much weaker than the image; left out, there is none
    snr_msi_db   the same for the msi
    noise_free   with this probability an image stays without noise all the same
    keep_bands   of a batch: `{probability = 0.5, least = 8}` for parts of the spectrum, some of the bands, or neighbours added up
    flips        of a sample: flips and quarter turns
    vary_light   of a sample: with this probability light of another colour, another contrast, highlights cut off
    belief       of a sample: how far a closed form is misled about point spread, shift and noise; left out, it is told the truth
    """

    scale: Scale = (4.0, 4.0)
    psf_fwhm: FwhmSpan = (1.0, 1.0)
    shift: Annotated[float, Field(ge=0, le=100)] = 0.0
    responses: Annotated[
        tuple[Annotated[ResponseChoice, BeforeValidator(_as_choice)], ...], Field(min_length=1), BeforeValidator(_as_list)
    ] = (ResponseChoice(name=RANDOM_RESPONSE),)
    msi_bands: BandSpan = (1, 12)
    snr_hsi_db: SnrSpan | None = None
    snr_msi_db: SnrSpan | None = None
    noise_free: Annotated[float, Field(ge=0, le=1)] = 0.0
    keep_bands: BandVariation | None = None
    flips: bool = True
    vary_light: Annotated[float, Field(ge=0, le=1)] = 0.0
    belief: BeliefSettings | None = None
