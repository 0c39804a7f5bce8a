"""All commands, one line each, and the one place where errors become exit codes."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click
import typer
from rich.console import Console

from hyperfuse.errors import HyperfuseError

app = typer.Typer(
    name="hyperfuse",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fuse a coarse hyperspectral image with a fine multispectral image of the same place: any sensor, any bands, any scale.",
)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code: 0 done, 2 input that the user can mend, 1 a bug of ours, 130 interrupted."""
    try:
        result = app(list(arguments), prog_name="hyperfuse", standalone_mode=False)
    except HyperfuseError as error:
        return _complain(str(error))
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        return _complain("interrupted", code=130)
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
    return result if isinstance(result, int) else 0


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def _complain(message: str, code: int = 2) -> int:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"hyperfuse: {message}", markup=False)
    return code


def _explain_os_error(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"no space left on the disk of {error.filename or 'the target'}; nothing was left behind; free space or choose another target"
    return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")


def _stdout_is_gone() -> int:
    # `hyperfuse info FILE | head` is not an error; point stdout at nothing so that the interpreter's own flush stays quiet.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
