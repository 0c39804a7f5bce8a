"""The folder of one run: the experiment as it was resolved, log, samples, checkpoint, best and final weights."""

from __future__ import annotations

import io
import json
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.cubes.cube import make_cube
from hyperfuse.cubes.publishing import published
from hyperfuse.degradation.simulation_record import current_version
from hyperfuse.errors import CubeWriteError, TrainingError
from hyperfuse.reporting.colour import colour_composite, stretch_limits
from hyperfuse.training.experiment import Experiment
from hyperfuse.training.run_log import RunLog, read_log
from hyperfuse.training.scene_sets import GatheredScenes
from hyperfuse.training.validation import ValidationCase

CHECKPOINT, EXPERIMENT, BEST, WEIGHTS, SAMPLES = "checkpoint.safetensors", "experiment.json", "best", "weights", "samples"
# What may differ between a run and its continuation: where and how fast it runs, not what it computes.
FREE_TO_CHANGE = {"workers", "accelerator", "devices", "nodes", "log_every", "checkpoint_every"}


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, experiment: Experiment, *, resume: bool) -> bool:
        """Make the folder, or check that it holds the same experiment; whether there is a checkpoint to continue from."""
        checkpoint = self.path / CHECKPOINT
        if not resume and (checkpoint.exists() or read_log(self.path)):
            raise CubeWriteError(f"{self.path} holds a run already", remedy="go on with --resume, or choose another --output")
        if resume and checkpoint.exists():
            self._require_same(experiment)
        try:
            (self.path / SAMPLES).mkdir(parents=True, exist_ok=True)
            with published(self.path / EXPERIMENT, overwrite=True) as target:
                target.write_text(experiment.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise CubeWriteError(f"cannot write into {self.path}: {error.strerror}", remedy="choose another --output") from error
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
            raise TrainingError(f"{self.path / EXPERIMENT} cannot be read ({error})", remedy="choose another --output") from error
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
        return [found for key in keys for found in _differences(earlier.get(key), now.get(key), f"{where}.{key}".lstrip("."))]
    return [] if earlier == now else [where]
