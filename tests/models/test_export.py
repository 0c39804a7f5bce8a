"""One ONNX file, run by onnxruntime on shapes and scales that the export never saw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models.network_fixtures import TINY, random_pair, tiny_network

from hyperfuse.cli.app import run
from hyperfuse.cli.experiments import export
from hyperfuse.errors import OptionError
from hyperfuse.models import export as onnx_export
from hyperfuse.models.catalogue import any_preset, build_network
from hyperfuse.models.export import component_inputs, export_onnx
from hyperfuse.models.matryoshka import Components, FixedBands, WavelengthBands
from hyperfuse.models.ssa import SSA

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    tiny_network().save_pretrained(folder / "weights")
    path = folder / "exported" / "tiny.onnx"
    path.parent.mkdir()
    export(str(folder / "weights"), path)
    assert [each.name for each in path.parent.iterdir()] == ["tiny.onnx"]
    return onnxruntime.InferenceSession(path)


@pytest.mark.parametrize(
    ("batch", "bands", "msi_bands", "coarse", "fine"),
    [
        (1, 4, 1, (8, 9), (32, 36)),
        (1, 12, 4, (4, 7), (23, 23)),
        (2, 13, 3, (5, 6), (16, 34)),
        (3, 1, 1, (2, 2), (7, 5)),
        (1, 5, 2, (1, 1), (4, 4)),
        (1, 9, 3, (9, 9), (9, 9)),
        (1, 6, 3, (2, 3), (64, 96)),
        (1, 6, 3, (17, 13), (97, 74)),
    ],
)
def test_onnxruntime_agrees_on_unseen_shapes(session, batch, bands, msi_bands, coarse, fine):
    hsi, msi = random_pair(bands, msi_bands, coarse, fine, batch)
    with torch.no_grad():
        expected = tiny_network()(hsi, msi).numpy()
    (found,) = session.run(None, {"hsi": hsi.numpy(), "msi": msi.numpy()})
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0.0)


def test_dimensions_have_names(session):
    hsi, msi = session.get_inputs()
    assert hsi.shape == ["batch", "bands", "coarse_rows", "coarse_columns"]
    assert msi.shape == ["batch", "msi_bands", "fine_rows", "fine_columns"]


NETWORKS = {
    "fixed bands, standardised": {
        "channels": FixedBands(bands=5, msi_bands=3),
        "standardise": "bands",
        "msi_kernel": "first",
    },
    "components": {"channels": Components(count=6), "msi_kernel": "own"},
    "wavelengths, correlated, other base": {
        "channels": WavelengthBands(),
        "msi_kernel": "own",
        "standardise": "correlated",
        "base": "gsa",
    },
    "the joint recipe": {
        "standardise": "correlated",
        "equalise_inputs": True,
        "msi_kernel": "own",
        "residual_factor": 0.1,
        "base": "gsa",
    },
}
BASELINES = {
    "dspnet": {"width": 8, "head_width": 8},
    "mimo-sst": {"width": 8},
    "pstun": {"width": 8, "stages": 1},
}


def assert_agrees(network, path):
    """On two sizes, band counts and scales, one of them a fraction, and on one msi band."""
    names = export_onnx(network, path)
    session = onnxruntime.InferenceSession(path)
    assert [each.name for each in session.get_inputs()] == names
    for bands, msi_bands, coarse, fine, batch in ((9, 4, (8, 9), (32, 36), 1), (5, 1, (4, 7), (23, 22), 2)):
        config = network.config
        fixed = getattr(config, "channels", config)
        bands, msi_bands = getattr(fixed, "bands", bands), getattr(fixed, "msi_bands", msi_bands)
        hsi, msi = random_pair(bands, msi_bands, coarse, fine, batch)
        given, options = {"hsi": hsi.numpy(), "msi": msi.numpy()}, {}
        if "hsi_basis" in names:
            given |= component_inputs(given["hsi"], given["msi"], config.channels.count, config.max_msi_bands)
        if "wavelength_nm" in names:
            centres = torch.linspace(1000, 400, bands), torch.linspace(450, 800, msi_bands)
            options["channels"] = network.find_channels(hsi, msi, *centres)
            given |= {"wavelength_nm": centres[0].numpy(), "msi_wavelength_nm": centres[1].numpy()}
        if "base" in names:
            options["base"] = torch.rand(batch, bands, *fine)
            given["base"] = options["base"].numpy()
        with torch.no_grad():
            expected = network(hsi, msi, **options).numpy()
        (found,) = session.run(None, given)
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_ssa(tmp_path, kind):
    network = tiny_network(config=TINY.model_copy(update=NETWORKS[kind]))
    with torch.no_grad():  # so that the residual is much larger than the tolerance
        network.output_kernel.weight *= 10
    assert_agrees(network, tmp_path / "network.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASELINES)
def test_baselines_have_fixed_bands(tmp_path, kind):
    torch.manual_seed(0)
    sizes = any_preset(kind).model_dump() | BASELINES[kind] | {"bands": 6, "msi_bands": 3}
    assert_agrees(build_network(type(any_preset(kind)).model_validate(sizes)).eval(), tmp_path / "network.onnx")


def test_what_cannot_be_exported_says_why(tmp_path, capsys):
    assert run(["export", "universal", str(tmp_path / "network.onnx")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "guides a regression" in said and "fuse --weights" in said
    with pytest.raises(OptionError, match="DCINN, which solves linear equations"):
        export_onnx(build_network("dcinn-thin"), tmp_path / "network.onnx")
    with pytest.raises(OptionError, match='regressed", which solves linear equations'):
        export_onnx(SSA.from_pretrained("ssa"), tmp_path / "network.onnx")
    with pytest.raises(OptionError, match="expected error"):
        export_onnx(SSA.from_pretrained("ssa-residual"), tmp_path / "network.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("pair", [(9, 4), (3, 1), (30, 2)])
def test_component_inputs_are_those_of_the_network(pair):
    hsi, msi = random_pair(*pair, (8, 9), (32, 36), batch=2)
    hsi[:, 0] = 0.5  # a band without variance
    network = tiny_network(config=TINY.model_copy(update={"channels": Components(count=6), "msi_kernel": "own"}))
    channels = network.find_channels(hsi, msi)
    found = component_inputs(hsi.numpy(), msi.numpy(), 6)
    for name, coding in (("hsi", channels.hsi_coding), ("msi", channels.msi_coding)):
        rank = min(coding.basis.shape[2], pair[0] - 1) if name == "hsi" else coding.basis.shape[2]
        np.testing.assert_allclose(found[f"{name}_mean"], coding.mean, rtol=1e-6)
        np.testing.assert_allclose(found[f"{name}_unit"], coding.unit, rtol=1e-4)
        np.testing.assert_allclose(found[f"{name}_basis"][..., :rank], coding.basis[..., :rank], atol=1e-6)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"writing ONNX needs onnx and onnxscript; install it with: pip install"):
        export_onnx(tiny_network(), tmp_path / "tiny.onnx")
    assert not list(tmp_path.iterdir())
