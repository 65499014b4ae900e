import dataclasses
import math

import pytest
import torch
from PIL import Image

from srnet.config import DegradationConfig
from srnet.degradation import MARGIN, compress, degrade_patches, fixed_quality, gaussian_kernel
from srnet.errors import ConfigError
from srnet.images.decode import read_rgb8
from srnet.resize import downscale

SCALE, SIDE = 4, 24
NOTHING = DegradationConfig(clean=0, remade=0, noise_share=0, jpeg_share=0)


def patches(photo_tensor, count=12):
    """HR patches of a photograph and their bicubic LR, as large as a margin needs."""
    image = photo_tensor("coffee").mul(255).byte()[0]
    size = (SIDE + MARGIN) * SCALE
    hr = torch.stack(
        [image[:, 20 * i : 20 * i + size, 30 * i : 30 * i + size] for i in range(count)]
    )
    return downscale(hr, SCALE), hr


def spoil(lr, hr, seed=0, **settings):
    config = dataclasses.replace(NOTHING, **settings)
    return degrade_patches(lr, hr, SCALE, config, torch.Generator().manual_seed(seed))


def test_a_seed_gives_the_same_bits_and_another_seed_others(photo_tensor):
    lr, hr = patches(photo_tensor)
    everything = dataclasses.asdict(DegradationConfig(clean=0.1, remade=0.5, noise_share=0.5))
    first, again, other = (spoil(lr, hr, seed, **everything) for seed in (3, 3, 4))
    assert all(map(torch.equal, first, again))
    assert not torch.equal(first[0], other[0])
    assert first[0].shape == (len(lr), 3, SIDE, SIDE)
    assert first[1].shape == (len(lr), 3, SIDE * SCALE, SIDE * SCALE)
    assert {t.dtype for t in first} == {torch.uint8}


def test_lr_and_hr_are_cut_at_the_same_place():
    side = SIDE + MARGIN
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    lr = torch.stack([y, x, y]).byte().expand(8, -1, -1, -1)  # every pixel says where it is
    hr = lr.repeat_interleave(SCALE, -1).repeat_interleave(SCALE, -2)
    cut, cut_hr = spoil(lr, hr, clean=1.0)
    assert torch.equal(cut, cut_hr[:, :, ::SCALE, ::SCALE])
    assert len({tuple(patch[:, 0, 0].tolist()) for patch in cut}) > 4  # not always the same place


def centre(image):
    """Centre of mass of each image, in units of its side."""
    mass = image.double().mean(1)
    position = (torch.arange(mass.shape[-1]).double() + 0.5) / mass.shape[-1]
    total = mass.sum((1, 2))
    return torch.stack([(mass.sum(2) @ position) / total, (mass.sum(1) @ position) / total])


def test_no_kernel_moves_the_picture():
    size = (SIDE + MARGIN) * SCALE
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    blob = 250 * torch.exp(-((y - 0.5 * size) ** 2 + (x - 0.45 * size) ** 2) / (2 * 9.0**2))
    hr = blob.byte().expand(40, 3, -1, -1)
    lr, cut = spoil(downscale(hr, SCALE), hr, remade=1.0, blur=(0.5, 1.5))
    assert (centre(lr) - centre(cut)).abs().max() * SIDE < 0.06  # LR pixels
    assert (lr.float() - downscale(cut, SCALE).float()).abs().mean() > 0.5  # yet they do change it


def test_noise_has_the_asked_for_strength(photo_tensor):
    lr, hr = patches(photo_tensor)
    grey = torch.full_like(lr, 128)
    noisy, _ = spoil(grey, hr, noise_share=1.0, noise=(6.0, 6.0))
    noise = noisy.float() - 128
    assert noise.std().item() == pytest.approx(6.0, rel=0.03)
    alike = [(patch[0] == patch[1]).all().item() for patch in noise]
    assert 0 < sum(alike) < len(alike)  # some grey, some coloured


def test_jpeg_quality_keeps_to_its_range(photo_tensor):
    lr, hr = patches(photo_tensor)

    def error(**settings):
        spoilt, cut_hr = spoil(lr, hr, **settings)
        return (spoilt.float() - downscale(cut_hr, SCALE).float())[:, :, 2:-2, 2:-2].abs().mean()

    coarse = error(jpeg_share=1.0, jpeg_quality=(20, 30))
    fine = error(jpeg_share=1.0, jpeg_quality=(85, 95))
    assert error() == 0
    assert coarse > 1.5 * fine > 1.0


def test_compress_is_what_a_file_would_hold(photo, tmp_path):
    pixels = photo("chelsea")[:50, :61]
    Image.fromarray(pixels).save(tmp_path / "a.jpg", quality=55, subsampling=2)
    expected = torch.tensor(read_rgb8(tmp_path / "a.jpg"))  # decoded by libvips
    made = compress(torch.tensor(pixels).permute(2, 0, 1), 55).permute(1, 2, 0)
    assert (made.float() - expected.float()).abs().mean() < 0.2
    assert (made.float() - torch.tensor(pixels).float()).abs().mean() > 1.5


@pytest.mark.parametrize("angle", [0.0, 0.6, 2.0])
def test_kernel_has_the_asked_for_spread(angle):
    kernel = gaussian_kernel(3.0, 1.2, angle)
    radius = kernel.shape[0] // 2
    offset = torch.arange(-radius, radius + 1).float()
    y, x = torch.meshgrid(offset, offset, indexing="ij")
    found = torch.tensor([[(kernel * a * b).sum() for b in (x, y)] for a in (x, y)])
    turn = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    expected = turn @ torch.diag(torch.tensor([9.0, 1.44])) @ turn.T
    assert torch.allclose(found, expected, rtol=0.12, atol=0.35)  # cut at 2.5 standard deviations
    assert kernel.sum().item() == pytest.approx(1.0, abs=1e-5)


def test_fixed_quality_fills_its_range_and_depends_on_the_name_alone():
    drawn = [fixed_quality(f"image{i}", (40, 80)) for i in range(1000)]
    assert set(drawn) == set(range(40, 81))
    assert drawn == [fixed_quality(f"image{i}", (40, 80)) for i in range(1000)]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"clean": 1.5}, "clean is 1.5; use 0 to 1"),
        ({"noise": (5, 2)}, r"noise is \[5, 2\]"),
        ({"jpeg_quality": (0, 50)}, "from 1 to 100"),
        ({"blur": (-1, 1)}, "from 0 to 4"),
    ],
)
def test_impossible_settings_are_refused(settings, text):
    with pytest.raises(ConfigError, match=text):
        DegradationConfig(**settings)
