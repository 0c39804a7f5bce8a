"""Seconds and peak memory of a piece of work, and the processor seconds, which a busy machine does not stretch.

Memory is what the process's resident memory grows by at its peak, which the Linux kernel keeps and which is set back before the
work. What earlier work has freed but the allocator has kept is given back first, so that nobody works in another's memory. Where
there is no such kernel, memory is not measured.
"""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

PROCESS = Path("/proc/self")
SET_PEAK_BACK = "5"

Made = TypeVar("Made")


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu_seconds: float
    """Of all threads together."""
    peak_bytes: int | None
    """Beyond what was held before; None where it cannot be measured."""


def measured(work: Callable[[], Made]) -> tuple[Made, Cost]:
    before = _resident_after_clearing()
    start, cpu_start = time.perf_counter(), time.process_time()
    made = work()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    return made, Cost(seconds, cpu_seconds, None if before is None else max(0, _memory("VmHWM") - before))


def _resident_after_clearing() -> int | None:
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        (PROCESS / "clear_refs").write_text(SET_PEAK_BACK)
        return _memory("VmRSS")
    except OSError:
        return None


def _memory(line: str) -> int:
    found = re.search(rf"{line}:\s+(\d+) kB", (PROCESS / "status").read_text())
    assert found is not None
    return 1024 * int(found[1])
