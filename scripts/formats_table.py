"""Writes docs/formats.md: every kind of input by every format of output, as a run of the real code has it.

    python scripts/formats_table.py docs/formats.md

Each cell is measured: a file of that kind is made, upscaled x2 through `srnet.files.upscale_file`, and read again.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageCms

from srnet.config import NetworkConfig
from srnet.files import Options, upscale_file
from srnet.images import decode, encode
from srnet.images.formats import OutputFormat
from srnet.images.picture import Picture
from srnet.inference import Upscaler
from srnet.network import SRNet

OUTPUTS: tuple[OutputFormat, ...] = ("png", "jpeg", "webp", "tiff", "avif", "gif", "bmp")
_NAMES = {1: "grey", 2: "grey+alpha", 3: "RGB", 4: "RGBA"}
_DEPTHS = {"uint8": "8", "uint16": "16", "float32": "float"}

HEADER = """# What goes in and what comes out

Made by `python scripts/formats_table.py docs/formats.md`; a test keeps it current. Each cell is a real run, x2.
Depth is bits a channel. "o" means that the EXIF orientation was applied to the pixels once, "icc" that the colour
profile came through unchanged, "exif" the author tag, "xmp" the XMP packet, "dpi" the resolution.
WebP leaves an opaque alpha out. WebP and AVIF carry the resolution in EXIF only, if at all.
AVIF stores 16-bit images in 12 bits; reading gives them back as 16.
Reads besides these: multi-page TIFF and animations (first frame, with a notice; --animated takes every frame of GIF
and WebP), HEIC and JPEG XL where the installed libvips has them (the wheel does not).

"""


def inputs(folder: Path) -> dict[str, Path]:
    """Makes one file of each kind; returns them by description."""
    random = np.random.default_rng(0)
    rgb = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    alpha = random.integers(1, 256, (6, 8, 1), dtype=np.uint8)
    deep = random.integers(0, 65536, (6, 8, 4), dtype=np.uint16)
    exif = Image.Exif()
    exif[0x0112], exif[0x013B] = 6, "Ada"
    icc = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    xmp = b"<x:xmpmeta xmlns:x='adobe:ns:meta/'></x:xmpmeta>"
    made: dict[str, Path] = {}

    def pillow(name: str, image: Image.Image, suffix: str, **options: Any) -> None:
        made[name] = folder / f"{len(made)}.{suffix}"
        image.save(made[name], **options)

    def own(name: str, pixels: np.ndarray, format: OutputFormat) -> None:
        made[name] = folder / f"{len(made)}.{format}"
        encode.write(made[name], pixels, format)

    image = Image.fromarray(rgb)
    pillow("PNG 1 bit", image.convert("1"), "png")
    pillow("PNG grey 8", image.convert("L"), "png")
    pillow("PNG grey+alpha 8", image.convert("LA"), "png")
    pillow("PNG palette", image.convert("P"), "png")
    pillow("PNG palette, transparent colour", image.convert("P"), "png", transparency=0)
    pillow("PNG RGB 8, profile", image, "png", icc_profile=icc, dpi=(300, 300))
    own("PNG RGBA 8", np.dstack([rgb, alpha]), "png")
    own("PNG grey 16", deep[..., :1], "png")
    own("PNG RGB 16", deep[..., :3], "png")
    own("PNG RGBA 16", deep, "png")
    pillow("JPEG grey", image.convert("L"), "jpg")
    pillow(
        "JPEG RGB, turned, all metadata",
        image,
        "jpg",
        exif=exif,
        icc_profile=icc,
        xmp=xmp,
        dpi=(300, 300),
    )
    pillow("JPEG CMYK", image.convert("CMYK"), "jpg")
    own("TIFF grey 16", deep[..., :1], "tiff")
    own("TIFF RGBA 16", deep, "tiff")
    own("TIFF RGB float", rgb.astype(np.float32) / 100, "tiff")
    own("WebP RGBA", np.dstack([rgb, alpha]), "webp")
    own("AVIF RGB", rgb, "avif")
    pillow("GIF", image.convert("P"), "gif")
    pillow(
        "GIF, 2 frames",
        image.convert("P"),
        "gif",
        save_all=True,
        append_images=[image.convert("L")],
    )
    pillow("BMP", image, "bmp")
    return made


def describe(source: Picture, result: Picture, turned: bool) -> str:
    """One cell: what the written file holds, compared with its source."""
    words = [_NAMES[result.pixels.shape[2]], _DEPTHS[result.pixels.dtype.name]]
    before, after = (
        {name: value for _, name, value in p.metadata.fields} for p in (source, result)
    )
    for word, field in (
        ("icc", "icc-profile-data"),
        ("xmp", "xmp-data"),
        ("exif", "exif-ifd0-Artist"),
    ):
        if field in before:
            words.append(word if field in after else f"no {word}")
    if source.metadata.dpi is not None and source.metadata.dpi[0] > 100:
        kept = (
            result.metadata.dpi is not None
            and abs(result.metadata.dpi[0] - source.metadata.dpi[0]) < 1
        )
        words.append("dpi" if kept else "no dpi")
    if turned:
        words.append("o" if result.pixels.shape[0] > result.pixels.shape[1] else "NOT TURNED")
    return " ".join(words)


def table() -> str:
    """Runs every pair and returns the page."""
    torch.manual_seed(0)
    shape = NetworkConfig(
        scale=2, embed_dim=12, num_blocks=1, convs_per_block=1, attention_blocks=()
    )
    upscaler = Upscaler(SRNet(shape), device="cpu")
    lines = ["| input | " + " | ".join(OUTPUTS) + " |", "|---" * (len(OUTPUTS) + 1) + "|"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, path in inputs(folder).items():
            source, cells = decode.read(path), []
            for format in OUTPUTS:
                target = folder / f"out.{format}"
                upscale_file(upscaler, path, target, Options(format=format, existing="overwrite"))
                cells.append(describe(source, decode.read(target), "turned" in kind))
            lines.append(f"| {kind} | " + " | ".join(cells) + " |")
    return HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(table(), encoding="utf-8")
