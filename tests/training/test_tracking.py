"""Weights & Biases, really run offline: what its own files hold, and every way in which it is not there."""

import json
import os
import struct
import sys

import pytest
import torch

from srnet.config import load_config
from srnet.training import tracking
from srnet.training.run import train

HEALTH = ("q_std", "k_std", "score_std", "largest_probability", "entropy", "saturated", "recall")


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """A machine on which nobody has logged in; wandb forgets what it knew of another."""
    wandb = pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    wandb.teardown()
    yield
    wandb.teardown()


def records(path):
    """Records of W&B's own file: LevelDB's log format, blocks of 32 KiB after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    assert data[:4] == b":W&B"
    at, pending = 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        if kind == 0:
            break
        pending += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            yield record
            pending = b""


def sitting(path):
    """Run id, configuration, rows by step and artifacts of one file."""
    found = {"rows": [], "artifacts": []}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["id"] = record.run.run_id
            found["config"] = {u.key: json.loads(u.value_json) for u in record.run.config.update}
        elif kind == "history":
            items = record.history.item
            row = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
            found["rows"].append(row)
        elif kind == "artifact":
            found["artifacts"].append([entry.path for entry in record.artifact.manifest.contents])
    return found


def test_offline_files_hold_every_metric_in_order_also_across_a_resume(config_file):
    words = ("logger.wandb=offline", "logger.project=tracked")
    lines: list[str] = []
    folder = train(load_config(config_file, (*words, "trainer.max_steps=4")), lines.append).folder
    settings = load_config(config_file, (*words, "trainer.max_steps=6"))
    train(settings, lines.append)
    assert any("Weights & Biases: offline, project tracked" in line for line in lines)
    first, second = (sitting(p) for p in sorted(folder.glob("wandb/offline-run-*/*.wandb")))
    assert first["id"] == second["id"]
    state = torch.load(folder / "last.ckpt", weights_only=True)
    assert state["srnet_run_id"] == first["id"]
    assert [row["_step"] for row in first["rows"]] == [1, 2, 3, 4]
    assert [row["_step"] for row in second["rows"]] == [5, 6]
    for row in (*first["rows"], *second["rows"]):
        assert row["trainer/global_step"] == row["_step"]
        for name in ("loss", "learning_rate", "patches_per_second"):
            assert row[f"train/{name}"] > 0, name
    for row in (first["rows"][2], first["rows"][3], second["rows"][1]):
        assert row["val/cat/psnr_y"] > 10
        assert 0 < row["val/cat/ssim_y"] < 1
        for name in HEALTH:
            assert f"attention/blocks.1/{name}" in row
        assert row["val/panel/caption"] == "LR | bicubic | SR | HR"
        assert (row["val/panel/width"], row["val/panel/height"]) == (4 * 60, 60)
    assert second["config"]["optim"]["optimizer"] == "muon"
    assert second["config"]["trainer"]["max_steps"] == 6
    assert sorted(second["artifacts"][-1]) == ["best.safetensors", "last.safetensors"]
    (run, *_) = sorted(folder.glob("wandb/offline-run-*"))
    assert sorted(run.glob("files/media/images/val/panel_*.png"))


def test_the_panel_shows_lr_bicubic_sr_and_hr(config_file, photo):
    from srnet.resize import upscale
    from srnet.training.module import _panel

    lr = torch.tensor(photo("coffee")[:40, :50]).permute(2, 0, 1)[None]
    hr, sr = torch.randint(0, 256, (1, 3, 80, 100), dtype=torch.uint8), torch.rand(1, 3, 80, 100)
    panel = _panel(lr, sr, hr, 2)
    assert panel.shape == (3, 80, 400)
    squares, bicubic, result, truth = panel.split(100, 2)
    assert torch.equal(squares[:, ::2, 1::2], lr[0])
    assert torch.equal(bicubic, upscale(lr, 2)[0])
    assert torch.equal(result, (sr[0] * 255 + 0.5).byte())
    assert torch.equal(truth, hr[0])


class Terminal:
    """Standard input of someone who must not be asked."""

    def isatty(self):
        return True

    def readline(self, *words):
        raise AssertionError("asked for a line")

    read = readline

    def fileno(self):
        return 0


def test_without_a_key_a_terminal_is_not_asked_and_the_run_is_offline(config_file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal())
    lines: list[str] = []
    result = train(load_config(config_file, ("logger.wandb=online",)), lines.append)
    assert result.step == 6
    (line,) = [line for line in lines if "Weights & Biases" in line]
    assert "offline (No API key configured" in line
    assert "wandb sync" in line
    assert isinstance(sys.stdin, Terminal)
    assert list(result.folder.glob("wandb/offline-run-*/*.wandb"))


def test_without_a_network_the_run_is_offline(config_file, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(tracking, "_SECONDS", 1)
    lines: list[str] = []
    config = load_config(config_file, ("logger.wandb=online",))
    tracker = tracking.open_tracker(config, tmp_path, None, lines.append)
    assert "Weights & Biases: offline (" in lines[0]
    assert tracker is not None
    tracker.close([], failed=False)


def test_without_the_package_metrics_are_in_the_csv(config_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    lines: list[str] = []
    folder = train(load_config(config_file, ("logger.wandb=online",)), lines.append).folder
    assert any("wandb is not installed; metrics go to metrics.csv" in line for line in lines)
    text = (folder / "logs" / "version_0" / "metrics.csv").read_text()
    assert "val/cat/psnr_y" in text.splitlines()[0]
    assert not (folder / "wandb").exists()


def test_disabled_by_the_environment(config_file, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    config = load_config(config_file, ("logger.wandb=online",))
    assert tracking.open_tracker(config, tmp_path, None, lambda _: None) is None


def test_runs_of_a_sweep_have_folders_of_their_own(config_file, monkeypatch):
    """wandb sweep passes --key=value and says by the environment which run this is."""
    config = load_config(config_file, ("--logger.wandb=offline", "--optim.learning_rate=0.003"))
    assert config.optim.learning_rate == 0.003
    assert tracking.name_in_sweep(config).name == "run"
    monkeypatch.setenv("WANDB_SWEEP_ID", "s")
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    assert tracking.name_in_sweep(config).name == "run_abc"
    untracked = load_config(config_file, ("logger.wandb=off",))
    assert tracking.name_in_sweep(untracked).name == "run"


def test_the_command_takes_what_a_sweep_passes(config_file, capsys):
    from srnet.cli import main

    words = ["train", str(config_file), "--optim.learning_rat=1e-3", "--trainer.max_steps=3"]
    assert main(words) == 2
    assert "optim.learning_rat" in capsys.readouterr().err
    assert main(["train", str(config_file), "--trainer.max_steps=3", "name=b"]) == 0
    assert "cat: PSNR-Y" in capsys.readouterr().out
