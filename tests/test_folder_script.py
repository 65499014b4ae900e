"""A folder with broken files, killed and resumed: the scaled-down run of scripts/folder_test.py."""

import folder_test
import pytest


@pytest.mark.slow
def test_a_killed_and_resumed_folder_equals_the_undisturbed_one(tmp_path):
    lines = folder_test.check(60, 1, 0, tmp_path)
    assert "48 done, 0 skipped, 12 failed, 2 ignored" in lines[0]
    assert lines[-1].endswith("byte for byte")
