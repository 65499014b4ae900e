"""``srnet upscale`` as a user runs it: names, messages, exit codes, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from srnet.checkpoint import save_checkpoint, shipped_models
from srnet.cli import main
from srnet.config import NetworkConfig
from srnet.network import SRNet


def save_network(path, scale):
    torch.manual_seed(0)
    network = SRNet(
        NetworkConfig(
            scale=scale, embed_dim=12, num_blocks=1, convs_per_block=1, attention_blocks=()
        )
    )
    save_checkpoint(path, network, metrics={}, data="none", license="Apache-2.0", commit="0")
    return str(path)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """File names of tiny random checkpoints by scale."""
    folder = tmp_path_factory.mktemp("models")
    return {scale: save_network(folder / f"tiny-x{scale}.safetensors", scale) for scale in (2, 4)}


@pytest.fixture
def upscale(models, tmp_path, monkeypatch, capsys):
    """Runs ``srnet upscale`` in tmp_path; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words, model=2):
        chosen = [] if model is None else ["-n", models.get(model, model)]
        try:
            code = main(["upscale", *map(str, words), *chosen])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, out, err

    return run


@pytest.fixture
def picture(tmp_path, photo):
    """Writes a small photograph under a name in tmp_path."""

    def write(name, size=(20, 16), mode="RGB", **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(photo("coffee")[100 : 100 + size[1], 200 : 200 + size[0]]).convert(
            mode
        )
        image.save(path, **options)
        return path

    return write


def command(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "srnet", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_user_upscales_a_photograph(models, picture, tmp_path):
    picture("img.png")
    done = command("upscale", "img.png", "-n", models[4], cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout == "img_x4.png\n"
    for word in (
        "tiny-x4",
        "cpu" if not torch.cuda.is_available() else "cuda",
        "tile",
        "MP/s",
        "80 x 64",
    ):
        assert word in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["img.png", "img_x4.png"]
    with Image.open(tmp_path / "img_x4.png") as image:
        assert (image.size, image.mode) == ((80, 64), "RGB")


@pytest.mark.skipif(not shipped_models(), reason="no shipped checkpoint")
def test_the_shipped_model_is_used_by_default(picture, tmp_path):
    picture("img.png")
    done = command("upscale", "img.png", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "img_x4.png\n")
    assert "srnet-" in done.stderr


def damaged(folder):
    """Bad inputs by name."""
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(
        folder / "cut.jpg"
    )
    data = (folder / "cut.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(data[: len(data) // 2])
    (folder / "text.png").write_text("this is text\n" * 20)
    (folder / "empty.png").touch()
    return {
        "missing.png": "No such file",
        "text.png": "not an image",
        "empty.png": "empty",
        "cut.jpg": "cut short",
    }


@pytest.mark.parametrize("name", ["missing.png", "text.png", "empty.png", "cut.jpg"])
def test_a_bad_input_is_one_line_and_leaves_nothing(upscale, tmp_path, name):
    words = damaged(tmp_path)[name]
    before = sorted(os.listdir(tmp_path))
    code, out, err = upscale(name)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert name in err
    assert words in err
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["img.png", "-n", "no-such-model"], "no-such-model"),
        (["img.png", "-n", "{x2}", "-s", "4"], "x2"),
        (["img.png", "-t", "big", "-n", "{x2}"], "'big'"),
        (["img.png", "-t", "-3", "-n", "{x2}"], "tile is -3"),
        (["img.png", "--overlap", "-3", "-n", "{x2}"], "overlap is -3"),
        (["img.png", "--device", "cuda:77", "-n", "{x2}"], "cuda:77"),
        (["img.png", "--format", "xyz", "-n", "{x2}"], "'xyz'"),
        (["img.png", "--precision", "fp8", "-n", "{x2}"], "fp8"),
        (["img.png", "-o", "out.xyz", "-n", "{x2}"], "xyz"),
        ([], "INPUT"),
    ],
)
def test_a_wrong_option_is_one_line_with_exit_code_2(
    upscale, picture, tmp_path, models, words, said
):
    picture("img.png")
    code, out, err = upscale(*[word.format(x2=models[2]) for word in words], model=None)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err
    assert os.listdir(tmp_path) == ["img.png"]


@pytest.mark.parametrize("size", [(1, 1), (7, 5), (300, 3)])
def test_sizes(upscale, picture, tmp_path, size):
    picture("a.png", (1, 1)).unlink()
    Image.new("RGB", size, (90, 20, 30)).save(tmp_path / "a.png")
    assert upscale("a.png")[0] == 0
    with Image.open(tmp_path / "a_x2.png") as image:
        assert image.size == (size[0] * 2, size[1] * 2)


def test_grey_stays_grey_and_jpeg_stays_jpeg(upscale, picture, tmp_path):
    picture("a.jpg", mode="L")
    code, out, _ = upscale("a.jpg")
    assert (code, out) == (0, "a_x2.jpg\n")
    with Image.open(tmp_path / "a_x2.jpg") as image:
        assert (image.mode, image.format) == ("L", "JPEG")


def test_orientation_is_applied_once(upscale, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    image.paste((0, 0, 255), (20, 0, 40, 20))
    image.save(tmp_path / "a.jpg", exif=exif, subsampling=0)
    assert upscale("a.jpg")[0] == 0
    with Image.open(tmp_path / "a_x2.jpg") as result:
        assert result.size == (40, 80)
        assert result.getexif().get(0x0112, 1) == 1
        red, blue = result.getpixel((20, 10)), result.getpixel((20, 70))
    assert red[0] > 150 > red[2]
    assert blue[2] > 150 > blue[0]


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("photo.v1.2.PNG", "photo.v1.2_x2.PNG"),
        ("archive.tar.jpeg", "archive.tar_x2.jpeg"),
        ("フォト é – 1/ba by.png", "フォト é – 1/ba by_x2.png"),
        ("a[1].png", "a[1]_x2.png"),
    ],
)
def test_names(upscale, picture, tmp_path, name, result):
    picture(name)
    code, out, _ = upscale(name)
    assert (code, out) == (0, f"{result}\n")
    assert (tmp_path / result).is_file()


def test_a_name_that_starts_with_a_dash(models, picture, upscale, tmp_path):
    picture("-x.png")
    assert upscale("-n", models[2], "--", "-x.png", model=None)[:2] == (0, "-x_x2.png\n")


def test_a_lying_suffix_is_put_right(upscale, picture, tmp_path):
    picture("a.png", mode="RGBA").rename(tmp_path / "fake.jpg")
    code, out, _ = upscale("fake.jpg")
    assert (code, out) == (0, "fake_x2.png\n")
    with Image.open(tmp_path / "fake_x2.png") as image:
        assert (image.format, image.mode) == ("PNG", "RGBA")


def test_output_file_and_folder(upscale, picture, tmp_path):
    picture("a.png")
    assert upscale("a.png", "-o", "b.webp")[:2] == (0, "b.webp\n")
    with Image.open(tmp_path / "b.webp") as image:
        assert image.format == "WEBP"
    (tmp_path / "out").mkdir()
    assert upscale("a.png", "-o", "out")[:2] == (0, f"{Path('out') / 'a_x2.png'}\n")
    assert upscale("a.png", "-o", "out", "--format", "jpg")[:2] == (
        0,
        f"{Path('out') / 'a_x2.jpg'}\n",
    )


def test_an_existing_result_is_not_replaced_unless_asked(upscale, picture, tmp_path):
    picture("a.png")
    (tmp_path / "a_x2.png").write_bytes(b"mine")
    code, _, err = upscale("a.png")
    assert code == 2
    assert "--overwrite" in err
    assert upscale("a.png", "--skip-existing")[:2] == (0, "")
    assert (tmp_path / "a_x2.png").read_bytes() == b"mine"
    assert upscale("a.png", "--overwrite")[0] == 0
    with Image.open(tmp_path / "a_x2.png") as image:
        assert image.size == (40, 32)


def test_the_input_is_never_replaced(upscale, picture, tmp_path):
    path = picture("a.png")
    before = path.read_bytes()
    code, _, err = upscale("a.png", "-o", "a.png", "--overwrite")
    assert code == 2
    assert "own input" in err
    assert path.read_bytes() == before


def test_several_inputs_go_on_after_a_bad_one(upscale, picture, tmp_path):
    picture("a.png")
    picture("b.jpg")
    bad = sorted(damaged(tmp_path))
    code, out, err = upscale("a.png", *bad, "b.jpg")
    assert code == 1
    assert out.splitlines() == ["a_x2.png", "b_x2.jpg"]
    assert all(name in err for name in bad)
    assert "2 of 6 done" in err


def test_json_says_what_was_used(upscale, picture, tmp_path):
    picture("a.png")
    code, out, _ = upscale("a.png", "missing.png", "--json", "-t", "64", "--overlap", "8", "--fp32")
    assert code == 1
    good, bad = map(json.loads, out.splitlines())
    assert (good["output"], good["width"], good["height"], good["scale"]) == ("a_x2.png", 40, 32, 2)
    assert (good["tile"], good["overlap"], good["precision"]) == (64, 8, "fp32")
    assert bad["input"] == "missing.png"
    assert "No such file" in bad["error"]


def test_a_killed_run_leaves_no_file_under_the_final_name(models, picture, tmp_path):
    picture("a.png", (400, 400))
    code = (
        "import os, signal, sys\n"
        "from srnet import image_io\n"
        "from srnet.cli import main\n"
        "replace = os.replace\n"
        "image_io.os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
        "main(sys.argv[1:])\n"
    )
    words = ["upscale", "a.png", "-n", models[2]]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == -9
    (left,) = set(os.listdir(tmp_path)) - {"a.png"}
    assert left.startswith(".a_x2.png.")
    assert left.endswith(".srnet-part")
