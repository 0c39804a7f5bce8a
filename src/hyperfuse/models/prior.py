"""The learned part of the method `universal`: guidance for a regression that is solved for every pixel of the pair.

The network decides which neighbours to learn from, what else to regress on, and how far to trust the predictions; the
regression itself is `methods/universal.py`. It never sees or returns a spectrum: its inputs are the msi in its own
principal components and numbers about the scene, so no weight belongs to a band, a sensor or a scale.

Shapes: E embedding, G features, Z msi components, p hsi components, H W fine.
"""

from __future__ import annotations

import math
from enum import IntEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import pad

from hyperfuse.models.weights import ModelConfig, PretrainedNetwork

SCENE_NUMBERS = 5
COMPONENT_STATISTICS = 21  # the fields of `methods.universal.ComponentStatistics`


class Prediction(IntEnum):
    """The predictions of `methods.universal.Predictions`, in the order that the weights expect."""

    SCENE_MSI = 0
    SCENE = 1
    SCENE_LOOSE = 2
    FUSE = 3
    LOCAL = 4
    LOCAL_MSI = 5
    MSI_RESIDUAL = 6
    LIFT = 7


PREDICTIONS = len(Prediction)
SMOOTHINGS = 3  # of a prediction: none, once, twice
NO_SMOOTHING = [0.0] * (SMOOTHINGS - 1) * PREDICTIONS
# Gains before any training, and gains that make the method nearly local FUSE (its neighbours remain guided).
UNTRAINED = [float(each in (Prediction.SCENE, Prediction.LOCAL)) for each in Prediction]
LIKE_LOCAL_FUSE = [float(each in (Prediction.SCENE_MSI, Prediction.LOCAL_MSI)) for each in Prediction]
STATISTICS_WIDTH = 64
# Features begin faint: the untrained network is nearly local FUSE.
FIRST_FEATURE_SIZE = 0.05
# Far outside the range of any image: a pixel unlike all training data must not overflow.
LARGEST_LOGARITHM = 20.0
SMALLEST_SPREAD = 1e-3
ROWS_AT_ONCE = 64  # of an image: its feature maps then stay in the cache
LARGEST_STATISTIC = 3.0  # in standard deviations; nothing was learned outside of that
# The statistics of a pair count as unlike those of training at this mean squared Mahalanobis distance per statistic,
# where gains are halfway between the learned ones and local FUSE's. It is 1 on average in training.
UNLIKE_TRAINING, LARGEST_IN_DISTANCE = 3.0, 6.0


class PriorConfig(ModelConfig):
    """width, blocks   of the residual network on the msi
    embedding       size of the embedding in which neighbours are compared, beside the msi itself
    features        regressors beside the msi's bands
    scene_features  regressors of the scene's slopes only
    msi_components  most principal components of the msi that the network takes
    """

    kind: Literal["prior"] = "prior"
    width: Annotated[int, Field(ge=1, le=1024)] = 32
    blocks: Annotated[int, Field(ge=0, le=64)] = 2
    embedding: Annotated[int, Field(ge=1, le=64)] = 8
    features: Annotated[int, Field(ge=1, le=16)] = 4
    scene_features: Annotated[int, Field(ge=0, le=64)] = 0
    msi_components: Annotated[int, Field(ge=1, le=64)] = 8

    base: ClassVar[str] = "local_fuse"  # the method that it guides
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # in training; the method finds its own units


class Guide(NamedTuple):
    """What the network predicts for every fine pixel. Logarithms are 0 before training, which changes nothing.

    seen      (E + G + 1, H, W) maps that are also needed at the hsi's resolution:
              embedding: pixels alike in it are good neighbours;
              features: images to regress on, the first also in local slopes, the others only in the scene's;
              weight: logarithm of a pixel's weight as a neighbour
    nearness  (H, W) logarithm of how fast the weight of neighbours falls with distance
    ridge     (H, W) logarithm of how strongly local slopes are drawn to the scene's
    """

    seen: Tensor
    sizes: tuple[int, int, int]
    nearness: Tensor
    ridge: Tensor

    def parts(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embedding, features and weight, on the grid of `seen`."""
        embedding, features, weight = torch.split(seen, list(self.sizes))
        return embedding, features, weight

    @property
    def embedding(self) -> Tensor:
        return self.parts(self.seen)[0]

    @property
    def features(self) -> Tensor:
        return self.parts(self.seen)[1]


class Gains(NamedTuple):
    """How far each prediction is trusted, for each component."""

    familiar: Tensor  # (..., p, 24), of eight predictions not smoothed, smoothed once, and twice
    unfamiliar: Tensor  # (..., p, 8), where a pixel is unlike its scene; not smoothed


class PriorNetwork(PretrainedNetwork):
    """The network of the method `universal`, for any pair of sensors and any scale.

    The gains on unfamiliar pixels (`trust_of_unfamiliar`) are fitted at the end of a training and frozen before.

    Examples
    --------
    >>> network = PriorNetwork.from_pretrained("universal")
    >>> guide = network.guide(torch.zeros(2 * 3, 16, 16), torch.zeros(SCENE_NUMBERS))
    >>> tuple(guide.embedding.shape), tuple(guide.features.shape)
    ((8, 16, 16), (16, 16, 16))
    """

    config: PriorConfig
    config_class = PriorConfig
    zero_if_absent = ("whitening",)
    usual: Tensor
    spread: Tensor
    whitening: Tensor

    def __init__(self, config: PriorConfig) -> None:
        super().__init__(config)
        width = config.width
        self.embed = nn.Conv2d(2 * config.msi_components, width, 3, padding=1)
        self.embed_numbers = nn.Linear(SCENE_NUMBERS, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(config.blocks))
        features = config.features + config.scene_features
        guided = config.embedding + features
        self.head = nn.Conv2d(width, guided + 3, 1)
        self.likeness = nn.Parameter(torch.zeros(1))
        self.feature_ridges = nn.Parameter(torch.zeros(2))
        self.feature_size = nn.Parameter(torch.full((features,), math.log(FIRST_FEATURE_SIZE)))
        self.trust = _statistics_mlp(SMOOTHINGS * PREDICTIONS)
        self.trust_of_unfamiliar = _statistics_mlp(PREDICTIONS)
        # Mean and standard deviation of the statistics.
        self.register_buffer("usual", torch.zeros(COMPONENT_STATISTICS + SCENE_NUMBERS))
        self.register_buffer("spread", torch.ones(COMPONENT_STATISTICS + SCENE_NUMBERS))
        # Makes normalised statistics white; 0 until gains are fitted, so that nothing is unlike training.
        self.register_buffer("whitening", torch.zeros(COMPONENT_STATISTICS + SCENE_NUMBERS, len(self.usual)))
        self._initialise(guided)
        self.unfreeze()

    @property
    def halo(self) -> int:
        """Fine pixels to each side that a pixel's guidance depends on."""
        return 1 + 2 * self.config.blocks

    def guide(self, msi: Tensor, numbers: Tensor) -> Guide:
        """Guide the regression: msi (2 z, H, W), z <= Z components and then their detail; numbers (5,) of the scene."""
        if self.training:
            msi = msi * self._random_signs(msi)
        # An msi of fewer components uses the first slots of both halves of the kernel.
        count, most = len(msi) // 2, self.config.msi_components
        filters = torch.cat([self.embed.weight[:, :count], self.embed.weight[:, most : most + count]], dim=1)
        bias = self.head.bias
        assert bias is not None and self.embed.bias is not None
        of_scene = self.embed.bias + self.embed_numbers(numbers)
        height, step = msi.shape[1], msi.shape[1] if self.training else ROWS_AT_ONCE
        planes = msi.new_empty(len(bias), *msi.shape[1:])
        for top in range(0, height, step):
            first, last = max(0, top - self.halo), min(height, top + step + self.halo)
            part = msi[None, :, first:last].contiguous(memory_format=torch.channels_last)
            features = F.conv2d(part, filters, of_scene, padding=1)
            for block in self.blocks:
                features = block(features)
            # As a product of matrices, of which one lies in memory pixel by pixel: the result is planes again.
            pixels = F.gelu(features[0, :, top - first : top - first + step]).permute(1, 2, 0)
            head = torch.addmm(bias[:, None], self.head.weight.flatten(1), pixels.flatten(0, 1).T)
            planes[:, top : top + step] = head.view(len(bias), *pixels.shape[:2])
        sizes = (self.config.embedding, len(self.feature_size), 1)
        seen, logarithms = torch.split(planes, [sum(sizes), 2])
        return Guide(seen, sizes, *logarithms.clamp(-LARGEST_LOGARITHM, LARGEST_LOGARITHM))

    def _random_signs(self, msi: Tensor) -> Tensor:
        """Augmentation: the sign of a component is arbitrary, except for the first, which is brightness.

        Seeded by the image itself, so that a resumed training draws the same signs.
        """
        generator = torch.Generator().manual_seed(int(msi.double().abs().sum() * 1000) % 2**31)
        signs = 1.0 - 2.0 * torch.randint(2, (self.config.msi_components,), generator=generator)[: len(msi) // 2]
        signs[0] = 1.0
        return signs.repeat(2)[:, None, None].to(msi)

    def gains(self, statistics: Tensor, numbers: Tensor, counted: Tensor | None = None) -> Gains:
        """Predict the gains from statistics (..., p, 21) and numbers (..., 5) of the scene.

        Only components that are `counted` (p,) tell whether the pair is unlike those of training.
        """
        of_scene = numbers[..., None, :].expand(*statistics.shape[:-1], -1)
        inputs = (torch.cat([statistics, of_scene], dim=-1) - self.usual) / self.spread
        distances = (inputs.clamp(-LARGEST_IN_DISTANCE, LARGEST_IN_DISTANCE) @ self.whitening).square().mean(-1)
        if counted is None:
            counted = torch.ones_like(distances, dtype=torch.bool)
        distance = (distances * counted).sum(-1) / counted.sum(-1).clamp_min(1)
        like_training = (1 / (1 + (distance / UNLIKE_TRAINING) ** 4))[..., None, None]
        inputs = inputs.clamp(-LARGEST_STATISTIC, LARGEST_STATISTIC)
        base = inputs.new_tensor(LIKE_LOCAL_FUSE)
        familiar = self.trust(inputs) + inputs.new_tensor([*UNTRAINED, *NO_SMOOTHING])
        return Gains(
            familiar=torch.lerp(pad(base, (0, len(NO_SMOOTHING))).expand_as(familiar), familiar, like_training),
            unfamiliar=self.trust_of_unfamiliar(inputs) * like_training + base,
        )

    @torch.no_grad()
    def reset_gains(self, statistics: Tensor, numbers: Tensor) -> None:
        """Initialise the gains again, and normalise inputs by these statistics (N, 21) and numbers (N, 5)."""
        inputs = torch.cat([statistics, numbers], dim=1)
        self.usual.copy_(inputs.mean(0))
        self.spread.copy_(inputs.std(0, correction=min(1, len(inputs) - 1)) + SMALLEST_SPREAD)
        self.whitening.zero_()
        for layer in (*self.trust, *self.trust_of_unfamiliar):
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        self.zero_gains()

    @torch.no_grad()
    def learn_usual(self, statistics: Tensor, numbers: Tensor) -> None:
        """From now on, gains tend to those of local FUSE where statistics are unlike these (N, 21) and (N, 5)."""
        inputs = (torch.cat([statistics, numbers], dim=1) - self.usual) / self.spread
        inputs = inputs.clamp(-LARGEST_STATISTIC, LARGEST_STATISTIC).double()
        spread = torch.cov(inputs.T, correction=0) + 0.05 * torch.eye(inputs.shape[1], dtype=torch.float64)
        self.whitening.copy_(torch.linalg.inv(torch.linalg.cholesky(spread)).T)

    def unfreeze(self) -> None:
        """Turn on gradients, except for the gains that are fitted at the end of a training."""
        self.requires_grad_(True)
        self.trust_of_unfamiliar.requires_grad_(False)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """Load the network for inference, without gradients; `unfreeze` turns them on."""
        return super().from_pretrained(source).requires_grad_(False)

    @torch.no_grad()
    def _initialise(self, guided: int) -> None:
        """Start as local FUSE, apart from small features."""
        self.head.weight[: self.config.embedding].mul_(0.3)
        self.head.weight[guided:].zero_()
        assert self.head.bias is not None
        self.head.bias.zero_()
        self.zero_gains()

    @torch.no_grad()
    def zero_gains(self) -> None:
        """Set the gains to those before any training, whatever the statistics."""
        for parameter in (*self.trust[-1].parameters(), *self.trust_of_unfamiliar[-1].parameters()):
            parameter.zero_()


def _statistics_mlp(outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(COMPONENT_STATISTICS + SCENE_NUMBERS, STATISTICS_WIDTH),
        nn.GELU(),
        nn.Linear(STATISTICS_WIDTH, STATISTICS_WIDTH),
        nn.GELU(),
        nn.Linear(STATISTICS_WIDTH, outputs),
    )


class _Block(nn.Module):
    """Residual block, the identity before training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.second(F.gelu(self.first(features)))
        return change.add_(features)
