"""Winograd's convolutions against torch's, in networks, in runs, and where they cannot be had."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from srnet.checkpoint import load_checkpoint
from srnet.config import NetworkConfig, load_config
from srnet.errors import ConfigError
from srnet.network import SRNet
from srnet.training import winograd
from srnet.training.run import train
from srnet.training.winograd import WinogradConv2d, accelerate, load_kernels

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler"
)
NETWORK = NetworkConfig(
    scale=2, embed_dim=16, num_blocks=2, convs_per_block=1, attention_blocks=(1,), num_heads=1
)


WORDS = (
    "network.embed_dim=16",
    "trainer.device=cpu",
    "trainer.precision=fp32",
    "trainer.max_steps=3",
)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def compile_anew():
    """Forgets what was compiled, before and after."""
    load_kernels.cache_clear()
    yield
    load_kernels.cache_clear()


@needs_compiler
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize(
    ("batch", "channels", "outputs", "height", "width"),
    [
        (1, 16, 16, 1, 1),
        (2, 16, 48, 4, 8),
        (3, 48, 16, 5, 7),
        (1, 32, 64, 23, 2),
        (8, 48, 48, 26, 27),
        (1, 80, 32, 3, 61),
    ],
)
def test_outputs_and_gradients_are_those_of_the_definition(
    number, batch, channels, outputs, height, width, threads
):
    """Against float64, at sizes that fill neither tiles nor blocks, split among threads."""
    threads(number)
    torch.manual_seed(height * width)
    layer = nn.Conv2d(channels, outputs, 3, padding=1)
    x = torch.randn(batch, channels, height, width)
    grad = torch.randn(batch, outputs, height, width)
    exact = [t.detach().double().requires_grad_() for t in (x, layer.weight, layer.bias)]
    wanted = F.conv2d(*exact, padding=1)
    wanted.backward(grad.double())
    accelerate(layer)
    x.requires_grad_()
    found = layer(x)
    found.backward(grad)
    for got, want in [
        (found, wanted),
        *((t.grad, e.grad) for t, e in zip((x, layer.weight, layer.bias), exact, strict=True)),
    ]:
        assert (got - want).abs().max() < 5e-5 * want.abs().max()


@needs_compiler
def test_only_layers_that_suit_are_changed():
    torch.manual_seed(0)
    suits = nn.Conv2d(16, 32, 3, padding=1)
    others = [
        nn.Conv2d(3, 16, 3, padding=1),
        nn.Conv2d(16, 3, 3, padding=1),
        nn.Conv2d(16, 16, 1),
        nn.Conv2d(16, 16, 5, padding=2),
        nn.Conv2d(16, 16, 3),
        nn.Conv2d(16, 16, 3, padding=1, stride=2),
        nn.Conv2d(16, 16, 3, padding=2, dilation=2),
        nn.Conv2d(16, 16, 3, padding=1, groups=2),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(16, 16, 3, padding=1, bias=False),
        nn.ConvTranspose2d(16, 16, 3, padding=1),
    ]
    kinds = [type(layer) for layer in others]
    assert accelerate(nn.ModuleList([suits, *others]))
    assert not accelerate(nn.ModuleList(others))
    assert type(suits) is WinogradConv2d
    assert [type(layer) for layer in others] == kinds


@needs_compiler
def test_a_network_keeps_its_tensors_and_its_results_in_use():
    torch.manual_seed(0)
    network = SRNet(NETWORK)
    x = torch.rand(1, 3, 20, 24)
    names, tensors = list(network.state_dict()), list(network.parameters())
    with torch.no_grad():
        before = network.eval()(x)
        accelerate(network)
        assert torch.equal(network(x), before)
        assert list(network.state_dict()) == names
        assert all(a is b for a, b in zip(network.parameters(), tensors, strict=True))
        changed = [m for m in network.modules() if type(m) is WinogradConv2d]
        assert len(changed) >= 2
        during = network.train()(x)
    assert not torch.equal(during, before)  # the test would prove nothing otherwise
    torch.testing.assert_close(during, before, atol=1e-4, rtol=0)


@needs_compiler
def test_a_run_learns_the_same(config_file):
    """Two runs from one seed, that differ in the convolutions alone, end at the same weights but for rounding."""
    words = (*WORDS, "optim.optimizer=adamw")  # Muon divides small gradients by their own size
    start = SRNet(load_config(config_file, words).network).state_dict()
    runs = {}
    for word in ("auto", "on", "off"):
        config = load_config(config_file, (*words, f"name={word}", f"trainer.winograd={word}"))
        weights = load_checkpoint(train(config, lambda _: None).folder / "last.safetensors").network
        runs[word] = weights.state_dict()
    assert all(torch.equal(runs["auto"][k], runs["on"][k]) for k in start)
    assert not all(torch.equal(runs["off"][k], runs["on"][k]) for k in start)
    for key in start:
        torch.testing.assert_close(runs["on"][key], runs["off"][key], atol=2e-4, rtol=0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("trainer.precision=bf16",), "this is cpu in bf16; use auto"),
        (("trainer.compile=true",), "this is cpu in fp32 with it; use auto"),
    ],
)
def test_on_is_refused_where_it_has_no_meaning(words, reason, config_file, tmp_path):
    with pytest.raises(ConfigError, match=reason):
        train(load_config(config_file, (*WORDS, "trainer.winograd=on", *words)), lambda _: None)
    assert not (tmp_path / "runs").exists()


def _srnet_train(path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "srnet", "train", str(path), *words],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("/nowhere/cc", "/nowhere/cc cannot be started: No such file or directory"),
        (
            f"{sys.executable} -c 'print(1); exit(3)'",
            "cannot compile winograd.c: exit status 3",
        ),
    ],
)
def test_a_run_goes_on_without_a_compiler(compiler, reason, config_file):
    """One line says what was missed; ``on`` insists."""
    done = _srnet_train(config_file, *WORDS, CC=compiler)
    assert done.returncode == 0, done.stderr
    (line,) = [x for x in (done.stdout + done.stderr).splitlines() if "up to twice as fast" in x]
    assert reason in line
    done = _srnet_train(config_file, *WORDS, "name=other", "trainer.winograd=on", CC=compiler)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("srnet: error: trainer.winograd is on, but ")
    assert line.endswith(f"{reason}; use auto")


@needs_compiler
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("o[3] = c + d;", "o[3] = c - d;"),
        ("d = 2.f * y1 + 8.f * y3;", "d = 2.f * y1 + 4.f * y3;"),
    ],
)
def test_wrong_code_is_never_used(right, wrong, tmp_path, monkeypatch, compile_anew):
    """Neither a wrong forward nor a wrong backward pass goes unnoticed, as a faulty compiler would make them."""
    text = winograd._SOURCE.read_text()
    assert right in text
    (tmp_path / "winograd.c").write_text(text.replace(right, wrong))
    monkeypatch.setattr(winograd, "_SOURCE", tmp_path / "winograd.c")
    layer = nn.Conv2d(16, 16, 3, padding=1)
    with pytest.raises(OSError, match=r"made of winograd\.c gives wrong results"):
        accelerate(layer)
    assert type(layer) is nn.Conv2d


def test_no_compiler_on_the_path(monkeypatch, compile_anew):
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(OSError, match="no C compiler"):
        load_kernels()
