"""Agencies' products are listed as one thing and opened as delivered, from the page too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.io.products.hyperspectral_writers import write_enmap
from tests.io.products.multispectral_writers import write_sentinel2

from hyperfuse.errors import HyperfuseError
from hyperfuse.io.files import open_explained
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.images import open_images
from hyperfuse.viewer.session import describe_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, write in (("enmap", write_enmap), ("sentinel", write_sentinel2)):
        (tmp_path / name).mkdir()
        write(tmp_path / name)
    return tmp_path


def test_products_are_one_entry_each(folder: Path) -> None:
    names = [file["path"] for file in Folder.at(folder).files()]
    assert len(names) == 2, names
    assert any("enmap" in name for name in names)
    assert any(".SAFE" in name for name in names)


def test_products_are_opened_and_explained(folder: Path) -> None:
    inside = Folder.at(folder)
    for file in inside.files():
        about = describe_file(*open_explained(inside.cube(file["path"])))
        assert about["bands"] > 3
        assert about["found"]
        scene = open_images({"fused": inside.cube(file["path"])})
        assert scene.lead.notes


def test_zipped_product(folder: Path) -> None:
    archive = Path(shutil.make_archive(str(folder / "delivered"), "zip", folder / "enmap"))
    shutil.rmtree(folder / "enmap")
    assert archive.name in [file["path"] for file in Folder.at(folder).files()]
    assert open_images({"fused": Folder.at(folder).cube("delivered.zip")}).lead.bands > 3


def test_product_with_a_link_out_of_the_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.TIF"
    outside.write_text("secret")
    inside = Folder.at(folder)
    name = next(file["path"] for file in inside.files() if "enmap" in file["path"])
    image = next((folder / name).rglob("*SPECTRAL_IMAGE*.TIF"))
    image.unlink()
    image.symlink_to(outside)
    with pytest.raises(HyperfuseError, match="outside"):
        inside.cube(name)


def test_any_other_folder_or_archive_is_no_cube(folder: Path) -> None:
    (folder / "plain").mkdir()
    (folder / "plain" / "readme.txt").write_text("x")
    shutil.make_archive(str(folder / "other"), "zip", folder / "plain")
    inside = Folder.at(folder)
    assert not {"plain", "other.zip"} & {file["path"] for file in inside.files()}
    for name in ("plain", "other.zip"):
        with pytest.raises(HyperfuseError):
            inside.cube(name)
