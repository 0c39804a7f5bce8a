"""How far the shortcuts are from what they replace, on the largest network: the fast decoder and ONNX.

pytest benchmarks/network/test_differences.py --benchmark-enable
"""

from __future__ import annotations

import pytest
import torch
from tests.models.decoder_oracle import fuse_plainly

from hyperfuse.models.catalogue import build_network
from hyperfuse.models.export import export_onnx


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return build_network("ssa-6-6").eval()


def random_pair(bands, msi_bands, coarse, fine):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(1, bands, *coarse, generator=generator), torch.rand(1, msi_bands, *fine, generator=generator)


def test_decoder(network, note_figure, benchmark):
    worst = 0.0
    for scale in (3.2, 5.7, 3.0):
        hsi, msi = random_pair(31, 3, (41, 20), (round(41 * scale), round(20 * scale)))
        with torch.inference_mode():
            worst = max(worst, float((fuse_plainly(network, hsi, msi) - network(hsi, msi)).abs().max()))
    with torch.inference_mode():
        benchmark.pedantic(lambda: network(hsi, msi), rounds=1)
    note_figure(f"ssa-6-6, scales 3.2, 5.7 and 3: the plain decoder differs by {worst:.1e}")
    assert worst < 1e-5


def test_onnx(network, tmp_path, note_figure, benchmark):
    onnxruntime = pytest.importorskip("onnxruntime")
    export_onnx(network, tmp_path / "network.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx")
    worst = 0.0
    for bands, msi_bands, coarse, fine in (
        (31, 3, (8, 9), (32, 36)),
        (191, 3, (5, 7), (23, 29)),
        (48, 4, (9, 9), (9, 9)),
        (12, 1, (2, 3), (64, 96)),
    ):
        hsi, msi = random_pair(bands, msi_bands, coarse, fine)
        with torch.inference_mode():
            expected = network(hsi, msi)
        (found,) = session.run(None, {"hsi": hsi.numpy(), "msi": msi.numpy()})
        worst = max(worst, float((torch.from_numpy(found) - expected).abs().max()))
    benchmark.pedantic(lambda: session.run(None, {"hsi": hsi.numpy(), "msi": msi.numpy()}), rounds=1)
    note_figure(f"ssa-6-6 in onnxruntime, four unseen shapes, up to C = 191 and scale 32: differs by {worst:.1e}")
    assert worst < 1e-4
