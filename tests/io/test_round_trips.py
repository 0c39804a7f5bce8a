"""Nothing is lost from format to format: random cubes through every format, and through every pair of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from tests.io.random_cubes import FORMATS, Format, assert_nothing_lost, cubes

THOROUGH = settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
PAIRED = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("through", FORMATS, ids=lambda each: each.name)
@given(cube=cubes())
@THOROUGH
def test_one_format_keeps_everything(through: Format, cube: xr.DataArray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_nothing_lost(through.round_trip(cube, Path(folder)), cube, through.name)


@pytest.mark.parametrize("first", FORMATS, ids=lambda each: each.name)
@given(cube=cubes())
@PAIRED
def test_every_pair_of_formats_keeps_everything(first: Format, cube: xr.DataArray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        between = first.round_trip(cube, Path(folder), "first")
        for second in FORMATS:
            assert_nothing_lost(
                second.round_trip(between, Path(folder), "second"), cube, f"{first.name} -> {second.name}"
            )
