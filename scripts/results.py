"""Measures every shipped checkpoint and writes docs/results.md: tables, a plot of the training log, model cards.

    python scripts/results.py --data path/to/benchmarks --validation path/to/validation

`--data` is a folder of test sets (Set5, Set14, BSD100, Urban100, each as data/README.md says). What was measured is
kept in docs/results.json by the hash of the weights, so that only new checkpoints take time; `--write` measures
nothing. The scores also go into checkpoints/registry.json, where `srnet models` finds them, and into README's table.
"""

import argparse
import csv
import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

from srnet import cli
from srnet.checkpoint import ModelEntry, load_checkpoint, read_header, shipped_models
from srnet.config import SCALES, DegradationConfig
from srnet.datasets import find_pairs
from srnet.errors import SRNetError
from srnet.evaluation import evaluate
from srnet.report_file import write_report

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REGISTRY = ROOT / "checkpoints" / "registry.json"
JPEG = DegradationConfig.validation_quality
DRAWN = ("--images", "8", "--side", "480", "--seed", "1000")  # training takes another seed
SETS = ("Set5", "Set14", "BSD100", "Urban100", "Urban100_sub20")
TITLES = {"Urban100_sub20": "20 of Urban100"}

# Network, training images, thousands of parameters, PSNR-Y / SSIM-Y on Set5, Set14, BSD100, Urban100, source
SWINIR = "JingyunLiang/SwinIR, figs/lightweight_image_sr.png"
HIT = "XiangZ-0/HiT-SR, figs/quantitative-comparison.png"
ASSANET = "sunny2109/ASSANet, figs/efficientsr_results.png"
ESC = "dslisleedh/ESC, figs/MainDIV2K.png"
PFT = "LabShuHangGU/PFT-SR, figures/lightweight.png"
SAFMN = "sunny2109/SAFMN, figs/efficient_sr.png"
PUBLISHED: dict[int, list[tuple[str, str, int | None, tuple[str, str, str, str], str]]] = {
    2: [
        ("bicubic", "-", None, ("33.66 / .9299", "30.24 / .8688", "29.56 / .8431", "26.88 / .8403"), SAFMN),
        ("IMDN", "DIV2K", 694, ("38.00 / .9605", "33.63 / .9177", "32.19 / .8996", "32.17 / .9283"), HIT),
        ("SwinIR-light", "DIV2K", 878, ("38.14 / .9611", "33.86 / .9206", "32.31 / .9012", "32.76 / .9340"), SWINIR),
        ("ASSANet-S", "DF2K", 445, ("38.23 / .9613", "34.04 / .9205", "32.31 / .9017", "32.97 / .9349"), ASSANET),
        ("HiT-SRF", "DIV2K", 847, ("38.26 / .9615", "34.01 / .9214", "32.37 / .9023", "33.13 / .9372"), HIT),
        ("ESC", "DIV2K", 947, ("38.35 / .9619", "34.11 / .9223", "32.41 / .9027", "33.46 / .9395"), ESC),
        ("PFT-light", "DIV2K", 776, ("38.36 / .9620", "34.20 / .9233", "32.43 / .9030", "33.67 / .9411"), PFT),
    ],
    3: [
        ("bicubic", "-", None, ("30.39 / .8682", "27.55 / .7742", "27.21 / .7385", "24.46 / .7349"), SAFMN),
        ("IMDN", "DIV2K", 703, ("34.36 / .9270", "30.32 / .8417", "29.09 / .8046", "28.17 / .8519"), HIT),
        ("SwinIR-light", "DIV2K", 886, ("34.62 / .9289", "30.54 / .8463", "29.20 / .8082", "28.66 / .8624"), SWINIR),
        ("ASSANet-S", "DF2K", 450, ("34.70 / .9292", "30.51 / .8456", "29.27 / .8101", "28.85 / .8649"), ASSANET),
        ("HiT-SRF", "DIV2K", 855, ("34.75 / .9300", "30.61 / .8475", "29.29 / .8106", "28.99 / .8687"), HIT),
        ("ESC", "DIV2K", 955, ("34.84 / .9308", "30.74 / .8493", "29.34 / .8118", "29.28 / .8739"), ESC),
        ("PFT-light", "DIV2K", 783, ("34.82 / .9305", "30.75 / .8493", "29.33 / .8116", "29.46 / .8763"), PFT),
    ],
    4: [
        ("bicubic", "-", None, ("28.42 / .8104", "26.00 / .7027", "25.96 / .6675", "23.14 / .6577"), SAFMN),
        ("IMDN", "DIV2K", 715, ("32.21 / .8948", "28.58 / .7811", "27.56 / .7353", "26.04 / .7838"), HIT),
        ("SwinIR-light", "DIV2K", 897, ("32.44 / .8976", "28.77 / .7858", "27.69 / .7406", "26.47 / .7980"), SWINIR),
        ("ASSANet-S", "DF2K", 456, ("32.57 / .8985", "28.88 / .7877", "27.76 / .7428", "26.66 / .8015"), ASSANET),
        ("HiT-SRF", "DIV2K", 866, ("32.55 / .8999", "28.87 / .7880", "27.75 / .7432", "26.80 / .8069"), HIT),
        ("ESC", "DIV2K", 968, ("32.68 / .9011", "28.93 / .7902", "27.80 / .7447", "27.07 / .8144"), ESC),
        ("PFT-light", "DIV2K", 792, ("32.63 / .9002", "28.97 / .7899", "27.78 / .7442", "27.20 / .8171"), PFT),
    ],
}  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Measures what is new, then writes the page; returns 2 when data or a checkpoint cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of test sets")
    parser.add_argument("--validation", type=Path, metavar="DIR", help="folder of images")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="default: all that ship")
    parser.add_argument("--write", action="store_true", help="only write the page again")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: docs")
    args = parser.parse_args(argv)
    store = args.docs / "results.json"
    measured: dict[str, Any] = json.loads(store.read_text("utf-8")) if store.exists() else {}
    models = [m for m in shipped_models() if not args.models or m.name in args.models]
    try:
        if not args.write:
            with tempfile.TemporaryDirectory() as drawn:
                if cli.main(["data", "graphics", drawn, *DRAWN]):
                    return 2
                for model in models:
                    measure(model, args.data, args.validation, Path(drawn), measured, store)
        page = write_page(shipped_models(), measured, read_log(args.docs / "training-log.csv"))
    except SRNetError as error:
        print(error, file=sys.stderr)
        return 2
    (args.docs / "results.md").write_text(page, encoding="utf-8")
    plot(read_log(args.docs / "training-log.csv"), args.docs / "training-log.svg")
    if args.docs == DOCS:
        update_registry(measured)
        readme = ROOT / "README.md"
        write_report(readme, with_scores(readme.read_text("utf-8"), shipped_models(), measured))
    print(args.docs / "results.md")
    return 0


def measure(
    model: ModelEntry,
    data: Path | None,
    validation: Path | None,
    drawn: Path,
    measured: dict[str, Any],
    store: Path,
) -> None:
    """Measures one checkpoint on every set that it was not measured on yet, and saves after each."""
    jobs: list[tuple[str, Path, tuple[int, int] | None, int]] = [
        ("drawn pictures", drawn, None, model.scale)
    ]
    if data is not None:
        jobs += [(name, data / name, None, model.scale) for name in SETS if (data / name).is_dir()]
    if validation is not None:
        for scale in (s for s in SCALES if s <= model.scale):
            jobs += [
                (validation_key(model, scale, jpeg), validation, jpeg, scale)
                for jpeg in (None, JPEG)
            ]
    scores = measured.setdefault(model.sha256, {"name": model.name})
    loaded = load_checkpoint(model.name)
    for name, folder, jpeg, scale in jobs:
        if name in scores:
            continue
        pairs = find_pairs(folder, scale)
        report = evaluate(loaded.network, pairs, scale, model=model.name, data=name, jpeg=jpeg)
        mean = {key: value for key, value in asdict(report.mean).items() if key != "name"}
        scores[name] = mean | {"images": len(pairs), "versions": report.protocol["versions"]}
        write_report(store, json.dumps(measured, indent=1) + "\n")
        print(f"{model.name}: {name} {mean['psnr_y']:.2f} dB", file=sys.stderr)


def validation_key(model: ModelEntry, scale: int, jpeg: tuple[int, int] | None) -> str:
    """What the validation images are called in the store; the scale is named where results are shrunk to it."""
    shrunk = "" if scale == model.scale else f" at x{scale}"
    return f"validation{' JPEG' if jpeg else ''}{shrunk}"


def read_log(path: Path) -> dict[str, list[dict[str, str]]]:
    """The rows of the training log by checkpoint, in order."""
    rows = defaultdict(list)
    if path.exists():
        for row in csv.DictReader(path.read_text("utf-8").splitlines()):
            rows[row["checkpoint"]].append(row)
    return rows


def pair(scores: dict[str, Any] | None, prefix: str = "") -> str:
    """PSNR-Y and SSIM-Y as in the papers: 31.34 / .8825."""
    if scores is None:
        return "-"
    psnr, ssim = scores[f"{prefix}psnr_y"], scores[f"{prefix}ssim_y"]
    return f"{psnr:.2f} / {ssim:.4f}".replace(" 0.", " .")


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def write_page(
    models: list[ModelEntry], measured: dict[str, Any], log: dict[str, list[dict[str, str]]]
) -> str:
    """The page in Markdown."""
    lines = [
        "# What the shipped checkpoints reach",
        "",
        "Written by `python scripts/results.py --data BENCHMARKS --validation VALIDATION`. PSNR-Y in dB / SSIM-Y, made",
        "as `srnet eval` makes them: whole images, float32, 8-bit rounded results, `scale` pixels off each side.",
        "Rows in italics are published figures, read from the authors' own tables; they were trained on GPUs for",
        "hundreds of thousands of steps, with DIV2K (800 images) or DF2K (3450). 20 of Urban100 are the images 005,",
        "010, ... 100; that column compares with nothing published. Patches and hours are summed over the training",
        "log, on one CPU thread, since a checkpoint last started from another one, whose own are not included.",
    ]
    for scale in sorted({model.scale for model in models}, reverse=True):
        lines += ["", f"## x{scale}", "", *scale_table(scale, models, measured, log)]
    sources = sorted({row[4] for rows in PUBLISHED.values() for row in rows})
    lines += ["", "Sources of the published rows, as `repository, file`:", ""]
    lines += [
        f"- {', '.join(sorted({r[0] for rows in PUBLISHED.values() for r in rows if r[4] == s}))}: {s}"
        for s in sources
    ]
    photos = photo_table(models, measured)
    if photos:
        lines += ["", "## Compressed photographs", "", *photos]
    drawn = drawn_table(models, measured)
    if drawn:
        lines += ["", "## Drawn pictures", "", *drawn]
    lines += ["", "## What more training brings", "", *log_lines(log)]
    lines += ["", "## Model cards"]
    for model in models:
        lines += ["", *card(model, measured, log)]
    return "\n".join(lines) + "\n"


def scale_table(
    scale: int,
    models: list[ModelEntry],
    measured: dict[str, Any],
    log: dict[str, list[dict[str, str]]],
) -> list[str]:
    """Ours and the published rows of one scale, in order of Set5's PSNR-Y."""
    own = [model for model in models if model.scale == scale]
    scores = {model.name: measured.get(model.sha256, {}) for model in own}
    columns = [s for s in SETS if s != "Urban100_sub20" or any(s in v for v in scores.values())]
    rows: list[tuple[float, list[str]]] = []
    for name, data, size, values, _ in PUBLISHED[scale]:
        given = dict(zip(SETS, values, strict=False))
        cells = [f"*{name}*", data, f"{size} K" if size else "-"]
        cells += [given.get(column, "-") for column in columns]
        rows.append((float(values[0].split()[0]), [*cells, "-", "-"]))
    first = next((value for value in scores.values() if value), None)
    if first is not None:
        cells = ["bicubic, measured here", "-", "-"]
        cells += [pair(first.get(column), "bicubic_") for column in columns]
        rows.append((0.0, [*cells, "-", "-"]))
    for model in own:
        found = scores[model.name]
        cells = [f"**{model.name}**", "open photographs", f"{(model.parameters or 0) / 1000:.0f} K"]
        cells += [pair(found.get(column)) for column in columns]
        patches, hours = seen(log.get(model.name, []))
        rows.append((found.get("Set5", {}).get("psnr_y", 0.0), [*cells, patches, hours]))
    head = ["network", "trained on", "parameters", *(TITLES.get(c, c) for c in columns)]
    return table([*head, "patches seen", "CPU hours"], [cells for _, cells in sorted(rows)])


def lines_of(rows: list[dict[str, str]]) -> list[list[dict[str, str]]]:
    """The sittings of a checkpoint, split where one started from another checkpoint."""
    lines: list[list[dict[str, str]]] = []
    for row in rows:
        if row["init_from"] or not lines:
            lines.append([])
        lines[-1].append(row)
    return lines


def seen(rows: list[dict[str, str]]) -> tuple[str, str]:
    """Patches in thousands and hours of the last sittings that go on from each other."""
    if not rows:
        return "-", "-"
    rows = lines_of(rows)[-1]
    patches = sum(int(row["patches"]) for row in rows)
    return f"{patches / 1000:.0f} K", f"{sum(float(row['hours']) for row in rows):.1f}"


def photo_table(models: list[ModelEntry], measured: dict[str, Any]) -> list[str]:
    """Photo and classical models on clean and on compressed validation images."""
    rows: list[list[str]] = []
    for scale in SCALES[::-1]:
        for model in models:
            found = measured.get(model.sha256, {})
            scores = [found.get(validation_key(model, scale, jpeg)) for jpeg in (JPEG, None)]
            if not any(scores):
                continue
            if not any(row[:2] == [f"x{scale}", "bicubic"] for row in rows):
                rows.append([f"x{scale}", "bicubic", "-", *(pair(s, "bicubic_") for s in scores)])
            name = model.name + (", shrunk" if model.scale > scale else "")
            rows.append([f"x{scale}", name, model.kind, *map(pair, scores)])
    if not rows:
        return []
    low, high = JPEG
    return [
        "The validation images, shrunk with bicubic; then compressed as JPEG of a quality that the name of each image",
        f"fixes between {low} and {high} (`srnet eval NAME --data VALIDATION --jpeg {low}-{high}`). Results of a",
        "larger scale were shrunk (`--scale`): where no photo model has the very scale, `srnet upscale` does the same.",
        "",
        *table(["scale", "network", "kind", f"JPEG {low} to {high}", "clean"], rows),
    ]


def drawn_table(models: list[ModelEntry], measured: dict[str, Any]) -> list[str]:
    """Every model on pictures that are nothing like photographs."""
    rows = []
    for model in models:
        found = measured.get(model.sha256, {}).get("drawn pictures")
        if found:
            rows.append([f"x{model.scale}", model.name, pair(found), pair(found, "bicubic_")])
    if not rows:
        return []
    return [
        f"Pictures of `srnet data graphics DIR {' '.join(DRAWN)}`: hard edges, single pixels, strong",
        "colours, text. They are here to show that no network fails on them, not to compare networks by.",
        "",
        *table(["scale", "network", "PSNR-Y / SSIM-Y", "bicubic"], rows),
    ]


def log_lines(log: dict[str, list[dict[str, str]]]) -> list[str]:
    """The training log, summed up after each sitting."""
    rows = []
    for name, sittings in log.items():
        for i, row in enumerate(sittings):
            patches, hours = seen(sittings[: i + 1])
            score = f"{float(row['validation_psnr_y']):.2f}"
            start = row["init_from"] or "-"
            rows.append([name, start, row["date"], hours, patches, score, row["published"]])
    head = ["checkpoint", "started from", "date", "hours", "patches so far", "PSNR-Y on validation"]
    return [
        "![PSNR-Y against patches seen](training-log.svg)",
        "",
        "From `docs/training-log.csv`, which `scripts/train_sitting.py` extends. Photo models are validated on",
        "compressed images.",
        "",
        *table([*head, "published"], rows),
    ]


def card(
    model: ModelEntry, measured: dict[str, Any], log: dict[str, list[dict[str, str]]]
) -> list[str]:
    """What one needs to know before using a checkpoint."""
    metadata = read_header(REGISTRY.parent / model.file).metadata
    config = json.loads(metadata["config"])
    patches, hours = seen(log.get(model.name, []))
    use = {
        "classical": "Clean images. Noise and JPEG blocks are enlarged with the rest.",
        "photo": "Compressed, noisy or slightly blurred photographs. On clean images the classical one is sharper.",
    }[model.kind]
    scores = [
        f"{TITLES.get(name, name)} {value['psnr_y']:.2f}"
        for name, value in measured.get(model.sha256, {}).items()
        if isinstance(value, dict) and " at x" not in name
    ]
    return [
        f"### {model.name}",
        "",
        f"- For: {use} It restores what bicubic shrinking removed; it does not invent texture.",
        f"- Network: x{model.scale}, {model.parameters or 0:,} parameters, {config['embed_dim']} channels, "
        f"{config['num_blocks']} blocks, sparse attention in {len(config['attention_blocks'])} of them "
        f"(top-{config['top_k']} of {config['region_size']} x {config['region_size']})",
        f"- Trained on: {metadata['data']}; {patches} patches, {hours} hours of one CPU thread",
        f"- PSNR-Y, dB: {', '.join(scores) or 'not measured'}",
        f"- Licence: {metadata['license']}",
        f"- File: `{model.file}`, {model.bytes:,} bytes, sha256 `{model.sha256}`; made by commit "
        f"`{metadata['commit'][:12]}`",
    ]


def plot(log: dict[str, list[dict[str, str]]], path: Path) -> None:
    """Draws validation PSNR-Y over patches seen."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "srnet"  # the same data give the same file
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for index, (name, rows) in enumerate(log.items()):
        label: str | None = name
        for line in lines_of(rows):
            patches = list(accumulate(int(row["patches"]) / 1000 for row in line))
            psnr = [float(row["validation_psnr_y"]) for row in line]
            axes.plot(patches, psnr, marker="o", color=f"C{index}", label=label)
            label = None
    axes.set(xlabel="thousand patches seen", ylabel="PSNR-Y on validation, dB", xscale="log")
    axes.grid(alpha=0.3)
    if log:
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def update_registry(measured: dict[str, Any]) -> None:
    """Puts the scores of the test sets into the registry."""
    content = json.loads(REGISTRY.read_text("utf-8"))
    for model in content["models"]:
        found = measured.get(model["sha256"], {})
        scores = {TITLES.get(s, s): round(found[s]["psnr_y"], 2) for s in SETS if s in found}
        model["psnr_y"] = model.get("psnr_y", {}) | scores
    write_report(REGISTRY, json.dumps(content, indent=2) + "\n")


def with_scores(
    text: str, models: Sequence[ModelEntry], measured: dict[str, dict[str, Any]]
) -> str:
    """README with new scores in the rows that start with a checkpoint's name; what else the first cell says stays."""
    for model in models:
        found = measured.get(model.sha256, {})
        cells = [
            f"{found[s]['psnr_y']:.2f} ({found[s]['bicubic_psnr_y']:.2f})"
            for s in SETS
            if s in found
        ]
        if cells:
            row = rf"^(\| `{re.escape(model.name)}`[^|\n]*\|).*$"
            text = re.sub(row, rf"\1 {' | '.join(cells)} |", text, flags=re.MULTILINE)
    return text


if __name__ == "__main__":
    sys.exit(main())
