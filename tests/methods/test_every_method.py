"""One contract for everything that fuses: any bands, any scale, any units, holes, and images that carry little."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.methods.tiny_pairs import psnr_db, tiny_pair

from hyperfuse.errors import BandError, GridError, OptionError, ValueRangeError
from hyperfuse.methods.catalogue import METHODS, Method, fuse_arrays
from hyperfuse.methods.injection import detail_halo
from hyperfuse.methods.window import scene_mean
from hyperfuse.physics.observation import known_observation

WITH_DETAIL = [name for name in METHODS if name != "bicubic"]


def worse_than_bicubic_db(name, pair, observation=None):
    observation = observation or pair.observation
    fused = fuse_arrays(pair.hsi, pair.msi, observation, name)
    assert torch.isfinite(fused).all()
    return psnr_db(fuse_arrays(pair.hsi, pair.msi, observation, "bicubic"), pair.reference) - psnr_db(
        fused, pair.reference
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("bands", "msi_bands", "coarse", "scale"), [(20, 3, (9, 11), 2), (7, 4, (10, 10), 3.2), (33, 1, (7, 9), 5.7)]
)
def test_shape_type_and_gain_over_bicubic(name, bands, msi_bands, coarse, scale):
    pair = tiny_pair(bands, msi_bands, coarse, scale)
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, name)
    assert fused.shape == pair.reference.shape
    assert fused.dtype == torch.float32
    assert (
        worse_than_bicubic_db(name, pair) <= 0
        if name == "bicubic" or msi_bands == 1
        else worse_than_bicubic_db(name, pair) < -2
    )


@pytest.mark.parametrize("name", METHODS)
def test_units_do_not_matter(name):
    pair = tiny_pair(12, 3, (8, 8), 4)
    fused = fuse_arrays(pair.hsi, pair.msi, pair.observation, name)
    scaled = replace(pair.observation, srf=pair.observation.srf * 1e12)
    huge = fuse_arrays(pair.hsi * 1e-6, pair.msi * 1e6, scaled, name)
    torch.testing.assert_close(huge * 1e6, fused, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", METHODS)
def test_holes_stay_holes_and_stay_small(name):
    pair = tiny_pair(12, 3, (10, 10), 4)
    hsi, msi = pair.hsi.clone(), pair.msi.clone()
    hsi[:, 2, 3] = torch.nan
    hsi[5, 7, 7] = torch.nan
    msi[:, 20:25, 30:33] = torch.nan
    fused = fuse_arrays(hsi, msi, pair.observation, name)
    expected = torch.zeros(fused.shape, dtype=torch.bool)
    expected[:, 8:12, 12:16] = True
    expected[5, 28:32, 28:32] = True
    expected[:, 20:25, 30:33] = True
    assert torch.equal(torch.isnan(fused), expected)
    whole = fuse_arrays(pair.hsi, pair.msi, pair.observation, name)
    assert psnr_db(fused, pair.reference) > psnr_db(whole, pair.reference) - 2


@pytest.mark.parametrize("name", WITH_DETAIL)
def test_more_msi_than_hsi_bands(name):
    assert worse_than_bicubic_db(name, tiny_pair(4, 7, (8, 9), 4)) < 0.1


@pytest.mark.parametrize("name", WITH_DETAIL)
def test_rank_deficient_and_dead_bands(name):
    pair = tiny_pair(12, 3, (8, 9), 4)
    hsi, reference = pair.hsi.clone(), pair.reference.clone()
    hsi[3], reference[3] = hsi[4], reference[4]
    hsi[7], reference[7] = 0.0, 0.0
    assert worse_than_bicubic_db(name, replace(pair, hsi=hsi, reference=reference)) < 0.1


@pytest.mark.parametrize("name", METHODS)
def test_a_band_of_nothing_but_nan_stays_nan_alone(name):
    pair = tiny_pair(8, 3, (8, 9), 4)
    hsi = pair.hsi.clone()
    hsi[2] = torch.nan
    fused = fuse_arrays(hsi, pair.msi, pair.observation, name)
    assert torch.isnan(fused[2]).all()
    assert torch.isfinite(fused[[0, 1, 3, 4, 5, 6, 7]]).all()


@pytest.mark.parametrize("name", [*METHODS, "auto"])
def test_constant_msi(name):
    pair = tiny_pair(10, 3, (8, 9), 4)
    with pytest.warns(UserWarning, match="msi is constant"):
        fused = fuse_arrays(pair.hsi, torch.full_like(pair.msi, 0.4), pair.observation, name)
    torch.testing.assert_close(fused, fuse_arrays(pair.hsi, pair.msi, pair.observation, "bicubic"))


@pytest.mark.parametrize("name", WITH_DETAIL)
def test_one_constant_msi_band_is_as_good_as_none(name):
    pair = tiny_pair(10, 4, (8, 9), 4)
    msi = pair.msi.clone()
    msi[1] = 7.0
    without = replace(pair.observation, srf=pair.observation.srf[[0, 2, 3]])
    without = replace(without, offset=without.offset[:3], msi_noise=without.msi_noise[:3])
    fused = fuse_arrays(pair.hsi, msi, pair.observation, name)
    torch.testing.assert_close(fused, fuse_arrays(pair.hsi, msi[[0, 2, 3]], without, name))


@pytest.mark.parametrize("name", WITH_DETAIL)
def test_five_by_five_pixels(name):
    assert worse_than_bicubic_db(name, tiny_pair(40, 3, (5, 5), 4)) < 0.1


@pytest.mark.parametrize("name", WITH_DETAIL)
def test_negative_reflectances(name):
    pair = tiny_pair(10, 3, (8, 9), 4)
    pair = replace(pair, hsi=pair.hsi - 0.3, msi=pair.msi - 0.3, reference=pair.reference - 0.3)
    assert worse_than_bicubic_db(name, pair) < 0.1


@pytest.mark.parametrize("name", WITH_DETAIL)
def test_extreme_dynamic_range(name):
    pair = tiny_pair(10, 3, (8, 9), 4)
    hot = torch.ones_like(pair.reference)
    hot[:, 13:16, 20:22] = 1000.0
    reference = (pair.reference * hot).double()
    coarse = pair.observation.spatial_operator((32, 36), (8, 9)).apply(reference).float()
    msi = torch.einsum("mc,cyx->myx", pair.observation.srf, reference).float()
    assert worse_than_bicubic_db(name, replace(pair, hsi=coarse, msi=msi, reference=reference.float())) < 0.1


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("height", [2, 3])
def test_two_pixels_are_finite(name, height):
    pair = tiny_pair(6, 3, (height, 2), 4)
    assert torch.isfinite(fuse_arrays(pair.hsi, pair.msi, pair.observation, name)).all()


@pytest.mark.parametrize("name", METHODS)
def test_a_black_hsi_stays_black(name):
    pair = tiny_pair(6, 3, (6, 6), 2)
    fused = fuse_arrays(torch.zeros_like(pair.hsi), pair.msi, pair.observation, name)
    assert fused.abs().max() < 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_consistency_reproduces_the_hsi(name):
    pair = tiny_pair(12, 3, (8, 9), 4)
    before = fuse_arrays(pair.hsi, pair.msi, pair.observation, name)
    after = fuse_arrays(pair.hsi, pair.msi, pair.observation, name, consistency=True)
    operator = pair.observation.spatial_operator((32, 36), (8, 9))
    assert (operator.apply(after) - pair.hsi).abs().max() < 2e-3
    assert psnr_db(after, pair.reference) > psnr_db(before, pair.reference) - 0.1


def test_auto_is_at_least_as_good_as_most():
    pair = tiny_pair(20, 3, (24, 24), 3)
    chosen = psnr_db(fuse_arrays(pair.hsi, pair.msi, pair.observation, "auto"), pair.reference)
    scores = sorted(
        psnr_db(fuse_arrays(pair.hsi, pair.msi, pair.observation, name), pair.reference) for name in METHODS
    )
    assert chosen >= scores[-3] - 0.1


def test_wrong_input_is_refused():
    pair = tiny_pair(6, 3, (6, 6), 2)
    with pytest.raises(OptionError, match="one of auto, bicubic"):
        fuse_arrays(pair.hsi, pair.msi, pair.observation, "magic")
    with pytest.raises(GridError, match="coarse hsi first"):
        fuse_arrays(pair.msi, pair.hsi, pair.observation, "fuse")
    with pytest.raises(BandError, match="one row per msi band"):
        fuse_arrays(pair.hsi, pair.msi, known_observation(torch.ones(2, 6), 2.0), "fuse")
    with pytest.raises(ValueRangeError, match="without a single valid pixel"):
        fuse_arrays(pair.hsi * torch.nan, pair.msi, pair.observation, "fuse")
    with pytest.raises(ValueRangeError, match="msi without a single"):
        fuse_arrays(pair.hsi, pair.msi * torch.nan, pair.observation, "fuse")


@pytest.mark.parametrize("name", ["hysure", "fuse", "lift", "local_fuse"])
def test_noise_of_many_msi_bands_is_not_fitted(name):
    pair = tiny_pair(30, 10, (16, 16), 4, snr_db=25.0)
    hsi_noise, msi_noise = (10 ** (-25 / 20) * float(image.square().mean().sqrt()) for image in (pair.hsi, pair.msi))
    known_noise = replace(
        pair.observation,
        hsi_noise=torch.full((30,), hsi_noise, dtype=torch.float64),
        msi_noise=torch.full((10,), msi_noise, dtype=torch.float64),
    )
    informed, plain = (
        psnr_db(fuse_arrays(pair.hsi, pair.msi, known_noise, method), pair.reference) for method in (name, "glp")
    )
    assert informed > plain + 1


@pytest.mark.parametrize("name", ["sfim", "gsa", "glp", "cnmf"])
def test_detail_that_contradicts_values(name):
    """The msi follows every hsi band at low frequencies and opposes it at high ones, so gains have the wrong sign."""
    pair = tiny_pair(8, 1, (16, 16), 4)
    detail = pair.reference - pair.reference.mean((1, 2), keepdim=True)
    smooth = 2 + torch.cos(torch.pi * (torch.arange(64.0) + 0.5) / 64)[:, None]
    reference, msi = smooth + detail, smooth - detail[:1]
    hsi = pair.observation.spatial_operator((64, 64), (16, 16)).apply(reference)
    assert worse_than_bicubic_db(name, replace(pair, reference=reference, hsi=hsi, msi=msi)) < 0.1


def test_a_method_of_a_few_lines_can_be_added(monkeypatch):
    """The example of the catalogue's docstring, through everything around a method: units, missing pixels, `auto`."""

    def modulation(window):
        intensity = window.fine(window.msi).mean(0)
        mean = yield from scene_mean(lambda: (intensity.mean(), intensity.numel()))
        return lambda part: window.at(part).upsample_to_core(window.hsi) * (intensity[part] / mean)

    monkeypatch.setitem(METHODS, "modulation", Method(modulation, "", "", halo=detail_halo))
    pair = tiny_pair(12, 3, (10, 10), 4)
    msi = pair.msi.clone()
    msi[:, 3, 4] = torch.nan
    fused = fuse_arrays(pair.hsi, msi, pair.observation, "modulation")
    assert torch.equal(torch.isnan(fused), torch.isnan(msi).all(0).expand_as(fused))
    assert fuse_arrays(pair.hsi, pair.msi, pair.observation, "auto").shape == pair.reference.shape
    with pytest.raises(OptionError, match="uncertainty"):
        fuse_arrays(pair.hsi, pair.msi, pair.observation, "modulation", uncertainty=True)
