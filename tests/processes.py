"""Python programs in processes of their own that start at once, because they fork from one that has imported hyperfuse.

A test that kills, interrupts or limits a process needs a real one, but not seconds of importing torch for each.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import psutil

# What is imported late by a fusion or a training is named here too.
PRELOADED = (
    *("hyperfuse.cli.app", "hyperfuse.fusion.run", "hyperfuse.training.train", "hyperfuse.io.files"),
    *("lightning_fabric", "torch.utils.tensorboard", "torch._dynamo"),
)
CONTEXT = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Before the loader of a training, which uses the same server, starts it with less."""
    CONTEXT.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()


class Program:
    """A script or lines of Python with arguments; what tests use of `subprocess.Popen`, with the names it has there."""

    def __init__(
        self, program: Path | str, *arguments: object, env: Mapping[str, str] | None = None, new_session: bool = False
    ) -> None:
        self._output = tempfile.TemporaryDirectory()
        environment = dict(os.environ if env is None else env)
        what = (program, [str(each) for each in arguments], environment, Path(self._output.name), new_session)
        self._process = CONTEXT.Process(target=_run, args=what)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def written(self, name: str = "stdout") -> str:
        """What it has written so far; nothing where it was killed before it opened the file."""
        path = Path(self._output.name, name)
        return path.read_text() if path.exists() else ""

    def communicate(self, timeout: float = 300.0) -> tuple[str, str]:
        """Wait for its end: its standard output and standard error."""
        self._process.join(timeout)
        if self.returncode is None:
            self.kill()
            self._process.join()
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        output, errors = self.written(), self.written("stderr")
        self._output.cleanup()
        return output, errors


def all_end(processes: Iterable[int], seconds: float = 60.0) -> bool:
    """Whether these processes end in time; one that nobody has waited for is no longer running either."""
    end = time.monotonic() + seconds
    while (running := any(_is_running(each) for each in processes)) and time.monotonic() < end:
        time.sleep(0.05)
    return not running


def _is_running(process: int) -> bool:
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _run(
    program: Path | str, arguments: list[str], environment: dict[str, str], output: Path, new_session: bool
) -> None:
    if new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    for number, name in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(output / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = [str(program), *arguments]
    # What a killed process leaves is its own affair, not that of the tests' tracker, which would warn of it.
    resource_tracker._resource_tracker._fd = resource_tracker._resource_tracker._pid = None  # type: ignore[attr-defined]
    # A background job ignores SIGINT, and what it starts inherits that. Not earlier: an interrupt of the lines above
    # would look like an error of the program.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if isinstance(program, Path):
            runpy.run_path(str(program), run_name="__main__")
        else:
            exec(program, {"__name__": "__main__"})
    finally:
        # A forked process ends without what the end of the interpreter would do.
        atexit._run_exitfuncs()
