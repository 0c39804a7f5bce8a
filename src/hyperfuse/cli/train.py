"""Commands about networks: `train`, `finetune`, `curves`, `export`, `kernels`, `scenes` and a part of `info`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.cli.options import INTERRUPTED, command, print_json
from hyperfuse.config import FinetuneConfig, InputConfig

ScenesFolder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Where data sets and relative paths are looked for.",
        show_default="HYPERFUSE_DATA, else ./scenes",
    ),
]


@command(InputConfig)
def train(
    config: InputConfig,
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="What to train, on what, how long.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder of the run.", show_default="runs/NAME")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume from the checkpoint in the folder, if there is one.")
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Change a value of the experiment, e.g. loop.batch_size=8."),
    ] = None,
    scenes: Annotated[
        list[str] | None,
        typer.Option(
            "--scenes",
            metavar="S",
            help="Scenes instead of the experiment's: folder, file, pattern such as 'my/*.tif', or data set; a part of "
            "them is held out for validation. Repeatable.",
        ),
    ] = None,
    scenes_folder: ScenesFolder = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only read the experiment and its scenes, and print what would be done.")
    ] = False,
) -> None:
    """Train a network as an experiment file says.

    The folder of the run gets log.jsonl, TensorBoard curves, pictures, a checkpoint, the best and the final weights.
    Ctrl-C saves a checkpoint and stops (exit code 130); --resume continues to the same weights as an uninterrupted
    run. For several processes set loop.devices, or start it with torchrun or fabric run. All keys of an experiment
    file: docs/training.md.

    small_cpu.toml needs no files: it trains on synthetic scenes and the scene of the extra `demo`.

    [dim]hyperfuse train experiments/small_cpu.toml --set length.steps=500[/dim]
    [dim]hyperfuse train experiments/small_cpu.toml --scenes my/folder -o runs/mine[/dim]
    """
    from hyperfuse.training.experiment import read_experiment
    from hyperfuse.training.train import describe
    from hyperfuse.training.train import train as run_training

    settings = read_experiment(experiment, changes or [], scenes or [], config)
    if check:
        typer.echo(describe(settings, scenes_folder))
        return
    outcome = run_training(settings, output or Path("runs") / settings.name, resume=resume, scenes_folder=scenes_folder)
    if not outcome.finished:
        if outcome.first_process:
            typer.echo(f"stopped after step {outcome.step} of {outcome.steps}; continue with --resume", err=True)
        raise typer.Exit(INTERRUPTED)
    if outcome.first_process:
        best = "" if outcome.best_psnr_db is None else f"  best validation {outcome.best_psnr_db:.2f} dB"
        typer.echo(f"{outcome.folder}  {outcome.steps} steps{best}  ({outcome.split})")


@command(FinetuneConfig)
def finetune(
    weights: Annotated[
        str, typer.Argument(metavar="WEIGHTS", help="Folder of the weights to start from, or hf://owner/name.")
    ],
    scenes: Annotated[
        list[str],
        typer.Option(
            "--scenes", metavar="S", help="Scenes to adapt to: data set, file, folder or pattern; repeatable."
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder of the run; weights lie in DIR/weights.")
    ],
    config: FinetuneConfig,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Adapt trained weights to a sensor they have not seen, and measure the gain.

    [dim]hyperfuse finetune runs/joint/weights --scenes my_sensor/*.tif --iterations 500 -o runs/my_sensor[/dim]
    """
    from hyperfuse.training.train import finetune as run_finetuning

    outcome = run_finetuning(weights, scenes, output, config=config)
    if not outcome.finished:
        typer.echo("stopped; continue with --resume", err=True)
        raise typer.Exit(INTERRUPTED)
    rows = [asdict(each) for each in outcome.comparisons]
    if as_json:
        print_json({"weights": str(outcome.folder / "weights"), "split": outcome.split, "cases": rows})
        return
    _print_comparison(rows, outcome.split)
    typer.echo(str(outcome.folder / "weights"))


def _print_comparison(rows: list[dict[str, float | str]], split: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("case", title=f"PSNR dB / SAM degrees ({split})")
    for heading in ("base alone", "before", "after", "gain dB"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            str(row["case"]),
            f"{row['base_psnr_db']:.2f}",
            f"{row['before_psnr_db']:.2f} / {row['before_angle_degrees']:.2f}",
            f"{row['after_psnr_db']:.2f} / {row['after_angle_degrees']:.2f}",
            f"{float(row['after_psnr_db']) - float(row['before_psnr_db']):+.2f}",
        )
    Console(highlight=False).print(table)


def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs to draw together.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FIG", help="Figure to write (.png, .svg, .pdf).")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the figure if it exists.")] = False,
) -> None:
    """Draw the loss and the validation scores of one or several trainings.

    [dim]hyperfuse curves runs/joint_bands runs/joint_components -o curves.png[/dim]
    """
    from hyperfuse.reporting.figures import check_figure
    from hyperfuse.training.run_folder import draw_curves

    check_figure(output, overwrite=overwrite)
    draw_curves(runs, output)
    typer.echo(str(output))


Weights = Annotated[str, typer.Argument(metavar="WEIGHTS", help="Folder of weights, or hf://owner/name.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the target if it exists.")]


def export(
    weights: Weights,
    output: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a trained network as one ONNX file for any image size and scale.

    Files of SSA take any number of bands, those of baselines the bands that they were trained on. Networks whose
    channels are components or wavelengths, or whose base is not bicubic, have further inputs, which are printed:
    docs/networks.md. Not exported are DCINN, which solves linear equations, and the network of `universal`, which
    guides a regression.

    [dim]hyperfuse export runs/small_cpu/weights network.onnx[/dim]
    """
    from hyperfuse.io.atomic import check_writable
    from hyperfuse.models.catalogue import load_model
    from hyperfuse.models.export import export_onnx

    check_writable(output, overwrite=overwrite)
    inputs = export_onnx(load_model(weights), output)
    typer.echo(f"{output}  {output.stat().st_size / 1e6:.1f} MB  inputs {', '.join(inputs)}")


def kernels(
    weights: Weights,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FIG", help="Figure to write (.png, .svg, .pdf).")],
    channels: Annotated[
        int | None, typer.Option(help="Draw only the first channels.", show_default="those that were trained")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Draw what the Matryoshka kernels have learned: each channel a point, coloured by its index."""
    from hyperfuse.models.analysis import map_kernels, umap_is_installed
    from hyperfuse.models.ssa import SSA
    from hyperfuse.reporting.figures import check_figure, draw_kernel_maps

    check_figure(output, overwrite=overwrite)
    maps = map_kernels(SSA.from_pretrained(weights), channels)
    projection = "UMAP" if umap_is_installed() else "PCA"
    draw_kernel_maps(maps, output, projection)
    if as_json:
        numbers = {kernel.title: round(kernel.smoothness, 6) for kernel in maps}
        print_json({"figure": str(output), "projection": projection, "smoothness": numbers})
        return
    for kernel in maps:
        typer.echo(f"{kernel.title:<20} smoothness {kernel.smoothness:+.3f}")
    typer.echo(f"{output}  ({projection})")


def describe_network(
    name: str, bands: int = 31, msi_bands: int = 3, size: int = 128, scale: float = 4.0, *, fixed_bands: bool = False
) -> dict[str, object]:
    """Parameters and multiply-adds of a preset for a pair of `size` fine and `size / scale` coarse pixels on a side."""
    import torch

    from hyperfuse.models.analysis import count_multiply_adds, count_parameters
    from hyperfuse.models.ssa import SSA, preset

    _refuse_impossible_pair(bands, msi_bands, size, scale)
    config = preset(name)
    if fixed_bands:
        config = config.with_fixed_bands(bands, msi_bands)
    coarse = round(size / scale)
    counts = count_multiply_adds(config, bands, msi_bands, (size, size), (coarse, coarse))
    with torch.device("meta"):
        network = SSA(config)
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
        "receptive_field": network.receptive_field._asdict(),
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
    if as_json:
        print_json(description)
        return
    for key, value in description.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        for part, number in parts:
            name = f"{key}, {part}" if part else key
            typer.echo(f"{name.replace('_', ' ')}: {f'{number:,}' if type(number) is int else number}")


def scenes(
    name: Annotated[str | None, typer.Argument(help="One data set in detail: CAVE, Harvard, PaviaC, ...")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the data sets are looked for.", show_default="HYPERFUSE_DATA, else ./scenes"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything as JSON, all wavelengths included.")
    ] = False,
) -> None:
    """List the public data sets that experiments can name: files, source, bands, licence, and whether they are here.

    [dim]hyperfuse scenes --folder ~/hyperspectral[/dim]
    [dim]hyperfuse scenes WDC[/dim]
    """
    from hyperfuse.data.datasets import DATASETS, details, list_datasets, overview, require_dataset, scenes_folder

    where = scenes_folder(folder)
    wanted = [require_dataset(name)] if name else list(DATASETS.values())
    listed = list_datasets(wanted, where)
    if as_json:
        print_json([entry.as_dict() for entry in listed])
        return
    typer.echo(details(listed[0]) if name else overview(listed))
    absent = ", which is not a folder: name another with --folder or HYPERFUSE_DATA"
    found = " and below; `hyperfuse scenes NAME` shows more"
    typer.echo(f"\nlooked for in {where}{found if where.is_dir() else absent}")
