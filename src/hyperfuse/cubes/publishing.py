"""Outputs appear whole or not at all: write into a hidden folder beside the target, then rename."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperfuse.errors import CubeWriteError, HyperfuseError


@contextmanager
def published(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yields a path to write to, of the same name; when the block ends well, it and every file made beside it move to the target's
    folder, the named one last. When it does not, nothing remains and the old target is untouched.
    """
    refuse_unwritable(target, overwrite=overwrite)
    workplace = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    try:
        yield workplace / target.name
        _move_all(workplace, target)
    except OSError as error:
        raise _as_write_error(error, target) from error
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def refuse_unwritable(target: Path, *, overwrite: bool) -> None:
    """Complain before hours of work, not after."""
    if target.exists() and not overwrite:
        raise CubeWriteError(f"{target} exists already", remedy="choose another name or add --overwrite")
    if not target.parent.is_dir():
        raise CubeWriteError(f"{target.parent} is not a folder", "an existing folder for the output", f"mkdir -p {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise CubeWriteError(f"no permission to write into {target.parent}", remedy="choose another folder")


def _move_all(workplace: Path, target: Path) -> None:
    made = sorted(workplace.iterdir(), key=lambda path: path.name == target.name)
    for source in made:
        destination = target.parent / source.name
        if destination.is_dir():
            destination.rename(workplace / f"{source.name}.replaced")
        source.replace(destination)


def _as_write_error(error: OSError, target: Path) -> HyperfuseError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CubeWriteError(
            f"no space left while writing {target}", remedy="nothing was left behind; free space or choose another disk"
        )
    return CubeWriteError(f"cannot write {target}: {error.strerror or error}", remedy="nothing was left behind")
