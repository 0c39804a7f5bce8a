"""Train an experiment, or fine-tune trained weights for an unseen sensor (the paper's 500 iterations)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from hyperfuse.config import FinetuneConfig, takes_options
from hyperfuse.data.observing import named_srf
from hyperfuse.data.sampler import Bucket, process_slots
from hyperfuse.data.settings import RANDOM_SRF
from hyperfuse.errors import BandError, OptionError
from hyperfuse.fusion.fusers import load_network
from hyperfuse.io.atomic import target_lock
from hyperfuse.models.analysis import count_parameters
from hyperfuse.models.baselines.base import BaselineConfig
from hyperfuse.models.catalogue import AnyNetwork, build_network
from hyperfuse.models.matryoshka import FixedBands, WavelengthBands
from hyperfuse.models.prior import PriorConfig, PriorNetwork
from hyperfuse.models.ssa import SSA, SSAConfig
from hyperfuse.training.experiment import Experiment, parse_experiment
from hyperfuse.training.loop import Trainer, expected_processes
from hyperfuse.training.run_folder import WEIGHTS, RunFolder
from hyperfuse.training.scene_sets import GatheredScenes, gather_scenes, validate

# Names for --freeze, and their modules.
PARTS: dict[str, tuple[str, ...]] = {
    "kernels": ("hsi_kernel", "pair_kernel", "msi_kernel", "output_kernel"),
    "spectral_encoder": ("spectral_encoder",),
    "spatial_encoder": ("spatial_encoder",),
    "decoder": ("implicit_decoder",),
}


@dataclass(frozen=True)
class Comparison:
    """Scores of one test case: of the base alone, and of the weights before and after fine-tuning."""

    case: str
    base_psnr_db: float
    before_psnr_db: float
    after_psnr_db: float
    before_angle_degrees: float
    after_angle_degrees: float


@dataclass(frozen=True)
class TrainingOutcome:
    """How a training ended; `first_process`: whether this process prints for all."""

    folder: Path
    step: int
    steps: int
    best_psnr_db: float | None
    split: str
    first_process: bool
    comparisons: Sequence[Comparison] = ()  # of a fine-tuning

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
    with_files = experiment.with_srf_files(scenes_folder)
    check_trainable(with_files, gathered)
    for note in gathered.notes if first_process else []:
        warnings.warn(note, stacklevel=2)
    # The first process makes the folder before it starts others.
    continues = run.begin(experiment, resume=resume) if first_process else False
    if network is None:
        # A generator of its own would not reach the initialisation of the layers.
        torch.manual_seed(experiment.seed)
        network = build_network(experiment.network)
    with target_lock(run.path) if first_process else nullcontext():
        trainer = Trainer(with_files, gathered, run, network.train())
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
    check_trainable(experiment.with_srf_files(scenes_folder), gathered)
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


@takes_options(FinetuneConfig)
def finetune(
    weights: str | Path, scenes: Sequence[str], folder: str | Path, *, config: FinetuneConfig | None = None
) -> TrainingOutcome:
    """Fine-tune a trained network on scenes of a sensor.

    Parameters
    ----------
    weights
        Folder of the weights to start from, or hf://owner/name.
    scenes
        Sources as in `load_scenes`. Without ``test_scenes`` they are divided into disjoint training and test blocks.
    folder
        Folder of the run; the new weights are in its subfolder `weights`.
    config : FinetuneConfig, optional
        All options in one object, such as ``iterations``, ``freeze`` or ``scale``; each may also be given as a keyword.

    Returns
    -------
    TrainingOutcome
        With the scores of the test scenes before and after, unless it was interrupted.
    """
    config = config or FinetuneConfig()
    network = load_network(str(weights))
    uses = [(source, "train" if config.test_scenes else "split") for source in scenes]
    uses += [(source, "test") for source in config.test_scenes]
    inputs = {"wavelengths": config.wavelengths, "nodata_in": config.nodata_in}
    experiment = parse_experiment(
        {
            "name": "finetuning",
            "seed": config.seed,
            "network": network.config.model_dump(),
            "scenes": [{"source": source, "use": use} | inputs for source, use in uses],
            "split": {"patch_size": config.patch_size, "stride": max(1, config.patch_size // 4)},
            "simulation": {"scale": config.scale, "srfs": config.srf},
            "optimiser": {
                "learning_rate": config.learning_rate,
                "final_learning_rate": config.learning_rate / 10,
                "clip_norm": 1.0,
            },
            "length": {"steps": config.iterations},
            "loop": {"batch_size": config.batch_size, "workers": config.workers},
            "validation": {"every": config.iterations, "scales": [config.scale], "srf": config.srf},
            "finetuning": {
                "weights": str(weights),
                "digest": network.weights_digest or "",
                "freeze": sorted(config.freeze),
            },
        },
        "fine-tuning",
    )
    freeze_parts(network, config.freeze)
    gathered = gather_scenes(experiment, config.scenes_folder)
    if not gathered.cases:
        got = "no part of the scenes can be held out for testing"
        raise OptionError(got, "scenes to score on", "give --test-scenes, or larger scenes")
    before = [validate(network.eval(), case)[0] for case in gathered.cases]
    if isinstance(network, PriorNetwork):
        network.unfreeze()
    outcome = train(
        experiment,
        folder,
        resume=config.resume,
        scenes_folder=config.scenes_folder,
        scenes=gathered,
        network=network,
    )
    if not outcome.finished:
        return outcome
    adapted = load_network(str(outcome.folder / WEIGHTS))
    comparisons = []
    for case, old in zip(gathered.cases, before, strict=True):
        new, _ = validate(adapted, case)
        angles = old.spectral_angle_degrees, new.spectral_angle_degrees
        comparisons.append(Comparison(case.name, case.base.psnr_db, old.psnr_db, new.psnr_db, *angles))
    return replace(outcome, comparisons=comparisons)


def freeze_parts(network: AnyNetwork, names: Sequence[str]) -> None:
    """Exclude parts of an SSA network from the training."""
    if not names:
        return
    if not isinstance(network, SSA):
        raise OptionError(
            f"--freeze for {type(network).__name__}", "a fusion network, whose parts have names", "leave --freeze out"
        )
    for name in names:
        if name not in PARTS:
            raise OptionError(f"no part is called {name!r}", f"one of {', '.join(PARTS)}", "correct --freeze")
    frozen = {module for name in names for module in PARTS[name]}
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(name.partition(".")[0] not in frozen)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise OptionError("every part is frozen", "at least one that is trained", "leave a part out of --freeze")
