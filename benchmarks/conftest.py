"""What all timings share: races between variants in one run, peak memory, and a list of figures at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import psutil
import pytest

_FIGURES: list[str] = []
_SAMPLING_SECONDS = 0.005


@pytest.fixture
def note_figure() -> Callable[[str], None]:
    """Call it with a line that should stand in the list of figures at the end of the run."""
    return _FIGURES.append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _FIGURES:
        terminalreporter.section("figures")
        for line in _FIGURES:
            terminalreporter.line(line)


@pytest.fixture
def race() -> Callable[..., dict[str, float]]:
    """Best seconds of each of several runs, taken in turns so that a busy machine slows all of them alike.

    It ends after `rounds`, or earlier when three rounds in a row have improved none of them by more than two per cent.
    """

    def run_race(runs: Mapping[str, Callable[[], object]], rounds: int = 15) -> dict[str, float]:
        best = dict.fromkeys(runs, float("inf"))
        for run in runs.values():
            run()
        calm_rounds = 0
        for _ in range(rounds):
            improved = False
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds = time.perf_counter() - start
                improved |= seconds < 0.98 * best[name]
                best[name] = min(best[name], seconds)
            calm_rounds = 0 if improved else calm_rounds + 1
            if calm_rounds == 3:
                break
        return best

    return run_race


class PeakMemory:
    """Largest growth of the process's resident memory, in bytes, sampled while it runs."""

    def __init__(self) -> None:
        self.bytes = 0


@pytest.fixture
def peak_memory() -> Callable[[], object]:
    """`with peak_memory() as peak: ...; peak.bytes`"""

    @contextmanager
    def watch() -> Iterator[PeakMemory]:
        peak, stop = PeakMemory(), threading.Event()
        process = psutil.Process()
        start = process.memory_info().rss

        def sample() -> None:
            while not stop.wait(_SAMPLING_SECONDS):
                peak.bytes = max(peak.bytes, process.memory_info().rss - start)

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield peak
        finally:
            stop.set()
            sampler.join()

    return watch
