"""``srnet download`` and the folder of downloaded checkpoints, against a real local server."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from srnet import checkpoint
from srnet.checkpoint import load_checkpoint
from srnet.cli import main

REAL = checkpoint.checkpoint_folder()
FILE = "srnet-far-x2.safetensors"


class Handler(BaseHTTPRequestHandler):
    """Serves the files of a dictionary with Range; `cut` ends each answer after so many bytes."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        content = self.server.files.get(self.path)
        if content is None:
            page = b"<!doctype html><title>404</title>"
            self.send_response(404 if self.server.honest else 200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)
            return
        start = int((self.headers.get("Range") or "bytes=0-")[6:].split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", '"1"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : start + self.server.cut])

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.asked, server.cut, server.honest = {}, [], 1 << 30, True
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def weights() -> bytes:
    return (REAL / "srnet-small-x2.safetensors").read_bytes()


@pytest.fixture
def home(tmp_path, monkeypatch, weights, server):
    """A registry with one model that is not shipped; the folder where it will lie."""
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    entry = {
        "name": "srnet-far-x2",
        "file": FILE,
        "bytes": len(weights),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "scale": 2,
        "shipped": False,
        "psnr_y": {"Set5": 37.16},
        "data": "photographs",
        "license": "CC0-1.0",
    }
    registry = {"base_url": f"{server.url}/models", "models": [entry]}
    (shipped / "registry.json").write_text(json.dumps(registry))
    monkeypatch.setattr(checkpoint, "checkpoint_folder", lambda: shipped)
    monkeypatch.setenv("SRNET_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SRNET_BASE_URL", raising=False)
    return tmp_path / "home" / "checkpoints"


def download(capsys, *words):
    code = main(["download", "srnet-far-x2", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out.strip(), err


def test_from_the_registry_s_address_then_usable_by_name(home, server, weights, capsys):
    server.files[f"/models/{FILE}"] = weights
    assert download(capsys)[:2] == (0, str(home / FILE))
    assert (home / FILE).read_bytes() == weights
    assert [path.name for path in home.iterdir()] == [FILE]
    loaded = load_checkpoint("srnet-far-x2")
    assert (loaded.path, loaded.network.scale) == (home / FILE, 2)
    asked = len(server.asked)
    code, out, err = download(capsys)
    assert (code, out) == (0, str(home / FILE))
    assert "is here already" in err
    assert len(server.asked) == asked  # the network is left alone


def test_a_name_that_was_not_downloaded_says_how_to_get_it(home, capsys):
    with pytest.raises(checkpoint.CheckpointError, match="run: srnet download srnet-far-x2"):
        load_checkpoint("srnet-far-x2")
    with pytest.raises(checkpoint.CheckpointError, match="run: srnet download srnet-far-x2"):
        checkpoint.default_model(2)
    assert main(["models"]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    for part in ("srnet-far-x2", "to download", "CC0-1.0", "Set5 37.16", "1.7 MB", "photographs"):
        assert part in row


def test_a_cut_connection_is_resumed(home, server, weights, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    server.files[f"/models/{FILE}"] = weights
    server.cut = len(weights) // 3
    assert download(capsys)[0] == 0
    assert (home / FILE).read_bytes() == weights
    assert any(wanted for _, wanted in server.asked)


@pytest.mark.parametrize("damage", ["cut short", "web page", "other bytes"])
def test_a_damaged_file_is_named_and_fetched_again(home, server, weights, capsys, damage):
    server.files[f"/models/{FILE}"] = weights
    home.mkdir(parents=True)
    bad = {
        "cut short": weights[: len(weights) * 6 // 10],
        "web page": b"<!doctype html>404",
        "other bytes": weights[:-1] + b"x",
    }[damage]
    (home / FILE).write_bytes(bad)
    with pytest.raises(checkpoint.CheckpointError, match="run: srnet download srnet-far-x2"):
        load_checkpoint("srnet-far-x2")
    code, _, err = download(capsys)
    assert code == 0
    assert f"{home / FILE}: damaged ({len(bad)} of {len(weights)} bytes" in err
    assert (home / FILE).read_bytes() == weights


def one_line_with_the_manual_way(code, out, err, weights):
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert f"({len(weights)} bytes, sha256 {hashlib.sha256(weights).hexdigest()})" in err
    assert "srnet download srnet-far-x2 --from FOLDER" in err


@pytest.mark.parametrize("honest", [True, False])
def test_missing_on_the_server(home, server, weights, capsys, honest):
    server.honest = honest
    code, out, err = download(capsys)
    one_line_with_the_manual_way(code, out, err, weights)
    assert ("404" if honest else "expected are") in err
    assert not (home / FILE).exists()


def test_wrong_content_of_the_right_length(home, server, weights, capsys):
    server.files[f"/models/{FILE}"] = weights[:-1] + b"x"
    code, out, err = download(capsys)
    one_line_with_the_manual_way(code, out, err, weights)
    assert "sha256" in err
    assert list(home.iterdir()) == []


def test_offline(home, server, weights, capsys, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    code, out, err = download(capsys, "--from", "http://127.0.0.1:9/models")
    one_line_with_the_manual_way(code, out, err, weights)
    assert "no connection" in err


def test_no_address_at_all(home, weights, capsys):
    path = checkpoint.checkpoint_folder() / "registry.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_url": None}))
    code, out, err = download(capsys)
    one_line_with_the_manual_way(code, out, err, weights)
    assert "SRNET_BASE_URL" in err


def test_one_setting_moves_every_address(home, server, weights, capsys, monkeypatch):
    server.files[f"/mirror/{FILE}"] = weights
    monkeypatch.setenv("SRNET_BASE_URL", f"{server.url}/mirror/")
    assert download(capsys)[0] == 0
    assert server.asked[0][0] == f"/mirror/{FILE}"


def test_from_a_whole_address_and_from_the_hub(home, server, weights, capsys, monkeypatch):
    server.files["/elsewhere/any.safetensors"] = weights
    assert download(capsys, "--from", f"{server.url}/elsewhere/any.safetensors")[0] == 0
    (home / FILE).unlink()
    server.files[f"/someone/nets/resolve/v2/{FILE}"] = weights
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert download(capsys, "--from", "hf://someone/nets@v2")[0] == 0
    assert (home / FILE).read_bytes() == weights
    (home / FILE).unlink()
    code, _, err = download(capsys, "--from", "hf://someone")
    assert code == 2
    assert "hf://OWNER/REPO" in err


def test_from_a_folder(home, server, weights, capsys, tmp_path):
    folder = tmp_path / "stick"
    folder.mkdir()
    code, out, err = download(capsys, "--from", folder)
    one_line_with_the_manual_way(code, out, err, weights)
    (folder / FILE).write_bytes(weights[:-5])
    code, _, err = download(capsys, "--from", folder)
    assert code == 2
    assert f"not srnet-far-x2: {len(weights) - 5} bytes" in err
    assert list(home.iterdir()) == []
    (folder / FILE).write_bytes(weights)
    assert download(capsys, "--from", folder)[0] == 0
    assert (home / FILE).read_bytes() == weights
    assert server.asked == []


def test_unknown_name(home, capsys):
    assert main(["download", "srnet-fare-x2"]) == 2
    assert "did you mean srnet-far-x2?" in capsys.readouterr().err


def test_a_home_that_cannot_be_written_still_upscales(tmp_path, photo):
    """A file stands where the home should be: unlike permissions, that stops root, too."""
    (tmp_path / "home").write_text("")
    Image.fromarray(np.ascontiguousarray(photo("chelsea")[:9, :12])).save(tmp_path / "a.png")
    environment = os.environ | {"SRNET_HOME": str(tmp_path / "home")}

    def srnet(*words):
        return subprocess.run(
            [sys.executable, "-m", "srnet", *words],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    done = srnet("upscale", "a.png", "-s", "2")
    assert done.returncode == 0, done.stderr
    with Image.open(tmp_path / "a_x2.png") as image:
        assert image.size == (24, 18)
    damaged = tmp_path / "package"
    shutil.copytree(REAL, damaged)
    (damaged / "srnet-small-x2.safetensors").write_bytes(b"x")
    code = (
        "import sys, pathlib\n"
        "from srnet import checkpoint, cli\n"
        f"checkpoint.checkpoint_folder = lambda: pathlib.Path({str(damaged)!r})\n"
        f"sys.exit(cli.main(['download', 'srnet-small-x2', '--from', {str(REAL)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "SRNET_HOME" in done.stderr


def test_the_folder_is_the_platform_s_unless_srnet_home_says_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("SRNET_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert checkpoint.download_folder() == tmp_path / "srnet" / "checkpoints"
    monkeypatch.setenv("SRNET_HOME", "~/models")
    assert checkpoint.download_folder() == Path.home() / "models" / "checkpoints"
