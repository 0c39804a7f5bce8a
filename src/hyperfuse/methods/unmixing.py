"""CNMF: both images unmixed together into non-negative endmembers and abundances (Yokoya, Yairi and Iwasaki 2012).

Shapes: C bands, M msi bands, K endmembers, h w coarse, H W fine.

    hsi = E (A a)      msi = (R E) a      E >= 0 endmembers (C, K), a >= 0 abundances (K, H, W)
"""

from __future__ import annotations

import torch
from torch import Tensor

from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.bicubic import upsample

MOST_ENDMEMBERS = 12
ROUNDS = 3
COARSE_STEPS = 60
FINE_STEPS = 30
TINY = 1e-9


def cnmf(hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
    """Alternates between unmixing the hsi (endmembers) and the msi (fine abundances) by multiplicative updates."""
    # Negative reflectances do not unmix: everything is lifted above zero first, consistently through the response.
    lift = (-hsi.amin((1, 2))).clamp_min(0) * 1.01
    spectra = (hsi + lift[:, None, None]).flatten(1).clamp_min(TINY)
    msi_lift = observation.response.to(lift) @ lift - observation.offset.to(lift)
    fine = (msi + msi_lift[:, None, None]).flatten(1).clamp_min(TINY)
    size, coarse_size = (msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2])
    operator = observation.spatial_operator(size, coarse_size)
    response = observation.response.clamp_min(0).to(hsi)
    endmembers = pure_pixels(spectra, min(MOST_ENDMEMBERS, hsi.shape[0], spectra.shape[1]))
    coarse = _abundances(spectra, endmembers)
    abundances = upsample(coarse.reshape(-1, *coarse_size), size, observation).flatten(1).clamp_min(TINY)
    for _ in range(ROUNDS):
        abundances = _update_abundances(fine, response @ endmembers, abundances, FINE_STEPS)
        coarse = operator.apply(abundances.reshape(-1, *size)).flatten(1).clamp_min(TINY)
        endmembers, coarse = _update_both(spectra, endmembers, coarse, COARSE_STEPS)
    abundances = _update_abundances(fine, response @ endmembers, abundances, FINE_STEPS)
    unmixed = (endmembers @ abundances).reshape(-1, *size)
    # What unmixing leaves of the hsi is given back by interpolation; detail that proved wrong on the coarse grid is left out.
    smooth_coarse = operator.apply(upsample(coarse.reshape(-1, *coarse_size), size, observation)).flatten(1).clamp_min(TINY)
    trust = _trust(spectra, operator.apply(fine.reshape(-1, *size)).flatten(1), endmembers, smooth_coarse, response)
    detail = unmixed - upsample(operator.apply(unmixed), size, observation)
    return upsample(hsi, size, observation) + trust[:, None, None] * detail


def _trust(spectra: Tensor, seen: Tensor, endmembers: Tensor, smooth: Tensor, response: Tensor) -> Tensor:
    """(C,) 0 to 1: how well the detail of each hsi band follows when smooth abundances are unmixed with the coarse msi alone."""
    sharpened = endmembers @ _update_abundances(seen, response @ endmembers, smooth, (ROUNDS + 1) * FINE_STEPS)
    blurred = endmembers @ smooth
    gained, wanted = (sharpened - blurred).double(), (spectra - blurred).double()
    slope = (gained * wanted).sum(1) / gained.square().sum(1).clamp_min(1e-30)
    # Abundances that start smooth on the coarse grid have further to go than on the fine one: a little more trust than the slope.
    return (1.2 * slope).clamp(0, 1).to(spectra)


def pure_pixels(spectra: Tensor, count: int) -> Tensor:
    """(C, K): pixels picked one by one, each the longest after projecting out the ones before (successive projections)."""
    left = spectra.double().clone()
    picked: list[int] = []
    for _ in range(count):
        lengths = left.square().sum(0)
        longest = int(lengths.argmax())
        if picked and float(lengths[longest]) < 1e-8 * float(spectra.double().square().sum(0).max()):
            break
        picked.append(longest)
        direction = left[:, longest] / lengths[longest].sqrt().clamp_min(1e-30)
        left = left - direction[:, None] * (direction @ left)
    return spectra[:, picked].clone()


def _abundances(spectra: Tensor, endmembers: Tensor) -> Tensor:
    """Non-negative abundances (K, n) that start from an even mixture."""
    start = torch.full((endmembers.shape[1], spectra.shape[1]), 1 / endmembers.shape[1], dtype=spectra.dtype)
    return _update_abundances(spectra, endmembers, start, COARSE_STEPS)


def _update_abundances(observed: Tensor, endmembers: Tensor, abundances: Tensor, steps: int) -> Tensor:
    """Lee and Seung's multiplicative updates; the products that stay the same are formed once."""
    gram, crossed = endmembers.T @ endmembers, endmembers.T @ observed
    for _ in range(steps):
        abundances = abundances * crossed / (gram @ abundances).clamp_min(TINY)
    return abundances


def _update_both(observed: Tensor, endmembers: Tensor, abundances: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    for _ in range(steps):
        endmembers = endmembers * (observed @ abundances.T) / (endmembers @ (abundances @ abundances.T)).clamp_min(TINY)
        abundances = abundances * (endmembers.T @ observed) / ((endmembers.T @ endmembers) @ abundances).clamp_min(TINY)
    return endmembers, abundances
