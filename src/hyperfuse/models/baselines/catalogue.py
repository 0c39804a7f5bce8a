"""The rivals by name, in the sizes that the paper prints and in thin ones for a laptop, and any network from its
weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from hyperfuse.errors import OptionError, WeightsError
from hyperfuse.models import weights as weights_folder
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.baselines.dcinn import Dcinn, DcinnConfig
from hyperfuse.models.baselines.dspnet import DspNet, DspNetConfig
from hyperfuse.models.baselines.mimo_sst import MimoSst, MimoSstConfig
from hyperfuse.models.baselines.pstun import Pstun, PstunConfig
from hyperfuse.models.config import PRESETS, NetworkConfig
from hyperfuse.models.prior import PriorConfig, PriorNetwork
from hyperfuse.models.ssa import FusionNetwork

OURS = "fusion network"
PRIOR = "prior"


def _kind(config: Any) -> str:
    """A fusion network names no kind, a rival its own."""
    kind = config.get("kind") if isinstance(config, dict) else getattr(config, "kind", None)
    return OURS if kind is None else str(kind)


AnyBaselineConfig = Annotated[DspNetConfig | MimoSstConfig | DcinnConfig | PstunConfig, Field(discriminator="kind")]
AnyNetworkConfig = Annotated[
    Annotated[NetworkConfig, Tag(OURS)]
    | Annotated[DspNetConfig, Tag("dspnet")]
    | Annotated[MimoSstConfig, Tag("mimo-sst")]
    | Annotated[DcinnConfig, Tag("dcinn")]
    | Annotated[PstunConfig, Tag("pstun")]
    | Annotated[PriorConfig, Tag(PRIOR)],
    Discriminator(
        _kind,
        custom_error_type="unknown_network",
        custom_error_message="expected kind to be one of prior, dspnet, mimo-sst, dcinn, pstun, or no kind for a fusion network",
    ),
]
AnyNetwork = FusionNetwork | BaselineNetwork | PriorNetwork
BASELINES: dict[str, Any] = {"dspnet": DspNet, "mimo-sst": MimoSst, "dcinn": Dcinn, "pstun": Pstun}

# Bands as in the paper's table of efficiency; `with_bands` for other sensors.
BASELINE_PRESETS: dict[str, AnyBaselineConfig] = {
    "dspnet": DspNetConfig(bands=32, msi_bands=3),
    "mimo-sst": MimoSstConfig(bands=31, msi_bands=3, idle_layers=True),
    "dcinn": DcinnConfig(bands=31, msi_bands=3),
    "pstun": PstunConfig(bands=31, msi_bands=3),
    "dspnet-thin": DspNetConfig(bands=31, msi_bands=3, width=16, head_width=16),
    "mimo-sst-thin": MimoSstConfig(bands=31, msi_bands=3, width=24),
    "dcinn-thin": DcinnConfig(bands=31, msi_bands=3, width=16, inner_blocks=1, exponential_terms=4),
    "pstun-thin": PstunConfig(bands=31, msi_bands=3, width=16),
}


def baseline_preset(name: str) -> AnyBaselineConfig:
    """The configuration of that name; an unknown name is an error that lists the known ones."""
    if name not in BASELINE_PRESETS:
        raise OptionError(f'no rival is called "{name}"', f"one of {', '.join(BASELINE_PRESETS)}")
    return BASELINE_PRESETS[name]


def build_baseline(config: AnyBaselineConfig) -> BaselineNetwork:
    """A rival of this shape with fresh, untrained weights."""
    network: BaselineNetwork = BASELINES[config.kind](config)
    return network


def any_preset(name: str) -> NetworkConfig | AnyBaselineConfig:
    """The configuration of that name, ours or a rival's."""
    known: dict[str, NetworkConfig | AnyBaselineConfig] = {**PRESETS, **BASELINE_PRESETS}
    if name not in known:
        raise OptionError(f'no network is called "{name}"', f"one of {', '.join(known)}")
    return known[name]


def build_any_network(config: NetworkConfig | AnyBaselineConfig | PriorConfig) -> AnyNetwork:
    """Ours or a rival of this shape, with fresh, untrained weights."""
    if isinstance(config, PriorConfig):
        return PriorNetwork(config)
    return FusionNetwork(config) if isinstance(config, NetworkConfig) else build_baseline(config)


def load_any_network(source: str | Path) -> AnyNetwork:
    """Ours or a rival, whichever the weights of `source` belong to."""
    kind = weights_folder.network_kind(source)
    if kind is None:
        return FusionNetwork.from_pretrained(source)
    if kind == PRIOR:
        return PriorNetwork.from_pretrained(source)
    if kind not in BASELINES:
        raise WeightsError(
            f'{source}: a network of kind "{kind}"', f"one of {', '.join(BASELINES)}", "update hyperfuse"
        )
    network: BaselineNetwork = BASELINES[kind].from_pretrained(source)
    return network
