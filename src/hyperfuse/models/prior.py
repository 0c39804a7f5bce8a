"""The learned part of the method `universal`: which neighbours to learn from, what else to regress on, how far to trust
the result.

The method itself is a regression that is solved anew for every pixel (`methods/universal.py`). The network never sees a
spectrum and never answers with one: it sees the msi in its own principal components and numbers about the scene, and
answers with guidance for that regression. So it has no weight that belongs to a band, a sensor or a scale.

E embedding, G features, Z components of the msi, p components of the hsi, H W fine.
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

from hyperfuse.models.weights import ModelConfig, PretrainedNetwork

SCENE_NUMBERS = 5
COMPONENT_STATISTICS = 18  # the fields of `methods.universal.ComponentStatistics`


class Prediction(IntEnum):
    """The predictions of `methods.universal.Predictions`, in the order that the weights expect."""

    SCENE_MSI = 0
    SCENE = 1
    SCENE_LOOSE = 2
    LOCAL = 3
    LOCAL_MSI = 4
    MSI_RESIDUAL = 5


PREDICTIONS = len(Prediction)
SMOOTHINGS = 3  # of a prediction: none, once, twice
NO_SMOOTHING = [0.0] * (SMOOTHINGS - 1) * PREDICTIONS
# Gains before any training, and gains that make the method nearly local FUSE (its neighbours remain guided).
UNTRAINED = [float(each in (Prediction.SCENE, Prediction.LOCAL)) for each in Prediction]
LIKE_LOCAL_FUSE = [float(each in (Prediction.SCENE_MSI, Prediction.LOCAL_MSI)) for each in Prediction]
STATISTICS_WIDTH = 64
# Features begin faint: the untrained network is nearly the closed form without it.
FIRST_FEATURE_SIZE = 0.05
# Logarithms that no image answers with; a pixel far beyond all that was trained on must not overflow.
FARTHEST_LOGARITHM = 20.0
LEAST_SPREAD = 1e-3
FARTHEST_STATISTIC = 3.0  # beyond so many deviations nothing was learned


class PriorConfig(ModelConfig):
    """width, blocks  of the residual network on the msi
    embedding      numbers by whose likeness a neighbour counts, beside the msi itself
    features       further regressors, beside the msi's bands
    scene_features regressors of the scene's slopes alone
    msi_components the network sees at most so many principal components of the msi
    """

    kind: Literal["prior"] = "prior"
    width: Annotated[int, Field(ge=1, le=1024)] = 32
    blocks: Annotated[int, Field(ge=0, le=64)] = 2
    embedding: Annotated[int, Field(ge=1, le=64)] = 8
    features: Annotated[int, Field(ge=1, le=16)] = 4
    scene_features: Annotated[int, Field(ge=0, le=64)] = 0
    msi_components: Annotated[int, Field(ge=1, le=64)] = 8

    base: ClassVar[str] = "local_fuse"  # the closed form that it guides
    value_range: ClassVar[tuple[float, float]] = (0.0, 1.0)  # of training; the method finds its own units


class Guide(NamedTuple):
    """What the network says of every fine pixel. Logarithms begin at 0, which changes nothing.

    seen        (E + G + 1, H, W) what is also wanted as the hsi's sensor sees it:
                - embedding: pixels alike in it are good neighbours
                - features: further images to regress on; the first ones also pixel by pixel, the others for the whole
                scene
                - weight: logarithm of how much a pixel counts as a neighbour
    nearness    (H, W) logarithm of how fast neighbours lose weight with distance
    ridge       (H, W) logarithm of how strongly slopes are held to the scene's
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

    familiar: Tensor  # (..., p, 18), of six predictions not smoothed, smoothed once, and twice
    unfamiliar: Tensor  # (..., p, 6), where a pixel is unlike its scene; not smoothed


class PriorNetwork(PretrainedNetwork):
    config: PriorConfig
    config_class = PriorConfig
    usual: Tensor
    spread: Tensor

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
        self.trust = _from_statistics(SMOOTHINGS * PREDICTIONS)
        self.trust_of_unfamiliar = _from_statistics(PREDICTIONS)
        # What statistics usually are, and how much they vary.
        self.register_buffer("usual", torch.zeros(COMPONENT_STATISTICS + SCENE_NUMBERS))
        self.register_buffer("spread", torch.ones(COMPONENT_STATISTICS + SCENE_NUMBERS))
        self._begin_as_the_closed_form(guided)
        self.let_learn()

    @property
    def halo(self) -> int:
        """Fine pixels to each side that a pixel's guidance depends on."""
        return 1 + 2 * self.config.blocks

    def guide(self, msi: Tensor, numbers: Tensor) -> Guide:
        """msi (2 z, H, W), z at most Z: components and their detail; numbers (5,) of the scene."""
        if self.training:
            msi = msi * self._random_signs(msi)
        # Components that the msi has not would be 0; leaving them out is the same, and faster.
        given, most = len(msi) // 2, self.config.msi_components
        filters = torch.cat([self.embed.weight[:, :given], self.embed.weight[:, most : most + given]], dim=1)
        features = F.conv2d(
            msi[None].contiguous(memory_format=torch.channels_last), filters, self.embed.bias, padding=1
        )
        features = features + self.embed_numbers(numbers)[None, :, None, None]
        for block in self.blocks:
            features = block(features)
        answers = self.head(F.gelu(features))[0]
        sizes = (self.config.embedding, len(self.feature_size), 1)
        seen, logarithms = torch.split(answers, [sum(sizes), 2])
        return Guide(seen, sizes, *logarithms.clamp(-FARTHEST_LOGARITHM, FARTHEST_LOGARITHM))

    def _random_signs(self, msi: Tensor) -> Tensor:
        """The sign of a component is arbitrary, but for the first, which is brightness: the network has to bear any.

        They are drawn from the image itself, so that a training that is continued draws them again.
        """
        generator = torch.Generator().manual_seed(int(msi.double().abs().sum() * 1000) % 2**31)
        signs = 1.0 - 2.0 * torch.randint(2, (self.config.msi_components,), generator=generator)[: len(msi) // 2]
        signs[0] = 1.0
        return signs.repeat(2)[:, None, None].to(msi)

    def gains(self, statistics: Tensor, numbers: Tensor) -> Gains:
        """From statistics (..., p, 18) and numbers (..., 5) of the scene."""
        of_scene = numbers[..., None, :].expand(*statistics.shape[:-1], -1)
        given = (torch.cat([statistics, of_scene], dim=-1) - self.usual) / self.spread
        given = given.clamp(-FARTHEST_STATISTIC, FARTHEST_STATISTIC)
        return Gains(
            familiar=self.trust(given) + given.new_tensor([*UNTRAINED, *NO_SMOOTHING]),
            unfamiliar=self.trust_of_unfamiliar(given) + given.new_tensor(LIKE_LOCAL_FUSE),
        )

    @torch.no_grad()
    def begin_gains_anew(self, statistics: Tensor, numbers: Tensor) -> None:
        """As before any training, but knowing what is usual among these (N, 18) and (N, 5)."""
        given = torch.cat([statistics, numbers], dim=1)
        self.usual.copy_(given.mean(0))
        self.spread.copy_(given.std(0, correction=min(1, len(given) - 1)) + LEAST_SPREAD)
        for layer in (*self.trust, *self.trust_of_unfamiliar):
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        self.begin_with_plain_gains()

    def let_learn(self) -> None:
        """All but what is fitted at the end of a training."""
        self.requires_grad_(True)
        self.trust_of_unfamiliar.requires_grad_(False)

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """Load the network without gradients; `let_learn` turns them on."""
        return super().from_pretrained(source).requires_grad_(False)

    @torch.no_grad()
    def _begin_as_the_closed_form(self, guided: int) -> None:
        self.head.weight[: self.config.embedding].mul_(0.3)
        self.head.weight[guided:].zero_()
        assert self.head.bias is not None
        self.head.bias.zero_()
        self.begin_with_plain_gains()

    @torch.no_grad()
    def begin_with_plain_gains(self) -> None:
        for parameter in (*self.trust[-1].parameters(), *self.trust_of_unfamiliar[-1].parameters()):
            parameter.zero_()


def _from_statistics(answers: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(COMPONENT_STATISTICS + SCENE_NUMBERS, STATISTICS_WIDTH),
        nn.GELU(),
        nn.Linear(STATISTICS_WIDTH, STATISTICS_WIDTH),
        nn.GELU(),
        nn.Linear(STATISTICS_WIDTH, answers),
    )


class _Block(nn.Module):
    """Two convolutions beside the identity, which they begin as."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        for parameter in self.second.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        change: Tensor = self.second(F.gelu(self.first(features)))
        return change.add_(features)
