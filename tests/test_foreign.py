"""Models of other projects and other wrappings: recognised, built, upscaled as ours are; nothing is run."""

import dataclasses
import os
import sys
import warnings

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from srnet.cli import main
from srnet.config import NetworkConfig
from srnet.errors import CheckpointError, ConfigError
from srnet.foreign import ForeignNetwork, load_model
from srnet.inference import Upscaler
from srnet.network import SRNet

spandrel = pytest.importorskip("spandrel")
OWN = NetworkConfig(scale=2, embed_dim=12, num_blocks=2, attention_blocks=(1,), top_k=8)


def foreign(name):
    """A small network of another project with random weights."""
    torch.manual_seed(0)
    if name == "SPAN":
        from spandrel.architectures.SPAN import SPAN

        return SPAN(num_in_ch=3, num_out_ch=3, feature_channels=16, upscale=4).eval()
    if name == "ESRGAN":
        from spandrel.architectures.ESRGAN.__arch.RRDB import RRDBNet

        return RRDBNet(in_nc=3, out_nc=3, num_filters=8, num_blocks=1, scale=4).eval()
    if name == "Compact grey":
        from spandrel.architectures.Compact.__arch.SRVGG import SRVGGNetCompact

        return SRVGGNetCompact(num_in_ch=1, num_out_ch=1, num_feat=8, num_conv=2, upscale=2).eval()
    from spandrel.architectures.SwinIR import SwinIR

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how it calls torch.meshgrid
        return SwinIR(
            img_size=32,
            window_size=8,
            depths=[2, 2],
            num_heads=[2, 2],
            embed_dim=16,
            mlp_ratio=2,
            upscale=2,
            upsampler="pixelshuffledirect",
        ).eval()


def own(seed=0):
    torch.manual_seed(seed)
    return SRNet(OWN).eval()


def state(network):
    return {key: value.clone() for key, value in network.state_dict().items()}


@pytest.mark.parametrize("suffix", ["pth", "safetensors", "PTH"])
@pytest.mark.parametrize("name", ["SPAN", "ESRGAN", "SwinIR", "Compact grey"])
def test_another_architecture_gives_what_its_own_code_gives(tmp_path, photo, name, suffix):
    network, path = foreign(name), tmp_path / f"net.{suffix}"
    weights = state(network)
    if suffix == "safetensors":
        safetensors.torch.save_file(weights, path)
    else:
        torch.save({"params": weights}, path)
    model = load_model(path)
    assert isinstance(model.network, ForeignNetwork)
    assert name.split()[0] in model.name
    image = photo("chelsea")[40:72, 60:100]
    lr = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        sr = network(lr.transpose(0, 1))[:, 0][None] if name == "Compact grey" else network(lr)
    expected = (sr[0].clamp(0, 1) * 255).round().permute(1, 2, 0).numpy()
    result = Upscaler(model.network, tile=0, precision="fp32")(image)
    assert result.shape == (32 * model.network.scale, 40 * model.network.scale, 3)
    assert np.abs(result - expected).max() <= 1
    assert result.std() > 1


def test_tiles_of_a_convolutional_network_equal_the_whole(tmp_path, photo):
    torch.save(state(foreign("SPAN")), tmp_path / "a.pth")
    image = photo("chelsea")[40:137, 60:161].astype(np.float32) / 255
    whole = Upscaler(tmp_path / "a.pth", tile=0)(image)
    tiled = Upscaler(tmp_path / "a.pth", tile=40, overlap=32)(image)
    assert np.abs(tiled - whole).max() < 1e-5
    assert np.abs(Upscaler(tmp_path / "a.pth", tile=40, overlap=0)(image) - whole).max() > 1e-3


def test_windows_of_tiles_lie_where_those_of_the_whole_image_lie(tmp_path, photo):
    torch.save(state(foreign("SwinIR")), tmp_path / "a.pth")
    image = photo("chelsea")[40:136, 60:156]
    whole = Upscaler(tmp_path / "a.pth", tile=0)(image).astype(int)
    upscaler = Upscaler(tmp_path / "a.pth", tile=30, overlap=33)
    assert (upscaler.tile, upscaler.network.group_size) == (32, 8)
    assert np.abs(upscaler(image) - whole).max() <= 1


def test_colour_alpha_depth_and_metadata_are_kept_as_with_our_networks(tmp_path, photo, capsys):
    torch.save({"params_ema": state(foreign("SPAN"))}, tmp_path / "a.pth")
    image = Image.fromarray(photo("coffee")[:16, :20]).convert("LA")
    image.save(tmp_path / "a.png", dpi=(300, 300))
    words = ["upscale", str(tmp_path / "a.png"), "-n", str(tmp_path / "a.pth"), "-t", "8"]
    assert main(words) == 0
    assert "a (SPAN), " in capsys.readouterr().err
    with Image.open(tmp_path / "a_x4.png") as result:
        assert (result.mode, result.size) == ("LA", (80, 64))
        assert result.info["dpi"] == pytest.approx((300, 300), abs=0.02)
    deep = np.linspace(9000, 9900, 12 * 16 * 3).reshape(12, 16, 3).astype(np.uint16)
    assert (Upscaler(tmp_path / "a.pth")(deep) % 257).any()  # not widened from 8 bits


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: weights,
        lambda weights: {"params": weights},
        lambda weights: {"params_ema": weights},
        lambda weights: {"state_dict": {f"module.{k}": v for k, v in weights.items()}},
        lambda weights: {"model": {f"module.network.{k}": v for k, v in weights.items()}},
        lambda weights: {"state_dict": {f"network._orig_mod.{k}": v for k, v in weights.items()}},
        lambda weights: {"step": 5, "net": {k: v.half() for k, v in weights.items()}},
    ],
)
def test_our_weights_load_in_common_wrappings(tmp_path, wrap):
    network = own()
    content = wrap(state(network))
    config = dataclasses.asdict(OWN)
    if "params" not in content and "head.weight" in content:
        torch.save({"params": content, "config": config}, tmp_path / "a.pth")
    else:
        torch.save(content | {"srnet_config": {"network": config}}, tmp_path / "a.pth")
    loaded = load_model(tmp_path / "a.pth").network
    assert isinstance(loaded, SRNet)
    lr = torch.rand(1, 3, 9, 11)
    with torch.no_grad():
        torch.testing.assert_close(loaded(lr), network(lr), atol=2e-3, rtol=0)


def test_the_average_comes_before_raw_weights(tmp_path):
    raw, average = own(1), own(2)
    config = dataclasses.asdict(OWN)
    torch.save(
        {"params": state(raw), "params_ema": state(average), "config": config}, tmp_path / "a.pth"
    )
    lr = torch.rand(1, 3, 9, 11)
    with torch.no_grad():
        assert torch.equal(load_model(tmp_path / "a.pth").network(lr), average(lr))
    spans = [foreign("SPAN"), foreign("SPAN")]
    with torch.no_grad():
        for parameter in spans[1].parameters():
            parameter.mul_(1.5)
    torch.save({"params": state(spans[0]), "params_ema": state(spans[1])}, tmp_path / "b.pth")
    loaded = load_model(tmp_path / "b.pth").network.module
    assert torch.equal(next(loaded.parameters()), next(spans[1].parameters()))


def test_our_weights_without_a_configuration_take_that_of_the_shipped_model_they_fit(tmp_path):
    from srnet.checkpoint import load_checkpoint, shipped_models

    if not shipped_models():
        pytest.skip("no shipped checkpoint")
    name = shipped_models()[0].name
    shipped = load_checkpoint(name).network
    torch.save(state(shipped), tmp_path / "a.pth")
    model = load_model(tmp_path / "a.pth")
    assert f"that of {name} fits" in model.notes[0]
    assert model.network.config == shipped.config
    torch.save(state(own()), tmp_path / "b.pth")
    with pytest.raises(
        CheckpointError, match=r"srnet network of 12 channels and 2 blocks, x2, but fits no known"
    ):
        load_model(tmp_path / "b.pth")


class Hostile:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("name", ["a.pth", "a.CKPT", "a.safetensors", "a.pt", "a.bin", "a"])
@pytest.mark.parametrize("old", [False, True])
def test_a_hostile_pickle_runs_nothing(tmp_path, name, old):
    path, victim = tmp_path / name, tmp_path / "victim"
    content = {"params": state(foreign("SPAN")), "more": Hostile(str(victim))}
    torch.save(content, path, _use_new_zipfile_serialization=not old)
    with pytest.raises(CheckpointError, match="could run code") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"conv1.weight": torch.zeros(64, 3, 7, 7)}, r"neither .* conv1\.weight \[64, 3, 7, 7\]"),
        ({"params": {"step": 1}}, "no weights in it; it holds step"),
        ([torch.zeros(3)], "holds a list"),
        ({"head.weight": torch.full((1,), float("nan"))}, "head.weight holds NaN"),
    ],
)
def test_what_is_no_model_is_refused_by_what_it_looks_like(tmp_path, content, words):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=words):
        load_model(tmp_path / "a.pth")


def test_other_refusals_are_one_line(tmp_path):
    weights = state(foreign("SPAN"))
    torch.save({"params": weights}, tmp_path / "a.pth")
    data = (tmp_path / "a.pth").read_bytes()
    (tmp_path / "cut.pth").write_bytes(data[: len(data) // 2])
    (tmp_path / "page.pth").write_bytes(b"<!DOCTYPE html><html>404</html>")
    del weights["conv_cat.bias"]
    torch.save(weights, tmp_path / "part.pth")
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # torch calls TorchScript deprecated; people have such files
        torch.jit.save(torch.jit.script(torch.nn.Conv2d(3, 3, 1)), tmp_path / "t.pt")
    for name, words in (
        ("cut.pth", "cut short"),
        ("page.pth", "web page"),
        ("part.pth", "does not fit"),
        ("t.pt", "TorchScript"),
    ):
        with pytest.raises(CheckpointError, match=words) as caught:
            load_model(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_without_spandrel_the_way_to_it_is_told(tmp_path, monkeypatch):
    torch.save(state(foreign("SPAN")), tmp_path / "a.pth")
    monkeypatch.setitem(sys.modules, "spandrel", None)
    with pytest.raises(CheckpointError, match=r"pip install 'srnet\[models\]'"):
        load_model(tmp_path / "a.pth")


def test_a_precision_that_the_network_lacks_is_refused(tmp_path):
    torch.save(state(foreign("SwinIR")), tmp_path / "a.pth")
    network = load_model(tmp_path / "a.pth").network
    network.precisions = {"fp32"}
    assert Upscaler(network).precision == "fp32"
    with pytest.raises(ConfigError, match="computes in fp32 only"):
        Upscaler(network, precision="bf16")
