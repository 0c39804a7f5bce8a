"""Fine-tune trained weights for an unseen sensor (the paper's 500 iterations), with scores before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperfuse.config import FinetuneConfig, takes_options
from hyperfuse.errors import OptionError
from hyperfuse.fusion.fusers import load_network
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import SSA
from hyperfuse.training.experiment import parse_experiment
from hyperfuse.training.run_folder import WEIGHTS
from hyperfuse.training.scene_sets import Score, gather_scenes, validate
from hyperfuse.training.train import train

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
    base: Score
    before: Score
    after: Score


@dataclass(frozen=True)
class FinetuningOutcome:
    """How a fine-tuning ended; no comparisons after an interruption."""

    folder: Path
    finished: bool
    comparisons: list[Comparison]
    split: str


@takes_options(FinetuneConfig)
def finetune(
    weights: str | Path, scenes: Sequence[str], folder: str | Path, *, config: FinetuneConfig | None = None
) -> FinetuningOutcome:
    """Fine-tune a trained network on scenes of a sensor.

    Parameters
    ----------
    weights
        Folder of the weights to start from, or hf://owner/name.
    scenes, test_scenes
        Sources as in `load_scenes`. Without test scenes, the others are divided into disjoint training and test blocks.
    folder
        Folder of the run; the new weights are in its subfolder `weights`.
    iterations
        Steps of the optimiser.
    freeze
        Parts of an SSA network that stay fixed: kernels, spectral_encoder, spatial_encoder, decoder.
    learning_rate
        At the start; it decays to a tenth.
    scale, srf
        Fine pixels per coarse pixel and SRF of the simulated MSI, in training and test.
    resume
        Continue from the checkpoint in the folder, if there is one.

    Returns
    -------
    FinetuningOutcome
        With the scores of the test scenes before and after.
    """
    config = config or FinetuneConfig()
    network = load_network(str(weights))
    sets = [{"source": source, "use": "train" if config.test_scenes else "split"} for source in scenes]
    experiment = parse_experiment(
        {
            "name": "finetuning",
            "seed": config.seed,
            "network": network.config.model_dump(),
            "scenes": sets + [{"source": source, "use": "test"} for source in config.test_scenes],
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
        raise OptionError(
            "no part of the scenes can be held out for testing",
            "scenes to score on",
            "give --test-scenes, or larger scenes",
        )
    before = [validate(network.eval(), case)[0] for case in gathered.cases]
    if isinstance(network, PriorNetwork):
        network.unfreeze()
    outcome = train(experiment, folder, resume=config.resume, scenes=gathered, network=network)
    if not outcome.finished:
        return FinetuningOutcome(outcome.folder, False, [], gathered.label)
    adapted = load_network(str(outcome.folder / WEIGHTS))
    comparisons = [
        Comparison(case.name, case.base, earlier, validate(adapted, case)[0])
        for case, earlier in zip(gathered.cases, before, strict=True)
    ]
    return FinetuningOutcome(outcome.folder, True, comparisons, gathered.label)


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


def comparison_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Return the comparisons as flat rows."""
    return [
        {
            "case": each.case,
            "base_psnr_db": each.base.psnr_db,
            "before_psnr_db": each.before.psnr_db,
            "after_psnr_db": each.after.psnr_db,
            "before_angle_degrees": each.before.spectral_angle_degrees,
            "after_angle_degrees": each.after.spectral_angle_degrees,
        }
        for each in comparisons
    ]
