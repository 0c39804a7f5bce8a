"""Cubes at the edges of what is possible: each opens, is shown in every rendering offered for it, and gives spectra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine
from numpy.typing import NDArray

from hyperfuse.errors import HyperfuseError
from hyperfuse.io.cube import make_cube
from hyperfuse.io.files import write_cube
from hyperfuse.viewer.colours import Rendering
from hyperfuse.viewer.folder import Folder
from hyperfuse.viewer.images import region_spectra, spectra_at
from hyperfuse.viewer.session import Session
from hyperfuse.viewer.tiles import TilePlace

TRANSFORM = Affine(10, 0, 400_000, 0, -10, 5_800_000)
GROUND = np.random.default_rng(3).uniform(0.1, 0.6, (12, 20, 24)).astype(np.float32)
NM = np.linspace(450, 2300, 12)


def with_holes() -> NDArray[np.float32]:
    values = GROUND.copy()
    values[:, 3:9, 2:8] = np.nan
    values[5, 0, 0] = np.inf
    return values


def without_a_band() -> NDArray[np.float32]:
    values = GROUND.copy()
    values[4] = np.nan
    return values


CUBES: dict[str, dict[str, Any]] = {
    "plain": {"values": GROUND, "wavelength_nm": NM},
    "no wavelengths": {"values": GROUND},
    "no georeference": {"values": GROUND, "wavelength_nm": NM, "crs": None, "transform": None},
    "one band": {"values": GROUND[:1], "wavelength_nm": NM[:1]},
    "two bands": {"values": GROUND[:2]},
    "600 bands": {"values": np.resize(GROUND, (600, 6, 5)), "wavelength_nm": np.linspace(400, 2500, 600)},
    "one pixel": {"values": GROUND[:, :1, :1], "wavelength_nm": NM},
    "one row": {"values": np.resize(GROUND, (5, 1, 700)), "wavelength_nm": NM[:5]},
    "only NaN": {"values": np.full_like(GROUND, np.nan), "wavelength_nm": NM},
    "holes": {"values": with_holes(), "wavelength_nm": NM},
    "an empty band": {"values": without_a_band(), "wavelength_nm": NM},
    "only bad bands": {"values": GROUND, "wavelength_nm": NM, "good": np.zeros(12, dtype=bool)},
    "nodata": {
        "values": np.where(GROUND < 0.2, -9999, 10000 * GROUND).astype(np.int16),
        "wavelength_nm": NM,
        "nodata": -9999,
    },
    "constant": {"values": np.full_like(GROUND, 0.5), "wavelength_nm": NM},
    "south up": {"values": GROUND, "wavelength_nm": NM, "transform": Affine(10, 0, 400_000, 0, 10, 5_799_800)},
}
# Principal components are of the spectra of several whole pixels.
NO_COMPONENTS = {"one pixel", "only NaN"}


def opened(folder: Path, cube: dict[str, Any]) -> Session:
    settings = {"crs": "EPSG:32633", "transform": TRANSFORM} | cube
    write_cube(make_cube(settings.pop("values"), **settings), folder / "odd.tif")
    session = Session(Folder.at(folder))
    session.open({"fused": folder / "odd.tif"})
    return session


def renderings_for(described: dict[str, Any]) -> list[Rendering]:
    bands = described["images"][0]["bands"]
    renderings = [
        Rendering(),
        Rendering(style="band", bands=(bands - 1,)),
        Rendering(style="bands", bands=(0, bands // 2, bands - 1)),
    ]
    if described["styles"]["infrared"]:
        renderings.append(Rendering(style="infrared"))
    return renderings + [Rendering(style="index", index=index["name"]) for index in described["indices"]]


@pytest.mark.parametrize("name", CUBES)
def test_every_rendering_and_spectra(name: str, tmp_path: Path) -> None:
    session = opened(tmp_path, CUBES[name])
    view = session.require_view()
    described = view.describe(session.folder)
    json.dumps(described, allow_nan=False)
    top = TilePlace(described["levels"], 0, 0)
    for rendering in renderings_for(described):
        assert view.tile("fused", top, rendering).png.startswith(b"\x89PNG")
        limits, _ = view.limits("fused", rendering)
        assert np.isfinite(limits).all()
    if name in NO_COMPONENTS:
        with pytest.raises(HyperfuseError, match="complete spectra"):
            view.tile("fused", top, Rendering(style="pca"))
    else:
        view.tile("fused", top, Rendering(style="pca"))
    assert session.thumbnail(tmp_path / "odd.tif").startswith(b"\x89PNG")
    whole = [(-1.0, -1.0), (-1.0, 30.0), (30.0, 30.0), (30.0, -1.0)]
    for spectrum in (*spectra_at(view.opened, 0, 0), *region_spectra(view.opened, whole)):
        json.dumps(spectrum.as_dict(), allow_nan=False)
        assert len(spectrum.mean) == described["images"][0]["bands"]


def test_components_leave_an_empty_band_out(tmp_path: Path) -> None:
    session = opened(tmp_path, CUBES["an empty band"])
    layer = session.require_view().layer("fused", Rendering(style="pca"))
    assert np.isfinite(layer.window(slice(0, 20), slice(0, 24))).all()


def test_uncertainty_of_one_band(tmp_path: Path) -> None:
    """As `hyperfuse view FUSED --uncertainty U` opens it: a map of its own, and a number for every pixel."""
    session = opened(tmp_path, CUBES["plain"])
    write_cube(make_cube(GROUND[:1] / 10, crs="EPSG:32633", transform=TRANSFORM), tmp_path / "sure.tif")
    view = session.open({"fused": tmp_path / "odd.tif", "uncertainty": tmp_path / "sure.tif"})
    layer = view.layer("uncertainty_map", Rendering())
    np.testing.assert_allclose(layer.window(slice(0, 20), slice(0, 24)), GROUND[:1] / 10, rtol=1e-6)
    assert (layer.label, layer.planes) == ("uncertainty", 1)
    spectra = {spectrum.role: spectrum for spectrum in spectra_at(view.opened, 3, 5)}
    np.testing.assert_allclose(spectra["uncertainty"].mean, GROUND[:1, 3, 5] / 10, rtol=1e-6)
