"""How many processes a training has, and where they run: one on a laptop, many on many machines (Lightning Fabric)."""

from __future__ import annotations

import os
from typing import Any

import torch

from hyperfuse.training.experiment import Experiment


def expected_processes(experiment: Experiment) -> int:
    """How many there will be, as far as it is known before they are started."""
    started = os.environ.get("WORLD_SIZE")
    return int(started) if started else (experiment.loop.devices or 1) * experiment.loop.nodes


def make_fabric(experiment: Experiment) -> Any:
    from lightning_fabric import Fabric

    loop = experiment.loop
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun, which knows better how many processes there are
        devices, nodes = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
    else:
        devices, nodes = loop.devices or 1, loop.nodes
    # Apple's accelerator has no double precision, which the components are found in: it is left to those who ask for it by code.
    accelerator = ("cuda" if torch.cuda.is_available() else "cpu") if loop.accelerator == "auto" else loop.accelerator
    return Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
    )
