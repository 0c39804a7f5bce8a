"""How a pair was observed: everything that a method needs to know about the two sensors, and how sure we are of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.errors import BandError, GridError
from hyperfuse.physics.operators import SpatialOperator, sigma_from_fwhm
from hyperfuse.physics.resample import Placement


@dataclass(frozen=True)
class Observation:
    """hsi = A(x) + noise, msi = response x + offset + noise. Pairs of numbers are (y, x), lengths in fine pixels.

    `shift` is where the coarse image truly looks, counted as in `point_spread.py` from grids that share their top left
    corner; `grid_shift` is the part of it that the georeference already says, so `misregistration` is what was found
    beyond that.
    """

    scale: tuple[float, float]
    sigma: tuple[float, float]
    shift: tuple[float, float]
    srf: Tensor  # (M, C) float64
    offset: Tensor  # (M,)
    hsi_noise: Tensor  # (C,) standard deviation
    msi_noise: Tensor  # (M,) standard deviation
    grid_shift: tuple[float, float] = (0.0, 0.0)
    confidence: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def misregistration(self) -> tuple[float, float]:
        return self.shift[0] - self.grid_shift[0], self.shift[1] - self.grid_shift[1]

    @property
    def placement(self) -> Placement:
        """Where the fine pixels lie on the coarse grid."""
        return Placement.from_scale(self.scale, self.shift)

    def spatial_operator(self, fine_size: tuple[int, int], coarse_size: tuple[int, int]) -> SpatialOperator:
        return SpatialOperator.from_psf(fine_size, coarse_size, self.scale, self.sigma, self.shift)

    def in_window(self, coarse_start: tuple[int, int], fine_start: tuple[int, int]) -> Observation:
        """The same for a window of the pair (a tile) that begins at these rows and columns of the hsi and of the msi."""
        moves = [
            coarse * scale - fine for coarse, scale, fine in zip(coarse_start, self.scale, fine_start, strict=True)
        ]
        return replace(
            self,
            shift=(self.shift[0] + moves[0], self.shift[1] + moves[1]),
            grid_shift=(self.grid_shift[0] + moves[0], self.grid_shift[1] + moves[1]),
        )

    def summary(self) -> dict[str, object]:
        """The same as plain numbers and lists, for reports and JSON."""
        return {
            "scale": list(self.scale),
            "sigma": list(self.sigma),
            "misregistration": list(self.misregistration),
            "grid_shift": list(self.grid_shift),
            "response": self.srf.tolist(),
            "offset": self.offset.tolist(),
            "hsi_noise": self.hsi_noise.tolist(),
            "msi_noise": self.msi_noise.tolist(),
            "confidence": self.confidence,
            "notes": list(self.notes),
        }


def known_observation(
    srf: Tensor,
    scale: float | tuple[float, float],
    sigma: float | tuple[float, float] | None = None,
    shift: float | tuple[float, float] = 0.0,
    hsi_noise: float | Tensor = 0.0,
    msi_noise: float | Tensor = 0.0,
) -> Observation:
    """An observation that is simply stated. Without a sigma the point spread is one coarse pixel wide at half its
    maximum.
    """
    if srf.ndim != 2:
        raise BandError(f"response of shape {tuple(srf.shape)}", "one row per msi band, one column per hsi band")
    srf = srf.detach().double()
    msi_bands, bands = srf.shape
    scale = as_pair(scale)
    return Observation(
        scale=scale,
        sigma=default_sigma(scale) if sigma is None else as_pair(sigma),
        shift=as_pair(shift),
        srf=srf,
        offset=torch.zeros(msi_bands, dtype=torch.float64),
        hsi_noise=torch.as_tensor(hsi_noise, dtype=torch.float64).expand(bands),
        msi_noise=torch.as_tensor(msi_noise, dtype=torch.float64).expand(msi_bands),
        grid_shift=as_pair(shift),
    )


def default_sigma(scale: tuple[float, float]) -> tuple[float, float]:
    return sigma_from_fwhm(scale[0]), sigma_from_fwhm(scale[1])


def as_pair(value: float | tuple[float, float]) -> tuple[float, float]:
    return (float(value[0]), float(value[1])) if isinstance(value, tuple) else (float(value), float(value))


def require_pair(hsi: Tensor, msi: Tensor) -> None:
    """Refuse what cannot be a pair, with words."""
    for name, image in (("hsi", hsi), ("msi", msi)):
        if image.ndim != 3 or 0 in image.shape:
            raise GridError(f"{name} of shape {tuple(image.shape)}", "three axes (band, y, x), none of them empty")
    if msi.shape[1] < hsi.shape[1] or msi.shape[2] < hsi.shape[2]:
        raise GridError(
            f"hsi of {hsi.shape[1]}x{hsi.shape[2]} pixels and msi of {msi.shape[1]}x{msi.shape[2]}",
            "an msi with at least as many rows and columns as the hsi",
            "give the coarse hsi first and the fine msi second",
        )
