"""How a person wants to see the images: which bands or index, which colours, how stretched."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Style = Literal["true", "infrared", "bands", "band", "pca", "index"]
ColourMap = Literal["viridis", "cividis", "magma", "grey", "blue-orange"]


class Look(BaseModel):
    """One for all images, so that they can be compared; `bands` are those of the leading image, counted from 0."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    style: Style = "true"
    bands: tuple[int, ...] = ()
    index: str = Field(default="NDVI", max_length=20)
    colours: ColourMap = "viridis"
    low: float = Field(default=2.0, ge=0, le=100)
    high: float = Field(default=98.0, ge=0, le=100)
    """Percentiles that become dark and bright."""
    linked: bool = True
    """The leading image's limits for all images that are in comparable units."""

    @field_validator("bands", mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
            value = value[0]
        if isinstance(value, str):
            return tuple(part for part in value.split(",") if part)
        return value

    @model_validator(mode="after")
    def _whole(self) -> Look:
        wanted = {"bands": 3, "band": 1}.get(self.style)
        if wanted is not None and len(self.bands) != wanted:
            raise ValueError(f"{wanted} bands are needed, not {len(self.bands)}")
        if not self.low < self.high:
            raise ValueError("the low percentile must lie below the high one")
        return self
