"""Errors that a user can act on: each message is one line with what, which file, both numbers and the way out."""

import unicodedata


class SRNetError(Exception):
    """Base of every error that srnet raises on purpose."""


class ConfigError(SRNetError):
    """A configuration file, an override or an option is wrong."""


class CheckpointError(SRNetError):
    """A checkpoint is unknown, damaged, or does not fit what was asked of it."""


class DataError(SRNetError):
    """A data set is incomplete, mismatched or unreadable."""


class ImageError(SRNetError):
    """One image cannot be read, processed or written."""


class DownloadError(SRNetError):
    """A file cannot be fetched, or what came is not it."""


class TrainingError(SRNetError):
    """A run cannot go on; the message names the step and what is kept."""


def one_line(text: str) -> str:
    """Spells out control characters, such as a line end in a file's name."""
    return "".join(repr(c)[1:-1] if unicodedata.category(c) == "Cc" else c for c in text)
