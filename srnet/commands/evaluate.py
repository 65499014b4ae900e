"""``srnet eval [MODEL|FILE] --data DIR``: PSNR-Y and SSIM-Y beside bicubic, with the protocol."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from srnet.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet eval``."""
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL|FILE",
        help="name or file of a checkpoint, or the word bicubic; default: the shipped one of --scale",
    )
    parser.add_argument(
        "--data",
        required=True,
        type=Path,
        metavar="DIR",
        help="folder of images, see data/README.md",
    )
    parser.add_argument(
        "--scale",
        type=int,
        choices=(2, 3, 4),
        help="default: the checkpoint's; results of a larger one are shrunk",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here, too")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write the results as PNG here")
    parser.add_argument(
        "--jpeg",
        type=_qualities,
        metavar="LOW-HIGH",
        help="compress each LR image first, with a quality of this range that its name fixes, e.g. 40-80",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16", "fp16", "auto"))
    parser.add_argument(
        "--allow-orphans", action="store_true", help="leave out files that have no partner"
    )


def run(args: argparse.Namespace) -> int:
    """Evaluates and prints the table.

    Returns:
        0.

    Raises:
        SRNetError: The checkpoint, the data or an option is wrong.
    """
    if args.model in (None, "bicubic") and args.scale is None:
        what = args.model or "the default model"
        raise ConfigError(f"{what} needs --scale 2, 3 or 4")

    from srnet.report_file import check_report, write_report

    if args.json is not None:
        check_report(args.json)

    from srnet.checkpoint import default_model, load_checkpoint
    from srnet.datasets import find_pairs, scan, summarise
    from srnet.errors import DataError
    from srnet.evaluation import evaluate, write_png

    name, network, sha256, scale = "bicubic", None, None, args.scale
    if args.model != "bicubic":
        checkpoint = load_checkpoint(args.model or default_model(args.scale), scale=args.scale)
        name, network, sha256 = checkpoint.name, checkpoint.network, checkpoint.sha256
        scale = args.scale or network.scale
    pairs = find_pairs(args.data, scale, allow_orphans=args.allow_orphans)
    # the crop takes scale HR pixels from each side, which is one LR pixel
    problems = scan(pairs, scale, 3)
    if problems:
        raise DataError(summarise(problems))

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{done}/{total}", end="" if done < total else "\n", file=sys.stderr)

    def keep(image: str, sr: "Tensor") -> None:
        path = args.save / f"{image}_x{scale}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_png(path, sr)

    report = evaluate(
        network,
        pairs,
        scale,
        model=name,
        data=str(args.data),
        sha256=sha256,
        device=args.device,
        precision=args.precision,
        jpeg=args.jpeg,
        progress=progress,
        keep=keep if args.save else None,
    )
    print(report.to_table())
    if args.json is not None:
        text = json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n"
        write_report(args.json, text)
    return 0


def _qualities(text: str) -> tuple[int, int]:
    """Reads the value of --jpeg: 40-80, or 60 for one quality."""
    low, _, high = text.partition("-")
    try:
        limits = int(low), int(high or low)
    except ValueError:
        limits = 0, 0
    if not 1 <= limits[0] <= limits[1] <= 100:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no range of JPEG qualities; use two numbers from 1 to 100, e.g. 40-80"
        )
    return limits
