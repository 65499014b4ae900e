import unicodedata
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from srnet.errors import DataError
from srnet.pairs import find_pairs, find_pairs_in_roots, format_problems, scan, summarise


@pytest.fixture
def put(tmp_path, photo):
    """A function: write a crop of a photograph (width x height pixels) to a path below tmp_path."""

    def write(name, width=32, height=32, seed=0):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = photo("astronaut")[seed * 7 : seed * 7 + height, :width]
        if path.suffix.lower() in (".png", ".jpg", ".bmp", ".tif", ".webp"):
            Image.fromarray(pixels).save(path)
        else:
            path.write_bytes(b"not an image")
        return path

    return write


def found(root, scale=4, **options):
    """Pairs as {name: (HR path, LR path)} relative to `root`'s parent, in their order."""
    base = root.parent

    def short(path):
        return None if path is None else path.relative_to(base).as_posix()

    return {
        pair.name: (short(pair.hr), short(pair.lr)) for pair in find_pairs(root, scale, **options)
    }


@pytest.mark.parametrize("inner", ["", "{hr}"])
@pytest.mark.parametrize(
    ("hr", "lr", "hr_name", "lr_name"),
    [
        ("DIV2K_train_HR", "DIV2K_train_LR_bicubic/X4", "{}.png", "{}x4.png"),
        ("HR", "LR_bicubic/X4", "{}.png", "{}.png"),
        ("HR", "LR_bicubic/X4", "{}.png", "{}x4.png"),
        ("HR", "LR/x4", "{}.png", "{}_x4.png"),
        ("HR", "LR_x4", "{}.png", "{}.png"),
        ("HR", "LRx4", "{}.png", "{}-X4.png"),
        ("HR", "LR", "{}.png", "{}_LR.png"),
        ("hr", "lr", "{}_HR.png", "{}_LR.jpg"),
        ("GTmod12", "LRbicx4", "{}.png", "{}.png"),
        ("HR", "LR_bicubic/X4", "{}_HR_x4.png", "{}_LRBI_x4.png"),
        ("image_SRF_4", "image_SRF_4", "img_{}_SRF_4_HR.png", "img_{}_SRF_4_LR.png"),
        ("HR", "HR", "{}_HR.png", "{}_LR.png"),
    ],
)
def test_layouts(put, tmp_path, inner, hr, lr, hr_name, lr_name):
    for stem in ("002", "001"):
        put(f"set/{hr}/{hr_name.format(stem)}", 32)
        put(f"set/{lr}/{lr_name.format(stem)}", 8, 8)
    root = tmp_path / "set" / inner.format(hr=hr)
    start = "img_" if "img_" in hr_name else ""
    pairs = find_pairs(root, 4)
    assert [(p.name, p.hr, p.lr) for p in pairs] == [
        (
            f"{start}{stem}",
            tmp_path / "set" / hr / hr_name.format(stem),
            tmp_path / "set" / lr / lr_name.format(stem),
        )
        for stem in ("001", "002")
    ]


def test_plain_folder_has_no_lr_and_ignores_what_is_no_visible_image(put, tmp_path):
    for name in ("b.png", "a.JPG", "c.v1.2.webp", "d.TIF"):
        put(f"set/{name}")
    for name in (".hidden.png", "._b.png", "notes.txt", "Thumbs.db", "below/e.png", "f.png/g.png"):
        put(f"set/{name}")
    assert found(tmp_path / "set") == {
        "a": ("set/a.JPG", None),
        "b": ("set/b.png", None),
        "c.v1.2": ("set/c.v1.2.webp", None),
        "d": ("set/d.TIF", None),
    }


def test_folder_named_like_hr_without_lr(put, tmp_path):
    put("set/HR/a.png")
    put("set/LR_bicubic/X2/a.png")
    assert found(tmp_path / "set") == {"a": ("set/HR/a.png", None)}
    assert found(tmp_path / "set", 2) == {"a": ("set/HR/a.png", "set/LR_bicubic/X2/a.png")}


def test_partners_by_name_where_the_sorted_orders_differ(put, tmp_path):
    stems = ["a", "a1", "a-1", "A2", "9", "10"]
    for stem in stems:
        put(f"HR/{stem}.png")
        put(f"LR/X4/{stem}x4.png")
    hr, lr = (sorted(p.name for p in (tmp_path / d).iterdir()) for d in ("HR", "LR/X4"))
    assert [n.removesuffix(".png") for n in hr] != [n.removesuffix("x4.png") for n in lr]
    pairs = find_pairs(tmp_path, 4)
    assert {(p.hr.stem, p.lr.stem) for p in pairs} == {(stem, f"{stem}x4") for stem in stems}


@pytest.mark.parametrize("suffix", ["", "x4"])
def test_name_that_ends_in_the_suffix_itself(put, tmp_path, suffix):
    for stem in ("a", "ax4", "ax4x4"):
        put(f"HR/{stem}.png")
        put(f"LR_bicubic/X4/{stem}{suffix}.png")
    assert {(p.hr.stem, p.lr.stem) for p in find_pairs(tmp_path, 4)} == {
        (stem, stem + suffix) for stem in ("a", "ax4", "ax4x4")
    }


def test_case_unicode_form_and_dots(put, tmp_path):
    composed, decomposed = (unicodedata.normalize(form, "Käse-日本 x") for form in ("NFC", "NFD"))
    assert composed != decomposed
    put(f"HR/{decomposed}.PNG")
    put(f"LR_bicubic/X4/{composed}X4.png")
    put("HR/photo.v1.final.png")
    put("LR_bicubic/X4/Photo.v1.finalx4.PNG")
    assert {(p.name, p.lr.stem) for p in find_pairs(tmp_path, 4)} == {
        (composed, f"{composed}X4"),
        ("photo.v1.final", "Photo.v1.finalx4"),
    }


def test_orphans_on_both_sides_are_named(put, tmp_path):
    for stem in ("a", "b", "c"):
        put(f"HR/{stem}.png")
    for stem in ("b", "d"):
        put(f"LR_bicubic/X4/{stem}x4.png")
    with pytest.raises(DataError) as caught:
        find_pairs(tmp_path, 4)
    text = str(caught.value)
    assert f"2 images without an LR partner in {tmp_path / 'HR'}: a.png, c.png" in text
    assert f"1 images without an HR partner in {tmp_path / 'LR_bicubic/X4'}: dx4.png" in text
    assert "\n" not in text
    assert [p.name for p in find_pairs(tmp_path, 4, allow_orphans=True)] == ["b"]


@pytest.mark.parametrize("side", ["HR", "LR/X4"])
def test_an_orphan_on_one_side_is_enough(put, tmp_path, side):
    for name in ("HR/a.png", "LR/X4/a.png", f"{side}/alone.png"):
        put(name)
    with pytest.raises(DataError, match=r"1 images without an .R partner in .*: alone\.png;"):
        find_pairs(tmp_path, 4)


def test_many_orphans_are_cut_short(put, tmp_path):
    put("HR/x.png")
    put("LR/X4/x.png")
    for i in range(8):
        put(f"HR/{i}.png")
    with pytest.raises(
        DataError, match=r"8 images .*: 0.png, 1.png, 2.png, 3.png, 4.png and 3 more;"
    ):
        find_pairs(tmp_path, 4)


def test_no_partner_at_all_is_an_error_even_when_orphans_are_allowed(put, tmp_path):
    put("HR/a.png")
    put("LR_bicubic/X4/b.png")
    with pytest.raises(DataError, match=r"no image of .* has a partner"):
        find_pairs(tmp_path, 4, allow_orphans=True)
    (tmp_path / "LR_bicubic/X4/b.png").unlink()
    with pytest.raises(DataError, match=r"no image of .* has a partner"):
        find_pairs(tmp_path, 4)


def test_side_by_side_folder(put, tmp_path):
    for name in (
        "i_SRF_2_HR",
        "i_SRF_2_LR",
        "i_SRF_4_HR",
        "i_SRF_4_LR",
        "j_SRF_4_HR",
        "j_SRF_4_LR",
    ):
        put(f"set/{name}.png")
    assert list(found(tmp_path / "set")) == ["i", "j"]
    assert found(tmp_path / "set", 2) == {"i": ("set/i_SRF_2_HR.png", "set/i_SRF_2_LR.png")}
    with pytest.raises(DataError, match=r"pairs of scale 2, 4 .*, not of scale 3"):
        find_pairs(tmp_path / "set", 3)
    put("set/i_SRF_4_bicubic.png")
    with pytest.raises(
        DataError, match=r"1 images that end in neither _HR nor _LR .*i_SRF_4_bicubic\.png"
    ):
        find_pairs(tmp_path / "set", 4)
    assert list(found(tmp_path / "set", allow_orphans=True)) == ["i", "j"]


def test_root_with_two_splits_names_both_and_each_can_be_given(put, tmp_path):
    for split, stem in (("train", "0001"), ("valid", "0801")):
        put(f"DIV2K_{split}_HR/{stem}.png")
        put(f"DIV2K_{split}_LR_bicubic/X4/{stem}x4.png")
    with pytest.raises(DataError, match="several data sets: DIV2K_train_HR, DIV2K_valid_HR; give"):
        find_pairs(tmp_path, 4)
    assert [p.lr.name for p in find_pairs(tmp_path / "DIV2K_valid_HR", 4)] == ["0801x4.png"]
    assert [p.lr.name for p in find_pairs(tmp_path / "DIV2K_train_HR", 4)] == ["0001x4.png"]


def test_root_with_images_of_its_own_and_an_hr_folder(put, tmp_path):
    put("a.png")
    put("HR/b.png")
    with pytest.raises(DataError, match="several data sets: 1 images of its own, HR;"):
        find_pairs(tmp_path, 4)


def test_several_lr_folders(put, tmp_path):
    for name in ("HR/a.png", "LR_bicubic/X4/a.png", "LRx4/a.png"):
        put(name)
    with pytest.raises(
        DataError, match=r"several folders hold LR .*LR_bicubic/X4, .*LRx4; keep one"
    ):
        find_pairs(tmp_path, 4)


def test_gtmod_is_taken_before_original(put, tmp_path):
    for name in ("GTmod12/a.png", "original/a.png", "LRbicx4/a.png", "LRbicx2/a.png"):
        put(name)
    assert [(p.hr.parent.name, p.lr.parent.name) for p in find_pairs(tmp_path, 4)] == [
        ("GTmod12", "LRbicx4")
    ]


@pytest.mark.parametrize("names", [("a.png", "a.jpg"), ("a.png", "A.png")])
@pytest.mark.parametrize("folder", ["HR", "LR_bicubic/X4"])
def test_two_files_of_one_name(put, tmp_path, names, folder):
    for name in ("HR/a.png", "LR_bicubic/X4/a.png", *(f"{folder}/{name}" for name in names)):
        put(name)
    with pytest.raises(DataError, match="give the same image name") as caught:
        find_pairs(tmp_path, 4)
    assert all(name in str(caught.value) for name in names)


def test_missing_and_empty_folders(put, tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        find_pairs(tmp_path / "nowhere", 4)
    with pytest.raises(DataError, match="does not exist or is not a folder"):
        find_pairs(put("a.txt"), 4)
    with pytest.raises(DataError, match=r"no images in .* \(looked for \.png"):
        find_pairs(tmp_path, 4)
    put("one/a.png")
    put("two/a.png")
    with pytest.raises(DataError, match="it holds the folders one, two, give one"):
        find_pairs(tmp_path, 4)
    (tmp_path / "HR").mkdir()
    with pytest.raises(DataError, match=f"no images in {tmp_path / 'HR'}"):
        find_pairs(tmp_path, 4)


def test_relative_root_and_linked_hr_folder(put, tmp_path, monkeypatch):
    put("elsewhere/a.png")
    put("set/LR_bicubic/X4/a.png")
    (tmp_path / "set/HR").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "set/HR")
    assert find_pairs(tmp_path / "set/HR", 4)[0].lr == tmp_path / "set/LR_bicubic/X4/a.png"
    monkeypatch.chdir(tmp_path / "set")
    assert find_pairs(Path("HR"), 4)[0].lr == tmp_path / "set/LR_bicubic/X4/a.png"
    assert find_pairs(Path(), 4)[0].name == "a"


def test_several_roots_give_unique_names(put, tmp_path):
    for name in ("one/HR/a.png", "two/HR/a.png", "three/a.png"):
        put(name)
    roots = [tmp_path / "one/HR", tmp_path / "two/HR", tmp_path / "three"]
    names = [p.name for p in find_pairs_in_roots(roots, 4)]
    assert names == ["one/HR/a", "two/HR/a", f"{tmp_path.name}/three/a"]
    assert [p.name for p in find_pairs_in_roots(roots[1:], 4)] == ["HR/a", "three/a"]
    assert [p.name for p in find_pairs_in_roots(roots[2:], 4)] == ["a"]
    with pytest.raises(DataError, match="three is given twice"):
        find_pairs_in_roots([*roots, tmp_path / "one/../three"], 4)
    with pytest.raises(DataError, match="no data folder"):
        find_pairs_in_roots([], 4)


def test_scan_lists_wrong_ratio_and_too_small(put, tmp_path):
    for name, hr, lr in (("bad", 64, 17), ("good", 64, 16), ("rest", 67, 16), ("small", 20, 5)):
        put(f"HR/{name}.png", hr, hr)
        put(f"LR_bicubic/X4/{name}x4.png", lr, lr)
    problems = scan(find_pairs(tmp_path, 4), 4, 16)
    assert [(p.name, p.path.name, p.text) for p in problems] == [
        ("bad", "badx4.png", "LR is 17x17, but HR 64x64 at scale 4 needs LR 16x16"),
        ("small", "smallx4.png", "LR is 5x5, smaller than 16x16"),
    ]
    assert {p.name for p in scan(find_pairs(tmp_path, 4), 4, 32)} == {
        "bad",
        "good",
        "rest",
        "small",
    }
    assert {p.name for p in scan(find_pairs(tmp_path, 4), 4, 5)} == {"bad"}


def test_scan_says_width_before_height_and_tells_made_lr(put, tmp_path):
    put("set/a.png", 40, 20)
    assert [p.text for p in scan(find_pairs(tmp_path / "set", 4), 4, 8)] == [
        "HR 40x20 gives LR 10x5, smaller than 8x8"
    ]
    put("turned/HR/a.png", 64, 32)
    put("turned/LR/X4/a.png", 8, 16)
    assert [p.text for p in scan(find_pairs(tmp_path / "turned", 4), 4, 1)] == [
        "LR is 8x16, but HR 64x32 at scale 4 needs LR 16x8"
    ]


def test_scan_reads_the_size_as_displayed(tmp_path, photo):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(photo("astronaut")[:32, :64]).save(tmp_path / "a.jpg", exif=exif)
    pairs = find_pairs(tmp_path, 4)
    assert [p.text for p in scan(pairs, 4, 10)] == ["HR 32x64 gives LR 8x16, smaller than 10x10"]


@pytest.mark.parametrize("verify", [False, True])
def test_scan_lists_unreadable_files(put, tmp_path, verify):
    put("good.png")
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    path = put("cut.png", 200, 200)
    path.write_bytes(path.read_bytes()[:-4000])
    problems = scan(find_pairs(tmp_path, 4), 4, 1, verify=verify)
    texts = {problem.name: problem.text for problem in problems}
    assert texts.keys() == {"text", "empty", "gone"} | ({"cut"} if verify else set())
    assert all("\n" not in text and str(tmp_path) not in text for text in texts.values())
    assert texts["gone"] == "No such file or directory; it is a broken link"


def test_summary_and_table(put, tmp_path):
    for i in range(5):
        put(f"{i}{'long' * i}.png", 8, 8)
    pairs = find_pairs(tmp_path, 4)
    problems = scan(pairs, 4, 3)
    text = summarise(problems)
    assert text.startswith(f"5 images cannot be used: {tmp_path / '0.png'}: HR 8x8 gives LR 2x2,")
    assert "and 2 more" in text
    assert "\n" not in text
    assert "more" not in summarise(problems[:3])
    lines = format_problems(problems).splitlines()
    assert len(lines) == 5
    assert len({line.index("HR 8x8") for line in lines}) == 1
    assert format_problems([]) == ""


def test_random_damage_never_escapes_as_another_error(put, tmp_path):
    rng = np.random.default_rng(0)
    for suffix in ("png", "jpg", "webp", "tif", "bmp"):
        whole = bytearray(put(f"whole.{suffix}", 48, 48).read_bytes())
        (tmp_path / f"whole.{suffix}").unlink()
        for i in range(12):
            damaged = whole.copy()
            for place in rng.integers(0, min(len(whole), 300), size=6):
                damaged[place] = rng.integers(256)
            (tmp_path / f"{suffix}{i}.{suffix}").write_bytes(damaged)
    pairs = find_pairs(tmp_path, 4)
    assert len(pairs) == 60
    assert scan(pairs, 4, 1, verify=True)
