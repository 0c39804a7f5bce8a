"""hyperfuse: a coarse hyperspectral image and a fine multispectral image in, a fine hyperspectral image out.

    import hyperfuse
    fused = hyperfuse.fuse("hsi.hdr", "msi.tif")
    hyperfuse.write_cube(fused, "fused.tif")

Everything public is named here; it is loaded when first used, so that `import hyperfuse` and `hyperfuse --help` are instant.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperfuse.cubes.cube import make_cube, physical_values
    from hyperfuse.cubes.files import open_cube, write_cube
    from hyperfuse.cubes.output_options import OutputOptions
    from hyperfuse.cubes.summary import summarise
    from hyperfuse.degradation.response import find_response
    from hyperfuse.degradation.simulation import simulate_pair
    from hyperfuse.errors import HyperfuseError
    from hyperfuse.prediction.fuse_scene import fuse, fuse_files
    from hyperfuse.quality.evaluation import evaluate
    from hyperfuse.scoring.benchmark import benchmark

_HOMES = {
    "HyperfuseError": "hyperfuse.errors",
    "OutputOptions": "hyperfuse.cubes.output_options",
    "benchmark": "hyperfuse.scoring.benchmark",
    "evaluate": "hyperfuse.quality.evaluation",
    "find_response": "hyperfuse.degradation.response",
    "fuse": "hyperfuse.prediction.fuse_scene",
    "fuse_files": "hyperfuse.prediction.fuse_scene",
    "make_cube": "hyperfuse.cubes.cube",
    "open_cube": "hyperfuse.cubes.files",
    "physical_values": "hyperfuse.cubes.cube",
    "simulate_pair": "hyperfuse.degradation.simulation",
    "summarise": "hyperfuse.cubes.summary",
    "write_cube": "hyperfuse.cubes.files",
}

__all__ = [
    "HyperfuseError",
    "OutputOptions",
    "benchmark",
    "evaluate",
    "find_response",
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
