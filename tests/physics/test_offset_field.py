"""A field from windows, many of them wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hyperfuse.physics.offset_field import NODES, OffsetField, WindowOffset, constant_field, fit_offset_field

SIZE = (300, 400)
Field = Callable[[np.ndarray, np.ndarray], np.ndarray]


def flat(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.stack([0 * rows, 0 * columns])


def bent(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.stack([1 + np.sin(rows / 60), 2 * columns / 400 - rows * columns / 120_000])


def windows_of(field: Field, noise: float, wrong: float, seed: int = 0, side: int = 8) -> list[WindowOffset]:
    random = np.random.default_rng(seed)
    windows = []
    for y in np.linspace(20, 280, side):
        for x in np.linspace(20, 380, side):
            offset = field(np.array(y), np.array(x)) + noise * random.standard_normal(2)
            if random.random() < wrong:
                offset = random.uniform(-6, 6, 2)
            windows.append(WindowOffset((y, x), (float(offset[0]), float(offset[1])), (noise / 3, noise / 3), 0.9))
    return windows


def error_of(found: OffsetField, field: Field) -> float:
    rows, columns = np.mgrid[0:300:7, 0:400:9].astype(float)
    return float(np.sqrt(np.square(found.at(rows, columns) - field(rows, columns)).mean()))


@pytest.mark.parametrize(("noise", "wrong"), [(0.05, 0.0), (0.05, 0.3), (0.2, 0.15)])
def test_a_bent_field_is_recovered_from_windows_of_which_many_are_wrong(noise: float, wrong: float) -> None:
    windows = windows_of(bent, noise, wrong)
    found = fit_offset_field(windows, SIZE, (1.0, 1.0))
    assert error_of(found, bent) < max(0.07, 0.7 * noise)
    assert found.confidence > 0.6
    true = [np.hypot(*(np.array(each.offset) - bent(*np.array(each.place)))) for each in windows]
    assert not any(used and error > 2 for used, error in zip(found.used, true, strict=True))


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_without_evidence_the_field_is_one_offset(wrong: float) -> None:
    found = fit_offset_field(windows_of(flat, 0.1, wrong), SIZE, (0.0, 0.0))
    assert found.variation == pytest.approx(0, abs=1e-9)
    assert found.largest < 0.05
    assert found.confidence == 1


def test_where_there_are_no_windows_the_error_grows() -> None:
    windows = [window for window in windows_of(bent, 0.05, 0.0) if window.place[1] < 200]
    found = fit_offset_field(windows, SIZE, (1.0, 1.0))
    near, far = (found.errors[:, NODES // 2, round(x / 399 * (NODES - 1))] for x in (100.0, 390.0))
    assert (far > 2 * near).all()


@pytest.mark.parametrize("windows", [[], windows_of(bent, 0.1, 0.0)[:4]])
def test_few_windows_give_no_field(windows: list[WindowOffset]) -> None:
    found = fit_offset_field(windows, SIZE, (0.5, -0.25))
    assert not any(found.used)
    assert found.confidence == 0
    assert found.mean == (0.5, -0.25)


def test_windows_that_the_hsi_does_not_explain_are_ignored() -> None:
    good = windows_of(flat, 0.05, 0.0)
    bad = [WindowOffset(each.place, (3.0, 3.0), (0.01, 0.01), 0.2) for each in good]
    found = fit_offset_field([*good, *bad], SIZE, (0.0, 0.0))
    assert sum(found.used) == len(good)
    assert found.largest < 0.05


def test_moving_and_comparing_fields() -> None:
    field = constant_field(SIZE, (1.0, 2.0), (0.1, 0.1))
    moved = field.moved((3.0, -2.0))
    assert moved.mean == (4.0, 0.0)
    assert moved.start == (4.0, 0.0)
    assert moved.difference(field) == pytest.approx(np.hypot(3, 2))
    np.testing.assert_allclose(field.at(np.array([-50.0, 1000.0]), np.array([5.0, 5.0])), [[1.0, 1.0], [2.0, 2.0]])
