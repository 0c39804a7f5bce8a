"""Options that every command which writes a cube has, and what they mean together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hyperfuse.errors import OptionError

if TYPE_CHECKING:
    from hyperfuse.io.output import OutputOptions


PANEL = "Output"

Bands = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Only these bands: by number from 1 (1-50,60,70), by wavelength (400-1000nm, 0.4-1.0um, 660nm), `good` to leave out "
        "bad ones; several joined by commas (400-1000nm,good).",
        rich_help_panel=PANEL,
    ),
]
DataType = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        metavar="TYPE",
        help="Store as uint8, int16, ... float64; what does not fit is clipped and counted.",
        rich_help_panel=PANEL,
    ),
]
ScaleFactor = Annotated[
    float | None,
    typer.Option(
        metavar="F",
        help="Store physical / F: 0.0001 with --dtype int16 as reflectance products do, 1 for physical values.",
        rich_help_panel=PANEL,
    ),
]
Nodata = Annotated[
    float | None,
    typer.Option(metavar="N", help="Stored value of pixels without data; nan with floats.", rich_help_panel=PANEL),
]
Compress = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="deflate, zstd, lzw or none, as far as the format has it; by default deflate, zstd in .zarr.",
        rich_help_panel=PANEL,
    ),
]
CreationOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--co",
        metavar="NAME=VALUE",
        help="Format's own option, e.g. INTERLEAVE=bip, TILED=no, VERSION=7.3; may be repeated.",
        rich_help_panel=PANEL,
    ),
]
Cog = Annotated[bool, typer.Option("--cog", help="Write a cloud-optimised GeoTIFF.", rich_help_panel=PANEL)]
Overviews = Annotated[
    bool, typer.Option("--overviews", help="Put smaller versions into the GeoTIFF, for viewers.", rich_help_panel=PANEL)
]
Stac = Annotated[
    bool, typer.Option("--stac", help="Also write a STAC item: OUT with .json instead.", rich_help_panel=PANEL)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.", rich_help_panel=PANEL)]


def output_options(
    bands: str | None,
    dtype: str | None,
    scale_factor: float | None,
    nodata: float | None,
    compress: str | None,
    overviews: bool,
    stac: bool,
) -> OutputOptions:
    from hyperfuse.io.output import OutputOptions

    return OutputOptions(bands, dtype, scale_factor, nodata, compress, overviews, stac)


def parse_options(texts: list[str] | None) -> dict[str, str]:
    options = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OptionError(f"--co {text}", "--co NAME=VALUE", "for example --co COMPRESS=ZSTD")
        options[name] = value
    return options
