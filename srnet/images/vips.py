"""libvips: arrays lent to it, its errors in one line, its cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyvips

from srnet.images.picture import Pixels

_KINDS = {"uint8": "uchar", "uint16": "ushort", "float32": "float"}


def disable_cache() -> None:
    """Stops libvips from keeping the last hundred images: a batch reads each file once."""
    pyvips.cache_set_max(0)


def from_array(pixels: Pixels) -> pyvips.Image:
    """Lends an array to libvips without a copy."""
    flat = np.ascontiguousarray(pixels)
    height, width, bands = flat.shape
    return pyvips.Image.new_from_memory(flat.data, width, height, bands, _KINDS[flat.dtype.name])


def source(path: Path) -> pyvips.Source:
    """Opens a file for libvips; the name is taken literally, where Image.new_from_file would read [options] from it."""
    pyvips.vips_lib.vips_error_clear()  # or what is left of other files is taken for the reason of an error
    if _is_unicode(path):
        return pyvips.Source.new_from_file(str(path))
    with path.open("rb") as file:
        return pyvips.Source.new_from_descriptor(file.fileno())  # which is duplicated


def target(path: Path) -> pyvips.Target:
    """Creates a file for libvips to write."""
    if _is_unicode(path):
        return pyvips.Target.new_to_file(str(path))
    with path.open("w+b") as file:
        return pyvips.Target.new_to_descriptor(file.fileno())


def _is_unicode(path: Path) -> bool:
    """Tells whether pyvips can pass the name on; names from other systems are often in other encodings."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def reason(error: Exception) -> str:
    """The most telling line of a libvips error."""
    lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
    return lines[0][:200] if lines else str(error).strip()[:200]
