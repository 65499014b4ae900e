from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from srnet.cli import main


@pytest.fixture
def pairs(tmp_path, photo):
    """The three pairs of a bug report: sizes 64/16, 64/17 and 20/5."""
    for name, hr, lr in (("good", 64, 16), ("ratio", 64, 17), ("small", 20, 5)):
        for side, size in (("HR", hr), ("LR_bicubic/X4", lr)):
            (tmp_path / side).mkdir(parents=True, exist_ok=True)
            Image.fromarray(photo("astronaut")[:size, :size]).save(tmp_path / side / f"{name}.png")
    return tmp_path


def check(*words):
    return main(["data", "check", *map(str, words)])


def test_lists_every_problem_and_exits_1(pairs, capsys):
    assert check(pairs, "--scale", 4, "--patch-size", 16) == 1
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:-1]] == ["ratio", "small"]
    assert "LR is 17x17, but HR 64x64 at scale 4 needs LR 16x16" in out[0]
    assert str(pairs / "LR_bicubic/X4/ratio.png") in out[0]
    assert "LR is 5x5, smaller than 16x16" in out[1]
    assert "2 of 3 images cannot be used at scale 4, LR from files" in out[-1]


def test_patch_of_32_leaves_nothing(pairs, capsys):
    assert check(pairs, "--scale", 4, "--patch-size", 32) == 1
    assert "3 of 3 images cannot be used" in capsys.readouterr().out


def test_good_folder_exits_0(pairs, capsys):
    assert check(pairs / "LR_bicubic/X4", "--scale", 2) == 0
    assert "3 images are good at scale 2, LR made from HR" in capsys.readouterr().out


def test_orphans_are_listed_beside_other_problems_unless_allowed(pairs, capsys):
    (pairs / "LR_bicubic/X4/good.png").rename(pairs / "LR_bicubic/X4/other.png")
    assert check(pairs, "--scale", 4) == 1
    out = capsys.readouterr().out
    assert "good.png" in out
    assert "other.png" in out
    assert "ratio" in out
    for name in ("LR_bicubic/X4/ratio.png", "HR/ratio.png"):
        (pairs / name).unlink()
    assert check(pairs, "--scale", 4) == 1
    assert check(pairs, "--scale", 4, "--allow-orphans") == 0


def test_damage_inside_a_file_needs_the_full_check(pairs, capsys):
    folder = pairs / "HR"
    (folder / "good.png").write_bytes((folder / "good.png").read_bytes()[:-3000])
    (pairs / "LR_bicubic").rename(pairs / "unused")
    assert check(folder, "--scale", 4, "--quick") == 0
    assert check(folder, "--scale", 4) == 1
    assert "good.png" in capsys.readouterr().out


def test_several_folders_are_all_checked(pairs, tmp_path_factory, capsys):
    empty = tmp_path_factory.mktemp("empty")
    assert check(empty, pairs / "LR_bicubic/X4", "--scale", 2) == 1
    out = capsys.readouterr().out
    assert f"no images in {empty}" in out
    assert "3 images are good" in out


def test_missing_folder_is_a_usage_error(tmp_path, capsys):
    assert check(tmp_path / "nowhere", "--scale", 4) == 2
    captured = capsys.readouterr()
    assert (
        captured.err
        == f"srnet: error: data folder {tmp_path / 'nowhere'} does not exist or is not a folder\n"
    )
    assert captured.out == ""


@pytest.mark.parametrize(
    "words", [(), ("--scale", "0"), ("--scale", "x"), ("--scale", "4", "--patch-size", "-1")]
)
def test_wrong_options_exit_2(pairs, words):
    with pytest.raises(SystemExit) as caught:
        check(pairs, *words)
    assert caught.value.code == 2


def test_preview_shows_lr_beside_hr(tmp_path, photo, capsys):
    (tmp_path / "images").mkdir()
    Image.fromarray(photo("coffee")).save(tmp_path / "images" / "a.png")
    smoke = Path(__file__).parents[1] / "configs" / "smoke.yaml"
    words = [str(smoke), f"data.train=[{tmp_path / 'images'}]", "data.validation={}"]
    words += [f"data.cache_dir={tmp_path / 'cache'}", "data.patch_size=20", "data.degradation={}"]
    target = tmp_path / "out" / "sheet.png"
    assert main(["data", "preview", *words, "--patches", "5", "-o", str(target)]) == 0
    assert capsys.readouterr().out.split() == [str(target)]
    with Image.open(target) as image:
        sheet = np.asarray(image)
    assert sheet.shape == (2 * 44 + 4, 4 * 88 + 4, 3)
    lr, hr = sheet[4:44:2, 4:44:2].astype(int), sheet[4:44, 44:84].astype(int)
    assert (sheet[4:44, 4:44] == np.repeat(np.repeat(lr, 2, 0), 2, 1)).all()  # squares
    shrunk = hr.reshape(20, 2, 20, 2, 3).mean((1, 3))
    assert 0 < np.abs(lr - shrunk).mean() < 25  # the same place, spoilt


def test_graphics_are_the_same_for_the_same_seed_and_good_to_train_with(tmp_path, capsys):
    draw = ["--side", "80"]
    for folder, words in (("few", ("--images", "2")), ("more", ("--images", "3"))):
        assert main(["data", "graphics", str(tmp_path / folder), *draw, *words]) == 0
    assert main(["data", "graphics", str(tmp_path / "other"), *draw, "--seed", "1"]) == 0
    assert f"{tmp_path / 'other'}: 40 pictures of 80x80" in capsys.readouterr().out
    names = [f"graphics_{i:03}.png" for i in range(3)]
    assert sorted(path.name for path in (tmp_path / "more").iterdir()) == names
    few, more, other = (tmp_path / folder for folder in ("few", "more", "other"))
    assert all((few / n).read_bytes() == (more / n).read_bytes() for n in names[:2])
    assert (more / names[0]).read_bytes() != (other / names[0]).read_bytes()
    assert check(more, "--scale", 4, "--patch-size", 20) == 0
    assert "3 images are good" in capsys.readouterr().out


def test_graphics_with_lr_are_pairs_of_the_same_pictures(tmp_path, capsys):
    draw = ["--images", "2", "--side", "80"]
    assert main(["data", "graphics", str(tmp_path / "plain"), *draw]) == 0
    pairs = tmp_path / "pairs"
    assert main(["data", "graphics", str(pairs), *draw, "--scale", "4", "3", "4"]) == 0
    assert f"{pairs}: 2 pictures of 80x80, LR x3, LR x4" in capsys.readouterr().out
    for i in range(2):
        name = f"graphics_{i:03}"
        hr = (pairs / "HR" / f"{name}.png").read_bytes()
        assert hr == (tmp_path / "plain" / f"{name}.png").read_bytes()
    for scale in (3, 4):
        assert check(pairs, "--scale", scale) == 0
        assert f"2 images are good at scale {scale}, LR from files" in capsys.readouterr().out
    assert check(pairs, "--scale", 2) == 0
    assert "LR made from HR" in capsys.readouterr().out
    pictures = [pairs / "HR" / "graphics_001.png", pairs / "LR" / "X4" / "graphics_001x4.png"]
    hr, lr = (np.asarray(Image.open(path)).astype(float) for path in pictures)
    means = hr.reshape(20, 4, 20, 4, 3).mean((1, 3))
    assert np.abs(lr - means).max() <= 0.5


@pytest.mark.parametrize(
    "words",
    [
        ("--seed", "-1"),
        ("--seed", str(2**32)),
        ("--images", "0"),
        ("--side", "x"),
        ("--scale", "0"),
    ],
)
def test_graphics_refuses_wrong_numbers(tmp_path, words):
    with pytest.raises(SystemExit) as caught:
        main(["data", "graphics", str(tmp_path), *words])
    assert caught.value.code == 2
    assert not list(tmp_path.iterdir())


def test_graphics_smaller_than_the_scale_are_refused_before_anything_is_written(tmp_path, capsys):
    folder = tmp_path / "graphics"
    assert main(["data", "graphics", str(folder), "--side", "3", "--scale", "2", "4"]) == 2
    error = capsys.readouterr().err
    assert "--side 3 is smaller than --scale 4" in error
    assert error.count("\n") == 1
    assert not folder.exists()


def test_graphics_in_the_place_of_a_file_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["data", "graphics", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
