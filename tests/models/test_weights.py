"""Weights on disk: the same network comes back, and nothing else is accepted."""

from __future__ import annotations

import json
import sys
import types

import pytest
import torch
from tests.models.network_fixtures import TINY, random_pair, tiny_network

from hyperfuse.errors import OptionError, WeightsError
from hyperfuse.models import weights as weights_folder
from hyperfuse.models.analysis import count_parameters
from hyperfuse.models.catalogue import build_network, load_model
from hyperfuse.models.prior import PriorNetwork
from hyperfuse.models.ssa import SSA


def edit_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config))


@pytest.fixture
def folder(tmp_path):
    tiny_network().save_pretrained(tmp_path / "weights", provenance={"steps": 3})
    return tmp_path / "weights"


@pytest.mark.parametrize("config", [TINY, TINY.with_fixed_bands(5, 3)])
def test_saved_and_loaded_networks_agree_bit_for_bit(tmp_path, config):
    network = tiny_network(config=config)
    network.save_pretrained(tmp_path / "a" / "b")
    loaded = SSA.from_pretrained(tmp_path / "a" / "b")
    pair = random_pair(5, 3, (4, 4), (13, 10))
    with torch.no_grad():
        assert torch.equal(network(*pair), loaded(*pair))
    assert loaded.config == config
    assert not loaded.training


def test_the_config_says_what_a_user_needs(tmp_path, folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["margin"] == {"fine": 8, "coarse": 5}
    assert config["provenance"] == {"steps": 3}
    assert config["format_version"] == 1
    assert len(config["weights"]["sha256"]) == 64
    assert SSA.from_pretrained(folder).weights_digest == config["weights"]["sha256"]
    assert tiny_network().weights_digest is None
    assert config["preset"] is None
    build_network("ssa-small").save_pretrained(tmp_path / "small")
    assert json.loads((tmp_path / "small" / "config.json").read_text())["preset"] == "ssa-small"


def test_shipped_weights_are_loaded_by_name_unless_a_folder_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = load_model("universal")
    assert isinstance(shipped, PriorNetwork)
    assert not shipped.training and not any(parameter.requires_grad for parameter in shipped.parameters())
    with pytest.raises(WeightsError, match=r"config\.json does not exist"):
        load_model("./weights/universal")
    tiny_network().save_pretrained("universal")
    assert isinstance(load_model("universal"), SSA)


def test_the_representation_is_one_line_with_sizes_and_weights(folder):
    loaded = load_model(folder)
    assert repr(loaded).startswith(
        f"SSA({count_parameters(loaded):,} parameters, weights {loaded.weights_digest[:12]}, "
    )
    assert "width=8" in repr(loaded)
    assert "untrained" in repr(tiny_network()) and "\n" not in repr(tiny_network())


def test_the_config_file_itself_may_be_named(folder):
    assert SSA.from_pretrained(str(folder / "config.json")).config == TINY


def test_saving_again_replaces_the_old_weights(folder):
    tiny_network(seed=5).save_pretrained(folder)
    assert len(list(folder.iterdir())) == 2
    loaded, expected = SSA.from_pretrained(folder).state_dict(), tiny_network(seed=5).state_dict()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_an_interrupted_save_keeps_the_old_weights(folder, monkeypatch):
    before = tiny_network().state_dict()
    atomic_write = weights_folder.atomic_write

    def full_disk(path):
        if path.name == "config.json":
            raise OSError(28, "No space left on device")
        return atomic_write(path)

    monkeypatch.setattr(weights_folder, "atomic_write", full_disk)
    with pytest.raises(OSError, match="No space left"):
        tiny_network(seed=5).save_pretrained(folder)
    loaded = SSA.from_pretrained(folder).state_dict()
    assert all(torch.equal(loaded[name], before[name]) for name in before)


def test_a_damaged_file_is_refused(folder):
    path = next(folder.glob("*.safetensors"))
    contents = bytearray(path.read_bytes())
    contents[-1] ^= 1
    path.write_bytes(contents)
    with pytest.raises(WeightsError, match=r"sha256 .*; expected .* as its config says; the file is damaged"):
        SSA.from_pretrained(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, r'"format_version": Input should be 1; .*; update hyperfuse'),
        ({"format": "other"}, r"\"format\": Input should be 'hyperfuse-network'"),
        ({"surprise": 1}, r'"surprise": expected one of format'),
        ({"margin": {"fine": 1, "coarse": 1}}, r"margin .*; expected .*receptive field"),
        ({"weights": {}}, r'"weights.file": Field required'),
        ({"weights": {"file": "a\0b", "sha256": ""}}, r"cannot be read \(embedded null byte\)"),
        (
            {"network": {**TINY.model_dump(mode="json"), "attention": True}},
            r'"attention": expected one of width.*; .*; update hyperfuse',
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "channels": {"kind": "telepathy"}}},
            r'"channels": .*; update hyperfuse',
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "value_range": [0.0, 0.0]}},
            r'"value_range": .*got 0 to 0, expected 0 to a',
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "value_range": [1.0, 2.0]}},
            r'"value_range": .*scaled, not shifted',
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "width": 10**6}},
            r"size mismatch for \S+: .*shape.*; expected the \d+ tensors",
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "width": 10**9}},
            r'"width": Input should be less than or equal to 1000000',
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "spatial_blocks": 10**6}},
            r"margin .*; expected .*receptive field",
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "feature_width": 7}},
            r"size mismatch for \S+: .*shape.*; expected the \d+ tensors",
        ),
        (
            {"network": {**TINY.model_dump(mode="json"), "decoder_hidden": [12, 10, 8]}},
            r"Missing key.*implicit_decoder\.\S+.*; expected the \d+ tensors",
        ),
    ],
)
def test_an_unknown_newer_or_unfitting_config_is_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(WeightsError, match=message) as caught:
        SSA.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    network = tiny_network()
    with torch.no_grad():
        network.output_kernel.bias[3] = float("nan")
    network.save_pretrained(tmp_path / "diverged")
    with pytest.raises(WeightsError, match=r"output_kernel\.bias is not finite; expected the \d+ tensors"):
        SSA.from_pretrained(tmp_path / "diverged")


def test_provenance_that_is_no_json_changes_nothing(folder):
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(TypeError):
        tiny_network(seed=5).save_pretrained(folder, provenance={"data": object()})
    assert sorted(path.name for path in folder.iterdir()) == before


def test_saving_removes_only_weights_of_its_own(folder):
    (folder / "weights-of-a-friend.safetensors").write_bytes(b"theirs")
    tiny_network(seed=5).save_pretrained(folder)
    assert (folder / "weights-of-a-friend.safetensors").exists()
    assert len(list(folder.glob("*.safetensors"))) == 2


def test_missing_and_malformed_files_are_refused(folder, tmp_path):
    with pytest.raises(WeightsError, match=r"config\.json does not exist; expected a folder with"):
        SSA.from_pretrained(tmp_path / "nothing")
    next(folder.glob("*.safetensors")).unlink()
    with pytest.raises(WeightsError, match="cannot be read"):
        SSA.from_pretrained(folder)
    with pytest.raises(WeightsError, match=r"config\.json does not exist; expected a folder with"):
        SSA.from_pretrained(folder / "config.json" / "weights")
    for text in ("{", "", "[" * 100_000):
        (folder / "config.json").write_text(text)
        with pytest.raises(WeightsError, match="Invalid JSON"):
            SSA.from_pretrained(folder)


def test_weights_are_not_read_from_outside_the_folder(folder):
    listed = json.loads((folder / "config.json").read_text())["weights"]
    (folder.parent / "elsewhere.safetensors").write_bytes((folder / listed["file"]).read_bytes())
    edit_config(folder, weights={**listed, "file": "../elsewhere.safetensors"})
    with pytest.raises(WeightsError, match="cannot be read"):
        SSA.from_pretrained(folder)


def test_the_hub_needs_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(OptionError, match=r"pip install 'hyperfuse\[hub\]'"):
        SSA.from_pretrained("hf://someone/some-weights")


def test_the_hub_is_asked_for_the_revision(folder, monkeypatch):
    request = {}

    def snapshot_download(name, *, revision, allow_patterns):
        request.update(name=name, revision=revision, allow_patterns=allow_patterns)
        return str(folder)

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    assert SSA.from_pretrained("hf://someone/some-weights@v2").config == TINY
    assert request == {"name": "someone/some-weights", "revision": "v2", "allow_patterns": ["*.json", "*.safetensors"]}


def test_what_the_hub_does_not_give_is_said_in_one_line(monkeypatch):
    def snapshot_download(name, *, revision, allow_patterns):
        raise ValueError(f"Repo id must be in the form 'owner/name': {name}\nSee the manual.")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download))
    with pytest.raises(
        WeightsError, match=r"hf://a/b/c cannot be fetched \(Repo id .*; check the name and the connection"
    ) as caught:
        SSA.from_pretrained("hf://a/b/c")
    assert "\n" not in str(caught.value)


def test_weights_of_earlier_versions_still_load(tmp_path):
    """Those of `universal` had no measure of what is unlike training; without it, nothing is."""
    network = load_model("universal")
    del network._buffers["whitening"]
    network.save_pretrained(tmp_path / "old")
    loaded = load_model(tmp_path / "old")
    assert isinstance(loaded, PriorNetwork)
    assert not loaded.whitening.any()
