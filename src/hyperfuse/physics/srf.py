"""The spectral response function (SRF): how the bands of an HSI add up to the bands of an MSI.

Shapes: C HSI bands, M MSI bands.

An MSI band sees  integral r(l) L(l) dl / integral r(l) dl  of the light L. The HSI knows L only through its bands, so
the integral becomes a sum over them,  weight_c = width_c * r_c,  normalised to sum 1, where

    width_c   the stretch of spectrum that band c stands for: half-way to its neighbours by wavelength, whatever the
              bands' order (overlapping detectors share it), but never across a gap such as the removed water bands;
    r_c       the SRF averaged over the band's own Gaussian where its FWHM is known, the SRF at its centre elsewhere.

An SRF narrower than two spacings could fall between the bands; for it each band is taken to be at least as wide as the
spacing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from hyperfuse.errors import BandError, OptionError
from hyperfuse.physics.observation import FWHM_PER_SIGMA
from hyperfuse.physics.srf_curves import (
    FloatArray,
    SRFCurve,
    choose_bands,
    choose_curves,
    is_srf_file,
    named_curves,
    read_srf_file,
)

# A band counts as covered when this share of its energy lies between the HSI's first and last band ...
SHARE_IN_RANGE = 0.9
# ... and this share where the HSI has bands: removed water bands may take a part of a wide band, not most of it.
SHARE_ON_BANDS = 0.5
# Curves of a file may extend far beyond the HSI (cameras without their infrared filter do, and the field truncates them
# at the HSI's last band): the peak and this share of the energy must be covered; below SHARE_IN_RANGE we warn.
SHARE_OF_FILES = 1 / 3
# Neighbours further apart than this many usual spacings have a gap between them: one removed band makes none, two do.
GAP_IN_SPACINGS = 2.5
# How many neighbours to each side define the usual spacing; sensors change theirs along the spectrum.
NEIGHBOURS = 5
# Stands for the width of the only band of an HSI whose FWHM is unknown.
LONE_BAND_NM = 1.0
# Samples of a band's Gaussian, in sigmas; their sum is normalised.
GAUSSIAN_NODES = np.linspace(-4.0, 4.0, 161)


@dataclass(frozen=True, eq=False)
class SRF:
    """M MSI bands as weighted means of C HSI bands.

    Parameters
    ----------
    names
        Of the MSI bands.
    weights
        (M, C); each row sums to 1.
    wavelength_nm, fwhm_nm
        (M,) centres and widths of the MSI bands; None or NaN where unknown.
    source
        Name of the sensor or file, for the record.
    uncovered
        Bands of the source that were dropped because the HSI does not cover them.
    kept
        Positions of the others in the source, where any was dropped.
    """

    names: tuple[str, ...]
    weights: FloatArray
    wavelength_nm: FloatArray | None = None
    fwhm_nm: FloatArray | None = None
    source: str = "given"
    uncovered: tuple[str, ...] = ()
    kept: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        msi_bands = len(self.names)
        if self.weights.ndim != 2 or self.weights.shape[0] != msi_bands or msi_bands == 0:
            got = f"SRF of shape {self.weights.shape} for {msi_bands} band names"
            raise BandError(got, "one row of weights per name")
        if not np.isfinite(self.weights).all() or np.abs(self.weights.sum(axis=1) - 1).max() > 1e-6:
            raise BandError("SRF whose rows do not sum to 1", "finite rows that sum to 1", "divide each row by its sum")
        for column in (self.wavelength_nm, self.fwhm_nm):
            if column is not None and column.shape != (msi_bands,):
                raise BandError(f"{column.size} wavelengths for {msi_bands} SRF bands", "one per band")

    def __repr__(self) -> str:
        return f"SRF({self.source}: {', '.join(self.names)} on {self.weights.shape[1]} bands)"


SRFSpec = str | Path | NDArray[Any] | SRF


def srf_for(cube: xr.DataArray, spec: SRFSpec, *, skip_uncovered: bool = False) -> SRF:
    """Find an SRF on the bands of a cube; see `find_srf`."""
    columns = (cube[name].values for name in ("wavelength", "fwhm", "good"))
    return find_srf(spec, *columns, skip_uncovered=skip_uncovered)


def find_srf(
    spec: SRFSpec,
    wavelength_nm: ArrayLike | None,
    fwhm_nm: ArrayLike | None = None,
    good: ArrayLike | None = None,
    *,
    skip_uncovered: bool = False,
) -> SRF:
    """Find the SRF of an MSI on the bands of an HSI.

    Parameters
    ----------
    spec
        A sensor or Gaussian set, with a choice of bands if wanted ("Sentinel-2A", "Landsat 8:B2,B3,B4", "rgb+nir"); a
        file of curves or with a matrix; a matrix (M, C); or an `SRF`.
    wavelength_nm
        (C,) band centres of the HSI; None or NaN where unknown, which is enough for a matrix.
    fwhm_nm
        (C,) band widths of the HSI.
    good
        (C,) False for bad bands, which get no weight.
    skip_uncovered
        Drop bands of the SRF that the HSI does not cover, instead of raising an error.

    Returns
    -------
    SRF
        With weights (M, C).

    Raises
    ------
    BandError
        The HSI does not cover a band, or shapes or wavelengths do not fit.
    OptionError
        An unknown sensor or band.
    CubeFileError
        A file that cannot be read.

    Examples
    --------
    >>> srf = find_srf("Sentinel-2A:B2,B3,B4", np.arange(400.0, 1001.0, 10.0))
    >>> srf.names, srf.weights.shape
    (('B2', 'B3', 'B4'), (3, 61))
    >>> find_srf(np.ones((1, 4)), None).weights
    array([[0.25, 0.25, 0.25, 0.25]])
    """
    wavelength, fwhm, usable = _band_columns(wavelength_nm, fwhm_nm, good)
    if isinstance(spec, SRF):
        return _on_good_bands(spec, usable)
    if isinstance(spec, np.ndarray):
        return _from_matrix(spec, wavelength, usable, "matrix", None)
    text, chosen = _split_choice(str(spec))
    path = Path(text)
    from_file = is_srf_file(path)
    source = path.name if from_file else text
    content = read_srf_file(path) if from_file else named_curves(text, chosen)
    if isinstance(content, np.ndarray):
        return _from_matrix(content, wavelength, usable, source, chosen)
    curves = choose_curves(content, chosen, source)
    layout = _require_layout(wavelength, fwhm, usable, source)
    return _from_curves(curves, layout, source, skip_uncovered=skip_uncovered, from_file=from_file)


def _split_choice(spec: str) -> tuple[str, list[str] | None]:
    """Split "NAME:B2,B3" into name and bands; a file whose name has a colon is no choice of bands."""
    if ":" not in spec or Path(spec).is_file():
        return spec, None
    name, _, choice = spec.rpartition(":")
    chosen = [band.strip() for band in choice.split(",") if band.strip()]
    if not chosen:
        expected = "a list of bands after the colon, such as :B2,B3,B4"
        raise OptionError(f"SRF {spec!r} with an empty choice of bands", expected)
    return name, chosen


def _band_columns(
    wavelength_nm: ArrayLike | None, fwhm_nm: ArrayLike | None, good: ArrayLike | None
) -> tuple[FloatArray | None, FloatArray | None, NDArray[np.bool_] | None]:
    """The three columns as arrays of one length; wavelengths that are all NaN count as unknown."""
    wavelength = None if wavelength_nm is None else np.asarray(wavelength_nm, dtype=np.float64)
    fwhm = None if fwhm_nm is None else np.asarray(fwhm_nm, dtype=np.float64)
    usable = None if good is None else np.asarray(good, dtype=bool)
    sizes = {column.size for column in (wavelength, fwhm, usable) if column is not None}
    if len(sizes) > 1:
        got = f"wavelength, fwhm and good lists of different lengths {sorted(sizes)}"
        raise BandError(got, "one entry per HSI band in each")
    if usable is None and sizes:
        usable = np.ones(sizes.pop(), dtype=bool)
    if wavelength is not None and np.isnan(wavelength).all():
        wavelength = None
    return wavelength, fwhm, usable


@dataclass(frozen=True, eq=False)
class BandLayout:
    """The usable bands of an HSI along the spectrum; (C,) columns in the HSI's order, NaN where unusable."""

    wavelength_nm: FloatArray
    fwhm_nm: FloatArray
    usable: NDArray[np.bool_]
    spacing_nm: FloatArray
    width_nm: FloatArray
    covered_nm: FloatArray  # (n, 2): the stretches of spectrum that the bands cover, sorted, without overlap

    @classmethod
    def of(cls, wavelength_nm: FloatArray, fwhm_nm: FloatArray, usable: NDArray[np.bool_]) -> BandLayout:
        indices = np.flatnonzero(usable)
        order = indices[np.argsort(wavelength_nm[indices], kind="stable")]
        centres, fwhm = wavelength_nm[order], np.where(fwhm_nm[order] > 0, fwhm_nm[order], np.nan)
        distances = np.diff(centres)
        spacing = _usual_spacing(distances, fwhm)

        def half_cells(distance: FloatArray) -> FloatArray:
            """Half-way to the neighbour on one side, or half the usual spacing at gaps and at the ends."""
            return np.where(distance <= GAP_IN_SPACINGS * spacing, distance, spacing) / 2

        def in_band_order(column: FloatArray) -> FloatArray:
            full = np.full(wavelength_nm.size, np.nan)
            full[order] = column
            return full

        below, above = half_cells(np.append(np.nan, distances)), half_cells(np.append(distances, np.nan))
        covered = np.stack([centres - np.fmax(below, fwhm / 2), centres + np.fmax(above, fwhm / 2)], axis=1)
        wavelength, fwhm, spacing, width = map(in_band_order, (centres, fwhm, spacing, below + above))
        return cls(wavelength, fwhm, usable, spacing, width, _merged(covered))

    def covers(self, wavelength_nm: FloatArray) -> NDArray[np.bool_]:
        stretch = np.searchsorted(self.covered_nm[:, 0], wavelength_nm, side="right") - 1
        return np.asarray((stretch >= 0) & (wavelength_nm <= self.covered_nm[stretch, 1]))

    def weights(self, curve: SRFCurve) -> FloatArray:
        """(C,) The weight of each HSI band in one MSI band, sum 1; all zero where no band sees the curve."""
        narrow = curve.fwhm_nm < 2 * self.spacing_nm
        fwhm = np.fmax(np.where(narrow, self.spacing_nm, 0.0), self.fwhm_nm)
        centres = np.where(self.usable, self.wavelength_nm, 0.0)
        positions = centres[:, None] + np.nan_to_num(fwhm / FWHM_PER_SIGMA)[:, None] * GAUSSIAN_NODES
        gaussian = np.exp(-0.5 * GAUSSIAN_NODES**2)
        seen = np.interp(positions, curve.wavelength_nm, curve.values, left=0.0, right=0.0) @ gaussian / gaussian.sum()
        weights = np.where(self.usable, seen * np.nan_to_num(self.width_nm), 0.0)
        total = weights.sum()
        return weights / total if total > 0 else np.zeros_like(weights)


def _usual_spacing(distances: FloatArray, fwhm: FloatArray) -> FloatArray:
    """The larger of the median spacings on both sides of a band, so that the edge of a detector is not a gap."""
    spacing = np.where(np.isnan(fwhm), LONE_BAND_NM, fwhm)
    for i in range(fwhm.size):
        sides = (distances[max(0, i - NEIGHBOURS) : i], distances[i : i + NEIGHBOURS])
        # Bands at the same wavelength do not define a spacing.
        medians = [float(np.median(side[side > 0])) for side in sides if (side > 0).any()]
        spacing[i] = max(medians, default=spacing[i])
    return spacing


def _merged(stretches: FloatArray) -> FloatArray:
    merged: list[list[float]] = []
    for start, end in stretches[np.argsort(stretches[:, 0], kind="stable")]:
        # Cells that touch may miss each other by a rounding error.
        if merged and start <= merged[-1][1] + 1e-6:
            merged[-1][1] = max(merged[-1][1], float(end))
        else:
            merged.append([float(start), float(end)])
    return np.array(merged)


def _require_layout(
    wavelength: FloatArray | None, fwhm: FloatArray | None, usable: NDArray[np.bool_] | None, source: str
) -> BandLayout:
    remedy = "add wavelengths to the reference, or give the SRF as a matrix of (MSI bands, HSI bands)"
    if wavelength is None or usable is None:
        raise BandError(f"SRF {source} on a cube whose wavelengths are unknown", "a wavelength for every band", remedy)
    if not usable.any():
        got = f"all {usable.size} bands are marked bad"
        raise BandError(got, "at least one good band", "correct the list of bad bands")
    unknown = np.flatnonzero(np.isnan(wavelength) & usable)
    if unknown.size:
        first = ", ".join(str(index + 1) for index in unknown[:5])
        got = f"{unknown.size} good bands without wavelength (first: {first})"
        raise BandError(got, "a wavelength for every good band", remedy)
    return BandLayout.of(wavelength, np.full(wavelength.shape, np.nan) if fwhm is None else fwhm, usable)


@dataclass(frozen=True, eq=False)
class _CoveredBand:
    """A curve and what the HSI covers of it: shares of its energy where there are bands, and between first and last."""

    curve: SRFCurve
    weights: FloatArray
    on_bands: float
    in_range: float
    covered_part: SRFCurve

    @classmethod
    def of(cls, curve: SRFCurve, layout: BandLayout) -> _CoveredBand:
        first, last = curve.wavelength_nm[0], curve.wavelength_nm[-1]
        dense = np.linspace(first, last, int(np.clip((last - first) / 0.25, 1000, 100_000)) + 1)
        values = np.interp(dense, curve.wavelength_nm, curve.values)
        covered, energy = layout.covers(dense), np.abs(values)
        in_range = (dense >= layout.covered_nm[0, 0]) & (dense <= layout.covered_nm[-1, 1])
        return cls(
            curve,
            layout.weights(curve),
            float(np.average(covered, weights=energy)),
            float(np.average(in_range, weights=energy)),
            SRFCurve(curve.name, dense, np.where(covered, values, 0.0)),
        )

    def is_covered(self, layout: BandLayout, *, from_file: bool) -> bool:
        if not self.weights.any():
            return False
        if from_file:
            peak = self.curve.values.argmax()
            return self.on_bands >= SHARE_OF_FILES and bool(layout.covers(self.curve.wavelength_nm)[peak])
        return self.in_range >= SHARE_IN_RANGE and self.on_bands >= SHARE_ON_BANDS


def _from_curves(
    curves: list[SRFCurve], layout: BandLayout, source: str, *, skip_uncovered: bool, from_file: bool
) -> SRF:
    bands = [_CoveredBand.of(curve, layout) for curve in curves]
    kept = [band for band in bands if band.is_covered(layout, from_file=from_file)]
    lost = [band for band in bands if band not in kept]
    if lost and not (skip_uncovered and kept):
        raise _uncovered_error(lost, layout, source, none_left=not kept)
    partly = [f"{band.curve.name} ({band.on_bands:.0%})" for band in kept if band.in_range < SHARE_IN_RANGE]
    if partly:
        note = f"the HSI covers only a part of SRF band {', '.join(partly)} of {source}; that part is used"
        warnings.warn(note, stacklevel=4)
    return SRF(
        names=tuple(band.curve.name for band in kept),
        weights=np.stack([band.weights for band in kept]),
        wavelength_nm=np.array([band.covered_part.centre_nm for band in kept]),
        fwhm_nm=np.array([band.covered_part.fwhm_nm for band in kept]),
        source=source,
        uncovered=tuple(band.curve.name for band in lost),
        kept=tuple(index for index, band in enumerate(bands) if band in kept) if lost else (),
    )


def _uncovered_error(lost: Sequence[_CoveredBand], layout: BandLayout, source: str, *, none_left: bool) -> BandError:
    names = []
    for band in lost:
        centre, half = band.curve.centre_nm, band.curve.fwhm_nm / 2
        names.append(f"{band.curve.name} ({centre - half:.0f}-{centre + half:.0f} nm, {band.on_bands:.0%} covered)")
    stretches = layout.covered_nm
    gaps = [f"{a:.0f}-{b:.0f}" for a, b in zip(stretches[:-1, 1], stretches[1:, 0], strict=True)]
    coverage = f"{stretches[0, 0]:.0f}-{stretches[-1, 1]:.0f} nm" + (f" without {', '.join(gaps)}" if gaps else "")
    remedy = "choose another SRF" if none_left else "drop such bands with --skip-uncovered, or name the others"
    got = f"the HSI ({coverage}) does not cover band {', '.join(names)} of {source}"
    return BandError(got, "bands that the HSI covers", remedy)


def _from_matrix(
    matrix: NDArray[Any],
    wavelength: FloatArray | None,
    usable: NDArray[np.bool_] | None,
    source: str,
    chosen: list[str] | None,
) -> SRF:
    weights = np.asarray(matrix, dtype=np.float64)
    if weights.ndim != 2 or 0 in weights.shape:
        raise BandError(f"SRF {source} of shape {weights.shape}", "a matrix (MSI bands, HSI bands)")
    hsi_bands = weights.shape[1] if usable is None else usable.size
    if weights.shape[1] != hsi_bands:
        weights = weights.T
    if weights.shape[1] != hsi_bands:
        got = f"SRF {source} of shape {matrix.shape} for an HSI of {hsi_bands} bands"
        raise BandError(got, f"one side of {hsi_bands}")
    names = [f"B{number}" for number in range(1, weights.shape[0] + 1)]
    rows = choose_bands(names, chosen, source)
    names = [names[row] for row in rows]
    weights = _normalised(weights[rows], names, usable, source)
    if wavelength is None or np.isnan(wavelength[weights.any(axis=0)]).any():
        return SRF(tuple(names), weights, source=source)
    return SRF(tuple(names), weights, weights @ np.nan_to_num(wavelength), source=source)


def _on_good_bands(srf: SRF, usable: NDArray[np.bool_] | None) -> SRF:
    if usable is None:
        return srf
    if srf.weights.shape[1] != usable.size:
        raise BandError(f"SRF for {srf.weights.shape[1]} HSI bands, HSI of {usable.size}", "the same number of bands")
    if not srf.weights[:, ~usable].any():
        return srf
    return replace(srf, weights=_normalised(srf.weights, srf.names, usable, srf.source))


def _normalised(weights: FloatArray, names: Sequence[str], usable: NDArray[np.bool_] | None, source: str) -> FloatArray:
    if not np.isfinite(weights).all():
        raise BandError(f"SRF {source} with NaN or infinite weights", "finite numbers")
    weights = weights if usable is None else np.where(usable, weights, 0.0)
    totals = weights.sum(axis=1, keepdims=True)
    empty = [name for name, total in zip(names, totals[:, 0], strict=True) if total <= 0]
    if empty:
        got = f"band {', '.join(empty)} of SRF {source} has no weight on any good HSI band"
        raise BandError(got, "weights of positive sum")
    return np.asarray(weights / totals)
