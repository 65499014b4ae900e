"""The network: sizes, scales, receptive field, initial state."""

import pytest
import torch

from srnet.config import NetworkConfig
from srnet.diagnostics import projection_statistics
from srnet.network import SRNet
from srnet.resize import upscale

SMALL = {
    "embed_dim": 16,
    "num_blocks": 2,
    "num_heads": 2,
    "region_size": 16,
    "top_k": 8,
    "attention_blocks": (1,),
}


def network(scale: int = 2, **changes: object) -> SRNet:
    torch.manual_seed(0)
    net = SRNet(NetworkConfig(scale=scale, **SMALL | changes))
    for module in net.modules():
        if hasattr(module, "out"):  # attention starts at zero; give it something to say
            torch.nn.init.normal_(module.out.weight, std=0.2)
    return net.eval()


@pytest.mark.parametrize("scale", [2, 3, 4])
@pytest.mark.parametrize("size", [(1, 1), (7, 5), (3, 40), (16, 24)])
def test_output_size(scale: int, size: tuple[int, int]) -> None:
    out = network(scale)(torch.rand(2, 3, *size))
    assert out.shape == (2, 3, size[0] * scale, size[1] * scale)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_skip_is_matlab_bicubic(scale: int) -> None:
    """Inside, where border rules do not reach, the skip equals imresize."""
    lr = torch.rand(1, 3, 12, 14, dtype=torch.float64)
    net = network(scale).double()
    skip = torch.nn.functional.pixel_shuffle(net.bicubic_skip(lr), scale)
    inner = (..., slice(2 * scale, -2 * scale), slice(2 * scale, -2 * scale))
    torch.testing.assert_close(skip[inner], upscale(lr, scale)[inner], atol=1e-6, rtol=0)


def test_receptive_field_is_enough() -> None:
    """No pixel beyond receptive_field changes the output; measured with gradients."""
    net = network()
    reach = net.receptive_field
    size = 2 * reach + 24
    lr = torch.rand(1, 3, size, size, requires_grad=True)
    y, x = reach + 11, reach + 8  # x on the first column of a group, y inside one
    net(lr)[0, :, 2 * y, 2 * x].sum().backward()
    rows, columns = lr.grad[0].abs().sum(0).nonzero().unbind(1)
    spread = max((rows - y).abs().max(), (columns - x).abs().max()).item()
    assert spread <= reach
    assert (
        spread > net.config.num_blocks * net.config.convs_per_block + 3
    )  # attention sees beyond the convolutions


def test_every_parameter_receives_a_gradient() -> None:
    net = network()
    net(torch.rand(1, 3, 24, 24)).square().sum().backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_unit_variance_at_initialisation_and_the_alarm() -> None:
    torch.manual_seed(3)
    net = SRNet(NetworkConfig(scale=4, attention_blocks=(1, 3, 5)))
    lr = torch.rand(1, 3, 48, 48)
    statistics = projection_statistics(net, lr)
    assert len(statistics) == 3
    assert all(s.unit_variance for s in statistics)
    attention = net.blocks[3].attention
    attention.q.weight.data.mul_(1.15)
    assert [s.unit_variance for s in projection_statistics(net, lr)] == [True, False, True]


def test_bfloat16_stays_finite() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        out = network()(torch.rand(1, 3, 20, 20))
    assert torch.isfinite(out).all()
