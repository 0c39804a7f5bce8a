"""One TOML file makes one experiment. Every table is a frozen model beside what it configures; an unknown key is an
error.

How long an experiment trains, and how fast it learns at each step.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hyperfuse.data.observing import SimulationSettings
from hyperfuse.data.synthetic import SYNTHETIC
from hyperfuse.errors import OptionError
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.models.baselines.catalogue import OURS, AnyNetworkConfig, any_preset
from hyperfuse.models.config import NetworkConfig
from hyperfuse.models.prior import PriorConfig


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


Count = Annotated[int, Field(ge=1, strict=True)]
CountOrNone = Annotated[int, Field(ge=0, strict=True)]
PatchSize = Annotated[int, Field(ge=8, strict=True)]
Share = Annotated[float, Field(ge=0, lt=1)]
Finite = Field(allow_inf_nan=False, gt=0)


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SceneSet(_Table):
    """source   a data set of `hyperfuse scenes`, a file, a folder, a pattern like scenes/*.tif, or "synthetic" for scenes
                without end
    use      "split": divided by the experiment's split; "train": all of it for training; "test": only looked at
    exclude  names of files to leave out, patterns allowed
    times    its buckets are drawn so many times as often as others
    bands    band counts of synthetic scenes
    assumed_nm  range of the wavelengths, evenly spaced, of scenes that do not say theirs
    patch_size  of these scenes, where it is not that of the split
    """

    source: str
    use: Literal["split", "train", "test"] = "split"
    exclude: tuple[str, ...] = ()
    times: Annotated[int, Field(ge=1, le=100, strict=True)] = 1
    bands: Annotated[tuple[Count, ...], Field(min_length=1)] = (31, 64, 102, 145, 191)
    assumed_nm: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] | None = None
    patch_size: PatchSize | None = None


class SplitSettings(_Table):
    """kind  "disjoint": blocks with a guard band between training and test; "paper": the paper's own, which overlap."""

    kind: Literal["disjoint", "paper"] = "disjoint"
    patch_size: PatchSize = 128
    stride: Count | None = None


class Optimiser(_Table):
    learning_rate: Annotated[float, Finite] = 2e-4
    final_learning_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    warmup_steps: CountOrNone = 0
    betas: tuple[Share, Share] = (0.9, 0.999)
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    clip_norm: Annotated[float, Finite] | None = None


class Length(_Table):
    """Steps of the optimiser, or epochs: as many steps as it takes to draw as many patches as there are."""

    steps: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Length:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("got both or neither, expected one of steps and epochs")
        return self


class LoopSettings(_Table):
    """batch_size  of all processes together; `accumulate` batches make one step
    loss        "paper": L1 + ssim_weight (1 - SSIM); "decibels": each sample's PSNR and angle_weight times the
                logarithm of its
                spectral angle, so that dark and bright, easy and hard scenes count alike
    ema         decay of the averaged weights that are validated and saved; 0 for none
    """

    batch_size: Count = 4
    accumulate: Count = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    ema: Share = 0.0
    loss: Literal["paper", "decibels"] = "paper"
    ssim_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    angle_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    workers: CountOrNone = 1
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Count | None = None
    nodes: Count = 1
    log_every: Count = 50
    checkpoint_every: Count = 500


class GainFitting(_Table):
    """After the training of `universal`'s network, its gains are fitted anew, the rest held still: on so many further
    `draws`, in steps of `batch_size` of them. A decibel that a pair falls below local FUSE counts `caution` times as
    much again.
    """

    draws: Count = 8000
    steps: Count = 3000
    batch_size: Count = 64
    learning_rate: Annotated[float, Finite] = 3e-3
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.1
    caution: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0


class ValidationSettings(_Table):
    """Whole test scenes (at most `largest` pixels on a side, from the middle), simulated at these scales with this
    response.
    """

    every: Count = 1000
    scales: Annotated[tuple[Annotated[float, Field(gt=1, le=1000)], ...], Field(min_length=1)] = (4.0,)
    srf: str = "rgb"
    largest: Annotated[int, Field(ge=16)] = 512


class Finetuning(_Table):
    """Where a network that is adapted came from, and which of its parts stay as they are."""

    weights: str
    digest: str
    freeze: tuple[str, ...] = ()


class Experiment(_Table):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
    seed: Annotated[int, Field(ge=0, lt=2**31, strict=True)] = 0
    network: AnyNetworkConfig
    scenes: Annotated[tuple[SceneSet, ...], Field(min_length=1)]
    split: SplitSettings = SplitSettings()
    simulation: SimulationSettings = SimulationSettings()
    optimiser: Optimiser = Optimiser()
    length: Length
    loop: LoopSettings = LoopSettings()
    gains: GainFitting | None = None
    validation: ValidationSettings = ValidationSettings()
    finetuning: Finetuning | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_network_from_preset(cls, tables: Any) -> Any:
        """`[network] preset = "ssa-small"`, or a rival's, and what differs from it."""
        network = tables.get("network") if isinstance(tables, dict) else None
        if isinstance(network, dict) and "preset" in network:
            changes = {key: value for key, value in network.items() if key != "preset"}
            return tables | {"network": any_preset(str(network["preset"])).model_dump() | changes}
        return tables

    @model_validator(mode="after")
    def _known_base(self) -> Experiment:
        if self.network.base not in METHODS:
            raise ValueError(f'got base "{self.network.base}", expected one of {", ".join(METHODS)}')
        return self

    @model_validator(mode="after")
    def _gains_of_the_right_network(self) -> Experiment:
        if self.gains is not None and not isinstance(self.network, PriorConfig):
            raise ValueError('got [gains], expected it only for the network of kind "prior", which has gains')
        return self

    @model_validator(mode="after")
    def _trained_on_values_from_0_to_1(self) -> Experiment:
        if self.network.value_range != (0.0, 1.0):
            raise ValueError("got another value_range, expected [0.0, 1.0]: scenes are scaled to it in training")
        return self

    @model_validator(mode="after")
    def _synthetic_scenes_train(self) -> Experiment:
        synthetic = [each for each in self.scenes if each.source == SYNTHETIC]
        if any(each.use == "test" for each in synthetic):
            raise ValueError('got use = "test" for synthetic scenes, expected "train": they are for training')
        if self.length.epochs is not None and len(synthetic) == len(self.scenes):
            raise ValueError("got epochs of scenes without end, expected length.steps")
        return self


def read_experiment(path: str | Path, changes: Sequence[str] = ()) -> Experiment:
    """The experiment of a TOML file; `changes` are "table.key=value" with a value as TOML writes it."""
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror})", "an experiment file (.toml)") from error
    except ValueError as error:
        raise OptionError(f"{path} is not TOML: {error}", "tables and keys as in experiments/small_cpu.toml") from error
    for change in changes:
        _apply(tables, change)
    return parse_experiment(tables, str(path))


def parse_experiment(tables: dict[str, Any], named: str) -> Experiment:
    try:
        return Experiment.model_validate(tables)
    except ValidationError as error:
        raise OptionError(f"{named}: {_first_fault(error, tables)}") from error
    except OptionError as error:
        raise OptionError(f"{named}: {error.got}", error.expected, error.remedy) from error


def _apply(tables: dict[str, Any], change: str) -> None:
    key, sign, text = change.partition("=")
    parts = key.strip().split(".")
    if not sign or not all(parts):
        raise OptionError(f"--set {change}", "--set table.key=value, e.g. --set loop.batch_size=8")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text.strip()  # a bare word is a string
    for part in parts[:-1]:
        tables = tables.setdefault(part, {})
        if not isinstance(tables, dict):
            raise OptionError(f"--set {change}", f"{part} to be a table")
    tables[parts[-1]] = value


def _first_fault(error: ValidationError, tables: dict[str, Any]) -> str:
    """The first complaint as one sentence; an unknown key names the nearest known one."""
    fault = error.errors()[0]
    where = ".".join(str(part) for part in _as_written(fault["loc"]))
    if fault["type"] == "extra_forbidden":
        known = _known_keys(fault["loc"][:-1])
        nearest = difflib.get_close_matches(str(fault["loc"][-1]), known, n=1, cutoff=0.0)
        return f'unknown key "{where}"; expected one of {", ".join(known)}; did you mean "{nearest[0]}"?'
    if fault["type"] == "missing":
        return f'"{where}" is missing'
    said = fault["msg"].removeprefix("Value error, ")
    return f'"{where}": {said}' if isinstance(fault["input"], dict) else f'"{where}": {said}; got {fault["input"]!r}'


def _as_written(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """pydantic names the kind of network between the table and its key."""
    return location[:1] + location[2:] if location[:1] == ("network",) else location


def _known_keys(location: tuple[int | str, ...]) -> list[str]:
    """The keys of the table at this place, found by walking the models."""
    models: list[type[BaseModel]] = [Experiment]
    keys: set[str] = set(Experiment.model_fields)
    for part in location:
        fields = [model.model_fields[str(part)] for model in models if str(part) in model.model_fields]
        inner = [model for each in fields for model in _models_in(each.annotation)]
        by_kind = [model for model in models if _kind_of(model) == part]
        if not inner and not by_kind:  # an index into a list of tables
            continue
        models = by_kind or inner
        keys = {key for model in models for key in model.model_fields} | (
            {"preset"} if "network" in location[:2] else set()
        )
    return sorted(keys)


def _kind_of(model: type[BaseModel]) -> str | None:
    if model is NetworkConfig:
        return OURS
    return str(model.model_fields["kind"].default) if "kind" in model.model_fields else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models_in(inner)]
