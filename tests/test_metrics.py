"""Colour, PSNR and SSIM against closed forms and scikit-image."""

import math

import numpy as np
import pytest
import skimage.color
import skimage.metrics
import torch

from srnet.color import rgb_to_y
from srnet.metrics import psnr, psnr_y, ssim_y


def constant(value: float, size: int = 24) -> torch.Tensor:
    return torch.full((1, 3, size, size), value / 255)


def noisy(photo_tensor, name: str, amount: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    hr = photo_tensor(name)[..., :91, :87]
    noise = torch.randint(-amount, amount + 1, hr.shape, generator=torch.Generator().manual_seed(0))
    return (hr * 255 + noise).clamp(0, 255).round() / 255, hr


def test_luma_is_that_of_scikit_image(photo) -> None:
    pixels = photo("coffee")[:40, :50]
    expected = skimage.color.rgb2ycbcr(pixels)[..., 0]
    tensor = torch.tensor(pixels).permute(2, 0, 1)[None].double() / 255
    np.testing.assert_allclose(rgb_to_y(tensor)[0, 0].numpy() * 255, expected, atol=1e-9)


def test_closed_forms() -> None:
    a, b = constant(100), constant(110)
    assert psnr(a, b, 4).item() == pytest.approx(28.1308, abs=5e-5)
    assert psnr_y(a, b, 4).item() == pytest.approx(29.4527, abs=5e-5)


def test_errors_inside_the_border_do_not_count() -> None:
    a, b = constant(100), constant(100)
    b[..., :4, :] = 1
    b[..., -1] = 0
    assert psnr_y(a, b, 4).item() == math.inf
    assert psnr_y(a, b, 3).item() < 30


def test_values_are_per_image_and_their_mean_is_not_the_pooled_one() -> None:
    a = constant(100).repeat(2, 1, 1, 1)
    b = torch.cat([constant(110), constant(101)])  # MSE 100 and 1
    values = psnr(a, b, 0)
    assert values.tolist() == pytest.approx([28.1308, 48.1308], abs=5e-5)
    assert values.mean().item() == pytest.approx(38.1308, abs=5e-5)


def test_input_is_rounded_to_8_bits_once() -> None:
    b = constant(100)
    assert psnr(constant(100.49), b, 0).item() == math.inf
    assert psnr(constant(100.51), b, 0).item() == pytest.approx(48.1308, abs=5e-5)
    assert psnr(constant(400), constant(255), 0).item() == math.inf  # clamped


@pytest.mark.parametrize("border", [0, 3])
def test_psnr_is_that_of_scikit_image(photo_tensor, border: int) -> None:
    sr, hr = noisy(photo_tensor, "chelsea")
    inner = slice(border, -border or None)
    x, y = (
        (t[0, :, inner, inner] * 255).round().permute(1, 2, 0).numpy().astype(np.uint8)
        for t in (sr, hr)
    )
    expected = skimage.metrics.peak_signal_noise_ratio(y, x)
    assert psnr(sr, hr, border).item() == pytest.approx(expected, abs=1e-9)
    luma = [skimage.color.rgb2ycbcr(t)[..., 0] for t in (x, y)]
    expected = skimage.metrics.peak_signal_noise_ratio(luma[1], luma[0], data_range=255)
    assert psnr_y(sr, hr, border).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("border", [0, 4])
def test_ssim_is_that_of_scikit_image(photo_tensor, border: int) -> None:
    sr, hr = noisy(photo_tensor, "astronaut", 30)
    inner = slice(border, -border or None)
    x, y = (
        skimage.color.rgb2ycbcr(
            (t[0, :, inner, inner] * 255).round().permute(1, 2, 0).numpy().astype(np.uint8)
        )[..., 0]
        for t in (sr, hr)
    )
    _, full = skimage.metrics.structural_similarity(
        x,
        y,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=255,
        full=True,
    )
    assert ssim_y(sr, hr, border).item() == pytest.approx(full[5:-5, 5:-5].mean(), abs=1e-8)


def test_ssim_of_equal_and_of_tiny_images() -> None:
    a = torch.rand(1, 3, 20, 20)
    assert ssim_y(a, a, 0).item() == pytest.approx(1)
    assert math.isnan(ssim_y(a, a, 5).item())  # 10 pixels are left, the window has 11


def test_wrong_input_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"\(1, 3, 24, 24\).*\(1, 3, 20, 20\)"):
        psnr_y(constant(1), constant(1, 20), 0)
    with pytest.raises(ValueError, match="crop_border 12 leaves nothing of 24x24"):
        psnr_y(constant(1), constant(1), 12)
