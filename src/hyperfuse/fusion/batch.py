"""Many pairs from a list: a CSV file whose columns are `hsi`, `msi`, `output` and any option of `hyperfuse fuse`.

The whole list is understood before the first pair is fused. Paths are relative to the list's own folder. A pair whose
output exists is done; one that was interrupted is continued; one that fails does not keep the others from being fused.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.fusion.journal import WorkFolder
from hyperfuse.fusion.request import FusionRequest
from hyperfuse.fusion.run import FusionRun, run_fusion
from hyperfuse.io.files import check_target
from hyperfuse.config import OutputConfig

NEEDED = ("hsi", "msi", "output")
PATHS = (*NEEDED, "mask", "hsi_mask")
ALIASES = {"ram": "ram_gb", "co": "options"}
NOT_COLUMNS = ("stored",)
WORDS_FOR = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True)
class PairOutcome:
    """What became of one pair: a run, or why there is none."""

    request: FusionRequest
    run: FusionRun | None = None
    failure: str | None = None
    is_bug: bool = False
    """The failure is one of hyperfuse and not of the input."""
    seconds: float = 0.0

    @property
    def state(self) -> str:
        return "failed" if self.failure is not None else "done already" if self.run is None else "fused"


def read_batch(path: str | Path) -> list[FusionRequest]:
    """Every line of a list, or an error that names the line and the column."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text in UTF-8"
        raise OptionError(f"{path} cannot be read: {reason}", "a CSV file", "check its name") from error
    lines = csv.reader(text.splitlines(), delimiter=_delimiter(text), strict=True)
    try:
        numbered = [(lines.line_num, cells) for cells in lines if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise OptionError(f"{path}, line {lines.line_num}: {error}", "a CSV file", "mend the line") from error
    if len(numbered) < 2:
        raise OptionError(
            f"{path} holds no pairs", "a line of column names and a line per pair", "see `hyperfuse batch --help`"
        )
    columns = _columns(numbered[0][1], path)
    requests = [_request(columns, cells, number, path) for number, cells in numbered[1:]]
    _refuse_equal_outputs(requests, [number for number, _ in numbered[1:]], path)
    return requests


def run_batch(requests: list[FusionRequest], announce: Callable[[int, FusionRequest], None]) -> Iterator[PairOutcome]:
    """One after the other; `announce` is told the number of each before it begins."""
    for number, request in enumerate(requests, start=1):
        if request.target.exists() and not request.overwrite:
            yield PairOutcome(request)
            continue
        announce(number, request)
        start = time.perf_counter()
        try:
            run = run_fusion(_continuing(request))
        except HyperfuseError as error:
            yield PairOutcome(request, failure=str(error), seconds=time.perf_counter() - start)
        except Exception as error:
            words = f"internal error, {type(error).__name__}: {error}"
            yield PairOutcome(
                request, failure=words, is_bug=not isinstance(error, OSError), seconds=time.perf_counter() - start
            )
        else:
            yield PairOutcome(request, run, seconds=time.perf_counter() - start)


def _continuing(request: FusionRequest) -> FusionRequest:
    return replace(request, resume=request.resume and WorkFolder(request.target).journal() is not None)


def _delimiter(text: str) -> str:
    header = text.partition("\n")[0]
    return max(",;\t", key=header.count)


def _columns(header: list[str], path: Path) -> list[str]:
    known = {each.name: each for each in (*fields(FusionRequest), *fields(OutputConfig))}
    columns = []
    for cell in header:
        name = re.sub(r"[-\s]+", "_", cell.strip().lower().removeprefix("--"))
        name = ALIASES.get(name, name)
        if name not in known or name in NOT_COLUMNS:
            positive = name.removeprefix("no_")
            remedy = f"name it {positive!r}, with no in its cells" if name != positive in known else "mend its name"
            raise OptionError(
                f"{path}: column {cell.strip()!r}", f"{', '.join(NEEDED)} or an option of `hyperfuse fuse`", remedy
            )
        columns.append(name)
    missing = [name for name in NEEDED if name not in columns]
    twice = [name for name in columns if columns.count(name) > 1]
    if missing or twice:
        what = f"no column {missing[0]!r}" if missing else f"two columns {twice[0]!r}"
        raise OptionError(f"{path}: {what}", f"each of {', '.join(NEEDED)} once", "mend the first line")
    return columns


def _request(columns: list[str], cells: list[str], number: int, path: Path) -> FusionRequest:
    if len(cells) != len(columns):
        raise OptionError(
            f"{path}, line {number}: {len(cells)} cells", f"{len(columns)}, as in the first line", "mend the line"
        )
    given = {name: cell.strip() for name, cell in zip(columns, cells, strict=True) if cell.strip()}
    empty = [name for name in NEEDED if name not in given]
    if empty:
        raise OptionError(f"{path}, line {number}: no {empty[0]}", "a file name", "mend the line")
    stored_names = {each.name for each in fields(OutputConfig)}
    # What was interrupted is continued, unless the list says otherwise.
    values: dict[str, Any] = {"resume": True}
    try:
        values |= {name: _value(name, cell, path.parent) for name, cell in given.items()}
        stored = OutputConfig(**{name: value for name, value in values.items() if name in stored_names})
        request = FusionRequest(
            **{name: value for name, value in values.items() if name not in stored_names}, stored=stored
        )
        # What exists already is skipped; everything else that can be said against an output is said now.
        check_target(request.target, output=stored, options=request.options, cog=request.cog, overwrite=True)
        return request
    except HyperfuseError as error:
        raise OptionError(f"{path}, line {number}: {error}") from error


def _value(name: str, cell: str, folder: Path) -> Any:
    """A cell as the option that it stands for."""
    if name in PATHS:
        return folder / cell
    if name == "weights":
        return cell if cell.startswith("hf://") else folder / cell
    kinds = {each.name: str(each.type) for each in (*fields(FusionRequest), *fields(OutputConfig))}
    try:
        return _parsed(kinds[name], cell)
    except (ValueError, KeyError) as error:
        raise OptionError(f"{name} {cell!r}", _expected(kinds[name]), "mend the cell") from error


def _parsed(kind: str, cell: str) -> Any:
    if kind.startswith("bool"):
        return WORDS_FOR[cell.lower()]
    if kind.startswith("int"):
        return int(cell)
    if kind.startswith("float"):
        return float(cell)
    if kind.startswith("tuple"):
        numbers = tuple(float(part) for part in re.split(r"[\s,;]+", cell))
        if len(numbers) != kind.count("float"):
            raise ValueError(cell)
        return numbers
    if kind.startswith("Mapping"):
        return dict(_pair(part) for part in re.split(r"[\s;]+", cell))
    return cell


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(text)
    return name, value


def _expected(kind: str) -> str:
    if kind.startswith("bool"):
        return "yes or no"
    if kind.startswith("tuple"):
        return f"{kind.count('float')} numbers"
    return "NAME=VALUE" if kind.startswith("Mapping") else "a number"


def _refuse_equal_outputs(requests: list[FusionRequest], numbers: list[int], path: Path) -> None:
    seen: dict[Path, int] = {}
    for request, number in zip(requests, numbers, strict=True):
        target = request.target.absolute()
        if target in seen:
            raise OptionError(
                f"{path}, lines {seen[target]} and {number}: the same output", "an output for each pair", "rename one"
            )
        seen[target] = number
