"""How training pairs are simulated, as the table of an experiment file says it.

Other sensors out of one: a part of its spectrum, some of its bands, or neighbouring bands added up.

Shapes: C bands of the scene, K of the selection, H W rows and columns.

Random spectral responses that could be a sensor's: smooth, non-negative, in the order of their wavelengths.

Shapes: C hsi bands, M msi bands.

They are drawn on an axis from 0 to 1 along the hsi's spectrum: wavelength, or its logarithm (real sensors have many
narrow bands in the visible and few wide ones in the infrared), or the number of the band where wavelengths are unknown.
What varies: how much of the spectrum they cover, how regular they stand, how wide they are (from gaps between them to
more than their distance, with a panchromatic one now and then), how flat or pointed, how lopsided, with ripples and
with a small second lobe, as filters have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from scipy.ndimage import median_filter
from torch import Tensor

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BandTable:
    """How many bands there are and, where known, where they lie."""

    count: int
    wavelength_nm: FloatArray | None = None
    fwhm_nm: FloatArray | None = None


class BandVariation(BaseModel):
    """With this `probability` a batch gets other bands than its scenes have, at least `least` of them.

    A contiguous part of the spectrum, a random part of the bands, or means of 2, 3, ... neighbours: each as often as
    the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    probability: Annotated[float, Field(ge=0, le=1)] = 0.5
    least: Annotated[int, Field(ge=1)] = 8


@dataclass(frozen=True, eq=False)
class BandSelection:
    """Which bands are kept, in order, and how many neighbours of these make one."""

    kept: slice | NDArray[np.int64]
    bin_size: int = 1

    def of_cube(self, cube: Tensor) -> Tensor:
        """(C, H, W) -> (K, H, W); a view where that is possible."""
        chosen = cube[self.kept]
        return chosen if self.bin_size == 1 else chosen.reshape(-1, self.bin_size, *cube.shape[1:]).mean(dim=1)

    def of_bands(self, bands: BandTable) -> BandTable:
        """A band made of neighbours lies in their middle and is as wide as their distance and one band's own width."""
        count = len(self._grouped(np.arange(float(bands.count))))
        if bands.wavelength_nm is None:
            return BandTable(count)
        wavelength_nm = self._grouped(bands.wavelength_nm)
        if bands.fwhm_nm is None:
            return BandTable(count, wavelength_nm.mean(axis=1))
        widths = self._grouped(bands.fwhm_nm).mean(axis=1) + np.ptp(wavelength_nm, axis=1)
        return BandTable(count, wavelength_nm.mean(axis=1), widths)

    def _grouped(self, column: FloatArray) -> FloatArray:
        """(C,) -> (K, neighbours)."""
        return column[self.kept].reshape(-1, self.bin_size)


ALL_BANDS = BandSelection(slice(None))


def draw_selection(generator: np.random.Generator, variation: BandVariation | None, bands: int) -> BandSelection:
    if variation is None or generator.random() >= variation.probability or bands <= variation.least:
        return ALL_BANDS
    kind = generator.integers(3)
    if kind == 2 and bands >= 2 * variation.least:
        return _neighbours_added(generator, bands, variation.least)
    # Fewer than all, or it would be no variation.
    count = int(generator.integers(variation.least, bands))
    if kind == 1:
        return BandSelection(np.sort(generator.choice(bands, count, replace=False)))
    start = int(generator.integers(bands - count + 1))
    return BandSelection(slice(start, start + count))


def _neighbours_added(generator: np.random.Generator, bands: int, least: int) -> BandSelection:
    bin_size = int(generator.integers(2, bands // least + 1))
    count = bands // bin_size
    start = int(generator.integers(bands - count * bin_size + 1))
    return BandSelection(slice(start, start + count * bin_size), bin_size)


WHOLE_SPECTRUM = 0.5
SHORTEST_COVERAGE = 0.3
PANCHROMATIC = 0.15
SECOND_LOBE = 0.2
# FWHM over the distance between bands, and exponent of the flank (2 is a Gaussian, 8 nearly a box): both log-uniform.
FILLING = (0.3, 2.0)
FLATNESS = (1.5, 8.0)
# A response narrower than this many hsi bands could fall between two of them.
NARROWEST_IN_BANDS = 1.5
# Neighbours further apart than this many usual distances, of so many around, have a hole (removed water bands) between
# them.
HOLE_IN_SPACINGS = 2.5
NEIGHBOURS = 11


def random_srf(
    generator: np.random.Generator, msi_bands: int, bands: int, wavelength_nm: FloatArray | None = None
) -> FloatArray:
    """(M, C) float64, rows sum to 1, sorted by centre. Without wavelengths they are smooth over the band index instead."""
    logarithmic = generator.random() < 0.5
    position, width = _axis(bands, wavelength_nm, logarithmic=logarithmic)
    centres, fwhm = _layout(generator, msi_bands)
    # A centre in a hole of the spectrum moves to the nearest band, so that every response sees something.
    nearest = np.abs(position - centres[:, None]).argmin(axis=1)
    centres = position[nearest] + width[nearest] * generator.uniform(-0.5, 0.5, msi_bands)
    order = np.argsort(centres)
    centres, fwhm = centres[order], np.maximum(fwhm, NARROWEST_IN_BANDS * width[nearest])[order]
    weights = _curves(generator, position, centres, fwhm) * width
    normalised: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return normalised


def _axis(bands: int, wavelength_nm: FloatArray | None, *, logarithmic: bool) -> tuple[FloatArray, FloatArray]:
    """Where each band lies between 0 and 1, and the stretch of that axis it stands for."""
    if bands == 1:
        return np.zeros(1), np.ones(1)
    position = np.arange(bands, dtype=np.float64) if wavelength_nm is None else wavelength_nm
    if wavelength_nm is not None and logarithmic:
        position = np.log(wavelength_nm)
    length = float(np.ptp(position))
    position = (position - position.min()) / (length if length > 0 else 1.0)
    order = np.argsort(position, kind="stable")
    # Bands at one and the same wavelength still count for something.
    gaps = np.maximum(np.diff(position[order]), 1e-6)
    usual = median_filter(gaps, NEIGHBOURS, mode="nearest")
    half_cells = np.where(gaps > HOLE_IN_SPACINGS * usual, usual, gaps) / 2
    width = np.empty(bands)
    width[order] = np.concatenate([half_cells[:1], half_cells]) + np.concatenate([half_cells, half_cells[-1:]])
    return position, width


def _layout(generator: np.random.Generator, msi_bands: int) -> tuple[FloatArray, FloatArray]:
    """Centres and full widths at half maximum along the axis: each band in a cell of its own of the covered stretch."""
    length = 1.0 if generator.random() < WHOLE_SPECTRUM else generator.uniform(SHORTEST_COVERAGE, 1.0)
    start = generator.uniform(0.0, 1.0 - length)
    # Gamma-distributed cells go from nearly arbitrary (shape 1) to nearly regular.
    cells = generator.gamma(generator.uniform(1.0, 8.0), size=msi_bands) + 1e-3
    cells *= length / cells.sum()
    centres = start + np.cumsum(cells) - cells * generator.uniform(0.35, 0.65, msi_bands)
    fwhm = cells * _log_uniform(generator, *FILLING) * np.exp(0.25 * generator.standard_normal(msi_bands))
    if msi_bands > 1 and generator.random() < PANCHROMATIC:
        wide = generator.integers(msi_bands)
        centres[wide] = start + length * generator.uniform(0.35, 0.65)
        fwhm[wide] = length * generator.uniform(0.5, 1.0)
    return centres, fwhm


def _curves(generator: np.random.Generator, position: FloatArray, centres: FloatArray, fwhm: FloatArray) -> FloatArray:
    """(M, C): a lopsided generalised Gaussian each, rippled, some with a second lobe."""
    count = centres.size
    flatness = _log_uniform(generator, *FLATNESS) * np.exp(generator.uniform(-0.2, 0.2, count))
    skew = generator.uniform(-0.3, 0.3, count)
    ripple = generator.uniform(0.0, 0.2, count)
    frequency, phase = generator.uniform(0.5, 1.5, count), generator.random(count)
    lobe = np.where(generator.random(count) < SECOND_LOBE, generator.uniform(0.0, 0.15, count), 0.0)
    lobe_centre = generator.random(count)

    offset = (position - centres[:, None]) / fwhm[:, None]
    side = np.exp(np.where(offset < 0, skew[:, None], -skew[:, None]))
    main = np.exp2(-(np.abs(2 * offset * side) ** flatness[:, None]))
    main *= 1 + ripple[:, None] * np.cos(2 * math.pi * (frequency[:, None] * offset + phase[:, None]))
    second = np.exp2(-((2 * (position - lobe_centre[:, None]) / fwhm[:, None]) ** 2))
    curves: FloatArray = main + lobe[:, None] * second
    return curves


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return math.exp(generator.uniform(math.log(low), math.log(high)))


RANDOM_SRF = "random"
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
BandSpan = Annotated[
    tuple[int, int], AfterValidator(_ordered), _within(1, 1000, "msi bands"), BeforeValidator(_as_span)
]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ScaleChoices(_Table):
    """One of these scales, each as likely as the others: `scale = {choices = [2, 4, 8]}`."""

    choices: Annotated[tuple[Annotated[float, Field(ge=1, le=1000)], ...], Field(min_length=1)]


def _kind_of_scale(value: Any) -> str:
    return "choices" if isinstance(value, dict | ScaleChoices) else "range"


Scale = Annotated[
    Annotated[ScaleSpan, Tag("range")] | Annotated[ScaleChoices, Tag("choices")], Discriminator(_kind_of_scale)
]


class SRFChoice(_Table):
    """ "random", or whatever `find_response` takes: a sensor with or without a choice of its bands, "rgb+nir", a file."""

    name: Annotated[str, Field(min_length=1)]
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str | dict | SRFChoice) else value


def _as_choice(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class PerturbationSettings(_Table):
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

    scale        of a batch; a number, a range or `{choices = [2, 4, 8]}`. In patches of P pixels it becomes P / round(P
                 / scale),
                 so that whole coarse pixels fill them
    psf_fwhm     of a sample: full width at half maximum of the point spread, in coarse pixels
    shift        of a sample: up to so many fine pixels down or up, and right or left
    responses    of a batch: names, or `{name = "rgb+nir", weight = 2.0}` for what shall come more or less often. Bands
                 that the
                 scene does not cover are left out; where it covers none, or its wavelengths are unknown, a random one
                 is taken
    msi_bands    of a batch: how many bands a random response has; its curves are each sample's own
    snr_hsi_db   of a sample: white noise so much weaker than the image; left out, there is none
    snr_msi_db   the same for the msi
    noise_free   with this probability an image stays without noise all the same
    keep_bands   of a batch: `{probability = 0.5, least = 8}` for parts of the spectrum, some of the bands, or
                 neighbours added up
    flips        of a sample: flips and quarter turns
    vary_light   of a sample: with this probability light of another colour, another contrast, highlights cut off
    belief       of a sample: how far a closed form is misled about point spread, shift and noise; left out, it is told
                 the truth
    """

    scale: Scale = (4.0, 4.0)
    psf_fwhm: FwhmSpan = (1.0, 1.0)
    shift: Annotated[float, Field(ge=0, le=100)] = 0.0
    srfs: Annotated[
        tuple[Annotated[SRFChoice, BeforeValidator(_as_choice)], ...],
        Field(min_length=1),
        BeforeValidator(_as_list),
    ] = (SRFChoice(name=RANDOM_SRF),)
    msi_bands: BandSpan = (1, 12)
    snr_hsi_db: SnrSpan | None = None
    snr_msi_db: SnrSpan | None = None
    noise_free: Annotated[float, Field(ge=0, le=1)] = 0.0
    keep_bands: BandVariation | None = None
    flips: bool = True
    vary_light: Annotated[float, Field(ge=0, le=1)] = 0.0
    perturbation: PerturbationSettings | None = None
