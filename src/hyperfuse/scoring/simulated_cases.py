"""Pairs that are made of a reference by Wald's protocol.

The point spread is a Gaussian with a full width at half maximum of one coarse pixel; the reference is cropped to whole coarse
pixels. A scene without wavelengths is given evenly spaced ones to make the msi; the competitors do not learn them.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import make_cube
from hyperfuse.degradation.exact_scale import exact_scale, largest_crop
from hyperfuse.degradation.response import response_for
from hyperfuse.degradation.simulation import Simulation, simulate_pair
from hyperfuse.errors import BandError, OptionError
from hyperfuse.estimation.observation import Observation, known_observation
from hyperfuse.scoring.case import CasePair, Condition
from hyperfuse.scoring.scene_choice import ScoredScene

# Where a scene's wavelengths are unknown.
ASSUMED_NM = (400.0, 2500.0)
SMALLEST_COARSE_SIDE = 2


def reference_cube(scored: ScoredScene) -> xr.DataArray:
    """The scored part of a scene in 0 to 1, with wavelengths, assumed ones where it has none."""
    scene = scored.scene
    centres = np.linspace(*ASSUMED_NM, scene.bands) if scene.wavelength_nm is None else scene.wavelength_nm
    return make_cube(scored.values, wavelength_nm=centres, fwhm_nm=scene.fwhm_nm)


def covers(reference: xr.DataArray, response: str) -> bool:
    """Whether the scene has the bands that the response needs; a response that does not exist at all is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            response_for(reference, response)
        except BandError:
            return False
    return True


def has_room(size: tuple[int, int], scale: float) -> bool:
    """Whether an image of this size makes at least 2x2 whole coarse pixels."""
    try:
        return min(largest_crop(size, exact_scale(scale)).coarse_size) >= SMALLEST_COARSE_SIDE
    except OptionError:
        return False


def simulated_case(scored: ScoredScene, response: str, scale: float, condition: Condition, seed: int = 0) -> CasePair:
    reference = reference_cube(scored)
    hsi_db, msi_db = condition.noise_db or (None, None)
    with warnings.catch_warnings():
        # The protocol itself says that scenes are cropped, and that of a camera's curve the covered part counts.
        warnings.simplefilter("ignore")
        made = simulate_pair(reference, scale, response, shift=condition.shift, snr_hsi_db=hsi_db, snr_msi_db=msi_db, seed=seed)
    known = scored.scene.wavelength_nm is not None
    hsi, msi, fine = (cube if known else make_cube(cube.values) for cube in (made.hsi, made.msi, made.reference))
    return CasePair(hsi, msi, fine, _cropped(scored.valid, fine), _truth(made), made.record.scale)


def _truth(made: Simulation) -> Observation:
    record = made.record
    return known_observation(
        torch.from_numpy(record.find_response().weights),
        record.scale,
        sigma=record.psf_sigma,
        shift=record.shift,
        hsi_noise=torch.tensor(record.noise_sigma_hsi or 0.0),
        msi_noise=torch.tensor(record.noise_sigma_msi or 0.0),
    )


def _cropped(valid: NDArray[np.bool_] | None, reference: xr.DataArray) -> NDArray[np.bool_] | None:
    return None if valid is None else valid[: reference.sizes["y"], : reference.sizes["x"]]
