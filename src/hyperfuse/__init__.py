"""hyperfuse: a coarse hyperspectral image and a fine multispectral image in, a fine hyperspectral image out.

    import hyperfuse
    fused = hyperfuse.fuse("hsi.hdr", "msi.tif")
    hyperfuse.write_cube(fused, "fused.tif")

Everything public is named here and loaded when first used, so that `import hyperfuse` and `hyperfuse --help` are fast.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperfuse.accessor import physical_values
    from hyperfuse.benchmarking.run import benchmark
    from hyperfuse.config import FuseConfig, ObservationConfig, OutputConfig, SimulateConfig
    from hyperfuse.errors import HyperfuseError
    from hyperfuse.fusion.registration import register
    from hyperfuse.fusion.run import estimate, fuse, uncertainty
    from hyperfuse.io.cube import make_cube
    from hyperfuse.io.files import open_cube, write_cube
    from hyperfuse.io.summary import summarise
    from hyperfuse.metrics.evaluation import evaluate
    from hyperfuse.models.catalogue import load_model
    from hyperfuse.physics.observation import Observation
    from hyperfuse.physics.simulate import simulate
    from hyperfuse.physics.srf import find_srf
    from hyperfuse.reporting.report import report

__all__ = [
    "FuseConfig",
    "HyperfuseError",
    "Observation",
    "ObservationConfig",
    "OutputConfig",
    "SimulateConfig",
    "benchmark",
    "estimate",
    "evaluate",
    "find_srf",
    "fuse",
    "load_model",
    "make_cube",
    "open_cube",
    "physical_values",
    "register",
    "report",
    "simulate",
    "summarise",
    "uncertainty",
    "write_cube",
]

_HOMES = {
    "hyperfuse.accessor": ("physical_values",),
    "hyperfuse.benchmarking.run": ("benchmark",),
    "hyperfuse.config": ("FuseConfig", "ObservationConfig", "OutputConfig", "SimulateConfig"),
    "hyperfuse.errors": ("HyperfuseError",),
    "hyperfuse.fusion.registration": ("register",),
    "hyperfuse.fusion.run": ("estimate", "fuse", "uncertainty"),
    "hyperfuse.io.cube": ("make_cube",),
    "hyperfuse.io.files": ("open_cube", "write_cube"),
    "hyperfuse.io.summary": ("summarise",),
    "hyperfuse.metrics.evaluation": ("evaluate",),
    "hyperfuse.models.catalogue": ("load_model",),
    "hyperfuse.physics.observation": ("Observation",),
    "hyperfuse.physics.simulate": ("simulate",),
    "hyperfuse.physics.srf": ("find_srf",),
    "hyperfuse.reporting.report": ("report",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
_RENAMED = {
    "OutputOptions": "OutputConfig",
    "find_response": "find_srf",
    "fuse_files": "fuse",
    "simulate_pair": "simulate",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("hyperfuse")
    if name in _RENAMED:
        message = f"hyperfuse.{name} is now called hyperfuse.{_RENAMED[name]}"
        warnings.warn(message, import_module("hyperfuse.errors").RenamedWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hyperfuse' has no attribute {name!r}")
    for accessor in ("rioxarray", "hyperfuse.accessor"):  # cubes have `.rio` and `.hyperfuse`
        import_module(accessor)
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
