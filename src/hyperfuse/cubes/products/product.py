"""A product that was opened: its cube, and what a person wants to know about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import xarray as xr
from numpy.typing import NDArray

MOST_NAMED = 16


@dataclass(frozen=True)
class Product:
    cube: xr.DataArray
    notes: dict[str, str] = field(default_factory=dict)
    """Label -> sentence, in the order in which to show them."""


def identity(product: str, sensor: str, acquired: str | None, quantity: str) -> dict[str, str]:
    """What a cube of a product carries wherever it goes; `sensor` is a name that responses are found by, where there are any."""
    facts = {"product": product, "sensor": sensor, "acquired": acquired or "", "quantity": quantity}
    return {key: text for key, text in facts.items() if text}


def detector_note(detectors: Sequence[str], wavelength_nm: NDArray[np.float64]) -> str:
    """ "VNIR 91 bands, 418-993 nm; SWIR 133 bands, 902-2445 nm; both see 902-993 nm" """
    of = np.array(detectors)
    ranges, parts = [], []
    for name in dict.fromkeys(detectors):
        centres = wavelength_nm[of == name]
        ranges.append((centres.min(), centres.max()))
        parts.append(f"{name} {centres.size} bands, {centres.min():.0f}-{centres.max():.0f} nm")
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    if len(ranges) > 1 and low < high:
        parts.append(f"both see {low:.0f}-{high:.0f} nm")
    return "; ".join(parts)


def flag_note(good: NDArray[np.bool_], why: str) -> str:
    bad = int((~good).sum())
    return f"{bad} of {good.size} bands are flagged bad: {why}" if bad else "no band is flagged bad"


def formula(scale: float, offset: float) -> str:
    """ "stored * 0.0001 - 0.1" """
    added = f" {'-' if offset < 0 else '+'} {abs(offset):g}" if offset else ""
    return f"stored * {scale:g}{added}"


def listed(names: Iterable[str]) -> str:
    names = list(names)
    return " | ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")


def selection_note(others: Iterable[str]) -> str:
    """How to get at the rest; in `fuse` the option is called --hsi-variable or --msi-variable."""
    names = listed(others)
    return f"--variable {names} (in fuse --hsi-variable or --msi-variable)" if names else "nothing"
