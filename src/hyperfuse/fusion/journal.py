"""The state of an interrupted run, in a hidden folder beside the target, from which the next one resumes.

.NAME.tiles/journal.json     inputs, options and tile size; a resumed run must have the same
            scene.pt         observation, warp and the fuser with its statistics
            00012.tile       values of a finished tile, compressed, with a checksum
            target/          the partly written target; not reused
"""

from __future__ import annotations

import glob
import json
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numcodecs import Blosc
from numpy.typing import NDArray

from hyperfuse.config import FuseConfig
from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.fusion.engine import Tile
from hyperfuse.fusion.fusers import Fuser, NetworkFuser
from hyperfuse.fusion.warp import Warp
from hyperfuse.io.atomic import DISK_FULL, atomic_write
from hyperfuse.io.output import provenance_of
from hyperfuse.methods.catalogue import MethodFuser
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.matryoshka import PairChannels, Subspace
from hyperfuse.physics.observation import Observation

JOURNAL, SCENE, TARGET = "journal.json", "scene.pt", "target"
# The only classes, beside tensors and plain containers, that a stored scene may hold.
STORED_TYPES: list[Any] = [Observation, MethodFuser, NetworkFuser, PairChannels, Subspace]
CODEC = Blosc(cname="lz4", clevel=1, shuffle=Blosc.SHUFFLE)
CHECKSUM_BYTES = 4
# A product is a folder of files; of larger ones only so many are compared.
MOST_FILES = 10_000
# Options that name files, which are compared as inputs.
INPUT_OPTIONS = ("weights", "mask", "hsi_mask")


@dataclass(frozen=True)
class Journal:
    """The state of a run, and what another run must have in common with it to resume it."""

    version: str
    inputs: dict[str, list[list[Any]]]
    """By role: name, size and modification time of every file."""
    options: dict[str, str]
    tile_size: list[int]
    record: dict[str, str]
    """The provenance of the output, whose date is that of the first run."""

    @classmethod
    def of(
        cls, inputs: Mapping[str, Path], config: FuseConfig, tile_size: tuple[int, int], record: Mapping[str, str]
    ) -> Journal:
        files = {role: _files_of(path) for role, path in inputs.items()}
        options = {name: str(value) for name, value in config.recorded().items() if name not in INPUT_OPTIONS}
        return cls(version("hyperfuse"), files, options, list(tile_size), dict(record))

    @property
    def method(self) -> str | None:
        """By which the first run fused; None where that was a network."""
        return provenance_of(self.record).get("method")

    def difference(self, other: Journal) -> str | None:
        """Describe the first difference that would change the result."""
        if self.version != other.version:
            return f"hyperfuse {self.version} instead of {other.version}"
        for own, others in ((self.inputs, other.inputs), (self.options, other.options)):
            for name in sorted({*own, *others}):
                if own.get(name) != others.get(name):
                    return f"another {name}"
        return None


class WorkFolder:
    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target.with_name(f".{target.name}.tiles")

    @property
    def workplace(self) -> Path:
        """An empty place in which to write the target."""
        place = self.path / TARGET
        shutil.rmtree(place, ignore_errors=True)
        return place

    def journal(self) -> Journal | None:
        """The journal of an interrupted run; None where there is none, or an incomplete one."""
        try:
            return Journal(**json.loads((self.path / JOURNAL).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def load_scene(self, network: AnyNetwork | None) -> tuple[Observation, Warp | None, Fuser]:
        """Load what `begin` stored; networks are not stored, so the fuser gets the given one."""
        try:
            with torch.serialization.safe_globals(STORED_TYPES):
                scene = torch.load(self.path / SCENE, weights_only=True)
            observation, warp, fuser = scene["observation"], scene["warp"], scene["fuser"]
        except Exception as error:
            raise OptionError(f"damaged scene.pt in {self.path}", remedy="leave out --resume to start anew") from error
        if network is not None:
            fuser = replace(fuser, network=network)
        return observation, None if warp is None else Warp.from_notes(warp), fuser

    def begin(self, journal: Journal, observation: Observation, warp: Warp | None, fuser: Fuser) -> None:
        """Remove what an earlier run left and start a new one."""
        self.remove()
        notes = None if warp is None else warp.notes()
        scene = {"observation": observation, "warp": notes, "fuser": replace(fuser, network=None)}
        with self._errors():
            self.path.mkdir()
            torch.save(scene, self.path / SCENE)
            self._write(JOURNAL, json.dumps(asdict(journal), indent=1).encode())

    def store(self, tile: Tile, block: NDArray[Any]) -> None:
        with self._errors():
            packed = CODEC.encode(np.ascontiguousarray(block))
            self._write(_name(tile), zlib.crc32(packed).to_bytes(CHECKSUM_BYTES, "big") + packed)

    def finished(self) -> set[int]:
        """Indices of the stored tiles."""
        return {int(path.stem) for path in self.path.glob("*.tile")}

    def load(self, tile: Tile, bands: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The values of a stored tile; None where it is missing or damaged."""
        try:
            content = (self.path / _name(tile)).read_bytes()
        except OSError:
            return None
        checksum, packed = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        if zlib.crc32(packed).to_bytes(CHECKSUM_BYTES, "big") != checksum:
            return None
        values = np.frombuffer(CODEC.decode(packed), dtype)
        shape = (bands, *tile.shape)
        return values.reshape(shape) if values.size == np.prod(shape) else None

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, name: str, content: bytes) -> None:
        with atomic_write(self.path / name, sync=False) as temporary:
            temporary.write_bytes(content)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = "no space left" if error.errno in DISK_FULL else (error.strerror or str(error))
            got = f"{what} while storing a tile of {self.target}"
            raise CubeWriteError(got, remedy="choose another disk") from error


def _name(tile: Tile) -> str:
    return f"{tile.index:05d}.tile"


def _files_of(path: Path) -> list[list[Any]]:
    """Name, size and modification time of a file and its companions (a header's data), or of all files in a folder."""
    path = path.absolute()
    found = path.rglob("*") if path.is_dir() else path.parent.glob(f"{glob.escape(path.stem)}.*")
    files = sorted(each for _, each in zip(range(MOST_FILES), found, strict=False) if each.is_file())
    return [[str(each), each.stat().st_size, each.stat().st_mtime_ns] for each in files]
