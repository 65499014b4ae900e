"""The wheel holds all that upscaling needs: built, installed into an empty folder and run, without a network."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from srnet.checkpoint import shipped_models

ROOT = Path(__file__).resolve().parents[1]
NO_NETWORK = """
import socket

def connect(self, address):
    raise OSError(f"the test forbids connections, here to {address}")

socket.socket.connect = connect
"""
CONNECT = """
import socket

try:
    socket.create_connection(("127.0.0.1", 9))
except OSError as error:
    print(error)
"""


@pytest.mark.slow
def test_wheel_upscales_with_its_own_weights(tmp_path, photo):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("srnet-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"srnet/_checkpoints/{model.file}" for model in shipped_models()} <= names
    assert "srnet/training/winograd.c" in names
    assert not [name for name in names if name.startswith(("tests", "data"))]

    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    (site / "sitecustomize.py").write_text(NO_NETWORK)
    Image.fromarray(np.ascontiguousarray(photo("chelsea")[:20, :30])).save(tmp_path / "a.png")
    environment = os.environ | {"PYTHONPATH": str(site), "SRNET_HOME": str(tmp_path / "home")}

    def python(*words):
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    assert str(site) in python("-c", "import srnet; print(srnet.__file__)")
    assert "the test forbids" in python("-c", CONNECT)
    assert shipped_models()[0].name in python("-m", "srnet", "models")
    python("-m", "srnet", "upscale", "a.png", "-s", str(shipped_models()[0].scale))
    scale = shipped_models()[0].scale
    with Image.open(tmp_path / f"a_x{scale}.png") as image:
        assert image.size == (30 * scale, 20 * scale)
    assert not (tmp_path / "home").exists()
