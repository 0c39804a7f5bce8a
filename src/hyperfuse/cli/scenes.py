"""`hyperfuse scenes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def scenes(
    name: Annotated[str | None, typer.Argument(help="One data set in detail: CAVE, Harvard, PaviaC, ...")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the data sets are looked for: HYPERFUSE_SCENES, else ./scenes, unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, all wavelengths included.")] = False,
) -> None:
    """List the public data sets that experiments can name: files, where to get them, bands, licence, and whether they are here.

    [dim]hyperfuse scenes --folder ~/hyperspectral[/dim]
    [dim]hyperfuse scenes WDC[/dim]
    """
    import json

    from hyperfuse.loading.scene_catalogue import DATASETS, require_dataset, scenes_folder
    from hyperfuse.loading.scene_listing import details, list_datasets, overview

    where = scenes_folder(folder)
    wanted = [require_dataset(name)] if name else list(DATASETS.values())
    listed = list_datasets(wanted, where)
    if as_json:
        typer.echo(json.dumps([entry.as_dict() for entry in listed], indent=2))
        return
    typer.echo(details(listed[0]) if name else overview(listed))
    if not where.is_dir():
        typer.echo(f"\nlooked for in {where}, which is no folder: name another with --folder or HYPERFUSE_SCENES")
    else:
        typer.echo(f"\nlooked for in {where} and below; `hyperfuse scenes NAME` tells more")
