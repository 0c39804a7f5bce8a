"""What each part of `universal` brings: the trained method with one part taken away, blind, on test scenes.

python benchmarks/universal/ablation.py
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from scenes import NOISES, TEST_CASES, Case, make_case
from torch import Tensor

from hyperfuse.fusion.fusers import fuse_with_network
from hyperfuse.methods.catalogue import fuse_arrays
from hyperfuse.methods.pair_model import principal_axes
from hyperfuse.methods.universal import shipped_network
from hyperfuse.methods.window import SceneComputation
from hyperfuse.metrics.metrics import psnr_db, sam_degrees
from hyperfuse.models.prior import LIKE_LOCAL_FUSE, PREDICTIONS, Prediction, PriorNetwork
from hyperfuse.physics.estimate import estimate_observation
from hyperfuse.physics.observation import Observation

OFF = -20.0  # as an exponent: as good as 0


@dataclass(frozen=True)
class Pair:
    case: Case
    observation: Observation
    noisy: bool
    base: tuple[float, float]


def main() -> None:
    torch.set_num_threads(1)
    pairs = [make_pair(*named, scale, noise) for named in TEST_CASES for scale in (4, 8) for noise in NOISES]
    print("| | clean, dB / degrees | noisy, dB / degrees | smallest, dB |\n|---|---|---|---|")
    print(row("the whole method", pairs, shipped_network()))
    for name, take_away in IN_THE_NETWORK.items():
        network = copy.deepcopy(shipped_network())
        take_away(network)
        print(row(f"without {name}", pairs, network), flush=True)
    with patch("hyperfuse.methods.universal.mnf_axes", plain_axes):
        print(row("plain principal axes instead of noise-whitened ones", pairs, shipped_network()))


def make_pair(name: str, srf: str, scale: int, noise: tuple[float, float] | None) -> Pair:
    case = make_case(name, srf, scale, noise, "test")
    with quietly():
        observation = estimate_observation(case.hsi, case.msi)
        base = scores(fuse_arrays(case.hsi, case.msi, observation, "local_fuse"), case.reference)
    return Pair(case, observation, noise is not None, base)


def row(name: str, pairs: list[Pair], network: PriorNetwork) -> str:
    gains: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for pair in pairs:
        with quietly(), torch.inference_mode():
            fused = fuse_with_network(network, pair.case.hsi, pair.case.msi, pair.observation)
        psnr, angle = scores(fused, pair.case.reference)
        gains[pair.noisy].append((psnr - pair.base[0], angle - pair.base[1]))
    clean, noisy = (np.mean(gains[kind], axis=0) for kind in (False, True))
    least = min(psnr for kind in gains.values() for psnr, _ in kind)
    return f"| {name} | {clean[0]:+.2f} / {clean[1]:+.2f} | {noisy[0]:+.2f} / {noisy[1]:+.2f} | {least:+.2f} |"


def scores(fused: Tensor, reference: Tensor) -> tuple[float, float]:
    image, truth = fused.clamp(0, 1).numpy(), reference.numpy()
    return psnr_db(image, truth), sam_degrees(image, truth)


@contextmanager
def quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def plain_axes(hsi: Tensor, most: int, noise: Tensor) -> SceneComputation[tuple[Tensor, Tensor]]:
    return principal_axes(hsi, most)


def without_features(network: PriorNetwork) -> None:
    network.feature_size.fill_(OFF)


def without_scene_features(network: PriorNetwork) -> None:
    network.feature_size[network.config.features :] = OFF


def without_embedding(network: PriorNetwork) -> None:
    weight_row = len(network.head.weight) - 3
    for row_range in (slice(0, network.config.embedding), slice(weight_row, weight_row + 1)):
        silence(network, row_range)


def without_pixel_logarithms(network: PriorNetwork) -> None:
    silence(network, slice(len(network.head.weight) - 2, None))


def silence(network: PriorNetwork, rows: slice) -> None:
    assert network.head.bias is not None
    network.head.weight[rows] = 0
    network.head.bias[rows] = 0


def without_prediction(network: PriorNetwork, gone: int, instead: int | None) -> None:
    """The share of a prediction goes to another."""
    for parameter in (*network.trust[-1].parameters(), *network.trust_of_unfamiliar[-1].parameters()):
        if instead is not None:
            parameter[instead::PREDICTIONS] += parameter[gone::PREDICTIONS]
        parameter[gone::PREDICTIONS] = 0
    begun_with = LIKE_LOCAL_FUSE[gone]
    network.trust_of_unfamiliar[-1].bias[gone] -= begun_with
    if instead is not None:
        network.trust_of_unfamiliar[-1].bias[instead] += begun_with


def without_gains(network: PriorNetwork) -> None:
    network.zero_gains()


IN_THE_NETWORK: dict[str, Callable[[PriorNetwork], None]] = {
    "all features": without_features,
    "the features of the scene alone": without_scene_features,
    "embedding and weights of neighbours": without_embedding,
    "slopes of features without a penalty": partial(
        without_prediction, gone=Prediction.SCENE_LOOSE, instead=Prediction.SCENE
    ),
    "a pixel's own slopes without features": partial(
        without_prediction, gone=Prediction.LOCAL_MSI, instead=Prediction.LOCAL
    ),
    "what the msi says beyond the others": partial(without_prediction, gone=Prediction.MSI_RESIDUAL, instead=None),
    "the gain of FUSE": partial(without_prediction, gone=Prediction.FUSE, instead=Prediction.SCENE_MSI),
    "what random features add": partial(without_prediction, gone=Prediction.LIFT, instead=None),
    "nearness and ridge per pixel": without_pixel_logarithms,
    "gains per component": without_gains,
}


if __name__ == "__main__":
    main()
