"""What we write, as others read it: SPy, plain rasterio, xarray, scipy, pymatreader, h5py."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import rasterio
import scipy.io
import xarray as xr
from pymatreader import read_mat
from spectral.io import envi
from tests.io.random_cubes import DTYPES, sample_cube

from hyperfuse.io.cube import make_cube, physical_values
from hyperfuse.io.files import write_cube


@pytest.mark.filterwarnings("ignore:Image data contains NaN")
@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_spy_reads_our_envi(interleave: str, dtype: str, tmp_path: Path) -> None:
    cube = sample_cube(dtype=dtype)
    path = write_cube(cube, tmp_path / "scene.hdr", creation_options={"INTERLEAVE": interleave})
    image = envi.open(str(path))
    header = image.metadata
    stored = np.array(image.load(dtype=cube.dtype, scale=False))
    assert stored.tobytes() == np.ascontiguousarray(cube.values.transpose(1, 2, 0)).tobytes()
    assert header["interleave"] == interleave
    assert header["wavelength units"] == "Nanometers"
    np.testing.assert_allclose([float(value) for value in header["wavelength"]], cube["wavelength"], rtol=0, atol=1e-6)
    np.testing.assert_allclose([float(value) for value in header["fwhm"]], cube["fwhm"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(image.bands.centers, cube["wavelength"], rtol=0, atol=1e-6)
    assert [int(value) for value in header["bbl"]] == cube["good"].values.astype(int).tolist()
    assert header["band names"] == cube["band_name"].values.tolist()
    assert float(header["data ignore value"]) == 0
    assert float(header["reflectance scale factor"]) == pytest.approx(1e4)


def test_envi_header_names_the_scene_and_no_folder(tmp_path: Path) -> None:
    odd = tmp_path / "a {brace} of folders"
    odd.mkdir()
    write_cube(sample_cube(), odd / "scene.hdr")
    text = (odd / "scene.hdr").read_text()
    assert text.startswith("ENVI\ndescription = {scene}\nsamples")
    assert "brace" not in text and "partial" not in text
    assert sorted(path.name for path in odd.iterdir()) == ["scene.hdr", "scene.img"]


@pytest.mark.parametrize("cog", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rasterio_reads_our_geotiff(cog: bool, dtype: str, tmp_path: Path) -> None:
    cube = sample_cube(dtype=dtype).drop_vars("band_name")
    path = write_cube(cube, tmp_path / "scene.tif", cog=cog)
    with rasterio.open(path) as source:
        assert source.read().tobytes() == cube.values.tobytes()
        assert source.dtypes == (dtype,) * 4
        assert source.nodata == 0
        assert source.scales == (1e-4,) * 4
        assert source.offsets == (0.0,) * 4
        assert source.crs == "EPSG:32633"
        assert source.transform == rasterio.Affine(30.0, 0.0, 399960.0, 0.0, -30.0, 5700000.0)
        assert source.descriptions == ("B001 412.3 nm", "B002 1074.5 nm", "B003 1736.6 nm", "B004 2398.8 nm")
        assert source.tags(1, ns="IMAGERY") == {"CENTRAL_WAVELENGTH_UM": "0.412346", "FWHM_UM": "0.005250"}
        assert source.tags(2)["bbl"] == "0"
        assert source.tags()["sensor"] == "test sensor"
        layout = source.tags(ns="IMAGE_STRUCTURE")
    assert (layout.get("LAYOUT") == "COG") is cog
    assert [each.name for each in tmp_path.iterdir()] == ["scene.tif"]


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_large_geotiffs_are_tiled_and_do_not_bloat(tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.arange(700, dtype=np.uint16), (5, 600, 700))
    path = write_cube(make_cube(smooth), tmp_path / "scene.tif")
    with rasterio.open(path) as source:
        assert source.block_shapes == [(256, 256)] * 5
        assert source.profile["tiled"] and source.profile["compress"] == "deflate"
    assert path.stat().st_size < smooth.nbytes / 50


def nodata_masked(cube: xr.DataArray) -> np.ndarray:
    return physical_values(cube, dtype=np.float64)


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
@pytest.mark.parametrize("suffix", [".nc", ".h5", ".zarr"])
@pytest.mark.parametrize("dtype", ["uint16", "int16", "float32"])
def test_xarray_decodes_our_netcdf_and_zarr(suffix: str, dtype: str, tmp_path: Path) -> None:
    cube = sample_cube(dtype=dtype)
    path = write_cube(cube, tmp_path / f"scene{suffix}")
    opened = xr.open_zarr(path) if suffix == ".zarr" else xr.open_dataset(path, engine="h5netcdf")
    with opened as dataset:
        dataset = dataset.set_coords("spatial_ref")
        values = dataset["cube"].values.astype(np.float64)
        finite = np.isfinite(nodata_masked(cube))
        np.testing.assert_allclose(values[finite], nodata_masked(cube)[finite], rtol=1e-6)
        assert np.isnan(values[cube.values == 0]).all()
        assert dataset["cube"].rio.crs == "EPSG:32633"
        assert dataset["cube"].rio.transform() == rasterio.Affine(30.0, 0.0, 399960.0, 0.0, -30.0, 5700000.0)
        np.testing.assert_array_equal(dataset["wavelength"], cube["wavelength"])
        assert dataset["wavelength"].attrs["units"] == "nm"
        np.testing.assert_array_equal(dataset["x"], cube["x"])
        np.testing.assert_array_equal(dataset["y"], cube["y"])
        assert dataset["band_name"].values.tolist() == cube["band_name"].values.tolist()
        assert dataset["cube"].attrs["sensor"] == "test sensor"


def test_h5py_reads_our_hdf5(tmp_path: Path) -> None:
    cube = sample_cube(dtype="float32")
    path = write_cube(cube, tmp_path / "scene.h5")
    with h5py.File(path, "r") as file:
        assert file["cube"][...].tobytes() == cube.values.tobytes()
        assert file["cube"].attrs["_FillValue"] == 0
        assert file["cube"].dims[0][0].name == "/band"
        np.testing.assert_array_equal(file["wavelength"], cube["wavelength"])
        assert file["wavelength"].attrs["units"] == "nm"
        assert file["band_name"].asstr()[2] == "channel 2"


@pytest.mark.parametrize("version", ["5", "7.3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_matlab_readers_find_rows_columns_bands(version: str, dtype: str, tmp_path: Path) -> None:
    cube = sample_cube(dtype=dtype)
    path = write_cube(cube, tmp_path / "scene.mat", creation_options={"VERSION": version})
    expected = cube.values.transpose(1, 2, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        contents = read_mat(str(path))
    np.testing.assert_array_equal(contents["cube"], expected)
    assert contents["cube"].shape == (6, 5, 4)
    np.testing.assert_array_equal(contents["wavelength_nm"], cube["wavelength"])
    assert json.loads(contents["band_name"])[3] == "channel 3"
    assert "WGS 84" in contents["crs_wkt"]
    if version == "5":
        loaded = scipy.io.loadmat(path)
        assert loaded["cube"].dtype == cube.dtype
        np.testing.assert_array_equal(loaded["cube"], expected)
    else:
        with h5py.File(path, "r") as file:
            assert file["cube"].shape == (4, 5, 6)
            names = {"float32": "single", "float64": "double"}
            assert file["cube"].attrs["MATLAB_class"] == names.get(dtype, dtype).encode()
        assert path.read_bytes().startswith(b"MATLAB 7.3 MAT-file")


def test_numpy_reads_our_npz_and_npy(tmp_path: Path) -> None:
    cube = sample_cube()
    expected = cube.values.transpose(1, 2, 0)
    with np.load(write_cube(cube, tmp_path / "scene.npz"), allow_pickle=False) as archive:
        np.testing.assert_array_equal(archive["cube"], expected)
        np.testing.assert_array_equal(archive["wavelength_nm"], cube["wavelength"])
    np.testing.assert_array_equal(np.load(write_cube(cube, tmp_path / "scene.npy")), expected)


def test_the_table_beside_an_npy_is_strict_json(tmp_path: Path) -> None:
    cube = make_cube(np.zeros((2, 1, 1), np.float32), wavelength_nm=[500.0, np.nan], nodata=np.nan)
    path = write_cube(cube, tmp_path / "scene.npy")

    def refuse(name: str) -> None:
        raise AssertionError(name)

    table = json.loads(path.with_name("scene.npy.json").read_text(), parse_constant=refuse)
    assert table["wavelength_nm"] == [500.0, None]
    assert table["nodata"] == "nan"
