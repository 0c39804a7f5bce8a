"""`train` and what it tells: the one way into the loop from Python and from the command line."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from hyperfuse.loading.buckets import Bucket
from hyperfuse.networks.complexity import count_parameters
from hyperfuse.networks.fusion_network import FusionNetwork
from hyperfuse.training.experiment import Experiment
from hyperfuse.training.loop import Trainer, total_steps
from hyperfuse.training.run_folder import RunFolder
from hyperfuse.training.scene_sets import GatheredScenes, gather_scenes


@dataclass(frozen=True)
class TrainingOutcome:
    folder: Path
    step: int
    steps: int
    best_psnr_db: float | None
    first_process: bool
    """Whether this is the process that speaks for all."""

    @property
    def finished(self) -> bool:
        return self.step == self.steps


def train(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    scenes_folder: Path | None = None,
    scenes: GatheredScenes | None = None,
    network: FusionNetwork | None = None,
) -> TrainingOutcome:
    """Train in `folder`, to the end or to an interruption. With `resume`, go on from its checkpoint if there is one.

    `scenes` and `network` (fine-tuning starts from one) replace what the experiment says.
    """
    require_extra()
    run = RunFolder(Path(folder))
    gathered = scenes or gather_scenes(experiment, scenes_folder)
    for note in gathered.notes if is_first_process() else []:
        warnings.warn(note, stacklevel=2)
    # One process makes the folder, before others that are started from here can look into it.
    continues = run.begin(experiment, resume=resume) if is_first_process() else False
    if network is None:
        # A generator of its own would not reach the layers' initialisation.
        torch.manual_seed(experiment.seed)
        network = FusionNetwork(experiment.network)
    trainer = Trainer(experiment, gathered, run, network.train())
    progress = trainer.train(resume=trainer.told_by_first_process(continues))
    return TrainingOutcome(run.path, progress.step, trainer.steps, progress.best_psnr_db, trainer.fabric.is_global_zero)


def describe(experiment: Experiment, scenes_folder: Path | None = None) -> str:
    """What a training would do, in a few lines."""
    gathered = gather_scenes(experiment, scenes_folder)
    with torch.device("meta"):
        parameters = count_parameters(FusionNetwork(experiment.network))
    config = experiment.network
    lines = [
        f"network     {parameters:,} parameters, channels {config.channels.kind}, base {config.base}",
        f"training    {total_steps(experiment, gathered.patches)} steps of {experiment.loop.batch_size} patches",
        f"split       {gathered.label}",
        *(f"bucket      {bucket.name}: {_content(bucket)}" for bucket in gathered.buckets),
        *(f"validation  {case.name}: base {case.base_psnr_db:.2f} dB" for case in gathered.cases),
        *(f"note        {note}" for note in gathered.notes),
    ]
    return "\n".join(lines)


def _content(bucket: Bucket) -> str:
    patches = f"{len(bucket.windows)} patches" if bucket.windows else "patches without end"
    return f"{bucket.bands.count} bands, {patches} of {bucket.size}x{bucket.size}"


def is_first_process() -> bool:
    """Whether this process was started by hand, or is the first of those that a launcher started."""
    return int(os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))) == 0 and int(os.environ.get("NODE_RANK", "0")) == 0


def require_extra() -> None:
    from importlib.util import find_spec

    from hyperfuse.errors import OptionError

    missing = [name for name in ("lightning_fabric", "tensorboard") if find_spec(name) is None]
    if missing:
        raise OptionError(f"training needs {' and '.join(missing)}", remedy="install it with: pip install 'hyperfuse[train]'")
