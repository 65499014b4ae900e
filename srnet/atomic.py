"""Files that appear under their name only when they are complete: a kill or a full disk leaves the old one.

The one way in which srnet writes a file that somebody may be waiting for: images, checkpoints, states, packed data,
reports. Downloads (`srnet.download`) keep what came so far and have a way of their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".srnet-part"
_ABANDONED_SECONDS = 86_400
_mine: set[str] = set()  # names that this process has given out and not yet taken back


@contextlib.contextmanager
def temporary_file(folder: Path, name: str) -> Iterator[Path]:
    """Gives a hidden name that no other process uses; what stands there at the end of the block is deleted.

    Args:
        folder: Where the file may stand.
        name: Put at the front of the name, for people who look at the folder.

    Yields:
        The name to write to.
    """
    front = name.encode(errors="ignore")[:150].decode(errors="ignore")  # file systems count bytes
    path = folder / f".{front}.{_node()}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
    _mine.add(path.name)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        _mine.discard(path.name)


@contextlib.contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Gives a temporary name in the same folder; renames it to the final one when the block succeeds.

    Nothing ever stands under the final name but a finished file, with the permissions of any new file. A process that
    is killed leaves at most a file that `is_partial` knows and `remove_leftovers` deletes.

    Args:
        path: Final name.

    Yields:
        The name to write to.
    """
    with temporary_file(path.parent, path.name) as partial:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)


def is_partial(path: Path) -> bool:
    """Tells whether a file is unfinished: being written, or left behind by a killed process."""
    return path.name.endswith(_SUFFIX)


def remove_leftovers(folder: Path) -> None:
    """Deletes the unfinished files of killed processes; those of processes that are still going stay.

    Of another machine's process nobody here knows whether it is going: its file counts as left behind when it was not
    written to for a day.
    """
    for path in folder.glob(f".*{_SUFFIX}"):
        with contextlib.suppress(OSError):  # gone meanwhile, or open, which Windows does not delete
            if _is_left_behind(path):
                path.unlink()


def _is_left_behind(path: Path) -> bool:
    node, _, rest = path.name.removesuffix(_SUFFIX).rpartition(".")[2].partition("-")
    process = rest.partition("-")[0]
    if node != _node() or not process.isdecimal():
        return time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
    if int(process) == os.getpid():
        return path.name not in _mine  # numbers come again, in containers soon
    return not _is_running(int(process))


def _node() -> str:
    return f"{uuid.getnode() & 0xFFFFFFFF:08x}"


def _is_running(number: int) -> bool:
    if os.name != "posix":
        return False  # there is no harmless way to ask; files in use protect themselves
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
