"""Imperfections of recorded pairs: what two sensors on two days do to a pair, and Wald's protocol does not.

`add_imperfection` makes a simulated pair imperfect in one of the ways of `IMPERFECTIONS` and returns the truth that an
estimation should find. Everything random is a function of seed, scene and kind. The reference stays in the frame of the
HSI: where the MSI is displaced, the fused image is to be compared with it in the HSI's frame (`trust="hsi"`).

Shapes: C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, map_coordinates

from hyperfuse.errors import OptionError
from hyperfuse.io.cube import physical_values
from hyperfuse.physics.observation import psf_matrix
from hyperfuse.physics.simulate import Simulation

Floats = NDArray[np.float64]

SHIFT = (1.7, -1.2)
BEND = 1.5  # fine pixels, the longest offset
SMOOTH_FIELD = 0.2  # width of smooth fields, as a share of the scene's longer side
GAIN, OFFSET = 0.35, 0.03
SHADOW, SHADOW_EDGE = 0.4, 1.5  # share of light that is left; width of the edge in fine pixels
BLOB = 0.04  # width of changed areas and shadows, as a share of the scene's longer side
HAZE = (0.12, 0.03)  # light that haze adds, in the band of the shortest and of the longest wavelength
OBJECT_SIDES = (2, 5)  # fine pixels
KEYSTONE = 0.25  # coarse pixels, at the first and (in the other direction) at the last band
SNR_DB = 30.0


@dataclass(frozen=True, eq=False)
class ImperfectPair:
    """A pair with an imperfection, and what is true of it. Lengths are in fine pixels, pairs (y, x)."""

    hsi: xr.DataArray
    msi: xr.DataArray
    sigma: float
    """Standard deviation of the PSF."""
    displacement: Floats
    """(2, H, W) What the reference shows at a pixel q, the MSI shows at q + displacement, as in an `OffsetField`."""
    disagreeing: NDArray[np.bool_]
    """(H, W) Where the MSI shows something else than the HSI, or the same in shadow."""
    msi_noise: Floats
    """(M,) Standard deviations."""

    @property
    def shift(self) -> tuple[float, float]:
        """The mean displacement, which an estimation finds as misregistration."""
        y, x = self.displacement.mean(axis=(1, 2))
        return float(y), float(x)


@dataclass(eq=False)
class _Pair:
    """Images in 0 to 1, which an imperfection replaces; missing pixels are filled."""

    reference: Floats
    hsi: Floats
    msi: Floats
    wavelength_nm: Floats
    """(M,), NaN where unknown."""
    scale: float
    random: np.random.Generator
    sigma: float
    displacement: Floats
    disagreeing: NDArray[np.bool_]
    msi_noise: Floats

    @property
    def size(self) -> tuple[int, int]:
        return self.msi.shape[1], self.msi.shape[2]

    def smooth_field(self, width: float) -> Floats:
        """(H, W) Random, with features of this width as a share of the longer side, within -1 to 1."""
        field = gaussian_filter(self.random.standard_normal(self.size), width * max(self.size), mode="reflect")
        field -= field.mean()
        return np.asarray(field / np.abs(field).max())

    def blobs(self, share: float) -> NDArray[np.bool_]:
        """(H, W) Irregular areas that take this share of the scene."""
        field = self.smooth_field(BLOB)
        return np.asarray(field > np.quantile(field, 1 - share))

    def displace(self, offsets: Floats) -> None:
        """Let the MSI show at q what was at q - offsets (2, H, W) before."""
        places = np.indices(self.size).astype(np.float64)
        self.msi = np.stack([map_coordinates(band, places - offsets, order=3, mode="nearest") for band in self.msi])
        for _ in range(10):  # a fixed point: offsets are given where the MSI is, but wanted where the reference is
            moved = places + self.displacement
            self.displacement = np.stack([map_coordinates(axis, moved, order=1, mode="nearest") for axis in offsets])

    def observe(self, rows: NDArray[np.float64], columns: NDArray[np.float64], band: int) -> None:
        """Record one band of the HSI anew by the matrices (h, H) and (w, W) of another PSF."""
        self.hsi[band] = rows @ self.reference[band] @ columns.T


def _gamma(pair: _Pair) -> None:
    pair.msi = _as_8_bit(np.clip(pair.msi, 0, 1) ** (1 / 2.2))


def _tone(pair: _Pair) -> None:
    low, high = np.quantile(pair.msi, (0.02, 0.98), axis=(1, 2), keepdims=True)
    pair.msi = _as_8_bit((pair.msi - low) / np.maximum(high - low, 1e-12))


def _as_8_bit(values: Floats) -> Floats:
    return np.asarray(np.round(255 * np.clip(values, 0, 1)) / 255)


def _shift(pair: _Pair) -> None:
    pair.displace(np.broadcast_to(np.array(SHIFT)[:, None, None], (2, *pair.size)))


def _bend(pair: _Pair) -> None:
    field = np.stack([pair.smooth_field(SMOOTH_FIELD), pair.smooth_field(SMOOTH_FIELD)])
    pair.displace(BEND * field / np.hypot(*field).max())


def _light(pair: _Pair) -> None:
    pair.msi = pair.msi * (1 + GAIN * pair.smooth_field(SMOOTH_FIELD)) + OFFSET


def _haze(pair: _Pair) -> None:
    density = 0.75 + 0.25 * pair.smooth_field(SMOOTH_FIELD)
    from_blue = np.argsort(pair.wavelength_nm, kind="stable")
    for band, added in zip(from_blue, np.linspace(*HAZE, len(from_blue)), strict=True):
        pair.msi[band] = pair.msi[band] * (1 - added * density) + added * density


def _change(share: float, pair: _Pair) -> None:
    """Half of the areas show another part of the scene, half a new material with a texture of its own."""
    pair.disagreeing = pair.blobs(share)
    spectrum = pair.random.permutation(np.quantile(pair.msi, (0.05, 0.95), axis=(1, 2)).ravel())[: len(pair.msi)]
    material = spectrum[:, None, None] * (1 + 0.1 * pair.random.standard_normal(pair.size))
    elsewhere = np.roll(pair.msi[:, ::-1, ::-1], [side // 3 for side in pair.size], axis=(1, 2))
    shown = np.where(pair.smooth_field(2 * BLOB) > 0, material, elsewhere)
    pair.msi = np.where(pair.disagreeing, np.clip(shown, 0, 1), pair.msi)


def _shadow(pair: _Pair) -> None:
    pair.disagreeing = pair.blobs(0.15)
    depth = gaussian_filter(pair.disagreeing.astype(np.float64), SHADOW_EDGE, mode="nearest")
    pair.msi = pair.msi * (1 - (1 - SHADOW) * depth)


def _objects(pair: _Pair) -> None:
    """Objects of a few pixels that take 1 % of the area: they have left when the HSI is recorded."""
    height, width = pair.size
    low, high = np.quantile(pair.msi, (0.02, 0.98), axis=(1, 2))
    while pair.disagreeing.mean() < 0.01:
        rows, columns = pair.random.integers(*OBJECT_SIDES, size=2, endpoint=True)
        top, left = pair.random.integers(0, [height - rows + 1, width - columns + 1])
        place = slice(top, top + rows), slice(left, left + columns)
        pair.msi[:, *place] = pair.random.uniform(low, high)[:, None, None]
        pair.disagreeing[place] = True


def _noise(pair: _Pair) -> None:
    pair.msi_noise = np.sqrt((pair.msi**2).mean(axis=(1, 2)) / 10 ** (SNR_DB / 10))
    pair.msi = pair.msi + pair.msi_noise[:, None, None] * pair.random.standard_normal(pair.msi.shape)


def _keystone(pair: _Pair) -> None:
    rows, columns = zip(pair.size, pair.hsi.shape[1:], strict=True)
    upright = psf_matrix(*rows, pair.scale, pair.sigma).numpy()
    for band, offset in enumerate(np.linspace(-KEYSTONE, KEYSTONE, len(pair.hsi)) * pair.scale):
        pair.observe(upright, psf_matrix(*columns, pair.scale, pair.sigma, offset).numpy(), band)


def _box_psf(pair: _Pair) -> None:
    rows, columns = (_box_matrix(*axis, pair.scale) for axis in zip(pair.size, pair.hsi.shape[1:], strict=True))
    for band in range(len(pair.hsi)):
        pair.observe(rows, columns, band)
    pair.sigma = pair.scale / np.sqrt(12)


def _box_matrix(fine_size: int, coarse_size: int, scale: float) -> Floats:
    """(h, H) Means over coarse pixels: the length that each fine pixel has in common with each coarse one."""
    first, fine = np.arange(coarse_size)[:, None] * scale, np.arange(fine_size)
    common = np.minimum(first + scale, fine + 1) - np.maximum(first, fine)
    return np.asarray(common.clip(min=0) / scale)


@dataclass(frozen=True)
class Imperfection:
    """One way in which a pair departs from Wald's protocol."""

    description: str
    apply: Callable[[_Pair], None]
    excludes: str = ""
    """What it decides alone, so that it goes with no other that does."""


PLACE, PSF = "where the MSI lies", "the PSF"
IMPERFECTIONS = {
    "gamma8": Imperfection("MSI in 8 bit with a gamma of 1/2.2, like a photo", _gamma),
    "tone8": Imperfection("MSI in 8 bit, each band stretched between its 2nd and 98th percentile", _tone),
    "shift": Imperfection("MSI shifted by 1.7 pixels down and 1.2 to the left", _shift, PLACE),
    "bend": Imperfection("MSI displaced by a smooth field of up to 1.5 pixels", _bend, PLACE),
    "light": Imperfection("MSI under other light: a smooth gain of +-35 % and an offset of 0.03", _light),
    "haze": Imperfection("MSI through haze: an offset of 0.12 in its bluest band, 0.03 in its reddest", _haze),
    "change": Imperfection("MSI of another date: 3 % of the area shows something else", partial(_change, 0.03)),
    "change10": Imperfection("MSI of another date: 10 % of the area shows something else", partial(_change, 0.1)),
    "shadow": Imperfection("MSI with 15 % of the area in shadow (x 0.4, soft edges)", _shadow),
    "objects": Imperfection("MSI with moving objects of 2 to 5 pixels on 1 % of the area", _objects),
    "noise": Imperfection("MSI with a signal-to-noise ratio of 30 dB", _noise),
    "keystone": Imperfection("HSI bands displaced against each other by up to half an HSI pixel", _keystone, PSF),
    "boxpsf": Imperfection("HSI pixels that are means over their area instead of a Gaussian PSF", _box_psf, PSF),
}


def find_imperfections(kind: str) -> list[Imperfection]:
    """The imperfections of names joined by `+`."""
    names = kind.split("+")
    if unknown := [name for name in names if name not in IMPERFECTIONS]:
        expected = f"some of {', '.join(IMPERFECTIONS)}; several at once as light+change"
        raise OptionError(f"imperfection {unknown[0]!r}", expected)
    found = [IMPERFECTIONS[name] for name in names]
    for part in (PLACE, PSF):
        if len(both := [name for name in names if IMPERFECTIONS[name].excludes == part]) > 1:
            raise OptionError(f"imperfections {' and '.join(both)} at once", f"one that decides {part}")
    return found


def describe_imperfections(condition: str) -> str:
    """What a condition of a benchmark does to a pair; empty for those that are no imperfections."""
    names = condition.split("+")
    if not set(names) <= IMPERFECTIONS.keys():
        return ""
    return IMPERFECTIONS[condition].description if len(names) == 1 else "all of these, one after the other"


def add_imperfection(simulated: Simulation, kind: str, seed: int = 0, scene: str = "") -> ImperfectPair:
    """Make a simulated pair with values in 0 to 1 imperfect.

    Parameters
    ----------
    simulated
        A pair of `simulate` without shift; pixels without data stay as they are.
    kind
        A name of `IMPERFECTIONS`, or several joined by `+`, which are applied in this order.
    seed, scene
        With the name of each kind they decide everything random.

    Examples
    --------
    >>> import hyperfuse
    >>> fine = np.random.default_rng(0).random((5, 32, 32)).cumsum(1) / 32
    >>> cube = hyperfuse.make_cube(fine, wavelength_nm=np.linspace(400, 800, 5))
    >>> pair = add_imperfection(hyperfuse.simulate(cube, scale=4, srf="rgb"), "shift")
    >>> [round(axis, 6) for axis in pair.shift]
    [1.7, -1.2]
    """
    imperfections = find_imperfections(kind)
    record = simulated.record
    cubes = simulated.reference, simulated.hsi, simulated.msi
    reference, hsi, msi = (_filled(physical_values(cube, dtype=np.float64)) for cube in cubes)
    size = msi.shape[1:]
    pair = _Pair(
        reference,
        hsi,
        msi,
        simulated.msi["wavelength"].values,
        record.scale,
        np.random.default_rng(),
        record.psf_sigma,
        np.zeros((2, *size)),
        np.zeros(size, dtype=bool),
        np.zeros(len(msi)),
    )
    for name, imperfection in zip(kind.split("+"), imperfections, strict=True):
        pair.random = np.random.default_rng([seed, *(zlib.crc32(text.encode()) for text in (scene, name))])
        imperfection.apply(pair)
    made = zip(cubes[1:], (pair.hsi, pair.msi), strict=True)
    hsi_cube, msi_cube = (
        cube.copy(data=np.where(np.isnan(cube), np.nan, values).astype(np.float32)) for cube, values in made
    )
    return ImperfectPair(hsi_cube, msi_cube, float(pair.sigma), pair.displacement, pair.disagreeing, pair.msi_noise)


def _filled(image: Floats) -> Floats:
    """Missing pixels replaced by the mean of their band."""
    missing = np.isnan(image)
    return np.where(missing, np.nanmean(image, axis=(1, 2), keepdims=True), image) if missing.any() else image
