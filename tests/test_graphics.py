import itertools

import pytest
import torch

from srnet import inference
from srnet.checkpoint import load_checkpoint, shipped_models
from srnet.graphics import draw_graphics
from srnet.metrics import psnr_y
from srnet.resize import downscale, upscale

SHIPPED = [model.name for model in shipped_models()]


def drawn(seed, side=256):
    return draw_graphics(side, torch.Generator().manual_seed(seed))


def test_the_picture_depends_on_the_generator_alone():
    torch.manual_seed(1)
    first = drawn(5)
    torch.manual_seed(2)
    assert torch.equal(drawn(5), first)
    assert not torch.equal(drawn(6), first)
    assert (first.dtype, first.shape) == (torch.uint8, (3, 256, 256))
    assert drawn(5, side=97).shape == (3, 97, 97)


def shares(hr):
    """Of LR's pixels: those of a saturated colour, and those far from both neighbours of their row."""
    lr = downscale(hr, 4).int()
    step = lr.diff(dim=-1)
    lonely = (step[..., 1:] * step[..., :-1] < -(100**2)).any(1)
    strong = (lr.amin(1) == 0) & (lr.amax(1) == 255)
    return [share.float().mean().item() for share in (strong, lonely)]


def test_pictures_hold_what_photographs_lack(photo):
    hr = torch.from_numpy(photo("astronaut").copy()).permute(2, 0, 1)[None]
    ours = shares(torch.stack([drawn(seed) for seed in range(6)]))
    theirs = shares(hr)
    assert all(a > 10 * b for a, b in zip(ours, theirs, strict=True))


def patterns():
    """Pixel art in all pairs of the colour cube's corners: single pixels and small squares, (56 * 4, 3, 24, 24)."""
    y, x = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    corners = torch.tensor(list(itertools.product((0, 255), repeat=3)), dtype=torch.uint8)
    stripes, dot = x % 2 == 0, (x - 12) ** 2 + (y - 12) ** 2 < 3
    chequers = [(x // n + y // n) % 2 == 0 for n in (1, 2)]
    return torch.stack(
        [
            torch.where(mask, a[:, None, None], b[:, None, None])
            for a, b in itertools.permutations(corners, 2)
            for mask in (stripes, dot, *chequers)
        ]
    )


def errors(network, lr):
    """Mean squared errors of a network and of bicubic on pixel art, and the network's largest value, each (n,)."""
    scale = network.scale
    inner = (..., *[slice(4 * scale, -4 * scale)] * 2)
    true = patterns().repeat_interleave(scale, 2).repeat_interleave(scale, 3)[inner].float() / 255
    with torch.inference_mode():
        sr = network(lr.float() / 255)
    results = (sr.clamp(0, 1), upscale(lr, scale).float() / 255)
    ours, theirs = ((result[inner] - true).pow(2).mean((1, 2, 3)) for result in results)
    return ours, theirs, sr.sub(0.5).abs().amax((1, 2, 3))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_restore_pixel_art_better_than_bicubic(name):
    network = load_checkpoint(name).network.eval()
    enlarged = patterns().repeat_interleave(network.scale, 2).repeat_interleave(network.scale, 3)
    ours, theirs, largest = errors(network, downscale(enlarged, network.scale))
    assert (ours <= theirs).all()
    assert largest.max().item() < 2


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_enlarge_pixel_art_better_than_bicubic(name):
    """Contrasts that no shrunk image has: those trained on photographs alone were 15 dB below bicubic here."""
    ours, theirs, largest = errors(load_checkpoint(name).network.eval(), patterns())
    assert (10 * (theirs / ours).log10()).min() > 2
    assert (ours < theirs / 2).float().mean() > 0.8
    assert largest.max() < 0.5 + inference._FARTHEST


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_are_better_than_bicubic_on_drawn_pictures(name):
    network = load_checkpoint(name).network.eval()
    scale = network.scale
    for seed in range(1000, 1003):
        hr = drawn(seed, side=240)[None]
        lr = downscale(hr, scale)
        with torch.inference_mode():
            sr = network(lr.float() / 255)
        bicubic = upscale(lr, scale).float() / 255
        ours, theirs = (psnr_y(image, hr.float() / 255, scale).item() for image in (sr, bicubic))
        assert ours > theirs + 0.5
