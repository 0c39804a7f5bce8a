"""The one way to a report: files in, one page out, whole or not at all."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import xarray as xr

from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import published, check_writable
from hyperfuse.io.files import open_cube
from hyperfuse.physics.srf import SRFSpec
from hyperfuse.reporting.examine import examine, recorded_choices
from hyperfuse.reporting.findings import QualityFindings, find_quality
from hyperfuse.reporting.page import quality_page

PathLike = str | os.PathLike[str]
PAGE_SUFFIXES = (".html", ".htm")


def refuse_unwritable_page(output: Path, *, overwrite: bool) -> None:
    """Said before the work, not after it."""
    if output.suffix.lower() not in PAGE_SUFFIXES:
        raise OptionError(f"a page called {str(output)!r}", "a name that ends with .html", "choose such a name")
    check_writable(output, overwrite=overwrite)


@dataclass(frozen=True)
class InputFile:
    """A file and, where it holds several arrays, which of them; see `open_cube`."""

    path: PathLike
    variable: str | None = None
    band_axis: int | None = None

    def opened(self) -> xr.DataArray:
        return open_cube(self.path, self.variable, self.band_axis)


def write_quality_report(
    fused: PathLike | InputFile,
    output: PathLike,
    *,
    hsi: PathLike | InputFile,
    msi: PathLike | InputFile,
    reference: PathLike | InputFile | None = None,
    mask: PathLike | None = None,
    hsi_mask: PathLike | None = None,
    method: str | None = None,
    weights: PathLike | None = None,
    srf: SRFSpec | None = None,
    overwrite: bool = False,
) -> QualityFindings:
    """Judge the image in `fused` by the pair that it was made from, and by its reference where there is one.

    What fused it, and how, is read from the image itself; `method` or `weights` say what to judge one scale coarser
    instead, `response` how the MSI sees the HSI's bands. Where `mask` is not 0 the MSI is not used, where `hsi_mask` is
    not 0 the HSI.
    """
    target = Path(output)
    refuse_unwritable_page(target, overwrite=overwrite)
    given = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference, "mask": mask, "hsi_mask": hsi_mask}
    inputs = {role: _input(each) for role, each in given.items() if each is not None}
    cubes = {role: each.opened() for role, each in inputs.items()}
    chosen = recorded_choices(cubes["fused"])
    part = examine(
        cubes["fused"],
        cubes["hsi"],
        cubes["msi"],
        chosen,
        srf=srf,
        mask=cubes.get("mask"),
        hsi_mask=cubes.get("hsi_mask"),
    )
    findings = find_quality(
        part,
        chosen,
        reference=cubes.get("reference"),
        method=method,
        weights=None if weights is None else str(weights),
    )
    page = quality_page(findings, chosen.record, {role: Path(each.path).name for role, each in inputs.items()})
    with published(target, overwrite=overwrite) as file:
        file.write_text(page, encoding="utf-8")
    return findings


def _input(given: PathLike | InputFile) -> InputFile:
    return given if isinstance(given, InputFile) else InputFile(given)
