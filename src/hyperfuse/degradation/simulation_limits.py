"""What a simulation can be asked for. Beyond these limits a pair can be made, too, but shows edges, blur or noise and no scene."""

from __future__ import annotations

from hyperfuse.errors import OptionError

NARROWEST_FWHM = 0.01
SMALLEST_DB, LARGEST_DB = -20.0, 300.0


def require_signal_to_noise(decibels: float, image: str) -> None:
    """From noise ten times as strong as the signal to less than any number format holds."""
    if not SMALLEST_DB <= decibels <= LARGEST_DB:
        raise OptionError(
            f"signal-to-noise ratio of the {image} {decibels:g} dB",
            f"{SMALLEST_DB:g} to {LARGEST_DB:g} dB, such as 30",
            "leave it out for no noise",
        )


def require_shift(shift: tuple[float, float], size: tuple[int, int]) -> None:
    """Outside of the scene (rows, columns) its edge is repeated; by more than half of it the HSI would see little else."""
    if not all(abs(length) <= side / 2 for length, side in zip(shift, size, strict=True)):
        raise OptionError(
            f"shift {shift[0]:g} {shift[1]:g} on a scene of {size[0]}x{size[1]} pixels",
            f"at most half of the scene: {size[0] / 2:g} down or up, {size[1] / 2:g} right or left",
            "shifts are in fine pixels",
        )


def require_point_spread(fwhm: float, size: tuple[int, int]) -> None:
    if not NARROWEST_FWHM <= fwhm <= max(size):
        raise OptionError(
            f"point spread of FWHM {fwhm:g}",
            f"a width in fine pixels from {NARROWEST_FWHM:g} to the scene's {max(size)}",
            "leave it out for one coarse pixel",
        )


def require_seed(seed: int) -> None:
    if seed < 0:
        raise OptionError(f"seed {seed}", "a whole number of 0 or more")
