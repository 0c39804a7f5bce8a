"""hyperfuse: a coarse hyperspectral image and a fine multispectral image in, a fine hyperspectral image out.

    import hyperfuse
    fused = hyperfuse.fuse("hsi.hdr", "msi.tif")
    hyperfuse.write_cube(fused, "fused.tif")

Everything public is named here; it is loaded when first used, so that `import hyperfuse` and `hyperfuse --help` are
instant.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperfuse.benchmarking.run import benchmark
    from hyperfuse.errors import HyperfuseError
    from hyperfuse.fusion.run import fuse, fuse_files
    from hyperfuse.io.cube import make_cube, physical_values
    from hyperfuse.io.files import open_cube, write_cube
    from hyperfuse.io.output import OutputOptions
    from hyperfuse.io.summary import summarise
    from hyperfuse.metrics.evaluation import evaluate
    from hyperfuse.physics.simulate import simulate_pair
    from hyperfuse.physics.srf import find_srf


_HOMES = {
    "HyperfuseError": "hyperfuse.errors",
    "OutputOptions": "hyperfuse.io.output",
    "benchmark": "hyperfuse.benchmarking.run",
    "evaluate": "hyperfuse.metrics.evaluation",
    "find_srf": "hyperfuse.physics.srf",
    "fuse": "hyperfuse.fusion.run",
    "fuse_files": "hyperfuse.fusion.run",
    "make_cube": "hyperfuse.io.cube",
    "open_cube": "hyperfuse.io.files",
    "physical_values": "hyperfuse.io.cube",
    "simulate_pair": "hyperfuse.physics.simulate",
    "summarise": "hyperfuse.io.summary",
    "write_cube": "hyperfuse.io.files",
}

__all__ = [
    "HyperfuseError",
    "OutputOptions",
    "benchmark",
    "evaluate",
    "find_srf",
    "fuse",
    "fuse_files",
    "make_cube",
    "open_cube",
    "physical_values",
    "simulate_pair",
    "summarise",
    "write_cube",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("hyperfuse")
    if name not in _HOMES:
        raise AttributeError(f"module 'hyperfuse' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
