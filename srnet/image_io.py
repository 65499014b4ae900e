"""Reads and writes image files: every pixel depth, alpha, profiles, orientation, metadata.

libvips (through pyvips) does the decoding and encoding: unlike Pillow it keeps 16 bit, writes from a file of raw
pixels without holding the image in memory, and refuses damaged files instead of filling in grey. Only BMP, which
libvips lacks, is read by Pillow and written here, row by row. The format is taken from the first bytes of a file,
never from its suffix.
"""

from __future__ import annotations

import contextlib
import difflib
import mmap
import os
import secrets
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from srnet.errors import ImageError

os.environ.setdefault("VIPS_WARNING", "0")  # libvips reads it once; what matters is an error here
import pyvips

Pixels = NDArray[Any]
"""(H, W, C) of uint8, uint16 or float32."""

OutputFormat = Literal["png", "jpeg", "webp", "tiff", "avif", "gif", "bmp"]

MAX_PIXELS = 300_000_000
"""Largest input that is read unless asked otherwise, in pixels."""

SUFFIXES: dict[str, OutputFormat] = {
    ".png": "png",
    ".jpg": "jpeg",
    ".jpeg": "jpeg",
    ".webp": "webp",
    ".tif": "tiff",
    ".tiff": "tiff",
    ".avif": "avif",
    ".gif": "gif",
    ".bmp": "bmp",
}
"""File name suffix, lower case, to the format written under it."""

_LOADERS = {
    "png": "pngload_source",
    "jpeg": "jpegload_source",
    "webp": "webpload_source",
    "tiff": "tiffload_source",
    "avif": "heifload_source",
    "heif": "heifload_source",
    "gif": "gifload_source",
    "jxl": "jxlload_source",
}
_MAX_SIDE = {"jpeg": 65535, "webp": 16383, "avif": 16384, "gif": 65535, "bmp": 65535}
QUALITY = {"jpeg", "webp", "avif"}
"""Formats with a quality to choose."""
_DEEP = {"png": 16, "tiff": 32, "avif": 12}  # bits a channel where a format has more than 8
_NO_ALPHA = {"jpeg", "bmp"}
NO_PROFILE = {"gif", "bmp"}
"""Formats that hold no colour profile; what goes there has to be sRGB."""
ANIMATED = {"gif", "webp"}
"""Formats of which every frame is read and written."""
_KEPT = ("exif-", "xmp-data", "iptc-data", "icc-profile-data", "png-comment-", "image-description")
_KINDS = {"uint8": "uchar", "uint16": "ushort", "float32": "float"}
_RAW = {".cr2", ".nef", ".dng", ".arw", ".orf", ".rw2", ".pef", ".srw"}  # TIFF inside
_PARTIAL = ".srnet-part"
_STAMP = "srnet recipe "


@dataclass(frozen=True)
class Header:
    """What a file says about its image before any pixel is decoded.

    Attributes:
        format: Real format of the content.
        width: Columns, pixels, after the orientation is applied.
        height: Rows, pixels, after the orientation is applied.
        frames: Pages or frames; more than one in animations and multi-page files.
    """

    format: str
    width: int
    height: int
    frames: int


@dataclass(frozen=True)
class Metadata:
    """What travels beside the pixels.

    Attributes:
        fields: (type, name, value) of EXIF, XMP, IPTC, ICC profile and text, as libvips holds them.
        dpi: Pixels an inch, horizontal and vertical; None if the file does not say.
    """

    fields: tuple[tuple[int, str, Any], ...] = ()
    dpi: tuple[float, float] | None = None

    @property
    def icc(self) -> bytes | None:
        """The ICC profile."""
        return next(
            (bytes(value) for _, name, value in self.fields if name == "icc-profile-data"), None
        )

    def only_icc(self) -> Metadata:
        """What is left after stripping: the profile, without which the colours would change."""
        return Metadata(tuple(field for field in self.fields if field[1] == "icc-profile-data"))

    def lost_in(self, format: OutputFormat) -> str:
        """Names what a format cannot hold, empty if it holds all."""
        kinds = {
            "exif-data": "EXIF",
            "xmp-data": "XMP",
            "iptc-data": "IPTC",
            "icc-profile-data": "colour profile",
        }
        # what goes into GIF and BMP is converted to sRGB, so their lack of a profile costs nothing
        others = set(kinds.values()) - {"colour profile"}
        unheld = {"tiff": {"EXIF"}, "bmp": others, "gif": others}.get(format, set())
        return ", ".join(kinds[name] for _, name, _ in self.fields if kinds.get(name) in unheld)


@dataclass(frozen=True)
class Animation:
    """How frames follow each other.

    Attributes:
        delays: How long each frame is shown, milliseconds.
        loop: How often all are shown; 0 without end.
    """

    delays: tuple[int, ...]
    loop: int


@dataclass(frozen=True)
class Picture:
    """A decoded image.

    Attributes:
        pixels: (H, W, C) with C 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha; straight alpha. uint8 and uint16
            use their full range, float32 holds the file's values. The frames of an animation stand below each other.
        format: Real format of the file it came from.
        metadata: Profile, EXIF and so on; the orientation is already applied.
        frames: Frames in the file; the pixels are those of the first unless there is an animation.
        animation: Set where the pixels hold all frames.
    """

    pixels: Pixels
    format: str
    metadata: Metadata = Metadata()
    frames: int = 1
    animation: Animation | None = None


def disable_cache() -> None:
    """Stops libvips from keeping the last hundred images: a batch reads each file once."""
    pyvips.cache_set_max(0)


def sniff(path: Path) -> str | None:
    """Returns the format that a file's first bytes show, None if they show no image.

    Raises:
        ImageError: If the file cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except OSError as error:
        hint = _nearby(path) if isinstance(error, FileNotFoundError) else ""
        raise ImageError(f"{path}: {error.strerror}{hint}") from error
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "gif"
    if head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return "tiff"
    if head.startswith(b"BM"):
        return "bmp"
    if head.startswith((b"\xff\x0a", b"\0\0\0\x0cJXL ")):
        return "jxl"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head[4:8] == b"ftyp":
        brands = {head[i : i + 4] for i in (8, 16, 20, 24, 28)}
        if brands & {b"avif", b"avis"}:
            return "avif"
        if brands & {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}:
            return "heif"
    return None


def _nearby(path: Path) -> str:
    """What may have been meant by a name that does not exist."""
    if path.parts and path.parts[0] in ("http:", "https:"):
        return "; srnet reads files, so download it first"
    if path.is_symlink():
        return "; it is a broken link"
    names = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""


def format_of(name: str) -> OutputFormat:
    """Returns the format that a suffix or a format's name stands for.

    Raises:
        ImageError: If nothing is written under that name.
    """
    wanted = name.lower()
    known = SUFFIXES.get(wanted if wanted.startswith(".") else f".{wanted}")
    if known is None:
        raise ImageError(
            f"no format is written as {name!r}; use one of {', '.join(get_args(OutputFormat))}"
        )
    return known


def read_header(path: Path, max_pixels: int = MAX_PIXELS) -> Header:
    """Reads what a file says about its image, without decoding it.

    Args:
        path: Image file.
        max_pixels: Largest image that is accepted, pixels.

    Returns:
        Format, size and number of frames.

    Raises:
        ImageError: If the file is missing, no image, damaged at its start, or too large.
    """
    kind = _known_format(path)
    if kind == "bmp":
        with _pillow(path) as image:
            width, height = image.size
        frames, turned = 1, False
    else:
        image = _open(path, kind)
        width, height = image.width, image.height
        frames, turned = _frames(path, kind, image), _orientation(image) >= 5
    _check_pixels(path, width, height, max_pixels)
    return Header(kind, height if turned else width, width if turned else height, frames)


def read(
    path: Path, max_pixels: int = MAX_PIXELS, *, animated: bool = False, to_srgb: bool = False
) -> Picture:
    """Decodes an image file; of an animation or a multi-page file the first frame unless asked otherwise.

    Palettes and single bits are expanded, CMYK and Lab become sRGB through the embedded profile, the EXIF orientation
    is applied.

    Args:
        path: Image file.
        max_pixels: Largest image that is accepted, pixels; of all frames together if they are read.
        animated: Read every frame of a GIF or WebP file.
        to_srgb: Convert 8 and 16 bit pixels from the embedded profile to sRGB.

    Returns:
        Pixels and what travels beside them.

    Raises:
        ImageError: If the file is missing, no image, damaged anywhere, too large, or of a pixel type that is not kept.
    """
    kind = _known_format(path)
    if kind == "bmp":
        return _read_bmp(path, max_pixels)
    image = _open(path, kind)
    _check_pixels(path, image.width, image.height, max_pixels)
    animation = None
    if animated and kind in ANIMATED and _frames(path, kind, image) > 1:
        image = _open(path, kind, n=-1)
        _check_pixels(path, image.width, image.height, max_pixels)
        count = image.height // int(image.get("page-height"))
        delays = image.get("delay") if image.get_typeof("delay") else [100] * count
        animation = Animation(tuple(delays[:count]), _field(image, "loop", 0))
    metadata = _metadata(image)
    if kind == "png":
        metadata = replace(metadata, dpi=_png_dpi(path))
    orientation = _orientation(image)
    frames = _frames(path, kind, image)
    try:
        converted = _to_rgb(image)
        if (
            to_srgb
            and metadata.icc is not None
            and converted.interpretation == image.interpretation
        ):
            converted, metadata = _to_srgb(converted, metadata)
        if converted.bands > 4 or converted.format not in ("uchar", "ushort", "float", "double"):
            raise ImageError(
                f"{path}: {converted.bands} channels of type {converted.format} are not supported; "
                f"convert to 1 to 4 channels of 8 bit, 16 bit or float"
            )
        if converted.format == "double":
            converted = converted.cast("float")
        raw = converted.write_to_memory()
    except pyvips.Error as error:
        raise ImageError(f"{path}: damaged or cut short ({_reason(error)})") from error
    if image.interpretation in ("cmyk", "lab", "labs"):
        metadata = replace(
            metadata, fields=tuple(f for f in metadata.fields if f[1] != "icc-profile-data")
        )
    dtype = {"uchar": np.uint8, "ushort": np.uint16, "float": np.float32}[converted.format]
    pixels = np.frombuffer(raw, dtype).reshape(converted.height, converted.width, converted.bands)
    if pixels.dtype == np.float32 and not np.isfinite(pixels).all():
        raise ImageError(
            f"{path}: {int((~np.isfinite(pixels)).sum())} pixel values are infinite or no number"
        )
    return Picture(orient(pixels, orientation), kind, metadata, frames, animation)


def read_rgb8(path: Path, max_pixels: int = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decodes an image file for a data set.

    Args:
        path: Image file.
        max_pixels: Largest image that is accepted, pixels.

    Returns:
        (H, W, 3) RGB; grey is repeated, alpha left out, 16 bit rounded to 8.

    Raises:
        ImageError: As `read` raises, and for float images, which have no fixed white.
    """
    pixels = read(path, max_pixels).pixels
    if pixels.dtype == np.float32:
        raise ImageError(f"{path}: float pixels have no fixed white; convert to 8 or 16 bit")
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    rgb = pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)
    return np.ascontiguousarray(rgb, dtype=np.uint8)


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turns stored pixels upright.

    Args:
        pixels: (H, W, C) as stored.
        orientation: EXIF orientation, 1 to 8.

    Returns:
        (H, W, C), or (W, H, C) from orientation 5 on; contiguous.
    """
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)


def check_target(format: OutputFormat, width: int, height: int) -> None:
    """Checks that a format can hold an image of this size.

    Raises:
        ImageError: If a side is over the format's limit.
    """
    limit = _MAX_SIDE.get(format)
    if limit is not None and max(width, height) > limit:
        raise ImageError(
            f"{width} x {height} is over the {format} limit of {limit} pixels a side; use --format png or tiff"
        )
    if format == "bmp" and width * height * 3 >= 2**32 - 2**20:
        raise ImageError(
            f"{width} x {height} is over the bmp limit of 4 GB a file; use --format png or tiff"
        )


def fit_format(pixels: Pixels, format: OutputFormat, background: tuple[int, int, int]) -> Pixels:
    """Reduces pixels to what a format can hold.

    Args:
        pixels: (H, W, C), C 1 to 4.
        format: Format to be written.
        background: RGB, 0 to 255, under transparent pixels where the format has no alpha.

    Returns:
        Pixels with the format's depth and channels; the same array where nothing has to change.
    """
    if pixels.dtype == np.float32 and format != "tiff":
        pixels = np.round(pixels.clip(0, 1) * 65535).astype(np.uint16)
    if pixels.dtype == np.uint16 and format not in _DEEP:
        pixels = ((pixels.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if format in _NO_ALPHA and pixels.shape[2] in (2, 4):
        colour = np.array(background, dtype=np.float32)
        if pixels.shape[2] == 2 and len(set(background)) > 1:
            pixels = pixels[..., [0, 0, 0, 1]]
        alpha = pixels[..., -1:].astype(np.float32) / 255
        under = colour[: pixels.shape[2] - 1]
        pixels = np.round(pixels[..., :-1] * alpha + under * (1 - alpha)).astype(np.uint8)
    return pixels


@contextlib.contextmanager
def atomic_output(path: Path) -> Iterator[Path]:
    """Gives a temporary name in the same folder; renames it to the final one when the block succeeds.

    Nothing ever stands under the final name but a finished file. A process that is killed leaves at most a file that
    `is_partial` knows.

    Args:
        path: Final name.

    Yields:
        The name to write to.
    """
    partial = path.with_name(f".{path.name[:150]}.{_process()}-{secrets.token_hex(4)}{_PARTIAL}")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def is_partial(path: Path) -> bool:
    """Tells whether a file is what a killed run left behind."""
    return path.name.endswith(_PARTIAL)


def remove_leftovers(folder: Path) -> None:
    """Deletes what killed runs of this machine left in a folder; files of runs that are still going stay."""
    for path in folder.glob(f".*{_PARTIAL}"):
        node, _, rest = path.name.removesuffix(_PARTIAL).rpartition(".")[2].partition("-")
        number = rest.partition("-")[0]
        if node == _node() and number.isdecimal() and not _is_running(int(number)):
            with contextlib.suppress(OSError):  # on Windows an open file cannot be deleted
                path.unlink()


def _node() -> str:
    return f"{uuid.getnode() & 0xFFFFFFFF:08x}"


def _process() -> str:
    """Names this process among those that may write to the same folder."""
    return f"{_node()}-{os.getpid()}"


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
        self._path = folder / f".{_process()}-{secrets.token_hex(4)}{_PARTIAL}"
        self._file: BinaryIO | None = None
        self._array: Pixels | None = None
        self._row = 0
        self._bands = 0
        self._kind = ""

    def __enter__(self) -> Canvas:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()
        self._path.unlink(missing_ok=True)

    def put(self, strip: Pixels) -> None:
        """Adds the next rows from the top, (rows, width, C).

        Raises:
            ImageError: If the disk is full or the folder cannot be written.
        """
        if self._row == 0:
            self._bands = strip.shape[2]
            self._kind = _KINDS[strip.dtype.name]
            size = self.width * self.height * self._bands * strip.dtype.itemsize
            self.on_disk = size > self._max_bytes
            if not self.on_disk:
                self._array = np.empty((self.height, self.width, self._bands), strip.dtype)
        if self._array is not None:
            self._array[self._row : self._row + len(strip)] = strip
        else:
            try:
                if self._file is None:
                    self._file = self._path.open("wb")
                    self._file.write(_tiff_head(self.width, self.height, self._bands, strip.dtype))
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
            return _from_array(self._array)
        assert self._file is not None
        self._file.close()
        # libvips maps raw files, whose pages count as memory of this process; it reads TIFF piece by piece
        source = pyvips.Source.new_from_file(str(self._path))
        access = "sequential" if sequential else "random"
        return pyvips.Image.tiffload_source(source, access=access, unlimited=True)


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


def resample_frames(image: pyvips.Image, count: int, width: int, height: int) -> pyvips.Image:
    """Resamples each of the frames that stand below each other to exactly this size, as `resample` does."""
    rows = image.height // count
    if (image.width, rows) == (width, height):
        return image
    frames = [
        resample(image.crop(0, i * rows, image.width, rows), width, height) for i in range(count)
    ]
    return pyvips.Image.arrayjoin(frames, across=1)


def resample(image: pyvips.Image, width: int, height: int) -> pyvips.Image:
    """Resamples to exactly this size: Lanczos to a smaller one, bicubic to a larger one; alpha weighs colours.

    Args:
        image: Grey or RGB, with alpha or without.
        width: Columns wanted, pixels.
        height: Rows wanted, pixels.

    Returns:
        The same image if it has that size already.
    """
    if (image.width, image.height) == (width, height):
        return image
    kind, alpha = image.format, image.bands in (2, 4)
    top = {"uchar": 255, "ushort": 65535, "float": 1}[kind]
    image = image.copy(interpretation="b-w" if image.bands < 3 else "srgb")
    if alpha:
        image = image.premultiply(max_alpha=top)
    kernel = "lanczos3" if width < image.width or height < image.height else "cubic"
    image = image.resize(width / image.width, vscale=height / image.height, kernel=kernel)
    if alpha:
        image = image.unpremultiply(max_alpha=top)
    if image.format != kind:
        image = image.rint().cast(kind) if kind != "float" else image.cast(kind)
    return image


def write(
    path: Path,
    pixels: Pixels | pyvips.Image,
    format: OutputFormat,
    metadata: Metadata | None = None,
    quality: int | None = None,
    lossless: bool = False,
    recipe: str | None = None,
    animation: Animation | None = None,
) -> None:
    """Encodes an image to a file, which appears under its name only when it is complete.

    Args:
        path: File to write; replaced if it exists.
        pixels: (H, W, C) as `fit_format` returns, or the image of a canvas that holds such.
        format: Format to write.
        metadata: What to write beside the pixels.
        quality: 1 to 100 for JPEG, WebP and AVIF; None takes 95 for JPEG and 90 for the others.
        lossless: For WebP and AVIF: keep every pixel.
        recipe: Written into the file as the software that made it, for `recipe_state` to find.
        animation: The frames that stand below each other in pixels; for GIF and WebP.

    Raises:
        ImageError: If the file cannot be written.
    """
    image = _from_array(pixels) if isinstance(pixels, np.ndarray) else pixels
    rows = image.height // (len(animation.delays) if animation is not None else 1)
    check_target(format, image.width, rows)
    metadata = metadata or Metadata()
    interpretation = {1: "b-w", 2: "b-w", 3: "srgb", 4: "srgb"}[image.bands]
    if image.format == "ushort":
        interpretation = "grey16" if image.bands < 3 else "rgb16"
    image = image.copy(interpretation=interpretation)
    # 72 where nothing is known, as every program takes it; libvips would state 25.4
    dpi = metadata.dpi or (72, 72)
    image = image.copy(xres=dpi[0] / 25.4, yres=dpi[1] / 25.4)
    if metadata.dpi is not None:
        image.set_type(pyvips.GValue.gstr_type, "resolution-unit", "in")
    for type_, name, value in metadata.fields:
        image.set_type(type_, name, value)
    if image.get_typeof("exif-data"):
        image.set_type(pyvips.GValue.blob_type, "jpeg-thumbnail-data", b"")  # drops the thumbnail
    # without it libvips takes the orientation from the EXIF block, and the pixels would be turned twice
    image.set_type(pyvips.GValue.gint_type, "orientation", 1)
    if animation is not None:
        image.set_type(pyvips.GValue.gint_type, "page-height", rows)
        image.set_type(pyvips.GValue.array_int_type, "delay", list(animation.delays))
        image.set_type(pyvips.GValue.gint_type, "loop", animation.loop)
    stamp = None if recipe is None else _STAMP + recipe
    if stamp is not None:
        # the EXIF tag Software; libvips writes no EXIF into TIFF
        field = "exif-ifd0-Software"
        if format == "tiff":
            field = "image-description"
            said = image.get(field) if image.get_typeof(field) else ""
            stamp = "\n".join([*(x for x in said.splitlines() if _STAMP not in x), stamp])
        image.set_type(pyvips.GValue.gstr_type, field, stamp)
    try:
        with atomic_output(path) as partial:
            if format == "bmp":
                _write_bmp(partial, image, metadata, stamp)
            else:
                target = pyvips.Target.new_to_file(str(partial))
                saver = "heifsave" if format == "avif" else f"{format}save"
                options = _save_options(image, format, quality, lossless)
                getattr(image, f"{saver}_target")(target, **options)
                if format == "gif" and stamp is not None:
                    _add_gif_comment(partial, stamp)
    except pyvips.Error as error:
        raise ImageError(f"{path}: cannot be written ({_reason(error)})") from error
    except OSError as error:
        raise ImageError(f"{path}: cannot be written ({error.strerror})") from error


def recipe_state(path: Path, recipe: str) -> Literal["same", "other", "none", "damaged"]:
    """Tells whether a file was written with this recipe.

    Args:
        path: Image file.
        recipe: What `write` would be given.

    Returns:
        "same" or "other" for a complete file that `write` stamped, "none" for a complete file without a stamp,
        "damaged" for what cannot be decoded to its end.
    """
    try:
        kind = _known_format(path)
        if kind == "bmp":
            with _pillow(path) as picture:
                picture.load()
        else:
            _open(path, kind).avg()  # decodes every pixel, keeps none
    except (ImageError, pyvips.Error):
        return "damaged"
    # encoders place the stamp where they like, but none of them compresses it
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find((_STAMP + recipe).encode()) >= 0:
            return "same"
        return "other" if data.find(_STAMP.encode()) >= 0 else "none"


def _add_gif_comment(path: Path, text: str) -> None:
    """Puts a comment before the trailer of a GIF; libvips cannot."""
    data = text.encode("ascii")
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x21\xfe" + bytes([len(data)]) + data + b"\0\x3b")


def _save_options(
    image: pyvips.Image, format: OutputFormat, quality: int | None, lossless: bool
) -> dict[str, Any]:
    """The encoder's settings."""
    match format:
        case "png":
            return {"compression": 4, "filter": "all"}
        case "jpeg":
            # optimal Huffman tables need all coefficients in memory, twice the size of the image
            small = image.width * image.height < 30_000_000
            return {"Q": quality or 95, "subsample_mode": "off", "optimize_coding": small}
        case "webp":
            return {"Q": quality or 90, "lossless": lossless, "exact": True}
        case "tiff":
            large = image.width * image.height * image.bands * 4 > 2**32 - 2**20
            predictor = "float" if image.format == "float" else "horizontal"
            return {"compression": "deflate", "predictor": predictor, "bigtiff": large}
        case "avif":
            return {
                "compression": "av1",
                "Q": quality or 90,
                "lossless": lossless,
                "bitdepth": 12 if image.format == "ushort" else 8,
                "effort": 4,
                "subsample_mode": "off",
            }
        case _:
            return {}


def _from_array(pixels: Pixels) -> pyvips.Image:
    """Lends an array to libvips without a copy."""
    flat = np.ascontiguousarray(pixels)
    height, width, bands = flat.shape
    return pyvips.Image.new_from_memory(flat.data, width, height, bands, _KINDS[flat.dtype.name])


def _known_format(path: Path) -> str:
    """Sniffs a file that must be an image."""
    kind = sniff(path)
    if kind == "tiff" and path.suffix.lower() in _RAW:
        raise ImageError(
            f"{path}: a camera's raw file; develop it to a 16-bit TIFF first, srnet would see its thumbnail"
        )
    if kind is None:
        if path.stat().st_size == 0:
            raise ImageError(f"{path}: the file is empty (0 bytes)")
        raise ImageError(
            f"{path}: not an image that srnet reads (PNG, JPEG, WebP, TIFF, AVIF, GIF, BMP)"
        )
    return kind


def _open(path: Path, kind: str, **options: Any) -> pyvips.Image:
    """Opens a file for one pass from top to bottom; damage is an error, not a warning."""
    loader = _LOADERS[kind]
    if not pyvips.type_find("VipsOperation", loader):
        raise ImageError(
            f"{path}: this build of libvips cannot read {kind}; convert to PNG or JPEG"
        )
    try:
        # a source takes the name literally; new_from_file would read [options] from it
        source = pyvips.Source.new_from_file(str(path))
        return getattr(pyvips.Image, loader)(
            source, access="sequential", fail_on="warning", **options
        )
    except pyvips.Error as error:
        if kind == "heif":
            raise ImageError(
                f"{path}: this build of libvips cannot read it as HEIC ({_reason(error)}); convert to PNG or JPEG"
            ) from error
        raise ImageError(f"{path}: damaged or cut short ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    """The most telling line of a libvips error."""
    lines = [line.strip() for line in str(error).splitlines()[1:] if line.strip()]
    return lines[0][:200] if lines else str(error).strip()[:200]


def _check_pixels(path: Path, width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise ImageError(
            f"{path}: {width} x {height} = {width * height / 1e6:.0f} megapixels, "
            f"over the limit of {max_pixels / 1e6:.0f}; raise it with --max-pixels"
        )


def _field(image: pyvips.Image, name: str, default: int) -> int:
    return int(image.get(name)) if image.get_typeof(name) else default


def _frames(path: Path, kind: str, image: pyvips.Image) -> int:
    return _apng_frames(path) if kind == "png" else _field(image, "n-pages", 1)


def _png_chunks(path: Path) -> dict[bytes, bytes]:
    """The small chunks of a PNG before its pixels, by name: what libvips does not tell about the file."""
    chunks: dict[bytes, bytes] = {}
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8 and head[4:] != b"IDAT":
            length = int.from_bytes(head[:4], "big")
            if length <= 16:
                chunks[head[4:]] = file.read(length)
            file.seek(4 + (length if length > 16 else 0), os.SEEK_CUR)
    return chunks


def _apng_frames(path: Path) -> int:
    """Frames of an animated PNG, of which libvips sees only the first."""
    return int.from_bytes(_png_chunks(path).get(b"acTL", b"\0\0\0\1")[:4], "big")


def _png_dpi(path: Path) -> tuple[float, float] | None:
    """Resolution that a PNG states; libvips gives 72 dpi also where there is none."""
    chunk = _png_chunks(path).get(b"pHYs", b"")
    if len(chunk) != 9 or chunk[8] != 1:
        return None
    x, y = (int.from_bytes(chunk[i : i + 4], "big") * 0.0254 for i in (0, 4))
    return _possible((x, y))


def _possible(dpi: tuple[float, float] | None) -> tuple[float, float] | None:
    """None for a resolution that no device has, as damaged and careless files state."""
    return dpi if dpi is not None and all(1 <= value <= 100_000 for value in dpi) else None


def _orientation(image: pyvips.Image) -> int:
    value = _field(image, "orientation", 1)
    return value if 1 <= value <= 8 else 1


def _metadata(image: pyvips.Image) -> Metadata:
    """Takes over what has to survive; sizes, orientation and the thumbnail are stale after upscaling."""
    stale = ("exif-ifd1-", "exif-ifd0-Orientation")
    fields = tuple(
        (image.get_typeof(name), name, image.get(name))
        for name in image.get_fields()
        if name.startswith(_KEPT) and not name.startswith(stale)
    )
    # libvips fills in 72 dpi where a file does not say; only a stated resolution carries a unit
    stated = image.get_typeof("resolution-unit") and image.xres > 0 and image.yres > 0
    return Metadata(fields, _possible((image.xres * 25.4, image.yres * 25.4)) if stated else None)


def _to_rgb(image: pyvips.Image) -> pyvips.Image:
    """Converts CMYK and Lab to sRGB; leaves grey and RGB as they are."""
    if image.interpretation == "cmyk":
        depth = 16 if image.format == "ushort" else 8
        return image.icc_transform("srgb", embedded=True, input_profile="cmyk", depth=depth)
    if image.interpretation in ("lab", "labs"):
        return image.colourspace("srgb")
    return image


def _to_srgb(image: pyvips.Image, metadata: Metadata) -> tuple[pyvips.Image, Metadata]:
    """Converts from the embedded profile to sRGB; grey stays grey, without a profile."""
    if image.format not in ("uchar", "ushort"):
        return image, metadata
    grey = image.bands < 3
    result = image.icc_transform("srgb", embedded=True, depth=16 if image.format == "ushort" else 8)
    fields = tuple(field for field in metadata.fields if field[1] != "icc-profile-data")
    if grey:
        result = result[0].bandjoin(result[3]) if result.bands == 4 else result[0]
    else:
        name = "icc-profile-data"
        fields += ((result.get_typeof(name), name, result.get(name)),)
    return result, replace(metadata, fields=fields)


@contextlib.contextmanager
def _pillow(path: Path) -> Iterator[Any]:
    """Opens a BMP file with Pillow, with its errors as one line."""
    from PIL.BmpImagePlugin import BmpImageFile

    try:
        with BmpImageFile(path) as image:  # Image.open would apply its own limit of pixels
            yield image
    except (OSError, ValueError, SyntaxError) as error:
        raise ImageError(f"{path}: damaged or cut short ({str(error)[:200]})") from error


def _read_bmp(path: Path, max_pixels: int) -> Picture:
    with _pillow(path) as image:
        _check_pixels(path, image.width, image.height, max_pixels)
        dpi = image.info.get("dpi")
        mode = {"1": "L", "L": "L", "RGBA": "RGBA"}.get(image.mode, "RGB")
        pixels = np.asarray(image.convert(mode), dtype=np.uint8)
    return Picture(
        pixels[..., None] if pixels.ndim == 2 else pixels, "bmp", Metadata(dpi=_possible(dpi))
    )


def _write_bmp(partial: Path, image: pyvips.Image, metadata: Metadata, stamp: str | None) -> None:
    """Writes 8-bit grey or RGB strip by strip; the rows of a BMP stand bottom up."""
    width, height, bands = image.width, image.height, image.bands
    stride = -(-width * bands // 4) * 4
    palette = bytes(value for i in range(256) for value in (i, i, i, 0)) if bands == 1 else b""
    start, size = 54 + len(palette), stride * height
    per_metre = [round(dpi / 0.0254) for dpi in metadata.dpi or (96, 96)]
    colours = len(palette) // 4
    header = struct.pack("<2sIHHI", b"BM", start + size, 0, 0, start)
    header += struct.pack(
        "<IiiHHIIiiII", 40, width, height, 1, 8 * bands, 0, size, *per_metre, colours, 0
    )
    rows = max(2**22 // stride, 1)
    region = pyvips.Region.new(image)
    with partial.open("wb") as file:
        file.write(header + palette)
        for top in range(0, height, rows):
            count = min(rows, height - top)
            strip = np.frombuffer(region.fetch(0, top, width, count), np.uint8)
            padded = np.zeros((count, stride), np.uint8)
            padded[:, : width * bands] = strip.reshape(count, width, bands)[::-1, :, ::-1].reshape(
                count, -1
            )
            file.seek(start + stride * (height - top - count))
            file.write(padded.data)
        file.seek(0, os.SEEK_END)
        file.write((stamp or "").encode("ascii"))  # readers stop at the size in the header
