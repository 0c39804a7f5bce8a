"""Train an experiment: checks before the first step, and the way into the loop from Python and the command line."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from hyperfuse.data.observing import named_srf
from hyperfuse.data.sampler import Bucket, process_slots
from hyperfuse.data.settings import RANDOM_SRF
from hyperfuse.errors import BandError, OptionError
from hyperfuse.io.atomic import target_lock
from hyperfuse.models.analysis import count_parameters
from hyperfuse.models.baselines.base import BaselineConfig
from hyperfuse.models.catalogue import AnyNetwork, build_network
from hyperfuse.models.channels import FixedBands, WavelengthBands
from hyperfuse.models.prior import PriorConfig
from hyperfuse.models.ssa import SSAConfig
from hyperfuse.training.experiment import Experiment
from hyperfuse.training.loop import Trainer, expected_processes
from hyperfuse.training.run_folder import WEIGHTS, RunFolder
from hyperfuse.training.scene_sets import GatheredScenes, gather_scenes


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training ended; `first_process`: whether this process prints for all."""

    folder: Path
    step: int
    steps: int
    best_psnr_db: float | None
    split: str
    first_process: bool

    @property
    def finished(self) -> bool:
        """Whether the final weights are there; otherwise it was interrupted."""
        return self.step == self.steps and (not self.first_process or (self.folder / WEIGHTS).exists())


def train(
    experiment: Experiment,
    folder: str | Path,
    *,
    resume: bool = False,
    scenes_folder: Path | None = None,
    scenes: GatheredScenes | None = None,
    network: AnyNetwork | None = None,
) -> TrainingOutcome:
    """Train a network, to the end or to an interruption (Ctrl-C, SIGTERM), which writes a checkpoint.

    Parameters
    ----------
    experiment
        What to train, on what, how long; see `read_experiment`.
    folder
        Folder of the run: log, checkpoint, sample images, best and final weights.
    resume
        Continue from the checkpoint in the folder, if there is one, to the same weights as an uninterrupted run.
    scenes_folder
        Where data sets and relative paths are searched, see `scenes_folder`.
    scenes, network
        Replace the scenes and the untrained network of the experiment.

    Returns
    -------
    TrainingOutcome
        `finished` is false after an interruption.

    Raises
    ------
    TrainingError
        The loss is not finite, or the folder holds a run of another experiment.
    """
    missing = [name for name in ("lightning_fabric", "tensorboard") if find_spec(name) is None]
    if missing:
        raise OptionError(
            f"training needs {' and '.join(missing)}", remedy="install it with: pip install 'hyperfuse[train]'"
        )
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")  # set by launchers of several processes
    first_process = all(os.environ.get(name, "0") == "0" for name in ranks)
    run = RunFolder(Path(folder))
    gathered = scenes or gather_scenes(experiment, scenes_folder, with_cases=first_process)
    check_trainable(experiment, gathered)
    for note in gathered.notes if first_process else []:
        warnings.warn(note, stacklevel=2)
    # The first process makes the folder before it starts others.
    continues = run.begin(experiment, resume=resume) if first_process else False
    if network is None:
        # A generator of its own would not reach the initialisation of the layers.
        torch.manual_seed(experiment.seed)
        network = build_network(experiment.network)
    with target_lock(run.path) if first_process else nullcontext():
        trainer = Trainer(experiment, gathered, run, network.train())
        progress = trainer.train(resume=continues)
    first_process = trainer.fabric.is_global_zero
    return TrainingOutcome(run.path, progress.step, trainer.steps, progress.best_psnr_db, gathered.label, first_process)


def check_trainable(experiment: Experiment, scenes: GatheredScenes) -> None:
    """Raise what the first step would raise, before anything is written."""
    process_slots(experiment.loop.batch_size, 0, expected_processes(experiment))
    if experiment.loop.accelerator == "cuda" and not torch.cuda.is_available():
        raise OptionError("loop.accelerator cuda, but no CUDA device", "cpu here", "--set loop.accelerator=cpu")
    with torch.device("meta"):
        network = build_network(experiment.network)
    config = experiment.network
    channels = config.channels if isinstance(config, SSAConfig) else None
    fixed = isinstance(config, BaselineConfig) or isinstance(channels, FixedBands)
    if fixed and experiment.simulation.keep_bands is not None:
        raise OptionError(
            "a network of fixed channels and simulation.keep_bands", "one of the two", "leave keep_bands out"
        )
    for bucket in scenes.buckets:
        for msi_bands in _msi_band_counts(experiment, bucket):
            network.check_bands(bucket.bands.count, msi_bands)
        if isinstance(channels, WavelengthBands) and bucket.bands.wavelength_nm is None:
            raise BandError(
                f"{bucket.name} of unknown wavelengths",
                "known ones: this network's channels are wavelengths",
                "set assumed_nm in its table of scenes, leave it out, or take other channels",
            )
    for case in scenes.cases:
        network.check_bands(case.hsi.shape[0], case.msi.shape[0])


def _msi_band_counts(experiment: Experiment, bucket: Bucket) -> set[int]:
    """Fewest and most msi bands that a batch of this bucket can have."""
    counts: set[int] = set()
    for choice in experiment.simulation.srfs:
        weights = None if choice.name == RANDOM_SRF else named_srf(choice.name, bucket.bands)
        drawn = experiment.simulation.msi_bands if weights is None else (len(weights),)
        counts |= {min(count, bucket.bands.count) for count in drawn}
    return counts


def describe(experiment: Experiment, scenes_folder: Path | None = None) -> str:
    """Describe in a few lines what a training would do."""
    gathered = gather_scenes(experiment, scenes_folder)
    check_trainable(experiment, gathered)
    config = experiment.network
    with torch.device("meta"):
        parameters = count_parameters(build_network(config))
    if isinstance(config, SSAConfig):
        kind = f"channels {config.channels.kind}"
    elif isinstance(config, PriorConfig):
        kind = f"guides {config.base}"
    else:
        kind = f"{config.kind} for {config.bands} and {config.msi_bands} bands"
    lines = [
        f"network     {parameters:,} parameters, {kind}, base {config.base}",
        f"training    {experiment.total_steps(gathered.patches)} steps of {experiment.loop.batch_size} patches",
        f"split       {gathered.label}",
    ]
    for bucket in gathered.buckets:
        patches = f"{len(bucket.windows)} patches" if bucket.windows else "endless patches"
        lines.append(f"bucket      {bucket.name}: {bucket.bands.count} bands, {patches} of {bucket.size}x{bucket.size}")
    lines += [f"validation  {case.name}: base {case.base.psnr_db:.2f} dB" for case in gathered.cases]
    return "\n".join([*lines, *(f"note        {note}" for note in gathered.notes)])
