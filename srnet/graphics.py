"""Drawn pictures for training: hard edges, single pixels, saturated colours, text.

Photographs hold few of them, and a network that has seen photographs alone may answer with values far out of range:
patterns of single pixels in strong colours are where its convolutions amplify each other unchecked. Screenshots,
pixel art and dithered pictures are full of such patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Sides in pixels, those drawn more often repeated; at scale s, cells of s are single pixels of LR.
_CELLS = (1, 2, 2, 3, 3, 4, 4, 4, 6, 8, 8, 12)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.,:;!?()[]/+-=%&@#"
_FINE = 4  # shapes are drawn this many times as large and averaged


def draw_graphics(side: int, generator: torch.Generator) -> Tensor:
    """Draws a picture of square fields, each with a pattern of its own.

    Args:
        side: Width and height, pixels.
        generator: CPU generator; the picture depends on its state alone.

    Returns:
        RGB, (3, side, side) uint8.
    """
    field = (32, 64, 128)[_number(3, generator)]
    picture = torch.empty(3, side, side)
    for top in range(0, side, field):
        for left in range(0, side, field):
            kind = _KINDS[_number(len(_KINDS), generator)]
            height, width = min(field, side - top), min(field, side - left)
            drawn = kind(field, generator)[:, :height, :width]
            picture[:, top : top + height, left : left + width] = drawn
    return picture.clamp(0, 1).mul(255).add(0.5).byte()


def shrink_graphics(picture: Tensor, scale: int) -> Tensor:
    """LR as it would have been drawn at that size: each pixel the mean of the area it covers.

    Squares of `scale` on LR's grid become single pixels at full contrast, which bicubic shrinking never leaves:
    pixel art and dithered pictures as they are.

    Args:
        picture: (3, H, W) uint8; cut to multiples of the scale from its top left corner.
        scale: Factor, at most H and W.

    Returns:
        (3, H // scale, W // scale) uint8.

    Example:
        >>> chequers = torch.eye(2, dtype=torch.uint8).mul(255).expand(3, 2, 2)
        >>> large = chequers.repeat_interleave(4, 1).repeat_interleave(4, 2)
        >>> torch.equal(shrink_graphics(large, 4), chequers)
        True
    """
    return F.avg_pool2d(picture.float(), scale).add(0.5).byte()


def _number(n: int, generator: torch.Generator) -> int:
    """0 to n - 1."""
    return int(torch.randint(n, (), generator=generator))


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator).item()


def _colors(n: int, generator: torch.Generator) -> Tensor:
    """Colours of which four in five channels are nothing or all, (n, 3)."""
    return (torch.rand(n, 3, generator=generator) * 5 - 2).clamp(0, 1)


def _blend(weight: Tensor, generator: torch.Generator) -> Tensor:
    """Two colours by a weight (h, w) in [0, 1]: (3, h, w)."""
    colors = _colors(2, generator)[:, :, None, None]
    return colors[0].lerp(colors[1], weight)


def _grid(side: int) -> tuple[Tensor, Tensor]:
    """Rows and columns, (side, side) each."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return y, x


def _cells(side: int, generator: torch.Generator) -> Tensor:
    """Squares of a few pixels: stripes, chequers, dots, dither, or noise in two or many colours."""
    size = _CELLS[_number(len(_CELLS), generator)]
    n = side // size + 2
    y, x = _grid(n)
    width = 1 + _number(4, generator) // 3  # cells of a stripe, mostly one
    kind = _number(8, generator)
    if kind == 0:
        small = _blend((x // width % 2).float(), generator)
    elif kind == 1:
        small = _blend(((x + y) // width % 2).float(), generator)
    elif kind <= 3:
        small = _blend(((x // width + y // width) % 2).float(), generator)
    elif kind == 4:
        share = _uniform(0.02, 0.5, generator)
        small = _blend((torch.rand(n, n, generator=generator) < share).float(), generator)
    elif kind == 5:
        bayer = torch.tensor([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]])
        small = _blend((x / n > (bayer[y % 4, x % 4] + 0.5) / 16).float(), generator)
    elif kind == 6:
        palette = _colors(2 + _number(6, generator), generator)
        small = palette[torch.randint(len(palette), (n, n), generator=generator)].permute(2, 0, 1)
    else:
        small = torch.rand(3, n, n, generator=generator)
    if _number(2, generator):
        small = small.transpose(1, 2)
    top, left = _number(size, generator), _number(size, generator)
    if _number(2, generator):  # on LR's grid, where the pattern stays as sharp as it can be
        top = left = 0
    large = small.repeat_interleave(size, 1).repeat_interleave(size, 2)
    return large[:, top : top + side, left : left + side]


def _waves(side: int, generator: torch.Generator) -> Tensor:
    """Sine waves of any direction, or rings that grow finer outwards."""
    y, x = _grid(side)
    if _number(2, generator):
        angle, period = _uniform(0, math.pi, generator), _uniform(2.5, 32, generator)
        phase = (math.cos(angle) * x + math.sin(angle) * y) * (2 * math.pi / period)
    else:
        rows, columns = y - _uniform(0, side, generator), x - _uniform(0, side, generator)
        phase = (rows**2 + columns**2) * (math.pi / side / _uniform(3, 16, generator))
    return _blend(phase.sin() * 0.5 + 0.5, generator)


def _clouds(side: int, generator: torch.Generator) -> Tensor:
    """Soft spots of any colour, most of them saturated."""
    n = 3 + _number(side // 4 - 3, generator)
    small = torch.rand(1, 3, n, n, generator=generator) * 3 - 1
    return F.interpolate(small, size=(side, side), mode="bicubic")[0].clamp(0, 1)


def _shapes(side: int, generator: torch.Generator) -> Tensor:
    """Discs, triangles, lines and words over each other, without stairs at the edges."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    def color() -> tuple[int, ...]:
        return tuple(int(255 * c + 0.5) for c in _colors(1, generator)[0].tolist())

    large = side * _FINE
    image = Image.new("RGB", (large, large), color())
    draw = ImageDraw.Draw(image)
    for _ in range(4 + _number(16, generator)):
        kind = _number(4, generator)
        points = [_uniform(0, large, generator) for _ in range(6)]
        if kind == 0:
            radius = _uniform(1, side / 3, generator) * _FINE
            draw.circle((points[0], points[1]), radius, fill=color())
        elif kind == 1:
            draw.polygon(points, fill=color())
        elif kind == 2:
            draw.line(points[:4], fill=color(), width=round(_uniform(1, 6, generator) * _FINE))
        else:
            count = 3 + _number(12, generator)
            word = "".join(_LETTERS[_number(len(_LETTERS), generator)] for _ in range(count))
            font = ImageFont.load_default(_uniform(7, 40, generator) * _FINE)
            draw.text((points[0] / 2, points[1]), word, fill=color(), font=font)
    return torch.from_numpy(np.array(image.reduce(_FINE))).permute(2, 0, 1) / 255


_KINDS: tuple[Callable[[int, torch.Generator], Tensor], ...] = (
    _cells,
    _cells,
    _cells,
    _waves,
    _clouds,
    _shapes,
)
