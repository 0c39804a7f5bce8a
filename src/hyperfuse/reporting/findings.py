"""Everything that a report says of a fused image, as numbers and maps: with its reference where there is one, and
without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.errors import BandError, OptionError
from hyperfuse.fusion.network import fuse_with_network, load_network, require_fitting_bands
from hyperfuse.io.cube import physical_values, window_of
from hyperfuse.methods.catalogue import AUTO, METHODS, find_method
from hyperfuse.methods.run import fuse_arrays
from hyperfuse.metrics.evaluation import WINDOW_BYTES, Evaluation, evaluate
from hyperfuse.metrics.no_reference import (
    Consistency,
    Fuse,
    NoReferenceScores,
    OnceMoreScores,
    consistency,
    no_reference_scores,
    scored_at_reduced_resolution,
)
from hyperfuse.metrics.pairing import Floats, blank_incomparable, plan_comparison
from hyperfuse.metrics.sums import spectral_angles_degrees
from hyperfuse.physics.observation import Observation
from hyperfuse.progress import progress
from hyperfuse.reporting.examine import ExaminedPart, RecordedChoices


@dataclass(frozen=True, eq=False)
class AgainstReference:
    scores: Evaluation
    values: NDArray[np.float32]
    """(C, H, W) of the reference, the examined bands."""
    error_map: Floats
    angle_map: Floats


@dataclass(frozen=True)
class OnceMore:
    """Either scores of what fused the image, one scale coarser, or the sentence that says why there are none."""

    fused_by: str
    scores: OnceMoreScores | None
    why_not: str = ""


@dataclass(frozen=True, eq=False)
class QualityFindings:
    part: ExaminedPart
    consistency: Consistency
    without_reference: NoReferenceScores
    reduced_resolution: OnceMore
    against_reference: AgainstReference | None

    @property
    def has_angles(self) -> bool:
        """Spectra of one band all point the same way."""
        return self.part.bands.size > 1

    def as_dict(self) -> dict[str, Any]:
        """The figures, ready for JSON: no NaN, no infinities."""
        found: dict[str, Any] = {
            "examined": {
                "rows": [self.part.rows.start, self.part.rows.stop],
                "columns": [self.part.columns.start, self.part.columns.stop],
                "bands": int(self.part.bands.size),
                "everything": self.part.is_everything,
            },
            "consistency": {
                name: {
                    "rmse": each.rmse,
                    "relative": each.relative,
                    "spectral_angle_degrees": each.spectral_angle_degrees,
                }
                for name, each in (("hsi", self.consistency.with_hsi), ("msi", self.consistency.with_msi))
            },
            "without_reference": asdict(self.without_reference),
            "once_more": {
                "fused_by": self.reduced_resolution.fused_by,
                "scores": None if self.reduced_resolution.scores is None else asdict(self.reduced_resolution.scores),
                "why_not": self.reduced_resolution.why_not or None,
            },
            "reference": None if self.against_reference is None else self.against_reference.scores.as_dict(),
            "notes": [*self.part.notes, *self.part.observation.notes],
        }
        return {name: _finite(each) for name, each in found.items()}


def find_quality(
    part: ExaminedPart,
    chosen: RecordedChoices,
    *,
    reference: xr.DataArray | None,
    method: str | None,
    weights: str | None,
) -> QualityFindings:
    """`method` or `weights` name what to judge one scale coarser, where the fused image's record is not to be asked."""
    fused, hsi, msi = (_tensor(each) for each in (part.fused_values, part.hsi_values, part.msi_values))
    with progress("Judging", total=4) as advance:
        agreement = consistency(fused, hsi, msi, part.observation)
        advance(1)
        scores = no_reference_scores(
            fused.double().numpy(),
            hsi.double().numpy(),
            msi.double().numpy(),
            agreement.degraded,
            agreement.coarse_msi,
            math.sqrt(math.prod(part.observation.scale)),
        )
        advance(1)
        coarser = judge_at_reduced_resolution(part, hsi, msi, chosen, method, weights)
        advance(1)
        compared = None if reference is None else _against_reference(part, reference)
        advance(1)
    return QualityFindings(part, agreement, scores, coarser, compared)


def judge_at_reduced_resolution(
    part: ExaminedPart, hsi: Tensor, msi: Tensor, chosen: RecordedChoices, method: str | None, weights: str | None
) -> OnceMore:
    name, fuse, why_not = _fusion_to_judge(part, chosen, method, weights)
    if fuse is None:
        return OnceMore(name, None, why_not)
    scores = scored_at_reduced_resolution(hsi, msi, part.observation, fuse)
    if scores is None:
        size = f"{hsi.shape[1]}x{hsi.shape[2]}"
        return OnceMore(name, None, f"The hsi has {size} pixels here, too few to be degraded once more.")
    return OnceMore(name, scores)


def _fusion_to_judge(
    part: ExaminedPart, chosen: RecordedChoices, method: str | None, weights: str | None
) -> tuple[str, Fuse | None, str]:
    """Its name, the fusion itself, and where there is none, the reason."""
    if method is not None and weights is not None:
        raise OptionError(f"method {method!r} and weights", "one of the two", "leave out --method or --weights")
    if weights is not None:
        return _by_network(part, chosen, weights)
    if method is None and chosen.weights_digest is not None:
        return "a network", None, "It was fused by a network; give its folder with --weights to have it judged here."
    name = method or chosen.method
    if name is None:
        return (
            "unknown",
            None,
            "The file does not say what fused it; name a method with --method to have it judged here.",
        )
    if name != AUTO and name not in METHODS:
        if method is not None:
            find_method(name)  # says which there are
        return name, None, f"It was fused by {name}, which this version does not know."
    again = chosen.consistency and method is None

    def fuse(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
        return fuse_arrays(hsi, msi, observation, name, again)

    return name, fuse, ""


def _by_network(part: ExaminedPart, chosen: RecordedChoices, weights: str) -> tuple[str, Fuse | None, str]:
    network = load_network(weights)
    digest = network.weights_digest or ""
    if chosen.weights_digest is not None and chosen.weights_digest != digest:
        raise OptionError(
            f"weights {digest[:12]} for an image that was fused with {chosen.weights_digest[:12]}",
            "the weights that fused it",
            "give their folder, or leave out --weights",
        )
    name = f"the network {digest[:12]}"
    try:
        require_fitting_bands(network, part.hsi_values.shape[0], part.msi_values.shape[0])
    except BandError as error:
        return name, None, f"The network does not take the bands that are left: {error.got}; expected {error.expected}."
    centres = part.wavelength_nm
    wavelength_nm = None if np.isnan(centres).any() else torch.from_numpy(centres)

    def fuse(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
        return fuse_with_network(network, hsi, msi, observation, wavelength_nm)

    return name, fuse, ""


def _against_reference(part: ExaminedPart, reference: xr.DataArray) -> AgainstReference:
    # Refused as a whole where the grids differ, before anything is cut.
    plan_comparison(part.fused, reference, scale=None, peak=1.0, max_bytes=WINDOW_BYTES)
    window = (part.rows, part.columns)
    scores = evaluate(
        window_of(part.fused, *window), window_of(reference, *window), math.sqrt(math.prod(part.observation.scale))
    )
    values = physical_values(reference, *window, part.bands)
    fused, wanted = part.fused_values.astype(np.float64), values.astype(np.float64)
    known = blank_incomparable(fused, wanted).sum(axis=0)
    error_map: Floats = np.full(known.shape, np.nan)
    np.divide(np.nansum(np.square(fused - wanted), axis=0), known, out=error_map, where=known > 0)
    return AgainstReference(scores, values, np.sqrt(error_map), spectral_angles_degrees(fused, wanted))


def _tensor(values: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
