"""Commands that make pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RESPONSE_HELP = (
    "How the MSI sees the spectrum. A sensor: Sentinel-2A, Sentinel-2B, Landsat-4/5/7/8/9, SPOT-1/2/3 (HRV1, HRV2), SPOT-4 "
    "(HRVIR1, HRVIR2), SPOT-5 (HRG1, HRG2), RapidEye, MODIS-Terra, MODIS-Aqua, ASTER, with a choice of bands if wanted "
    "(Sentinel-2A:B2,B3,B4,B8). Gaussian bands: rgb, rgb+nir, rgb+nir+swir. "
    "A CSV file of curves (header wavelength_nm,name,...). A matrix (MSI bands, HSI bands): CSV without header, .npy, .npz, .mat."
)


def simulate(
    reference: Annotated[Path, typer.Argument(help="The fine hyperspectral image to degrade, in any format that is read.")],
    out_dir: Annotated[Path, typer.Argument(help="Folder for hsi.tif, msi.tif, reference.tif and observation.json.")],
    scale: Annotated[str, typer.Option(help="How many fine pixels make a coarse one: 4, 3.2, 10/3.", metavar="S")],
    response: Annotated[str, typer.Option(help=RESPONSE_HELP, metavar="R")],
    psf_fwhm: Annotated[
        float | None, typer.Option(help="Width of the Gaussian point spread (FWHM) in fine pixels.", show_default="the scale")
    ] = None,
    shift: Annotated[
        tuple[float, float],
        typer.Option(help="How far down and right of its georeference the HSI looks, fine pixels.", metavar="DY DX"),
    ] = (0.0, 0.0),
    snr_hsi: Annotated[float | None, typer.Option(help="Signal-to-noise ratio of the HSI, dB.", show_default="no noise")] = None,
    snr_msi: Annotated[float | None, typer.Option(help="Signal-to-noise ratio of the MSI, dB.", show_default="no noise")] = None,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
    skip_uncovered: Annotated[bool, typer.Option("--skip-uncovered", help="Drop response bands outside the reference's.")] = False,
    variable: Annotated[str | None, typer.Option(help="Which array of a file that holds several.")] = None,
    band_axis: Annotated[
        int | None, typer.Option(metavar="0|1|2", help="Which axis of an unlabelled array holds the bands.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the four files if they exist.")] = False,
) -> None:
    """Simulate a coarse HSI and a fine MSI from a fine hyperspectral image (Wald's protocol)."""
    from hyperfuse.degradation.simulated_files import OUTPUTS
    from hyperfuse.degradation.simulated_files import simulate as simulate_files

    record = simulate_files(
        reference, out_dir, scale, response, psf_fwhm, shift, snr_hsi, snr_msi, seed, skip_uncovered, variable, overwrite, band_axis
    )
    (height, width), (coarse_height, coarse_width) = record.fine_size, record.coarse_size
    bands = len(record.response.weights[0])
    typer.echo(f"hsi        {bands} bands, {coarse_height}x{coarse_width}")
    typer.echo(f"msi        {len(record.response.names)} bands ({', '.join(record.response.names)}), {height}x{width}")
    if record.response.uncovered:
        typer.echo(f"dropped    {', '.join(record.response.uncovered)} (not covered by the reference)")
    for name in OUTPUTS:
        typer.echo(str(out_dir / name))
