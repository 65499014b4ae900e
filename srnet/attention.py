"""Adaptive sparse self-attention over pixels: predict relevance, keep the top-k keys, score only those.

Queries come in groups of g x g pixels on a grid anchored at the image origin. A light predictor ranks the r x r
pixels around a group; the K best become the keys of all queries and heads of that group. Scores are divided by
sqrt(head_dim), since a dot product of head_dim unit-variance terms has that standard deviation however many keys are
kept, and carry ALiBi-like slopes (Press et al., 2022) on the true distances of the gathered keys. The predicted
relevance is added to the score, which gives the predictor its gradient.

"Adaptive Sparse Self-Attention for Efficient Image Super-resolution and Beyond" (Pan et al., TPAMI 2026) is another
mechanism under a similar name: ReLU on a channel-by-channel map, with no predictor and no key selection.

Axes: B batch, C channels, Y and X rows and columns of groups, G = Y * X, N = g * g queries of a group, M = r * r
candidates, K keys, H heads, D head_dim, P predictor channels. Tensors are named by their axes unless they are BCHW.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Without autograd, which keeps everything anyway, a CPU takes this many groups at a time: their scores stay in the
# cache between the steps that make and use them. A GPU wants few large kernels.
_GROUPS_AT_ONCE = 32


def alibi_slopes(num_heads: int) -> tuple[float, ...]:
    """Geometric slopes 2^(-8 h / num_heads), h = 1 .. num_heads.

    >>> alibi_slopes(2)
    (0.0625, 0.00390625)
    """
    return tuple(2.0 ** (-8.0 * (h + 1) / num_heads) for h in range(num_heads))


# Cached tables are made outside inference mode, whatever mode the first caller is in: tensors made inside it could
# never take part in a backward pass later.
@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _distance_to_centre(region_size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Distance in pixels of each candidate to the group's centre (r, r), equal for every group."""
    axis = torch.arange(region_size, dtype=torch.float64) - (region_size - 1) / 2
    return torch.hypot(axis[:, None], axis[None, :]).to(device, dtype)


@lru_cache(maxsize=32)
@torch.inference_mode(False)
def _outside(
    height: int, width: int, group_size: int, region_size: int, device: torch.device
) -> Tensor:
    """True where a candidate lies outside the image, of shape (Y, X, r, r)."""
    margin = (region_size - group_size) // 2

    def line(length: int) -> Tensor:
        starts = torch.arange(0, length, group_size, device=device) - margin
        position = starts[:, None] + torch.arange(region_size, device=device)
        return (position < 0) | (position >= length)

    return line(height)[:, None, :, None] | line(width)[None, :, None, :]


def predict_relevance(
    pq: Tensor, pk: Tensor, group_size: int, region_size: int, slope: float
) -> Tensor:
    """Relevance of every candidate pixel for every query group.

    <mean of pq over the group, pk of the candidate> / sqrt(P) - slope * distance to the group's centre.

    Args:
        pq: Predictor's query projection (B, P, H, W).
        pk: Predictor's key projection (B, P, H, W).
        group_size: Side g of a group.
        region_size: Side r of the square of candidates, g plus an even number.
        slope: Relevance lost per pixel of distance.

    Returns:
        (B, Y, X, M) with Y = ceil(H / g), X = ceil(W / g); minus infinity for candidates outside the image.
    """
    _, P, height, width = pk.shape
    g, r = group_size, region_size
    below, right = -height % g, -width % g
    margin = (r - g) // 2
    # ceil_mode with padding excluded: a group cut by the border is averaged over the pixels it has
    mean_q = F.avg_pool2d(pq, g, ceil_mode=True, count_include_pad=False) if g > 1 else pq
    keys = F.pad(pk, (margin, margin + right, margin, margin + below))
    windows = keys.unfold(2, r, g).unfold(3, r, g)  # (B, P, Y, X, r, r), a view
    # row by row: all candidates of all groups at once would be a copy (r / g)^2 times the size of the map
    rows = [
        torch.einsum("bpx,bpxij->bxij", q, window)
        for q, window in zip(mean_q.unbind(2), windows.unbind(2), strict=True)
    ]
    score = torch.stack(rows, dim=1) / math.sqrt(P)
    score = score - slope * _distance_to_centre(r, pk.device, score.dtype)
    score = score.masked_fill(_outside(height, width, g, r, pk.device), -math.inf)
    return score.flatten(3)  # (B, Y, X, M)


def select_top_k(relevance: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The K most relevant candidates of each group; K is at most the number of candidates.

    Returns:
        Relevance and index into M, both (B, Y, X, K). A group with fewer than K candidates inside the image gets
        some outside it, with relevance minus infinity, which takes no part in the attention.
    """
    value, index = relevance.topk(min(top_k, relevance.shape[-1]), dim=-1, sorted=False)
    return value, index


def pixel_index(
    index: Tensor, height: int, width: int, group_size: int, region_size: int
) -> Tensor:
    """Turns candidate indices (B, Y, X, K) into indices of pixels of the flattened batch of maps (B * H * W)."""
    B, Y, X, _ = index.shape
    margin = (region_size - group_size) // 2
    device = index.device
    top = torch.arange(Y, device=device).view(Y, 1, 1) * group_size - margin
    left = torch.arange(X, device=device).view(X, 1) * group_size - margin
    # candidates outside the image carry relevance -inf; clamping only keeps their index legal
    row = (index.div(region_size, rounding_mode="floor") + top).clamp(0, height - 1)
    column = (index.remainder(region_size) + left).clamp(0, width - 1)
    first = torch.arange(B, device=device).view(B, 1, 1, 1) * (height * width)
    return first + row * width + column


def query_distance(index: Tensor, group_size: int, region_size: int, dtype: torch.dtype) -> Tensor:
    """Distance in pixels between each query of a group and each selected key.

    Args:
        index: Index of the keys among the candidates (G, K).
        group_size: Side g of a group.
        region_size: Side r of the square of candidates.
        dtype: Type of the result.

    Returns:
        (G, N, K).
    """
    margin = (region_size - group_size) // 2
    row = (index.div(region_size, rounding_mode="floor") - margin).to(dtype)[:, None]  # (G, 1, K)
    column = (index.remainder(region_size) - margin).to(dtype)[:, None]
    query = torch.arange(group_size, device=index.device, dtype=dtype)[:, None]  # (g, 1)
    squared = (row - query).square()[:, :, None] + (column - query).square()[
        :, None
    ]  # (G, g, g, K)
    return squared.sqrt_().flatten(1, 2)


def _bias(
    kept_G1K: Tensor, distance_GNK: Tensor, slopes: Sequence[float], scratch: Tensor | None
) -> Tensor:
    """Relevance minus slope times distance for each head, (G, H, N, K); in scratch, if given."""
    if scratch is None:
        return torch.stack([torch.sub(kept_G1K, distance_GNK, alpha=s) for s in slopes], dim=1)
    bias = scratch[: len(kept_G1K)]
    for head, slope in enumerate(slopes):
        torch.sub(kept_G1K, distance_GNK, alpha=slope, out=bias[:, head])
    return bias


def _attend(q_GHND: Tensor, k_GHKD: Tensor, v_GHKD: Tensor, bias_GHNK: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D) + bias) v; without autograd the bias is overwritten."""
    scale = q_GHND.shape[-1] ** -0.5
    exact = q_GHND.device.type == "cpu" and q_GHND.dtype in (torch.float32, torch.float64)
    if not bias_GHNK.requires_grad and not exact:
        return F.scaled_dot_product_attention(
            q_GHND, k_GHKD, v_GHKD, attn_mask=bias_GHNK, scale=scale
        )
    # No fused kernel gives the bias a gradient. On a CPU SDPA multiplies these small matrices one by one, which threads
    # hardly speed up; batched products they do.
    G, H, N, K = bias_GHNK.shape
    q, k, v = (t.reshape(G * H, t.shape[2], -1) for t in (q_GHND, k_GHKD, v_GHKD))
    score = bias_GHNK.view(G * H, N, K)
    if torch.is_grad_enabled():
        score = torch.baddbmm(score, q, k.transpose(1, 2), alpha=scale).softmax(-1).to(v.dtype)
    else:
        score = score.baddbmm_(q, k.transpose(1, 2), alpha=scale)
        score = torch.softmax(score, -1, out=score)
    return torch.bmm(score, v).view(G, H, N, -1)


def sparse_attention(
    q: Tensor,
    kv: Tensor,
    relevance: Tensor,
    index: Tensor,
    slopes: Sequence[float],
    group_size: int,
    region_size: int,
) -> Tensor:
    """Attention of each query group to its selected keys.

    Args:
        q: Queries (B, H, W, C), channels in the order (head, head_dim).
        kv: Keys and values side by side (B, H, W, 2C).
        relevance: Relevance of the selected keys (B, Y, X, K); minus infinity for keys that do not exist.
        index: Their index among the candidates (B, Y, X, K).
        slopes: Score lost per pixel of distance, per head.
        group_size: Side g of a group.
        region_size: Side r of the square of candidates.

    Returns:
        (B, H, W, C).
    """
    B, height, width, C = q.shape
    _, Y, X, K = index.shape
    g, N, H = group_size, group_size * group_size, len(slopes)
    G, D = B * Y * X, C // H

    if width % g or height % g:  # F.pad copies even when there is nothing to add
        q = F.pad(q, (0, 0, 0, X * g - width, 0, Y * g - height))
    q_GNHD = q.reshape(B, Y, g, X, g, C).transpose(2, 3).reshape(G, N, H, D)
    rows_2HD = kv.reshape(B * height * width, 2, H, D)
    flat = pixel_index(index, height, width, g, region_size).reshape(G * K)

    autograd = torch.is_grad_enabled()
    groups = _GROUPS_AT_ONCE if q.device.type == "cpu" and not autograd else G
    scratch = None if autograd else relevance.new_empty(min(groups, G), H, N, K)
    parts: list[Tensor] = []
    for some_q, some_flat, some_index, kept in zip(
        torch.split(q_GNHD, groups),
        torch.split(flat, groups * K),
        torch.split(index.reshape(G, K), groups),
        torch.split(relevance.reshape(G, 1, K), groups),
        strict=True,
    ):
        k_GHKD, v_GHKD = (
            rows_2HD.index_select(0, some_flat).view(-1, K, 2, H, D).permute(2, 0, 3, 1, 4)
        )
        distance_GNK = query_distance(some_index, g, region_size, relevance.dtype)
        bias_GHNK = _bias(kept, distance_GNK, slopes, scratch)
        out_GHND = _attend(some_q.transpose(1, 2), k_GHKD, v_GHKD, bias_GHNK.to(q.dtype))
        parts.append(out_GHND.transpose(1, 2).reshape(-1, N, C))

    out = torch.cat(parts).view(B, Y, X, g, g, C).transpose(2, 3).reshape(B, Y * g, X * g, C)
    return out[:, :height, :width]


class SparseAttention(nn.Module):
    """Norm, sparse attention and output projection; the caller adds the residual.

    At initialisation q and k have unit variance (orthogonal projections of a normalised feature) and the output is
    zero, so that a trained trunk is unchanged when the layer is added to it. Keys start with the projections of the
    queries, in the predictor too: similar pixels attend to each other, as in non-local means (Buades et al., 2005),
    and the predictor chooses what the scores will favour.

    Args:
        dim: Channels C.
        num_heads: Heads H.
        head_dim: Channels D of a head.
        group_size: Side g of a query group in pixels.
        region_size: Side r of the square of candidates in pixels.
        top_k: Keys K kept for a group.
        predictor_dim: Channels P of the predictor.
        predictor_slope: Relevance lost per pixel of distance.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        head_dim: int,
        group_size: int,
        region_size: int,
        top_k: int,
        predictor_dim: int,
        predictor_slope: float,
    ) -> None:
        super().__init__()
        self.group_size = group_size
        self.region_size = region_size
        self.top_k = top_k
        self.predictor_slope = predictor_slope
        self.norm = nn.LayerNorm(dim)
        self.q = nn.Linear(dim, num_heads * head_dim, bias=False)
        self.kv = nn.Linear(dim, 2 * num_heads * head_dim, bias=False)
        self.predictor = nn.Linear(dim, 2 * predictor_dim, bias=False)
        self.out = nn.Linear(num_heads * head_dim, dim)
        self.slopes = alibi_slopes(num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Orthogonal projections, the same for keys as for queries, zero output."""
        with torch.no_grad():
            key, value = self.kv.weight.chunk(2)
            predictor_query, predictor_key = self.predictor.weight.chunk(2)
            for weight in (self.q.weight, value, predictor_query):
                nn.init.orthogonal_(weight)
            key.copy_(self.q.weight)
            predictor_key.copy_(predictor_query)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def extra_repr(self) -> str:
        """The settings that no sub-module shows."""
        return f"group_size={self.group_size}, region_size={self.region_size}, top_k={self.top_k}"

    def select(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        """Relevance and index (B, Y, X, K) of the keys selected for a normalised feature (B, H, W, C)."""
        pq, pk = self.predictor(normed).permute(0, 3, 1, 2).chunk(2, dim=1)
        relevance = predict_relevance(
            pq, pk, self.group_size, self.region_size, self.predictor_slope
        )
        return select_top_k(relevance, self.top_k)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        normed = self.norm(x.permute(0, 2, 3, 1))  # (B, H, W, C)
        relevance, index = self.select(normed)
        out = sparse_attention(
            self.q(normed),
            self.kv(normed),
            relevance,
            index,
            self.slopes,
            self.group_size,
            self.region_size,
        )
        projected: Tensor = self.out(out)
        return projected.permute(0, 3, 1, 2)

    def reach(self) -> int:
        """Largest distance in pixels (Chebyshev) between an output pixel and an input pixel it depends on."""
        return (self.region_size - self.group_size) // 2 + self.group_size - 1
