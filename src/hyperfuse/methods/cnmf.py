"""CNMF: both images unmixed together into non-negative endmembers and abundances (Yokoya, Yairi and Iwasaki 2012).

Shapes: C bands, M msi bands, K endmembers, h w coarse, H W fine.

    hsi = E (A a)      msi = (R E) a      E >= 0 endmembers (C, K), a >= 0 abundances (K, H, W)
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hyperfuse.methods.scene_stats import SceneComputation, scene_range, scene_statistic
from hyperfuse.methods.window import Window
from hyperfuse.physics.resample import upsample_bicubic

MOST_ENDMEMBERS = 12
ROUNDS = 3
COARSE_STEPS = 60
FINE_STEPS = 30
TINY = 1e-9


def cnmf(window: Window) -> SceneComputation[Tensor]:
    """Alternates between unmixing the hsi (endmembers) and the msi (fine abundances) by multiplicative updates.

    Endmembers belong to the scene; given them, abundances follow pixel by pixel.
    """
    hsi, observation = window.hsi, window.observation
    spectra, fine = yield from _lifted_above_zero(window)
    operator = observation.spatial_operator(window.fine_size, window.coarse_size)
    srf = observation.srf.clamp_min(0).to(hsi)
    endmembers = yield from scene_statistic(lambda: window.coarse(spectra).flatten(1), _pure_pixels_of_all)
    coarse = _abundances(spectra.flatten(1), endmembers).reshape(-1, *window.coarse_size)
    abundances = upsample_bicubic(coarse, window.fine_size, observation.placement).flatten(1).clamp_min(TINY)
    steps: list[Tensor] = []
    for _ in range(ROUNDS):
        abundances = _update_abundances(fine.flatten(1), srf @ endmembers, abundances, FINE_STEPS)
        coarse = operator.apply(abundances.reshape(-1, *window.fine_size)).clamp_min(TINY)
        share = partial(_learning_pixels, window, spectra, coarse)
        steps = yield from scene_statistic(share, partial(_updated_endmembers, start=endmembers))
        endmembers = steps[-1]
    abundances = _update_abundances(fine.flatten(1), srf @ endmembers, abundances, FINE_STEPS)
    unmixed = (endmembers @ abundances).reshape(-1, *window.fine_size)
    # What unmixing leaves of the hsi is given back by interpolation; detail that proved wrong on the coarse grid is
    # left out.
    trust = yield from _trust(window, spectra, fine, coarse, steps, srf)
    detail = window.fine(unmixed) - window.upsample_to_core(operator.apply(unmixed))
    return window.upsample_to_core(hsi) + trust[:, None, None] * detail


def _lifted_above_zero(window: Window) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Both images; negative reflectances do not unmix, so everything is lifted first, consistently through the
    response.
    """
    lowest, _ = yield from scene_range(lambda: window.coarse(window.hsi))
    lift = (-lowest).clamp_min(0) * 1.01
    msi_lift = window.observation.srf.to(lift) @ lift - window.observation.offset.to(lift)
    return (window.hsi + lift[:, None, None]).clamp_min(TINY), (window.msi + msi_lift[:, None, None]).clamp_min(TINY)


def _learning_pixels(window: Window, spectra: Tensor, coarse: Tensor) -> tuple[Tensor, Tensor]:
    return window.coarse(spectra).flatten(1), window.coarse(coarse).flatten(1)


def _updated_endmembers(shares: list[tuple[Tensor, Tensor]], start: Tensor) -> list[Tensor]:
    """The endmembers after each of the steps that update them and the abundances of all learning pixels in turns."""
    observed, abundances = (torch.cat(parts, dim=1) for parts in zip(*shares, strict=True))
    endmembers, steps = start, []
    for _ in range(COARSE_STEPS):
        endmembers = endmembers * (observed @ abundances.T) / (endmembers @ (abundances @ abundances.T)).clamp_min(TINY)
        abundances = _next_abundances(observed, endmembers, abundances)
        steps.append(endmembers)
    return steps


def _trust(
    window: Window, spectra: Tensor, fine: Tensor, coarse: Tensor, steps: list[Tensor], srf: Tensor
) -> SceneComputation[Tensor]:
    """(C,) 0 to 1: how well the detail of each hsi band follows when smooth abundances are unmixed with the coarse msi
    alone.
    """

    def share() -> Tensor:
        abundances = coarse.flatten(1)
        for endmembers in steps:
            abundances = _next_abundances(spectra.flatten(1), endmembers, abundances)
        operator = window.observation.spatial_operator(window.fine_size, window.coarse_size)
        interpolated = upsample_bicubic(
            abundances.reshape(-1, *window.coarse_size), window.fine_size, window.observation.placement
        )
        smooth = window.coarse(operator.apply(interpolated)).flatten(1).clamp_min(TINY)
        seen, wanted = window.coarse(operator.apply(fine)).flatten(1), window.coarse(spectra).flatten(1)
        sharpened = endmembers @ _update_abundances(seen, srf @ endmembers, smooth, (ROUNDS + 1) * FINE_STEPS)
        blurred = endmembers @ smooth
        gained, missed = (sharpened - blurred).double(), (wanted - blurred).double()
        return torch.stack([(gained * missed).sum(1), gained.square().sum(1)])

    crossed, energy = yield from scene_statistic(share, _summed)
    # Abundances that start smooth on the coarse grid have further to go than on the fine one: a little more trust than
    # the slope.
    trust: Tensor = (1.2 * crossed / energy.clamp_min(1e-30)).clamp(0, 1).to(spectra)
    return trust


def _summed(shares: list[Tensor]) -> Tensor:
    return torch.stack(shares).sum(0)


def _pure_pixels_of_all(shares: list[Tensor]) -> Tensor:
    spectra = torch.cat(shares, dim=1)
    return pure_pixels(spectra, min(MOST_ENDMEMBERS, *spectra.shape))


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


def _next_abundances(observed: Tensor, endmembers: Tensor, abundances: Tensor) -> Tensor:
    return abundances * (endmembers.T @ observed) / ((endmembers.T @ endmembers) @ abundances).clamp_min(TINY)
