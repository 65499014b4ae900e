"""Which kind of model suits the inputs, when none is asked for: a rule that fits in one sentence.

The model for compressed photographs is taken when most of the inputs are JPEG files of a quality below 90, as libjpeg
counts it; the one for clean images otherwise. Quality is read from the quantisation tables that each JPEG file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from srnet.checkpoint import Kind, default_model, usable_model
from srnet.config import SCALES

POOR = 90
"""JPEG quality below which the model for compressed photographs is taken: about where the two kinds are level.

On the validation images `srnet eval --jpeg 91` gives 26.07 dB and SSIM 0.688 for srnet-photo-x4, 25.98 dB and 0.689 for
srnet-small-x4; `--jpeg 94` gives 26.21 and 26.25 dB.
"""

_CLASSICAL, _PHOTO = "for clean images", "for compressed photographs"

# Annex K of ITU T.81, row by row: the luminance table that libjpeg scales by its quality
_LUMINANCE = (
    *(16, 11, 10, 16, 24, 40, 51, 61),
    *(12, 12, 14, 19, 26, 58, 60, 55),
    *(14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62),
    *(18, 22, 37, 56, 68, 109, 103, 77),
    *(24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101),
    *(72, 92, 95, 98, 112, 100, 103, 99),
)


@dataclass(frozen=True)
class Choice:
    """The model to use and one line that says why, and how to take the other."""

    model: str
    reason: str


def choose_model(paths: Sequence[Path], factor: float) -> Choice:
    """Chooses between the classical and the photo model of the smallest scale that reaches a factor.

    A photo model of a larger scale, whose result is then shrunk, is still the better one for compressed photographs
    (`scripts/results.py` measures it).

    Args:
        paths: Images; their content is not decoded.
        factor: Enlargement asked for; beyond the largest scale, models of the largest scale are taken.

    Returns:
        The choice; the classical model where there is no photo model.

    Raises:
        CheckpointError: No model reaches the factor.
    """
    scales = [scale for scale in SCALES if scale >= min(factor, SCALES[-1])]
    classical = _first(scales, "classical") or default_model(scales[0])  # which says what to do
    photo = _first(scales, "photo")
    qualities = [jpeg_quality(path) for path in paths]
    poor = [quality for quality in qualities if quality is not None and quality < POOR]
    if len(paths) == 1:
        quality = qualities[0]
        form = "no JPEG" if quality is None else f"a JPEG of quality about {quality}"
        why = f"{paths[0].name} is {form}"
    else:
        why = f"{len(poor)} of {len(paths)} images are JPEG of a quality below {POOR}"
    if 2 * len(poor) <= len(paths):
        rest = f"; -n {photo} takes the one {_PHOTO}" if photo else ""
        return Choice(classical, f"{classical} ({_CLASSICAL}), since {why}{rest}")
    if photo is None:
        why = f"although {why}: no model {_PHOTO} that reaches x{factor:g} is here"
        return Choice(classical, f"{classical} ({_CLASSICAL}), {why}")
    rest = f"; -n {classical} takes the one {_CLASSICAL}"
    return Choice(photo, f"{photo} ({_PHOTO}), since {why}{rest}")


def _first(scales: Sequence[int], kind: Kind) -> str | None:
    """The first model of a kind that is here, of the first scale that has one."""
    return next(filter(None, (usable_model(scale, kind) for scale in scales)), None)


def jpeg_quality(path: Path) -> int | None:
    """Returns the quality at which libjpeg would have written a file, None for what is not a readable JPEG.

    Other encoders have tables of their own; for these it is the nearest quality.
    """
    from PIL.JpegImagePlugin import JpegImageFile

    try:
        # not Image.open, which refuses large pictures before anyone asked for their pixels
        with JpegImageFile(path) as image:
            table = image.quantization[0]
    except (OSError, SyntaxError, ValueError, LookupError, TypeError):
        return None
    return min(range(100, 0, -1), key=lambda quality: _distance(table, quality))


def _distance(table: Sequence[int], quality: int) -> int:
    """How far a table is from the one that libjpeg uses for a quality."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    scaled = (min(255, max(1, (value * percent + 50) // 100)) for value in _LUMINANCE)
    return sum(abs(a - b) for a, b in zip(table, scaled, strict=True))
