"""The report as one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere.

Sections of the report that show: composites, close-ups, maps, spectra, bands. Each returns HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

import numpy as np
import xarray as xr

from hyperfuse.io.cube import make_cube
from hyperfuse.io.provenance import time_of_writing
from hyperfuse.metrics.pairing import Floats
from hyperfuse.physics.psf import sigma_from_fwhm
from hyperfuse.physics.simulate import current_version
from hyperfuse.reporting.colour import colour_composite, stretch_limits
from hyperfuse.reporting.findings import QualityFindings
from hyperfuse.reporting.page_parts import (
    LARGEST_SIDE,
    Line,
    Picture,
    colour_bar,
    data_address,
    highest_square,
    legend,
    line_chart,
    map_picture,
    most_detailed,
)
from hyperfuse.reporting.sentences import ScoreGroup, score_groups
from hyperfuse.reporting.spectra import broken_line, distinct_pixels, spectral_axis

# Sides of a close-up: a third of a small part, in fine pixels, and never more than can be told apart on a page.
SMALLEST_CLOSE_UP, LARGEST_CLOSE_UP = 24, 96
SPECTRA = 4


class ShownImages:
    """The images of the examined part as pictures of one brightness, on the fused image's pixels."""

    def __init__(self, findings: QualityFindings) -> None:
        part = findings.part
        fused = part.as_cube(part.fused_values)
        compared = findings.against_reference
        truth = fused if compared is None else part.as_cube(compared.values)
        limits = stretch_limits(truth)
        rows, columns = part.pixels_underneath()
        self.whole: dict[str, Picture] = {
            "HSI": colour_composite(part.as_cube(part.hsi_values), limits)[rows][:, columns]
        }
        self.whole["MSI"] = colour_composite(make_cube(part.msi_values, wavelength_nm=part.msi_wavelength_nm))
        self.whole["fused"] = colour_composite(fused, limits)
        if compared is not None:
            self.whole["reference"] = colour_composite(truth, limits)
        self.spectra_of = truth

    def close_up(self, place: tuple[slice, slice]) -> dict[str, Picture]:
        return {name: picture[place] for name, picture in self.whole.items()}


def composites(findings: QualityFindings, images: ShownImages, pixels: Sequence[tuple[int, int]]) -> str:
    part = findings.part
    coarse, fine = part.hsi_values.shape, part.fused_values.shape
    words = {
        "HSI": f"{coarse[2]} x {coarse[1]} pixels, {bands_counted(coarse[0])}",
        "MSI": f"{fine[2]} x {fine[1]} pixels, {bands_counted(len(part.msi_values))}",
        "fused": f"{fine[2]} x {fine[1]} pixels, {bands_counted(fine[0])}; numbers mark the spectra below",
        "reference": "what it should be",
    }
    shown = []
    for name, picture in images.whole.items():
        marks = [(number, pixel) for number, pixel in enumerate(pixels, start=1)] if name == "fused" else []
        shown.append(
            _picture(
                picture, f"{name}, true or nearest colours", f"<b>{name}</b>: {words[name]}", _marks(marks, fine[1:])
            )
        )
    return f'<div class="pictures">{"".join(shown)}</div>'


def bands_counted(count: int) -> str:
    return "1 band" if count == 1 else f"{count} bands"


def overview(findings: QualityFindings) -> str:
    """All of a large fused image, with a frame around the part that was looked at."""
    part = findings.part
    if part.is_everything:
        return ""
    height, width = part.fused.sizes["y"], part.fused.sizes["x"]
    picture = colour_composite(part.fused, every=-(-max(height, width) // (LARGEST_SIDE // 2)))
    frame = (
        f'<i style="top:{100 * part.rows.start / height:.3f}%;left:{100 * part.columns.start / width:.3f}%;'
        f"height:{100 * (part.rows.stop - part.rows.start) / height:.3f}%;"
        f'width:{100 * (part.columns.stop - part.columns.start) / width:.3f}%"></i>'
    )
    caption = f"<b>All of the fused image</b>: {width} x {height} pixels; framed: the part that this page looks at"
    return f'<div class="pictures">{_picture(picture, "all of the fused image", caption, frame)}</div>'


def close_ups(findings: QualityFindings, images: ShownImages) -> str:
    part = findings.part
    side = min(LARGEST_CLOSE_UP, max(SMALLEST_CLOSE_UP, min(part.fused_values.shape[1:]) // 3))
    places = {"Most detail in the MSI": most_detailed(part.msi_values, side)}
    if findings.against_reference is not None:
        places["Largest error against the reference"] = highest_square(findings.against_reference.error_map, side)
    else:
        on_fine = part.coarse_on_fine(findings.consistency.with_hsi.error_map.astype(np.float32)).astype(np.float64)
        places["Farthest from the HSI"] = highest_square(on_fine, side)
    sections = []
    for title, (rows, columns) in places.items():
        where = f"rows {rows.start + part.rows.start} to {rows.stop + part.rows.start - 1}, "
        where += f"columns {columns.start + part.columns.start} to {columns.stop + part.columns.start - 1}"
        shown = "".join(
            _picture(picture, f"{name}, close up", f"<b>{name}</b>")
            for name, picture in images.close_up((rows, columns)).items()
        )
        sections.append(f'<h3>{escape(title)}</h3><p class="lead">{where}</p><div class="pictures">{shown}</div>')
    return "".join(sections)


def maps(findings: QualityFindings) -> str:
    agreement, compared = findings.consistency, findings.against_reference
    shown = []
    if compared is not None:
        error, angle = compared.scores.rmse, compared.scores.spectral_angle_degrees
        shown.append(
            _map(compared.error_map, "Error against the reference", f"RMSE {error:.4g}", "root mean square over bands")
        )
    if compared is not None and findings.has_angles:
        shown.append(_map(compared.angle_map, "Spectral angle to the reference", f"SAM {angle:.3f}°", "degrees"))
    for name, each, how in (
        ("HSI", agreement.with_hsi, "the fused image as the HSI would have seen it, minus the HSI"),
        ("MSI", agreement.with_msi, "the fused image through the MSI's bands, minus the MSI"),
    ):
        score = "nothing to compare" if each.rmse is None else f"RMSE {each.rmse:.4g}"
        shown.append(_map(each.error_map, f"Consistency with the {name}", score, f"root mean square over bands: {how}"))
    return f'<div class="pictures">{"".join(shown)}</div>'


def spectra(findings: QualityFindings, images: ShownImages, pixels: Sequence[tuple[int, int]]) -> str:
    part, compared = findings.part, findings.against_reference
    along, axis = spectral_axis(images.spectra_of)
    hsi = part.coarse_on_fine(part.hsi_values)
    cubes = [("HSI pixel that it lies in", "hsi", hsi), ("fused", "fused", part.fused_values)]
    if compared is not None:
        cubes.insert(0, ("reference", "reference", compared.values))
    charts, lines = [], []
    for number, (row, column) in enumerate(pixels, start=1):
        lines = [
            Line(
                name,
                look,
                *broken_line(along, values[:, row, column].astype(np.float64), np.ones(len(values), dtype=bool)),
            )
            for name, look, values in cubes
        ]
        where = f"row {row + part.rows.start}, column {column + part.columns.start}"
        chart = line_chart(lines, title=f"Spectrum of pixel {number}, {where}", along=axis, upwards="value")
        charts.append(f"<figure>{chart}<figcaption><b>{number}</b>: {where}</figcaption></figure>")
    return f'{legend(lines)}<div class="pictures wide">{"".join(charts)}</div>'


def bands(findings: QualityFindings, images: ShownImages) -> str:
    """How the bands fare, each by itself."""
    part = findings.part
    along, axis = spectral_axis(images.spectra_of)
    everything = np.ones(len(along), dtype=bool)
    signal = np.sqrt(np.nanmean(np.square(part.hsi_values.astype(np.float64)), axis=(1, 2)))
    noise = part.observation.hsi_noise.numpy() / np.where(signal > 0, signal, np.nan)
    lines = [
        Line(
            "fused against HSI",
            "fused",
            *broken_line(along, 100 * findings.consistency.with_hsi.band_relative, everything),
        ),
        Line("noise of the HSI, estimated", "other", *broken_line(along, 100 * noise, everything)),
    ]
    charts = [_band_chart(lines, "Consistency with the HSI, band by band", axis, "error, % of signal")]
    if findings.against_reference is not None:
        psnr = findings.against_reference.scores.band_psnr_db[part.bands]
        psnr = np.where(np.isfinite(psnr), psnr, np.nan)
        lines = [Line("PSNR", "fused", *broken_line(along, psnr, everything))]
        charts.insert(0, _band_chart(lines, "PSNR against the reference, band by band", axis, "dB"))
    return f'<div class="pictures wide">{"".join(charts)}</div>'


def chosen_pixels(cube: xr.DataArray) -> list[tuple[int, int]]:
    return distinct_pixels(cube, SPECTRA)


def _band_chart(lines: list[Line], title: str, axis: str, upwards: str) -> str:
    chart = line_chart(lines, title=title, along=axis, upwards=upwards, from_zero=upwards != "dB")
    return f"<figure>{legend(lines)}{chart}<figcaption><b>{escape(title)}</b></figcaption></figure>"


def _map(values: Floats, title: str, score: str, what: str) -> str:
    found = map_picture(values)
    bar = f'<img alt="" src="{data_address(colour_bar())}">'
    below = f'<div class="bar"><span>0</span>{bar}<span>{found.highest:.3g} and more</span></div>'
    caption = f"<b>{escape(title)}</b>, {escape(score)}: {escape(what)}"
    return _picture(found.picture, f"map: {title}", caption, below=below)


def _picture(picture: Picture, described: str, caption: str, marks: str = "", below: str = "") -> str:
    """`described` is for those who cannot see it; `caption`, `marks` and `below` are HTML."""
    height, width = picture.shape[:2]
    every = -(-max(height, width) // LARGEST_SIDE)
    picture = picture[::every, ::every]
    image = (
        f'<img alt="{escape(described)}" width="{picture.shape[1]}" height="{picture.shape[0]}" style="height:auto" '
        f'src="{data_address(picture)}">'
    )
    return f'<figure><div class="marked">{image}{marks}</div>{below}<figcaption>{caption}</figcaption></figure>'


def _marks(marks: Sequence[tuple[int, tuple[int, int]]], size: tuple[int, ...]) -> str:
    found = []
    for number, (row, column) in marks:
        place = f"top:{100 * (row + 0.5) / size[0]:.2f}%;left:{100 * (column + 0.5) / size[1]:.2f}%"
        found.append(f'<span aria-hidden="true" style="{place}">{number}</span>')
    return "".join(found)


# Whatever a file's name or header holds: the page loads nothing and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def quality_page(findings: QualityFindings, record: Mapping[str, str], names: Mapping[str, str]) -> str:
    """`record` is the fused image's provenance, `names` the files by their role."""
    images = ShownImages(findings)
    pixels = chosen_pixels(images.spectra_of)
    title = f"Report on {names['fused']}"
    parts = {
        "Pictures": overview(findings) + composites(findings, images, pixels),
        "Scores": "".join(_group(group) for group in score_groups(findings)),
        "Maps": "<p>Where the image is wrong, or cannot be right. Grey: nothing to compare.</p>" + maps(findings),
        "Close-ups": close_ups(findings, images),
        "Spectra": spectra(findings, images, pixels),
        "Bands": bands(findings, images),
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
    bands = bands_counted(part.fused.sizes["band"])
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
    if findings.reduced_resolution.scores is not None:
        shown.append((f"{findings.reduced_resolution.scores.psnr_db:.2f} dB", "PSNR, degraded once more"))
    if findings.without_reference.hqnr is not None:
        shown.append((f"{findings.without_reference.hqnr:.3f}", "HQNR"))
    return (
        '<ul class="tiles">'
        + "".join(f"<li><strong>{value}</strong><span>{name}</span></li>" for value, name in shown)
        + "</ul>"
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
    head = "".join(
        f'<th scope="col">{name}</th>' for name in ("score", "value", "best", "what it says", "when it misleads")
    )
    region = f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(group.title)}">'
    return f"{heading}{region}<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"


def _facts(findings: QualityFindings, record: Mapping[str, str], names: Mapping[str, str]) -> str:
    observation = findings.part.observation
    facts = {f"file: {role}": name for role, name in names.items()}
    facts |= {key.replace("_", " "): value for key, value in record.items() if key not in names}
    widths = " x ".join(f"{each / sigma_from_fwhm(1.0):.3g}" for each in observation.sigma)
    facts |= {
        "point spread, FWHM": f"{widths} fine pixels (down x across)",
        "shift beyond the georeference": " x ".join(f"{each:+.3f}" for each in observation.misregistration)
        + " fine pixels",
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
