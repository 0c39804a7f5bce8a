"""The spectral angle (SAM): the angle between two spectra, per pixel, in degrees.

Shapes: fused, reference (band, y, x) as made by `pairing`; angles (y, x).
"""

from __future__ import annotations

import numpy as np

from hyperfuse.quality.pairing import Floats


def spectral_angles_degrees(fused: Floats, reference: Floats) -> Floats:
    """Angles over the bands a pixel has in both images, NaN where it has none.

    Kahan's form, 2 atan2(|u - v|, |u + v|) of the unit spectra, keeps full accuracy at small angles, where arccos of the cosine
    loses half the digits and gives identical spectra an angle. Two black pixels are alike (0 degrees); a black one has nothing in
    common with one that is not (cosine 0, 90 degrees).
    """
    fused_norm, reference_norm = _norms(fused), _norms(reference)
    fused_unit, reference_unit = _inverse(fused_norm), _inverse(reference_norm)
    difference, total = np.zeros(fused.shape[1:]), np.zeros(fused.shape[1:])
    for fused_band, reference_band in zip(fused, reference, strict=True):
        u, v = fused_band * fused_unit, reference_band * reference_unit
        difference += np.nan_to_num(np.square(u - v))
        total += np.nan_to_num(np.square(u + v))
    angles: Floats = np.degrees(2 * np.arctan2(np.sqrt(difference), np.sqrt(total)))
    angles[np.isnan(fused).all(axis=0)] = np.nan
    return angles


def angle_sum(fused: Floats, reference: Floats) -> tuple[float, int]:
    """Sum of the angles and number of pixels; they add up over windows."""
    angles = spectral_angles_degrees(fused, reference)
    counted = angles[np.isfinite(angles)]
    return float(counted.sum()), counted.size


def _norms(spectra: Floats) -> Floats:
    squared = np.zeros(spectra.shape[1:])
    for band in spectra:
        squared += np.nan_to_num(np.square(band))
    return np.sqrt(squared)


def _inverse(norm: Floats) -> Floats:
    inverse = np.zeros(norm.shape)
    inverse[norm > 0] = 1 / norm[norm > 0]
    return inverse
