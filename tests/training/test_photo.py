"""A run on spoiled patches ends as a checkpoint of the kind photo, validated on compressed images."""

from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from skimage import data as photographs

from srnet.checkpoint import Checkpoint, load_checkpoint
from srnet.config import load_config
from srnet.datasets import find_pairs
from srnet.evaluation import evaluate
from srnet.training.run import train

RUN = {
    "name": "photo",
    "network": {
        "scale": 2,
        "embed_dim": 8,
        "num_blocks": 1,
        "convs_per_block": 1,
        "attention_blocks": [],
        "num_heads": 1,
    },
    "data": {
        "patch_size": 12,
        "batch_size": 2,
        "degradation": {"validation_quality": [30, 50]},
    },
    "optim": {"warmup_steps": 1, "ema_decay": 0.5},
    "trainer": {"max_steps": 3, "val_every_n_steps": 3},
}


def test_kind_validation_and_resuming(tmp_path: Path) -> None:
    for split, image in (
        ("train", photographs.coffee()),
        ("validation", photographs.chelsea()[:60, :60]),
    ):
        (tmp_path / split).mkdir()
        Image.fromarray(np.ascontiguousarray(image)).save(tmp_path / split / "photo.png")
    run = RUN | {"output_dir": str(tmp_path / "runs")}
    run["data"] = RUN["data"] | {
        "train": [str(tmp_path / "train")],
        "validation": {"photos": str(tmp_path / "validation")},
        "cache_dir": str(tmp_path / "cache"),
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run))

    def weights(*words: str) -> Checkpoint:
        result = train(load_config(tmp_path / "run.yaml", words), lambda _: None)
        loaded = load_checkpoint(result.folder / "last.safetensors")
        pairs = find_pairs(tmp_path / "validation", 2)
        measured = evaluate(loaded.network, pairs, 2, model="m", data="d", jpeg=(30, 50)).mean
        clean = evaluate(loaded.network, pairs, 2, model="m", data="d").mean
        assert result.metrics["photos"]["psnr_y"] == pytest.approx(measured.psnr_y, abs=1e-4)
        assert measured.psnr_y < clean.psnr_y
        return loaded

    whole = weights()
    assert whole.metadata["kind"] == "photo"
    weights("name=parts", "trainer.max_steps=2", "trainer.val_every_n_steps=2")
    parts = weights("name=parts")
    # stopped and resumed: the same patches, spoilt in the same way
    for key, value in whole.network.state_dict().items():
        assert torch.equal(value, parts.network.state_dict()[key]), key
