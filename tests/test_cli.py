import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import srnet
from srnet import cli
from srnet.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]


def command(monkeypatch, run):
    """Makes the command `models` run the given function."""
    module = SimpleNamespace(add_arguments=lambda parser: None, run=run)
    monkeypatch.setattr(cli, "import_module", lambda name: module)


def raising(error):
    def run(args):
        raise error

    return run


def test_version_is_the_one_in_pyproject(capsys):
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^version = "(.+)"$', text, re.M)[1] == srnet.__version__
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"srnet {srnet.__version__}\n"


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for name, (_, summary) in cli.COMMANDS.items():
        assert re.search(rf"^ +{name} +{summary}$", out, re.M)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main([name, "--help"])
    assert caught.value.code == 0
    assert f"usage: srnet {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "pattern"),
    [
        ([], "required: COMMAND"),
        (["enlarge"], "invalid choice: 'enlarge'"),
        (["models", "--colour"], "unrecognized arguments: --colour"),
        (["models", "--js"], r"unrecognized arguments: --js.* see srnet models --help"),
        (["upscale", "a.png", "--modl", "x"], r"did you mean --model\?"),
        (["upscale", "a.png", "--with", "8"], r"did you mean --width\?"),
        # as likely a file of that name as a mistake
        (["upscale", "--model.png"], r"did you mean --model\?.* put names that start with a dash"),
        (["upscale", "a.png", "--zzzzz"], "put names that start with a dash after --"),
    ],
)
def test_usage_errors_are_one_line_and_exit_2(words, pattern, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"srnet.*: error: .*{pattern}.*\n", captured.err)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_command_decides_the_exit_code(monkeypatch, code):
    command(monkeypatch, lambda args: code)
    assert cli.main(["models"]) == code


def test_own_errors_are_one_line_and_exit_2(monkeypatch, capsys):
    command(monkeypatch, raising(ConfigError("first\nsecond")))
    assert cli.main(["models"]) == 2
    assert capsys.readouterr().err == "srnet: error: first; second\n"


def test_file_system_errors_are_one_line_and_exit_2(monkeypatch, capsys):
    command(monkeypatch, raising(PermissionError(13, "Permission denied", "/a/b")))
    assert cli.main(["models"]) == 2
    assert capsys.readouterr().err == "srnet: error: /a/b: Permission denied\n"


def test_faults_of_the_program_keep_their_traceback(monkeypatch):
    command(monkeypatch, raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["models"])


def test_interrupt_exits_130(monkeypatch, capsys):
    command(monkeypatch, raising(KeyboardInterrupt()))
    assert cli.main(["models"]) == 130
    assert capsys.readouterr().err == "srnet: interrupted\n"


@pytest.mark.skipif(os.name == "nt", reason="pipes close differently on Windows")
def test_closed_pipe_is_no_traceback():
    done = subprocess.run(
        [
            "bash",
            "-c",
            '"$0" -m srnet models --json | true; exit "${PIPESTATUS[0]}"',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1)
    assert done.stderr == ""


def test_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "srnet", "enlarge"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "invalid choice: 'enlarge'" in done.stderr


def test_models_as_table_and_json(capsys):
    assert cli.main(["models"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert cli.main(["models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert table[0].split()[:4] == ["name", "scale", "kind", "parameters"]
    assert [line.split()[0] for line in table[1:]] == [row["name"] for row in rows]


def test_models_reports_a_broken_file(capsys, tmp_path, monkeypatch):
    from srnet import checkpoint

    entry = {
        "name": "m-x2",
        "file": "m.safetensors",
        "bytes": 9,
        "sha256": "0",
        "scale": 2,
    }
    (tmp_path / "registry.json").write_text(json.dumps({"models": [entry]}))
    (tmp_path / "m.safetensors").write_bytes(b"<html>404")
    monkeypatch.setattr(checkpoint, "checkpoint_folder", lambda: tmp_path)
    assert cli.main(["models"]) == 1
    assert re.search(r"^m-x2 .*web page", capsys.readouterr().out, re.M)


def test_public_names_are_lazy():
    code = (
        "import sys, srnet; assert 'torch' not in sys.modules; assert 'SRNet' in dir(srnet); "
        "from srnet import SRNet, load_checkpoint; assert SRNet.__module__ == 'srnet.network'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = srnet.Nothing
