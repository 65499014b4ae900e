"""Which input pixels a patch of the output depends on: local attribution maps.

"Interpreting Super-Resolution Networks with Local Attribution Maps" (Gu & Dong, CVPR 2021): the change of the patch's
gradients is followed along a path from a blurred input to the sharp one, and credited to the input pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from srnet.network import SRNet

_SIDE = 96  # LR pixels of the window that is followed
_BLUR = 4.0  # standard deviation of the blur at the start of the path, LR pixels


@dataclass(frozen=True)
class Attribution:
    """Result of local_attribution; positions are LR pixels of the image.

    Attributes:
        left: First column of the window.
        top: First row of the window.
        values: Credit of each pixel of the window, from 0, (h, w).
        patch: First column, first row and side of the patch.
        diffusion: Diffusion index, 100 (1 - Gini coefficient) of the values: near 0 when one pixel has all the credit,
            100 when all have the same.
    """

    left: int
    top: int
    values: Tensor
    patch: tuple[int, int, int]
    diffusion: float


def local_attribution(
    network: SRNet, lr: Tensor, column: int, row: int, *, side: int = 4, steps: int = 8
) -> Attribution:
    """Credits input pixels for a patch of the output.

    Args:
        network: The network; left as it was.
        lr: RGB in [0, 1], (1, 3, H, W).
        column: Column of the patch's centre, LR pixels.
        row: Row of the patch's centre, LR pixels.
        side: Side of the patch, LR pixels.
        steps: Points on the path.
    """
    height, width = lr.shape[2:]
    g = network.group_size
    left, top = (
        max(0, min(centre - _SIDE // 2, length - _SIDE)) // g * g
        for centre, length in ((column, width), (row, height))
    )
    sharp = lr[:, :, top : top + _SIDE, left : left + _SIDE]
    x = max(0, min(column - left - side // 2, sharp.shape[3] - side))
    y = max(0, min(row - top - side // 2, sharp.shape[2] - side))
    s = network.scale
    credit = torch.zeros_like(sharp)
    before = _blur(sharp, _BLUR)
    for i in range(1, steps + 1):
        after = _blur(sharp, _BLUR * (1 - i / steps))
        point = ((before + after) / 2).requires_grad_()
        with torch.enable_grad():
            sr = network(point).mean(1)[0, y * s : (y + side) * s, x * s : (x + side) * s]
            detail = sr.diff(dim=0).abs().sum() + sr.diff(dim=1).abs().sum()
            (slope,) = torch.autograd.grad(detail, point)
        credit += slope * (after - before)
        before = after
    values = credit.abs().sum(1)[0]
    return Attribution(left, top, values, (left + x, top + y, side), diffusion_index(values))


def diffusion_index(values: Tensor) -> float:
    """100 (1 - Gini coefficient) of values from 0.

    >>> diffusion_index(torch.ones(2, 2))
    100.0
    >>> diffusion_index(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    25.0
    """
    ordered = values.double().flatten().sort().values
    n, total = len(ordered), float(ordered.sum())
    if total == 0:
        return 100.0
    rank = torch.arange(1, n + 1, dtype=torch.float64, device=values.device)
    gini = float((ordered * (2 * rank - n - 1)).sum()) / (n * total)
    return 100 * (1 - gini)


def _blur(image: Tensor, deviation: float) -> Tensor:
    """Gaussian blur with repeated borders."""
    if deviation <= 0:
        return image
    radius = int(3 * deviation + 1)
    offset = torch.arange(-radius, radius + 1, dtype=image.dtype, device=image.device)
    kernel = torch.exp(-0.5 * (offset / deviation) ** 2)
    kernel = (kernel / kernel.sum()).expand(3, 1, 1, -1)
    padded = F.pad(image, (radius, radius, radius, radius), mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel, groups=3), kernel.transpose(2, 3), groups=3)
