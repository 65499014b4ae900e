"""The ``srnet`` command: reads the command line, runs one command, turns errors into one line.

Exit codes: 0 all done, 1 some inputs failed, 2 usage or configuration, 130 interrupted.
"""

import argparse
import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from srnet import __version__
from srnet.errors import SRNetError, one_line

COMMANDS: dict[str, tuple[str, str]] = {
    "upscale": ("srnet.commands.upscale", "enlarge images with a trained network"),
    "eval": ("srnet.commands.evaluate", "measure a checkpoint on a folder of images"),
    "train": ("srnet.commands.train", "train a network from a configuration file"),
    "models": ("srnet.commands.models", "list the known checkpoints"),
    "download": ("srnet.commands.download", "fetch a checkpoint that does not come with srnet"),
    "diagnose": ("srnet.commands.diagnose", "look into the attention of a network on an image"),
    "bench": (
        "srnet.commands.bench",
        "time networks and attention against other projects' networks",
    ),
    "data": ("srnet.commands.data", "check a folder of training or test images"),
}

_FULL = {errno.ENOSPC, errno.EFBIG, errno.EIO}  # where stdout goes


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    chosen: argparse.ArgumentParser | None = None
    """The parser of the command that was given, on the parser that knows them all."""

    def error(self, message: str) -> NoReturn:
        parser = self.chosen or self
        if unknown := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            from difflib import get_close_matches

            options = re.findall(r"--[\w-]+", parser.format_help())
            for near in get_close_matches(unknown[1], options, 1):
                message += f" (did you mean {near}?)"
        if message.startswith("unrecognized arguments: -") or "ignored explicit" in message:
            message += "; put names that start with a dash after --"
        self.exit(2, f"{parser.prog}: error: {message}; see {parser.prog} --help\n")


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """Builds the parser; only the chosen command's module is imported.

    Args:
        chosen: Name of the command whose options are wanted, None for the list of commands only.

    Returns:
        A parser that knows every command by name and the options of the chosen one.
    """
    parser = _Parser(prog="srnet", description="Image super-resolution.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"srnet {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            allow_abbrev=False,
        )
        if name == chosen:
            import_module(module).add_arguments(sub)
            parser.chosen = sub
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: Words after the program's name; None reads them from the command line.

    Returns:
        The exit code.

    Raises:
        SystemExit: After ``--help`` and ``--version`` (0) and on a wrong command line (2).
    """
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A file name that the terminal's encoding lacks must not stop a run that succeeded.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), None)
    args = build_parser(chosen).parse_args(words)
    try:
        code: int = import_module(COMMANDS[args.command][0]).run(args)
        sys.stdout.flush()
    except SRNetError as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        print("srnet: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader (head, less) has gone
        return 1
    except OSError as error:
        if error.filename is None and error.errno not in _FULL:
            raise
        if error.filename is None:
            _drop_output()
        return _fail(f"{error.filename or 'the output'}: {error.strerror}")
    return code


def _open_closed_streams() -> None:
    """Puts the null device where the caller closed a stream, whose number the next file would get: an image, say."""
    if sys.platform != "win32":
        while (number := os.open(os.devnull, os.O_RDWR)) < 3:
            os.set_inheritable(number, True)
        os.close(number)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _drop_output() -> None:
    """Keeps Python from complaining at exit about what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str) -> int:
    """Prints an error on one line of stderr and returns exit code 2."""
    print(f"srnet: error: {one_line('; '.join(message.splitlines()))}", file=sys.stderr)
    return 2
