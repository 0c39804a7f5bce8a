"""Commands about networks: `benchmark`, `efficiency`, `reproduce`, `train`, `finetune`, `curves`, `export`, `kernels`,
`scenes` and a part of `info`.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hyperfuse.cli.options import (
    INTERRUPTED,
    Json,
    Overwrite,
    command,
    interruptible,
    output_option,
    print_json,
    print_table,
    switch,
)
from hyperfuse.config import TABLES, BenchmarkConfig, EfficiencyConfig, FinetuneConfig, InputConfig, ReproduceConfig

RESUMES = "stopped; the same command resumes"
Figure = Annotated[Path, output_option("FIG", "Figure to write (.png, .svg, .pdf).")]
Into = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.md", help="Also put the page into this one, between its marks for it.", rich_help_panel=TABLES
    ),
]
ScenesFolder = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Where data sets and relative paths are looked for.",
        show_default="HYPERFUSE_DATA, else ./scenes",
    ),
]
Weights = Annotated[str, typer.Argument(metavar="WEIGHTS", help="Folder of weights, or hf://owner/name.")]


@command(BenchmarkConfig)
def benchmark(
    output: Annotated[Path, output_option("DIR", "Folder for results, tables and figures.")],
    config: BenchmarkConfig,
    more_scenes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SOURCE", help="More scenes, where the shell expands a pattern.", show_default=False),
    ] = None,
    beside_paper: Annotated[
        bool, switch("--beside-paper", "Show the paper's printed numbers beside ours.", rich_help_panel=TABLES)
    ] = False,
    into: Into = None,
) -> None:
    """Score every method and network on the same pairs; an interrupted run is resumed by the same command.

    [dim]hyperfuse benchmark --scenes 'test/*.npz' --scales 4,8 --srfs rgb,rgb+nir --noise 30,40 -o scores[/dim]
    [dim]hyperfuse benchmark -o scores[/dim]         makes tables and figures of existing results again
    """
    from hyperfuse.benchmarking.results import FAILED, results_in
    from hyperfuse.benchmarking.run import benchmark as run_benchmark
    from hyperfuse.benchmarking.tables import around_the_place, describe_failures, write_into, write_report

    if more_scenes:
        config = config.replace(scenes=(*config.scenes, *more_scenes))
    if into is not None:
        around_the_place(into, output)  # a missing page is reported before hours of scoring
    if config.scenes or config.pairs:
        with interruptible(RESUMES):
            run_benchmark(output, config=config, command=shlex.join(["hyperfuse", *sys.argv[1:]]))
    for path in write_report(output, beside_paper, config.pictures):
        typer.echo(str(path))
    if into is not None:
        typer.echo(str(write_into(into, output, beside_paper)))
    failed = [result for result in results_in(output) if result.state == FAILED]
    for message in describe_failures(failed):
        typer.echo(f"hyperfuse: {message}", err=True)
    if failed:
        raise typer.Exit(1 if any(result.is_bug for result in failed) else 2)


@command(EfficiencyConfig)
def efficiency(
    output: Annotated[Path, output_option("DIR", "Folder for efficiency.json, efficiency.md and efficiency.png.")],
    config: EfficiencyConfig,
    as_json: Json = False,
) -> None:
    """Measure parameters, multiply-adds, time, memory and MPix/s of networks and methods on this machine.

    Warm-up and repeats are the paper's, 20 and 50, within the time limit. Times are also given as multiples of this
    machine's own matrix product, to compare them with other machines. See docs/efficiency.md.

    [dim]hyperfuse efficiency -o efficiency[/dim]
    [dim]hyperfuse efficiency -o efficiency --networks ssa-small,mimo-sst --methods none --weights runs/a/weights[/dim]
    """
    from hyperfuse.benchmarking.efficiency import run_efficiency

    paths = run_efficiency(output, config)
    typer.echo(paths[0 if as_json else 1].read_text(encoding="utf-8"), nl=False)
    if not as_json:
        typer.echo("\n" + "\n".join(map(str, paths)))


@command(ReproduceConfig)
def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT",
            help="seen, unseen, scales, fractional, without-mk, model-size, baselines, kernels or efficiency.",
        ),
    ],
    output: Annotated[Path, output_option("DIR", "Folder for trainings, scores, tables and figures.")],
    config: ReproduceConfig,
    check: Annotated[
        bool, switch("--check", "Only read the scenes, time a few steps and print what would be done.")
    ] = False,
    into: Into = None,
) -> None:
    """Run an experiment of the paper on your scenes; an interrupted run is resumed by the same command.

    The experiments of one folder share their joint network. See docs/reproduce.md.

    [dim]hyperfuse reproduce unseen --scenes 'scenes/*.npz' --minutes 30 -o reproduced[/dim]
    """
    from hyperfuse.benchmarking import reproduce as experiments
    from hyperfuse.benchmarking.tables import around_the_place

    if check:
        for line in experiments.check(experiment, output, config):
            typer.echo(line)
        return
    if into is not None:
        around_the_place(into, output / experiment)
    with interruptible(RESUMES):
        typed = shlex.join(["hyperfuse", *sys.argv[1:]])
        written = experiments.reproduce(experiment, output, config=config, command=typed)
    if into is not None:
        written.append(experiments.insert_page(into, output, experiment))
    for path in written:
        typer.echo(str(path))


@command(InputConfig)
def train(
    config: InputConfig,
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="What to train, on what, how long.")],
    output: Annotated[Path | None, output_option("DIR", "Folder of the run.", show_default="runs/NAME")] = None,
    resume: Annotated[bool, switch("--resume", "Resume from the checkpoint in the folder, if there is one.")] = False,
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
        bool, switch("--check", "Only read the experiment and its scenes, and print what would be done.")
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
    output: Annotated[Path, output_option("DIR", "Folder of the run; weights lie in DIR/weights.")],
    config: FinetuneConfig,
    as_json: Json = False,
) -> None:
    """Adapt trained weights to a sensor they have not seen, and measure the gain.

    [dim]hyperfuse finetune runs/joint/weights --scenes my_sensor/*.tif --iterations 500 -o runs/my_sensor[/dim]
    """
    from hyperfuse.training.train import finetune as run_finetuning

    outcome = run_finetuning(weights, scenes, output, config=config)
    if not outcome.finished:
        typer.echo("stopped; continue with --resume", err=True)
        raise typer.Exit(INTERRUPTED)
    weights_folder = outcome.folder / "weights"
    if as_json:
        cases = [asdict(each) for each in outcome.comparisons]
        print_json({"weights": str(weights_folder), "split": outcome.split, "cases": cases})
        return
    rows = (
        (
            each.case,
            f"{each.base_psnr_db:.2f}",
            f"{each.before_psnr_db:.2f} / {each.before_angle_degrees:.2f}",
            f"{each.after_psnr_db:.2f} / {each.after_angle_degrees:.2f}",
            f"{each.after_psnr_db - each.before_psnr_db:+.2f}",
        )
        for each in outcome.comparisons
    )
    headings = ("case", "base alone", "before", "after", "gain dB")
    print_table(headings, rows, title=f"PSNR dB / SAM degrees ({outcome.split})")
    typer.echo(str(weights_folder))


def curves(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs to draw together.")],
    output: Figure,
    overwrite: Overwrite = False,
) -> None:
    """Draw the loss and the validation scores of one or several trainings.

    [dim]hyperfuse curves runs/joint_bands runs/joint_components -o curves.png[/dim]
    """
    from hyperfuse.reporting.figures import check_figure
    from hyperfuse.training.run_folder import draw_curves

    check_figure(output, overwrite=overwrite)
    draw_curves(runs, output)
    typer.echo(str(output))


def export(
    weights: Weights,
    output: Annotated[Path, typer.Argument(metavar="OUT.onnx", help="File to write.")],
    overwrite: Overwrite = False,
) -> None:
    """Write a trained network as one ONNX file for any image size and scale.

    Files of SSA take any number of bands, those of baselines the bands that they were trained on. Networks whose
    channels are components or wavelengths, or whose base is not bicubic, have further inputs, which are printed:
    docs/networks.md. Not exported are the networks of the methods `ssa`, `ssa-residual` and `universal`, and DCINN.

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
    output: Figure,
    channels: Annotated[
        int | None, typer.Option(help="Draw only the first channels.", show_default="those that were trained")
    ] = None,
    as_json: Json = False,
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

    EfficiencyConfig(size=size, bands=bands, msi_bands=msi_bands, scale=scale)  # raises for an impossible pair
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
        "receptive_field": config.receptive_field._asdict(),
    }


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
    folder: ScenesFolder = None,
    as_json: Json = False,
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
