"""What all networks share: a frozen configuration, the checks of a pair, and their weights on disk.

A folder of weights holds config.json and one safetensors file, never a pickle. config.json names the weight file and
its sha256 and is replaced last, so that a folder always holds either its old weights or its new ones.

Shapes: B batch, C hsi bands, M msi bands, h w coarse, H W fine.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from safetensors import SafetensorError
from safetensors.torch import load as parse_safetensors
from safetensors.torch import save as serialise_safetensors
from torch import Tensor, nn

from hyperfuse.config import with_current_names
from hyperfuse.errors import GridError, OptionError, WeightsError
from hyperfuse.io.atomic import atomic_write

CONFIG_NAME = "config.json"
HUB_PREFIX = "hf://"
BICUBIC = "bicubic"
UNIVERSAL = "universal"
# Far above any network that could be run, and small enough for torch to hold the size of a tensor.
LARGEST_SIZE = 1_000_000


def _check_value_range(value_range: tuple[float, float]) -> tuple[float, float]:
    low, high = value_range
    if low != 0.0 or not 0.0 < high < math.inf:
        raise ValueError(
            f"got {low:g} to {high:g}, expected 0 to a finite number above it: scenes are scaled, not shifted"
        )
    return value_range


Positive = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
ValueRange = Annotated[tuple[float, float], AfterValidator(_check_value_range)]


class ReceptiveField(NamedTuple):
    """Pixels to each side that a pixel of the result depends on.

    `fine` counts pixels of the msi around it, `coarse` pixels of the hsi around the four coarse neighbours of the
    pixel and of the ring of fine pixels around it.
    """

    fine: int
    coarse: int


class Strict(BaseModel):
    """Frozen; an unknown key is refused, and the nearest known one named; a former one is accepted with a warning."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        table, known = with_current_names(table, cls.model_fields), list(cls.model_fields)
        if "kind" in known and "kind" in table and table["kind"] not in get_args(cls.model_fields["kind"].annotation):
            return table  # Its kind is what is wrong, not the keys that come with it.
        for key in map(str, table):
            if key not in known:
                longer = [name for name in known if name.startswith(key)]
                (nearest,) = get_close_matches(key, longer or known, n=1, cutoff=0.0)
                context = {"key": key, "known": ", ".join(known), "nearest": nearest}
                raise PydanticCustomError("unknown_key", 'expected one of {known}; did you mean "{nearest}"?', context)
        return table


class WeightsFile(Strict):
    file: str
    sha256: str


class WeightsRecord(Strict):
    """config.json of a folder of weights."""

    format: Literal["hyperfuse-network"]
    format_version: Literal[1]
    preset: str | None = None
    network: dict[str, Any]
    margin: ReceptiveField | None = None
    provenance: dict[str, Any] | None = None
    weights: WeightsFile


class ModelConfig(Strict):
    """Configuration of a network."""

    @property
    def receptive_field(self) -> ReceptiveField | None:
        """None where every pixel of the result depends on the whole scene."""
        return None


_IN_BFLOAT16: ContextVar[bool] = ContextVar("hyperfuse_in_bfloat16", default=False)


@contextmanager
def network_precision(name: str) -> Iterator[None]:
    """Run networks in "float32", in "bfloat16", or "auto": in bfloat16 on processors that multiply it.

    Only convolutions and matrix products are affected; the image that a network refines stays in full precision.
    """
    has_it = bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    token = _IN_BFLOAT16.set(name == "bfloat16" or (name == "auto" and has_it))
    try:
        yield
    finally:
        _IN_BFLOAT16.reset(token)


def full_precision(device: str) -> AbstractContextManager[None]:
    """Leave autocast, where it is on."""
    is_on = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_on else nullcontext()


class PretrainedNetwork(nn.Module):
    """A network that is defined by its configuration and can be saved to and loaded from a folder."""

    config: ModelConfig
    config_class: ClassVar[type[ModelConfig]]
    zero_if_absent: ClassVar[tuple[str, ...]] = ()  # tensors that weights of earlier versions do not have

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.weights_digest: str | None = None  # sha256 of the file that the weights were read from
        self.provenance: Mapping[str, Any] = {}  # what that folder records of the training

    @property
    def receptive_field(self) -> ReceptiveField | None:
        """The receptive field, or None where every pixel of the result depends on the whole scene."""
        return self.config.receptive_field

    @property
    def preset(self) -> str | None:
        """The name of the preset with this configuration, if there is one."""
        return None

    def save_pretrained(self, folder: str | Path, provenance: Mapping[str, object] | None = None) -> None:
        """Write the network into a folder that `from_pretrained` and `hyperfuse.load_model` read.

        Weights that lie there are replaced, both files or none.

        Parameters
        ----------
        folder
            Where config.json and a safetensors file are written; it is created where it does not exist.
        provenance
            What is known of the training (data, steps, versions), as JSON values. Kept in config.json.

        Examples
        --------
        >>> import tempfile
        >>> from hyperfuse.models.ssa import SSA, preset
        >>> network = SSA(preset("ssa-small"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     network.save_pretrained(folder, provenance={"steps": 0})
        ...     SSA.from_pretrained(folder).config == network.config
        True
        """
        contents = serialise_safetensors(
            {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        )
        digest = hashlib.sha256(contents).hexdigest()
        weights_name = f"weights-{digest[:12]}.safetensors"
        field = self.receptive_field
        config = {
            "format": "hyperfuse-network",
            "format_version": 1,
            "preset": self.preset,
            "network": self.config.model_dump(mode="json"),
            "margin": None if field is None else field._asdict(),
            "provenance": dict(provenance or {}),
            "weights": {"file": weights_name, "sha256": digest},
        }
        config_text = json.dumps(config, indent=2) + "\n"
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in ((weights_name, contents), (CONFIG_NAME, config_text.encode())):
            with atomic_write(folder / name) as temporary:
                temporary.write_bytes(content)
        for old in folder.glob(f"weights-{'[0-9a-f]' * 12}.safetensors"):
            if old.name != weights_name:
                old.unlink()

    @classmethod
    def from_pretrained(cls, source: str | Path) -> Self:
        """Load a network of this class, in evaluation mode.

        Parameters
        ----------
        source
            A folder written by `save_pretrained` (or its config.json), `hf://owner/name[@revision]` on the Hugging
            Face hub (needs the extra `hub`), or the name of weights that are shipped with hyperfuse.

        Raises
        ------
        WeightsError
            If files are missing or damaged, or belong to another network or to a newer version of hyperfuse.

        See Also
        --------
        hyperfuse.load_model : The same for any class of network.
        """
        folder = local_folder(source)
        record = read_record(folder)
        tensors = _read_tensors(folder, record.weights)
        try:
            config = cls.config_class.model_validate(record.network)
        except ValidationError as error:
            raise _invalid(folder / CONFIG_NAME, error) from error
        if config.receptive_field != record.margin:
            raise WeightsError(
                f"{folder}: its config says margin {record.margin}",
                f"{config.receptive_field}, the receptive field of that network",
                "the config was edited or damaged; fetch the weights again",
            )
        # A config that claims a huge network is compared with the file before it costs memory.
        with torch.device("meta"):
            network = cls(config)
        for name in cls.zero_if_absent:
            tensors.setdefault(name, torch.zeros(network.state_dict()[name].shape))
        _load_tensors(network, tensors, folder)
        network.weights_digest, network.provenance = record.weights.sha256, record.provenance or {}
        return network.eval()

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not _IN_BFLOAT16.get():
            return super().__call__(*inputs, **options)
        with torch.autocast(next(self.parameters()).device.type, torch.bfloat16):
            return super().__call__(*inputs, **options)

    def check_bands(self, bands: int, msi_bands: int) -> None:
        """Raise `BandError` for a pair whose band counts this network cannot take."""

    def check_pair(self, hsi: Tensor, msi: Tensor) -> None:
        """Raise an error for tensors that are not a pair (B, C, h, w), (B, M, H, W) for this network."""
        if hsi.ndim != 4 or msi.ndim != 4 or hsi.shape[0] != msi.shape[0] or 0 in hsi.shape or 0 in msi.shape:
            raise GridError(
                f"hsi {tuple(hsi.shape)} and msi {tuple(msi.shape)}",
                "(batch, bands, rows, columns) for both, of the same batch, none of them 0",
                "add a batch dimension with [None]",
            )
        precision = next(self.parameters()).dtype
        if hsi.dtype != precision or msi.dtype != precision:
            got, remedy = f"hsi of {hsi.dtype} and msi of {msi.dtype}", f"convert both with .to({precision})"
            raise OptionError(got, f"{precision}, as the weights are", remedy)
        self.check_bands(hsi.shape[1], msi.shape[1])

    def __repr__(self) -> str:
        weights = "untrained" if self.weights_digest is None else f"weights {self.weights_digest[:12]}"
        parameters = sum(parameter.numel() for parameter in self.parameters())
        return f"{type(self).__name__}({parameters:,} parameters, {weights}, {self.config!r})"


def local_folder(source: str | Path) -> Path:
    """Return the folder of `source`, see `from_pretrained`; weights on the hub are fetched."""
    if str(source).startswith(HUB_PREFIX):
        return _fetch(str(source))
    folder = Path(source)
    if folder.name == CONFIG_NAME:
        return folder.parent
    shipped = Path(str(resources.files("hyperfuse") / "weights"))
    # A folder of the user comes first; any other path than a mere name is not looked up.
    if not folder.exists() and folder.parts == (folder.name,) and (shipped / folder).is_dir():
        return shipped / folder
    return folder


def read_record(folder: Path) -> WeightsRecord:
    """Read and check config.json of a folder of weights."""
    path = folder / CONFIG_NAME
    try:
        return WeightsRecord.model_validate_json(path.read_bytes())
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        got = f"{path} does not exist" if missing else f"{path} cannot be read ({error.strerror})"
        remedy = "give a folder written by save_pretrained"
        raise WeightsError(got, f"a folder with {CONFIG_NAME} and weights", remedy) from error
    except ValidationError as error:
        raise _invalid(path, error) from error


def _invalid(path: Path, error: ValidationError) -> WeightsError:
    first = error.errors()[0]
    where = (*first["loc"], *([first["ctx"]["key"]] if first["type"] == "unknown_key" else []))
    got = f'{path}: "{".".join(map(str, where))}": {first["msg"]}'
    expected = "a network that this version of hyperfuse knows"
    return WeightsError(got, expected, "update hyperfuse, or fetch the weights again")


def _fetch(address: str) -> Path:
    name, _, revision = address.removeprefix(HUB_PREFIX).partition("@")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        got = f"{address} lies on the Hugging Face hub and huggingface_hub is not installed"
        remedy = "install it with: pip install 'hyperfuse[hub]', or give a local folder"
        raise OptionError(got, "", remedy) from error
    try:
        return Path(snapshot_download(name, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]))
    except (OSError, ValueError) as error:  # HTTP errors, no connection, and an impossible name
        raise WeightsError(
            f"{address} cannot be fetched ({str(error).splitlines()[0]})",
            "hf://owner/name or hf://owner/name@revision",
            "check the name and the connection, or give a local folder",
        ) from error


def _read_tensors(folder: Path, listed: WeightsFile) -> dict[str, Tensor]:
    """The tensors as float32."""
    # Only a name: a config from elsewhere must not reach outside its folder.
    path = folder / Path(listed.file).name
    try:
        contents = path.read_bytes()
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise WeightsError(f"{path} cannot be read ({reason})", "", "fetch the weights again") from error
    digest = hashlib.sha256(contents).hexdigest()
    if digest != listed.sha256:
        raise WeightsError(
            f"{path}: sha256 {digest[:12]}...",
            f"{listed.sha256[:12]}... as its config says",
            "the file is damaged or was exchanged; fetch the weights again",
        )
    try:
        tensors: dict[str, Tensor] = parse_safetensors(contents)
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a safetensors file ({error})", "", "fetch the weights again") from error
    return {name: tensor.to(torch.float32, copy=True) for name, tensor in tensors.items()}


def _load_tensors(network: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Names and shapes must be exactly those of the network, and all values finite."""
    fault = next((f"{name} is not finite" for name, each in tensors.items() if not torch.isfinite(each).all()), None)
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        # A line each: whose error, then what is missing, what is unexpected and which sizes differ.
        fault = str(error).splitlines()[1].strip()
    if fault is not None:
        expected = f"the {len(network.state_dict())} tensors of the network in its config, all finite"
        remedy = "the weights belong to another config or to a training that failed; fetch both again"
        raise WeightsError(f"{folder}: {fault[:200]}", expected, remedy)
