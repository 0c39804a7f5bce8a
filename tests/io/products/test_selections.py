"""What else lies in a product, and how to get at it."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
from affine import Affine
from tests.io.products import band_lists
from tests.io.products.container_writers import EMIT_ID, prisma_scaling, write_emit, write_prisma
from tests.io.products.hyperspectral_writers import (
    AVIRIS_ID,
    ENMAP_ID,
    HYPERION_ID,
    write_aviris,
    write_desis,
    write_enmap,
    write_enmap_l1b,
    write_hyperion,
)
from tests.io.products.multispectral_writers import (
    FINE,
    S2_BANDS,
    SUN_ELEVATION,
    TILE,
    landsat_counts,
    sentinel2_counts,
    write_landsat,
    write_sentinel2,
)
from tests.io.products.written import GRID, HEIGHT, WIDTH, counts

from hyperfuse.errors import CubeFileError, OptionError
from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.io.files import open_cube, open_explained, write_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.physics.srf_curves import named_curves


@pytest.fixture(scope="module")
def safe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentinel2(tmp_path_factory.mktemp("safe")).path


@pytest.fixture(scope="module")
def enmap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_enmap(tmp_path_factory.mktemp("enmap")).path


@pytest.mark.parametrize(
    ("variable", "bands", "metres"),
    [
        ("20m", ["B5", "B6", "B7", "B8A", "B11", "B12"], 20),
        ("60m", ["B1", "B9"], 60),
        ("all", [band for band in S2_BANDS if band != "B10"], 10),
        ("B8A,B11", ["B8A", "B11"], 20),
        ("b02, B12", ["B2", "B12"], 10),
        ("B9", ["B9"], 60),
    ],
)
def test_sentinel2_bands_of_any_resolution_on_the_finest_grid_asked_for(
    safe: Path, variable: str, bands: list[str], metres: int
) -> None:
    cube = open_cube(safe, variable)
    assert cube["band_name"].values.tolist() == bands
    assert grid_of(cube).transform == TILE @ Affine.scale(metres / 10)
    size = FINE * 10 // metres
    stored = sentinel2_counts("L2A")
    for band, values in zip(bands, cube.values, strict=True):
        # The slow way: each fine pixel takes the coarse one in which its centre lies.
        factor = size // stored[band].shape[0] if stored[band].shape[0] else 1
        expected = [[stored[band][row // factor, column // factor] for column in range(size)] for row in range(size)]
        np.testing.assert_array_equal(values, expected)
    window = open_cube(safe, variable).isel(y=slice(3, size - 1), x=slice(1, 4))
    np.testing.assert_array_equal(window.values, cube.values[:, 3 : size - 1, 1:4])


def test_sentinel2_cirrus_keeps_its_place_and_is_flagged(tmp_path: Path) -> None:
    cube = open_cube(write_sentinel2(tmp_path, "L1C").path, "all")
    assert cube.sizes["band"] == 13
    assert cube["band_name"].values[~cube["good"].values].tolist() == ["B10"]


def test_sentinel2_layers_and_unknown_names(safe: Path) -> None:
    classes = open_cube(safe, "SCL_20m")
    assert classes.shape == (1, FINE // 2, FINE // 2)
    np.testing.assert_array_equal(classes[0], counts(11, (12, 12), 0, 12, np.uint16))
    with pytest.raises(OptionError, match=r"no 'B99' in .*one of 10m, 20m, 60m, all"):
        open_cube(safe, "B99")
    with pytest.raises(OptionError, match="no B10 in"):
        open_cube(safe, "B10")
    with pytest.raises(OptionError, match="no band B99; expected some of B1, B2"):
        open_cube(safe, "B2,B99")
    with pytest.raises(OptionError, match="a product knows its axes"):
        open_cube(safe, band_axis=0)


def test_msi_products_name_sensors_whose_responses_are_known(safe: Path, tmp_path: Path) -> None:
    for cube in (open_cube(safe), open_cube(write_landsat(tmp_path).path)):
        curves = {curve.name: curve for curve in named_curves(cube.attrs["sensor"], cube["band_name"].values.tolist())}
        for band, wavelength, fwhm in zip(
            cube["band_name"].values, cube["wavelength"].values, cube["fwhm"].values, strict=True
        ):
            assert curves[str(band)].centre_nm == pytest.approx(wavelength, abs=2)
            assert curves[str(band)].fwhm_nm == pytest.approx(fwhm, abs=3)


@pytest.mark.parametrize("form", ["txt", "json", "xml"])
def test_landsat_metadata_in_each_form(tmp_path: Path, form: str) -> None:
    written = write_landsat(tmp_path, "L1", form)
    cube = open_cube(next(written.path.glob(f"*_MTL.{form}")))
    np.testing.assert_allclose(physical_values(cube, dtype=np.float64), written.physical, rtol=1e-6)


def test_landsat_panchromatic_thermal_and_cirrus(tmp_path: Path) -> None:
    folder, stored = write_landsat(tmp_path, "L1").path, landsat_counts("L1")
    pan = open_cube(folder, "pan")
    assert pan.shape == (1, 2 * HEIGHT - 1, 2 * WIDTH - 1)
    assert grid_of(pan).pixel_size == (15.0, 15.0)
    thermal = open_cube(folder, "thermal")
    expected = stored["B11"] * 3.342e-4 + 0.1
    np.testing.assert_allclose(physical_values(thermal, dtype=np.float64)[1, 0], expected[0], rtol=1e-6)
    assert "radiance" in thermal.attrs["quantity"]
    cirrus = open_cube(folder, "B2,B9")
    assert cirrus["good"].values.tolist() == [True, False]
    assert cirrus["scale"].values[0] == pytest.approx(2e-5 / math.sin(math.radians(SUN_ELEVATION)))
    assert open_cube(folder, "QA_PIXEL").dtype == np.uint16
    with pytest.raises(CubeFileError, match="does not lie on the grid"):
        open_cube(folder, "B2,B8")
    with pytest.raises(OptionError, match="reflective or thermal"):
        open_cube(folder, "B2,B10")


def test_landsat_surface_temperature(tmp_path: Path) -> None:
    cube = open_cube(write_landsat(tmp_path).path, "thermal")
    expected = landsat_counts("L2")["B10"] * 0.00341802 + 149
    np.testing.assert_allclose(physical_values(cube, dtype=np.float64)[0, 0], expected[0], rtol=1e-6)
    assert cube.attrs["quantity"] == "surface temperature, K"


def test_enmap_detectors_and_layers(enmap: Path) -> None:
    whole = open_cube(enmap)
    for detector, count in (("VNIR", 91), ("swir", 133)):
        part = open_cube(enmap, detector)
        assert part.sizes["band"] == count
        assert all(str(name).endswith(detector.upper()) for name in part["band_name"].values)
        assert not part.variable._in_memory
        np.testing.assert_array_equal(part.values, whole.values[np.isin(whole["band_name"], part["band_name"])])
    assert open_cube(enmap, "QL_QUALITY_CLOUD").dtype == np.uint8
    with pytest.raises(OptionError, match=r"no 'CLOUDS'.*one of VNIR, SWIR, .*QL_QUALITY_CLOUD"):
        open_cube(enmap, "CLOUDS")


def test_enmap_bands_alternate_where_the_detectors_overlap(enmap: Path) -> None:
    cube = open_cube(enmap)
    wavelength = cube["wavelength"].values
    assert (np.diff(wavelength) > 0).all()
    overlap = [str(name)[-4:] for name in cube["band_name"].values[(wavelength > 900) & (wavelength < 915)]]
    assert overlap == ["SWIR", "VNIR", "SWIR", "VNIR"]


def test_enmap_l1b_is_read_detector_by_detector(tmp_path: Path) -> None:
    folder, images = write_enmap_l1b(tmp_path)
    with pytest.raises(OptionError, match="add --variable VNIR or --variable SWIR"):
        open_cube(folder)
    cube, notes = open_explained(folder, "SWIR")
    np.testing.assert_array_equal(cube.values, images["SWIR"])
    np.testing.assert_allclose(cube["wavelength"], np.sort(band_lists.ENMAP_NM[~band_lists.ENMAP_VNIR]))
    assert cube["scale"].values[0] == 5.16e-06
    assert grid_of(cube).transform is None and grid_of(cube).crs is None
    assert "sensor" in notes["geometry"]
    named = next(folder.glob("*SPECTRAL_IMAGE_VNIR.TIF"))
    np.testing.assert_array_equal(open_cube(named).values, images["VNIR"])


def test_an_image_that_is_named_itself_gets_its_metadata(enmap: Path, tmp_path: Path) -> None:
    image = enmap / f"{ENMAP_ID}-SPECTRAL_IMAGE.TIF"
    np.testing.assert_array_equal(open_cube(image)["wavelength"], band_lists.ENMAP_NM)
    assert open_cube(enmap / f"{ENMAP_ID}-METADATA.XML").sizes["band"] == 224
    alone = tmp_path / image.name
    alone.write_bytes(image.read_bytes())
    assert np.isnan(open_cube(alone)["wavelength"]).all()


def test_enmap_as_archives_publish_it(enmap: Path, tmp_path: Path) -> None:
    """The image is called _COG there."""
    for file in enmap.iterdir():
        (tmp_path / file.name.replace("SPECTRAL_IMAGE.TIF", "SPECTRAL_IMAGE_COG.TIF")).write_bytes(file.read_bytes())
    assert open_cube(tmp_path).sizes["band"] == 224


def test_desis_layers(tmp_path: Path) -> None:
    assert open_cube(write_desis(tmp_path).path, "QL_QUALITY-2").sizes["band"] == 10


def test_prisma_panchromatic_covers_the_same_ground(tmp_path: Path) -> None:
    path = write_prisma(tmp_path).path
    pan = open_cube(path, "PAN")
    assert pan.shape == (1, 6 * HEIGHT, 6 * WIDTH)
    assert grid_of(pan).transform == GRID @ Affine.scale(1 / 6)
    scale, offset = prisma_scaling("L2D", "Pan")
    stored = counts(9, (6 * HEIGHT, 6 * WIDTH), 1, 65536, np.uint16)
    np.testing.assert_allclose(
        physical_values(pan, dtype=np.float64)[0, 5:9, 3:], (stored * scale + offset)[5:9, 3:], rtol=1e-6
    )
    assert grid_of(open_cube(write_prisma(tmp_path, "L1").path, "pan")).transform is None


def test_prisma_corners_at_the_edges_of_the_image(tmp_path: Path) -> None:
    path = write_prisma(tmp_path).path
    with h5py.File(path, "r+") as file:
        edges = {"UL": (GRID.c, GRID.f), "LR": GRID @ (WIDTH, HEIGHT)}
        for corner, (easting, northing) in edges.items():
            file.attrs[f"Product_{corner}corner_easting"] = easting
            file.attrs[f"Product_{corner}corner_northing"] = northing
    assert grid_of(open_cube(path)).transform == GRID


def test_prisma_detectors_swath_and_any_array(tmp_path: Path) -> None:
    path = write_prisma(tmp_path, "L2C").path
    assert open_cube(path, "VNIR").sizes["band"] == 63
    assert open_cube(path, "swir").sizes["band"] == 171
    swath = open_cube(path, "swath")
    assert swath.shape == (234, HEIGHT, WIDTH)
    assert grid_of(swath).transform is None
    errors = open_cube(path, "HDFEOS/SWATHS/PRS_L2C_HCO/Data Fields/SWIR_PIXEL_L2_ERR_MATRIX", band_axis=1)
    assert errors.shape == (173, HEIGHT, WIDTH)


def test_emit_swath_and_any_array(tmp_path: Path) -> None:
    path = write_emit(tmp_path).path
    swath = open_cube(path, "swath")
    assert swath.shape == (285, HEIGHT, WIDTH)
    assert grid_of(swath).transform is None
    assert swath["good"].values.sum() == 244
    assert (swath.values[swath["good"], 3, 4] == -9999).all()
    assert open_cube(tmp_path, "swath").shape == swath.shape
    with pytest.raises(OptionError, match="no variable 'radiances'"):
        open_cube(tmp_path / f"{EMIT_ID}.nc", "radiances")


def test_hyperion_detectors_and_bands(tmp_path: Path) -> None:
    folder = write_hyperion(tmp_path, metadata=False).path
    assert open_cube(folder, "VNIR").sizes["band"] == 70
    two = open_cube(folder, "B8,B77")
    assert two["wavelength"].values.tolist() == [426.82, 912.45]
    np.testing.assert_allclose(two["scale"], [1 / 40, 1 / 80])


@pytest.mark.parametrize(("bands", "good"), [(242, 198), (198, 198)])
def test_hyperion_cubes_without_wavelengths(tmp_path: Path, bands: int, good: int) -> None:
    values = counts(1, (bands, 3, 4), 1, 100, np.int16)
    path = write_cube(make_cube(values), tmp_path / f"{HYPERION_ID}_L1T.tif")
    cube = open_cube(path)
    assert cube["good"].values.sum() == good
    assert cube["wavelength"].values[cube["good"].values][0] == 426.82
    np.testing.assert_array_equal(cube.values, values)
    known = write_cube(make_cube(values, wavelength_nm=np.arange(bands) + 400.0), tmp_path / f"{HYPERION_ID}_mine.hdr")
    np.testing.assert_array_equal(open_cube(known)["wavelength"], np.arange(bands) + 400.0)


def test_aviris_companions_by_name(tmp_path: Path) -> None:
    folder = write_aviris(tmp_path).path
    assert open_cube(folder, "ort_glt").sizes["band"] == 2
    image = open_cube(folder / AVIRIS_ID)
    assert image.attrs["sensor"] == "AVIRIS"
    np.testing.assert_array_equal(image["scale"], open_cube(folder)["scale"])
    with pytest.raises(OptionError, match="no 'igm' in"):
        open_cube(folder, "igm")


def test_aviris_gains_that_do_not_fit_are_left_out(tmp_path: Path) -> None:
    folder = write_aviris(tmp_path).path
    (folder / "f110512t01p00r11rdn_b.gain").write_text("300.0 1\n300.0 2\n")
    with pytest.warns(UserWarning, match="is ignored"):
        cube = open_cube(folder)
    assert (cube["scale"] == 1).all()


def test_turned_grid_agrees_with_gdal(tmp_path: Path) -> None:
    folder = write_aviris(tmp_path).path
    with rasterio.open(folder / AVIRIS_ID) as source:
        assert grid_of(open_cube(folder)).transform == source.transform
