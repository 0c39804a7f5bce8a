"""Other scenes out of one: in light of another colour, with another contrast, with highlights cut off as a sensor cuts them.

Shapes: C bands, H W rows and columns.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

LIKELY, SOMETIMES = 0.7, 0.5
# The logarithm of the light is a sum of waves with so many turns along the spectrum, slow ones the strongest, times this strength.
TURNS, COLOURFUL = np.array([0.5, 1.0, 2.0, 3.0, 4.0]), 0.8
CONTRAST = 0.5  # the logarithm of the exponent is up to so much
CUT = (0.97, 0.9995)  # quantiles
SPARSE = 17  # quantiles of one value in so many are near enough


def vary_light(generator: np.random.Generator, patch: Tensor) -> None:
    """In place; patch (C, H, W) in 0 .. 1."""
    coloured, contrasted, cut = generator.random(3) < (LIKELY, LIKELY, SOMETIMES)
    strengths, phases = generator.normal(size=len(TURNS)), generator.random(len(TURNS))
    exponent, quantile = math.exp(generator.uniform(-CONTRAST, CONTRAST)), generator.uniform(*CUT)
    if coloured:
        along = np.linspace(0.0, 1.0, len(patch))[:, None]
        light = np.exp(COLOURFUL * (strengths / (1 + TURNS) * np.sin(2 * np.pi * (TURNS * along + phases))).sum(1))
        patch.mul_(torch.from_numpy(light).to(patch)[:, None, None])
        patch.div_(patch.max().clamp_min(1e-6))
    if contrasted:
        patch.pow_(exponent)
    if cut:
        brightest = float(np.quantile(patch.numpy().ravel()[::SPARSE], quantile))
        patch.div_(max(brightest, 1e-6)).clamp_(0, 1)
