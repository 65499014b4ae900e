"""Files that appear when they are complete, and what kills leave of them."""

import os
import re
import signal
import stat
import subprocess
import sys
import time

import pytest

from srnet.atomic import atomic_output, is_partial, remove_leftovers

KILLED = """
import os, signal, sys
from pathlib import Path
from srnet.atomic import atomic_output
with atomic_output(Path(sys.argv[1])) as partial:
    partial.write_bytes(b"half")
    if sys.argv[2] == "before the rename":
        os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
    elif sys.argv[2] == "while it writes":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        print(partial.name, flush=True)
        sys.stdin.read()
"""


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted():
        with atomic_output(path) as partial:
            partial.write_bytes(b"half")
            assert is_partial(partial)
            assert not is_partial(path)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == ["a"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("moment", ["while it writes", "before the rename"])
def test_a_kill_leaves_the_old_file_and_what_the_next_run_sweeps(tmp_path, moment):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", KILLED, path, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = set(names(tmp_path)) - {"a"}
    assert left.startswith(".a.")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == ["a"]


def test_the_file_of_a_living_process_stays(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "a", "after a while"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        partial = process.stdout.readline().strip()
        remove_leftovers(tmp_path)
        assert names(tmp_path) == [partial]
        process.communicate("")
    assert names(tmp_path) == ["a"]


def test_own_files_stay_but_not_those_of_a_killed_process_that_had_the_same_number(tmp_path):
    with atomic_output(tmp_path / "a") as partial:
        partial.write_bytes(b"half")
        left = tmp_path / re.sub("-[0-9a-f]{8}[.]", "-00000000.", partial.name)
        left.write_bytes(b"half")
        remove_leftovers(tmp_path)
        assert names(tmp_path) == [partial.name]
    assert names(tmp_path) == ["a"]


def test_the_file_of_another_machine_is_swept_when_it_is_a_day_old(tmp_path):
    left = tmp_path / f".a.0123abcd-{os.getpid()}-01234567.srnet-part"
    left.write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert names(tmp_path) == [left.name]
    old = time.time() - 90_000
    os.utime(left, (old, old))
    remove_leftovers(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_permissions_are_those_of_any_new_file(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_output(tmp_path / "a") as partial:
            partial.write_bytes(b"whole")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == mode


@pytest.mark.parametrize("name", ["a" * 255, "写真" * 42, "\udcff.png", ".hidden"])
def test_any_name_that_the_file_system_takes(tmp_path, name):
    with atomic_output(tmp_path / name) as partial:
        partial.write_bytes(b"whole")
    assert names(tmp_path) == [name]
