"""Compare the speed of packed patches with a loader that decodes an image for each patch."""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from srnet.datasets import PackedPairs, sample_patches
from srnet.errors import SRNetError
from srnet.images.decode import read_rgb8
from srnet.pairs import Pair, find_pairs_in_roots
from srnet.resize import downscale


def decode_patches(pairs: list[Pair], scale: int, batch_size: int, patch_size: int) -> None:
    """Make one batch the plain way: decode, cut one patch; shrink the patch where LR is not published."""
    side = patch_size * scale
    for pair in random.choices(pairs, k=batch_size):
        hr = read_rgb8(pair.hr)
        height, width = hr.shape[0] // scale, hr.shape[1] // scale
        y, x = random.randint(0, height - patch_size), random.randint(0, width - patch_size)
        patch = hr[y * scale :, x * scale :][:side, :side].transpose(2, 0, 1)
        hr_patch = torch.from_numpy(np.ascontiguousarray(patch))
        if pair.lr is None:
            downscale(hr_patch[None], scale)
        else:
            lr = read_rgb8(pair.lr)
            np.ascontiguousarray(lr[y : y + patch_size, x : x + patch_size].transpose(2, 0, 1))


def rate(step: Callable[[], object], batch_size: int, seconds: float) -> float:
    """Return patches per second of `step`, after one call that is not counted."""
    step()
    calls = 0
    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        step()
        calls += 1
    return calls * batch_size / spent


def main() -> int:
    """Pack the folders, time both loaders on one thread, print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="HR folder, or the folder that holds it",
    )
    parser.add_argument("--scale", type=int, default=4, help="upscaling factor (default: 4)")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="patches in a batch (default: 16)"
    )
    parser.add_argument(
        "--patch-size", type=int, default=32, help="side of an LR patch (default: 32)"
    )
    parser.add_argument(
        "--seconds", type=float, default=5, help="time for each loader (default: 5)"
    )
    parser.add_argument(
        "--cache", type=Path, help="folder for the packed file (default: a temporary one)"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    try:
        pairs = find_pairs_in_roots(args.folders, args.scale)
        with tempfile.TemporaryDirectory() as temporary:
            start = time.perf_counter()
            packed = PackedPairs.build(pairs, args.scale, args.cache or Path(temporary))
            built = time.perf_counter() - start
            size = packed.path.stat().st_size / 2**20
            generator = torch.Generator().manual_seed(0)
            fast = rate(
                lambda: sample_patches(packed, args.batch_size, args.patch_size, generator),
                args.batch_size,
                args.seconds,
            )
        slow = rate(
            lambda: decode_patches(pairs, args.scale, args.batch_size, args.patch_size),
            args.batch_size,
            args.seconds,
        )
    except SRNetError as error:
        print(f"bench_loader: error: {error}", file=sys.stderr)
        return 2
    print(f"{len(pairs)} images, {size:.0f} MiB packed or opened in {built:.1f} s")
    print(f"packed    {fast:10.1f} patches/s")
    print(f"decoding  {slow:10.1f} patches/s")
    print(f"ratio     {fast / slow:10.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
