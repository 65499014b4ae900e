"""Fetches one file over HTTP: resumed after a cut, checked, and only then given its name. Standard library only.

Bytes collect beside the target under a hidden name ending in ``.part`` that is derived from the address and from what
the server says about the file (ETag, date, length). A later call goes on where the last one stopped as long as the
server still has the same file.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from srnet import __version__
from srnet.errors import DownloadError

Progress = Callable[[int, "int | None"], None]
"""Receives bytes there and their total, which is None where the server does not say it."""

_BLOCK = 1 << 20
_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})


class _CutError(Exception):
    """The connection failed in a way that may pass; the message says how."""


def download(
    url: str,
    path: str | Path,
    *,
    size: int | None = None,
    sha256: str | None = None,
    md5: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 4,
    pause: float = 1.0,
) -> Path:
    """Downloads a file, going on after a cut connection, in this call and in later ones.

    A file that is already there with the given hash (or, without a hash, the given size) is left alone and the network
    is not used. Otherwise ``path`` is replaced, once all bytes are there and checked.

    Args:
        url: ``http://`` or ``https://``.
        path: Target; its folder is made.
        size: Expected bytes.
        sha256: Expected hash, 64 hexadecimal digits.
        md5: Expected hash, 32 hexadecimal digits, for publishers who give no other.
        progress: Receives bytes there and their total (None: unknown).
        timeout: Seconds without an answer after which a connection counts as cut.
        attempts: Connections in a row that may bring nothing new.
        pause: Seconds before the second attempt; doubles from one to the next.

    Returns:
        The path.

    Raises:
        DownloadError: The address is wrong, the server refuses, answers with a web page or another file, the
            connection stays cut, or the file cannot be written. ``path`` is then what it was before; after a cut the
            bytes so far are kept for the next call.
    """
    path = Path(path)
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(
            f"{url}: not an address that can be downloaded; use http:// or https://"
        )
    if path.is_file() and (size or sha256 or md5) and _mismatch(path, size, sha256, md5) is None:
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _collect(url, path, size, progress, timeout, attempts, pause, bool(sha256 or md5))
        wrong = _mismatch(part, size, sha256, md5)
        if wrong is not None:
            part.unlink()
            raise DownloadError(f"{url}: not the expected file: {wrong}; nothing was kept")
        os.replace(part, path)
    except OSError as error:
        raise DownloadError(f"{path}: cannot be written: {error.strerror or error}") from error
    for stale in _parts(path):
        stale.unlink(missing_ok=True)
    return path


def _parts(path: Path) -> list[Path]:
    """Partial files of a target, of whatever source."""
    return [p for p in path.parent.glob(".*.part") if p.name.rsplit(".", 2)[0] == f".{path.name}"]


def _collect(
    url: str,
    path: Path,
    size: int | None,
    progress: Progress | None,
    timeout: float,
    attempts: int,
    pause: float,
    hashed: bool,
) -> Path:
    """Connects until all bytes are in the partial file; returns it."""
    failures, most = 0, 0
    while True:
        try:
            return _attempt(url, path, size, progress, timeout, hashed)
        except _CutError as cut:
            there = max((p.stat().st_size for p in _parts(path)), default=0)
            failures = failures + 1 if there <= most else 1
            most = max(most, there)
            if failures >= attempts:
                kept = f"; {there} bytes are kept, run again to go on" if there else ""
                raise DownloadError(f"{url}: {cut}{kept or '; try again later'}") from None
            time.sleep(pause * 2 ** (failures - 1))


@contextmanager
def _connect(
    url: str, timeout: float, headers: dict[str, str]
) -> Iterator[http.client.HTTPResponse]:
    """The server's answer; what may pass becomes a _CutError, what will not a DownloadError."""
    request = urllib.request.Request(
        url,
        headers={"User-Agent": f"srnet/{__version__}", "Accept-Encoding": "identity", **headers},
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            yield response
    except urllib.error.HTTPError as error:
        error.close()
        text = f"the server answers {error.code} {error.reason}"
        if error.code in _RETRY:
            raise _CutError(text) from None
        raise DownloadError(f"{url}: {text}; is the address right?") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise DownloadError(
                f"{url}: the server's certificate is not trusted ({error.reason.verify_message})"
            ) from None
        raise _CutError(f"no connection ({error.reason})") from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _CutError(f"the connection broke ({error or type(error).__name__})") from None


def _attempt(
    url: str, path: Path, size: int | None, progress: Progress | None, timeout: float, hashed: bool
) -> Path:
    """One connection, two where bytes are there already; returns the complete partial file.

    Raises:
        _CutError: The connection ended early.
        DownloadError: This server will not give the file.
    """
    with _connect(url, timeout, {}) as response:
        total = _length(response)
        if size is not None and total not in (None, size):
            raise DownloadError(f"{url}: the server has {total} bytes, expected are {size}")
        validator = response.headers.get("ETag") or response.headers.get("Last-Modified") or ""
        number = hashlib.sha256(f"{url}\n{validator}\n{total}".encode()).hexdigest()[:16]
        part = path.with_name(f".{path.name}.{number}.part")
        for stale in _parts(path):
            if stale != part:
                stale.unlink(missing_ok=True)
        # without a hash and a mark of the version, the bytes might belong to another file of this address
        there = part.stat().st_size if part.exists() and (validator or hashed) else 0
        if total is not None and there == total:
            return part
        if not 0 < there < (total or 0):
            return _receive(url, response, part, 0, total, progress)
    headers = {"Range": f"bytes={there}-"}
    if validator and not validator.startswith("W/"):
        headers["If-Range"] = validator
    with _connect(url, timeout, headers) as response:
        expected = f"bytes {there}-{(total or 0) - 1}/{total}"
        ranged = response.status == 206 and response.headers.get("Content-Range") == expected
        if response.status == 206 and not ranged:
            part.unlink()
            said = response.headers.get("Content-Range")
            raise _CutError(f"the server announced {total} bytes, then {said}")
        return _receive(url, response, part, there if ranged else 0, total, progress)


def _length(response: http.client.HTTPResponse) -> int | None:
    text = response.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


def _receive(
    url: str,
    response: http.client.HTTPResponse,
    part: Path,
    there: int,
    total: int | None,
    progress: Progress | None,
) -> Path:
    """Writes the answer's body behind the first ``there`` bytes of the partial file."""
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - there > free:
        raise DownloadError(
            f"{part.parent}: needs {total - there} bytes for {url}, {free} are free; free space"
        )
    with part.open("r+b" if there else "wb") as file:
        _lock(file, part)
        file.seek(there)
        file.truncate()
        while True:
            try:
                block = response.read(_BLOCK)
            except (http.client.HTTPException, OSError) as error:
                raise _CutError(
                    f"the connection broke after {there} of {total or '?'} bytes ({error})"
                ) from None
            if not block:
                break
            if there == 0 and _is_page(block) and part.suffixes[-3:-2] not in ([".html"], [".htm"]):
                file.truncate(0)
                part.unlink()
                raise DownloadError(
                    f"{url}: the server sent a web page, not the file; open the address in a browser to see why"
                )
            file.write(block)
            there += len(block)
            if progress is not None:
                progress(there, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and there != total:
        raise _CutError(f"the connection ended after {there} of {total} bytes")
    return part


def _lock(file: BinaryIO, part: Path) -> None:
    """Keeps a second process from writing the same file; where locks do not exist, the hash has to do."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DownloadError(
            f"{part}: another process is downloading this file; wait for it"
        ) from None


def _is_page(start: bytes) -> bool:
    return start[:1024].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def _mismatch(path: Path, size: int | None, sha256: str | None, md5: str | None) -> str | None:
    """What about a file is not as expected; None when all is."""
    there = path.stat().st_size
    if size is not None and there != size:
        return f"{there} bytes instead of {size}"
    for name, wanted in (("sha256", sha256), ("md5", md5)):
        if wanted is None:
            continue
        with path.open("rb") as file:
            digest = hashlib.new(name, usedforsecurity=False)
            while block := file.read(_BLOCK):
                digest.update(block)
        if digest.hexdigest() != wanted.lower():
            return f"{name} {digest.hexdigest()[:16]}... instead of {wanted.lower()[:16]}..."
    return None
