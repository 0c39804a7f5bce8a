"""The scene of `hyperfuse demo`: Indian Pines, a real AVIRIS image that travels inside tensorly's wheel."""

from __future__ import annotations

import numpy as np
import xarray as xr
from affine import Affine

from hyperfuse.cubes.cube import make_cube
from hyperfuse.errors import CubeFileError

BANDS_RECORDED = 220
# The 20 bands, counted from 1, that the corrected scene leaves out: water vapour, and the last one.
BANDS_REMOVED = {*range(104, 109), *range(150, 164), 220}
# The file has no wavelengths. Evenly spaced centres over the sensor's range put the removed bands onto the water bands.
FIRST_NM, LAST_NM = 400.0, 2500.0
FWHM_NM = 10.0
PIXEL_METRES = 20.0


def indian_pines() -> xr.DataArray:
    """145 x 145 pixels of 20 m, 200 bands, sensor counts; wavelengths approximate, position unknown."""
    try:
        from tensorly.datasets import load_indian_pines
    except ImportError as error:
        raise CubeFileError(
            "the demo scene is not installed", "tensorly, whose wheel carries it", "pip install 'hyperfuse[demo]'"
        ) from error
    counts = np.asarray(load_indian_pines()["tensor"]).transpose(2, 0, 1)
    centres = np.linspace(FIRST_NM, LAST_NM, BANDS_RECORDED)
    kept = [band - 1 for band in range(1, BANDS_RECORDED + 1) if band not in BANDS_REMOVED]
    return make_cube(
        counts.astype(np.uint16),
        wavelength_nm=centres[kept],
        fwhm_nm=FWHM_NM,
        transform=Affine(PIXEL_METRES, 0, 0, 0, -PIXEL_METRES, 0),
        attributes={"sensor": "AVIRIS", "scene": "Indian Pines"},
    )
