"""Tiles, previews, overviews and stretches, against slow loops and plain numpy."""

from __future__ import annotations

import io
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import rasterio
from affine import Affine
from numpy.typing import NDArray
from PIL import Image
from rasterio.enums import Resampling
from tests.viewer.viewer_scenes import PIXEL, write_pair

from hyperfuse.errors import BandError, HyperfuseError, OptionError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube
from hyperfuse.io.grid import Grid, grid_of
from hyperfuse.reporting.colour import percentile_limits
from hyperfuse.viewer import tiles
from hyperfuse.viewer.colours import Composite, Rendering
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.images import OpenImages, open_images
from hyperfuse.viewer.session import Cache, Session, View
from hyperfuse.viewer.tiles import (
    SIDE,
    Layer,
    Preview,
    TilePlace,
    as_png,
    colour_table,
    highest_level,
    image_layer,
    paint,
    pooled,
    sampled,
    tile_planes,
)

CORNER = Affine(PIXEL, 0, 400_000, 0, -PIXEL, 5_800_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiles")
    write_pair(folder)
    return folder


@pytest.fixture(scope="module")
def view(folder: Path) -> View:
    return View(
        1, open_images({"fused": folder / "reference.tif", "hsi": folder / "hsi.tif", "msi": folder / "msi.tif"})
    )


def written(path: Path, values: NDArray[np.float32], transform: Affine = CORNER, crs: str = "EPSG:32633") -> Path:
    return write_cube(make_cube(values, crs=crs, transform=transform), path)


def layer_of(scene: OpenImages, role: str, bands: list[int]) -> Layer:
    return image_layer(scene.images[role], Composite("test", np.array(bands), len(bands), lambda planes: planes, ""))


def no_preview() -> Preview:
    raise AssertionError("no preview is needed here")


def nearest_tile(scene: OpenImages, role: str, values: NDArray[np.float32], place: TilePlace) -> NDArray[np.float32]:
    """Pixel by pixel through the transforms: where does the middle of this pixel of the tile lie in the image?"""
    tile = np.full((SIDE, SIDE), np.nan, dtype=np.float32)
    page = scene.grid.transform
    own = grid_of(scene.images[role].cube).transform
    assert page is not None
    assert own is not None
    for i in range(SIDE):
        for j in range(SIDE):
            y, x = ((place.row * SIDE + i + 0.5) * 2**place.level, (place.column * SIDE + j + 0.5) * 2**place.level)
            column, row = ~own @ (page @ (x, y))
            on_page = y < scene.grid.height and x < scene.grid.width
            if on_page and 0 <= row < values.shape[0] and 0 <= column < values.shape[1]:
                tile[i, j] = values[int(np.floor(row)), int(np.floor(column))]
    return tile


@pytest.mark.parametrize("role", ["fused", "hsi", "msi"])
def test_tile_shows_the_nearest_pixel(view: View, role: str) -> None:
    scene, place = view.opened, TilePlace(0, 0, 0)
    planes, complete = tile_planes(layer_of(scene, role, [2]), place, scene.grid, no_preview)
    assert complete == 1
    np.testing.assert_array_equal(planes[0], nearest_tile(scene, role, scene.images[role].cube.values[2], place))


def test_tile_of_an_image_that_is_flipped_and_shifted(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((1, 40, 30)).astype(np.float32)
    written(tmp_path / "page.tif", np.zeros((1, 64, 64), dtype=np.float32))
    # South-up, 2.5 of the page's pixels to a pixel, beginning beyond its edge.
    written(tmp_path / "other.tif", values, Affine(2.5 * PIXEL, 0, 400_000 - 37, 0, 2.5 * PIXEL, 5_800_000 - 611.3))
    scene = open_images({"fused": tmp_path / "page.tif", "msi": tmp_path / "other.tif"})
    planes, _ = tile_planes(layer_of(scene, "msi", [0]), TilePlace(0, 0, 0), scene.grid, no_preview)
    np.testing.assert_array_equal(planes[0], nearest_tile(scene, "msi", values[0], TilePlace(0, 0, 0)))


def test_tile_of_an_image_in_another_crs(tmp_path: Path) -> None:
    """The zone beside: rotated against the page, so every pixel is looked up by itself."""
    ramp = np.broadcast_to(np.arange(200, dtype=np.float32)[:, None], (200, 200))[None]
    written(tmp_path / "page.tif", np.zeros((1, 64, 64), dtype=np.float32))
    x, y = 7_500.0, 5_838_000.0  # about the same place in zone 34
    written(tmp_path / "other.tif", ramp.copy(), Affine(400, 0, x - 40_000, 0, -400, y + 40_000), "EPSG:32634")
    scene = open_images({"fused": tmp_path / "page.tif", "hsi": tmp_path / "other.tif"})
    assert scene.images["hsi"].placement is None
    planes, _ = tile_planes(layer_of(scene, "hsi", [0]), TilePlace(0, 0, 0), scene.grid, no_preview)
    seen = planes[0][:64, :64]
    assert np.isfinite(seen).all()
    assert np.isnan(planes[0][64:]).all()
    from pyproj import Transformer

    east, north = CORNER @ (30.5, 20.5)
    _, there = Transformer.from_crs(32633, 32634, always_xy=True).transform(east, north)
    assert seen[20, 30] == np.floor((y + 40_000 - there) / 400)


def test_pooling_is_the_mean_of_what_is_known() -> None:
    values = np.random.default_rng(1).random((2, 7, 10)).astype(np.float32)
    values[0, 0:3, 0:3] = np.nan
    values[1, 5, 9] = np.nan
    small = pooled(values, 3)
    for k, i, j in np.ndindex(2, 3, 4):
        block = values[k, 3 * i : 3 * i + 3, 3 * j : 3 * j + 3]
        known = block[np.isfinite(block)]
        assert small[k, i, j] == pytest.approx(known.mean()) if known.size else np.isnan(small[k, i, j])


def test_every_way_to_a_coarse_tile_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct, from a preview and from overviews; 2 and more is the means of blocks in each."""
    random = np.random.default_rng(2)
    values = random.random((3, 700, 900)).astype(np.float32)
    plain = written(tmp_path / "plain.tif", values)
    with_overviews = written(tmp_path / "overviews.tif", values)
    with rasterio.open(with_overviews, "r+") as target:
        target.build_overviews([2, 4], Resampling.average)
    place = TilePlace(2, 0, 0)
    expected = pooled(values, 4)
    found = []
    for path in (plain, with_overviews):
        scene = open_images({"fused": path})
        layer = layer_of(scene, "fused", [0, 1, 2])
        assert (layer.decimated is not None) == (path == with_overviews)
        found.append(tile_planes(layer, place, scene.grid, no_preview))
        monkeypatch.setattr(tiles, "DIRECT_BYTES", 0)
        monkeypatch.setattr(tiles, "LARGEST_DIRECT_BYTES", 0)
        monkeypatch.setattr(tiles, "PATIENCE_SECONDS", 60)
        preview = Preview(layer)
        found.append(tile_planes(layer, place, scene.grid, lambda preview=preview: preview))
        monkeypatch.undo()
    height, width = expected.shape[1:]
    for planes, complete in found:
        assert complete == 1
        np.testing.assert_allclose(planes[:, :height, :width], expected, atol=1e-6)
        assert np.isnan(planes[:, height:]).all()


def test_preview_shows_what_it_has(tmp_path: Path) -> None:
    values = np.random.default_rng(3).random((1, 1500, 1500)).astype(np.float32)
    layer = layer_of(open_images({"fused": written(tmp_path / "a.tif", values)}), "fused", [0])
    from dataclasses import replace

    preview = Preview(replace(layer, bytes_per_pixel=400))
    window, complete = preview.window(slice(0, 750), slice(0, 750), shrink=1, patience=0)
    assert window.shape == (1, 750, 750)
    assert complete < 1
    assert preview.window(slice(0, 750), slice(5, 750), shrink=4, patience=0)[0].shape == (1, 188, 187)
    window, complete = preview.window(slice(0, 750), slice(0, 750), shrink=1, patience=60)
    assert complete == 1
    np.testing.assert_allclose(window, pooled(values, 2), atol=1e-6)
    np.testing.assert_allclose(
        preview.window(slice(0, 750), slice(0, 750), shrink=2, patience=60)[0], pooled(values, 4), atol=1e-6
    )


def test_preview_of_a_deleted_file_raises(tmp_path: Path) -> None:
    path = written(tmp_path / "a.tif", np.zeros((1, 600, 600), dtype=np.float32))
    layer = layer_of(open_images({"fused": path}), "fused", [0])
    path.unlink()
    with pytest.raises(HyperfuseError):
        Preview(layer).window(slice(0, 10), slice(0, 10), shrink=1, patience=60)


def test_paint_and_png() -> None:
    planes = np.array([[[0.0, 0.5, 1.0, np.nan]]], dtype=np.float32)
    picture = paint(planes, np.array([[0.0, 1.0]]), "cividis")
    assert picture[0, :, 3].tolist() == [255, 255, 255, 0]
    np.testing.assert_array_equal(picture[0, 0, :3], colour_table("cividis")[0])
    np.testing.assert_array_equal(picture[0, 2, :3], colour_table("cividis")[255])
    decoded = np.array(Image.open(io.BytesIO(as_png(picture))))
    np.testing.assert_array_equal(decoded, picture)


def test_constant_and_empty_layers_have_limits() -> None:
    samples = np.stack([np.full(9, np.nan), np.full(9, 3.0)]).astype(np.float32)
    limits = percentile_limits(samples, 2, 98)
    assert limits.tolist() == [[0, 1], [3, 3]]
    assert paint(np.full((1, 2, 2), 3, dtype=np.float32), limits[1:], "grey")[..., 3].all()


def test_sample_is_spread_over_a_large_layer(tmp_path: Path) -> None:
    values = np.broadcast_to(np.arange(2000, dtype=np.float32)[:, None], (1, 2000, 300)).copy()
    layer = layer_of(open_images({"fused": written(tmp_path / "a.tif", values)}), "fused", [0])
    from dataclasses import replace

    for cost in (4, 10**6):
        low, high = percentile_limits(sampled(replace(layer, bytes_per_pixel=cost)), 2, 98)[0]
        assert low < 200
        assert high > 1800


def test_linked_stretch_unless_the_units_differ(tmp_path: Path) -> None:
    values = np.random.default_rng(4).random((3, 64, 64)).astype(np.float32)
    written(tmp_path / "fused.tif", values)
    written(tmp_path / "like.tif", 0.8 * values)
    written(tmp_path / "counts.tif", 1000 * values)
    names = {"fused": "fused.tif", "reference": "like.tif", "msi": "counts.tif"}
    view = View(1, open_images({role: tmp_path / name for role, name in names.items()}))
    rendering = Rendering(style="bands", bands=(0, 1, 2))
    lead, _ = view.limits("fused", rendering)
    linked, is_linked = view.limits("reference", rendering)
    np.testing.assert_array_equal(linked, lead)
    assert is_linked
    own, is_linked = view.limits("msi", rendering)
    assert own[0, 1] == pytest.approx(1000 * lead[0, 1], rel=1e-4)
    assert not is_linked
    unlinked, _ = view.limits("reference", rendering.model_copy(update={"linked": False}))
    assert unlinked[0, 1] == pytest.approx(0.8 * lead[0, 1], rel=1e-4)


@pytest.mark.parametrize("style", ["true", "infrared", "pca", "index"])
@pytest.mark.parametrize("role", ["fused", "hsi", "msi"])
def test_every_style_of_every_image_has_a_picture(view: View, style: str, role: str) -> None:
    tile = view.tile(role, TilePlace(0, 0, 0), Rendering(style=style))
    picture = np.array(Image.open(io.BytesIO(tile.png)))
    assert picture.shape == (SIDE, SIDE, 4)
    assert picture[:96, :96, 3].all()
    assert not picture[96:, :, 3].any()
    assert len(np.unique(picture[:96, :96, :3].reshape(-1, 3), axis=0)) >= 4


def test_index_and_principal_components(view: View) -> None:
    cube = view.opened.lead.cube
    wavelength = cube["wavelength"].values
    near, red = (cube.values[np.abs(wavelength - nm).argmin()] for nm in (850, 665))
    ndvi = view.layer("fused", Rendering(style="index", index="NDVI")).window(slice(0, 96), slice(0, 96))[0]
    np.testing.assert_allclose(ndvi, (near - red) / (near + red), rtol=1e-5)

    spectra = cube.values[cube["good"].values].reshape(int(cube["good"].sum()), -1).astype(np.float64)
    centred = spectra - spectra.mean(axis=1, keepdims=True)
    axes, values, _ = np.linalg.svd(centred, full_matrices=False)
    found = view.layer("fused", Rendering(style="pca")).window(slice(0, 96), slice(0, 96)).reshape(3, -1)
    for k in range(3):
        assert abs(np.corrcoef(found[k], axes[:, k] @ centred)[0, 1]) > 0.9999
    assert found.var(axis=1) == pytest.approx(values[:3] ** 2 / spectra.shape[1], rel=1e-2)


def test_bands_are_matched_by_wavelength(view: View) -> None:
    nm = view.opened.lead.cube["wavelength"].values
    band = int(np.abs(nm - 560).argmin())
    assert view.layer("msi", Rendering(style="band", bands=(band,))).label == "560 nm"
    assert view.layer("hsi", Rendering(style="band", bands=(band,))).label == f"{nm[band]:.0f} nm"


def test_what_cannot_be_shown_is_refused(view: View) -> None:
    with pytest.raises(BandError, match="band 400"):
        view.tile("fused", TilePlace(0, 0, 0), Rendering(style="band", bands=(399,)))
    with pytest.raises(BandError, match="no good band within"):
        view.tile("msi", TilePlace(0, 0, 0), Rendering(style="index", index="NDMI"))
    with pytest.raises(OptionError, match="index"):
        view.tile("fused", TilePlace(0, 0, 0), Rendering(style="index", index="NDXX"))
    with pytest.raises(OptionError, match="level"):
        view.tile("fused", TilePlace(9, 0, 0), Rendering())
    with pytest.raises(OptionError, match="layer"):
        view.tile("reference", TilePlace(0, 0, 0), Rendering())
    with pytest.raises(OptionError, match="no reference open"):
        view.tile("difference", TilePlace(0, 0, 0), Rendering())


def test_requests_about_replaced_images(folder: Path) -> None:
    session = Session(Folder.at(folder))
    with pytest.raises(OptionError, match="no image is open"):
        session.require_view()
    for number in (1, 2):
        assert session.open({"fused": folder / "msi.tif"}).number == number
    assert session.require_view(2) is session.require_view()
    with pytest.raises(HyperfuseError, match="replaced"):
        session.require_view(1)


def test_cache_computes_once_and_forgets_the_oldest() -> None:
    cache: Cache[str] = Cache(10, len)
    computed: list[str] = []

    def compute(text: str) -> str:
        computed.append(text)
        time.sleep(0.05)
        return text

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: cache.get("a", lambda: compute("aaaa")), range(4))) == ["aaaa"] * 4
    assert computed == ["aaaa"]
    cache.get("b", lambda: compute("bbbb"))
    cache.get("a", lambda: compute("again"))
    cache.get("c", lambda: compute("cccc"))
    assert cache.get("a", lambda: compute("again")) == "aaaa"
    assert cache.get("b", lambda: compute("twelve chars")) == "twelve chars"
    assert cache.get("a", lambda: compute("again")) == "again"
    with pytest.raises(OptionError, match="fails"):
        cache.get("d", lambda: (_ for _ in ()).throw(OptionError("fails")))
    assert cache.get("d", lambda: compute("d")) == "d"


def test_highest_level_fits_into_one_tile() -> None:
    assert [highest_level(Grid(side, 1, None, None)) for side in (1, 256, 257, 512, 10_000)] == [0, 0, 1, 1, 6]


def test_image_without_georeference_covers_the_same_extent(tmp_path: Path) -> None:
    coarse = np.random.default_rng(5).random((1, 8, 8)).astype(np.float32)
    written(tmp_path / "fused.tif", np.zeros((1, 32, 32), dtype=np.float32))
    write_cube(make_cube(coarse), tmp_path / "hsi.npy")
    scene = open_images({"fused": tmp_path / "fused.tif", "hsi": tmp_path / "hsi.npy"})
    assert any("same extent" in note for note in scene.notes)
    planes, _ = tile_planes(layer_of(scene, "hsi", [0]), TilePlace(0, 0, 0), scene.grid, no_preview)
    np.testing.assert_array_equal(planes[0, :32, :32], coarse[0].repeat(4, axis=0).repeat(4, axis=1))
