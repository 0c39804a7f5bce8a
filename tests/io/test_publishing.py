"""Outputs appear whole or not at all, replace what they should, and nothing else."""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from tests.io.random_cubes import FORMATS, Format, assert_nothing_lost, sample_cube

from hyperfuse.config import OutputConfig
from hyperfuse.errors import CubeWriteError, HyperfuseError, OptionError
from hyperfuse.io import atomic as publishing
from hyperfuse.io.atomic import GuardedFile, deferred_signals, published
from hyperfuse.io.cube import make_cube, nodata_of
from hyperfuse.io.files import check_target, created_cube, open_cube, write_cube
from hyperfuse.io.grid import grid_of


def listing(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_what_fails_half_way_leaves_nothing(through: Format, tmp_path: Path) -> None:
    cube = sample_cube(shape=(4, 300, 300))
    old = through.write(sample_cube(seed=1), tmp_path)
    before = listing(tmp_path)
    with pytest.raises(ZeroDivisionError), created_cube(old, cube, through.config.replace(overwrite=True)) as writer:
        writer.write(slice(0, 256), slice(0, 300), cube.values[:, :256])
        raise ZeroDivisionError
    assert listing(tmp_path) == before


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_overwriting_itself(through: Format, tmp_path: Path) -> None:
    cube = sample_cube(shape=(4, 300, 300))
    path = through.write(cube, tmp_path)
    names = sorted(each.name for each in tmp_path.iterdir())
    with pytest.raises(CubeWriteError, match=r"exists already; choose another name or add --overwrite"):
        write_cube(open_cube(path), path)
    write_cube(open_cube(path), path, config=through.config, overwrite=True)
    assert_nothing_lost(open_cube(path), cube)
    assert sorted(each.name for each in tmp_path.iterdir()) == names


@pytest.mark.parametrize(("target", "neighbour"), [("scene.hdr", "scene.img"), ("scene.npy", "scene.npy.json")])
def test_a_file_beside_the_target_is_protected_too(target: str, neighbour: str, tmp_path: Path) -> None:
    (tmp_path / neighbour).write_bytes(b"somebody's work")
    with pytest.raises(CubeWriteError, match=f"{neighbour} exists already"):
        write_cube(sample_cube(), tmp_path / target)
    assert listing(tmp_path) == {neighbour: b"somebody's work"}
    write_cube(sample_cube(), tmp_path / target, overwrite=True)
    assert_nothing_lost(open_cube(tmp_path / target), sample_cube())


@pytest.mark.parametrize("old_data", ["scene", "scene.dat", "scene.img"])
def test_an_old_envi_file_goes_with_its_data(old_data: str, tmp_path: Path) -> None:
    """Its data under another name would otherwise be read with the new header."""
    cube, other = sample_cube(), sample_cube(seed=5)
    write_cube(other, tmp_path / "scene.hdr")
    (tmp_path / "scene.img").rename(tmp_path / old_data)
    (tmp_path / "scene.bin").write_bytes(b"not of this file")
    assert_nothing_lost(open_cube(tmp_path / "scene.hdr"), other)
    write_cube(cube, tmp_path / "scene.hdr", overwrite=True)
    assert_nothing_lost(open_cube(tmp_path / "scene.hdr"), cube)
    assert set(listing(tmp_path)) == {"scene.bin", "scene.hdr", "scene.img"}


def test_what_described_the_old_geotiff_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / "scene.tif"
    path.with_name("scene.tif.aux.xml").write_text("<PAMDataset><GeoTransform>1,2,0,3,0,-2</GeoTransform></PAMDataset>")
    path.with_name("scene.tif.ovr").write_bytes(b"old overviews")
    write_cube(make_cube(np.zeros((1, 2, 2), np.uint8)), path)
    assert set(listing(tmp_path)) == {"scene.tif"}
    assert grid_of(open_cube(path)).transform is None


def test_a_folder_of_other_things_is_never_replaced(tmp_path: Path) -> None:
    for name in ("work.zarr", "work.tif"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years")
        with pytest.raises(CubeWriteError, match="is a folder of other things"):
            write_cube(sample_cube(), tmp_path / name, overwrite=True)
        assert (tmp_path / name / "thesis.txt").read_text() == "years"


def test_a_store_replaces_a_file_and_a_file_a_store(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").write_text("a file")
    write_cube(sample_cube(), tmp_path / "a.zarr", overwrite=True)
    assert_nothing_lost(open_cube(tmp_path / "a.zarr"), sample_cube())
    (tmp_path / "a.zarr").rename(tmp_path / "a.tif")
    write_cube(sample_cube(), tmp_path / "a.tif", overwrite=True)
    assert_nothing_lost(open_cube(tmp_path / "a.tif"), sample_cube())


def test_old_files_come_back_when_the_last_step_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_cube(sample_cube(), tmp_path / "a.zarr")
    before = listing(tmp_path)

    def refuse(folder: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(publishing, "_flush_folder", refuse)
    with pytest.raises(CubeWriteError, match=r"cannot write .*Input/output error; nothing was left behind"):
        write_cube(sample_cube(seed=1), path, overwrite=True)
    assert listing(tmp_path) == before


def flushing() -> threading.Thread | None:
    return next((each for each in threading.enumerate() if each.name == "hyperfuse-flush"), None)


def test_an_error_of_the_disk_while_files_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells it once; the last flush would not see it again."""
    told = threading.Event()

    def once(path: Path) -> None:
        if not told.is_set():
            told.set()
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(publishing, "SECONDS_BETWEEN_FLUSHES", 0.001)
    monkeypatch.setattr(publishing, "_flush_file", once)
    with pytest.raises(CubeWriteError, match="Input/output error"), published(tmp_path / "out.txt") as path:
        path.write_text("new")
        assert told.wait(60)
    assert listing(tmp_path) == {} and flushing() is None


def test_many_files_are_not_looked_at_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "SECONDS_BETWEEN_FLUSHES", 0.001)
    monkeypatch.setattr(publishing, "MOST_FLUSHED", 3)
    with published(tmp_path / "out") as path:
        path.mkdir()
        for index in range(5):
            (path / str(index)).touch()
        thread = flushing()
        if thread is not None:
            thread.join(60)
            assert not thread.is_alive()
    assert len(list((tmp_path / "out").iterdir())) == 5


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left while writing"),
        (errno.EDQUOT, "no space left"),
        (errno.EACCES, "cannot write .*Permission denied"),
    ],
)
def test_reasons(number: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(CubeWriteError, match=message), published(tmp_path / "out.txt"):
        raise OSError(number, "Permission denied")
    assert listing(tmp_path) == {}


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(CubeWriteError, match=r"is not a folder; expected an existing folder for the output; mkdir -p"):
        write_cube(sample_cube(), tmp_path / "missing" / "out.tif")


@pytest.mark.parametrize("name", ["file/out.tif", "file/below/out.tif"])
def test_a_file_in_place_of_the_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CubeWriteError, match=r"is not a folder; .*; choose another folder"):
        write_cube(sample_cube(), tmp_path / name)


@pytest.mark.parametrize(
    ("name", "options", "cog", "message"),
    [
        ("o.xyz", {}, False, "unknown suffix '.xyz'"),
        ("o.nc", {}, True, "cloud-optimised .nc"),
        ("o.nc", {"COMPRESS": "rar"}, False, "COMPRESS=rar.*expected one of gzip, lzf, none"),
        ("o.nc", {"LEVEL": "9"}, False, "option LEVEL for o.nc; expected COMPRESS"),
        ("o.npy", {"X": "1"}, False, "option X for o.npy; expected none"),
        ("o.mat", {"VERSION": "6"}, False, "VERSION=6.*expected VERSION=5 or VERSION=7.3"),
        ("o.hdr", {"INTERLEAVE": "bil2"}, False, "INTERLEAVE=bil2"),
        ("o.tif", {"COMPRES": "ZSTD"}, False, "creation option COMPRES"),
        ("o.tif", {"COMPRESS": "RAR"}, False, "'RAR' is an unexpected value for COMPRESS"),
        ("o.tif", {"DTYPE": "uint8"}, False, "the cube itself decides"),
        ("o.tif", {"FOO": "1"}, True, "creation option FOO"),
    ],
)
def test_options_that_are_none(name: str, options: dict[str, str], cog: bool, message: str, tmp_path: Path) -> None:
    with pytest.raises(HyperfuseError, match=message):
        write_cube(sample_cube(), tmp_path / name, creation_options=options, cog=cog)
    assert listing(tmp_path) == {}


@pytest.mark.parametrize(("name", "dtype"), [("o.hdr", "int8"), ("o.tif", "float16"), ("o.mat", "float16")])
def test_types_that_a_format_does_not_know(name: str, dtype: str, tmp_path: Path) -> None:
    with pytest.raises(CubeWriteError, match=f"cannot hold {dtype}"):
        write_cube(np.zeros((1, 2, 2), dtype), tmp_path / name)
    assert listing(tmp_path) == {}


@pytest.mark.parametrize("through", [each for each in FORMATS if each.suffix != ".hdr"], ids=lambda each: each.name)
def test_int8(through: Format, tmp_path: Path) -> None:
    cube = make_cube(np.arange(-60, 60, dtype=np.int8).reshape(4, 6, 5), nodata=-128)
    assert_nothing_lost(through.round_trip(cube, tmp_path), cube)


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_attributes_that_are_no_text(through: Format, tmp_path: Path) -> None:
    attributes = {
        "number": 3,
        "array": np.arange(3),
        "none": None,
        "flag": True,
        "nested": {"a": [1, 2]},
        "": "no name",
        "a=b": "equals",
        "a/b": "slash",
        "coordinates": "reserved",
        "scale_factor_text": "x" * 70000,
        "nul": "a\0b",
    }
    cube = make_cube(np.zeros((1, 2, 2), np.uint8), attributes=attributes)
    read = through.round_trip(cube, tmp_path).attrs
    assert {key: str(value) for key, value in read.items()} == {
        "number": "3",
        "array": "[0, 1, 2]",
        "none": "None",
        "flag": "True",
        "nested": "{'a': [1, 2]}",
        "": "no name",
        "a=b": "equals",
        "a/b": "slash",
        "coordinates": "reserved",
        "scale_factor_text": "x" * 70000,
        "nul": "ab",
    }


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_a_thousand_bands(through: Format, tmp_path: Path) -> None:
    """Lists of such length make lines that GDAL would cut off, if they were lines."""
    rng = np.random.default_rng(0)
    cube = make_cube(
        rng.integers(0, 9, (1000, 2, 3)).astype(np.int16),
        wavelength_nm=rng.uniform(400, 2500, 1000),
        fwhm_nm=rng.uniform(1, 20, 1000),
        good=rng.random(1000) < 0.9,
        scale=rng.uniform(1e-4, 1, 1000),
        offset=rng.uniform(-1, 1, 1000),
        band_names=[f"name, of {index}" for index in range(1000)],
    )
    assert_nothing_lost(through.round_trip(cube, tmp_path), cube)


def test_windows_in_any_order(tmp_path: Path) -> None:
    cube = sample_cube(shape=(3, 40, 50))
    for through in FORMATS:
        path = tmp_path / f"{through.name}{through.suffix}"
        with created_cube(path, cube, through.config) as writer:
            for rows in (slice(32, 40), slice(0, 32)):
                for columns in (slice(16, 50), slice(0, 16)):
                    writer.write(rows, columns, cube.values[:, rows, columns])
        assert_nothing_lost(open_cube(path), cube, through.name)


@contextmanager
def handling(number: int) -> Iterator[list[int]]:
    heard: list[int] = []
    before = signal.signal(number, lambda number, frame: heard.append(number))
    try:
        yield heard
    finally:
        signal.signal(number, before)


def test_signals_wait_for_the_end_of_a_block() -> None:
    with handling(signal.SIGTERM) as heard:
        with deferred_signals():
            signal.raise_signal(signal.SIGTERM)
            assert heard == []
        assert heard == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert len(heard) == 2


@pytest.mark.parametrize("step", ["tempfile.mkdtemp", "_move_in", "_remove"])
def test_interrupted_at_any_step_nothing_remains_beside_the_target(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_cube(sample_cube(), tmp_path / "s.zarr")
    owner, _, name = step.rpartition(".")
    owner = getattr(publishing, owner) if owner else publishing
    work = getattr(owner, name)

    def interrupted(*arguments: object, **options: object) -> object:
        monkeypatch.setattr(owner, name, work)
        if step == "_remove":
            signal.raise_signal(signal.SIGINT)
        result = work(*arguments, **options)
        signal.raise_signal(signal.SIGINT)
        return result

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_cube(sample_cube(seed=1), path, overwrite=True)
    assert_nothing_lost(open_cube(path), sample_cube() if step == "tempfile.mkdtemp" else sample_cube(seed=1))
    assert [each.name for each in tmp_path.iterdir()] == ["s.zarr"]


def test_old_files_that_cannot_be_moved_back_are_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_cube(sample_cube(), tmp_path / "s.zarr")
    rename = Path.rename

    def refused(source: Path, target: Path) -> Path:
        if tmp_path in (source.parent, Path(target).parent) and not path.exists():
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(CubeWriteError):
        write_cube(sample_cube(seed=1), path, overwrite=True)
    monkeypatch.undo()
    assert_nothing_lost(open_cube(path), sample_cube(seed=1))
    assert [each.name for each in tmp_path.iterdir()] == ["s.zarr"]


def test_other_threads_leave_signals_alone(tmp_path: Path) -> None:
    thread = threading.Thread(target=lambda: write_cube(sample_cube(), tmp_path / "s.tif"))
    thread.start()
    thread.join()
    assert_nothing_lost(open_cube(tmp_path / "s.tif"), sample_cube())


def test_a_guarded_file_remembers_what_did_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with GuardedFile(tmp_path / "file") as file:
        assert file.write(b"12345") == 5
        file.raise_error()
        file.error = OSError(errno.ENOSPC, "No space left on device")
        assert file.write(b"67") == 2
        assert file.tell() == 7
        with pytest.raises(OSError, match="No space"):
            file.raise_error()
    assert (tmp_path / "file").read_bytes() == b"12345"


def test_cog_without_room_for_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hyperfuse.io import raster

    monkeypatch.setattr(raster.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(CubeWriteError, match="no space left"):
        write_cube(sample_cube(), tmp_path / "s.tif", cog=True)
    assert listing(tmp_path) == {}


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_a_geotiff_that_gdal_changed_since_keeps_gdal_s_word(tmp_path: Path) -> None:
    """Our exact record applies only to the file as we wrote it."""
    cube = make_cube(np.zeros((1, 4, 4), np.uint64), crs="EPSG:32633", nodata=2**64 - 1)
    path = write_cube(cube, tmp_path / "s.tif")
    assert nodata_of(open_cube(path)) == 2**64 - 1 and grid_of(open_cube(path)).transform is None
    with rasterio.open(path, "r+") as target:
        target.transform = Affine(30, 0, 5, 0, -30, 5)
        target.nodata = 7
    assert nodata_of(open_cube(path)) == 7
    assert grid_of(open_cube(path)).transform == Affine(30, 0, 5, 0, -30, 5)


def test_a_target_is_refused_before_the_work(tmp_path: Path) -> None:
    check_target(tmp_path / "scene.hdr")
    (tmp_path / "scene.img").touch()
    with pytest.raises(CubeWriteError, match=r"scene\.img exists already"):
        check_target(tmp_path / "scene.hdr")
    check_target(tmp_path / "scene.hdr", OutputConfig(overwrite=True))
    with pytest.raises(OptionError, match=r"a cloud-optimised \.nc"):
        check_target(tmp_path / "scene.nc", OutputConfig(cog=True))
    with pytest.raises(OptionError, match=r"option COLOUR for scene\.nc; expected COMPRESS"):
        check_target(tmp_path / "scene.nc", OutputConfig(creation_options={"colour": "red"}))
    with pytest.raises(CubeWriteError, match="unknown suffix"):
        check_target(tmp_path / "scene.xyz")
    assert [path.name for path in tmp_path.iterdir()] == ["scene.img"]
