"""Whole runs on real photographs: results, resuming, stopping, refusing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from srnet.checkpoint import load_checkpoint, read_header
from srnet.config import RunConfig, load_config
from srnet.errors import CheckpointError, ConfigError, DataError
from srnet.images.decode import read_rgb8
from srnet.network import SRNet
from srnet.training.datamodule import PatchBatches
from srnet.training.run import initialise_from, train


def config(path: Path, *words: str) -> RunConfig:
    return load_config(path, words)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / "last.safetensors").network.state_dict()


def test_a_run_leaves_everything_it_promises(config_file: Path) -> None:
    lines: list[str] = []
    result = train(config(config_file), lines.append)
    assert result.step == 6
    assert result.stopped_by is None
    assert result.metrics["cat"]["psnr_y"] > 20
    state = torch.load(result.folder / "last.ckpt", weights_only=True)
    assert state["global_step"] == 6
    header = read_header(result.folder / "best.safetensors")
    metrics = json.loads(header.metadata["metrics"])
    assert metrics["step"] in (3, 6)
    assert metrics["cat"]["psnr_y"] > 20
    rows = (result.folder / "logs" / "version_0" / "metrics.csv").read_text().splitlines()
    assert {"train/loss", "train/learning_rate", "val/cat/psnr_y", "val/cat/ssim_y"} <= set(
        rows[0].split(",")
    )
    assert len(rows) >= 7
    assert any("step 3: cat/psnr_y" in line for line in lines)


def test_the_published_weights_are_the_average(config_file: Path) -> None:
    """last.safetensors is the EMA: the same as the average in the state, unlike the raw weights."""
    result = train(config(config_file), lambda _: None)
    state = torch.load(result.folder / "last.ckpt", weights_only=True)
    plain = torch.load(result.folder / "last.pth", weights_only=True)
    modes = {
        (result.folder / f"last.{kind}").stat().st_mode for kind in ("pth", "safetensors", "ckpt")
    }
    assert len(modes) == 1  # who may read one may read all
    assert plain.keys() == weights(result.folder).keys()
    for key, value in weights(result.folder).items():
        torch.testing.assert_close(value, plain[key], atol=0, rtol=0)
        torch.testing.assert_close(value, state["state_dict"][f"network.{key}"], atol=0, rtol=0)
    raw = state["current_model_state"]["network.blocks.0.convs.0.weight"]
    assert not torch.equal(raw, state["state_dict"]["network.blocks.0.convs.0.weight"])


@pytest.mark.parametrize("word", ["trainer.val_every_n_steps=4", "data.validation={}"])
def test_the_end_of_the_run_is_published(config_file: Path, word: str) -> None:
    """Also when the last step is not one that validates, or nothing does."""
    result = train(config(config_file, word), lambda _: None)
    metrics = json.loads(read_header(result.folder / "last.safetensors").metadata["metrics"])
    assert metrics["step"] == 6
    assert ("cat" in metrics) == ("cat" in result.metrics) == ("validation" not in word)
    state = torch.load(result.folder / "last.ckpt", weights_only=True)
    plain = torch.load(result.folder / "last.pth", weights_only=True)
    modes = {
        (result.folder / f"last.{kind}").stat().st_mode for kind in ("pth", "safetensors", "ckpt")
    }
    assert len(modes) == 1  # who may read one may read all
    assert plain.keys() == weights(result.folder).keys()
    for key, value in weights(result.folder).items():
        torch.testing.assert_close(value, plain[key], atol=0, rtol=0)
        torch.testing.assert_close(value, state["state_dict"][f"network.{key}"], atol=0, rtol=0)


def test_stopped_and_resumed_equals_never_stopped(config_file: Path) -> None:
    whole = train(config(config_file, "name=whole"), lambda _: None)
    lines: list[str] = []
    # the decay belongs to the last steps of the whole run: stop it early without changing max_steps
    program = f"""
import os, signal, sys
from srnet.config import load_config
from srnet.training import run, module
step = module.SRModule.training_step
def stopping(self, batch, batch_idx):
    if self.trainer.global_step == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    return step(self, batch, batch_idx)
module.SRModule.training_step = stopping
result = run.train(load_config({str(config_file)!r}, ("name=parts",)))
print(result.step, result.stopped_by)
"""
    stopped = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert stopped.stdout.split() == ["3", "SIGTERM"]
    parts = train(config(config_file, "name=parts"), lines.append)
    assert any("resuming at step 3" in line for line in lines)
    assert parts.step == 6
    a, b = (torch.load(r.folder / "last.ckpt", weights_only=True) for r in (whole, parts))
    for part in ("current_model_state", "state_dict"):
        for key, value in a[part].items():
            torch.testing.assert_close(b[part][key], value, atol=0, rtol=0, msg=key)
    for key, value in weights(whole.folder).items():
        torch.testing.assert_close(weights(parts.folder)[key], value, atol=0, rtol=0, msg=key)


def test_killed_process_resumes_from_the_last_save(config_file: Path) -> None:
    command = [sys.executable, "-m", "srnet", "train", str(config_file), "trainer.max_steps=100000"]
    command += ["trainer.val_every_n_steps=100000", "name=killed"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    state = config(config_file).output_dir + "/killed/last.ckpt"
    deadline = time.monotonic() + 120
    while not os.path.exists(state) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    saved = torch.load(state, weights_only=True)["global_step"]
    assert saved >= 2
    lines: list[str] = []
    result = train(
        config(config_file, "name=killed", f"trainer.max_steps={saved + 2}"), lines.append
    )
    assert any(f"resuming at step {saved}" in line for line in lines)
    assert result.step == saved + 2


def test_finished_run_does_nothing_and_says_so(config_file: Path) -> None:
    train(config(config_file), lambda _: None)
    lines: list[str] = []
    assert train(config(config_file), lines.append).step == 6
    assert len(lines) == 1
    assert "nothing to do" in lines[0]
    assert train(config(config_file, "trainer.max_steps=8"), lines.append).step == 8


def test_another_network_under_the_same_name_is_refused(config_file: Path) -> None:
    train(config(config_file), lambda _: None)
    with pytest.raises(ConfigError, match=r"embed_dim=8.*says 16"):
        train(config(config_file, "network.embed_dim=16", "trainer.max_steps=9"), lambda _: None)


def test_too_small_images_are_listed_before_training(config_file: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)photo.*300x200.*250"):
        train(config(config_file, "data.patch_size=250"), lambda _: None)
    with pytest.raises(DataError, match="no image"):
        train(config(config_file, "data.patch_size=250", "data.skip_small=true"), lambda _: None)


def test_shrunk_copies_count_as_images(config_file: Path) -> None:
    lines: list[str] = []
    words = ("data.hr_scales=[1,0.5,0.02]", "trainer.max_steps=3")
    train(config(config_file, *words), lines.append)
    assert any(" 2 images, " in line for line in lines)  # 600x400 and 300x200; 12x8 is below a crop
    with pytest.raises(DataError, match=r"once shrunk by 0\.02; add 1 to data\.hr_scales"):
        train(config(config_file, "data.hr_scales=[0.02]"), lambda _: None)


def test_batches_depend_on_seed_step_and_rank_alone(config_file: Path, folders: Path) -> None:
    from srnet.datasets import PackedPairs, find_pairs

    packed = PackedPairs.build(find_pairs(folders / "train", 2), 2, folders / "cache")
    first = PatchBatches(packed, 2, 8, seed=1)
    later = iter(PatchBatches(packed, 2, 8, seed=1, first=3))
    for i in (3, 4):
        lr, hr = next(later)
        assert torch.equal(lr, first.batch(i)[0])
        assert torch.equal(hr, first.batch(i)[1])
    for other in (PatchBatches(packed, 2, 8, seed=2), PatchBatches(packed, 2, 8, seed=1, rank=1)):
        assert not torch.equal(other.batch(0)[0], first.batch(0)[0])


def test_start_from_a_trunk_without_attention_and_of_another_scale(config_file: Path) -> None:
    source = config(config_file, "network.attention_blocks=[]", "network.scale=4").network
    target = SRNet(config(config_file).network)
    trunk = SRNet(source).state_dict()
    fresh, left_out = initialise_from(target, trunk, "trunk")
    assert left_out == []
    assert set(fresh) == {
        k for k in target.state_dict() if k.startswith("upsampler.") or ".attention." in k
    }
    assert torch.equal(
        target.state_dict()["blocks.0.convs.0.weight"], trunk["blocks.0.convs.0.weight"]
    )
    del trunk["tail.bias"]
    with pytest.raises(CheckpointError, match=r"no tail\.bias"):
        initialise_from(target, trunk, "trunk")
    wider = SRNet(config(config_file, "network.embed_dim=16").network).state_dict()
    with pytest.raises(CheckpointError, match=r"head\.\w+ is \(16"):
        initialise_from(target, {k: wider[k] for k in sorted(wider)}, "wider")


def test_start_leaves_attention_layers_out_that_the_network_lacks(config_file: Path) -> None:
    source = SRNet(config(config_file, "network.attention_blocks=[0, 1]").network).state_dict()
    target = SRNet(config(config_file, "network.attention_blocks=[1]").network)
    fresh, left_out = initialise_from(target, source, "source")
    assert fresh == []
    assert set(left_out) == {k for k in source if k.startswith("blocks.0.attention.")}
    assert all(torch.equal(v, source[k]) for k, v in target.state_dict().items())
    del source["blocks.1.attention.q.weight"]
    source["blocks.1.attention.query.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointError, match=r"lacks, e\.g\. blocks\.1\.attention\.query"):
        initialise_from(target, source, "source")


def test_command_refuses_a_wrong_key_at_once(config_file: Path) -> None:
    command = [sys.executable, "-m", "srnet", "train", str(config_file), "optim.learnin_rate=1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert "optim.learnin_rate" in result.stderr


def test_smoke_run_ends_above_bicubic(tmp_path: Path) -> None:
    """configs/smoke.yaml as the README has it, on photographs it did not train on."""
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, str(root / "scripts" / "make_smoke_data.py"), "data/smoke"],
        cwd=tmp_path,
        check=True,
    )
    command = [sys.executable, "-m", "srnet", "train", str(root / "configs" / "smoke.yaml")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    command = [
        sys.executable,
        "-m",
        "srnet",
        "eval",
        "runs/smoke/best.safetensors",
        "--data",
        "data/smoke/validation",
    ]
    result = subprocess.run(
        [*command, "--json", "report.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    mean = json.loads((tmp_path / "report.json").read_text())["mean"]
    assert mean["psnr_y"] > mean["bicubic_psnr_y"] + 0.5
    assert read_rgb8(tmp_path / "data" / "smoke" / "validation" / "astronaut.png").shape == (
        512,
        512,
        3,
    )


def test_layers_off_unit_variance_are_named_before_training(
    config_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from srnet.attention import SparseAttention

    reset = SparseAttention.reset_parameters

    def too_large(self: SparseAttention) -> None:
        reset(self)
        self.q.weight.data.mul_(1.2)

    lines: list[str] = []
    train(config(config_file, "name=right"), lines.append)
    assert not any("warning" in line for line in lines)
    monkeypatch.setattr(SparseAttention, "reset_parameters", too_large)
    train(config(config_file, "name=wrong"), lines.append)
    warnings = [line for line in lines if "warning" in line]
    assert len(warnings) == 1
    assert "blocks.1.attention" in warnings[0]
    assert "1.20" in warnings[0]
