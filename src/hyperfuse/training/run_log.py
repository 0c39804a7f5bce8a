"""What a training writes down while it runs: one JSON line per event, and the same curves for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hyperfuse.cubes.publishing import published

LOG_NAME, BOARD_NAME = "log.jsonl", "tensorboard"


class RunLog:
    """`event("step", step, loss=...)`. A resumed run forgets what was logged after its checkpoint and goes on from there."""

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = folder / LOG_NAME
        self._start = time.perf_counter()
        kept = [line for line in read_log(folder) if resumed_at is not None and line["step"] <= resumed_at]
        self._earlier_seconds = float(kept[-1]["seconds"]) if kept else 0.0
        with published(self._path, overwrite=True) as target:
            target.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._board = SummaryWriter(str(folder / BOARD_NAME), purge_step=(resumed_at or -1) + 1, max_queue=10_000)

    @property
    def seconds(self) -> float:
        """Since the training began, without the time between two runs of it."""
        return self._earlier_seconds + time.perf_counter() - self._start

    def event(self, kind: str, step: int, **values: Any) -> None:
        line = {"event": kind, "step": step, "seconds": round(self.seconds, 2), **values}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in _numbers(values):
            self._board.add_scalar(f"{kind}/{name}", value, step)
        self._board.flush()

    def picture(self, name: str, image: Any, step: int) -> None:
        """(H, W, 3) bytes."""
        self._board.add_image(name, image, step, dataformats="HWC")

    def close(self) -> None:
        self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one may be torn where a run was killed."""
    path = folder / LOG_NAME
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def _numbers(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
    return found
