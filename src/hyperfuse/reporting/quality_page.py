"""The report as one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from hyperfuse.cubes.provenance import time_of_writing
from hyperfuse.degradation.point_spread import sigma_from_fwhm
from hyperfuse.degradation.simulation_record import current_version
from hyperfuse.reporting import page_sections as sections
from hyperfuse.reporting.quality_findings import QualityFindings
from hyperfuse.reporting.score_sentences import ScoreGroup, score_groups

# Whatever a file's name or header holds: the page loads nothing and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def quality_page(findings: QualityFindings, record: Mapping[str, str], names: Mapping[str, str]) -> str:
    """`record` is the fused image's provenance, `names` the files by their role."""
    images = sections.ShownImages(findings)
    pixels = sections.chosen_pixels(images.spectra_of)
    title = f"Report on {names['fused']}"
    parts = {
        "Pictures": sections.overview(findings) + sections.composites(findings, images, pixels),
        "Scores": "".join(_group(group) for group in score_groups(findings)),
        "Maps": "<p>Where the image is wrong, or cannot be right. Grey: nothing to compare.</p>" + sections.maps(findings),
        "Close-ups": sections.close_ups(findings, images),
        "Spectra": sections.spectra(findings, images, pixels),
        "Bands": sections.bands(findings, images),
        "How it was made": _facts(findings, record, names),
    }
    contents = "".join(f'<li><a href="#{_anchor(name)}">{name}</a></li>' for name in parts)
    body = "".join(_section(name, text) for name, text in parts.items())
    # As data, not as script: a `<` in it cannot end the element.
    figures = json.dumps(findings.as_dict(), allow_nan=False).replace("<", "\\u003c")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{escape(title)}</title>'
        f"<style>{files('hyperfuse.reporting').joinpath('quality_page.css').read_text(encoding='utf-8')}</style></head><body>"
        f'<header><h1>{escape(title)}</h1><p class="lead">{_summary(findings)}</p>{_tiles(findings)}</header>'
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav><main>{body}</main>'
        f"<footer>hyperfuse {escape(current_version())}, {time_of_writing()}. The figures of this page lie in it as JSON, in the "
        f'element "figures".</footer><script type="application/json" id="figures">{figures}</script></body></html>\n'
    )


def _summary(findings: QualityFindings) -> str:
    part = findings.part
    scale = " x ".join(f"{each:.4g}" for each in dict.fromkeys(part.observation.scale))
    bands = sections.bands_counted(part.fused.sizes["band"])
    words = f"{part.fused.sizes['x']} x {part.fused.sizes['y']} pixels, {bands}, scale {scale}."
    if not part.is_everything:
        share = part.fused_values[0].size / (part.fused.sizes["x"] * part.fused.sizes["y"])
        words += (
            f" Scores and maps are of rows {part.rows.start} to {part.rows.stop - 1} and columns {part.columns.start} to "
            f"{part.columns.stop - 1}, {100 * share:.2g} % of it."
        )
    return escape(words)


def _tiles(findings: QualityFindings) -> str:
    """The figures that a person in a hurry wants, best first."""
    shown = []
    if findings.against_reference is not None:
        scores = findings.against_reference.scores
        shown.append((f"{scores.psnr_db:.2f} dB", "PSNR against the reference"))
        if findings.has_angles:
            shown.append((f"{scores.spectral_angle_degrees:.2f}°", "SAM"))
    hsi, msi = findings.consistency.with_hsi.relative, findings.consistency.with_msi.relative
    if hsi is not None:
        shown.append((f"{100 * hsi:.3g} %", "error against the HSI"))
    if msi is not None:
        shown.append((f"{100 * msi:.3g} %", "error against the MSI"))
    if findings.once_more.scores is not None:
        shown.append((f"{findings.once_more.scores.psnr_db:.2f} dB", "PSNR, degraded once more"))
    if findings.without_reference.hqnr is not None:
        shown.append((f"{findings.without_reference.hqnr:.3f}", "HQNR"))
    return (
        '<ul class="tiles">' + "".join(f"<li><strong>{value}</strong><span>{name}</span></li>" for value, name in shown) + "</ul>"
    )


def _group(group: ScoreGroup) -> str:
    heading = f"<h3>{escape(group.title)}</h3><p>{escape(group.introduction)}</p>"
    if not group.rows:
        return heading
    rows = "".join(
        f'<tr><th scope="row">{escape(row.name)}</th><td class="value">{escape(row.value)}</td><td>{escape(row.best)}</td>'
        f"<td>{escape(row.meaning)}</td><td>{escape(row.misleads)}</td></tr>"
        for row in group.rows
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("score", "value", "best", "what it says", "when it misleads"))
    region = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(group.title)}">'
    return f"{heading}{region}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _facts(findings: QualityFindings, record: Mapping[str, str], names: Mapping[str, str]) -> str:
    observation = findings.part.observation
    facts = {f"file: {role}": name for role, name in names.items()}
    facts |= {key.replace("_", " "): value for key, value in record.items() if key not in names}
    widths = " x ".join(f"{each / sigma_from_fwhm(1.0):.3g}" for each in observation.sigma)
    facts |= {
        "point spread, FWHM": f"{widths} fine pixels (down x across)",
        "shift beyond the georeference": " x ".join(f"{each:+.3f}" for each in observation.misregistration) + " fine pixels",
        "confidence of the estimation": f"{observation.confidence:.2f}",
    }
    compared = findings.against_reference
    notes = [*findings.part.notes, *observation.notes, *([] if compared is None else compared.scores.notes)]
    rows = "".join(_fact(name, value) for name, value in facts.items())
    listed = f"<h3>Notes</h3><ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""
    return f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>{listed}'


def _fact(name: str, value: str) -> str:
    return f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(value)}</td></tr>'


def _section(name: str, contents: str) -> str:
    anchor = _anchor(name)
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{name}</h2>{contents}</section>'


def _anchor(name: str) -> str:
    return name.lower().replace(" ", "-")
