"""Upscales a large folder of small images, many of them broken, again and again killed and resumed.

    python scripts/folder_test.py --count 10000 --kills 5     # the full run: hours on a CPU
    python scripts/folder_test.py --count 60 --kills 2        # what the tests run

Checks that the summary is exact, that memory does not grow with the number of files, and that a run killed with
SIGKILL at random moments and resumed with --skip-existing leaves the same folder as an undisturbed one, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from srnet.checkpoint import save_checkpoint
from srnet.config import NetworkConfig
from srnet.network import SRNet

_FORMATS = ("png", "jpg", "webp", "tif", "gif", "bmp")


def make_images(folder: Path, count: int) -> tuple[int, int, int]:
    """Writes images of all formats, every fifth broken in one of four ways, and some other files.

    Returns:
        How many are good, broken, and no images.
    """
    rng = np.random.default_rng(0)
    good = broken = others = 0
    for index in range(count):
        path = folder / f"{index % 7}" / f"{index:05d}.{_FORMATS[index % len(_FORMATS)]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (int(rng.integers(4, 12)), 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        if index % 5 == 4:
            data = path.read_bytes()
            damaged = (data[: len(data) // 2], b"", b"no image at all", data[:12])
            path.write_bytes(damaged[index // 5 % 4])
            broken += 1
        else:
            good += 1
        if index % 50 == 0:
            path.with_suffix(".txt").write_text("no image")
            others += 1
    return good, broken, others


def command(source: Path, target: Path, model: Path) -> list[str]:
    """The words of one run."""
    words = ["upscale", str(source), "-o", str(target), "-r", "-n", str(model), "--skip-existing"]
    return [sys.executable, "-m", "srnet", *words]


def undisturbed(words: list[str]) -> tuple[int, str, float, list[int]]:
    """Runs to the end; returns the exit code, the summary, seconds, and memory in MB about four times a second."""
    start, memory = time.perf_counter(), []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=log)
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status")
            if status.exists():
                found = re.search(r"RssAnon:\s+(\d+)", status.read_text())
                memory += [int(found[1]) // 1024] if found else []
            time.sleep(0.25)
        log.seek(0)
        summary = log.read().splitlines()[-1]
    return process.returncode, summary, time.perf_counter() - start, memory


def kill_after(words: list[str], folder: Path, results: int, delay: float) -> bool:
    """Runs and kills a moment after a folder has so many results; returns whether it was still running."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        if sum(path.is_file() for path in folder.rglob("[!.]*")) >= results:
            time.sleep(delay)
            os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    return process.returncode == -signal.SIGKILL


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, hidden ones included."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def check(count: int, kills: int, seed: int, folder: Path) -> list[str]:
    """Makes the images, runs everything; returns lines for the report.

    Raises:
        AssertionError: If a promise is broken.
    """
    torch.manual_seed(0)
    shape = NetworkConfig(
        scale=2, embed_dim=8, num_blocks=1, convs_per_block=1, num_heads=1, attention_blocks=()
    )
    model = folder / "tiny.safetensors"
    save_checkpoint(model, SRNet(shape), metrics={}, data="none", license="CC0-1.0", commit="0")
    good, broken, others = make_images(folder / "in", count)
    whole, resumed = folder / "whole", folder / "resumed"
    code, summary, seconds, memory = undisturbed(command(folder / "in", whole, model))
    expected = f"{good} done, 0 skipped, {broken} failed, {others} ignored"
    assert expected in summary, f"{summary!r} instead of {expected!r}"
    assert code == 1, f"exit code {code}"
    assert len(content(whole)) == good, f"{len(content(whole))} results of {good}"
    lines = [f"{count} files in {seconds:.1f} s: {summary}"]
    quarter = len(memory) // 4
    if count >= 500:  # in a shorter run the second quarter is still the start of the program
        early, late = max(memory[quarter : 2 * quarter]), max(memory[-quarter:])
        lines.append(f"memory: {early} MB in the second quarter, {late} MB in the last")
        assert late < early * 1.1 + 20, f"memory grows from {early} to {late} MB"
    generator = random.Random(seed)
    moments = sorted(generator.sample(range(1, good * 9 // 10), kills))
    for results in moments:
        words, delay = command(folder / "in", resumed, model), generator.uniform(0, 0.1)
        assert kill_after(words, resumed, results, delay), f"ended before {results} results"
    code, summary, _, _ = undisturbed(command(folder / "in", resumed, model))
    assert code == 1, f"exit code {code} after resuming"
    assert content(resumed) == content(whole), "the resumed folder differs from the undisturbed one"
    lines.append(f"killed with {', '.join(map(str, moments))} results there, then {summary}")
    lines.append("the resumed folder equals the undisturbed one, byte for byte")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        print("\n".join(check(args.count, args.kills, args.seed, Path(name))))
