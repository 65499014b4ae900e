"""Downloads from a real server on this machine that misbehaves in the ways that servers do."""

import hashlib
import os
import socket

import pytest

from srnet.download import download
from srnet.errors import DownloadError

CONTENT = bytes(range(256)) * 2000  # 512 000 bytes
SHA256 = hashlib.sha256(CONTENT).hexdigest()
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server(http_server):
    http_server.content = CONTENT
    return http_server


def fetch(server, path, **words):
    return download(server.url, path, **{"pause": 0.01, "timeout": 10, **words})


def test_a_file_arrives_whole_and_alone(server, tmp_path):
    seen = []
    path = tmp_path / "new" / "file.zip"
    assert fetch(server, path, sha256=SHA256, progress=lambda *n: seen.append(n)) == path
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert os.listdir(path.parent) == ["file.zip"]


def test_a_file_that_is_there_needs_no_network(server, tmp_path):
    path = tmp_path / "file.zip"
    path.write_bytes(CONTENT)
    fetch(server, path, md5=MD5)
    fetch(server, path, size=len(CONTENT))
    assert server.requests == []
    path.write_bytes(b"old")
    fetch(server, path, md5=MD5)
    assert path.read_bytes() == CONTENT


def test_cuts_are_resumed_in_one_call(server, tmp_path):
    server.cuts = 5  # the second and fourth connection only ask for the version
    fetch(server, tmp_path / "file.zip", sha256=SHA256)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert [w for w, status in server.requests if status == 206] == [
        "bytes=100000-",
        "bytes=200000-",
        "bytes=300000-",
    ]


def test_cuts_without_ranges_start_anew(server, tmp_path):
    server.cuts, server.ranges = 2, False
    fetch(server, tmp_path / "file.zip", sha256=SHA256)
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_a_server_that_always_cuts_is_given_up_and_a_second_call_completes(server, tmp_path):
    server.cuts, server.ranges = 99, False
    with pytest.raises(DownloadError, match=r"after 100000 of 512000 bytes; 100000 bytes are kept"):
        fetch(server, tmp_path / "file.zip", sha256=SHA256)
    assert [p.suffix for p in tmp_path.iterdir()] == [".part"]
    server.cuts, server.ranges = 0, True
    server.requests.clear()
    fetch(server, tmp_path / "file.zip", sha256=SHA256)
    assert ("bytes=100000-", 206) in server.requests
    assert (tmp_path / "file.zip").read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["file.zip"]


def test_a_file_that_changed_meanwhile_is_not_glued_to_the_old_one(server, tmp_path):
    server.cuts, server.ranges = 99, False
    with pytest.raises(DownloadError):
        fetch(server, tmp_path / "file.zip", attempts=1)
    server.cuts, server.ranges, server.etag, server.content = 0, True, '"2"', CONTENT[::-1]
    fetch(server, tmp_path / "file.zip")
    assert (tmp_path / "file.zip").read_bytes() == CONTENT[::-1]
    assert os.listdir(tmp_path) == ["file.zip"]


@pytest.mark.parametrize(
    ("change", "words", "text"),
    [
        ({"said": 600_000}, {}, "announced 600000 bytes, then bytes .*/512000"),
        ({"said": 500_000}, {"sha256": SHA256}, "not the expected file: sha256"),
        ({"said": 500_000}, {"size": 512_000}, "has 500000 bytes, expected are 512000"),
        ({"said": "", "cuts": 1}, {"size": 512_000}, "100000 bytes instead of 512000"),
        ({}, {"sha256": "0" * 64}, "not the expected file: sha256 .* instead of 0000"),
        ({}, {"md5": "0" * 32}, "not the expected file: md5"),
        ({"content": b"\n<!DOCTYPE html><p>404 Not Found</p>"}, {}, "sent a web page"),
        ({"status": 404}, {}, "answers 404"),
        ({"status": 503}, {}, "answers 503"),
    ],
)
def test_one_line_nothing_half_written_and_the_second_call_completes(
    server, tmp_path, change, words, text
):
    for name, value in change.items():
        setattr(server, name, value)
    path = tmp_path / "file.zip"
    path.write_bytes(b"the file of last year")
    with pytest.raises(DownloadError, match=text) as caught:
        fetch(server, path, **words, attempts=2)
    assert len(str(caught.value).splitlines()) == 1
    assert server.url in str(caught.value)
    assert path.read_bytes() == b"the file of last year"
    server.behave()
    server.content = CONTENT
    fetch(server, path, sha256=SHA256)
    assert path.read_bytes() == CONTENT
    assert os.listdir(tmp_path) == ["file.zip"]


def test_no_server_and_no_answer_end_in_time(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(DownloadError, match="timed out"):
            download(url, tmp_path / "x", timeout=0.2, attempts=2, pause=0.01)
    with pytest.raises(DownloadError, match="no connection"):
        download(url, tmp_path / "x", timeout=0.2, attempts=2, pause=0.01)
    with pytest.raises(DownloadError, match="use http"):
        download("file:///etc/hostname", tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DownloadError, match="cannot be written"):
        fetch(server, tmp_path / "file" / "below.zip")


def test_two_processes_do_not_write_the_same_part(server, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    server.cuts = 99
    with pytest.raises(DownloadError):
        fetch(server, tmp_path / "file.zip", attempts=1)
    server.cuts = 0
    (part,) = tmp_path.glob(".*.part")
    with part.open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DownloadError, match="another process"):
            fetch(server, tmp_path / "file.zip")
    assert part.stat().st_size == 100_000
