"""Every method by name.

To add a method, write a function from a `Window` to a generator that returns the fused core (C, H, W), and enter it in
`METHODS`. Around it, `methods.run` fills missing pixels, scales both images to values of about 1 and masks the result;
`fusion` cuts large scenes into windows. The whole of a method that modulates the interpolated hsi by the intensity of
the msi relative to its mean over the scene:

    def intensity_modulation(window: Window) -> SceneComputation[Tensor]:
        intensity = window.fine(window.msi).mean(0)
        mean = yield from scene_mean(lambda: (intensity.mean(), intensity.numel()))
        return window.upsample_to_core(window.hsi) * (intensity / mean)

    METHODS["modulation"] = Method(
        intensity_modulation,
        "the interpolated hsi times the intensity of the msi",
        "Author Year, Journal",
        halo=detail_halo,
        core_copies=3.0,
    )

`yield from scene_...` is how a method asks for statistics of the whole scene (see `scene_stats`). The contract that
every method must keep is tested in tests/methods/test_every_method.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from hyperfuse.errors import OptionError
from hyperfuse.methods.cnmf import cnmf
from hyperfuse.methods.fuse import fuse, fuse_halo, lift, local_fuse
from hyperfuse.methods.hysure import hysure, hysure_halo
from hyperfuse.methods.injection import bicubic, detail_halo, glp, gsa, sfim, twice_detail_halo
from hyperfuse.methods.scene_stats import SceneComputation
from hyperfuse.methods.universal import expected_error, universal, universal_halo
from hyperfuse.methods.window import Window
from hyperfuse.physics.observation import Observation

SceneFunction = Callable[[Window], SceneComputation[Tensor]]


@dataclass(frozen=True)
class Method:
    """One entry of the catalogue. Memory was measured (docs/large_scenes.md): float32 images held at the same time."""

    function: SceneFunction  # fuses the core of a window without missing pixels
    description: str
    reference: str
    halo: Callable[[Observation], int]  # coarse pixels; those farther away change a pixel by less than a thousandth
    core_copies: float = 2.2  # images of all bands, as large as the core
    window_copies: float = 0.0  # images of all bands, as large as the window
    component_images: int = 0  # images of all components, near the core
    uncertainty: SceneFunction | None = None  # expected error of the fused core, with the same halo and memory


METHODS: dict[str, Method] = {
    "bicubic": Method(
        bicubic,
        "interpolation of the hsi alone, at the true positions of the msi's pixels",
        "Keys 1981, IEEE Trans. ASSP 29(6)",
        halo=detail_halo,
        core_copies=2.5,
    ),
    "sfim": Method(
        sfim,
        "SFIM: the interpolated hsi times the ratio of fine to blurred intensity",
        "Liu 2000, Int. J. Remote Sensing 21(18)",
        halo=detail_halo,
        core_copies=6.0,
    ),
    "gsa": Method(
        gsa,
        "Gram-Schmidt adaptive: each msi band replaces its synthetic copy made of hsi bands",
        "Aiazzi, Baronti and Selva 2007, IEEE Trans. GRS 45(10)",
        halo=twice_detail_halo,
        core_copies=1.0,
        window_copies=5.0,
        component_images=3,
    ),
    "glp": Method(
        glp,
        "MTF-GLP: msi detail beyond the hsi's MTF, injected by regression",
        "Aiazzi, Alparone, Baronti, Garzelli and Selva 2006, Photogramm. Eng. Remote Sensing 72(5)",
        halo=detail_halo,
        core_copies=2.5,
    ),
    "cnmf": Method(
        cnmf,
        "CNMF: both images unmixed together into non-negative endmembers and abundances",
        "Yokoya, Yairi and Iwasaki 2012, IEEE Trans. GRS 50(2)",
        halo=twice_detail_halo,
        core_copies=1.0,
        window_copies=5.0,
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
    "universal": Method(
        universal,
        "local FUSE guided by a network that was trained across sensors: the default",
        "this project, docs/model_card.md",
        halo=universal_halo,
        component_images=16,
        uncertainty=expected_error,
    ),
}
AUTO = "auto"
DEFAULT = "universal"


def find_method(name: str) -> Method:
    """Look a method up by its name."""
    if name not in METHODS:
        raise OptionError(f"method {name!r}", f"one of {', '.join([AUTO, *METHODS])}", "see `hyperfuse methods`")
    return METHODS[name]
