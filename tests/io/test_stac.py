"""The STAC item beside a cube: valid by the specification's own schema, read by pystac, true to the cube."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyproj
import pystac
import pytest
import xarray as xr
from affine import Affine
from jsonschema import Draft7Validator
from pystac.validation.local_validator import get_local_schema_cache
from referencing import Registry, Resource

from hyperfuse.config import OutputConfig
from hyperfuse.errors import CubeWriteError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.output import provenance, provenance_of, time_of_writing
from hyperfuse.io.stac import stac_item

PLACE = Affine(10.0, 0, 399960.0, 0, -10.0, 5700000.0)
WITH_ITEM = OutputConfig(stac=True)
# The fields that the extensions' schemas know; they refuse every other one with their prefix.
KNOWN_FIELDS = {
    "eo": {"center_wavelength", "full_width_half_max"},
    "proj": {"code", "wkt2", "shape", "transform"},
    "raster": {"scale", "offset"},
    "processing": {"software"},
}


def cube(crs: str | None = "EPSG:32633", transform: Affine | None = PLACE, **known: Any) -> xr.DataArray:
    attributes = {"sensor": "EnMAP", "acquired": "2022-06-15T10:33:07.5Z"}
    attributes |= provenance(method="gsa", inputs={"hsi": "hsi.tif"}, options={"trust": "hsi"})
    return make_cube(
        np.zeros((3, 200, 300), np.int16),
        wavelength_nm=[450.125, 550.25, np.nan],
        fwhm_nm=[10.0, np.nan, np.nan],
        good=[True, False, True],
        band_names=["blue", "", ""],
        scale=1e-4,
        crs=crs,
        transform=transform,
        attributes=known.pop("attributes", attributes),
        **{"nodata": -9999} | known,
    )


def complaints(item: dict[str, Any]) -> list[str]:
    """Errors of the schema of STAC 1.1 that pystac carries, and of what the extensions' schemas would say."""
    schemas = get_local_schema_cache()
    registry: Any = Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in schemas.items()
    )
    schema = schemas["https://schemas.stacspec.org/v1.1.0/item-spec/json-schema/item.json"]
    found = [error.message for error in Draft7Validator(schema, registry=registry).iter_errors(item)]
    used: set[str] = set()
    places = [
        item["properties"],
        *item["assets"].values(),
        *(band for asset in item["assets"].values() for band in asset.get("bands", [])),
    ]
    for prefix, _, name in (key.partition(":") for place in places for key in place if ":" in key):
        used.add(prefix)
        if prefix != "hyperfuse" and name not in KNOWN_FIELDS.get(prefix, ()):
            found.append(f"{prefix}:{name}")
    declared = {address.split("/")[3].replace("projection", "proj") for address in item["stac_extensions"]}
    return found + sorted((used - {"hyperfuse"}) ^ declared)


def test_the_check_finds_mistakes() -> None:
    item = stac_item(Path("s.tif"), cube())
    assert complaints(item) == []
    assert complaints(item | {"bbox": [1]}) and complaints(item | {"stac_extensions": []})
    assert complaints(item | {"properties": item["properties"] | {"datetime": "yesterday", "proj:epsg": 1}})


@pytest.mark.parametrize("suffix", [".tif", ".hdr", ".nc", ".zarr", ".npy"])
def test_pystac_reads_it(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    (tmp_path / "in").mkdir()
    source = tmp_path / "in" / "hsi.tif"
    path = write_cube(
        cube(), tmp_path / f"scene of 2022{suffix}", config=WITH_ITEM, inputs=[source, tmp_path / "msi.SAFE"]
    )
    assert complaints(json.loads((tmp_path / "scene of 2022.json").read_text())) == []
    item = pystac.Item.from_file(str(tmp_path / "scene of 2022.json"))
    assert item.id == "scene of 2022"
    assert item.datetime is not None and item.datetime.isoformat() == "2022-06-15T10:33:07.500000+00:00"
    assert item.common_metadata.created is not None and item.common_metadata.created.year == 2023
    assert item.common_metadata.gsd == 10.0 and item.common_metadata.instruments == ["EnMAP"]
    assert item.properties["proj:code"] == "EPSG:32633"
    assert item.properties["proj:shape"] == [200, 300]
    assert item.properties["proj:transform"] == [10.0, 0.0, 399960.0, 0.0, -10.0, 5700000.0]
    assert set(item.properties["processing:software"]) == {"hyperfuse"}
    assert item.properties["hyperfuse:method"] == "gsa" and item.properties["hyperfuse:options"] == "trust=hsi"
    assert [link.href for link in item.get_links("derived_from")] == ["./in/hsi.tif", "./msi.SAFE"]
    asset = item.assets["cube"]
    data = Path(asset.get_absolute_href() or "")
    assert data.exists() and data == (path.with_suffix(".img") if suffix == ".hdr" else path)
    assert all(Path(each.get_absolute_href() or "").exists() for each in item.assets.values())
    assert asset.extra_fields["data_type"] == "int16" and asset.extra_fields["nodata"] == -9999
    scaling = {"raster:scale": 1e-4, "raster:offset": 0.0}
    assert asset.extra_fields["bands"] == [
        {"name": "blue", "eo:center_wavelength": 0.450125, "eo:full_width_half_max": 0.01} | scaling,
        {"name": "B002", "eo:center_wavelength": 0.55025, "hyperfuse:good": False} | scaling,
        {"name": "B003"} | scaling,
    ]


def test_only_the_bands_that_are_written(tmp_path: Path) -> None:
    write_cube(
        cube(), tmp_path / "s.tif", config=OutputConfig(stac=True, bands="2", dtype="float32", scale_factor=1), cog=True
    )
    asset = pystac.Item.from_file(str(tmp_path / "s.json")).assets["cube"]
    assert asset.media_type == pystac.MediaType.COG
    assert [band["name"] for band in asset.extra_fields["bands"]] == ["B001"]
    assert asset.extra_fields["data_type"] == "float32" and asset.extra_fields["bands"][0]["raster:scale"] == 1


class TestPlace:
    def test_footprint_and_box(self) -> None:
        item = stac_item(Path("s.tif"), cube())
        west, south, east, north = item["bbox"]
        to_degrees = pyproj.Transformer.from_crs("EPSG:32633", "EPSG:4326", always_xy=True)
        xs, ys = to_degrees.transform([399960, 402960, 402960, 399960], [5700000, 5700000, 5698000, 5698000])
        assert [west, south, east, north] == pytest.approx([min(xs), min(ys), max(xs), max(ys)], abs=1e-6)
        ring = np.array(item["geometry"]["coordinates"][0])
        assert (
            (ring[0] == ring[-1]).all()
            and ring.min(axis=0).tolist() == [west, south]
            and ring.max(axis=0).tolist() == [east, north]
        )
        area = np.sum(ring[:-1, 0] * ring[1:, 1] - ring[1:, 0] * ring[:-1, 1]) / 2
        assert area > 0, "anticlockwise"

    @pytest.mark.parametrize(
        "transform",
        [
            Affine(10.0, 0, 4e5, 0, 10.0, 5.7e6),
            Affine.translation(4e5, 5.7e6) @ Affine.rotation(30) @ Affine.scale(10, -10),
        ],
    )
    def test_any_orientation_is_anticlockwise(self, transform: Affine) -> None:
        item = stac_item(Path("s.tif"), cube(transform=transform))
        ring = np.array(item["geometry"]["coordinates"][0])
        assert np.sum(ring[:-1, 0] * ring[1:, 1] - ring[1:, 0] * ring[:-1, 1]) > 0
        assert complaints(item) == [] and item["properties"]["gsd"] == pytest.approx(10.0)

    def test_across_the_date_line(self) -> None:
        item = stac_item(Path("s.tif"), cube("EPSG:32601", Affine(1000.0, 0, 100000.0, 0, -1000.0, 5300000.0)))
        assert item["geometry"]["type"] == "MultiPolygon" and complaints(item) == []
        west, _, east, _ = item["bbox"]
        assert 177 < west < 180 and -180 < east < -177

    def test_degrees(self) -> None:
        item = stac_item(Path("s.tif"), cube("EPSG:4326", Affine(1e-4, 0, 10, 0, -1e-4, 60.01)))
        assert item["bbox"] == pytest.approx([10, 59.99, 10.03, 60.01])
        assert item["properties"]["gsd"] == pytest.approx(11.14, abs=0.01)

    def test_feet(self) -> None:
        item = stac_item(Path("s.tif"), cube("EPSG:2263", Affine(10.0, 0, 987000.0, 0, -10.0, 212000.0)))
        assert item["properties"]["gsd"] == pytest.approx(3.048, abs=1e-3)

    def test_a_projection_without_a_code(self) -> None:
        crs = "+proj=laea +lat_0=51.3 +lon_0=12.4 +ellps=GRS80 +units=m"
        item = stac_item(Path("s.tif"), cube(crs, Affine(10.0, 0, 0, 0, -10.0, 0)))
        assert item["properties"]["proj:code"] is None and item["properties"]["proj:wkt2"].startswith("PROJCRS")
        assert complaints(item) == []

    @pytest.mark.parametrize("known", [{"crs": None}, {"transform": None}, {"crs": None, "transform": None}])
    def test_nowhere(self, known: dict[str, Any]) -> None:
        with pytest.warns(UserWarning, match=r"s\.tif has no georeference: its STAC item has no geometry"):
            item = stac_item(Path("s.tif"), cube(**known))
        assert item["geometry"] is None and "bbox" not in item and "gsd" not in item["properties"]
        assert complaints(item) == []


class TestTime:
    @pytest.mark.parametrize(
        ("name", "text", "expected"),
        [
            ("acquired", "2022-06-15T10:33:07.500Z", "2022-06-15T10:33:07.500000Z"),
            ("acquired", "2022-06-15", "2022-06-15T00:00:00Z"),
            ("acquisition_time", "2022-06-15T12:00:00+02:00", "2022-06-15T10:00:00Z"),
            ("time_coverage_start", "2022-06-15 10:00", "2022-06-15T10:00:00Z"),
        ],
    )
    def test_acquired(self, name: str, text: str, expected: str) -> None:
        item = stac_item(Path("s.tif"), cube(attributes={name: text}))
        assert item["properties"]["datetime"] == expected and complaints(item) == []

    @pytest.mark.parametrize("attributes", [{}, {"acquired": "last summer"}])
    def test_unknown(self, attributes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
        with pytest.warns(
            UserWarning, match=r"when s\.tif was acquired is unknown: its STAC item says when it was written"
        ):
            item = stac_item(Path("s.tif"), cube(attributes=attributes))
        assert item["properties"]["datetime"] == "1970-01-01T00:00:00Z" == time_of_writing()


def test_nan_and_no_wavelengths() -> None:
    bare = make_cube(
        np.zeros((1, 2, 2), np.float32),
        nodata=np.nan,
        crs=32633,
        transform=Affine(1, 0, 0, 0, -1, 0),
        attributes={"acquired": "2020-01-01"},
    )
    item = stac_item(Path("s.npz"), bare)
    json.dumps(item, allow_nan=False)
    assert item["assets"]["cube"]["nodata"] == "nan" and complaints(item) == []


def test_an_old_item_is_protected_and_replaced_with_its_cube(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("somebody's notes")
    with pytest.raises(CubeWriteError, match=r"s\.json exists already"):
        write_cube(cube(), tmp_path / "s.tif", config=WITH_ITEM)
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    write_cube(cube(), tmp_path / "s.tif", config=WITH_ITEM, overwrite=True)
    assert json.loads((tmp_path / "s.json").read_text())["id"] == "s"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.json", "s.tif"]


class TestProvenance:
    def test_what_is_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
        record = provenance(
            weights="sha256:abc",
            inputs={"hsi": "/home/me/a.tif"},
            options={"extent": "msi", "estimate": False, "mask": None},
            facts={"scale": "4"},
        )
        version = record.pop("hyperfuse_version")
        assert version
        assert record == {
            "hyperfuse_weights": "sha256:abc",
            "hyperfuse_date": "2023-11-14T22:13:20Z",
            "hyperfuse_options": "extent=msi estimate=False",
            "hyperfuse_hsi": "a.tif",
            "hyperfuse_scale": "4",
        }
        assert provenance_of(record | {"sensor": "x", "hyperfuse_": "y"})["hsi"] == "a.tif"

    def test_conversion_keeps_it(self, tmp_path: Path) -> None:
        made = cube()
        first = open_cube(write_cube(made, tmp_path / "a.hdr"))
        second = open_cube(write_cube(first, tmp_path / "b.zarr", config=OutputConfig(bands="1", dtype="float32")))
        assert provenance_of(second.attrs) == provenance_of(made.attrs) == provenance_of(first.attrs)
