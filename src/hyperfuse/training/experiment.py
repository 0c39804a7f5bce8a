"""Experiments: one TOML file each, every table a frozen model."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from hyperfuse.config import InputConfig
from hyperfuse.data.datasets import find_file
from hyperfuse.data.settings import SimulationSettings
from hyperfuse.data.synthetic import SYNTHETIC, USUAL_BANDS
from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.methods.catalogue import METHODS
from hyperfuse.models.catalogue import AnyNetworkConfig, any_preset
from hyperfuse.models.prior import PriorConfig
from hyperfuse.models.weights import Strict
from hyperfuse.physics.srf_curves import is_srf_file

Count = Annotated[int, Field(ge=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, strict=True)]
PatchSize = Annotated[int, Field(ge=8, strict=True)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SceneSet(Strict):
    """Scenes from one source.

    source      a data set of `hyperfuse scenes`, a file, a folder, a pattern like scenes/*.tif, "synthetic" for endless
                random scenes, or "demo" for Indian Pines, which the extra `demo` brings along
    use         "split": divided by the experiment's split; "train": all of it for training; "test": all for validation
    exclude     names of files to leave out; patterns allowed
    times       its buckets are drawn this many times as often as others
    bands       band counts of synthetic scenes
    assumed_nm  range of the evenly spaced wavelengths of scenes that have none
    patch_size  of these scenes, if different from that of the split
    wavelengths, nodata_in   what their files lack, as --wavelengths and --nodata-in take it
    """

    source: str
    use: Literal["split", "train", "test"] = "split"
    exclude: tuple[str, ...] = ()
    times: Annotated[int, Field(ge=1, le=100, strict=True)] = 1
    bands: Annotated[tuple[Count, ...], Field(min_length=1)] = USUAL_BANDS
    assumed_nm: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] | None = None
    patch_size: PatchSize | None = None
    wavelengths: str | None = None
    nodata_in: float | None = None

    @property
    def inputs(self) -> InputConfig:
        return InputConfig(wavelengths=self.wavelengths, nodata_in=self.nodata_in)


class SplitSettings(Strict):
    """kind: "disjoint" blocks with a guard band between training and test, or the "paper"'s own, which overlap."""

    kind: Literal["disjoint", "paper"] = "disjoint"
    patch_size: PatchSize = 128
    stride: Count | None = None


class Optimiser(Strict):
    """AdamW with a linear warm-up and a cosine decay of the learning rate."""

    learning_rate: Positive = 2e-4
    final_learning_rate: NonNegative = 1e-5
    warmup_steps: CountOrZero = 0
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: NonNegative = 0.0
    clip_norm: Positive | None = None

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step of `steps`."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, steps - self.warmup_steps)
        fall = self.learning_rate - self.final_learning_rate
        return self.final_learning_rate + fall * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


class Length(Strict):
    """Steps of the optimiser, or epochs: as many steps as it takes to draw the number of patches that there are."""

    steps: Count | None = None
    epochs: Count | None = None

    @model_validator(mode="after")
    def _require_one(self) -> Length:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("got both or neither, expected one of steps and epochs")
        return self


class LoopSettings(Strict):
    """How a step is computed, and on what.

    batch_size  of all processes together; `accumulate` batches make one step
    loss        "paper": L1 + ssim_weight (1 - SSIM); "relative": the L1 error of each sample divided by that of
                bicubic; "decibels": the PSNR of each sample and angle_weight times the logarithm of its spectral
                angle. With the last two, dark and bright, easy and hard scenes count the same
    ema         decay of the averaged weights that are validated and saved; 0 for none
    """

    batch_size: Count = 4
    accumulate: Count = 1
    precision: Literal["float32", "bfloat16"] = "float32"
    ema: Fraction = 0.0
    loss: Literal["paper", "relative", "decibels"] = "paper"
    ssim_weight: NonNegative = 0.1
    angle_weight: NonNegative = 2.0
    workers: CountOrZero = 1
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Count | None = None
    nodes: Count = 1
    log_every: Count = 50
    checkpoint_every: Count = 500


class GainFitting(Strict):
    """Refit the gains of `universal`'s network after its training, on this many further `draws`; the rest of it is
    fixed. A decibel below local FUSE counts `caution` times more; statistics get noise of `jitter` standard deviations.
    """

    draws: Count = 8000
    steps: Count = 3000
    batch_size: Count = 64
    learning_rate: Positive = 3e-3
    weight_decay: NonNegative = 0.1
    caution: NonNegative = 2.0
    jitter: NonNegative = 0.0


class ValidationSettings(Strict):
    """Whole test scenes (at most `largest` pixels on a side, from the middle), simulated at these scales."""

    every: Count = 1000
    scales: Annotated[tuple[Annotated[float, Field(gt=1, le=1000)], ...], Field(min_length=1)] = (4.0,)
    srf: str = "rgb"
    largest: Annotated[int, Field(ge=16)] = 512


class Finetuning(Strict):
    """The weights that a fine-tuning starts from, and the parts of the network that stay fixed."""

    weights: str
    digest: str
    freeze: tuple[str, ...] = ()


class Experiment(Strict):
    """Everything that determines a training, as in an experiment file.

    Attributes
    ----------
    name
        Name of the run.
    seed
        Determines the initial weights and every batch.
    network
        A preset (`preset = "ssa-small"`) and what differs from it, or the configuration of any network.
    scenes
        Where the scenes come from and what they are used for.
    split, simulation, optimiser, length, loop, gains, validation, finetuning
        The tables of these names; see their classes.

    Examples
    --------
    >>> tables = {"name": "tiny", "network": {"preset": "ssa-small"}, "scenes": [{"source": "synthetic"}]}
    >>> Experiment.model_validate(tables | {"length": {"steps": 10}}).loop.batch_size
    4
    """

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

    def total_steps(self, patches: int) -> int:
        """Return the number of optimiser steps, for this many training patches."""
        per_step = self.loop.batch_size * self.loop.accumulate
        return self.length.steps or (self.length.epochs or 0) * math.ceil(patches / per_step)

    def with_srf_files(self, folder: Path | None = None) -> Experiment:
        """The same experiment with the paths of its SRF files looked up like those of scenes, see `scenes_folder`."""
        srfs = tuple(each.model_copy(update={"name": _found_srf(each.name, folder)}) for each in self.simulation.srfs)
        simulation = self.simulation.model_copy(update={"srfs": srfs})
        validation = self.validation.model_copy(update={"srf": _found_srf(self.validation.srf, folder)})
        return self.model_copy(update={"simulation": simulation, "validation": validation})

    @model_validator(mode="before")
    @classmethod
    def _fill_network_from_preset(cls, tables: Any) -> Any:
        network = tables.get("network") if isinstance(tables, dict) else None
        if isinstance(network, dict) and "preset" in network:
            changes = {key: value for key, value in network.items() if key != "preset"}
            return tables | {"network": any_preset(str(network["preset"])).model_dump() | changes}
        return tables

    @model_validator(mode="after")
    def _require_consistent_tables(self) -> Experiment:
        if self.network.base not in METHODS:
            raise ValueError(f'got base "{self.network.base}", expected one of {", ".join(METHODS)}')
        if self.gains is not None and not isinstance(self.network, PriorConfig):
            raise ValueError('got [gains], expected it only for the network of kind "prior", which has gains')
        if self.network.value_range != (0.0, 1.0):
            raise ValueError("got another value_range, expected [0.0, 1.0]: scenes are scaled to it in training")
        synthetic = [each for each in self.scenes if each.source == SYNTHETIC]
        if any(each.use == "test" for each in synthetic):
            raise ValueError('got use = "test" for synthetic scenes, expected "train": they are for training')
        if self.length.epochs is not None and len(synthetic) == len(self.scenes):
            raise ValueError("got epochs of endless scenes, expected length.steps")
        return self


def _found_srf(name: str, folder: Path | None) -> str:
    if not is_srf_file(Path(name)):
        return name
    try:
        return str(find_file(name, folder))
    except CubeFileError as error:
        others = "or take another SRF (--set simulation.srfs=rgb --set validation.srf=rgb)"
        raise CubeFileError(f"no SRF file {name}", error.expected, f"{error.remedy}, {others}") from error


def read_experiment(
    path: str | Path, changes: Sequence[str] = (), scenes: Sequence[str] = (), inputs: InputConfig | None = None
) -> Experiment:
    """Read an experiment file.

    Parameters
    ----------
    path
        The TOML file.
    changes
        Values to change as "table.key=value" with a TOML value; a bare word is a string.
    scenes
        Sources that replace the experiment's scenes; they are divided by its split.
    inputs
        What the files of scenes lack.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path} cannot be read ({error.strerror})", "an experiment file (.toml)") from error
    except ValueError as error:
        raise OptionError(f"{path} is not TOML: {error}", "tables and keys as in experiments/small_cpu.toml") from error
    for change in changes:
        _set_value(tables, change)
    if scenes:
        tables["scenes"] = [{"source": source} for source in scenes]
    if inputs is not None and isinstance(tables.get("scenes"), list):
        tables["scenes"] = [each | inputs.given() if isinstance(each, dict) else each for each in tables["scenes"]]
    return parse_experiment(tables, str(path))


def parse_experiment(tables: dict[str, Any], source: str) -> Experiment:
    """Validate the tables of an experiment; errors name the `source`."""
    try:
        return Experiment.model_validate(tables)
    except ValidationError as error:
        raise OptionError(f"{source}: {_first_error(error)}") from error
    except OptionError as error:
        raise OptionError(f"{source}: {error.got}", error.expected, error.remedy) from error


def _set_value(tables: dict[str, Any], change: str) -> None:
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


def _first_error(error: ValidationError) -> str:
    """The first error as one sentence."""
    first = error.errors()[0]
    is_unknown = first["type"] == "unknown_key"
    location = (*first["loc"], *([first["ctx"]["key"]] if is_unknown else []))
    # pydantic inserts the kind of network between the table and its key.
    key = ".".join(str(part) for part in (location[:1] + location[2:] if location[:1] == ("network",) else location))
    if is_unknown:
        return f'unknown key "{key}"; {first["msg"]}'
    if first["type"] == "missing":
        return f'"{key}" is missing'
    message = first["msg"].removeprefix("Value error, ")
    return f'"{key}": {message}' if isinstance(first["input"], dict) else f'"{key}": {message}; got {first["input"]!r}'
