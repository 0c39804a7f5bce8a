"""What the output options make of a file, as plain rasterio, GDAL's own command, SPy, xarray and zarr see it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import rasterio
import xarray as xr
import zarr
from affine import Affine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spectral.io import envi
from tests.io.random_cubes import FORMATS, Format
from tests.processes import Program

from hyperfuse.config import COMPRESSIONS, OutputConfig
from hyperfuse.errors import HyperfuseError, OptionError
from hyperfuse.io.cube import make_cube, nodata_of, physical_values
from hyperfuse.io.files import created_cube, open_cube, write_cube
from hyperfuse.io.grid import grid_of
from hyperfuse.io.output import output_template, provenance
from hyperfuse.io.raster import overview_factors

CENTRES = [450.125, 550.25, 650.5, 1400.0, 860.75, 2200.0]
WIDTHS = [10.0, 12.5, 9.25, 8.0, 20.0, 30.0]
PLACE = Affine(10.0, 0.0, 399960.0, 0.0, -10.0, 5700000.0)
AS_PRODUCTS = OutputConfig(bands="0.4-1.0um,2200nm", dtype="int16", scale_factor=1e-4, nodata=-9999)
KEPT = [0, 1, 2, 4, 5]


def reflectance(shape: tuple[int, int] = (6, 5), seed: int = 0) -> xr.DataArray:
    """Six bands, the fourth bad, a corner without data; as fuse describes what it made."""
    values = np.random.default_rng(seed).uniform(0.0, 0.7, (6, *shape)).astype(np.float32)
    values[:, 0, 0] = np.nan
    return make_cube(
        values,
        wavelength_nm=CENTRES,
        fwhm_nm=WIDTHS,
        good=[True, True, False, False, True, True],
        crs="EPSG:32633",
        transform=PLACE,
        attributes={"sensor": "test sensor", "acquired": "2022-06-15T10:33:07Z"}
        | provenance(
            method="gsa", inputs={"hsi": "/far/away/hsi.tif", "msi": "msi.tif"}, options={"trust": "hsi", "shift": None}
        ),
    )


def assert_as_products(path: Path, cube: xr.DataArray) -> None:
    """Read back by ourselves, to half a step."""
    read = open_cube(path)
    assert read.dtype == np.int16 and nodata_of(read) == -9999
    assert read["scale"].values.tolist() == [1e-4] * 5 and read["offset"].values.tolist() == [0.0] * 5
    np.testing.assert_allclose(read["wavelength"], np.array(CENTRES)[KEPT])
    np.testing.assert_allclose(read["fwhm"], np.array(WIDTHS)[KEPT])
    assert read["good"].values.tolist() == [True, True, False, True, True]
    assert grid_of(read) == grid_of(cube)
    np.testing.assert_allclose(physical_values(read), physical_values(cube, bands=KEPT), rtol=0, atol=0.5e-4 + 1e-7)
    assert read.attrs["hyperfuse_method"] == "gsa" and read.attrs["hyperfuse_hsi"] == "hsi.tif"


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
def test_bands_numbers_and_provenance_in_every_format_and_from_one_to_the_next(through: Format, tmp_path: Path) -> None:
    cube = reflectance()
    path = write_cube(cube, tmp_path / f"first{through.suffix}", config=through.config.replace(**AS_PRODUCTS.given()))
    assert_as_products(path, cube)
    again = write_cube(open_cube(path), tmp_path / "second.nc")
    assert_as_products(again, cube)
    assert open_cube(again).attrs == open_cube(path).attrs | {"_FillValue": -9999}


@pytest.mark.parametrize("cog", [False, True])
def test_plain_rasterio(cog: bool, tmp_path: Path) -> None:
    cube = reflectance((600, 300))
    path = write_cube(cube, tmp_path / "s.tif", config=AS_PRODUCTS, overviews=True, cog=cog)
    with rasterio.open(path) as source:
        assert source.crs == "EPSG:32633" and source.transform == PLACE and source.nodata == -9999
        assert source.dtypes == ("int16",) * 5 and source.scales == (1e-4,) * 5 and source.offsets == (0.0,) * 5
        assert [source.tags(band)["wavelength"] for band in source.indexes] == [repr(CENTRES[band]) for band in KEPT]
        assert source.tags(1, ns="IMAGERY") == {"CENTRAL_WAVELENGTH_UM": "0.450125", "FWHM_UM": "0.010000"}
        assert [source.tags(band).get("bbl") for band in source.indexes] == [None, None, "0", None, None]
        assert source.tags()["hyperfuse_method"] == "gsa" and source.tags()["hyperfuse_options"] == "trust=hsi"
        np.testing.assert_allclose(source.read(2)[1:, 1:] * 1e-4, cube.values[1, 1:, 1:], rtol=0, atol=0.51e-4)
        assert source.overviews(1) == [2, 4]
        # Averages of the valid pixels: the missing corner does not darken its neighbours.
        small = source.read(1, out_shape=(300, 150))
        np.testing.assert_allclose(small[0, 0], np.nanmean(cube.values[0, :2, :2]) * 1e4, atol=1)
        np.testing.assert_allclose(small[5, 7], cube.values[0, 10:12, 14:16].mean() * 1e4, atol=1)
    assert [each.name for each in tmp_path.iterdir()] == ["s.tif"]


def test_gdalinfo_or_rio_info(tmp_path: Path) -> None:
    """GDAL's own command where there is one, else rasterio's."""
    path = write_cube(reflectance(), tmp_path / "s.tif", config=AS_PRODUCTS)
    if shutil.which("gdalinfo"):
        text = subprocess.run(["gdalinfo", "-mdd", "all", str(path)], capture_output=True, text=True, check=True).stdout
        for expected in (
            "hyperfuse_method=gsa",
            "NoData Value=-9999",
            "Scale:0.0001",
            "Type=Int16",
            'ID["EPSG",32633]',
            "0.450125",
        ):
            assert expected in text
        return
    command = Path(sys.executable).with_name("rio")
    if not command.exists():
        pytest.skip("neither gdalinfo nor rio is here")
    text = subprocess.run([command, "info", str(path), "--verbose"], capture_output=True, text=True, check=True).stdout
    for expected in (
        '"nodata": -9999.0',
        '"dtype": "int16"',
        '"crs": "EPSG:32633"',
        '"count": 5',
        '"compress": "deflate"',
    ):
        assert expected in text


@pytest.mark.filterwarnings("ignore:Image data contains NaN")
def test_spy(tmp_path: Path) -> None:
    cube = reflectance()
    path = write_cube(cube, tmp_path / "s.hdr", config=AS_PRODUCTS)
    image = envi.open(str(path))
    header = image.metadata
    np.testing.assert_allclose(image.bands.centers, np.array(CENTRES)[KEPT])
    np.testing.assert_allclose(image.bands.bandwidths, np.array(WIDTHS)[KEPT])
    assert [int(flag) for flag in header["bbl"]] == [1, 1, 0, 1, 1]
    assert header["data ignore value"] == "-9999" and float(header["reflectance scale factor"]) == pytest.approx(1e4)
    assert "UTM" in header["map info"] and "WGS_1984" in "".join(header["coordinate system string"])
    assert header["hyperfuse method"] == ["gsa"] and header["hyperfuse msi"] == ["msi.tif"]
    # SPy divides by the reflectance scale factor itself.
    np.testing.assert_allclose(np.array(image.load())[1:, 1:, 3], cube.values[4, 1:, 1:], rtol=0, atol=0.51e-4)


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_xarray(suffix: str, tmp_path: Path) -> None:
    cube = reflectance()
    path = write_cube(cube, tmp_path / f"s{suffix}", config=AS_PRODUCTS)
    opened = xr.open_zarr(path, consolidated=True) if suffix == ".zarr" else xr.open_dataset(path, engine="h5netcdf")
    with opened as dataset:
        assert dataset.attrs["Conventions"].startswith("CF-") and dataset.attrs["hyperfuse_method"] == "gsa"
        image = dataset.set_coords("spatial_ref")["cube"]
        np.testing.assert_allclose(image.values, cube.values[KEPT], rtol=0, atol=0.51e-4)
        np.testing.assert_array_equal(image["wavelength"], np.array(CENTRES)[KEPT])
        assert (
            image["wavelength"].attrs["standard_name"] == "radiation_wavelength"
            and image["wavelength"].attrs["units"] == "nm"
        )
        assert image["x"].attrs["standard_name"] == "projection_x_coordinate" and image["x"].attrs["units"] == "metre"
        assert image["good"].values.tolist() == [1, 1, 0, 1, 1]
        mapping = dataset["spatial_ref"].attrs
        assert (
            mapping["grid_mapping_name"] == "transverse_mercator" and mapping["longitude_of_central_meridian"] == 15.0
        )
        assert image.rio.crs == "EPSG:32633" and image.rio.transform() == PLACE


def test_degrees_are_longitude_and_latitude(tmp_path: Path) -> None:
    cube = make_cube(np.zeros((1, 2, 3), np.uint8), crs="EPSG:4326", transform=Affine(0.1, 0, 10, 0, -0.1, 50))
    with xr.open_dataset(write_cube(cube, tmp_path / "s.nc"), engine="h5netcdf") as dataset:
        assert (dataset["x"].attrs["standard_name"], dataset["x"].attrs["units"]) == ("longitude", "degrees_east")
        assert (dataset["y"].attrs["standard_name"], dataset["y"].attrs["units"]) == ("latitude", "degrees_north")
        assert dataset["spatial_ref"].attrs["grid_mapping_name"] == "latitude_longitude"


class TestCompression:
    @pytest.mark.parametrize("cog", [False, True])
    @pytest.mark.parametrize("dtype", ["int16", "float32"])
    @pytest.mark.parametrize("compress", COMPRESSIONS)
    def test_geotiff(self, compress: str, dtype: str, cog: bool, tmp_path: Path) -> None:
        smooth = make_cube(
            np.broadcast_to(np.arange(300, dtype=dtype), (2, 300, 300)), crs="EPSG:32633", transform=PLACE
        )
        path = write_cube(smooth, tmp_path / "s.tif", config=OutputConfig(compress=compress), cog=cog)
        with rasterio.open(path) as source:
            structure = source.tags(ns="IMAGE_STRUCTURE")
            assert structure.get("COMPRESSION", "NONE") == compress.upper()
            assert structure.get("PREDICTOR") == (None if compress == "none" else {"int16": "2", "float32": "3"}[dtype])
        assert path.stat().st_size < smooth.nbytes / 10 or compress == "none"
        np.testing.assert_array_equal(open_cube(path).values, smooth.values)

    @pytest.mark.parametrize(("compress", "kept"), [("deflate", "gzip"), ("none", None)])
    def test_netcdf(self, compress: str, kept: str | None, tmp_path: Path) -> None:
        path = write_cube(reflectance(), tmp_path / "s.nc", config=OutputConfig(compress=compress))
        with h5py.File(path) as file:
            assert file["cube"].compression == kept

    @pytest.mark.parametrize(("compress", "kept"), [("deflate", "GZip"), ("zstd", "Zstd"), ("none", None)])
    def test_zarr(self, compress: str, kept: str | None, tmp_path: Path) -> None:
        path = write_cube(reflectance(), tmp_path / "s.zarr", config=OutputConfig(compress=compress))
        array: Any = zarr.open(str(path), mode="r")["cube"]
        assert [type(each).__name__ for each in array.compressors] == ([] if kept is None else [kept])
        np.testing.assert_array_equal(open_cube(path).values, reflectance().values)

    @pytest.mark.parametrize(
        ("name", "compress", "message"),
        [
            ("s.nc", "zstd", "--compress zstd for s.nc; expected deflate or none with .nc"),
            ("s.zarr", "lzw", "expected zstd or deflate or none with .zarr"),
            ("s.hdr", "deflate", "expected none with .hdr"),
            ("s.npz", "none", "expected deflate with .npz"),
        ],
    )
    def test_what_a_format_has_not(self, name: str, compress: str, message: str, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=message):
            write_cube(reflectance(), tmp_path / name, config=OutputConfig(compress=compress))
        assert list(tmp_path.iterdir()) == []

    def test_said_twice(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match="--compress and --co COMPRESS; expected one of the two"):
            write_cube(reflectance(), tmp_path / "s.tif", compress="zstd", creation_options={"compress": "LZW"})


class TestOverviews:
    @pytest.mark.parametrize(
        ("height", "width", "factors"),
        [(256, 256, []), (1, 1, []), (257, 10, [2]), (600, 513, [2, 4]), (4000, 4000, [2, 4, 8, 16])],
    )
    def test_until_they_fit_into_a_block(self, height: int, width: int, factors: list[int]) -> None:
        assert overview_factors(height, width) == factors

    def test_only_in_geotiff(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"overviews in \.nc; expected --cog or --overviews with \.tif"):
            write_cube(reflectance(), tmp_path / "s.nc", config=OutputConfig(overviews=True))

    def test_in_bounded_memory(self, tmp_path: Path) -> None:
        """One row of blocks is written, again and again; building the overviews adds next to nothing."""
        program = f"""
import re, sys
from pathlib import Path
import numpy as np
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import created_cube
from hyperfuse.config import OutputConfig
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
template = make_cube(np.broadcast_to(np.int16(0), (24, 1280, 1280)))
block = np.broadcast_to(np.arange(1280, dtype=np.int16), (24, 256, 1280))
for path in ("small.tif", "large.tif"):
    used = template if path == "large.tif" else template.isel(y=slice(0, 256))
    with created_cube(Path({str(tmp_path)!r}) / path, used, OutputConfig(overviews=True)) as writer:
        for row in range(0, used.sizes["y"], 256):
            writer.write(slice(row, row + 256), slice(0, 1280), block)
    print(peak())
"""
        process = Program(program, env={"GDAL_CACHEMAX": "32"})
        out, err = process.communicate()
        assert process.returncode == 0, err
        small, large = map(float, out.split())
        assert large - small < 40, f"{large - small} MB more for 63 MB more"


def test_half_way_nothing_is_left(tmp_path: Path) -> None:
    output = OutputConfig(overviews=True, stac=True)
    with pytest.raises(ZeroDivisionError), created_cube(tmp_path / "s.tif", reflectance(), output) as writer:
        writer.write(slice(0, 6), slice(0, 5), reflectance().values)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_windows_of_physical_values_go_through_a_template(tmp_path: Path) -> None:
    """As `fuse` writes: all bands are computed, the template says which and how they are stored."""
    from hyperfuse.io.output import select_bands, to_stored

    cube = reflectance()
    template = output_template(cube, AS_PRODUCTS)
    positions = select_bands(cube, AS_PRODUCTS.bands or "")
    with created_cube(tmp_path / "s.tif", template, AS_PRODUCTS) as writer:
        for rows in (slice(3, 6), slice(0, 3)):
            writer.write(rows, slice(0, 5), to_stored(physical_values(cube, rows)[positions], template))
    assert_as_products(tmp_path / "s.tif", cube)


SUFFIXES = st.sampled_from([".tif", ".hdr", ".nc", ".zarr", ".npy"])
OUTPUTS = st.builds(
    OutputConfig,
    bands=st.sampled_from([None, "good", "400-900nm", "6,1", "2200nm,good"]),
    dtype=st.sampled_from([None, "uint8", "int16", "uint16", "int32", "float64"]),
    scale_factor=st.sampled_from([None, 1.0, 1e-4, 0.004]),
    nodata=st.sampled_from([None, 0.0, 255.0, -9999.0]),
    compress=st.sampled_from([None, "none", "deflate"]),
    overviews=st.booleans(),
    stac=st.booleans(),
)
BANDS = {None: range(6), "good": [0, 1, 4, 5], "400-900nm": [0, 1, 2, 4], "6,1": [5, 0], "2200nm,good": [5]}


@pytest.mark.filterwarnings("ignore:.*were clipped")
@given(suffix=SUFFIXES, output=OUTPUTS, cog=st.booleans())
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_combination_keeps_its_promise_or_leaves_nothing(
    suffix: str, output: OutputConfig, cog: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, cube = tmp_path_factory.mktemp("any"), reflectance()
    try:
        path = write_cube(cube, folder / f"s{suffix}", config=output, cog=cog)
    except HyperfuseError:
        assert list(folder.iterdir()) == []
        return
    read = open_cube(path)
    expected = physical_values(cube, bands=list(BANDS[output.bands]), dtype=np.float64)
    got = physical_values(read, dtype=np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    step = read["scale"].values[0] if read.dtype.kind != "f" else 0.0
    top = np.iinfo(read.dtype).max * step if step else np.inf
    bottom = np.iinfo(read.dtype).min * step if step else -np.inf
    # One step more where a value would have looked like nodata.
    np.testing.assert_allclose(got, np.clip(expected, bottom, top), rtol=1e-6, atol=1.5 * step + 1e-9)
    assert (folder / "s.json").exists() == output.stac
    assert not list(folder.glob(".*"))
