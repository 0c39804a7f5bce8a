"""What is kept of an interrupted run: the folder beside its target, and whether another run may continue from it."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyperfuse.config import FuseConfig
from hyperfuse.errors import CubeWriteError, OptionError
from hyperfuse.fusion.engine import Tile
from hyperfuse.fusion.fusers import Fuser, NetworkFuser
from hyperfuse.fusion.tile_files import TILE_SUFFIX, load_tile, store_tile, tile_file
from hyperfuse.io.atomic import DISK_FULL, atomic_write
from hyperfuse.io.files import parts_of
from hyperfuse.methods.catalogue import MethodFuser
from hyperfuse.methods.missing import PairRegression
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.matryoshka import BandUnits, MsiComponents, PairChannels, Subspace
from hyperfuse.physics.observation import Observation

JOURNAL, SCENE, TARGET = "journal.json", "scene.pt", "target"
# The only classes, beside tensors and plain containers, that a stored scene may hold.
STORED_TYPES: list[Any] = [
    *(Observation, MethodFuser, NetworkFuser, PairRegression),
    *(PairChannels, Subspace, BandUnits, MsiComponents),
]
# How much of an input is compared before a run is resumed, evenly spaced: 64 MB.
PIECES, PIECE_BYTES = 256, 2**18


@dataclass(frozen=True)
class Journal:
    """The state of a run, and what another run must have in common with it to resume it."""

    version: str
    inputs: dict[str, str]
    """By role: a hash of its files."""
    options: dict[str, str]
    tile_size: list[int]
    record: dict[str, str]
    """The provenance of the output, whose date is that of the first run."""

    @classmethod
    def of(
        cls,
        inputs: Mapping[str, Path],
        target: Path,
        config: FuseConfig,
        tile_size: tuple[int, int],
        record: Mapping[str, str],
    ) -> Journal:
        files = {role: _digest(path, target) for role, path in inputs.items()}
        options = {name: str(value) for name, value in config.recorded().items() if name not in files}
        return cls(version("hyperfuse"), files, options, list(tile_size), dict(record))

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

    def load_scene(self, network: AnyNetwork | None) -> tuple[Observation, Fuser]:
        """Load what `begin` stored; networks are not stored, so the fuser gets the given one."""
        try:
            with torch.serialization.safe_globals(STORED_TYPES):
                scene = torch.load(self.path / SCENE, weights_only=True)
            observation, fuser = scene["observation"], scene["fuser"]
        except Exception as error:
            raise OptionError(f"damaged scene.pt in {self.path}", remedy="leave out --resume to start anew") from error
        if network is not None:
            fuser = replace(fuser, network=network)
        return observation, fuser

    def begin(self, journal: Journal, observation: Observation, fuser: Fuser) -> None:
        """Remove what an earlier run left and start a new one."""
        self.remove()
        scene = io.BytesIO()  # torch itself would answer a full disk by another error
        torch.save({"observation": observation, "fuser": replace(fuser, network=None)}, scene)
        with self._errors():
            self.path.mkdir()
            self._write(SCENE, scene.getvalue())
            self._write(JOURNAL, json.dumps(asdict(journal), indent=1).encode())

    def keep(self, tile: Tile, block: NDArray[Any]) -> None:
        """Store a tile, unless a worker already has."""
        path = tile_file(self.path, tile.index)
        if not path.exists():
            with self._errors():
                store_tile(path, block)

    def drop(self, tile: Tile) -> None:
        """Remove what a worker has stored."""
        with suppress(OSError):
            tile_file(self.path, tile.index).unlink(missing_ok=True)

    def finished(self) -> set[int]:
        """Indices of the stored tiles."""
        return {int(path.stem) for path in self.path.glob(f"*{TILE_SUFFIX}") if path.stem.isdecimal()}

    def load(self, tile: Tile, bands: int, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The values of a stored tile; None where it is missing or damaged."""
        return load_tile(tile_file(self.path, tile.index), (bands, *tile.shape), dtype)

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


def _digest(path: Path, target: Path) -> str:
    """A hash of an input: names, sizes and times of all its files, and samples of what they hold.

    Size and time may survive a change. Logs and what is kept of a run may lie in the folder of a product.
    """
    kept = str(target.absolute().with_name(f".{target.name}."))
    files = sorted(
        each for each in parts_of(path.absolute()) if each.suffix != ".log" and not str(each).startswith(kept)
    )
    sampled = files[:: math.ceil(len(files) / PIECES) or 1]
    pieces = PIECES // max(1, len(sampled))
    digest = hashlib.blake2b(digest_size=16)
    for each in files:
        size, modified = each.stat().st_size, each.stat().st_mtime_ns
        digest.update(f"{os.path.relpath(each, path.absolute().parent)} {size} {modified}\n".encode())
    for each in sampled:
        size = each.stat().st_size
        small, most = size <= pieces * PIECE_BYTES, max(1, pieces - 1)
        starts = range(0, size, PIECE_BYTES) if small else [(size - PIECE_BYTES) * i // most for i in range(pieces)]
        with each.open("rb") as file:
            for start in starts:
                file.seek(start)
                digest.update(file.read(PIECE_BYTES))
    return digest.hexdigest()
