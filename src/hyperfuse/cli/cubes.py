"""Commands on cubes: `info`, `convert`, `evaluate`, `report` and `view`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperfuse.cli.experiments import describe_network, print_network
from hyperfuse.cli.options import (
    SUFFIXES,
    Json,
    command,
    importing,
    note_missing_crs,
    output_option,
    print_json,
    printable,
    switch,
)
from hyperfuse.config import ConvertConfig, EvaluateConfig, InputConfig, PairInputConfig, ReportConfig
from hyperfuse.errors import OptionError, without_controls

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hyperfuse.io.summary import CubeSummary


Variable = Annotated[
    str | None,
    typer.Option(help="The array to read in a file that holds several, or the part of a product: `info` lists them."),
]
BandAxis = Annotated[int | None, typer.Option(help="Axis of the bands in an unlabelled array: 0, 1 or 2.")]


@command(InputConfig)
def info(
    config: InputConfig,
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A cube (ENVI, GeoTIFF, NetCDF, HDF5, Zarr, .mat, .npz, .npy) or a product (a folder, .zip, .tar)."
        ),
    ] = None,
    variable: Variable = None,
    band_axis: BandAxis = None,
    network: Annotated[
        str | None, typer.Option(help="Describe a network instead: ssa-1-1, ssa-2-2, ssa-4-4, ssa-6-6, ssa-small.")
    ] = None,
    bands: Annotated[int, typer.Option(help="With --network: HSI bands of the pair to count for.")] = 31,
    msi_bands: Annotated[int, typer.Option(help="With --network: MSI bands.")] = 3,
    size: Annotated[int, typer.Option(help="With --network: fine pixels on a side.")] = 128,
    scale: Annotated[float, typer.Option(help="With --network: fine pixels per coarse pixel.")] = 4.0,
    fixed_bands: Annotated[
        bool, switch("--fixed-bands", "With --network: without Matryoshka kernels (the ablation).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is in a file or product: size, bands, wavelengths, grid, values; or what a network costs.

    [dim]hyperfuse info scene.hdr[/dim]
    [dim]hyperfuse info S2A_MSIL2A_20220724T101601.SAFE.zip --variable 20m[/dim]
    [dim]hyperfuse info --network ssa-6-6 --bands 191[/dim]
    """
    with importing():
        from hyperfuse.io.files import open_explained
        from hyperfuse.io.summary import summarise

    if (file is None) == (network is None):
        got = "a file and a network" if file else "no file"
        raise OptionError(got, "hyperfuse info FILE, or --network NAME", "see hyperfuse info --help")
    if network is not None:
        description = describe_network(network, bands, msi_bands, size, scale, fixed_bands=fixed_bands)
        print_network(description, as_json=as_json)
        return
    assert file is not None
    cube, notes = open_explained(file, variable, band_axis, config.wavelengths, config.nodata_in)
    summary = summarise(cube)
    if as_json:
        print_json({"file": printable(file)} | summary.as_dict() | ({"notes": dict(notes)} if notes else {}))
    else:
        _print_summary(file, summary, notes)


@command(ConvertConfig)
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="The cube to read.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help=f"The file to write: {SUFFIXES}.")],
    config: ConvertConfig,
    variable: Variable = None,
    band_axis: BandAxis = None,
) -> None:
    """Convert a cube to another format, with all of its metadata.

    [dim]hyperfuse convert scene.hdr scene.tif[/dim]
    [dim]hyperfuse convert enmap.zip out.tif --bands 0.4-1.0um,good --dtype int16 --scale-factor 1e-4 --cog --stac[/dim]
    """
    with importing():
        from hyperfuse.io.files import open_cube, write_cube

    cube = open_cube(source, variable, band_axis, wavelengths=config.wavelengths, nodata_in=config.nodata_in)
    written = write_cube(cube, target, config=config, inputs=[source])
    typer.echo(printable(written))
    note_missing_crs(written)


def _print_summary(file: Path, summary: CubeSummary, notes: Mapping[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    # An attribute that a note has said already is not said again.
    for label, text in [*notes.items(), *(row for row in _summary_rows(summary) if row[0] not in notes)]:
        # As Text, because square brackets in a file's own words are no markup.
        table.add_row(Text(without_controls(label)), Text(without_controls(text)))
    console = Console(highlight=False)
    console.print(printable(file), style="bold underline", markup=False)
    console.print(table)


def _summary_rows(summary: CubeSummary) -> list[tuple[str, str]]:
    known = [value for value in summary.wavelength_nm if value is not None]
    widths = [value for value in summary.fwhm_nm if value is not None]
    bad = [index for index, good in enumerate(summary.good, start=1) if not good]
    names = [name for name in summary.band_name if name]
    missing = len(summary.wavelength_nm) - len(known)
    uniform = len(set(summary.scale)) == 1 and len(set(summary.offset)) == 1
    minimum, maximum = summary.sampled_minimum, summary.sampled_maximum
    rows = [
        ("size", f"{summary.bands} bands x {summary.height} rows x {summary.width} columns, {summary.dtype}"),
        (
            "wavelengths",
            (f"{min(known):g} to {max(known):g} nm" + (f", {missing} unknown" if missing else ""))
            if known
            else "unknown",
        ),
        ("FWHM", f"{min(widths):g} to {max(widths):g} nm" if widths else "unknown"),
        ("bad bands", f"{len(bad)}: " + ", ".join(map(str, bad)) if bad else "none"),
        ("band names", ", ".join(names[:6]) + (f" ... ({len(names)})" if len(names) > 6 else "") if names else "none"),
        ("CRS", summary.crs or "none"),
        ("pixel", f"{summary.pixel_size[1]:g} x {summary.pixel_size[0]:g}" if summary.transform else "no georeference"),
        ("bounds", ", ".join(f"{value:.10g}" for value in summary.bounds) if summary.bounds else "none"),
        ("nodata", "none" if summary.nodata is None else str(summary.nodata)),
        ("scale, offset", f"{summary.scale[0]:g}, {summary.offset[0]:g}" if uniform else "differ by band (see --json)"),
        ("values", "nothing but nodata (sampled)" if minimum is None else f"{minimum:g} to {maximum:g} (sampled)"),
    ]
    if summary.sampled_missing_share:
        rows.append(("missing", f"{summary.sampled_missing_share:.1%} of the sample"))
    return rows + [(key, value) for key, value in summary.attributes.items()]


@command(EvaluateConfig)
def evaluate(
    fused: Annotated[Path, typer.Argument(help="The fused cube.")],
    reference: Annotated[Path, typer.Argument(help="The true image: the same bands on the same grid.")],
    config: EvaluateConfig,
    per_band: Annotated[bool, switch("--per-band", "Also show every band (JSON always contains them).")] = False,
    as_json: Json = False,
) -> None:
    """Score a fused cube against its reference: PSNR, SAM, ERGAS, SSIM, UIQI, RMSE."""
    from rich.console import Console

    with importing():
        from hyperfuse.metrics.evaluation import evaluate as evaluate_cubes
        from hyperfuse.reporting.tables import band_table, evaluation_table

    scores = evaluate_cubes(fused, reference, config=config)
    if as_json:
        print_json(scores.as_dict())
        return
    console = Console(highlight=False)
    console.print(evaluation_table(scores))
    if per_band:
        console.print(band_table(scores))
    for note in scores.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


@command(ReportConfig)
def report(
    fused: Annotated[Path, typer.Argument(metavar="FUSED", help="The fused image.")],
    hsi: Annotated[Path, typer.Option("--hsi", metavar="HSI", help="The coarse image that it was made from.")],
    msi: Annotated[Path, typer.Option("--msi", metavar="MSI", help="The fine image that it was made from.")],
    output: Annotated[Path, output_option("PAGE.html", "The page to write.")],
    config: ReportConfig,
    reference: Annotated[
        Path | None, typer.Option("--reference", metavar="R", help="The true image, if known: same bands, same grid.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Assess a fused image on one page: pictures, close-ups, spectra, maps, scores and what they mean.

    Without a reference it is assessed by its consistency with the inputs, by indices (QNR, HQNR), and at reduced
    resolution. The page is one file, to be opened in any browser, mailed or printed. See docs/report.md.

    [dim]hyperfuse report fused.tif --hsi enmap.tif --msi sentinel2.tif -o report.html[/dim]
    """
    from hyperfuse.reporting.report import report as write_report

    quality = write_report(fused, output, hsi=hsi, msi=msi, reference=reference, config=config)
    if as_json:
        print_json(quality.as_dict())
    else:
        typer.echo(str(output))


@command(PairInputConfig)
def view(
    config: PairInputConfig,
    fused: Annotated[
        Path | None, typer.Argument(metavar="FUSED", help="The cube to show; without one the page starts with fusing.")
    ] = None,
    hsi: Annotated[Path | None, typer.Option(help="The HSI that it was fused from.")] = None,
    msi: Annotated[Path | None, typer.Option(help="The MSI that it was fused from.")] = None,
    reference: Annotated[Path | None, typer.Option(help="The true image, if known.")] = None,
    uncertainty: Annotated[Path | None, typer.Option(help="Its uncertainty, by `fuse --uncertainty`.")] = None,
    change_mask: Annotated[Path | None, typer.Option(help="What `fuse --change-mask` wrote.")] = None,
    folder: Annotated[
        Path, typer.Option(help="Files below this folder can be opened and fused on the page.", show_default="this one")
    ] = Path(),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port on this machine.", show_default="any that is free")
    ] = 0,
    browser: Annotated[bool, switch("--browser/--no-browser", "Open the page in the browser.")] = True,
) -> None:
    """Look at cubes in the browser: pan, zoom, compare, spectra, scores, and fuse.

    [dim]hyperfuse view fused.tif --hsi enmap.hdr --msi sentinel2.tif[/dim]
    """
    try:
        from hyperfuse.viewer.server import serve
    except ModuleNotFoundError as error:
        got, remedy = f"{error.name} is not installed, which the page needs", "pip install 'hyperfuse[view]'"
        raise OptionError(got, remedy=remedy) from error

    given = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference}
    given |= {"uncertainty": uncertainty, "change_mask": change_mask}
    images = {role: path.absolute() for role, path in given.items() if path is not None}

    def announce(url: str) -> None:
        typer.echo(f"{url}\nControl-C ends it.")

    serve(images, folder, port=port, open_browser=browser, inputs=config, announce=announce)
