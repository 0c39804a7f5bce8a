"""The one way to a report: files in, one page out, whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from hyperfuse.cubes.files import open_cube
from hyperfuse.cubes.publishing import published, refuse_unwritable
from hyperfuse.degradation.response import ResponseSpec
from hyperfuse.errors import BandError, OptionError
from hyperfuse.reporting.examined_part import examine
from hyperfuse.reporting.quality_findings import QualityFindings, find_quality
from hyperfuse.reporting.quality_page import quality_page
from hyperfuse.reporting.recorded_choices import recorded_choices

PathLike = str | os.PathLike[str]
PAGE_SUFFIXES = (".html", ".htm")


def refuse_unwritable_page(output: Path, *, overwrite: bool) -> None:
    """Said before the work, not after it."""
    if output.suffix.lower() not in PAGE_SUFFIXES:
        raise OptionError(f"a page called {output.name}", "a name that ends with .html", "choose such a name")
    refuse_unwritable(output, overwrite=overwrite)


def write_quality_report(
    fused: PathLike,
    output: PathLike,
    *,
    hsi: PathLike,
    msi: PathLike,
    reference: PathLike | None = None,
    method: str | None = None,
    weights: PathLike | None = None,
    response: ResponseSpec | None = None,
    overwrite: bool = False,
) -> QualityFindings:
    """Judge the image in `fused` by the pair that it was made from, and by its reference where there is one.

    What fused it, and how, is read from the image itself; `method` or `weights` say what to judge one scale coarser instead,
    `response` how the MSI sees the HSI's bands.
    """
    target = Path(output)
    refuse_unwritable_page(target, overwrite=overwrite)
    paths = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference}
    cubes = {role: open_cube(path) for role, path in paths.items() if path is not None}
    chosen = recorded_choices(cubes["fused"])
    part = examine(cubes["fused"], cubes["hsi"], cubes["msi"], chosen, response)
    if part.bands.size == 0:
        raise BandError("no band is good in the fused image and in the HSI", "at least one", "mend the bad-band list (bbl)")
    findings = find_quality(
        part,
        chosen,
        reference=cubes.get("reference"),
        method=method,
        weights=None if weights is None else str(weights),
    )
    names = {role: Path(path).name for role, path in paths.items() if path is not None}
    page = quality_page(findings, chosen.record, names)
    with published(target, overwrite=overwrite) as file:
        file.write_text(page, encoding="utf-8")
    return findings
