"""Shrinks a few photographs four times, upscales them with the shipped checkpoint, and shows both.

Each photograph is cut to a multiple of 4 and shrunk by MATLAB's bicubic; srnet and bicubic enlarge it
again. PSNR-Y against the original is printed for both, and pictures are written to demo/. One is also compressed as
a poor JPEG after shrinking, and enlarged by the model for clean images and by the one for compressed photographs. The
exit code is not 0 when srnet is not ahead of bicubic on the mean.
"""

import argparse
import importlib.resources
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from srnet import Upscaler, load_checkpoint
from srnet.checkpoint import default_model, usable_model
from srnet.degradation import compress
from srnet.errors import SRNetError
from srnet.metrics import psnr_y
from srnet.resize import downscale, upscale

SCALE = 4
CROP = 160  # side of the part shown side by side, in pixels of the original
ZOOM = 3
CAPTION = 34  # height of the line of labels
# Name, package, file, and the top left corner (x, y) of the part that is shown.
PHOTOS = [
    ("astronaut", "skimage.data", "astronaut.png", (150, 40)),
    ("coffee", "skimage.data", "coffee.png", (200, 60)),
    ("chelsea", "skimage.data", "chelsea.png", (110, 50)),
    ("china", "sklearn.datasets.images", "china.jpg", (230, 140)),
    ("flower", "sklearn.datasets.images", "flower.jpg", (220, 150)),
]
COMPRESSED, JPEG_QUALITY = PHOTOS[2], 50


def read_photo(package: str, file: str) -> Tensor:
    """Returns a packaged photograph cut to a multiple of the scale: (1, 3, H, W) uint8."""
    with Image.open(str(importlib.resources.files(package) / file)) as image:
        pixels = torch.tensor(np.asarray(image.convert("RGB"))).permute(2, 0, 1)[None]
    height, width = pixels.shape[-2:]
    return pixels[..., : height // SCALE * SCALE, : width // SCALE * SCALE]


def to_image(pixels: Tensor) -> Image.Image:
    """Returns a (1, 3, H, W) uint8 tensor as a Pillow image."""
    return Image.fromarray(pixels[0].permute(1, 2, 0).contiguous().numpy())


def side_by_side(panels: list[tuple[str, Tensor]], corner: tuple[int, int]) -> Image.Image:
    """Draws the same part of several (1, 3, H, W) uint8 images next to each other, enlarged, with labels."""
    x, y = corner
    side, gap = CROP * ZOOM, 8
    sheet = Image.new("RGB", (len(panels) * (side + gap) - gap, side + CAPTION), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(size=20)
    for index, (label, pixels) in enumerate(panels):
        left = index * (side + gap)
        part = to_image(pixels[..., y : y + CROP, x : x + CROP])
        # Nearest keeps the pixels as they are: the viewer must not see a second interpolation.
        sheet.paste(part.resize((side, side), Image.Resampling.NEAREST), (left, CAPTION))
        draw.text((left + 6, 5), label, fill="black", font=font)
    return sheet


def enlarge(upscaler: Upscaler, small: Tensor) -> Tensor:
    """Upscales (1, 3, H, W) uint8, rounded to uint8."""
    return (upscaler(small.float() / 255).clamp(0, 1) * 255).round().to(torch.uint8)


def psnr(image: Tensor, original: Tensor) -> float:
    """PSNR-Y in dB of (1, 3, H, W) uint8 images."""
    return float(psnr_y(image.float() / 255, original.float() / 255, SCALE))


def blocks(small: Tensor) -> Tensor:
    """Every pixel as a square, the size of the original."""
    return small.repeat_interleave(SCALE, -1).repeat_interleave(SCALE, -2)


def show_compressed(models: dict[str, Upscaler], path: Path) -> None:
    """Draws a poor JPEG as several models, by name, enlarge it."""
    _, package, file, corner = COMPRESSED
    original = read_photo(package, file)
    small = compress(downscale(original, SCALE)[0], JPEG_QUALITY)[None]
    panels = [(f"input, JPEG of quality {JPEG_QUALITY}", blocks(small))]
    for name, upscaler in models.items():
        result = enlarge(upscaler, small)
        panels.append((f"{name}, {psnr(result, original):.2f} dB", result))
    side_by_side([*panels, ("original", original)], corner).save(path)


def main() -> int:
    """Runs the demo; returns 0 when srnet beats bicubic on the mean, 1 when not, 2 without a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="name or .safetensors file; default: the shipped x4 model")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("demo"), help="folder to write to"
    )
    args = parser.parse_args()
    try:
        checkpoint = load_checkpoint(args.model or default_model(SCALE), scale=SCALE)
    except SRNetError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    upscaler = Upscaler(checkpoint.network)
    args.output.mkdir(parents=True, exist_ok=True)

    print(f"{checkpoint.name}: photographs shrunk {SCALE} times, then enlarged again; PSNR-Y in dB")
    print(f"{'photo':<12}{'size':>10}{'bicubic':>10}{'srnet':>8}{'gain':>8}{'seconds':>9}")
    scores = []
    for name, package, file, corner in PHOTOS:
        original = read_photo(package, file)
        small = downscale(original, SCALE)
        plain = upscale(small, SCALE)
        start = time.perf_counter()
        ours = enlarge(upscaler, small)
        seconds = time.perf_counter() - start
        pair = [psnr(image, original) for image in (plain, ours)]
        scores.append(pair)
        height, width = original.shape[-2:]
        print(
            f"{name:<12}{f'{width}x{height}':>10}{pair[0]:>10.2f}{pair[1]:>8.2f}"
            f"{pair[1] - pair[0]:>+8.2f}{seconds:>9.1f}",
            flush=True,
        )
        panels = [
            (f"input, {width // SCALE}x{height // SCALE}", blocks(small)),
            (f"bicubic, {pair[0]:.2f} dB", plain),
            (f"srnet, {pair[1]:.2f} dB", ours),
            ("original", original),
        ]
        side_by_side(panels, corner).save(args.output / f"{name}_compare.png")
        to_image(ours).save(args.output / f"{name}_x{SCALE}.png")
    bicubic, srnet = np.mean(scores, axis=0)
    print(f"{'mean':<22}{bicubic:>10.2f}{srnet:>8.2f}{srnet - bicubic:>+8.2f}")
    folder = args.output.resolve()
    photo = usable_model(SCALE, "photo")
    if photo is not None:
        models = {checkpoint.name: upscaler, photo: Upscaler(photo)}
        show_compressed(models, folder / "compressed_compare.png")
    print(
        f"\nLook at {folder / f'{PHOTOS[0][0]}_compare.png'} (and the other *_compare.png there):"
    )
    print(f"input, bicubic, srnet, original. The upscaled photographs are {folder}/*_x{SCALE}.png.")
    if srnet <= bicubic:
        print(
            "demo: srnet is not ahead of bicubic; the checkpoint is damaged or untrained",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
