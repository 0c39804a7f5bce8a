"""How a pair was observed: everything that a method needs to know about the two sensors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hyperfuse.errors import BandError, GridError
from hyperfuse.physics.operators import FWHM_PER_SIGMA, SpatialOperator, sigma_from_fwhm
from hyperfuse.physics.resample import Placement


@dataclass(frozen=True)
class Observation:
    """The parameters of hsi = A(x) + noise, msi = SRF x + offset + noise.

    Pairs of numbers are (y, x), lengths in fine pixels.

    Parameters
    ----------
    scale
        Fine pixels per coarse pixel.
    sigma
        Standard deviation of the Gaussian PSF.
    shift
        True shift of the coarse image, counted from grids that share their top left corner (see
        `hyperfuse.physics.resample`).
    srf
        (M, C) float64.
    offset
        (M,) constant offset of the msi bands.
    hsi_noise, msi_noise
        (C,) and (M,) standard deviations.
    grid_shift
        The part of `shift` that the georeference accounts for; `misregistration` is the rest.
    confidence
        0 to 1.
    notes
        What could not be estimated, and why.

    Examples
    --------
    >>> observation = known_observation(torch.full((1, 5), 0.2), scale=4.0, shift=(1.0, 0.0))
    >>> observation.spatial_operator((32, 32), (8, 8)).apply(torch.ones(5, 32, 32)).shape
    torch.Size([5, 8, 8])
    """

    scale: tuple[float, float]
    sigma: tuple[float, float]
    shift: tuple[float, float]
    srf: Tensor
    offset: Tensor
    hsi_noise: Tensor
    msi_noise: Tensor
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
        """Make the operator A for images of these sizes."""
        return SpatialOperator.from_psf(fine_size, coarse_size, self.scale, self.sigma, self.shift)

    def in_window(self, coarse_start: tuple[int, int], fine_start: tuple[int, int]) -> Observation:
        """Return the observation of a window (a tile) that begins at these pixels of the hsi and of the msi."""
        y, x = (coarse * scale - fine for coarse, scale, fine in zip(coarse_start, self.scale, fine_start, strict=True))
        shift, grid_shift = ((pair[0] + y, pair[1] + x) for pair in (self.shift, self.grid_shift))
        return replace(self, shift=shift, grid_shift=grid_shift)

    def __repr__(self) -> str:
        fwhm = (width * FWHM_PER_SIGMA for width in self.sigma)
        return (
            f"Observation(scale {self.scale[0]:.4g} {self.scale[1]:.4g}, PSF FWHM {' '.join(f'{w:.3g}' for w in fwhm)} "
            f"and shift {self.misregistration[0]:+.2f} {self.misregistration[1]:+.2f} fine pixels (y x), "
            f"{self.srf.shape[1]} hsi and {self.srf.shape[0]} msi bands, confidence {self.confidence:.2f})"
        )

    def summary(self) -> dict[str, object]:
        """Return the same as plain numbers and lists, for reports and JSON; "response" is the SRF."""
        pairs = {name: list(getattr(self, name)) for name in ("scale", "sigma", "misregistration", "grid_shift")}
        tensors = {name: getattr(self, name).tolist() for name in ("offset", "hsi_noise", "msi_noise")}
        others = {"confidence": self.confidence, "notes": list(self.notes)}
        return {**pairs, "response": self.srf.tolist(), **tensors, **others}


def known_observation(
    srf: Tensor,
    scale: float | tuple[float, float],
    sigma: float | tuple[float, float] | None = None,
    shift: float | tuple[float, float] = 0.0,
    hsi_noise: float | Tensor = 0.0,
    msi_noise: float | Tensor = 0.0,
) -> Observation:
    """Make an observation of known parameters; without a sigma the PSF has a FWHM of one coarse pixel."""
    if srf.ndim != 2:
        raise BandError(f"SRF of shape {tuple(srf.shape)}", "one row per msi band, one column per hsi band")
    srf = srf.detach().double()
    msi_bands, bands = srf.shape
    scale, shift = as_pair(scale), as_pair(shift)
    return Observation(
        scale=scale,
        sigma=default_sigma(scale) if sigma is None else as_pair(sigma),
        shift=shift,
        srf=srf,
        offset=torch.zeros(msi_bands, dtype=torch.float64),
        hsi_noise=torch.as_tensor(hsi_noise, dtype=torch.float64).expand(bands),
        msi_noise=torch.as_tensor(msi_noise, dtype=torch.float64).expand(msi_bands),
        grid_shift=shift,
    )


def default_sigma(scale: tuple[float, float]) -> tuple[float, float]:
    """Sigma of a PSF whose FWHM is one coarse pixel."""
    return sigma_from_fwhm(scale[0]), sigma_from_fwhm(scale[1])


def as_pair(value: float | tuple[float, float]) -> tuple[float, float]:
    return (float(value[0]), float(value[1])) if isinstance(value, tuple) else (float(value), float(value))


def require_pair(hsi: Tensor, msi: Tensor) -> None:
    """Raise `GridError` for tensors that cannot be a pair."""
    for name, image in (("hsi", hsi), ("msi", msi)):
        if image.ndim != 3 or 0 in image.shape:
            raise GridError(f"{name} of shape {tuple(image.shape)}", "three axes (band, y, x), none of them empty")
    if msi.shape[1] < hsi.shape[1] or msi.shape[2] < hsi.shape[2]:
        got = f"hsi of {hsi.shape[1]}x{hsi.shape[2]} pixels and msi of {msi.shape[1]}x{msi.shape[2]}"
        expected = "an msi with at least as many rows and columns as the hsi"
        raise GridError(got, expected, "give the coarse hsi first and the fine msi second")
