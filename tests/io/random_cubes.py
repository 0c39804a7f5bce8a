"""Random cubes for property tests, the formats they travel through, and what it means that nothing was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from affine import Affine
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.crs import CRS

from hyperfuse.config import OutputConfig
from hyperfuse.io.cube import make_cube, nodata_of
from hyperfuse.io.files import open_cube, write_cube
from hyperfuse.io.grid import grid_of

DTYPES = ("uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
WKT_WITHOUT_CODE = CRS.from_proj4(
    "+proj=laea +lat_0=51.3 +lon_0=12.4 +x_0=1000 +y_0=2000 +ellps=GRS80 +units=m"
).to_wkt()
WAVELENGTH_TOLERANCE_NM = 1e-6


@dataclass(frozen=True)
class Format:
    """A way to store a cube: suffix and options."""

    name: str
    suffix: str
    options: dict[str, str] = field(default_factory=dict)
    cog: bool = False

    @property
    def config(self) -> OutputConfig:
        return OutputConfig(creation_options=self.options, cog=self.cog)

    def write(self, cube: xr.DataArray, folder: Path, stem: str = "cube") -> Path:
        return write_cube(cube, folder / f"{stem}_{self.name}{self.suffix}", config=self.config)

    def round_trip(self, cube: xr.DataArray, folder: Path, stem: str = "cube") -> xr.DataArray:
        return open_cube(self.write(cube, folder, stem))


FORMATS = (
    Format("geotiff", ".tif"),
    Format("cog", ".tif", cog=True),
    Format("bsq", ".hdr", {"INTERLEAVE": "bsq"}),
    Format("bil", ".hdr", {"INTERLEAVE": "bil"}),
    Format("bip", ".hdr", {"INTERLEAVE": "bip"}),
    Format("netcdf", ".nc"),
    Format("hdf5", ".h5"),
    Format("zarr", ".zarr"),
    Format("mat5", ".mat", {"VERSION": "5"}),
    Format("mat73", ".mat", {"VERSION": "7.3"}),
    Format("npz", ".npz"),
    Format("npy", ".npy"),
)
FORMAT_BY_NAME = {each.name: each for each in FORMATS}


def sample_cube(seed: int = 0, shape: tuple[int, int, int] = (4, 6, 5), dtype: str = "uint16") -> xr.DataArray:
    """A small cube with something in every field."""
    rng = np.random.default_rng(seed)
    bands = shape[0]
    values = random_values(rng, dtype, shape)
    return make_cube(
        values,
        wavelength_nm=np.round(np.linspace(412.3456, 2398.7654, bands), 4),
        fwhm_nm=np.linspace(5.25, 11.5, bands),
        good=np.arange(bands) % 3 != 1,
        band_names=[f"channel {index}" for index in range(bands)],
        scale=1e-4,
        offset=0.0,
        nodata=0,
        crs="EPSG:32633",
        transform=Affine(30.0, 0.0, 399960.0, 0.0, -30.0, 5700000.0),
        attributes={"sensor": "test sensor", "note": "made by a seeded generator"},
    )


def random_values(rng: np.random.Generator, dtype: str, shape: tuple[int, int, int]) -> NDArray[Any]:
    """Values over the whole range of a type, with the extremes and, for floats, NaN, infinities, subnormals and
    negative zero.
    """
    kind = np.dtype(dtype)
    if kind.kind == "f":
        values = rng.standard_normal(shape).astype(kind)
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(kind).max, np.finfo(kind).tiny / 4], kind)
    else:
        limits = np.iinfo(kind)
        values = rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
        special = np.array([limits.min, limits.max, 0, 1], kind)
    return np.where(rng.random(shape) < 0.3, rng.choice(special, shape), values).astype(kind)


def nodata_values(dtype: str) -> st.SearchStrategy[float | None]:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        limits = np.finfo(kind)
        return st.sampled_from([None, float("nan"), -9999.0, 0.0, float(limits.min), float(limits.max), 1e20, 0.1])
    integers = np.iinfo(kind)
    return st.sampled_from([None, 0, int(integers.min), int(integers.max), int(integers.max) - 1, 17])


FRACTIONS = st.floats(1e-7, 1e6, allow_subnormal=False)
ORIGINS = st.floats(-1e7, 1e7, allow_subnormal=False)
AWKWARD = st.sampled_from([1 / 3, 0.1 + 0.2, 29.999999999999996, 2.777777777777778e-4, 1e-7])
NORTH_UP = st.builds(
    lambda a, c, e, f: Affine(a, 0.0, c, 0.0, -e, f), FRACTIONS | AWKWARD, ORIGINS, FRACTIONS | AWKWARD, ORIGINS
)
ROTATED = st.builds(
    lambda c, f, size, angle: Affine.translation(c, f) @ Affine.rotation(angle) @ Affine.scale(size, -size),
    ORIGINS,
    ORIGINS,
    FRACTIONS | AWKWARD,
    st.floats(1, 359),
)
TRANSFORMS = st.none() | st.just(Affine.identity()) | st.just(Affine(30.0, 0, 0, 0, 30.0, 0)) | NORTH_UP | ROTATED
REFERENCES = st.sampled_from([None, "EPSG:32633", "EPSG:4326", "EPSG:3035", WKT_WITHOUT_CODE])
# Everything that can be written down, without the control characters and lone halves of characters that no text file
# can hold.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), max_size=12)
AWKWARD_NAMES = st.sampled_from(
    [
        "",
        "a, b",
        "{braces}",
        "é中\U0001f6f0",
        "Band 1",
        "B001 500.0 nm",
        " lead and trail ",
        "x = y",
        '"quoted"',
        "[list]",
        "%7B",
        "nan",
    ]
)
KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,11}", fullmatch=True).map(lambda key: f"about_{key}")
ATTRIBUTES = st.dictionaries(KEYS, TEXT | AWKWARD_NAMES, max_size=4)


@st.composite
def cubes(draw: st.DrawFn, dtypes: tuple[str, ...] = DTYPES) -> xr.DataArray:
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(st.just((1, 1, 1)) | st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 7)))
    bands = shape[0]

    def lengths(smallest: float, largest: float) -> st.SearchStrategy[list[float] | None]:
        known = st.floats(smallest, largest, allow_subnormal=False) | st.just(float("nan"))
        return st.none() | st.lists(known, min_size=bands, max_size=bands)

    scaling = st.floats(1e-8, 1e4, allow_subnormal=False) | st.just(1.0)
    offsets = st.floats(-1e6, 1e6, allow_subnormal=False) | st.just(0.0)
    return make_cube(
        random_values(np.random.default_rng(draw(st.integers(0, 2**32))), dtype, shape),
        wavelength_nm=draw(lengths(200, 20000)),
        fwhm_nm=draw(lengths(1, 150)),
        good=draw(st.none() | st.lists(st.booleans(), min_size=bands, max_size=bands)),
        band_names=draw(st.none() | st.lists(TEXT | AWKWARD_NAMES, min_size=bands, max_size=bands)),
        scale=draw(st.none() | scaling | st.lists(scaling, min_size=bands, max_size=bands)),
        offset=draw(st.none() | offsets | st.lists(offsets, min_size=bands, max_size=bands)),
        nodata=draw(nodata_values(dtype)),
        crs=draw(REFERENCES),
        transform=draw(TRANSFORMS),
        attributes=draw(ATTRIBUTES),
    )


def assert_nothing_lost(got: xr.DataArray, sent: xr.DataArray, way: str = "") -> None:
    """Everything that `sent` holds is in `got`, bit for bit where it is a value."""
    assert got.dims == sent.dims, way
    assert got.dtype == sent.dtype, way
    assert got.values.tobytes() == sent.values.tobytes(), f"{way}: values"
    for name in ("wavelength", "fwhm"):
        np.testing.assert_allclose(
            got[name], sent[name], rtol=0, atol=WAVELENGTH_TOLERANCE_NM, err_msg=f"{way}: {name}"
        )
    for name in ("good", "band_name", "scale", "offset"):
        assert got[name].values.tolist() == sent[name].values.tolist(), f"{way}: {name}"
    assert_same_number(nodata_of(got), nodata_of(sent), f"{way}: nodata")
    grid, expected = grid_of(got), grid_of(sent)
    assert grid.crs == expected.crs, f"{way}: CRS"
    assert grid.transform == expected.transform, f"{way}: transform {grid.transform!r} for {expected.transform!r}"
    assert texts_of(got) == texts_of(sent), f"{way}: attributes"


def assert_same_number(got: float | None, sent: float | None, what: str) -> None:
    both_nan = got is not None and sent is not None and np.isnan(got) and np.isnan(sent)
    assert both_nan or got == sent, f"{what} {got!r} for {sent!r}"


def texts_of(cube: xr.DataArray) -> dict[str, Any]:
    return {key: value for key, value in cube.attrs.items() if key != "_FillValue"}
