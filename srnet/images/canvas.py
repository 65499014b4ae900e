"""Collects a result strip by strip, so that its size is not limited by memory."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyvips

from srnet.atomic import temporary_file
from srnet.errors import ImageError
from srnet.images.picture import Pixels
from srnet.images.vips import from_array, source


class Canvas:
    """Collects a result strip by strip: in memory while it is small, in an uncompressed TIFF file beyond that.

    Use as a context manager; the file is gone afterwards.

    Attributes:
        on_disk: Whether the pixels go to a file.

    Args:
        folder: Where the file may stand.
        width: Columns, pixels.
        height: Rows, pixels.
        max_bytes: Largest result that is kept in memory.
    """

    def __init__(self, folder: Path, width: int, height: int, max_bytes: int = 256 * 2**20) -> None:
        self.width = width
        self.height = height
        self.on_disk = False
        self._max_bytes = max_bytes
        self._temporary = temporary_file(folder, "canvas")
        self._file: BinaryIO | None = None
        self._array: Pixels | None = None
        self._row = 0

    def __enter__(self) -> Canvas:
        self._path = self._temporary.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
        self._temporary.__exit__(None, None, None)

    def put(self, strip: Pixels) -> None:
        """Adds the next rows from the top, (rows, width, C).

        Raises:
            ImageError: If the disk is full or the folder cannot be written.
        """
        if self._row == 0:
            shape = (self.height, self.width, strip.shape[2])
            self.on_disk = math.prod(shape) * strip.dtype.itemsize > self._max_bytes
            if not self.on_disk:
                self._array = np.empty(shape, strip.dtype)
        if self._array is not None:
            self._array[self._row : self._row + len(strip)] = strip
        else:
            try:
                if self._file is None:
                    self._file = self._path.open("wb")
                    head = _tiff_head(self.width, self.height, strip.shape[2], strip.dtype)
                    self._file.write(head)
                self._file.write(np.ascontiguousarray(strip).data)
            except OSError as error:
                raise ImageError(f"{self._path.parent}: {error.strerror}") from error
        self._row += len(strip)

    def image(self, sequential: bool = True) -> pyvips.Image:
        """Returns all rows as a libvips image, to be used while the canvas is open.

        Args:
            sequential: It will be read once from top to bottom, which keeps little of a file in memory.
        """
        if self._array is not None:
            return from_array(self._array)
        assert self._file is not None
        self._file.close()
        # libvips maps raw files, whose pages count as memory of this process; it reads TIFF piece by piece
        access = "sequential" if sequential else "random"
        return pyvips.Image.tiffload_source(source(self._path), access=access, unlimited=True)


def _tiff_head(width: int, height: int, bands: int, dtype: np.dtype[Any]) -> bytes:
    """What stands before the raw pixels in a BigTIFF file without compression."""
    row = width * bands * dtype.itemsize
    rows = min(max(2**18 // row, 1), height)
    sizes = [row * min(rows, height - top) for top in range(0, height, rows)]
    short, long, long8 = 3, 4, 16
    each = sum((8 * dtype.itemsize) << 16 * i for i in range(bands))  # 16 bits for each channel
    kind = sum((3 if dtype.kind == "f" else 1) << 16 * i for i in range(bands))
    tags = {
        256: (long, 1, width),
        257: (long, 1, height),
        258: (short, bands, each),
        259: (short, 1, 1),  # no compression
        262: (short, 1, 1 if bands < 3 else 2),  # grey or RGB
        273: (long8, len(sizes), 0),  # where strips start
        277: (short, 1, bands),
        278: (long, 1, rows),
        279: (long8, len(sizes), 0),  # how long they are
        338: (short, 1, 2),  # straight alpha
        339: (short, bands, kind),
    }
    if bands in (1, 3):
        del tags[338]
    tables = 16 + 8 + 20 * len(tags) + 8
    start = tables + 16 * len(sizes)
    starts = [start + sum(sizes[:1]) * i for i in range(len(sizes))]  # all but the last are alike
    tags[273] = (long8, len(sizes), starts[0] if len(sizes) == 1 else tables)
    tags[279] = (long8, len(sizes), sizes[0] if len(sizes) == 1 else tables + 8 * len(sizes))
    directory = b"".join(struct.pack("<HHQQ", tag, *value) for tag, value in tags.items())
    head = (
        struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, len(tags)) + directory + struct.pack("<Q", 0)
    )
    return head + struct.pack(f"<{2 * len(sizes)}Q", *starts, *sizes)
