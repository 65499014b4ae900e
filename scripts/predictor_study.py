"""What the predictor of an attention layer is worth: how much of full attention its keys hold, layer by layer.

    python scripts/predictor_study.py                                # shipped checkpoints, before and after training
    python scripts/predictor_study.py --write docs/architecture.md   # puts the table between its markers there

Full attention scores all candidates of a group by q.k and distance. Printed is the share of it held by as many keys as
the group keeps: the predictor's, ones drawn at random, the nearest, those that the mean of the group's queries would
choose, and the best list that the group can have; and the PSNR-Y that is lost where the layer is taken out of the
network.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import torch
from torch import Tensor

from srnet.checkpoint import load_checkpoint, shipped_models
from srnet.diagnostics import LayerStatistics, examine
from srnet.errors import SRNetError
from srnet.images.decode import read_rgb8
from srnet.metrics import psnr_y
from srnet.network import Block, SRNet
from srnet.pairs import images_in
from srnet.resize import downscale

PHOTOGRAPHS = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "rocket.jpg",
    "motorcycle_left.png",
    "brick.png",
)
BEGIN, END = "<!-- predictor study: begin -->", "<!-- predictor study: end -->"
TITLE = "# Architecture\n\n"

COLUMNS = (
    "network",
    "layer",
    "keys",
    "predictor",
    "random",
    "nearest",
    "mean query",
    "best",
    "of its own",
    "best keys found",
    "dB lost without",
)


def photographs(folder: Path | None) -> list[Path]:
    """The images of a folder, or those of scikit-image."""
    if folder is not None:
        return list(images_in(folder).values())
    return [Path(str(files("skimage.data") / name)) for name in PHOTOGRAPHS]


def pair_of(path: Path, scale: int, side: int) -> tuple[Tensor, Tensor]:
    """The middle of a photograph shrunk by the scale, (1, 3, h, w), and its HR, (1, 3, h * scale, w * scale)."""
    hr = torch.from_numpy(read_rgb8(path).copy()).permute(2, 0, 1)[None]
    height, width = (n // scale * scale for n in hr.shape[2:])
    hr = hr[:, :, :height, :width]
    lr = downscale(hr, scale)
    top, left = (max(0, (n - side) // 2) for n in lr.shape[2:])
    lr = lr[:, :, top : top + side, left : left + side]
    hr = hr[:, :, top * scale : (top + side) * scale, left * scale : (left + side) * scale]
    return lr.float() / 255, hr.float() / 255


def study(
    network: SRNet, pairs: Sequence[tuple[Tensor, Tensor]]
) -> list[tuple[list[LayerStatistics], float]]:
    """Statistics of each layer on each photograph, and the dB lost without the layer."""
    found = [[e.statistics for e in examine(network, lr)] for lr, _ in pairs]
    return list(zip(map(list, zip(*found, strict=True)), lost(network, pairs), strict=True))


def lost(network: SRNet, pairs: Sequence[tuple[Tensor, Tensor]]) -> list[float]:
    """How much lower PSNR-Y is without each of the attention layers, dB, median over photographs."""

    def psnr() -> list[float]:
        with torch.inference_mode():
            return [psnr_y(network(lr), hr, network.scale).item() for lr, hr in pairs]

    whole, losses = psnr(), []
    for block in network.blocks:
        if isinstance(block, Block) and block.attention is not None:
            layer, block.attention = block.attention, None
            losses.append(statistics.median(w - p for w, p in zip(whole, psnr(), strict=True)))
            block.attention = layer
    return losses


def row(name: str, layers: Sequence[LayerStatistics], loss: float) -> tuple[str, ...]:
    """A line of the table: means over photographs, with the spread between them where it tells."""

    def mean(values: Sequence[float]) -> str:
        return f"{100 * statistics.fmean(values):.1f}"

    first = layers[0]
    return (
        name,
        first.layer.removesuffix(".attention"),
        f"{first.top_k} of {first.candidates}",
        mean([s.mass.selected for s in layers]),
        mean([s.mass.chance for s in layers]),
        mean([s.mass.nearest for s in layers]),
        mean([s.mass.mean_query for s in layers]),
        mean([s.mass.oracle for s in layers]),
        mean([s.mass.selected_of_own for s in layers]),
        f"{mean([s.recall for s in layers])} ({mean([s.recall_chance for s in layers])})",
        f"{loss:.2f}",
    )


def section(rows: Sequence[tuple[str, ...]], images: int, command: str) -> str:
    """The text between the markers."""
    lines = [
        "## What the predictor finds",
        "",
        f"Made by `{command}`: shares of full attention, in percent, means over {images} photographs and the examined",
        "groups of each. Full attention scores all candidates by q.k and distance; the predictor's relevance takes no",
        "part in it. Each list has as many keys as a group keeps: the predictor's, random ones, the nearest ones, the",
        "ones with the best score for the mean of the group's queries in the first head, the best list that the group",
        'can have. "Of its own" is the share of the attention that the layer itself would compute if it kept all',
        'candidates, relevance included: what is lost by keeping few. "Best keys found" is the share of the best list',
        "that the predictor has, in brackets that of random keys. The last column is the PSNR-Y that taking the layer",
        "out costs without further training, median over the photographs.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"| {' | '.join('---' for _ in COLUMNS)} |",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    return "\n".join(lines) + "\n"


def write_section(path: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Puts the text between its markers in a document, which is made where it is missing."""
    old = path.read_text(encoding="utf-8") if path.exists() else TITLE
    if begin not in old or end not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n"
    before, rest = old.split(begin, 1)
    after = rest.split(end, 1)[1]
    path.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")


def main() -> int:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", help="checkpoint names or files; default: the shipped ones"
    )
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="HR photographs; default: of scikit-image"
    )
    parser.add_argument("--side", type=int, default=128, help="LR pixels used of each photograph")
    parser.add_argument("--write", type=Path, metavar="FILE", help="a document with the markers")
    args = parser.parse_args()

    paths = photographs(args.images)
    rows: list[tuple[str, ...]] = []
    try:
        for name in args.models or [model.name for model in shipped_models()]:
            trained = load_checkpoint(name)
            torch.manual_seed(0)
            fresh = SRNet(trained.network.config).eval()
            for label, network in (("untrained", fresh), ("trained", trained.network)):
                pairs = [pair_of(path, network.scale, args.side) for path in paths]
                for layers, loss in study(network, pairs):
                    rows.append(row(f"{trained.name}, {label}", layers, loss))
    except SRNetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for cells in (COLUMNS, *rows):
        print("  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip())
    if args.write is not None:
        words = [*args.models, *(["--images", str(args.images)] if args.images else [])]
        command = " ".join(
            ["python scripts/predictor_study.py", *words, "--write", str(args.write)]
        )
        write_section(args.write, section(rows, len(paths), command))
    return 0


if __name__ == "__main__":
    sys.exit(main())
