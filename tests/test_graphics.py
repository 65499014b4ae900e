import itertools

import pytest
import torch
import torch.nn.functional as F

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
    """Single pixels in all pairs of the cube's corners, (56 * 3, 3, 24, 24)."""
    y, x = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    corners = torch.tensor(list(itertools.product((0.0, 1.0), repeat=3)))
    return torch.stack(
        [
            torch.where(mask, a[:, None, None], b[:, None, None])
            for a, b in itertools.permutations(corners, 2)
            for mask in (x % 2 == 0, (x + y) % 2 == 0, (x - 12) ** 2 + (y - 12) ** 2 < 3)
        ]
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_do_not_fail_on_single_pixels_in_strong_colours(name):
    network = load_checkpoint(name).network.eval()
    lr = patterns()
    with torch.inference_mode():
        sr = network(lr)
    around = [F.max_pool2d(sign * lr, 5, 1, 2) for sign in (1, -1)]
    high, low = (F.interpolate(a, scale_factor=network.scale) for a in around)
    assert max((sr - high).max().item(), (-low - sr).max().item()) < 0.5


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_checkpoints_are_better_than_bicubic_on_drawn_pictures(name):
    network = load_checkpoint(name).network.eval()
    scale = network.scale
    gains = []
    for seed in range(1000, 1003):
        hr = drawn(seed, side=240)[None]
        lr = downscale(hr, scale)
        with torch.inference_mode():
            sr = network(lr.float() / 255)
        scores = [
            psnr_y(image, hr.float() / 255, scale)
            for image in (sr, upscale(lr, scale).float() / 255)
        ]
        gains.append((scores[0] - scores[1]).item())
    assert min(gains) > 0, gains
