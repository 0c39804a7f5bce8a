"""Commands about pairs: `simulate`, `estimate`, `register` and `methods`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hyperfuse.cli.options import HsiFile, Json, MsiFile, command, print_json
from hyperfuse.config import SRF_HELP, ObservationConfig, PairConfig, SimulateConfig
from hyperfuse.errors import OptionError

if TYPE_CHECKING:
    from rich.table import Table

    from hyperfuse.fusion.registration import RegistrationReport
    from hyperfuse.physics.observation import Observation


@command(SimulateConfig)
def simulate(
    reference: Annotated[Path, typer.Argument(help="The fine hyperspectral image to degrade, in any known format.")],
    out_dir: Annotated[Path, typer.Argument(help="Folder for hsi.tif, msi.tif, reference.tif and observation.json.")],
    scale: Annotated[str, typer.Option(help="Fine pixels per coarse pixel: 4, 3.2, 10/3.", metavar="S")],
    config: SimulateConfig,
    srf: Annotated[str | None, typer.Option(help=SRF_HELP + " Required.", metavar="SRF")] = None,
    variable: Annotated[str | None, typer.Option(help="Array to read from a file that holds several.")] = None,
    band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Axis of the bands in an unlabelled array.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the four files if they exist.")] = False,
) -> None:
    """Simulate a coarse HSI and a fine MSI from a fine hyperspectral image (Wald's protocol)."""
    if srf is None:
        raise OptionError("no SRF", "--srf SRF", "for example --srf Sentinel-2A")
    from hyperfuse.physics.simulate import OUTPUTS, simulate_files

    record = simulate_files(
        reference, out_dir, scale, srf, config, variable=variable, band_axis=band_axis, overwrite=overwrite
    )
    (height, width), (coarse_height, coarse_width) = record.fine_size, record.coarse_size
    bands = len(record.srf.weights[0])
    typer.echo(f"hsi        {bands} bands, {coarse_height}x{coarse_width}")
    typer.echo(f"msi        {len(record.srf.names)} bands ({', '.join(record.srf.names)}), {height}x{width}")
    if record.srf.uncovered:
        typer.echo(f"dropped    {', '.join(record.srf.uncovered)} (not covered by the reference)")
    for name in OUTPUTS:
        typer.echo(str(out_dir / name))


@command(ObservationConfig)
def estimate(hsi: HsiFile, msi: MsiFile, config: ObservationConfig, as_json: Json = False) -> None:
    """Estimate from a pair alone how it was observed: shift, PSF, SRF, noise.

    [dim]hyperfuse estimate enmap.tif sentinel2.tif[/dim]
    """
    from rich.console import Console

    from hyperfuse.fusion.run import estimate as estimate_pair

    observation = estimate_pair(hsi, msi, config=config)
    if as_json:
        print_json(observation.summary())
        return
    Console(soft_wrap=True).print(_observation_table(observation))


def methods() -> None:
    """List the methods, with one line and the reference each."""
    from hyperfuse.methods.catalogue import AUTO, METHODS

    for name, method in METHODS.items():
        typer.echo(f"{name:<11} {method.description}\n{'':<11} [{method.reference}]")
    typer.echo(f"{AUTO:<11} the best of them on this pair at reduced resolution")


def _observation_table(observation: Observation) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, text in observation.described().items():
        table.add_row(name, text)
    return table


@command(PairConfig)
def register(
    hsi: HsiFile,
    msi: MsiFile,
    config: PairConfig,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PNG", help="Draw the offsets as arrows over the MSI.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how far the HSI lies from its georeference, over the whole scene and locally.

    [dim]hyperfuse register enmap.tif sentinel2.tif -o offsets.png[/dim]
    """
    from hyperfuse.fusion.registration import register as register_files
    from hyperfuse.io.atomic import check_writable
    from hyperfuse.reporting.figures import offset_figure

    if output is not None:
        if output.suffix.lower() != ".png":
            raise OptionError(f"picture {output.name}", "a name that ends in .png")
        check_writable(output, overwrite=True)
    report = register_files(hsi, msi, config)
    if as_json:
        print_json(report.summary())
    else:
        for label, text in _lines(report).items():
            typer.echo(f"{label:<8} {text}")
    if output is not None:
        offset_figure(output, report, f"{hsi.name} on {msi.name}")
        typer.echo(str(output), err=as_json)


def _lines(report: RegistrationReport) -> dict[str, str]:
    from hyperfuse.fusion.registration import verdict

    whole, field = report.whole, report.field
    metres = report.in_metres(whole.offset)
    on_earth = "" if metres is None else f" ({metres[0]:+.2f} {metres[1]:+.2f} m)"
    local = "not estimated: too few parts of the scene have texture that both images show"
    if any(field.used):
        local = (
            f"varies by {field.variation:.2f}, at most {field.largest:.2f} fine pixels, "
            f"standard error {field.error:.2f}, confidence {field.confidence:.2f}, "
            f"{sum(field.used)} of {len(field.windows)} windows agree"
        )
    return {
        "shift": f"{whole.offset[0]:+.2f} {whole.offset[1]:+.2f} fine pixels{on_earth} down, right of the "
        f"georeference; {whole.coarse_pixels:.2f} HSI pixels; confidence {whole.confidence:.2f}",
        "PSF": "{:.2f} {:.2f} fine pixels (FWHM)".format(*report.psf_fwhm),
        "local": local,
        "verdict": verdict(report),
    }
