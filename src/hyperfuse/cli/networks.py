"""`hyperfuse export`, `hyperfuse kernels` and the network part of `hyperfuse info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Weights = Annotated[str, typer.Argument(metavar="WEIGHTS", help="Folder of weights, or hf://owner/name.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the target if it exists.")]


def export(
    weights: Weights,
    output: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a network as one ONNX file that takes any band count, any msi and any scale."""
    from hyperfuse.cubes.publishing import refuse_unwritable
    from hyperfuse.networks.fusion_network import FusionNetwork
    from hyperfuse.networks.onnx_export import export_onnx
    from hyperfuse.prediction.network_fusion import network_errors

    refuse_unwritable(output, overwrite=overwrite)
    with network_errors():
        export_onnx(FusionNetwork.from_pretrained(weights), output)
    typer.echo(f"{output}  {output.stat().st_size / 1e6:.1f} MB")


def kernels(
    weights: Weights,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FIG", help="Figure to write (.png, .svg, .pdf).")],
    channels: Annotated[int | None, typer.Option(help="Draw the first so many channels only (default: all).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draw what the Matryoshka kernels have learned: each channel a point, coloured by its index."""
    import json

    from hyperfuse.networks.fusion_network import FusionNetwork
    from hyperfuse.networks.kernel_analysis import map_kernels, umap_is_installed
    from hyperfuse.prediction.network_fusion import network_errors
    from hyperfuse.reporting.kernel_figure import draw_kernel_maps, refuse_unwritable_figure

    refuse_unwritable_figure(output, overwrite=overwrite)
    with network_errors():
        maps = map_kernels(FusionNetwork.from_pretrained(weights), channels)
    projection = "UMAP" if umap_is_installed() else "PCA"
    draw_kernel_maps(maps, output, projection)
    if as_json:
        numbers = {kernel.title: round(kernel.smoothness, 6) for kernel in maps}
        typer.echo(json.dumps({"figure": str(output), "projection": projection, "smoothness": numbers}, indent=2))
        return
    for kernel in maps:
        typer.echo(f"{kernel.title:<20} smoothness {kernel.smoothness:+.3f}")
    typer.echo(f"{output}  ({projection})")


def describe_network(
    name: str,
    bands: int = 31,
    msi_bands: int = 3,
    size: int = 128,
    scale: float = 4.0,
    *,
    fixed_bands: bool = False,
) -> dict[str, object]:
    """Parameters and multiply-adds of a preset for one pair: `size` fine pixels on a side, `size / scale` coarse ones."""
    import torch

    from hyperfuse.networks.complexity import count_multiply_adds, count_parameters
    from hyperfuse.networks.fusion_network import FusionNetwork
    from hyperfuse.networks.network_config import preset
    from hyperfuse.prediction.network_fusion import network_errors

    _refuse_impossible_pair(bands, msi_bands, size, scale)
    with network_errors():
        config = preset(name)
        if fixed_bands:
            config = config.with_fixed_bands(bands, msi_bands)
        coarse = round(size / scale)
        counts = count_multiply_adds(config, bands, msi_bands, (size, size), (coarse, coarse))
        with torch.device("meta"):
            network = FusionNetwork(config)
    return {
        "network": name,
        "matryoshka_kernels": not fixed_bands,
        "parameters": count_parameters(network),
        "bands": bands,
        "msi_bands": msi_bands,
        "fine_size": size,
        "coarse_size": coarse,
        "multiply_adds": {
            "equation": counts.equation,
            "output_kernel_per_candidate": counts.per_candidate,
            "performed": counts.performed,
        },
        "margin": network.margin._asdict(),
    }


def _refuse_impossible_pair(bands: int, msi_bands: int, size: int, scale: float) -> None:
    from hyperfuse.errors import OptionError

    if size < 1 or bands < 1 or msi_bands < 1 or not 1.0 <= scale <= size:
        raise OptionError(
            f"size {size}, bands {bands}, msi bands {msi_bands}, scale {scale:g}",
            "whole numbers from 1 up and a scale between 1 and the size",
        )


def print_network(description: dict[str, object], *, as_json: bool) -> None:
    """Print what `describe_network` found, for people or as JSON."""
    import json

    if as_json:
        typer.echo(json.dumps(description, indent=2))
        return
    for key, value in description.items():
        if isinstance(value, dict):
            for part, number in value.items():
                typer.echo(f"{key.replace('_', ' ')}, {part.replace('_', ' ')}: {number:,}")
        else:
            typer.echo(f"{key.replace('_', ' ')}: {value:,}" if type(value) is int else f"{key.replace('_', ' ')}: {value}")
