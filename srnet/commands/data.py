"""`srnet data`: fetch DIV2K, draw pictures, check folders of images, see what a network is shown of them."""

import argparse
import sys
from pathlib import Path

from srnet.errors import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-commands of `srnet data` to `parser`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="list missing partners, wrong sizes and unreadable files",
        description="List missing partners, wrong sizes and unreadable files; exit code 1 when there are any.",
        allow_abbrev=False,
    )
    check.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="HR folder, or the folder that holds HR and LR",
    )
    check.add_argument(
        "--scale", type=_positive, required=True, metavar="N", help="upscaling factor"
    )
    check.add_argument(
        "--patch-size",
        type=_positive,
        default=1,
        metavar="P",
        help="smallest usable side of an LR image in LR pixels, the training patch (default: 1)",
    )
    check.add_argument(
        "--allow-orphans",
        action="store_true",
        help="leave out images without a partner of the same name",
    )
    check.add_argument(
        "--quick", action="store_true", help="read only the headers: finds no damage inside a file"
    )
    preview = actions.add_parser(
        "preview",
        help="write a contact sheet of what a network is shown in training",
        description="Write a contact sheet of the first patches of a run: LR, its pixels as squares, beside HR.",
        allow_abbrev=False,
    )
    preview.add_argument("config", metavar="CONFIG", help="YAML file of a run, see configs/")
    preview.add_argument("overrides", nargs="*", metavar="key.path=value")
    preview.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="PNG file (default: NAME_preview.png)"
    )
    preview.add_argument(
        "--patches", type=_positive, default=16, metavar="N", help="patches shown (default: 16)"
    )
    graphics = actions.add_parser(
        "graphics",
        help="draw pictures to train with beside photographs",
        description="Draw pictures of hard edges, single pixels, strong colours and text as PNG files. A network "
        "that is trained on photographs alone can fail on screenshots and pixel art; a twentieth of such pictures "
        "beside them prevents most of it.",
        allow_abbrev=False,
    )
    graphics.add_argument("folder", type=Path, metavar="DIR", help="where the files go")
    graphics.add_argument(
        "--images", type=_positive, default=40, metavar="N", help="pictures (default: 40)"
    )
    graphics.add_argument(
        "--side",
        type=_positive,
        default=512,
        metavar="N",
        help="width and height in pixels (default: 512)",
    )
    graphics.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="other pictures for each (default: 0)"
    )
    graphics.add_argument(
        "--scale",
        type=_positive,
        nargs="+",
        default=[],
        metavar="N",
        help="also LR files of these scales, at full contrast; without them LR is made by bicubic, which softens",
    )
    div2k = actions.add_parser(
        "div2k",
        help="fetch DIV2K: 800 training and 100 validation images",
        description="Fetch, check and unpack DIV2K, about 4 GB; run again after a cut connection to go on. "
        "For academic research only.",
        allow_abbrev=False,
    )
    div2k.add_argument(
        "--root",
        type=Path,
        default=Path("data/DIV2K"),
        metavar="DIR",
        help="where the folders go (default: data/DIV2K, which configs/ name)",
    )
    div2k.add_argument(
        "--from",
        dest="source",
        metavar="URL|DIR",
        help="another place of the zip files: an address, or a folder (default: the publisher's)",
    )
    div2k.add_argument(
        "--scale",
        type=int,
        nargs="+",
        choices=(2, 3, 4),
        default=[],
        metavar="N",
        help="also the published LR images of these scales; without them LR is made from HR by MATLAB's bicubic",
    )


def run(args: argparse.Namespace) -> int:
    """Run one sub-command.

    Returns:
        0 when all is well, 1 when some images cannot be used.

    Raises:
        SRNetError: A folder, a file or a setting is wrong.
    """
    actions = {"check": _check, "preview": _preview, "graphics": _graphics, "div2k": _div2k}
    return actions[args.action](args)


def _div2k(args: argparse.Namespace) -> int:
    """Fetch, then check every pair."""
    from srnet import div2k
    from srnet.pairs import find_pairs, format_problems, scan

    def report(text: str) -> None:
        print(text, file=sys.stderr)

    def progress(done: int, total: int | None) -> None:
        if sys.stderr.isatty():
            share = f"{done / total:.1%} of {total / 2**20:.0f}" if total else f"{done / 2**20:.0f}"
            print(f"\r{share} MiB ", end="\n" if done == total else "", file=sys.stderr)

    scales = sorted(set(args.scale))
    archives = [*div2k.HR, *(archive for scale in scales for archive in div2k.LR[scale])]
    report(div2k.LICENSE)
    div2k.fetch(args.root, archives, div2k.address(args.source), report, progress)
    failed = False
    for archive in div2k.HR:
        for scale in scales or [4]:
            pairs = find_pairs(args.root / archive.folder, scale)
            problems = scan(pairs, scale, 1)
            if problems:
                print(format_problems(problems))
            failed = failed or bool(problems)
            made = "LR from files" if pairs[0].lr else "LR made from HR"
            verdict = f"{len(problems)} of {len(pairs)} pairs cannot be used" if problems else None
            print(f"{pairs[0].hr.parent}: {verdict or f'{len(pairs)} pairs'}, x{scale}, {made}")
    return 1 if failed else 0


def _preview(args: argparse.Namespace) -> int:
    """Write the contact sheet."""
    from srnet.config import load_config
    from srnet.images.encode import write

    config = load_config(args.config, tuple(args.overrides))
    path = args.output or Path(f"{config.name}_preview.png")

    from srnet.training.preview import contact_sheet

    def report(text: str) -> None:
        print(text, file=sys.stderr)

    sheet = contact_sheet(config, args.patches, report)
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, sheet.numpy(), "png")
    print(path)
    return 0


def _graphics(args: argparse.Namespace) -> int:
    """Draw the pictures; one more picture leaves those before it as they were."""
    import torch

    from srnet.graphics import draw_graphics, shrink_graphics
    from srnet.images.encode import write

    scales = sorted(set(args.scale))
    if scales and scales[-1] > args.side:
        raise DataError(
            f"--side {args.side} is smaller than --scale {scales[-1]}; use a larger side"
        )
    hr = args.folder / "HR" if scales else args.folder
    lr = {scale: args.folder / "LR" / f"X{scale}" for scale in scales}
    for folder in (hr, *lr.values()):
        folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(args.seed)
    for i in range(args.images):
        picture, name = draw_graphics(args.side, generator), f"graphics_{i:03}"
        write(hr / f"{name}.png", picture.permute(1, 2, 0).numpy(), "png")
        for scale, folder in lr.items():
            small = shrink_graphics(picture, scale)
            write(folder / f"{name}x{scale}.png", small.permute(1, 2, 0).numpy(), "png")
    made = "".join(f", LR x{scale}" for scale in scales)
    print(f"{args.folder}: {args.images} pictures of {args.side}x{args.side}{made}")
    return 0


def _check(args: argparse.Namespace) -> int:
    """Check the folders and print a table of problems.

    Args:
        args: `folders`, `scale`, `patch_size`, `allow_orphans`, `quick`.

    Returns:
        0 when every image can be used, 1 when some cannot.

    Raises:
        DataError: A folder does not exist.
    """
    from srnet.pairs import find_pairs, format_problems, scan

    failed = False
    for folder in args.folders:
        try:
            pairs = find_pairs(folder, args.scale, allow_orphans=args.allow_orphans)
        except DataError as error:
            if not folder.is_dir():
                raise
            print(error)
            failed = True
            try:
                pairs = find_pairs(folder, args.scale, allow_orphans=True)
            except DataError:
                continue
        problems = scan(pairs, args.scale, args.patch_size, verify=not args.quick)
        if problems:
            print(format_problems(problems))
            failed = True
            verdict = f"{len(problems)} of {len(pairs)} images cannot be used"
        else:
            verdict = f"{len(pairs)} images are good"
        made = "made from HR" if pairs[0].lr is None else "from files"
        print(f"{folder}: {verdict} at scale {args.scale}, LR {made}")
    return 1 if failed else 0


def _positive(text: str) -> int:
    """Return the positive whole number that `text` says."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _seed(text: str) -> int:
    """Return the seed that `text` says, a whole number of 32 bits."""
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**32 - 1}")
    return int(text)
