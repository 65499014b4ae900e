"""Two processes over gloo against one process with the double batch."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from skimage import data as photographs

from srnet.checkpoint import load_checkpoint, read_header
from srnet.config import load_config
from srnet.datasets import PackedPairs, find_pairs
from srnet.training.datamodule import PatchBatches, WholeImages
from srnet.training.run import train


@pytest.fixture
def uneven(tmp_path):
    """Validation sets of three images and of one: neither divides by two."""
    root = tmp_path / "sets"
    for name, count in (("three", 3), ("one", 1)):
        (root / name).mkdir(parents=True)
        for i in range(count):
            picture = photographs.astronaut()[60 * i : 60 * i + 50 + i, :60]
            Image.fromarray(picture).save(root / name / f"{i}.png")
    return root


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_image_goes_to_one_process_and_all_count_alike(tmp_path, count, processes):
    for i in range(count):
        Image.fromarray(photographs.astronaut()[:8, :8]).save(tmp_path / f"{i}.png")
    pairs = find_pairs(tmp_path, 2)
    parts = [WholeImages(pairs, 2, rank=r, processes=processes) for r in range(processes)]
    assert len({len(part) for part in parts}) == 1
    entries = [part[i] for part in parts for i in range(len(part))]
    assert sorted(e[2] for e in entries if e[2] >= 0) == list(range(count))
    assert all(e[0].numel() == 0 for e in entries if e[2] < 0)


def test_processes_cut_the_batch_of_one(folders):
    packed = PackedPairs.build(find_pairs(folders / "train", 2), 2, folders / "cache")
    whole = PatchBatches(packed, 6, 8, seed=3).batch(5)
    parts = [PatchBatches(packed, 2, 8, seed=3, rank=rank).batch(5) for rank in range(3)]
    for side in (0, 1):
        assert torch.equal(torch.cat([part[side] for part in parts]), whole[side])


def losses(folder: Path) -> list[float]:
    with (folder / "logs" / "version_0" / "metrics.csv").open() as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row["train/loss"]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="gloo over localhost")
def test_two_processes_learn_what_one_with_the_double_batch_does(config_file, uneven):
    sets = f"data.validation={{three: {uneven / 'three'}, one: {uneven / 'one'}}}"
    words = (sets, "trainer.device=cpu", "trainer.precision=fp32")
    one = train(load_config(config_file, (*words, "name=one", "data.batch_size=4")), lambda _: None)
    command = [sys.executable, "-m", "srnet", "train", str(config_file), *words]
    result = subprocess.run(
        [*command, "name=two", "trainer.devices=2"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("three: PSNR-Y") == 1
    assert result.stderr.count("starting: x2") == 1
    two = one.folder.with_name("two")
    assert losses(two) == pytest.approx(losses(one.folder), rel=1e-5)
    a, b = (load_checkpoint(f / "last.safetensors").network for f in (one.folder, two))
    for key, value in a.state_dict().items():
        torch.testing.assert_close(b.state_dict()[key], value, rtol=1e-4, atol=1e-5)
    metrics = json.loads(read_header(two / "last.safetensors").metadata["metrics"])
    for name, mean in one.metrics.items():
        assert metrics[name]["psnr_y"] == pytest.approx(mean["psnr_y"], abs=1e-3)
    assert torch.load(two / "last.ckpt", weights_only=True)["global_step"] == 6
