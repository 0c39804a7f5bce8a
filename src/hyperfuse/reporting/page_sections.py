"""Sections of the report that show: composites, close-ups, maps, spectra, bands. Each returns HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import xarray as xr

from hyperfuse.cubes.cube import make_cube
from hyperfuse.quality.pairing import Floats
from hyperfuse.reporting.colour import colour_composite, stretch_limits
from hyperfuse.reporting.page_charts import Line, legend, line_chart
from hyperfuse.reporting.page_pictures import (
    LARGEST_SIDE,
    Picture,
    colour_bar,
    data_address,
    highest_square,
    map_picture,
    most_detailed,
)
from hyperfuse.reporting.quality_findings import QualityFindings
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
        self.whole: dict[str, Picture] = {"HSI": colour_composite(part.as_cube(part.hsi_values), limits)[rows][:, columns]}
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
            _picture(picture, f"{name}, true or nearest colours", f"<b>{name}</b>: {words[name]}", _marks(marks, fine[1:]))
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
            _picture(picture, f"{name}, close up", f"<b>{name}</b>") for name, picture in images.close_up((rows, columns)).items()
        )
        sections.append(f'<h3>{escape(title)}</h3><p class="lead">{where}</p><div class="pictures">{shown}</div>')
    return "".join(sections)


def maps(findings: QualityFindings) -> str:
    agreement, compared = findings.consistency, findings.against_reference
    shown = []
    if compared is not None:
        error, angle = compared.scores.rmse, compared.scores.spectral_angle_degrees
        shown.append(_map(compared.error_map, "Error against the reference", f"RMSE {error:.4g}", "root mean square over bands"))
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
            Line(name, look, *broken_line(along, values[:, row, column].astype(np.float64), np.ones(len(values), dtype=bool)))
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
        Line("fused against HSI", "fused", *broken_line(along, 100 * findings.consistency.with_hsi.band_relative, everything)),
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
