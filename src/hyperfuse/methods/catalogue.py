"""Every closed-form method by name, with one line and its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hyperfuse.errors import OptionError
from hyperfuse.estimation.observation import Observation
from hyperfuse.methods.bicubic import bicubic
from hyperfuse.methods.detail_injection import glp, gsa, sfim
from hyperfuse.methods.fuse import fuse, local_fuse
from hyperfuse.methods.hysure import hysure
from hyperfuse.methods.nonlinear_lift import nonlinear_lift
from hyperfuse.methods.unmixing import cnmf

FusionMethod = Callable[[Tensor, Tensor, Observation], Tensor]


@dataclass(frozen=True)
class Method:
    """`function(hsi (C, h, w), msi (M, H, W), observation) -> (C, H, W)`, on images without holes."""

    function: FusionMethod
    line: str
    reference: str


METHODS: dict[str, Method] = {
    "bicubic": Method(
        bicubic,
        "interpolation of the hsi alone, where the msi's pixels truly lie",
        "Keys 1981, IEEE Trans. ASSP 29(6)",
    ),
    "sfim": Method(
        sfim,
        "the interpolated hsi times the ratio of fine to blurred intensity",
        "Liu 2000, Int. J. Remote Sensing 21(18)",
    ),
    "gsa": Method(
        gsa,
        "each msi band replaces its imitation made of hsi bands",
        "Aiazzi, Baronti and Selva 2007, IEEE Trans. GRS 45(10)",
    ),
    "glp": Method(
        glp,
        "msi detail beyond the hsi's point spread, injected by regression",
        "Aiazzi, Alparone, Baronti, Garzelli and Selva 2006, Photogramm. Eng. Remote Sensing 72(5)",
    ),
    "cnmf": Method(
        cnmf,
        "both images unmixed together into non-negative endmembers and abundances",
        "Yokoya, Yairi and Iwasaki 2012, IEEE Trans. GRS 50(2)",
    ),
    "hysure": Method(
        hysure,
        "both images explained in the hsi's subspace under total variation",
        "Simoes, Bioucas-Dias, Almeida and Chanussot 2015, IEEE Trans. GRS 53(6)",
    ),
    "fuse": Method(
        fuse,
        "most probable image in the hsi's subspace, exact solution with noise variances",
        "Wei, Dobigeon and Tourneret 2015, IEEE Trans. Image Processing 24(11)",
    ),
    "lift": Method(
        nonlinear_lift,
        "FUSE plus what random features of the msi explain of its error",
        "random features: Rahimi and Recht 2007, NIPS",
    ),
    "local_fuse": Method(
        local_fuse,
        "FUSE whose prior is regressed anew for every pixel over a neighbourhood that follows the image",
        "this project, docs/methods.md; after Wei et al. 2015",
    ),
}
AUTO = "auto"


def find_method(name: str) -> Method:
    if name not in METHODS:
        raise OptionError(f"method {name!r}", f"one of {', '.join([AUTO, *METHODS])}", "see `hyperfuse methods`")
    return METHODS[name]
