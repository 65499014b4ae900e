"""``scripts/profile_step.py`` on a small run."""

import re
from pathlib import Path

import profile_step
import pytest
from PIL import Image

from srnet.config import load_config

ROOT = Path(__file__).parents[1]


def test_the_parts_of_a_step_add_up(photo, tmp_path):
    (tmp_path / "train").mkdir()
    Image.fromarray(photo("coffee")[:120, :120]).save(tmp_path / "train" / "a.png")
    words = (
        f"data.train=[{tmp_path / 'train'}]",
        "data.validation={}",
        f"data.cache_dir={tmp_path / 'cache'}",
        "data.batch_size=2",
        "trainer.device=cpu",
    )
    config = load_config(ROOT / "configs/smoke.yaml", words)
    found = profile_step.measure(config, 2, lambda line: None)
    whole = found.pop("step")
    assert set(found) == {
        "convolution",
        "attention",
        "optimiser",
        "data",
        "logging",
        "attention health",
        "other",
    }
    assert all(seconds > 0 for seconds in found.values())
    assert sum(found.values()) == pytest.approx(whole)
    assert found["convolution"] > found["data"]


def test_two_settings_are_compared_in_one_run(photo, tmp_path, monkeypatch, capsys):
    (tmp_path / "train").mkdir()
    Image.fromarray(photo("coffee")[:120, :120]).save(tmp_path / "train" / "a.png")
    words = [
        str(ROOT / "configs/smoke.yaml"),
        f"data.train=[{tmp_path / 'train'}]",
        "data.validation={}",
        f"data.cache_dir={tmp_path / 'cache'}",
        "trainer.device=cpu",
        "data.batch_size=16",
    ]
    words += ["--steps", "2", "--against", "data.batch_size=2"]
    monkeypatch.setattr("sys.argv", ["profile_step.py", *words])
    assert profile_step.main() == 0
    lines = capsys.readouterr().out.splitlines()
    (here,) = [i for i, line in enumerate(lines) if line == "with data.batch_size=2:"]
    (these,) = re.findall(r"([\d.]+) ms a step of 16$", "\n".join(lines[:here]), re.MULTILINE)
    (others,) = re.findall(r"([\d.]+) ms a step of 2$", lines[here + 1])
    label, _, ratio = lines[-1].rpartition(" ")
    assert label == "ratio of the steps' times:"
    assert float(ratio) == pytest.approx(float(others) / float(these), abs=0.02)


def test_missing_images_are_one_line(monkeypatch, capsys):
    words = [str(ROOT / "configs/smoke.yaml"), "data.train=[/nowhere]"]
    monkeypatch.setattr("sys.argv", ["profile_step.py", *words])
    assert profile_step.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "/nowhere" in line
