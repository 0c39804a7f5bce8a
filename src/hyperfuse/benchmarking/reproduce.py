"""`reproduce`: an experiment of the paper, at the scale of a laptop, on the user's scenes.

Every experiment is a plan: networks to train, and test scenes to score them on. A folder holds trainings (`runs`),
scores (`scores`) and pages; its experiments share the joint network. The same command resumes what was interrupted.
Sensors that are left out, for `unseen`, are left out of all trainings of a folder.
"""

from __future__ import annotations

import csv
import io
import re
import shutil
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hyperfuse.benchmarking.cases import has_room, takes_bands
from hyperfuse.benchmarking.division import SRF, Group, choose_left_out, divide, trained_on
from hyperfuse.benchmarking.efficiency import JSON_NAME, MARKDOWN_NAME, run_efficiency
from hyperfuse.benchmarking.results import (
    PrintedScores,
    Result,
    current_session,
    printed_ablations,
    printed_scores,
    session_line,
)
from hyperfuse.benchmarking.run import benchmark
from hyperfuse.benchmarking.tables import (
    AS_PRINTED,
    around_the_place,
    case_table,
    condition_table,
    describe_failures,
    paper_tables,
    printed_table,
    scale_chart,
    tables_csv,
    tables_latex,
    tables_markdown,
)
from hyperfuse.config import BenchmarkConfig, EfficiencyConfig, ReproduceConfig, takes_options
from hyperfuse.errors import OptionError
from hyperfuse.fusion.fusers import load_network
from hyperfuse.io.atomic import make_folder, write_text
from hyperfuse.models.analysis import (
    count_parameters,
    kernel_vectors,
    map_kernels,
    performed_multiply_adds,
    smoothness,
    trained_channels,
    umap_is_installed,
)
from hyperfuse.models.catalogue import any_preset
from hyperfuse.models.ssa import SSA, SSAConfig
from hyperfuse.models.weights import CONFIG_NAME, local_folder
from hyperfuse.reporting.figures import draw_kernel_maps
from hyperfuse.reporting.tables import markdown_table
from hyperfuse.training.experiment import Experiment, parse_experiment
from hyperfuse.training.run_folder import EXPERIMENT, WEIGHTS, read_log
from hyperfuse.training.train import train

JOINT, RUNS, SCORES, SCENES, SHIPPED = "joint", "runs", "scores", "scenes", "ssa"
MINUTES = 30.0
PROBE_STEPS, PROBE_LINES = 20, 10
TRAINED_SCALE, INTEGER_SCALES, FRACTIONAL_SCALES = (4.0,), (4.0, 8.0, 16.0, 32.0), (3.2, 5.7)
METHODS = ("bicubic", "gsa", "glp", "local_fuse")
MSI_BANDS = 3
# The pair that the paper counts operations for.
COUNTED_BANDS, COUNTED_FINE, COUNTED_COARSE = 31, (128, 128), (32, 32)
# Blocks of both encoders, and the share of the width: the paper's smallest network is also half as wide.
SIZES = ((1, 0.5), (2, 1.0), (4, 1.0), (6, 1.0))
BASELINES = ("dspnet", "mimo-sst", "dcinn", "pstun", "ssa-6-6")
# Trained beside SSA, of about its size.
TRAINED_BASELINES = {"MIMO-SST": "mimo-sst-thin", "DSPNet": "dspnet-thin"}


@dataclass(frozen=True)
class Training:
    """A network to train. `share` is its part of --minutes or --steps; `start` the weights of a fine-tuning."""

    name: str
    scenes: Sequence[Mapping[str, Any]]
    network: Mapping[str, Any] = field(default_factory=dict)
    share: float = 1.0
    iterations: int | None = None
    learning_rate: float | None = None
    start: str | None = None


@dataclass(frozen=True)
class Scoring:
    """Test scenes, and the networks that are scored on them: a training by its name, or a folder."""

    name: str
    tests: Sequence[str]
    networks: Mapping[str, str]
    scales: Sequence[float] = TRAINED_SCALE
    methods: Sequence[str] = METHODS


@dataclass(frozen=True)
class Plan:
    trainings: Sequence[Training]
    scorings: Sequence[Scoring] = ()
    printed: Sequence[PrintedScores] = ()
    """Of other data sets, in a table of their own."""


@dataclass(frozen=True, eq=False)
class Reproduction:
    """One experiment in its folder."""

    experiment: str
    folder: Path
    config: ReproduceConfig
    groups: Sequence[Group]
    recipe: Mapping[str, Any]
    weights: str | None
    """A trained network, given or shipped; without one the joint network is trained."""
    left_out: Sequence[str]

    @property
    def network(self) -> str:
        return self.weights or JOINT

    @property
    def seen(self) -> list[Group]:
        trained = [group for group in self.groups if group.train or self.weights]
        return [group for group in trained if group.sensor not in self.left_out]

    def tests(self, scales: Sequence[float] = TRAINED_SCALE) -> tuple[list[str], list[float]]:
        """Sources of seen sensors with room for every scale, and the scales that any of them has room for."""
        sizes = {source: size for group in self.seen for source, size in group.tests.items()}
        fitting = [scale for scale in scales if any(has_room(size, scale) for size in sizes.values())]
        tests = [source for source, size in sizes.items() if all(has_room(size, scale) for scale in fitting)]
        if not fitting or not tests:
            raise OptionError(
                f"no scene to test on at x{scales[0]:g}", f"one of a trained sensor that covers {SRF}", "add --scenes"
            )
        return tests, fitting

    def joint(self) -> list[Training]:
        return [] if self.weights else [Training(JOINT, [table for group in self.seen for table in group.train])]

    def run_folder(self, name: str) -> Path:
        return self.folder / RUNS / name

    def weights_of(self, network: str) -> str:
        return str(local_folder(network) if network == self.weights else self.run_folder(network) / WEIGHTS)

    def resolved(self, training: Training, steps: int) -> Experiment:
        """The recipe with what the training changes."""
        network = dict(training.network)
        if "kind" not in network:  # an SSA network with what the training changes
            base = load_network(self.weights_of(self.weights)).config.model_dump() if self.weights else None
            network = {**(base or self.recipe.get("network", {})), **network}
        tables: dict[str, Any] = {
            **self.recipe,
            "name": training.name,
            "seed": self.config.seed,
            "network": network,
            "scenes": [dict(table) for table in training.scenes],
            "length": {"steps": steps},
        }
        if (rate := training.learning_rate) is not None:
            tables["optimiser"] = {
                **tables.get("optimiser", {}),
                "learning_rate": rate,
                "final_learning_rate": rate / 10,
            }
        if training.start is not None:
            start = self.weights_of(training.start)
            tables["finetuning"] = {"weights": start, "digest": load_network(start).weights_digest or ""}
        return parse_experiment(tables, str(self.config.recipe or "recipe"))

    def steps_of(self, training: Training) -> int:
        """Given, those of an earlier session, or as many as fit into the minutes."""
        if training.iterations is not None:
            return training.iterations
        if self.config.steps is not None:
            return max(1, round(self.config.steps * training.share))
        earlier = self.run_folder(training.name) / EXPERIMENT
        if earlier.is_file():
            return Experiment.model_validate_json(earlier.read_text(encoding="utf-8")).length.steps or 1
        return max(1, round(60 * (self.config.minutes or MINUTES) * training.share / self.seconds_per_step(training)))

    def seconds_per_step(self, training: Training) -> float:
        """At the fastest pace of a short training: other work on the machine must not favour one of several."""
        experiment = self.resolved(training, PROBE_STEPS)
        loop = experiment.loop.model_copy(update={"log_every": PROBE_STEPS // PROBE_LINES})
        with TemporaryDirectory() as folder:
            _finished(train(experiment.model_copy(update={"loop": loop}), folder).finished)
            rates: list[float] = [
                line["steps_per_second"] for line in read_log(Path(folder)) if line["event"] == "train"
            ]
        return 1 / max(rates[1:])  # the first line includes the start of the workers

    def run_training(self, training: Training) -> None:
        experiment = self.resolved(training, self.steps_of(training))
        network = None if training.start is None else load_network(self.weights_of(training.start))
        _finished(train(experiment, self.run_folder(training.name), resume=True, network=network).finished)

    def score(self, scoring: Scoring, command: str) -> list[Result]:
        config = BenchmarkConfig(
            scenes=tuple(scoring.tests),
            methods=tuple(scoring.methods),
            weights=tuple(f"{label}={self.weights_of(network)}" for label, network in scoring.networks.items()),
            knowledge=("oracle",),
            scales=tuple(scoring.scales),
            srfs=(SRF,),
            seed=self.config.seed,
            pictures=False,
        )
        return benchmark(self.folder / SCORES / scoring.name, config=config, command=command).results


def _finished(finished: bool) -> None:
    if not finished:
        raise KeyboardInterrupt  # the training caught it to write its checkpoint


def plan_scales(setup: Reproduction, scales: Sequence[float]) -> Plan:
    tests, fitting = setup.tests(scales)
    return Plan(setup.joint(), [Scoring(setup.experiment, tests, {"SSA": setup.network}, fitting)])


def plan_unseen(setup: Reproduction) -> Plan:
    """Zero-shot, and fine-tuned against from scratch: as long, and at the same learning rates."""
    trainings, scorings = setup.joint(), []
    rate = float(setup.recipe.get("optimiser", {}).get("learning_rate", 1e-3))
    for sensor in setup.left_out:
        own = [group for group in setup.groups if group.sensor == sensor]
        scenes = [table for group in own for table in group.train]
        tests = [test for group in own for test in group.tests]
        networks = {"SSA zero-shot": setup.network}
        for each in (rate, rate / 10) if scenes and tests else ():
            for label, start in (("fine-tuned", setup.network), ("from scratch", None)):
                name = _slug(f"{sensor}_{label}_{each:g}")
                trainings.append(Training(name, scenes, {}, 1.0, setup.config.iterations, each, start))
                networks[f"{label} at {each:g}"] = name
        if tests:
            scorings.append(Scoring(_slug(f"unseen_{sensor}"), tests, networks))
    if not scorings:
        got = f"no sensor to leave out and to test among {', '.join({group.sensor: 0 for group in setup.groups})}"
        raise OptionError(got, "two sensors or more", "add --scenes, or name sensors with --left-out")
    return Plan(trainings, scorings, [each for each in printed_scores() if each.table == "unseen"])


def plan_without_mk(setup: Reproduction) -> Plan:
    """Plain convolutions for every sensor and number of bands, which together take as long as the joint network."""
    plain = [group for group in setup.seen if group.train and group.tests]
    trainings, scorings = setup.joint(), []
    for group in plain:
        name = _slug(f"plain_{group.sensor}_{group.bands}")
        channels = {"kind": "fixed", "bands": group.bands, "msi_bands": MSI_BANDS}
        trainings.append(Training(name, group.train, {"channels": channels}, share=1 / len(plain)))
        networks = {"SSA": JOINT, "w/o MK": name}
        scorings.append(Scoring(name, list(group.tests), networks, methods=("bicubic",)))
    return Plan(trainings, scorings, [each for each in printed_ablations() if each.table == "kernels"])


def plan_baselines(setup: Reproduction) -> Plan:
    """Networks for one sensor and number of bands each; all of a kind together take as long as the joint network."""
    single = [group for group in setup.seen if group.train and group.tests]
    trainings, scorings = setup.joint(), []
    for group in single:
        networks = {"SSA": JOINT}
        for label, preset in TRAINED_BASELINES.items():
            name = networks[label] = _slug(f"{preset}_{group.sensor}_{group.bands}")
            config = any_preset(preset)
            assert not isinstance(config, SSAConfig)
            network = config.with_bands(group.bands, MSI_BANDS).model_dump()
            trainings.append(Training(name, group.train, network, share=1 / len(single)))
        scorings.append(Scoring(_slug(f"baselines_{group.sensor}_{group.bands}"), list(group.tests), networks))
    return Plan(trainings, scorings)


def plan_model_size(setup: Reproduction) -> Plan:
    scenes = [table for group in setup.seen for table in group.train]
    network = setup.resolved(Training(JOINT, scenes), 1).network
    if not isinstance(network, SSAConfig):
        raise OptionError(f"a recipe for {type(network).__name__}", "one for SSA", "fix --recipe")
    trainings, networks = [], {}
    for blocks, share in SIZES:
        changes = {"width": max(1, round(network.width * share)), "spectral_blocks": blocks, "spatial_blocks": blocks}
        trainings.append(Training(f"size_{blocks}", scenes, changes))
        networks[f"{blocks} + {blocks} blocks"] = trainings[-1].name
    scoring = Scoring("model-size", setup.tests()[0], networks, methods=("bicubic",))
    return Plan(trainings, [scoring], [each for each in printed_ablations() if each.table == "depth"])


PLANS: dict[str, Callable[[Reproduction], Plan]] = {
    "seen": lambda setup: plan_scales(setup, TRAINED_SCALE),
    "unseen": plan_unseen,
    "scales": lambda setup: plan_scales(setup, INTEGER_SCALES),
    "fractional": lambda setup: plan_scales(setup, FRACTIONAL_SCALES),
    "without-mk": plan_without_mk,
    "model-size": plan_model_size,
    "baselines": plan_baselines,
    "kernels": lambda setup: Plan(setup.joint()),
    "efficiency": lambda setup: Plan([]),
}
# These take no weights; they and `unseen` train their own network even where one ships.
WITHOUT_WEIGHTS = ("without-mk", "model-size", "baselines")
ALWAYS_TRAINED = ("unseen", *WITHOUT_WEIGHTS)


@takes_options(ReproduceConfig)
def reproduce(
    experiment: str, folder: str | Path, *, config: ReproduceConfig | None = None, command: str = ""
) -> list[Path]:
    """Run an experiment of the paper and write its tables and figures; called again, it resumes.

    Parameters
    ----------
    experiment
        seen, unseen, scales, fractional, without-mk, model-size, baselines, kernels or efficiency.
    folder
        Holds trainings, scores and results; the experiments of a folder share their joint network.

    Returns
    -------
    list of Path
        The files that were written: a page in Markdown, its numbers as CSV, tables in LaTeX, figures.
    """
    folder = Path(folder)
    make_folder(folder)
    setup = prepare(experiment, folder, config or ReproduceConfig(), folder / SCENES)
    plan = PLANS[experiment](setup)
    for training in plan.trainings:
        setup.run_training(training)
    page, texts, figures = _present(setup, plan, command)
    session = f"{session_line(current_session(command))} PSF and SRF are given to the methods."
    heading = [f"# {experiment}", "", *([f"    {command}\n"] if command else []), session, ""]
    lines = [*heading, *page, *_training_lines(setup, plan), *_scene_lines(setup)]
    texts = {"md": "\n".join(lines) + "\n"} | texts
    return [write_text(folder / f"{experiment}.{suffix}", text) for suffix, text in texts.items()] + figures


def insert_page(document: Path, folder: Path, experiment: str) -> Path:
    """Put the page between the document's marks for the experiment, two headings lower, its figure into `images`."""
    before, after = around_the_place(document, folder / experiment)
    page = (folder / f"{experiment}.md").read_text(encoding="utf-8").splitlines()[1:]
    text = "\n".join(f"##{line}" if line.startswith("#") else line for line in page)
    figure = folder / f"{experiment}.png"
    if figure.exists() and f"]({figure.name})" in text:
        images = document.parent / "images"
        images.mkdir(exist_ok=True)
        shutil.copy(figure, images / f"reproduce_{figure.name}")
        text = text.replace(f"]({figure.name})", f"]({images.name}/reproduce_{figure.name})")
    return write_text(document, "\n".join([before, text, after]))


def check(experiment: str, folder: str | Path, config: ReproduceConfig) -> Iterator[str]:
    """Describe what `reproduce` would do, and about how long it would train."""
    with TemporaryDirectory() as scenes:
        setup = prepare(experiment, Path(folder), config, Path(scenes) / SCENES)
        plan = PLANS[experiment](setup)
        yield from (line.removeprefix("- ") for line in _scene_lines(setup) if line.startswith("-"))
        seconds: float | None = None
        total = 0.0
        for training in plan.trainings:
            if (setup.run_folder(training.name) / WEIGHTS).exists():
                yield f"trained: {training.name}"
                continue
            minutes = (config.minutes or MINUTES) * training.share
            if training.iterations or config.steps:
                # Fine-tuning starts from weights that may not exist yet; a step costs the same without them.
                seconds = seconds or setup.seconds_per_step(Training(training.name, training.scenes, training.network))
                minutes = setup.steps_of(training) * seconds / 60
            total += minutes
            yield f"to train: {training.name}, {len(training.scenes)} scenes, about {minutes:.1f} minutes"
        for scoring in plan.scorings:
            models = ", ".join([*scoring.methods, *scoring.networks])
            scales = ", ".join(f"x{scale:g}" for scale in scoring.scales)
            yield f"to score: {models} on {len(scoring.tests)} scenes at {scales}"
        yield f"about {total:.0f} minutes of training in all"


def prepare(experiment: str, folder: Path, config: ReproduceConfig, scenes: Path) -> Reproduction:
    if experiment not in PLANS:
        raise OptionError(f"experiment {experiment!r}", f"one of {', '.join(PLANS)}")
    if config.weights and experiment in WITHOUT_WEIGHTS:
        raise OptionError(f"weights for {experiment}", "none: it trains all of its networks", "leave out --weights")
    weights = config.weights
    trains = experiment in ALWAYS_TRAINED or config.minutes is not None or config.steps is not None
    if weights is None and not trains and (local_folder(SHIPPED) / CONFIG_NAME).is_file():
        weights = SHIPPED
    groups = [] if experiment == "efficiency" else divide(config.scenes, config.test_scenes, scenes)
    record = load_network(local_folder(weights)).provenance if weights else {}
    candidates = groups
    if weights and experiment == "unseen":
        known = {group.sensor for group in groups if any(trained_on(record, path) for path in group.files())}
        candidates = [group for group in groups if group.sensor not in known]
        if not candidates:
            raise OptionError(
                f"weights {weights}, trained on every sensor of these scenes",
                "scenes of another sensor",
                "add --scenes, or leave out --weights to train without some",
            )
    default = () if weights and experiment != "unseen" else None
    patterns = config.left_out if config.left_out is not None else default
    left_out = choose_left_out(candidates, patterns) if candidates else []
    return Reproduction(experiment, folder, config, groups, _read_recipe(config.recipe), weights, left_out)


def _read_recipe(path: Path | None) -> dict[str, Any]:
    try:
        return tomllib.loads((path or resources.files(__package__) / "recipe.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read ({error})", "an experiment file (.toml)", "fix --recipe") from error


Page = tuple[list[str], dict[str, str], list[Path]]


def _present(setup: Reproduction, plan: Plan, command: str) -> Page:
    """Lines of Markdown, other files by suffix, and figures."""
    if setup.experiment == "kernels":
        return _kernel_page(setup)
    if setup.experiment == "efficiency":
        return _efficiency_page(setup)
    results = [result for scoring in plan.scorings for result in setup.score(scoring, command)]
    tables = paper_tables(results, beside_paper=not plan.printed)
    lines = []
    for scale in sorted({result.case.scale for result in results}):
        own = [result for result in results if result.case.scale == scale]
        lines += [f"## Mean over all scenes, x{scale:g}", "", *condition_table(own), ""]
    lines += ["## By sensor", "", tables_markdown(tables, ablations=False), ""]
    if plan.printed:
        lines += [f"## The paper's, {AS_PRINTED}", "", *printed_table(plan.printed), ""]
    lines += ["## Every scene, PSNR in dB / SAM in degrees", "", *case_table(results), ""]
    for failure in describe_failures(results):
        warnings.warn(failure, stacklevel=2)
        lines += [f"- {failure}", ""]
    chart = scale_chart(setup.folder / f"{setup.experiment}.png", results, beside_paper=not plan.printed)
    if chart is not None:
        lines += [f"![PSNR against scale]({chart.name})", ""]
    return lines, {"csv": tables_csv(tables), "tex": tables_latex(tables)}, [chart] if chart else []


def _kernel_page(setup: Reproduction) -> Page:
    network = load_network(setup.weights_of(setup.network))
    if not isinstance(network, SSA):
        raise OptionError(f"weights of {type(network).__name__}", "those of SSA, which has Matryoshka kernels")
    channels = trained_channels(network)
    figure = setup.folder / "kernels.png"
    draw_kernel_maps(map_kernels(network), figure, "UMAP" if umap_is_installed() else "PCA")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.config.seed)
        # An output kernel of zeros, as He's initialisation leaves it, has no smoothness.
        untrained = kernel_vectors(SSA(network.config.model_copy(update={"initialisation": "torch"})))
    headings = ["kernel", "channels trained", "smoothness", "smoothness before training"]
    rows = [
        [title, str(channels), *(f"{smoothness(each[:channels]):.3f}" for each in (vectors, untrained[title]))]
        for title, vectors in kernel_vectors(network).items()
    ]
    lines = [*markdown_table(headings, rows), "", f"![Channels of the kernels]({figure.name})", ""]
    return lines, {"csv": _csv([headings, *rows])}, [figure]


def _efficiency_page(setup: Reproduction) -> Page:
    folder = setup.folder / "efficiency"
    weights = () if setup.weights is None else (str(local_folder(setup.weights)),)
    if not (folder / JSON_NAME).exists():
        config = EfficiencyConfig(networks=BASELINES, methods=METHODS, weights=weights, growth=False)
        run_efficiency(folder, config)
    text = (folder / MARKDOWN_NAME).read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [text], {"csv": _csv(rows)}, []


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text).strip("_.-")


def _training_lines(setup: Reproduction, plan: Plan) -> Iterator[str]:
    """Cost of every training: what a score was paid with."""
    if setup.weights:
        record = load_network(local_folder(setup.weights)).provenance
        seed = record.get("experiment", {}).get("seed", "unknown")
        yield f"SSA: weights {setup.weights}, {record.get('steps', 'unknown')} steps, seed {seed}.\n"
        tested = {path for group in setup.seen for path in group.test_files if trained_on(record, path)}
        if tested and setup.experiment in ("seen", "scales", "fractional"):
            yield f"**Trained on, by its record: {', '.join(sorted(path.stem for path in tested))}.**\n"
    if not plan.trainings:
        return
    rows = []
    for training in plan.trainings:
        network, log = load_network(setup.weights_of(training.name)), read_log(setup.run_folder(training.name))
        counted = "-"
        if isinstance(network, SSA) and takes_bands(network, COUNTED_BANDS, MSI_BANDS):
            pair = COUNTED_BANDS, MSI_BANDS, COUNTED_FINE, COUNTED_COARSE
            counted = f"{performed_multiply_adds(network.config, *pair) / 1e9:.2f} G"
        length = str(log[-1]["step"]), f"{log[-1]['seconds'] / 3600:.2f}", str(setup.config.seed)
        rows.append([training.name, *length, f"{count_parameters(network) / 1e6:.3f} M", counted])
    yield "## Training\n"
    yield from markdown_table(["network", "steps", "hours", "seed", "parameters", "multiply-adds"], rows)


def _scene_lines(setup: Reproduction) -> Iterator[str]:
    if setup.groups:
        yield "\n## Scenes\n"
    for group in setup.groups:
        left_out = ", left out of the joint training" if group.sensor in setup.left_out else ""
        tests = ", ".join(Path(source.partition("=")[2]).stem for source in group.tests) or "none"
        yield f"- {group.sensor}, {group.bands} bands{left_out}: {len(group.train)} to train on, to test: {tests}"
