"""Which parts of which scenes are trained on, and which are kept for testing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PatchWindow:
    """A square of a scene; `scene` is its place in the list of scenes."""

    scene: int
    top: int
    left: int
    size: int

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + self.size)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.left + self.size)


@dataclass(frozen=True)
class TestBlock:
    """A rectangle of a scene that is kept for testing."""

    scene: int
    top: int
    left: int
    height: int
    width: int

    @property
    def rows(self) -> slice:
        return slice(self.top, self.top + self.height)

    @property
    def columns(self) -> slice:
        return slice(self.left, self.left + self.width)


@dataclass(frozen=True)
class Split:
    train: list[PatchWindow]
    test: list[TestBlock]
    overlapping: bool
    """Whether test pixels were trained on; every figure measured on such a split has to say so."""
    label: str
