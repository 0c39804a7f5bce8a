"""Outputs appear whole or not at all: write into a hidden folder beside the target, then rename."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hyperfuse.cubes.target_lock import ASIDE, new_workplace, only_run_on
from hyperfuse.errors import CubeWriteError, HyperfuseError

ATTEMPTS, SECONDS_BETWEEN = 40, 0.05
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def published(
    target: Path,
    *,
    overwrite: bool = False,
    beside: Sequence[Path] = (),
    stale: Sequence[Path] = (),
    workplace: Path | None = None,
) -> Iterator[Path]:
    """Yields a path to write to, of the same name; when the block ends well, it and every file made beside it move to the target's
    folder, the named one last. When it does not, nothing remains and the old target is untouched.

    `beside` are the files that will be made with the target and are protected like it; `stale` are files that described the old
    target and would now describe the new one wrongly. `workplace` names the hidden folder, where somebody must know it who comes
    after a run that ended without a chance to clear it away.
    """
    for path in (*beside, target):
        refuse_unwritable(path, overwrite=overwrite)
    with only_run_on(target):
        with _write_errors(target):
            if workplace is None:
                workplace = new_workplace(target)
            else:
                workplace.mkdir()
        try:
            with _write_errors(target):
                made = workplace / "made"
                made.mkdir()
                yield made / target.name
                _move_all(made, workplace, target, stale)
        finally:
            _remove(workplace)


def refuse_unwritable(target: Path, *, overwrite: bool) -> None:
    """Complain before hours of work, not after."""
    if target.exists() and not overwrite:
        raise CubeWriteError(f"{target} exists already", remedy="choose another name or add --overwrite")
    if target.is_dir() and not _is_replaceable_folder(target):
        raise CubeWriteError(f"{target} is a folder of other things", "a file name, or a Zarr store", "choose another name")
    if not target.parent.is_dir():
        raise CubeWriteError(f"{target.parent} is not a folder", "an existing folder for the output", f"mkdir -p {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise CubeWriteError(f"no permission to write into {target.parent}", remedy="choose another folder")


def _is_replaceable_folder(folder: Path) -> bool:
    """An empty folder or a Zarr store; any other may hold somebody's work."""
    names = {path.name for path in folder.iterdir()}
    return not names or bool(names & {".zgroup", ".zarray", ".zmetadata", "zarr.json"})


def _move_all(made: Path, workplace: Path, target: Path, stale: Sequence[Path]) -> None:
    """Old files step aside into the workplace, which is removed at the end; where a step fails, they go back."""
    aside = workplace / ASIDE
    replaced: list[tuple[Path, Path]] = []
    published_now: list[Path] = []
    try:
        sources = sorted(made.iterdir(), key=lambda path: path.name == target.name)
        in_the_way = [
            target.parent / source.name for source in sources if source.is_dir() or (target.parent / source.name).is_dir()
        ]
        for destination in (*stale, *in_the_way):
            if destination.exists():
                aside.mkdir(exist_ok=True)
                destination.rename(aside / destination.name)
                replaced.append((aside / destination.name, destination))
        for source in sources:
            source.replace(target.parent / source.name)
            published_now.append(target.parent / source.name)
    except OSError:
        for kept, destination in reversed(replaced):
            if destination not in published_now:
                kept.rename(destination)
        raise


def _remove(workplace: Path) -> None:
    """Zarr's threads may still be writing into it for a moment after an error."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(workplace, ignore_errors=True)
        if not workplace.exists():
            return
        time.sleep(SECONDS_BETWEEN)


@contextmanager
def _write_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _as_write_error(error, target) from error
    except MemoryError as error:
        raise CubeWriteError(f"not enough memory to write {target}", remedy="choose .tif, .nc, .zarr or .npy") from error


def _as_write_error(error: OSError, target: Path) -> HyperfuseError:
    if error.errno in FULL:
        return CubeWriteError(
            f"no space left while writing {target}", remedy="nothing was left behind; free space or choose another disk"
        )
    return CubeWriteError(
        f"cannot write {target}: {error.strerror or error}", remedy="nothing was left behind; choose another folder"
    )
