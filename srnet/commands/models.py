"""``srnet models``: lists the checkpoints that come with srnet, read from their headers without torch."""

import argparse
import json
import math

from srnet.errors import CheckpointError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet models``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


def run(args: argparse.Namespace) -> int:
    """Prints one row for each shipped checkpoint.

    Returns:
        0, or 1 when a shipped file is missing or damaged.
    """
    from srnet.checkpoint import ModelEntry, checkpoint_folder, read_header, shipped_models

    def describe(model: ModelEntry) -> dict[str, object]:
        row: dict[str, object] = {"name": model.name, "scale": model.scale, "bytes": model.bytes}
        try:
            header = read_header(checkpoint_folder() / model.file)
            row["parameters"] = sum(math.prod(shape) for shape in header.shapes.values())
            row["psnr_y"] = _psnr_y(json.loads(header.metadata.get("metrics", "{}")))
            row["license"] = header.metadata.get("license", "")
            row["data"] = header.metadata.get("data", "")
        except (CheckpointError, ValueError) as error:
            row["error"] = str(error)
        return row

    rows = [describe(model) for model in shipped_models()]
    if args.json:
        print(json.dumps(rows, indent=2))
    else:
        _print_table(rows)
    return 1 if any("error" in row for row in rows) else 0


def _psnr_y(metrics: dict[str, object]) -> dict[str, float]:
    """Picks the PSNR-Y of each benchmark out of the metrics of a checkpoint, in dB."""
    found: dict[str, float] = {}
    for name, values in metrics.items():
        value = values.get("psnr_y") if isinstance(values, dict) else None
        if isinstance(value, (int, float)):
            found[name] = float(value)
    return found


def _print_table(rows: list[dict[str, object]]) -> None:
    """Prints aligned columns; a broken model's row carries its error."""
    lines = [("name", "scale", "parameters", "bytes", "PSNR-Y (dB)", "licence")]
    for row in rows:
        psnr = row.get("psnr_y")
        lines.append(
            (
                str(row["name"]),
                f"x{row['scale']}",
                f"{row['parameters']:,}" if "parameters" in row else "-",
                f"{row['bytes']:,}",
                ", ".join(f"{name} {value:.2f}" for name, value in psnr.items()) or "-"
                if isinstance(psnr, dict)
                else "-",
                str(row.get("license") or row.get("error", "-")),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if index in (2, 3) else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
