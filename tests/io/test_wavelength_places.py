"""Wavelengths in all places where other software puts them, and units that contradict the numbers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import rioxarray
import scipy.io
import xarray as xr
from affine import Affine
from spectral.io import envi

from hyperfuse.io.cube import as_cube, lengths_in_names, lengths_in_nanometres
from hyperfuse.io.files import open_cube, write_cube

CENTRES = [418.24, 560.5, 2200.25]
REAL_FILES = Path(__file__).resolve().parents[3] / "shared" / "real_files"


def geotiff(path: Path, tag: Callable[[Any], None]) -> Path:
    profile = {"driver": "GTiff", "count": 3, "height": 4, "width": 5, "dtype": "int16"}
    with rasterio.open(path, "w", crs=32633, transform=Affine(30, 0, 5e5, 0, -30, 5e6), **profile) as target:
        target.write(np.random.default_rng(0).integers(0, 9, (3, 4, 5), dtype=np.int16))
        tag(target)
    return path


def dataset_list(target: Any) -> None:
    target.update_tags(wavelength="{ 0.41824, 0.5605, 2.20025 }", wavelength_units="Micrometers")


def envi_domain(target: Any) -> None:
    target.update_tags(ns="ENVI", **{"wavelength": "418.24,560.5,2200.25", "wavelength units": "nm"})


def envi_domain_of_bands(target: Any) -> None:
    for band, centre in enumerate(CENTRES, start=1):
        target.update_tags(band, ns="ENVI", **{"wavelength": str(centre), "wavelength units": "Nanometers"})


def band_tags_in_capitals(target: Any) -> None:
    for band, centre in enumerate(CENTRES, start=1):
        target.update_tags(band, WAVELENGTH=str(centre), WAVELENGTH_UNITS="nm")


def imagery(target: Any) -> None:
    for band, centre in enumerate(CENTRES, start=1):
        target.update_tags(band, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=str(centre / 1e3))


def descriptions(target: Any) -> None:
    target.descriptions = tuple(f"band {band} ({centre} Nanometers)" for band, centre in enumerate(CENTRES, start=1))


@pytest.mark.parametrize(
    "tag", [dataset_list, envi_domain, envi_domain_of_bands, band_tags_in_capitals, imagery, descriptions]
)
@pytest.mark.filterwarnings("ignore:.*matmul:PendingDeprecationWarning")
def test_geotiff(tag: Callable[[Any], None], tmp_path: Path) -> None:
    path = geotiff(tmp_path / "s.tif", tag)
    cube = open_cube(path)
    np.testing.assert_allclose(cube["wavelength"], CENTRES)
    assert not {"wavelength", "wavelength_units"} & set(cube.attrs)
    part = open_cube(write_cube(cube, tmp_path / "part.tif", bands="2-3"))
    np.testing.assert_allclose(part["wavelength"], CENTRES[1:])
    with rioxarray.open_rasterio(path) as theirs:
        assert isinstance(theirs, xr.DataArray)
        np.testing.assert_allclose(as_cube(theirs)["wavelength"], CENTRES)
        np.testing.assert_allclose(as_cube(theirs.isel(band=[2, 0]))["wavelength"], [CENTRES[2], CENTRES[0]])


@pytest.mark.parametrize("name", ["s.stac.json", "s.json", "s.tif.json"])
@pytest.mark.parametrize("place", ["properties", "asset", "raster", "bands"])
def test_stac_item_beside_the_file(name: str, place: str, tmp_path: Path) -> None:
    geotiff(tmp_path / "s.tif", lambda target: None)
    prefix = "eo:" if place == "bands" else ""
    rows = [
        {"name": f"B{band}", f"{prefix}center_wavelength": centre / 1e3, f"{prefix}full_width_half_max": 0.01}
        for band, centre in enumerate(CENTRES, start=1)
    ]
    asset: dict[str, Any] = {"href": "./s.tif"}
    item: dict[str, Any] = {"type": "Feature", "properties": {}, "assets": {"other": {"href": "o.tif"}, "image": asset}}
    if place == "properties":
        item["properties"]["eo:bands"] = rows
    else:
        asset[{"asset": "eo:bands", "raster": "raster:bands", "bands": "bands"}[place]] = rows
    (tmp_path / name).write_text(json.dumps(item))
    cube = open_cube(tmp_path / "s.tif")
    np.testing.assert_allclose(cube["wavelength"], CENTRES)
    np.testing.assert_allclose(cube["fwhm"], 10)
    assert cube["band_name"].values.tolist() == ["B1", "B2", "B3"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"properties": {"eo:bands": 3}}', '{"assets": [1]}'])
def test_json_beside_the_file_that_is_no_item(text: str, tmp_path: Path) -> None:
    geotiff(tmp_path / "s.tif", lambda target: None)
    (tmp_path / "s.json").write_text(text)
    assert np.isnan(open_cube(tmp_path / "s.tif")["wavelength"]).all()


@pytest.mark.parametrize(
    ("names", "centres"),
    [
        (["band 1 (418.24 Nanometers)", "band 2 (0.5 Micrometers)"], None),
        (["band 1 (418.24 Nanometers)", "band 2 (500 Nanometers)"], [418.24, 500]),
        (["B012 553.2 nm", "B8A_865nm"], [553.2, 865]),
        (["478.783nm", "1.5 µm"], None),
        (["0.478783 um", "1.5 um"], [478.783, 1500]),
        (["Resize (Band 1:scene) (426.82)", "Resize (Band 2:scene) (436.99)"], [426.82, 436.99]),
        (["450-510 nm", "530-590 nm"], None),
        (["B2", "B3"], None),
        (["Path length (m)", "Slope (rad)"], None),
        ([], None),
    ],
)
@pytest.mark.filterwarnings("ignore:.*gives no wavelength unit")
def test_names_of_bands(names: list[str], centres: list[float] | None) -> None:
    found = lengths_in_names(names)
    if centres is None:
        assert found is None or (len(found) == 2 and names[0] in ("band 1 (418.24 Nanometers)", "478.783nm"))
    else:
        assert found is not None
        np.testing.assert_allclose(found, centres)


@pytest.mark.parametrize("name", ["wavlength", "Wavelenghts", "wave_length", "lambdas"])
def test_misspelt_names_in_mat(name: str, tmp_path: Path) -> None:
    scipy.io.savemat(tmp_path / "s.mat", {"cube": np.zeros((5, 6, 3)), name: CENTRES})
    with pytest.warns(UserWarning, match="taken as nanometres"):
        cube = open_cube(tmp_path / "s.mat")
    np.testing.assert_allclose(cube["wavelength"], CENTRES)


@pytest.mark.parametrize(
    ("values", "unit", "message"),
    [
        ([0.46, 2.4], "nm", "around 1.43 in nm, which is implausible: taken as micrometres"),
        ([460, 2400], "Micrometers", "around 1430 in Micrometers, which is implausible: taken as nanometres"),
        ([4.6e-7, 2.4e-6], "nm", "implausible: taken as metres"),
    ],
)
def test_a_unit_that_cannot_be(values: list[float], unit: str, message: str) -> None:
    with pytest.warns(UserWarning, match=message) as caught:
        centres, _ = lengths_in_nanometres(values, None, unit, None, "s.hdr")
    assert len(caught) == 1
    np.testing.assert_allclose(np.asarray(centres), [460, 2400])


def test_numbers_that_are_wavelengths_in_no_unit_are_left_out() -> None:
    with pytest.warns(UserWarning, match="implausible: left out"):
        assert lengths_in_nanometres([1e-30, 2e-30], None, "nm", None)[0] is None
    with pytest.warns(UserWarning, match="only count the bands"):
        assert lengths_in_nanometres(np.arange(1, 9), None, None, None)[0] is None


def test_widths_in_another_unit_than_the_wavelengths() -> None:
    with pytest.warns(UserWarning, match="widths around 11 in micrometres, which is implausible: taken as nanometres"):
        _, widths = lengths_in_nanometres([0.46, 0.5], [10, 12], "um", None)
    np.testing.assert_allclose(np.asarray(widths), [10, 12])


def test_an_auxiliary_file_that_contradicts_the_header(tmp_path: Path) -> None:
    metadata = {"wavelength": [0.46, 0.47, 0.48], "wavelength units": "Micrometers"}
    envi.save_image(str(tmp_path / "s.hdr"), np.zeros((2, 3, 3), np.uint8), metadata=metadata, ext="img")
    (tmp_path / "s.img.aux.xml").write_text(
        '<PAMDataset><Metadata domain="ENVI"><MDI key="wavelength_units">nm</MDI>'
        '<MDI key="wavelength">{0.46, 0.47, 0.48}</MDI></Metadata></PAMDataset>'
    )
    with pytest.warns(UserWarning, match="in nm, which is implausible"):
        cube = open_cube(tmp_path / "s.hdr")
    np.testing.assert_allclose(cube["wavelength"], [460, 470, 480])


def test_a_dataarray_in_micrometres() -> None:
    values = np.zeros((2, 3, 4), np.float32)
    for image in (
        xr.DataArray(values, dims=("band", "y", "x"), coords={"wavelength": ("band", [0.46, 0.5], {"units": "um"})}),
        xr.DataArray(
            values, dims=("band", "y", "x"), attrs={"wavelength": [0.46, 0.5], "wavelength_units": "Micrometers"}
        ),
    ):
        np.testing.assert_allclose(as_cube(image)["wavelength"], [460, 500])
    plain = xr.DataArray(values, dims=("band", "y", "x"), coords={"wavelength": ("band", [0.46, 0.5])})
    with pytest.warns(UserWarning, match="implausible: taken as micrometres"):
        np.testing.assert_allclose(as_cube(plain)["wavelength"], [460, 500])


@pytest.mark.skipif(not REAL_FILES.is_dir(), reason="no real files")
@pytest.mark.parametrize(
    ("name", "first", "last"),
    [
        ("geotiff/enmap.tif", 460, 2409),
        ("geotiff/wavelength/enmapbox_envidomain_bandlevel.tif", 400, 500),
        ("geotiff/wavelength/enmapbox_envidomain_dslevel.tif", 400, 500),
        ("geotiff/wavelength/gdal_wl_fwhm.tif", 400, 500),
        ("geotiff/wavelength/staclike.tif", 4000, 5000),
        ("envi/qps/envi.hdr", 460, 2409),
        ("isofit/AV320250308t200738_rdn.hdr", 389.75, 2494),
    ],
)
def test_real_files(name: str, first: float, last: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cube = open_cube(REAL_FILES / name)
    np.testing.assert_allclose(cube["wavelength"].values[[0, -1]], [first, last])
