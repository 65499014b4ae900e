"""Damaged files through the whole command: the scaled-down run of scripts/damage_images.py."""

import damage_images


def test_damaged_files_are_upscaled_or_refused_and_leave_nothing(tmp_path):
    outcomes = damage_images.run(tmp_path, 112, 0, tmp_path / "current.img")
    assert sum(outcomes.values()) == 112
    for format in damage_images.FORMATS:
        assert outcomes[f"{format} refused"] >= 2
    assert sum(count for name, count in outcomes.items() if name.endswith("read")) >= 10
