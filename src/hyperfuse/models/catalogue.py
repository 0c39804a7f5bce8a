"""All networks by kind and by preset: SSA, the prior of the method `universal`, and the baselines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from hyperfuse.errors import OptionError, WeightsError
from hyperfuse.models.baselines.base import BaselineNetwork
from hyperfuse.models.baselines.dcinn import DCINN, DCINNConfig
from hyperfuse.models.baselines.dspnet import DSPNet, DSPNetConfig
from hyperfuse.models.baselines.mimo_sst import MIMOSST, MIMOSSTConfig
from hyperfuse.models.baselines.pstun import PSTUN, PSTUNConfig
from hyperfuse.models.prior import PriorConfig, PriorNetwork
from hyperfuse.models.ssa import PRESETS, SSA, SSAConfig
from hyperfuse.models.weights import local_folder, read_record

AnyNetwork = SSA | BaselineNetwork | PriorNetwork
SSA_KIND = "ssa"
BASELINES: dict[str, type[BaselineNetwork]] = {"dspnet": DSPNet, "mimo-sst": MIMOSST, "dcinn": DCINN, "pstun": PSTUN}
NETWORKS: dict[str, type[AnyNetwork]] = {SSA_KIND: SSA, "prior": PriorNetwork, **BASELINES}


def _kind(config: Any) -> str:
    """The config of an SSA network names no kind, every other its own."""
    kind = config.get("kind") if isinstance(config, dict) else getattr(config, "kind", None)
    return SSA_KIND if kind is None else str(kind)


AnyBaselineConfig = Annotated[DSPNetConfig | MIMOSSTConfig | DCINNConfig | PSTUNConfig, Field(discriminator="kind")]
AnyNetworkConfig = Annotated[
    Annotated[SSAConfig, Tag(SSA_KIND)]
    | Annotated[DSPNetConfig, Tag("dspnet")]
    | Annotated[MIMOSSTConfig, Tag("mimo-sst")]
    | Annotated[DCINNConfig, Tag("dcinn")]
    | Annotated[PSTUNConfig, Tag("pstun")]
    | Annotated[PriorConfig, Tag("prior")],
    Discriminator(
        _kind,
        custom_error_type="unknown_network",
        custom_error_message="expected kind to be one of prior, dspnet, mimo-sst, dcinn, pstun, or no kind for SSA",
    ),
]

# Bands as in the paper's table of efficiency; `with_bands` for other sensors.
BASELINE_PRESETS: dict[str, AnyBaselineConfig] = {
    "dspnet": DSPNetConfig(bands=32, msi_bands=3),
    "mimo-sst": MIMOSSTConfig(bands=31, msi_bands=3, idle_layers=True),
    "dcinn": DCINNConfig(bands=31, msi_bands=3),
    "pstun": PSTUNConfig(bands=31, msi_bands=3),
    "dspnet-thin": DSPNetConfig(bands=31, msi_bands=3, width=16, head_width=16),
    "mimo-sst-thin": MIMOSSTConfig(bands=31, msi_bands=3, width=24),
    "dcinn-thin": DCINNConfig(bands=31, msi_bands=3, width=16, inner_blocks=1, exponential_terms=4),
    "pstun-thin": PSTUNConfig(bands=31, msi_bands=3, width=16),
}


def any_preset(name: str) -> SSAConfig | AnyBaselineConfig:
    """Return the configuration of that name, of SSA or of a baseline."""
    known: dict[str, SSAConfig | AnyBaselineConfig] = {**PRESETS, **BASELINE_PRESETS}
    if name not in known:
        raise OptionError(f'no network is called "{name}"', f"one of {', '.join(known)}")
    return known[name]


def build_network(config: SSAConfig | AnyBaselineConfig | PriorConfig | str) -> AnyNetwork:
    """Build a network of this configuration, or of the preset of this name, with untrained weights.

    Examples
    --------
    >>> build_network("ssa-small").preset
    'ssa-small'
    """
    if isinstance(config, str):
        config = any_preset(config)
    network: AnyNetwork = NETWORKS[_kind(config)](config)  # type: ignore[arg-type]  # a kind has one class of config
    return network


def load_model(source: str | Path) -> AnyNetwork:
    """Load a trained network of any kind, in evaluation mode.

    Parameters
    ----------
    source
        A folder written by `save_pretrained` or by `hyperfuse train` (or its config.json), `hf://owner/name[@revision]`
        on the Hugging Face hub (needs the extra `hub`), or the name of weights that are shipped with hyperfuse, such as
        "universal". A folder of that name in the working directory comes first.

    Returns
    -------
    SSA, PriorNetwork or BaselineNetwork
        The class that the weights belong to. `network.config` holds its sizes, `network.weights_digest` the sha256 of
        the weights.

    Raises
    ------
    WeightsError
        If files are missing or damaged, or belong to a newer version of hyperfuse.

    Examples
    --------
    >>> import hyperfuse
    >>> network = hyperfuse.load_model("universal")
    >>> print(repr(network)[:31])
    PriorNetwork(56,590 parameters,
    """
    folder = local_folder(source)
    kind = _kind(read_record(folder).network)
    if kind not in NETWORKS:
        raise WeightsError(f'{source}: a network of kind "{kind}"', f"one of {', '.join(NETWORKS)}", "update hyperfuse")
    network: AnyNetwork = NETWORKS[kind].from_pretrained(folder)
    return network
