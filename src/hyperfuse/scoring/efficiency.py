"""The one way in: what to measure, how long, and into which folder."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hyperfuse.cubes.publishing import refuse_unwritable
from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.prediction.memory import GIGABYTE, default_ram_gb
from hyperfuse.scoring.efficiency_files import FIGURE_NAME, JSON_NAME, MARKDOWN_NAME, write_efficiency
from hyperfuse.scoring.efficiency_measuring import Effort, measure_efficiency
from hyperfuse.scoring.efficiency_subjects import PairSize, find_subjects

AUTO, CPU, CUDA = "auto", "cpu", "cuda"


@dataclass(frozen=True)
class EfficiencyRequest:
    """`networks` and `methods`: None for all. `threads` of the processor: None for as many as torch takes."""

    size: PairSize
    networks: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    weights: tuple[str, ...] = ()
    effort: Effort = field(default_factory=Effort)
    device: str = AUTO
    threads: int | None = None
    growth: bool = True


def run_efficiency(request: EfficiencyRequest, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """The files that were written: JSON, Markdown and, with growth, the figure."""
    device = _device(request.device)
    _require_memory(request.size)
    subjects = find_subjects(request.networks, request.methods, request.weights)
    _make_folder(folder, overwrite=overwrite)
    before = torch.get_num_threads()
    try:
        if request.threads is not None:
            torch.set_num_threads(request.threads)
        result = measure_efficiency(subjects, request.size, request.effort, device, with_growth=request.growth)
        if not result.costs:
            raise OptionError(
                f"nothing that takes {request.size.bands} and {request.size.msi_bands} bands", remedy="choose other --bands"
            )
        return write_efficiency(result, folder, _command(), overwrite=overwrite)
    finally:
        torch.set_num_threads(before)


def _device(name: str) -> str:
    if name not in (AUTO, CPU, CUDA):
        raise OptionError(f"device {name!r}", f"{AUTO}, {CPU} or {CUDA}")
    if name == CUDA and not torch.cuda.is_available():
        raise OptionError("device cuda, but no CUDA device here", "cpu", "leave out --device")
    return (CUDA if torch.cuda.is_available() else CPU) if name == AUTO else name


def _require_memory(size: PairSize) -> None:
    room = default_ram_gb() * GIGABYTE
    if size.bytes_in_use > room:
        raise OptionError(
            f"a pair of {size.side}x{size.side} pixels and {size.bands} bands needs about {size.bytes_in_use / GIGABYTE:.1f} GB",
            f"at most {room / GIGABYTE:.1f} GB, half of this machine's memory",
            "choose a smaller --size or fewer --bands",
        )


def _make_folder(folder: Path, *, overwrite: bool) -> None:
    """Said before the minutes of work, not after them."""
    if folder.exists() and not folder.is_dir():
        raise CubeWriteError(f"{folder} is a file", "a folder", "choose another -o")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CubeWriteError(f"cannot make the folder {folder}: {error.strerror}", remedy="choose another -o") from error
    for name in (JSON_NAME, MARKDOWN_NAME, FIGURE_NAME):
        refuse_unwritable(folder / name, overwrite=overwrite)


def _command() -> str:
    """As it was typed, whatever the program is called here."""
    return shlex.join(["hyperfuse", *sys.argv[1:]])
