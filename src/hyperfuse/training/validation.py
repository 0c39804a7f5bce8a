"""Whole test scenes, simulated once, fused by the network as it stands: PSNR and spectral angle, against the base's
own.

C bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hyperfuse.data.observing import named_srf
from hyperfuse.data.pair_settings import BandTable
from hyperfuse.data.scenes import Scene
from hyperfuse.data.splits import TestBlock
from hyperfuse.fusion.network import fuse_with_network
from hyperfuse.io.cube import make_cube
from hyperfuse.methods.run import fuse_arrays
from hyperfuse.metrics.metrics import psnr_db, spectral_angle_degrees
from hyperfuse.models.baselines.catalogue import AnyNetwork
from hyperfuse.physics.observation import Observation, known_observation
from hyperfuse.physics.simulate import simulate_pair


@dataclass(frozen=True, eq=False)
class ValidationCase:
    name: str
    hsi: Tensor  # (C, h, w)
    msi: Tensor  # (M, H, W)
    reference: Tensor  # (C, H, W) in [0, 1]
    observation: Observation
    wavelength_nm: Tensor | None
    base_psnr_db: float
    base_angle_degrees: float


@dataclass(frozen=True)
class Score:
    psnr_db: float
    spectral_angle_degrees: float


def make_cases(
    scenes: Sequence[Scene],
    blocks: Sequence[TestBlock],
    scales: Sequence[float],
    srf: str,
    largest: int,
    base: str,
) -> list[ValidationCase]:
    """One case for each block and scale. A response that a scene's wavelengths do not allow is replaced by even thirds."""
    cases = []
    for block, name in zip(blocks, _distinct_names(scenes, blocks), strict=True):
        scene = scenes[block.scene]
        rows, columns = (_middle(part, largest) for part in (block.rows, block.columns))
        reference = scene.patch(rows, columns)
        weights = named_srf(srf, BandTable(scene.bands, scene.wavelength_nm, scene.fwhm_nm))
        if weights is None:
            weights = even_srf(scene.bands)
        for scale in scales:
            cases.append(_make_case(f"{name} x{scale:g}", scene, reference, weights, scale, base))
    return cases


def _distinct_names(scenes: Sequence[Scene], blocks: Sequence[TestBlock]) -> list[str]:
    """The scene's name, numbered where it has several blocks or several scenes have it."""
    names = [scenes[block.scene].name for block in blocks]
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if names.count(name) == 1 else f"{name} block {seen[name]}")
    return distinct


def even_srf(bands: int, msi_bands: int = 3) -> NDArray[np.float64]:
    """(M, C) boxes that share the bands out evenly, for scenes of unknown wavelengths."""
    owner = np.arange(bands) * min(msi_bands, bands) // bands
    boxes: NDArray[np.float64] = (owner == np.arange(min(msi_bands, bands))[:, None]).astype(np.float64)
    boxes /= boxes.sum(axis=1, keepdims=True)
    return boxes


def validate(network: AnyNetwork, case: ValidationCase) -> tuple[Score, Tensor]:
    fused = fuse_with_network(network, case.hsi, case.msi, case.observation, case.wavelength_nm).clamp(0, 1)
    return _score(fused, case.reference), fused


def _make_case(
    name: str, scene: Scene, reference: Tensor, weights: NDArray[np.float64], scale: float, base: str
) -> ValidationCase:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # test scenes are cut to whole coarse pixels; that need not be said each time
        simulation = simulate_pair(make_cube(reference.numpy()), scale, weights)
    hsi, msi = (torch.from_numpy(np.ascontiguousarray(cube.values)) for cube in (simulation.hsi, simulation.msi))
    used = torch.from_numpy(np.ascontiguousarray(simulation.reference.values))
    observation = known_observation(torch.from_numpy(weights), float(scale))
    score = _score(fuse_arrays(hsi, msi, observation, base).clamp(0, 1), used)
    centres = None if scene.wavelength_nm is None else torch.from_numpy(scene.wavelength_nm)
    return ValidationCase(name, hsi, msi, used, observation, centres, score.psnr_db, score.spectral_angle_degrees)


def _score(fused: Tensor, reference: Tensor) -> Score:
    return Score(
        psnr_db(fused.numpy(), reference.numpy(), 1.0), spectral_angle_degrees(fused.numpy(), reference.numpy())
    )


def _middle(span: slice, largest: int) -> slice:
    cut = max(0, span.stop - span.start - largest)
    return slice(span.start + cut // 2, span.stop - (cut - cut // 2))
