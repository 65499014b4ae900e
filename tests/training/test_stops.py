"""Runs that are killed, stopped, starved and blown up: what they leave, and how they go on."""

import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from srnet.checkpoint import load_checkpoint, read_header
from srnet.config import load_config
from srnet.errors import CheckpointError, ConfigError, TrainingError
from srnet.training import run as run_module
from srnet.training.module import SRModule
from srnet.training.run import train

LONG = ("trainer.max_steps=14", "trainer.val_every_n_steps=4", "trainer.save_every_n_steps=3")


@pytest.fixture(scope="module")
def victim():
    """Starts tests/training/victim.py; gives a function that hands it one run and returns the run's exit code."""
    if sys.platform == "win32":
        pytest.skip("forks and limits of POSIX")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("victim.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def run(config, words, fault=None, at=0, diary=os.devnull, log=os.devnull):
        job = {"config": str(config), "words": words, "fault": fault, "at": at}
        process.stdin.write(json.dumps(job | {"diary": str(diary), "log": str(log)}) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield run
    process.stdin.close()
    process.wait()
    process.stdout.close()


def entries(diary: Path) -> dict[int, str]:
    """What each step saw; passes over a step that a kill threw away must have seen the same."""
    found: dict[int, str] = {}
    for line in diary.read_text().splitlines():
        step, rest = line.split(maxsplit=1)
        assert found.setdefault(int(step), rest) == rest
    return found


def final(folder: Path) -> dict[str, Any]:
    state = torch.load(folder / "last.ckpt", weights_only=True)
    return {k: state[k] for k in ("state_dict", "current_model_state", "optimizer_states")}


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}/{i}")
    else:
        assert a == b, where


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_five_times_at_random_equals_never_stopped(victim, config_file, tmp_path, precision):
    """kill -9 in a step, while the state is written, in a validation, and while weights are published."""
    words = (*LONG, f"trainer.precision={precision}")
    dice = random.Random(7 if precision == "fp32" else 8)
    steps = sorted(dice.sample(range(1, 12), 5))
    places = ["kill_in_step", "kill_in_write", "kill_in_validation", "kill_in_export"]
    places.append("kill_in_step")
    dice.shuffle(places)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert victim(config_file, (*words, "name=whole"), diary=whole) == 0
    killed = (config_file, (*words, "name=parts"))
    for fault, step in zip(places, steps, strict=True):
        assert victim(*killed, fault, step, diary=parts) == -signal.SIGKILL, (fault, step)
    assert victim(*killed, diary=parts) == 0
    assert entries(parts) == entries(whole)
    assert sorted(entries(parts)) == list(range(14))
    runs = Path(load_config(config_file).output_dir)
    assert_equal(final(runs / "parts"), final(runs / "whole"))
    for file in ("last", "best"):
        a, b = (load_checkpoint(runs / n / f"{file}.safetensors") for n in ("parts", "whole"))
        assert_equal(dict(a.network.state_dict()), dict(b.network.state_dict()), file)
        assert a.metadata["metrics"] == b.metadata["metrics"]
        plain = torch.load(runs / "parts" / f"{file}.pth", weights_only=True)
        assert_equal(plain, dict(a.network.state_dict()), file)
    left = sorted(path.name for path in (runs / "parts").iterdir())
    published = [f"{name}.{kind}" for name in ("best", "last") for kind in ("pth", "safetensors")]
    assert left == sorted([*published, "config.json", "last.ckpt", "logs"])


@pytest.mark.parametrize("fault", ["kill_in_validation", "kill_in_export"])
def test_a_kill_at_the_very_end_is_made_good(victim, config_file, fault):
    """All steps are saved, nothing is published: the same command does it, and then has nothing to do."""
    words = ("trainer.val_every_n_steps=6",)
    settings = load_config(config_file, words)
    assert victim(config_file, words, fault, 6) == -signal.SIGKILL
    folder = Path(settings.output_dir) / "run"
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == 6
    assert not (folder / "last.safetensors").exists()
    lines: list[str] = []
    result = train(settings, lines.append)
    assert result.step == 6
    assert any("not validated" in line for line in lines)
    published = json.loads(read_header(folder / "best.safetensors").metadata["metrics"])
    assert published == {"step": 6, **result.metrics}
    average = torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]
    for key, value in load_checkpoint(folder / "last.safetensors").network.state_dict().items():
        assert torch.equal(value, average[f"network.{key}"])
    with (folder / "logs" / "version_1" / "metrics.csv").open() as file:
        (row,) = [row for row in csv.DictReader(file) if row["val/cat/psnr_y"]]
    assert row["step"] == "6"
    lines.clear()
    train(settings, lines.append)
    assert "nothing to do" in lines[0]


def test_a_better_file_than_the_state_knows_of_stays(config_file):
    """A kill right after a validation: the state is older than best.safetensors."""
    settings = load_config(config_file, ("trainer.max_steps=3",))
    folder = train(settings, lambda _: None).folder
    header = read_header(folder / "best.safetensors")
    checkpoint = load_checkpoint(folder / "best.safetensors")
    from srnet.checkpoint import save_checkpoint

    save_checkpoint(
        folder / "best.safetensors",
        checkpoint.network,
        metrics={"step": 3, "cat": {"psnr_y": 99.0, "ssim_y": 0.5}},
        data=header.metadata["data"],
        license="x",
        commit="x",
    )
    train(load_config(config_file, ("trainer.max_steps=6",)), lambda _: None)
    kept = json.loads(read_header(folder / "best.safetensors").metadata["metrics"])
    assert kept["cat"]["psnr_y"] == 99.0


def test_a_stop_asked_for_in_a_validation_does_not_wait_for_it(victim, config_file, tmp_path):
    log = tmp_path / "log"
    assert victim(config_file, LONG, "stop_in_validation", 8, log=log) == 0
    assert log.read_text().splitlines()[-1] == "ended at 8 by SIGTERM"
    assert "step 8: cat" not in log.read_text()
    lines: list[str] = []
    train(load_config(config_file, LONG), lines.append)
    assert any("step 8 was saved but not validated" in line for line in lines)
    assert any(line.startswith("step 8: cat/psnr_y") for line in lines)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("nan", "the loss is nan"),
        ("large", "the loss is 3e"),
        ("weights", "weights are not finite"),
    ],
)
def test_a_bad_loss_stops_names_its_step_and_keeps_the_last_good_state(
    config_file, monkeypatch, fault, text
):
    good = SRModule.training_step

    def step(self: SRModule, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = good(self, batch, batch_idx)
        if self.trainer.global_step == 3:
            if fault == "weights":
                loss.register_hook(lambda gradient: gradient * math.nan)
                return loss
            return loss * (math.nan if fault == "nan" else 3e3 / loss.item())
        return loss

    monkeypatch.setattr(SRModule, "training_step", step)
    with pytest.raises(
        TrainingError, match=rf"step 4: {text}.*batch 3 of seed 0.*step 3 is kept"
    ) as e:
        train(load_config(config_file), lambda _: None)
    assert len(str(e.value).splitlines()) == 1
    folder = Path(load_config(config_file).output_dir) / "run"
    state = torch.load(folder / "last.ckpt", weights_only=True)
    assert state["global_step"] == 3
    assert all(bool(v.isfinite().all()) for v in state["current_model_state"].values())
    monkeypatch.setattr(SRModule, "training_step", good)
    assert train(load_config(config_file), lambda _: None).step == 6


def test_a_rate_that_explodes_is_stopped(config_file):
    words = ("optim.optimizer=adamw", "optim.learning_rate=1e4", "trainer.max_steps=40")
    with pytest.raises(TrainingError, match=r"lower optim\.learning_rate"):
        train(load_config(config_file, words), lambda _: None)


def test_the_limit_on_the_loss_can_be_set(config_file):
    words = ("optim.optimizer=adamw", "optim.learning_rate=10", "name=high")
    with pytest.raises(TrainingError, match=r"the loss is .* \(limit 1\.\d+\)"):
        train(load_config(config_file, words), lambda _: None)
    raised = load_config(config_file, (*words, "optim.loss_limit=1e30"))
    assert train(raised, lambda _: None).step == 6
    with pytest.raises(TrainingError, match=r"step 1: the loss is .* \(limit 1e-06\)"):
        train(load_config(config_file, ("optim.loss_limit=1e-6",)), lambda _: None)


def test_a_full_disk_is_one_line_and_keeps_the_last_good_state(victim, config_file, tmp_path):
    log = tmp_path / "log"
    assert victim(config_file, LONG, "fill_disk", 6, log=log) == 1
    said = log.read_text().splitlines()[-1]
    assert "TrainingError" in said
    assert "last.ckpt: the state of step 8 cannot be saved: File too large" in said
    assert "that of step 6 is kept" in said
    folder = Path(load_config(config_file).output_dir) / "run"
    assert torch.load(folder / "last.ckpt", weights_only=True)["global_step"] == 6
    assert not list(folder.glob(".*"))
    assert train(load_config(config_file, LONG), lambda _: None).step == 14


def test_what_may_change_on_resume(config_file):
    """Another optimiser is refused; another rate is taken and told."""
    train(load_config(config_file, ("trainer.max_steps=3",)), lambda _: None)
    with pytest.raises(ConfigError, match=r"optim\.optimizer=muon.*says adamw.*use another name"):
        train(load_config(config_file, ("optim.optimizer=adamw",)), lambda _: None)
    lines: list[str] = []
    words = ("optim.learning_rate=1e-4", "optim.decay_steps=0", "optim.betas=[0.8, 0.9]")
    folder = train(load_config(config_file, words), lines.append).folder
    (line,) = [line for line in lines if "changed since step 3" in line]
    for text in ("optim.learning_rate 0.0025 -> 0.0001", "optim.decay_steps 3 -> 0", "optim.betas"):
        assert text in line
    state = torch.load(folder / "last.ckpt", weights_only=True)
    body, rest = state["optimizer_states"][0]["param_groups"]
    assert (body["lr"], rest["lr"], tuple(rest["betas"])) == (1e-4, 0.4 * 1e-4, (0.8, 0.9))
    with (folder / "logs" / "version_1" / "metrics.csv").open() as file:
        rates = [row["train/learning_rate"] for row in csv.DictReader(file)]
    assert [float(rate) for rate in rates if rate] == pytest.approx([1e-4] * 3)


def test_a_damaged_state_is_one_line(config_file):
    folder = train(load_config(config_file), lambda _: None).folder
    whole = (folder / "last.ckpt").read_bytes()
    for content in (b"", b"no state", whole[: len(whole) // 2]):
        (folder / "last.ckpt").write_bytes(content)
        with pytest.raises(CheckpointError, match="move it away") as error:
            train(load_config(config_file), lambda _: None)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device exists")
def test_an_absent_device_is_one_line(config_file):
    with pytest.raises(ConfigError, match=r"device 'cuda': this machine has 0"):
        train(load_config(config_file, ("trainer.device=cuda",)), lambda _: None)


def test_the_commit_is_that_of_srnet_or_unknown(monkeypatch, tmp_path):
    package = tmp_path / "foreign" / "site" / "srnet" / "training" / "run.py"
    package.parent.mkdir(parents=True)
    monkeypatch.setattr(run_module, "__file__", str(package))
    assert run_module._commit() == "unknown"
    git = ["git", "-C", str(tmp_path / "foreign"), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    assert run_module._commit() == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run_module._commit() == "unknown"
