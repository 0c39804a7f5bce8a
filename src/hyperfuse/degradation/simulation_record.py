"""The record of how a pair was observed: everything needed to simulate it again or to build its operators."""

from __future__ import annotations

from fractions import Fraction
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from hyperfuse.degradation.response import Response
from hyperfuse.errors import CubeFileError

OptionalColumn = tuple[float | None, ...] | None


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ResponseRecord(_Record):
    source: str
    names: tuple[str, ...]
    weights: tuple[tuple[float, ...], ...]
    wavelength_nm: OptionalColumn = None
    fwhm_nm: OptionalColumn = None
    uncovered: tuple[str, ...] = ()

    @classmethod
    def of(cls, response: Response) -> ResponseRecord:
        return cls(
            source=response.source,
            names=response.names,
            weights=tuple(tuple(map(float, row)) for row in response.weights),
            wavelength_nm=_without_nan(response.wavelength_nm),
            fwhm_nm=_without_nan(response.fwhm_nm),
            uncovered=response.uncovered,
        )


class SimulationRecord(_Record):
    """How a simulated pair came about. Lengths are in fine pixels, sizes (rows, columns), shifts (down, right)."""

    kind: Literal["hyperfuse observation 1"] = "hyperfuse observation 1"
    hyperfuse_version: str
    reference: str | None
    """Name of the reference file, where it was one."""
    scale_given: str
    scale_fraction: tuple[int, int]
    psf_fwhm: float
    psf_sigma: float
    shift: tuple[float, float]
    response: ResponseRecord
    skip_uncovered: bool
    snr_hsi_db: float | None
    snr_msi_db: float | None
    noise_sigma_hsi: tuple[float, ...] | None
    """Per band, in physical values; None without noise."""
    noise_sigma_msi: tuple[float, ...] | None
    seed: int
    reference_size: tuple[int, int]
    fine_size: tuple[int, int]
    """The upper left part of the reference that was used: rows and columns from 0."""
    coarse_size: tuple[int, int]

    @model_validator(mode="after")
    def _sizes_agree(self) -> SimulationRecord:
        p, q = self.scale_fraction
        if p < 1 or q < 1 or any(fine * q != coarse * p for fine, coarse in zip(self.fine_size, self.coarse_size, strict=True)):
            raise ValueError(f"sizes {self.fine_size} and {self.coarse_size} do not have the scale {p}/{q}")
        return self

    @property
    def scale(self) -> float:
        return self.scale_fraction[0] / self.scale_fraction[1]

    def axis_arguments(self, axis: int) -> tuple[int, int, float, float, float]:
        """The arguments of `point_spread_taps` and `point_spread_matrix` along y (0) or x (1)."""
        return self.fine_size[axis], self.coarse_size[axis], self.scale, self.psf_sigma, self.shift[axis]

    def find_response(self) -> Response:
        """The response as it was used, ready to be given to `simulate_pair` or to a method."""
        record = self.response
        weights = np.array(record.weights, dtype=np.float64)
        columns = (_with_nan(record.wavelength_nm), _with_nan(record.fwhm_nm))
        return Response(record.names, weights, *columns, record.source, record.uncovered)

    def simulation_arguments(self) -> dict[str, Any]:
        """Keyword arguments with which `simulate_pair` makes the same pair again from the same reference."""
        return {
            "scale": Fraction(*self.scale_fraction),
            "response": self.find_response(),
            "psf_fwhm": self.psf_fwhm,
            "shift": self.shift,
            "snr_hsi_db": self.snr_hsi_db,
            "snr_msi_db": self.snr_msi_db,
            "seed": self.seed,
        }


def current_version() -> str:
    return version("hyperfuse")


def write_simulation_record(record: SimulationRecord, path: Path) -> None:
    path.write_text(record.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_simulation_record(path: str | Path) -> SimulationRecord:
    path = Path(path)
    try:
        return SimulationRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CubeFileError(f"{path}: {error.strerror or error}", "the observation.json of a simulated pair") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise CubeFileError(f"{path}: {place}: {first['msg']}", "an observation.json as `hyperfuse simulate` writes it") from error


def _without_nan(column: NDArray[np.float64] | None) -> OptionalColumn:
    return None if column is None else tuple(None if np.isnan(value) else float(value) for value in column)


def _with_nan(column: OptionalColumn) -> NDArray[np.float64] | None:
    return None if column is None else np.array([np.nan if value is None else value for value in column])
