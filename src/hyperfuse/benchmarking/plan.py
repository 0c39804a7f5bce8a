"""All that is to be run, before anything is: the cases, and who is to be scored on them with which knowledge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from hyperfuse.benchmarking.cases import (
    AS_RECORDED,
    DATASET,
    CaseName,
    CasePair,
    Condition,
    RecordedPair,
    ScoredScene,
    choose_scenes,
    covers,
    has_room,
    read_pairs,
    reference_cube,
    srf_name,
    simulated_case,
)
from hyperfuse.benchmarking.models import BLIND, ORACLE, Competitor, find_competitors
from hyperfuse.benchmarking.results import Key
from hyperfuse.data.splits import SplitKind
from hyperfuse.errors import OptionError
from hyperfuse.physics.psf import exact_scale, largest_crop
from hyperfuse.physics.simulate import require_seed, require_shift

PROTOCOL = 1
"""Results of one protocol may be compared; whoever changes it counts on."""


@dataclass(frozen=True)
class PlannedCase:
    name: CaseName
    knowledge: tuple[str, ...]
    make: Callable[[], CasePair]


@dataclass(frozen=True, eq=False)
class Plan:
    cases: list[PlannedCase]
    competitors: list[Competitor]
    described: dict[str, Any]
    """Everything that the results depend on; a run that is continued must find it unchanged."""

    @property
    def pictured(self) -> set[CaseName]:
        """The first scene of each data set under the first condition: at every scale, with every response."""
        first: dict[str, tuple[str, str]] = {}
        for case in self.cases:
            first.setdefault(case.name.dataset, (case.name.scene, case.name.condition))
        return {case.name for case in self.cases if (case.name.scene, case.name.condition) == first[case.name.dataset]}

    @property
    def keys(self) -> list[Key]:
        return [
            (case.name, competitor.name, knowledge)
            for case in self.cases
            for competitor in self.competitors
            for knowledge in case.knowledge
        ]


def make_plan(
    *,
    scenes: Sequence[str],
    pairs: Sequence[str],
    methods: Sequence[str],
    weights: Sequence[str],
    scales: Sequence[float],
    srfs: Sequence[str],
    noise: Sequence[tuple[float, float]],
    shift: Sequence[tuple[float, float]],
    clean: bool,
    knowledge: Sequence[str],
    split: SplitKind,
    scenes_folder: Path | None,
    seed: int,
) -> Plan:
    """Reads scenes and weights, so that whatever is wrong with them is said before the first case is run."""
    _require_choices(scenes, pairs, scales, knowledge, split)
    require_seed(seed)
    conditions = _conditions(noise, shift, clean)
    if scenes and not conditions:
        raise OptionError(
            "no condition to simulate", "clean pairs, noise or a shift", "leave out --no-clean, or add --noise, --shift"
        )
    competitors = find_competitors(methods, weights)
    recorded = read_pairs(pairs)
    scales = list(dict.fromkeys(map(float, scales)))
    chosen = choose_scenes(scenes, srfs, split, scenes_folder) if scenes else []
    left_out: list[str] = []
    cases = list(_simulated(chosen, scales, conditions, tuple(knowledge), seed, left_out))
    cases += _recorded(recorded, scales, left_out)
    if not cases:
        raise OptionError(
            "no case to score", "a scene that covers a response and has room for a scale", "; ".join(left_out)
        )
    described = {
        "protocol": PROTOCOL,
        "scenes": {f"{scene.dataset}/{scene.name}": [scene.digest, list(scene.srfs)] for scene in chosen},
        "pairs": {pair.name: pair.digest for pair in recorded},
        "competitors": {each.name: each.digest or each.method for each in competitors},
        "scales": scales,
        "conditions": [condition.name for condition in conditions],
        "knowledge": list(knowledge),
        "seed": seed,
        "left_out": left_out,
        "overlapping": sorted({scene.dataset for scene in chosen if scene.overlapping}),
    }
    return Plan(cases, competitors, described)


def _conditions(
    noise: Sequence[tuple[float, float]], shift: Sequence[tuple[float, float]], clean: bool
) -> list[Condition]:
    noisy, shifted = [Condition(noise_db=each) for each in noise], [Condition(shift=each) for each in shift]
    return list(dict.fromkeys([*([Condition()] if clean else []), *noisy, *shifted]))


def _simulated(
    chosen: Sequence[ScoredScene],
    scales: Sequence[float],
    conditions: Sequence[Condition],
    knowledge: tuple[str, ...],
    seed: int,
    left_out: list[str],
) -> Iterable[PlannedCase]:
    for scored in chosen:
        reference = reference_cube(scored)
        size = (reference.sizes["y"], reference.sizes["x"])
        fitting = [scale for scale in scales if has_room(size, scale)]
        left_out += [f"{scored.name} has no room for x{scale:g}" for scale in scales if scale not in fitting]
        for srf in scored.srfs:
            if not covers(reference, srf):
                left_out.append(f"{scored.name} does not cover {srf}")
                continue
            for scale in fitting:
                for condition in conditions:
                    require_shift(condition.shift, largest_crop(size, exact_scale(scale)).fine_size)
                    name = CaseName(scored.dataset, scored.name, srf_name(srf), float(scale), condition.name)
                    yield PlannedCase(name, knowledge, _maker(scored, srf, scale, condition, seed))


def _maker(scored: ScoredScene, srf: str, scale: float, condition: Condition, seed: int) -> Callable[[], CasePair]:
    return lambda: simulated_case(scored, srf, scale, condition, seed)


def _recorded(pairs: Sequence[RecordedPair], scales: Sequence[float], left_out: list[str]) -> Iterable[PlannedCase]:
    for pair in pairs:
        for scale in pair.scales(scales):
            if pair.hsi is None and not has_room((pair.reference.sizes["y"], pair.reference.sizes["x"]), scale):
                left_out.append(f"{pair.name} has no room for x{scale:g}")
                continue
            name = CaseName(DATASET, pair.name, AS_RECORDED, float(scale), AS_RECORDED)
            yield PlannedCase(name, (BLIND,), _pair_maker(pair, scale))


def _pair_maker(pair: RecordedPair, scale: float) -> Callable[[], CasePair]:
    return lambda: pair.case(scale)


def _require_choices(
    scenes: Sequence[str], pairs: Sequence[str], scales: Sequence[float], knowledge: Sequence[str], split: str
) -> None:
    if not scenes and not pairs:
        raise OptionError("nothing to benchmark on", "scenes or recorded pairs", "name them with --scenes or --pair")
    if not scales:
        raise OptionError("no scale", "at least one, such as 4", "name them with --scales")
    for scale in scales:
        if exact_scale(scale) <= 1:
            raise OptionError(f"scale {scale:g}", "more than 1")
    if split not in get_args(SplitKind):
        raise OptionError(f"split {split!r}", " or ".join(get_args(SplitKind)))
    if not knowledge or not set(knowledge) <= {BLIND, ORACLE}:
        raise OptionError(f"knowledge {', '.join(knowledge) or 'none'}", f"{BLIND}, {ORACLE} or both")
