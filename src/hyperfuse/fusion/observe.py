"""An aligned pair -> how it was observed -> fused values, by a method or by a trained network.

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.errors import BandError, OptionError
from hyperfuse.fusion.network import fuse_with_network
from hyperfuse.fusion.pair import AlignedPair, require_possible_shift
from hyperfuse.fusion.sample import LARGEST_NOISE_SIDE, NOISE_COPIES, StreamedSamples, representative_window
from hyperfuse.io.cube import wavelengths_nm
from hyperfuse.methods.catalogue import AUTO, UNCERTAINTY
from hyperfuse.methods.injection import detail_halo
from hyperfuse.methods.run import FEWEST_COARSER_PIXELS, MOST_PIXELS, fuse_arrays, suited_method
from hyperfuse.methods.window import Window, fill_missing, mask_missing
from hyperfuse.models.baselines.catalogue import AnyNetwork
from hyperfuse.physics.estimate import KnownParts, estimate_from_samples, estimate_observation
from hyperfuse.physics.observation import Observation, default_sigma
from hyperfuse.physics.psf import sigma_from_fwhm
from hyperfuse.physics.srf import SRFSpec, srf_for


@dataclass(frozen=True)
class ObservationHints:
    """What the user knows of how the pair was observed; None is found by estimation, or assumed where that is switched
    off.
    """

    estimate: bool = True
    srf: SRFSpec | None = None
    psf_fwhm: float | None = None
    """Fine pixels."""
    shift: tuple[float, float] | None = None
    """(down, right) beyond the georeference, fine pixels."""


def observe(
    pair: AlignedPair, hsi: xr.DataArray, hints: ObservationHints, most_bytes: int | None = None
) -> Observation:
    """How the pair was observed, over its usable bands. With a limit to memory, a pair too large for it is read in
    parts.
    """
    if hints.psf_fwhm is not None and not 0 < hints.psf_fwhm < 1e4:
        raise OptionError(f"point spread of {hints.psf_fwhm} fine pixels", "a width above 0")
    if hints.shift is not None and hints.shift != pair.known_offset:
        require_possible_shift(hints.shift, (pair.fine_shape[1], pair.fine_shape[2]))
    sigma = None if hints.psf_fwhm is None else (sigma_from_fwhm(hints.psf_fwhm),) * 2
    known = KnownParts(
        sigma=sigma or (None if hints.estimate else default_sigma(pair.scale)),
        misregistration=hints.shift or (None if hints.estimate else (0.0, 0.0)),
        srf=None if hints.srf is None else _usable_srf(pair, hsi, hints.srf),
    )
    centres = wavelengths_nm(hsi)
    wavelength_nm = None if centres is None else centres[pair.usable_bands]
    if most_bytes is not None and _estimation_bytes(pair) > most_bytes:
        return estimate_from_samples(StreamedSamples.of(pair, most_bytes), wavelength_nm, known)
    return estimate_observation(
        _tensor(pair.hsi[pair.usable_bands]),
        _tensor(pair.msi),
        scale=pair.scale,
        grid_shift=pair.grid_shift,
        wavelength_nm=wavelength_nm,
        known=known,
    )


def _estimation_bytes(pair: AlignedPair) -> int:
    """Of an estimation that has the whole pair in memory: float32 twice, and noise from the middle in double precision."""
    (bands, *coarse), (msi_bands, *fine) = pair.coarse_shape, pair.fine_shape
    values = bands * math.prod(coarse) + msi_bands * math.prod(fine)
    in_the_middle = max(bands * math.prod(coarse), msi_bands * math.prod(fine))
    return 8 * values + NOISE_COPIES * 8 * min(in_the_middle, max(bands, msi_bands) * LARGEST_NOISE_SIDE**2)


def resolved_method(pair: AlignedPair, observation: Observation, method: str, most_bytes: int | None = None) -> str:
    """The name itself, or the one that `auto` stands for on this pair."""
    return suited_method(_judged_window(pair, observation, most_bytes)) if method == AUTO else method


def _judged_window(pair: AlignedPair, observation: Observation, most_bytes: int | None = None) -> Window:
    """On which methods are judged: the whole pair, or as much of it as memory allows."""
    (bands, *coarse), (msi_bands, *fine) = pair.coarse_shape, pair.fine_shape
    # Values as they were read, in double precision, and in the unit of the methods.
    if most_bytes is None or 24 * (bands * math.prod(coarse) + msi_bands * math.prod(fine)) <= most_bytes:
        return Window(_tensor(pair.hsi[pair.usable_bands]), _tensor(pair.msi), observation)
    bytes_of_pixel = 24 * (bands + msi_bands * math.prod(pair.scale))
    halo = detail_halo(observation)
    side = int(math.sqrt(most_bytes / bytes_of_pixel)) - 2 * halo
    return representative_window(pair, observation, max(FEWEST_COARSER_PIXELS, min(side, MOST_PIXELS)), halo)


def fuse_pair(
    pair: AlignedPair,
    observation: Observation,
    method: str,
    network: AnyNetwork | None = None,
    *,
    consistency: bool = False,
) -> NDArray[np.float32]:
    """(C, H, W) physical values, NaN where there is no data. Bands flagged bad or empty are only interpolated."""
    fused = np.empty((pair.hsi.shape[0], *pair.msi.shape[1:]), dtype=np.float32)
    usable, msi = pair.usable_bands, _tensor(pair.msi)
    good = _tensor(pair.hsi[usable])
    fused[usable] = (
        fuse_arrays(good, msi, observation, method, consistency)
        if network is None
        else _by_network(network, good, msi, observation, _usable_wavelengths(pair))
    ).numpy()
    if method == UNCERTAINTY:
        fused[~usable] = np.nan  # of bands that are only interpolated nothing is known
    elif not usable.all():
        fused[~usable] = _interpolated(_tensor(pair.hsi[~usable]), msi, observation).numpy()
    return fused


def _by_network(
    network: AnyNetwork, hsi: Tensor, msi: Tensor, observation: Observation, wavelength_nm: Tensor | None
) -> Tensor:
    fused = fuse_with_network(network, fill_missing(hsi), fill_missing(msi), observation, wavelength_nm)
    return mask_missing(fused, Window(hsi, msi, observation))


def _usable_wavelengths(pair: AlignedPair) -> Tensor | None:
    centres = wavelengths_nm(pair.hsi_source.cube)
    return None if centres is None else torch.from_numpy(centres[pair.usable_bands])


def _interpolated(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    if not bool(torch.isfinite(hsi).any()):
        return torch.full((hsi.shape[0], *msi.shape[1:]), torch.nan)
    blind = replace(
        observation,
        srf=torch.zeros(msi.shape[0], hsi.shape[0], dtype=torch.float64),
        hsi_noise=torch.zeros(hsi.shape[0], dtype=torch.float64),
    )
    return fuse_arrays(hsi, msi, blind, "bicubic")


def _usable_srf(pair: AlignedPair, hsi: xr.DataArray, spec: SRFSpec) -> Tensor:
    found = srf_for(hsi, spec)
    if len(found.names) != pair.fine_shape[0]:
        raise BandError(
            f"response {found.source} of {len(found.names)} bands for an MSI of {pair.fine_shape[0]}",
            "one response band per MSI band, in the same order",
            "name the MSI's own bands (Sentinel-2A:B2,B3,B4,B8) or leave --response out",
        )
    weights = found.weights[:, pair.usable_bands]
    return torch.from_numpy(weights / weights.sum(axis=1, keepdims=True))


def _tensor(values: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
