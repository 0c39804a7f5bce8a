"""The first page of a benchmark, as Markdown: who was scored on what, means, distances to the best of the others, every
case.

Means and standard deviations over scenes, and how far each competitor is from the best of the others, case by case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hyperfuse.benchmarking.cases import AS_RECORDED, CaseName
from hyperfuse.benchmarking.models import BLIND, ORACLE
from hyperfuse.benchmarking.results import FAILED, SCORED, UNFIT, Result


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


PROTOCOL_WORDS = """\
Protocol: a scene is clipped at 0, divided by its 99.95th percentile, clipped to 1 and cropped to whole coarse pixels. The HSI is
the scene under a Gaussian point spread with a full width at half maximum of one coarse pixel, grids aligned at their centres; the
MSI is it under the response. The fused image is clipped to 0..1. PSNR is pooled over bands and pixels with peak 1, the spectral
angle (SAM) is the mean over pixels in degrees, ERGAS has the factor 100/scale, SSIM is the mean over bands. Blind: nothing is
given but the pair, and the seconds are those of `hyperfuse.fuse`, estimation included. Oracle: the true point spread, shift,
response and noise are given. CPU seconds add up over threads and do not grow when the machine is busy; memory is what the process
grows by at its peak.
"""


def summary_markdown(results: Sequence[Result], record: Mapping[str, Any]) -> str:
    """A page of its own."""
    return "\n".join(["# Benchmark\n", *summary_lines(results, record)]) + "\n"


def summary_lines(results: Sequence[Result], record: Mapping[str, Any], level: int = 2) -> Iterator[str]:
    """The same without its title, with headings of this level."""
    heading = "#" * level
    yield from session_lines(record)
    yield ""
    yield PROTOCOL_WORDS
    for condition in dict.fromkeys(result.case.condition for result in results):
        chosen = [result for result in results if result.case.condition == condition]
        yield f"{heading} {condition[0].upper()}{condition[1:]}\n"
        yield from condition_table(chosen)
        yield ""
    yield f"{heading} Every case, PSNR in dB / spectral angle in degrees\n"
    yield from case_table(results)
    if failures := [result for result in results if result.state == FAILED]:
        yield f"\n{heading} Failed\n"
        yield from (
            f"- {result.competitor} ({result.knowledge}), {result.case}: {result.message}" for result in failures
        )
    if left_out := [*record["request"].get("left_out", ()), *_unfit_in_words(results)]:
        yield f"\n{heading} Left out\n"
        yield from (f"- {words}" for words in left_out)


def session_lines(record: Mapping[str, Any]) -> Iterator[str]:
    """With which command, when, on what."""
    for command in dict.fromkeys(session["command"] for session in record["sessions"] if session["command"]):
        yield f"    {command}\n"
    for session in record["sessions"]:
        commit = f"commit {session['commit']}, " if session["commit"] else ""
        yield f"{session['date']}: hyperfuse {session['hyperfuse']}, {commit}torch {session['torch']}, {session['machine']}."
    for dataset in record["request"].get("overlapping", ()):
        yield f"\nThe test blocks of {dataset} overlap its training pixels: networks trained by the paper's split have seen them."


def condition_table(results: Sequence[Result]) -> Iterator[str]:
    """A row per entrant: means over all cases of one condition, and distances to the best of the others in every case."""
    table = scored_by_entrant(results)
    cases = list(dict.fromkeys(result.case for result in results))
    baselines = [knowledge for knowledge in (ORACLE, BLIND) if any(entrant.knowledge == knowledge for entrant in table)]
    distances = "".join(f" over the best other {knowledge}: mean, worst dB |" for knowledge in baselines)
    yield f"| | cases | PSNR dB | SAM deg | ERGAS | SSIM | seconds | CPU s | MB |{distances}"
    yield "|---|" + "---:|" * 8 + "---|" * len(baselines)
    for entrant, scored in table.items():
        if not scored:
            continue
        rows = list(scored.values())
        cells = [
            f"{len(rows)}",
            _mean(spread(rows, lambda result: result.psnr_db), 2),
            _mean(spread(rows, lambda result: result.spectral_angle_degrees), 2),
            _mean(spread(rows, lambda result: result.ergas), 3),
            _mean(spread(rows, lambda result: result.ssim), 4),
            _mean(spread(rows, lambda result: result.seconds), 2, with_deviation=False),
            _mean(spread(rows, lambda result: result.cpu_seconds), 2, with_deviation=False),
            _mean(spread(rows, _megabytes), 0, with_deviation=False),
            *(_distance(distance_to_best_other(table, entrant, knowledge, cases)) for knowledge in baselines),
        ]
        yield f"| {entrant.label} | " + " | ".join(cells) + " |"
    if len({len(scored) for scored in table.values() if scored}) > 1:
        yield "\nMeans over different numbers of cases are not to be compared."


def case_table(results: Sequence[Result]) -> Iterator[str]:
    """A row per case, a column per entrant; the best PSNR in bold."""
    everything = {(result.case, Entrant(result.competitor, result.knowledge)): result for result in results}
    columns = list(scored_by_entrant(results))
    yield "| scene, MSI, scale, condition | " + " | ".join(entrant.label for entrant in columns) + " |"
    yield "|---" * (len(columns) + 1) + "|"
    for case in dict.fromkeys(result.case for result in results):
        row = [everything.get((case, entrant)) for entrant in columns]
        best = max(
            (result.psnr_db for result in row if result is not None and result.psnr_db is not None), default=None
        )
        yield f"| {case} | " + " | ".join(_case_cell(result, best) for result in row) + " |"


def _unfit_in_words(results: Iterable[Result]) -> Iterator[str]:
    """A dash in a table that nobody explains looks like a failure."""
    cases: dict[str, dict[CaseName, str]] = {}
    for result in results:
        if result.state == UNFIT:
            cases.setdefault(result.competitor, {})[result.case] = result.message
    for competitor, messages in cases.items():
        first, message = next(iter(messages.items()))
        count = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
        yield f"{competitor} is {message}: {first}{count}"


def failures_in_words(results: Iterable[Result]) -> list[str]:
    failed = [result for result in results if result.state == FAILED]
    names = dict.fromkeys((result.competitor, result.knowledge) for result in failed)
    words = []
    for competitor, knowledge in names:
        own = [result for result in failed if (result.competitor, result.knowledge) == (competitor, knowledge)]
        words.append(
            f"{competitor} ({knowledge}) failed on {len(own)} of its cases, first on {own[0].case}: {own[0].message}"
        )
    return words


def _case_cell(result: Result | None, best: float | None) -> str:
    if result is None or result.state == UNFIT:
        return "-"
    if result.state == FAILED:
        return "failed"
    if result.psnr_db is None:
        return "equal"
    figures = f"{result.psnr_db:.2f} / {result.spectral_angle_degrees:.2f}"
    return f"**{figures}**" if result.psnr_db == best else figures


def _mean(found: Spread | None, digits: int, with_deviation: bool = True) -> str:
    if found is None:
        return "-"
    return f"{found.mean:.{digits}f}" + (
        f" ± {found.deviation:.{digits}f}" if with_deviation and found.count > 1 else ""
    )


def _distance(found: Distance | None) -> str:
    return "-" if found is None else f"{found.mean:+.2f}, {found.worst:+.2f} ({_short(found.worst_case)})"


def _short(case: CaseName) -> str:
    return f"{case.scene}, {case.srf}, x{case.scale:g}"


def _megabytes(result: Result) -> float | None:
    return None if result.peak_bytes is None else result.peak_bytes / 1e6
