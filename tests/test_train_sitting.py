"""A sitting of training: what is published, what is written down."""

import csv
import itertools
import json
import signal

import pytest
import torch
import train_sitting

from srnet.checkpoint import load_checkpoint, save_checkpoint
from srnet.config import load_config
from srnet.network import SRNet


@pytest.fixture
def place(tmp_path, photo_folders, tiny_run):
    """A folder with images, a configuration, an empty registry."""
    photo_folders(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    registry = {"base_url": None, "models": []}
    (tmp_path / "checkpoints" / "registry.json").write_text(json.dumps(registry))
    tiny_run(
        tmp_path / "run.yaml",
        data={
            "validation": {"photos": "validation"},
            "cache_dir": "cache",
            "weights_license": "CC0-1.0",
        },
    )
    return tmp_path


@pytest.fixture
def sitting(place, monkeypatch, capfd):
    """A function: runs the script in the folder, returns what it says."""
    monkeypatch.chdir(place)
    previous = signal.getsignal(signal.SIGTERM)

    def run(*words):
        paths = ["--validation", "validation", "--checkpoints", "checkpoints"]
        assert train_sitting.main([*map(str, words), *paths, "--ledger", "log.csv"]) == 0
        return capfd.readouterr().out

    yield run
    signal.signal(signal.SIGTERM, previous)


def ledger(place):
    with (place / "log.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_a_sitting_trains_decays_and_publishes(place, sitting):
    start = ["start", "mine-x2", "run.yaml", "--hours", "1", "--decay", "2", "--foreground"]
    out = sitting(*start, "--set", "trainer.max_steps=3")
    assert "shipped before: nothing; published" in out
    rates = [
        float(row["train/learning_rate"])
        for path in sorted(place.glob("runs/run_decay/logs/version_*/metrics.csv"))
        for row in csv.DictReader(path.read_text().splitlines())
        if row.get("train/learning_rate")
    ]
    assert all(a > b for a, b in itertools.pairwise(rates))
    shipped = load_checkpoint(place / "checkpoints" / "mine-x2.safetensors")
    models = json.loads((place / "checkpoints" / "registry.json").read_text())["models"]
    assert [(m["name"], m["sha256"], m["license"]) for m in models] == [
        ("mine-x2", shipped.sha256, "CC0-1.0")
    ]
    (row,) = ledger(place)
    measured = json.loads(shipped.metadata["metrics"])["validation"]["psnr_y"]
    assert float(row["validation_psnr_y"]) == pytest.approx(measured, abs=1e-3)
    assert (row["checkpoint"], row["patches"], row["published"]) == ("mine-x2", "10", "yes")
    # the next sitting goes on at the end of the constant phase, not of the decay
    state = torch.load(place / "runs" / "run" / "last.ckpt", weights_only=True)
    assert state["global_step"] == 3


def test_the_log_names_the_run_and_where_it_started(tmp_path):
    for stem in ("average", "best", "last"):
        assert train_sitting.run_name(tmp_path / "mine" / f"{stem}.safetensors") == "mine"
    assert train_sitting.run_name(tmp_path / "mine" / "step_900.safetensors") == "step_900"
    other = train_sitting.other_checkpoint
    assert other("srnet-small-x4", "srnet-small-x2") == "srnet-small-x4"
    assert other("srnet-small-x2", "srnet-small-x2") == ""  # goes on
    assert other("runs/mine/last.safetensors", "srnet-small-x2") == other(None, "a") == ""


def test_worse_weights_replace_nothing_but_are_written_down(place, sitting):
    weights = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        network = SRNet(load_config(place / "run.yaml").network)
        card = {"metrics": {}, "data": "none", "license": "CC0-1.0", "commit": "none"}
        weights.append(place / f"w{seed}.safetensors")
        save_checkpoint(weights[-1], network, **card)
        if seed:
            with torch.no_grad():  # far off: noise on every pixel
                network.upsampler.weight.add_(torch.randn(network.upsampler.weight.shape) * 0.1)
            save_checkpoint(weights[-1], network, **card)
    words = ["--hours", "0.5", "--patches", "7"]
    start = ["--init-from", "other-x2"]
    assert "; published" in sitting("publish", "mine-x2", weights[0], *words, *start)
    before = (place / "checkpoints" / "mine-x2.safetensors").read_bytes()
    assert "not published" in sitting("publish", "mine-x2", weights[1], *words)
    assert (place / "checkpoints" / "mine-x2.safetensors").read_bytes() == before
    assert [row["published"] for row in ledger(place)] == ["yes", "no"]
    assert [row["init_from"] for row in ledger(place)] == ["other-x2", ""]
    # equal is not better
    assert "not published" in sitting("publish", "mine-x2", weights[0], *words)
    assert "; published" in sitting("publish", "mine-x2", weights[1], *words, "--anyway")
    assert (place / "checkpoints" / "mine-x2.safetensors").read_bytes() != before
    assert [row["published"] for row in ledger(place)] == ["yes", "no", "no", "yes"]
