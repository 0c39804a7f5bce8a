"""Means and standard deviations over scenes, and how far each competitor is from the best of the others, case by case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hyperfuse.scoring.case import AS_RECORDED, CaseName
from hyperfuse.scoring.competitors import BLIND
from hyperfuse.scoring.results import SCORED, Result


class Entrant(NamedTuple):
    """A competitor with what it knows: one column of a table."""

    competitor: str
    knowledge: str

    @property
    def label(self) -> str:
        return self.competitor if self.knowledge == BLIND else f"{self.competitor} ({self.knowledge})"


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over the scenes that have a figure; `count` of them."""

    mean: float
    deviation: float
    count: int


@dataclass(frozen=True)
class Distance:
    """How far in dB an entrant is above the best of its rivals, case by case: on average, and where it does worst."""

    mean: float
    worst: float
    worst_case: CaseName
    count: int


def entrants(results: Iterable[Result]) -> list[Entrant]:
    """In the order of their first results, blind ones before oracles."""
    found = dict.fromkeys(Entrant(result.competitor, result.knowledge) for result in results)
    return sorted(found, key=lambda entrant: entrant.knowledge != BLIND)


def scored_by_entrant(results: Iterable[Result]) -> dict[Entrant, dict[CaseName, Result]]:
    table: dict[Entrant, dict[CaseName, Result]] = {}
    for result in results:
        cases = table.setdefault(Entrant(result.competitor, result.knowledge), {})
        if result.state == SCORED:
            cases[result.case] = result
    return {entrant: table[entrant] for entrant in sorted(table, key=lambda entrant: entrant.knowledge != BLIND)}


def spread(results: Iterable[Result], figure: Callable[[Result], float | None]) -> Spread | None:
    values = [value for value in map(figure, results) if value is not None]
    return Spread(float(np.mean(values)), float(np.std(values)), len(values)) if values else None


def distance_to_best_other(
    table: dict[Entrant, dict[CaseName, Result]], entrant: Entrant, knowledge: str, cases: Sequence[CaseName]
) -> Distance | None:
    """Against the others with this knowledge; a recorded pair has no oracles, there the blind ones stand in for them."""
    differences: list[tuple[float, CaseName]] = []
    for case in cases:
        own = table[entrant].get(case)
        stand_in = BLIND if case.condition == AS_RECORDED else knowledge
        others = [
            found.psnr_db
            for other, scored in table.items()
            if other.competitor != entrant.competitor and other.knowledge == stand_in
            if (found := scored.get(case)) is not None and found.psnr_db is not None
        ]
        if own is not None and own.psnr_db is not None and others:
            differences.append((own.psnr_db - max(others), case))
    if not differences:
        return None
    worst, case = min(differences, key=lambda each: each[0])
    return Distance(float(np.mean([each for each, _ in differences])), worst, case, len(differences))
