"""`report`: a fused image and its pair in, one self-contained HTML page out."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib import colormaps
from matplotlib.image import imsave
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hyperfuse.config import ReportConfig, takes_options
from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import check_writable, published
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import as_opened, open_mask
from hyperfuse.io.output import time_of_writing
from hyperfuse.io.wavelengths import supplied_to
from hyperfuse.methods.catalogue import AUTO, find_method
from hyperfuse.metrics.sums import Floats
from hyperfuse.reporting.colour import colour_composite, distinct_pixels, nan_mean, stretch_limits
from hyperfuse.reporting.examine import QualityReport, assess, examine, read_record
from hyperfuse.reporting.style import ERROR_COLOURS, ERROR_PERCENTILE, broken_line, highest_square, spectral_axis

PathLike = str | os.PathLike[str]
PAGE_SUFFIXES = (".html", ".htm")
LARGEST_SIDE = 900
NO_DATA = (216, 216, 216)
# Side of a close-up in fine pixels: a third of a small part, and no more than can be distinguished on a page.
SMALLEST_CLOSE_UP, LARGEST_CLOSE_UP = 24, 96
SPECTRA = 4


Image = PathLike | xr.DataArray


@takes_options(ReportConfig)
def report(
    fused: Image,
    page: PathLike,
    *,
    hsi: Image,
    msi: Image,
    reference: Image | None = None,
    config: ReportConfig | None = None,
) -> QualityReport:
    """Assess a fused image by the pair it was made from and write pictures, maps, spectra and scores to a page.

    How the image was fused is read from its provenance. Of a large scene the middle is examined.

    Parameters
    ----------
    fused, hsi, msi
        The fused image and the pair it was made from: files or cubes.
    page
        The HTML file to write; self-contained.
    reference
        The true image, if known, on the grid of `fused`.
    config : ReportConfig, optional
        All options in one object, such as ``method``, ``srf`` or ``mask``; each may also be given as a keyword.

    Returns
    -------
    QualityReport
        Scores and maps; `as_dict()` gives the scores for JSON.

    Raises
    ------
    OptionError
        The page's name does not end in .html, or both `method` and `weights` are given.
    GridError, BandError
        The images do not belong together.

    Examples
    --------
    >>> import numpy as np, hyperfuse, tempfile
    >>> scene = hyperfuse.make_cube(np.random.default_rng(0).random((4, 32, 32), dtype=np.float32))
    >>> pair = hyperfuse.simulate(scene, 4, np.eye(2, 4))
    >>> fused = hyperfuse.fuse(pair.hsi, pair.msi, method="bicubic", estimate=False)
    >>> page = tempfile.mkdtemp() + "/report.html"
    >>> hyperfuse.report(fused, page, hsi=pair.hsi, msi=pair.msi, reference=pair.reference).has_angles
    True

    References
    ----------
    L. Wald, T. Ranchin, M. Mangolini, "Fusion of satellite images of different spatial resolutions: assessing the
    quality of resulting images", Photogrammetric Engineering & Remote Sensing 63(6), 1997.
    """
    config, target = config or ReportConfig(), Path(page)
    check_page(target, overwrite=config.overwrite)
    if config.method not in (None, AUTO):
        find_method(str(config.method))
    given = {"fused": fused, "hsi": hsi, "msi": msi, "reference": reference}
    opened = {
        role: as_opened(image, getattr(config, f"{role}_variable"), getattr(config, f"{role}_band_axis"))
        for role, image in given.items()
        if image is not None
    }
    cubes = supplied_to(opened, config)
    recorded = read_record(cubes["fused"])
    pairs = {"mask": (config.mask, cubes["msi"]), "hsi_mask": (config.hsi_mask, cubes["hsi"])}
    masks = {role: None if mask is None else open_mask(mask, cube) for role, (mask, cube) in pairs.items()}
    part = examine(cubes["fused"], cubes["hsi"], cubes["msi"], recorded, srf=config.srf, **masks)
    folder = None if config.weights is None else str(config.weights)
    quality = assess(part, recorded, reference=cubes.get("reference"), method=config.method, weights=folder)
    named = given | {"mask": config.mask, "hsi_mask": config.hsi_mask}
    names = {role: Path(image).name for role, image in named.items() if isinstance(image, str | os.PathLike)}
    names |= {role: str(cube.name or "a cube in memory") for role, cube in opened.items() if role not in names}
    text = render_page(quality, recorded.record, names)
    with published(target, overwrite=config.overwrite) as file:
        file.write_text(text, encoding="utf-8")
    return quality


def check_page(page: Path, *, overwrite: bool) -> None:
    """Raise before the work rather than after it."""
    if page.suffix.lower() not in PAGE_SUFFIXES:
        raise OptionError(f"a page called {str(page)!r}", "a name that ends with .html", "choose such a name")
    check_writable(page, overwrite=overwrite)


@cache
def _environment() -> Environment:
    loader = PackageLoader("hyperfuse.reporting", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    environment.filters["number"] = lambda value, digits, unit="": "-" if value is None else f"{value:.{digits}f}{unit}"
    environment.filters["percent"] = lambda share: "-" if share is None else f"{100 * share:.3g} %"
    return environment


def render_page(quality: QualityReport, record: Mapping[str, str], names: Mapping[str, str]) -> str:
    """Fill the template; `record` is the fused image's provenance, `names` are the files by their role."""
    part, compared, observation = quality.part, quality.against_reference, quality.part.observation
    truth = part.as_cube(part.fused_values if compared is None else compared.values)
    composites = _composites(quality, truth)
    pixels = distinct_pixels(truth, SPECTRA)
    height, width = part.fused_values.shape[1:]
    whole_height, whole_width = part.fused.shape[1:]
    overview = None
    if not part.is_everything:
        every = -(-max(whole_height, whole_width) // (LARGEST_SIDE // 2))
        overview = _picture(colour_composite(part.fused, every=every))
    starts = 100 * part.rows.start / whole_height, 100 * part.columns.start / whole_width
    template = _environment().get_template("page.html.j2")
    return template.render(
        report=quality,
        names=names,
        scale=" x ".join(f"{each:.4g}" for each in dict.fromkeys(observation.scale)),
        overview=overview,
        overview_frame=(*starts, 100 * height / whole_height, 100 * width / whole_width),
        composites={name: _picture(picture) for name, picture in composites.items()},
        marks=[(100 * (row + 0.5) / height, 100 * (column + 0.5) / width) for row, column in pixels],
        maps=list(_maps(quality)),
        colour_bar=_picture(_coloured(np.linspace(0, 1, 256)[None])),
        close_ups=list(_close_ups(quality, composites)),
        spectra=_spectra(quality, truth, pixels),
        band_charts=_band_charts(quality, truth),
        facts=_facts(quality, record, names),
        notes=[*part.notes, *observation.notes, *([] if compared is None else compared.scores.notes)],
        version=version("hyperfuse"),
        time=time_of_writing(),
    )


def _picture(pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """(y, x, 3) pixels, decimated to what a page shows, as a data URL for pages that load nothing."""
    every = -(-max(pixels.shape[:2]) // LARGEST_SIDE)
    shown = np.ascontiguousarray(pixels[::every, ::every])
    contents = io.BytesIO()
    imsave(contents, shown, format="png")
    address = "data:image/png;base64," + base64.b64encode(contents.getvalue()).decode("ascii")
    return {"width": shown.shape[1], "height": shown.shape[0], "address": address}


def _composites(quality: QualityReport, truth: xr.DataArray) -> dict[str, NDArray[np.uint8]]:
    """All images on the fused image's pixels, with the same stretch except for the MSI."""
    part, limits = quality.part, stretch_limits(truth)
    hsi = colour_composite(part.as_cube(part.hsi_values), limits)
    pictures = {
        "HSI": np.moveaxis(part.coarse_on_fine(np.moveaxis(hsi, -1, 0)), 0, -1),
        "MSI": colour_composite(make_cube(part.msi_values, wavelength_nm=part.msi_wavelength_nm)),
        "fused": colour_composite(part.as_cube(part.fused_values), limits),
    }
    return pictures if quality.against_reference is None else pictures | {"reference": colour_composite(truth, limits)}


def _maps(quality: QualityReport) -> Iterator[dict[str, Any]]:
    compared = quality.against_reference
    rms = "root mean square over bands"
    if compared is not None:
        yield _map("Error against the reference", compared.error_map, f"RMSE {compared.scores.rmse:.4g}", rms)
        if quality.has_angles:
            angle = f"SAM {compared.scores.spectral_angle_degrees:.3f}°"
            yield _map("Spectral angle to the reference", compared.angle_map, angle, "degrees")
    if quality.expected_error is not None:
        error: Floats = np.sqrt(nan_mean(np.square(quality.expected_error.astype(np.float64)), axis=0))
        share = f"{100 * (quality.relative_expected_error or 0):.3g} % of the signal"
        yield _map("Expected error", error, share, f"{rms}: the standard deviation that `fuse --uncertainty` estimates")
    for name, each, how in (
        ("HSI", quality.consistency.with_hsi, "the fused image degraded to the HSI's resolution, minus the HSI"),
        ("MSI", quality.consistency.with_msi, "the fused image through the MSI's SRF, minus the MSI"),
    ):
        score = "nothing to compare" if each.rmse is None else f"RMSE {each.rmse:.4g}"
        yield _map(f"Consistency with the {name}", each.error_map, score, f"{rms}: {how}")
    weights = quality.part.msi_weights
    if weights is not None:
        unused = 1 - weights.astype(np.float64)
        meaning = "0 where the MSI is used, 1 where it shows something else than the HSI and gives way to it"
        yield _map("Change mask", unused, f"{np.nanmean(unused):.1%} of the MSI is not used", meaning, highest=1.0)


def _map(title: str, values: Floats, score: str, meaning: str, highest: float | None = None) -> dict[str, Any]:
    values = thinned(values)
    known = np.isfinite(values)
    if highest is None:
        highest = float(np.percentile(values[known], ERROR_PERCENTILE)) if known.any() else 0.0
    pixels = _coloured(np.clip(np.where(known, values, 0) / (highest or 1.0), 0, 1))
    pixels[~known] = NO_DATA
    return {"title": title, "score": score, "meaning": meaning, "picture": _picture(pixels), "highest": highest}


def _coloured(shares: Floats) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.round(255 * colormaps[ERROR_COLOURS](shares)[..., :3]).astype(np.uint8)
    return pixels


def thinned(values: Floats) -> Floats:
    """Means of blocks, so that no side is longer than a page shows."""
    every = -(-max(values.shape) // LARGEST_SIDE)
    means: Floats = xr.DataArray(values, dims=("y", "x")).coarsen(y=every, x=every, boundary="pad").mean().values
    return means


def _close_ups(quality: QualityReport, composites: Mapping[str, NDArray[np.uint8]]) -> Iterator[dict[str, Any]]:
    part, compared = quality.part, quality.against_reference
    side = min(LARGEST_CLOSE_UP, max(SMALLEST_CLOSE_UP, min(part.fused_values.shape[1:]) // 3))
    places = {"Most detail in the MSI": highest_square(_edges(part.msi_values), side)}
    if compared is not None:
        places["Largest error against the reference"] = highest_square(compared.error_map, side)
    else:
        error = part.coarse_on_fine(quality.consistency.with_hsi.error_map)
        places["Largest error against the HSI"] = highest_square(error, side)
    for title, (rows, columns) in places.items():
        pictures = {name: _picture(picture[rows, columns]) for name, picture in composites.items()}
        yield {"title": title, "rows": rows, "columns": columns, "pictures": pictures}


def _edges(image: NDArray[np.float32]) -> Floats:
    """Strength of the edges in (bands, y, x); the few strongest would otherwise decide alone and are limited."""
    filled = np.nan_to_num(image.astype(np.float64))
    level = filled.std(axis=(1, 2), keepdims=True)
    edges: Floats = np.hypot(*np.gradient((filled / np.where(level > 0, level, 1)).mean(axis=0)))
    edges[~np.isfinite(image).all(axis=0)] = 0  # the border of missing data is not detail
    return np.minimum(edges, np.percentile(edges, ERROR_PERCENTILE))


Line = tuple[str, str, Floats]
"""Name, class of the style sheet, and values; the line is interrupted where these are NaN."""


@dataclass(frozen=True, eq=False)
class Chart:
    """A line chart in the coordinates of its SVG; its colours are the page's own, light or dark."""

    lines: Sequence[Line]
    title: str
    x_label: str
    y_label: str
    caption: str = ""
    columns: Sequence[tuple[float, str]] = ()
    rows: Sequence[tuple[float, str]] = ()
    paths: Sequence[tuple[str, str]] = ()
    # Room at the left for a tick of six characters beside the axis label, at the right for half of one.
    width, height, left, right, top, bottom = 420, 250, 66, 398, 12, 210


DASH = 24  # drawn for a point without neighbours
MOST_DIGITS = 8


def line_chart(
    axis: tuple[Floats, str],
    lines: Sequence[Line],
    title: str,
    y_label: str,
    caption: str = "",
    *,
    from_zero: bool = False,
    second: Floats | None = None,
) -> Chart:
    """Lay out a chart over positions with a label; without paths where no line has a value.

    `second` is drawn like the last line and shares its place in the legend.
    """
    positions, x_label = axis
    chart = Chart(lines, title, x_label, y_label, caption)
    drawn = [(css_class, values) for _, css_class, values in lines if np.isfinite(values).any()]
    if not drawn:
        return chart
    if second is not None:
        drawn.append((lines[-1][1], second))
    x_limits = _limits(positions, around_one=0.5)
    y_limits = _limits(np.concatenate([values for _, values in drawn]), from_zero=from_zero)

    def path(values: Floats) -> str:
        along, heights = broken_line(positions, values)
        return _svg_path(x(along), y(heights))

    def x(values: Any) -> Any:
        return np.interp(values, x_limits, (chart.left, chart.right))

    def y(values: Any) -> Any:
        return np.interp(values, y_limits, (chart.bottom, chart.top))

    return replace(
        chart,
        columns=[(x(value), label) for value, label in _labelled_ticks(*x_limits, whole=True)],
        rows=[(y(value), label) for value, label in _labelled_ticks(*y_limits)],
        paths=[(css_class, path(values)) for css_class, values in drawn],
    )


def _svg_path(x: Floats, y: Floats) -> str:
    """Straight pieces between known points; an isolated one becomes a dash."""
    known = [False, *np.isfinite(y).tolist(), False]
    pieces = []
    for across, up, before, here, after in zip(x, y, known, known[1:], known[2:], strict=False):
        if here and not before and not after:
            pieces.append(f"M{across - DASH / 2:.1f} {up:.1f}h{DASH}")
        elif here:
            pieces.append(f"{'L' if before else 'M'}{across:.1f} {up:.1f}")
    return "".join(pieces)


def _limits(values: Floats, *, from_zero: bool = False, around_one: float | None = None) -> tuple[float, float]:
    """Of all values; around a single one a tenth of it, or `around_one`."""
    values = values[np.isfinite(values)]
    low, high = float(values.min()), float(values.max())
    low = min(0.0, low) if from_zero else low
    if high == low:
        room = around_one or abs(high) / 10 or 1.0
        return low - (0 if from_zero else room), high + room
    return low, high


def _labelled_ticks(low: float, high: float, *, whole: bool = False) -> list[tuple[float, str]]:
    """With as many digits as it takes to distinguish them; `whole` numbers where they are enough, as for bands."""
    locator = MaxNLocator(5, integer=whole, min_n_ticks=1 if whole else 2)
    ticks = [float(value) for value in locator.tick_values(low, high) if low <= value <= high]
    fewest = 2 if max(map(abs, ticks), default=0.0) >= 1e5 else 4
    for digits in range(fewest, MOST_DIGITS + 1):
        labels = [f"{value:.{digits}g}" for value in ticks]
        if len(set(labels)) == len(labels):
            break
    return list(zip(ticks, labels, strict=True))


def _spectra(quality: QualityReport, truth: xr.DataArray, pixels: Sequence[tuple[int, int]]) -> list[Chart]:
    part, compared = quality.part, quality.against_reference
    cubes = [] if compared is None else [("reference", "reference", compared.values)]
    cubes += [
        ("HSI pixel that it lies in", "hsi", part.coarse_on_fine(part.hsi_values)),
        ("fused", "fused", part.fused_values),
    ]
    charts = []
    for number, (row, column) in enumerate(pixels, start=1):
        lines = [(name, css_class, values[:, row, column].astype(np.float64)) for name, css_class, values in cubes]
        where = f"row {row + part.rows.start}, column {column + part.columns.start}"
        title = f"Spectrum of pixel {number}, {where}"
        lower = None
        if quality.expected_error is not None:
            fused, error = lines[-1][2], quality.expected_error[:, row, column].astype(np.float64)
            lines.append(("fused, more and less by its expected error", "spread", fused + error))
            lower = fused - error
        charts.append(line_chart(spectral_axis(truth), lines, title, "value", where, second=lower))
    return charts


def _band_charts(quality: QualityReport, truth: xr.DataArray) -> list[Chart]:
    part, compared = quality.part, quality.against_reference
    axis = spectral_axis(truth)
    signal = np.sqrt(np.nanmean(np.square(part.hsi_values.astype(np.float64)), axis=(1, 2)))
    noise = part.observation.hsi_noise.numpy() / np.where(signal > 0, signal, np.nan)
    error = quality.consistency.with_hsi.band_relative
    lines = [("fused against HSI", "fused", 100 * error), ("noise of the HSI, estimated", "other", 100 * noise)]
    title = "Consistency with the HSI, band by band"
    charts = [line_chart(axis, lines, title, "error, % of signal", from_zero=True)]
    if compared is not None:
        psnr = compared.scores.band_psnr_db[part.bands]
        line = ("PSNR", "fused", np.where(np.isfinite(psnr), psnr, np.nan))
        charts.insert(0, line_chart(axis, [line], "PSNR against the reference, band by band", "dB"))
    return charts


def _facts(quality: QualityReport, record: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    observation = quality.part.observation
    shift = " x ".join(f"{each:+.3f}" for each in observation.misregistration)
    return (
        {f"file: {role}": name for role, name in names.items()}
        | {key.replace("_", " "): value for key, value in record.items() if key not in names}
        | {
            "PSF, down and across": observation.psf_text,
            "shift against the georeference": f"{shift} fine pixels",
            "confidence of the estimation": f"{observation.confidence:.2f}",
        }
    )
