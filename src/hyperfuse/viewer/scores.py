"""How good the fused image is: against its reference where there is one, else by what it gives back of its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hyperfuse.cubes.cube import iterate_windows
from hyperfuse.errors import OptionError
from hyperfuse.progress import progress
from hyperfuse.quality.evaluation import evaluate
from hyperfuse.quality.pairing import blank_incomparable
from hyperfuse.quality.spectral_angle import angle_sum
from hyperfuse.viewer.consistency_maps import degraded_and_hsi, imitated_and_msi
from hyperfuse.viewer.layers import Planes
from hyperfuse.viewer.map_layers import why_not
from hyperfuse.viewer.observed_pair import ObservedPair
from hyperfuse.viewer.scene import Scene

# One window of the fused image as float32; beside it lie the HSI's and what the operators need.
WINDOW_BYTES = 48 * 2**20


def reference_scores(scene: Scene) -> dict[str, Any]:
    """As `hyperfuse evaluate` gives them."""
    missing = [role for role in ("fused", "reference") if role not in scene.images]
    if missing:
        raise OptionError(f"no {missing[0]} open", "a fused image and its reference", "open both")
    return evaluate(scene.images["fused"].cube, scene.images["reference"].cube).as_dict()


def consistency_scores(scene: Scene, observe: Callable[[], ObservedPair]) -> dict[str, Any]:
    """Degraded to the HSI and seen through the MSI's bands: root mean square errors, and the angle to the HSI's spectra."""
    complaint = why_not(scene, "consistency_hsi")
    if complaint is not None:
        raise OptionError(complaint, "a fused image and the HSI that it was fused from", "open them in Files")
    pair = observe()
    fused, hsi, msi = scene.images["fused"], scene.images["hsi"], scene.images.get("msi")
    assert hsi.placement is not None
    of_hsi, of_msi = _Sums(), _Sums()
    coarse_windows = list(iterate_windows(hsi.cube, max(1, int(WINDOW_BYTES / math.prod(hsi.placement.scale))), block=1))
    fine_windows = list(iterate_windows(fused.cube, WINDOW_BYTES)) if msi is not None and pair.observation is not None else []
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
