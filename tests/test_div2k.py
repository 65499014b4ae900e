"""`srnet data div2k` against a real server on this machine, with a small data set under the real names."""

import dataclasses
import hashlib
import io
import stat
import zipfile

import pytest
from PIL import Image

from srnet import div2k
from srnet.cli import main

NAMES = ("DIV2K_train_HR", "DIV2K_valid_HR", "DIV2K_train_LR_bicubic", "DIV2K_valid_LR_bicubic")


def png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "png")
    return stream.getvalue()


def packed(folder, images, extra=()):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        parts = folder.split("/")
        for depth in range(len(parts)):
            file.writestr("/".join(parts[: depth + 1]) + "/", "")
        for name, content in images.items():
            file.writestr(f"{folder}/{name}", content)
        for name, content in extra:
            file.writestr(name, content)
    return stream.getvalue()


@pytest.fixture
def publisher(http_server, photo, monkeypatch):
    """Serves 3 + 2 images of 64 x 48 and their x4 LR; the table of hashes is that of these files."""
    table = {}

    def shrink(archive):
        last = archive.first + (2 if archive.first == 1 else 1)
        archive = dataclasses.replace(archive, last=last)
        step = 4 if "LR" in archive.folder else 1
        images = {
            name: png(photo("astronaut")[i : i + 48 : step, i : i + 64 : step].copy())
            for i, name in enumerate(archive.images)
        }
        content = packed(archive.folder, images)
        http_server.files[archive.file] = content
        table[archive.file] = images
        md5, sha256 = (hashlib.new(kind, content).hexdigest() for kind in ("md5", "sha256"))
        if archive.sha256 is None:
            return dataclasses.replace(archive, md5=md5)
        return dataclasses.replace(archive, md5=md5, sha256=sha256, size=len(content))

    monkeypatch.setattr(div2k, "HR", tuple(shrink(archive) for archive in div2k.HR))
    lr = {scale: tuple(shrink(archive) for archive in pair) for scale, pair in div2k.LR.items()}
    monkeypatch.setattr(div2k, "LR", lr)
    http_server.images = table
    return http_server


def command(publisher, root, *words):
    return main(["data", "div2k", "--root", str(root), "--from", publisher.base, *words])


def files(root):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def expected(scales=()):
    found = [f"DIV2K_train_HR/{i:04d}.png" for i in (1, 2, 3)]
    found += [f"DIV2K_valid_HR/{i:04d}.png" for i in (801, 802)]
    for scale in scales:
        found += [f"DIV2K_train_LR_bicubic/X{scale}/{i:04d}x{scale}.png" for i in (1, 2, 3)]
        found += [f"DIV2K_valid_LR_bicubic/X{scale}/{i:04d}x{scale}.png" for i in (801, 802)]
    return sorted(found)


def test_the_real_table_names_every_image():
    assert [len(archive.images) for archive in div2k.HR] == [800, 100]
    assert div2k.HR[0].images[::799] == ["0001.png", "0800.png"]
    assert div2k.LR[4][1].images[::99] == ["0801x4.png", "0900x4.png"]
    assert div2k.LR[4][1].folder == "DIV2K_valid_LR_bicubic/X4"
    assert div2k.LR[4][1].file == "DIV2K_valid_LR_bicubic_X4.zip"
    everything = [*div2k.HR, *(archive for pair in div2k.LR.values() for archive in pair)]
    assert all(len(archive.md5) == 32 for archive in everything)
    assert len({archive.md5 for archive in everything}) == 8


def test_images_arrive_and_a_second_run_fetches_nothing(publisher, tmp_path, capsys):
    assert command(publisher, tmp_path, "--scale", "4") == 0
    assert files(tmp_path) == expected([4])
    archive = div2k.HR[0]
    for name, content in publisher.images[archive.file].items():
        assert (tmp_path / archive.folder / name).read_bytes() == content
    captured = capsys.readouterr()
    assert "3 pairs, x4, LR from files" in captured.out
    assert "academic research only" in captured.err
    publisher.requests.clear()
    assert command(publisher, tmp_path) == 0
    assert publisher.requests == []
    assert "are there already" in capsys.readouterr().err


def test_from_a_folder_of_zip_files_which_keeps_them(publisher, tmp_path, capsys):
    source = tmp_path / "zips"
    source.mkdir()
    for name, content in publisher.files.items():
        (source / name).write_bytes(content)
    before = files(source)
    words = ["data", "div2k", "--root", str(tmp_path / "root"), "--from"]
    assert main([*words, str(source)]) == 0
    assert files(tmp_path / "root") == expected()
    assert files(source) == before
    assert "LR made from HR" in capsys.readouterr().out
    assert main([*words, str(tmp_path / "nowhere")]) == 2
    assert "neither an http(s) address nor a folder" in capsys.readouterr().err


FILE = "DIV2K_valid_HR.zip"


def spoil(publisher, change):
    if change == "cut":
        publisher.cuts, publisher.cut_at, publisher.ranges = 99, 1000, False
    elif change == "length":
        publisher.said = 10_000_000
    elif change == "page":
        publisher.files[FILE] = b"<!DOCTYPE html><title>404 Not Found</title>"
    elif change == "missing":
        publisher.status = 404
    elif change == "hash":
        publisher.files[FILE] = publisher.files[FILE][:-1] + b"x"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("cut", "1000 bytes are kept, run again to go on"),
        ("length", "bytes, expected are"),
        ("page", "bytes, expected are"),
        ("missing", "answers 404"),
        ("hash", "not the expected file: sha256"),
    ],
)
def test_bad_servers_are_one_line_and_the_second_run_completes(
    publisher, tmp_path, capsys, monkeypatch, change, text
):
    monkeypatch.setattr("srnet.download.time.sleep", lambda seconds: None)
    good = dict(publisher.files)
    spoil(publisher, change)
    assert command(publisher, tmp_path) == 2
    error = capsys.readouterr().err.splitlines()
    assert [line for line in error if "error" in line] == error[-1:]
    assert text in error[-1]
    assert not [name for name in files(tmp_path) if name.startswith("DIV2K_valid_HR/")]
    publisher.behave()
    publisher.files = good
    assert command(publisher, tmp_path) == 0
    assert files(tmp_path) == expected()


def link(name):
    member = zipfile.ZipInfo(name)
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ([("../evil.png", b"x")], "'../evil.png', which is no image of DIV2K_valid_HR"),
        ([("DIV2K_valid_HR/../../evil.png", b"x")], "no image of"),
        ([("/evil.png", b"x")], "no image of"),
        ([("DIV2K_valid_HR\\..\\evil.png", b"x")], "no image of"),
        ([("DIV2K_valid_HR/0999.png", b"x")], "no image of"),
        ([("../DIV2K_valid_HR/0801.png", b"x")], "no image of"),
    ],
)
def test_entries_outside_are_refused_before_anything_is_written(
    publisher, tmp_path, capsys, monkeypatch, extra, text
):
    good, archive = publisher.files[FILE], div2k.HR[1]
    evil = packed(archive.folder, publisher.images[FILE], extra)
    replace(monkeypatch, publisher, evil)
    root = tmp_path / "below" / "root"
    assert command(publisher, root) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert text in error
    assert "nothing was unpacked" in error
    assert not list(tmp_path.rglob("evil*"))
    assert not (root / archive.folder).exists()
    replace(monkeypatch, publisher, good)
    assert command(publisher, root) == 0
    assert files(root) == expected()


def replace(monkeypatch, publisher, content):
    """Serves another validation archive, and expects it."""
    publisher.files[FILE] = content
    hashes = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content)}
    changed = dataclasses.replace(div2k.HR[1], **hashes)
    monkeypatch.setattr(div2k, "HR", (div2k.HR[0], changed))


@pytest.mark.parametrize("change", ["lacks", "link", "damaged", "bad stream", "not a zip"])
def test_archives_that_are_not_what_they_should_be(
    publisher, tmp_path, capsys, monkeypatch, change
):
    images = dict(publisher.images[FILE])
    folder = div2k.HR[1].folder
    if change == "lacks":
        del images["0802.png"]
        content, text = packed(folder, images), "lacks 1 of 2 images: 0802.png"
    elif change == "link":
        del images["0802.png"]
        content = packed(folder, images, [(link(f"{folder}/0802.png"), "/etc/passwd")])
        text = "which is no image of"
    elif change == "damaged":
        content = packed(folder, images)
        middle = content.index(images["0801.png"]) + 500
        content = content[:middle] + b"\0\1\2\3" + content[middle + 4 :]
        text = "damaged zip file"
    elif change == "bad stream":
        memory = io.BytesIO()
        with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as file:
            for name in images:
                file.writestr(f"{folder}/{name}", b"pixels" * 1000)
        start = memory.getvalue().index(b"0801.png") + len("0801.png")
        # a block of a type that does not exist
        content = memory.getvalue()[:start] + b"\x07" + memory.getvalue()[start + 1 :]
        text = "damaged zip file"
    else:
        content, text = b"no zip at all", "damaged zip file"
    replace(monkeypatch, publisher, content)
    assert command(publisher, tmp_path) == 2
    assert text in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / folder).exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".partial")]


def test_a_folder_that_lacks_images_is_not_overwritten(publisher, tmp_path, capsys):
    assert command(publisher, tmp_path) == 0
    (tmp_path / "DIV2K_valid_HR" / "0802.png").unlink()
    capsys.readouterr()
    assert command(publisher, tmp_path) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "lacks 1 of 2 images: 0802.png; move the folder away" in error
