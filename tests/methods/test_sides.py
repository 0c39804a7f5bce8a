"""A pair looked at from several sides: the same pair from each of them, and a mean that has no side."""

from __future__ import annotations

import pytest
import torch

from hyperfuse.errors import OptionError
from hyperfuse.methods.catalogue import FROM_SIDES, find_method
from hyperfuse.methods.fuse_arrays import fuse_arrays
from hyperfuse.methods.over_scene import Question, SceneWise, alone, answered, apart, learned, scene_mean
from hyperfuse.methods.sides import SIDES, Side
from hyperfuse.methods.window import EVERYWHERE, Window
from methods.tiny_pairs import psnr_db, tiny_pair


def windows() -> list[Window]:
    """A whole pair, and a part of one that does not begin and end where coarse pixels do; both shifted, at a fractional scale."""
    pair = tiny_pair(6, 3, (12, 15), 3.25, sigma=(1.2, 1.7), shift=(0.3, -0.7))
    part = Window(
        pair.hsi[:, 2:10, 1:12],
        pair.msi[:, 5:34, 3:40],
        pair.observation.in_window((2, 1), (5, 3)),
        (slice(1, 6), slice(2, 11)),
        (slice(4, 20), slice(None, 30)),
    )
    return [Window(pair.hsi, pair.msi, pair.observation), part]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("window", windows(), ids=["whole", "part"])
def test_a_side_shows_the_same_pair(window: Window, side: Side) -> None:
    seen = side.of_window(window)
    assert torch.equal(side.back(seen.hsi), window.hsi) and torch.equal(side.back(seen.msi), window.msi)
    assert torch.equal(side.back(seen.fine(seen.msi)), window.fine(window.msi))
    assert torch.equal(side.back(seen.coarse(seen.hsi)), window.coarse(window.hsi))
    # What the sensor sees of the turned scene is what it sees of the scene, turned; and so is what is interpolated.
    blurred, turned = (
        each.observation.spatial_operator(each.fine_size, each.coarse_size).apply(each.msi) for each in (window, seen)
    )
    assert torch.allclose(side.back(turned), blurred, atol=1e-6)
    assert torch.allclose(side.back(seen.upsample_to_core(seen.hsi)), window.upsample_to_core(window.hsi), atol=1e-6)
    found, own = seen.observation.misregistration, window.observation.misregistration
    assert sorted(map(abs, found)) == pytest.approx(sorted(map(abs, own)))


def test_all_sides_are_different() -> None:
    numbers = torch.arange(6.0).reshape(1, 2, 3)
    assert len(set(SIDES)) == len({str(side.of_image(numbers)) for side in SIDES}) == 8
    assert torch.equal(SIDES[1].of_image(numbers), numbers.rot90(2, (1, 2)))
    assert SIDES[0].of_window(windows()[0]).fine_core == EVERYWHERE


def test_seen_from_all_sides_a_turned_pair_is_fused_into_the_turned_image() -> None:
    pair = tiny_pair(6, 3, (8, 10), 3.25, shift=(0.3, -0.4), snr_db=40)
    window = Window(pair.hsi, pair.msi, pair.observation)
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal_8")
    one = fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal")
    assert not torch.allclose(fused, one, atol=1e-4)
    quarter_turn = SIDES[6]
    seen = quarter_turn.of_window(window)
    assert torch.allclose(quarter_turn.back(fuse_arrays(seen.hsi, seen.msi, seen.observation, "universal_8")), fused, atol=1e-5)


def test_the_mean_is_no_worse_than_its_sides_are_on_average() -> None:
    pair = tiny_pair(6, 3, (8, 10), 4.0)
    window = Window(pair.hsi, pair.msi, pair.observation)
    errors = []
    for side in SIDES[:2]:
        seen = side.of_window(window)
        errors.append((side.back(fuse_arrays(seen.hsi, seen.msi, seen.observation)) - pair.reference).double().square().mean())
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, "universal_2")
    assert float((fused - pair.reference).double().square().mean()) <= float(sum(errors)) / 2
    assert psnr_db(fused, pair.reference) > psnr_db(fuse_arrays(pair.hsi, pair.msi, pair.observation, "bicubic"), pair.reference)


def test_what_works_apart_does_not_begin_anew() -> None:
    """Of three parts that ask twice each, every part begins as often as it would alone, and tiles know what the scene answered."""
    begun = [0, 0, 0]

    def part(number: int, image: torch.Tensor) -> SceneWise[torch.Tensor]:
        begun[number] += 1
        level = yield from scene_mean(lambda: (image.mean(), image.numel()))
        spread = yield from scene_mean(lambda: ((image - level).square().mean(), image.numel()))
        return (number + 1) * (image - level) / spread

    def method(image: torch.Tensor) -> SceneWise[torch.Tensor]:
        lowest = yield Question(lambda: image.min(), lambda shares: torch.stack(shares).min())
        parts = [lambda number=number: part(number, image - lowest) for number in range(3)]
        total = yield from apart(parts, lambda images: torch.stack(list(images)).sum(0))
        brightest = yield Question(lambda: total.max(), lambda shares: torch.stack(shares).max())
        return total / brightest

    scene = torch.rand(4, 8, generator=torch.Generator().manual_seed(0)).double()
    halves = [scene[:, :4], scene[:, 4:]]
    whole = alone(method(scene))
    begun[:] = [0, 0, 0]
    answers = learned(method, [lambda half=half: half for half in halves])
    # For two questions on two windows and the end of one; for the question after them on two, and at its end once.
    assert begun == [8, 8, 8]
    assert torch.allclose(torch.cat([answered(method(half), answers) for half in halves], dim=1), whole)


def test_names_are_known_and_not_listed() -> None:
    for name in FROM_SIDES.values():
        assert find_method(name).footprint.core_copies > find_method("universal").footprint.core_copies
    with pytest.raises(OptionError) as refused:
        find_method("universal_3")
    assert "universal_2" not in str(refused.value)
