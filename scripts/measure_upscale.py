"""Measures the real `srnet upscale`: peak memory, speed against the bare network, a folder against single calls.

    python scripts/measure_upscale.py memory                     # 200 megapixels out, one-block network, all formats
    python scripts/measure_upscale.py speed --megapixels 12      # the shipped network; on a CPU take 0.5
    python scripts/measure_upscale.py folder --count 100

Each run is a process of its own; peak memory is what the operating system counted for it. Bare speed is the network
alone on the windows of the same tiles, float32, in one process; what overlap costs is printed beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyvips
import torch
from PIL import Image

from srnet.checkpoint import default_model, load_checkpoint, save_checkpoint
from srnet.config import NetworkConfig
from srnet.inference import Upscaler
from srnet.network import SRNet
from srnet.tiling import Region, split, window_of


def child(words: list[str]) -> tuple[float, float]:
    """Runs `srnet upscale`; returns seconds and peak memory in megabytes."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "srnet", "upscale", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        sys.exit(f"srnet upscale {' '.join(words)} failed: {errors}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def photograph(path: Path, megapixels: float) -> tuple[int, int]:
    """Writes a picture with gradients and grain, 4:3, without holding it; returns width and height."""
    width = round((megapixels * 1e6 * 4 / 3) ** 0.5)
    height = round(width * 3 / 4)
    grain = pyvips.Image.gaussnoise(width, height, mean=0, sigma=6)
    ramp = pyvips.Image.xyz(width, height)
    image = pyvips.Image.bandjoin(
        ramp[0] * (200 / width) + grain + 20, [ramp[1] * (200 / height) + grain + 20, grain + 128]
    )
    image.cast("uchar").copy(interpretation="srgb").write_to_file(str(path))
    return width, height


def memory(folder: Path, args: argparse.Namespace) -> None:
    """Peak memory by format of input and output."""
    torch.manual_seed(0)
    shape = NetworkConfig(
        scale=4, embed_dim=8, num_blocks=1, convs_per_block=1, num_heads=1, attention_blocks=()
    )
    model = folder / "one-block.safetensors"
    save_checkpoint(model, SRNet(shape), metrics={}, data="none", license="CC0-1.0", commit="0")
    idle = folder / "idle.png"
    photograph(idle, 0.001)
    print(
        f"start-up alone: {child([str(idle), '-n', str(model)])[1]:.0f} MB",
        flush=True,
    )
    for source_format, target_format in [f.split(":") for f in args.formats.split(",")]:
        source = folder / f"source.{source_format}"
        width, height = photograph(source, args.megapixels / 16)
        target = folder / f"target.{target_format}"
        seconds, peak = child(
            [str(source), "-o", str(target), "-n", str(model), "--overlap", "4", "--overwrite"]
        )
        print(
            f"{source_format} {width} x {height} to {target_format} {4 * width} x {4 * height} "
            f"({16 * width * height / 1e6:.0f} megapixels): peak {peak:.0f} MB, {seconds:.0f} s",
            flush=True,
        )
        source.unlink()
        target.unlink()


def speed(folder: Path, args: argparse.Namespace) -> None:
    """Speed of the command against the network alone."""
    source = folder / "photo.jpg"
    width, height = photograph(source, args.megapixels)
    name = args.model or default_model(4)
    upscaler = Upscaler(load_checkpoint(name).network, precision="fp32")
    result = (width * height * upscaler.scale**2) / 1e6
    words = [str(source), "-o", str(folder / "big.jpg"), "-n", name, "--fp32", "--overwrite"]
    tiny = folder / "tiny.png"
    photograph(tiny, 0.001)
    start_up, _ = child([str(tiny), "-n", name, "--overwrite"])
    seconds, peak = child(words)
    print(f"{name}, {upscaler.device}, {width} x {height} JPEG, tile {upscaler.tile}")
    print(f"command: {result / seconds:.2f} MP/s with start-up, peak {peak:.0f} MB")
    print(
        f"command less start-up of {start_up:.1f} s: {result / (seconds - start_up):.2f} MP/s",
        flush=True,
    )
    grid = upscaler.network.group_size
    cores = split(Region(0, height, 0, width), upscaler.tile or max(height, width), grid)
    windows = [window_of(core, height, width, upscaler.overlap, grid) for core in cores]
    sizes = [(window.height, window.width) for window in windows]
    pixels = sum(rows * columns for rows, columns in sizes)
    # the first windows warm up; a large image has more windows than it takes to know the speed
    with torch.inference_mode():
        for some in (sizes[:2], sizes[: args.windows]):
            bare = 0.0
            for rows, columns in some:
                lr = torch.rand(1, 3, rows, columns, device=upscaler.device)
                lr = lr.contiguous(memory_format=torch.channels_last)
                start = time.perf_counter()
                upscaler.network(lr)
                if upscaler.device.type == "cuda":
                    torch.cuda.synchronize()
                bare += time.perf_counter() - start
    bare *= pixels / sum(rows * columns for rows, columns in some)
    print(f"network on the same windows: {result / bare:.2f} MP/s")
    print(f"share of the network's speed: {100 * bare / (seconds - start_up):.1f} %")
    print(
        f"windows hold {pixels / (width * height):.2f} times the image's pixels because of the overlap"
    )


def folder_rate(folder: Path, args: argparse.Namespace) -> None:
    """Images a second of a folder against one call for each image."""
    random = np.random.default_rng(0)
    (folder / "in").mkdir()
    for index in range(args.count):
        pixels = random.integers(0, 256, (args.side, args.side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "in" / f"{index}.png")
    model = ["-n", args.model] if args.model else []
    seconds, peak = child([str(folder / "in"), "-o", str(folder / "out"), *model])
    single = min(args.count, 5)
    start = time.perf_counter()
    for index in range(single):
        child([str(folder / "in" / f"{index}.png"), "-o", str(folder / "one"), *model])
    loop = single / (time.perf_counter() - start)
    rate = args.count / seconds
    print(
        f"{args.count} images of {args.side} x {args.side}: {rate:.2f} images/s, peak {peak:.0f} MB"
    )
    print(
        f"one call for each ({single} measured): {loop:.2f} images/s; the folder is {rate / loop:.1f} times faster"
    )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = parser.add_subparsers(required=True)
    part = sub.add_parser("memory")
    part.add_argument("--megapixels", type=float, default=200, help="of the result")
    part.add_argument(
        "--formats",
        default="jpg:jpg,png:png,png:tiff,png:bmp",
        help="pairs of input and output",
    )
    part.set_defaults(run=memory)
    part = sub.add_parser("speed")
    part.add_argument("--megapixels", type=float, default=0.5, help="of the input")
    part.add_argument("--model")
    part.add_argument("--windows", type=int, default=20, help="that the bare network is timed on")
    part.set_defaults(run=speed)
    part = sub.add_parser("folder")
    part.add_argument("--count", type=int, default=40)
    part.add_argument("--side", type=int, default=48)
    part.add_argument("--model")
    part.set_defaults(run=folder_rate)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        args.run(Path(name), args)


if __name__ == "__main__":
    main()
