"""`train` and what it tells: the one way into the loop from Python and from the command line."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from hyperfuse.data.batches import process_slots
from hyperfuse.data.observing import named_srf
from hyperfuse.data.pair_settings import RANDOM_SRF
from hyperfuse.data.sampler import Bucket
from hyperfuse.errors import BandError, OptionError
from hyperfuse.fusion.network import require_fitting_bands
from hyperfuse.io.atomic import target_lock
from hyperfuse.models.analysis import count_parameters
from hyperfuse.models.baselines.base import BaselineConfig
from hyperfuse.models.baselines.catalogue import AnyNetwork, build_any_network
from hyperfuse.models.config import FixedBands, NetworkConfig, WavelengthBands
from hyperfuse.models.prior import PriorConfig
from hyperfuse.training.experiment import Experiment, total_steps
from hyperfuse.training.loop import Trainer, expected_processes
from hyperfuse.training.run_folder import WEIGHTS, RunFolder
from hyperfuse.training.scene_sets import GatheredScenes, gather_scenes


@dataclass(frozen=True)
class TrainingOutcome:
    folder: Path
    step: int
    steps: int
    best_psnr_db: float | None
    split: str
    """How training and test scenes were divided."""
    first_process: bool
    """Whether this is the process that speaks for all."""

    @property
    def finished(self) -> bool:
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
    """Train in `folder`, to the end or to an interruption. With `resume`, go on from its checkpoint if there is one.

    `scenes` and `network` (fine-tuning starts from one) replace what the experiment says.
    """
    require_extra()
    run = RunFolder(Path(folder))
    gathered = scenes or gather_scenes(experiment, scenes_folder, with_cases=is_first_process())
    require_trainable(experiment, gathered)
    for note in gathered.notes if is_first_process() else []:
        warnings.warn(note, stacklevel=2)
    # One process makes the folder, before others that are started from here can look into it.
    continues = run.begin(experiment, resume=resume) if is_first_process() else False
    if network is None:
        # A generator of its own would not reach the layers' initialisation.
        torch.manual_seed(experiment.seed)
        network = build_any_network(experiment.network)
    with target_lock(run.path) if is_first_process() else nullcontext():
        trainer = Trainer(experiment, gathered, run, network.train())
        progress = trainer.train(resume=trainer.told_by_first_process(continues))
    return TrainingOutcome(
        run.path, progress.step, trainer.steps, progress.best_psnr_db, gathered.label, trainer.fabric.is_global_zero
    )


def require_trainable(experiment: Experiment, scenes: GatheredScenes) -> None:
    """Said before anything is written, not by the first step."""
    process_slots(experiment.loop.batch_size, 0, expected_processes(experiment))
    if experiment.loop.accelerator == "cuda" and not torch.cuda.is_available():
        raise OptionError("loop.accelerator cuda, but no CUDA device", "cpu here", "--set loop.accelerator=cpu")
    with torch.device("meta"):
        network = build_any_network(experiment.network)
    config = experiment.network
    channels = config.channels if isinstance(config, NetworkConfig) else None
    if (
        isinstance(config, BaselineConfig) or isinstance(channels, FixedBands)
    ) and experiment.simulation.keep_bands is not None:
        raise OptionError(
            "a network of fixed channels and simulation.keep_bands", "one of the two", "leave keep_bands out"
        )
    for bucket in scenes.buckets:
        for msi_bands in _msi_band_counts(experiment, bucket):
            require_fitting_bands(network, bucket.bands.count, msi_bands)
        if isinstance(channels, WavelengthBands) and bucket.bands.wavelength_nm is None:
            raise BandError(
                f"{bucket.name} of unknown wavelengths",
                "known ones: this network's channels are wavelengths",
                "set assumed_nm in its table of scenes, leave it out, or take other channels",
            )
    for case in scenes.cases:
        require_fitting_bands(network, case.hsi.shape[0], case.msi.shape[0])


def _msi_band_counts(experiment: Experiment, bucket: Bucket) -> set[int]:
    """Fewest and most msi bands that a batch of this bucket can have."""
    counts: set[int] = set()
    for choice in experiment.simulation.srfs:
        weights = None if choice.name == RANDOM_SRF else named_srf(choice.name, bucket.bands)
        drawn = experiment.simulation.msi_bands if weights is None else (len(weights),)
        counts |= {min(count, bucket.bands.count) for count in drawn}
    return counts


def describe(experiment: Experiment, scenes_folder: Path | None = None) -> str:
    """What a training would do, in a few lines."""
    gathered = gather_scenes(experiment, scenes_folder)
    require_trainable(experiment, gathered)
    with torch.device("meta"):
        parameters = count_parameters(build_any_network(experiment.network))
    lines = [
        f"network     {parameters:,} parameters, {_kind_of_network(experiment)}, base {experiment.network.base}",
        f"training    {total_steps(experiment, gathered.patches)} steps of {experiment.loop.batch_size} patches",
        f"split       {gathered.label}",
        *(f"bucket      {bucket.name}: {_content(bucket)}" for bucket in gathered.buckets),
        *(f"validation  {case.name}: base {case.base_psnr_db:.2f} dB" for case in gathered.cases),
        *(f"note        {note}" for note in gathered.notes),
    ]
    return "\n".join(lines)


def _kind_of_network(experiment: Experiment) -> str:
    config = experiment.network
    if isinstance(config, NetworkConfig):
        return f"channels {config.channels.kind}"
    if isinstance(config, PriorConfig):
        return f"guides {config.base}"
    return f"{config.kind} for {config.bands} and {config.msi_bands} bands"


def _content(bucket: Bucket) -> str:
    patches = f"{len(bucket.windows)} patches" if bucket.windows else "patches without end"
    return f"{bucket.bands.count} bands, {patches} of {bucket.size}x{bucket.size}"


def is_first_process() -> bool:
    """Whether this process was started by hand, or is the first of those that a launcher started."""
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") == "0" for name in ranks)


def require_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("lightning_fabric", "tensorboard") if find_spec(name) is None]
    if missing:
        raise OptionError(
            f"training needs {' and '.join(missing)}", remedy="install it with: pip install 'hyperfuse[train]'"
        )
