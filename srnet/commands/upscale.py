"""``srnet upscale``: enlarges image files."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from srnet.errors import ConfigError, one_line

if TYPE_CHECKING:
    from srnet.inference import Progress, Upscaler


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet upscale``."""
    add = parser.add_argument
    add(
        "inputs",
        nargs="*",
        type=Path,
        metavar="INPUT",
        help="image file, folder, or pattern such as 'scans/*.png'",
    )
    add(
        "-i",
        "--input",
        dest="more",
        action="append",
        default=[],
        type=Path,
        metavar="INPUT",
        help="same as INPUT",
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="OUT",
        help="file, or folder for several (default: beside the input)",
    )
    add(
        "-r",
        "--recursive",
        action="store_true",
        help="also folders inside folders; the tree is mirrored below OUT",
    )
    add(
        "-n",
        "--model",
        metavar="NAME|FILE",
        help="shipped model, or file of weights: srnet's, or another architecture's (default: the shipped one)",
    )

    size = parser.add_argument_group("size of the result")
    add = size.add_argument
    add(
        "-s",
        "--scale",
        "--outscale",
        type=float,
        help="factor from 1 to 8 (default: the model's own, else 4)",
    )
    add("--width", type=int, metavar="N", help="exact width in pixels; the height follows")
    add("--height", type=int, metavar="N", help="exact height in pixels; the width follows")
    add("--max-side", type=int, metavar="N", help="longer side in pixels")
    add("--megapixels", type=float, metavar="N", help="area in millions of pixels")

    files = parser.add_argument_group("files")
    add = files.add_argument
    add(
        "-f",
        "--format",
        "--ext",
        metavar="EXT",
        help="png, jpg, webp, tiff, avif, gif or bmp (default: the input's)",
    )
    add("--suffix", default="_x{scale}", help="put after the name (default: _x{scale})")
    add(
        "--quality",
        type=int,
        metavar="1-100",
        help="of JPEG (default 95), WebP and AVIF (default 90)",
    )
    add("--lossless", action="store_true", help="keep every pixel in WebP and AVIF")
    add(
        "--metadata",
        choices=("keep", "strip"),
        default="keep",
        help="EXIF, XMP, dpi, text (default: keep)",
    )
    add(
        "--profile",
        choices=("keep", "srgb"),
        default="keep",
        help="keep the colour profile, or convert to sRGB (default: keep)",
    )
    add("--animated", action="store_true", help="every frame of GIF and WebP, not only the first")
    add(
        "--compare",
        action="store_true",
        help="also write NAME_compare.png, before and after with zoomed parts, and say how well the result "
        "shrinks back to the input",
    )
    add(
        "--background",
        type=_colour,
        default=(255, 255, 255),
        metavar="RRGGBB",
        help="under transparent pixels where the format has no alpha (default: ffffff)",
    )
    add(
        "--max-pixels",
        type=int,
        default=300_000_000,
        metavar="N",
        help="largest input (default: 300000000)",
    )
    existing = files.add_mutually_exclusive_group()
    existing.add_argument(
        "--overwrite", action="store_true", help="replace results that exist already"
    )
    existing.add_argument(
        "--skip-existing",
        action="store_true",
        help="leave out inputs whose complete result exists, of the same content and settings",
    )

    compute = parser.add_argument_group("computing")
    add = compute.add_argument
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
        "-x",
        "--self-ensemble",
        action="store_true",
        help="mean over eight flipped and turned views, eight times slower",
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
    parser.add_argument(
        "--json", action="store_true", help="one JSON object for each image on stdout"
    )


def run(args: argparse.Namespace) -> int:
    """Enlarges every input.

    Returns:
        0 when all are done, 1 when some failed.

    Raises:
        SRNetError: If nothing is done at all: unknown model, wrong option, the only input cannot be used.
    """
    from srnet.images import decode, formats, vips

    logging.basicConfig(format="srnet: %(message)s", level=logging.WARNING)
    logging.getLogger("pyvips").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="PIL")  # of odd metadata; what matters is an error
    vips.disable_cache()
    inputs = [*args.inputs, *args.more]
    if not inputs:
        raise ConfigError(
            "no INPUT; name an image file, a folder or a pattern, see srnet upscale --help"
        )
    format = None if args.format is None else formats.format_of(args.format)
    _check_size(args)
    if args.quality is not None and not 1 <= args.quality <= 100:
        raise ConfigError(f"--quality is {args.quality}; use 1 to 100")
    if any(sign in args.suffix for sign in "/\\"):
        raise ConfigError(
            f"--suffix is {args.suffix!r}; it is a part of the name, use -o for folders"
        )
    pattern = any(sign in inputs[0].name for sign in "*?[")
    if len(inputs) == 1 and (inputs[0].is_file() or not (inputs[0].exists() or pattern)):
        decode.read_header(
            inputs[0], args.max_pixels
        )  # a bad only input fails before torch is loaded

    from srnet.files import Failure, Job, Options, Size, find_images, plan, upscale_files

    found = find_images(inputs, args.output, args.recursive)
    upscaler, model, about = _load(args, [image for image, _ in found.images])
    size = Size(
        scale=args.scale,
        width=args.width,
        height=args.height,
        max_side=args.max_side,
        megapixels=args.megapixels,
    )
    options = Options(
        format=format,
        size=size,
        suffix=args.suffix,
        quality=args.quality,
        lossless=args.lossless,
        metadata=args.metadata,
        background=args.background,
        profile=args.profile,
        animated=args.animated,
        compare=args.compare,
        existing="overwrite" if args.overwrite else "skip" if args.skip_existing else "refuse",
        max_pixels=args.max_pixels,
    )
    planned = plan(found, args.output, options, upscaler.scale)
    used = {
        "model": model,
        "scale": upscaler.scale,
        "device": str(upscaler.device),
        "precision": upscaler.precision,
        "tile": upscaler.tile,
        "overlap": upscaler.overlap,
    }
    how = (
        f"{model}, {upscaler.device}, {upscaler.precision}, "
        f"tile {upscaler.tile or 'whole image'}, overlap {upscaler.overlap}"
    )
    count, done, skipped, failed = len(planned.jobs), 0, 0, 0
    single = count == 1 and not inputs[0].is_dir()
    start = time.perf_counter()

    def tell_about() -> None:
        while about:
            _tell(about.pop(0))

    if not single:
        tell_about()

    def bar(job: Job) -> Progress | None:
        finished = done + skipped + failed
        return _progress_bar(job.source, finished, count, start) if sys.stderr.isatty() else None

    for outcome in upscale_files(upscaler, planned.jobs, options, bar):
        source = outcome.job.source
        if isinstance(outcome, Failure):
            if single:
                raise outcome.error
            failed += 1
            _tell(f"error: {outcome.error}")
            if args.json:
                print(json.dumps({"input": str(source), "error": str(outcome.error)}), flush=True)
            continue
        target = outcome.job.target
        row = {
            "input": str(source),
            "output": str(target),
            "width": outcome.width,
            "height": outcome.height,
        }
        if outcome.skipped:
            skipped += 1
            why = "; ".join([f"{target.name} is finished", *outcome.notes])
            _tell(f"{source}: skipped, {why}")
            if args.json:
                print(json.dumps(row | {"skipped": True, "notes": list(outcome.notes)}), flush=True)
            continue
        done += 1
        tell_about()  # of a single file that fails, only the error is told
        for note in outcome.notes:
            _tell(f"{source}: {note}")
        _tell(
            f"{source.name}: {outcome.width} x {outcome.height}, {how}, "
            f"{outcome.seconds:.1f} s, {outcome.megapixels_per_second:.2f} MP/s"
        )
        if outcome.compared is not None:
            picture, psnr = outcome.compared
            row |= {
                "compare": str(picture),
                "psnr_shrunk_back": round(psnr, 2) if psnr < 1000 else None,
            }
            _tell(
                f"{picture}: shrunk back with MATLAB's bicubic, the result has {psnr:.2f} dB PSNR "
                f"against its input"
            )
        row |= {"seconds": round(outcome.seconds, 3), "notes": list(outcome.notes), **used}
        print(json.dumps(row) if args.json else target, flush=True)
    if not single:
        seconds = time.perf_counter() - start
        _tell(
            f"{done} done, {skipped} skipped, {failed} failed, {len(planned.ignored)} ignored "
            f"(no images, own results or in the output folder), {seconds:.1f} s"
        )
    return 1 if failed else 0


def _tell(text: str) -> None:
    """Prints one line on stderr."""
    print(f"srnet: {one_line(text)}", file=sys.stderr)


def _check_size(args: argparse.Namespace) -> None:
    """Refuses sizes that exclude each other or are out of range."""
    given = [
        name for name in ("scale", "max_side", "megapixels") if getattr(args, name) is not None
    ]
    if args.width is not None or args.height is not None:
        given.append("width" if args.width is not None else "height")
    if len(given) > 1:
        raise ConfigError(
            f"--{given[0]} and --{given[1]} exclude each other; give one".replace("_", "-")
        )
    if args.scale is not None and not 1 <= args.scale <= 8:
        raise ConfigError(f"--scale is {args.scale:g}; use 1 to 8")
    for name in ("width", "height", "max_side", "megapixels"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            raise ConfigError(f"--{name.replace('_', '-')} is {value:g}; use more than 0")


def _load(args: argparse.Namespace, images: list[Path]) -> tuple[Upscaler, str, list[str]]:
    """Loads the model: the one asked for, else the smallest one that suits the images and reaches the size.

    Returns:
        What computes, the model's name, and what the user should know about the choice.
    """
    from srnet.checkpoint import check_scale
    from srnet.choice import choose_model
    from srnet.config import SCALES
    from srnet.foreign import load_model
    from srnet.inference import DEFAULT_OVERLAP, Upscaler

    about: list[str] = []
    if args.model is not None:
        model = load_model(args.model)
        # up to 4 there are models of the factor itself; beyond, the largest must do
        if args.scale in SCALES:
            check_scale(args.model, model.network.scale, int(args.scale))
    else:
        choice = choose_model(images, args.scale or 4)
        about.append(choice.reason)
        model = load_model(choice.model)
    upscaler = Upscaler(
        model.network,
        device=args.device,
        precision=args.precision,
        tile=args.tile,
        overlap=args.overlap,
        self_ensemble=args.self_ensemble,
    )
    if upscaler.tile and upscaler.overlap < DEFAULT_OVERLAP:
        about.append(
            f"overlap {upscaler.overlap} is below {DEFAULT_OVERLAP}, seams between tiles may show"
        )
    about += [f"{args.model}: {note}" for note in model.notes]
    return upscaler, model.name, about


def _colour(text: str) -> tuple[int, int, int]:
    """Reads the value of --background."""
    digits = text.removeprefix("#")
    try:
        red, green, blue = bytes.fromhex(digits)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no colour; use six hexadecimal digits, e.g. ffffff"
        ) from error
    return red, green, blue


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


def _progress_bar(source: Path, finished: int, count: int, start: float) -> Progress:
    """A line with the place in the batch, the percentage and the remaining time of the whole batch."""

    def show(done: int, total: int) -> None:
        share = (finished + done / total) / count
        left = (time.perf_counter() - start) * (1 - share) / share
        line = f"{finished + 1}/{count} {one_line(source.name)}: {100 * done // total} %, {left:.0f} s left"
        print(f"\r{line if done < total else ''}\033[K", end="", file=sys.stderr, flush=True)

    return show
