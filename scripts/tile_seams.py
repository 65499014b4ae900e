"""Prints how far a tiled result is from the whole image's, and what the overlap costs.

    python scripts/tile_seams.py srnet-small-x4 photo.png --overlap 0 8 16 32 --tile 96 256

One row for each overlap and tile: largest difference in 8-bit levels, share of 8-bit values that differ, PSNR between
the two results, and the windows' pixels over the image's (the work). At the receptive field all differences are 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from srnet.checkpoint import load_checkpoint
from srnet.images.decode import read_rgb8
from srnet.inference import Upscaler
from srnet.tiling import Region, split, window_of


def main() -> None:
    """Reads the command line and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="checkpoint name or file")
    parser.add_argument("images", type=Path, nargs="+", help="photographs, used as LR input")
    parser.add_argument(
        "--overlap", type=int, nargs="+", default=[0, 8, 16, 24, 32], help="LR pixels"
    )
    parser.add_argument("--tile", type=int, nargs="+", default=[64, 96, 128], help="LR pixels")
    parser.add_argument(
        "--crop", type=int, default=256, help="use the middle of each image, LR pixels a side"
    )
    args = parser.parse_args()

    network = load_checkpoint(args.model).network
    overlaps = sorted({*args.overlap, network.receptive_field})
    images = [_middle(read_rgb8(path), args.crop).astype(np.float32) / 255 for path in args.images]
    whole = [Upscaler(network, tile=0, precision="fp32")(image) for image in images]
    print(
        f"{args.model}, receptive field {network.receptive_field}, query groups of {network.group_size}"
    )
    print(f"{'tile':>5} {'overlap':>8} {'max diff':>9} {'differ':>9} {'PSNR dB':>8} {'work':>6}")
    for tile in args.tile:
        for overlap in overlaps:
            upscaler = Upscaler(network, tile=tile, overlap=overlap, precision="fp32")
            tiled = [upscaler(image) for image in images]
            gaps = [np.abs(a - b) for a, b in zip(tiled, whole, strict=True)]
            worst = 255 * max(float(gap.max()) for gap in gaps)
            differ = np.mean(
                [np.mean(_levels(a) != _levels(b)) for a, b in zip(tiled, whole, strict=True)]
            )
            mse = float(np.mean([np.mean(np.square(gap, dtype=np.float64)) for gap in gaps]))
            psnr = f"{-10 * np.log10(mse):.1f}" if mse else "inf"
            work = np.mean([_work(image, tile, overlap, network.group_size) for image in images])
            print(f"{tile:5} {overlap:8} {worst:9.4f} {100 * differ:8.3f}% {psnr:>8} {work:6.2f}")


def _middle(pixels: np.ndarray, side: int) -> np.ndarray:
    top, left = (max((length - side) // 2, 0) for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]


def _levels(pixels: np.ndarray) -> np.ndarray:
    return np.round(pixels.clip(0, 1) * 255)


def _work(image: np.ndarray, tile: int, overlap: int, grid: int) -> float:
    height, width = image.shape[:2]
    cores = split(Region(0, height, 0, width), tile or max(height, width), grid)
    windows = [window_of(core, height, width, overlap, grid) for core in cores]
    return float(sum(window.height * window.width for window in windows) / (height * width))


if __name__ == "__main__":
    main()
