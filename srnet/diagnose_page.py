"""The page that ``srnet diagnose --html`` writes: one file with its pictures and numbers inside, no network."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from srnet.attribution import Attribution
from srnet.diagnostics import Examination

_OUTSIDE = 0xFFFF  # index of a key that does not exist
_OVERVIEW = 240  # longest side of the small whole picture, pixels


def render(
    report: dict[str, Any],
    examined: Sequence[Examination],
    pixels: NDArray[np.uint8],
    pixel: tuple[int, int],
    attribution: Attribution,
    group_size: int,
    region_size: int,
) -> str:
    """Fills the page.

    Args:
        report: What the JSON report holds: model, image, window, layers, findings.
        examined: Measurements of each layer on the window.
        pixels: The whole image, (H, W, 3).
        pixel: Column and row of the chosen pixel in the window.
        attribution: Attribution of that pixel's surroundings, in the window's coordinates.
        group_size: Side of a query group.
        region_size: Side of the square of candidates.

    Returns:
        HTML.
    """
    window = report["window"]
    left, top, width, height = (window[k] for k in ("left", "top", "width", "height"))
    crop = pixels[top : top + height, left : left + width]
    step = max(1, -(-max(pixels.shape[:2]) // _OVERVIEW))
    small = pixels[::step, ::step]
    data = report | {
        "groupSize": group_size,
        "regionSize": region_size,
        "pixel": pixel,
        "rgb": _encode(crop),
        "whole": {"width": pixels.shape[1], "height": pixels.shape[0]},
        "overview": {"width": small.shape[1], "height": small.shape[0], "rgb": _encode(small)},
        "maps": [_maps(e, width, height) for e in examined],
        "attribution": {
            "left": attribution.left,
            "top": attribution.top,
            "width": attribution.values.shape[1],
            "height": attribution.values.shape[0],
            "values": _encode(_bytes(attribution.values.sqrt())),
            "patch": attribution.patch,
            "diffusion": attribution.diffusion,
        },
    }
    # "</" would end the script element that holds the data
    text = json.dumps(data, allow_nan=False).replace("</", "<\\/").replace("<!--", "<\\!--")
    template = (files("srnet") / "diagnose_page.html").read_text(encoding="utf-8")
    return template.replace("@DATA@", text)


def _maps(e: Examination, width: int, height: int) -> dict[str, Any]:
    """Keys, attention and histograms of a layer as compact arrays."""
    attention = e.maps.attention  # (Y, X, H, K)
    largest = attention.amax(-1)
    exists = attention.amax(2) > 0
    index = e.maps.row * width + e.maps.column  # (Y, X, K)
    counts = torch.bincount(index[exists], minlength=width * height)
    index = torch.where(exists, index, _OUTSIDE)
    return {
        "rows": index.shape[0],
        "columns": index.shape[1],
        "keys": _encode(index.cpu().numpy().astype("<u2")),
        "attention": _encode(_bytes(attention / largest[..., None].clamp(min=1e-30))),
        "largest": _encode(largest.cpu().numpy().astype("<f4")),
        "selected": _encode(_bytes(counts)),
        "mostSelected": int(counts.max()),
        "histograms": [
            {"name": name, "low": low, "high": high, "shares": shares.tolist()}
            for name, (low, high, shares) in e.maps.histograms.items()
        ],
    }


def _bytes(values: Tensor) -> NDArray[np.uint8]:
    """Values from 0 as bytes, the largest 255."""
    scaled = values / values.max().clamp(min=1e-30) * 255
    return scaled.round().cpu().numpy().astype(np.uint8)


def _encode(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
