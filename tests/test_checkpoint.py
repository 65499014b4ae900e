import dataclasses
import hashlib
import json
import os
import subprocess
import sys

import pytest
import safetensors
import safetensors.torch
import torch

from srnet import checkpoint
from srnet.checkpoint import (
    default_model,
    load_checkpoint,
    read_header,
    save_checkpoint,
    shipped_models,
)
from srnet.config import NetworkConfig
from srnet.errors import CheckpointError
from srnet.network import SRNet

CARD = {
    "metrics": {"Set5": {"psnr_y": 30.5}},
    "data": "made images",
    "license": "CC0-1.0",
    "commit": "0" * 40,
}


def small_network(scale=2, seed=0):
    torch.manual_seed(seed)
    config = NetworkConfig(
        scale=scale, embed_dim=12, num_blocks=2, attention_blocks=(1,), num_heads=3, top_k=8
    )
    network = SRNet(config)
    with torch.no_grad():  # weights that start at zero would hide a tensor that was not stored
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.02)
    return network.eval()


@pytest.fixture
def saved(tmp_path):
    network = small_network()
    path = tmp_path / "mine.safetensors"
    sha256 = save_checkpoint(path, network, **CARD)
    return path, network, sha256


@pytest.fixture
def registry(tmp_path, monkeypatch, saved):
    """A folder of shipped checkpoints that holds the saved one as mine-x2, then a second x2 model."""
    path, _, sha256 = saved
    monkeypatch.setattr(checkpoint, "checkpoint_folder", lambda: tmp_path)
    entry = {"name": "mine-x2", "file": path.name, "bytes": path.stat().st_size, "sha256": sha256}
    entry |= {"scale": 2}
    models = [entry, entry | {"name": "second-x2", "file": "absent.safetensors"}]
    (tmp_path / "registry.json").write_text(json.dumps({"models": models}))
    return path


def rewrite(path, *, metadata=None, drop=(), add=None):
    """Writes the file again with other metadata or tensors."""
    with safetensors.safe_open(path, "pt") as file:
        old = file.metadata()
        tensors = {key: file.get_tensor(key) for key in file.keys() if key not in drop}  # noqa: SIM118
    safetensors.torch.save_file(tensors | (add or {}), path, old | (metadata or {}))


def test_round_trip_gives_the_same_output(saved):
    path, network, sha256 = saved
    loaded = load_checkpoint(path)
    lr = torch.rand(2, 3, 13, 9)
    with torch.no_grad():
        assert torch.equal(loaded.network(lr), network(lr))
        assert not torch.equal(loaded.network(lr), small_network(seed=1)(lr))
    assert loaded.sha256 == sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (loaded.name, loaded.path) == ("mine", path)
    assert not loaded.network.training
    assert loaded.network.config == network.config


def test_metadata_is_the_model_card(saved):
    path, network, _ = saved
    metadata = load_checkpoint(path).metadata
    assert metadata["format"] == "srnet"
    assert metadata["format_version"] == "1"
    assert json.loads(metadata["metrics"]) == CARD["metrics"]
    assert {key: metadata[key] for key in ("data", "license", "commit")} == {
        key: CARD[key] for key in ("data", "license", "commit")
    }
    stored = json.loads(metadata["config"])
    assert stored == json.loads(json.dumps(dataclasses.asdict(network.config)))


def test_the_average_is_stored_when_given(tmp_path):
    network, average = small_network(seed=0), small_network(seed=1)
    path = tmp_path / "ema.safetensors"
    save_checkpoint(path, network, state_dict=average.state_dict(), **CARD)
    lr = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        assert torch.equal(load_checkpoint(path).network(lr), average(lr))


def test_channels_last_and_half_weights_are_stored_contiguous_float32(tmp_path):
    network = small_network()
    path = tmp_path / "cl.safetensors"
    expected = {key: value.clone() for key, value in network.state_dict().items()}
    network.to(memory_format=torch.channels_last)
    assert any(not value.is_contiguous() for value in network.state_dict().values())
    save_checkpoint(path, network, **CARD)
    for key, value in safetensors.torch.load_file(path).items():
        assert torch.equal(value, expected[key]), key
    half = {key: value.bfloat16() for key, value in expected.items()}
    save_checkpoint(path, network, state_dict=half, **CARD)
    for key, value in safetensors.torch.load_file(path).items():
        assert value.dtype == torch.float32
        assert torch.equal(value, half[key].float()), key


def test_loading_leaves_the_random_state_alone(saved):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    load_checkpoint(saved[0])
    assert torch.equal(torch.rand(3), expected)


def test_header_is_read_without_torch(saved):
    path, network, _ = saved
    header = read_header(path)
    assert header.shapes == {key: tuple(value.shape) for key, value in network.state_dict().items()}
    assert header.metadata["license"] == "CC0-1.0"
    code = (
        "import sys; from pathlib import Path; from srnet.checkpoint import read_header; "
        "read_header(Path(sys.argv[1])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@pytest.mark.parametrize("keep", [0, 5, 8, 100, -1])
def test_truncated_file(saved, keep):
    path, _, _ = saved
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    pattern = {0: "the file is empty", 5: "not a safetensors file"}.get(keep, "cut short")
    for read in (load_checkpoint, read_header):
        with pytest.raises(CheckpointError, match=pattern) as caught:
            read(path)
        assert str(path) in str(caught.value)
    if keep == -1:
        assert f"needs {len(whole)} bytes but the file has {len(whole) - 1}" in str(caught.value)


def test_trailing_bytes(saved):
    path, _, _ = saved
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(CheckpointError, match="too long"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "pattern"),
    [
        (b"<!DOCTYPE html><html><body>404 Not Found</body></html>", "web page"),
        (b"<html></html>", "web page"),
        (b"PK\x03\x04" + bytes(100), "pickled"),
        (b"\x80\x02}q\x00." + bytes(100), "pickled"),
        (b"version https://git-lfs.github.com/spec/v1\n", "starts with b'version "),
        ((2).to_bytes(8, "little") + b"[]", "not a safetensors file"),
        ((5).to_bytes(8, "little") + b'{"a":', "damaged safetensors header"),
        ((14).to_bytes(8, "little") + b'{"a":{"x":10}}', "damaged safetensors header"),
    ],
)
def test_other_content_under_the_right_name(tmp_path, content, pattern):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    for read in (load_checkpoint, read_header):
        with pytest.raises(CheckpointError, match=pattern) as caught:
            read(path)
        assert "\n" not in str(caught.value)


class Hostile:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("name", ["a.pth", "a.CKPT", "a.safetensors", "a.SafeTensors"])
def test_hostile_pickle_is_refused_unopened(tmp_path, name):
    path, victim = tmp_path / name, tmp_path / "victim"
    torch.save({"params": Hostile(str(victim))}, path)
    with pytest.raises(CheckpointError, match=r"can run code|pickled"):
        load_checkpoint(path)
    assert not victim.exists()


def test_missing_unknown_and_misshapen_tensors(saved):
    path, network, _ = saved
    keys = list(network.state_dict())
    rewrite(path, drop=keys[:4])
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert f"{len(keys) - 4} of {len(keys)} tensors match" in message
    assert ", ".join(f"{key} is missing" for key in keys[:3]) in message
    assert "and 1 more" in message
    assert keys[3] not in message
    rewrite(
        path,
        add={key: network.state_dict()[key] for key in keys[:4]} | {"net.weight": torch.zeros(1)},
    )
    with pytest.raises(CheckpointError, match=r"net\.weight is unknown"):
        load_checkpoint(path)


def test_weights_of_another_scale(saved):
    path, network, _ = saved
    config = json.dumps(dataclasses.asdict(network.config) | {"scale": 4})
    rewrite(path, metadata={"config": config})
    with pytest.raises(CheckpointError, match=r"do not fit its config, .* is \[.*\] instead of \["):
        load_checkpoint(path)


def test_wanted_scale(saved, tmp_path):
    path, _, _ = saved
    assert load_checkpoint(path, scale=2).network.scale == 2
    larger = tmp_path / "x4.safetensors"
    save_checkpoint(larger, small_network(scale=4), **CARD)
    assert load_checkpoint(larger, scale=2).network.scale == 4
    with pytest.raises(CheckpointError, match="upscales x2, but x4 is wanted"):
        load_checkpoint(path, scale=4)


@pytest.mark.parametrize(
    ("metadata", "pattern"),
    [
        ({"format": "other"}, "not an srnet checkpoint: metadata format is 'other'"),
        ({"format_version": "2"}, "format_version '2'.*update srnet"),
        ({"config": "{"}, "config is unusable"),
        ({"config": '{"scale": 5}'}, "config is unusable"),
        ({"config": '{"scale": 2, "colour": 1}'}, "config is unusable.*colour"),
    ],
)
def test_wrong_metadata(saved, metadata, pattern):
    rewrite(saved[0], metadata=metadata)
    with pytest.raises(CheckpointError, match=pattern):
        load_checkpoint(saved[0])


def test_foreign_safetensors_file_names_its_tensors(tmp_path):
    path = tmp_path / "foreign.safetensors"
    safetensors.torch.save_file({"conv_first.weight": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match=r"not an srnet checkpoint.*conv_first\.weight"):
        load_checkpoint(path)


def test_weights_that_are_not_finite(tmp_path):
    network = small_network()
    path = tmp_path / "nan.safetensors"
    save_checkpoint(path, network, **CARD)
    key = next(iter(network.state_dict()))
    rewrite(path, drop=[key], add={key: network.state_dict()[key] * float("nan")})
    with pytest.raises(CheckpointError, match=f"{key} hold NaN"):
        load_checkpoint(path)
    with torch.no_grad():
        next(network.parameters()).fill_(float("inf"))
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="not written"):
        save_checkpoint(path, network, **CARD)
    assert path.read_bytes() == before


def test_save_refuses_what_it_cannot_store(tmp_path):
    network = small_network()
    path = tmp_path / "a.safetensors"
    with pytest.raises(CheckpointError, match=r"must end in \.safetensors"):
        save_checkpoint(tmp_path / "a.pth", network, **CARD)
    with pytest.raises(CheckpointError, match="not plain finite JSON"):
        save_checkpoint(path, network, **CARD | {"metrics": {"psnr_y": float("inf")}})
    with pytest.raises(CheckpointError, match="do not fit"):
        save_checkpoint(path, network, state_dict=small_network(scale=4).state_dict(), **CARD)
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_old_file_and_no_litter(saved, monkeypatch):
    path, _, _ = saved
    before = path.read_bytes()

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(CheckpointError, match="No space left on device"):
        save_checkpoint(path, small_network(seed=1), **CARD)
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_shipped_name(registry):
    loaded = load_checkpoint("mine-x2")
    assert (loaded.name, loaded.path) == ("mine-x2", registry)
    assert default_model(2) == "mine-x2"
    with pytest.raises(CheckpointError, match="no shipped model upscales x3; shipped scales: x2"):
        default_model(3)
    with pytest.raises(CheckpointError, match="second-x2 is missing"):
        load_checkpoint("second-x2")


def test_hash_mismatch_against_the_registry(registry):
    save_checkpoint(registry, small_network(seed=1), **CARD)
    assert load_checkpoint(registry).name == "mine"  # as a file of one's own it is fine
    with pytest.raises(CheckpointError, match="not the registered mine-x2: sha256"):
        load_checkpoint("mine-x2")


def test_unknown_name_lists_the_known_ones(registry):
    with pytest.raises(
        CheckpointError, match=r"did you mean mine-x2.* known models: mine-x2, second-x2"
    ):
        load_checkpoint("mine_x2")
    with pytest.raises(CheckpointError, match="unknown model 'zzz'; known models: mine-x2"):
        load_checkpoint("zzz")


def test_paths_that_are_no_file(registry, tmp_path):
    for missing in ("gone.safetensors", "some/where", tmp_path / "gone"):
        with pytest.raises(CheckpointError, match="no such file"):
            load_checkpoint(missing)
    with pytest.raises(CheckpointError, match="is a folder"):
        load_checkpoint(tmp_path)


def test_damaged_registry(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "checkpoint_folder", lambda: tmp_path)
    with pytest.raises(CheckpointError, match="reinstall srnet"):
        shipped_models()
    (tmp_path / "registry.json").write_text('{"models": [{"name": "a"}]}')
    with pytest.raises(CheckpointError, match="damaged registry"):
        shipped_models()


def test_every_shipped_checkpoint_loads_and_is_the_registered_one():
    models = shipped_models()
    assert len({model.name for model in models}) == len(models)
    for model in models:
        loaded = load_checkpoint(model.name)
        assert loaded.path.stat().st_size == model.bytes
        assert loaded.network.scale == model.scale
        assert loaded.metadata["license"]
        assert json.loads(loaded.metadata["metrics"])
