"""What was asked for: how to fuse (`FusionChoices`), and from which files to which file (`FusionRequest`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hyperfuse.errors import OptionError
from hyperfuse.fusion.observe import ObservationHints
from hyperfuse.fusion.overlap import INTERSECTION, Area
from hyperfuse.io.output import AS_IT_IS, OutputOptions
from hyperfuse.methods.catalogue import AUTO, DEFAULT, UNCERTAINTY, find_method
from hyperfuse.physics.srf import SRFSpec

PathLike = str | os.PathLike[str]
HSI, MSI = "hsi", "msi"
ENVI_HEADER, ENVI_PIXELS = ".hdr", ".img"
# How a run is carried out does not change its result.
NOT_OF_THE_RESULT = ("output", "overwrite", "ram_gb", "resume", "workers", "cluster")


@dataclass(frozen=True)
class FusionChoices:
    """See `fuse_scene.fuse`."""

    method: str = DEFAULT
    weights: PathLike | None = None
    hints: ObservationHints = field(default_factory=ObservationHints)
    trust: str = MSI
    consistency: bool = False
    area: Area = field(default_factory=Area)
    local_shift: bool = False

    @property
    def known_offset(self) -> tuple[float, float] | None:
        """How the cut must follow a known shift; where the HSI is trusted, the images are cut where it says that it
        lies.
        """
        return self.hints.shift if self.trust == MSI else None

    def __post_init__(self) -> None:
        if self.method != AUTO:
            find_method(self.method)
        if self.method != DEFAULT and self.weights is not None:
            raise OptionError(
                f"method {self.method!r} and weights", "one of the two", "leave out --method or --weights"
            )
        if self.trust not in (MSI, HSI):
            raise OptionError(f"trust {self.trust!r}", f"{MSI} or {HSI}", "name the image whose georeference is right")


@dataclass(frozen=True)
class FusionRequest:
    """See `fuse_scene.fuse_files`, whose arguments these are."""

    hsi: PathLike
    msi: PathLike
    output: PathLike
    method: str = DEFAULT
    weights: PathLike | None = None
    estimate: bool = True
    srf: SRFSpec | None = None
    psf_fwhm: float | None = None
    shift: tuple[float, float] | None = None
    local_shift: bool = False
    trust: str = MSI
    consistency: bool = False
    extent: str = INTERSECTION
    bounds: tuple[float, float, float, float] | None = None
    bounds_crs: str | None = None
    mask: PathLike | None = None
    hsi_mask: PathLike | None = None
    hsi_variable: str | None = None
    msi_variable: str | None = None
    hsi_band_axis: int | None = None
    msi_band_axis: int | None = None
    stored: OutputOptions = AS_IT_IS
    options: Mapping[str, str] = field(default_factory=dict)
    cog: bool = False
    overwrite: bool = False
    ram_gb: float | None = None
    resume: bool = False
    workers: int | None = None
    cluster: str | None = None

    def __post_init__(self) -> None:
        assert self.choices
        # Written so that NaN fails too.
        if self.ram_gb is not None and not 0 < self.ram_gb < 1e6:
            raise OptionError(f"{self.ram_gb:g} GB of memory", "a number above 0", "mend --ram")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"{self.workers} workers", "at least 1", "mend --workers")
        if self.workers is not None and self.cluster is not None:
            raise OptionError(
                "workers of this machine and a cluster", "one of the two", "leave out --workers or --cluster"
            )
        self._refuse_the_same_files()

    def _refuse_the_same_files(self) -> None:
        written = {self.target.absolute()}
        if self.target.suffix.lower() == ENVI_HEADER:
            written.add(self.target.absolute().with_suffix(ENVI_PIXELS))
        for role, path in self.inputs.items():
            if path.absolute() in written:
                raise OptionError(f"output {self.target}, which is the {role} itself", "a file of its own", "mend -o")
        if Path(self.hsi).absolute() == Path(self.msi).absolute() and self.hsi_variable == self.msi_variable:
            raise OptionError(f"{self.hsi} as both HSI and MSI", "a coarse image and a fine one", "name two images")

    @property
    def target(self) -> Path:
        return Path(self.output)

    @property
    def choices(self) -> FusionChoices:
        return FusionChoices(
            self.method,
            self.weights,
            ObservationHints(self.estimate, self.srf, self.psf_fwhm, self.shift),
            self.trust,
            self.consistency,
            Area(self.extent, self.bounds, self.bounds_crs),
            self.local_shift,
        )

    def for_uncertainty(self, output: PathLike) -> FusionRequest:
        """The same pair, asked how far off its fusion is to be expected, as physical values."""
        if self.method != DEFAULT or self.weights is not None or self.consistency:
            raise OptionError(
                "--uncertainty with another method, weights or consistency",
                f"the method {DEFAULT}, whose errors it expects",
                "leave out --method, --weights and --consistency, or --uncertainty",
            )
        if Path(output).absolute() == self.target.absolute():
            raise OptionError(
                f"{output} for the fused image and its uncertainty", "two files", "mend -o or --uncertainty"
            )
        stored = replace(self.stored, dtype="float32", scale_factor=1.0, nodata=None)
        return replace(self, output=output, method=UNCERTAINTY, stored=stored)

    @property
    def inputs(self) -> dict[str, Path]:
        """The files that are read, by their role."""
        given = {"hsi": self.hsi, "msi": self.msi, "mask": self.mask, "hsi_mask": self.hsi_mask}
        return {role: Path(path) for role, path in given.items() if path is not None}

    def options_of_result(self) -> dict[str, Any]:
        """Everything but the inputs that the result depends on, where it is not the default."""
        left_out = {*NOT_OF_THE_RESULT, "hsi", "msi", "mask", "hsi_mask"}
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}
        defaults = FusionRequest(HSI, MSI, "output")
        return {name: value for name, value in values.items() if value != getattr(defaults, name)}
