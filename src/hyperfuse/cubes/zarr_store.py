"""Zarr stores: folders of chunks, written in format 2, which every reader knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import zarr
from numpy.typing import NDArray

from hyperfuse.cubes.cube import nodata_of
from hyperfuse.cubes.found_arrays import FoundArray
from hyperfuse.cubes.grid import grid_of
from hyperfuse.cubes.hdf5 import labelled_attributes, labelled_sides, place_attributes
from hyperfuse.errors import CubeFileError

CHUNK = 128
OWN_NODATA = "fill_value_is_nodata"


@dataclass(frozen=True)
class LoadFromZarr:
    path: str
    name: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with _zarr_errors(Path(self.path)):
            root: Any = zarr.open(self.path, mode="r")
            array = root[self.name] if self.name else root
            return np.asarray(array[key])


def arrays_in_zarr(path: Path) -> list[FoundArray]:
    with _zarr_errors(path):
        root = zarr.open(str(path), mode="r")
        members = [("", root)] if isinstance(root, zarr.Array) else sorted(root.members(max_depth=None))
        found = []
        for name, item in members:
            if isinstance(item, zarr.Array) and item.dtype.kind in "iufbSUOT":
                attributes = dict(item.attrs)
                # Zarr fills with 0 unless told otherwise: only another value, or our own word, means nodata.
                if item.dtype.kind in "iuf" and (item.fill_value or attributes.pop(OWN_NODATA, False)):
                    attributes.setdefault("_FillValue", item.fill_value)
                load = LoadFromZarr(str(path), name)
                found.append(FoundArray(name, item.shape, np.dtype(item.dtype), load, _dims(item), attributes))
        return found


@contextmanager
def created_zarr(path: Path, template: xr.DataArray, options: Mapping[str, str]) -> Iterator[ZarrWriter]:
    bands, height, width = template.shape
    grid = grid_of(template)
    root = zarr.open_group(str(path), mode="w", zarr_format=2)
    nodata = nodata_of(template)
    cube = root.create_array(
        "cube",
        shape=template.shape,
        dtype=template.dtype,
        chunks=(min(bands, 64), min(height, CHUNK), min(width, CHUNK)),
        fill_value=None if nodata is None else template.dtype.type(nodata),
        attributes=_json_ready(labelled_attributes(template))
        | {"_ARRAY_DIMENSIONS": ["band", "y", "x"]}
        | ({} if nodata is None else {OWN_NODATA: True}),
        config={"write_empty_chunks": True},
    )
    for name, (dims, values, attributes) in labelled_sides(template).items():
        side = root.create_array(
            name, shape=values.shape, dtype=values.dtype, fill_value=None, attributes=attributes | {"_ARRAY_DIMENSIONS": list(dims)}
        )
        side[...] = values
    attributes = place_attributes(grid.crs.to_wkt() if grid.crs else None, grid.transform)
    root.create_array("spatial_ref", shape=(), dtype="int64", attributes=attributes | {"_ARRAY_DIMENSIONS": []})
    yield ZarrWriter(cube)
    zarr.consolidate_metadata(str(path), zarr_format=2)


class ZarrWriter:
    def __init__(self, target: Any) -> None:
        self._target = target

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self._target[:, rows, columns] = block


@contextmanager
def _zarr_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AttributeError, MemoryError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CubeFileError(f"{path} cannot be read: {reason}", "a whole Zarr store", "fetch or write it again") from error


def _dims(item: Any) -> tuple[str, ...] | None:
    names = item.attrs.get("_ARRAY_DIMENSIONS") or getattr(item.metadata, "dimension_names", None)
    return tuple(str(name or "") for name in names) if names else None


def _json_ready(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.tolist() if isinstance(value, np.ndarray | np.generic) else value for key, value in attributes.items()}
