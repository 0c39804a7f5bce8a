"""One ONNX file, run by onnxruntime on shapes and scales that the export never saw."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models.network_fixtures import TINY, random_pair, tiny_network

from hyperfuse.cli.train import export
from hyperfuse.errors import OptionError
from hyperfuse.models import export as onnx_export
from hyperfuse.models.export import export_onnx

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


@pytest.mark.slow
def test_fixed_bands_export_too(tmp_path):
    network = tiny_network(config=TINY.with_fixed_bands(5, 3))
    export_onnx(network, tmp_path / "fixed.onnx")
    hsi, msi = random_pair(5, 3, (4, 7), (23, 20))
    (found,) = onnxruntime.InferenceSession(tmp_path / "fixed.onnx").run(None, {"hsi": hsi.numpy(), "msi": msi.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(found, network(hsi, msi).numpy(), atol=1e-4, rtol=0.0)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_export, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"writing ONNX needs onnx and onnxscript; install it with: pip install"):
        export_onnx(tiny_network(), tmp_path / "tiny.onnx")
    assert not list(tmp_path.iterdir())
