"""What the page asks of `hyperfuse estimate` and `hyperfuse fuse`, by the functions that those call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from hyperfuse.cubes.envi import find_data
from hyperfuse.cubes.files import open_cube
from hyperfuse.cubes.output_options import OutputOptions
from hyperfuse.viewer.folder import Folder

Name = str
# An estimation gets as much memory as that of a fusion, and never less than this.
LEAST_BYTES = 2**28


class Pair(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hsi: Name = Field(min_length=1, max_length=1000)
    msi: Name = Field(min_length=1, max_length=1000)


class FuseChoices(Pair):
    """Those of `hyperfuse fuse`."""

    output: Name = Field(min_length=1, max_length=1000)
    method: str | None = Field(default=None, max_length=40)
    weights: Name | None = Field(default=None, max_length=1000)
    estimate: bool = True
    consistency: bool = False
    trust: Literal["msi", "hsi"] = "msi"
    overwrite: bool = False
    overviews: bool = False
    resume: bool = False
    ram_gb: float | None = Field(default=None, gt=0, le=1e5, allow_inf_nan=False)


class UncertaintyChoices(FuseChoices):
    """Those that the image was fused with, and where its uncertainty goes."""

    uncertainty: Name = Field(min_length=1, max_length=1000)


def fusion(folder: Folder, wanted: FuseChoices) -> Callable[[], dict[str, Any]]:
    """Refuses what lies outside of the folder at once; what is returned does the work."""
    hsi, msi = folder.cube(wanted.hsi), folder.cube(wanted.msi)
    weights = None if wanted.weights is None else folder.network(wanted.weights)
    output = folder.output(wanted.output, overwrite=wanted.overwrite)

    def work() -> dict[str, Any]:
        from hyperfuse.prediction import fuse_scene

        written = fuse_scene.fuse_files(hsi, msi, output, weights=weights, **_options(wanted))
        return {
            "hsi": wanted.hsi,
            "msi": wanted.msi,
            "output": folder.name_of(written),
            "bytes": sum(path.stat().st_size for path in (_files_of(written) or written.rglob("*"))),
            "method": str(open_cube(written).attrs.get("hyperfuse_method", wanted.method)),
            "downloads": [folder.name_of(path) for path in _files_of(written)],
        }

    return work


def uncertainty(folder: Folder, wanted: UncertaintyChoices) -> Callable[[], dict[str, Any]]:
    """As `hyperfuse fuse --uncertainty`, after the image itself."""
    hsi, msi, fused = folder.cube(wanted.hsi), folder.cube(wanted.msi), folder.cube(wanted.output)
    weights = None if wanted.weights is None else folder.network(wanted.weights)
    output = folder.output(wanted.uncertainty, overwrite=wanted.overwrite)

    def work() -> dict[str, Any]:
        from hyperfuse.prediction.fusion_request import FusionRequest
        from hyperfuse.prediction.running import run_fusion

        request = FusionRequest(hsi, msi, fused, weights=weights, **_options(wanted))
        run_fusion(request.for_uncertainty(output))
        return {"hsi": wanted.hsi, "msi": wanted.msi, "output": wanted.output, "uncertainty": wanted.uncertainty}

    return work


def estimation(folder: Folder, pair: Pair) -> Callable[[], dict[str, Any]]:
    hsi, msi = folder.cube(pair.hsi), folder.cube(pair.msi)

    def work() -> dict[str, Any]:
        from hyperfuse.prediction.aligned_pair import align_pair
        from hyperfuse.prediction.fuse_pair import ObservationHints, observe
        from hyperfuse.prediction.memory import SHARE_OF_PREPARING, available_bytes, default_ram_gb

        hsi_cube = open_cube(hsi)
        budget = int(SHARE_OF_PREPARING * available_bytes(default_ram_gb()))
        return observe(align_pair(hsi_cube, open_cube(msi)), hsi_cube, ObservationHints(), max(LEAST_BYTES, budget)).summary()

    return work


def offered_methods(folder: Folder) -> dict[str, Any]:
    """The methods, the one that the command line takes when nothing is said, and networks of the folder."""
    from hyperfuse.methods.catalogue import AUTO, DEFAULT, METHODS

    automatic = {"name": AUTO, "line": "the one that gives the HSI back best when the pair is degraded once more", "reference": ""}
    named = [{"name": name, "line": method.line, "reference": method.reference} for name, method in METHODS.items()]
    ordered = sorted([automatic, *named], key=lambda method: method["name"] != DEFAULT)
    return {"methods": ordered, "chosen": DEFAULT, "networks": folder.networks()}


def _options(wanted: FuseChoices) -> dict[str, Any]:
    from hyperfuse.methods.catalogue import DEFAULT

    same = ("estimate", "consistency", "trust", "overwrite", "resume", "ram_gb")
    stored = OutputOptions(overviews=wanted.overviews)
    return {"method": wanted.method or DEFAULT, "stored": stored} | {name: getattr(wanted, name) for name in same}


def _files_of(written: Path) -> list[Path]:
    """What can be downloaded of it: ENVI's header and data; a Zarr store is a folder."""
    if written.is_dir():
        return []
    return [written, find_data(written)] if written.suffix.lower() == ".hdr" else [written]
