"""What a command may load, and how fast it answers."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from srnet.checkpoint import shipped_models

HEAVY = ("lightning", "pytorch_lightning", "timm", "kornia", "wandb", "torchvision", "torchmetrics")


def loaded_modules(words, cwd):
    """Runs a command in a fresh interpreter; returns its exit code and the top packages it loaded."""
    code = (
        "import sys\n"
        "from srnet.cli import main\n"
        "try:\n"
        "    code = main(sys.argv[1:])\n"
        "except SystemExit as stop:\n"
        "    code = stop.code\n"
        "print('loaded', code, *sorted({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True, cwd=cwd
    )
    _, exit_code, *names = done.stdout.splitlines()[-1].split()
    return int(exit_code), set(names)


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["upscale", "--help"], ["train", "--help"], ["models"]]
)
def test_light_commands_load_no_torch(words, tmp_path):
    code, names = loaded_modules(words, tmp_path)
    assert code == 0
    assert names & {"torch", "numpy", "PIL", *HEAVY} == set()
    assert "srnet" in names  # the list is not empty


@pytest.mark.skipif(not shipped_models(), reason="no shipped checkpoint")
def test_upscale_loads_only_what_it_needs(tmp_path):
    Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(tmp_path / "a.png")
    code, names = loaded_modules(["upscale", "a.png"], tmp_path)
    assert code == 0
    assert (tmp_path / "a_x4.png").is_file()
    assert "torch" in names
    assert names & set(HEAVY) == set()
