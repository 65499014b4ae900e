"""``srnet upscale`` as a user runs it: names, messages, exit codes, and nothing left behind."""

import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from srnet import files
from srnet.checkpoint import save_checkpoint, shipped_models
from srnet.cli import main
from srnet.config import NetworkConfig
from srnet.images import encode
from srnet.inference import Upscaler
from srnet.network import SRNet


def save_network(path, scale, seed=0):
    torch.manual_seed(seed)
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
        (["img.png", "-n", "{x2}", "-s", "4"], "upscales x2, but x4 is wanted"),
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


@pytest.mark.parametrize("name", ["-photo.png", "-x.png"])
def test_a_name_that_is_taken_for_an_option_says_the_way_out(upscale, name):
    code, _, err = upscale(name)
    assert (code, err.count("\n")) == (2, 1)
    assert "put names that start with a dash after --" in err


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
    assert (tmp_path / "a_x2.png").read_bytes() == b"mine"
    assert upscale("a.png", "--overwrite")[0] == 0
    with Image.open(tmp_path / "a_x2.png") as image:
        assert image.size == (40, 32)


def test_skip_existing_knows_finished_from_broken_and_changed(upscale, picture, tmp_path):
    source = picture("a.png")
    result = tmp_path / "a_x2.png"
    assert upscale("a.png")[1] == "a_x2.png\n"
    finished = result.read_bytes()
    os.utime(source, (2e9, 2e9))  # touched, not changed
    code, out, err = upscale("a.png", "--skip-existing")
    assert (code, out) == (0, "")
    assert "skipped, a_x2.png is finished\n" in err
    for part in (20, len(finished) // 2):
        result.write_bytes(finished[:part])
        assert upscale("a.png", "--skip-existing")[1] == "a_x2.png\n"
        assert result.read_bytes() == finished
    changed = np.array(Image.open(source))
    changed[3, 3] ^= 1
    Image.fromarray(changed).save(source)
    os.utime(source, (1e9, 1e9))  # older than its result, as copies that keep their time are
    assert upscale("a.png", "--skip-existing")[1] == "a_x2.png\n"
    assert upscale("a.png", "--skip-existing")[1] == ""


@pytest.mark.parametrize("format", ["png", "jpg", "webp", "tiff", "avif", "gif", "bmp"])
def test_skip_existing_notices_changed_settings_in_every_format(upscale, picture, tmp_path, format):
    picture("a.png", mode="RGBA")
    to = ("-o", f"b.{format}", "--skip-existing")
    other = save_network(tmp_path / "other.safetensors", 2, seed=1)
    settings = [
        (),
        ("-n", other),
        ("--metadata", "strip"),
        ("--quality", "60"),
        ("--lossless",),
        ("--background", "102030"),
        ("--overlap", "3"),
        ("-x",),
        ("--precision", "bf16"),
        ("-s", "1.5"),
    ]
    for words in settings[: None if format == "png" else 4]:
        model = None if "-n" in words else 2
        assert upscale("a.png", *to, *words, model=model)[1] == f"b.{format}\n", words
        assert upscale("a.png", *to, *words, "-t", "8", model=model)[1] == "", words


def test_skip_existing_says_where_the_settings_are_unknown(upscale, picture, tmp_path):
    picture("a.png")
    upscale("a.png")
    with Image.open(tmp_path / "a_x2.png") as image:
        pixels = np.asarray(image)
    Image.fromarray(pixels).save(tmp_path / "a_x2.png")
    code, out, err = upscale("a.png", "--skip-existing")
    assert (code, out) == (0, "")
    assert "settings are unknown" in err
    Image.fromarray(pixels[:-1]).save(tmp_path / "a_x2.png")
    assert upscale("a.png", "--skip-existing")[1] == "a_x2.png\n"


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
    assert "2 done, 0 skipped, 4 failed" in err


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
        "from srnet.cli import main\n"
        "os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)\n"
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
    other = tmp_path / left.replace(f"-{left.split('-')[-3]}-", f"-{os.getpid()}-")
    other.write_bytes(b"of a run that is still going")
    assert command(*words, cwd=tmp_path).returncode == 0
    assert sorted(os.listdir(tmp_path)) == sorted([other.name, "a.png", "a_x2.png"])


def test_a_folder_is_done_with_its_tree_mirrored(upscale, picture, tmp_path):
    picture("in/a.png")
    picture("in/deep/er/b.jpg")
    (tmp_path / "in" / "notes.txt").write_text("no image")
    (tmp_path / "in" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code, out, err = upscale("in", "-o", "in/out", "-r")
    assert code == 1
    assert sorted(out.splitlines()) == ["in/out/a_x2.png", "in/out/deep/er/b_x2.jpg"]
    assert "broken.png" in err
    assert "2 done, 0 skipped, 1 failed, 1 ignored" in err
    # the output folder lies inside the input: its files are no input of the next run
    code, out, err = upscale("in", "-o", "in/out", "-r", "--skip-existing")
    assert (code, out) == (1, "")
    assert "0 done, 2 skipped, 1 failed" in err
    assert not (tmp_path / "in" / "out" / "out").exists()
    # without -r only the folder's own files
    assert upscale("in", "-o", "flat")[1] == "flat/a_x2.png\n"


def test_own_results_and_leftovers_are_not_taken_as_inputs(upscale, picture, tmp_path):
    picture("in/a.png")
    (tmp_path / "in" / ".a_x2.png.0011.srnet-part").write_bytes(
        (tmp_path / "in" / "a.png").read_bytes()
    )
    assert upscale("in")[1] == "in/a_x2.png\n"
    _, out, err = upscale("in", "--overwrite")
    assert out == "in/a_x2.png\n"
    assert "2 ignored" in err
    assert sorted(os.listdir(tmp_path / "in")) == [".a_x2.png.0011.srnet-part", "a.png", "a_x2.png"]


def test_patterns(upscale, picture):
    picture("a.png")
    picture("b.png")
    picture("c.jpg")
    assert upscale("*.png")[1] == "a_x2.png\nb_x2.png\n"
    code, _, err = upscale("*.webp")
    assert code == 2
    assert "nothing matches" in err


def test_clashing_names_are_settled_before_work_starts(upscale, picture, tmp_path):
    picture("in/a.png")
    picture("in/a.jpg")
    picture("in/b.jpg")
    code, out, _ = upscale("in", "--format", "png")
    assert code == 0
    assert sorted(out.splitlines()) == ["in/a_jpg_x2.png", "in/a_png_x2.png", "in/b_x2.png"]


def test_two_inputs_that_become_one_are_refused(upscale, picture, tmp_path):
    picture("p/a.png")
    picture("q/a.png")
    code, out, err = upscale("p/a.png", "q/a.png", "-o", "out")
    assert (code, out) == (2, "")
    assert "would both become" in err
    assert not (tmp_path / "out").exists()


def test_a_folder_and_single_files_give_the_same_bytes(upscale, picture, tmp_path):
    for name in ("a.png", "b.jpg"):
        picture(f"in/{name}")
    options = ("--format", "webp", "--quality", "70", "-t", "8", "--overlap", "8")
    assert upscale("in", "-o", "both", *options)[0] == 0
    for name in ("a", "b"):
        source = next((tmp_path / "in").glob(f"{name}.*"))
        assert upscale(source, "-o", "one", *options)[0] == 0
        assert (tmp_path / "one" / f"{name}_x2.webp").read_bytes() == (
            tmp_path / "both" / f"{name}_x2.webp"
        ).read_bytes()


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["-s", "2.5"], (83, 43)),
        (["-s", "1"], (33, 17)),
        (["-s", "8"], (264, 136)),
        (["--width", "100"], (100, 52)),
        (["--height", "50"], (97, 50)),
        (["--width", "100", "--height", "50"], (100, 50)),
        (["--max-side", "131"], (131, 67)),
        (["--megapixels", "0.01"], (139, 72)),
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "LA"])
def test_exact_sizes(upscale, picture, tmp_path, words, size, mode):
    picture("a.png", (33, 17), mode)
    code, _, err = upscale("a.png", "-o", "b.png", *words)
    assert code == 0, err
    with Image.open(tmp_path / "b.png") as image:
        assert (image.size, image.mode) == (size, mode)


@pytest.mark.parametrize("factor", [2, 3])
def test_a_model_of_a_larger_scale_is_shrunk(upscale, tmp_path, photo, factor):
    hr = Image.fromarray(photo("chelsea")[60:156, 100:196])
    lr = hr.resize((96 // factor, 96 // factor), Image.Resampling.BICUBIC)
    lr.save(tmp_path / "a.png")
    code, _, err = upscale("a.png", "-o", "b.png", "-s", factor, model="srnet-small-x4")
    assert code == 0, err

    def error(image):
        return np.square(np.asarray(image).astype(float) - np.asarray(hr)).mean()

    bicubic = lr.resize(hr.size, Image.Resampling.BICUBIC)
    assert error(Image.open(tmp_path / "b.png")) < 0.9 * error(bicubic)


def test_resampling_keeps_the_picture(upscale, picture, tmp_path, photo):
    picture("a.png", (64, 48))
    upscale("a.png", "-o", "b.png", "-s", "1.5")
    expected = Image.open(tmp_path / "a.png").resize((96, 72), Image.Resampling.BICUBIC)
    assert (
        np.abs(np.asarray(Image.open(tmp_path / "b.png")).astype(int) - np.asarray(expected)).mean()
        < 6
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-s", "9"], "--scale is 9"),
        (["-s", "2", "--width", "9"], "exclude each other"),
        (["--width", "-4"], "--width is -4"),
        (["--width", "3"], "1 to 8 times"),
        (["--quality", "101"], "--quality is 101"),
        (["--background", "red"], "no colour"),
    ],
)
def test_sizes_and_numbers_out_of_range(upscale, picture, tmp_path, words, said):
    picture("a.png")
    code, out, err = upscale("a.png", *words)
    assert (code, out) == (2, "")
    assert said in err
    assert os.listdir(tmp_path) == ["a.png"]


def test_a_format_that_is_too_small_is_refused_before_computing(upscale, tmp_path):
    Image.new("L", (8200, 2)).save(tmp_path / "a.png")
    code, _, err = upscale("a.png", "--format", "webp")
    assert code == 2
    assert "16400 x 4 is over the webp limit of 16383" in err


def test_alpha_to_jpeg_is_flattened_and_said(upscale, tmp_path):
    Image.new("RGBA", (8, 8), (0, 0, 0, 0)).save(tmp_path / "a.png")
    code, out, err = upscale("a.png", "--format", "jpg", "--background", "ff0000")
    assert (code, out) == (0, "a_x2.jpg\n")
    assert "no alpha" in err
    with Image.open(tmp_path / "a_x2.jpg") as image:
        red, green, _ = image.getpixel((8, 8))
    assert red > 245
    assert green < 10


def test_options_reach_the_file(upscale, picture, tmp_path):
    exif = Image.Exif()
    exif[0x013B] = "Ada"
    picture("a.jpg", dpi=(300, 300), exif=exif)
    upscale("a.jpg", "-o", "keep.jpg")
    upscale("a.jpg", "-o", "strip.jpg", "--metadata", "strip")
    upscale("a.jpg", "-o", "small.jpg", "--quality", "30")
    upscale("a.jpg", "-o", "exact.webp", "--lossless")
    with Image.open(tmp_path / "keep.jpg") as kept, Image.open(tmp_path / "strip.jpg") as stripped:
        assert kept.info["dpi"] == (300, 300)
        assert kept.getexif()[0x013B] == "Ada"
        assert 0x013B not in stripped.getexif()
    assert (tmp_path / "small.jpg").stat().st_size * 1.5 < (tmp_path / "strip.jpg").stat().st_size
    assert b"VP8L" in (tmp_path / "exact.webp").read_bytes()
    assert upscale("a.jpg", "--suffix", "_big")[1] == "a_big.jpg\n"


@pytest.mark.parametrize("format", ["gif", "webp", "png"])
def test_an_animation_says_that_one_frame_is_left(upscale, tmp_path, format):
    frames = [Image.new("RGB", (12, 9), colour) for colour in ("red", "green", "blue")]
    name = f"a.{format}"
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], duration=80)
    code, _, err = upscale(name)
    assert code == 0
    assert "first of 3 frames" in err


def test_the_guard_against_huge_inputs_is_an_option_and_spares_the_result(
    upscale, picture, tmp_path
):
    picture("a.png", (40, 40))
    code, _, err = upscale("a.png", "--max-pixels", "1599")
    assert code == 2
    assert "40 x 40" in err
    assert "--max-pixels" in err
    assert upscale("a.png", "--max-pixels", "1600")[0] == 0  # the result has 6400
    picture("in/b.png", (40, 40))
    code, _, err = upscale("in", "--max-pixels", "1599")
    assert code == 1
    assert "--max-pixels" in err


def test_nothing_is_computed_for_a_result_that_cannot_be_written(upscale, tmp_path, monkeypatch):
    Image.new("L", (8200, 2)).save(tmp_path / "a.png")
    monkeypatch.setattr("srnet.inference.Upscaler.bands", None)
    for words in (["-f", "webp"], ["-o", "a.png", "--overwrite"], ["--max-side", "99999"]):
        code, _, err = upscale("a.png", *words)
        assert (code, err.count("\n")) == (2, 1)


def test_jpeg_is_written_with_quality_95_and_full_colour_unless_asked(upscale, picture, tmp_path):
    picture("a.png")
    upscale("a.png", "-o", "a.jpg")
    upscale("a.png", "-o", "b.jpg", "--quality", "95")
    with Image.open(tmp_path / "a.jpg") as a, Image.open(tmp_path / "b.jpg") as b:
        assert a.quantization == b.quantization
        assert a.quantization[0][0] <= 2
        assert [layer[1:3] for layer in a.layer] == [(1, 1)] * 3


def test_text_of_png_survives(upscale, tmp_path):
    text = PngInfo()
    text.add_text("Title", "a view")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png", pnginfo=text)
    upscale("a.png")
    upscale("a.png", "-o", "b.png", "--metadata", "strip")
    with Image.open(tmp_path / "a_x2.png") as kept, Image.open(tmp_path / "b.png") as stripped:
        assert kept.text["Title"] == "a view"
        assert "Title" not in stripped.text


@pytest.mark.parametrize(
    "words",
    [
        ["-t", "8", "--overlap", "0"],
        ["--precision", "bf16"],
        ["-x"],
        ["--lossless", "-f", "webp"],
        ["--quality", "30", "-f", "avif"],
        ["--background", "00ff00", "-f", "jpg"],
        ["--metadata", "strip"],
        ["-s", "1.5"],
    ],
)
@pytest.mark.parametrize("folder", [False, True])
def test_every_option_changes_the_result_of_files_and_of_folders(
    upscale, tmp_path, photo, words, folder
):
    exif = Image.Exif()
    exif[0x013B] = "Ada"
    (tmp_path / "in").mkdir()
    image = Image.fromarray(photo("coffee")[100:124, 200:230])
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(tmp_path / "in" / "a.png", exif=exif)
    source = "in" if folder else "in/a.png"
    format = words[-2:] if "-f" in words else []
    exact = ["--precision", "fp32"]  # auto is bfloat16 where that is native
    assert upscale(source, "-o", "plain/", *exact, *format)[0] == 0
    assert upscale(source, "-o", "other/", *exact, *words)[0] == 0
    (plain,) = (tmp_path / "plain").iterdir()
    (other,) = (tmp_path / "other").iterdir()
    with Image.open(plain) as a, Image.open(other) as b:
        same = a.size == b.size and np.array_equal(np.asarray(a), np.asarray(b))
        assert not same or a.getexif().get(0x013B) != b.getexif().get(0x013B)


def test_a_small_overlap_is_warned_about(upscale, picture):
    picture("a.png")
    assert "overlap 3 is below 16" in upscale("a.png", "-t", "8", "--overlap", "3")[2]
    assert "below" not in upscale("a.png", "-t", "8", "--overwrite")[2]


def test_the_tile_that_is_used_is_told(upscale, picture, tmp_path):
    picture("a.png", (40, 24))
    for asked, used in (("64", 64), ("30", 30), ("1", 1), ("0", 0)):
        _, out, err = upscale("a.png", "-t", asked, "--json", "--overwrite")
        assert json.loads(out)["tile"] == used
        assert f"tile {used or 'whole image'}" in err


@pytest.mark.parametrize("kind", ["RGB", "L", "LA", "16", "float"])
@pytest.mark.parametrize("scale", [2, 1.5])
def test_a_large_result_is_streamed_and_equal(upscale, tmp_path, monkeypatch, photo, kind, scale):
    pixels = photo("coffee")[100:150, 200:260]
    if kind in ("RGB", "L", "LA"):
        Image.fromarray(pixels).convert(kind).save(tmp_path / "a.png")
    else:
        wide = {"16": pixels.astype(np.uint16) * 201, "float": pixels.astype(np.float32) / 100}
        encode.write(tmp_path / "a.png", wide[kind], "tiff")
    upscale("a.png", "-o", "memory.tif", "-t", "16", "-s", scale)
    seen = []

    class Small(files.Canvas):
        def __init__(self, folder, width, height):
            super().__init__(folder, width, height, max_bytes=1000)

        def image(self, sequential=True):
            seen.append(self.on_disk)
            return super().image(sequential)

    monkeypatch.setattr(files, "Canvas", Small)
    upscale("a.png", "-o", "disk.tif", "-t", "16", "-s", scale)
    assert seen == [True]
    assert (tmp_path / "disk.tif").read_bytes() == (tmp_path / "memory.tif").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a.png", "disk.tif", "memory.tif"]


def test_self_ensemble_is_a_mean_over_views(upscale, picture, tmp_path):
    picture("a.png")
    upscale("a.png", "-o", "one.png")
    upscale("a.png", "-o", "eight.png", "-x")
    one, eight = (
        np.asarray(Image.open(tmp_path / name)).astype(int) for name in ("one.png", "eight.png")
    )
    assert np.abs(one - eight).max() > 0
    assert np.abs(one - eight).mean() < 10


def test_compare_writes_a_picture_beside_the_result_and_says_the_number(upscale, picture, tmp_path):
    picture("in/a.png", (60, 50), "RGBA")
    code, out, err = upscale("in", "--compare", "--json")
    assert code == 0
    row = json.loads(out)
    assert row["compare"] == "in/a_x2_compare.png"
    assert 5 < row["psnr_shrunk_back"] < 60
    assert f"{row['psnr_shrunk_back']:.2f} dB PSNR" in err
    with Image.open(tmp_path / "in" / "a_x2_compare.png") as image:
        assert image.width == 644
    assert upscale("in", "--compare", "--skip-existing")[1] == ""  # no input of the next run
    (tmp_path / "in" / "a_x2_compare.png").unlink()
    assert upscale("in", "--compare", "--skip-existing")[1] == "in/a_x2.png\n"
    (tmp_path / "in" / "a_x2.png").unlink()
    code, _, err = upscale("in", "--compare")
    assert code == 1
    assert "a_x2_compare.png: exists already" in err


@pytest.mark.parametrize(("source", "target"), [("gif", "gif"), ("webp", "webp"), ("gif", "webp")])
@pytest.mark.parametrize("scale", [2, 1.5])
def test_every_frame_of_an_animation_is_upscaled_with_its_delay(
    upscale, tmp_path, source, target, scale
):
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    frames = [Image.new("RGB", (12, 9), colour) for colour in colours]
    delays = [80, 200, 40]
    name = f"a.{source}"
    frames[0].save(
        tmp_path / name, save_all=True, append_images=frames[1:], duration=delays, loop=3
    )
    exact = ["--lossless"] if target == "webp" else []
    words = ["-o", f"b.{target}", "-s", scale, *exact]
    code, _, err = upscale(name, *words, "--animated")
    assert code == 0
    assert "first of" not in err
    alone = []
    for index, frame in enumerate(frames):
        frame.save(tmp_path / f"{index}.png")
        upscale(f"{index}.png", "-o", f"{index}_b.png", "-s", scale)
        alone.append(np.asarray(Image.open(tmp_path / f"{index}_b.png").convert("RGB")).astype(int))
    with Image.open(tmp_path / f"b.{target}") as result:
        # GIF counts how often all is repeated, WebP how often it is shown
        assert (result.n_frames, result.info["loop"]) == (3, 4 if source != target else 3)
        assert result.size == (round(12 * scale), int(9 * scale + 0.5))
        for index in range(3):
            result.seek(index)
            pixels = np.asarray(result.convert("RGB")).astype(int)
            assert result.info["duration"] == delays[index]
            assert np.abs(pixels - alone[index]).mean() < 12
    assert upscale(name, *words, "--animated", "--skip-existing")[1] == ""
    assert upscale(name, *words, "--skip-existing")[1] == f"b.{target}\n"


def test_an_animation_to_a_format_without_frames_says_so(upscale, tmp_path):
    frames = [Image.new("RGB", (12, 9), colour) for colour in ("red", "green")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    code, _, err = upscale("a.gif", "-f", "png", "--animated")
    assert code == 0
    assert "first of 2 frames" in err


def profile_of(name):
    """An ICC profile that stores colours otherwise than sRGB: libvips' Display P3."""
    import pyvips

    image = pyvips.Image.black(1, 1, bands=3).copy(interpretation="srgb").icc_transform(name)
    return image.get("icc-profile-data")


@pytest.mark.parametrize("words", [("-f", "png", "--profile", "srgb"), ("-f", "bmp")])
def test_colours_become_srgb_on_request_and_where_no_profile_can_be_kept(upscale, tmp_path, words):
    p3 = profile_of("p3")
    image = Image.new("RGB", (16, 16), (200, 60, 40))
    image.save(tmp_path / "a.png", icc_profile=p3)
    same = ImageCms.profileToProfile(
        image, io.BytesIO(p3), ImageCms.createProfile("sRGB"), outputMode="RGB"
    )
    same.save(tmp_path / "srgb.png")
    upscale("srgb.png", "-o", "expected.png")
    upscale("a.png", "-o", "kept.png")
    assert upscale("a.png", "-o", f"b.{words[1]}", *words)[0] == 0
    results = {
        name: np.asarray(Image.open(tmp_path / name)).astype(int)
        for name in ("expected.png", "kept.png", f"b.{words[1]}")
    }
    difference = np.abs(results[f"b.{words[1]}"] - results["expected.png"])
    assert difference.max() <= 4
    assert np.abs(results["kept.png"] - results["expected.png"]).max() > 8
    with Image.open(tmp_path / "kept.png") as kept, Image.open(tmp_path / f"b.{words[1]}") as b:
        assert kept.info["icc_profile"] == p3
        assert b.info.get("icc_profile") != p3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["photo.jgp"], "photo.jgp: No such file or directory; did you mean photo.jpg?"),
        (["https://example.com/photo.jpg"], "download it first"),
        (["a.png", "photo.jpg", "-o", "both.png"], "both.png names one file"),
        (["tree", "-o", "res.png"], "res.png names one file"),
        (["tree"], "no images in it, 0 other files; --recursive looks"),
        (["void"], "void: no images in it, 0 other files"),
        (["a.png", "--suffix", "a/b"], "--suffix is 'a/b'"),
        (["photo.jpg", "--lossless"], "jpeg always loses; --lossless needs"),
        (["a.png", "--width", "80", "-s", "2"], "--scale and --width exclude each other"),
        (["shot.dng"], "raw file; develop it"),
        (["phone.heic"], "as HEIC"),
        (["clip.mp4"], "not an image"),
        (["a.png", "-n", "page.pth"], "web page"),
    ],
)
def test_likely_mistakes_are_one_line_that_helps(upscale, picture, tmp_path, words, said):
    picture("a.png")
    picture("photo.jpg")
    picture("tree/sub/x.png")
    picture("x.tif").rename(tmp_path / "shot.dng")
    (tmp_path / "void").mkdir()
    (tmp_path / "clip.mp4").write_bytes(b"\0\0\0\x18ftypmp42" + bytes(40))
    (tmp_path / "phone.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(50))
    (tmp_path / "page.pth").write_text("<!DOCTYPE html><html>404")
    code, out, err = upscale(*words, model=None if "-n" in words else 2)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert said in err


def test_a_quality_without_effect_is_told(upscale, picture):
    picture("a.png")
    assert "png has no quality to choose" in upscale("a.png", "--quality", "50")[2]
    assert "no quality" not in upscale("a.png", "--quality", "50", "-f", "webp")[2]


@pytest.mark.skipif(not shipped_models(), reason="no shipped checkpoint")
def test_a_failing_single_file_says_nothing_but_its_error(upscale, picture):
    picture("a.png")
    code, _, err = upscale("a.png", "--width", "3", model=None)
    assert (code, err.count("\n")) == (2, 1)


def test_an_encoder_that_needs_more_memory_than_is_free_is_refused_at_once(
    upscale, picture, monkeypatch
):
    picture("a.png", (40, 40))
    monkeypatch.setattr(files, "free_memory", lambda device: 40_000)
    code, _, err = upscale("a.png", "-f", "webp", "-t", "64")
    assert (code, err.count("\n")) == (2, 1)
    assert "webp is encoded in memory" in err
    assert upscale("a.png", "-t", "64")[0] == 0


def test_a_folder_is_decoded_computed_and_encoded_at_the_same_time(upscale, picture, monkeypatch):
    """The third image is decoded while the second is computed and the first encoded: each waits for the others."""
    for name in "abcd":
        picture(f"in/{name}.png")
    together = threading.Barrier(3, timeout=60)
    read, write, bands = files.decode.read, files.encode.write, Upscaler.bands
    computed = []

    def reads(path, *words, **options):
        if path.name == "c.png":
            together.wait()
        return read(path, *words, **options)

    def computes(*words):
        computed.append(words)
        if len(computed) == 2:
            together.wait()
        return bands(*words)

    def writes(path, *words):
        if path.name == "a_x2.png":
            together.wait()
        write(path, *words)

    monkeypatch.setattr(files.decode, "read", reads)
    monkeypatch.setattr(Upscaler, "bands", computes)
    monkeypatch.setattr(files.encode, "write", writes)
    code, out, err = upscale("in")
    assert (code, out.count("\n")) == (0, 4), err


@pytest.mark.parametrize("step", ["decode.read", "fit_format", "encode.write"])
def test_whatever_happens_to_one_file_the_others_are_done(
    upscale, picture, tmp_path, monkeypatch, step
):
    for name in ("a.png", "b.png", "c.png"):
        picture(name)
    module, _, function = step.rpartition(".")
    module = getattr(files, module) if module else files
    original, calls = getattr(module, function), []

    def fails_once(*words, **options):
        calls.append(words)
        if len(calls) == 2:
            raise AttributeError("something that nobody thought of")
        return original(*words, **options)

    monkeypatch.setattr(module, function, fails_once)
    code, out, err = upscale("a.png", "b.png", "c.png")
    assert (code, out) == (1, "a_x2.png\nc_x2.png\n")
    assert "error: b.png: unexpected AttributeError (something that nobody thought of)" in err
    assert sorted(os.listdir(tmp_path)) == ["a.png", "a_x2.png", "b.png", "c.png", "c_x2.png"]


def test_results_of_other_settings_are_not_taken_as_inputs(upscale, picture, tmp_path):
    picture("in/a.png")
    picture("in/a1.jpg")
    assert upscale("in", "--compare")[0] == 0
    for words in (["in"], ["in/*"], ["in", "-o", "out"]):
        code, out, err = upscale(*words, "-s", "1.5", "--overwrite")
        assert (code, sorted(Path(line).name for line in out.splitlines())) == (
            0,
            ["a1_x1.5.jpg", "a_x1.5.png"],
        )
        assert "2 done" in err
    assert upscale("in/a_x2.png", "-s", "1.5")[1] == "in/a_x2_x1.5.png\n"  # asked for by name
    code, out, _ = upscale("out", "-s", "2", "-o", "again")  # nothing but results
    assert (code, sorted(out.splitlines())) == (
        0,
        ["again/a1_x1.5_x2.jpg", "again/a_x1.5_x2.png"],
    )


def test_images_that_stand_in_the_output_folder_are_counted(upscale, picture):
    picture("in/a.png")
    picture("in/sub/b.png")
    code, out, err = upscale("in", "-r", "-o", "in/sub")
    assert (code, out) == (0, "in/sub/a_x2.png\n")
    assert "1 ignored (no images, own results or in the output folder)" in err


@pytest.mark.parametrize("words", [["a.png"], ["a.png", "b.png"], ["in"]])
def test_an_output_that_is_a_file_is_refused_at_once(upscale, picture, tmp_path, words):
    for name in ("a.png", "b.png", "in/c.png"):
        picture(name)
    (tmp_path / "taken").write_text("something else")
    code, out, err = upscale(*words, "-o", "taken")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "taken is no folder" in err
    assert (tmp_path / "taken").read_text() == "something else"


def test_a_line_end_in_a_name_does_not_split_messages(upscale, picture, tmp_path):
    picture("good\nname.png")
    (tmp_path / "bad\nname.png").write_text("no image")
    code, out, err = upscale("good\nname.png", "bad\nname.png", "--json")
    assert code == 1
    assert json.loads(out.splitlines()[0])["output"] == "good\nname_x2.png"
    assert len(out.splitlines()) == 2
    assert all(line.startswith("srnet: ") for line in err.splitlines())
    assert r"error: bad\nname.png: not an image" in err


def test_a_folder_that_cannot_be_written_is_known_before_computing(
    upscale, picture, tmp_path, monkeypatch
):
    def denied(path, *words, **options):
        raise PermissionError(13, "Permission denied", str(path))

    picture("a.png")
    monkeypatch.setattr(Path, "touch", denied)
    monkeypatch.setattr(Upscaler, "bands", None)
    code, out, err = upscale("a.png", "-o", "results")
    assert (code, out, err) == (
        2,
        "",
        "srnet: error: results: Permission denied; give another -o\n",
    )
    (tmp_path / "file").write_text("")
    assert "file: no folder can be made there" in upscale("a.png", "-o", "file/b.png")[2]


def test_a_name_too_long_says_the_way_out(upscale, picture):
    name = picture("x" * 250 + ".png").name
    code, _, err = upscale(name)
    assert (code, err.count("\n")) == (2, 1)
    assert "File name too long; give a shorter -o or --suffix" in err
    assert upscale(name, "-o", "short.png")[0] == 0


@pytest.mark.parametrize(
    ("bias", "complaint"),
    [(1e38, "gives values that are not finite"), (1e3, "fails on this picture: its values reach")],
)
def test_a_fault_of_the_network_names_the_file(upscale, picture, tmp_path, bias, complaint):
    torch.manual_seed(0)
    network = SRNet(NetworkConfig(scale=2, embed_dim=12, num_blocks=1, attention_blocks=()))
    for values in (network.tail.bias, network.upsampler.weight):
        torch.nn.init.constant_(values, bias)  # finite; of 1e38, the product is not
    path = tmp_path / "broken.safetensors"
    save_checkpoint(path, network, metrics={}, data="none", license="Apache-2.0", commit="0")
    picture("in/a.png")
    code, _, err = upscale("in", model=str(path))
    assert code == 1
    assert f"error: in/a.png: the network {complaint}" in err
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.png"]


@pytest.mark.skipif(os.name == "nt", reason="file descriptors are inherited differently on Windows")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed_cost_nothing(models, picture, tmp_path, closed):
    picture("a.png")
    words = f'"$0" -m srnet upscale a.png -n "$1" {closed}'
    done = subprocess.run(
        ["bash", "-c", words, sys.executable, models[2]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    with Image.open(tmp_path / "a_x2.png") as image:
        image.load()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line(models, picture, tmp_path):
    picture("a.png")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "srnet", "upscale", "a.png", "-n", models[2], "--json"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "srnet: error: the output: No space left on device"
    assert "Traceback" not in done.stderr


def float_tiff(path, low, high, extreme=None):
    pixels = np.linspace(low, high, 30 * 40, dtype=np.float32).reshape(30, 40, 1)
    if extreme is not None:
        pixels[0, 0] = extreme
    encode.write(path, pixels, "tiff")


def test_float_values_are_not_cut_silently(upscale, tmp_path):
    float_tiff(tmp_path / "hdr.tif", -0.25, 4)
    code, _, err = upscale("hdr.tif", "-f", "png")
    assert code == 0
    assert "float values from -0.25 to 4 are cut to 0 to 1" in err
    assert "cut to" not in upscale("hdr.tif")[2]
    float_tiff(tmp_path / "heights.tif", 500, 770)
    code, out, err = upscale("heights.tif", "-f", "jpg")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "heights.tif: float values from 500 to 770 are all outside 0 to 1, jpeg would be" in err
    assert upscale("heights.tif")[0] == 0


def test_values_for_missing_data_are_told_or_refused(upscale, tmp_path):
    float_tiff(tmp_path / "some.tif", 500, 600, extreme=-9999)
    float_tiff(tmp_path / "max.tif", 500, 600, extreme=-3.4e38)
    code, _, err = upscale("some.tif")
    assert code == 0
    assert "some.tif: float values reach from -9999 to 600, far beyond most of them" in err
    code, out, err = upscale("max.tif")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "max.tif: float values reach from -3.4e+38 to 600, too far for one picture" in err
