"""Every closed-form method by name, with one line and its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hyperfuse.errors import OptionError
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.detail_injection import bicubic, detail_reach, detail_reach_twice, glp, gsa, sfim
from hyperfuse.methods.fuse import fuse, fuse_reach, local_fuse
from hyperfuse.methods.hysure import hysure, hysure_reach
from hyperfuse.methods.nonlinear_lift import nonlinear_lift
from hyperfuse.methods.over_scene import SceneWise, alone
from hyperfuse.methods.unmixing import cnmf
from hyperfuse.methods.window import Window


@dataclass(frozen=True)
class Method:
    """Works on images without holes. `over_scene(window)` fuses the core of a window and asks for what belongs to the scene."""

    over_scene: Callable[[Window], SceneWise[Tensor]]
    reach: Callable[[Observation], int]
    """How many coarse pixels around itself a fused pixel depends on; farther ones change it by less than a thousandth."""
    line: str
    reference: str

    def function(self, hsi: Tensor, msi: Tensor, observation: Observation) -> Tensor:
        """hsi (C, h, w), msi (M, H, W) -> (C, H, W), where the pair is the whole scene."""
        return alone(self.over_scene(Window(hsi, msi, observation)))


METHODS: dict[str, Method] = {
    "bicubic": Method(
        bicubic,
        detail_reach,
        "interpolation of the hsi alone, where the msi's pixels truly lie",
        "Keys 1981, IEEE Trans. ASSP 29(6)",
    ),
    "sfim": Method(
        sfim,
        detail_reach,
        "the interpolated hsi times the ratio of fine to blurred intensity",
        "Liu 2000, Int. J. Remote Sensing 21(18)",
    ),
    "gsa": Method(
        gsa,
        detail_reach_twice,
        "each msi band replaces its imitation made of hsi bands",
        "Aiazzi, Baronti and Selva 2007, IEEE Trans. GRS 45(10)",
    ),
    "glp": Method(
        glp,
        detail_reach,
        "msi detail beyond the hsi's point spread, injected by regression",
        "Aiazzi, Alparone, Baronti, Garzelli and Selva 2006, Photogramm. Eng. Remote Sensing 72(5)",
    ),
    "cnmf": Method(
        cnmf,
        detail_reach_twice,
        "both images unmixed together into non-negative endmembers and abundances",
        "Yokoya, Yairi and Iwasaki 2012, IEEE Trans. GRS 50(2)",
    ),
    "hysure": Method(
        hysure,
        hysure_reach,
        "both images explained in the hsi's subspace under total variation",
        "Simoes, Bioucas-Dias, Almeida and Chanussot 2015, IEEE Trans. GRS 53(6)",
    ),
    "fuse": Method(
        fuse,
        fuse_reach,
        "most probable image in the hsi's subspace, exact solution with noise variances",
        "Wei, Dobigeon and Tourneret 2015, IEEE Trans. Image Processing 24(11)",
    ),
    "lift": Method(
        nonlinear_lift,
        fuse_reach,
        "FUSE plus what random features of the msi explain of its error",
        "random features: Rahimi and Recht 2007, NIPS",
    ),
    "local_fuse": Method(
        local_fuse,
        fuse_reach,
        "FUSE whose prior is regressed anew for every pixel over a neighbourhood that follows the image",
        "this project, docs/methods.md; after Wei et al. 2015",
    ),
}
AUTO = "auto"


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise OptionError(f"method {name!r}", f"one of {', '.join([AUTO, *METHODS])}", "see `hyperfuse methods`")
    return METHODS[name]
