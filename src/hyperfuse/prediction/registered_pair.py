"""From what the georeference says of a pair to what the images say: one shift for all of it, whatever it was before."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from hyperfuse.estimation.observation import Observation
from hyperfuse.prediction.aligned_pair import AlignedPair
from hyperfuse.prediction.local_shift import estimate_offset_field
from hyperfuse.prediction.misregistration import find_misregistration, warn_of_misregistration
from hyperfuse.prediction.straightening import Straightening, find_straightening

# A field that varies by less, root mean square in fine pixels, is not worth resampling for.
SMALLEST_VARIATION = 0.03
# The point spread looks wider than it is while the HSI is bent, or resampled by splines alone; once straightened it is seen better.
ROUNDS = 2


@dataclass(frozen=True)
class RegisteredPair:
    pair: AlignedPair
    observation: Observation
    straightening: Straightening | None
    """What was done to the HSI, where one shift was not enough."""


def register_pair(
    pair: AlignedPair, observe: Callable[[AlignedPair], Observation], *, local_shift: bool, look_further: bool
) -> RegisteredPair:
    """`observe` estimates how a pair was observed.

    `local_shift` follows a shift that differs from place to place. `look_further` warns of images that are far apart, where the
    estimation does not find them close together.
    """
    observation = observe(pair)
    if look_further:
        warn_of_misregistration(find_misregistration(pair, observation, observe))
    field = None
    if local_shift:
        field = estimate_offset_field(pair, observation)
        if not any(field.used):
            warnings.warn("local shifts not estimated: too few parts of the scene have texture that both images show", stacklevel=2)
        if field.variation < SMALLEST_VARIATION:
            field = None
    straight, straightening = pair, None
    for _ in range(ROUNDS if field is not None or pair.turned_hsi is not None else 0):
        straightening = find_straightening(pair, observation, field)
        straight = straightening.straightened(pair)
        observation = observe(straight)
    return RegisteredPair(straight, observation, straightening)
