"""The schedule, the optimiser's groups and the training step."""

import numpy as np
import pytest
import torch

from srnet.config import NetworkConfig, OptimConfig
from srnet.network import SRNet
from srnet.training.module import (
    build_optimizer,
    largest_loss,
    learning_rate_factor,
    restoration_loss,
)

NETWORK = NetworkConfig(
    scale=2, embed_dim=16, num_blocks=2, num_heads=2, attention_blocks=(1,), top_k=8
)


def test_schedule_rises_stays_and_falls_to_the_end() -> None:
    optim = OptimConfig(warmup_steps=4, decay_steps=5)
    factors = [learning_rate_factor(step, 20, optim) for step in range(20)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:16] == [1.0] * 12
    assert factors[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_muon_takes_the_body_and_adam_the_rest() -> None:
    network = SRNet(NETWORK)
    optimizer = build_optimizer(network, OptimConfig(learning_rate=1e-3, adam_ratio=0.5))
    body, rest = optimizer.param_groups
    names = {id(p): name for name, p in network.named_parameters()}
    body_names = {names[id(p)] for p in body["params"]}
    rest_names = {names[id(p)] for p in rest["params"]}
    assert body_names | rest_names == set(names.values())
    assert "blocks.0.convs.0.weight" in body_names
    assert "blocks.1.attention.kv.weight" in body_names
    assert {"head.weight", "upsampler.weight", "blocks.0.convs.0.bias"} <= rest_names
    assert (body["lr"], rest["lr"]) == (1e-3, 5e-4)


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_a_few_steps_reduce_the_loss(name: str) -> None:
    torch.manual_seed(0)
    network = SRNet(NETWORK)
    optimizer = build_optimizer(network, OptimConfig(optimizer=name, learning_rate=2e-3))
    hr = torch.rand(2, 3, 1, 1).expand(2, 3, 32, 32).clone()
    hr[..., ::4] = 1 - hr[..., ::4]
    lr = torch.nn.functional.avg_pool2d(hr, 2)
    losses = []
    for _ in range(40):
        loss = (network(lr) - hr).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_losses_are_those_of_numpy() -> None:
    torch.manual_seed(0)
    sr, hr = torch.rand(2, 2, 3, 6, 8).double()
    difference = (sr - hr).numpy()
    spectrum = np.fft.fft2(difference)
    l1 = np.abs(difference).mean()
    both = np.abs([spectrum.real, spectrum.imag]).mean()
    assert restoration_loss(sr, hr, "l1").item() == pytest.approx(l1)
    assert restoration_loss(sr, hr, "mse").item() == pytest.approx((difference**2).mean())
    assert restoration_loss(sr, hr, "l1+fft").item() == pytest.approx(l1 + 0.05 * both)


@pytest.mark.parametrize("kind", ["l1", "mse", "l1+fft"])
def test_no_two_images_have_a_larger_loss_and_the_worst_come_near_it(kind) -> None:
    side = 32
    generator = torch.Generator().manual_seed(0)
    black = torch.zeros(1, 3, side, side)
    row, column = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    noise = (torch.rand(1, 3, side, side, generator=generator) < 0.5).float()
    pairs = {
        "white": (black, black + 1),
        "checkerboard": (black, black + (row + column) % 2),
        "noise": (noise, 1 - noise),  # flat spectrum of +-1
        "chirp": (black, ((row**2 + column**2) % side < side / 2).float() + black),
    }
    losses = {name: restoration_loss(*pair, kind).item() for name, pair in pairs.items()}
    assert 0.8 * largest_loss(side, kind) < max(losses.values()) <= largest_loss(side, kind)
