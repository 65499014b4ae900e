"""Attention health in a run's log, and the line when it saturates."""

import csv

import pytest
import torch

from srnet.attention import SparseAttention
from srnet.config import load_config
from srnet.diagnostics import examine
from srnet.training.health import layer_metrics
from srnet.training.run import train

NAMES = ("q_std", "k_std", "score_std", "largest_probability", "entropy", "saturated", "recall")


def health(folder):
    with (folder / "logs" / "version_0" / "metrics.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["attention/seconds"]]


@pytest.mark.parametrize("word", ["trainer.max_steps=7", "data.validation={}"])
def test_every_layer_is_logged_at_each_validation_and_at_the_end(config_file, word):
    lines: list[str] = []
    folder = train(load_config(config_file, (word,)), lines.append).folder
    rows = health(folder)
    assert [row["step"] for row in rows] == (["3", "6", "7"] if "7" in word else ["3", "6"])
    for row in rows:
        values = {name: float(row[f"attention/blocks.1/{name}"]) for name in NAMES}
        assert 0.5 < values["q_std"] < 2
        assert 0 < values["largest_probability"] < 1
        assert 0 < values["entropy"] <= 1
        assert 0 <= values["recall"] <= 1
        assert float(row["attention/seconds"]) > 0
    assert not any("saturates" in line for line in lines)


def test_the_logged_values_are_those_of_diagnose(config_file):
    from srnet.network import SRNet

    torch.manual_seed(0)
    network = SRNet(load_config(config_file, ("network.num_heads=2",)).network)
    (found,) = examine(network, torch.rand(1, 3, 40, 40))
    values = layer_metrics([found.statistics])
    assert set(values) == {f"attention/blocks.1/{name}" for name in NAMES}
    heads = found.statistics.heads
    assert values["attention/blocks.1/score_std"] == (heads[0].score_std + heads[1].score_std) / 2
    assert values["attention/blocks.1/recall"] == found.statistics.recall


def test_saturation_is_one_line_once(config_file, monkeypatch):
    reset = SparseAttention.reset_parameters

    def grown(self):
        reset(self)
        torch.nn.init.orthogonal_(self.kv.weight.data.chunk(2)[0])  # alike keys would share
        self.q.weight.data.mul_(3000)

    monkeypatch.setattr(SparseAttention, "reset_parameters", grown)
    lines: list[str] = []
    folder = train(load_config(config_file, ("optim.learning_rate=1e-5",)), lines.append).folder
    (line,) = [line for line in lines if "saturates" in line]
    assert line.startswith("warning: step 3: attention saturates in 1 of 1 heads")
    assert len(line.splitlines()) == 1
    assert [float(row["attention/blocks.1/saturated"]) > 0.5 for row in health(folder)] == [
        True
    ] * 2


def test_measuring_changes_nothing(config_file, monkeypatch):
    """Weights and random numbers are the same with and without."""
    from srnet.training.health import AttentionHealth

    with_it = train(load_config(config_file, ("name=a",)), lambda _: None).folder
    monkeypatch.delattr(AttentionHealth, "on_train_batch_end")
    without = train(load_config(config_file, ("name=b",)), lambda _: None).folder
    a, b = (torch.load(f / "last.ckpt", weights_only=True) for f in (with_it, without))
    for key, value in a["current_model_state"].items():
        assert torch.equal(value, b["current_model_state"][key]), key
