"""Which kind of model suits the inputs, when none is asked for: a rule that fits in one sentence.

The model for compressed photographs is taken when most of the inputs are JPEG files of a quality below 85, as libjpeg
counts it; the one for clean images otherwise. Quality is read from the quantisation tables that each JPEG file holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from srnet.checkpoint import Kind, default_model, usable_model

POOR = 85
"""JPEG quality below which the model for compressed photographs is taken."""

_WORDS: dict[Kind, str] = {"classical": "for clean images", "photo": "for compressed photographs"}

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


def choose_model(paths: Sequence[Path], scale: int) -> Choice:
    """Chooses between the classical and the photo model of a scale.

    Args:
        paths: Images; their content is not decoded.
        scale: Enlargement factor of the model.

    Returns:
        The choice; the classical model where there is no photo model.

    Raises:
        CheckpointError: No model has this scale.
    """
    names: dict[Kind, str | None] = {
        "classical": default_model(scale),
        "photo": usable_model(scale, "photo"),
    }
    qualities = [jpeg_quality(path) for path in paths]
    poor = [quality for quality in qualities if quality is not None and quality < POOR]
    if len(paths) == 1:
        quality = qualities[0]
        form = "no JPEG" if quality is None else f"a JPEG of quality about {quality}"
        why = f"{paths[0].name} is {form}"
    else:
        why = f"{len(poor)} of {len(paths)} images are JPEG of a quality below {POOR}"
    wanted: Kind = "photo" if 2 * len(poor) > len(paths) else "classical"
    name, other = names[wanted], names["classical" if wanted == "photo" else "photo"]
    if name is None:
        name = default_model(scale)
        reason = f"although {why}: no x{scale} model {_WORDS['photo']} is here"
        return Choice(name, f"{name} ({_WORDS['classical']}), {reason}")
    rest = (
        ""
        if other is None
        else f"; -n {other} takes the one "
        + next(words for kind, words in _WORDS.items() if kind != wanted)
    )
    return Choice(name, f"{name} ({_WORDS[wanted]}), since {why}{rest}")


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
