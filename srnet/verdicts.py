"""What the measurements of the attention layers mean: faults with their likely cause, in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from srnet.diagnostics import SCORE_LIMIT, HeadStatistics, LayerStatistics

_TOLERANCE = 0.1  # how far scale and initial standard deviations may be off
_MISFIT = 0.02  # relative error from which the operator is another one
_ONE_KEY = 0.7  # mean largest probability from which a head looks at one key
_ALL_ALIKE = 0.995  # share of the maximal entropy from which a head averages
_SILENT = 1e-3  # standard deviation of relevance below which it orders nothing
_NO_GRADIENT = 1e-6  # share of v's gradient that counts as none
_NEAREST = 0.98  # share of nearest keys from which the predictor has no say
_IDLE = 1e-4  # share of its input that a trained layer must add to count

Severity = Literal["fault", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing worth saying about a layer.

    Attributes:
        severity: A fault is wrong, a warning may be, a note is for those who wonder.
        code: Stable name, for programs.
        layer: Name of the layer.
        text: One sentence or two: what, both numbers, likely cause.
    """

    severity: Severity
    code: str
    layer: str
    text: str


def findings(layers: Sequence[LayerStatistics], *, fresh: bool) -> list[Finding]:
    """Judges layers.

    Args:
        layers: Measurements.
        fresh: True when the weights are those of the initialisation, for which unit variance is expected.

    Returns:
        Findings, layer by layer; no fault and no warning means healthy.
    """
    return [finding for layer in layers for finding in _judge(layer, fresh)]


def saturation_warning(layers: Sequence[LayerStatistics]) -> str | None:
    """One line when heads look at a single key, for a training's log; None when none does."""
    bad = [
        (layer, i, head)
        for layer in layers
        for i, head in enumerate(layer.heads)
        if _one_key(layer, head)
    ]
    if not bad:
        return None
    layer, i, head = max(bad, key=lambda entry: entry[2].largest_probability)
    heads = sum(len(layer.heads) for layer in layers)
    return (
        f"attention saturates in {len(bad)} of {heads} heads, most in {layer.layer} head {i}: largest probability "
        f"{head.largest_probability:.2f}, scores' standard deviation {head.score_std:.1f}; {_why_one_key(layer, head)}"
    )


def _judge(s: LayerStatistics, fresh: bool) -> Iterator[Finding]:
    """Findings of one layer."""

    def fault(code: str, text: str) -> Finding:
        return Finding("fault", code, s.layer, text)

    def warning(code: str, text: str) -> Finding:
        return Finding("warning", code, s.layer, text)

    def note(code: str, text: str) -> Finding:
        return Finding("note", code, s.layer, text)

    expected = s.head_dim**-0.5
    if s.scale_misfit > _MISFIT:
        yield fault(
            "operator",
            f"the output is not softmax(scale * q.k + bias) v for any scale: {s.scale_misfit:.1%} of it is left over. "
            "Are the scores normalised, or scaled by a number per head or per distance, or v scaled?",
        )
    elif s.scale is None:
        yield note(
            "scale-unknown",
            "q.k makes no difference to the output here, so the scale cannot be measured",
        )
    elif abs(s.scale / expected - 1) > _TOLERANCE:
        yield fault("scale", _wrong_scale(s, s.scale, expected))

    if fresh and max(abs(s.q_rms - 1), abs(s.k_rms - 1)) > _TOLERANCE:
        yield fault(
            "initialisation",
            f"at initialisation q has root mean square {s.q_rms:.2f} and k {s.k_rms:.2f} instead of 1: scores "
            f"divided by sqrt(head_dim) are off by a factor of {s.q_rms * s.k_rms:.2f}. Initialise both "
            "projections orthogonally",
        )

    chooses = s.recall_chance < 0.9  # else nearly all candidates are kept
    gradient, reference = s.gradients["predictor"], s.gradients["v"]
    dead = s.relevance_std < _SILENT or gradient < _NO_GRADIENT * reference
    if dead:
        yield fault(
            "predictor-dead",
            f"the predictor does not learn: its relevance varies by {s.relevance_std:.1e} over the candidates and its "
            f"gradient is {gradient:.1e} (v: {reference:.1e}). Are its weights zero, or is its relevance detached from "
            "the scores?",
        )
    elif chooses and s.nearest_share >= _NEAREST:
        yield fault(
            "locality",
            f"locality is too strong: {s.nearest_share:.0%} of the selected keys are just the nearest ones, "
            f"the predictor (varying by {s.relevance_std:.2f}) has no say. Lower predictor_slope",
        )
    elif (
        chooses
        and not fresh
        and s.recall < s.recall_chance + 0.5 * max(0.0, s.recall_nearest - s.recall_chance)
    ):
        yield warning(
            "predictor-poor",
            f"the predictor finds {s.recall:.0%} of the keys that full attention prefers; the nearest keys would find "
            f"{s.recall_nearest:.0%}, chance {s.recall_chance:.0%}",
        )

    one_key = [h for h, head in enumerate(s.heads) if _one_key(s, head)]
    if one_key:
        worst = max((s.heads[h] for h in one_key), key=lambda head: head.largest_probability)
        yield fault(
            "saturated",
            f"{_heads(one_key)} looks at one key: largest probability {worst.largest_probability:.2f}, entropy "
            f"{worst.entropy:.0%} of its maximum; {_why_one_key(s, worst)}",
        )
    alike = [h for h, head in enumerate(s.heads) if s.top_k > 1 and head.entropy > _ALL_ALIKE]
    if alike and not fresh:
        yield note(
            "averaging",
            f"{_heads(alike)} weighs all its keys alike (entropy above {_ALL_ALIKE:.1%} of its maximum)",
        )
    if not fresh and s.contribution < _IDLE:
        yield warning(
            "idle",
            f"the layer adds {s.contribution:.1e} of its input: its output projection is still zero",
        )


def _wrong_scale(s: LayerStatistics, scale: float, expected: float) -> str:
    """Names the scale that was found, by its likely cause."""
    known = {
        "the scale is missing": 1.0,
        "scores are divided by head_dim instead of its root": 1 / s.head_dim,
        "scores are divided by sqrt(top_k) instead of sqrt(head_dim)": s.top_k**-0.5,
        "scores are multiplied by sqrt(head_dim)": s.head_dim**0.5,
        "scores are divided by the root of all heads' channels": (s.head_dim * len(s.heads))
        ** -0.5,
    }
    names = [name for name, value in known.items() if abs(scale / value - 1) <= _TOLERANCE / 2]
    cause = " or ".join(names) or f"scores are {scale / expected:.2f} times what they should be"
    effect = (
        "softmax saturates and its gradient dies as scores grow"
        if scale > expected
        else "attention stays close to an average"
    )
    return f"{cause}: q.k is multiplied by {scale:.4f}, not by 1/sqrt({s.head_dim}) = {expected:.4f}; {effect}"


def _one_key(s: LayerStatistics, head: HeadStatistics) -> bool:
    return s.top_k > 1 and head.largest_probability > _ONE_KEY


def _why_one_key(s: LayerStatistics, head: HeadStatistics) -> str:
    """The likely cause of a head that looks at one key."""
    expected = s.head_dim**-0.5
    if s.scale is not None and s.scale > expected * (1 + _TOLERANCE):
        return f"the scale is {s.scale:.3f} instead of {expected:.3f}"
    if head.distance < 1 and head.score_std < 2:
        return f"locality is too strong: slope {head.slope:.2g} a pixel, distance attended {head.distance:.2f} pixels"
    return (
        f"{head.beyond_limit:.0%} of its scores lie beyond +-{SCORE_LIMIT:g}: q and k have grown (standard deviations "
        f"{head.q_std:.2f} and {head.k_std:.2f}); lower the learning rate or decay their weights"
    )


def _heads(numbers: list[int]) -> str:
    return (
        f"head {numbers[0]}"
        if len(numbers) == 1
        else f"each of heads {', '.join(map(str, numbers))}"
    )
