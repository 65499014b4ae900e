"""``srnet download NAME``: fetches a checkpoint that does not come with srnet. No other command does."""

import argparse
import os
import shutil
import sys
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from srnet.errors import CheckpointError, DownloadError

if TYPE_CHECKING:
    from srnet.checkpoint import ModelEntry

_HUB = "https://huggingface.co"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet download``."""
    parser.add_argument("name", metavar="NAME", help="a name that srnet models lists")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="URL|DIR|hf://OWNER/REPO",
        help="where the file lies: an address, a folder, or a repository of the Hugging Face Hub "
        "(default: the registry's base_url, or SRNET_BASE_URL)",
    )


def run(args: argparse.Namespace) -> int:
    """Fetches one checkpoint, checks it and prints its path.

    Returns:
        0.

    Raises:
        CheckpointError: The name is unknown, there is no address, or the file is not the registered one.
        DownloadError: The file cannot be fetched or written.
    """
    from srnet.checkpoint import download_folder, file_sha256, find_model, local_files

    model = find_model(args.name)
    for path in local_files(model):
        if file_sha256(path) == model.sha256:
            origin = "comes with srnet" if path.parent != download_folder() else "is here already"
            print(f"srnet: {model.name} {origin}, its hash is right", file=sys.stderr)
            print(path)
            return 0
        found = f"{path.stat().st_size} of {model.bytes} bytes"
        print(f"srnet: {path}: damaged ({found}, wrong hash), fetching it again", file=sys.stderr)
    target = download_folder() / model.file
    manual = (
        f"or get {model.file} ({model.bytes} bytes, sha256 {model.sha256}) by other means and run: "
        f"srnet download {model.name} --from FOLDER"
    )
    try:
        address = _address(args.source, model)
        if isinstance(address, Path):
            _copy(address, target, model)
        else:
            _fetch(address, target, model)
    except DownloadError as error:
        raise DownloadError(f"{error}; {manual}") from None
    print(target)
    return 0


def _address(source: str | None, model: "ModelEntry") -> str | Path:
    """Where the file is: an http address or a local file.

    Raises:
        DownloadError: Nothing says where.
    """
    from srnet.checkpoint import base_url

    source = source or base_url()
    if source is None:
        raise DownloadError(
            f"{model.name}: this srnet knows no address to download from; set SRNET_BASE_URL or use --from"
        )
    parts = urllib.parse.urlsplit(source)
    if parts.scheme == "hf":
        owner_repo, _, revision = (parts.netloc + parts.path).strip("/").partition("@")
        if owner_repo.count("/") != 1:
            raise DownloadError(
                f"{source}: not of the form hf://OWNER/REPO or hf://OWNER/REPO@REVISION"
            )
        hub = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
        return f"{hub}/{owner_repo}/resolve/{revision or 'main'}/{model.file}"
    if parts.scheme in ("http", "https"):
        whole = parts.path.endswith(".safetensors")
        return source if whole else f"{source.rstrip('/')}/{urllib.parse.quote(model.file)}"
    path = Path(source).expanduser()
    return path / model.file if path.is_dir() else path


def _fetch(url: str, target: Path, model: "ModelEntry") -> None:
    """Downloads into place, with a line of progress on a terminal."""
    from srnet.download import download

    def progress(done: int, total: int | None) -> None:
        if sys.stderr.isatty():
            end = "\n" if done == total else ""
            print(f"\r{model.file}: {100 * done // model.bytes} %", end=end, file=sys.stderr)

    download(url, target, size=model.bytes, sha256=model.sha256, progress=progress)


def _copy(source: Path, target: Path, model: "ModelEntry") -> None:
    """Copies a local file into place under a temporary name, after a check of its hash.

    Raises:
        CheckpointError: It is another file.
        DownloadError: It does not exist, or the target cannot be written.
    """
    from srnet.checkpoint import file_sha256

    if not source.is_file():
        raise DownloadError(f"{source}: no such file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=target.parent) as folder:
            copy = Path(folder) / model.file
            shutil.copyfile(source, copy)
            sha256 = file_sha256(copy)
            if sha256 != model.sha256:
                raise CheckpointError(
                    f"{source}: not {model.name}: {copy.stat().st_size} bytes, sha256 {sha256[:16]}... instead of "
                    f"{model.bytes} bytes, {model.sha256[:16]}...; nothing was kept"
                )
            copy.replace(target)
    except OSError as error:
        raise DownloadError(
            f"{target}: cannot be written: {error.strerror}; set SRNET_HOME to a folder of yours"
        ) from None
