"""Figures: the one of a fusion is written completely or not at all and survives poor data; arrows of offsets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from matplotlib import _pylab_helpers, image, rcParams
from matplotlib.figure import Figure
from tests.reporting.reporting_scenes import make_hsi, make_msi, make_reference, repeated

from hyperfuse.errors import CubeWriteError
from hyperfuse.io.cube import make_cube
from hyperfuse.reporting.colour import error_map
from hyperfuse.reporting.figures import arrow_stretch, fusion_figure, view_fused, view_inputs


def draw(path: Path, reference: xr.DataArray, methods: dict[str, xr.DataArray]) -> Path:
    inputs = view_inputs(make_hsi(reference), make_msi(reference), reference)
    fused = {name: view_fused(cube, reference, inputs.pixels) for name, cube in methods.items()}
    return fusion_figure(path, "A scene", inputs, fused)


def test_a_picture_of_the_expected_size_without_global_state(tmp_path: Path) -> None:
    before = dict(rcParams)
    reference = make_reference()
    path = draw(tmp_path / "fusion.png", reference, {"repeated": repeated(make_hsi(reference)), "exact": reference})
    picture = image.imread(path)
    assert 1200 < picture.shape[1] < 2200 and 600 < picture.shape[0] < 2000
    assert (picture[..., :3].mean(axis=2) < 0.9).mean() > 0.05
    assert [file.name for file in tmp_path.iterdir()] == ["fusion.png"]
    assert dict(rcParams) == before and not _pylab_helpers.Gcf.figs


def test_poor_data_still_makes_a_picture(tmp_path: Path) -> None:
    reference = make_reference(8, 40)
    values = reference.values.copy()
    values[:, :3, :5] = np.nan
    values[7] = np.nan
    bad = np.arange(len(values)) == 4
    holey = reference.copy(data=values).assign_coords(good=("band", ~bad))
    nothing = reference.copy(data=np.full(reference.shape, np.nan))
    methods = {"nothing at all with a very long name indeed": nothing} | {
        f"method {n}": reference + n for n in range(12)
    }
    assert draw(tmp_path / "a.png", holey, methods).exists()
    assert draw(tmp_path / "b.png", reference, {"exact": reference, "nothing": nothing}).exists()


def test_cubes_without_wavelengths_and_place(tmp_path: Path) -> None:
    reference = make_cube(make_reference().values)
    hsi = make_cube(make_hsi(make_reference()).values)
    msi = make_cube(reference.values[:1])
    inputs = view_inputs(hsi, msi, reference)
    path = fusion_figure(tmp_path / "a.png", "", inputs, {"a": view_fused(reference * 1.1, reference, inputs.pixels)})
    assert path.exists()


def test_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = make_reference()
    path = draw(tmp_path / "fusion.png", reference, {"exact": reference})
    old = path.read_bytes()

    def full_disk(self: Figure, target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half a picture")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", full_disk)
    with pytest.raises(CubeWriteError, match="no space left"):
        draw(path, reference, {"exact": reference})
    assert path.read_bytes() == old and len(list(tmp_path.iterdir())) == 1


def test_a_missing_folder(tmp_path: Path) -> None:
    reference = make_reference()
    with pytest.raises(CubeWriteError, match="not a folder"):
        draw(tmp_path / "absent" / "a.png", reference, {"exact": reference})
    assert not list(tmp_path.iterdir())


def test_the_error_map_is_the_rmse_over_valid_bands() -> None:
    reference = make_reference()
    fused = reference.copy(data=reference.values + np.random.default_rng(1).standard_normal(reference.shape))
    fused[3, 2, 1] = np.nan
    fused[:, 5, 6] = np.nan
    difference = fused.values - reference.values
    windows = error_map(fused, reference, max_bytes=5000)
    for y, x in ((0, 0), (2, 1), (39, 47)):
        errors = [d for d in difference[:, y, x] if np.isfinite(d)]
        assert windows[y, x] == pytest.approx(np.sqrt(sum(e * e for e in errors) / len(errors)), rel=1e-12)
    assert np.isnan(windows[5, 6]) and np.isnan(windows).sum() == 1
    np.testing.assert_allclose(windows, error_map(fused, reference), rtol=1e-12)


@pytest.mark.parametrize(("shape", "methods"), [((4, 8), 1), ((40, 40), 5), ((128, 32), 7), ((8, 120), 13)])
def test_no_two_parts_of_the_page_overlap(
    shape: tuple[int, int], methods: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr("hyperfuse.reporting.style.save_png", lambda figure, path, _: drawn.append(figure) or path)
    reference = make_reference(*shape)
    draw(tmp_path / "a.png", reference, {f"method {n}": reference + n for n in range(methods)})
    drawn[0].draw_without_rendering()  # lays it out
    page = drawn[0].transFigure.inverted()
    frames = [axes.get_window_extent().transformed(page).bounds for axes in drawn[0].axes]
    assert len([axes for axes in drawn[0].axes if axes.images]) == 2 * 3 + 3 * methods
    for k, (left, bottom, width, height) in enumerate(frames):
        assert left >= 0 and bottom >= 0 and left + width <= 1 and bottom + height <= 1 and width > 0 and height > 0
        for other_left, other_bottom, other_width, other_height in frames[k + 1 :]:
            apart_x = left + width <= other_left + 1e-9 or other_left + other_width <= left + 1e-9
            apart_y = bottom + height <= other_bottom + 1e-9 or other_bottom + other_height <= bottom + 1e-9
            assert apart_x or apart_y


@pytest.mark.parametrize(
    ("longest", "drawn", "key"),
    [(0.0, 0.0, 0.5), (1e-5, 2e-4, 0.5), (0.1, 1.8, 0.5), (3.0, 9.0, 2.0), (60.0, 9.0, 50.0)],
)
def test_the_longest_arrow_fills_its_cell_unless_it_is_nearly_nothing(longest, drawn, key):
    stretch, shown = arrow_stretch(longest, spacing=10.0)
    assert longest * stretch == pytest.approx(drawn, rel=0.2)
    assert shown == key
