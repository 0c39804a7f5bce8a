"""The numbers printed in the paper, and the warnings that belong to them wherever they stand beside others.

scores.csv      seven data sets at x4, x8, x16 and x32 (mean and standard deviation over the test images), two unseen
                sensors, and two fractional scales
ablations.csv   fixed against Matryoshka kernels, and the depth of the encoders
efficiency.csv  parameters, operations, time and memory
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files

TRAINED_SCALE = 4.0
# Data sets whose test blocks lie in the scene that the paper's training patches cover.
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
    """One method, or one variant of an ablation, on one data set at one scale. The paper's own method is SSA."""

    table: str
    dataset: str
    scale: float
    method: str
    figures: dict[str, PrintedFigure]
    """By the names of METRICS."""
    parameters_millions: float | None = None
    flops_g: float | None = None

    @property
    def ergas_as_defined(self) -> float:
        """ERGAS with the factor 100/scale of its definition; above x4 the paper's table has 100/4 at every scale."""
        return float(self.figures["ergas"].mean) * min(1.0, TRAINED_SCALE / self.scale)

    @property
    def warnings(self) -> list[str]:
        return [text.format(self) for applies, text in WARNINGS if applies(self)]


WARNINGS: tuple[tuple[Callable[[PrintedScores], bool], str], ...] = (
    (
        lambda printed: True,
        'Numbers "as printed" are the paper\'s. It does not say how the HSI was blurred, and scaling and test images '
        "may differ: read them as orders of magnitude, not as a ranking.",
    ),
    (
        lambda printed: printed.dataset in OVERLAPPING,
        "The paper's patches cover the whole scene of {0.dataset}: it was tested on pixels that it was trained on.",
    ),
    (
        lambda printed: printed.scale > TRAINED_SCALE,
        "Above x4 the paper's ERGAS has the factor 100/4 at every scale, not 100/scale as it is defined; the value by "
        "definition is in brackets.",
    ),
    (
        lambda printed: printed.table == "unseen",
        "On {0.dataset}, which it had not seen, the paper's network was fine-tuned for 500 iterations first.",
    ),
    (
        lambda printed: printed.table == "fractional" and printed.method in ("DCFormer", "PSTUN", "LRTN"),
        "At fractional scales DCFormer, PSTUN and LRTN are resized by bicubic interpolation from their x4 output.",
    ),
)


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
    """All scores, or those of a data set (in any case) or a scale, in the paper's order."""
    return [
        each
        for each in _scores("scores.csv", "method")
        if (dataset is None or each.dataset.casefold() == dataset.casefold())
        and (scale is None or abs(each.scale - scale) < 1e-6)
    ]


def printed_ablations() -> list[PrintedScores]:
    """Tables `kernels` and `depth`; `method` is the variant."""
    return _scores("ablations.csv", "variant")


def printed_efficiency() -> list[PrintedEfficiency]:
    return [
        PrintedEfficiency(row.pop("method"), **{name: float(value) for name, value in row.items()})
        for row in _rows("efficiency.csv")
    ]


def warnings_of(shown: Iterable[PrintedScores]) -> list[str]:
    """Each warning once."""
    return list(dict.fromkeys(warning for printed in shown for warning in printed.warnings))


def _scores(name: str, method: str) -> list[PrintedScores]:
    return [
        PrintedScores(
            row["table"],
            row["dataset"],
            float(row["scale"]),
            row[method],
            {metric: PrintedFigure(row[metric], row[f"{metric}_std"]) for metric in METRICS},
            *(float(row[count]) if row.get(count) else None for count in ("parameters_millions", "flops_g")),
        )
        for row in _rows(name)
    ]


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__package__).joinpath("paper_tables", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
