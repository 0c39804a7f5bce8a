"""`cube.hyperfuse`: what one does with a cube in a notebook, on any DataArray with the dims band, y and x.

    cube = hyperfuse.open_cube("fused.tif")
    cube.hyperfuse.plot()                        # colours
    cube.hyperfuse.spectrum(x=412300, y=5712400).plot(x="wavelength")

xarray knows it as soon as any function of hyperfuse was used, or after `import hyperfuse.accessor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hyperfuse.errors import OptionError
from hyperfuse.io.cube import as_cube
from hyperfuse.io.cube import physical_values as read_physical_values

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def physical_values(
    cube: xr.DataArray,
    rows: slice = slice(None),
    columns: slice = slice(None),
    bands: slice | ArrayLike = slice(None),
    dtype: DTypeLike = np.float32,
) -> xr.DataArray:
    """Read a window of a cube as physical values, with its coordinates.

    Parameters
    ----------
    cube
        A cube, lazy or in memory.
    rows, columns, bands
        The window; everything by default.
    dtype
        Floating-point type of the result.

    Returns
    -------
    xarray.DataArray
        stored * scale + offset, NaN where there is no data, in memory; its own scale is 1 and its offset 0.

    Examples
    --------
    >>> import hyperfuse, numpy as np
    >>> cube = hyperfuse.make_cube(np.array([[[0, 5000]]], np.uint16), wavelength_nm=[550], scale=1e-4, nodata=0)
    >>> hyperfuse.physical_values(cube).values.tolist()
    [[[nan, 0.5]]]
    """
    cube = as_cube(cube)
    window = cube.isel(band=bands, y=rows, x=columns)
    values = window.copy(data=read_physical_values(cube, rows, columns, bands, dtype))
    values.attrs = {key: value for key, value in cube.attrs.items() if key not in ("_FillValue", "missing_value")}
    count = values.sizes["band"]
    return values.assign_coords(scale=("band", np.ones(count)), offset=("band", np.zeros(count)))


@xr.register_dataarray_accessor("hyperfuse")  # type: ignore[no-untyped-call]
class CubeAccessor:
    """Colours and spectra of a cube."""

    def __init__(self, cube: xr.DataArray) -> None:
        self._cube = cube

    def rgb(self) -> NDArray[np.uint8]:
        """(y, x, 3) The bands nearest to red, green and blue, between their 2nd and 98th percentiles."""
        from hyperfuse.reporting.colour import colour_composite

        return colour_composite(self._cube)

    def spectrum(self, x: float, y: float) -> xr.DataArray:
        """The physical values (band,) of the pixel at these coordinates, or row and column of a cube without any."""
        cube = as_cube(self._cube)
        position = {}
        for axis, place in (("y", y), ("x", x)):
            centres = cube[axis].values
            half = 0.5 * abs(float(centres[1] - centres[0])) if centres.size > 1 else 0.5
            nearest = int(np.abs(centres - place).argmin())
            if not abs(centres[nearest] - place) <= half * (1 + 1e-6):
                expected = f"{min(centres[0], centres[-1]):.10g} to {max(centres[0], centres[-1]):.10g}"
                raise OptionError(f"{axis} = {place:g} outside the cube", expected, "coordinates are those of the cube")
            position[axis] = nearest
        row, column = (slice(position[axis], position[axis] + 1) for axis in ("y", "x"))
        return physical_values(cube, row, column).isel(y=0, x=0)

    def plot(self, ax: Axes | None = None) -> Any:
        """Draw the cube in colours, with its coordinates along the axes."""
        import matplotlib.pyplot as plt

        axes: Any = plt.gca() if ax is None else ax
        cube, edges = as_cube(self._cube), []
        for axis in ("x", "y"):
            centres = np.asarray(cube[axis].values, dtype=np.float64)
            half = (centres[-1] - centres[0]) / max(1, centres.size - 1) / 2 or 0.5
            edges += [centres[0] - half, centres[-1] + half]
        left, right, top, bottom = edges
        axes.imshow(self.rgb(), extent=(left, right, bottom, top), interpolation="nearest")
        axes.set(xlabel="x", ylabel="y")
        return axes
