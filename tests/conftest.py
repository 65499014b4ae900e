"""Fixtures for every test: photographs that come with packages, the shared image kit, a GPU check."""

import importlib.resources
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = {
    "astronaut": ("skimage.data", "astronaut.png"),
    "coffee": ("skimage.data", "coffee.png"),
    "chelsea": ("skimage.data", "chelsea.png"),
    "china": ("sklearn.datasets.images", "china.jpg"),
    "flower": ("sklearn.datasets.images", "flower.jpg"),
}


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The image kit beside the checkout (benchmarks, validation, train); skips where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no image kit at {folder}")
    return folder


@pytest.fixture(scope="session")
def photo():
    """A function: name of a photograph -> read-only (H, W, 3) uint8 RGB array."""

    def load(name: str) -> np.ndarray:
        package, file = PHOTOS[name]
        # The files are opened directly: importing sklearn to reach two pictures takes seconds.
        with Image.open(str(importlib.resources.files(package) / file)) as image:
            pixels = np.asarray(image.convert("RGB"))
        pixels.flags.writeable = False
        return pixels

    return load


@pytest.fixture(scope="session")
def photo_tensor(photo):
    """A function: name of a photograph -> (1, 3, H, W) float32 tensor in [0, 1]."""

    def load(name: str) -> torch.Tensor:
        return torch.tensor(photo(name)).permute(2, 0, 1)[None].float() / 255  # (1, 3, H, W)

    return load
