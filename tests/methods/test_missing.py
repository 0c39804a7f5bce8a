"""Missing pixels: what fills them, how far that reaches, and that they do not spoil the others."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.missing import REACH, fill_missing, fill_pair, filling_halo
from hyperfuse.methods.window import Window, run_on_scene


def test_holes_are_filled_from_nearby() -> None:
    image = torch.arange(64.0).reshape(1, 8, 8).repeat(2, 1, 1)
    image[0, 2:5, 3:6] = torch.nan
    image[1] = torch.nan
    filled = fill_missing(image)
    known = torch.isfinite(image[0])
    assert torch.equal(filled[0][known], image[0][known])
    assert abs(float(filled[0, 3, 4]) - 28) < 1
    assert (filled[1] == 0).all()


def test_filling_depends_on_nothing_farther_away() -> None:
    image = torch.rand(2, 40, 44, generator=torch.Generator().manual_seed(0))
    image[:, 12:30, 14:30] = torch.nan
    image[1, 20:, 20:] = torch.nan
    far = torch.tensor([0.3, 0.7])
    filled = fill_missing(image, far)
    # Far from any known pixel.
    assert torch.equal(filled[:, 21, 22], far)
    cut = fill_missing(image[:, 5:33, 3:37], far)
    inner = slice(REACH, -REACH)
    torch.testing.assert_close(cut[:, inner, inner], filled[:, 5:33, 3:37][:, inner, inner], atol=1e-6, rtol=0)


def test_filled_pixels_of_one_image_agree_with_the_other() -> None:
    pair = tiny_pair(8, 3, (30, 28), 3.0)
    hsi, msi = pair.hsi.clone(), pair.msi.clone()
    hsi[:, 5:12, 6:13], hsi[4, 20:23, 20:23], msi[:, 60:75, 20:40] = torch.nan, torch.nan, torch.nan
    # A pixel without one of its bands, on the bright side of an edge.
    msi[1, 45, 45] = torch.nan
    filled = run_on_scene(fill_pair(Window(hsi, msi, pair.observation)))
    for own, holes, true in ((filled.hsi, hsi, pair.hsi), (filled.msi, msi, pair.msi)):
        known = torch.isfinite(holes)
        assert torch.equal(own[known], holes[known])
        spread = float(true.flatten(1).std(1).mean())
        assert float((own - true)[~known].square().mean().sqrt()) < 0.5 * spread
    again = run_on_scene(fill_pair(Window(pair.hsi, pair.msi, pair.observation)))
    assert again.hsi is pair.hsi and again.msi is pair.msi


@pytest.mark.parametrize("method", ["glp", "fuse", "universal"])
def test_holes_do_not_spoil_the_rest_of_the_scene(method: str) -> None:
    pair = tiny_pair(12, 4, (40, 40), 4.0, snr_db=45.0)
    hsi, msi = pair.hsi.clone(), pair.msi.clone()
    hsi[:, :5], hsi[:, 20:26, 10:16], msi[:, :, -24:], msi[:, 60:90, 100:120] = (torch.nan,) * 4
    whole, fused = (fuse_arrays(*images, pair.observation, method) for images in ((pair.hsi, pair.msi), (hsi, msi)))
    far = torch.isfinite(fused).all(0)
    error, usual = ((each - pair.reference)[:, far].square().mean().sqrt() for each in (fused, whole))
    assert float(error) < 1.15 * float(usual)


def test_nothing_known_at_all_in_common() -> None:
    pair = tiny_pair(6, 2, (12, 12), 3.0)
    hsi, msi = pair.hsi.clone(), pair.msi.clone()
    hsi[:, :6], msi[:, 18:] = torch.nan, torch.nan
    filled = run_on_scene(fill_pair(Window(hsi, msi, pair.observation)))
    assert torch.isfinite(filled.hsi).all() and torch.isfinite(filled.msi).all()
    assert filling_halo(pair.observation) < 20
