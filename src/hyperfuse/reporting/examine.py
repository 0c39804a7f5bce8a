"""Examine a fused image: cut it and its pair to a part that fits into memory, and score that part.

The part is the middle of a large scene, so that scenes of any size cost the same.
Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from affine import Affine
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.config import FuseConfig
from hyperfuse.errors import BandError, CubeFileError, GridError, OptionError
from hyperfuse.fusion.engine import moved
from hyperfuse.fusion.fusers import fuse_with_network, load_network
from hyperfuse.fusion.observe import RegisteredPair, estimate_pair, register_pair
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.io.cube import make_cube, physical_values, place_cube, window_of
from hyperfuse.io.grid import PIXEL_TOLERANCE, grid_of, parallel_placement
from hyperfuse.io.output import provenance_of
from hyperfuse.io.summary import html_table, strict_json
from hyperfuse.methods.catalogue import AUTO, METHODS, MethodFuser, find_method, fuse_arrays
from hyperfuse.methods.window import Window
from hyperfuse.metrics.evaluation import WINDOW_BYTES, Evaluation, evaluate
from hyperfuse.metrics.no_reference import (
    Consistency,
    Fuse,
    NoReferenceScores,
    ReducedResolutionScores,
    assess_at_reduced_resolution,
    consistency,
    no_reference_scores,
)
from hyperfuse.metrics.sums import Floats, mask_incomparable, plan_comparison, spectral_angles_degrees
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.srf import SRFSpec
from hyperfuse.progress import progress
from hyperfuse.reporting.colour import pixel_rmse


@dataclass(frozen=True)
class Recorded:
    """How a fused cube was made: its provenance and the options of `fuse` in it."""

    record: Mapping[str, str]
    config: FuseConfig


def read_record(fused: xr.DataArray) -> Recorded:
    """Read the options of `fuse` back from the provenance of a fused image."""
    record = provenance_of({key: str(value) for key, value in fused.attrs.items()})
    return Recorded(record, FuseConfig.from_record(record.get("options", "")))


# Size of the examined part: values of the fused image, and pixels along a side.
MOST_VALUES = 40_000_000
LARGEST_SIDE = 1024
# Centres to try where the middle holds too little data, as shares of height and width.
CENTRES = ((0.5, 0.5), (0.25, 0.25), (0.75, 0.75), (0.25, 0.75), (0.75, 0.25))
ENOUGH_KNOWN = 0.7
SAME_BAND_NM = 0.05
# What speaks against an image. In benchmarks/report_verdicts.py nothing does against the good results of four scenes;
# of the spoilt ones, all that are no better than interpolation exceed at least one limit.
LARGEST_HSI_ERROR, LARGEST_ERROR_OVER_NOISE = 0.03, 3.0
LARGEST_MSI_ERROR, FAR_TOO_LARGE = 0.05, 3.0
LEAST_GAIN_DB = 0.5
LEAST_CONFIDENCE = 0.5


@dataclass(frozen=True, eq=False)
class ExaminedPart:
    """Physical values of fused image, HSI and MSI over the same ground, NaN where there is no data."""

    fused: xr.DataArray
    """The whole image, lazily."""
    rows: slice
    columns: slice
    """Where the part lies in it."""
    bands: NDArray[np.int64]
    """The examined bands of the fused image: good ones that the hsi has, too."""
    fused_values: NDArray[np.float32]  # (C, H, W)
    hsi_values: NDArray[np.float32]  # (C, h, w)
    msi_values: NDArray[np.float32]  # (M, H, W)
    msi_wavelength_nm: NDArray[np.float64]
    observation: Observation
    notes: tuple[str, ...]
    msi_weights: NDArray[np.float32] | None = None
    """(H, W) How far the msi is used, from 0 to 1; None where the two images agree."""

    @property
    def is_everything(self) -> bool:
        return self.fused_values.shape[1:] == self.fused.shape[1:]

    @property
    def wavelength_nm(self) -> NDArray[np.float64]:
        centres: NDArray[np.float64] = self.fused["wavelength"].values[self.bands]
        return centres

    def as_cube(self, values: NDArray[np.float32]) -> xr.DataArray:
        """Values of the examined bands as a cube with their wavelengths."""
        return make_cube(values, wavelength_nm=self.wavelength_nm)

    def coarse_on_fine(self, coarse: NDArray[Any]) -> NDArray[Any]:
        """(..., h, w) -> (..., H, W): every fine pixel gets the value of the coarse one that it lies in."""
        sizes = zip(self.fused_values.shape[1:], self.hsi_values.shape[1:], strict=True)
        rows, columns = (
            np.clip(np.floor((np.arange(fine) + 0.5 - shift) / scale + 1e-6).astype(np.int64), 0, size - 1)
            for (fine, size), scale, shift in zip(sizes, self.observation.scale, self.observation.shift, strict=True)
        )
        return coarse[..., rows, :][..., columns]


def examine(
    fused: xr.DataArray,
    hsi: xr.DataArray,
    msi: xr.DataArray,
    recorded: Recorded,
    *,
    srf: SRFSpec | None = None,
    mask: xr.DataArray | None = None,
    hsi_mask: xr.DataArray | None = None,
) -> ExaminedPart:
    """Cut all three to the examined part, and estimate the observation of the pair as for the fusion."""
    hsi = hsi.isel(band=_bands_of_fused(fused, hsi))
    fused, hsi, msi = _on_one_ground(fused, hsi, msi)
    top, left = _place_on_msi(fused, msi)
    rows, columns = _choose_part(fused, top, left, msi)
    cut_msi = window_of(msi, _moved_slice(rows, top), _moved_slice(columns, left))
    placed = FuseConfig(shift=recorded.config.shift, trust=recorded.config.trust)
    pair = align_pair(hsi, cut_msi, placed, mask=mask, hsi_mask=hsi_mask)
    rows = _moved_slice(pair.msi_source.rows, rows.start)
    columns = _moved_slice(pair.msi_source.columns, columns.start)
    found, notes = _observed(pair, hsi, recorded.config, srf)
    pair, observation = found.pair, found.observation
    bands = np.flatnonzero(pair.usable_bands & fused["good"].values)
    if bands.size == 0:
        raise BandError("no band is good in both fused image and HSI", "at least one", "fix the bad-band list (bbl)")
    among_usable = fused["good"].values[pair.usable_bands]
    srf_of_bands, noise = observation.srf[:, among_usable], observation.hsi_noise[among_usable]
    observation = replace(observation, srf=srf_of_bands, hsi_noise=noise)
    msi_values = pair.msi
    if recorded.config.trust == "hsi":
        # The fused image was moved onto the hsi; so is the msi, to compare the two.
        msi_values = moved(msi_values, observation.misregistration)
        observation = replace(observation, shift=observation.grid_shift)
    return ExaminedPart(
        fused=fused,
        rows=rows,
        columns=columns,
        bands=bands,
        fused_values=physical_values(fused, rows, columns, bands),
        hsi_values=pair.hsi[bands],
        msi_values=msi_values,
        msi_wavelength_nm=msi["wavelength"].values,
        observation=observation,
        notes=notes,
        msi_weights=None if found.harmonisation.agreement is None else found.change_mask.values[0],
    )


def _moved_slice(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _observed(
    pair: AlignedPair, hsi: xr.DataArray, config: FuseConfig, srf: SRFSpec | None
) -> tuple[RegisteredPair, tuple[str, ...]]:
    def register(config: FuseConfig) -> RegisteredPair:
        return register_pair(
            pair,
            lambda each, bend: estimate_pair(each, hsi, config, bend=bend),
            local_shift=config.local_shift,
            search_further=False,
            reconcile=config.harmonise == "auto",
            trust=config.trust,
        )

    try:
        return register(config if srf is None else config.replace(srf=srf)), ()
    except (BandError, CubeFileError):
        if srf is not None:
            raise
        note = f"the SRF {config.srf} that it was fused with is not available here and was estimated from the pair"
        return register(config.replace(srf=None)), (note,)


def _bands_of_fused(fused: xr.DataArray, hsi: xr.DataArray) -> NDArray[np.int64]:
    """Indices of the hsi's bands that the fused image has: all, or those of the same wavelengths."""
    count, hsi_count = fused.sizes["band"], hsi.sizes["band"]
    if count == hsi_count:
        return np.arange(count)
    centres, hsi_centres = fused["wavelength"].values, hsi["wavelength"].values
    distance = np.abs(centres[:, None] - hsi_centres)
    if not (np.nan_to_num(distance, nan=np.inf).min(axis=1) <= SAME_BAND_NM).all():
        raise BandError(
            f"a fused image of {count} bands and an HSI of {hsi_count}",
            "the HSI that it was made from: the same bands, or some of them at the same wavelengths",
            "check both with `hyperfuse info`",
        )
    nearest: NDArray[np.int64] = np.nanargmin(distance, axis=1)
    return nearest


def _on_one_ground(
    fused: xr.DataArray, hsi: xr.DataArray, msi: xr.DataArray
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """Georeference all three; an image without a georeference covers the same ground as the others."""
    same_size = fused.shape[1:] == msi.shape[1:]
    scale = Affine.scale(msi.sizes["x"] / hsi.sizes["x"], msi.sizes["y"] / hsi.sizes["y"])
    of_fused, of_hsi, of_msi = (grid_of(image).transform for image in (fused, hsi, msi))
    of_msi = of_msi or (of_fused if same_size else None) or (of_hsi @ ~scale if of_hsi else Affine.identity())
    of_fused = of_fused or (of_msi if same_size else None)
    if of_fused is None:
        (height, width), (msi_height, msi_width) = fused.shape[1:], msi.shape[1:]
        got = f"a fused image of {height}x{width} pixels without georeference and an MSI of {msi_height}x{msi_width}"
        raise GridError(got, "the same size, or a georeference", "give the MSI that it was made from")
    return (
        place_cube(fused, None, of_fused, None),
        place_cube(hsi, None, of_hsi or of_msi @ scale, None),
        place_cube(msi, None, of_msi, None),
    )


def _place_on_msi(fused: xr.DataArray, msi: xr.DataArray) -> tuple[int, int]:
    """Row and column of the msi at which the fused image starts."""
    placement = parallel_placement(grid_of(msi), grid_of(fused))
    if placement is not None:
        steps = abs(placement.step_y - 1) * fused.sizes["y"], abs(placement.step_x - 1) * fused.sizes["x"]
        starts = placement.start_y, placement.start_x
        if max(*steps, *(abs(start - round(start)) for start in starts)) < 10 * PIXEL_TOLERANCE:
            return round(starts[0]), round(starts[1])
    raise GridError(
        "a fused image whose pixels are not the MSI's",
        "one on the MSI's grid, as `hyperfuse fuse` makes it",
        "give the MSI that it was made from, or resample the fused image to its grid with gdalwarp",
    )


def _choose_part(fused: xr.DataArray, top: int, left: int, msi: xr.DataArray) -> tuple[slice, slice]:
    """Rows and columns of the fused image that lie on the msi: all where they are few, else a part that holds data."""
    limits = [
        (max(0, -start), min(size, msi_size - start))
        for start, size, msi_size in zip((top, left), fused.shape[1:], msi.shape[1:], strict=True)
    ]
    if any(begin >= end for begin, end in limits):
        remedy = "check both with `hyperfuse info`"
        raise GridError("a fused image outside of the MSI", "the MSI that it was made from", remedy)
    side = max(64, min(LARGEST_SIDE, int((MOST_VALUES / fused.sizes["band"]) ** 0.5)))
    if all(end - begin <= side for begin, end in limits):
        return slice(*limits[0]), slice(*limits[1])
    good = np.flatnonzero(fused["good"].values)
    band = int(good[0]) if good.size else 0
    parts: list[tuple[float, slice, slice]] = []
    for centre in CENTRES:
        rows, columns = (_around(share, side, *axis) for share, axis in zip(centre, limits, strict=True))
        known = float(np.isfinite(physical_values(fused, rows, columns, [band])).mean())
        parts.append((known, rows, columns))
        if known >= ENOUGH_KNOWN:
            break
    _, rows, columns = max(parts, key=lambda part: part[0])
    return rows, columns


def _around(share: float, side: int, begin: int, end: int) -> slice:
    start = round(begin + share * (end - begin) - side / 2)
    start = max(begin, min(start, end - side))
    return slice(start, min(end, start + side))


@dataclass(frozen=True, eq=False)
class AgainstReference:
    scores: Evaluation
    values: NDArray[np.float32]
    """(C, H, W) of the reference, the examined bands."""
    error_map: Floats
    angle_map: Floats


@dataclass(frozen=True)
class ReducedResolution:
    """Scores of the method that fused the image, one scale coarser; or the reason why there are none."""

    fused_by: str
    scores: ReducedResolutionScores | None
    why_not: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class QualityReport:
    """Result of `hyperfuse.report`: scores with and without a reference, error maps, and the examined part."""

    part: ExaminedPart
    consistency: Consistency
    without_reference: NoReferenceScores
    reduced_resolution: ReducedResolution
    against_reference: AgainstReference | None
    expected_error: NDArray[np.float32] | None = None
    """(C, H, W), a standard deviation; None where the image was made by a method that does not estimate it."""

    def __repr__(self) -> str:
        return f"QualityReport({', '.join(f'{name}: {value}' for name, value in self.headlines().items())})"

    def _repr_html_(self) -> str:
        return html_table("Quality", self.headlines())

    @property
    def has_angles(self) -> bool:
        """Spectra of one band all point the same way."""
        return self.part.bands.size > 1

    def headlines(self) -> dict[str, str]:
        """The main scores as text by their names, the most telling first."""
        reference, coarser = self.against_reference, self.reduced_resolution.scores
        hsi, msi = self.consistency.with_hsi.relative, self.consistency.with_msi.relative
        candidates = [
            ("PSNR against the reference", None if reference is None else reference.scores.psnr_db, "{:.2f} dB"),
            ("SAM", reference.scores.spectral_angle_degrees if reference and self.has_angles else None, "{:.2f}°"),
            ("error against the HSI", hsi and 100 * hsi, "{:.3g} %"),
            ("error against the MSI", msi and 100 * msi, "{:.3g} %"),
            ("PSNR at reduced resolution", None if coarser is None else coarser.psnr_db, "{:.2f} dB"),
            ("expected error", self.relative_expected_error and 100 * self.relative_expected_error, "{:.3g} %"),
            ("HQNR", self.without_reference.hqnr, "{:.3f}"),
        ]
        return {name: form.format(value) for name, value, form in candidates if value is not None}

    @property
    def relative_expected_error(self) -> float | None:
        """Of the expected error and the fused values, both root mean square."""
        if self.expected_error is None:
            return None
        error, signal = (float(np.nanmean(np.square(each))) for each in (self.expected_error, self.part.fused_values))
        return math.sqrt(error / signal) if signal > 0 else None

    @property
    def relative_noise(self) -> float | None:
        """The HSI's noise over its signal, both root mean square."""
        values = self.part.hsi_values.astype(np.float64)
        signal = float(np.sqrt(np.nanmean(np.square(values)))) if np.isfinite(values).any() else 0.0
        return float(self.part.observation.hsi_noise.square().mean().sqrt()) / signal if signal > 0 else None

    def doubts(self) -> list[str]:
        """What speaks against the image, the most serious first."""
        hsi, msi = self.consistency.with_hsi.relative, self.consistency.with_msi.relative
        noise, coarser = self.relative_noise or 0.0, self.reduced_resolution.scores
        doubts = []
        if hsi is not None and hsi > max(LARGEST_HSI_ERROR, LARGEST_ERROR_OVER_NOISE * noise):
            doubts.append(f"degraded to the HSI's resolution, it differs from it by {100 * hsi:.2g} % of the signal")
        if msi is not None and msi > LARGEST_MSI_ERROR:
            doubts.append(f"seen through the MSI's SRF, it differs from the MSI by {100 * msi:.2g} % of the signal")
        if coarser is not None and coarser.psnr_db < coarser.bicubic_psnr_db + LEAST_GAIN_DB:
            gain = coarser.psnr_db - coarser.bicubic_psnr_db
            doubts.append(f"at reduced resolution it is only {gain:.1f} dB better than interpolation")
        if self.part.observation.confidence < LEAST_CONFIDENCE:
            doubts.append(f"how the pair was observed is uncertain (confidence {self.part.observation.confidence:.2f})")
        return doubts

    def verdict(self) -> str:
        """Whether the image can be trusted, and why, in one sentence."""
        doubts = self.doubts()
        if doubts:
            msi = self.consistency.with_msi.relative or 0.0
            is_serious = len(doubts) > 1 or msi > FAR_TOO_LARGE * LARGEST_MSI_ERROR
            return f"{'Do not trust' if is_serious else 'Be careful with'} this image: {_listed(doubts)}."
        inputs, coarser = self.consistency, self.reduced_resolution.scores
        errors = {"HSI": inputs.with_hsi.relative, "MSI": inputs.with_msi.relative}
        shares = [f"the {name} to {100 * error:.2g} %" for name, error in errors.items() if error is not None]
        reasons = [f"it reproduces {' and '.join(shares)} of the signal"] if shares else []
        if coarser is not None:
            gain = coarser.psnr_db - coarser.bicubic_psnr_db
            reasons.append(f"its method beats interpolation by {gain:.1f} dB at reduced resolution")
        if self.relative_expected_error is not None:
            reasons.append(f"its expected error is {100 * self.relative_expected_error:.2g} % of the signal")
        if not reasons:
            return "Whether this image can be trusted is unknown: there was nothing to compare."
        return f"This image can be trusted as far as its inputs can show: {_listed(reasons)}."

    def as_dict(self) -> dict[str, Any]:
        """The scores, ready for JSON: None instead of NaN and infinities."""
        part = self.part
        inputs = {"hsi": self.consistency.with_hsi, "msi": self.consistency.with_msi}
        scores = {
            "examined": {
                "rows": [part.rows.start, part.rows.stop],
                "columns": [part.columns.start, part.columns.stop],
                "bands": int(part.bands.size),
                "everything": part.is_everything,
            },
            "consistency": {
                name: {key: getattr(each, key) for key in ("rmse", "relative", "spectral_angle_degrees")}
                for name, each in inputs.items()
            },
            "without_reference": asdict(self.without_reference),
            "reduced_resolution": asdict(self.reduced_resolution),
            "reference": None if self.against_reference is None else self.against_reference.scores.as_dict(),
            "relative_expected_error": self.relative_expected_error,
            "verdict": self.verdict(),
            "notes": [*part.notes, *part.observation.notes],
        }
        record: dict[str, Any] = strict_json(scores)
        return record


def assess(
    part: ExaminedPart, recorded: Recorded, *, reference: xr.DataArray | None, method: str | None, weights: str | None
) -> QualityReport:
    """Score the examined part; `method` or `weights` replace what the record names for the reduced resolution."""
    fused, hsi, msi = (
        torch.from_numpy(np.ascontiguousarray(each)) for each in (part.fused_values, part.hsi_values, part.msi_values)
    )
    with progress("Assessing", total=5) as advance:
        agreement = consistency(fused, hsi, msi, part.observation)
        advance(1)
        scale = math.sqrt(math.prod(part.observation.scale))
        f, h, m = (each.double().numpy() for each in (fused, hsi, msi))
        scores = no_reference_scores(f, h, m, agreement.degraded, agreement.coarse_msi, scale)
        advance(1)
        name, fuse = _fusion_to_assess(part, recorded, method, weights)
        coarser = ReducedResolution(name, None, fuse) if isinstance(fuse, str) else _reduced(part, hsi, msi, name, fuse)
        advance(1)
        compared = None if reference is None else _against_reference(part, reference)
        advance(1)
        expected = _expected_error(part, recorded, hsi, msi)
        advance(1)
    return QualityReport(part, agreement, scores, coarser, compared, expected)


def _expected_error(part: ExaminedPart, recorded: Recorded, hsi: Tensor, msi: Tensor) -> NDArray[np.float32] | None:
    """That of `fuse --uncertainty`, where the image was made by a method that estimates it."""
    name = recorded.record.get("method", "")
    knows_error = name in METHODS and METHODS[name].uncertainty is not None
    if not knows_error or "weights" in recorded.record or recorded.config.consistency:
        return None
    weight = None if part.msi_weights is None else torch.from_numpy(part.msi_weights)
    window = Window(hsi, msi, part.observation, msi_weight=weight)
    error = MethodFuser(name, uncertainty=True).fuse_window(window).numpy()
    return np.where(np.isfinite(part.fused_values), error, np.float32(np.nan))


def _listed(parts: list[str]) -> str:
    """Join as in "a, b and c"."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _reduced(part: ExaminedPart, hsi: Tensor, msi: Tensor, name: str, fuse: Fuse) -> ReducedResolution:
    scores = assess_at_reduced_resolution(hsi, msi, part.observation, fuse)
    too_small = f"The HSI has {hsi.shape[1]}x{hsi.shape[2]} pixels here, too few for a reduced resolution."
    return ReducedResolution(name, scores, too_small if scores is None else None)


def _fusion_to_assess(
    part: ExaminedPart, recorded: Recorded, method: str | None, weights: str | None
) -> tuple[str, Fuse | str]:
    """Its name and the fusion itself, or the reason why there is none."""
    if method is not None and weights is not None:
        raise OptionError(f"method {method!r} and weights", "one of the two", "leave out --method or --weights")
    if weights is not None:
        return _fusion_by_network(part, recorded, weights)
    if method is None and "weights" in recorded.record:
        return "a network", "It was fused by a network; give its folder with --weights to assess it here."
    name = method or recorded.record.get("method")
    if name is None:
        return "unknown", "The file does not record what fused it; name a method with --method to assess it here."
    if name != AUTO and name not in METHODS:
        if method is not None:
            find_method(name)  # raises, naming the known ones
        return name, f"It was fused by {name}, which is unknown to this version."
    enforce = recorded.config.consistency and method is None
    return name, lambda hsi, msi, observation: fuse_arrays(hsi, msi, observation, name, enforce)


def _fusion_by_network(part: ExaminedPart, recorded: Recorded, weights: str) -> tuple[str, Fuse | str]:
    network = load_network(weights)
    digest = network.weights_digest or ""
    expected = recorded.record.get("weights", digest)
    if expected != digest:
        got = f"weights {digest[:12]} for an image that was fused with {expected[:12]}"
        raise OptionError(got, "the weights that fused it", "give their folder, or leave out --weights")
    name = f"the network {digest[:12]}"
    try:
        network.check_bands(len(part.hsi_values), len(part.msi_values))
    except BandError as error:
        return name, f"The network does not fit the remaining bands: {error.got}; expected {error.expected}."
    centres = part.wavelength_nm
    wavelength_nm = None if np.isnan(centres).any() else torch.from_numpy(centres)
    return name, lambda hsi, msi, observation: fuse_with_network(network, hsi, msi, observation, wavelength_nm)


def _against_reference(part: ExaminedPart, reference: xr.DataArray) -> AgainstReference:
    # Different grids are refused for the whole images, before anything is cut.
    plan_comparison(part.fused, reference, scale=None, peak=1.0, max_bytes=WINDOW_BYTES)
    window = (part.rows, part.columns)
    scale = math.sqrt(math.prod(part.observation.scale))
    scores = evaluate(window_of(part.fused, *window), window_of(reference, *window), scale=scale)
    values = physical_values(reference, *window, part.bands)
    fused, truth = part.fused_values.astype(np.float64), values.astype(np.float64)
    mask_incomparable(fused, truth)
    return AgainstReference(scores, values, pixel_rmse(fused, truth), spectral_angles_degrees(fused, truth))
