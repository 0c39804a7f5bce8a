"""A fused image and the pair that it was made from -> the part of all three that a report looks at, in memory.

Scenes of any size cost the same: of a large one, the part is its middle. Shapes: C bands, M msi bands, h w coarse, H W
fine.

What a fused cube says about how it was made, read back into the choices that made it.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.errors import BandError, CubeFileError, GridError
from hyperfuse.fusion.observe import ObservationHints, observe
from hyperfuse.fusion.pair import AlignedPair, align_pair
from hyperfuse.fusion.register import moved, register_pair
from hyperfuse.fusion.request import HSI
from hyperfuse.io.cube import make_cube, physical_values, place_cube, window_of
from hyperfuse.io.grid import PIXEL_TOLERANCE, grid_of, parallel_placement
from hyperfuse.io.provenance import provenance_of
from hyperfuse.physics.observation import Observation
from hyperfuse.physics.srf import SRFSpec

# "psf_fwhm=4.0 shift=(0.0, 1.0) trust=hsi": a value ends where the next name begins.
OPTION = re.compile(r"(\w+)=(.*?)(?= \w+=|$)")


@dataclass(frozen=True)
class RecordedChoices:
    """What is not recorded is as it would be by default; `method` and `weights_digest` are None where nothing is known."""

    record: Mapping[str, str]
    method: str | None
    weights_digest: str | None
    estimate: bool
    srf: str | None
    psf_fwhm: float | None
    shift: tuple[float, float] | None
    trusts_hsi: bool
    local_shift: bool
    consistency: bool


def recorded_choices(fused: xr.DataArray) -> RecordedChoices:
    record = provenance_of({key: str(value) for key, value in fused.attrs.items()})
    options = dict(OPTION.findall(record.get("options", "")))
    width, shift = _literal(options.get("psf_fwhm")), _literal(options.get("shift"))
    return RecordedChoices(
        record=record,
        method=record.get("method"),
        weights_digest=record.get("weights"),
        estimate=options.get("estimate") != "False",
        srf=options.get("response"),
        psf_fwhm=width if isinstance(width, float) else None,
        shift=shift if isinstance(shift, tuple) else None,
        trusts_hsi=options.get("trust") == HSI,
        local_shift=options.get("local_shift") == "True",
        consistency=options.get("consistency") == "True",
    )


def _literal(text: str | None) -> float | tuple[float, float] | None:
    """A number or a pair of them; anything else was not written by us."""
    try:
        value = literal_eval(text or "")
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(each, int | float) for each in value):
        return float(value[0]), float(value[1])
    return None


# Of the fused part, and along a side of it.
MOST_VALUES = 40_000_000
LARGEST_SIDE = 1024
# Where the middle of a scene holds too little data, other parts are tried: shares of height and width.
CENTRES = ((0.5, 0.5), (0.25, 0.25), (0.75, 0.75), (0.25, 0.75), (0.75, 0.25))
ENOUGH_KNOWN = 0.7
SAME_BAND_NM = 0.05


@dataclass(frozen=True, eq=False)
class ExaminedPart:
    """Arrays are physical values of the same ground, NaN where there is no data."""

    fused: xr.DataArray
    """All of it, lazily."""
    rows: slice
    columns: slice
    """Where the part lies in it."""
    bands: NDArray[np.int64]
    """Which of its bands are looked at: good ones that the hsi has, too."""
    fused_values: NDArray[np.float32]  # (C, H, W)
    hsi_values: NDArray[np.float32]  # (C, h, w)
    msi_values: NDArray[np.float32]  # (M, H, W)
    msi_wavelength_nm: NDArray[np.float64]
    observation: Observation
    notes: tuple[str, ...]

    @property
    def is_everything(self) -> bool:
        return self.fused_values.shape[1:] == (self.fused.sizes["y"], self.fused.sizes["x"])

    @property
    def wavelength_nm(self) -> NDArray[np.float64]:
        centres: NDArray[np.float64] = self.fused["wavelength"].values[self.bands]
        return centres

    def as_cube(self, values: NDArray[np.float32]) -> xr.DataArray:
        """Values of the examined bands as a cube, for those that need to know its wavelengths."""
        return make_cube(values, wavelength_nm=self.wavelength_nm)

    def coarse_on_fine(self, coarse: NDArray[Any]) -> NDArray[Any]:
        """(..., h, w) -> (..., H, W), each fine pixel with the value of the coarse one that it lies in."""
        rows, columns = self.pixels_underneath()
        return coarse[..., rows, :][..., columns]

    def pixels_underneath(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Row and column of the hsi in which each fine row and column lies."""
        axes = zip(
            self.fused_values.shape[1:],
            self.hsi_values.shape[1:],
            self.observation.scale,
            self.observation.shift,
            strict=True,
        )
        rows, columns = (
            np.clip(np.floor((np.arange(fine) + 0.5 - shift) / scale + 1e-6).astype(np.int64), 0, coarse - 1)
            for fine, coarse, scale, shift in axes
        )
        return rows, columns


def examine(
    fused: xr.DataArray,
    hsi: xr.DataArray,
    msi: xr.DataArray,
    chosen: RecordedChoices,
    *,
    srf: SRFSpec | None = None,
    mask: xr.DataArray | None = None,
    hsi_mask: xr.DataArray | None = None,
) -> ExaminedPart:
    """Cut all three to the part that is looked at, and find how the pair was observed, as it was done for the fusion."""
    hsi = hsi.isel(band=_bands_of_fused(fused, hsi))
    fused, hsi, msi = _on_one_ground(fused, hsi, msi)
    top, left = _place_on_msi(fused, msi)
    rows, columns = _part(fused, top, left, msi)
    cut_msi = window_of(
        msi, *(slice(part.start + start, part.stop + start) for part, start in ((rows, top), (columns, left)))
    )
    pair = align_pair(
        hsi, cut_msi, mask=mask, hsi_mask=hsi_mask, known_offset=None if chosen.trusts_hsi else chosen.shift
    )
    rows, columns = (
        slice(part.start + cut.start, part.start + cut.stop)
        for part, cut in ((rows, pair.msi_source.rows), (columns, pair.msi_source.columns))
    )
    pair, observation, notes = _observed(pair, hsi, chosen, srf)
    bands = np.flatnonzero(pair.usable_bands & fused["good"].values)
    if bands.size == 0:
        raise BandError(
            "no band is good in the fused image and in the HSI", "at least one", "mend the bad-band list (bbl)"
        )
    among_usable = fused["good"].values[pair.usable_bands]
    observation = replace(
        observation, srf=observation.srf[:, among_usable], hsi_noise=observation.hsi_noise[among_usable]
    )
    msi_values = pair.msi
    if chosen.trusts_hsi:
        # The fused image was moved to where the hsi lies; so is the msi, for comparison.
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
    )


def _observed(
    pair: AlignedPair, hsi: xr.DataArray, chosen: RecordedChoices, srf: SRFSpec | None
) -> tuple[AlignedPair, Observation, tuple[str, ...]]:
    notes: tuple[str, ...] = ()
    hints = ObservationHints(chosen.estimate, srf or chosen.srf, chosen.psf_fwhm, chosen.shift)

    def seen(hints: ObservationHints) -> tuple[AlignedPair, Observation]:
        found = register_pair(
            pair, lambda each: observe(each, hsi, hints), local_shift=chosen.local_shift, look_further=False
        )
        return found.pair, found.observation

    try:
        found = seen(hints)
    except (BandError, CubeFileError):
        if srf is not None:
            raise
        notes = (
            f"the response {chosen.srf} that it was fused with cannot be had here and was estimated from the pair",
        )
        found = seen(replace(hints, srf=None))
    return *found, notes


def _bands_of_fused(fused: xr.DataArray, hsi: xr.DataArray) -> NDArray[np.int64]:
    """Which bands of the hsi the fused image has: all, or those of the same wavelengths."""
    count, hsi_count = fused.sizes["band"], hsi.sizes["band"]
    if count == hsi_count:
        return np.arange(count)
    centres, hsi_centres = fused["wavelength"].values, hsi["wavelength"].values
    apart = np.abs(centres[:, None] - hsi_centres)
    if (
        np.isnan(centres).any()
        or not np.isfinite(apart).any(axis=1).all()
        or np.nanmin(apart, axis=1).max() > SAME_BAND_NM
    ):
        raise BandError(
            f"a fused image of {count} bands and an HSI of {hsi_count}",
            "the HSI that it was made from: the same bands, or some of them at the same wavelengths",
            "check both with `hyperfuse info`",
        )
    nearest: NDArray[np.int64] = np.nanargmin(apart, axis=1)
    return nearest


def _on_one_ground(
    fused: xr.DataArray, hsi: xr.DataArray, msi: xr.DataArray
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """All georeferenced: an image that is not covers what the others do, and gets their ground."""
    same_size = fused.shape[1:] == msi.shape[1:]
    known_msi = grid_of(msi).transform or (grid_of(fused).transform if same_size else None)
    if known_msi is None and grid_of(hsi).transform is not None:
        known_msi = grid_of(hsi).transform @ Affine.scale(
            hsi.sizes["x"] / msi.sizes["x"], hsi.sizes["y"] / msi.sizes["y"]
        )
    of_msi = known_msi or Affine.scale(1, 1)
    of_fused = grid_of(fused).transform or (of_msi if same_size else None)
    if of_fused is None:
        raise GridError(
            f"a fused image of {fused.sizes['y']}x{fused.sizes['x']} pixels without georeference and an MSI of "
            f"{msi.sizes['y']}x{msi.sizes['x']}",
            "the same size, or a georeference that says where it lies",
            "give the MSI that it was made from",
        )
    of_hsi = grid_of(hsi).transform or of_msi @ Affine.scale(
        msi.sizes["x"] / hsi.sizes["x"], msi.sizes["y"] / hsi.sizes["y"]
    )
    return (
        place_cube(fused, None, of_fused, None),
        place_cube(hsi, None, of_hsi, None),
        place_cube(msi, None, of_msi, None),
    )


def _place_on_msi(fused: xr.DataArray, msi: xr.DataArray) -> tuple[int, int]:
    """Row and column of the msi at which the fused image begins."""
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


def _part(fused: xr.DataArray, top: int, left: int, msi: xr.DataArray) -> tuple[slice, slice]:
    """Rows and columns of the fused image that lie on the msi: all where that is little, else a part that holds data."""
    limits = [
        (max(0, -start), min(size, msi_size - start))
        for start, size, msi_size in zip((top, left), fused.shape[1:], msi.shape[1:], strict=True)
    ]
    if any(begin >= end for begin, end in limits):
        raise GridError(
            "a fused image that lies beside the MSI",
            "the MSI that it was made from",
            "check both with `hyperfuse info`",
        )
    side = max(64, min(LARGEST_SIDE, int((MOST_VALUES / fused.sizes["band"]) ** 0.5)))
    if all(end - begin <= side for begin, end in limits):
        return slice(*limits[0]), slice(*limits[1])
    best, most_known = None, -1.0
    for centre in CENTRES:
        rows, columns = (_around(share, side, *axis) for share, axis in zip(centre, limits, strict=True))
        band = int(np.flatnonzero(fused["good"].values)[0]) if fused["good"].values.any() else 0
        known = float(np.isfinite(physical_values(fused, rows, columns, [band])).mean())
        if known > most_known:
            best, most_known = (rows, columns), known
        if known >= ENOUGH_KNOWN:
            break
    assert best is not None
    return best


def _around(share: float, side: int, begin: int, end: int) -> slice:
    start = round(begin + share * (end - begin) - side / 2)
    start = max(begin, min(start, end - side))
    return slice(start, min(end, start + side))
