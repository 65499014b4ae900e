"""Dense attention, which the operator is compared with, and the layers of the comparison.

Axes as in ``srnet.attention``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from srnet.attention import SparseAttention, query_distance


@lru_cache(maxsize=8)
def _distance_bias(slopes: tuple[float, ...], group_size: int, region_size: int) -> Tensor:
    """What each head takes off the score of every candidate, (H, g * g, r, r)."""
    every = torch.arange(region_size**2)[None]
    distance = query_distance(every, group_size, region_size, torch.float32)  # (1, N, M)
    bias = -torch.tensor(slopes).view(-1, 1, 1) * distance
    return bias.view(len(slopes), -1, region_size, region_size)


def dense_attention(
    q: Tensor,
    kv: Tensor,
    slopes: Sequence[float],
    group_size: int,
    region_size: int,
    *,
    at_once: bool,
) -> Tensor:
    """Attention of each query to all pixels of the region around its group: what sparse attention is compared with.

    Equal to ``srnet.attention.sparse_attention`` with every candidate selected at relevance 0.

    Args:
        q: Queries (B, H, W, C), channels in the order (head, head_dim).
        kv: Keys and values side by side (B, H, W, 2C).
        slopes: Score lost per pixel of distance, per head.
        group_size: Side g of a group; with an equal region_size these are the windows of Swin.
        region_size: Side r of the square of candidates.
        at_once: All groups in one call, the usual way and the faster one to train; else group by group, which leaves
            out the candidates outside the image and keeps the scores in the cache.

    Returns:
        (B, H, W, C).
    """
    B, height, width, C = q.shape
    g, r, H = group_size, region_size, len(slopes)
    D, margin = C // H, (r - g) // 2
    Y, X = -(-height // g), -(-width // g)
    bias = _distance_bias(tuple(slopes), g, r).to(q)  # (H, N, r, r)
    q = F.pad(q, (0, 0, 0, X * g - width, 0, Y * g - height))
    if at_once:
        right, below = margin + X * g - width, margin + Y * g - height
        windows = F.pad(kv, (0, 0, margin, right, margin, below)).unfold(1, r, g).unfold(2, r, g)
        k, v = (
            windows.view(B, Y, X, 2, H, D, r, r)
            .permute(3, 0, 1, 2, 4, 6, 7, 5)
            .reshape(2, B * Y * X * H, r * r, D)
        )
        inside = F.pad(
            kv.new_ones(height, width), (margin, right, margin, below), value=0.0
        ).unfold(0, r, g)
        outside = inside.unfold(1, r, g) == 0  # (Y, X, r, r)
        scores = bias.expand(Y, X, -1, -1, -1, -1).masked_fill(outside[:, :, None, None], -math.inf)
        scores = scores.flatten(4).expand(B, -1, -1, -1, -1, -1).reshape(-1, g * g, r * r)
        grouped = q.view(B, Y, g, X, g, H, D).permute(0, 1, 3, 5, 2, 4, 6).reshape(-1, g * g, D)
        scores = torch.baddbmm(scores, grouped, k.transpose(1, 2), alpha=D**-0.5)
        out = torch.bmm(scores.softmax(-1).to(v.dtype), v)
        out = out.view(B, Y, X, H, g, g, D).permute(0, 1, 4, 2, 5, 3, 6)
        return out.reshape(B, Y * g, X * g, C)[:, :height, :width]
    rows = []
    for top in range(0, Y * g, g):
        row = []
        y0, y1 = max(0, top - margin), min(height, top + g + margin)
        for left in range(0, X * g, g):
            x0, x1 = max(0, left - margin), min(width, left + g + margin)
            keys = (y1 - y0) * (x1 - x0)
            k, v = kv[:, y0:y1, x0:x1].reshape(B, keys, 2, H, D).permute(2, 0, 3, 1, 4)
            y, x = y0 - top + margin, x0 - left + margin
            some = bias[:, :, y : y + y1 - y0, x : x + x1 - x0].reshape(H, g * g, keys)
            group = q[:, top : top + g, left : left + g].reshape(B, g * g, H, D).transpose(1, 2)
            out = F.scaled_dot_product_attention(group, k, v, attn_mask=some[None])
            row.append(out.transpose(1, 2).reshape(B, g, g, C))
        rows.append(torch.cat(row, 2))
    return torch.cat(rows, 1)[:, :height, :width]


class DenseAttention(SparseAttention):
    """The layer without its predictor: all candidates are keys."""

    at_once = True

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        normed = self.norm(x.permute(0, 2, 3, 1))
        out = dense_attention(
            self.q(normed),
            self.kv(normed),
            self.slopes,
            self.group_size,
            self.region_size,
            at_once=self.at_once,
        )
        projected: Tensor = self.out(out)
        return projected.permute(0, 3, 1, 2)


SPARSE = "top-64 of 32x32 per 8x8 group"
DENSE = "dense 32x32 per 8x8 group"
DENSE_PARTS = "dense 32x32, group by group"
WINDOW = "dense 8x8 windows"
PER_QUERY = "top-64 of 33x33 per query"


def operator_layers(channels: int = 64, heads: int = 4) -> dict[str, SparseAttention]:
    """The attention layer and what it is compared with, under the names of the report."""

    def make(kind: type[SparseAttention], group: int, region: int, top_k: int) -> SparseAttention:
        torch.manual_seed(0)
        return kind(
            channels,
            heads,
            channels // heads,
            group,
            region,
            top_k,
            predictor_dim=8,
            predictor_slope=0.1,
        )

    parts = make(DenseAttention, 8, 32, 1024)
    assert isinstance(parts, DenseAttention)
    parts.at_once = False
    return {
        SPARSE: make(SparseAttention, 8, 32, 64),
        DENSE: make(DenseAttention, 8, 32, 1024),
        DENSE_PARTS: parts,
        WINDOW: make(DenseAttention, 8, 8, 64),
        PER_QUERY: make(SparseAttention, 1, 33, 64),
    }
