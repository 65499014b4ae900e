"""Writes the size and hash of checkpoints into checkpoints/registry.json.

A new name is added at the end, a known one keeps its place and its URL. The first entry of a scale is
that scale's default.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from srnet.checkpoint import ModelEntry, load_checkpoint
from srnet.errors import CheckpointError

REGISTRY = Path(__file__).resolve().parents[1] / "checkpoints" / "registry.json"


def main() -> int:
    """Registers each given file of checkpoints/; returns 2 when one cannot be loaded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="checkpoints/NAME.safetensors")
    args = parser.parse_args()
    models = json.loads(REGISTRY.read_text(encoding="utf-8"))["models"]
    entries = {model["name"]: ModelEntry(**model) for model in models}
    for path in args.files:
        if path.resolve().parent != REGISTRY.parent:
            print(f"{path}: not in {REGISTRY.parent}; copy it there first", file=sys.stderr)
            return 2
        try:
            loaded = load_checkpoint(path)
        except CheckpointError as error:
            print(error, file=sys.stderr)
            return 2
        old = entries.get(loaded.name)
        entries[loaded.name] = ModelEntry(
            name=loaded.name,
            file=path.name,
            bytes=path.stat().st_size,
            sha256=loaded.sha256,
            url=old.url if old else None,
            scale=loaded.network.scale,
        )
        print(f"{loaded.name}: x{loaded.network.scale}, sha256 {loaded.sha256}")
    text = json.dumps(
        {"models": [dataclasses.asdict(entry) for entry in entries.values()]}, indent=2
    )
    REGISTRY.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
