"""Export of SSA to ONNX: one file for every band count, every msi and every scale.

`torch.onnx.export` traces the network once with dynamic sizes; `forward` depends on a size only through slices,
`arange` and products, so the file takes any pair that the network takes.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.export import Dim

from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import atomic_write
from hyperfuse.models.matryoshka import FixedBands, MatryoshkaBands
from hyperfuse.models.ssa import SSA
from hyperfuse.models.weights import BICUBIC

# Sizes of the example pair. All differ and none is 0 or 1, so that no two dimensions are taken for the same one.
_BATCH, _BANDS, _MSI_BANDS, _COARSE, _FINE = 2, 7, 3, (5, 6), (16, 31)
_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def export_onnx(network: SSA, path: str | Path) -> None:
    """Write SSA, weights included, as one ONNX file for any batch, bands, size and scale.

    The file has inputs `hsi` (B, C, h, w) and `msi` (B, M, H, W), which cover the same ground, and the output `fused`
    (B, C, H, W). An existing file is replaced when the new one is complete. The channels of the network must be bands,
    and its base bicubic; the packages of the extra `onnx` must be installed.

    Examples
    --------
    >>> import hyperfuse, onnxruntime  # doctest: +SKIP
    >>> export_onnx(hyperfuse.load_model("weights/mine"), "network.onnx")  # doctest: +SKIP
    >>> session = onnxruntime.InferenceSession("network.onnx")  # doctest: +SKIP
    >>> (fused,) = session.run(None, {"hsi": hsi, "msi": msi})  # doctest: +SKIP
    """
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        remedy = "install it with: pip install 'hyperfuse[onnx]'"
        raise OptionError(f"writing ONNX needs {' and '.join(missing)}", remedy=remedy)
    channels, base = network.config.channels, network.config.base
    # Components and other bases are computed outside of the network, from a whole scene.
    if not isinstance(channels, MatryoshkaBands | FixedBands) or base != BICUBIC:
        raise OptionError(
            f'channels of kind "{channels.kind}" on the base {base}',
            "channels that are bands, and a bicubic base",
            "run this network with `hyperfuse fuse --weights`",
        )
    batch = Dim("batch")
    hsi_sizes = {0: batch, 2: Dim("coarse_rows"), 3: Dim("coarse_columns")}
    msi_sizes = {0: batch, 2: Dim("fine_rows"), 3: Dim("fine_columns")}
    if isinstance(channels, FixedBands):
        bands, msi_bands = channels.bands, channels.msi_bands
    else:
        bands, msi_bands = _BANDS, _MSI_BANDS
        hsi_sizes[1], msi_sizes[1] = Dim("bands"), Dim("msi_bands")
    example = (torch.zeros(_BATCH, bands, *_COARSE), torch.zeros(_BATCH, msi_bands, *_FINE))
    exported = copy.deepcopy(network).cpu().float().eval()
    # A number of chunks would tie the file to the size of the example.
    exported.implicit_decoder.queries_per_chunk = None
    with _quiet():
        program = torch.onnx.export(
            exported,
            example,
            dynamo=True,
            dynamic_shapes={"hsi": hsi_sizes, "msi": msi_sizes},
            input_names=["hsi", "msi"],
            output_names=["fused"],
            verbose=False,
        )
    assert program is not None
    with atomic_write(Path(path)) as temporary:
        program.save(temporary, external_data=False)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its own deprecations and about packages that are not used here."""
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    try:
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
