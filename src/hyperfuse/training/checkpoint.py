"""The state of a training as one safetensors file, written beside the old one and renamed: whole, or the old one.

All randomness of a training comes from (seed, step), so weights, optimiser and step are the whole state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from hyperfuse.errors import CubeWriteError, TrainingError, WeightsError
from hyperfuse.io.atomic import DISK_FULL, atomic_write


@dataclass(frozen=True)
class Checkpoint:
    """network and averaged weights by name (averaged is empty without averaging), optimiser state, and plain numbers."""

    network: dict[str, Tensor]
    averaged: dict[str, Tensor]
    optimiser: dict[int, dict[str, Tensor]]
    progress: dict[str, Any]


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in checkpoint.network.items()}
    tensors |= {f"averaged.{name}": tensor for name, tensor in checkpoint.averaged.items()}
    for index, state in checkpoint.optimiser.items():
        tensors |= {f"optimiser.{index}.{name}": tensor for name, tensor in state.items()}
    contents = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    if not all(bool(torch.isfinite(tensor).all()) for tensor in checkpoint.network.values()):
        raise TrainingError(
            "weights that are not finite", "numbers", "the checkpoint before them is kept; lower the learning rate"
        )
    try:
        with atomic_write(path) as temporary:
            # JSON writes the shortest decimals that read back as the same numbers.
            save_file(contents, temporary, metadata={"progress": json.dumps(checkpoint.progress)})
    except (OSError, SafetensorError) as error:
        raise _write_error(path, error) from error


def read_checkpoint(path: Path) -> Checkpoint:
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "averaged": {}}
    optimiser: dict[int, dict[str, Tensor]] = {}
    try:
        with safe_open(path, framework="pt") as file:
            progress = json.loads(file.metadata()["progress"])
            for full_name in file.keys():  # noqa: SIM118  (not a dict)
                part, _, name = full_name.partition(".")
                if part == "optimiser":
                    index, _, key = name.partition(".")
                    optimiser.setdefault(int(index), {})[key] = file.get_tensor(full_name)
                else:
                    parts[part][name] = file.get_tensor(full_name)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"{path} cannot be read as a checkpoint ({error})",
            "a file written by this training",
            "start again without --resume",
        ) from error
    return Checkpoint(parts["network"], parts["averaged"], optimiser, progress)


def optimiser_state(optimiser: Optimizer) -> dict[int, dict[str, Tensor]]:
    return {
        index: {name: torch.as_tensor(value) for name, value in state.items()}
        for index, state in optimiser.state_dict()["state"].items()
    }


def restore_optimiser(optimiser: Optimizer, state: Mapping[int, Mapping[str, Tensor]]) -> None:
    optimiser.load_state_dict(
        {
            "state": {index: dict(each) for index, each in state.items()},
            "param_groups": optimiser.state_dict()["param_groups"],
        }
    )


def _write_error(path: Path, error: Exception) -> CubeWriteError:
    full = (isinstance(error, OSError) and error.errno in DISK_FULL) or "No space left" in str(error)
    return CubeWriteError(
        f"no space left while writing {path}" if full else f"cannot write {path}: {error}",
        remedy="the checkpoint before it is kept; free space and go on with --resume",
    )
