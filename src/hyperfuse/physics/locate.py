"""PSF and shift of a pair whose images may disagree, and the corrections of the msi under which they are found.

Shapes: M msi bands, n coarse pixels.

A pair that agrees is registered at once. Else colour, which shadows, light and tone curves hardly change, tells about
where the images lie (`shading`). There corrections are looked for (`harmonise`), pixels that disagree lose their
weight, and what is left is registered again, by all of the msi or, where gains explain far more, by colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.physics.corrections import Correction, Light, SmoothField, ToneCurves, warped
from hyperfuse.physics.harmonise import (
    EXPLAINS_ALL,
    MUST_LEAVE,
    Bend,
    CoarsePixels,
    Found,
    find_corrections,
    negligible_shares,
)
from hyperfuse.physics.register import (
    SEARCH_STEP,
    Block,
    Pair,
    Registration,
    leading_axes,
    register,
    search_shift,
    unexplained_share,
)
from hyperfuse.physics.sampling import Samples, estimate_noise
from hyperfuse.physics.shading import FEWEST_BANDS, Shades, find_shades, register_by_colour

NOWHERE: Pair = (0.0, 0.0)
# A PSF that is a mean over the detector's pixel is expected to have this standard deviation, in coarse pixels (0.29
# and some blur by optics and motion), and by this factor less than the Gaussian closest to it. It is tried where one of
# that width leaves at most so many times what the Gaussian leaves, and taken before anything else is corrected where
# the best one leaves less than this share.
DETECTOR_SIGMA, LESS_WIDE, DETECTOR_WORTH_TRYING, DETECTOR_LEAVES = 0.35, 0.94, 4.0, 0.5
# Log likelihood that a PSF and shift other than the expected ones must gain, and where the images disagree, so that
# pixels already count as few, a Gaussian PSF.
LEAST_EVIDENCE, LEAST_EVIDENCE_OF_FEW = 10.0, 5.0
# Where the images disagree, misfit is alike in all msi bands and in so many neighbouring pixels.
PIXELS_THAT_DISAGREE_ALIKE = 4
ROUNDS = 3  # of finding corrections and weights, and of registering what they leave
LOST = 1.2  # factor of the misfit by which a round may be worse than the one before
MOVED_LOG_SIGMA, MOVED_SHIFT = 0.01, 0.02  # from one round to the next, of a coarse pixel: less is settled
# Mean weight of pixels that differ by nothing but Gaussian noise, or a little less, and how many times the variance of
# the estimated noise they may have: on pairs of ten training scenes 0.9 to 4 where there is only noise, else above 16.
# A limit among the former costs time, not quality: noise taken for disagreement is looked at more closely.
NOISE_LEAVES, NOISE_AT_MOST = 0.85, 2.5
ENOUGH_THAT_DISAGREE = 3000  # pixels by which PSF and shift are found where the images disagree
# Colour: evidence for another shape of the PSF, the share of the misfit that gains must leave to be used, and how many
# times the negligible misfit is so much that colour is used where brightness says nothing.
LEAST_EVIDENCE_OF_SHAPE, COLOUR_MUST_LEAVE, MUCH_LEFT = 4.0, 0.3, 10.0
MUST_EXPLAIN_COLOUR = 0.9  # share of what varies in colour: half of it agrees by chance where two places are shown
# Corrections are wrong if they leave more than so many times the geometric mean of what nothing and what gains leave,
# and so many times the misfit of colours.
MUCH_LESS_EXPLAINED, COLOUR_SPOILED = 2.0, 1.5
COLOUR_STEP, MOST_COLOURED = 0.75, 1500  # coarse pixels between shifts that are tried, and pixels that are enough
APART_LOG_SIGMA, APART_SHIFT = 0.06, 0.06  # of a coarse pixel: places closer to each other are one


@dataclass(frozen=True)
class Search:
    """What is searched, and where from."""

    samples: Samples
    blocks: list[Block]
    all_blocks: list[Block]
    """Of which `blocks` are the first."""
    start: Pair
    """The expected sigma, or the known one."""
    sigma_known: bool
    shift_known: bool
    harmonise: bool
    """Whether the radiometry of the msi may be corrected."""
    bend: Bend
    results: dict[tuple[int, ...], tuple[Registered, Block]] = field(default_factory=dict)

    @property
    def scale(self) -> Pair:
        return self.samples.scale

    def expected_sigma(self, detector: Pair) -> Pair:
        return _detector_sigma(self.scale) if any(detector) else self.start

    def corrected(self, found: Registered, detector: Pair, blocks: list[Block] | None = None) -> list[Block]:
        """The blocks, or the first of all, with their msi corrected, which is done once."""
        corrected = []
        for index, block in enumerate(self.blocks if blocks is None else blocks):
            key = *map(id, found.corrections), id(found.bend), index
            if key not in self.results:
                # With what was found, so that nothing else gets its id.
                self.results[key] = found, found.correct([block], self.samples.fine_size)[0]
            corrected.append(self.results[key][1])
        return seen_by(corrected, detector)

    def thinned(self) -> Search:
        """The same with as many blocks as are needed where the images disagree."""
        return replace(self, blocks=_enough(self.blocks, ENOUGH_THAT_DISAGREE))

    def seen_by(self, detector: Pair) -> Search:
        """The same with a PSF of another shape."""
        return replace(self, blocks=seen_by(self.blocks, detector))


@dataclass(frozen=True)
class Registered:
    """A PSF and shift, the corrections under which they were found, and a note where they could not be found."""

    registration: Registration
    note: str = ""
    corrections: tuple[Correction, ...] = ()
    bend: SmoothField | None = None
    is_robust: bool = False
    mean_weight: float = 1.0
    by_colour: bool = False
    """Whether only the proportion of the bands was compared, because brightness disagrees."""
    probability: float = 1.0
    """Of a PSF and shift that are about right."""

    @property
    def corrects_anything(self) -> bool:
        return bool(self.corrections) or self.bend is not None

    def correct(self, blocks: list[Block], fine_size: tuple[int, int]) -> list[Block]:
        if not self.corrects_anything:
            return blocks
        return [
            replace(
                block,
                msi=torch.from_numpy(
                    corrected_msi(block.msi.numpy(), self.corrections, self.bend, block.fine_start, fine_size)
                ),
            )
            for block in blocks
        ]

    def msi_noise(self, samples: Samples, corrected: list[Block]) -> Tensor:
        if not self.corrections:
            return samples.msi_noise()
        return torch.stack([estimate_noise(block.msi) for block in corrected]).median(0).values


def corrected_msi(
    msi: NDArray[np.float32],
    corrections: tuple[Correction, ...],
    bend: SmoothField | None,
    start: tuple[int, int],
    fine_size: tuple[int, int],
) -> NDArray[np.float32]:
    for correction in corrections:
        msi = correction.apply(msi, start)
    return msi if bend is None else warped(msi, bend, start, fine_size)


def find_registration(whole: Search) -> tuple[Registered, float]:
    """The PSF, of either shape, and the shift that explain the msi best, and the evidence for them."""
    search = whole.thinned()
    found, begin, agrees = _register_plainly(search)
    if agrees and len(search.blocks) < len(whole.blocks):
        found, agrees = _with_all_blocks(found, whole)
        if not agrees:
            search = whole
            found, begin, agrees = _register_plainly(search)
    if agrees:
        return found, _evidence(found, begin)
    agreeing = _where_most_agrees(whole, found.registration)
    is_known = search.sigma_known and search.shift_known
    if agreeing is None and len(search.blocks[0].msi) >= FEWEST_BANDS and not is_known:
        by_colour = _find_by_colour(search, found)
        if by_colour is not None:
            return by_colour
    robust = _register_robustly(begin, [] if agreeing is None else [agreeing])
    # Noise alone, which all pixels share, is better averaged over all of them.
    if not robust.corrects_anything and robust.mean_weight >= NOISE_LEAVES:
        return found, _evidence(found, begin)
    found, is_plausible = robust, False
    if agreeing is None and not search.sigma_known and not any(found.registration.detector):
        averaging, is_plausible = _averaging(found, begin)
        found = found if averaging is None else replace(found, registration=averaging)
    evidence = _evidence(found, begin)
    if is_plausible and evidence < LEAST_EVIDENCE:
        # Corrections that were found under a PSF of the wrong shape explain little.
        other = _register_robustly(search.seen_by(search.scale))
        if (gained := _evidence(other, begin)) >= LEAST_EVIDENCE:
            found, evidence = other, gained
    return found, evidence


def _register_plainly(search: Search) -> tuple[Registered, Search, bool]:
    """By all pixels alike; with the shape of the PSF, if that is clear, and whether the images agree but for noise."""
    scale = search.scale
    best = register(search.blocks, scale, search.start, NOWHERE, search.sigma_known, search.shift_known)
    found, begin = Registered(best), search
    averaging = None if search.sigma_known else _averaging(found, search)[0]
    if averaging is not None:
        found = Registered(averaging)
        if 1 - averaging.explained < DETECTOR_LEAVES * (1 - best.explained):
            begin = search.seen_by(averaging.detector)
    return found, begin, _agree(begin.blocks, scale, found.registration)


def _with_all_blocks(found: Registered, whole: Search) -> tuple[Registered, bool]:
    """What was found where some blocks agree, refined, and whether all of them do."""
    here = found.registration
    blocks, start = seen_by(whole.blocks, here.detector), whole.expected_sigma(here.detector)
    refined = register(blocks, whole.scale, start, NOWHERE, whole.sigma_known, whole.shift_known, first=here.shift)
    refined = replace(refined, evidence=here.evidence, explained_at_start=here.explained_at_start)
    return Registered(refined), _agree(blocks, whole.scale, refined)


def _agree(blocks: list[Block], scale: Pair, here: Registration) -> bool:
    return 1 - here.explained <= _negligible(blocks, scale, here) or _is_noise(blocks, scale, here)


def _is_noise(blocks: list[Block], scale: Pair, place: Registration) -> bool:
    """Whether what is left of the msi is about the noise of both images, in pixels that are much alike."""
    pixels = CoarsePixels.of(blocks, scale, place.sigma, place.shift, (1, 1))
    fit = pixels.explain([block.msi.numpy() for block in blocks])
    if float(fit.weights.mean()) < NOISE_LEAVES:
        return False
    first, spectra = blocks[0], pixels.spectra
    axes = leading_axes(spectra, torch.ones(spectra.shape[1], dtype=torch.float64))
    response = np.stack(fit.coefficients)[:, :-1] @ axes.numpy().T
    gain = first.operator(scale, place.sigma, place.shift).mean_noise_gain()
    hsi_noise, msi_noise = (estimate_noise(image).numpy() for image in (first.hsi, first.msi))
    expected = gain * msi_noise**2 + response**2 @ hsi_noise**2
    count = fit.misfit.shape[1]
    left = (fit.misfit**2).sum(axis=1) / max(1, count - pixels.predictors.shape[1])
    return bool((left <= NOISE_AT_MOST * expected).all())


def _where_most_agrees(search: Search, plain: Registration) -> _Place | None:
    """The expected PSF and shift, or those of all pixels, if most pixels need nothing else."""
    for place in (_Place(search.start), _Place(plain.sigma, plain.shift, plain.detector)):
        blocks = seen_by(search.blocks, place.detector)
        pixels = CoarsePixels.of(blocks, search.scale, place.sigma, place.shift, (1, 1))
        shares = pixels.explain([block.msi.numpy() for block in blocks]).shares
        if pixels.level(shares) < EXPLAINS_ALL * pixels.level(np.zeros_like(shares)):
            return place
    return None


def _find_by_colour(search: Search, plain: Registered) -> tuple[Registered, float] | None:
    """The same where the images disagree: colour tells PSF and shift, under which corrections are found.

    None where colours disagree as well.
    """
    coloured, shades, is_clear = _register_colours(search, plain.registration)
    if _explained_colour(_enough(search.blocks), search.scale, coloured, shades) < MUST_EXPLAIN_COLOUR:
        return None
    places = [_Place(search.start)]
    begin = search.expected_sigma(coloured.detector)
    # Tone curves and bends may have misled it: then more is explained at the expected PSF and shift.
    for sigma in (coloured.sigma, begin):
        place = _Place(sigma, coloured.shift, coloured.detector)
        if all(_are_apart(place, other, search.scale) for other in places):
            places.append(place)
    robust = _register_robustly(search, places)
    if robust.corrections and _spoils_colours(robust, search, coloured, shades):
        # No curve and no light explains shadows, but either may pretend to.
        robust = _register_robustly(replace(search, harmonise=False), places)
    here = robust.registration
    corrected = search.corrected(robust, here.detector)
    by_all = robust_level(corrected, search.scale, here.sigma, here.shift)
    if robust.corrects_anything:
        known = {"sigma_known": search.sigma_known, "shift_known": search.shift_known}
        begin = search.expected_sigma(here.detector)
        coloured, shades = register_by_colour(_enough(corrected), search.scale, begin, [here.shift], **known)
    some = _enough(corrected)
    before = _shades(seen_by(some, NOWHERE), search.scale, search.start, NOWHERE)
    evidence = _gained(before, shades)
    explained = max(here.explained, _explained_colour(some, search.scale, coloured, shades))
    coloured = replace(coloured, evidence=evidence, explained=explained, explained_at_start=here.explained_at_start)
    by_colour = replace(robust, registration=coloured, by_colour=True), evidence
    by_gains, nothing = _shaded_levels(seen_by(some, coloured.detector), search.scale, coloured, shades)
    if by_gains < COLOUR_MUST_LEAVE * by_all:
        return by_colour
    if not robust.corrects_anything and robust.mean_weight >= NOISE_LEAVES:
        return plain, _evidence(plain, search)
    if not search.sigma_known and not any(here.detector) and not is_clear:
        averaging, _ = _averaging(robust, search)
        robust = robust if averaging is None else replace(robust, registration=averaging)
    of_all = _evidence(robust, search)
    if of_all < LEAST_EVIDENCE_OF_FEW < evidence and by_all > MUCH_LEFT * nothing and robust.bend is None:
        return by_colour
    return robust, of_all


def _register_colours(search: Search, plain: Registration) -> tuple[Registration, Shades, bool]:
    """By colour, under the shape of the PSF that explains it better, and whether that is clear."""
    some, scale = _enough(search.blocks), search.scale
    known = {"sigma_known": search.sigma_known, "shift_known": search.shift_known}
    shifts = [NOWHERE] if search.shift_known else [NOWHERE, plain.shift, *_around(scale)]
    found, shades = register_by_colour(some, scale, search.start, shifts, **known)
    if search.sigma_known:
        return found, shades, True
    averaged, begin = seen_by(some, scale), _detector_sigma(scale)
    other, others = register_by_colour(averaged, scale, begin, [found.shift], **known)
    # Where colour does not tell, all of the msi may.
    least = -LEAST_EVIDENCE_OF_SHAPE if any(plain.detector) else LEAST_EVIDENCE_OF_SHAPE
    gained = _gained(shades, others)
    is_clear = abs(gained) > LEAST_EVIDENCE_OF_SHAPE
    return (other, others, is_clear) if gained > least else (found, shades, is_clear)


def _enough(blocks: list[Block], least: int = MOST_COLOURED) -> list[Block]:
    """The first blocks, which have most texture, with enough pixels, by default for colours."""
    pixels = np.cumsum([int(block.usable.sum()) for block in blocks])
    return blocks[: 1 + int(np.searchsorted(pixels, least))]


def _around(scale: Pair) -> list[Pair]:
    steps = (-COLOUR_STEP, 0.0, COLOUR_STEP)
    return [(y * scale[0], x * scale[1]) for y in steps for x in steps]


def _are_apart(one: _Place, other: _Place, scale: Pair) -> bool:
    """Whether corrections may be found at one of the places only."""
    widths = zip(one.sigma, other.sigma, strict=True)
    moves = zip(one.shift, other.shift, scale, strict=True)
    return (
        one.detector != other.detector
        or max(abs(math.log(a / b)) for a, b in widths) > APART_LOG_SIGMA
        or max(abs(a - b) / side for a, b, side in moves) > APART_SHIFT
    )


def _shaded_levels(blocks: list[Block], scale: Pair, place: Registration, shades: Shades) -> tuple[float, float]:
    """The median misfit under gains, and the negligible one."""
    pixels = CoarsePixels.of(blocks, scale, place.sigma, place.shift, (1, 1), MOST_COLOURED)
    return pixels.level(shades.shares), pixels.level(np.zeros_like(shades.shares))


def _spoils_colours(found: Registered, search: Search, before: Registration, shades: Shades) -> bool:
    """Whether corrections explain far less than gains do, and the proportions of the bands less than before."""
    here, some, scale = found.registration, _enough(search.blocks), search.scale
    corrected = search.corrected(found, here.detector, some)
    raw = seen_by(some, before.detector)
    colours, _ = _shaded_levels(raw, scale, before, shades)
    without = robust_level(raw, scale, before.sigma, before.shift)
    if robust_level(corrected, scale, here.sigma, here.shift) < MUCH_LESS_EXPLAINED * math.sqrt(without * colours):
        return False
    after, _ = _shaded_levels(corrected, scale, here, _shades(corrected, scale, here.sigma, here.shift))
    return after > COLOUR_SPOILED * colours


def _shades(blocks: list[Block], scale: Pair, sigma: Pair, shift: Pair) -> Shades:
    pixels = CoarsePixels.of(blocks, scale, sigma, shift, (1, 1), MOST_COLOURED)
    return find_shades(pixels.blurred([block.msi.numpy() for block in blocks]), pixels.predictors)


def _explained_colour(blocks: list[Block], scale: Pair, place: Registration, shades: Shades) -> float:
    """Share of what varies in the proportion of the bands, adjusted for the number of predictors."""
    pixels = CoarsePixels.of(seen_by(blocks, place.detector), scale, place.sigma, place.shift, (1, 1), MOST_COLOURED)
    blurred, predictors = pixels.blurred([block.msi.numpy() for block in blocks]), pixels.predictors
    bands, count = blurred.shape
    freedom = count * (bands - 1) - bands * predictors.shape[1]
    grey = find_shades(blurred, predictors[:, -1:])
    ratio = count * (bands - 1) / max(1, freedom)
    return float(1 - ratio * math.exp(shades.trimmed - grey.trimmed))


def _gained(before: Shades, after: Shades) -> float:
    """Log likelihood by colour."""
    bands, pixels = after.misfit.shape
    gained = 0.5 * pixels * (bands - 1) * (before.trimmed - after.trimmed) / PIXELS_THAT_DISAGREE_ALIKE
    return float(gained)


def _evidence(found: Registered, search: Search) -> float:
    """Log likelihood that the PSF and shift gain against the expected ones: a Gaussian of the width at the start, and
    no shift.
    """
    best, scale, expected = found.registration, search.scale, (search.start, NOWHERE)
    if not found.is_robust:
        return best.evidence
    gaussian, seen = search.corrected(found, NOWHERE), search.corrected(found, best.detector)
    evidence = best.evidence
    if any(best.detector):
        weights = pixel_weights(seen, scale, best.sigma, best.shift)
        evidence = _log_likelihood(gaussian, seen, scale, expected, (best.sigma, best.shift), weights)
    evidence /= PIXELS_THAT_DISAGREE_ALIKE * len(seen[0].msi)
    if found.bend is not None or evidence < LEAST_EVIDENCE_OF_FEW:
        return evidence
    # The weights suit what was found; the expected ones may explain as much under their own.
    gaussian, seen = (search.corrected(found, each, search.all_blocks) for each in (NOWHERE, best.detector))
    before, after = robust_level(gaussian, scale, *expected), robust_level(seen, scale, best.sigma, best.shift)
    return evidence if after < MUST_LEAVE * before else 0.0


def _averaging(found: Registered, search: Search) -> tuple[Registration | None, bool]:
    """A PSF that averages over the coarse pixel, as a detector does, where it explains the msi better than found; and
    whether it is plausible at all.
    """
    scale, gaussian = search.scale, found.registration
    corrected = search.corrected(found, search.blocks[0].detector)
    averaged = seen_by(corrected, scale)
    if found.is_robust:
        weights = pixel_weights(corrected, scale, gaussian.sigma, gaussian.shift)
    else:
        weights = torch.ones(sum(int(block.usable.sum()) for block in corrected), dtype=torch.float64)
    here = gaussian.sigma, gaussian.shift
    left = unexplained_share(corrected, scale, *here, weights)
    y, x = (max(LESS_WIDE * own, side / math.sqrt(12)) for own, side in zip(gaussian.sigma, scale, strict=True))
    if unexplained_share(averaged, scale, (y, x), gaussian.shift, weights) > DETECTOR_WORTH_TRYING * left:
        return None, False
    alike = PIXELS_THAT_DISAGREE_ALIKE * len(corrected[0].msi) if found.is_robust else 1
    begin, first = _detector_sigma(scale), gaussian.shift
    # On some of the pixels first: without a sign there, not on all.
    for count in sorted({len(_enough(corrected)), len(corrected)}):
        one, other = corrected[:count], averaged[:count]
        some = weights[: sum(int(block.usable.sum()) for block in one)]
        trial = register(other, scale, begin, NOWHERE, False, search.shift_known, some, first)
        evidence = _log_likelihood(one, other, scale, here, (trial.sigma, trial.shift), some)
        if evidence * float(weights.sum() / some.sum()) < alike * LEAST_EVIDENCE:
            return None, True
        first = trial.shift
    evidence += gaussian.evidence
    return replace(trial, evidence=evidence, explained_at_start=gaussian.explained_at_start), True


def _log_likelihood(
    one: list[Block],
    other: list[Block],
    scale: Pair,
    of_one: tuple[Pair, Pair],
    of_other: tuple[Pair, Pair],
    weights: Tensor,
) -> float:
    """By how much it is higher under the PSF and shift of the other blocks, which differ by their detector."""
    ratio = unexplained_share(one, scale, *of_one, weights) / unexplained_share(other, scale, *of_other, weights)
    return 0.5 * float(weights.sum()) * len(one[0].msi) * math.log(ratio)


def _detector_sigma(scale: Pair) -> Pair:
    return DETECTOR_SIGMA * scale[0], DETECTOR_SIGMA * scale[1]


def seen_by(blocks: list[Block], detector: Pair) -> list[Block]:
    return [replace(block, detector=detector) for block in blocks]


def robust_level(blocks: list[Block], scale: Pair, sigma: Pair, shift: Pair) -> float:
    """The median misfit at a PSF and shift, under weights of its own."""
    pixels = CoarsePixels.of(blocks, scale, sigma, shift, (1, 1))
    return pixels.level(pixels.explain([block.msi.numpy() for block in blocks]).shares)


def _negligible(blocks: list[Block], scale: Pair, best: Registration) -> float:
    """The unexplained share of the msi below which it agrees with the hsi everywhere."""
    blurred = [block.operator(scale, best.sigma, best.shift).apply(block.msi) for block in blocks]
    return float(np.exp(np.log(negligible_shares(blurred)).mean()))


@dataclass(frozen=True)
class _Place:
    """A PSF and shift under which corrections are looked for."""

    sigma: Pair
    shift: Pair = NOWHERE
    detector: Pair = NOWHERE


def _register_robustly(search: Search, places: Sequence[_Place] = ()) -> Registered:
    """Alternate between corrections and weights at a PSF and shift, and the PSF and shift under them.

    It starts from those of the given places where the corrections explain most, or searches the shift.
    """
    scale, fine_size, shift_known = search.scale, search.samples.fine_size, search.shift_known
    spread = search.samples.blocks(search.start, spread=True)
    detector = search.blocks[0].detector
    start = search.expected_sigma(detector)
    is_searched = not places
    if is_searched:
        shift = NOWHERE if shift_known else search_shift(search.blocks, scale, start)
        places = [_Place(start, shift, detector)]
    found, best = Registered(Registration(start, NOWHERE, NOWHERE, 0.0, 0.0, 0.0), is_robust=True), math.inf
    tried: tuple[type[Correction], ...] = (ToneCurves, Light) if search.harmonise else ()
    before: Found | None = None
    for turn in range(ROUNDS):
        # A wrong PSF looks like a bend in places: there is none before the first registration.
        allowed: Bend = search.bend if not shift_known and (turn == (1 if is_searched else 0) or found.bend) else "off"
        trials = []
        for place in places:
            pixels = CoarsePixels.of(seen_by(spread, place.detector), scale, place.sigma, place.shift, fine_size)
            corrections = find_corrections(pixels, radiometry=tried, bend=allowed, before=before)
            trials.append((pixels.level(corrections.fit.shares), corrections, place))
            nothing = pixels.level(np.zeros_like(corrections.fit.shares))
            if corrections.corrects_anything and trials[-1][0] < EXPLAINS_ALL * nothing:
                break  # the others need not be tried
        level, corrections, place = min(trials, key=lambda trial: trial[0])
        if level > LOST * best:
            break  # what has been found before explains more
        best, sigma, shift = level, place.sigma, place.shift
        start = search.expected_sigma(place.detector)
        found = replace(found, corrections=corrections.corrections, bend=corrections.bend)
        before = corrections
        corrected = search.corrected(found, place.detector)
        weights = pixel_weights(corrected, scale, sigma, shift)
        if is_searched and turn == 1 and not shift_known and found.corrections and found.bend is None:
            shift = search_shift(corrected, scale, start, weights, shift, SEARCH_STEP)
        first = None if shift_known else shift
        registration = register(corrected, scale, start, NOWHERE, search.sigma_known, shift_known, weights, first)
        widths = zip(registration.sigma, sigma, strict=True)
        moved = max(abs(math.log(new / old)) for new, old in widths) > MOVED_LOG_SIGMA
        moved = moved or math.dist(registration.shift, shift) > MOVED_SHIFT * min(scale)
        places = [_Place(registration.sigma, registration.shift, place.detector)]
        found = replace(found, registration=registration, mean_weight=float(weights.mean()))
        if turn > 0 or not moved or not is_searched:
            # From here on, what has been found is only refined.
            tried = tuple(type(correction) for correction in found.corrections)
        if turn > 0 and not moved:
            break
    return found


def pixel_weights(blocks: list[Block], scale: Pair, sigma: Pair, shift: Pair) -> Tensor:
    """(n,) Of all usable pixels, from 0 for those that disagree to 1."""
    pixels = CoarsePixels.of(blocks, scale, sigma, shift, (1, 1), most=None)
    return torch.from_numpy(pixels.explain([block.msi.numpy() for block in blocks]).weights).clamp_min(1e-6)
