"""The image formats: how a file's format is recognised, and what each can hold.

The format is taken from the first bytes of a file, never from its suffix.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal, get_args

from srnet.errors import ImageError

OutputFormat = Literal["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"]

SUFFIXES: dict[str, OutputFormat] = {
    ".png": "png",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".webp": "webp",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".avif": "avif",
    ".gif": "gif",
    ".bmp": "bmp",
}
"""File name suffix, lower case, to the format written under it."""

QUALITY = {"jpeg", "webp", "avif"}
"""Formats with a quality to choose."""
_DEEP = {"png": 16, "tiff": 32, "avif": 12}  # bits a channel where a format has more than 8
_NO_ALPHA = {"jpeg", "bmp"}
NO_PROFILE = {"gif", "bmp"}
"""Formats that hold no colour profile; what goes there has to be sRGB."""
ANIMATED = {"gif", "webp"}
"""Formats of which every frame is read and written."""
DEEP = {"png", "tiff", "avif"}
"""Formats with more than 8 bits a channel."""
NO_ALPHA = {"jpeg", "bmp"}
"""Formats without transparency."""
_MAX_SIDE = {"jpeg": 65535, "webp": 16383, "avif": 16384, "gif": 65535, "bmp": 65535}


def sniff(path: Path) -> str | None:
    """Returns the format that a file's first bytes show, None if they show no image.

    Raises:
        ImageError: If the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        hint = _nearby(path) if isinstance(error, FileNotFoundError) else ""
        raise ImageError(f"{path}: {error.strerror}{hint}") from error
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "tiff"
    if head.startswith(b"BM"):
        return "bmp"
    if head.startswith((b"\xff\x0a", b"\0\0\0\x0cJXL ")):
        return "jxl"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        brands = {head[i : i + 4] for i in (8, 16, 20, 24, 28)}
        if brands & {b"avif", b"avis"}:
            return "avif"
        if brands & {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}:
            return "heif"
    return None


def _nearby(path: Path) -> str:
    """What may have been meant by a name that does not exist."""
    if path.parts and path.parts[0] in ("http:", "https:"):
        return "; srnet reads files, so download it first"
    if path.is_symlink():
        return "; it is a broken link"
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def format_of(name: str) -> OutputFormat:
    """Returns the format that a suffix or a format's name stands for.

    Raises:
        ImageError: If nothing is written under that name.
    """
    wanted = name.lower()
    known = SUFFIXES.get(wanted if wanted.startswith(".") else f".{wanted}")
    if known is None:
        raise ImageError(
            f"no format is written as {name!r}; use one of {', '.join(get_args(OutputFormat))}"
        )
    return known


def check_target(format: OutputFormat, width: int, height: int) -> None:
    """Checks that a format can hold an image of this size.

    Raises:
        ImageError: If a side is over the format's limit.
    """
    limit = _MAX_SIDE.get(format)
    if limit is not None and max(width, height) > limit:
        raise ImageError(
            f"{width} x {height} is over the {format} limit of {limit} pixels a side; use --format png or tiff"
        )
    if format == "bmp" and width * height * 3 >= 2**32 - 2**20:
        raise ImageError(
            f"{width} x {height} is over the bmp limit of 4 GB a file; use --format png or tiff"
        )
