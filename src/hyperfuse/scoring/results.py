"""Results on disk: one line of JSON for each case and competitor, whole lines only, so that a run killed anywhere goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyperfuse.errors import CubeFileError
from hyperfuse.scoring.case import CaseName

RESULTS = "results.jsonl"
SCORED, UNFIT, FAILED = "scored", "does not fit", "failed"

Key = tuple[CaseName, str, str]


@dataclass(frozen=True)
class Result:
    """What one competitor made of one case. A network that is not made for the case's bands does not fit, which is no failure."""

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
                f"{path}, line {number}: {error}", "a result as `hyperfuse benchmark` writes it", "choose another folder"
            ) from error


def _cut_off_half_a_line(path: Path) -> None:
    with path.open("r+b") as file:
        contents = file.read()
        whole = contents.rfind(b"\n") + 1
        if whole != len(contents):
            file.truncate(whole)
