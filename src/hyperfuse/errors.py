"""The errors of hyperfuse. Every message says what was got, what was expected, and what to do about it.

The command line prints the message of a `HyperfuseError` as one line and exits with code 2; any other exception is a
bug.
"""

from __future__ import annotations


def without_controls(text: str) -> str:
    """Return a text from elsewhere without control characters, which could rewrite a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


class HyperfuseError(Exception):
    """Bad input or an impossible request, which the caller can fix."""

    def __init__(self, got: str, expected: str = "", remedy: str = "") -> None:
        self.got, self.expected, self.remedy = got, expected, remedy
        parts = [got.rstrip("."), f"expected {expected}".rstrip(".") if expected else "", remedy.rstrip(".")]
        message = "; ".join(part for part in parts if part)
        # One line, whatever was in the file's name or header.
        super().__init__(without_controls(message))


class CubeFileError(HyperfuseError):
    """A file cannot be read as a cube: missing, truncated, contradicting its own header, of an unknown type."""


class CubeWriteError(HyperfuseError):
    """A cube cannot be written: target not writable, disk full, data type the format does not know."""


class BandError(HyperfuseError):
    """Bands, wavelengths or SRFs that do not fit each other."""


class GridError(HyperfuseError):
    """Two images whose grids cannot be brought together: no overlap, other CRS, wrong order of resolutions."""


class ValueRangeError(HyperfuseError):
    """Pixels that cannot be used: all nodata, all NaN."""


class OptionError(HyperfuseError):
    """An option or argument outside what is possible."""


class WeightsError(HyperfuseError):
    """Weights that cannot be loaded or do not fit: unknown config, wrong digest, too many bands."""


class RenamedWarning(FutureWarning):
    """A former name of an option, which still works."""


class Cancelled(Exception):  # noqa: N818  (nothing went wrong)
    """A listener to the progress (`progress.listening`) asked to stop, which is not an error."""


class TrainingError(HyperfuseError):
    """A training that cannot continue: a NaN loss, a checkpoint of another experiment."""
