"""The luma that super-resolution papers measure: MATLAB's ``rgb2ycbcr``, BT.601 studio swing."""

from torch import Tensor

_WEIGHTS = (65.481, 128.553, 24.966)
_OFFSET = 16.0


def rgb_to_y(rgb: Tensor) -> Tensor:
    """Convert RGB to Y = (16 + 65.481 R + 128.553 G + 24.966 B) / 255, not rounded.

    Black is 16/255 and white 235/255. The full-range luma of other libraries reads 1.32 dB lower.

    Args:
        rgb: (B, 3, H, W), floating point, [0, 1].

    Returns:
        (B, 1, H, W) of the same dtype, [16/255, 235/255].

    Raises:
        ValueError: the shape is not (B, 3, H, W).

    Example:
        >>> import torch
        >>> round(rgb_to_y(torch.ones(1, 3, 1, 1)).item() * 255, 3)
        235.0
    """
    if rgb.ndim != 4 or rgb.shape[1] != 3:
        raise ValueError(f"rgb has shape {tuple(rgb.shape)}, expected (B, 3, H, W)")
    red, green, blue = rgb[:, 0:1], rgb[:, 1:2], rgb[:, 2:3]
    weighted: Tensor = _WEIGHTS[0] * red + _WEIGHTS[1] * green + _WEIGHTS[2] * blue
    return (weighted + _OFFSET) / 255.0
