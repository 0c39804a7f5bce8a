"""The picture of offsets: how long arrows are drawn."""

from __future__ import annotations

import pytest

from hyperfuse.reporting.figures import arrow_stretch


@pytest.mark.parametrize(
    ("longest", "drawn", "key"),
    [(0.0, 0.0, 0.5), (1e-5, 2e-4, 0.5), (0.1, 1.8, 0.5), (3.0, 9.0, 2.0), (60.0, 9.0, 50.0)],
)
def test_the_longest_arrow_fills_its_cell_unless_it_is_nearly_nothing(longest, drawn, key):
    stretch, shown = arrow_stretch(longest, spacing=10.0)
    assert longest * stretch == pytest.approx(drawn, rel=0.2)
    assert shown == key
