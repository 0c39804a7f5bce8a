"""Export of trained networks to ONNX: of SSA one file for every band count, every msi and every scale, of a baseline
one for every size and scale of its pair of sensors.

`torch.onnx.export` traces the network once with dynamic sizes; `forward` depends on a size only through slices,
`arange` and products, so the file takes any pair that the network takes. Whatever ONNX cannot compute from the
pair is a further input, see `export_onnx`.

Shapes: B batch, C hsi bands, M msi bands, D features, K components or knots, h w coarse, H W fine.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from hyperfuse.errors import OptionError
from hyperfuse.io.atomic import atomic_write
from hyperfuse.models.baselines.base import BaselineConfig, BaselineNetwork
from hyperfuse.models.baselines.dcinn import DCINN
from hyperfuse.models.catalogue import AnyNetwork
from hyperfuse.models.matryoshka import (
    Components,
    FixedBands,
    PairChannels,
    Subspace,
    WavelengthBands,
)
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import SSA
from hyperfuse.models.weights import BICUBIC

# Sizes of the example pair. All differ and none is 0 or 1, so that no two dimensions are taken for the same one.
_EXAMPLE = {
    "batch": 2,
    "bands": 7,
    "msi_bands": 3,
    "coarse_rows": 5,
    "coarse_columns": 6,
    "fine_rows": 16,
    "fine_columns": 31,
    "components": 4,
    "msi_components": 2,
}
_NOISY_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")
_SMALLEST_DEVIATION = 1e-4  # as in matryoshka.py; tests compare the results


def export_onnx(network: AnyNetwork, path: str | Path) -> list[str]:
    """Write a network, weights included, as one ONNX file; return the names of its inputs.

    Inputs are `hsi` (B, C, h, w) and `msi` (B, M, H, W), which cover the same ground, values in
    `network.config.value_range`; the output is `fused` (B, C, H, W). Batch and sizes are free, and so are bands, unless
    the network is made for one pair of sensors. Some networks have further inputs, all float32:

    - channels that are principal components: `hsi_mean` (B, C), `hsi_basis` (B, C, K), `hsi_unit` (B, K), and the same
      for the msi, from `component_inputs`. ONNX has no eigenvectors;
    - channels that are wavelengths: `wavelength_nm` (C,) and `msi_wavelength_nm` (M,);
    - another base than bicubic interpolation: `base` (B, C, H, W), the image of that method.

    An existing file is replaced when the new one is complete. The packages of the extra `onnx` must be installed.

    Raises
    ------
    OptionError
        For the networks of the methods `universal`, `ssa` and `ssa-residual`, and for DCINN, which solves linear
        equations.

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
    obstacle = None
    if isinstance(network, PriorNetwork):
        obstacle = "the network of `universal`, which only guides a regression over the whole scene"
    elif isinstance(network, DCINN):
        obstacle = "DCINN, which solves linear equations: ONNX cannot"
    elif isinstance(network, SSA) and network.config.standardise == "regressed":
        obstacle = 'a network with standardise = "regressed", which solves linear equations for the SRF: ONNX cannot'
    elif isinstance(network, SSA) and network.config.expected_error:
        obstacle = "a network that needs the expected error of its base"
    if obstacle is not None or isinstance(network, PriorNetwork):
        expected = "another SSA network, or one of the baselines DSPNet, MIMO-SST and PSTUN"
        raise OptionError(f"{obstacle}", expected, "run this network with `hyperfuse fuse --weights`")
    inputs = _inputs_of(network)
    sizes = _EXAMPLE | _fixed_sizes(network)
    dimensions = {name: Dim(name) for name in _EXAMPLE.keys() - _fixed_sizes(network).keys()}
    example = tuple(torch.ones([sizes[name] for name in shape]) for shape in inputs.values())
    shapes = [
        {axis: dimensions[name] for axis, name in enumerate(shape) if name in dimensions} for shape in inputs.values()
    ]
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _Exported(network, list(inputs)).eval(),
            example,
            dynamo=True,
            dynamic_shapes=(tuple(shapes),),
            input_names=list(inputs),
            output_names=["fused"],
            verbose=False,
        )
    assert program is not None
    with atomic_write(Path(path)) as temporary:
        program.save(temporary, external_data=False)
    return list(inputs)


def component_inputs(
    hsi: NDArray[np.float32], msi: NDArray[np.float32], count: int, msi_count: int = 16
) -> dict[str, NDArray[np.float32]]:
    """Find the principal components of a pair, for the file of a network whose channels they are.

    Parameters
    ----------
    hsi, msi
        (B, C, h, w) and (B, M, H, W): the pair, or the whole scene that it is a tile of.
    count, msi_count
        `channels.count` and `max_msi_bands` of the network's configuration.

    Returns
    -------
    dict
        Further inputs of the file: mean, basis and unit of both images. It needs NumPy alone, so it may be copied to
        where hyperfuse is not installed.

    Examples
    --------
    >>> pair = np.random.rand(1, 31, 8, 8).astype(np.float32), np.random.rand(1, 3, 32, 32).astype(np.float32)
    >>> {name: value.shape for name, value in component_inputs(*pair, count=12).items() if name.startswith("hsi")}
    {'hsi_mean': (1, 31), 'hsi_basis': (1, 31, 12), 'hsi_unit': (1, 12)}
    """
    inputs: dict[str, NDArray[np.float64]] = {}
    for name, image, most in (("hsi", hsi, count), ("msi", msi, msi_count)):
        values = image.astype(np.float64).reshape(*image.shape[:2], -1)
        mean = values.mean(axis=2)
        centred = values - mean[:, :, None]
        variances, vectors = np.linalg.eigh(centred @ centred.transpose(0, 2, 1) / values.shape[2])
        basis = vectors[:, :, ::-1][:, :, :most]
        deviation = np.sqrt(variances[:, ::-1][:, :most].clip(min=0))
        # The sign of an eigenvector is arbitrary; brighter is positive.
        basis = basis * np.where(basis.sum(axis=1, keepdims=True) < 0, -1.0, 1.0)
        brightness = np.sqrt(np.square(values).mean(axis=(1, 2)))[:, None]
        first = np.maximum(deviation[:, :1], _SMALLEST_DEVIATION * brightness).clip(min=1e-12)
        unit = np.sqrt(first * np.maximum(deviation, _SMALLEST_DEVIATION * first))
        inputs |= {f"{name}_mean": mean, f"{name}_basis": basis, f"{name}_unit": unit}
    return {name: value.astype(np.float32) for name, value in inputs.items()}


def _inputs_of(network: SSA | BaselineNetwork) -> dict[str, tuple[str, ...]]:
    """Names of the inputs and of their dimensions."""
    fine = ("fine_rows", "fine_columns")
    inputs: dict[str, tuple[str, ...]] = {
        "hsi": ("batch", "bands", "coarse_rows", "coarse_columns"),
        "msi": ("batch", "msi_bands", *fine),
    }
    if isinstance(network, BaselineNetwork):
        return inputs
    if isinstance(network.config.channels, Components):
        for name, bands, components in (("hsi", "bands", "components"), ("msi", "msi_bands", "msi_components")):
            inputs[f"{name}_mean"] = ("batch", bands)
            inputs[f"{name}_basis"] = ("batch", bands, components)
            inputs[f"{name}_unit"] = ("batch", components)
    if isinstance(network.config.channels, WavelengthBands):
        inputs |= {"wavelength_nm": ("bands",), "msi_wavelength_nm": ("msi_bands",)}
    if network.config.base != BICUBIC:
        inputs["base"] = ("batch", "bands", *fine)
    return inputs


def _fixed_sizes(network: SSA | BaselineNetwork) -> dict[str, int]:
    """Dimensions that are not free."""
    sensors = network.config if isinstance(network, BaselineNetwork) else network.config.channels
    if isinstance(sensors, BaselineConfig | FixedBands):
        return {"bands": sensors.bands, "msi_bands": sensors.msi_bands}
    return {}


class _Exported(nn.Module):
    """A network as a function of named inputs."""

    def __init__(self, network: SSA | BaselineNetwork, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.network = network = copy.deepcopy(network).cpu().float().eval()
        if isinstance(network, SSA):
            # A number of chunks would tie the file to the size of the example.
            network.implicit_decoder.queries_per_chunk = None

    def forward(self, *inputs: Tensor) -> Tensor:
        given = dict(zip(self.names, inputs, strict=True))
        hsi, msi = given["hsi"], given["msi"]
        if isinstance(self.network, BaselineNetwork):
            return self.network.fuse(hsi, msi, self.network.checked_placement(hsi, msi, None))
        kind = self.network.config.channels
        if isinstance(kind, Components):
            codings = (
                Subspace(*(given[f"{image}_{part}"] for part in ("mean", "basis", "unit"))) for image in ("hsi", "msi")
            )
            channels = PairChannels(None, None, *codings)
        else:
            channels = self.network.find_channels(hsi, msi, given.get("wavelength_nm"), given.get("msi_wavelength_nm"))
        return self.network.forward(hsi, msi, None, given.get("base"), channels)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings about its own deprecations and about packages that are not used here."""
    levels = {name: logging.getLogger(name).level for name in _NOISY_LOGGERS}
    try:
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
