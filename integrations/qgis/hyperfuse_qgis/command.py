"""The installed hyperfuse command: what it offers, how it is called, and how it is run. Nothing here needs QGIS."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any

COMMANDS = ("fuse", "estimate", "evaluate", "report")
# QGIS sets these for its own Python, GDAL and PROJ, which another environment must not use.
OF_QGIS = ("PYTHONHOME", "PYTHONPATH", "GDAL_DATA", "GDAL_DRIVER_PATH", "PROJ_LIB", "PROJ_DATA", "LD_LIBRARY_PATH")
SECONDS_TO_DESCRIBE = 60
SECONDS_TO_END = 20
WINDOWS = sys.platform == "win32"


class CommandError(Exception):
    """The command could not be run, or failed; the text is for the user."""


def find_command(configured: str) -> str:
    """The executable: the one in the settings, or the one on the PATH."""
    found = shutil.which(configured or "hyperfuse")
    if found is None:
        place = configured or "the PATH"
        raise CommandError(
            f"no hyperfuse command at {place}; install it (pip install hyperfuse) and give its path under "
            "Settings > Options > Processing > Providers > hyperfuse"
        )
    return found


def environment() -> dict[str, str]:
    """The environment of the command: that of QGIS without what belongs to QGIS's own Python."""
    inherited = {name: value for name, value in os.environ.items() if name not in OF_QGIS}
    return {**inherited, "HYPERFUSE_PROGRESS": "json", "PYTHONIOENCODING": "utf-8"}


def describe(command: str) -> dict[str, Any]:
    """The options of the commands, as `hyperfuse options` prints them."""
    try:
        done = subprocess.run(
            [command, "options", *COMMANDS],
            env=environment(),
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS_TO_DESCRIBE,
            check=True,
            **_without_window(),
        )
        return json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CommandError(f"{command} does not list its options: {error}; hyperfuse 0.2 or newer is needed") from error


def arguments_for(option: dict[str, Any], value: Any) -> list[str]:
    """One option on the command line; nothing if it has its default."""
    if value is None or value == "" or value == option["default"]:
        return []
    if option["input"] == "checkbox":
        return [option["flag"] if value else option["negative_flag"]]
    text = f"{value:.15g}" if isinstance(value, float) else str(value)
    if option["repeat"]:
        return [part for each in text.split() for part in (option["flag"], each)]
    if option["values"] > 1:
        return [option["flag"], *text.replace(",", " ").split()]
    return [option["flag"], text]


def run(
    command_line: list[str],
    report: Callable[[str, float], None],
    say: Callable[[str], None],
    is_cancelled: Callable[[], bool],
) -> str:
    """Run the command and return what it prints.

    `report` receives each step and its percentage, `say` every other line of stderr. When `is_cancelled` becomes true,
    the command is asked to end, which clears away unfinished files.
    """
    process = subprocess.Popen(
        command_line,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        **_without_window(),
    )
    assert process.stdout is not None and process.stderr is not None
    printed: list[str] = []
    collector = threading.Thread(target=lambda: printed.extend(process.stdout), daemon=True)
    message = ""
    with process:
        collector.start()
        for line in _lines(process, process.stderr, is_cancelled):
            progress = _progress(line)
            if progress is None:
                message = line or message
                say(line)
            else:
                report(*progress)
        collector.join()
    if is_cancelled():
        raise CommandError("cancelled; nothing was left behind")
    if process.returncode != 0:
        raise CommandError(message or f"{command_line[0]} ended with exit code {process.returncode}")
    return "".join(printed)


def _lines(process: subprocess.Popen[str], stream: IO[str], is_cancelled: Callable[[], bool]) -> Iterator[str]:
    """The lines of a stream as they come, until the process has ended."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    deadline: float | None = None
    while True:
        if is_cancelled() and deadline is None:
            deadline = time.monotonic() + SECONDS_TO_END
            process.send_signal(signal.CTRL_BREAK_EVENT if WINDOWS else signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            process.kill()
        try:
            line = lines.get(timeout=0.2)
        except queue.Empty:
            continue
        if line is None:
            process.wait()
            return
        yield line


def _progress(line: str) -> tuple[str, float] | None:
    """Step and percentage of a line of progress; None for other lines."""
    if not line.startswith('{"step"'):
        return None
    try:
        found = json.loads(line)
        return str(found["step"]), 100 * found["done"] / max(found["total"], 1)
    except (ValueError, KeyError, TypeError):
        return None


def _without_window() -> dict[str, Any]:
    """On Windows: no console window, and a group of its own that can be asked to end."""
    if not WINDOWS:
        return {}
    return {"creationflags": subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP}
