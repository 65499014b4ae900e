"""Low-resolution images as cameras and web sites leave them: blurred, shrunk by some kernel, noisy, compressed.

The idea of drawing the kind, order and strength of every step anew for each training patch is that of BSRGAN
(https://arxiv.org/abs/2103.14006). Blur is kornia's. JPEG is libjpeg's, through Pillow: kornia's differentiable codec
rounds softly, which leaves 0.5 to 0.7 dB more of an image than any real file of that quality holds, and a network
would learn to read it.
"""

from __future__ import annotations

import hashlib
import math
from io import BytesIO

import torch
import torch.nn.functional as F
from torch import Tensor

from srnet.config import DegradationConfig

MARGIN = 8
"""LR pixels by which a patch must be larger than what is wanted, so that JPEG's grid can lie anywhere in it."""

_SHRINKERS = ("bicubic", "bilinear", "area")


def degrade_patches(
    lr: Tensor, hr: Tensor, scale: int, config: DegradationConfig, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Spoils each LR patch in its own way and cuts the margin off both.

    Args:
        lr: (B, 3, p + MARGIN, p + MARGIN) uint8, bicubic LR.
        hr: (B, 3, (p + MARGIN) * scale, (p + MARGIN) * scale) uint8.
        scale: Enlargement factor.
        config: Kinds, shares and strengths.
        generator: CPU generator; the result depends on its state alone.

    Returns:
        LR (B, 3, p, p) and HR (B, 3, p * scale, p * scale), uint8, contiguous.
    """
    side = lr.shape[-1] - MARGIN
    lrs, hrs = [], []
    for one_lr, one_hr in zip(lr, hr, strict=True):
        spoilt = _degrade(one_lr, one_hr, scale, config, generator)
        top, left = torch.randint(MARGIN + 1, (2,), generator=generator).tolist()
        lrs.append(spoilt[:, top : top + side, left : left + side])
        top, left, height = top * scale, left * scale, side * scale
        hrs.append(one_hr[:, top : top + height, left : left + height])
    return torch.stack(lrs), torch.stack(hrs)


def _degrade(
    lr: Tensor, hr: Tensor, scale: int, config: DegradationConfig, generator: torch.Generator
) -> Tensor:
    """One patch: uint8 LR (3, h, w) and HR (3, h * scale, w * scale) to a spoilt LR (3, h, w)."""

    def happens(share: float) -> bool:
        return torch.rand((), generator=generator).item() < share

    if happens(config.clean):
        return lr
    image = lr.float()
    if happens(config.remade):
        image = hr.float()
        for step in torch.randperm(4, generator=generator).tolist():
            if step == 0:
                image = _shrink(image, lr.shape[-1], generator)
            elif step == 1:
                image = _blur(image, image.shape[-1] / lr.shape[-1], config.blur, generator)
            elif step == 2 and happens(config.noise_share):
                image = _noise(image, config.noise, generator)
            elif step == 3 and happens(config.jpeg_share / 2):
                # compressed twice is what most pictures of the web are
                image = _random_jpeg(image, config.jpeg_quality, generator)
    elif happens(config.noise_share):
        image = _noise(image, config.noise, generator)
    if happens(config.jpeg_share):
        image = _random_jpeg(image, config.jpeg_quality, generator)
    return _rounded(image)


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator).item()


def _rounded(image: Tensor) -> Tensor:
    return image.add(0.5).floor_().clamp_(0, 255).to(torch.uint8)


def _shrink(image: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """(3, H, W) to (3, side, side) by a random kernel, half the time by way of a size in between."""
    sides = [side]
    if torch.rand((), generator=generator).item() < 0.5:
        sides.insert(0, round(_uniform(side, image.shape[-1], generator)))
    for target in sides:
        kernel = _SHRINKERS[int(torch.randint(len(_SHRINKERS), (), generator=generator))]
        # none of the kernels moves the picture: LR must stay where HR is
        image = F.interpolate(
            image[None], size=(target, target), mode=kernel, antialias=kernel != "area"
        )[0]
    return image


def gaussian_kernel(across: float, along: float, angle: float) -> Tensor:
    """Weights of a blur that is wider along one axis.

    Args:
        across: Standard deviation along the first axis, pixels, above 0.
        along: Standard deviation along the second.
        angle: Of the first axis against the rows, radians.

    Returns:
        (k, k) float32 with sum 1; k is odd and covers 2.5 standard deviations.
    """
    radius = max(1, math.ceil(2.5 * max(across, along)))
    offset = torch.arange(-radius, radius + 1, dtype=torch.float32)
    y, x = torch.meshgrid(offset, offset, indexing="ij")
    u = math.cos(angle) * x + math.sin(angle) * y
    v = -math.sin(angle) * x + math.cos(angle) * y
    weights = torch.exp(-0.5 * ((u / across) ** 2 + (v / along) ** 2))
    return weights / weights.sum()


def _blur(
    image: Tensor, ratio: float, limits: tuple[float, float], generator: torch.Generator
) -> Tensor:
    """Blurs (3, H, W); `ratio` is its pixels per LR pixel, `limits` are LR pixels."""
    from kornia.filters import filter2d

    across = ratio * max(0.05, _uniform(*limits, generator))
    round_ = torch.rand((), generator=generator).item() < 0.5
    along = across if round_ else ratio * max(0.05, _uniform(*limits, generator))
    kernel = gaussian_kernel(across, along, _uniform(0, math.pi, generator))
    blurred: Tensor = filter2d(image[None], kernel[None], border_type="replicate")
    return blurred[0]


def _noise(image: Tensor, limits: tuple[float, float], generator: torch.Generator) -> Tensor:
    """Adds Gaussian noise to (3, H, W), levels of 255; half the time the same to every channel."""
    channels = 1 if torch.rand((), generator=generator).item() < 0.5 else 3
    noise = torch.randn(channels, *image.shape[-2:], generator=generator)
    return image + noise * _uniform(*limits, generator)


def _random_jpeg(image: Tensor, limits: tuple[int, int], generator: torch.Generator) -> Tensor:
    low, high = limits
    quality = int(torch.randint(low, high + 1, (), generator=generator))
    # most files halve the colours' resolution
    subsampling = 0 if torch.rand((), generator=generator).item() < 0.25 else 2
    return compress(_rounded(image), quality, subsampling=subsampling).float()


def compress(image: Tensor, quality: int, *, subsampling: int = 2) -> Tensor:
    """What is left of an image after it was a JPEG file.

    Args:
        image: (3, H, W) uint8.
        quality: 1 to 100, as libjpeg counts it.
        subsampling: 0 for 4:4:4, 2 for 4:2:0.

    Returns:
        (3, H, W) uint8.
    """
    import numpy as np
    from PIL import Image

    file = BytesIO()
    pixels = image.permute(1, 2, 0).contiguous().numpy()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality, subsampling=subsampling)
    with Image.open(file) as decoded:
        return torch.from_numpy(np.array(decoded)).permute(2, 0, 1).contiguous()


def fixed_quality(name: str, limits: tuple[int, int]) -> int:
    """JPEG quality of one validation image: drawn uniformly from the range, by its name alone.

    Example:
        >>> [fixed_quality(name, (40, 80)) for name in ("baby", "bird", "butterfly")]
        [59, 54, 62]
    """
    low, high = limits
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    return low + number % (high - low + 1)
