"""What a fused cube says about how it was made, read back into the choices that made it."""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass

import xarray as xr

from hyperfuse.cubes.provenance import provenance_of
from hyperfuse.prediction.fusion_request import HSI

# "psf_fwhm=4.0 shift=(0.0, 1.0) trust=hsi": a value ends where the next name begins.
OPTION = re.compile(r"(\w+)=(.*?)(?= \w+=|$)")


@dataclass(frozen=True)
class RecordedChoices:
    """What is not recorded is as it would be by default; `method` and `weights_digest` are None where nothing is known."""

    record: Mapping[str, str]
    method: str | None
    weights_digest: str | None
    estimate: bool
    response: str | None
    psf_fwhm: float | None
    shift: tuple[float, float] | None
    trusts_hsi: bool
    local_shift: bool
    consistency: bool


def recorded_choices(fused: xr.DataArray) -> RecordedChoices:
    record = provenance_of({key: str(value) for key, value in fused.attrs.items()})
    options = dict(OPTION.findall(record.get("options", "")))
    width, shift = _literal(options.get("psf_fwhm")), _literal(options.get("shift"))
    return RecordedChoices(
        record=record,
        method=record.get("method"),
        weights_digest=record.get("weights"),
        estimate=options.get("estimate") != "False",
        response=options.get("response"),
        psf_fwhm=width if isinstance(width, float) else None,
        shift=shift if isinstance(shift, tuple) else None,
        trusts_hsi=options.get("trust") == HSI,
        local_shift=options.get("local_shift") == "True",
        consistency=options.get("consistency") == "True",
    )


def _literal(text: str | None) -> float | tuple[float, float] | None:
    """A number or a pair of them; anything else was not written by us."""
    try:
        value = literal_eval(text or "")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, int | float) for each in value):
        return float(value[0]), float(value[1])
    return None
