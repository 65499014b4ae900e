"""A run on spoiled patches ends as a checkpoint of the kind photo, validated on compressed images."""

from pathlib import Path

import pytest
import torch

from srnet.checkpoint import Checkpoint, load_checkpoint
from srnet.config import load_config
from srnet.datasets import find_pairs
from srnet.evaluation import evaluate
from srnet.training.run import train

WORDS = (
    "network.attention_blocks=[]",
    "data.patch_size=12",
    "data.degradation={validation_quality: [30, 50]}",
    "optim.decay_steps=0",
    "trainer.precision=fp32",  # as `evaluate` measures; auto is bfloat16 where that is native
    "trainer.max_steps=3",
)


def test_kind_validation_and_resuming(config_file: Path, folders: Path) -> None:
    def weights(*words: str) -> Checkpoint:
        result = train(load_config(config_file, (*WORDS, *words)), lambda _: None)
        loaded = load_checkpoint(result.folder / "last.safetensors")
        pairs = find_pairs(folders / "validation", 2)
        measured = evaluate(loaded.network, pairs, 2, model="m", data="d", jpeg=(30, 50)).mean
        clean = evaluate(loaded.network, pairs, 2, model="m", data="d").mean
        assert result.metrics["cat"]["psnr_y"] == pytest.approx(measured.psnr_y, abs=1e-4)
        assert measured.psnr_y < clean.psnr_y
        return loaded

    whole = weights()
    assert whole.metadata["kind"] == "photo"
    weights("name=parts", "trainer.max_steps=2", "trainer.val_every_n_steps=2")
    parts = weights("name=parts")
    # stopped and resumed: the same patches, spoilt in the same way
    for key, value in whole.network.state_dict().items():
        assert torch.equal(value, parts.network.state_dict()[key]), key
