"""What others write, as we read it: SPy's ENVI, MATLAB-like files, plain rasterio and rioxarray, NetCDF of all kinds,
Zarr 3.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rasterio
import scipy.io
import xarray as xr
import zarr
from affine import Affine
from numpy.typing import NDArray
from rasterio.crs import CRS
from spectral.io import envi

from hyperfuse.errors import BandError, CubeFileError, OptionError
from hyperfuse.io.cube import make_cube, nodata_of
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.grid import grid_of

ENVI_TYPES = ("uint8", "int16", "int32", "float32", "float64", "uint16", "uint32", "int64", "uint64")
UTM = Affine(30.0, 0.0, 399960.0, 0.0, -30.0, 5700000.0)


def rows_columns_bands(dtype: str = "uint16", shape: tuple[int, int, int] = (6, 5, 4), seed: int = 3) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, 250, shape).astype(dtype)


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("byte_order", [0, 1])
@pytest.mark.parametrize("dtype", ENVI_TYPES)
def test_envi_written_by_spy(interleave: str, byte_order: int, dtype: str, tmp_path: Path) -> None:
    values = rows_columns_bands(dtype)
    metadata = {
        "wavelength": [0.5, 0.6, 0.55, 2.1],
        "wavelength units": "Micrometers",
        "bbl": [1, 0, 1, 1],
        "fwhm": [0.01] * 4,
    }
    path = str(tmp_path / "scene.hdr")
    envi.save_image(path, values, interleave=interleave, byteorder=byte_order, dtype=np.dtype(dtype), metadata=metadata)
    cube = open_cube(path)
    assert cube.dtype == np.dtype(dtype)
    assert cube.dtype.isnative
    np.testing.assert_array_equal(cube.values, values.transpose(2, 0, 1))
    np.testing.assert_allclose(cube["wavelength"], [500, 600, 550, 2100], rtol=0, atol=1e-6)
    np.testing.assert_allclose(cube["fwhm"], 10, rtol=0, atol=1e-6)
    assert cube["good"].values.tolist() == [True, False, True, True]
    np.testing.assert_array_equal(open_cube(tmp_path / "scene.img").values, cube.values)


@pytest.mark.parametrize("data_name", ["scene", "scene.dat", "scene.bsq", "scene.RAW"])
def test_envi_with_a_header_offset_and_any_data_name(data_name: str, tmp_path: Path) -> None:
    values = rows_columns_bands("int16").transpose(2, 0, 1).copy()
    (tmp_path / data_name).write_bytes(b"x" * 123 + values.tobytes())
    size = "samples = 5\nlines = 6\nbands = 4\nheader offset = 123\n"
    header = f"ENVI\n{size}data type = 2\ninterleave = bsq\nbyte order = 0\n"
    (tmp_path / "scene.hdr").write_text(header)
    np.testing.assert_array_equal(open_cube(tmp_path / "scene.hdr").values, values)


def test_envi_data_beside_two_candidates_is_the_one_of_the_right_size(tmp_path: Path) -> None:
    values = rows_columns_bands().transpose(2, 0, 1).copy()
    header = "ENVI\nsamples = 5\nlines = 6\nbands = 4\ndata type = 12\ninterleave = bsq\nbyte order = 0\n"
    (tmp_path / "scene.hdr").write_text(header)
    (tmp_path / "scene.img").write_bytes(b"something else")
    (tmp_path / "scene.dat").write_bytes(values.tobytes())
    np.testing.assert_array_equal(open_cube(tmp_path / "scene.hdr").values, values)


def test_a_header_edited_by_hand_wins_over_our_exact_copy(tmp_path: Path) -> None:
    cube = make_cube(
        rows_columns_bands().transpose(2, 0, 1),
        band_names=["a, b", "c", "d", "e"],
        nodata=7,
        crs="EPSG:32633",
        transform=Affine(30.0, 0.0, 399960.123456789012, 0.0, -30.0, 5700000.0),
    )
    path = write_cube(cube, tmp_path / "scene.hdr")
    text = (
        path.read_text()
        .replace("399960.123", "500000.123")
        .replace("a; b", "renamed")
        .replace("ignore value = 7", "ignore value = 9")
    )
    path.write_text(text)
    edited = open_cube(path)
    assert grid_of(edited).transform.c == pytest.approx(500000.123, abs=1e-3)
    assert edited["band_name"].values.tolist()[0] == "renamed"
    assert nodata_of(edited) == 9


def test_geotiff_of_plain_rasterio(tmp_path: Path) -> None:
    values = rows_columns_bands("int16").transpose(2, 0, 1)
    profile = {
        "driver": "GTiff",
        "count": 4,
        "height": 6,
        "width": 5,
        "dtype": "int16",
        "crs": "EPSG:32633",
        "transform": UTM,
    }
    with rasterio.open(tmp_path / "s.tif", "w", nodata=-99, interleave="pixel", **profile) as target:
        target.write(values)
        target.descriptions = ("Blue", "Green", "Red", "NIR")
        target.scales = (0.1, 0.2, 0.3, 0.4)
        for band, centre in enumerate((0.49, 0.56, 0.665, 0.842), start=1):
            target.update_tags(band, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=str(centre), FWHM_UM="0.03")
    cube = open_cube(tmp_path / "s.tif")
    np.testing.assert_array_equal(cube.values, values)
    assert cube["wavelength"].values.tolist() == [490, 560, 665, 842]
    assert cube["fwhm"].values.tolist() == [30] * 4
    assert cube["band_name"].values.tolist() == ["Blue", "Green", "Red", "NIR"]
    assert cube["scale"].values.tolist() == [0.1, 0.2, 0.3, 0.4]
    assert nodata_of(cube) == -99
    assert grid_of(cube).transform == UTM


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_geotiff_of_rioxarray_and_its_dataarray(tmp_path: Path) -> None:
    import rioxarray

    ours = make_cube(rows_columns_bands().transpose(2, 0, 1), nodata=3, crs="EPSG:32633", transform=UTM)
    ours.rio.to_raster(tmp_path / "theirs.tif")
    read = open_cube(tmp_path / "theirs.tif")
    np.testing.assert_array_equal(read.values, ours.values)
    with rioxarray.open_rasterio(tmp_path / "theirs.tif") as theirs:
        again = open_cube(write_cube(theirs, tmp_path / "again.tif"))
    np.testing.assert_array_equal(again.values, ours.values)
    assert grid_of(again) == grid_of(ours)
    assert nodata_of(again) == 3
    assert again["scale"].values.tolist() == [1.0] * 4


def test_mat_with_struct_fields(tmp_path: Path) -> None:
    values = rows_columns_bands()
    contents = {
        "scene": {"data": values, "wavelength": np.linspace(400, 700, 4), "info": {"name": "x"}},
        "lambda": 0.1,
        "offset": [1, 2, 3],
    }
    scipy.io.savemat(tmp_path / "s.mat", contents)
    with pytest.warns(UserWarning) as caught:
        cube = open_cube(tmp_path / "s.mat")
    np.testing.assert_array_equal(cube.values, values.transpose(2, 0, 1))
    assert cube["wavelength"].values.tolist() == [400, 500, 600, 700]
    assert sorted(str(each.message).rpartition("/")[2] for each in caught) == [
        "s.mat gives no wavelength unit: taken as nanometres",
        "s.mat: offset has 3 entries for 4 bands and is left out",
    ]


@pytest.mark.parametrize("version", [5, 7.3])
def test_mat_with_several_cubes(version: float, tmp_path: Path) -> None:
    first, second = rows_columns_bands(seed=1), rows_columns_bands(seed=2, shape=(7, 5, 4))
    path = tmp_path / "s.mat"
    if version == 5:
        scipy.io.savemat(path, {"first": first, "second": second, "flat": first[0]})
    else:
        with h5py.File(path, "w", userblock_size=512) as file:
            for name, values in (("first", first), ("second", second), ("flat", first[0])):
                file[name] = values.T
        path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + path.read_bytes()[128:])
    with pytest.raises(
        CubeFileError, match=r"2 3-D arrays .*--variable: first \(6x5x4 uint16\), second \(7x5x4 uint16\)"
    ):
        open_cube(path)
    np.testing.assert_array_equal(open_cube(path, variable="second").values, second.transpose(2, 0, 1))
    with pytest.raises(OptionError, match="no variable 'third'"):
        open_cube(path, variable="third")
    np.testing.assert_array_equal(open_cube(path, variable="flat").values, first[:1])


def test_mat_of_doubles_that_matlab_packed_into_bytes(tmp_path: Path) -> None:
    """MATLAB stores whole numbers in the smallest type; the array is one of doubles all the same."""
    values = rows_columns_bands("float64")
    scipy.io.savemat(tmp_path / "s.mat", {"cube": values})
    content = (tmp_path / "s.mat").read_bytes()
    tag = content.index((9).to_bytes(4, "little") + (values.nbytes).to_bytes(4, "little"))
    packed = values.astype(np.uint8).tobytes(order="F")
    inner = content[136:tag] + (2).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed
    (tmp_path / "s.mat").write_bytes(content[:132] + len(inner).to_bytes(4, "little") + inner)
    cube = open_cube(tmp_path / "s.mat")
    assert cube.dtype == np.float64
    np.testing.assert_array_equal(cube.values, values.transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".mat", ".h5"])
def test_big_endian_and_fortran_order(suffix: str, tmp_path: Path) -> None:
    values = np.asfortranarray(rows_columns_bands(">i2"))
    path = tmp_path / f"s{suffix}"
    if suffix == ".npy":
        np.save(path, values)
    elif suffix == ".npz":
        np.savez(path, cube=values, wavelength_nm=np.arange(4) + 400.0)
    elif suffix == ".mat":
        scipy.io.savemat(path, {"cube": values})
    else:
        with h5py.File(path, "w") as file:
            file["cube"] = values
    cube = open_cube(path)
    assert cube.dtype == np.int16 and cube.dtype.isnative
    np.testing.assert_array_equal(cube.values, values.transpose(2, 0, 1))


def test_half_precision_is_read_as_float32(tmp_path: Path) -> None:
    values = rows_columns_bands("float16")
    np.save(tmp_path / "s.npy", values)
    cube = open_cube(tmp_path / "s.npy")
    assert cube.dtype == np.float32
    np.testing.assert_array_equal(cube.values, values.transpose(2, 0, 1))
    np.testing.assert_array_equal(open_cube(write_cube(cube, tmp_path / "s.tif")).values, cube.values)


def netcdf_of_others(order: tuple[str, str, str], path: Path, file_format: str) -> xr.DataArray:
    values = rows_columns_bands("float32")
    values[0, 0] = 1e20
    dataset = xr.Dataset(
        {"reflectance": (("lat", "lon", "wavelength"), values)},
        {"lat": 50 - 0.01 * np.arange(6), "lon": 12 + 0.02 * np.arange(5), "wavelength": [0.4, 0.5, 0.45, 0.7]},
    )
    dataset["lat"].attrs["units"], dataset["lon"].attrs["units"] = "degrees_north", "degrees_east"
    dataset["wavelength"].attrs["units"] = "um"
    dataset["reflectance"].attrs = {"missing_value": np.float64(1e20), "long_name": "surface reflectance"}
    engine = "scipy" if file_format.startswith("NETCDF3") else "h5netcdf"
    encoding = {name: {"_FillValue": None} for name in dataset.variables}
    dataset.transpose(*order).to_netcdf(path, format=file_format, engine=engine, encoding=encoding)
    return dataset["reflectance"]


@pytest.mark.parametrize("file_format", ["NETCDF4", "NETCDF3_CLASSIC", "NETCDF3_64BIT"])
@pytest.mark.parametrize(
    "order", [("lat", "lon", "wavelength"), ("wavelength", "lat", "lon"), ("lon", "wavelength", "lat")]
)
def test_netcdf_of_others(file_format: str, order: tuple[str, str, str], tmp_path: Path) -> None:
    theirs = netcdf_of_others(order, tmp_path / "s.nc", file_format)
    cube = open_cube(tmp_path / "s.nc")
    np.testing.assert_array_equal(cube.values, theirs.transpose("wavelength", "lat", "lon").values)
    np.testing.assert_allclose(cube["wavelength"], [400, 500, 450, 700], rtol=1e-12)
    assert nodata_of(cube) == float(np.float32(1e20))
    assert cube.attrs["long_name"] == "surface reflectance"
    grid = grid_of(cube)
    assert grid.crs == "EPSG:4326"
    np.testing.assert_allclose(grid.transform[:6], [0.02, 0, 11.99, 0, -0.01, 50.005], atol=1e-9)
    again = open_cube(write_cube(cube, tmp_path / "s.tif"))
    np.testing.assert_array_equal(again.values, cube.values)
    assert nodata_of(again) == nodata_of(cube)


def test_netcdf_with_a_cf_grid_mapping_and_no_wkt(tmp_path: Path) -> None:
    import pyproj

    dataset = xr.Dataset(
        {
            "cube": (("band", "y", "x"), np.zeros((2, 3, 4), np.float32)),
            "utm": ((), 0, pyproj.CRS.from_epsg(32633).to_cf()),
        },
        {"y": 5700000.0 - 30 * np.arange(3), "x": 400000.0 + 30 * np.arange(4)},
    )
    del dataset["utm"].attrs["crs_wkt"]
    dataset["cube"].attrs["grid_mapping"] = "utm"
    dataset.to_netcdf(tmp_path / "s.nc", engine="h5netcdf")
    grid = grid_of(open_cube(tmp_path / "s.nc"))
    assert grid.crs is not None and grid.crs.to_dict()["proj"] in ("utm", "tmerc")
    assert grid.transform == Affine(30, 0, 399985, 0, -30, 5700015)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_of_xarray(zarr_format: int, tmp_path: Path) -> None:
    values = rows_columns_bands("float32")
    dataset = xr.Dataset(
        {"cube": (("y", "x", "band"), values)}, {"wavelength": ("band", [400.0, 500, 600, 700], {"units": "nm"})}
    )
    encoding = {"cube": {"_FillValue": np.float32(-9999)}}
    dataset.to_zarr(tmp_path / "s.zarr", zarr_format=zarr_format, encoding=encoding, consolidated=False)
    cube = open_cube(tmp_path / "s.zarr")
    np.testing.assert_array_equal(cube.values, values.transpose(2, 0, 1))
    assert nodata_of(cube) == -9999
    assert cube["wavelength"].values.tolist() == [400, 500, 600, 700]


def test_zarr_that_is_one_bare_array(tmp_path: Path) -> None:
    values = rows_columns_bands()
    zarr.save_array(str(tmp_path / "s.zarr"), values)
    np.testing.assert_array_equal(open_cube(tmp_path / "s.zarr", band_axis=2).values, values.transpose(2, 0, 1))


def test_a_chunk_missing_from_our_own_zarr_is_found(tmp_path: Path) -> None:
    cube = make_cube(np.ones((3, 200, 200), np.uint8))
    path = write_cube(cube, tmp_path / "s.zarr")
    (path / "cube" / "0.1.0").unlink()
    with pytest.raises(CubeFileError, match="1 of 4 chunks"):
        open_cube(path)


def test_which_axis_holds_the_bands(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.zeros((3, 7, 5)))
    assert open_cube(tmp_path / "s.npy").shape == (3, 7, 5)
    assert open_cube(tmp_path / "s.npy", band_axis=0).shape == (3, 7, 5)
    assert open_cube(tmp_path / "s.npy", band_axis=1).shape == (7, 3, 5)
    with pytest.raises(OptionError, match="band axis 3"):
        open_cube(tmp_path / "s.npy", band_axis=3)
    np.savez(tmp_path / "s.npz", cube=np.zeros((3, 7, 5)), wavelength_nm=np.arange(3) + 400.0)
    assert open_cube(tmp_path / "s.npz").shape == (3, 7, 5)
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["cube"] = np.zeros((3, 7, 5))
    assert open_cube(tmp_path / "s.h5").shape == (3, 7, 5)
    with h5py.File(tmp_path / "long.h5", "w") as file:
        file["cube"] = np.zeros((7, 5, 30))
    assert open_cube(tmp_path / "long.h5").shape == (30, 7, 5)


@pytest.mark.parametrize("name", ["wavelength", "wavelength_nm", "fwhm"])
def test_a_list_of_the_wrong_length_is_an_error(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", cube=rows_columns_bands(), **{name: np.arange(3.0) + 400})
    with pytest.raises(BandError, match=rf"{name} list of 3 entries for 4 bands; expected 4 entries"):
        open_cube(tmp_path / "s.npz")


def test_envi_wavelengths_of_the_wrong_length(tmp_path: Path) -> None:
    envi.save_image(str(tmp_path / "s.hdr"), rows_columns_bands(), metadata={"wavelength": [1, 2, 3]})
    with pytest.raises(BandError, match="wavelength list of 3 entries for 4 bands"):
        open_cube(tmp_path / "s.hdr")


def test_sides_of_the_cube_s_own_group_win(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["a/cube"] = np.zeros((4, 7, 8))
        for group, start in (("a", 400.0), ("b", 900.0)):
            file[f"{group}/wavelength"] = start + np.arange(4)
            file[f"{group}/wavelength"].attrs["units"] = "nm"
    assert open_cube(tmp_path / "s.h5")["wavelength"].values[0] == 400


@pytest.mark.parametrize("suffix", [".nc", ".zarr", ".tif", ".npz"])
def test_a_projection_that_lacks_a_parameter(suffix: str, tmp_path: Path) -> None:
    """GDAL passes it on from a header of ENVI; pyproj cannot express it in parameters of CF."""
    wkt = CRS.from_epsg(32633).to_wkt(version="WKT1_GDAL").replace('PARAMETER["false_easting",500000],', "")
    cube = make_cube(rows_columns_bands().transpose(2, 0, 1), crs=wkt, transform=UTM)
    assert grid_of(open_cube(write_cube(cube, tmp_path / f"s{suffix}"))).crs == grid_of(cube).crs
