"""All commands, and the one place where errors become exit codes."""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import inspect
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hyperfuse.cli import cubes, experiments, pairs
from hyperfuse.cli.options import print_json, switch
from hyperfuse.config import describe_options
from hyperfuse.errors import HyperfuseError, OptionError, RenamedWarning
from hyperfuse.progress import show_progress

CREATED_PER_COLLECTION = 10_000  # objects between two searches of Python for cycles among them
SECONDS_BETWEEN = 0.01  # a signal that was lost and the same again
_received: list[int] = []  # signals that ask for an end


class _Flags:
    """Flags are shown without the type of a value, which they do not take."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in params:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    pass


class _Group(_Flags, TyperGroup):
    pass


Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress bars, notes or warnings.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also print what was estimated and planned.")]

app = typer.Typer(
    name="hyperfuse",
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Fuse a coarse hyperspectral image with a fine multispectral image of the same place: any sensor, "
    "any bands, any scale.",
)


def _settings(quiet: bool, verbose: bool) -> None:
    """What is said on stderr beside errors; the options stand before or after the command."""
    log = logging.getLogger("hyperfuse")
    if quiet:
        show_progress(False)
        warnings.simplefilter("ignore")
        log.setLevel(logging.CRITICAL)
    elif verbose:
        log.setLevel(logging.DEBUG)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"hyperfuse {version('hyperfuse')}")
        raise typer.Exit


@app.callback()
def _before(
    quiet: Quiet = False,
    verbose: Verbose = False,
    version: Annotated[
        bool, switch("--version", "Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    show_progress(True)
    warnings.showwarning = _show_warning
    log = logging.getLogger("hyperfuse")
    log.setLevel(logging.INFO)
    log.handlers = [_Notes()]
    _settings(quiet, verbose)


def _with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The command with -q and -v of its own."""
    own = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def command(*, quiet: bool, verbose: bool, **values: Any) -> None:
        _settings(quiet, verbose)
        function(**values)

    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=False)
        for name, annotation in (("quiet", Quiet), ("verbose", Verbose))
    ]
    signature = own.replace(parameters=[*own.parameters.values(), *added])
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return command


def options(
    commands: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="Of these commands.", show_default="all")
    ] = None,
) -> None:
    """Print the options of commands as JSON, for programs that make a form or a command line of them."""
    from hyperfuse.methods.catalogue import AUTO, METHODS

    known = {each.__name__: each for each in COMMANDS if hasattr(each, "model")}
    if unknown := set(commands or ()) - known.keys():
        raise OptionError(f"command {min(unknown)!r}", f"one of {', '.join(known)}")
    record = {}
    for name in commands or known:
        fields = describe_options(known[name].model)
        for field in fields:
            if field["name"] == "method":
                field |= {"input": "select", "choices": [*METHODS, AUTO]}
        summary = inspect.getdoc(known[name]) or ""
        record[name] = {"summary": summary.partition("\n")[0], "options": fields}
    print_json(record)


COMMANDS: tuple[Callable[..., None], ...] = (
    *(pairs.fuse, pairs.batch, pairs.demo, pairs.methods, pairs.estimate, pairs.register, cubes.info, cubes.convert),
    *(pairs.simulate, cubes.evaluate, cubes.report, experiments.efficiency, experiments.benchmark),
    *(experiments.reproduce, cubes.view, experiments.export, experiments.kernels, experiments.scenes),
    *(experiments.train, experiments.finetune, experiments.curves, options),
)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return the exit code: 0 done, 2 bad input, 1 a bug, 130 interrupted, 143 by SIGTERM."""
    # One command is ready much sooner than all of them, which only help and completion need.
    named = next((text for text in arguments if not text.startswith("-")), None)
    wanted = [each for each in COMMANDS if each.__name__ == named] or COMMANDS
    app.registered_commands.clear()
    try:
        for function in wanted:
            app.command(cls=_Command)(_with_settings(function))
        app(list(arguments), prog_name="hyperfuse")
    except SystemExit as end:
        # typer ends every run this way, also the good ones, and has said itself what was wrong with the arguments.
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:  # while typer prepares the command; later it answers itself
        return 128 + signal.SIGINT
    except Exception as error:
        if _received:  # a library has caught the exception of _stop and raised one of its own
            return 128 + _received[-1]
        return _answer(error)
    return 0


def _answer(error: Exception) -> int:
    if isinstance(error, HyperfuseError):
        return _complain(str(error))
    if isinstance(error, OSError):
        return _stdout_is_gone() if error.errno == errno.EPIPE else _complain(_explain_os_error(error))
    if os.environ.get("HYPERFUSE_DEBUG"):
        raise error
    return _complain(
        f"internal error, {type(error).__name__}: {error}; this is a bug in hyperfuse, please report it "
        "(HYPERFUSE_DEBUG=1 shows where it happened)",
        code=1,
    )


def main() -> None:
    # Imports make many objects and hardly any cycles: to look for these took a fifth of the time of a short command.
    gc.set_threshold(CREATED_PER_COLLECTION)
    gc.enable()
    atexit.register(gc.freeze)
    # SIGHUP exists on POSIX only, SIGBREAK on Windows only, where it is how another program asks for an end.
    ends = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
    numbers = [each for each in ends if signal.getsignal(each) != signal.SIG_IGN]  # nohup ignores SIGHUP
    for number in numbers:
        signal.signal(number, _stop)
    sys.unraisablehook = _stop_again
    code = run(sys.argv[1:])
    # A signal during the clean-up at exit ends the process without a traceback.
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    sys.exit(code)


def _stop(number: int, frame: object) -> None:
    """Ended from outside: leave by the ordinary way, so that half an output is cleared away."""
    _received.append(number)
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)


def _stop_again(lost: Any) -> None:
    """Python ignores what is raised within destructors and callbacks, such as those of an import: ask again soon."""
    if hasattr(signal, "setitimer") and _received and lost.exc_type in (KeyboardInterrupt, SystemExit):
        signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(_received[-1]))
        signal.setitimer(signal.ITIMER_REAL, SECONDS_BETWEEN)
    else:
        sys.__unraisablehook__(lost)


def _complain(message: str, code: int = 2) -> int:
    typer.echo(f"hyperfuse: {message}", err=True)
    return code


class _Notes(logging.Handler):
    """What the library logs, for the user, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        _complain(record.getMessage())


def _show_warning(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **others: Any) -> None:
    """Our own warnings are for the user, one line each; those of libraries are for developers."""
    if category is RenamedWarning or (category is UserWarning and "hyperfuse" in filename):
        _complain(f"warning: {message}")


def _explain_os_error(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        # Without a name it is mostly stdout, printed to when the files are already in place.
        target = error.filename or "the output"
        return f"no space left on the disk of {target}; free space or choose another one"
    return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")


def _stdout_is_gone() -> int:
    # `hyperfuse info FILE | head` is not an error; point stdout at nothing so that the interpreter's own flush stays
    # quiet.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
