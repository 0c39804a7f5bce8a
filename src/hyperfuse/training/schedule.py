"""How long an experiment trains, and how fast it learns at each step."""

from __future__ import annotations

import math

from hyperfuse.training.experiment import Experiment


def total_steps(experiment: Experiment, patches: int) -> int:
    if experiment.length.steps is not None:
        return experiment.length.steps
    assert experiment.length.epochs is not None
    per_step = experiment.loop.batch_size * experiment.loop.accumulate
    return experiment.length.epochs * math.ceil(patches / per_step)


def learning_rate(experiment: Experiment, step: int, steps: int) -> float:
    """Cosine from the first rate to the last, after a linear warm-up."""
    settings = experiment.optimiser
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    share = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    fall = settings.learning_rate - settings.final_learning_rate
    return settings.final_learning_rate + fall * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
