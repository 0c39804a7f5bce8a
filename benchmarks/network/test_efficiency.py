"""The paper's efficiency table on this machine: time, peak memory and MPix/s, against the machine's own matrix product.

    pytest benchmarks/network/test_efficiency.py --benchmark-enable

`performed` multiply-adds are counted, not the larger number of the equations, so a saving in arithmetic does not pass
for speed. The yardstick is a square float32 product on the same threads, large enough for its full rate, by the faster
of torch and numpy: they bring different libraries, and torch's is far from the fastest on some processors.
"""

from __future__ import annotations

import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from hyperfuse.models.analysis import count_multiply_adds
from hyperfuse.models.catalogue import build_network
from hyperfuse.models.ssa import preset

SCALE, MSI_BANDS = 4, 3
MATMUL_SIZE = 2048


def random_pair(bands, size, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    coarse = size // SCALE
    return (
        torch.rand(1, bands, coarse, coarse, generator=generator).to(device),
        torch.rand(1, MSI_BANDS, size, size, generator=generator).to(device),
    )


def operations(name, bands, size):
    counts = count_multiply_adds(preset(name), bands, MSI_BANDS, (size, size), (size // SCALE,) * 2)
    return 2 * counts.performed


def matmul_runs():
    """The machine's own matrix product, into memory that is there already."""
    a = torch.randn(MATMUL_SIZE, MATMUL_SIZE)
    product = torch.empty_like(a)
    return {
        "torch": lambda: torch.mm(a, a, out=product),
        "numpy": lambda: np.matmul(a.numpy(), a.numpy(), out=product.numpy()),
    }


def matmul_rate(seconds):
    """Operations per second of the faster one, from what a race of `matmul_runs` found."""
    return 2.0 * MATMUL_SIZE**3 / min(seconds["torch"], seconds["numpy"])


@pytest.mark.parametrize(("name", "least"), [("ssa-6-6", 0.7), ("ssa-1-1", 0.0), ("ssa-small", 0.0)])
def test_share_of_the_matrix_product(name, least, race, note_figure, benchmark):
    network, (hsi, msi) = build_network(name).eval(), random_pair(31, 128)
    with torch.inference_mode():
        seconds = race(matmul_runs() | {"network": lambda: network(hsi, msi)})
        benchmark.pedantic(lambda: network(hsi, msi), rounds=2)
    matmul = matmul_rate(seconds)
    rate = operations(name, 31, 128) / seconds["network"]
    note_figure(
        f"{name}, 128x128, C = 31: {seconds['network']:.3f} s, {rate / 1e9:.0f} GFLOP/s, "
        f"{rate / matmul:.0%} of this machine's matmul ({matmul / 1e9:.0f} GFLOP/s, {torch.get_num_threads()} threads)"
    )
    assert rate / matmul >= least


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("bands", [31, 191])
def test_the_paper_s_table_at_512(bands, precision, race, peak_memory, note_figure, benchmark):
    network, (hsi, msi) = build_network("ssa-6-6").eval(), random_pair(bands, 512)
    lower = torch.autocast("cpu", dtype=torch.bfloat16) if precision == "bfloat16" else nullcontext()
    before = matmul_rate(race(matmul_runs(), rounds=4))
    with torch.inference_mode(), lower, peak_memory() as peak:
        start = time.perf_counter()
        benchmark.pedantic(lambda: network(hsi, msi), rounds=1)
        seconds = time.perf_counter() - start
    matmul = max(before, matmul_rate(race(matmul_runs(), rounds=4)))
    rate = operations("ssa-6-6", bands, 512) / seconds
    note_figure(
        f"ssa-6-6, 512x512, C = {bands}, {precision}: {seconds:.1f} s, {0.262144 / seconds:.4f} MPix/s, "
        f"peak {peak.bytes / 1e9:.2f} GB, {rate / matmul:.0%} of the float32 matmul rate"
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["ssa-small", "ssa-1-1"])
def test_bfloat16_and_compile(name, race, note_figure, benchmark):
    network, (hsi, msi) = build_network(name).eval(), random_pair(31, 128)
    compiled = torch.compile(network)

    def in_bfloat16(run):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(hsi, msi)

    with torch.inference_mode():
        expected = network(hsi, msi)
        torch.testing.assert_close(compiled(hsi, msi), expected, atol=1e-5, rtol=0.0)
        seconds = race(
            {
                "float32": lambda: network(hsi, msi),
                "compiled": lambda: compiled(hsi, msi),
                "bfloat16": lambda: in_bfloat16(network),
                "bfloat16 compiled": lambda: in_bfloat16(compiled),
            },
        )
        worst = float((in_bfloat16(network) - expected).abs().max() / (expected - expected.mean()).abs().max())
        benchmark.pedantic(lambda: in_bfloat16(network), rounds=2)
    note_figure(
        f"{name}, 128x128, C = 31: "
        + ", ".join(f"{each} {value * 1e3:.0f} ms" for each, value in seconds.items())
        + f"; bfloat16 changes the result by {worst:.1e} of its range"
    )


def test_training_step_of_the_small_network(race, note_figure, benchmark):
    network = build_network("ssa-small")
    generator = torch.Generator().manual_seed(0)
    hsi, msi = torch.rand(4, 31, 12, 12, generator=generator), torch.rand(4, 3, 48, 48, generator=generator)
    reference = torch.rand(4, 31, 48, 48, generator=generator)

    def step():
        network.zero_grad()
        (network(hsi, msi) - reference).abs().mean().backward()

    seconds = race({"step": step})["step"]
    benchmark.pedantic(step, rounds=5)
    note_figure(f"ssa-small, forward and backward of 4 patches 48x48, C = 31: {seconds * 1e3:.0f} ms")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("bands", [31, 191])
def test_the_paper_s_table_on_cuda(bands, note_figure, benchmark):
    network, (hsi, msi) = build_network("ssa-6-6").eval().cuda(), random_pair(bands, 512, "cuda")
    for name, lower in (("float32", nullcontext()), ("float16", torch.autocast("cuda", dtype=torch.float16))):
        with torch.inference_mode(), lower:
            torch.cuda.reset_peak_memory_stats()
            for _ in range(20):
                network(hsi, msi)
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(50):
                network(hsi, msi)
            torch.cuda.synchronize()
            seconds = (time.perf_counter() - start) / 50
        note_figure(
            f"ssa-6-6, 512x512, C = {bands}, {torch.cuda.get_device_name()}, {name}: {seconds * 1e3:.1f} ms, "
            f"{0.262144 / seconds:.2f} MPix/s, peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB"
        )
    with torch.inference_mode():
        benchmark.pedantic(lambda: network(hsi, msi), rounds=3)
