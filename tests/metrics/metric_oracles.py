"""The metrics as slow loops straight from their equations, sharing nothing with the code under test."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def comparable(fused: Any, reference: Any, valid: Any, b: int, y: int, x: int) -> bool:
    counted = valid is None or bool(np.broadcast_to(valid, fused.shape)[b, y, x])
    return counted and math.isfinite(fused[b, y, x]) and math.isfinite(reference[b, y, x])


def band_squared_errors(fused: Any, reference: Any, valid: Any = None) -> list[list[float]]:
    bands, height, width = fused.shape
    return [
        [
            (float(fused[b, y, x]) - float(reference[b, y, x])) ** 2
            for y in range(height)
            for x in range(width)
            if comparable(fused, reference, valid, b, y, x)
        ]
        for b in range(bands)
    ]


def psnr_db(fused: Any, reference: Any, peak: float, valid: Any = None) -> float:
    everything = [error for band in band_squared_errors(fused, reference, valid) for error in band]
    return 10 * math.log10(peak**2 / (math.fsum(everything) / len(everything)))


def mean_band_psnr_db(fused: Any, reference: Any, peak: float, valid: Any = None) -> float:
    bands = [
        10 * math.log10(peak**2 / (math.fsum(e) / len(e))) for e in band_squared_errors(fused, reference, valid) if e
    ]
    return math.fsum(bands) / len(bands)


def band_rmse(fused: Any, reference: Any, valid: Any = None) -> list[float]:
    return [math.sqrt(math.fsum(e) / len(e)) if e else math.nan for e in band_squared_errors(fused, reference, valid)]


def ergas(fused: Any, reference: Any, scale: float, valid: Any = None) -> float:
    _, height, width = fused.shape
    terms = []
    for b, squared in enumerate(band_squared_errors(fused, reference, valid)):
        wanted = [
            float(reference[b, y, x])
            for y in range(height)
            for x in range(width)
            if comparable(fused, reference, valid, b, y, x)
        ]
        if wanted and math.fsum(wanted) != 0:
            terms.append(math.fsum(squared) / len(squared) / (math.fsum(wanted) / len(wanted)) ** 2)
    return 100 / scale * math.sqrt(math.fsum(terms) / len(terms))


def spectral_angle_degrees(fused: Any, reference: Any, valid: Any = None) -> float:
    bands, height, width = fused.shape
    angles = []
    for y in range(height):
        for x in range(width):
            both = [
                (float(fused[b, y, x]), float(reference[b, y, x]))
                for b in range(bands)
                if comparable(fused, reference, valid, b, y, x)
            ]
            if both:
                angles.append(_angle(both))
    return math.fsum(angles) / len(angles)


def _angle(both: list[tuple[float, float]]) -> float:
    f = math.sqrt(math.fsum(a * a for a, _ in both))
    r = math.sqrt(math.fsum(b * b for _, b in both))
    if f == 0 and r == 0:
        return 0.0
    if f == 0 or r == 0:
        return 90.0
    cosine = math.fsum(a * b for a, b in both) / (f * r)
    return math.degrees(math.acos(min(1.0, max(-1.0, cosine))))


def band_local_index(fused: Any, reference: Any, c1: float, c2: float, valid: Any = None) -> list[float]:
    """SSIM per band with constants c1 and c2 (UQI for 0, 0): every window written out."""
    weights = np.array([[math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / 4.5) for j in range(11)] for i in range(11)])
    weights /= weights.sum()
    bands, height, width = fused.shape
    out = []
    for b in range(bands):
        scores = []
        for y in range(height - 10):
            for x in range(width - 10):
                if not all(comparable(fused, reference, valid, b, y + i, x + j) for i in range(11) for j in range(11)):
                    continue
                p, q = (np.asarray(a[b, y : y + 11, x : x + 11], dtype=float) for a in (fused, reference))
                mp, mq = (weights * p).sum(), (weights * q).sum()
                vp, vq = (weights * (p - mp) ** 2).sum(), (weights * (q - mq) ** 2).sum()
                cov = (weights * (p - mp) * (q - mq)).sum()
                scores.append((2 * mp * mq + c1) * (2 * cov + c2) / ((mp**2 + mq**2 + c1) * (vp + vq + c2)))
        out.append(math.fsum(scores) / len(scores) if scores else math.nan)
    return out


def hamilton(p: Any, q: Any) -> Any:
    """Hamilton's product of two quaternions, i j = k."""
    a, b, c, d = p
    e, f, g, h = q
    return np.array(
        [
            a * e - b * f - c * g - d * h,
            a * f + b * e + c * h - d * g,
            a * g - b * h + c * e + d * f,
            a * h + b * g - c * f + d * e,
        ]
    )


def q4_block(fused: Any, reference: Any) -> float:
    """Q4 of one block (4, y, x), quaternion by quaternion."""
    z, w = np.array(reference, dtype=float), np.array(fused, dtype=float)
    for b in range(4):
        mean, deviation = z[b].mean(), math.sqrt(((z[b] - z[b].mean()) ** 2).sum() / (z[b].size - 1))
        z[b], w[b] = (z[b] - mean) / deviation + 1, (w[b] - mean) / deviation + 1
    z, w = z.reshape(4, -1).T, w.reshape(4, -1).T
    zm, wm = z.mean(axis=0), w.mean(axis=0)
    covariance = np.zeros(4)
    variance = 0.0
    for p, q in zip(z, w, strict=True):
        dq = q - wm
        covariance += hamilton(p - zm, np.array([dq[0], -dq[1], -dq[2], -dq[3]]))
        variance += ((p - zm) ** 2).sum() + (dq**2).sum()
    brightness = 2 * math.sqrt((zm**2).sum() * (wm**2).sum()) / ((zm**2).sum() + (wm**2).sum())
    return float(2 * math.sqrt((covariance**2).sum()) / variance * brightness)
