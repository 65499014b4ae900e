"""PSNR and SSIM as super-resolution papers report them: 8-bit images, border cropped, one value each.

Inputs are clipped to [0, 1] and rounded to 8 bit here, once, so callers pass what the network gives.
Sums run in float64. SSIM follows Wang et al. 2004: an 11x11 Gaussian window with standard deviation 1.5,
K1 = 0.01, K2 = 0.03, averaged where the window lies wholly inside the image, as MATLAB's ``ssim_index`` does.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from srnet.color import rgb_to_y

_WINDOW = 11
_SIGMA = 1.5
_PEAK = 255.0


def psnr(sr: Tensor, hr: Tensor, crop_border: int) -> Tensor:
    """Peak signal-to-noise ratio over the three RGB channels.

    Args:
        sr: (B, 3, H, W), floating point, [0, 1] and beyond.
        hr: (B, 3, H, W), floating point, [0, 1].
        crop_border: HR pixels cut off on each side before measuring; the protocol uses the scale.

    Returns:
        (B,) float64, dB; infinite where the 8-bit images are equal.

    Raises:
        ValueError: shapes differ or are not (B, 3, H, W), or the crop leaves nothing.
    """
    return _psnr(*_prepare(sr, hr, crop_border))


def psnr_y(sr: Tensor, hr: Tensor, crop_border: int) -> Tensor:
    """Peak signal-to-noise ratio of the BT.601 studio-swing luma, peak 255; see `psnr`.

    Args:
        sr: (B, 3, H, W), floating point, [0, 1] and beyond.
        hr: (B, 3, H, W), floating point, [0, 1].
        crop_border: HR pixels cut off on each side before measuring; the protocol uses the scale.

    Returns:
        (B,) float64, dB; infinite where the 8-bit images are equal.

    Raises:
        ValueError: shapes differ or are not (B, 3, H, W), or the crop leaves nothing.
    """
    sr, hr = _prepare(sr, hr, crop_border)
    return _psnr(_luma(sr), _luma(hr))


def ssim_y(sr: Tensor, hr: Tensor, crop_border: int) -> Tensor:
    """Structural similarity of the BT.601 studio-swing luma, data range 255.

    Args:
        sr: (B, 3, H, W), floating point, [0, 1] and beyond.
        hr: (B, 3, H, W), floating point, [0, 1].
        crop_border: HR pixels cut off on each side before measuring; the protocol uses the scale.

    Returns:
        (B,) float64, at most 1; NaN where a side is below 11 pixels after the crop, since no window fits.

    Raises:
        ValueError: shapes differ or are not (B, 3, H, W), or the crop leaves nothing.
    """
    sr, hr = _prepare(sr, hr, crop_border)
    if min(hr.shape[-2:]) < _WINDOW:
        return torch.full((hr.shape[0],), torch.nan, dtype=torch.float64, device=hr.device)
    x, y = _luma(sr), _luma(hr)
    mean_x, mean_y = _blur(x), _blur(y)
    var_x = _blur(x * x) - mean_x * mean_x
    var_y = _blur(y * y) - mean_y * mean_y
    cov = _blur(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * _PEAK) ** 2, (0.03 * _PEAK) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x * mean_x + mean_y * mean_y + c1)
    contrast = (2 * cov + c2) / (var_x + var_y + c2)
    return (luminance * contrast).mean(dim=(1, 2, 3))


def _prepare(sr: Tensor, hr: Tensor, crop_border: int) -> tuple[Tensor, Tensor]:
    """Check, crop and round both images; results are float64 whole numbers in 0..255."""
    if sr.shape != hr.shape:
        raise ValueError(
            f"sr is {tuple(sr.shape)} but hr is {tuple(hr.shape)}; sizes must be equal"
        )
    if hr.ndim != 4 or hr.shape[1] != 3:
        raise ValueError(f"images have shape {tuple(hr.shape)}, expected (B, 3, H, W)")
    height, width = hr.shape[-2:]
    if crop_border < 0 or min(height, width) <= 2 * crop_border:
        raise ValueError(
            f"crop_border {crop_border} leaves nothing of {height}x{width} pixels; "
            f"use 0 to {(min(height, width) - 1) // 2}"
        )
    inside = slice(crop_border, height - crop_border), slice(crop_border, width - crop_border)
    return _to_8bit(sr[..., inside[0], inside[1]]), _to_8bit(hr[..., inside[0], inside[1]])


def _to_8bit(image: Tensor) -> Tensor:
    """Map [0, 1] to whole numbers in 0..255, rounding half up, in float64."""
    return image.double().clamp(0, 1).mul(_PEAK).add(0.5).floor()


def _luma(image: Tensor) -> Tensor:
    """Luma of a 0..255 image, in 16..235."""
    return rgb_to_y(image / _PEAK) * _PEAK


def _psnr(x: Tensor, y: Tensor) -> Tensor:
    """PSNR per image of (B, C, H, W) in 0..255; a zero error divides to infinity."""
    error = (x - y).square().mean(dim=(1, 2, 3))
    return 10 * torch.log10(_PEAK**2 / error)


def _blur(image: Tensor) -> Tensor:
    """Gaussian window over (B, 1, H, W) -> (B, 1, H - 10, W - 10), one axis after the other."""
    offset = torch.arange(_WINDOW, dtype=image.dtype, device=image.device) - _WINDOW // 2
    window = torch.exp(-offset.square() / (2 * _SIGMA**2))
    window = window / window.sum()
    image = F.conv2d(image, window.view(1, 1, -1, 1))
    return F.conv2d(image, window.view(1, 1, 1, -1))
