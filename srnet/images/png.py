"""What PNG files hold besides their pixels and libvips does not tell, or writes wrongly."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import pyvips

_TEXTS = (b"tEXt", b"zTXt", b"iTXt")
_SRGB_CORNERS = (31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000)  # as cHRM has them


@dataclass(frozen=True)
class PngChunks:
    """What a PNG holds besides its pixels that libvips does not tell.

    Attributes:
        frames: More than one in an animated PNG.
        dpi: Resolution that the file states; libvips gives 72 also where there is none.
        texts: Type and content of each chunk of text; libvips takes all of them for UTF-8.
        late: A picture with the metadata that stands behind the pixels, which libvips does not read.
        notes: What the file says about its colours and no other format could be told.
    """

    frames: int = 1
    dpi: tuple[float, float] | None = None
    texts: tuple[tuple[bytes, bytes], ...] = ()
    late: pyvips.Image | None = None
    notes: tuple[str, ...] = ()


def read_chunks(path: Path) -> PngChunks:
    """Reads the chunks of a PNG other than its pixels."""
    small: dict[bytes, bytes] = {}
    texts: list[tuple[bytes, bytes]] = []
    late: list[tuple[bytes, bytes]] = []
    behind = False
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8 and head[4:] != b"IEND":
            length, name = int.from_bytes(head[:4], "big"), head[4:]
            behind |= name == b"IDAT"
            data = b""
            if length <= 32 or (name in (*_TEXTS, b"eXIf") and length <= 2**24):
                data = file.read(length)
                length = 0
            file.seek(length + 4, os.SEEK_CUR)
            xmp = data.startswith(b"XML:com.adobe.xmp\0")
            if name in _TEXTS and not xmp and not data.startswith(b"Raw profile type "):
                texts.append((name, data))
            elif behind and (xmp or name == b"eXIf"):
                late.append((name, data))
            elif name != b"IDAT":
                small.setdefault(name, data)
    dpi = None
    if len(small.get(b"pHYs", b"")) == 9 and small[b"pHYs"][8] == 1:
        x, y = (int.from_bytes(small[b"pHYs"][i : i + 4], "big") * 0.0254 for i in (0, 4))
        dpi = (x, y)
    return PngChunks(
        frames=int.from_bytes(small.get(b"acTL", b"\0\0\0\1")[:4], "big"),
        dpi=dpi,
        texts=tuple(texts),
        late=_with_chunks(late) if late else None,
        notes=_colours(small),
    )


def _with_chunks(chunks: list[tuple[bytes, bytes]]) -> pyvips.Image | None:
    """A picture of one pixel that has these chunks where libvips reads them; None if it cannot."""
    header = (b"IHDR", b"\0\0\0\1\0\0\0\1\x08\0\0\0\0")
    pixel = [(b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(name, content) for name, content in (header, *chunks, *pixel)
    )
    try:
        return pyvips.Image.pngload_buffer(data)
    except pyvips.Error:
        return None


def _colours(chunks: dict[bytes, bytes]) -> tuple[str, ...]:
    """Says where a PNG without a profile states other colours than sRGB, which would be taken for sRGB afterwards."""
    if b"cICP" in chunks:
        stated = "" if chunks[b"cICP"][:2] == b"\x01\x0d" else "cICP: HDR or a wide gamut"
    elif b"iCCP" in chunks or b"sRGB" in chunks:
        stated = ""
    else:
        gamma = int.from_bytes(chunks.get(b"gAMA", b"")[:4] or b"\0\0\xb1\x8f", "big")
        values = chunks.get(b"cHRM", b"")
        corners = [int.from_bytes(values[i : i + 4], "big") for i in range(0, len(values), 4)]
        usual = all(abs(a - b) < 1000 for a, b in zip(corners, _SRGB_CORNERS, strict=False))
        stated = f"gAMA {gamma / 1e5:g}" if abs(gamma - 45455) > 1000 else "" if usual else "cHRM"
    return (f"states colours other than sRGB ({stated}), which are not kept",) if stated else ()


def add_texts(path: Path, texts: tuple[tuple[bytes, bytes], ...]) -> None:
    """Puts chunks of text before the end of a PNG; libvips would write each as if it were Latin-1."""
    with path.open("rb+") as file:
        file.seek(-12, os.SEEK_END)
        file.write(b"".join(chunk(*text) for text in (*texts, (b"IEND", b""))))


def chunk(name: bytes, data: bytes) -> bytes:
    """One chunk of a PNG file: length, name, content, checksum."""
    checksum = zlib.crc32(name + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + name + data + checksum
