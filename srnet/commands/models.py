"""``srnet models``: lists the known checkpoints, from the registry and the headers of the files that are here."""

import argparse
import dataclasses
import json
import math

from srnet.errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet models``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints one row for each known checkpoint.

    Returns:
        0, or 1 when a file that should be here is missing or damaged.
    """
    from srnet.checkpoint import ModelEntry, known_models, local_files, psnr_of, read_header

    def describe(model: ModelEntry) -> dict[str, object]:
        row: dict[str, object] = dataclasses.asdict(model)
        files = local_files(model)
        if not files:
            row["where"] = "missing" if model.shipped else "to download"
            if model.shipped:
                row["error"] = f"{model.file} is missing; reinstall srnet"
            return row
        row |= {"where": "shipped" if model.shipped else "downloaded", "path": str(files[0])}
        try:
            header = read_header(files[0])
            row["parameters"] = sum(math.prod(shape) for shape in header.shapes.values())
            row["psnr_y"] = psnr_of(header.metadata) | model.psnr_y
            row["license"] = header.metadata.get("license", "")
            row["data"] = header.metadata.get("data", "")
        except CheckpointError as error:
            row["error"] = str(error)
        return row

    rows = [describe(model) for model in known_models()]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(rows)
    return 1 if any("error" in row for row in rows) else 0


def _print_table(rows: list[dict[str, object]]) -> None:
    """Prints aligned columns; a broken model's row ends in its error."""
    titles = ("name", "scale", "kind", "parameters", "size", "where", "licence", "PSNR-Y (dB)")
    lines = [(*titles, "training data")]
    for row in rows:
        psnr = row["psnr_y"]
        size = row["bytes"]
        lines.append(
            (
                str(row["name"]),
                f"x{row['scale']}",
                str(row["kind"]),
                f"{row['parameters']:,}" if row["parameters"] is not None else "-",
                f"{size / 1e6:.1f} MB" if isinstance(size, int) else "-",
                str(row["where"]),
                str(row["license"] or "-"),
                ", ".join(f"{name} {value:.2f}" for name, value in psnr.items()) or "-"
                if isinstance(psnr, dict)
                else "-",
                str(row.get("error") or row["data"] or "-"),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if index in (3, 4) else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
