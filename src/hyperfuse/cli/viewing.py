"""`hyperfuse view`: the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.errors import OptionError


def view(
    fused: Annotated[
        Path | None, typer.Argument(metavar="FUSED", help="The cube to look at; without one the page begins with fusing.")
    ] = None,
    hsi: Annotated[Path | None, typer.Option(help="The HSI that it was fused from.")] = None,
    msi: Annotated[Path | None, typer.Option(help="The MSI that it was fused from.")] = None,
    reference: Annotated[Path | None, typer.Option(help="What it should be, where that is known.")] = None,
    uncertainty: Annotated[Path | None, typer.Option(help="How sure it is, pixel by pixel, on the same grid.")] = None,
    folder: Annotated[
        Path, typer.Option(help="Files below this folder can be opened and fused on the page.", show_default="this one")
    ] = Path(),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine.", show_default="any that is free")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Look at cubes in the browser: pan, zoom, compare, spectra, scores, and fuse.

    [dim]hyperfuse view fused.tif --hsi enmap.hdr --msi sentinel2.tif[/dim]
    """
    try:
        from hyperfuse.viewer.serving import serve
    except ModuleNotFoundError as error:
        raise OptionError(f"{error.name} is not installed, which the page needs", remedy="pip install 'hyperfuse[view]'") from error

    given = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference, "uncertainty": uncertainty}
    images = {role: path.absolute() for role, path in given.items() if path is not None}
    serve(images, folder, port=port, open_browser=browser, announce=lambda url: typer.echo(f"{url}\nControl-C ends it."))
