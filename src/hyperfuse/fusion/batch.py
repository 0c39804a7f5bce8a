"""Many pairs from a list: a CSV file with the columns `hsi`, `msi`, `output` and any option of `hyperfuse fuse`.

The whole list is checked before the first pair is fused. Paths are relative to the list's folder. A pair whose output
exists is done; an interrupted one is resumed; a failed one does not stop the others.
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hyperfuse.config import FuseConfig, field_names, option_of, with_current_names
from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.fusion.kept import WorkFolder
from hyperfuse.fusion.run import FusionRun, check_request, run_fusion

NEEDED = ("hsi", "msi", "output")


@dataclass(frozen=True)
class BatchPair:
    hsi: Path
    msi: Path
    output: Path
    config: FuseConfig


@dataclass(frozen=True)
class PairOutcome:
    """The run of one pair, or why there is none."""

    pair: BatchPair
    run: FusionRun | None = None
    failure: str | None = None
    is_bug: bool = False
    """Whether the failure is a bug of hyperfuse and not of the input."""
    seconds: float = 0.0

    @property
    def state(self) -> str:
        return "failed" if self.failure is not None else "done already" if self.run is None else "fused"


def read_batch(path: str | Path, **defaults: Any) -> list[BatchPair]:
    """Every line of a list, or an error that names line and column; `defaults` apply where a line says nothing."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise OptionError(f"{path} cannot be read: {reason}", "a CSV file", "check its name") from error
    delimiter = max(",;\t", key=text.partition("\n")[0].count)
    lines = csv.reader(text.splitlines(), delimiter=delimiter, strict=True)
    try:
        numbered = [(lines.line_num, cells) for cells in lines if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise OptionError(f"{path}, line {lines.line_num}: {error}", "a CSV file", "fix the line") from error
    if len(numbered) < 2:
        expected = "a line of column names and a line per pair"
        raise OptionError(f"{path} holds no pairs", expected, "see `hyperfuse batch --help`")
    columns = _columns(numbered[0][1], path)
    given = {name: value for name, value in defaults.items() if value is not None}
    pairs = [_pair(columns, cells, f"{path}, line {number}", path.parent, given) for number, cells in numbered[1:]]
    seen: dict[Path, int] = {}
    for pair, (number, _) in zip(pairs, numbered[1:], strict=True):
        first = seen.setdefault(pair.output.absolute(), number)
        if first != number:
            got = f"{path}, lines {first} and {number}: the same output"
            raise OptionError(got, "an output for each pair", "rename one")
    return pairs


def run_batch(pairs: list[BatchPair], announce: Callable[[int, BatchPair], None]) -> Iterator[PairOutcome]:
    """Fuse one pair after the other; `announce` gets the number of each before it starts."""
    for number, pair in enumerate(pairs, start=1):
        if pair.output.exists() and not pair.config.overwrite:
            yield PairOutcome(pair)
            continue
        announce(number, pair)
        start, outcome = time.perf_counter(), PairOutcome(pair)
        resume = pair.config.resume and WorkFolder(pair.output).journal() is not None
        try:
            run = run_fusion(pair.hsi, pair.msi, pair.output, pair.config.replace(resume=resume))
            outcome = replace(outcome, run=run)
        except HyperfuseError as error:
            outcome = replace(outcome, failure=str(error))
        except Exception as error:
            message = f"internal error, {type(error).__name__}: {error}"
            outcome = replace(outcome, failure=message, is_bug=not isinstance(error, OSError))
        yield replace(outcome, seconds=time.perf_counter() - start)


def _columns(header: list[str], path: Path) -> list[str]:
    known = field_names(FuseConfig) | {name: name for name in NEEDED}
    columns = []
    for cell in header:
        name = re.sub(r"[-\s]+", "_", cell.strip().lower().removeprefix("--"))
        if name not in known:
            positive = name.removeprefix("no_")
            remedy = f"name it {positive!r}, with no in its cells" if name != positive in known else "fix its name"
            expected = f"{', '.join(NEEDED)} or an option of `hyperfuse fuse`"
            raise OptionError(f"{path}: column {cell.strip()!r}", expected, remedy)
        (current,) = with_current_names({name: cell}, FuseConfig.model_fields)
        columns.append(known[current])
    missing = [name for name in NEEDED if name not in columns]
    twice = [name for name in columns if columns.count(name) > 1]
    if missing or twice:
        what = f"no column {missing[0]!r}" if missing else f"two columns {twice[0]!r}"
        raise OptionError(f"{path}: {what}", f"each of {', '.join(NEEDED)} once", "fix the first line")
    return columns


def _pair(columns: list[str], cells: list[str], line: str, folder: Path, defaults: dict[str, Any]) -> BatchPair:
    if len(cells) != len(columns):
        raise OptionError(f"{line}: {len(cells)} cells", f"{len(columns)}, as in the first line", "fix the line")
    given = {name: cell.strip() for name, cell in zip(columns, cells, strict=True) if cell.strip()}
    empty = [name for name in NEEDED if name not in given]
    if empty:
        raise OptionError(f"{line}: no {empty[0]}", "a file name", "fix the line")
    hsi, msi, output = (folder / given.pop(name) for name in NEEDED)
    options: dict[str, Any] = {
        name: folder / cell if option_of(FuseConfig, name).is_path and not cell.startswith("hf://") else cell
        for name, cell in given.items()
    }
    if "workers" in options or "cluster" in options:
        defaults = {name: value for name, value in defaults.items() if name not in ("workers", "cluster")}
    try:
        # An interrupted pair is resumed unless the list says otherwise.
        config = FuseConfig(**{"resume": True} | defaults | options)
        # Existing outputs are skipped; everything else that speaks against an output is reported now.
        check_request(hsi, msi, output, config.replace(overwrite=True))
    except HyperfuseError as error:
        raise OptionError(f"{line}: {error}") from error
    return BatchPair(hsi, msi, output, config)
