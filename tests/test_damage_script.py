"""Damaged files through the whole command: the scaled-down run of scripts/damage_images.py."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_damaged_files_are_upscaled_or_refused_and_leave_nothing(tmp_path):
    spec = importlib.util.spec_from_file_location(
        "damage_images", ROOT / "scripts" / "damage_images.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    outcomes = module.run(tmp_path, 112, 0, tmp_path / "current.img")
    assert sum(outcomes.values()) == 112
    for format in module.FORMATS:
        assert outcomes[f"{format} refused"] >= 2
    assert sum(count for name, count in outcomes.items() if name.endswith("read")) >= 10
