"""Open files that come from elsewhere in another process, which has limited time and memory.

The libraries behind the formats trust what they read: a damaged file may make one of them loop forever, crash, or
allocate whatever a header says. `isolated` therefore calls the function that opens a file in a child process; there the
kernel ends whatever takes too long, and only the result, a lazy cube, comes back.

Children are forked from a server, a process that does nothing else and has a single thread, so that forking it is safe
and takes milliseconds, whatever the threads of this process are doing. The server is itself forked from this process,
or started anew, which takes a second, where other threads could hold a lock at that moment. It ends with this process.

Where forking is unsafe or unknown (macOS, Windows), one worker opens all files; it is killed when its time is up, and
its memory is not limited.

This protects against damage, not against an attacker who takes over a library: the child has the rights of the user.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from hyperfuse.errors import CubeFileError
from hyperfuse.io import spool
from hyperfuse.io.atomic import deferred_signals

# Of processor time, so that a busy machine or a slow disk does not make a good file look damaged. Formats that have to
# be read whole to be opened (.tar.gz) get more in proportion to their size.
SECONDS, BYTES_PER_SECOND = 8, 20e6
# What waits without computing, such as for a disk that is gone, may take this many times as long.
PATIENCE = 10
LARGEST_BYTES = 2**30
# Fields of /proc/self/statm: pages of data and stack.
STATM_DATA = 5

FORKS = sys.platform == "linux"

Result = TypeVar("Result")

_lock = threading.Lock()
_is_child = False
_worker: subprocess.Popen[bytes] | None = None


class _Server(NamedTuple):
    owner: int
    """The process that started it; a forked copy of that needs its own."""
    connection: socket.socket
    libraries: frozenset[str]


_server: _Server | None = None


def isolated(path: Path, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function that opens the file `path` in a child process; what it returns must be picklable.

    Warnings are issued and errors raised as if it had been called here.
    """
    if _is_child:
        return function(*arguments)
    seconds = SECONDS + (path.stat().st_size / BYTES_PER_SECOND if path.is_file() else 0.0)
    while True:
        request = pickle.dumps((seconds, spool.copies(), function, arguments))
        start = time.monotonic()
        answer = _ask(request) if FORKS else _ask_worker(request, PATIENCE * seconds)
        if not answer:
            slow = time.monotonic() - start >= (seconds if FORKS else PATIENCE * seconds)
            reason = f"takes more than {seconds:.0f} s to open" if slow else "crashes the library that reads it"
            raise CubeFileError(f"{path} {reason}", "a whole file", "fetch it again")
        result, error, warned = pickle.loads(answer)
        for each in warned:
            warnings.warn_explicit(*each)
        if error is None:
            return cast("Result", result)
        if not isinstance(error, spool.CopyNeeded):
            raise error
        error.make()


def start_server(libraries: Collection[str] = ()) -> None:
    """Start the server, unless there is one; best called before any thread.

    Children find these libraries imported; a server without them is replaced where that takes milliseconds.
    """
    global _server
    if not FORKS or _is_child:
        return
    with _lock:
        # The thread of a progress bar only draws.
        others = [each for each in threading.enumerate() if type(each).__module__ != "rich.live"]
        is_fast = len(others) == 1
        is_running = _server is not None and _server.owner == os.getpid()
        if _server is not None and is_running and (_server.libraries.issuperset(libraries) or not is_fast):
            return
        libraries = {*libraries, *(_server.libraries if _server else ())}
        for library in libraries:
            import_module(library)
        here, there = socket.socketpair()
        with there:
            if is_fast:
                # Of Python 3.12, about threads of libraries, which wait for work and hold no lock. An interrupt during
                # the fork would be lost: Python calls its handler within a hook, whose exceptions it ignores.
                ignored = warnings.catch_warnings(action="ignore", category=DeprecationWarning)
                with ignored, deferred_signals():
                    child = os.fork()
                    if not child:
                        _serve(there.fileno())
            else:
                there.set_inheritable(True)
                program = _program(f"_serve({there.fileno()})", libraries)
                os.posix_spawn(sys.executable, program, os.environ)
        if _server is not None and is_running:
            _server.connection.close()
        _server = _Server(os.getpid(), here, frozenset(libraries))
        atexit.register(here.close)


def _ask(request: bytes) -> bytes:
    """The answer to a request; empty where the child ended without one."""
    global _server
    while True:
        start_server()
        server = _server
        assert server is not None
        here, there = socket.socketpair()
        with here, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            with there:
                socket.send_fds(server.connection, [b"\0"], [there.fileno()])
            with here.makefile("rwb") as stream:
                stream.write(request)
                stream.flush()
                here.shutdown(socket.SHUT_WR)
                if answer := stream.read():
                    return answer
        try:
            with contextlib.suppress(ConnectionResetError):
                server.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return b""
        # Not the child but the server was killed: start another.
        _server = None


def _program(call: str, libraries: Collection[str] = ()) -> list[str]:
    """The command of a new interpreter that calls a function of this module."""
    # Not its own search path, on which there may be another hyperfuse or none.
    code = f"import sys; sys.path[:] = {sys.path!r}; import {', '.join(['hyperfuse.io.files', *libraries])}; "
    return [sys.executable, "-c", f"{code}from hyperfuse.io import isolation; isolation.{call}"]


def _ask_worker(request: bytes, seconds: float) -> bytes:
    """The answer of the worker; empty where it crashed or its time was up."""
    global _worker
    with _lock:
        if _worker is None:
            _worker = subprocess.Popen(_program("_work()"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            atexit.register(_worker.kill)
            # Its imports are not the file's fault.
            pickle.load(_worker.stdout)  # type: ignore[arg-type]
        worker, _worker = _worker, None
        timer = threading.Timer(seconds, worker.kill)
        timer.start()
        try:
            assert worker.stdin is not None and worker.stdout is not None
            pickle.dump(request, worker.stdin)
            worker.stdin.flush()
            answer = cast("bytes", pickle.load(worker.stdout))
            _worker = worker
        except (OSError, EOFError, pickle.UnpicklingError):
            return b""
        finally:
            timer.cancel()
            if _worker is None:
                worker.kill()
                worker.communicate()
        return answer


def _work() -> None:
    """Answer requests until there are no more."""
    global _is_child
    _is_child = True
    # Whatever a library prints must not reach the one who waits for an answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    pickle.dump("ready", answers)
    answers.flush()
    with contextlib.suppress(EOFError):
        while True:
            pickle.dump(_answer(pickle.load(sys.stdin.buffer), limited=False), answers)
            answers.flush()


def _serve(descriptor: int) -> None:
    """Fork a child for every connection, until this end is the only one left."""
    global _is_child
    import fcntl

    _is_child = True
    # Of the parent's files only those that are read stay: no pipe whose reader waits for its end, and no lock.
    nothing = os.open(os.devnull, os.O_RDWR)
    for other in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with contextlib.suppress(OSError):
            is_read = fcntl.fcntl(other, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            if other != descriptor and not (is_read and stat.S_ISREG(os.fstat(other).st_mode)):
                os.dup2(nothing, other)
    # Nothing that exists is freed later: a file that it closes may by then be another one.
    gc.freeze()
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    while True:
        try:
            connections = socket.recv_fds(channel, 1, 1)[1]
            if not connections:
                # Also its children: their answers are no longer wanted.
                os.killpg(0, signal.SIGKILL)
            child = os.fork()
        except OSError:
            os._exit(1)
        if not child:
            channel.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                with socket.socket(fileno=connections[0]) as connection, connection.makefile("rwb") as stream:
                    stream.write(_answer(stream.read(), limited=True))
            finally:
                os._exit(0)
        os.close(connections[0])


def _answer(request: bytes, *, limited: bool) -> bytes:
    with warnings.catch_warnings(record=True, action="always") as caught:
        try:
            seconds, copies, function, arguments = pickle.loads(request)
            if limited:
                _limit(seconds)
            spool.use_copies(copies)
            result, error = function(*arguments), None
        except Exception as raised:
            # What others raised before it need not be picklable.
            raised.add_note(traceback.format_exc())
            result, error = None, raised.with_traceback(None)
            error.__cause__ = error.__context__ = None
    warned = [(each.message, each.category, each.filename, each.lineno) for each in caught]
    try:
        return pickle.dumps((result, error, warned))
    except Exception as unpicklable:
        return pickle.dumps((None, RuntimeError(f"{error or unpicklable!r}"), []))


def _limit(seconds: float) -> None:
    # Their default action ends a process also within C code, where Python's handlers are never called.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE * seconds)
    statm = Path("/proc/self/statm")
    if statm.exists():
        import resource

        used = int(statm.read_text().split()[STATM_DATA]) * resource.getpagesize()
        # Whoever started this process may have set a lower limit, which cannot be raised.
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, (used + LARGEST_BYTES, used + LARGEST_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
