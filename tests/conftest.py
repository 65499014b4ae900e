"""Fixtures for every test: photographs that come with packages, the shared image kit, a GPU check."""

import importlib.resources
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = {
    "astronaut": ("skimage.data", "astronaut.png"),
    "coffee": ("skimage.data", "coffee.png"),
    "chelsea": ("skimage.data", "chelsea.png"),
    "china": ("sklearn.datasets.images", "china.jpg"),
    "flower": ("sklearn.datasets.images", "flower.jpg"),
}
TINY_RUN = {
    "name": "run",
    "network": {
        "scale": 2,
        "embed_dim": 8,
        "num_blocks": 2,
        "convs_per_block": 1,
        "attention_blocks": [1],
        "num_heads": 1,
        "region_size": 16,
        "top_k": 8,
    },
    "data": {"train": ["train"], "patch_size": 8, "batch_size": 2},
    "optim": {"warmup_steps": 2, "ema_decay": 0.5},
    "trainer": {"max_steps": 3, "val_every_n_steps": 3, "save_every_n_steps": 2},
}


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The image kit beside the checkout (benchmarks, validation, train); skips where it is absent."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no image kit at {folder}")
    return folder


@pytest.fixture(scope="session")
def photo():
    """A function: name of a photograph -> read-only (H, W, 3) uint8 RGB array."""

    def load(name: str) -> np.ndarray:
        package, file = PHOTOS[name]
        # The files are opened directly: importing sklearn to reach two pictures takes seconds.
        with Image.open(str(importlib.resources.files(package) / file)) as image:
            pixels = np.asarray(image.convert("RGB"))
        pixels.flags.writeable = False
        return pixels

    return load


@pytest.fixture(scope="session")
def photo_tensor(photo):
    """A function: name of a photograph -> (1, 3, H, W) float32 tensor in [0, 1]."""

    def load(name: str) -> torch.Tensor:
        return torch.tensor(photo(name)).permute(2, 0, 1)[None].float() / 255  # (1, 3, H, W)

    return load


@pytest.fixture(scope="session")
def tiny_run():
    """A function: path of a YAML file, changes of its sections -> the path, with a run that takes a second."""

    def write(path: Path, **changes) -> Path:
        sections = {
            key: value | changes.pop(key, {}) if isinstance(value, dict) else value
            for key, value in TINY_RUN.items()
        }
        path.write_text(yaml.safe_dump(sections | changes))
        return path

    return write


@pytest.fixture(scope="session")
def photo_folders(photo):
    """A function: folder -> the same, with a photograph in ``train`` and a small one in ``validation``."""

    def make(folder: Path) -> Path:
        for split, pixels in (
            ("train", photo("coffee")),
            ("validation", photo("chelsea")[:60, :60]),
        ):
            (folder / split).mkdir()
            Image.fromarray(np.ascontiguousarray(pixels)).save(folder / split / "photo.png")
        return folder

    return make


class HTTPServer(ThreadingHTTPServer):
    """Serves ``files`` by name, else ``content``; ``cuts`` connections end early, ``said`` is the claimed length."""

    daemon_threads = False  # closing waits for them, so that no socket is left

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests = []
        self.behave()

    def behave(self):
        self.content, self.status, self.etag, self.kind = b"", 200, '"1"', "application/zip"
        self.files = {}
        self.cuts, self.cut_at, self.said, self.ranges = 0, 100_000, None, True

    @property
    def url(self):
        return f"{self.base}file.zip"

    @property
    def base(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        body = server.files.get(self.path.lstrip("/"), server.content)
        status, extra = server.status, {}
        fresh = self.headers.get("If-Range") in (None, server.etag)
        if wanted and server.ranges and fresh:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            extra["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            status, body = 206, body[start:]
        server.requests.append((wanted, status))
        self.send_response(status)
        if server.etag:
            self.send_header("ETag", server.etag)
        self.send_header("Content-Type", server.kind)
        if server.said != "":
            self.send_header("Content-Length", str(server.said or len(body)))
        for name, value in extra.items():
            self.send_header(name, value)
        self.end_headers()
        if server.cuts:
            server.cuts -= 1
            body = body[: server.cut_at]
        with suppress(OSError):  # the client may leave
            self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def http_server():
    """A server on this machine that misbehaves as it is told to."""
    server = HTTPServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
