"""Damages image files in thousands of ways and upscales each: read or refused, never a crash, a hang or a lost file.

    python scripts/damage_images.py --count 5000

For every damaged file there must be one outcome: a result that decodes, or an error of one line that names the file
and leaves nothing behind. Whole files are also cut at every length. The work is done in child processes, so that a
crash inside an image library is told with the file that caused it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
import torch

from srnet.config import NetworkConfig
from srnet.files import Failure, Job, Options, upscale_files
from srnet.images import decode, encode, vips
from srnet.images.fit import fit_format
from srnet.images.formats import OutputFormat
from srnet.inference import Upscaler
from srnet.network import SRNet

FORMATS: tuple[OutputFormat, ...] = ("png", "jpeg", "tiff", "webp", "gif", "bmp", "avif")
_SLOW = 10.0  # seconds that no damaged file may take
_GROWTH = 300  # megabytes by which none of them may raise the peak
_MAX_PIXELS = 4_000_000


def damage(data: bytes, random: np.random.Generator) -> bytes:
    """Changes, removes, repeats or cuts bytes; half of the places lie in the header."""
    result = bytearray(data)
    for _ in range(int(random.integers(1, 4))):
        place = int(random.integers(min(len(result), 100 if random.random() < 0.5 else 2**30)))
        match int(random.integers(6)):
            case 0:
                result[place] = int(random.integers(256))
            case 1:
                result[place] ^= 1 << int(random.integers(8))
            case 2:
                del result[place : place + int(random.integers(1, 40))]
            case 3:
                result[place:place] = result[place : place + int(random.integers(1, 40))]
            case 4:
                result[place : place + 4] = bytes(random.choice([0, 255], 4).tolist())
            case _:
                del result[max(place, 1) :]
        if not result:
            return b"\0"
    return bytes(result)


def originals(folder: Path) -> dict[OutputFormat, bytes]:
    """One small file of each format."""
    random = np.random.default_rng(0)
    files = {}
    for format in FORMATS:
        pixels = random.integers(0, 256, (12, 16, 4), dtype=np.uint8)
        path = folder / f"whole.{format}"
        encode.write(path, fit_format(pixels, format, (0, 0, 0)), format)
        files[format] = path.read_bytes()
    return files


def run(folder: Path, count: int, seed: int, current: Path) -> Counter[str]:
    """Upscales damaged files; returns how many of each format were read and refused.

    Args:
        folder: Where to work.
        count: Files.
        seed: Of the damage.
        current: Receives each file before it is opened.

    Raises:
        AssertionError: If an outcome is none of the two that are allowed.
    """
    torch.manual_seed(0)
    torch.set_num_threads(1)
    vips.disable_cache()
    shape = NetworkConfig(
        scale=2, embed_dim=8, num_blocks=1, convs_per_block=1, num_heads=1, attention_blocks=()
    )
    upscaler = Upscaler(SRNet(shape), device="cpu")
    random = np.random.default_rng(seed)
    files = originals(folder)
    options = Options(format="png", max_pixels=_MAX_PIXELS)
    target = folder / "out" / "result.png"
    outcomes: Counter[str] = Counter()
    peak = None
    for index in range(count):
        format = FORMATS[index % len(FORMATS)]
        cut = index // len(FORMATS) % 4 == 0
        data = files[format]
        data = data[: int(random.integers(1, len(data)))] if cut else damage(data, random)
        current.write_bytes(data)
        start = time.perf_counter()
        (outcome,) = upscale_files(upscaler, [Job(current, target)], options)
        seconds = time.perf_counter() - start
        assert seconds < _SLOW, f"took {seconds:.1f} s"
        if isinstance(outcome, Failure):
            message = str(outcome.error)
            assert "\n" not in message, f"more than one line: {message!r}"
            assert current.name in message, f"does not name the file: {message!r}"
            assert list(target.parent.glob("*")) == [] if target.parent.exists() else True
            outcomes[f"{format} refused"] += 1
        else:
            decode.read(target)
            target.unlink()
            outcomes[f"{format} read"] += 1
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if index == len(FORMATS) * 2:
            peak = used
        assert peak is None or used < peak + _GROWTH, (
            f"memory grew from {peak:.0f} to {used:.0f} MB"
        )
    return outcomes


def _work(folder: str, count: int, seed: int, current: str, queue: Queue[Counter[str]]) -> None:
    queue.put(run(Path(folder), count, seed, Path(current)))


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        for start in range(0, args.count, 500):
            current, queue = Path(name) / "current.img", context.Queue()
            work = (name, min(500, args.count - start), args.seed + start, str(current), queue)
            process = context.Process(target=_work, args=work)
            process.start()
            process.join()
            if process.exitcode != 0:
                kept = Path(f"damaged-{args.seed + start}.img")
                kept.write_bytes(current.read_bytes())
                print(f"failed with exit code {process.exitcode}; the file is kept as {kept}")
                return 1
            total += queue.get()
    for format in FORMATS:
        print(f"{format}: {total[f'{format} refused']} refused, {total[f'{format} read']} read")
    print(f"{sum(total.values())} damaged files: no crash, no hang, nothing left behind")
    return 0


if __name__ == "__main__":
    sys.exit(main())
