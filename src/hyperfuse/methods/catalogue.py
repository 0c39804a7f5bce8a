"""Every method by name, and any of them on tensors: a pair in, the fused image out, whatever units and missing pixels.

Shapes: C bands, M msi bands, h w coarse, H W fine. NaN marks missing pixels in either image and in the result.

To add a method, write a function from a `Window` to a generator that returns a function of a part of the core, which
gives the fused pixels (C, rows, columns), and enter it in `METHODS`. Around it, `fuse_window` fills missing pixels,
scales both images to values of about 1 and masks the result; `fusion` cuts large scenes into windows. The whole of a
method that modulates the interpolated hsi by the intensity of the msi relative to its mean over the scene:

    def intensity_modulation(window: Window) -> SceneComputation[FusedCore]:
        intensity = window.fine(window.msi).mean(0)
        mean = yield from scene_mean(lambda: (intensity.mean(), intensity.numel()))
        return lambda part: window.at(part).upsample_to_core(window.hsi) * (intensity[part] / mean)

    METHODS["modulation"] = Method(
        intensity_modulation,
        "the interpolated hsi times the intensity of the msi",
        "Author Year, Journal",
        halo=detail_halo,
    )

`yield from scene_...` is how a method asks for statistics of the whole scene (see `methods.window`). The contract that
every method must keep is tested in tests/methods/test_every_method.py.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hyperfuse.errors import BandError, OptionError, ValueRangeError
from hyperfuse.methods.cnmf import cnmf
from hyperfuse.methods.fuse import fuse, lift, local_fuse
from hyperfuse.methods.hysure import hysure, hysure_halo
from hyperfuse.methods.injection import bicubic, detail_halo, glp, gsa, sfim, twice_detail_halo
from hyperfuse.methods.missing import fill_pair
from hyperfuse.methods.mixing import MixedCore
from hyperfuse.methods.pair_model import fuse_halo, make_consistent, scene_level
from hyperfuse.methods.ssa import fuse_conditioned, fuse_refined, ssa, ssa_halo, ssa_residual, ssa_residual_halo
from hyperfuse.methods.universal import expected_error, fuse_guided, interpolation_error, universal, universal_halo
from hyperfuse.methods.window import (
    EVERYWHERE,
    FusedCore,
    SceneComputation,
    Window,
    gather_statistics,
    in_one_pass,
    mask_missing,
    run_on_scene,
    run_with_statistics,
    usable_msi_bands,
)
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import SSA
from hyperfuse.physics.estimate import NOTHING_KNOWN, KnownParts, estimate_observation
from hyperfuse.physics.observation import Observation, require_pair

log = logging.getLogger(__name__)

SceneFunction = Callable[[Window], SceneComputation[FusedCore]]


@dataclass(frozen=True)
class Method:
    """One entry of the catalogue. Memory was measured (docs/large_scenes.md): float32 images held at the same time."""

    function: SceneFunction  # fuses the core of a window without missing pixels
    description: str
    reference: str
    halo: Callable[[Observation], int]  # coarse pixels; those farther away change a pixel by less than a thousandth
    window_copies: float = 0.0  # images of all bands, as large as the window
    component_images: int = 0  # images of all components, near the core
    uncertainty: SceneFunction | None = None  # expected error of the fused core, with the same halo and memory
    learned: bool = False  # whether a network shaped the result, whose error the hsi then tells little about


METHODS: dict[str, Method] = {
    "bicubic": Method(
        bicubic,
        "interpolation of the hsi alone, at the true positions of the msi's pixels",
        "Keys 1981, IEEE Trans. ASSP 29(6)",
        halo=detail_halo,
    ),
    "sfim": Method(
        sfim,
        "SFIM: the interpolated hsi times the ratio of fine to blurred intensity",
        "Liu 2000, Int. J. Remote Sensing 21(18)",
        halo=detail_halo,
    ),
    "gsa": Method(
        gsa,
        "Gram-Schmidt adaptive: each msi band replaces its synthetic copy made of hsi bands",
        "Aiazzi, Baronti and Selva 2007, IEEE Trans. GRS 45(10)",
        halo=twice_detail_halo,
        component_images=3,
    ),
    "glp": Method(
        glp,
        "MTF-GLP: msi detail beyond the hsi's MTF, injected by regression",
        "Aiazzi, Alparone, Baronti, Garzelli and Selva 2006, Photogramm. Eng. Remote Sensing 72(5)",
        halo=detail_halo,
    ),
    "cnmf": Method(
        cnmf,
        "CNMF: both images unmixed together into non-negative endmembers and abundances",
        "Yokoya, Yairi and Iwasaki 2012, IEEE Trans. GRS 50(2)",
        halo=twice_detail_halo,
        component_images=3,
    ),
    "hysure": Method(
        hysure,
        "HySure: both images explained in the hsi's subspace under vector total variation",
        "Simoes, Bioucas-Dias, Almeida and Chanussot 2015, IEEE Trans. GRS 53(6)",
        halo=hysure_halo,
        component_images=12,
    ),
    "fuse": Method(
        fuse,
        "FUSE: maximum a posteriori in the hsi's subspace, solved exactly, with noise variances",
        "Wei, Dobigeon and Tourneret 2015, IEEE Trans. Image Processing 24(11)",
        halo=fuse_halo,
        component_images=5,
    ),
    "lift": Method(
        lift,
        "FUSE plus a regression of its error on random features of the msi",
        "random features: Rahimi and Recht 2007, NIPS",
        halo=fuse_halo,
        component_images=5,
    ),
    "local_fuse": Method(
        local_fuse,
        "FUSE with a prior that is regressed for every pixel over a neighbourhood that follows the image",
        "this project, docs/methods.md; after Wei et al. 2015",
        halo=fuse_halo,
        component_images=5,
    ),
    "ssa": Method(
        ssa,
        "SSA: the network with Matryoshka kernels and an implicit decoder, then made consistent with both images",
        "Liang, Cao, Deng, Yang and Zhang 2026; weights: this project, docs/model_card_ssa.md",
        halo=ssa_halo,
        window_copies=2.0,
        component_images=18,
    ),
    "ssa-residual": Method(
        ssa_residual,
        "universal, to which an SSA network over principal components adds a residual",
        "this project, docs/model_card_ssa.md; after Liang et al. 2026",
        halo=ssa_residual_halo,
        window_copies=2.0,
        component_images=24,
        learned=True,
    ),
    "universal": Method(
        universal,
        "local FUSE guided by a network that was trained across sensors: the default",
        "this project, docs/model_card.md",
        halo=universal_halo,
        component_images=7,
        uncertainty=expected_error,
        learned=True,
    ),
}
# Methods that can be run with other weights than those that ship.
OTHER_WEIGHTS: dict[str, Callable[..., SceneComputation[FusedCore]]] = {
    "universal": fuse_guided,
    "ssa": fuse_conditioned,
    "ssa-residual": fuse_refined,
}
AUTO = "auto"
DEFAULT = "universal"


def find_method(name: str) -> Method:
    """Look a method up by its name."""
    if name not in METHODS:
        raise OptionError(f"method {name!r}", f"one of {', '.join([AUTO, *METHODS])}", "see `hyperfuse methods`")
    return METHODS[name]


def fuse_arrays(
    hsi: Tensor,
    msi: Tensor,
    observation: Observation | KnownParts | None = None,
    method: str = DEFAULT,
    consistency: bool = False,
    uncertainty: bool = False,
) -> Tensor:
    """Fuse two images that cover the same ground.

    Parameters
    ----------
    hsi
        (C, h, w), coarse, with many bands.
    msi
        (M, H, W), fine, with few bands.
    observation
        Scale, PSF, SRF, noise. What it leaves open is estimated from the pair.
    method
        A name of `METHODS`, or "auto": the best one at reduced resolution.
    consistency
        Append a noise-weighted projection onto both images.
    uncertainty
        Return the expected error (a standard deviation) instead of the fused image.

    Returns
    -------
    Tensor
        (C, H, W) on the msi's grid, in the hsi's unit.

    Examples
    --------
    >>> from hyperfuse.physics.observation import known_observation
    >>> observation = known_observation(torch.full((1, 3), 1 / 3), scale=2.0)
    >>> fuse_arrays(torch.rand(3, 8, 8), torch.rand(1, 16, 16), observation, "glp").shape
    torch.Size([3, 16, 16])
    """
    require_pair(hsi, msi)
    if not bool(torch.isfinite(hsi).any()):
        raise ValueRangeError("an hsi without a single valid pixel", "pixels with data", "check its nodata value")
    if method != AUTO:
        find_method(method)
    if not isinstance(observation, Observation):
        observation = estimate_observation(hsi, msi, known=observation or NOTHING_KNOWN)
    expected = (msi.shape[0], hsi.shape[0])
    if tuple(observation.srf.shape) != expected or not bool(torch.isfinite(observation.srf).all()):
        finite = f"finite values of shape {expected}: one row per msi band, one column per hsi band"
        raise BandError(f"an SRF of shape {tuple(observation.srf.shape)}", finite)
    window = Window(hsi, msi, observation)
    name = suitable_method(window) if method == AUTO else method
    return MethodFuser(name, consistency, uncertainty=uncertainty).fuse_window(window)


def fuse_window(
    function: SceneFunction,
    window: Window,
    consistency: bool = False,
    without_msi: SceneFunction = bicubic,
    *,
    halo: int | None = None,
    learned: bool = False,
) -> SceneComputation[FusedCore]:
    """Fuse the core of a window by any function, which needs `halo`; by `without_msi` if the msi is constant."""
    pair = yield from prepare_pair(window, halo)
    if not pair.msi_varies:
        function, consistency = without_msi, False
    if consistency:
        everywhere = yield from function(pair.window.widened())
        fused = yield from make_consistent(everywhere(EVERYWHERE), pair.window, broad_prior=learned)
    else:
        fused = yield from function(pair.window)
    used, unit = replace(window, msi=window.msi[pair.msi_bands]), pair.hsi_unit
    if isinstance(fused, MixedCore):
        return fused.in_unit(unit, used)
    return lambda part: mask_missing(fused(part) * unit, used.at(part))


@dataclass(frozen=True)
class PreparedPair:
    window: Window
    hsi_unit: float
    msi_bands: Tensor
    msi_varies: bool


def prepare_pair(window: Window, halo: int | None = None) -> SceneComputation[PreparedPair]:
    """Fill missing pixels, drop empty and constant msi bands, and scale both images to float32 values of about 1.

    Of the window, `halo` coarse pixels around its core are kept: what holes needed lies beyond.
    """
    bands, msi_varies = yield from usable_msi_bands(window)
    observation = replace(
        window.observation,
        srf=window.observation.srf[bands],
        offset=window.observation.offset[bands],
        msi_noise=window.observation.msi_noise[bands],
    )
    filled = yield from fill_pair(replace(window, msi=window.msi[bands], observation=observation))
    filled = filled if halo is None else filled.near_core(halo).window(filled)
    hsi_unit, msi_unit = yield from in_one_pass(
        scene_level(filled.coarse(filled.hsi)), scene_level(filled.counted(filled.msi))
    )
    observation = replace(
        filled.observation,
        srf=filled.observation.srf * (hsi_unit / msi_unit),
        offset=filled.observation.offset / msi_unit,
        hsi_noise=filled.observation.hsi_noise / hsi_unit,
        msi_noise=filled.observation.msi_noise / msi_unit,
    )
    scaled = replace(
        filled, hsi=(filled.hsi / hsi_unit).float(), msi=(filled.msi / msi_unit).float(), observation=observation
    )
    return PreparedPair(scaled, hsi_unit, bands, msi_varies)


@dataclass(frozen=True)
class MethodFuser:
    """A method with the statistics of a scene. It is frozen, and can be sent to another process."""

    method: str
    consistency: bool = False
    network: PriorNetwork | SSA | None = None
    """Weights for a method of `OTHER_WEIGHTS` other than those that ship."""
    uncertainty: bool = False
    """Whether windows are the expected error of the method instead of its result."""
    statistics: tuple[Any, ...] | None = None
    """Of the scene; None where every window is a scene of its own."""

    @property
    def interpolates_bad_bands(self) -> bool:
        """Whether bands flagged bad are interpolated; otherwise nothing is known of them."""
        return not self.uncertainty

    def halo(self, observation: Observation) -> int:
        """Coarse pixels around the core of a window; consistency needs those of FUSE around the method's result."""
        own = find_method(self.method).halo(observation)
        return own + find_method("fuse").halo(observation) if self.consistency else own

    def fuse_window(self, window: Window) -> Tensor:
        """The core of a window (C, rows, columns) in the hsi's unit, NaN where there is no data."""
        return self.fused_core(window)(EVERYWHERE)

    def fused_core(self, window: Window) -> FusedCore:
        """The same, to be evaluated part by part."""
        steps = self._steps(window)
        return run_on_scene(steps) if self.statistics is None else run_with_statistics(steps, self.statistics)

    def gather(self, windows: Sequence[Callable[[], Window]], most_held: int | None = None) -> MethodFuser:
        """The same with the statistics of a scene, from some of its windows, all of which hold data."""
        return replace(self, statistics=gather_statistics(self._steps, windows, most_held))

    def _steps(self, window: Window) -> SceneComputation[FusedCore]:
        method = find_method(self.method)
        halo = self.halo(window.observation)
        if not self.uncertainty:
            other = self.network and partial(OTHER_WEIGHTS[self.method], network=self.network)
            return fuse_window(other or method.function, window, self.consistency, halo=halo, learned=method.learned)
        if method.uncertainty is None:
            known = ", ".join(name for name, each in METHODS.items() if each.uncertainty is not None)
            raise OptionError(f"uncertainty of {self.method!r}", f"one of {known}", "choose another method")
        return fuse_window(method.uncertainty, window, without_msi=interpolation_error, halo=halo)


# `auto`: another method must beat the default by MARGIN_DB, because the test is one scale coarser than the task; its
# errors leave out the worst IGNORED_SHARE of pixels, where the finer scale is neither won nor lost.
MARGIN_DB, IGNORED_SHARE = 1.0, 0.02
# Coarse pixels of the tested pair. With 15 to 64 of them the test was won by methods that lost up to 2.4 dB on the pair
# itself (15 pairs of training scenes); with 256 and more it never was (7 scenes).
FEWEST_TESTED = 200
FEWEST_COARSER_PIXELS = 5
SMALLEST_SCALE = 1.5
MOST_PIXELS = 128  # side of the coarse image that is tested on


def suitable_method(window: Window, among: Sequence[str] = ()) -> str:
    """The method that `auto` stands for on this pair: the default, or a better one of some or, by default, of all."""
    pair = run_on_scene(prepare_pair(window))
    if not pair.msi_varies:
        log.info("auto chose bicubic: the MSI is constant")
        return "bicubic"
    names = [DEFAULT, *among] if among else list(METHODS)
    sizes = zip(pair.window.coarse_size, pair.window.observation.scale, strict=True)
    tested = math.prod(min(MOST_PIXELS, size) / scale for size, scale in sizes)
    if tested < FEWEST_TESTED:
        reason = f"at reduced resolution the pair has {tested:.0f} HSI pixels, too few to compare methods"
        if not among:
            log.info(f"auto chose {DEFAULT}, the default: {reason}")
        return DEFAULT
    scores = scores_at_reduced_resolution(pair.window.hsi, pair.window.msi, pair.window.observation, names)
    best = max(scores, key=lambda name: scores[name], default=DEFAULT)
    chosen = best if scores and scores[best] > scores[DEFAULT] + MARGIN_DB else DEFAULT
    if not among:
        beside = DEFAULT if chosen != DEFAULT else max(scores.keys() - {DEFAULT}, key=lambda name: scores[name])
        shown = f"{scores[chosen]:.2f} dB at reduced resolution, {beside} {scores[beside]:.2f} dB"
        log.info(f"auto chose {chosen}: {shown}; another method than {DEFAULT} must gain {MARGIN_DB:g} dB")
    return chosen


def scores_at_reduced_resolution(
    hsi: Tensor, msi: Tensor, observation: Observation, names: Sequence[str] | None = None
) -> dict[str, float]:
    """PSNR in dB of some methods, or all, on the pair one scale coarser; empty where the hsi is too small for that."""
    reduced = at_reduced_resolution(hsi, msi, observation)
    if reduced is None:
        return {}
    window, reference = reduced
    peak = float(reference.abs().max().clamp_min(1e-30))
    scores = {}
    for name in METHODS if names is None else names:
        error = run_on_scene(METHODS[name].function(window))(EVERYWHERE) - reference
        per_pixel = error.double().square().mean(0).flatten().sort().values
        kept = per_pixel[: max(1, int(len(per_pixel) * (1 - IGNORED_SHARE)))]
        scores[name] = float(-10 * torch.log10(kept.mean() / peak**2 + 1e-30))
    return scores


def at_reduced_resolution(hsi: Tensor, msi: Tensor, observation: Observation) -> tuple[Window, Tensor] | None:
    """Degrade both images by the hsi's PSF, and return that pair and its reference: the hsi itself (Wald et al. 1997).

    The scale is smaller where the hsi has too few pixels.
    """
    coarse = observation.spatial_operator((msi.shape[1], msi.shape[2]), (hsi.shape[1], hsi.shape[2])).apply(msi)
    rows, columns = (slice(max(0, (size - MOST_PIXELS) // 2), (size + MOST_PIXELS) // 2) for size in hsi.shape[1:])
    reference, coarse = hsi[:, rows, columns], coarse[:, rows, columns]
    height, width = reference.shape[1:]
    coarser = [
        int(min(size / SMALLEST_SCALE, max(FEWEST_COARSER_PIXELS, round(size / scale))))
        for size, scale in zip((height, width), observation.scale, strict=True)
    ]
    if min(coarser) < FEWEST_COARSER_PIXELS:
        return None
    scale = (height / coarser[0], width / coarser[1])
    y, x = (new / old for new, old in zip(scale, observation.scale, strict=True))
    sigma, detector = ((own[0] * y, own[1] * x) for own in (observation.sigma, observation.detector))
    reduced = replace(observation, scale=scale, sigma=sigma, detector=detector, shift=(0.0, 0.0), grid_shift=(0.0, 0.0))
    operator = reduced.spatial_operator((height, width), (coarser[0], coarser[1]))
    noise_gain = operator.mean_noise_gain() ** 0.5
    reduced = replace(
        reduced, hsi_noise=observation.hsi_noise * noise_gain, msi_noise=observation.msi_noise * noise_gain
    )
    return Window(operator.apply(reference), coarse, reduced), reference
