"""Fuse two images, in memory or in files, into one cube: the one way in.

A scene that fits into memory is a single tile; every scene takes the same way, whether its tiles are computed here, in
threads, in worker processes or on a cluster, and whether they go into an array or a file. Whatever ends a run, the
target is complete or as it was before; tiles finished after the first seconds stay in a hidden folder beside it, and
`resume` continues from them:

    .NAME.tiles/journal.json     inputs, options and tile size; a resumed run must have the same
                scene.pt         observation and the fuser with its statistics
                00012.tile       values of a finished tile, with a checksum
                target/          the partly written target; not reused
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from hyperfuse.config import FuseConfig, ObservationConfig, OutputConfig, takes_options
from hyperfuse.errors import Cancelled, HyperfuseError, OptionError
from hyperfuse.fusion.engine import FusedTile, FusedTiles, Tile, TileJob, bounded_pools, fuse_tiles
from hyperfuse.fusion.kept import Journal, WorkFolder
from hyperfuse.fusion.observe import estimate_pair, warn_of_differences
from hyperfuse.fusion.pair import align_pair
from hyperfuse.fusion.plan import (
    OUTPUT_BLOCK,
    Image,
    PathLike,
    Plan,
    input_paths,
    make_plan,
    open_pair,
    summarise_plan,
)
from hyperfuse.io.atomic import CubeWriter, target_lock
from hyperfuse.io.files import check_target, created_cube, write_cube
from hyperfuse.io.output import Clipping, provenance_of, to_stored
from hyperfuse.methods.catalogue import AUTO, find_method
from hyperfuse.physics.observation import Observation
from hyperfuse.progress import progress

# Formats that are written in one piece, from all values at once. MATLAB's older version is one, its newer is not.
WRITTEN_AT_ONCE = (".npz",)
MATLAB, TIFF_SUFFIXES = ".mat", (".tif", ".tiff")
# A signal is answered between two writes.
WRITTEN_ROWS = 512
ENVI_HEADER, ENVI_PIXELS = ".hdr", ".img"
# Tiles are kept from this time of a run on: keeping takes as much disk as the output, and less work than this is soon
# repeated.
SECONDS_NOT_KEPT = 20.0
# How uncertainties are stored, whatever the fused image is.
STORED_ERRORS: dict[str, Any] = {
    "dtype": "float32",
    "scale_factor": 1.0,
    "nodata": None,
    "uncertainty": None,
    "change_mask": None,
}
# Options that may name files, whose content is compared when a run is resumed.
OTHER_INPUTS = ("weights", "srf", "wavelengths", "msi_wavelengths")


@dataclass(frozen=True)
class FusionRun:
    """What a run did: its result, how many tiles and pixels, and the seconds of computing, summed over threads."""

    path: Path | None
    cube: xr.DataArray | None = field(repr=False)
    tiles: int
    pixels: int
    seconds: float


@takes_options(FuseConfig)
def fuse(
    hsi: Image,
    msi: Image,
    output: PathLike | None = None,
    config: FuseConfig | None = None,
    observation: Observation | None = None,
) -> xr.DataArray | Path:
    """Fuse a coarse hyperspectral image (HSI) with a fine multispectral image (MSI) of the same place.

    The result has the HSI's bands, data type, scale and nodata on the MSI's grid. Without a georeference on both
    images they are taken to cover the same extent. Shift, PSF, SRF and noise are estimated from the pair; what is
    known may be given. The work is done at once, also for arrays of Dask, which are read window by window.

    Parameters
    ----------
    hsi, msi : cube, array (band, y, x) or path
        The coarse and the fine image.
    output : path, optional
        The file to write (.tif .hdr .nc .h5 .zarr .mat .npz .npy); without it the fused cube is returned.
    config : FuseConfig, optional
        All options in one object. Each of them may also be given as a keyword, such as ``method``, ``psf_fwhm``,
        ``srf``, ``shift``, ``extent``, ``bounds``, ``mask``, ``dtype``, ``compress``, ``ram_gb`` or ``workers``; see
        `hyperfuse.FuseConfig` and docs/options.md.
    observation : Observation, optional
        What `hyperfuse.estimate` has found, instead of estimating it here.

    Returns
    -------
    xarray.DataArray or pathlib.Path
        The fused cube, or the path of the written file.

    Examples
    --------
    >>> import hyperfuse, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> fine = hyperfuse.make_cube(rng.random((20, 32, 32)).cumsum(1), wavelength_nm=np.linspace(400, 900, 20))
    >>> pair = hyperfuse.simulate(fine, scale=4, srf="rgb+nir")
    >>> hyperfuse.fuse(pair.hsi, pair.msi, method="gsa", estimate=False).shape
    (20, 32, 32)
    """
    if output is None and any(getattr(image, "chunks", None) is not None for image in (hsi, msi)):
        got = "fuse computes arrays of Dask at once, window by window, and returns the result in memory"
        warnings.warn(f"{got}; give an output file if it does not fit", stacklevel=3)
    run = run_fusion(hsi, msi, output, config or FuseConfig(), observation=observation)
    return cast("xr.DataArray | Path", run.path if run.cube is None else run.cube)


@takes_options(FuseConfig)
def uncertainty(
    hsi: Image, msi: Image, config: FuseConfig | None = None, observation: Observation | None = None
) -> xr.DataArray:
    """Estimate the error of every value that `fuse` returns for the same pair with the default method.

    Parameters
    ----------
    hsi, msi : cube, array (band, y, x) or path
        The coarse and the fine image.
    config : FuseConfig, optional
        As for `fuse`; its options may also be given as keywords.
    observation : Observation, optional
        What `hyperfuse.estimate` has found, instead of estimating it here.

    Returns
    -------
    xarray.DataArray
        A standard deviation in physical units, float32 (docs/model_card.md says how far to trust it).

    Examples
    --------
    >>> import hyperfuse, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> fine = hyperfuse.make_cube(rng.random((20, 48, 48)).cumsum(1), wavelength_nm=np.linspace(400, 900, 20))
    >>> pair = hyperfuse.simulate(fine, scale=4, srf="rgb+nir")
    >>> hyperfuse.uncertainty(pair.hsi, pair.msi, estimate=False).shape
    (20, 48, 48)
    """
    config = (config or FuseConfig()).replace(**STORED_ERRORS)
    cube = run_fusion(hsi, msi, None, config, uncertainty=True, observation=observation).cube
    assert cube is not None  # without an output file
    return cube


@takes_options(ObservationConfig)
def estimate(hsi: Image, msi: Image, config: ObservationConfig | None = None) -> Observation:
    """Estimate how a pair was observed: shift, PSF, SRF and noise.

    Parameters
    ----------
    hsi, msi : cube, array (band, y, x) or path
        The coarse and the fine image.
    config : ObservationConfig, optional
        What is known (``psf_fwhm``, ``shift``, ``srf``), masks and variables; also accepted as keywords.

    Returns
    -------
    Observation
        Scale, PSF width, shift, SRF, offset and noise levels, with a confidence between 0 and 1.

    Examples
    --------
    >>> import hyperfuse, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> fine = hyperfuse.make_cube(rng.random((20, 48, 48)).cumsum(1), wavelength_nm=np.linspace(400, 900, 20))
    >>> pair = hyperfuse.simulate(fine, scale=4, srf="rgb+nir")
    >>> hyperfuse.estimate(pair.hsi, pair.msi).scale
    (4.0, 4.0)
    """
    config = config or ObservationConfig()
    hsi_cube, msi_cube, masks = open_pair(hsi, msi, config)
    pair = align_pair(hsi_cube, msi_cube, config, **masks)
    found = estimate_pair(pair, hsi_cube, config)
    warn_of_differences(found)
    return found.observation


def run_fusion(
    hsi: Image,
    msi: Image,
    output: PathLike | None,
    config: FuseConfig,
    *,
    uncertainty: bool = False,
    observation: Observation | None = None,
) -> FusionRun:
    """Check, plan and carry out one fusion, and then that of its uncertainty where `config` wants it.

    With `uncertainty` the result is the expected error instead of the fused image. A known `observation` is used
    instead of an estimated one.
    """
    target = None if output is None else Path(output)
    check_request(hsi, msi, target, config)
    with ExitStack() as stack:
        if target is not None:
            stack.enter_context(target_lock(target))
        stack.enter_context(bounded_pools())
        run = _run(hsi, msi, target, config, uncertainty=uncertainty, observation=observation)
    if config.uncertainty is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # it would say about the pair what has been said
            stored = config.replace(**STORED_ERRORS)
            run_fusion(hsi, msi, config.uncertainty, stored, uncertainty=True, observation=observation)
    return run


def dry_run(hsi: Image, msi: Image, output: PathLike, config: FuseConfig) -> dict[str, str]:
    """What `fuse` would do, in which time and how much memory. Nothing is written."""
    check_request(hsi, msi, Path(output), config)
    start = time.perf_counter()
    with bounded_pools():
        plan = make_plan(hsi, msi, config)
        return summarise_plan(plan, Path(output), time.perf_counter() - start)


def check_request(hsi: Image, msi: Image, target: Path | None, config: FuseConfig) -> None:
    """Refuse what cannot succeed before any work is done."""
    if config.method != AUTO:
        find_method(config.method)
    paths = {role: _real(path) for role, path in input_paths(hsi, msi, config).items()}
    same = "hsi" in paths and paths["hsi"] == paths.get("msi")
    if same and config.hsi_variable == config.msi_variable:
        raise OptionError(f"{hsi} as both HSI and MSI", "a coarse image and a fine one", "name two images")
    beside = [each for each in (config.uncertainty, config.change_mask) if each is not None]
    if len({_real(each) for each in beside}) < len(beside):
        got = f"{config.uncertainty} for the uncertainty and the change mask"
        raise OptionError(got, "two files", "fix --uncertainty or --change-mask")
    for each in beside:
        _require_own_file(each, hsi, msi, config)
        check_target(each, config if each == config.uncertainty else OutputConfig(overwrite=config.overwrite))
    if target is None:
        return
    _require_own_file(target, hsi, msi, config)
    for name, other in (("uncertainty", config.uncertainty), ("change-mask", config.change_mask)):
        if other is not None and _real(other) == _real(target):
            got = f"{target} for the fused image and its {name.replace('-', ' ')}"
            raise OptionError(got, "two files", f"fix -o or --{name}")
    check_target(target, config)


def _require_own_file(target: Path, hsi: Image, msi: Image, config: FuseConfig) -> None:
    """Refuse to write over an input."""
    # However it is spelled: with `..`, through a linked folder, or as a link to the input.
    written = {_real(target)}
    if target.suffix.lower() == ENVI_HEADER:
        written.add(_real(target).with_suffix(ENVI_PIXELS))
    for role, path in input_paths(hsi, msi, config).items():
        if _real(path) in written:
            raise OptionError(f"output {target}, which is the {role} itself", "a file of its own", "fix it")


def _real(path: Path) -> Path:
    """Without links and `..`; unlike `Path.resolve`, also of links that point to each other."""
    try:
        return Path(os.path.realpath(path))
    except ValueError as error:
        raise OptionError(f"{path}, a name with a NUL character", "none", "fix it") from error


def _run(
    hsi: Image,
    msi: Image,
    target: Path | None,
    config: FuseConfig,
    *,
    uncertainty: bool,
    observation: Observation | None,
) -> FusionRun:
    folder = None if target is None else WorkFolder(target)
    inputs = input_paths(hsi, msi, config)
    for name in OTHER_INPUTS:
        value = getattr(config, name)
        # A value that is no path may be longer than one.
        with suppress(OSError):
            if isinstance(value, str | os.PathLike) and Path(value).exists():
                inputs[name] = Path(value)
    journal = None if folder is None else _journal_to_resume(folder, inputs, config)
    method = None if journal is None else provenance_of(journal.record).get("method")
    kept_from = time.monotonic() + (SECONDS_NOT_KEPT if journal is None else 0)
    plan = make_plan(hsi, msi, config, method=method, uncertainty=uncertainty, observation=observation)
    seconds, clipping = 0.0, Clipping()
    if plan.memory.whole and journal is None:
        # The only tile is computed before the output is created: then it is known whether any pixel is missing.
        folder = None
        with progress("Fusing", total=1, unit="tiles") as advance:
            only = plan.job(plan.fuser(), None).run(plan.tiles[0])
            advance(1, plan.tiles[0].pixels)
        template = plan.template(plan.record(), complete=bool(np.isfinite(only.block).all()))
        block = to_stored(only.block, template, clipping)
        tiles: FusedTiles = (pair for pair in [(plan.tiles[0], replace(only, block=block))])
        finished = {0}
    else:
        if target is not None and target.suffix.lower() in WRITTEN_AT_ONCE:
            got = f"{target.suffix} for a scene larger than the memory"
            raise OptionError(got, "a format that is written in parts", "choose .tif or .zarr")
        plan, job, template = _prepare_tiles(plan, folder, journal, inputs)
        finished = set() if folder is None else folder.finished()
        tiles = _all_tiles(plan, job, folder, finished)
    output: AbstractContextManager[CubeWriter | _ArrayWriter]
    if target is None:
        output = nullcontext(_ArrayWriter(template))
    else:
        workplace = None if folder is None else folder.workplace
        options = plan.config if plan.memory.whole else _options_in_parts(plan, target)
        output = created_cube(target, template, options, list(plan.inputs.values()), workplace)
    with (
        _keeping_tiles(folder, len(plan.tiles)),
        closing(tiles),
        output as writer,
        progress("Writing" if plan.memory.whole else "Fusing", len(plan.tiles), "tiles", len(finished)) as advance,
    ):
        for tile, fused in tiles:
            is_new = tile.index not in finished
            if is_new and folder is not None and time.monotonic() >= kept_from:
                folder.keep(tile, fused.block)
            elif is_new and folder is not None:
                folder.drop(tile)
            for top in range(0, tile.shape[0], WRITTEN_ROWS):
                part = fused.block[:, top : top + WRITTEN_ROWS]
                writer.write(slice(tile.rows.start + top, tile.rows.start + top + part.shape[1]), tile.columns, part)
            seconds += fused.seconds
            clipping.count(fused.values, fused.clipped)
            if is_new:
                advance(1, tile.pixels)
    if folder is not None:
        folder.remove()
    if config.change_mask is not None:
        # Last, so that a run that is interrupted leaves nothing.
        write_cube(plan.change_mask, config.change_mask, OutputConfig(overwrite=config.overwrite))
    clipping.report(template)
    cube = template.copy(data=writer.values) if isinstance(writer, _ArrayWriter) else None
    return FusionRun(target, cube, len(plan.tiles), sum(tile.pixels for tile in plan.tiles), seconds)


class _ArrayWriter:
    """Collects tiles in memory."""

    def __init__(self, template: xr.DataArray) -> None:
        self.values = np.empty(template.shape, template.dtype)

    def write(self, rows: slice, columns: slice, block: NDArray[Any]) -> None:
        self.values[:, rows, columns] = block


def _prepare_tiles(
    plan: Plan, folder: WorkFolder | None, journal: Journal | None, inputs: dict[str, Path]
) -> tuple[Plan, TileJob, xr.DataArray]:
    """The statistics of the scene, computed and kept on disk, or those of the interrupted run."""
    if folder is not None and journal is not None:
        observation, fuser = folder.load_scene(plan.network)
        height, width = journal.tile_size
        plan = replace(plan, observation=observation).with_tile_size((height, width))
        template = plan.template(journal.record)
        return plan, plan.job(fuser, template), template
    record = plan.record()
    template, fuser = plan.template(record), plan.fuser()
    if folder is not None:
        journal = Journal.of(inputs, folder.target, plan.config, plan.memory.tile_size, record)
        folder.begin(journal, plan.observation, fuser)
    return plan, plan.job(fuser, template), template


def _all_tiles(plan: Plan, job: TileJob, folder: WorkFolder | None, finished: set[int]) -> FusedTiles:
    """In the order of the plan, so that a resumed run writes the same file."""
    missing: Sequence[Tile] = [tile for tile in plan.tiles if tile.index not in finished]
    place = None if folder is None else folder.path
    computed = fuse_tiles(job, missing, plan.memory.tiles_at_once, plan.config.workers, plan.config.cluster, place)
    try:
        for tile in plan.tiles:
            if tile.index not in finished or folder is None or job.stored_as is None:
                yield next(computed)
                continue
            block = folder.load(tile, len(job.bands), job.stored_as.dtype)
            yield tile, job.run(tile) if block is None else FusedTile(block)
    finally:
        computed.close()


@contextmanager
def _keeping_tiles(folder: WorkFolder | None, total: int) -> Iterator[None]:
    """Say what remains of a run that ends early."""
    try:
        yield
    except (KeyboardInterrupt, Cancelled) as end:
        raise type(end)(f"stopped; {_remains(folder, total)}") from end
    except HyperfuseError as error:
        if folder is None:
            raise
        message = str(error).replace("nothing was left behind; ", "")
        raise type(error)(message, remedy=_remains(folder, total)) from error
    except BaseException:
        _remains(folder, total)
        raise


def _remains(folder: WorkFolder | None, total: int) -> str:
    if folder is not None and (count := len(folder.finished())):
        return f"{count} of {total} tiles are kept in {folder.path}, --resume continues"
    if folder is not None:
        folder.remove()
    return "nothing was left behind"


def _options_in_parts(plan: Plan, target: Path) -> FuseConfig:
    """Options of a format that is written tile by tile: blocks that no tile leaves half full, MATLAB's newer form."""
    given = {name.upper(): value for name, value in plan.config.creation_options.items()}
    height, width = (str(min(OUTPUT_BLOCK, side)) for side in plan.memory.tile_size)
    blocks = {"TILED": "YES", "BLOCKXSIZE": width, "BLOCKYSIZE": height}
    suffix = target.suffix.lower()
    if suffix in TIFF_SUFFIXES and not plan.config.writes_cog and not blocks.keys() & given.keys():
        given |= blocks
    elif suffix == MATLAB:
        given = {"VERSION": "7.3"} | given
    return plan.config.replace(creation_options=given)


def _journal_to_resume(folder: WorkFolder, inputs: dict[str, Path], config: FuseConfig) -> Journal | None:
    """The journal of the interrupted run that this one continues; what is left of any other is removed."""
    journal = folder.journal()
    if not config.resume:
        if journal is not None:
            discarded = f"{len(folder.finished())} finished tiles of an interrupted run are discarded"
            warnings.warn(f"{discarded}; --resume would keep them", stacklevel=2)
        folder.remove()
        return None
    if journal is None:
        warnings.warn(f"no interrupted run of {folder.target} to resume: starting over", stacklevel=2)
        return None
    difference = Journal.of(inputs, folder.target, config, (0, 0), {}).difference(journal)
    if difference is not None:
        expected = "the inputs and options of the interrupted run"
        raise OptionError(f"--resume with {difference}", expected, "use those, or leave out --resume")
    return journal
