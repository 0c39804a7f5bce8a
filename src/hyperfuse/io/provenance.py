"""How a cube came about, as attributes that every format keeps and every conversion carries along: `hyperfuse_method`,
...

What a raster format cannot hold exactly, kept beside it: the exact value of each odd field and the one that the format
gives.

A record is a dict {field: [exact, native]}. On reading, the exact value counts as long as the format still gives what
it gave when the file was written; where somebody has edited a header, warped or subset the file since, the format's own
value wins.
"""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from rasterio.crs import CRS
from rasterio.errors import CRSError

from hyperfuse.io.cube import nodata_of
from hyperfuse.io.grid import grid_of


@dataclass(frozen=True)
class Description:
    """The fields that formats are known to bend, as JSON can hold them."""

    band_name: list[str]
    scale: list[float]
    offset: list[float]
    nodata: str | None
    crs: str | None
    transform: list[float] | None
    attributes: dict[str, str]

    def nodata_number(self) -> float | None:
        if self.nodata is None:
            return None
        try:
            return int(self.nodata)
        except ValueError:
            return float(self.nodata)


def describe(cube: xr.DataArray) -> Description:
    grid, nodata = grid_of(cube), nodata_of(cube)
    return Description(
        band_name=[str(name) for name in cube["band_name"].values],
        scale=cube["scale"].values.tolist(),
        offset=cube["offset"].values.tolist(),
        nodata=None if nodata is None else repr(nodata),
        crs=crs_text(grid.crs),
        transform=transform_list(grid.transform),
        attributes=text_attributes(cube),
    )


def text_attributes(cube: xr.DataArray) -> dict[str, str]:
    """Attributes as texts without NUL or half characters, which no format holds."""
    return {_clean(str(key)): _clean(_as_text(value)) for key, value in cube.attrs.items() if key != "_FillValue"}


def _clean(text: str) -> str:
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8", "replace")


def _as_text(value: Any) -> str:
    return str(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)


def crs_text(crs: CRS | None) -> str | None:
    return str(crs.to_wkt()) if crs else None


def transform_list(transform: Affine | None) -> list[float] | None:
    return None if transform is None else [float(number) for number in transform[:6]]


def record_text(exact: Description, native: Description) -> str | None:
    """The differences as one text of letters, digits and percent signs, or None where there are none."""
    pairs = {name: [value, getattr(native, name)] for name, value in asdict(exact).items()}
    different = {name: pair for name, pair in pairs.items() if not _same(name, *pair)}
    return urllib.parse.quote(json.dumps(different), safe="") if different else None


def with_exact_values(native: Description, text: str | None) -> Description:
    """The native description with the exact values of a record, as far as they still apply."""
    try:
        record = json.loads(urllib.parse.unquote(text)) if text else {}
    except ValueError:
        return native
    if not isinstance(record, dict):
        return native
    kept = {}
    for name, pair in record.items():
        is_valid = VALID.get(name)
        applies = (
            is_valid is not None
            and isinstance(pair, list)
            and len(pair) == 2
            and is_valid(pair[0], len(native.band_name))
        )
        if applies and _same(name, getattr(native, name), pair[1]):
            kept[name] = pair[0]
    return replace(native, **kept)


def _same(name: str, first: Any, second: Any) -> bool:
    if name == "crs" and isinstance(first, str) and isinstance(second, str):
        try:
            return bool(CRS.from_wkt(first) == CRS.from_wkt(second))
        except CRSError:
            return False
    return bool(first == second)


def _is_text_list(value: Any, bands: int) -> bool:
    return isinstance(value, list) and len(value) == bands and all(isinstance(entry, str) for entry in value)


def _is_number_list(value: Any, entries: int) -> bool:
    return isinstance(value, list) and len(value) == entries and all(isinstance(entry, int | float) for entry in value)


def _is_nodata(value: Any, bands: int) -> bool:
    try:
        return value is None or (isinstance(value, str) and float(value) is not None)
    except ValueError:
        return False


def _is_crs(value: Any, bands: int) -> bool:
    try:
        return value is None or (isinstance(value, str) and bool(CRS.from_wkt(value)))
    except CRSError:
        return False


def _is_transform(value: Any, bands: int) -> bool:
    return value is None or _is_number_list(value, 6)


def _is_text_table(value: Any, bands: int) -> bool:
    return isinstance(value, dict) and all(isinstance(entry, str) for entry in value.values())


VALID: dict[str, Callable[[Any, int], bool]] = {
    "band_name": _is_text_list,
    "scale": _is_number_list,
    "offset": _is_number_list,
    "nodata": _is_nodata,
    "crs": _is_crs,
    "transform": _is_transform,
    "attributes": _is_text_table,
}


PREFIX = "hyperfuse_"
OWN_NAME = re.compile(r"hyperfuse_[a-z_]+")


def provenance(
    *,
    method: str | None = None,
    weights: str | None = None,
    inputs: Mapping[str, str | os.PathLike[str]] | None = None,
    options: Mapping[str, Any] | None = None,
    facts: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Attributes for a new cube. `inputs`: role -> file, of which only the name is kept; `options`: what was asked for,
    and nothing that was left alone; `facts`: whatever else is worth keeping.
    """
    said = {key: f"{value}" for key, value in (options or {}).items() if value is not None}
    record = {
        "method": method,
        "weights": weights,
        "version": version("hyperfuse"),
        "date": time_of_writing(),
        "options": " ".join(f"{key}={value}" for key, value in said.items()),
    }
    record |= {role: Path(path).name for role, path in (inputs or {}).items()} | dict(facts or {})
    return {f"{PREFIX}{key}": text for key, text in record.items() if text}


def provenance_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """The part of a cube's attributes that says how it was made, without the prefix."""
    return {key.removeprefix(PREFIX): text for key, text in attributes.items() if OWN_NAME.fullmatch(key)}


def time_of_writing() -> str:
    """Now, in UTC; SOURCE_DATE_EPOCH (seconds since 1970) makes outputs reproducible."""
    fixed = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = datetime.fromtimestamp(int(fixed), UTC) if fixed.isdecimal() else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
