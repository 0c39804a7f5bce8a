"""The folder of a run: the resolved experiment, log, sample images, checkpoint, best and final weights.

All randomness of a training comes from (seed, step), so weights, optimiser state and step are its whole state.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from hyperfuse.errors import CubeWriteError, OptionError, TrainingError, WeightsError
from hyperfuse.io.atomic import DISK_FULL, atomic_write, published
from hyperfuse.io.cube import make_cube
from hyperfuse.reporting.colour import colour_composite, stretch_limits
from hyperfuse.training.experiment import Experiment
from hyperfuse.training.scene_sets import GatheredScenes, ValidationCase

CHECKPOINT, EXPERIMENT, LOG, TENSORBOARD = "checkpoint.safetensors", "experiment.json", "log.jsonl", "tensorboard"
BEST, WEIGHTS, SAMPLES = "best", "weights", "samples"
# Keys of [loop] that may change when a run is resumed: where and how fast it runs, not what it computes.
CHANGEABLE = {"workers", "accelerator", "devices", "nodes", "log_every", "checkpoint_every"}


@dataclass(frozen=True)
class Checkpoint:
    """Network and averaged weights by name (the latter empty without averaging), optimiser state, plain numbers."""

    network: dict[str, Tensor]
    averaged: dict[str, Tensor]
    optimiser: dict[int, dict[str, Tensor]]
    progress: dict[str, Any]

    def write(self, path: Path) -> None:
        """Write one safetensors file, atomically."""
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.network.values()):
            remedy = "the last checkpoint is kept; lower the learning rate"
            raise TrainingError("weights that are not finite", "finite weights", remedy)
        parts = {"network": self.network, "averaged": self.averaged}
        parts |= {f"optimiser.{index}": state for index, state in self.optimiser.items()}
        tensors = {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, state in parts.items()
            for name, tensor in state.items()
        }
        try:
            with atomic_write(path) as temporary:
                # JSON keeps every digit of a float.
                temporary.write_bytes(save(tensors, metadata={"progress": json.dumps(self.progress)}))
        except OSError as error:
            full = error.errno in DISK_FULL
            got = f"no space left while writing {path}" if full else f"cannot write {path}: {error.strerror}"
            remedy = "the last checkpoint is kept; free space and continue with --resume"
            raise CubeWriteError(got, remedy=remedy) from error

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        checkpoint = cls({}, {}, {}, {})
        try:
            with safe_open(path, framework="pt") as file:
                checkpoint.progress.update(json.loads(file.metadata()["progress"]))
                for full_name in file.keys():  # noqa: SIM118  (not a dict)
                    part, _, name = full_name.partition(".")
                    state = {"network": checkpoint.network, "averaged": checkpoint.averaged}.get(part)
                    if state is None:
                        index, _, name = name.partition(".")
                        state = checkpoint.optimiser.setdefault(int(index), {})
                    state[name] = file.get_tensor(full_name)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            got = f"{path} cannot be read as a checkpoint ({error})"
            raise WeightsError(got, "a file written by this training", "start again without --resume") from error
        return checkpoint


class RunLog:
    """One JSON line per event, and the same curves for TensorBoard. A resumed run drops what follows its checkpoint."""

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = folder / LOG
        self._start = time.perf_counter()
        kept = [line for line in read_log(folder) if resumed_at is not None and line["step"] <= resumed_at]
        self._earlier_seconds = float(kept[-1]["seconds"]) if kept else 0.0
        with atomic_write(self._path) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._board = SummaryWriter(str(folder / TENSORBOARD), purge_step=(resumed_at or -1) + 1, max_queue=10_000)

    def event(self, kind: str, step: int, **values: Any) -> None:
        """Log values: `event("train", step, loss=...)`; seconds exclude the time between two runs."""
        seconds = self._earlier_seconds + time.perf_counter() - self._start
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": kind, "step": step, "seconds": round(seconds, 2), **values}) + "\n")
        for name, value in values.items():
            for key, each in value.items() if isinstance(value, Mapping) else [("", value)]:
                if isinstance(each, int | float) and not isinstance(each, bool):
                    self._board.add_scalar(f"{kind}/{name}/{key}".rstrip("/"), float(each), step)
        self._board.flush()

    def image(self, name: str, image: NDArray[np.uint8], step: int) -> None:
        """Log an image (H, W, 3) for TensorBoard."""
        self._board.add_image(name, image, step, dataformats="HWC")

    def close(self) -> None:
        self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read all complete lines; the last one may be torn where a run was killed."""
    path = folder / LOG
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            break
    return lines


class RunFolder:
    """Where a run writes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoint = path / CHECKPOINT

    def begin(self, experiment: Experiment, *, resume: bool) -> bool:
        """Make the folder, or check that it holds the same experiment; return whether to resume from a checkpoint."""
        continues = resume and self.checkpoint.exists()
        if not resume and (self.checkpoint.exists() or read_log(self.path)):
            remedy = "continue it with --resume, or choose another --output"
            raise CubeWriteError(f"{self.path} holds a run already", remedy=remedy)
        if continues:
            self._require_same(experiment)
        try:
            (self.path / SAMPLES).mkdir(parents=True, exist_ok=True)
            with atomic_write(self.path / EXPERIMENT) as temporary:
                temporary.write_text(experiment.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            got = f"cannot write into {self.path}: {error.strerror}"
            raise CubeWriteError(got, remedy="choose another --output") from error
        return continues

    def write_sample(self, step: int, case: ValidationCase, fused: Tensor) -> NDArray[np.uint8]:
        """Write HSI (enlarged), fused image, reference and error side by side as a PNG; return the picture."""
        rows, columns = case.reference.shape[1:]
        height, width = case.hsi.shape[1:]
        enlarged = case.hsi[:, np.arange(rows) * height // rows][:, :, np.arange(columns) * width // columns]
        centres = None if case.wavelength_nm is None else case.wavelength_nm.numpy()
        cubes = [make_cube(image.numpy(), wavelength_nm=centres) for image in (enlarged, fused, case.reference)]
        limits = stretch_limits(cubes[-1])
        images = [colour_composite(cube, limits) for cube in cubes]
        error = (fused - case.reference).square().mean(dim=0).sqrt().numpy()
        grey = np.clip(error / max(float(np.quantile(error, 0.99)), 1e-9), 0, 1) * 255
        images.append(np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2))
        picture: NDArray[np.uint8] = np.concatenate(images, axis=1)
        imsave(self.path / SAMPLES / f"step-{step:07d}.png", picture)
        return picture

    def provenance(self, experiment: Experiment, scenes: GatheredScenes, step: int) -> dict[str, Any]:
        """Return what is recorded with weights."""
        return {
            "experiment": experiment.model_dump(mode="json"),
            "scenes": scenes.names,
            "most_bands": max(bucket.bands.count for bucket in scenes.buckets),
            "split": scenes.label,
            "overlapping": scenes.overlapping,
            "steps": step,
            "hyperfuse": version("hyperfuse"),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "date": datetime.now(UTC).date().isoformat(),
        }

    def _require_same(self, experiment: Experiment) -> None:
        try:
            earlier = Experiment.model_validate_json((self.path / EXPERIMENT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            got = f"{self.path / EXPERIMENT} cannot be read ({error})"
            raise TrainingError(got, remedy="choose another --output") from error
        different = _differences(earlier.model_dump(mode="json"), experiment.model_dump(mode="json"))
        if different:
            got = f"{self.path} holds a run of another experiment: {', '.join(different)} differ"
            raise TrainingError(got, "the same experiment to continue", "undo the change, or choose another --output")


def _differences(earlier: Any, now: Any, key: str = "") -> list[str]:
    if not (isinstance(earlier, dict) and isinstance(now, dict)):
        return [] if earlier == now else [key]
    names = sorted((earlier.keys() | now.keys()) - (CHANGEABLE if key == "loop" else set()))
    return [
        each for name in names for each in _differences(earlier.get(name), now.get(name), f"{key}.{name}".lstrip("."))
    ]


def draw_curves(folders: Sequence[Path], path: Path) -> None:
    """Draw the training loss and the mean gain over the base on the test scenes, of one or several runs."""
    figure = Figure(figsize=(10.5, 3.8), layout="constrained")
    loss_axes, gain_axes = figure.subplots(1, 2)
    losses: list[float] = []
    for folder in folders:
        log = read_log(folder)
        if not any(line["event"] == "train" for line in log):
            got = f"{folder} holds no {LOG} with steps in it"
            raise OptionError(got, "the folder of a run", "see `hyperfuse train --help`")
        overlapping = any(line.get("overlapping") for line in log)
        label = f"{folder.name} (overlapping split)" if overlapping else folder.name
        steps, loss = _column(log, "train", "loss")
        losses += loss
        loss_axes.plot(steps, loss, label=label, linewidth=1.2)
        gain_axes.plot(*_column(log, "validation", "mean_gain_db"), "o-", markersize=3, label=label, linewidth=1.4)
    # A loss in decibels is negative; of others the last small steps matter as much as the first.
    loss_axes.set(xlabel="step", ylabel="training loss", yscale="linear" if min(losses) <= 0 else "log")
    gain_axes.set(xlabel="step", ylabel="PSNR above the base, dB")
    gain_axes.axhline(0.0, color="0.5", linewidth=0.8)
    for axes in (loss_axes, gain_axes):
        axes.grid(alpha=0.25)
    gain_axes.legend(fontsize=8, frameon=False)
    with published(path, overwrite=True) as target:
        figure.savefig(target, dpi=130)


def _column(log: Sequence[dict[str, Any]], event: str, key: str) -> tuple[list[int], list[float]]:
    lines = [line for line in log if line["event"] == event and key in line]
    return [line["step"] for line in lines], [line[key] for line in lines]
