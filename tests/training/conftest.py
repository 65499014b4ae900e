"""A run that takes a second, on photographs."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from skimage import data as photographs

TINY = {
    "name": "run",
    "network": {
        "scale": 2,
        "embed_dim": 8,
        "num_blocks": 2,
        "convs_per_block": 1,
        "attention_blocks": [1],
        "num_heads": 1,
        "region_size": 16,
        "top_k": 8,
    },
    "data": {"patch_size": 8, "batch_size": 2},
    "optim": {"warmup_steps": 2, "decay_steps": 3, "ema_decay": 0.5},
    "trainer": {
        "max_steps": 6,
        "val_every_n_steps": 3,
        "save_every_n_steps": 2,
        "log_every_n_steps": 1,
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    for split, image in (
        ("train", photographs.coffee()),
        ("validation", photographs.chelsea()[:60, :60]),
    ):
        (root / split).mkdir()
        Image.fromarray(np.ascontiguousarray(image)).save(root / split / "photo.png")
    return root


@pytest.fixture
def config_file(folders: Path, tmp_path: Path) -> Path:
    values = json.loads(json.dumps(TINY))
    values["data"] |= {
        "train": [str(folders / "train")],
        "validation": {"cat": str(folders / "validation")},
        "cache_dir": str(folders / "cache"),
    }
    values["output_dir"] = str(tmp_path / "runs")
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    return path
