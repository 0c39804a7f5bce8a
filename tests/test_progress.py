"""Bars appear after two seconds, on stderr, and only where a person asked for them."""

from __future__ import annotations

import time

import pytest

from hyperfuse import progress as module
from hyperfuse.progress import progress, show_progress


def run_steps(seconds: float) -> None:
    with progress("Working", total=2) as advance:
        advance(1)
        time.sleep(seconds)
        advance(1)


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


def test_an_error_ends_the_bar() -> None:
    show_progress(True)
    try:
        with pytest.raises(ValueError, match="broken"), progress("Working", total=1):
            raise ValueError("broken")
    finally:
        show_progress(False)
