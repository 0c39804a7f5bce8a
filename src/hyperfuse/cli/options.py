"""Options of the command line, derived from the request models of `hyperfuse.config`.

    @command(FuseConfig)
    def fuse(hsi: HsiFile, msi: MsiFile, config: FuseConfig, dry_run: bool = False) -> None: ...

The command takes the function's own parameters and one option per field of the model; the function receives a validated
`config`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer

from hyperfuse.config import Request, default_of, option_of, plain_type

Model = TypeVar("Model", bound=Request)

HsiFile = Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, big pixels.")]
MsiFile = Annotated[
    Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SUFFIXES = ".tif .hdr .nc .h5 .zarr .mat .npz .npy"


def command(model: type[Request]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option per field of a model; its parameter `config` receives the model."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(function, eval_str=True).parameters
        fields = [name for name in model.model_fields if name not in own]
        parameters = [parameter for name, parameter in own.items() if name != "config"]
        for name in fields:
            parameters.append(_parameter(model, name))
            former = option_of(model, name).renamed_from
            if former is not None:
                parameters.append(_parameter(model, name, former))

        def run(**values: Any) -> None:
            former = [option.renamed_from for option in (option_of(model, name) for name in fields)]
            given = {name: values.pop(name) for name in [*fields, *former] if name is not None}
            defaults = {parameter.name: parameter.default for parameter in parameters}
            changed = {name: value for name, value in given.items() if value != defaults[name]}
            function(**values, config=model(**changed))

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            sorted(parameters, key=lambda each: each.default is not inspect.Parameter.empty)
        )
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def _parameter(model: type[Request], name: str, former: str | None = None) -> inspect.Parameter:
    """The option of a field, or the hidden option of its former name."""
    option, default = option_of(model, name), default_of(model.model_fields[name])
    kind = _cli_type(model.model_fields[name].annotation, repeat=option.repeat)
    flag = "--" + former.replace("_", "-") if former else option.flag or "--" + name.replace("_", "-")
    if kind is bool:
        flag = flag if not default else f"{flag}/--no-{flag.removeprefix('--')}"
    info = typer.Option(
        flag,
        metavar=option.metavar,
        help=option.help,
        rich_help_panel=option.panel,
        hidden=former is not None,
        show_default=option.default_text or default not in (None, False, {}, ()),
    )
    if isinstance(default, dict) or (isinstance(default, tuple) and kind == list[str]):
        default = None
    elif isinstance(default, tuple) and kind is str:
        default = ",".join(f"{each:g}" if isinstance(each, float) else str(each) for each in default)
    annotation: Any = Annotated[kind | None if default is None else kind, info]
    return inspect.Parameter(former or name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


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
