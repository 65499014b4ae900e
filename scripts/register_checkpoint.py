"""Writes what checkpoints say about themselves, their size and their hash into checkpoints/registry.json.

A new name is added at the end, a known one keeps its place. The first entry of a scale and kind is that scale's
default. Files of checkpoints/ travel inside the wheel; with --not-shipped a file lies elsewhere and is to be
downloaded from the registry's base_url.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from srnet.checkpoint import ModelEntry, load_checkpoint, psnr_of
from srnet.errors import SRNetError
from srnet.report_file import write_report

REGISTRY = Path(__file__).resolve().parents[1] / "checkpoints" / "registry.json"


def describe(path: Path, *, shipped: bool) -> ModelEntry:
    """Makes the registry's entry of a file that loads.

    Raises:
        CheckpointError: The file cannot be loaded.
    """
    loaded = load_checkpoint(path)
    metadata: dict[str, Any] = loaded.metadata
    return ModelEntry(
        name=loaded.name,
        file=path.name,
        bytes=path.stat().st_size,
        sha256=loaded.sha256,
        scale=loaded.network.scale,
        kind=metadata.get("kind", "classical"),
        shipped=shipped,
        parameters=sum(p.numel() for p in loaded.network.parameters()),
        psnr_y=psnr_of(loaded.metadata),
        data=metadata.get("data", ""),
        license=metadata.get("license", ""),
    )


def register(entries: list[ModelEntry], registry: Path = REGISTRY) -> None:
    """Puts entries into the registry file, each in the place of its name, else at the end."""
    content = json.loads(registry.read_text(encoding="utf-8"))
    models = {model["name"]: model for model in content["models"]}
    models |= {entry.name: dataclasses.asdict(entry) for entry in entries}
    content["models"] = list(models.values())
    write_report(registry, json.dumps(content, indent=2) + "\n")


def main() -> int:
    """Registers the given files; returns 2 when one cannot be loaded or lies in the wrong place."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="checkpoints/NAME.safetensors")
    parser.add_argument("--not-shipped", action="store_true", help="the files are downloaded")
    args = parser.parse_args()
    for path in args.files:
        if not args.not_shipped and path.resolve().parent != REGISTRY.parent:
            print(f"{path}: not in {REGISTRY.parent}; copy it there first", file=sys.stderr)
            return 2
    try:
        entries = [describe(path, shipped=not args.not_shipped) for path in args.files]
        register(entries)
    except SRNetError as error:
        print(error, file=sys.stderr)
        return 2
    for entry in entries:
        print(f"{entry.name}: x{entry.scale}, {entry.kind}, sha256 {entry.sha256}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
