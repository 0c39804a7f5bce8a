"""The parts of a product: its files (in a folder, .zip or .tar), their metadata, and the cube it is opened as.

Names of archive members are never used as paths on disk, and files named by metadata are looked up among the files of
the product: neither can lead outside of it. Members that cannot be read in place are unpacked into a temporary folder
(`spool`).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import IO, Any
from xml.etree.ElementTree import Element, ParseError

import numpy as np
import xarray as xr
from affine import Affine
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import fromstring
from numpy.typing import NDArray
from rasterio.crs import CRS

from hyperfuse.errors import CubeFileError
from hyperfuse.io.cube import WindowReader, fitting_nodata, lazy_variable, make_cube, reading
from hyperfuse.io.grid import grid_of
from hyperfuse.io.spool import copied
from hyperfuse.progress import progress

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz")
ARCHIVE_SUFFIXES = (".zip", *TAR_SUFFIXES)
WHOLE_ARCHIVE = "a whole archive"
DOWNLOAD_AGAIN = "download it again"
DEEPEST = 8
CHUNK_BYTES = 2**18
ZIP_LOCAL_HEADER = struct.Struct("<4s22xHH")
MOST_LISTED = 16

MapGrid = tuple[CRS | None, Affine | None]
BandTable = dict[str, tuple[float, float]]


def _read_sensor_bands() -> dict[str, BandTable]:
    tables: dict[str, BandTable] = {}
    text = resources.files(__package__).joinpath("sensor_bands.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        tables.setdefault(row["sensor"], {})[row["band"]] = float(row["wavelength_nm"]), float(row["fwhm_nm"])
    return tables


# Centre and FWHM of each band in nm, for products without them. Sentinel-2: ESA; B9 and B10 of 2C are 2A's. OLI: Barsi
# et al. 2014. TM and ETM+: from the SRFs published by USGS. Hyperion: USGS.
SENSOR_BANDS = _read_sensor_bands()


@dataclass(frozen=True)
class ProductFile:
    """Location of one file, on disk or in an archive. It holds no open file, so it can be sent to another process."""

    name: str
    """Path within the product, with forward slashes."""
    container: str
    """Path of the file itself, or of the archive that holds it."""
    size: int
    offset: int | None = None
    """Position of its bytes in the archive, if they are stored uncompressed."""
    is_member: bool = False
    siblings: tuple[ProductFile, ...] = ()
    """Members that have to be unpacked beside it, such as the header of an ENVI image."""

    @classmethod
    def at(cls, path: Path, name: str | None = None) -> ProductFile:
        return cls(name or path.name, str(path), path.stat().st_size)

    @property
    def base_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def stem(self) -> str:
        return PurePosixPath(self.name).stem

    def __str__(self) -> str:
        return f"{self.container}: {self.name}" if self.is_member else self.container

    def damaged(self, problem: str, expected: str = "the product as delivered") -> CubeFileError:
        """Return the error for a file that lacks something, or contradicts itself."""
        return CubeFileError(f"{self}{problem}", expected, DOWNLOAD_AGAIN)

    def parse_number(self, text: str, name: str) -> float:
        """Convert metadata of this file, called `name`, to a finite number."""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.damaged(f": {name} is {text[:40]!r}", "a number")
        return number

    def local_path(self) -> Path:
        """Return a path on disk; a member of an archive is unpacked once per process."""
        return _unpack(self, *self.siblings) / self.base_name if self.is_member else Path(self.container)

    def location(self) -> tuple[Path, int]:
        """Return a path on disk and the offset of the file in it, which is not zero for uncompressed members."""
        return (Path(self.container), self.offset) if self.offset is not None else (self.local_path(), 0)

    def gdal_path(self) -> Path:
        path, offset = self.location()
        return path if self.offset is None else Path(f"/vsisubfile/{offset}_{self.size},{path}")

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        with reading(Path(self.container), WHOLE_ARCHIVE if self.is_member else "a whole file"):
            if not self.is_member:
                with Path(self.container).open("rb") as stream:
                    yield stream
            elif not self.container.lower().endswith(TAR_SUFFIXES):
                with zipfile.ZipFile(self.container) as archive, archive.open(self.name) as stream:
                    yield stream
            else:
                with tarfile.open(self.container) as bundle:
                    yield bundle.extractfile(self.name) or io.BytesIO()

    def read_bytes(self) -> bytes:
        with self.open() as stream:
            return stream.read()


def _unpack(*files: ProductFile) -> Path:
    """Unpack members of one archive into a temporary folder, once while the archive stays unchanged."""
    archive = Path(files[0].container)
    try:
        changed = archive.stat().st_mtime_ns
    except OSError as error:
        raise CubeFileError(f"{archive} cannot be read: {error.strerror}", WHOLE_ARCHIVE, "put it back") from error
    return copied((changed, files), sum(file.size for file in files), partial(_unpack_into, files))


def _unpack_into(files: Sequence[ProductFile], folder: Path) -> None:
    with progress("Unpacking", -(-sum(file.size for file in files) // CHUNK_BYTES)) as advance:
        for file in files:
            with file.open() as source, Path(folder, file.base_name).open("xb") as target:
                # Reading up to the end of the member also verifies its checksum.
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    advance(1)
                if target.tell() != file.size:
                    raise file.damaged(f" has {target.tell()} of {file.size} bytes", WHOLE_ARCHIVE)


@dataclass(frozen=True)
class ProductFiles:
    """The files of a folder or an archive, by their names in it."""

    path: Path
    files: dict[str, ProductFile]

    def __iter__(self) -> Iterator[ProductFile]:
        return iter(self.files.values())

    def beside(self, key: ProductFile) -> ProductFiles:
        """Return the files in the folder of `key` and below."""
        folder = PurePosixPath(key.name).parent
        return ProductFiles(
            self.path, {name: file for name, file in self.files.items() if PurePosixPath(name).is_relative_to(folder)}
        )

    def find(self, base_name: str) -> ProductFile | None:
        """Return the file of this name, ignoring case and folder."""
        return next((file for file in self if file.base_name.lower() == base_name.lower()), None)

    def require(self, base_name: str, named_by: str) -> ProductFile:
        """Return a file that the metadata refer to."""
        file = self.find(PurePosixPath(base_name.replace("\\", "/")).name)
        if file is None:
            raise self.incomplete(f"{base_name}, which {named_by} names,")
        return file

    def incomplete(self, missing: str) -> CubeFileError:
        return CubeFileError(f"{self.path} is incomplete: {missing} is missing", "the whole product", DOWNLOAD_AGAIN)


def is_zip(path: Path) -> bool:
    return path.name.lower().endswith(".zip")


def list_files(path: Path, depth: int = DEEPEST) -> ProductFiles:
    """List the members of an archive, or the files of a folder and of its subfolders down to `depth` levels."""
    files: dict[str, ProductFile] = {}
    list_archive = zip_members if is_zip(path) else _tar_members
    members = _files_below(path, depth) if path.is_dir() else list_archive(path)
    with reading(path, "a readable folder" if path.is_dir() else WHOLE_ARCHIVE, DOWNLOAD_AGAIN):
        for file in members:
            # The resource forks that macOS adds to archives bear the names of the actual files.
            if file.base_name.startswith("._") or file.name.startswith("__MACOSX/"):
                continue
            files[file.name] = file
    return ProductFiles(path, dict(sorted(files.items())))


def _files_below(folder: Path, depth: int) -> Iterator[ProductFile]:
    for parent, folders, names in os.walk(folder):
        if len(Path(parent).relative_to(folder).parts) + 1 >= depth:
            folders.clear()
        for file in (Path(parent, name) for name in names):
            if file.is_file():
                yield ProductFile.at(file, file.relative_to(folder).as_posix())


def zip_members(path: Path) -> Iterator[ProductFile]:
    """List the files in a .zip archive."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        for member in archive.infolist():
            if member.is_dir() or not _is_inside(member.filename):
                continue
            if member.flag_bits & 1:
                raise CubeFileError(f"{path} is encrypted", "an archive without a password", "unpack it")
            stored = member.compress_type == zipfile.ZIP_STORED
            offset = _data_offset(stream, member.header_offset) if stored else None
            yield ProductFile(member.filename, str(path), member.file_size, offset, is_member=True)


def _data_offset(stream: IO[bytes], header_offset: int) -> int:
    """Return where the data of a member begin: after its local header, whose length only that header states."""
    stream.seek(header_offset)
    signature, name_length, extra_length = ZIP_LOCAL_HEADER.unpack(stream.read(ZIP_LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise zipfile.BadZipFile("a member is not at the offset in the directory")
    return header_offset + ZIP_LOCAL_HEADER.size + int(name_length) + int(extra_length)


def _tar_members(path: Path) -> Iterator[ProductFile]:
    compressed = not path.name.lower().endswith(".tar")
    with tarfile.open(path) as archive:
        for member in archive:
            if not member.isreg() or not _is_inside(member.name):
                continue
            if not compressed and member.offset_data + member.size > path.stat().st_size:
                raise CubeFileError(f"{path} is truncated", f"{member.name} as a whole", DOWNLOAD_AGAIN)
            offset = None if compressed or member.issparse() else member.offset_data
            yield ProductFile(member.name, str(path), member.size, offset, is_member=True)


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts


class XmlMetadata:
    """An XML document, without namespaces; document types and entities are refused."""

    def __init__(self, file: ProductFile) -> None:
        self.file = file
        try:
            self.root: Element = fromstring(file.read_bytes(), forbid_dtd=True)
        except DefusedXmlException as error:
            raise file.damaged(" has a document type or entities, which no product has") from error
        except (ParseError, ValueError, LookupError) as error:
            raise file.damaged(f" is not well-formed XML: {error}") from error
        for element in self.root.iter():
            if isinstance(element.tag, str):
                element.tag = element.tag.rpartition("}")[2]

    def text(self, *paths: str) -> str | None:
        """Return the text at the first of these paths that has any."""
        texts = ((self.root.findtext(path) or "").strip() for path in paths)
        return next((text for text in texts if text), None)

    def number(self, *paths: str) -> float:
        text = self.text(*paths)
        if text is None:
            raise self.file.damaged(f" has no {paths[0]}")
        return self.file.parse_number(text, paths[0])

    def child_number(self, element: Element, name: str) -> float:
        return self.file.parse_number((element.findtext(name) or "").strip(), f"{element.tag}/{name}")


class MtlMetadata:
    """The groups of a USGS MTL file in any of its three forms: text (GROUP = ... END), JSON or XML."""

    def __init__(self, file: ProductFile) -> None:
        self.file = file
        suffix = file.base_name.rpartition(".")[2].lower()
        if suffix == "xml":
            root = XmlMetadata(file).root
            self.groups = {group.tag: {entry.tag: (entry.text or "").strip() for entry in group} for group in root}
        else:
            text = file.read_bytes().decode("utf-8", "replace")
            self.groups = self._parse_json(text) if suffix == "json" else self._parse_text(text)

    def get(self, group: str, name: str) -> str | None:
        return self.groups.get(group, {}).get(name)

    def text(self, group: str, name: str) -> str:
        text = self.get(group, name)
        if text is None:
            raise self.file.damaged(f" has no {name} in {group}")
        return text

    def number(self, group: str, name: str) -> float:
        return self.file.parse_number(self.text(group, name), name)

    def _parse_text(self, text: str) -> dict[str, dict[str, str]]:
        groups: dict[str, dict[str, str]] = {}
        opened: list[str] = []
        for line in text.splitlines():
            name, _, value = (part.strip().strip('"') for part in line.partition("="))
            if name == "GROUP":
                opened.append(value)
                groups[value] = {}
            elif name == "END_GROUP":
                del opened[-1:]
            elif opened and name != "END":
                groups[opened[-1]][name] = value
        # Some copies lack the last line, END; the outermost group ends just before it.
        if not groups or opened:
            raise self.file.damaged(" is not a complete list of GROUP = ... END_GROUP")
        return groups

    def _parse_json(self, text: str) -> dict[str, dict[str, str]]:
        try:
            root = next(iter(json.loads(text).values()))
            return {name: {key: str(value) for key, value in group.items()} for name, group in root.items()}
        except (ValueError, AttributeError, StopIteration, RecursionError) as error:
            raise self.file.damaged(f" is not JSON of groups: {error}") from error


@dataclass(frozen=True)
class Band:
    """One row of the band table; physical value = stored value * scale + offset."""

    name: str
    wavelength_nm: float
    fwhm_nm: float
    scale: float = 1.0
    offset: float = 0.0
    good: bool = True
    detector: str = ""


@dataclass(frozen=True)
class Product:
    """A product as opened: its cube, and notes for the user (label -> sentence, in display order)."""

    cube: xr.DataArray
    notes: dict[str, str] = field(default_factory=dict)


def make_product(
    reader: WindowReader,
    bands: Sequence[Band],
    attributes: Mapping[str, str],
    scene: str,
    *,
    nodata: float | None,
    grid: MapGrid = (None, None),
    flagged: str = "",
    others: Iterable[str] = (),
    notes: Mapping[str, str] | None = None,
) -> Product:
    """Build a lazy cube and its notes; `reader` reads one band for each of `bands`.

    `nodata` is ignored if the data type cannot represent it, `flagged` says why bands are flagged bad, `others` lists
    what else can be selected with `--variable`, and `notes` replace those of the same label.
    """
    column_names = ("wavelength_nm", "fwhm_nm", "good", "scale", "offset")
    columns: dict[str, Any] = {name: [getattr(band, name) for band in bands] for name in column_names}
    cube = make_cube(
        lazy_variable(reader),
        band_names=[band.name for band in bands],
        nodata=fitting_nodata(nodata, reader.dtype),
        crs=grid[0],
        transform=grid[1],
        attributes=attributes,
        **columns,
    )
    detectors = [band.detector for band in bands]
    return Product(cube, describe(cube, scene, detectors, flagged, others) | dict(notes or {}))


def describe(
    cube: xr.DataArray, scene: str, detectors: Sequence[str] = (), flagged: str = "", others: Iterable[str] = ()
) -> dict[str, str]:
    """Describe a product in one sentence for each label; see `make_product` for the parameters."""
    bad = int((~cube["good"].values).sum())
    names, transform = list_names(others), grid_of(cube).transform
    map_text = "map" if transform is None or transform.b == transform.d == 0 else "map, rotated"
    notes = {
        "product": f"{cube.attrs['product']}, {scene}",
        "detectors": _describe_detectors(detectors, cube["wavelength"].values) if any(detectors) else "",
        "scaling": _describe_scaling(detectors, cube["scale"].values, cube["offset"].values),
        "flags": f"{bad} of {cube.sizes['band']} bands are flagged bad: {flagged}" if bad else "no band is flagged bad",
        "geometry": "sensor geometry, without map coordinates" if transform is None else map_text,
        "also available": f"--variable {names} (in fuse --hsi-variable or --msi-variable)" if names else "nothing",
    }
    return {label: note for label, note in notes.items() if note}


def identity(product: str, sensor: str, acquired: str | None, quantity: str) -> dict[str, str]:
    """Return the attributes that a cube keeps wherever it goes; `sensor` is a name by which SRFs are found."""
    attributes = {"product": product, "sensor": sensor, "acquired": acquired or "", "quantity": quantity}
    return {key: text for key, text in attributes.items() if text}


def list_names(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - MOST_LISTED} more" if len(names) > MOST_LISTED else ""
    return " | ".join(names[:MOST_LISTED]) + more


def format_scaling(scale: float, offset: float) -> str:
    """Format a scaling, for example as "stored * 0.0001 - 0.1"."""
    added = f" {'-' if offset < 0 else '+'} {abs(offset):g}" if offset else ""
    return f"stored * {scale:g}{added}"


def _describe_scaling(detectors: Sequence[str], scale: NDArray[np.float64], offset: NDArray[np.float64]) -> str:
    labels = list(detectors) or [""] * scale.size
    scalings = list(dict.fromkeys(zip(labels, scale.tolist(), offset.tolist(), strict=True)))
    if len({pair[1:] for pair in scalings}) == 1:
        return format_scaling(scale[0], offset[0])
    if len(scalings) == len(set(labels)):
        return "; ".join(f"{detector} {format_scaling(*pair)}" for detector, *pair in scalings)
    return "stored * scale + offset, which differ by band"


def _describe_detectors(detectors: Sequence[str], wavelength_nm: NDArray[np.float64]) -> str:
    """For example "VNIR 91 bands, 418-993 nm; SWIR 133 bands, 902-2445 nm; overlap 902-993 nm"."""
    ranges, parts = [], []
    for name in dict.fromkeys(detectors):
        centres = wavelength_nm[np.array(detectors) == name]
        ranges.append((centres.min(), centres.max()))
        parts.append(f"{name} {centres.size} bands, {centres.min():.0f}-{centres.max():.0f} nm")
    low, high = max(low for low, _ in ranges), min(high for _, high in ranges)
    if len(ranges) > 1 and low < high:
        parts.append(f"overlap {low:.0f}-{high:.0f} nm")
    return "; ".join(parts)
