"""CNMF [1]_: both images unmixed together into non-negative endmembers and abundances, iteratively.

Shapes: C bands, M msi bands, K endmembers, n pixels, h w coarse, H W fine.

    hsi = E (A a)      msi = (R E) a      E >= 0 endmembers (C, K), a >= 0 abundances (K, H, W), R the SRF

References
----------
.. [1] N. Yokoya, T. Yairi and A. Iwasaki, "Coupled nonnegative matrix factorization unmixing for hyperspectral and
   multispectral data fusion", IEEE Trans. GRS 50(2), 2012.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from hyperfuse.methods.mixing import mixed_core
from hyperfuse.methods.window import FusedCore, SceneComputation, Window, scene_range, scene_statistic
from hyperfuse.physics.observation import mix_bands
from hyperfuse.physics.resample import upsample_bicubic

MOST_ENDMEMBERS = 12
# Rounds of unmixing both images in turns, and multiplicative updates of each in a round.
ROUNDS, COARSE_STEPS, FINE_STEPS = 3, 60, 30
# Abundances that start smooth have farther to go on the coarse grid than on the fine one: the slope found there is a
# little too low.
TRUST_FACTOR = 1.2
TINY = 1e-9


def cnmf(window: Window) -> SceneComputation[FusedCore]:
    """Alternate between unmixing the hsi (endmembers) and the msi (fine abundances) by multiplicative updates.

    Endmembers belong to the scene; given them, abundances follow pixel by pixel.
    """
    hsi, observation = window.hsi, window.observation
    spectra, fine = yield from _non_negative(window)
    operator = observation.spatial_operator(window.fine_size, window.coarse_size)
    srf = observation.srf.clamp_min(0).to(hsi)
    endmembers = yield from scene_statistic(
        lambda: window.coarse(spectra).flatten(1), lambda parts: pure_pixels(torch.cat(parts, dim=1), MOST_ENDMEMBERS)
    )
    even = torch.full((endmembers.shape[1], spectra[0].numel()), 1 / endmembers.shape[1], dtype=hsi.dtype)
    coarse = _update_abundances(spectra.flatten(1), endmembers, even, COARSE_STEPS).reshape(-1, *window.coarse_size)
    abundances = upsample_bicubic(coarse, window.fine_size, observation.placement).flatten(1).clamp_min(TINY)
    steps: list[Tensor] = []
    for _ in range(ROUNDS):
        abundances = _update_abundances(fine.flatten(1), srf @ endmembers, abundances, FINE_STEPS)
        coarse = operator.apply(abundances.reshape(-1, *window.fine_size)).clamp_min(TINY)
        pixels = partial(_core_pixels, window, spectra, coarse)
        steps = yield from scene_statistic(pixels, partial(_update_endmembers, start=endmembers))
        endmembers = steps[-1]
    abundances = _update_abundances(fine.flatten(1), srf @ endmembers, abundances, FINE_STEPS)
    # What unmixing leaves of the hsi is interpolated; detail that the coarse grid does not confirm is left out.
    trust = yield from _detail_trust(window, spectra, fine, coarse, steps, srf)
    fine_abundances, trusted = abundances.reshape(-1, *window.fine_size), trust[:, None] * endmembers
    smooth = hsi - mix_bands(trusted, operator.apply(fine_abundances))
    return mixed_core(window, smooth, trusted, window.fine(fine_abundances))


def _non_negative(window: Window) -> SceneComputation[tuple[Tensor, Tensor]]:
    """Both images, with an offset that makes negative reflectances positive and agrees with the SRF."""
    smallest, _ = yield from scene_range(lambda: window.coarse(window.hsi))
    offset = (-smallest).clamp_min(0) * 1.01
    msi_offset = window.observation.srf.to(offset) @ offset - window.observation.offset.to(offset)
    hsi, msi = window.hsi + offset[:, None, None], window.msi + msi_offset[:, None, None]
    return hsi.clamp_min(TINY), msi.clamp_min(TINY)


def _core_pixels(window: Window, *images: Tensor) -> tuple[Tensor, ...]:
    return tuple(window.coarse(image).flatten(1) for image in images)


def pure_pixels(spectra: Tensor, most: int) -> Tensor:
    """Select endmembers (C, K) from pixels (C, n) by successive projections: each the longest residual (ATGP)."""
    left = spectra.double().clone()
    selected: list[int] = []
    for _ in range(min(most, *spectra.shape)):
        lengths = left.square().sum(0)
        longest = int(lengths.argmax())
        if selected and float(lengths[longest]) < 1e-8 * float(spectra.double().square().sum(0).max()):
            break
        selected.append(longest)
        direction = left[:, longest] / lengths[longest].sqrt().clamp_min(1e-30)
        left = left - direction[:, None] * (direction @ left)
    return spectra[:, selected].clone()


def _update_abundances(observed: Tensor, endmembers: Tensor, abundances: Tensor, steps: int) -> Tensor:
    """Lee and Seung's multiplicative updates of abundances (K, n)."""
    gram, crossed = endmembers.T @ endmembers, endmembers.T @ observed
    for _ in range(steps):
        abundances = abundances * crossed / (gram @ abundances).clamp_min(TINY)
    return abundances


def _update_endmembers(parts: list[tuple[Tensor, ...]], start: Tensor) -> list[Tensor]:
    """The endmembers after each step; abundances of the coarse pixels are updated in turns with them."""
    observed, abundances = (torch.cat(values, dim=1) for values in zip(*parts, strict=True))
    endmembers, steps = start, []
    for _ in range(COARSE_STEPS):
        endmembers = endmembers * (observed @ abundances.T) / (endmembers @ (abundances @ abundances.T)).clamp_min(TINY)
        abundances = _update_abundances(observed, endmembers, abundances, 1)
        steps.append(endmembers)
    return steps


def _detail_trust(
    window: Window, spectra: Tensor, fine: Tensor, coarse: Tensor, steps: list[Tensor], srf: Tensor
) -> SceneComputation[Tensor]:
    """(C,) 0 to 1: how well the detail of each hsi band follows when smooth abundances see only the coarse msi."""

    def part() -> Tensor:
        abundances = coarse.flatten(1)
        for endmembers in steps:
            abundances = _update_abundances(spectra.flatten(1), endmembers, abundances, 1)
        operator = window.observation.spatial_operator(window.fine_size, window.coarse_size)
        coarse_abundances = abundances.reshape(-1, *window.coarse_size)
        interpolated = upsample_bicubic(coarse_abundances, window.fine_size, window.observation.placement)
        smooth = window.coarse(operator.apply(interpolated)).flatten(1).clamp_min(TINY)
        seen, true = window.coarse(operator.apply(fine)).flatten(1), window.coarse(spectra).flatten(1)
        sharpened = endmembers @ _update_abundances(seen, srf @ endmembers, smooth, (ROUNDS + 1) * FINE_STEPS)
        blurred = endmembers @ smooth
        gained, missed = (sharpened - blurred).double(), (true - blurred).double()
        return torch.stack([(gained * missed).sum(1), gained.square().sum(1)])

    crossed, energy = yield from scene_statistic(part, lambda parts: torch.stack(parts).sum(0))
    trust: Tensor = (TRUST_FACTOR * crossed / energy.clamp_min(1e-30)).clamp(0, 1).to(spectra)
    return trust
