"""Curves of one or several runs: the loss, and what validation says, over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hyperfuse.cubes.publishing import published
from hyperfuse.errors import OptionError
from hyperfuse.training.run_log import LOG_NAME, read_log


def draw_curves(folders: Sequence[Path], path: Path) -> None:
    """Left the training loss, right how far the network is above its base on the test scenes, mean over them."""
    runs = {folder.name: _require_log(folder) for folder in folders}
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    loss_axes, gain_axes = figure.subplots(1, 2)
    for name, log in runs.items():
        overlapping = any(line.get("overlapping") for line in log)
        shown = f"{name} (overlapping split)" if overlapping else name
        loss_axes.plot(*_column(log, "train", "loss"), label=shown, linewidth=1.2)
        gain_axes.plot(*_column(log, "validation", "mean_gain_db"), marker="o", markersize=3, label=shown, linewidth=1.4)
    # A loss in decibels is negative; of others the last small steps matter as much as the first.
    decibels = any(loss <= 0 for log in runs.values() for loss in _column(log, "train", "loss")[1])
    loss_axes.set(xlabel="step", ylabel="training loss", yscale="linear" if decibels else "log")
    gain_axes.set(xlabel="step", ylabel="PSNR above the base, dB")
    gain_axes.axhline(0.0, color="0.5", linewidth=0.8)
    for axes in (loss_axes, gain_axes):
        axes.grid(alpha=0.25)
    gain_axes.legend(fontsize=8, frameon=False)
    with published(path, overwrite=True) as target:
        figure.savefig(target, dpi=130)


def _require_log(folder: Path) -> list[dict[str, Any]]:
    log = read_log(folder)
    if not any(line["event"] == "train" for line in log):
        raise OptionError(f"{folder} holds no {LOG_NAME} with steps in it", "the folder of a run", "see `hyperfuse train --help`")
    return log


def _column(log: Sequence[dict[str, Any]], event: str, key: str) -> tuple[list[int], list[float]]:
    lines = [line for line in log if line["event"] == event and key in line]
    return [line["step"] for line in lines], [line[key] for line in lines]
