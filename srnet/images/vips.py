"""libvips: arrays lent to it, its errors in one line, its cache."""

from __future__ import annotations

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


def reason(error: Exception) -> str:
    """The most telling line of a libvips error."""
    lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
    return lines[0][:200] if lines else str(error).strip()[:200]
