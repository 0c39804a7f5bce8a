"""The table of an experiment file that says how training pairs are simulated."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from hyperfuse.models.weights import Strict

RANDOM_SRF = "random"


def _as_range(value: Any) -> Any:
    """One number is a range from itself to itself."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"got {value!r}, expected a number or a range [low, high]")
    return tuple(value)


def _within(low: float, high: float, unit: str) -> AfterValidator:
    def check(span: tuple[float, float]) -> tuple[float, float]:
        if not (math.isfinite(span[0]) and math.isfinite(span[1]) and span[0] <= span[1]):
            raise ValueError(f"got the range {list(span)}, expected two finite numbers, the smaller one first")
        if span[0] < low or span[1] > high:
            raise ValueError(f"got {span[0]:g} to {span[1]:g}, expected {low:g} to {high:g} {unit}")
        return span

    return AfterValidator(check)


Range = Annotated[tuple[float, float], BeforeValidator(_as_range)]
ScaleRange = Annotated[Range, _within(1.0, 1000.0, "fine pixels per coarse pixel")]
FwhmRange = Annotated[Range, _within(0.01, 100.0, "coarse pixels")]
SnrRange = Annotated[Range, _within(-300.0, 300.0, "dB")]
BandRange = Annotated[tuple[int, int], BeforeValidator(_as_range), _within(1, 1000, "msi bands")]
Probability = Annotated[float, Field(ge=0, le=1)]
RelativeError = Annotated[float, Field(ge=0, le=0.3)]


class ScaleChoices(Strict):
    """One of these scales, each as likely as the others: `scale = {choices = [2, 4, 8]}`."""

    choices: Annotated[tuple[Annotated[float, Field(ge=1, le=1000)], ...], Field(min_length=1)]


Scale = Annotated[
    Annotated[ScaleRange, Tag("range")] | Annotated[ScaleChoices, Tag("choices")],
    Discriminator(lambda value: "choices" if isinstance(value, dict | ScaleChoices) else "range"),
]


class SRFChoice(Strict):
    """ "random", or any name that `find_srf` accepts: a sensor, some of its bands, "rgb+nir", a file."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


class BandVariation(Strict):
    """With this `probability` a batch has other bands than its scenes, at least `least` of them: a contiguous part of
    the spectrum, a random subset of the bands, or means of 2, 3, ... neighbours, each as often as the others; or, in
    this share of all cases (`mixed`), the bands of another sensor: a random SRF's.
    """

    probability: Probability = 0.5
    least: Annotated[int, Field(ge=1)] = 8
    mixed: Probability = 0.0


class PerturbationSettings(Strict):
    """Standard deviations of the errors of the observation parameters that a method is given.

    sigma  of the PSF, and noise, of the noise levels: relative; shift: fine pixels
    floor  up to this much noise, as a fraction of the image's RMS, is assumed where there is none
    """

    sigma: RelativeError = 0.02
    shift: Annotated[float, Field(ge=0, le=10)] = 0.02
    noise: RelativeError = 0.1
    floor: RelativeError = 0.0


class SimulationSettings(Strict):
    """Every range is a number, or `[low, high]` from which each batch or sample draws uniformly.

    scale         of a batch: a number, a range or `{choices = [2, 4, 8]}`. In patches of P pixels it becomes
                  P / round(P / scale), so that whole coarse pixels fill them
    psf_fwhm      of a sample: FWHM of the PSF in coarse pixels
    shift         of a sample: at most this many fine pixels down or up, and right or left
    srfs          of a batch: names, or `{name = "rgb+nir", weight = 2.0}` to draw it more or less often. Bands that the
                  scene does not cover are left out; where it covers none, or its wavelengths are unknown, the SRF is
                  random
    msi_bands     of a batch: number of bands of a random SRF, which differs between samples
    snr_hsi_db    of a sample: SNR of white noise; without it there is no noise
    snr_msi_db    the same for the msi
    noise_free    probability that an image has no noise even so
    keep_bands    of a batch: `{probability = 0.5, least = 8}`, see `BandVariation`
    flips         of a sample: flips and quarter turns
    vary_light    of a sample: probability of another illuminant, another contrast and clipped highlights
    vary_spectra  of a sample: probability that its principal components are scaled at random, as other materials would
    imperfect     of a sample: probability of small faults that an estimation may leave, see `make_imperfect`
    perturbation  of a sample: errors of the PSF, shift and noise given to a method; without it they are exact
    """

    scale: Scale = (4.0, 4.0)
    psf_fwhm: FwhmRange = (1.0, 1.0)
    shift: Annotated[float, Field(ge=0, le=100)] = 0.0
    srfs: Annotated[
        tuple[
            Annotated[SRFChoice, BeforeValidator(lambda name: {"name": name} if isinstance(name, str) else name)], ...
        ],
        Field(min_length=1),
        BeforeValidator(lambda choices: [choices] if isinstance(choices, str | dict | SRFChoice) else choices),
    ] = (SRFChoice(name=RANDOM_SRF),)
    msi_bands: BandRange = (1, 12)
    snr_hsi_db: SnrRange | None = None
    snr_msi_db: SnrRange | None = None
    noise_free: Probability = 0.0
    keep_bands: BandVariation | None = None
    flips: bool = True
    vary_light: Probability = 0.0
    vary_spectra: Probability = 0.0
    imperfect: Probability = 0.0
    perturbation: PerturbationSettings | None = None
