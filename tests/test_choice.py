import dataclasses
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from srnet import checkpoint
from srnet.checkpoint import known_models
from srnet.choice import choose_model, jpeg_quality
from srnet.cli import main

REAL = checkpoint.checkpoint_folder()


@pytest.fixture
def pictures(tmp_path, photo):
    pixels = np.ascontiguousarray(photo("chelsea")[:10, :14])
    for quality in (60, 89, 90, 95):
        Image.fromarray(pixels).save(tmp_path / f"q{quality}.jpg", quality=quality)
    Image.fromarray(pixels).save(tmp_path / "clean.png")
    Image.fromarray(pixels).save(tmp_path / "soft.webp", quality=30)
    (tmp_path / "text.jpg").write_text("no picture")
    return tmp_path


@pytest.fixture
def photo_model(tmp_path, monkeypatch):
    """A folder of shipped checkpoints in which the x2 file is also a photo model."""
    folder = tmp_path / "shipped"
    shutil.copytree(REAL, folder)
    models = [m for m in known_models() if (m.scale, m.kind) != (2, "photo")]
    source = next(model for model in models if model.scale == 2)
    shutil.copy(folder / source.file, folder / "photo.safetensors")
    models.append(
        dataclasses.replace(source, name="srnet-photo-x2", file="photo.safetensors", kind="photo")
    )
    content = {"base_url": None, "models": [dataclasses.asdict(model) for model in models]}
    (folder / "registry.json").write_text(json.dumps(content))
    monkeypatch.setattr(checkpoint, "checkpoint_folder", lambda: folder)
    return source.name


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_quality_is_what_pillow_wrote(tmp_path, photo, mode):
    image = Image.fromarray(np.ascontiguousarray(photo("chelsea")[:8, :8])).convert(mode)
    path = tmp_path / "a.jpg"
    for quality in range(1, 101):
        image.save(path, quality=quality)
        assert abs(jpeg_quality(path) - quality) <= (2 if quality < 4 else 0)  # clipped to 255


def test_quality_of_what_is_no_jpeg(pictures):
    for name in ("clean.png", "soft.webp", "text.jpg", "absent.jpg"):
        assert jpeg_quality(pictures / name) is None


@pytest.mark.parametrize(
    ("names", "chosen", "words"),
    [
        (["q60.jpg"], "srnet-photo-x2", "q60.jpg is a JPEG of quality about 60"),
        (["q89.jpg"], "srnet-photo-x2", "quality about 89"),
        (["q90.jpg"], "classical", "quality about 90"),
        (["clean.png"], "classical", "clean.png is no JPEG"),
        (["text.jpg"], "classical", "text.jpg is no JPEG"),
        (["q60.jpg", "q89.jpg", "clean.png"], "srnet-photo-x2", "2 of 3 images"),
        (["q60.jpg", "q95.jpg"], "classical", "1 of 2 images"),
    ],
)
def test_the_rule_and_its_line(pictures, photo_model, names, chosen, words):
    choice = choose_model([pictures / name for name in names], 2)
    other = photo_model if chosen == "srnet-photo-x2" else "srnet-photo-x2"
    assert choice.model == (photo_model if chosen == "classical" else chosen)
    assert words in choice.reason
    assert choice.reason.startswith(choice.model)
    assert f"-n {other} takes the one for" in choice.reason


def test_without_a_photo_model_the_classical_one_says_so(pictures, photo_model):
    path = checkpoint.checkpoint_folder() / "registry.json"
    content = json.loads(path.read_text())
    content["models"] = [m for m in content["models"] if m["kind"] == "classical"]
    path.write_text(json.dumps(content))
    poor, clean = (choose_model([pictures / name], 2) for name in ("q60.jpg", "clean.png"))
    assert poor.model == clean.model == photo_model
    assert "although q60.jpg is a JPEG of quality about 60" in poor.reason
    assert "no model for compressed photographs that reaches x2 is here" in poor.reason
    assert "-n" not in clean.reason


@pytest.mark.parametrize(
    ("factor", "poor", "clean"),
    [
        (1.5, "srnet-photo-x2", "srnet-small-x2"),
        (2, "srnet-photo-x2", "srnet-small-x2"),
        (2.5, "srnet-photo-x4", "srnet-small-x3"),
        (3, "srnet-photo-x4", "srnet-small-x3"),
        (4, "srnet-photo-x4", "srnet-small-x4"),
        (7.5, "srnet-photo-x4", "srnet-small-x4"),
    ],
)
def test_the_smallest_scale_that_reaches_the_factor(pictures, photo_model, factor, poor, clean):
    assert choose_model([pictures / "q60.jpg"], factor).model == poor
    assert choose_model([pictures / "clean.png"], factor).model == clean


def test_upscale_prints_one_line_about_it(pictures, photo_model, capsys):
    assert main(["upscale", str(pictures / "q60.jpg"), "-s", "2"]) == 0
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if "since" in line]
    assert len(lines) == 1
    assert lines[0].startswith("srnet: srnet-photo-x2 (for compressed photographs), since q60.jpg")
    assert f"-n {photo_model}" in lines[0]
    assert main(["upscale", str(pictures / "q60.jpg"), "-n", photo_model, "--overwrite"]) == 0
    assert "since" not in capsys.readouterr().err
