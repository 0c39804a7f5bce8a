"""Curves of one or several runs: the loss, and what validation says, over the steps.

What a training writes down while it runs: one JSON line per event, and the same curves for TensorBoard.

The folder of one run: the experiment as it was resolved, log, samples, checkpoint, best and final weights.
"""

from __future__ import annotations

import io
import json
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.errors import CubeWriteError, OptionError, TrainingError
from hyperfuse.io.atomic import published
from hyperfuse.io.cube import make_cube
from hyperfuse.physics.simulate import current_version
from hyperfuse.reporting.colour import colour_composite, stretch_limits
from hyperfuse.training.experiment import Experiment
from hyperfuse.training.scene_sets import GatheredScenes
from hyperfuse.training.validation import ValidationCase

LOG_NAME, BOARD_NAME = "log.jsonl", "tensorboard"


class RunLog:
    """`event("step", step, loss=...)`. A resumed run forgets what was logged after its checkpoint and goes on from
    there.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = folder / LOG_NAME
        self._start = time.perf_counter()
        kept = [line for line in read_log(folder) if resumed_at is not None and line["step"] <= resumed_at]
        self._earlier_seconds = float(kept[-1]["seconds"]) if kept else 0.0
        with published(self._path, overwrite=True) as target:
            target.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._board = SummaryWriter(str(folder / BOARD_NAME), purge_step=(resumed_at or -1) + 1, max_queue=10_000)

    @property
    def seconds(self) -> float:
        """Since the training began, without the time between two runs of it."""
        return self._earlier_seconds + time.perf_counter() - self._start

    def event(self, kind: str, step: int, **values: Any) -> None:
        line = {"event": kind, "step": step, "seconds": round(self.seconds, 2), **values}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        for name, value in _numbers(values):
            self._board.add_scalar(f"{kind}/{name}", value, step)
        self._board.flush()

    def picture(self, name: str, image: Any, step: int) -> None:
        """(H, W, 3) bytes."""
        self._board.add_image(name, image, step, dataformats="HWC")

    def close(self) -> None:
        self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All whole lines; the last one may be torn where a run was killed."""
    path = folder / LOG_NAME
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


def _numbers(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, float(value)))
    return found


CHECKPOINT, EXPERIMENT, BEST, WEIGHTS, SAMPLES = (
    "checkpoint.safetensors",
    "experiment.json",
    "best",
    "weights",
    "samples",
)
# What may differ between a run and its continuation: where and how fast it runs, not what it computes.
FREE_TO_CHANGE = {"workers", "accelerator", "devices", "nodes", "log_every", "checkpoint_every"}


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, experiment: Experiment, *, resume: bool) -> bool:
        """Make the folder, or check that it holds the same experiment; whether there is a checkpoint to continue from."""
        checkpoint = self.path / CHECKPOINT
        if not resume and (checkpoint.exists() or read_log(self.path)):
            raise CubeWriteError(
                f"{self.path} holds a run already", remedy="go on with --resume, or choose another --output"
            )
        if resume and checkpoint.exists():
            self._require_same(experiment)
        try:
            (self.path / SAMPLES).mkdir(parents=True, exist_ok=True)
            with published(self.path / EXPERIMENT, overwrite=True) as target:
                target.write_text(experiment.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise CubeWriteError(
                f"cannot write into {self.path}: {error.strerror}", remedy="choose another --output"
            ) from error
        return resume and checkpoint.exists()

    def open_log(self, resumed_at: int | None) -> RunLog:
        return RunLog(self.path, resumed_at)

    def write_sample(self, step: int, case: ValidationCase, fused: Tensor) -> NDArray[np.uint8]:
        """Hsi (enlarged), fused, reference and the error, side by side, as a PNG; the picture is returned."""
        from matplotlib.image import imsave

        picture = sample_picture(case, fused)
        contents = io.BytesIO()
        imsave(contents, picture, format="png")
        (self.path / SAMPLES / f"step-{step:07d}.png").write_bytes(contents.getvalue())
        return picture

    def provenance(self, experiment: Experiment, scenes: GatheredScenes, step: int) -> dict[str, Any]:
        return {
            "experiment": experiment.model_dump(mode="json"),
            "scenes": scenes.names,
            "split": scenes.label,
            "overlapping": scenes.overlapping,
            "steps": step,
            "hyperfuse": current_version(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
        }

    def _require_same(self, experiment: Experiment) -> None:
        try:
            earlier = json.loads((self.path / EXPERIMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TrainingError(
                f"{self.path / EXPERIMENT} cannot be read ({error})", remedy="choose another --output"
            ) from error
        different = _differences(earlier, json.loads(experiment.model_dump_json()))
        if different:
            raise TrainingError(
                f"{self.path} holds a run of another experiment: {', '.join(different)} differ",
                "the same experiment to continue",
                "undo the change, or choose another --output",
            )


def sample_picture(case: ValidationCase, fused: Tensor) -> NDArray[np.uint8]:
    reference, result = (_cube(case, image) for image in (case.reference, fused))
    limits = stretch_limits(reference)
    rows, columns = case.reference.shape[1:]
    height, width = case.hsi.shape[1:]
    coarse = _cube(case, case.hsi[:, np.arange(rows) * height // rows][:, :, np.arange(columns) * width // columns])
    images = [colour_composite(image, limits) for image in (coarse, result, reference)]
    error = (fused - case.reference).square().mean(dim=0).sqrt().numpy()
    grey = np.clip(error / max(float(np.quantile(error, 0.99)), 1e-9), 0, 1) * 255
    images.append(np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2))
    return np.concatenate(images, axis=1)


def _cube(case: ValidationCase, image: Tensor) -> Any:
    centres = None if case.wavelength_nm is None else case.wavelength_nm.numpy()
    return make_cube(image.numpy(), wavelength_nm=centres)


def _differences(earlier: Any, now: Any, where: str = "") -> list[str]:
    if isinstance(earlier, dict) and isinstance(now, dict):
        keys = sorted((earlier.keys() | now.keys()) - (FREE_TO_CHANGE if where == "loop" else set()))
        return [
            found
            for key in keys
            for found in _differences(earlier.get(key), now.get(key), f"{where}.{key}".lstrip("."))
        ]
    return [] if earlier == now else [where]


def draw_curves(folders: Sequence[Path], path: Path) -> None:
    """Left the training loss, right how far the network is above its base on the test scenes, mean over them."""
    runs = {folder.name: _require_log(folder) for folder in folders}
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    loss_axes, gain_axes = figure.subplots(1, 2)
    for name, log in runs.items():
        overlapping = any(line.get("overlapping") for line in log)
        shown = f"{name} (overlapping split)" if overlapping else name
        loss_axes.plot(*_column(log, "train", "loss"), label=shown, linewidth=1.2)
        gain_axes.plot(
            *_column(log, "validation", "mean_gain_db"), marker="o", markersize=3, label=shown, linewidth=1.4
        )
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
        raise OptionError(
            f"{folder} holds no {LOG_NAME} with steps in it", "the folder of a run", "see `hyperfuse train --help`"
        )
    return log


def _column(log: Sequence[dict[str, Any]], event: str, key: str) -> tuple[list[int], list[float]]:
    lines = [line for line in log if line["event"] == event and key in line]
    return [line["step"] for line in lines], [line[key] for line in lines]
