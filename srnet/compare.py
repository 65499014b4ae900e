"""A picture of before and after that a person can judge, and a number that needs no ground truth.

Before is the bicubic enlargement. The number is the PSNR between the input and the result shrunk back to its size
with MATLAB's bicubic: low values mean that the network invented or lost something.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from srnet.resize import imresize

LARGEST = 50_000_000
"""Pixels of the largest result that is compared; shrinking works in float64."""

_PART = 160  # pixels of the result that a zoomed part shows
_ZOOM = 2
_COLUMN = _PART * _ZOOM
_LINE = 16
_PARTS = 3


def compare(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], float]:
    """Draws both and measures.

    Args:
        before: The input, (h, w, 1 or 3).
        after: The result, (H, W, 1 or 3).

    Returns:
        The picture (rows, columns, 3), and the PSNR in dB over all channels; infinite if nothing differs.
    """
    before, after = (
        np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
        for pixels in (before, after)
    )
    psnr = _psnr_shrunk_back(before, after)
    height, width = after.shape[:2]
    result = Image.fromarray(after)
    enlarged = Image.fromarray(before).resize((width, height), Image.Resampling.BICUBIC)
    shown = min(_COLUMN / width, 1)
    whole = (max(round(width * shown), 1), max(round(height * shown), 1))
    panels = [
        [image.resize(whole, Image.Resampling.LANCZOS) for image in (enlarged, result)],
        *(
            [
                image.crop(box).resize(
                    ((box[2] - box[0]) * _ZOOM, (box[3] - box[1]) * _ZOOM), Image.Resampling.NEAREST
                )
                for image in (enlarged, result)
            ]
            for box in _detailed(result)
        ),
    ]
    rows = sum(row[0].height + _LINE for row in panels)
    sheet = Image.new("RGB", (2 * _COLUMN + 4, rows + _LINE), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((2, 2), "before: bicubic", "black")
    draw.text((_COLUMN + 6, 2), "after", "black")
    top = _LINE
    for index, row in enumerate(panels):
        for column, image in enumerate(row):
            sheet.paste(image, (column * (_COLUMN + 4), top))
        top += row[0].height
        words = f"shrunk back: {psnr:.2f} dB PSNR against the input" if index == 0 else f"x{_ZOOM}"
        draw.text((2, top + 2), words, "black")
        top += _LINE
    return np.asarray(sheet), psnr


def _psnr_shrunk_back(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> float:
    """PSNR in dB; channel by channel, since shrinking holds one of them in float64."""
    error = 0.0
    for channel in range(3):
        plane = torch.from_numpy(np.ascontiguousarray(after[..., channel]))[None, None]
        shrunk = imresize(plane, before.shape[:2])[0, 0].numpy()
        error += float(((shrunk.astype(np.float64) - before[..., channel]) ** 2).mean()) / 3
    return 10 * math.log10(255**2 / error) if error else math.inf


def _detailed(image: Image.Image) -> list[tuple[int, int, int, int]]:
    """Boxes (left, top, right, bottom) of the parts with the most detail, none twice."""
    width, height = image.size
    side_x, side_y = min(_PART, width), min(_PART, height)
    grey = np.asarray(image.convert("L"), dtype=np.float32)
    edges = np.abs(np.diff(grey, axis=0, append=grey[-1:])) + np.abs(
        np.diff(grey, axis=1, append=grey[:, -1:])
    )
    boxes = [
        (left, top, left + side_x, top + side_y)
        for top in range(0, height - side_y + 1, side_y)
        for left in range(0, width - side_x + 1, side_x)
    ]
    return sorted(boxes, key=lambda box: -edges[box[1] : box[3], box[0] : box[2]].mean())[:_PARTS]
