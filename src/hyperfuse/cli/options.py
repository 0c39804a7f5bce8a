"""Options of the command line, derived from the request models of `hyperfuse.config`.

    @command(FuseConfig)
    def fuse(hsi: HsiFile, msi: MsiFile, config: FuseConfig, dry_run: bool = False) -> None: ...

The command takes the function's own parameters and one option per field of the model; the function receives a validated
`config`.
"""

from __future__ import annotations

import gc
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from hyperfuse.config import FORMER_NAMES, Request, default_of, flag_of, option_of, plain_type, with_current_names
from hyperfuse.errors import without_controls

Model = TypeVar("Model", bound=Request)

HsiFile = Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, large pixels.")]
MsiFile = Annotated[
    Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")
]
SUFFIXES = ".tif .hdr .nc .h5 .zarr .mat .npz .npy"
# The exit code after Control-C.
INTERRUPTED = 130


def output_option(metavar: str, text: str, **others: Any) -> Any:
    """`-o`, the file or folder to write."""
    return typer.Option("-o", "--output", metavar=metavar, help=text, **others)


def switch(name: str, text: str, **others: Any) -> Any:
    """An option without a value."""
    return typer.Option(name, help=text, **others)


Json = Annotated[bool, switch("--json", "Print JSON.")]
Overwrite = Annotated[bool, switch("--overwrite", "Replace what exists.")]


@contextmanager
def importing() -> Iterator[None]:
    """Imports make many objects and hardly any cycles, for which Python would search them again and again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """Control-C says what is left, the error's own words or these, and ends with 130."""
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(f"hyperfuse: {stop if stop.args else message}", err=True)
        raise typer.Exit(INTERRUPTED) from stop


def print_table(headings: Iterable[str], rows: Iterable[Iterable[str]], left: int = 1, **looks: Any) -> None:
    """Print a table on the terminal; columns after the first `left` ones are numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(**looks)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place < left else "right")
    for row in rows:
        # As Text, because square brackets in a file's own words are no markup.
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def print_json(record: Any) -> None:
    from hyperfuse.io.summary import strict_json

    typer.echo(json.dumps(strict_json(record), indent=2, allow_nan=False))


def printable(path: Path) -> str:
    """A file's name may hold bytes that are not text, and characters that rewrite the terminal."""
    return without_controls(str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace"))


def note_missing_crs(path: Path) -> None:
    """Say once that a new file has no place on the Earth, because what it was made from has none."""
    from hyperfuse.io.files import open_cube
    from hyperfuse.io.grid import grid_of
    from hyperfuse.progress import progress_is_shown

    if progress_is_shown() and grid_of(open_cube(path)).crs is None:
        typer.echo(f"hyperfuse: {printable(path)} has no CRS, like what it was made from", err=True)


def command(model: type[Request]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of a model; its parameter `config` receives the model."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(function, eval_str=True).parameters)
        own.pop("config")
        parameters = own | {name: _parameter(model, name) for name in model.model_fields if name not in own}
        former = {old: _hidden(parameters[name], old) for old, name in FORMER_NAMES.items() if name in parameters}
        options = parameters | former

        def run(**values: Any) -> None:
            given = {name: value for name, value in values.items() if value != options[name].default}
            given = with_current_names(given, parameters)
            chosen = {name: given.pop(name) for name in list(given) if name not in own}
            function(**given, config=model(**chosen))

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            sorted(options.values(), key=lambda each: each.default is not inspect.Parameter.empty)
        )
        run.model = model  # type: ignore[attr-defined]
        run.__annotations__ = {name: each.annotation for name, each in options.items()}
        return run

    return decorate


def _hidden(parameter: inspect.Parameter, former: str) -> inspect.Parameter:
    """The option under a former name, which no help text shows."""
    info = typer.Option(f"--{former.replace('_', '-')}", hidden=True)
    annotation: Any = Annotated[get_args(parameter.annotation)[0], info]
    return inspect.Parameter(former, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=parameter.default)


def _parameter(model: type[Request], name: str) -> inspect.Parameter:
    """The option of a field."""
    option, default = option_of(model, name), default_of(model.model_fields[name])
    kind = _cli_type(model.model_fields[name].annotation, repeat=option.repeat)
    flag = flag_of(model, name)
    if default is True:
        flag = f"{flag}/--no-{flag.removeprefix('--')}"
    info = typer.Option(
        *filter(None, (flag, option.gdal)),
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
        show_default=option.default_text or default not in (None, False, {}, ()),
    )
    if isinstance(default, dict) or (isinstance(default, tuple) and kind == list[str]):
        default = None
    elif isinstance(default, tuple) and kind is str:
        default = ",".join(f"{each:g}" if isinstance(each, float) else str(each) for each in default)
    annotation: Any = Annotated[kind | None if default is None else kind, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _cli_type(annotation: Any, *, repeat: bool) -> Any:
    """The type that the parser understands; pydantic checks the rest."""
    kind = plain_type(annotation)
    if get_origin(kind) is Literal:
        return type(get_args(kind)[0])
    if get_origin(kind) is dict or repeat:
        return list[str]
    if get_origin(kind) is tuple and get_args(kind)[-1] is Ellipsis:
        return str
    return str if kind is Any else kind
