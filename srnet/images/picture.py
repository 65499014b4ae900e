"""What a decoded image is: its pixels, and what travels beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from srnet.images.formats import OutputFormat

Pixels = NDArray[Any]
"""(H, W, C) of uint8, uint16 or float32."""


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
        png_texts: Type and content of each chunk of text in a PNG.
    """

    fields: tuple[tuple[int, str, Any], ...] = ()
    dpi: tuple[float, float] | None = None
    png_texts: tuple[tuple[bytes, bytes], ...] = ()

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
        lost = [kinds[name] for _, name, _ in self.fields if kinds.get(name) in unheld]
        return ", ".join(lost + ["text"] * (bool(self.png_texts) and format != "png"))


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
        notes: What the file says and could not be taken over.
    """

    pixels: Pixels
    format: str
    metadata: Metadata = Metadata()
    frames: int = 1
    animation: Animation | None = None
    notes: tuple[str, ...] = ()
