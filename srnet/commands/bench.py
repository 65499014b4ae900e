"""``srnet bench``: how fast networks and the attention operator are here, against other projects and the roofline."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from srnet.errors import ConfigError

if TYPE_CHECKING:
    from srnet.bench.measure import Result
    from srnet.bench.run import Bench
    from srnet.network import SRNet

_SECTIONS = ("networks", "peers", "operator", "growth")
_SIZES = ("tiny", "small", "base")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet bench``."""
    parser.add_argument(
        "networks",
        nargs="*",
        metavar="MODEL|FILE|CONFIG",
        help="checkpoints (name or .safetensors file) and configurations (.yaml, random weights; words key.path=value "
        "after one change it); default: the shipped checkpoints and configs/{tiny,small,base}_x4.yaml",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=_SECTIONS,
        help="measure this; may be given again; default: all",
    )
    parser.add_argument(
        "--size", type=_positive, metavar="N", help="side of the input of networks; default: 256"
    )
    parser.add_argument(
        "--sizes",
        type=_positive,
        nargs="+",
        metavar="N",
        help="sides of the inputs that show the growth; default: 64 128 256 512",
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        nargs="+",
        metavar="N",
        help="default: 1, and what PyTorch takes by itself",
    )
    parser.add_argument(
        "--precision",
        nargs="+",
        choices=("fp32", "bf16"),
        help="default: fp32, and bf16 where the machine computes it natively",
    )
    parser.add_argument("--runs", type=_positive, metavar="N", help="rounds; default: 7")
    parser.add_argument(
        "--limit",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="a case that has taken this long is left out of the later rounds; default: 30",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small images and 2 rounds, to see that it works; ratios mean little",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N; default: cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results here, too")
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw time against pixels, and PSNR against time (.png, .svg, .pdf)",
    )
    parser.add_argument(
        "--psnr", default="Set5", metavar="SET", help="test set of the plot; default: Set5"
    )


def run(args: argparse.Namespace) -> int:
    """Measures and prints the table.

    Returns:
        0.

    Raises:
        SRNetError: A network cannot be loaded or an option is wrong.
    """
    if args.device.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"device {args.device!r} cannot be measured; use cpu, cuda or cuda:1")
    if args.plot is not None:
        _need_matplotlib()
    import torch

    from srnet.bench.run import SECTIONS, bench
    from srnet.report_file import check_report, write_report

    if args.json is not None:
        check_report(args.json)

    def progress(done: int, total: int, name: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{done}/{total} {name}", end="", file=sys.stderr, flush=True)

    networks = _networks(args.networks)
    threads = args.threads or sorted({1, torch.get_num_threads()})
    precisions = args.precision or ["fp32", "bf16"]
    found = bench(
        networks,
        sections=[s for s in SECTIONS if args.only is None or s in args.only],
        precisions=list(dict.fromkeys(precisions)),
        threads=list(dict.fromkeys(threads if args.device == "cpu" else threads[:1])),
        size=args.size or (48 if args.quick else 256),
        sizes=args.sizes or ((32, 64) if args.quick else (64, 128, 256, 512)),
        operator_size=32 if args.quick else 128,
        runs=args.runs or (2 if args.quick else 7),
        limit=args.limit,
        device=args.device,
        progress=progress,
    )
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    _print(found)
    if args.json is not None:
        write_report(args.json, json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n")
    if args.plot is not None:
        _plot(found, args.plot, args.psnr)
    return 0


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


def _networks(words: list[str]) -> "dict[str, tuple[SRNet, dict[str, float]]]":
    """Builds or loads the networks that the words name, under names that differ."""
    from srnet.checkpoint import (
        checkpoint_folder,
        known_models,
        load_checkpoint,
        psnr_of,
        shipped_models,
    )
    from srnet.config import load_config
    from srnet.network import SRNet

    found: dict[str, tuple[SRNet, dict[str, float]]] = {}
    groups: list[list[str]] = []
    for word in words:
        if "=" in word and groups and groups[-1][0].endswith((".yaml", ".yml")):
            groups[-1].append(word)
        elif "=" in word:
            raise ConfigError(f"{word!r} stands after no configuration; give a .yaml file first")
        else:
            groups.append([word])
    if not groups:
        groups = [[model.name] for model in shipped_models()]
        # beside the source; an installed package carries checkpoints only
        configs = [checkpoint_folder().parent / "configs" / f"{s}_x4.yaml" for s in _SIZES]
        groups += [[str(path)] for path in configs if path.is_file()]
    for first, *overrides in groups:
        if first.endswith((".yaml", ".yml")):
            config = load_config(first, tuple(overrides)).network
            if not words and any(n.config == config for n, _ in found.values()):
                continue  # a shipped checkpoint has this shape
            name, network, psnr = Path(first).stem, SRNet(config), {}
        else:
            checkpoint = load_checkpoint(first)
            name, network = checkpoint.name, checkpoint.network
            known = {model.name: model.psnr_y for model in known_models()}
            psnr = psnr_of(checkpoint.metadata) | known.get(checkpoint.name, {})
        name = " ".join([name, *(word.removeprefix("network.") for word in overrides)])
        same = sum(other == name or other.startswith(f"{name} (") for other in found)
        found[f"{name} ({same + 1})" if same else name] = network, psnr
    return found


def _print(found: "Bench") -> None:
    """Prints a table for each section, precision and thread count, then the ratios."""
    titles = {
        "networks": "Networks of srnet",
        "peers": "Networks of other projects, x4, random weights",
        "operator": "Attention layer",
        "growth": "Growth with size",
    }
    header = ("", "pass", "params K", "input", "ms", "MP/s", "GFLOP/s", "of peak", "MB", "runs")
    for precision, threads in found.ratios():
        some = [r for r in found.results if (r.precision, r.threads) == (precision, threads)]
        peak = next(r for r in some if r.section == "roofline")
        print(
            f"{precision}, {threads} thread{'s' if threads > 1 else ''}: "
            f"matrix product {peak.gflop_per_second:.1f} GFLOP/s\n"
        )
        tables = {s: [_cells(r) for r in some if r.section == s] for s in titles}
        every = [header, *(row for rows in tables.values() for row in rows)]
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        for section, rows in tables.items():
            if rows:
                lines = [(titles[section], *header[1:]), *rows]
                width = max(widths[0], len(titles[section]))
                for name, direction, *numbers in lines:
                    cells = [text.rjust(w) for text, w in zip(numbers, widths[2:], strict=True)]
                    print("  ".join([name.ljust(width), direction.ljust(widths[1]), *cells]))
                print()
    for note in found.notes:
        print(note)
    for key, value in found.protocol.items():
        print(f"{key}: {value}")
    for (precision, threads), compared in found.ratios().items():
        if compared:
            words = "; ".join(f"{name} {value:.2f}" for name, value in compared.items())
            print(f"ratios, {precision}, {threads} thread{'s' if threads > 1 else ''}: {words}")


def _cells(result: "Result") -> tuple[str, ...]:
    """One row of the table."""
    speed, memory = result.megapixels_per_second, result.peak_bytes
    return (
        result.name,
        result.direction,
        "" if result.parameters is None else f"{result.parameters / 1e3:.0f}",
        f"{result.width}x{result.height}",
        f"{result.seconds * 1e3:.1f}",
        "" if speed is None else f"{speed:.3f}",
        f"{result.gflop_per_second:.1f}",
        f"{100 * result.roofline_share:.0f} %",
        "n/a" if memory is None else f"{memory / 1e6:.0f}",
        str(result.runs),
    )


def _need_matplotlib() -> None:
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib; pip install 'srnet[bench]'")


def _plot(found: "Bench", path: Path, test_set: str) -> None:
    """Draws time against input pixels and PSNR against time, of the first precision and the most threads."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    precision = found.results[0].precision
    threads = max(r.threads for r in found.results)
    some = [r for r in found.results if (r.precision, r.threads) == (precision, threads)]
    figure, (growth, frontier) = plt.subplots(1, 2, figsize=(12, 5))
    for name in dict.fromkeys(r.name for r in some if r.section == "growth"):
        line = [r for r in some if r.section == "growth" and r.name == name]
        growth.plot([r.width * r.height for r in line], [r.seconds for r in line], "o-", label=name)
    for r in some:
        if r.section == "peers":
            growth.plot(r.width * r.height, r.seconds, "k.", alpha=0.6)
            growth.annotate(r.name, (r.width * r.height, r.seconds), fontsize=7)
        psnr = r.psnr.get(test_set)
        if (
            r.section in ("networks", "peers")
            and psnr is not None
            and (r.pixels == 16 * r.width * r.height)
        ):
            frontier.plot(r.seconds, psnr, "k^" if r.published else "ro", alpha=0.7)
            frontier.annotate(r.name, (r.seconds, psnr), fontsize=7)
    growth.set(xlabel="input pixels", ylabel="seconds", xscale="log", yscale="log")
    growth.set_title(f"time, {precision}, {threads} threads")
    if growth.get_legend_handles_labels()[0]:
        growth.legend(fontsize=7)
    frontier.plot([], [], "k^", label="PSNR published, or of published weights")
    frontier.plot([], [], "ro", label="srnet, PSNR of the checkpoint")
    frontier.set(xlabel="seconds", ylabel=f"PSNR-Y on {test_set} x4, dB", xscale="log")
    frontier.set_title("quality against time")
    frontier.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    finally:
        plt.close(figure)
