"""How good the fused image is: against its reference where there is one, else by what it gives back of its inputs.

What the page asks of `hyperfuse estimate` and `hyperfuse fuse`, by the functions that those call.

Overviews for a large GeoTIFF, in a file of their own beside it, whole or not at all; the image itself is not touched.
"""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from hyperfuse.errors import Cancelled, CubeWriteError, OptionError
from hyperfuse.io.atomic import published
from hyperfuse.io.cube import iterate_windows
from hyperfuse.io.envi import find_data
from hyperfuse.io.files import open_cube
from hyperfuse.io.output import OutputOptions
from hyperfuse.metrics.evaluation import evaluate
from hyperfuse.metrics.pairing import blank_incomparable
from hyperfuse.metrics.sums import angle_sum
from hyperfuse.progress import Advance, progress
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.layers import Planes
from hyperfuse.viewer.maps import ObservedPair, degraded_and_hsi, imitated_and_msi, why_not
from hyperfuse.viewer.overview_process import write_overviews
from hyperfuse.viewer.scene import Scene
from hyperfuse.viewer.tiles import highest_level

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
        from hyperfuse.fusion import run as fuse_scene

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
        from hyperfuse.fusion.request import FusionRequest
        from hyperfuse.fusion.run import run_fusion

        request = FusionRequest(hsi, msi, fused, weights=weights, **_options(wanted))
        run_fusion(request.for_uncertainty(output))
        return {"hsi": wanted.hsi, "msi": wanted.msi, "output": wanted.output, "uncertainty": wanted.uncertainty}

    return work


def estimation(folder: Folder, pair: Pair) -> Callable[[], dict[str, Any]]:
    hsi, msi = folder.cube(pair.hsi), folder.cube(pair.msi)

    def work() -> dict[str, Any]:
        from hyperfuse.fusion.memory import SHARE_OF_PREPARING, available_bytes, default_ram_gb
        from hyperfuse.fusion.observe import ObservationHints, observe
        from hyperfuse.fusion.pair import align_pair

        hsi_cube = open_cube(hsi)
        budget = int(SHARE_OF_PREPARING * available_bytes(default_ram_gb()))
        return observe(
            align_pair(hsi_cube, open_cube(msi)), hsi_cube, ObservationHints(), max(LEAST_BYTES, budget)
        ).summary()

    return work


def offered_methods(folder: Folder) -> dict[str, Any]:
    """The methods, the one that the command line takes when nothing is said, and networks of the folder."""
    from hyperfuse.methods.catalogue import AUTO, DEFAULT, METHODS

    automatic = {
        "name": AUTO,
        "line": "the one that gives the HSI back best when the pair is degraded once more",
        "reference": "",
    }
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


STEPS = 100
SECONDS_BETWEEN_LOOKS = 0.25
# Overviews of factors 2, 4, 8, ... hold a third of the pixels; averages compress about as well as the image.
EXPECTED_SHARE = 1 / 3


def build_overviews(path: Path, longer_side: int, cancel: threading.Event) -> Path:
    """GDAL reports no progress, so the growing file is watched; it can only be stopped from outside, so a process does
    it.
    """
    target = path.with_name(path.name + ".ovr")
    with published(target) as temporary, progress("Overviews", total=STEPS) as advance:
        stand_in = temporary.with_suffix("")
        arguments = (path, stand_in, highest_level(longer_side))
        worker = multiprocessing.get_context("spawn").Process(target=write_overviews, args=arguments, daemon=True)
        worker.start()
        try:
            _watch(worker, temporary, EXPECTED_SHARE * path.stat().st_size, cancel, advance)
        finally:
            worker.terminate()
            worker.join()
            stand_in.unlink(missing_ok=True)
        if worker.exitcode != 0 or not temporary.exists():
            raise CubeWriteError(
                f"no overviews of {path.name}", "space beside the image", "nothing was left behind; free some"
            )
    return target


def _watch(worker: BaseProcess, target: Path, expected: float, cancel: threading.Event, advance: Advance) -> None:
    reached = 0
    while worker.is_alive():
        if cancel.wait(SECONDS_BETWEEN_LOOKS):
            raise Cancelled
        size = target.stat().st_size if target.exists() else 0
        now = min(STEPS - 1, int(STEPS * size / expected)) if expected else 0
        if now > reached:
            advance(now - reached)
            reached = now
    worker.join()
    advance(STEPS - reached)


# One window of the fused image as float32; beside it lie the HSI's and what the operators need.
WINDOW_BYTES = 48 * 2**20


def reference_scores(scene: Scene) -> dict[str, Any]:
    """As `hyperfuse evaluate` gives them."""
    missing = [role for role in ("fused", "reference") if role not in scene.images]
    if missing:
        raise OptionError(f"no {missing[0]} open", "a fused image and its reference", "open both")
    return evaluate(scene.images["fused"].cube, scene.images["reference"].cube).as_dict()


def consistency_scores(scene: Scene, observe: Callable[[], ObservedPair]) -> dict[str, Any]:
    """Degraded to the HSI and seen through the MSI's bands: root mean square errors, and the angle to the HSI's
    spectra.
    """
    complaint = why_not(scene, "consistency_hsi")
    if complaint is not None:
        raise OptionError(complaint, "a fused image and the HSI that it was fused from", "open them in Files")
    pair = observe()
    fused, hsi, msi = scene.images["fused"], scene.images["hsi"], scene.images.get("msi")
    assert hsi.placement is not None
    of_hsi, of_msi = _Sums(), _Sums()
    coarse_windows = list(
        iterate_windows(hsi.cube, max(1, int(WINDOW_BYTES / math.prod(hsi.placement.scale))), block=1)
    )
    fine_windows = (
        list(iterate_windows(fused.cube, WINDOW_BYTES)) if msi is not None and pair.observation is not None else []
    )
    with progress("Consistency", total=len(coarse_windows) + len(fine_windows), unit="windows") as advance:
        for rows, columns in coarse_windows:
            of_hsi.add(*degraded_and_hsi(fused, hsi, pair, rows, columns))
            advance(1)
        for rows, columns in fine_windows:
            assert msi is not None
            of_msi.add(*imitated_and_msi(fused, msi, pair, rows, columns))
            advance(1)
    return {
        "hsi_rmse": of_hsi.root_mean_square(),
        "hsi_relative": of_hsi.relative(),
        "hsi_angle_degrees": of_hsi.angle(),
        "msi_rmse": of_msi.root_mean_square(),
        "msi_relative": of_msi.relative(),
        "estimated": pair.observation is not None,
    }


class _Sums:
    def __init__(self) -> None:
        self._squares = self._energy = self._angles = 0.0
        self._count = self._pixels = 0

    def add(self, computed: Planes, observed: Planes) -> None:
        first, second = computed.astype(np.float64), observed.astype(np.float64)
        known = blank_incomparable(first, second)
        self._count += int(known.sum())
        self._squares += float(np.nansum(np.square(first - second)))
        self._energy += float(np.nansum(np.square(second)))
        angles, pixels = angle_sum(first, second)
        self._angles, self._pixels = self._angles + angles, self._pixels + pixels

    def root_mean_square(self) -> float | None:
        return math.sqrt(self._squares / self._count) if self._count else None

    def relative(self) -> float | None:
        """The error's share of the signal."""
        return math.sqrt(self._squares / self._energy) if self._energy else None

    def angle(self) -> float | None:
        return self._angles / self._pixels if self._pixels else None
