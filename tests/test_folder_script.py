"""A folder with broken files, killed and resumed: the scaled-down run of scripts/folder_test.py."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_a_killed_and_resumed_folder_equals_the_undisturbed_one(tmp_path):
    spec = importlib.util.spec_from_file_location("folder_test", ROOT / "scripts/folder_test.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    lines = module.check(60, 1, 0, tmp_path)
    assert "48 done, 0 skipped, 12 failed, 2 ignored" in lines[0]
    assert lines[-1].endswith("byte for byte")
