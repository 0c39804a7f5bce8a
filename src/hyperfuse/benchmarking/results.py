"""Results of a benchmark on disk: what was requested, when and where it ran, and one line of JSON per result; and the
numbers printed in the paper.

Lines are appended whole, so that a run killed at any moment can be resumed. Files of earlier versions, which call the
model `competitor` and the SRF `response`, can be read. The folder `paper_tables` holds the paper's scores on seven data
sets, two unseen sensors and fractional scales, its ablations and its table of efficiency.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AliasChoices, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.atomic import write_text

RESULTS, RECORD = "results.jsonl", "benchmark.json"
BLIND, ORACLE, NOMINAL = "blind", "oracle", "nominal"
SCORED, UNFIT, FAILED = "scored", "does not fit", "failed"


@dataclass(frozen=True)
class CaseName:
    """Identifies a case in all results and tables."""

    dataset: str
    scene: str
    srf: Annotated[str, Field(validation_alias=AliasChoices("srf", "response"))]
    scale: float
    condition: str

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys([self.scene, self.srf, f"x{self.scale:g}", self.condition]))


Key = tuple[CaseName, str, str]


@dataclass(frozen=True)
class Result:
    """What one model made of one case. A network that is not made for the case's bands does not fit: no failure."""

    case: CaseName
    model: Annotated[str, Field(validation_alias=AliasChoices("model", "competitor"))]
    knowledge: str
    state: str
    psnr_db: float | None = None
    spectral_angle_degrees: float | None = None
    ergas: float | None = None
    ssim: float | None = None
    seconds: float | None = None
    cpu_seconds: float | None = None
    peak_bytes: int | None = None
    message: str = ""
    """Why it failed or does not fit, or its warnings."""
    is_bug: bool = False

    @property
    def key(self) -> Key:
        return self.case, self.model, self.knowledge

    @property
    def column(self) -> str:
        """Of a table: the model and what it is given."""
        return self.model if self.knowledge == BLIND else f"{self.model} ({self.knowledge})"


RESULT = TypeAdapter(Result)


def columns_of(results: Iterable[Result]) -> list[str]:
    """In the order of their first results, blind ones before oracles."""
    return list(dict.fromkeys(each.column for each in sorted(results, key=lambda each: each.knowledge != BLIND)))


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the `count` results that have the score."""

    mean: float
    deviation: float
    count: int


def mean_score(results: Iterable[Result], name: str) -> Spread | None:
    values = [value for value in (getattr(result, name) for result in results) if value is not None]
    return Spread(float(np.mean(values)), float(np.std(values)), len(values)) if values else None


class ResultsFile:
    """Results as they come in. Existing ones are read first; an incomplete line at the end is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_key: dict[Key, Result] = {}
        if path.exists():
            complete = path.read_bytes().rfind(b"\n") + 1
            os.truncate(path, complete)
            self._by_key = {result.key: result for result in read_results(path)}

    def is_done(self, key: Key) -> bool:
        """Failures are tried again."""
        return key in self._by_key and self._by_key[key].state != FAILED

    def add(self, result: Result) -> None:
        """Append one line in one write, and return when it is on the disk."""
        self._by_key[result.key] = result
        with self.path.open("ab", buffering=0) as file:
            file.write(RESULT.dump_json(result) + b"\n")
            os.fsync(file.fileno())

    def all(self) -> list[Result]:
        return list(self._by_key.values())


def read_results(path: Path) -> Iterable[Result]:
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            yield RESULT.validate_json(line)
        except ValidationError as error:
            got = f"{path}, line {number}: {error.errors()[0]['msg']}"
            raise CubeFileError(got, "a result of `hyperfuse benchmark`", "choose another folder") from error


def results_in(folder: Path) -> list[Result]:
    """All results of a folder, which must have some."""
    results = ResultsFile(folder / RESULTS).all()
    if not results:
        raise OptionError(f"no results in {folder}", "a folder of `hyperfuse benchmark`", "name scenes to benchmark on")
    return results


def open_folder(folder: Path, request: Mapping[str, Any], command: str) -> None:
    """Start or resume: a folder with results of another request, or with other files, is refused."""
    path = folder / RECORD
    sessions: list[dict[str, Any]] = []
    if path.is_file():
        before = read_record(folder)
        _refuse_another(folder, before["request"], json.loads(json.dumps(request)))
        sessions = before["sessions"]
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        expected = "a new folder, or one of an earlier `hyperfuse benchmark`"
        raise OptionError(f"{folder} holds other files", expected, "choose another -o")
    folder.mkdir(parents=True, exist_ok=True)
    session = current_session(command)
    if not sessions or sessions[-1] | {"date": ""} != session | {"date": ""}:
        sessions = [*sessions, session]
    write_text(path, json.dumps({"request": request, "sessions": sessions}, indent=1) + "\n")


def read_record(folder: Path) -> dict[str, Any]:
    """The `request` of a folder of results, and the `sessions` that ran it."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        request = {"models": record["request"].get("competitors"), **record["request"]}
        return {"request": request, "sessions": list(record["sessions"])}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        expected = "a folder of `hyperfuse benchmark`"
        raise OptionError(f"{path} cannot be read ({error})", expected, "choose another folder") from error


def _refuse_another(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now:
        if before.get(name) != now[name]:
            got = f"{folder} holds results of another request: {name} {_difference(before.get(name), now[name])}"
            expected = "the same request as before, to resume it"
            raise OptionError(got, expected, "choose another -o, or repeat the request")


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        return f"differ in {', '.join(changed[:3])}{f' and {len(changed) - 3} more' if len(changed) > 3 else ''}"
    return f"were {_listed(before)} and are now {_listed(now)}"


def _listed(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in value) or "none"
    return str(value)


def current_session(command: str) -> dict[str, Any]:
    """When, with which code and on which machine."""
    threads = torch.get_num_threads()
    machine = f"{_processor()}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}, {_gigabytes():.0f} GB"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "hyperfuse": version("hyperfuse"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine,
    }


def session_line(session: Mapping[str, Any]) -> str:
    commit = f"commit {session['commit']}, " if session["commit"] else ""
    versions = f"hyperfuse {session['hyperfuse']}, {commit}torch {session['torch']}"
    return f"{session['date']}: {versions}, {session['machine']}."


def _commit() -> str | None:
    """Of the work tree that the package lies in; None where it is installed elsewhere."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    try:
        commit = git("rev-parse", "--short=9", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + (" with changes" if changed else "")


def _processor() -> str:
    with suppress(OSError):
        if named := re.search(r"^model name\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE):
            return named[1].strip()
    return platform.processor() or platform.machine()


def _gigabytes() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError, AttributeError):
        return float("nan")


TRAINED_SCALE = 4.0
# Data sets whose test blocks lie in the scene that the paper's training patches cover.
OVERLAPPING = ("PaviaC", "PaviaU", "Chikusei", "Botswana", "WDC")
METRICS = ("psnr_db", "spectral_angle_degrees", "ergas", "ssim")


@dataclass(frozen=True)
class PrintedFigure:
    """As printed, digits included; an absent deviation was not printed."""

    mean: str
    deviation: str = ""

    @property
    def text(self) -> str:
        return f"{self.mean} ± {self.deviation}" if self.deviation else self.mean


@dataclass(frozen=True)
class PrintedScores:
    """One method, or one variant of an ablation, on one data set at one scale. The paper's own method is SSA."""

    table: str
    dataset: str
    scale: float
    method: str
    figures: dict[str, PrintedFigure]
    """By the names of METRICS."""
    parameters_millions: float | None = None
    flops_g: float | None = None

    @property
    def ergas_as_defined(self) -> float:
        """ERGAS with the factor 100/scale of its definition; above x4 the paper's table has 100/4 at every scale."""
        return float(self.figures["ergas"].mean) * min(1.0, TRAINED_SCALE / self.scale)

    @property
    def warnings(self) -> list[str]:
        return [text.format(self) for applies, text in WARNINGS if applies(self)]


WARNINGS: tuple[tuple[Callable[[PrintedScores], bool], str], ...] = (
    (
        lambda printed: True,
        'Numbers "as printed" are the paper\'s. It does not say how the HSI was blurred, and scaling and test images '
        "may differ: read them as orders of magnitude, not as a ranking.",
    ),
    (
        lambda printed: printed.dataset in OVERLAPPING,
        "The paper's patches cover the whole scene of {0.dataset}: it was tested on pixels that it was trained on.",
    ),
    (
        lambda printed: printed.scale > TRAINED_SCALE,
        "Above x4 the paper's ERGAS has the factor 100/4 at every scale, not 100/scale as it is defined; the value by "
        "definition is in brackets.",
    ),
    (
        lambda printed: printed.table == "unseen",
        "On {0.dataset}, which it had not seen, the paper's network was fine-tuned for 500 iterations first.",
    ),
    (
        lambda printed: printed.table == "fractional" and printed.method in ("DCFormer", "PSTUN", "LRTN"),
        "At fractional scales DCFormer, PSTUN and LRTN are resized by bicubic interpolation from their x4 output.",
    ),
)


@dataclass(frozen=True)
class PrintedEfficiency:
    """On an RTX 4090. The caption says 191 bands; the parameters of the compared methods are those for 31."""

    method: str
    parameters_millions: float
    flops_g: float
    milliseconds: float
    peak_memory_gb: float
    megapixels_per_second: float


def printed_scores(dataset: str | None = None, scale: float | None = None) -> list[PrintedScores]:
    """All scores, or those of a data set (in any case) or a scale, in the paper's order."""
    return [
        each
        for each in _scores("scores.csv", "method")
        if (dataset is None or each.dataset.casefold() == dataset.casefold())
        and (scale is None or abs(each.scale - scale) < 1e-6)
    ]


def printed_ablations() -> list[PrintedScores]:
    """Tables `kernels` and `depth`; `method` is the variant."""
    return _scores("ablations.csv", "variant")


def printed_efficiency() -> list[PrintedEfficiency]:
    return [
        PrintedEfficiency(row.pop("method"), **{name: float(value) for name, value in row.items()})
        for row in _rows("efficiency.csv")
    ]


def warnings_of(shown: Iterable[PrintedScores]) -> list[str]:
    """Each warning once."""
    return list(dict.fromkeys(warning for printed in shown for warning in printed.warnings))


def _scores(name: str, method: str) -> list[PrintedScores]:
    return [
        PrintedScores(
            row["table"],
            row["dataset"],
            float(row["scale"]),
            row[method],
            {metric: PrintedFigure(row[metric], row[f"{metric}_std"]) for metric in METRICS},
            *(float(row[count]) if row.get(count) else None for count in ("parameters_millions", "flops_g")),
        )
        for row in _rows(name)
    ]


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath("paper_tables", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
