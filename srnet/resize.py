"""Bicubic resizing that follows MATLAB's ``imresize``, which made every published benchmark.

Kernel a = -0.5 (Keys), widened by the factor when shrinking (antialias), symmetric border (the edge
pixel is repeated), one axis after the other. MATLAB keeps the integer type between the two passes,
so a uint8 image is rounded half up and clipped after each of them; a float version with one
rounding at the end is off by up to 12.
"""

import math

import torch
from torch import Tensor

_KERNEL_WIDTH = 4.0


def imresize(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize to any size as MATLAB's ``imresize(image, [h w], 'bicubic')`` does.

    The axis that shrinks most goes first, rows when both shrink alike, as in MATLAB. A uint8 image
    is computed in float64, rounded half up and clipped to 0..255 after each pass. A float image is
    neither rounded nor clipped and passes gradients; half and bfloat16 are computed in float32.

    Args:
        image: (B, C, H, W), uint8 or floating point.
        size: height and width of the result in pixels, each at least 1.

    Returns:
        (B, C, h, w) of the same dtype and device.

    Raises:
        TypeError: the dtype is neither uint8 nor floating point.
        ValueError: the image is not 4-D, is empty, or the size is below 1x1.

    Example:
        >>> ramp = torch.arange(8, dtype=torch.uint8).mul(30).expand(1, 1, 8, 8)
        >>> imresize(ramp, (1, 4)).flatten().tolist()
        [13, 75, 135, 197]
    """
    if image.ndim != 4:
        raise ValueError(f"image has {image.ndim} dimensions, expected 4: (B, C, H, W)")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise TypeError(f"image is {image.dtype}, expected torch.uint8 or a floating point type")
    height, width = image.shape[-2:]
    if min(height, width, *size) < 1:
        raise ValueError(
            f"cannot resize {height}x{width} to {size[0]}x{size[1]}; both need at least 1x1"
        )
    axes = ((2, size[0], size[0] / height), (3, size[1], size[1] / width))
    for dim, length, _ in sorted(axes, key=lambda axis: axis[2]):
        if length != image.shape[dim]:
            image = _resize_axis(image, dim, length)
    return image


def downscale(hr: Tensor, scale: int) -> Tensor:
    """Make the low-resolution image of the benchmark protocol.

    Rows and columns beyond the last multiple of ``scale`` are first cut off at the bottom and right,
    as for the published benchmarks: the result belongs to ``hr[..., : h * scale, : w * scale]``.

    Args:
        hr: (B, C, H, W), uint8 or floating point, H and W at least ``scale``.
        scale: whole factor, at least 1.

    Returns:
        (B, C, H // scale, W // scale) of the same dtype.

    Raises:
        ValueError: the image is smaller than one low-resolution pixel.
    """
    height, width = (side // scale for side in hr.shape[-2:])
    if min(height, width) < 1:
        raise ValueError(f"image of {hr.shape[-2]}x{hr.shape[-1]} is smaller than scale {scale}")
    return imresize(hr[..., : height * scale, : width * scale], (height, width))


def upscale(lr: Tensor, scale: int) -> Tensor:
    """Enlarge by a whole factor: the bicubic row of every table.

    Args:
        lr: (B, C, H, W), uint8 or floating point.
        scale: whole factor, at least 1.

    Returns:
        (B, C, H * scale, W * scale) of the same dtype; float results may leave the input's range.
    """
    return imresize(lr, (lr.shape[-2] * scale, lr.shape[-1] * scale))


def _cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution kernel with a = -0.5; zero from |x| = 2 on."""
    x = x.abs()
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return torch.where(x <= 1, near, torch.where(x <= 2, far, torch.zeros_like(x)))


def _contributions(in_length: int, out_length: int) -> tuple[Tensor, Tensor]:
    """Weights and sources of every output pixel along one axis (MATLAB's ``contributions``).

    Returns:
        weights (taps, out_length) float64 with sum 1 over the taps; index (taps, out_length) int64.
    """
    scale = out_length / in_length
    shrink = min(scale, 1.0)
    kernel_width = _KERNEL_WIDTH / shrink
    # MATLAB counts pixels from 1; so does everything here until the last line.
    centre = torch.arange(1, out_length + 1, dtype=torch.float64) / scale + 0.5 * (1 - 1 / scale)
    first = torch.floor(centre - kernel_width / 2)
    taps = torch.arange(math.ceil(kernel_width) + 2, dtype=torch.float64)
    position = first + taps[:, None]  # (taps, out_length)
    weights = shrink * _cubic(shrink * (centre - position))
    weights = weights / weights.sum(dim=0)
    mirrored = (position.long() - 1).remainder(2 * in_length)
    index = torch.minimum(mirrored, 2 * in_length - 1 - mirrored)
    used = weights.ne(0).any(dim=1)
    return weights[used], index[used]


def _resize_axis(image: Tensor, dim: int, out_length: int) -> Tensor:
    """Resize one axis; memory stays in proportion to the result, whatever the number of taps."""
    weights, index = _contributions(image.shape[dim], out_length)
    if image.dtype == torch.uint8:
        work = torch.float64
    else:
        work = torch.promote_types(image.dtype, torch.float32)
    shape = [1, 1, 1, 1]
    shape[dim] = out_length
    weights = weights.to(image.device, work)
    index = index.to(image.device)
    result_shape = [*image.shape]
    result_shape[dim] = out_length
    result = torch.zeros(result_shape, dtype=work, device=image.device)
    for tap_weights, tap_index in zip(weights, index, strict=True):
        result.addcmul_(image.index_select(dim, tap_index).to(work), tap_weights.view(shape))
    if image.dtype == torch.uint8:
        return result.add_(0.5).floor_().clamp_(0, 255).to(torch.uint8)
    return result.to(image.dtype)
