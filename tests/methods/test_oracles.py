"""Methods and their parts against slow oracles written straight from their definitions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tests.methods.tiny_pairs import tiny_pair

from hyperfuse.methods.catalogue import DEFAULT, at_reduced_resolution, scores_at_reduced_resolution, suitable_method
from hyperfuse.methods.cnmf import pure_pixels
from hyperfuse.methods.hysure import _cosine_basis, _differences, _divergence, _smooth
from hyperfuse.methods.injection import glp
from hyperfuse.methods.local_regression import RADIUS, RIDGE_OF_NEIGHBOURHOOD, WIDTH, LocalRegression, compiled
from hyperfuse.methods.pair_model import condition_on_hsi, condition_on_msi, model_pair, principal_axes
from hyperfuse.methods.window import EVERYWHERE, Window, run_on_scene
from hyperfuse.physics.observation import SpatialOperator, known_observation
from hyperfuse.physics.resample import Placement, upsample_bicubic


def test_the_two_steps_are_the_exact_posterior_mean():
    """Against the normal equations of the whole problem, dense: every pixel, every component, both images at once."""
    pair = tiny_pair(8, 3, (3, 4), 2, snr_db=30.0)
    observation = replace(
        pair.observation, hsi_noise=torch.full((8,), 0.03).double(), msi_noise=torch.full((3,), 0.02).double()
    )
    model = run_on_scene(model_pair(Window(pair.hsi.double(), pair.msi.double(), observation), most_components=4))
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    prior = 0.01 * (root @ root.T + 0.1 * torch.eye(4))
    start = model.upsample(model.coefficients)
    mean, posterior = condition_on_msi(start, prior, model)
    found = condition_on_hsi(mean, posterior, model)

    pixels, seen = 6 * 8, model.msi_from_components
    blur = torch.kron(model.operator.rows, model.operator.columns)
    identity = torch.eye(pixels, dtype=torch.float64)
    system = (
        torch.kron(torch.linalg.inv(prior).contiguous(), identity)
        + torch.kron(seen.T @ torch.linalg.inv(model.msi_noise) @ seen, identity)
        + torch.kron(torch.linalg.inv(model.hsi_noise).contiguous(), blur.T @ blur)
    )
    right = (
        torch.linalg.inv(prior) @ start.flatten(1)
        + seen.T @ torch.linalg.inv(model.msi_noise) @ model.msi.flatten(1)
        + torch.linalg.inv(model.hsi_noise) @ model.coefficients.flatten(1) @ blur
    )
    expected = torch.linalg.solve(system, right.flatten()).reshape(4, 6, 8)
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=1e-6)


def test_bicubic_reproduces_a_ramp_and_a_constant():
    observation = known_observation(torch.ones(1, 1), 4.0, shift=(0.5, -1.0))
    rows = torch.arange(8.0)[:, None].expand(8, 8)
    fine = upsample_bicubic(rows[None], (32, 32), observation.placement)
    inner = torch.arange(8, 24)
    torch.testing.assert_close(fine[0, inner, 16], ((inner + 0.5 - 0.5) / 4 - 0.5).float())
    torch.testing.assert_close(
        upsample_bicubic(torch.ones(1, 8, 8), (32, 32), observation.placement), torch.ones(1, 32, 32)
    )


def slow_trust(true, injected):
    """The least squares slope of one band's detail on another's, times Stein's shrinkage 1 - variance / slope^2, within
    0 and 1.
    """
    slope = sum(a * b for a, b in zip(true, injected, strict=True)) / sum(b * b for b in injected)
    variance = (
        sum((a - slope * b) ** 2 for a, b in zip(true, injected, strict=True))
        / (len(injected) - 2)
        / sum(b * b for b in injected)
    )
    return min(1.0, max(0.0, slope * max(0.0, 1 - variance / slope**2)))


def test_glp_is_interpolation_plus_regressed_detail_as_far_as_the_hsi_bears_it_out():
    pair = tiny_pair(6, 3, (8, 8), 4)
    operator = pair.observation.spatial_operator((32, 32), (8, 8))
    coarse = operator.apply(pair.msi.double())
    design = torch.cat([coarse.flatten(1), torch.ones(1, 64, dtype=torch.float64)]).T
    gains = torch.linalg.lstsq(design, pair.hsi.double().flatten(1).T).solution[:3].T
    hsi_detail, msi_detail = (
        image - operator.apply(upsample_bicubic(image, (32, 32), pair.observation.placement))
        for image in (pair.hsi.double(), coarse)
    )
    injected = torch.einsum("cm,myx->cyx", gains, msi_detail)
    trust = [slow_trust(a.flatten().tolist(), b.flatten().tolist()) for a, b in zip(hsi_detail, injected, strict=True)]
    assert min(trust) < 1
    detail = pair.msi.double() - upsample_bicubic(coarse, (32, 32), pair.observation.placement)
    injected = torch.tensor(trust)[:, None, None] * torch.einsum("cm,myx->cyx", gains, detail)
    expected = upsample_bicubic(pair.hsi.double(), (32, 32), pair.observation.placement) + injected
    fused = run_on_scene(glp(Window(pair.hsi.double(), pair.msi.double(), pair.observation)))(EVERYWHERE)
    torch.testing.assert_close(fused, expected, atol=1e-3, rtol=0)


def slow_local_prediction(regression, fine_keys, fine_inputs, scale):
    """Pixel by pixel: weights, weighted normal equations, prediction."""
    bands, height, width = fine_inputs.shape
    coarse = regression.outputs.shape[1:]
    predicted = torch.zeros(len(regression.outputs), height, width, dtype=fine_inputs.dtype)
    for i in range(height):
        for j in range(width):
            position = [(index + 0.5) / scale - 0.5 for index, scale in zip((i, j), scale, strict=True)]
            cell = [min(max(round(place), 0), size - 1) for place, size in zip(position, coarse, strict=True)]
            weights, inputs, outputs = [], [], []
            for k in range(max(0, cell[0] - RADIUS), min(coarse[0], cell[0] + RADIUS + 1)):
                for m in range(max(0, cell[1] - RADIUS), min(coarse[1], cell[1] + RADIUS + 1)):
                    squared = (k - position[0]) ** 2 + (m - position[1]) ** 2
                    unlikeness = 1 + float((regression.keys[:, k, m] - fine_keys[:, i, j]).square().sum())
                    weights.append(math.exp(-0.5 * squared / WIDTH**2) / unlikeness)
                    inputs.append(regression.inputs[:, k, m])
                    outputs.append(regression.outputs[:, k, m])
            weight = torch.tensor(weights, dtype=fine_inputs.dtype)
            weight = weight / weight.sum()
            x, y = torch.stack(inputs), torch.stack(outputs)
            spread = x.T @ (weight[:, None] * x)
            spread = spread + regression.ridge + RIDGE_OF_NEIGHBOURHOOD * spread.trace() / bands * torch.eye(bands)
            slopes = torch.linalg.solve(spread, x.T @ (weight[:, None] * y))
            predicted[:, i, j] = fine_inputs[:, i, j] @ slopes
    return predicted


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # by torch, and by compiled.c
@pytest.mark.parametrize(("fine", "scale"), [((12, 15), (3.0, 3.0)), ((13, 11), (13 / 4, 11 / 5)), ((20, 25), (5, 5))])
def test_local_regression_by_loops(fine, scale, dtype):
    generator = torch.Generator().manual_seed(1)
    coarse = (round(fine[0] / scale[0]), round(fine[1] / scale[1]))

    def image(bands, size):
        return torch.randn(bands, *size, generator=generator, dtype=torch.float64)

    nothing = torch.zeros(2, *fine, dtype=torch.float64)
    outputs, inputs, keys = image(2, coarse), image(3, coarse), image(3, coarse)
    ridge = 0.01 * torch.eye(3).double()
    regression = LocalRegression(keys, torch.zeros_like(keys[:1]), inputs, outputs, ridge, inputs_of=(3,))
    fine_inputs, fine_keys = image(3, fine), image(3, fine)
    expected = slow_local_prediction(regression, fine_keys, fine_inputs, scale)
    known = (keys, torch.zeros_like(keys[:1]), inputs, outputs, ridge)
    regression = LocalRegression(*(each.to(dtype) for each in known), inputs_of=(3,))
    found = regression.predict(
        [each.to(dtype) for each in (fine_keys, nothing, fine_inputs)], Placement.from_scale(scale)
    )
    tolerance = 1e-9 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found.double(), expected, atol=tolerance, rtol=tolerance)


def test_compiled_local_regression_is_that_of_torch(monkeypatch):
    """Groups of inputs, several threads, more pixels in a cell than lanes, weights of neighbours and ridges."""
    if compiled.library() is None:
        pytest.skip("no C compiler was found when the package was installed")
    generator = torch.Generator().manual_seed(2)
    coarse, fine, scale = (5, 6), (33, 38), (33 / 5, 38 / 6)

    def image(bands, size):
        return torch.randn(bands, *size, generator=generator)

    ridge = 0.05 * torch.eye(4) + 0.01
    regression = LocalRegression(
        image(5, coarse), image(1, coarse), image(4, coarse), image(14, coarse), ridge, inputs_of=(4, 2)
    )
    pixels, placement = [image(5 + 2, fine), image(4, fine)], Placement.from_scale(scale, (0.4, -0.3))
    found = regression.predict(pixels, placement)
    monkeypatch.setattr(compiled, "library", lambda: None)
    torch.testing.assert_close(found, regression.predict(pixels, placement), atol=2e-5, rtol=2e-5)


def test_local_regression_on_more_keys_than_the_compiled_one_holds(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    keys, image = torch.randn(compiled.MOST + 1, 5, 6, generator=generator), torch.randn(2, 5, 6, generator=generator)
    regression = LocalRegression(keys, torch.zeros(1, 5, 6), image, image, 0.05 * torch.eye(2), inputs_of=(2,))
    fine = torch.randn(compiled.MOST + 1 + 2 + 2, 10, 12, generator=generator)
    found = regression.predict([fine], Placement.from_scale((2.0, 2.0)))
    monkeypatch.setattr(compiled, "library", lambda: None)
    torch.testing.assert_close(found, regression.predict([fine], Placement.from_scale((2.0, 2.0))))


def test_total_variation_pieces():
    generator = torch.Generator().manual_seed(3)
    u = torch.randn(2, 6, 7, generator=generator, dtype=torch.float64)
    g = torch.randn(2, 2, 6, 7, generator=generator, dtype=torch.float64)
    g[0, :, -1], g[1, :, :, -1] = 0, 0
    torch.testing.assert_close((_differences(u) * g).sum(), (u * _divergence(g)).sum())
    smooth = _smooth(u, _cosine_basis(6), _cosine_basis(7))
    torch.testing.assert_close(2 * smooth + _divergence(_differences(smooth)), u)


def test_principal_axes_of_a_rank_deficient_image():
    spectra = torch.randn(5, 2, generator=torch.Generator().manual_seed(4)) @ torch.randn(
        2, 30, generator=torch.Generator().manual_seed(5)
    )
    mean, axes = run_on_scene(principal_axes(spectra.reshape(5, 5, 6), most=4))
    assert axes.shape == (5, 2)
    centred = spectra.double() - mean[:, None]
    torch.testing.assert_close(axes @ (axes.T @ centred), centred, atol=1e-6, rtol=0)


def test_pure_pixels_finds_the_corners():
    corners = torch.eye(3)
    mixtures = torch.rand(3, 40, generator=torch.Generator().manual_seed(6))
    mixtures = 0.9 * mixtures / mixtures.sum(0)
    found = pure_pixels(torch.cat([mixtures, corners], dim=1), 3)
    assert torch.equal(found.sum(1), torch.ones(3))


def test_reduced_resolution_is_the_pair_one_scale_coarser():
    pair = tiny_pair(6, 3, (24, 20), 4)
    task, reference = at_reduced_resolution(pair.hsi, pair.msi, pair.observation)
    assert torch.equal(reference, pair.hsi)
    assert task.hsi.shape == (6, 6, 5)
    assert task.msi.shape == (3, 24, 20)
    operator = SpatialOperator.from_psf((24, 20), (6, 5), (4.0, 4.0), pair.observation.sigma)
    torch.testing.assert_close(task.hsi, operator.apply(pair.hsi))
    assert scores_at_reduced_resolution(pair.hsi, pair.msi, pair.observation)["bicubic"] > 10
    tiny = tiny_pair(6, 3, (5, 5), 4)
    assert scores_at_reduced_resolution(tiny.hsi, tiny.msi, tiny.observation) == {}
    assert suitable_method(Window(tiny.hsi, tiny.msi, tiny.observation)) == DEFAULT
