"""``srnet upscale``: enlarges image files."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from srnet.errors import ImageError

if TYPE_CHECKING:
    from srnet.inference import Progress, Upscaler

_SCALES = (2, 3, 4)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet upscale``."""
    add = parser.add_argument
    add("inputs", nargs="+", type=Path, metavar="INPUT", help="image file")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="file, or folder for several (default: beside the input)",
    )
    add(
        "-s",
        "--scale",
        type=int,
        choices=_SCALES,
        help="enlargement factor (default: the model's own, else 4)",
    )
    add(
        "-n",
        "--model",
        metavar="NAME|FILE",
        help="shipped model or checkpoint file (default: the shipped one)",
    )
    add(
        "-t",
        "--tile",
        type=_tile,
        default="auto",
        metavar="auto|0|N",
        help="LR pixels a tile; 0 takes the whole image at once (default: auto, what fits in memory)",
    )
    add(
        "--overlap",
        "--tile-overlap",
        "--tile-pad",
        "--tile_pad",
        type=int,
        metavar="N",
        help="LR pixels that a tile sees beyond its border (default: 16)",
    )
    add(
        "--device",
        default="auto",
        metavar="auto|cpu|cuda[:i]|mps",
        help="where to compute (default: auto)",
    )
    add(
        "--precision",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="default: auto",
    )
    add(
        "--fp32",
        dest="precision",
        action="store_const",
        const="fp32",
        help="same as --precision fp32",
    )
    add(
        "-f",
        "--format",
        metavar="EXT",
        help="png, jpg, webp, tiff, avif, gif or bmp (default: the input's)",
    )
    existing = parser.add_mutually_exclusive_group()
    existing.add_argument(
        "--overwrite", action="store_true", help="replace results that exist already"
    )
    existing.add_argument(
        "--skip-existing", action="store_true", help="leave inputs out whose result exists"
    )
    add("--json", action="store_true", help="one JSON object for each image on stdout")


def run(args: argparse.Namespace) -> int:
    """Enlarges every input.

    Returns:
        0 when all are done, 1 when some failed.

    Raises:
        SRNetError: If nothing is done at all: unknown model, wrong option, the only input cannot be used.
    """
    from srnet import image_io

    logging.basicConfig(format="srnet: %(message)s", level=logging.WARNING)
    logging.getLogger("pyvips").setLevel(logging.ERROR)
    if args.output is not None and len(args.inputs) > 1 and not args.output.is_dir():
        args.output.mkdir(parents=True, exist_ok=True)
    if len(args.inputs) == 1:
        image_io.read_header(args.inputs[0])  # a bad only input fails before torch is loaded
    format = None if args.format is None else image_io.format_of(args.format)
    upscaler, model = _load(args)

    from srnet.files import Options, Result, default_target, target_format, upscale_file

    options = Options(format=format, overwrite=args.overwrite)

    def one(source: Path) -> Result | None:
        folder = source.parent
        target = None
        if args.output is not None and args.output.is_dir():
            folder = args.output
        else:
            target = args.output
        if target is None:
            kind = target_format(source, None, options)
            target = default_target(source, folder, upscaler.scale, kind)
        if args.skip_existing and target.exists():
            return None
        return upscale_file(upscaler, source, target, options, _progress_bar(source))

    failed = 0
    for source in args.inputs:
        try:
            result = one(source)
        except ImageError as error:
            if len(args.inputs) == 1:
                raise
            failed += 1
            print(f"srnet: error: {error}", file=sys.stderr)
            if args.json:
                print(json.dumps({"input": str(source), "error": str(error)}))
            continue
        if result is None:
            print(f"srnet: {source}: skipped, its result exists", file=sys.stderr)
            continue
        used = {
            "model": model,
            "scale": upscaler.scale,
            "device": str(upscaler.device),
            "precision": upscaler.precision,
            "tile": upscaler.tile,
            "overlap": upscaler.overlap,
        }
        print(
            f"srnet: {source.name}: {result.width} x {result.height}, {model}, {upscaler.device}, "
            f"{upscaler.precision}, tile {upscaler.tile or 'whole image'}, overlap {upscaler.overlap}, "
            f"{result.seconds:.1f} s, {result.megapixels_per_second:.2f} MP/s",
            file=sys.stderr,
        )
        if args.json:
            row = {"input": str(source), "output": str(result.target), "width": result.width}
            row |= {"height": result.height, "seconds": round(result.seconds, 3), **used}
            print(json.dumps(row))
        else:
            print(result.target)
    if len(args.inputs) > 1:
        print(f"srnet: {len(args.inputs) - failed} of {len(args.inputs)} done", file=sys.stderr)
    return 1 if failed else 0


def _load(args: argparse.Namespace) -> tuple[Upscaler, str]:
    """Loads the model that fits the scale, or the scale that fits the model."""
    from srnet.checkpoint import default_model, load_checkpoint
    from srnet.inference import Upscaler

    name = args.model or default_model(args.scale or 4)
    checkpoint = load_checkpoint(name, scale=args.scale)
    upscaler = Upscaler(
        checkpoint.network,
        device=args.device,
        precision=args.precision,
        tile=args.tile,
        overlap=args.overlap,
    )
    return upscaler, checkpoint.name


def _tile(text: str) -> int | str:
    """Reads the value of --tile."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no tile size; use auto, 0 or a number"
        ) from error


def _progress_bar(source: Path) -> Progress | None:
    """A line with percentage and remaining time on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        return None
    start = time.perf_counter()

    def show(done: int, total: int) -> None:
        left = (time.perf_counter() - start) * (total - done) / done
        line = (
            f"{source.name}: {100 * done // total:3d} %, {left:.0f} s left" if done < total else ""
        )
        print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)

    return show
