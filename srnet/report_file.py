"""Report files: refused before the work begins where they cannot be written, and never half there."""

from __future__ import annotations

from pathlib import Path

from srnet.atomic import atomic_output
from srnet.errors import ConfigError


def check_report(path: Path) -> None:
    """Makes the folder and tries to write there, so that a long measurement does not end in vain.

    Raises:
        ConfigError: The file could not be written.
    """
    if path.is_dir():
        raise ConfigError(f"{path}: is a folder; give the name of a file")
    trial = path.with_name(f".{path.name}.trial")
    write_report(trial, "")
    trial.unlink()


def write_report(path: Path, text: str) -> None:
    """Writes under a temporary name and moves it into place.

    Raises:
        ConfigError: It cannot be written; what was there before is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{error.filename or path}: cannot be written: {error.strerror}"
        ) from None
