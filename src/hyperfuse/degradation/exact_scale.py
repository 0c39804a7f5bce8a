"""The scale as an exact fraction p/q, and the largest part of an image on which a fine and a coarse grid both have whole pixels."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hyperfuse.errors import OptionError

# 10/3 typed as 3.3333333 means 10/3; 3.001 means 3001/1000.
LARGEST_DENOMINATOR = 1000
RELATIVE_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Crop:
    """The upper left `fine_size` pixels of an image, which make exactly `coarse_size` coarse ones. Sizes are (rows, columns)."""

    fine_size: tuple[int, int]
    coarse_size: tuple[int, int]


def exact_scale(scale: float | str | Fraction) -> Fraction:
    """3.2 -> 16/5, "10/3" -> 10/3."""
    try:
        wanted = Fraction(str(scale).strip())
    except (ValueError, ZeroDivisionError):
        raise OptionError(f"scale {scale}", "a number of 1 or more such as 4, 3.2 or 10/3") from None
    if wanted < 1:
        raise OptionError(f"scale {scale}", "a number of 1 or more", "the scale is how many fine pixels make a coarse one")
    exact = wanted.limit_denominator(LARGEST_DENOMINATOR)
    if abs(exact - wanted) > RELATIVE_TOLERANCE * wanted:
        raise OptionError(f"scale {scale}", f"a ratio of whole numbers p/q with q up to {LARGEST_DENOMINATOR}", f"nearest: {exact}")
    return exact


def largest_crop(size: tuple[int, int], scale: Fraction) -> Crop:
    """The largest upper left part of an image of this size that p fine pixels divide, for the scale p/q."""
    coarse = tuple(length // scale.numerator * scale.denominator for length in size)
    if 0 in coarse:
        near = ", ".join(_shortest(near) for near in fitting_scales(min(size), scale))
        raise OptionError(
            f"scale {float(scale):.6g} = {scale} on {size[0]}x{size[1]} pixels",
            f"at least {scale.numerator} pixels to a side, for the two grids to meet",
            f"nearby scales that fit: {near}" if near else "choose a smaller scale",
        )
    fine = tuple(int(length * scale) for length in coarse)
    return Crop((fine[0], fine[1]), (coarse[0], coarse[1]))


def fitting_scales(length: int, scale: Fraction, count: int = 3) -> list[Fraction]:
    """The fractions p/q >= 1 nearest to a scale whose p fits into `length` pixels."""
    candidates = {Fraction(max(q, round(scale * q)), q) for q in range(1, length + 1)}
    fitting = [near for near in candidates if near.numerator <= length]
    return sorted(fitting, key=lambda near: (abs(near - scale), near))[:count]


def _shortest(scale: Fraction) -> str:
    decimal = f"{float(scale):.6g}"
    return decimal if Fraction(decimal) == scale else str(scale)
