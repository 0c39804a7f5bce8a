"""Weights on disk: a safetensors file and config.json beside it. Never pickle.

config.json names the weight file and its sha256, and is written last by one rename: a folder holds its old weights or
its new ones, whole, whenever the writing stops.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import BaseModel, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as serialise_safetensors
from torch import Tensor

from hyperfuse.errors import OptionError, WeightsError
from hyperfuse.io.atomic import atomic_write
from hyperfuse.models.config import NetworkConfig

CONFIG_NAME = "config.json"
FORMAT = "hyperfuse-network"
FORMAT_VERSION = 1
HUB_PREFIX = "hf://"
Config = TypeVar("Config", bound=BaseModel)
_KEYS = {"format", "format_version", "preset", "network", "margin", "provenance", "weights"}


def write(folder: Path, tensors: Mapping[str, Tensor], described: Mapping[str, object]) -> None:
    """Write `tensors` and what describes them into `folder`, replacing weights that lie there."""
    contents = serialise_safetensors({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    digest = hashlib.sha256(contents).hexdigest()
    weights_name = f"weights-{digest[:12]}.safetensors"
    config = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **described,
        "weights": {"file": weights_name, "sha256": digest},
    }
    config_text = json.dumps(config, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((weights_name, contents), (CONFIG_NAME, config_text.encode())):
        with atomic_write(folder / name) as temporary:
            temporary.write_bytes(content)
    for old in folder.glob(f"weights-{'[0-9a-f]' * 12}.safetensors"):
        if old.name != weights_name:
            old.unlink()


def read(source: str | Path) -> tuple[dict[str, Tensor], dict[str, object], Path]:
    """The tensors, the checked config and the folder of `source`: a folder, its config.json, or
    `hf://owner/name[@revision]`.
    """
    folder = _local_folder(source)
    config = _read_config(folder)
    return _read_tensors(folder, config), config, folder


def network_kind(source: str | Path) -> str | None:
    """Which rival the weights of `source` belong to; None for a fusion network, whose config names no kind."""
    network = _read_config(_local_folder(source)).get("network")
    kind = network.get("kind") if isinstance(network, dict) else None
    return None if kind is None else str(kind)


def listed_digest(config: Mapping[str, object]) -> str:
    """The sha256 of the weight file as a checked config gives it."""
    listed = config["weights"]
    assert isinstance(listed, dict)
    return str(listed["sha256"])


def parse_network(config: Mapping[str, object], folder: Path) -> NetworkConfig:
    return parse_config(config, folder, NetworkConfig)


def parse_config(config: Mapping[str, object], folder: Path, kind: type[Config]) -> Config:
    """What a checked config says of its network, as a model of this kind."""
    try:
        return kind.model_validate(config.get("network"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "network"
        raise WeightsError(
            f'{folder / CONFIG_NAME}: "{where}": {first["msg"]}',
            "a network that this version of hyperfuse knows",
            "update hyperfuse, or fetch the weights again",
        ) from error


def refuse_other_tensors(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path) -> None:
    """Names and shapes in the file must be those of the network, each and all, and their values numbers."""
    for name in (*sorted(wanted.keys() ^ tensors.keys()), *sorted(wanted.keys() & tensors.keys())):
        fault = _fault(tensors.get(name), wanted.get(name))
        if fault:
            raise WeightsError(
                f"{folder}: tensor {name} {fault}",
                f"the {len(wanted)} tensors of the network in its config, all finite",
                "the weights belong to another config or to a training that failed; fetch both again",
            )


def _fault(tensor: Tensor | None, wanted: Tensor | None) -> str | None:
    if tensor is None:
        return "is missing"
    if wanted is None:
        return "is unknown"
    if tensor.shape != wanted.shape:
        return f"has shape {tuple(tensor.shape)}"
    return None if bool(torch.isfinite(tensor).all()) else "has values that are not finite"


def _read_config(folder: Path) -> dict[str, object]:
    path = folder / CONFIG_NAME
    remedy = "give a folder written by save_pretrained"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise WeightsError(f"{path} does not exist", f"a folder with {CONFIG_NAME} and weights", remedy) from error
    except (OSError, ValueError, RecursionError) as error:
        raise WeightsError(f"{path} cannot be read as JSON ({error})", "", remedy) from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        found = config.get("format") if isinstance(config, dict) else type(config).__name__
        raise WeightsError(f"{path}: format {found!r}", f"format {FORMAT!r}", remedy)
    version = config.get("format_version")
    if version != FORMAT_VERSION:
        raise WeightsError(
            f"{path}: format version {version!r}", f"version {FORMAT_VERSION}", "update hyperfuse to read newer weights"
        )
    unknown = sorted(config.keys() - _KEYS)
    if unknown:
        raise WeightsError(f'{path}: unknown key "{unknown[0]}"', f"only {', '.join(sorted(_KEYS))}", remedy)
    return config


def _read_tensors(folder: Path, config: Mapping[str, object]) -> dict[str, Tensor]:
    listed = config.get("weights")
    if not isinstance(listed, dict) or not {"file", "sha256"} <= listed.keys():
        raise WeightsError(f"{folder / CONFIG_NAME}: no weights listed", "weights with file and sha256")
    # Only a name: a config from elsewhere must not reach outside its folder.
    path = folder / Path(str(listed["file"])).name
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror})", "", "fetch the weights again") from error
    digest = hashlib.sha256(contents).hexdigest()
    if digest != listed_digest(config):
        raise WeightsError(
            f"{path}: sha256 {digest[:12]}...",
            f"{listed_digest(config)[:12]}... as its config says",
            "the file is damaged or was exchanged; fetch the weights again",
        )
    try:
        tensors: dict[str, Tensor] = parse_safetensors(contents)
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file ({error})", "", "fetch the weights again") from error
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}


def _local_folder(source: str | Path) -> Path:
    folder = _fetched(str(source)) if str(source).startswith(HUB_PREFIX) else Path(source)
    return folder.parent if folder.name == CONFIG_NAME else folder


def _fetched(address: str) -> Path:
    name, _, revision = address.removeprefix(HUB_PREFIX).partition("@")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise OptionError(
            f"{address} lies on the Hugging Face hub and huggingface_hub is not installed",
            "",
            "install it with: pip install 'hyperfuse[hub]', or give a local folder",
        ) from error
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:  # what the hub answers, no connection, and a name that cannot be one
        raise WeightsError(
            f"{address} cannot be fetched ({str(error).splitlines()[0]})",
            "hf://owner/name or hf://owner/name@revision",
            "check the name and the connection, or give a local folder",
        ) from error
