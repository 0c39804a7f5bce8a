"""Band centres of data sets whose files do not hold them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

FIRST_SWIR_BAND_OF_HYPERION = 71
# Botswana's page lists the bands it kept. For HyRANK nobody does: the 196 calibrated bands of Hyperion without the 20 that are
# usually dropped for water (121-126, 167-180) are as many as HyRANK has.
BOTSWANA_BANDS = ((10, 55), (82, 97), (102, 119), (134, 164), (187, 220))
HYRANK_BANDS = ((8, 57), (79, 120), (127, 166), (181, 224))
# HYDICE disperses with a prism, so its spacing varies from 3 to 15 nm. Knots of the list that goes around with the Washington DC
# scene: number in an unbroken count of bands, centre in nm. The spline meets the whole list within 0.1 nm.
HYDICE_KNOTS = (
    (0, 401.3), (10, 435.9), (20, 475.9), (30, 524.6), (40, 586.4), (50, 666.7), (60, 770.4), (70, 897.3), (80, 1040.5),
    (90, 1189.6), (100, 1336.2), (101, 1350.6), (110, 1476.2), (120, 1608.2), (130, 1732.2), (150, 1958.6), (160, 2062.6),
    (170, 2161.4), (180, 2255.5), (190, 2345.3), (200, 2431.4), (205, 2473.2),
)  # fmt: skip
WASHINGTON_BANDS = ((0, 101), (106, 136), (148, 205))


def hyperion_centres(kept: Sequence[tuple[int, int]]) -> NDArray[np.float64]:
    """Centres of some ranges of Hyperion's bands, counted from 1: two spectrometers, each linear within 0.2 nm."""
    bands = _numbers(kept)
    visible = 355.59 + 10.1752 * (bands - 1)
    infrared = 851.92 + 10.0887 * (bands - FIRST_SWIR_BAND_OF_HYPERION)
    return np.where(bands < FIRST_SWIR_BAND_OF_HYPERION, visible, infrared)


def washington_centres() -> NDArray[np.float64]:
    numbers, centres = zip(*HYDICE_KNOTS, strict=True)
    return np.asarray(CubicSpline(numbers, centres)(_numbers(WASHINGTON_BANDS)), dtype=np.float64)


def _numbers(ranges: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(first, last + 1) for first, last in ranges])
