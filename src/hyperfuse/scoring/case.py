"""One case of the benchmark: a scene under one response, scale and condition, and the pair that every competitor gets of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.degradation.simulation_limits import require_signal_to_noise
from hyperfuse.estimation.observation import Observation

AS_RECORDED = "as recorded"


@dataclass(frozen=True)
class Condition:
    """What a simulated pair suffers beside blur and decimation."""

    noise_db: tuple[float, float] | None = None
    """Signal-to-noise ratio of hsi and msi."""
    shift: tuple[float, float] = (0.0, 0.0)
    """(down, right) in fine pixels."""

    def __post_init__(self) -> None:
        if self.noise_db is not None:
            for image, decibels in zip(("HSI", "MSI"), self.noise_db, strict=True):
                require_signal_to_noise(decibels, image)

    @property
    def name(self) -> str:
        words = []
        if self.noise_db is not None:
            words.append("noise {:g}/{:g} dB".format(*self.noise_db))
        if self.shift != (0.0, 0.0):
            words.append("shift {:g} {:g}".format(*self.shift))
        return ", ".join(words) or "clean"


@dataclass(frozen=True)
class CaseName:
    """What a case is called, in all results and tables."""

    dataset: str
    scene: str
    response: str
    scale: float
    condition: str

    def __str__(self) -> str:
        return ", ".join(dict.fromkeys([self.scene, self.response, f"x{self.scale:g}", self.condition]))


@dataclass(frozen=True, eq=False)
class CasePair:
    """The pair of a case, what it should become, and how it was truly observed where that is known. Values are in 0 to 1."""

    hsi: xr.DataArray
    msi: xr.DataArray
    reference: xr.DataArray
    valid: NDArray[np.bool_] | None
    """(H, W), where the reference has values; None where it has them everywhere."""
    truth: Observation | None
    scale: float
