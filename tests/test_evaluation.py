"""Evaluation of real photographs, as a library and as ``srnet eval``."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from srnet.checkpoint import load_checkpoint, save_checkpoint
from srnet.cli import main
from srnet.color import rgb_to_y
from srnet.config import NetworkConfig
from srnet.datasets import find_pairs, read_pair
from srnet.errors import DataError
from srnet.evaluation import Report, Row, evaluate
from srnet.metrics import psnr_y
from srnet.network import SRNet
from srnet.resize import imresize

PUBLISHED_BICUBIC = {2: 33.66, 3: 30.39, 4: 28.42}


@pytest.fixture(scope="module")
def folder(photo, tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for name in ("astronaut", "chelsea"):
        Image.fromarray(np.ascontiguousarray(photo(name)[:90, :101])).save(root / f"{name}.png")
    return root


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    network = SRNet(
        NetworkConfig(
            scale=2, embed_dim=8, num_blocks=1, num_heads=1, attention_blocks=(0,), top_k=4
        )
    )
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_checkpoint(path, network, metrics={}, data="none", license="Apache-2.0", commit="none")
    return path


def test_command_prints_what_the_json_holds(folder, checkpoint, tmp_path) -> None:
    command = [sys.executable, "-m", "srnet", "eval", str(checkpoint), "--data", str(folder)]
    command += ["--json", str(tmp_path / "out" / "report.json"), "--save", str(tmp_path / "sr")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [row["name"] for row in report["images"]] == ["astronaut", "chelsea"]
    for key in ("psnr_y", "ssim_y", "bicubic_psnr_y", "bicubic_ssim_y"):
        assert report["mean"][key] == pytest.approx(np.mean([row[key] for row in report["images"]]))
    assert f"{report['mean']['psnr_y']:.2f}" in done.stdout
    protocol = report["protocol"]
    assert (protocol["images"], protocol["scale"], protocol["crop_border"]) == (2, 2, 2)
    assert protocol["precision"] == "fp32"
    assert len(protocol["sha256"]) == 64
    assert "torch" in protocol["versions"]
    # the saved pictures carry the number of the table
    for pair, row in zip(find_pairs(folder, 2), report["images"], strict=True):
        _, hr = read_pair(pair, 2)
        with Image.open(tmp_path / "sr" / f"{pair.name}_x2.png") as image:
            sr = np.asarray(image)
        tensors = [torch.tensor(a).permute(2, 0, 1)[None].float() / 255 for a in (sr, hr)]
        assert psnr_y(*tensors, 2).item() == pytest.approx(row["psnr_y"], abs=1e-9)


def test_bicubic_needs_no_checkpoint(folder, capsys) -> None:
    assert main(["eval", "bicubic", "--data", str(folder), "--scale", "4"]) == 0
    assert "+0.00" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bicubic"], "needs --scale"),
        ([], "needs --scale"),
        (["CHECKPOINT", "--scale", "4"], "x2"),
        (["CHECKPOINT", "--device", "gpu"], "gpu"),
        (["no-such-model"], "no-such-model"),
    ],
)
def test_wrong_options_are_one_line(words, message, folder, checkpoint, capsys) -> None:
    words = [str(checkpoint) if word == "CHECKPOINT" else word for word in words]
    assert main(["eval", *words, "--data", str(folder)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_results_of_a_larger_scale_are_shrunk(folder, tmp_path, capsys) -> None:
    words = ["eval", "srnet-tiny-x4", "--data", str(folder), "--scale", "2"]
    assert main([*words, "--json", str(tmp_path / "report.json")]) == 0
    assert "result: x4, shrunk to x2" in capsys.readouterr().out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["protocol"]["crop_border"] == 2
    network = load_checkpoint("srnet-tiny-x4").network
    for pair, row in zip(find_pairs(folder, 2), report["images"], strict=True):
        lr, hr = (torch.tensor(a).permute(2, 0, 1)[None] / 255 for a in read_pair(pair, 2))
        with torch.inference_mode():
            sr = imresize(network(lr), hr.shape[2:])
        assert row["psnr_y"] == pytest.approx(psnr_y(sr, hr, 2).item(), abs=1e-3)


def test_missing_folder_and_tiny_images_are_named(tmp_path, capsys) -> None:
    assert main(["eval", "bicubic", "--data", str(tmp_path / "absent"), "--scale", "2"]) == 2
    assert "absent" in capsys.readouterr().err
    Image.new("RGB", (5, 40)).save(tmp_path / "thin.png")
    assert main(["eval", "bicubic", "--data", str(tmp_path), "--scale", "2"]) == 2
    assert "thin" in capsys.readouterr().err


def test_infinity_is_valid_json() -> None:
    row = Row("equal", math.inf, 1.0, 30.0, math.nan)
    values = Report([row], row, {}).to_json()
    assert json.loads(json.dumps(values, allow_nan=False))["images"][0] == {
        "name": "equal",
        "psnr_y": None,
        "ssim_y": 1.0,
        "bicubic_psnr_y": 30.0,
        "bicubic_ssim_y": None,
    }


@pytest.mark.parametrize("scale", [2, 3, 4])
def test_bicubic_on_set5(shared_data, scale: int) -> None:
    """The published row was made on the luma alone; with colour the same images give 0.01 dB more."""
    pairs = find_pairs(shared_data / "benchmarks" / "Set5", scale)
    assert [pair.lr is not None for pair in pairs] == [True] * 5
    luma_alone = []
    for pair in pairs:
        hr = torch.from_numpy(read_pair(pair, scale)[1].copy()).permute(2, 0, 1)[None]
        y = (rgb_to_y(hr.double() / 255) * 255).add(0.5).floor()
        height, width = y.shape[2:]
        lr = imresize(y, (height // scale, width // scale))
        again = imresize(lr, (height, width)).add(0.5).floor()
        inner = (..., slice(scale, -scale), slice(scale, -scale))
        luma_alone.append(10 * math.log10(255**2 / (again - y)[inner].square().mean()))
    assert np.mean(luma_alone) == pytest.approx(PUBLISHED_BICUBIC[scale], abs=0.005)
    report = evaluate(None, pairs, scale, model="bicubic", data="Set5")
    assert report.mean.psnr_y == pytest.approx(PUBLISHED_BICUBIC[scale], abs=0.02)


def test_jpeg_is_measured_on_the_files_that_training_validates_on(
    folder, checkpoint, capsys
) -> None:
    from srnet.training.datamodule import WholeImages

    assert main(["eval", str(checkpoint), "--data", str(folder), "--jpeg", "40-80"]) == 0
    out = capsys.readouterr().out
    assert "then JPEG of quality 40 to 80" in out
    scores = []
    for lr, hr, *_ in WholeImages(find_pairs(folder, 2), 2, (40, 80)):
        bicubic = imresize(lr[None], hr.shape[1:]).float() / 255
        scores.append(psnr_y(bicubic, hr[None].float() / 255, 2).item())
    assert f"{np.mean(scores):.2f}" in out.split("mean", 1)[1].splitlines()[0]
    clean = evaluate(None, find_pairs(folder, 2), 2, model="bicubic", data="photos").mean.psnr_y
    assert np.mean(scores) < clean - 0.3


@pytest.mark.parametrize("text", ["80-40", "0-50", "fine", "40-101"])
def test_impossible_jpeg_qualities_are_refused(folder, text, capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["eval", "bicubic", "--scale", "2", "--data", str(folder), "--jpeg", text])
    assert caught.value.code == 2
    assert "e.g. 40-80" in capsys.readouterr().err


def test_images_below_the_window_of_ssim_are_named_and_left_out(tmp_path, photo):
    for name, side in (("large", 60), ("tiny", 14)):
        Image.fromarray(photo("astronaut")[:side, :side]).save(tmp_path / f"{name}.png")
    pairs = find_pairs(tmp_path, 2)
    report = evaluate(None, pairs, 2, model="bicubic", data="two")
    large, tiny = report.rows
    assert math.isnan(tiny.ssim_y)
    assert report.mean.ssim_y == large.ssim_y
    assert report.mean.psnr_y == pytest.approx((large.psnr_y + tiny.psnr_y) / 2)
    assert "SSIM without tiny: below 11 pixels" in report.protocol["mean"]
    assert "n/a" in report.to_table()
    text = json.dumps(report.to_json(), allow_nan=False)
    assert json.loads(text)["mean"]["ssim_y"] == large.ssim_y
    alone = evaluate(None, [pair for pair in pairs if pair.name == "tiny"], 2, model="b", data="t")
    assert json.loads(json.dumps(alone.to_json(), allow_nan=False))["mean"]["ssim_y"] is None


def test_no_pairs_are_one_line():
    with pytest.raises(DataError, match="folder: no images"):
        evaluate(None, [], 2, model="bicubic", data="folder")


def test_a_report_that_cannot_be_written_is_refused_before_measuring(tmp_path, photo, capsys):
    Image.fromarray(photo("astronaut")[:40, :40]).save(tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    words = ["eval", "bicubic", "--scale", "2", "--data", str(tmp_path), "--json"]
    for target, text in (
        (tmp_path, "is a folder"),
        (tmp_path / "file" / "report.json", "cannot be written"),
    ):
        assert main([*words, str(target)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert text in captured.err
    assert main([*words, str(tmp_path / "new" / "report.json")]) == 0
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["report.json"]
