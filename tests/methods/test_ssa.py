"""The shipped SSA networks as methods: what they gain, and pairs with more bands than there are slots."""

from __future__ import annotations

import pytest
import torch
from tests.methods.tiny_pairs import psnr_db, tiny_pair

from hyperfuse.fusion.fusers import fuse_with_network
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.ssa import network_alone, shipped_ssa
from hyperfuse.methods.window import Window, run_on_scene
from hyperfuse.models.catalogue import load_model
from hyperfuse.models.matryoshka import Components, MatryoshkaBands
from hyperfuse.models.ssa import SSA, SSAConfig
from hyperfuse.models.weights import network_precision
from hyperfuse.physics.observation import known_observation


def test_the_network_has_slots_for_every_sensor_of_the_day() -> None:
    channels = load_model("ssa").config.channels
    assert isinstance(channels, MatryoshkaBands)
    assert channels.max_channels >= 400


@pytest.mark.parametrize("snr_db", [None, 40.0])
def test_conditioning_on_both_images_gains_over_the_network_alone(snr_db: float | None) -> None:
    pair = tiny_pair(31, 3, (16, 16), 4, snr_db=snr_db)
    noise = 0.0 if snr_db is None else 10 ** (-snr_db / 20) * float(pair.hsi.square().mean().sqrt())
    known = known_observation(pair.observation.srf, 4.0, hsi_noise=noise, msi_noise=noise)
    images = pair.hsi, pair.msi, known
    alone = run_on_scene(network_alone(Window(*images), shipped_ssa()))
    bicubic, conditioned = (fuse_arrays(*images, method) for method in ("bicubic", "ssa"))
    scores = [psnr_db(image, pair.reference) for image in (bicubic, alone, conditioned)]
    assert scores[0] < scores[1] < scores[2]


def test_weights_by_their_name_are_the_network_alone() -> None:
    pair = tiny_pair(31, 3, (16, 16), 4)
    images = pair.hsi, pair.msi, pair.observation
    by_name = fuse_with_network(load_model("ssa"), *images)
    torch.testing.assert_close(
        by_name, run_on_scene(network_alone(Window(*images), shipped_ssa())), atol=1e-4, rtol=1e-4
    )


def test_a_network_in_bfloat16_gives_nearly_the_same() -> None:
    pair = tiny_pair(31, 3, (16, 16), 4)
    window = Window(pair.hsi, pair.msi, pair.observation)
    usual = run_on_scene(network_alone(window, shipped_ssa()))
    with network_precision("bfloat16"):
        rounded = run_on_scene(network_alone(window, shipped_ssa()))
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, usual)
    assert abs(psnr_db(rounded, pair.reference) - psnr_db(usual, pair.reference)) < 0.01


def test_more_bands_than_slots() -> None:
    slots = shipped_ssa().config.channels.max_channels
    pair = tiny_pair(slots + 7, 18, (8, 8), 2)
    images = pair.hsi, pair.msi, pair.observation
    fused = run_on_scene(network_alone(Window(*images), shipped_ssa()))
    assert fused.shape == pair.reference.shape
    assert psnr_db(fused, pair.reference) > psnr_db(fuse_arrays(*images, "bicubic"), pair.reference)


def test_residual_starts_from_universal_and_stays_close_to_it() -> None:
    pair = tiny_pair(31, 3, (16, 16), 4)
    images = pair.hsi, pair.msi, pair.observation
    universal, refined = (fuse_arrays(*images, method) for method in ("universal", "ssa-residual"))
    config = SSAConfig(
        width=4,
        spectral_blocks=1,
        spatial_blocks=1,
        decoder_hidden=(6,),
        feature_width=4,
        channels=Components(count=6),
        msi_kernel="own",
        base="universal",
        expected_error=True,
        initialisation="he",
    )
    torch.testing.assert_close(fuse_with_network(SSA(config).eval(), *images), universal)
    assert psnr_db(refined, pair.reference) > psnr_db(universal, pair.reference) - 0.1
