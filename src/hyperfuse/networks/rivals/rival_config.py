"""What all rivals have to be told: the one pair of sensors that they are made for, and the range of their pixel values."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from hyperfuse.networks.network_config import BICUBIC, Positive

# A width that may be halved, or shared out among the groups of a convolution, without a remainder.
EvenWidth = Annotated[int, Field(ge=2, le=100_000, multiple_of=2)]
WidthOfEights = Annotated[int, Field(ge=8, le=100_000, multiple_of=8)]


class RivalConfig(BaseModel):
    """kind             which rival
    bands, msi_bands  exactly these, no others
    width            features of the finest level
    value_range      pixel values that the network expects, from 0 up; a scene is scaled to it before, and back after
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: ClassVar[str] = BICUBIC  # the network makes it itself, from the hsi

    kind: str
    bands: Positive
    msi_bands: Positive
    width: Positive
    value_range: tuple[float, float] = (0.0, 1.0)

    @field_validator("value_range")
    @classmethod
    def _scales_from_zero(cls, value_range: tuple[float, float]) -> tuple[float, float]:
        low, high = value_range
        if low != 0.0 or not 0.0 < high < math.inf:
            raise ValueError(f"got {low:g} to {high:g}, expected 0 to a finite number above it: scenes are scaled, not shifted")
        return value_range

    def with_bands(self, bands: int, msi_bands: int) -> Self:
        """The same network for another pair of sensors."""
        return type(self).model_validate(self.model_dump() | {"bands": bands, "msi_bands": msi_bands})
