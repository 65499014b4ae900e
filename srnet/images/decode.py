"""Image files to pixels: everything a file says is applied or kept, and damage is refused."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyvips
from numpy.typing import NDArray

from srnet.errors import ImageError
from srnet.images.formats import ANIMATED, sniff
from srnet.images.picture import Animation, Header, Metadata, Picture, Pixels
from srnet.images.png import PngChunks, read_chunks
from srnet.images.vips import reason, source

MAX_PIXELS = 300_000_000
"""Largest input that is read unless asked otherwise, in pixels."""

_LOADERS = {
    "png": "pngload_source",
    "jpeg": "jpegload_source",
    "webp": "webpload_source",
    "tiff": "tiffload_source",
    "avif": "heifload_source",
    "heif": "heifload_source",
    "gif": "gifload_source",
    "jxl": "jxlload_source",
}
_KEPT = ("exif-", "xmp-data", "iptc-data", "icc-profile-data", "image-description")
_UNREADABLE = ("not supported", "not configured", "out of range", "whole number of bytes", "labq")
# what XMP says that is no longer true: pictures and sizes that are gone, and how to turn what is upright now
_STALE_XMP = (
    b"tiff:Orientation|tiff:ImageWidth|tiff:ImageLength|exif:PixelXDimension|exif:PixelYDimension|"
    b"xmp:Thumbnails|xap:Thumbnails|hdrgm:Version|Container:Directory"
)
_RAW = {".cr2", ".nef", ".dng", ".arw", ".orf", ".rw2", ".pef", ".srw"}  # TIFF inside


def read_header(path: Path, max_pixels: int = MAX_PIXELS) -> Header:
    """Reads what a file says about its image, without decoding it.

    Args:
        path: Image file.
        max_pixels: Largest image that is accepted, pixels.

    Returns:
        Format, size and number of frames.

    Raises:
        ImageError: If the file is missing, no image, damaged at its start, or too large.
    """
    kind = _known_format(path)
    if kind == "bmp":
        with _pillow(path) as image:
            width, height = image.size
        frames, turned = 1, False
    else:
        image = _open(path, kind)
        width, height = image.width, image.height
        chunks = read_chunks(path) if kind == "png" else PngChunks()
        frames, turned = _frames(path, kind, image, chunks), _orientation(image, chunks) >= 5
    _check_pixels(path, width, height, max_pixels)
    return Header(kind, height if turned else width, width if turned else height, frames)


def read(
    path: Path, max_pixels: int = MAX_PIXELS, *, animated: bool = False, to_srgb: bool = False
) -> Picture:
    """Decodes an image file; of an animation or a multi-page file the first frame unless asked otherwise.

    Palettes and single bits are expanded, CMYK and Lab become sRGB through the embedded profile, the EXIF orientation
    is applied.

    Args:
        path: Image file.
        max_pixels: Largest image that is accepted, pixels; of all frames together if they are read.
        animated: Read every frame of a GIF or WebP file.
        to_srgb: Convert 8 and 16 bit pixels from the embedded profile to sRGB.

    Returns:
        Pixels and what travels beside them.

    Raises:
        ImageError: If the file is missing, no image, damaged anywhere, too large, or of a pixel type that is not kept.
    """
    kind = _known_format(path)
    if kind == "bmp":
        return _read_bmp(path, max_pixels)
    image = _open(path, kind)
    _check_pixels(path, image.width, image.height, max_pixels)
    chunks = read_chunks(path) if kind == "png" else PngChunks()
    frames = _frames(path, kind, image, chunks)
    animation = None
    if animated and kind in ANIMATED and frames > 1:
        image = _open(path, kind, n=-1)
        _check_pixels(path, image.width, image.height, max_pixels)
        count = image.height // int(image.get("page-height"))
        delays = image.get("delay") if image.get_typeof("delay") else [100] * count
        animation = Animation(tuple(delays[:count]), _field(image, "loop", 0))
    metadata = _metadata(image)
    if kind == "png":
        fields = metadata.fields + (_metadata(chunks.late).fields if chunks.late else ())
        metadata = Metadata(fields, _possible(chunks.dpi), chunks.texts)
    orientation = _orientation(image, chunks)
    try:
        converted = _to_rgb(image)
        if (
            to_srgb
            and metadata.icc is not None
            and converted.interpretation == image.interpretation
        ):
            converted, metadata = _to_srgb(converted, metadata)
        if converted.bands > 4 or converted.format not in ("uchar", "ushort", "float", "double"):
            raise ImageError(
                f"{path}: {converted.bands} channels of type {converted.format} are not supported; "
                f"convert to 1 to 4 channels of 8 bit, 16 bit or float"
            )
        if converted.format == "double":
            converted = converted.cast("float")
        raw = converted.write_to_memory()
    except pyvips.Error as error:
        raise _unreadable(path, kind, error) from error
    if image.interpretation in ("cmyk", "lab", "labs"):
        metadata = replace(
            metadata, fields=tuple(f for f in metadata.fields if f[1] != "icc-profile-data")
        )
    dtype = {"uchar": np.uint8, "ushort": np.uint16, "float": np.float32}[converted.format]
    pixels = np.frombuffer(raw, dtype).reshape(converted.height, converted.width, converted.bands)
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        raise ImageError(
            f"{path}: {int((~np.isfinite(pixels)).sum())} pixel values are infinite or no number"
        )
    return Picture(orient(pixels, orientation), kind, metadata, frames, animation, chunks.notes)


def read_rgb8(path: Path, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decodes an image file for a data set.

    Args:
        path: Image file.
        max_pixels: Largest image that is accepted, pixels.

    Returns:
        (H, W, 3) RGB; grey is repeated, alpha left out, 16 bit rounded to 8.

    Raises:
        ImageError: As `read` raises, and for float images, which have no fixed white.
    """
    pixels = read(path, max_pixels).pixels
    if pixels.dtype == np.float32:
        raise ImageError(f"{path}: float pixels have no fixed white; convert to 8 or 16 bit")
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    rgb = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    return np.ascontiguousarray(rgb, dtype=np.uint8)


def check_complete(path: Path) -> None:
    """Decodes an image file to its end and keeps nothing.

    Raises:
        ImageError: If it is missing, no image, or damaged anywhere.
    """
    kind = _known_format(path)
    if kind == "bmp":
        with _pillow(path) as picture:
            picture.load()
        return
    try:
        _open(path, kind).avg()
    except pyvips.Error as error:
        raise ImageError(f"{path}: damaged or cut short ({reason(error)})") from error


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turns stored pixels upright.

    Args:
        pixels: (H, W, C) as stored.
        orientation: EXIF orientation, 1 to 8.

    Returns:
        (H, W, C), or (W, H, C) from orientation 5 on; contiguous.
    """
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def _known_format(path: Path) -> str:
    """Sniffs a file that must be an image."""
    kind = sniff(path)
    if kind == "tiff" and path.suffix.lower() in _RAW:
        raise ImageError(
            f"{path}: a camera's raw file; develop it to a 16-bit TIFF first, srnet would see its thumbnail"
        )
    if kind is None:
        if path.stat().st_size == 0:
            raise ImageError(f"{path}: the file is empty (0 bytes)")
        raise ImageError(
            f"{path}: not an image that srnet reads (PNG, JPEG, WebP, TIFF, AVIF, GIF, BMP)"
        )
    return kind


def _open(path: Path, kind: str, **options: Any) -> pyvips.Image:
    """Opens a file for one pass from top to bottom; damage is an error, not a warning."""
    loader = _LOADERS[kind]
    if not pyvips.type_find("VipsOperation", loader):
        raise ImageError(
            f"{path}: this build of libvips cannot read {kind}; convert to PNG or JPEG"
        )
    try:
        return getattr(pyvips.Image, loader)(
            source(path), access="sequential", fail_on="warning", **options
        )
    except pyvips.Error as error:
        if kind == "heif":
            raise ImageError(
                f"{path}: this build of libvips cannot read it as HEIC ({reason(error)}); convert to PNG or JPEG"
            ) from error
        raise _unreadable(path, kind, error) from error


def _unreadable(path: Path, kind: str, error: pyvips.Error) -> ImageError:
    """Tells files of a rare kind from damaged ones."""
    said = reason(error)
    if any(words in said for words in _UNREADABLE):
        return ImageError(
            f"{path}: a kind of {kind} that srnet cannot read ({said}); save it as PNG or as plain TIFF"
        )
    if said.startswith("unable to"):  # another thread took the reason
        return ImageError(f"{path}: damaged, cut short or of a kind that srnet cannot read")
    return ImageError(f"{path}: damaged or cut short ({said})")


def _check_pixels(path: Path, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ImageError(
            f"{path}: {width} x {height} = {width * height / 1e6:.0f} megapixels, "
            f"over the limit of {max_pixels / 1e6:.0f}; raise it with --max-pixels"
        )


def _field(image: pyvips.Image, name: str, default: int) -> int:
    return int(image.get(name)) if image.get_typeof(name) else default


def _frames(path: Path, kind: str, image: pyvips.Image, chunks: PngChunks) -> int:
    match kind:
        case "png":
            return chunks.frames
        case "jpeg":
            return _mpo_pictures(path)
        case "avif":
            return _avif_frames(path)
    return _field(image, "n-pages", 1)


def _mpo_pictures(path: Path) -> int:
    """Pictures in a JPEG file; phones put gain maps and depth behind the one that is seen."""
    with path.open("rb") as file:
        head = file.read(2**18)
    start = head.find(b"MPF\0")
    order: Literal["big", "little"] = "big" if head[start + 4 : start + 6] == b"MM" else "little"
    # an entry of its index: tag, type (long), one value, and that is how many there are
    entry = b"".join(number.to_bytes(size, order) for number, size in ((0xB001, 2), (4, 2), (1, 4)))
    at = head.find(entry, start, start + 200) if start >= 0 else -1
    return int.from_bytes(head[at + 8 : at + 12], order) if at >= 0 else 1


def _avif_frames(path: Path) -> int:
    """Frames of an animated AVIF, of which libvips sees only the first."""
    with path.open("rb") as file:
        if b"avis" not in file.read(32):
            return 1
        file.seek(0)
        head = file.read(2**20)
    # the box of sample sizes of each track: name, version and flags, one size for all, how many
    counts = [
        int.from_bytes(head[found.end() + 8 : found.end() + 12], "big")
        for found in re.finditer(b"stsz", head)
    ]
    return max(counts, default=1)


def _possible(dpi: tuple[float, float] | None) -> tuple[float, float] | None:
    """None for a resolution that no device has, as damaged and careless files state."""
    return dpi if dpi is not None and all(1 <= value <= 100_000 for value in dpi) else None


def _orientation(image: pyvips.Image, chunks: PngChunks) -> int:
    value = _field(chunks.late or image, "orientation", 0) or _field(image, "orientation", 1)
    return value if 1 <= value <= 8 else 1


def _metadata(image: pyvips.Image) -> Metadata:
    """Takes over what has to survive; sizes, orientation and the thumbnail are stale after upscaling."""
    stale = ("exif-ifd1-", "exif-ifd0-Orientation")
    fields = tuple(
        (
            image.get_typeof(name),
            name,
            fresh_xmp(image.get(name)) if name == "xmp-data" else image.get(name),
        )
        for name in image.get_fields()
        if name.startswith(_KEPT) and not name.startswith(stale)
    )
    # libvips fills in 72 dpi where a file does not say; only a stated resolution carries a unit
    stated = image.get_typeof("resolution-unit") and image.xres > 0 and image.yres > 0
    return Metadata(fields, _possible((image.xres * 25.4, image.yres * 25.4)) if stated else None)


def fresh_xmp(data: bytes) -> bytes:
    """Takes out of an XMP packet what is not true of the enlarged picture."""
    data = re.sub(rb"\s(" + _STALE_XMP + rb")\s*=\s*(\"[^\"]*\"|'[^']*')", b"", bytes(data))
    return re.sub(rb"<(" + _STALE_XMP + rb")(\s[^>]*)?(/>|>.*?</\1\s*>)", b"", data, flags=re.S)


def _to_rgb(image: pyvips.Image) -> pyvips.Image:
    """Converts CMYK and Lab to sRGB; leaves grey and RGB as they are."""
    if image.interpretation == "cmyk":
        depth = 16 if image.format == "ushort" else 8
        return image.icc_transform("srgb", embedded=True, input_profile="cmyk", depth=depth)
    if image.interpretation in ("lab", "labs"):
        return image.colourspace("rgb16")
    return image


def _to_srgb(image: pyvips.Image, metadata: Metadata) -> tuple[pyvips.Image, Metadata]:
    """Converts from the embedded profile to sRGB; grey stays grey, without a profile."""
    if image.format not in ("uchar", "ushort"):
        return image, metadata
    grey = image.bands < 3
    result = image.icc_transform("srgb", embedded=True, depth=16 if image.format == "ushort" else 8)
    fields = tuple(field for field in metadata.fields if field[1] != "icc-profile-data")
    if grey:
        result = result[0].bandjoin(result[3]) if result.bands == 4 else result[0]
    else:
        name = "icc-profile-data"
        fields += ((result.get_typeof(name), name, result.get(name)),)
    return result, replace(metadata, fields=fields)


@contextlib.contextmanager
def _pillow(path: Path) -> Iterator[Any]:
    """Opens a BMP file with Pillow, with its errors as one line."""
    from PIL.BmpImagePlugin import BmpImageFile

    try:
        with BmpImageFile(path) as image:  # Image.open would apply its own limit of pixels
            yield image
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"{path}: damaged or cut short ({str(error)[:200]})") from error


def _read_bmp(path: Path, max_pixels: int) -> Picture:
    with _pillow(path) as image:
        _check_pixels(path, image.width, image.height, max_pixels)
        dpi = image.info.get("dpi")
        mode = {"1": "L", "L": "L", "RGBA": "RGBA"}.get(image.mode, "RGB")
        pixels = np.asarray(image.convert(mode), dtype=np.uint8)
    return Picture(
        pixels[..., None] if pixels.ndim == 2 else pixels, "bmp", Metadata(dpi=_possible(dpi))
    )
