"""All commands, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Annotated, TextIO

import typer
from rich.console import Console

from hyperfuse.cli import assess, benchmark, cubes, fuse, pairs, train
from hyperfuse.errors import HyperfuseError, RenamedWarning
from hyperfuse.progress import show_progress

app = typer.Typer(
    name="hyperfuse",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fuse a coarse hyperspectral image with a fine multispectral image of the same place: any sensor, "
    "any bands, any scale.",
)

for function in (
    *(fuse.fuse, fuse.batch, fuse.demo, pairs.methods, pairs.estimate, pairs.register, cubes.info, cubes.convert),
    *(pairs.simulate, assess.evaluate, assess.report, benchmark.efficiency, benchmark.benchmark, assess.view),
    *(train.export, train.kernels, train.scenes, train.train, train.finetune, train.curves),
):
    app.command()(function)


@app.callback()
def _settings(
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress bars, no warnings.")] = False,
) -> None:
    show_progress(not quiet)
    if quiet:
        warnings.simplefilter("ignore")
    else:
        warnings.showwarning = _show_warning


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code: 0 done, 2 bad input, 1 a bug of hyperfuse, 130 interrupted."""
    try:
        app(list(arguments), prog_name="hyperfuse")
    except HyperfuseError as error:
        return _complain(str(error))
    except SystemExit as end:
        # typer ends every run this way, also the good ones, and has said itself what was wrong with the arguments.
        return end.code if isinstance(end.code, int) else 0
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _stdout_is_gone()
        return _complain(_explain_os_error(error))
    except Exception as error:
        if os.environ.get("HYPERFUSE_DEBUG"):
            raise
        return _complain(
            f"internal error, {type(error).__name__}: {error}; this is a bug in hyperfuse, please report it "
            "(HYPERFUSE_DEBUG=1 shows where it happened)",
            code=1,
        )
    return 0


def main() -> None:
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _stop)
    sys.exit(run(sys.argv[1:]))


def _stop(number: int, frame: object) -> None:
    """Ended from outside: leave by the ordinary way, so that half an output is cleared away."""
    raise SystemExit(128 + number)


def _complain(message: str, code: int = 2) -> int:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"hyperfuse: {message}", markup=False)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are for the user, one line each; those of libraries are for developers."""
    if category is RenamedWarning or (category is UserWarning and "hyperfuse" in filename):
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"hyperfuse: warning: {message}", markup=False)


def _explain_os_error(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        target = error.filename or "the target"
        return f"no space left on the disk of {target}; nothing was left behind; free space or choose another target"
    return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")


def _stdout_is_gone() -> int:
    # `hyperfuse info FILE | head` is not an error; point stdout at nothing so that the interpreter's own flush stays
    # quiet.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
