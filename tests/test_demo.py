"""The first command that anyone runs."""

import importlib.resources
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage.color import rgb2ycbcr
from skimage.metrics import peak_signal_noise_ratio

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "demo.py"


def demo(*words, cwd):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *words], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_demo_shows_what_it_says(tmp_path):
    done = demo(cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(\w+) +(\d+)x(\d+) +([\d.]+) +([\d.]+) +([+\d.]+)", done.stdout, re.M)
    assert len(rows) == 5
    for name, width, height, _, _, gain in rows:
        assert float(gain) > 0, name
        with Image.open(tmp_path / "demo" / f"{name}_x4.png") as image:
            assert image.size == (int(width), int(height))
    said = re.search(r"Look at (\S+)", done.stdout)[1]
    for picture in (said, tmp_path / "demo" / "compressed_compare.png"):
        with Image.open(picture) as image:
            assert image.size == (4 * 480 + 3 * 8, 480 + 34)
    # the number of the table is that of the picture
    original = importlib.resources.files("skimage.data") / "astronaut.png"
    luma = []
    for path in (str(original), tmp_path / "demo" / "astronaut_x4.png"):
        with Image.open(path) as image:
            luma.append(rgb2ycbcr(np.asarray(image.convert("RGB")))[4:-4, 4:-4, 0])
    assert rows[0][0] == "astronaut"
    assert peak_signal_noise_ratio(*luma, data_range=255) == pytest.approx(
        float(rows[0][4]), abs=0.01
    )


def test_demo_of_no_model_is_one_line(tmp_path):
    done = demo("--model", "absent.safetensors", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("demo: ")
    assert "absent.safetensors" in done.stderr
    assert done.stderr.count("\n") == 1
