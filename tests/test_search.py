"""``scripts/search.py``: what its arms start from, and its table."""

import argparse
from pathlib import Path

import pytest
import search
import torch

from srnet.checkpoint import load_checkpoint, save_checkpoint
from srnet.config import load_config
from srnet.network import SRNet


def arguments(folder: Path, recipes: bool) -> argparse.Namespace:
    return argparse.Namespace(
        recipes=recipes,
        trunk=str(folder / "trunk.safetensors"),
        train=[folder / "train"],
        validation=folder / "validation",
        output=folder / "results.jsonl",
        seed=0,
        patch_size=48,
        batch_size=8,
        rate=1e-3,
    )


def test_every_arm_starts_as_the_trunk(tmp_path):
    torch.manual_seed(1)
    shape = load_config(search.CONFIG, ("network.attention_blocks=[]",)).network
    about = {"metrics": {}, "data": "none", "license": "none", "commit": "none"}
    save_checkpoint(tmp_path / "trunk.safetensors", SRNet(shape), **about)
    lr = torch.rand(1, 3, 16, 16)
    with torch.inference_mode():
        expected = load_checkpoint(tmp_path / "trunk.safetensors").network(lr)
        for name, arm in search.ARMS.items():
            network = load_checkpoint(search.write_start(arguments(tmp_path, False), name)).network
            torch.testing.assert_close(network(lr), expected)
            layers = [m for m in network.modules() if isinstance(m, search.SparseAttention)]
            assert bool(layers) == bool(network.config.attention_blocks)
            for layer in layers:
                alike = torch.equal(layer.q.weight, layer.kv.weight.chunk(2)[0])
                assert alike != arm.apart
                assert torch.equal(*layer.predictor.weight.chunk(2)) != arm.apart


@pytest.mark.parametrize("recipes", [False, True])
def test_every_arm_is_a_configuration_and_a_row(tmp_path, recipes):
    args = arguments(tmp_path, recipes)
    config = search.RECIPE_CONFIG if recipes else search.CONFIG
    arms = search.RECIPES if recipes else search.ARMS
    networks = {arm: load_config(config, tuple(search.settings(args, arm))) for arm in arms}
    assert len({str(c) for c in networks.values()}) == len(arms)
    rows = [
        {
            "arm": arm,
            "seed": 0,
            "steps": 10,
            "step_time": 1.0,
            "upscale_time": 1.0,
            "validation": 26 + i / 100,
            "test": 25.0,
        }
        for i, arm in enumerate([*arms, "one that is gone"])
    ]
    lines = search.table(rows, "Urban", recipes).splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [
        arm.title for arm in reversed(arms.values())
    ]
