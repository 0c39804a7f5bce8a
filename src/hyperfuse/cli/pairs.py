"""`hyperfuse register`.

Commands that make pairs.

`hyperfuse estimate` and `hyperfuse methods`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from hyperfuse.fusion.registration_report import RegistrationReport
    from hyperfuse.physics.observation import Observation


SRF_HELP = (
    "How the MSI sees the spectrum. A sensor: Sentinel-2A, Sentinel-2B, Landsat-4/5/7/8/9, SPOT-1/2/3 (HRV1, HRV2), SPOT-4 "
    "(HRVIR1, HRVIR2), SPOT-5 (HRG1, HRG2), RapidEye, MODIS-Terra, MODIS-Aqua, ASTER, with a choice of bands if wanted "
    "(Sentinel-2A:B2,B3,B4,B8). Gaussian bands: rgb, rgb+nir, rgb+nir+swir. "
    "A CSV file of curves (header wavelength_nm,name,...). A matrix (MSI bands, HSI bands): CSV without header, .npy, .npz, .mat."
)


def simulate(
    reference: Annotated[
        Path, typer.Argument(help="The fine hyperspectral image to degrade, in any format that is read.")
    ],
    out_dir: Annotated[Path, typer.Argument(help="Folder for hsi.tif, msi.tif, reference.tif and observation.json.")],
    scale: Annotated[str, typer.Option(help="How many fine pixels make a coarse one: 4, 3.2, 10/3.", metavar="S")],
    srf: Annotated[str, typer.Option(help=SRF_HELP, metavar="R")],
    psf_fwhm: Annotated[
        float | None,
        typer.Option(help="Width of the Gaussian point spread (FWHM) in fine pixels.", show_default="the scale"),
    ] = None,
    shift: Annotated[
        tuple[float, float],
        typer.Option(help="How far down and right of its georeference the HSI looks, fine pixels.", metavar="DY DX"),
    ] = (0.0, 0.0),
    snr_hsi: Annotated[
        float | None, typer.Option(help="Signal-to-noise ratio of the HSI, dB.", show_default="no noise")
    ] = None,
    snr_msi: Annotated[
        float | None, typer.Option(help="Signal-to-noise ratio of the MSI, dB.", show_default="no noise")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    skip_uncovered: Annotated[
        bool, typer.Option("--skip-uncovered", help="Drop response bands outside the reference's.")
    ] = False,
    variable: Annotated[str | None, typer.Option(help="Which array of a file that holds several.")] = None,
    band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Which axis of an unlabelled array holds the bands.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the four files if they exist.")] = False,
) -> None:
    """Simulate a coarse HSI and a fine MSI from a fine hyperspectral image (Wald's protocol)."""
    from hyperfuse.physics.simulated_files import OUTPUTS
    from hyperfuse.physics.simulated_files import simulate as simulate_files

    record = simulate_files(
        reference,
        out_dir,
        scale,
        srf,
        psf_fwhm,
        shift,
        snr_hsi,
        snr_msi,
        seed,
        skip_uncovered,
        variable,
        overwrite,
        band_axis,
    )
    (height, width), (coarse_height, coarse_width) = record.fine_size, record.coarse_size
    bands = len(record.srf.weights[0])
    typer.echo(f"hsi        {bands} bands, {coarse_height}x{coarse_width}")
    typer.echo(f"msi        {len(record.srf.names)} bands ({', '.join(record.srf.names)}), {height}x{width}")
    if record.srf.uncovered:
        typer.echo(f"dropped    {', '.join(record.srf.uncovered)} (not covered by the reference)")
    for name in OUTPUTS:
        typer.echo(str(out_dir / name))


def estimate(
    hsi: Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, big pixels.")],
    msi: Annotated[
        Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, the whole response included.")
    ] = False,
) -> None:
    """Find out from a pair alone how it was observed: shift, point spread, response, noise.

    [dim]hyperfuse estimate enmap.tif sentinel2.tif[/dim]
    """
    import json

    from rich.console import Console

    from hyperfuse.fusion.observe import ObservationHints, observe
    from hyperfuse.fusion.pair import align_pair
    from hyperfuse.io.files import open_cube

    hsi_cube = open_cube(hsi)
    observation = observe(align_pair(hsi_cube, open_cube(msi)), hsi_cube, ObservationHints())
    if as_json:
        typer.echo(json.dumps(observation.summary(), indent=2))
        return
    Console(soft_wrap=True).print(_observation_table(observation))


def methods() -> None:
    """List the methods, one line and the reference each: closed forms, and the one that ships with weights."""
    from hyperfuse.methods.catalogue import AUTO, METHODS

    for name, method in METHODS.items():
        typer.echo(f"{name:<11} {method.line}\n{'':<11} [{method.reference}]")
    typer.echo(f"{AUTO:<11} the one that gives the hsi back best when the pair is degraded once more")


def _observation_table(observation: Observation) -> Table:
    from rich.table import Table

    table = Table(box=None, show_header=False)
    rows = {
        "scale": "{:.4g} {:.4g}".format(*observation.scale),
        "shift": "{:+.3f} {:+.3f} fine pixels down, right of the georeference".format(*observation.misregistration),
        "point spread": "{:.3f} {:.3f} fine pixels (sigma)".format(*observation.sigma),
        "hsi noise": f"{float(observation.hsi_noise.median()):.3g} (median over bands)",
        "msi noise": " ".join(f"{float(level):.3g}" for level in observation.msi_noise),
        "msi offset": " ".join(f"{float(level):.3g}" for level in observation.offset),
        "confidence": f"{observation.confidence:.2f}",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    for index, row in enumerate(observation.srf):
        strongest = int(row.argmax())
        table.add_row(f"response {index + 1}", f"peak at hsi band {strongest + 1}, sum {float(row.sum()):.4g}")
    for note in observation.notes:
        table.add_row("note", note)
    return table


def register(
    hsi: Annotated[Path, typer.Argument(metavar="HSI", help="The coarse image: many narrow bands, big pixels.")],
    msi: Annotated[
        Path, typer.Argument(metavar="MSI", help="The fine image of the same place: few bands, small pixels.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PNG", help="Draw the offsets as arrows over the MSI.")
    ] = None,
    mask: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Clouds in the MSI: not used where this raster, on any grid, is not 0."),
    ] = None,
    hsi_mask: Annotated[Path | None, typer.Option(metavar="FILE", help="The same for the HSI.")] = None,
    hsi_variable: Annotated[str | None, typer.Option(help="Which array of an HSI file that holds several.")] = None,
    msi_variable: Annotated[str | None, typer.Option(help="Which array of an MSI file that holds several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, the field included.")] = False,
) -> None:
    """How far the HSI looks beyond its georeference, as a whole and from place to place.

    [dim]hyperfuse register enmap.tif sentinel2.tif -o offsets.png[/dim]
    """
    import json

    from hyperfuse.errors import OptionError
    from hyperfuse.fusion.registration_report import report_registration
    from hyperfuse.io.atomic import check_writable
    from hyperfuse.io.files import open_cube
    from hyperfuse.reporting.figures import offset_figure

    if output is not None:
        if output.suffix.lower() != ".png":
            raise OptionError(f"picture {output.name}", "a name that ends in .png")
        check_writable(output, overwrite=True)
    masks = [None if path is None else open_cube(path) for path in (mask, hsi_mask)]
    report = report_registration(
        open_cube(hsi, hsi_variable), open_cube(msi, msi_variable), mask=masks[0], hsi_mask=masks[1]
    )
    if as_json:
        typer.echo(json.dumps(report.summary(), indent=2))
    else:
        for label, text in _lines(report).items():
            typer.echo(f"{label:<8} {text}")
    if output is not None:
        offset_figure(output, report, f"{hsi.name} on {msi.name}")
        typer.echo(str(output), err=as_json)


def _lines(report: RegistrationReport) -> dict[str, str]:
    from hyperfuse.fusion.registration_report import verdict

    whole, field = report.whole, report.field
    metres = report.in_metres(whole.offset)
    on_earth = "" if metres is None else f" ({metres[0]:+.2f} {metres[1]:+.2f} m)"
    local = "not estimated: too few parts of the scene have texture that both images show"
    if any(field.used):
        local = (
            f"varies by {field.variation:.2f}, at most {field.largest:.2f} fine pixels, standard error {field.error:.2f}, "
            f"confidence {field.confidence:.2f}, {sum(field.used)} of {len(field.windows)} windows agree"
        )
    return {
        "shift": f"{whole.offset[0]:+.2f} {whole.offset[1]:+.2f} fine pixels{on_earth} down, right of the georeference; "
        f"{whole.coarse_pixels:.2f} HSI pixels; confidence {whole.confidence:.2f}",
        "local": local,
        "verdict": verdict(report),
    }
