"""Upscales image files: from a file on disk to a finished file on disk."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srnet import image_io
from srnet.errors import ImageError
from srnet.image_io import OutputFormat
from srnet.inference import Progress, Upscaler


@dataclass(frozen=True, kw_only=True)
class Options:
    """How results are written.

    Attributes:
        format: Format to write; None takes that of the target's suffix, else the input's.
        background: RGB, 0 to 255, under transparent pixels where the format has no alpha.
        overwrite: Replace a file that stands at the target.
        max_pixels: Largest input that is read, pixels.
    """

    format: OutputFormat | None = None
    background: tuple[int, int, int] = (255, 255, 255)
    overwrite: bool = False
    max_pixels: int = image_io.MAX_PIXELS


@dataclass(frozen=True)
class Result:
    """One finished file.

    Attributes:
        source: File that was read.
        target: File that was written.
        width: Columns of the result, pixels.
        height: Rows of the result, pixels.
        seconds: Wall time, reading and writing included.
    """

    source: Path
    target: Path
    width: int
    height: int
    seconds: float

    @property
    def megapixels_per_second(self) -> float:
        """Pixels of the result, in millions, a second."""
        return self.width * self.height / 1e6 / max(self.seconds, 1e-9)


def target_format(source: Path, target: Path | None, options: Options) -> OutputFormat:
    """Returns the format to write: the one asked for, else the target's suffix, else the input's content.

    Raises:
        ImageError: If the target's suffix is no format that is written, or the input cannot be opened.
    """
    if options.format is not None:
        return options.format
    if target is not None and target.suffix:
        return image_io.format_of(target.suffix)
    kind = image_io.sniff(source)
    return kind if kind in image_io.SUFFIXES.values() else "png"  # type: ignore[return-value]


def default_target(source: Path, folder: Path, scale: int, format: OutputFormat) -> Path:
    """Returns ``folder/name_x4.png`` for ``name.png``; the suffix is kept where it fits the format."""
    fits = image_io.SUFFIXES.get(source.suffix.lower()) == format
    suffix = source.suffix if fits else ".jpg" if format == "jpeg" else f".{format}"
    return folder / f"{source.stem}_x{scale}{suffix}"


def upscale_file(
    upscaler: Upscaler,
    source: Path,
    target: Path,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Result:
    """Upscales one image file.

    Args:
        upscaler: What computes.
        source: Image file.
        target: File to write; appears only when it is complete.
        options: How to write it.
        progress: Called after each tile with the LR pixels done and their total.

    Returns:
        What was written.

    Raises:
        ImageError: If the input cannot be read, the format cannot hold the result, or the target exists.
    """
    options = options or Options()
    start = time.perf_counter()
    format = target_format(source, target, options)
    if target.exists():
        if target.samefile(source):
            raise ImageError(f"{target}: the result would replace its own input; give another -o")
        if not options.overwrite:
            raise ImageError(
                f"{target}: exists already; use --overwrite, --skip-existing or another -o"
            )
    header = image_io.read_header(source, options.max_pixels)
    width, height = header.width * upscaler.scale, header.height * upscaler.scale
    try:
        image_io.check_target(format, width, height)
    except ImageError as error:
        raise ImageError(f"{source}: {error}") from error
    picture = image_io.read(source, options.max_pixels)
    result: image_io.Pixels | None = None
    for top, strip in upscaler.bands(picture.pixels, progress):
        rows = image_io.fit_format(strip, format, options.background)
        if result is None:
            result = np.empty((height, *rows.shape[1:]), rows.dtype)
        result[top : top + len(rows)] = rows
    assert result is not None
    image_io.write(target, result, format, picture.metadata)
    return Result(source, target, width, height, time.perf_counter() - start)
