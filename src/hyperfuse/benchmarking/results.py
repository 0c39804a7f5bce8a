"""What a folder of results belongs to: the request, and when, where and with which code it was run.

Results on disk: one line of JSON for each case and competitor, whole lines only, so that a run killed anywhere goes on.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from hyperfuse.benchmarking.cases import CaseName
from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.atomic import published

RESULTS = "results.jsonl"
SCORED, UNFIT, FAILED = "scored", "does not fit", "failed"

Key = tuple[CaseName, str, str]


@dataclass(frozen=True)
class Result:
    """What one competitor made of one case. A network that is not made for the case's bands does not fit, which is no
    failure.
    """

    case: CaseName
    competitor: str
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
    """Why it failed or does not fit, or what was warned of."""
    is_bug: bool = False

    @property
    def key(self) -> Key:
        return self.case, self.competitor, self.knowledge

    def line(self) -> str:
        return json.dumps(asdict(self), allow_nan=False) + "\n"


class ResultsFile:
    """Results as they come in. What was written before is read first; half a line at its end is cut off."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_key: dict[Key, Result] = {}
        if path.exists():
            _cut_off_half_a_line(path)
            self._by_key = {result.key: result for result in read_results(path)}

    def __len__(self) -> int:
        return len(self._by_key)

    def is_done(self, key: Key) -> bool:
        """What failed is tried again."""
        return key in self._by_key and self._by_key[key].state != FAILED

    def add(self, result: Result) -> None:
        """On the disk before this returns. One write, so that a line is there or not."""
        self._by_key[result.key] = result
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, result.line().encode())
            os.fsync(handle)
        finally:
            os.close(handle)

    def all(self) -> list[Result]:
        return list(self._by_key.values())


def read_results(path: Path) -> Iterable[Result]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry: dict[str, Any] = json.loads(line)
            yield Result(**(entry | {"case": CaseName(**entry["case"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise CubeFileError(
                f"{path}, line {number}: {error}",
                "a result as `hyperfuse benchmark` writes it",
                "choose another folder",
            ) from error


def _cut_off_half_a_line(path: Path) -> None:
    with path.open("r+b") as file:
        contents = file.read()
        whole = contents.rfind(b"\n") + 1
        if whole != len(contents):
            file.truncate(whole)


RECORD = "benchmark.json"


def open_folder(folder: Path, described: Mapping[str, Any], command: str) -> None:
    """Begin or go on: a folder with results of another request is refused, one with other things too."""
    path = folder / RECORD
    sessions: list[dict[str, Any]] = []
    if path.is_file():
        before = read_record(folder)
        _refuse_another(folder, before["request"], json.loads(json.dumps(described)))
        sessions = before["sessions"]
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OptionError(
            f"{folder} holds other things",
            "a new folder, or one of an earlier `hyperfuse benchmark`",
            "choose another -o",
        )
    folder.mkdir(parents=True, exist_ok=True)
    session = current_session(command)
    if not sessions or {**sessions[-1], "date": ""} != {**session, "date": ""}:
        sessions = [*sessions, session]
    with published(path, overwrite=True) as target:
        target.write_text(json.dumps({"request": described, "sessions": sessions}, indent=1) + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return {"request": dict(record["request"]), "sessions": list(record["sessions"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(
            f"{path} cannot be read ({error})", "a folder of `hyperfuse benchmark`", "choose another folder"
        ) from error


def current_session(command: str) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": command,
        "hyperfuse": version("hyperfuse"),
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine(),
    }


def machine() -> str:
    threads = torch.get_num_threads()
    return f"{_processor()}, {os.cpu_count()} cores, {threads} thread{'s' * (threads > 1)}, {_gigabytes():.0f} GB"


def _refuse_another(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for name in now:
        if before.get(name) != now[name]:
            raise OptionError(
                f"{folder} holds results of another request: {name} {_difference(before.get(name), now[name])}",
                "the same request as before, to go on with it",
                "choose another -o, or ask for the same again",
            )


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        changed = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
        return f"differ in {', '.join(changed[:3])}{f' and {len(changed) - 3} more' if len(changed) > 3 else ''}"
    return f"were {_listed(before)} and are now {_listed(now)}"


def _listed(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in value) or "none"
    return str(value)


def _commit() -> str | None:
    """Of the work tree that the package lies in; None where it is installed elsewhere."""
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=9", "HEAD"], cwd=here, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", str(here.parent)],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gigabytes() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    except (ValueError, OSError, AttributeError):
        return float("nan")
