"""``scripts/distill_targets.py``: targets between an image and a network's result, ready to train on."""

import sys

import distill_targets
import numpy as np
import pytest
import torch
from PIL import Image

from srnet.checkpoint import load_checkpoint
from srnet.datasets import read_pair
from srnet.degradation import MARGIN
from srnet.pairs import find_pairs
from srnet.resize import downscale


@pytest.fixture
def images(tmp_path, photo):
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("chelsea", "coffee"):
        Image.fromarray(np.ascontiguousarray(photo(name)[:99, :120])).save(folder / f"{name}.png")
    return folder


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["distill_targets.py", *map(str, arguments)])
    return distill_targets.main()


@pytest.mark.parametrize("share", [0, 0.25, 1])
def test_targets_lie_between_image_and_result(monkeypatch, tmp_path, images, share):
    output = tmp_path / "distilled"
    given = ("srnet-tiny-x4", images, "--output", output, "--share", share, "--hr-scales", 1)
    assert run(monkeypatch, *given) == 0
    network = load_checkpoint("srnet-tiny-x4").network.eval()
    pairs = find_pairs(output, 4)
    assert [pair.name for pair in pairs] == ["chelsea", "coffee"]
    for pair, original in zip(pairs, find_pairs(images, 4), strict=True):
        lr, target = read_pair(pair, 4)
        hr = np.asarray(Image.open(original.hr))[:96]
        small = downscale(torch.from_numpy(np.array(hr)).permute(2, 0, 1)[None], 4)
        np.testing.assert_array_equal(lr, small[0].permute(1, 2, 0).numpy())
        views = []
        with torch.inference_mode():
            for turns in range(4):
                for flip in ([], [-1]):
                    view = torch.rot90(small.float() / 255, turns, (-2, -1)).flip(flip)
                    views.append(torch.rot90(network(view).flip(flip), -turns, (-2, -1)))
        sr = torch.stack(views).mean(0)[0].permute(1, 2, 0).clamp(0, 1).numpy() * 255
        expected = share * sr + (1 - share) * hr
        # the script's network may compute in bfloat16
        assert np.abs(target - expected).max() <= 0.5 + 4 * share
        if share:
            assert np.abs(target.astype(int) - hr).max() > 10 * share
            single = views[0][0].permute(1, 2, 0).clamp(0, 1).numpy() * 255
            other = share * single + (1 - share) * hr
            assert np.abs(target - expected).mean() < np.abs(target - other).mean()


def test_a_stopped_run_goes_on_and_others_are_refused(monkeypatch, tmp_path, images, capsys):
    output = tmp_path / "distilled"
    given = ("srnet-tiny-x4", images, "--output", output)
    assert run(monkeypatch, *given) == 0
    written = {file: file.stat().st_mtime_ns for file in (output / "HR").iterdir()}
    assert sorted(file.name for file in written) == ["chelsea.png", "coffee.png"]
    lost = output / "HR" / "coffee.png"
    content = lost.read_bytes()
    lost.unlink()
    assert run(monkeypatch, *given) == 0
    assert lost.read_bytes() == content
    kept = output / "HR" / "chelsea.png"
    assert kept.stat().st_mtime_ns == written[kept]
    capsys.readouterr()
    assert run(monkeypatch, *given, "--share", "0.3") == 2
    assert "different settings (share); use a new folder" in capsys.readouterr().err
    assert run(monkeypatch, "srnet-tiny-x4", images, "--output", images) == 2
    assert "is not empty" in capsys.readouterr().err
    assert run(monkeypatch, *given, "--share", "1.5") == 2
    assert "--share is 1.5; use 0 to 1" in capsys.readouterr().err
    assert run(monkeypatch, *given, "--hr-scales", "2") == 2
    assert "hr_scales is [2.0]; use" in capsys.readouterr().err
    assert run(monkeypatch, "srnet-tiny-x4", images, "--output", kept) == 2
    assert "chelsea.png" in capsys.readouterr().err
    other = tmp_path / "other"
    images.rename(other)
    assert run(monkeypatch, "srnet-tiny-x4", other, "--output", output) == 2
    assert "different settings (images)" in capsys.readouterr().err


def test_no_image_is_lost_to_another_of_the_same_name(monkeypatch, tmp_path, photo, capsys):
    for folder, name in (("a", "b_c"), ("a_b", "c")):
        (tmp_path / folder).mkdir()
        pixels = np.ascontiguousarray(photo("coffee")[:96, :96])
        Image.fromarray(pixels).save(tmp_path / folder / f"{name}.png")
    roots = (tmp_path / "a", tmp_path / "a_b")
    assert run(monkeypatch, "srnet-tiny-x4", *roots, "--output", tmp_path / "distilled") == 2
    error = capsys.readouterr().err
    assert str(roots[0] / "b_c.png") in error
    assert str(roots[1] / "c.png") in error
    assert not (tmp_path / "distilled").exists()


def test_shrunk_copies_that_a_photo_model_can_train_on_too(monkeypatch, tmp_path, photo):
    images, output = tmp_path / "images", tmp_path / "distilled"
    images.mkdir()
    for name, height in (("a", 224), ("b", 220)):
        image = photo("chelsea")[:height, :400]
        Image.fromarray(np.ascontiguousarray(image)).save(images / f"{name}.png")
    sizes = ("--hr-scales", 1, 0.5)
    assert run(monkeypatch, "srnet-tiny-x2", images, "--output", output, *sizes) == 0
    pairs = find_pairs(output, 2)
    shapes = {pair.name: read_pair(pair, 2)[1].shape for pair in pairs}
    assert shapes == {"a": (224, 400, 3), "a@0.5": (112, 200, 3), "b": (220, 400, 3)}
    assert all(min(read_pair(pair, 2)[0].shape[:2]) >= 48 + MARGIN for pair in pairs)
