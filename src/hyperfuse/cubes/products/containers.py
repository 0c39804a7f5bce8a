"""HDF5 and NetCDF-4 files of a product, also inside an archive, and cubes that are joined from several of their arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyperfuse.cubes.found_arrays import FoundArray
from hyperfuse.cubes.hdf5 import arrays_in_hdf5, opened_hdf5
from hyperfuse.cubes.lazy import WindowReader
from hyperfuse.cubes.products.delivery import DeliveredFile
from hyperfuse.cubes.side_arrays import text
from hyperfuse.errors import CubeFileError


@dataclass(frozen=True)
class LoadDelivered:
    """Reads part of a data set wherever its file is found in this process."""

    file: DeliveredFile
    name: str

    def __call__(self, key: tuple[Any, ...]) -> NDArray[Any]:
        with opened_hdf5(self.file.on_disk()) as source:
            return np.asarray(source[self.name][key])


@dataclass(frozen=True)
class JoinedReader:
    """Bands of several readers of one size, one after the other; of each reader, the bands listed."""

    parts: tuple[tuple[WindowReader, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        _, height, width = self.parts[0][0].shape
        return sum(len(chosen) for _, chosen in self.parts), height, width

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(*{reader.dtype for reader, _ in self.parts})

    def read(self, bands: NDArray[np.int64], rows: slice, columns: slice) -> NDArray[Any]:
        block = np.empty((bands.size, rows.stop - rows.start, columns.stop - columns.start), self.dtype)
        first = 0
        for reader, chosen in self.parts:
            here = (bands >= first) & (bands < first + len(chosen))
            if here.any():
                block[here] = reader.read(np.array(chosen, dtype=np.int64)[bands[here] - first], rows, columns)
            first += len(chosen)
        return block


def arrays_of(file: DeliveredFile) -> list[FoundArray]:
    return [replace(found, load=LoadDelivered(file, found.name)) for found in arrays_in_hdf5(file.on_disk())]


@contextmanager
def opened_attributes(file: DeliveredFile) -> Iterator[Attributes]:
    with opened_hdf5(file.on_disk()) as source:
        yield Attributes(file, source)


@dataclass(frozen=True)
class Attributes:
    """The attributes of a file's root; what is missing becomes one clear error."""

    file: DeliveredFile
    source: Any

    def __contains__(self, name: str) -> bool:
        return name in self.source.attrs

    def numbers(self, name: str) -> NDArray[np.float64]:
        value = np.asarray(self._require(name))
        if value.dtype.kind not in "iufb" or not np.isfinite(value).all():
            raise CubeFileError(f"{self.file.shown}: attribute {name} is {str(value)[:40]}", "finite numbers", "fetch it again")
        return value.astype(np.float64).ravel()

    def number(self, name: str) -> float:
        values = self.numbers(name)
        if values.size != 1:
            raise CubeFileError(f"{self.file.shown}: attribute {name} holds {values.size} numbers", "one", "fetch it again")
        return float(values[0])

    def text(self, name: str) -> str | None:
        return (text(self.source.attrs[name]) or "").strip("\0 ") or None if name in self else None

    def _require(self, name: str) -> Any:
        if name not in self:
            raise CubeFileError(f"{self.file.shown} has no attribute {name}", "a product as delivered", "fetch it again")
        return self.source.attrs[name]
