"""Simulation from file to files: four of them appear in a folder, or none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

from hyperfuse.errors import CubeWriteError
from hyperfuse.io.atomic import ASIDE, make_work_folder, target_lock
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.physics.simulate import SimulationRecord, simulate, write_simulation_record
from hyperfuse.physics.srf import SRFSpec

HSI_FILE, MSI_FILE, REFERENCE_FILE, OBSERVATION_FILE = "hsi.tif", "msi.tif", "reference.tif", "observation.json"
OUTPUTS = (HSI_FILE, MSI_FILE, REFERENCE_FILE, OBSERVATION_FILE)


def simulate_files(
    reference_path: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    scale: float | str | Fraction,
    srf: SRFSpec,
    psf_fwhm: float | None = None,
    shift: tuple[float, float] = (0.0, 0.0),
    snr_hsi_db: float | None = None,
    snr_msi_db: float | None = None,
    seed: int = 0,
    skip_uncovered: bool = False,
    variable: str | None = None,
    overwrite: bool = False,
    band_axis: int | None = None,
) -> SimulationRecord:
    """Simulate a pair from a file; `hsi.tif`, `msi.tif`, `reference.tif` and `observation.json` appear in `out_dir`."""
    folder = Path(out_dir)
    with appearing_together(folder, OUTPUTS, overwrite=overwrite) as workplace:
        reference = open_cube(reference_path, variable, band_axis)
        pair = simulate(reference, scale, srf, psf_fwhm, shift, snr_hsi_db, snr_msi_db, seed, skip_uncovered)
        record = pair.record.model_copy(update={"reference": Path(reference_path).name})
        write_cube(pair.hsi, workplace / HSI_FILE)
        write_cube(pair.msi, workplace / MSI_FILE)
        write_cube(pair.reference, workplace / REFERENCE_FILE)
        write_simulation_record(record, workplace / OBSERVATION_FILE)
    return record


@contextmanager
def appearing_together(folder: Path, names: tuple[str, ...], *, overwrite: bool) -> Iterator[Path]:
    """Yields an empty folder beside `folder`; when the block ends well, the named files in it move to `folder`, all or
    none.

    Other files in `folder` are left alone; files of the same names stay as they were until every new one is ready.
    """
    _refuse(folder, names, overwrite=overwrite)
    with target_lock(folder.absolute()):
        try:
            workplace = make_work_folder(folder.absolute())
        except OSError as error:
            raise CubeWriteError(
                f"cannot write beside {folder}: {error.strerror}", remedy="choose another folder"
            ) from error
        try:
            yield workplace
            _move_in(workplace, folder, names)
        except CubeWriteError as error:
            # Who asked for `folder` need not know of the workplace.
            raise CubeWriteError(str(error).replace(f"{workplace}{os.sep}", f"{folder}{os.sep}")) from error
        finally:
            shutil.rmtree(workplace, ignore_errors=True)


def _refuse(folder: Path, names: tuple[str, ...], *, overwrite: bool) -> None:
    """Complain before the work, not after."""
    parent = folder.absolute().parent
    if folder.exists() and not folder.is_dir():
        raise CubeWriteError(f"{folder} is a file", "a folder for the outputs", "choose another name")
    if not parent.is_dir():
        raise CubeWriteError(
            f"{parent} is not a folder", "an existing folder to put the outputs' folder in", f"mkdir -p {parent}"
        )
    present = [name for name in names if (folder / name).exists()]
    if present and not overwrite:
        raise CubeWriteError(
            f"{folder} holds {', '.join(present)} already", remedy="choose another folder or add --overwrite"
        )
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise CubeWriteError(f"no permission to write into {folder}", remedy="choose another folder")


def _move_in(workplace: Path, folder: Path, names: tuple[str, ...]) -> None:
    is_new = not folder.exists()
    replaced = workplace / ASIDE
    replaced.mkdir()
    moved: list[str] = []
    try:
        folder.mkdir(exist_ok=True)
        for name in names:
            if (folder / name).exists():
                (folder / name).replace(replaced / name)
            moved.append(name)
            (workplace / name).replace(folder / name)
    except BaseException as error:
        for name in moved:
            (folder / name).unlink(missing_ok=True)
            if (replaced / name).exists():
                (replaced / name).replace(folder / name)
        if is_new and folder.is_dir():
            folder.rmdir()
        if isinstance(error, OSError):
            raise CubeWriteError(
                f"cannot write into {folder}: {error.strerror}", remedy="nothing was left behind"
            ) from error
        raise
