"""Brings a result to what is asked for: the depth and channels of its format, its exact size."""

from __future__ import annotations

import numpy as np
import pyvips

from srnet.images.formats import DEEP, NO_ALPHA, OutputFormat
from srnet.images.picture import Pixels


def fit_format(pixels: Pixels, format: OutputFormat, background: tuple[int, int, int]) -> Pixels:
    """Reduces pixels to what a format can hold.

    Args:
        pixels: (H, W, C), C 1 to 4.
        format: Format to be written.
        background: RGB, 0 to 255, under transparent pixels where the format has no alpha.

    Returns:
        Pixels with the format's depth and channels; the same array where nothing has to change.
    """
    if pixels.dtype == np.float32 and format != "tiff":
        pixels = np.round(pixels.clip(0, 1) * 65535).astype(np.uint16)
    if pixels.dtype == np.uint16 and format not in DEEP:
        pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if format in NO_ALPHA and pixels.shape[2] in (2, 4):
        colour = np.array(background, dtype=np.float32)
        if pixels.shape[2] == 2 and len(set(background)) > 1:
            pixels = pixels[..., [0, 0, 0, 1]]
        alpha = pixels[..., -1:].astype(np.float32) / 255
        under = colour[: pixels.shape[2] - 1]
        pixels = np.round(pixels[..., :-1] * alpha + under * (1 - alpha)).astype(np.uint8)
    return pixels


def resample_frames(image: pyvips.Image, count: int, width: int, height: int) -> pyvips.Image:
    """Resamples each of the frames that stand below each other to exactly this size, as `resample` does."""
    rows = image.height // count
    if (image.width, rows) == (width, height):
        return image
    frames = [
        resample(image.crop(0, i * rows, image.width, rows), width, height) for i in range(count)
    ]
    return pyvips.Image.arrayjoin(frames, across=1)


def resample(image: pyvips.Image, width: int, height: int) -> pyvips.Image:
    """Resamples to exactly this size: Lanczos to a smaller one, bicubic to a larger one; alpha weighs colours.

    Args:
        image: Grey or RGB, with alpha or without.
        width: Columns wanted, pixels.
        height: Rows wanted, pixels.

    Returns:
        The same image if it has that size already.
    """
    if (image.width, image.height) == (width, height):
        return image
    kind, alpha = image.format, image.bands in (2, 4)
    top = {"uchar": 255, "ushort": 65535, "float": 1}[kind]
    image = image.copy(interpretation="b-w" if image.bands < 3 else "srgb")
    if alpha:
        image = image.premultiply(max_alpha=top)
    kernel = "lanczos3" if width < image.width or height < image.height else "cubic"
    image = image.resize(width / image.width, vscale=height / image.height, kernel=kernel)
    if alpha:
        image = image.unpremultiply(max_alpha=top)
    if image.format != kind:
        image = image.rint().cast(kind) if kind != "float" else image.cast(kind)
    return image
