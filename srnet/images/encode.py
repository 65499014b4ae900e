"""Pixels to image files, which appear under their name only when they are complete."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyvips

from srnet.atomic import atomic_output
from srnet.errors import ImageError
from srnet.images.decode import check_complete
from srnet.images.formats import OutputFormat, check_target
from srnet.images.picture import Animation, Metadata, Pixels
from srnet.images.png import add_texts
from srnet.images.vips import from_array, reason, target

_STAMP = "srnet recipe "
_LOOKED_AT = 2**18  # bytes at each end of a file; a colour profile may stand before the stamp


def write(
    path: Path,
    pixels: Pixels | pyvips.Image,
    format: OutputFormat,
    metadata: Metadata | None = None,
    quality: int | None = None,
    lossless: bool = False,
    recipe: str | None = None,
    animation: Animation | None = None,
) -> None:
    """Encodes an image to a file, which appears under its name only when it is complete.

    Args:
        path: File to write; replaced if it exists.
        pixels: (H, W, C) as `fit_format` returns, or the image of a canvas that holds such.
        format: Format to write.
        metadata: What to write beside the pixels.
        quality: 1 to 100 for JPEG, WebP and AVIF; None takes 95 for JPEG and 90 for the others.
        lossless: For WebP and AVIF: keep every pixel.
        recipe: Written into the file as the software that made it, for `recipe_state` to find.
        animation: The frames that stand below each other in pixels; for GIF and WebP.

    Raises:
        ImageError: If the file cannot be written.
    """
    image = from_array(pixels) if isinstance(pixels, np.ndarray) else pixels
    rows = image.height // (len(animation.delays) if animation is not None else 1)
    check_target(format, image.width, rows)
    metadata = metadata or Metadata()
    interpretation = {1: "b-w", 2: "b-w", 3: "srgb", 4: "srgb"}[image.bands]
    if image.format == "ushort":
        interpretation = "grey16" if image.bands < 3 else "rgb16"
    image = image.copy(interpretation=interpretation)
    # 72 where nothing is known, as every program takes it; libvips would state 25.4
    dpi = metadata.dpi or (72, 72)
    image = image.copy(xres=dpi[0] / 25.4, yres=dpi[1] / 25.4)
    if metadata.dpi is not None:
        image.set_type(pyvips.GValue.gstr_type, "resolution-unit", "in")
    sizes = {"exif-ifd0-ImageWidth": str(image.width), "exif-ifd0-ImageLength": str(rows)}
    for type_, name, value in metadata.fields:
        image.set_type(type_, name, sizes.get(name, value))
    if image.get_typeof("exif-data"):
        image.set_type(pyvips.GValue.blob_type, "jpeg-thumbnail-data", b"")  # drops the thumbnail
    # without it libvips takes the orientation from the EXIF block, and the pixels would be turned twice
    image.set_type(pyvips.GValue.gint_type, "orientation", 1)
    if animation is not None:
        image.set_type(pyvips.GValue.gint_type, "page-height", rows)
        image.set_type(pyvips.GValue.array_int_type, "delay", list(animation.delays))
        image.set_type(pyvips.GValue.gint_type, "loop", animation.loop)
    stamp = None if recipe is None else _STAMP + recipe
    if stamp is not None:
        # the EXIF tag Software; libvips writes no EXIF into TIFF
        field = "exif-ifd0-Software"
        if format == "tiff":
            field = "image-description"
            said = image.get(field) if image.get_typeof(field) else ""
            stamp = "\n".join([*(x for x in said.splitlines() if _STAMP not in x), stamp])
        image.set_type(pyvips.GValue.gstr_type, field, stamp)
    try:
        with atomic_output(path) as partial:
            if format == "bmp":
                _write_bmp(partial, image, metadata, stamp)
            else:
                saver = "heifsave" if format == "avif" else f"{format}save"
                options = _save_options(image, format, quality, lossless)
                getattr(image, f"{saver}_target")(target(partial), **options)
                if format == "gif" and stamp is not None:
                    _add_gif_comment(partial, stamp)
                if format == "png" and metadata.png_texts:
                    add_texts(partial, metadata.png_texts)
    except pyvips.Error as error:
        raise ImageError(f"{path}: cannot be written ({reason(error)})") from error
    except OSError as error:
        raise ImageError(f"{path}: cannot be written ({error.strerror})") from error


def recipe_state(path: Path, recipe: str) -> Literal["same", "other", "none", "damaged"]:
    """Tells whether a file was written with this recipe.

    Args:
        path: Image file.
        recipe: What `write` would be given.

    Returns:
        "same" or "other" for a complete file that `write` stamped, "none" for a complete file without a stamp,
        "damaged" for what cannot be decoded to its end.
    """
    try:
        check_complete(path)
    except ImageError:
        return "damaged"
    # encoders place the stamp where they like, but none of them compresses it
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find((_STAMP + recipe).encode()) >= 0:
            return "same"
        return "other" if data.find(_STAMP.encode()) >= 0 else "none"


def is_stamped(path: Path) -> bool:
    """Tells whether `write` made a file with a recipe; looks at its start and end only, where the stamp stands."""
    try:
        with path.open("rb") as file:
            if _STAMP.encode() in file.read(_LOOKED_AT):
                return True
            file.seek(max(path.stat().st_size - _LOOKED_AT, 0))
            return _STAMP.encode() in file.read()
    except OSError:
        return False


def _add_gif_comment(path: Path, text: str) -> None:
    """Puts a comment before the trailer of a GIF; libvips cannot."""
    data = text.encode("ascii")
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x21\xfe" + bytes([len(data)]) + data + b"\0\x3b")


def _save_options(
    image: pyvips.Image, format: OutputFormat, quality: int | None, lossless: bool
) -> dict[str, Any]:
    """The encoder's settings."""
    match format:
        case "png":
            return {"compression": 4, "filter": "all"}
        case "jpeg":
            # optimal Huffman tables need all coefficients in memory, twice the size of the image
            small = image.width * image.height < 30_000_000
            return {"Q": quality or 95, "subsample_mode": "off", "optimize_coding": small}
        case "webp":
            return {"Q": quality or 90, "lossless": lossless, "exact": True}
        case "tiff":
            large = image.width * image.height * image.bands * 4 > 2**32 - 2**20
            predictor = "float" if image.format == "float" else "horizontal"
            return {"compression": "deflate", "predictor": predictor, "bigtiff": large}
        case "avif":
            return {
                "compression": "av1",
                "Q": quality or 90,
                "lossless": lossless,
                "bitdepth": 12 if image.format == "ushort" else 8,
                "effort": 4,
                "subsample_mode": "off",
            }
        case _:
            return {}


def _write_bmp(partial: Path, image: pyvips.Image, metadata: Metadata, stamp: str | None) -> None:
    """Writes 8-bit grey or RGB strip by strip; the rows of a BMP stand bottom up."""
    width, height, bands = image.width, image.height, image.bands
    stride = -(-width * bands // 4) * 4
    palette = bytes(value for i in range(256) for value in (i, i, i, 0)) if bands == 1 else b""
    start, size = 54 + len(palette), stride * height
    per_metre = [round(dpi / 0.0254) for dpi in metadata.dpi or (96, 96)]
    colours = len(palette) // 4
    header = struct.pack("<2sIHHI", b"BM", start + size, 0, 0, start)
    header += struct.pack(
        "<IiiHHIIiiII", 40, width, height, 1, 8 * bands, 0, size, *per_metre, colours, 0
    )
    rows = max(2**22 // stride, 1)
    region = pyvips.Region.new(image)
    with partial.open("wb") as file:
        file.write(header + palette)
        for top in range(0, height, rows):
            count = min(rows, height - top)
            strip = np.frombuffer(region.fetch(0, top, width, count), np.uint8)
            padded = np.zeros((count, stride), np.uint8)
            padded[:, : width * bands] = strip.reshape(count, width, bands)[::-1, :, ::-1].reshape(
                count, -1
            )
            file.seek(start + stride * (height - top - count))
            file.write(padded.data)
        file.seek(0, os.SEEK_END)
        file.write((stamp or "").encode("ascii"))  # readers stop at the size in the header
