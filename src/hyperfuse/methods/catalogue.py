"""Every method by name, with one line and its reference: closed forms, and the one that ships with weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hyperfuse.errors import OptionError
from hyperfuse.methods.cnmf import cnmf
from hyperfuse.methods.fuse import fuse, fuse_halo, lift, local_fuse
from hyperfuse.methods.hysure import hysure, hysure_halo
from hyperfuse.methods.injection import bicubic, detail_halo, detail_halo_twice, glp, gsa, sfim
from hyperfuse.methods.scene_stats import SceneComputation, run_on_scene
from hyperfuse.methods.universal import expected_error, interpolation_error, universal, universal_halo
from hyperfuse.methods.window import Window
from hyperfuse.physics.observation import Observation


@dataclass(frozen=True)
class Footprint:
    """How far a method looks, and what it holds at the same time (as measured; see `prediction/memory.py`)."""

    halo: Callable[[Observation], int]
    """How many coarse pixels around itself a fused pixel depends on; farther ones change it by less than a thousandth.
    """
    core_copies: float = 2.2
    """Images of all bands, as large as the core of a window."""
    window_copies: float = 0.0
    """Images of all bands, as large as the window."""
    component_images: int = 0
    """Images of all components, near the core."""


@dataclass(frozen=True)
class Method:
    """Works on images without holes. `over_scene(window)` fuses the core of a window and asks for what belongs to the
    scene.
    """

    over_scene: Callable[[Window], SceneComputation[Tensor]]
    footprint: Footprint
    line: str
    reference: str
    without_msi: Callable[[Window], SceneComputation[Tensor]] = bicubic
    """What takes its place where the msi is constant."""

    def function(self, hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
        """hsi (C, h, w), msi (M, H, W) -> (C, H, W), where the pair is the whole scene."""
        return run_on_scene(self.over_scene(Window(hsi, msi, observation)))


INTERPOLATION = Footprint(detail_halo, core_copies=2.5)
RATIOS = Footprint(detail_halo, core_copies=6.0)
ALL_BANDS_TWICE = Footprint(detail_halo_twice, core_copies=1.0, window_copies=5.0, component_images=3)
CONDITIONING = Footprint(fuse_halo, component_images=5)
VARIATION = Footprint(hysure_halo, component_images=12)
GUIDED = Footprint(universal_halo, component_images=16)

METHODS: dict[str, Method] = {
    "bicubic": Method(
        bicubic,
        INTERPOLATION,
        "interpolation of the hsi alone, where the msi's pixels truly lie",
        "Keys 1981, IEEE Trans. ASSP 29(6)",
    ),
    "sfim": Method(
        sfim,
        RATIOS,
        "the interpolated hsi times the ratio of fine to blurred intensity",
        "Liu 2000, Int. J. Remote Sensing 21(18)",
    ),
    "gsa": Method(
        gsa,
        ALL_BANDS_TWICE,
        "each msi band replaces its imitation made of hsi bands",
        "Aiazzi, Baronti and Selva 2007, IEEE Trans. GRS 45(10)",
    ),
    "glp": Method(
        glp,
        INTERPOLATION,
        "msi detail beyond the hsi's point spread, injected by regression",
        "Aiazzi, Alparone, Baronti, Garzelli and Selva 2006, Photogramm. Eng. Remote Sensing 72(5)",
    ),
    "cnmf": Method(
        cnmf,
        ALL_BANDS_TWICE,
        "both images unmixed together into non-negative endmembers and abundances",
        "Yokoya, Yairi and Iwasaki 2012, IEEE Trans. GRS 50(2)",
    ),
    "hysure": Method(
        hysure,
        VARIATION,
        "both images explained in the hsi's subspace under total variation",
        "Simoes, Bioucas-Dias, Almeida and Chanussot 2015, IEEE Trans. GRS 53(6)",
    ),
    "fuse": Method(
        fuse,
        CONDITIONING,
        "most probable image in the hsi's subspace, exact solution with noise variances",
        "Wei, Dobigeon and Tourneret 2015, IEEE Trans. Image Processing 24(11)",
    ),
    "lift": Method(
        lift,
        CONDITIONING,
        "FUSE plus what random features of the msi explain of its error",
        "random features: Rahimi and Recht 2007, NIPS",
    ),
    "local_fuse": Method(
        local_fuse,
        CONDITIONING,
        "FUSE whose prior is regressed anew for every pixel over a neighbourhood that follows the image",
        "this project, docs/methods.md; after Wei et al. 2015",
    ),
    "universal": Method(
        universal,
        GUIDED,
        "local FUSE guided by a network that was trained across sensors: the default",
        "this project, docs/model_card.md",
    ),
}
AUTO = "auto"
DEFAULT = "universal"
# No method to fuse by: it answers with a standard deviation instead of a value, and is asked for by `--uncertainty`.
UNCERTAINTY = "uncertainty"
_OF_ERRORS = Method(
    expected_error,
    GUIDED,
    "how far off universal is to be expected",
    "this project, docs/model_card.md",
    without_msi=interpolation_error,
)


def find_method(name: str) -> Method:
    if name == UNCERTAINTY:
        return _OF_ERRORS
    if name not in METHODS:
        raise OptionError(f"method {name!r}", f"one of {', '.join([AUTO, *METHODS])}", "see `hyperfuse methods`")
    return METHODS[name]
