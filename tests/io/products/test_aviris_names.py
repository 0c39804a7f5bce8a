"""Flights of the younger AVIRIS sensors by the names of their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hyperfuse.io.cube import make_cube, nodata_of
from hyperfuse.io.files import open_cube, write_cube


@pytest.mark.parametrize(
    ("name", "sensor", "acquired"),
    [
        ("AV320250308t200738_rdn", "AVIRIS-3", "2025-03-08T20:07:38Z"),
        ("AV520250907t121314_000_L2A_RFL_ORT", "AVIRIS-5", "2025-09-07T12:13:14Z"),
        ("ang20220318t192455_rfl_v2aa2_img", "AVIRIS-NG", "2022-03-18T19:24:55Z"),
    ],
)
def test_sensor_and_date(name: str, sensor: str, acquired: str, tmp_path: Path) -> None:
    cube = make_cube(np.ones((3, 4, 5), np.float32), wavelength_nm=[500, 600, 700])
    for part in ("", "_obs", "_loc"):
        write_cube(cube, tmp_path / f"{name}{part}.hdr")
    opened = open_cube(tmp_path)
    assert (opened.attrs["sensor"], opened.attrs["acquired"], nodata_of(opened)) == (sensor, acquired, -9999)
