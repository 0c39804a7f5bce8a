"""How a pair was observed: estimation within a memory limit, and co-registration of pairs that lie far apart.

The georeference gives the starting point. The estimation absorbs shifts up to two coarse pixels; larger ones are
searched and reported; a shift that varies over the scene is measured on windows and removed by a warp.
Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.config import ObservationConfig
from hyperfuse.errors import BandError
from hyperfuse.fusion.engine import SMALLEST_MOVE
from hyperfuse.fusion.harmonised import NOTHING_TO_DO, Harmonisation
from hyperfuse.fusion.pair import AlignedPair, require_possible_shift
from hyperfuse.fusion.sample import StreamedSamples, representative_window
from hyperfuse.fusion.warp import Warp, find_band_warp, find_warp
from hyperfuse.io.cube import spread_slices, wavelengths_nm
from hyperfuse.methods.catalogue import AUTO, DEFAULT, FEWEST_COARSER_PIXELS, MOST_PIXELS, suitable_method
from hyperfuse.methods.injection import detail_halo
from hyperfuse.methods.window import Window
from hyperfuse.physics.corrections import Correction, SmoothField
from hyperfuse.physics.estimate import Estimate, KnownParts, estimate_from_samples
from hyperfuse.physics.observation import Observation, SpatialOperator, default_sigma, sigma_from_fwhm
from hyperfuse.physics.offset_field import NODES, OffsetField, WindowOffset, constant_field, fit_offset_field
from hyperfuse.physics.register import BandDisplacement, Block, CoarseOffset, register, search_coarse_offsets
from hyperfuse.physics.sampling import (
    MARGIN_OF_BLOCK,
    WHOLE_IMAGE_FINE_PIXELS,
    PairSamples,
    Samples,
)
from hyperfuse.physics.srf import srf_for
from hyperfuse.progress import progress


def observe(pair: AlignedPair, hsi: xr.DataArray, config: ObservationConfig) -> Observation:
    """Estimate the observation over the usable bands."""
    return estimate_pair(pair, hsi, config).observation


def estimate_pair(pair: AlignedPair, hsi: xr.DataArray, config: ObservationConfig, *, bend: bool = True) -> Estimate:
    """Estimate the observation over the usable bands and the corrections of the MSI; large pairs are read in parts.

    `bend` looks for a shift that varies over the scene.
    """
    if config.shift is not None and config.shift != pair.known_offset:
        require_possible_shift(config.shift, pair.fine_shape[1:])
    sigma = None if config.psf_fwhm is None else (sigma_from_fwhm(config.psf_fwhm),) * 2
    known = KnownParts(
        sigma=sigma or (None if config.estimate else default_sigma(pair.scale)),
        misregistration=config.shift or (None if config.estimate else (0.0, 0.0)),
        srf=None if config.srf is None else _usable_srf(pair, hsi, config),
    )
    centres = wavelengths_nm(hsi)
    return estimate_from_samples(
        _samples(pair),
        None if centres is None else centres[pair.usable_bands],
        known,
        harmonise=config.harmonise == "auto",
        bend="off" if not bend else "force" if config.local_shift else "auto",
    )


def _samples(pair: AlignedPair) -> Samples:
    """By the size of the pair alone, so that the estimate is the same however much memory there is."""
    if max(pair.fine_shape[1:]) > WHOLE_IMAGE_FINE_PIXELS:
        return StreamedSamples.of(pair)
    images = torch.from_numpy(pair.hsi[pair.usable_bands]), torch.from_numpy(pair.msi)
    return PairSamples.of(*images, pair.scale, pair.grid_shift)


def resolve_method(pair: AlignedPair, observation: Observation, method: str, most_bytes: int | None = None) -> str:
    """The method itself, or the one that `auto` chooses on the whole pair, or on as much of it as memory allows."""
    if method != AUTO:
        return method
    (bands, *coarse), (msi_bands, *fine) = pair.coarse_shape, pair.fine_shape
    # Values as they were read, in double precision, and in the unit of the methods.
    if most_bytes is None or 24 * (bands * math.prod(coarse) + msi_bands * math.prod(fine)) <= most_bytes:
        images = torch.from_numpy(pair.hsi[pair.usable_bands]), torch.from_numpy(pair.msi)
        return suitable_method(Window(*images, observation))
    bytes_of_pixel = 24 * (bands + msi_bands * math.prod(pair.scale))
    halo = detail_halo(observation)
    side = int(math.sqrt(most_bytes / bytes_of_pixel)) - 2 * halo
    side = max(FEWEST_COARSER_PIXELS, min(side, MOST_PIXELS))
    return suitable_method(representative_window(pair, observation, side, halo))


# The simplest methods, which make no assumption about the sensors that could be wrong; the side of the checked part in
# coarse pixels, and in those of the reduced resolution.
SIMPLE_METHODS, CHECKED_SIDE, REDUCED_SIDE = ("bicubic", "sfim", "glp"), 64, 15


def warn_of_worse_method(pair: AlignedPair, observation: Observation) -> None:
    """Warn where a simple method is clearly better than the default at reduced resolution, in the middle."""
    side = min(MOST_PIXELS, max(CHECKED_SIDE, math.ceil(REDUCED_SIDE * max(pair.scale))))
    window = representative_window(pair, observation, side, detail_halo(observation))
    if (better := suitable_method(window, SIMPLE_METHODS)) != DEFAULT:
        got = f"at reduced resolution {better} is clearly better than {DEFAULT} on this pair"
        warnings.warn(f"{got}: compare with --method {better}, or let --method auto choose", stacklevel=2)


def _usable_srf(pair: AlignedPair, hsi: xr.DataArray, config: ObservationConfig) -> Tensor:
    found = srf_for(hsi, config.srf, skip_uncovered=config.skip_uncovered)
    if len(found.names) != pair.fine_shape[0]:
        raise BandError(
            f"SRF {found.source} of {len(found.names)} bands for an MSI of {pair.fine_shape[0]}",
            "one SRF band per MSI band, in the same order",
            "name the MSI's own bands (Sentinel-2A:B2,B3,B4,B8) or leave --srf out",
        )
    weights = found.weights[:, pair.usable_bands]
    return torch.from_numpy(weights / weights.sum(axis=1, keepdims=True))


# In coarse pixels: the largest shift that the estimation absorbs, and the smallest that is worth a warning.
ABSORBED = 2.0
REMARKABLE = 1.0
# With this confidence, no farther offsets are searched.
CONFIDENT = 0.85
# Another offset must gain this much confidence and reach this level, or more over few coarse pixels, where chance
# matches are likely.
GAINED, LEAST, MORE_IN_FEW_PIXELS = 0.15, 0.6, 60.0
# Below this confidence the two images are unrelated.
UNRELATED = 0.4
SEARCHED = 256  # coarse pixels along each side of the searched window
BANDS = 24
# The share of the PSF that must lie on known pixels.
ENOUGH_KNOWN = 0.7


@dataclass(frozen=True)
class Misregistration:
    """A shift against the georeference, (down, right) in fine pixels."""

    offset: tuple[float, float]
    coarse_pixels: float
    confidence: float
    absorbed: bool
    """Whether the estimation accounts for it."""
    same_place: bool
    """False where the two images are unrelated at any offset."""


def find_misregistration(
    pair: AlignedPair, observation: Observation, observe: Callable[[AlignedPair], Observation]
) -> Misregistration:
    """The estimated shift or, where its confidence is low, a farther offset with much higher confidence.

    `observe` estimates how a pair was observed, starting from its `grid_shift`.
    """
    own = _as_found(pair, observation.misregistration, observation.confidence, absorbed=True)
    if observation.explained >= CONFIDENT:
        return own
    candidates = search_offsets(pair)
    best = replace(own, same_place=observation.explained >= UNRELATED or not candidates)
    most = observation.explained + GAINED
    for candidate in candidates:
        start = candidate.offset[0] * pair.scale[0], candidate.offset[1] * pair.scale[1]
        with warnings.catch_warnings():
            # Warnings of a trial do not concern the user.
            warnings.simplefilter("ignore", UserWarning)
            trial = observe(moved_start(pair, start))
        offset = start[0] + trial.misregistration[0], start[1] + trial.misregistration[1]
        farther = _as_found(pair, (offset[0] - own.offset[0], offset[1] - own.offset[1]), 0.0, absorbed=False)
        if farther.coarse_pixels < REMARKABLE:
            continue  # the same one
        if trial.explained > max(most, LEAST + min(0.3, MORE_IN_FEW_PIXELS / max(1, candidate.overlap))):
            best, most = _as_found(pair, offset, trial.confidence, absorbed=False), trial.explained
    return best


def warn_of_misregistration(found: Misregistration) -> None:
    """Warn of a pair that is shifted by more than a coarse pixel or shows two places."""
    y, x = found.offset
    distance = f"{y:+.1f} {x:+.1f} fine pixels ({found.coarse_pixels:.1f} HSI pixels)"
    shifted = f"the HSI is shifted by {distance} against its georeference"
    if not found.same_place:
        doubt = "the two images do not seem to show the same place at the same time"
        remedy = "compare them with `hyperfuse register`"
        warnings.warn(f"{doubt} (confidence {found.confidence:.2f}): {remedy}", stacklevel=2)
    elif not found.absorbed:
        limit = f"more than the estimation absorbs ({ABSORBED:g} HSI pixels)"
        warnings.warn(f"{shifted}, {limit}: give --shift {y:.2f} {x:.2f}", stacklevel=2)
    elif found.coarse_pixels > REMARKABLE:
        warnings.warn(f"{shifted}: the estimated shift corrects it", stacklevel=2)


def moved_start(pair: AlignedPair, offset: tuple[float, float]) -> AlignedPair:
    """The pair for an estimation that starts at this offset from the georeference."""
    return replace(pair, grid_shift=(pair.grid_shift[0] + offset[0], pair.grid_shift[1] + offset[1]))


def search_offsets(pair: AlignedPair) -> list[CoarseOffset]:
    """The offsets at which the images correlate best in the middle of the scene."""
    middles = [(max(0, (size - SEARCHED) // 2), size) for size in pair.coarse_shape[1:]]
    rows, columns = (slice(start, min(size, start + SEARCHED)) for start, size in middles)
    usable = np.flatnonzero(pair.usable_bands)
    bands = usable[np.unique(np.linspace(0, usable.size - 1, min(BANDS, usable.size)).round().astype(int))]
    return search_coarse_offsets(pair.hsi_source.values(rows, columns, bands), _msi_on_coarse_grid(pair, rows, columns))


def _msi_on_coarse_grid(pair: AlignedPair, rows: slice, columns: slice) -> NDArray[np.float32]:
    """(M, h, w) The MSI on the HSI's grid, by georeference; NaN where much of it is missing."""
    sigma = default_sigma(pair.scale)
    fine, shifts = [], []
    for axis, span in enumerate((rows, columns)):
        scale, shift, size = pair.scale[axis], pair.grid_shift[axis], pair.fine_shape[1 + axis]
        first = min(size - 1, max(0, math.floor((span.start - 1) * scale + shift)))
        fine.append(slice(first, max(first + 1, min(size, math.ceil((span.stop + 1) * scale + shift)))))
        shifts.append(shift + span.start * scale - first)
    msi = torch.from_numpy(pair.msi_values(fine[0], fine[1]))
    sizes = [(part[0].stop - part[0].start, part[1].stop - part[1].start) for part in (fine, (rows, columns))]
    operator = SpatialOperator.from_psf(sizes[0], sizes[1], pair.scale, sigma, (shifts[0], shifts[1]))
    known = torch.isfinite(msi)
    weight = operator.apply(known.to(msi))
    seen = operator.apply(torch.nan_to_num(msi)) / weight.clamp_min(1e-6)
    return seen.masked_fill(weight < ENOUGH_KNOWN, torch.nan).numpy()


def _as_found(pair: AlignedPair, offset: tuple[float, float], confidence: float, *, absorbed: bool) -> Misregistration:
    coarse = math.hypot(offset[0] / pair.scale[0], offset[1] / pair.scale[1])
    return Misregistration(offset, coarse, confidence, absorbed, same_place=True)


WINDOW = 16  # coarse pixels along each side
MOST_WINDOWS = 12  # along each side of the scene
FEWEST_PIXELS = 60
# A window shows its mean offset; once the HSI is warped by it, the next pass shows the remainder.
MOST_PASSES = 3
SETTLED = 0.05  # root mean square, fine pixels


def estimate_offset_field(pair: AlignedPair, observation: Observation) -> OffsetField:
    """Measure the offset of windows around the observation's shift, and fit a smooth field to them."""
    places = [(rows, columns) for rows in _spans(pair.coarse_shape[1]) for columns in _spans(pair.coarse_shape[2])]
    fine_size, start = pair.fine_shape[1:], observation.misregistration
    field, warped = constant_field(fine_size, start, (0.0, 0.0)), pair
    with progress("Local shifts", MOST_PASSES * len(places)) as advance:
        for _ in range(MOST_PASSES):
            windows = []
            for rows, columns in places:
                windows.append(_window_offset(warped, observation, rows, columns, field))
                advance(1)
            before = field
            field = fit_offset_field([window for window in windows if window is not None], fine_size, start)
            if field.difference(before) < SETTLED:
                break
            warped = find_warp(pair, observation, field).warped(pair)
    return field


def _spans(size: int) -> list[slice]:
    """Windows along one axis: half overlapping, at least three where possible, spread evenly over long axes."""
    side = min(size, WINDOW)
    count = max(3 if size >= 1.5 * side else 1, min(MOST_WINDOWS, round(2 * (size - side) / side) + 1))
    return spread_slices(size, side, count, overlap=True)


def _window_offset(
    pair: AlignedPair, observation: Observation, rows: slice, columns: slice, removed: OffsetField
) -> WindowOffset | None:
    """The total offset of one window, including what `removed` took out; None where too little is known."""
    block = _block(pair, observation, rows, columns)
    if block is None:
        return None
    found = register([block], observation.scale, observation.sigma, (0.0, 0.0), sigma_known=True)
    usable = block.usable.numpy()
    place = [
        float((np.flatnonzero(usable.any(axis=1 - axis)).mean() + span.start + 0.5) * scale - 0.5 + shift)
        for axis, (span, scale, shift) in enumerate(zip((rows, columns), pair.scale, pair.grid_shift, strict=True))
    ]
    base = removed.at(*(np.array([axis]) for axis in place))[:, 0]
    return WindowOffset(
        place=(place[0], place[1]),
        offset=(float(base[0]) + found.shift[0], float(base[1]) + found.shift[1]),
        error=found.shift_error,
        explained=found.explained,
    )


def _block(pair: AlignedPair, observation: Observation, rows: slice, columns: slice) -> Block | None:
    """The HSI under the SRF beside the MSI: no regression on many bands in few pixels is needed then."""
    fine = [
        slice(
            max(0, math.floor((span.start - MARGIN_OF_BLOCK) * scale + shift)),
            min(size, math.ceil((span.stop + MARGIN_OF_BLOCK) * scale + shift)),
        )
        for span, scale, shift, size in zip(
            (rows, columns), pair.scale, observation.shift, pair.fine_shape[1:], strict=True
        )
    ]
    if any(part.stop - part.start < 2 for part in fine):
        return None
    spectra = torch.from_numpy(pair.hsi_values(rows, columns)[pair.usable_bands])
    hsi = torch.einsum("mc,cyx->myx", observation.srf.to(spectra), torch.nan_to_num(spectra))
    msi_values = torch.from_numpy(pair.msi_values(fine[0], fine[1]))
    msi = torch.nan_to_num(msi_values)
    local = observation.in_window((rows.start, columns.start), (fine[0].start, fine[1].start))
    hsi_known = torch.isfinite(spectra[torch.isfinite(spectra).flatten(1).any(1)]).all(0)
    msi_known = torch.isfinite(msi_values).all(0)
    usable = PairSamples(hsi, msi, hsi_known, msi_known, observation.scale, local.shift).usable(observation.sigma)
    if int(usable.sum()) < FEWEST_PIXELS or not (_is_textured(hsi[:, usable]) and _is_textured(msi.flatten(1))):
        return None
    return Block(hsi, msi, local.shift, usable, detector=observation.detector)


def _is_textured(values: torch.Tensor) -> bool:
    """Whether any band varies by more than rounding."""
    return bool((values.double().std(1) > 1e-6 * values.double().abs().mean(1) + 1e-30).any())


# A field with a smaller standard deviation, in fine pixels, does not justify resampling.
SMALLEST_VARIATION = 0.03
# Below this share of the scene, a disagreement is not worth a word.
REMARKABLE_SHARE = 0.01
# The PSF is overestimated before the warp; a second round corrects it.
ROUNDS = 2


@dataclass(frozen=True)
class RegisteredPair:
    """A pair ready to be fused, and how it became so."""

    recorded: AlignedPair
    """Its MSI as it was recorded; the HSI is warped where one shift was not enough."""
    pair: AlignedPair
    """The same with an MSI that is corrected."""
    observation: Observation
    warp: Warp | None = None
    """What warped the HSI where one shift was not enough."""
    harmonisation: Harmonisation = NOTHING_TO_DO
    bend: SmoothField | None = None
    displacement: BandDisplacement | None = None
    """Of the HSI's bands against each other, which was corrected."""

    @property
    def change_mask(self) -> xr.DataArray:
        """Lazy, of one band: how far the MSI is used, from 0 to 1."""
        return self.harmonisation.weight_map(self.recorded)


def register_pair(
    pair: AlignedPair,
    estimate: Callable[[AlignedPair, bool], Estimate],
    *,
    local_shift: bool,
    search_further: bool,
    reconcile: bool = True,
    trust: str = "msi",
) -> RegisteredPair:
    """Register the two images of a pair, and correct what keeps them from agreeing.

    `estimate` estimates a pair, with or without a shift that varies over the scene; `local_shift` insists on one.
    `search_further` warns of images that lie farther apart than the estimation can absorb. Where the shift varies, the
    image whose georeference is not the one to `trust` is warped.
    """
    found = estimate(pair, True)
    displacement = found.displacement if pair.rotated_hsi is None else None
    if displacement is not None:
        corrected = Harmonisation(found.corrections).applied(pair)
        pair = find_band_warp(corrected, found.observation, displacement).warped(pair)
        found = estimate(pair, True)
    observation = found.observation
    if search_further:
        misregistration = find_misregistration(pair, observation, lambda each: estimate(each, False).observation)
        warn_of_misregistration(misregistration)
    bend = found.bend
    field = None if bend is None else _as_offset_field(bend, pair.fine_shape[1:], observation)
    if local_shift and field is None:
        field = _field_of_windows(pair, observation)
    offsets, warped, warp = None, pair, None
    if trust == "hsi" and pair.rotated_hsi is None:
        offsets = _offsets(bend, observation.misregistration)
        observation = replace(observation, shift=observation.grid_shift)
    else:
        for _ in range(ROUNDS if field is not None or pair.rotated_hsi is not None else 0):
            warp = find_warp(Harmonisation(found.corrections).applied(pair), observation, field)
            warped = warp.warped(pair)
            found = estimate(warped, False)
            observation = found.observation
    agreement = None if found.agreement.is_perfect or not reconcile else found.agreement
    harmonisation = Harmonisation(found.corrections, offsets, observation, agreement)
    return RegisteredPair(warped, harmonisation.applied(warped), observation, warp, harmonisation, bend, displacement)


def warn_of_differences(found: Estimate) -> None:
    """Say in one line what a fusion would correct."""
    if differences := _differences(found.corrections, found.bend):
        warnings.warn(f"the images differ by {', '.join(differences)}, which `fuse` corrects", stacklevel=2)


def _differences(corrections: tuple[Correction, ...], bend: SmoothField | None) -> list[str]:
    shift = [] if bend is None else [f"a shift that varies by {bend.variation:.1f} fine pixels"]
    return [correction.description for correction in corrections] + shift


def warn_of_corrections(found: RegisteredPair) -> None:
    """Say in one line what was corrected, and how much of the scene disagrees."""
    harmonisation = found.harmonisation
    done = _differences(harmonisation.corrections, found.bend)
    if harmonisation.agreement is not None and harmonisation.agreement.differing > REMARKABLE_SHARE:
        share = f"{harmonisation.agreement.differing:.1%} of the scene"
        done.append(f"{share} that shows something else or in another light (see --change-mask)")
    if found.displacement is not None:
        y, x = (2 * abs(each) for each in found.displacement.slope)
        apart = f"the HSI's bands lie up to {math.hypot(y, x):.1f} fine pixels apart (keystone)"
        warnings.warn(f"{apart}: brought to one place", stacklevel=2)
    if done:
        warnings.warn(f"the MSI disagrees with the HSI and was corrected for {', '.join(done)}", stacklevel=2)


def _offsets(bend: SmoothField | None, misregistration: tuple[float, float]) -> SmoothField | None:
    """The total offset of the MSI; None where it is too small to resample for."""
    if bend is None and max(abs(distance) for distance in misregistration) < SMALLEST_MOVE:
        return None
    coefficients = np.zeros((2, 1, 1)) if bend is None else bend.coefficients.copy()
    coefficients[:, 0, 0] += misregistration
    return SmoothField(coefficients)


def _as_offset_field(bend: SmoothField, fine_size: tuple[int, int], observation: Observation) -> OffsetField:
    shares = [(np.linspace(0, size - 1, NODES) + 0.5) / size for size in fine_size]
    start = observation.misregistration
    offsets = bend.at(*shares) + np.array(start)[:, None, None]
    return replace(constant_field(fine_size, start, (0.0, 0.0)), offsets=offsets)


def _field_of_windows(pair: AlignedPair, observation: Observation) -> OffsetField | None:
    field = estimate_offset_field(pair, observation)
    if not any(field.used):
        reason = "too few parts of the scene have texture that both images show"
        warnings.warn(f"local shifts not estimated: {reason}", stacklevel=2)
    return field if field.variation >= SMALLEST_VARIATION else None
