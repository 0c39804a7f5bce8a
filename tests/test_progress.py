"""Bars appear after two seconds, on stderr, only where a person asked for them; programs listen instead, and may stop
the work.
"""

from __future__ import annotations

import threading
import time

import pytest

from hyperfuse import progress as module
from hyperfuse.errors import Cancelled
from hyperfuse.progress import ProgressReport, listening, progress, show_progress


def run_steps(seconds: float) -> None:
    with progress("Working", total=2, unit="tiles") as advance:
        advance(1, pixels=3_000_000)
        time.sleep(seconds)
        advance(1, pixels=3_000_000)


@pytest.mark.parametrize(("shown", "seconds", "visible"), [(True, 0.4, True), (True, 0.0, False), (False, 0.4, False)])
def test_a_bar_appears_only_when_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown: bool, seconds: float, visible: bool
) -> None:
    monkeypatch.setattr(module, "SECONDS_BEFORE_SHOWN", 0.1)
    show_progress(shown)
    try:
        run_steps(seconds)
    finally:
        show_progress(False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("Working" in captured.err) == visible
    assert ("tiles" in captured.err) == visible
    assert ("MPix/s left 0:00:00" in captured.err) == visible


def test_an_error_ends_the_bar() -> None:
    show_progress(True)
    try:
        with pytest.raises(ValueError, match="broken"), progress("Working", total=1):
            raise ValueError("broken")
    finally:
        show_progress(False)


def test_a_listener_hears_every_step() -> None:
    heard: list[ProgressReport] = []
    with listening(heard.append):
        run_steps(0.01)
    assert [(report.description, report.done, report.total) for report in heard] == [
        ("Working", n, 2) for n in (0, 1, 2)
    ]
    assert heard[0].seconds_left is None
    assert heard[0].megapixels_per_second is None
    assert heard[-1].pixels == 6_000_000
    assert heard[-1].seconds_left == 0
    assert heard[-1].megapixels_per_second == pytest.approx(6 / heard[-1].seconds)


def test_steps_of_an_earlier_run_do_not_make_this_one_look_fast() -> None:
    heard: list[ProgressReport] = []
    with listening(heard.append), progress("Working", total=100, done=98) as advance:
        time.sleep(0.02)
        advance(1)
    assert heard[0].done == 98
    assert heard[-1].seconds_left == pytest.approx(heard[-1].seconds)


def test_a_listener_may_stop_the_work() -> None:
    stop = threading.Event()

    def stop_after_one(report: ProgressReport) -> None:
        if report.done == 1:
            stop.set()

    with pytest.raises(Cancelled), listening(stop_after_one, cancel=stop):
        run_steps(5.0)
    run_steps(0.0)


def test_a_note_is_heard_and_drawn(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[ProgressReport] = []
    with listening(heard.append), progress("Training", total=1) as advance:
        advance(1, note="loss 0.5")
    assert [report.note for report in heard] == ["", "loss 0.5"]
    monkeypatch.setattr(module, "SECONDS_BEFORE_SHOWN", 0.05)
    monkeypatch.setenv("COLUMNS", "120")
    show_progress(True)
    try:
        with progress("Training", total=2) as advance:
            time.sleep(0.2)
            advance(1, note="loss 0.5")
            advance(1, note="loss 0.25 +1.20 dB over bicubic")
    finally:
        show_progress(False)
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, "one line where no terminal is"
    assert lines[0].endswith("left 0:00:00 loss 0.25 +1.20 dB over bicubic")
