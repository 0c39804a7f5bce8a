"""What can go wrong between a network and what it is given. Each message says what was got, what was expected, and the remedy.

`networks/` stands alone, so these are plain `ValueError`s; the command line turns them into the errors of `hyperfuse.errors`.
"""

from __future__ import annotations


class NetworkError(ValueError):
    """Something that the caller of a network can mend."""

    def __init__(self, got: str, expected: str = "", remedy: str = "") -> None:
        self.got = got
        self.expected = expected
        self.remedy = remedy
        parts = [got, f"expected {expected}" if expected else "", remedy]
        super().__init__("; ".join(part for part in parts if part))


class ChannelCountError(NetworkError):
    """More, or other, channels than the kernels of the network were made for."""


class PairShapeError(NetworkError):
    """An hsi and an msi that cannot be one pair: dimensions, batch or grids that do not fit."""


class PairTypeError(NetworkError):
    """Pixels of another number type than the weights."""


class WeightsFileError(NetworkError):
    """Weights that cannot be read: missing, damaged, of an unknown or newer format, or not fitting their config."""


class MissingExtraError(NetworkError):
    """An optional package is needed for what was asked and is not installed."""
