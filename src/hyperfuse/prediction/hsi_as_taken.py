"""The HSI of a pair as its sensor took it, whole and unresampled, and where its georeference puts its pixels in the pair's MSI."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from hyperfuse.cubes.grid import Grid, grid_of, positions_in, window_of_grid
from hyperfuse.prediction.aligned_pair import AlignedPair
from hyperfuse.prediction.cut_image import CutImage
from hyperfuse.prediction.spline_sampling import Positions


class TakenHsi(Protocol):
    @property
    def image(self) -> CutImage: ...

    def placed(self, pixels: Positions) -> Positions:
        """Positions of the image -> positions of the pair's MSI, by georeference alone."""

    def unplaced(self, fine: Positions) -> Positions:
        """The way back."""


@dataclass(frozen=True)
class ParallelHsi:
    image: CutImage
    first: tuple[int, int]
    """Which of its rows and columns is the pair's first."""
    scale: tuple[float, float]
    grid_shift: tuple[float, float]

    def placed(self, pixels: Positions) -> Positions:
        (row, column), scale, shift = self.first, self.scale, self.grid_shift
        return (pixels[0] - row + 0.5) * scale[0] - 0.5 + shift[0], (pixels[1] - column + 0.5) * scale[1] - 0.5 + shift[1]

    def unplaced(self, fine: Positions) -> Positions:
        (row, column), scale, shift = self.first, self.scale, self.grid_shift
        return (fine[0] + 0.5 - shift[0]) / scale[0] - 0.5 + row, (fine[1] + 0.5 - shift[1]) / scale[1] - 0.5 + column


@dataclass(frozen=True)
class TurnedHsi:
    image: CutImage
    grid: Grid
    msi_grid: Grid

    def placed(self, pixels: Positions) -> Positions:
        return positions_in(self.msi_grid, self.grid, *pixels)

    def unplaced(self, fine: Positions) -> Positions:
        return positions_in(self.grid, self.msi_grid, *fine)


def hsi_as_taken(pair: AlignedPair) -> TakenHsi:
    if pair.turned_hsi is not None:
        grid = grid_of(pair.turned_hsi)
        image = CutImage(pair.turned_hsi, slice(0, grid.height), slice(0, grid.width))
        return TurnedHsi(image, grid, window_of_grid(pair.output_grid, pair.fine_rows, pair.fine_columns))
    cut = pair.hsi_source
    height, width = cut.cube.sizes["y"], cut.cube.sizes["x"]
    first_row = cut.rows.start if cut.row_direction > 0 else height - cut.rows.stop
    first_column = cut.columns.start if cut.column_direction > 0 else width - cut.columns.stop
    whole = replace(cut, rows=slice(0, height), columns=slice(0, width))
    return ParallelHsi(whole, (first_row, first_column), pair.scale, pair.grid_shift)
