"""How a cube came about, as attributes that every format keeps and every conversion carries along: `hyperfuse_method`, ..."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

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
    """Attributes for a new cube. `inputs`: role -> file, of which only the name is kept; `options`: what was asked for, and
    nothing that was left alone; `facts`: whatever else is worth keeping."""
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
