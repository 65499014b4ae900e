"""Fetches DIV2K, checks it, and unpacks it so that a folder stands under its name only when all its images are there.

The publisher gives no hashes: sizes and SHA-256 are those that TensorFlow Datasets records, MD5 those of torchSR.
"""

from __future__ import annotations

import lzma
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from srnet.download import Progress, download
from srnet.errors import DataError, DownloadError

HOME = "https://data.vision.ee.ethz.ch/cvl/DIV2K/"
LICENSE = "DIV2K is for academic research only, see " + HOME

_SHOWN = 3


@dataclass(frozen=True)
class Archive:
    """One zip file of the data set and the folder of images that it holds."""

    file: str
    folder: str
    """Below the root, as in the zip."""
    first: int
    last: int
    suffix: str
    """Of the file names: ``0001`` and this."""
    md5: str
    sha256: str | None = None
    size: int | None = None

    @property
    def images(self) -> list[str]:
        """File names in order."""
        return [f"{i:04d}{self.suffix}" for i in range(self.first, self.last + 1)]


def _lr(split: str, first: int, last: int, scale: int, md5: str) -> Archive:
    name = f"DIV2K_{split}_LR_bicubic"
    return Archive(f"{name}_X{scale}.zip", f"{name}/X{scale}", first, last, f"x{scale}.png", md5)


HR = (
    Archive(
        "DIV2K_train_HR.zip",
        "DIV2K_train_HR",
        1,
        800,
        ".png",
        "bdc2d9338d4e574fe81bf7d158758658",
        "9d0b9c463f6e35b6c62cc6a930ee2224f670b34c1df841a57670f9acf0f6c335",
        3530603713,
    ),
    Archive(
        "DIV2K_valid_HR.zip",
        "DIV2K_valid_HR",
        801,
        900,
        ".png",
        "9fcdda83005c5e5997799b69f955ff88",
        "20dd31fd84d777bc1cf5d6b7654a3f569c0aec74458ae094122ad1d0489900fc",
        448993893,
    ),
)
LR = {
    2: (
        _lr("train", 1, 800, 2, "9a637d2ef4db0d0a81182be37fb00692"),
        _lr("valid", 801, 900, 2, "1512c9a3f7bde2a1a21a73044e46b9cb"),
    ),
    3: (
        _lr("train", 1, 800, 3, "ad80b9fe40c049a07a8a6c51bfab3b6d"),
        _lr("valid", 801, 900, 3, "18b1d310f9f88c13618c287927b29898"),
    ),
    4: (
        _lr("train", 1, 800, 4, "76c43ec4155851901ebbe8339846d93d"),
        _lr("valid", 801, 900, 4, "21962de700c8d368c6ff83314480eff0"),
    ),
}


def fetch(
    root: Path,
    archives: Sequence[Archive],
    source: str | Path,
    report: Callable[[str], None],
    progress: Progress | None = None,
) -> None:
    """Puts the archives' folders below ``root``; what is there already is left alone.

    Args:
        root: Folder of the data set, made if missing.
        archives: What to fetch.
        source: Address that the zip files lie under, or a folder that holds them, which keeps them.
        report: Receives a line for each archive.
        progress: Receives bytes there and their total while a file is fetched.

    Raises:
        DownloadError: A file cannot be fetched, or is not the expected one.
        DataError: A zip file is damaged, or does not hold what it should; or a folder is there but lacks images.
    """
    for archive in archives:
        target = root / archive.folder
        if target.exists():
            lacking = [name for name in archive.images if not (target / name).is_file()]
            if lacking:
                raise DataError(
                    f"{target}: lacks {len(lacking)} of {len(archive.images)} images: {_listed(lacking)}; "
                    "move the folder away and run again"
                )
            report(f"{target}: {len(archive.images)} images are there already")
            continue
        if isinstance(source, Path):
            path, keep = source / archive.file, True
            if not path.is_file():
                raise DataError(f"{path}: no such file; fetch it from {HOME}{archive.file}")
        else:
            path, keep = root / archive.file, False
            report(f"fetching {source}{archive.file}")
            download(
                source + archive.file,
                path,
                size=archive.size,
                sha256=archive.sha256,
                md5=None if archive.sha256 else archive.md5,
                progress=progress,
            )
        try:
            _unpack(path, archive, root)
        except OSError as error:
            raise DataError(f"{target}: cannot be unpacked: {error.strerror}") from error
        if not keep:
            path.unlink()
        report(f"{target}: {len(archive.images)} images")


def _unpack(path: Path, archive: Archive, root: Path) -> None:
    """Unpacks beside the target and moves the folder there when every image is written."""
    partial = root / f".{archive.file}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with zipfile.ZipFile(path) as file:
            members = _members(path, file, archive)
            needed = sum(member.file_size for member in members.values())
            root.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(root).free
            if needed > free:
                raise DataError(
                    f"{path}: unpacks to {needed} bytes, {root} has {free} free; free space"
                )
            partial.mkdir()
            for name, member in members.items():
                # to a name of our own: what the zip calls it decides nothing
                with file.open(member) as packed, (partial / name).open("wb") as image:
                    shutil.copyfileobj(packed, image, 1 << 20)
        target = root / archive.folder
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(partial, target)
    # zipfile lets errors of the decompressor through, and calls an encrypted entry a RuntimeError
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise DataError(f"{path}: damaged zip file ({error}); delete it and run again") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _members(path: Path, file: zipfile.ZipFile, archive: Archive) -> dict[str, zipfile.ZipInfo]:
    """The entries of the images by file name, after a check of every entry.

    Raises:
        DataError: An entry lies elsewhere, is no plain file, or is twice there; or images are missing.
    """
    wanted = set(archive.images)
    found: dict[str, zipfile.ZipInfo] = {}
    for member in file.infolist():
        name = member.filename
        kind = stat.S_IFMT(member.external_attr >> 16)
        if member.is_dir() and not name.startswith("/") and ".." not in name.split("/"):
            continue
        folder, _, base = name.rpartition("/")
        if folder != archive.folder or base not in wanted or kind not in (0, stat.S_IFREG):
            raise DataError(
                f"{path}: holds {name!r}, which is no image of {archive.folder}; nothing was unpacked"
            )
        if base in found:
            raise DataError(f"{path}: holds {name!r} twice; nothing was unpacked")
        found[base] = member
    lacking = [name for name in archive.images if name not in found]
    if lacking:
        raise DataError(
            f"{path}: lacks {len(lacking)} of {len(archive.images)} images: {_listed(lacking)}; nothing was unpacked"
        )
    return found


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def address(text: str | None) -> str | Path:
    """What ``--from`` means: an address that ends in a slash, or a folder.

    Raises:
        DownloadError: It is neither.
    """
    if text is None:
        return HOME
    if text.startswith(("http://", "https://")):
        return text.rstrip("/") + "/"
    if not Path(text).is_dir():
        raise DownloadError(f"{text}: neither an http(s) address nor a folder")
    return Path(text)
