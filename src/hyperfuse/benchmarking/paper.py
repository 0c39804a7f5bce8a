"""What the paper prints, number by number, and what has to be said wherever its numbers stand beside others.

scores.csv       seven data sets at x4, x8, x16 and x32 (mean and standard deviation over the test images), the two
                 sensors that
                 were not trained on, and the two fractional scales
ablations.csv    fixed against Matryoshka kernels, and the depth of the encoders
efficiency.csv   parameters, operations, time and memory
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

MAIN, UNSEEN, FRACTIONAL = "main", "unseen", "fractional"
TRAINED_SCALE = 4.0
# Data sets whose test blocks lie in the scene that the paper's patches cover.
OVERLAPPING = ("PaviaC", "PaviaU", "Chikusei", "Botswana", "WDC")
METRICS = ("psnr_db", "spectral_angle_degrees", "ergas", "ssim")


@dataclass(frozen=True)
class PrintedFigure:
    """As printed, digits included; an absent deviation was not printed."""

    mean: str
    deviation: str = ""

    @property
    def text(self) -> str:
        return f"{self.mean} ± {self.deviation}" if self.deviation else self.mean


@dataclass(frozen=True)
class PrintedScores:
    """One method on one data set at one scale. The paper's own method is SSA."""

    table: str
    dataset: str
    scale: float
    method: str
    figures: dict[str, PrintedFigure]
    """By the names of METRICS."""

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(_warnings(self))


@dataclass(frozen=True)
class PrintedAblation:
    """`table` is kernels or depth."""

    table: str
    dataset: str
    scale: float
    variant: str
    parameters_millions: float | None
    flops_g: float | None
    figures: dict[str, PrintedFigure]


@dataclass(frozen=True)
class PrintedEfficiency:
    """On an RTX 4090. The caption says 191 bands; the parameters of the compared methods are those for 31."""

    method: str
    parameters_millions: float
    flops_g: float
    milliseconds: float
    peak_memory_gb: float
    megapixels_per_second: float


def printed_scores(dataset: str | None = None, scale: float | None = None) -> list[PrintedScores]:
    """All, or those of a data set (in any case) or a scale, in the paper's order."""
    found = [
        PrintedScores(row["table"], row["dataset"], float(row["scale"]), row["method"], _figures(row))
        for row in _rows("scores.csv")
    ]
    return [
        each
        for each in found
        if (dataset is None or each.dataset.casefold() == dataset.casefold())
        and (scale is None or abs(each.scale - scale) < 1e-6)
    ]


def printed_ablations() -> list[PrintedAblation]:
    return [
        PrintedAblation(
            row["table"],
            row["dataset"],
            float(row["scale"]),
            row["variant"],
            _number(row["parameters_millions"]),
            _number(row["flops_g"]),
            _figures(row),
        )
        for row in _rows("ablations.csv")
    ]


def printed_efficiency() -> list[PrintedEfficiency]:
    return [
        PrintedEfficiency(row.pop("method"), **{name: float(value) for name, value in row.items()})
        for row in _rows("efficiency.csv")
    ]


def ergas_as_defined(printed: PrintedScores) -> float:
    """The printed ERGAS with the factor 100/scale of its definition; beyond x4 the paper's table has 100/4 at every
    scale.
    """
    return float(printed.figures["ergas"].mean) * min(1.0, TRAINED_SCALE / printed.scale)


def warnings_of(shown: Iterable[PrintedScores]) -> list[str]:
    """Each warning once."""
    return list(dict.fromkeys(words for printed in shown for words in printed.warnings))


def _warnings(printed: PrintedScores) -> Iterable[str]:
    yield (
        'Numbers "as printed" are the paper\'s. It does not say how the HSI was blurred, and scaling and test images may differ: '
        "read them as orders of magnitude, not as a race."
    )
    if printed.dataset in OVERLAPPING:
        yield f"The paper's patches cover the whole scene of {printed.dataset}: it was tested on pixels that it was trained on."
    if printed.scale > TRAINED_SCALE:
        yield (
            "Beyond x4 the paper's ERGAS has the factor 100/4 at every scale, not 100/scale as it is defined; in brackets "
            "it stands with the factor of its definition."
        )
    if printed.table == UNSEEN:
        yield f"On {printed.dataset}, which it had not seen, the paper's network was fine-tuned for 500 iterations first."
    if printed.table == FRACTIONAL and printed.method in ("DCFormer", "PSTUN", "LRTN"):
        yield "At fractional scales DCFormer, PSTUN and LRTN are resized by bicubic interpolation from their x4 output."


def _figures(row: dict[str, str]) -> dict[str, PrintedFigure]:
    return {metric: PrintedFigure(row[metric], row[f"{metric}_std"]) for metric in METRICS}


def _number(text: str) -> float | None:
    return float(text) if text else None


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath("paper_tables", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
