"""Overviews beside a large GeoTIFF: only on request, complete or not at all."""

from __future__ import annotations

import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import rasterio
from affine import Affine
from tests.viewer.served_page import finished, served

from hyperfuse.errors import Cancelled, CubeWriteError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube
from hyperfuse.viewer import session as description
from hyperfuse.viewer.overviews import build_overviews


@pytest.fixture
def image(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).integers(1, 200, (3, 600, 700)).astype(np.uint8)
    values[:, :4, :4] = 0
    cube = make_cube(values, nodata=0, crs="EPSG:32633", transform=Affine(1, 0, 0, 0, -1, 0))
    return write_cube(cube, tmp_path / "large.tif")


def test_overviews_from_the_page(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "LARGE_PIXELS", 1000)
    before = image.read_bytes()
    with served({"fused": image}, image.parent) as url, httpx.Client(base_url=url, timeout=60) as client:
        shown = client.get("api/scene").json()["images"][0]
        assert shown["offers_overviews"]
        assert not shown["has_overviews"]
        done = finished(client, client.post("api/overviews", json={"role": "fused"}).json())
        assert done["state"] == "done", done
        scene = client.get("api/scene").json()
        assert scene["number"] == 2
        assert scene["images"][0]["has_overviews"]
        assert not scene["images"][0]["offers_overviews"]
        assert client.get("api/tiles/2/fused/1/0/0").status_code == 200
    assert image.read_bytes() == before
    assert sorted(path.name for path in image.parent.iterdir()) == ["large.tif", "large.tif.ovr"]
    with rasterio.open(image) as source:
        assert source.overviews(1) == [2, 4]
        half = source.read(1, out_shape=(300, 350))
        whole = source.read(1).astype(float)
    assert half[0, 0] == 0
    means = whole.reshape(300, 2, 350, 2).mean(axis=(1, 3))
    np.testing.assert_allclose(half[2:, 2:], means[2:, 2:], atol=1)


def test_cancelled_overviews_leave_nothing(image: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        build_overviews(image, 2, cancel)
    assert [path.name for path in image.parent.iterdir()] == ["large.tif"]


def test_failed_overviews_leave_nothing(image: Path) -> None:
    image.write_bytes(b"no longer an image")
    with pytest.raises(CubeWriteError, match="no overviews"):
        build_overviews(image, 2, threading.Event())
    assert [path.name for path in image.parent.iterdir()] == ["large.tif"]
