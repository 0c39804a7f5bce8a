"""A .zip or .tar of a product opens without being unpacked by anybody, and cannot do harm."""

from __future__ import annotations

import pickle
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from affine import Affine
from tests.io.products.container_writers import write_emit, write_prisma
from tests.io.products.hyperspectral_writers import ENMAP_ID, write_aviris, write_desis, write_enmap
from tests.io.products.multispectral_writers import TILE, write_landsat, write_sentinel2
from tests.io.products.written import Written, tarred, zipped
from tests.processes import Program

from hyperfuse.cli.app import run
from hyperfuse.errors import CubeFileError
from hyperfuse.io import spool
from hyperfuse.io.cube import physical_values
from hyperfuse.io.files import open_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.io.products.product import list_files

WRITERS: dict[str, Callable[[Path], Written]] = {
    "enmap": write_enmap,
    "desis": write_desis,
    "prisma": lambda folder: write_prisma(folder / "PRS"),
    "prisma-l1": lambda folder: write_prisma(folder / "PRS", "L1"),
    "emit": lambda folder: write_emit(folder / "EMIT"),
    "aviris": lambda folder: write_aviris(folder / "f110512t01p00r11"),
    "sentinel2": write_sentinel2,
    "landsat": write_landsat,
}
PACKERS: dict[str, Callable[[Path, Path], Path]] = {
    "zip": lambda folder, target: zipped(folder, target / "product.zip"),
    "stored-zip": lambda folder, target: zipped(folder, target / "product.zip", compressed=False),
    "tar": lambda folder, target: tarred(folder, target / "product.tar", inside=""),
    "tar.gz": lambda folder, target: tarred(folder, target / "product.tar.gz"),
}


@pytest.fixture(scope="module", params=list(WRITERS))
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return WRITERS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("packer", list(PACKERS))
def test_an_archive_is_read_like_its_folder(written: Written, packer: str, tmp_path: Path) -> None:
    folder = written.path if written.path.is_dir() else written.path.parent
    archive = PACKERS[packer](folder, tmp_path)
    cube = open_cube(archive)
    assert not cube.variable._in_memory
    np.testing.assert_allclose(physical_values(cube, dtype=np.float64), written.physical, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(cube["good"], written.good)
    assert grid_of(cube) == grid_of(open_cube(written.path))
    np.testing.assert_array_equal(cube.isel(band=[2, 0], y=slice(2, 5)).values, cube.values[[2, 0], 2:5])


@pytest.mark.parametrize(("writer", "packer"), [("prisma", "zip"), ("enmap", "tar.gz"), ("aviris", "zip")])
def test_a_packed_cube_travels_and_its_temporary_files_go(writer: str, packer: str, tmp_path: Path) -> None:
    """In the other process there is nothing unpacked yet; when it ends, nothing is left of what it unpacked."""
    written = WRITERS[writer](tmp_path / "in")
    archive = PACKERS[packer](written.path if written.path.is_dir() else written.path.parent, tmp_path)
    (tmp_path / "cube.pickle").write_bytes(pickle.dumps(open_cube(archive).isel(band=slice(3))))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "import pickle, sys, pathlib, tempfile, numpy\n"
        "cube = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "numpy.save(sys.argv[2], cube.values)\n"
        "assert list(pathlib.Path(tempfile.gettempdir()).glob('hyperfuse-*'))\n"
    )
    process = Program(script, tmp_path / "cube.pickle", tmp_path / "values.npy", env={"TMPDIR": str(scratch)})
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    np.testing.assert_array_equal(np.load(tmp_path / "values.npy"), open_cube(archive).values[:3])
    assert not list(scratch.iterdir())


@pytest.mark.filterwarnings("ignore:shift and PSF not estimated")
def test_from_two_archives_to_a_fused_cube(tmp_path: Path) -> None:
    hsi = zipped(write_enmap(tmp_path, grid=TILE @ Affine.scale(3)).path, tmp_path / "enmap.zip")
    msi = zipped(write_sentinel2(tmp_path).path, tmp_path / "s2.SAFE.zip", compressed=False)
    target = tmp_path / "fused.tif"
    assert (
        run(["fuse", str(hsi), str(msi), "-o", str(target), "--method", "bicubic", "--msi-variable", "B2,B3,B4,B8,B11"])
        == 0
    )
    fused, source = open_cube(target), open_cube(hsi)
    for column in ("wavelength", "fwhm", "good", "band_name", "scale"):
        np.testing.assert_array_equal(fused[column], source[column], err_msg=column)
    assert grid_of(fused).transform == TILE and grid_of(fused).crs == grid_of(source).crs
    assert fused.attrs["product"] == "EnMAP L2A"


def test_what_is_not_compressed_is_not_unpacked(tmp_path: Path) -> None:
    archive = zipped(write_enmap(tmp_path).path, tmp_path / "enmap.zip", compressed=False)
    before = set(Path(tempfile.gettempdir()).glob("hyperfuse-*"))
    open_cube(archive).load()
    assert set(Path(tempfile.gettempdir()).glob("hyperfuse-*")) == before


def test_names_that_lead_outside_are_not_delivered(tmp_path: Path) -> None:
    for archive in (tmp_path / "evil.zip", tmp_path / "evil.tar"):
        names = [
            "../outside.txt",
            "/etc/outside.txt",
            "a/../../outside.txt",
            "..\\outside.txt",
            "inside.txt",
            "__MACOSX/._inside.txt",
        ]
        if archive.suffix == ".zip":
            with zipfile.ZipFile(archive, "w") as target:
                for name in names:
                    target.writestr(name, "x")
        else:
            with tarfile.open(archive, "w") as bundle:
                for name in names:
                    bundle.addfile(tarfile.TarInfo(name))
                link = tarfile.TarInfo(f"{ENMAP_ID}-METADATA.XML")
                link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
                bundle.addfile(link)
        assert list(list_files(archive).files) == ["inside.txt"]
        with pytest.raises(CubeFileError, match=r"no product was recognised in .*EnMAP, PRISMA"):
            open_cube(archive)


def test_a_member_that_is_smaller_than_declared(tmp_path: Path) -> None:
    """Three gigabytes in an archive of a few thousand bytes: no more is unpacked than there is."""
    archive, size = tmp_path / "bomb.zip", 1234567
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as target:
        target.writestr("PRS_L2D_STD_1_2_0001.he5", bytes(size))
    content = archive.read_bytes()
    archive.write_bytes(content.replace(size.to_bytes(4, "little"), (3 * 2**30).to_bytes(4, "little")))
    with pytest.raises(CubeFileError, match="1234567 of 3221225472 bytes"):
        open_cube(archive)


def test_too_little_space_is_said_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = zipped(write_prisma(tmp_path / "PRS").path.parent, tmp_path / "prisma.zip")
    monkeypatch.setattr(spool.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10}))
    with pytest.raises(CubeFileError, match="set TMPDIR"):
        open_cube(archive)


@pytest.mark.parametrize("packer", list(PACKERS))
def test_a_cut_archive_is_one_line(packer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = PACKERS[packer](write_landsat(tmp_path).path, tmp_path)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    assert run(["info", str(archive)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_flipped_byte_in_a_compressed_member_is_noticed(tmp_path: Path) -> None:
    archive = zipped(write_enmap(tmp_path).path, tmp_path / "enmap.zip")
    image = next(info for info in zipfile.ZipFile(archive).infolist() if "SPECTRAL" in info.filename)
    content = bytearray(archive.read_bytes())
    content[image.header_offset + 30 + len(image.filename) + image.compress_size // 2] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(CubeFileError, match="cannot be read"):
        open_cube(archive)


def test_an_archive_in_an_archive_is_named(tmp_path: Path) -> None:
    inner = zipped(write_enmap(tmp_path / "in").path, tmp_path / f"{ENMAP_ID}.ZIP")
    with zipfile.ZipFile(tmp_path / "order.zip", "w") as target:
        target.write(inner, inner.name)
    with pytest.raises(CubeFileError, match=rf"unpack it: {ENMAP_ID}.ZIP"):
        open_cube(tmp_path / "order.zip")


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    archive = zipped(write_landsat(tmp_path).path, tmp_path / "landsat.zip")
    content = bytearray(archive.read_bytes())
    start = 0
    while (start := content.find(b"PK\1\2", start)) >= 0:
        content[start + 8] |= 1
        start += 4
    archive.write_bytes(content)
    with pytest.raises(CubeFileError, match="is encrypted"):
        open_cube(archive)


def test_an_archive_that_went_away(tmp_path: Path) -> None:
    archive = zipped(write_prisma(tmp_path / "PRS").path.parent, tmp_path / "prisma.zip")
    cube = open_cube(archive)
    archive.unlink()
    with pytest.raises(CubeFileError, match=r"prisma.zip cannot be read"):
        cube.load()
