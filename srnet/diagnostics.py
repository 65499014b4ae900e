"""What the attention layers do on a real image, in numbers: one set of measurements for the report and for training.

Everything is measured from outside, by taking a layer's own input, projections and output apart. The scale that a
layer applies to its scores is fitted to that output rather than read from the code, so that a wrong one shows.

Axes as in ``srnet.attention``: G groups, N queries of a group, H heads, K selected keys, M candidates, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srnet.attention import SparseAttention, pixel_index, predict_relevance, query_distance
from srnet.network import SRNet

SCORE_LIMIT = 5.0
"""Scaled scores beyond this in magnitude count as saturating: e^5 is a ratio of 148 between two keys."""

_FIT_GROUPS, _RECALL_GROUPS, _CHUNK = 24, 64, 8
_GRADIENT_SIDE = 96  # pixels of the feature map that the gradient is measured on
_BINS = 40


@dataclass(frozen=True)
class ProjectionStatistics:
    """Root mean square of the queries and keys of one layer."""

    layer: str
    q_std: float
    k_std: float

    @property
    def unit_variance(self) -> bool:
        """True when both are within 10 % of 1, as scores divided by sqrt(head_dim) presume at initialisation."""
        return abs(self.q_std - 1) <= 0.1 and abs(self.k_std - 1) <= 0.1


@dataclass(frozen=True, kw_only=True)
class HeadStatistics:
    """One head of one layer. Means are over all queries of the image."""

    slope: float
    """Score lost per pixel of distance."""
    q_mean: float
    q_std: float
    k_mean: float
    k_std: float
    v_mean: float
    v_std: float
    score_std: float
    """Standard deviation of the scaled scores, without bias."""
    beyond_limit: float
    """Share of scaled scores beyond +-SCORE_LIMIT."""
    largest_probability: float
    """Mean of a query's largest probability."""
    saturated: float
    """Share of queries that give one key more than 0.99."""
    entropy: float
    """Entropy as a share of its maximum log(keys): 0 one key, 1 all alike."""
    distance: float
    """Mean distance attended, pixels."""


@dataclass(frozen=True, kw_only=True)
class AttentionMass:
    """Share of full attention that as many keys as a group keeps hold; 1 is all of it.

    Full attention is that of all candidates, by q.k and distance: the predictor's relevance takes no part in it.
    """

    selected: float
    """The predictor's keys."""
    oracle: float
    """The best list of keys for the group, all its queries and heads together."""
    mean_query: float
    """Those with the best score for the mean of the group's queries, in the first head."""
    nearest: float
    """The nearest keys."""
    chance: float
    """Keys drawn at random."""
    selected_of_own: float
    """The predictor's keys, of the layer's own attention if it kept all candidates, relevance included."""


@dataclass(frozen=True, kw_only=True)
class LayerStatistics:
    """One attention layer."""

    layer: str
    head_dim: int
    top_k: int
    """Keys that a group keeps."""
    candidates: int
    """Keys that it chooses from."""
    scale: float | None
    """Factor on the scores as fitted to the layer's output; None where scores make no difference to it."""
    scale_misfit: float
    """Relative error of the layer's output against softmax(scale q.k + bias) v; 0 where the form holds."""
    q_rms: float
    k_rms: float
    """Root mean squares over all heads; 1 is what the scale presumes at initialisation."""
    heads: tuple[HeadStatistics, ...]
    gradients: dict[str, float]
    """Gradient of a random projection of the layer's output, for q, k, v and predictor: norm of the gradient times
    norm of the weight, over the norm of the output."""
    never_selected: float
    """Share of pixels that no group selects."""
    relevance_std: float
    """Standard deviation of the predictor's relevance over a group's candidates, without the distance term."""
    nearest_share: float
    """Share of the selected keys that are no farther than as many nearest keys reach."""
    recall: float
    """Share of the oracle's keys that are selected. The oracle keeps those with most attention when all candidates
    are scored."""
    recall_nearest: float
    """The same for the nearest keys."""
    recall_chance: float
    """The same for keys drawn at random."""
    mass: AttentionMass
    contribution: float
    """Root mean square of what the layer adds, over that of its input."""


@dataclass(frozen=True)
class LayerMaps:
    """What pictures are drawn from; positions are LR pixels of the examined image."""

    row: Tensor
    """Of the selected keys, (Y, X, K)."""
    column: Tensor
    """Of the selected keys, (Y, X, K)."""
    attention: Tensor
    """Mean probability over a group's queries, (Y, X, H, K); 0 for keys outside the image."""
    histograms: dict[str, tuple[float, float, Tensor]] = field(default_factory=dict)
    """Name to lowest value, highest value and shares (H, bins)."""


@dataclass(frozen=True)
class Examination:
    """Measurements of one layer."""

    statistics: LayerStatistics
    maps: LayerMaps


def attention_layers(network: SRNet) -> dict[str, SparseAttention]:
    """The attention layers by name, in the order of the forward pass."""
    return {n: m for n, m in network.named_modules() if isinstance(m, SparseAttention)}


@torch.no_grad()
def projection_statistics(network: SRNet, lr: Tensor) -> list[ProjectionStatistics]:
    """Measures q and k of every attention layer.

    Args:
        network: The network; left as it was.
        lr: RGB in [0, 1], (B, 3, H, W).

    Returns:
        One entry per attention layer, in order; values are root mean squares about 0, which is what a score's
        variance depends on.
    """
    found = []
    layers = attention_layers(network)
    for name, (x, _) in _record(network, lr).items():
        layer = layers[name]
        normed = layer.norm(x.permute(0, 2, 3, 1))
        k, _v = layer.kv(normed).chunk(2, dim=-1)
        found.append(ProjectionStatistics(name, _rms(layer.q(normed)), _rms(k)))
    return found


@torch.no_grad()
def examine(network: SRNet, lr: Tensor, seed: int = 0) -> list[Examination]:
    """Measures every attention layer on an image.

    Memory grows with the image; 256 x 256 pixels and 64 keys take some 200 MB.

    Args:
        network: The network, in float32; left as it was.
        lr: RGB in [0, 1], (1, 3, H, W).
        seed: Seed of the random projection that gradients are taken of.

    Returns:
        One examination per attention layer, in order.
    """
    layers = attention_layers(network)
    return [_examine(n, layers[n], x, out, seed) for n, (x, out) in _record(network, lr).items()]


@contextmanager
def _tapped(layer: SparseAttention) -> Iterator[list[Tensor]]:
    """Collects what the layer hands to its output projection, (B, H, W, C)."""
    taken: list[Tensor] = []

    def take(module: nn.Module, inputs: tuple[Tensor]) -> None:
        taken.append(inputs[0])

    handle = layer.out.register_forward_pre_hook(take)
    try:
        yield taken
    finally:
        handle.remove()


def _record(network: SRNet, lr: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Input (B, C, H, W) and attention output (B, H, W, C) of every attention layer on an image."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    handles = []
    for name, layer in attention_layers(network).items():
        inputs: list[Tensor] = []

        def keep(m: nn.Module, i: tuple[Tensor], inputs: list[Tensor] = inputs) -> None:
            inputs.append(i[0])

        def close(
            m: nn.Module, i: tuple[Tensor], name: str = name, inputs: list[Tensor] = inputs
        ) -> None:
            found[name] = (inputs.pop(), i[0])

        handles.append(layer.register_forward_pre_hook(keep))
        handles.append(layer.out.register_forward_pre_hook(close))
    try:
        network(lr)
    finally:
        for handle in handles:
            handle.remove()
    return found


@dataclass(frozen=True)
class _Parts:
    """Operands of some groups of a layer."""

    q_GHND: Tensor
    k_GHKD: Tensor
    v_GHKD: Tensor
    bias_GHNK: Tensor
    """Relevance and locality; minus infinity for keys outside the image."""
    distance_GNK: Tensor
    real_GN: Tensor
    """False for queries outside the image."""

    def probability(self, scale: float) -> Tensor:
        """Softmax over the keys, (G, H, N, K)."""
        return (self.scores() * scale + self.bias_GHNK).softmax(-1)

    def scores(self) -> Tensor:
        """q.k, (G, H, N, K)."""
        return self.q_GHND @ self.k_GHKD.transpose(-1, -2)

    def output(self, scale: float) -> Tensor:
        """Attention output of the queries inside the image, (queries, H, D)."""
        out = self.probability(scale) @ self.v_GHKD
        return out.transpose(1, 2)[self.real_GN]


class _Layer:
    """A layer's projections on one image, ready to be taken apart group by group."""

    def __init__(self, layer: SparseAttention, x: Tensor) -> None:
        self.layer = layer
        self.normed = layer.norm(x.permute(0, 2, 3, 1))  # (1, H, W, C)
        self.height, self.width = self.normed.shape[1:3]
        self.slopes = torch.as_tensor(layer.slopes, dtype=x.dtype, device=x.device)
        self.H = len(self.slopes)
        self.q = layer.q(self.normed)
        self.D = self.q.shape[-1] // self.H
        self.kv = layer.kv(self.normed)
        self.relevance, self.index = layer.select(self.normed)  # (1, Y, X, K)
        self.Y, self.X = self.index.shape[1:3]

    def grouped(self, x: Tensor) -> Tensor:
        """(1, H, W, C) to (G, N, C); pixels outside the image are 0."""
        g = self.layer.group_size
        x = F.pad(x, (0, 0, 0, self.X * g - self.width, 0, self.Y * g - self.height))
        return x.view(self.Y, g, self.X, g, -1).transpose(1, 2).reshape(-1, g * g, x.shape[-1])

    def parts(self, groups: Tensor, relevance: Tensor, index: Tensor) -> _Parts:
        """Operands of the given groups with keys of your choice; relevance and index are (1, Y, X, K)."""
        g, r = self.layer.group_size, self.layer.region_size
        pixel = pixel_index(index, self.height, self.width, g, r).flatten(0, 2)[groups]
        kv = self.kv.flatten(0, 2)[pixel].view(*pixel.shape, 2, self.H, self.D)  # (G, K, 2, H, D)
        k_GHKD, v_GHKD = kv.permute(2, 0, 3, 1, 4)
        q = self.grouped(self.q)[groups]
        q = q.view(*q.shape[:2], self.H, self.D).transpose(1, 2)
        distance = query_distance(index.flatten(0, 2)[groups], g, r, q.dtype)
        kept = relevance.flatten(0, 2)[groups][:, None, None]  # (G, 1, 1, K)
        bias = kept - self.slopes.view(-1, 1, 1) * distance[:, None]
        real = self.grouped(torch.ones_like(self.q[..., :1]))[groups][..., 0] > 0
        return _Parts(q, k_GHKD, v_GHKD, bias, distance, real)

    def spread(self, count: int) -> Tensor:
        """Indices of at most that many groups, evenly spread over the image."""
        G = self.Y * self.X
        return torch.linspace(0, G - 1, min(count, G), device=self.q.device).round().long()


def _examine(name: str, layer: SparseAttention, x: Tensor, out: Tensor, seed: int) -> Examination:
    parts = _Layer(layer, x)
    scale, misfit = _fit_scale(parts, out)
    used = scale if scale is not None else parts.D**-0.5
    heads, maps = _heads(parts, used)
    recall, mass = _recall(parts, used)
    q_rms, k_rms = _rms(parts.q), _rms(parts.kv.chunk(2, -1)[0])
    inside = torch.isfinite(parts.relevance[0])
    pixel = pixel_index(
        parts.index, parts.height, parts.width, layer.group_size, layer.region_size
    )[0]
    seen = len(set(pixel[inside].tolist()))
    added = layer.out(out)
    statistics = LayerStatistics(
        layer=name,
        head_dim=parts.D,
        top_k=parts.index.shape[-1],
        candidates=layer.region_size**2,
        scale=scale,
        scale_misfit=misfit,
        q_rms=q_rms,
        k_rms=k_rms,
        heads=heads,
        gradients=_gradients(layer, x, seed),
        never_selected=1 - seen / (parts.height * parts.width),
        relevance_std=recall["relevance_std"],
        nearest_share=recall["nearest_share"],
        recall=recall["selected"],
        recall_nearest=recall["nearest"],
        recall_chance=recall["chance"],
        mass=mass,
        contribution=_rms(added) / max(_rms(x), 1e-12),
    )
    return Examination(statistics, maps)


def _fit_scale(parts: _Layer, out: Tensor) -> tuple[float | None, float]:
    """The factor s for which softmax(s q.k + bias) v is nearest to the layer's output, and the relative error left."""
    groups = parts.spread(_FIT_GROUPS)
    some = parts.parts(groups, parts.relevance, parts.index)
    truth = parts.grouped(out)[groups][some.real_GN].view(-1, parts.H, parts.D)
    size = float(truth.square().mean().sqrt().clamp(min=1e-12))

    def error(log2: float) -> float:
        return float((some.output(2.0**log2) - truth).square().mean().sqrt()) / size

    # scores of 1e-4 move nothing, scores of 3000 are an argmax: the scale lies between
    spread = float(some.scores().std().clamp(min=1e-12))
    low, high = math.log2(1e-4 / spread), math.log2(3000 / spread)
    grid = [low + (high - low) * i / 40 for i in range(41)]
    errors = [error(s) for s in grid]
    best = min(range(len(grid)), key=errors.__getitem__)
    if max(errors) - min(errors) < 1e-3:
        return None, min(errors)
    a, b = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    ratio = (math.sqrt(5) - 1) / 2  # golden section
    c, d = b - ratio * (b - a), a + ratio * (b - a)
    error_c, error_d = error(c), error(d)
    for _ in range(20):
        if error_c < error_d:
            b, d, error_d = d, c, error_c
            c = b - ratio * (b - a)
            error_c = error(c)
        else:
            a, c, error_c = c, d, error_d
            d = a + ratio * (b - a)
            error_d = error(d)
    return 2.0 ** ((a + b) / 2), min(error_c, error_d)


def _heads(parts: _Layer, scale: float) -> tuple[tuple[HeadStatistics, ...], LayerMaps]:
    """Statistics of each head over all groups, and the maps of the layer."""
    H, Y, X = parts.H, parts.Y, parts.X
    collected: dict[str, list[Tensor]] = {
        n: [] for n in ("score", "largest", "entropy", "distance")
    }
    attention = []
    for groups in torch.split(torch.arange(Y * X, device=parts.q.device), 64):
        some = parts.parts(groups, parts.relevance, parts.index)
        real = some.real_GN
        probability = some.probability(scale)  # (G, H, N, K)
        exists = torch.isfinite(some.bias_GHNK)
        keys = exists.sum(-1).clamp(min=2)
        entropy = torch.special.entr(probability).sum(-1) / keys.log()
        distance = (probability * some.distance_GNK[:, None]).sum(-1)
        for what, value in (
            ("largest", probability.amax(-1)),
            ("entropy", entropy),
            ("distance", distance),
        ):
            collected[what].append(value.transpose(1, 2)[real])  # (queries, H)
        score = (some.scores() * scale).permute(0, 2, 3, 1)  # (G, N, K, H)
        usable = exists[:, 0] & real[..., None]  # (G, N, K)
        collected["score"].append(score[usable])  # (pairs, H)
        share = real[:, None, :, None] / real.sum(1).clamp(min=1)[:, None, None, None]
        attention.append((probability * share).sum(2))  # (G, H, K)
    score, largest, entropy, distance = (torch.cat(v) for v in collected.values())

    q = parts.q.view(-1, H, parts.D)
    k, v = parts.kv.view(-1, 2, H, parts.D).unbind(1)
    heads = tuple(
        HeadStatistics(
            slope=float(parts.slopes[h]),
            q_mean=float(q[:, h].mean()),
            q_std=_std(q[:, h]),
            k_mean=float(k[:, h].mean()),
            k_std=_std(k[:, h]),
            v_mean=float(v[:, h].mean()),
            v_std=_std(v[:, h]),
            score_std=_std(score[:, h]),
            beyond_limit=float((score[:, h].abs() > SCORE_LIMIT).float().mean()),
            largest_probability=float(largest[:, h].mean()),
            saturated=float((largest[:, h] > 0.99).float().mean()),
            entropy=float(entropy[:, h].mean()),
            distance=float(distance[:, h].mean()),
        )
        for h in range(H)
    )
    g, r = parts.layer.group_size, parts.layer.region_size
    pixel = pixel_index(parts.index, parts.height, parts.width, g, r)[0]
    reach = float(max(1.0, float(distance.max())))
    maps = LayerMaps(
        row=pixel.div(parts.width, rounding_mode="floor"),
        column=pixel.remainder(parts.width),
        attention=torch.cat(attention).view(Y, X, H, -1),
        histograms={
            "scaled score": _histogram(score, -10, 10),
            "largest probability": _histogram(largest, 0, 1),
            "entropy, share of maximum": _histogram(entropy, 0, 1),
            "distance attended, pixels": _histogram(distance, 0, reach),
        },
    )
    return heads, maps


def _histogram(values: Tensor, low: float, high: float) -> tuple[float, float, Tensor]:
    """Shares of each column's values per bin, (H, bins); values outside count in the outermost bins."""
    bins = ((values - low) / (high - low) * _BINS).long().clamp(0, _BINS - 1)
    counts = torch.stack([torch.bincount(column, minlength=_BINS) for column in bins.T])
    return low, high, counts / max(1, len(values))


def _recall(parts: _Layer, scale: float) -> tuple[dict[str, float], AttentionMass]:
    """How well the predictor's choice agrees with the attention that all candidates would get."""
    layer, K = parts.layer, parts.index.shape[-1]
    g, r = layer.group_size, layer.region_size
    pq, pk = layer.predictor(parts.normed).permute(0, 3, 1, 2).chunk(2, dim=1)
    content = predict_relevance(pq, pk, g, r, 0.0)  # (1, Y, X, M)
    relevance = predict_relevance(pq, pk, g, r, layer.predictor_slope)
    every = torch.arange(r * r, device=content.device).expand_as(content)
    # relevance 0 for candidates that exist: the oracle knows q.k and the distance, not the predictor
    plain = torch.zeros_like(content).masked_fill(content.isinf(), -math.inf)
    axis = torch.arange(r, device=content.device) - (r - 1) / 2
    to_centre = torch.hypot(axis[:, None], axis[None, :]).flatten()

    sums = dict.fromkeys(("selected", "nearest", "chance", "nearest_share"), 0.0)
    held = dict.fromkeys(
        ("selected", "oracle", "mean_query", "nearest", "chance", "selected_of_own"), 0.0
    )
    oracle_keys, total = 0, 0.0
    spreads = []
    for groups in torch.split(parts.spread(_RECALL_GROUPS), _CHUNK):
        some = parts.parts(groups, plain, every)
        exists = torch.isfinite(plain.flatten(0, 2)[groups])  # (G, M)
        mass = some.probability(scale) * some.real_GN[:, None, :, None]
        mass = mass.sum((1, 2)).masked_fill(~exists, -1.0)
        oracle = _mark(mass.topk(K).indices, exists)
        far = to_centre.expand_as(exists).masked_fill(~exists, math.inf)
        ranked = far.topk(K, largest=False)
        nearest = _mark(ranked.indices, exists)
        near = exists & (far <= ranked.values.amax(1, keepdim=True))  # with ties
        chosen = _mark(parts.index.flatten(0, 2)[groups], exists)
        real = some.real_GN[..., None]
        mean_q = (some.q_GHND[:, 0] * real).sum(1, keepdim=True) / real.sum(1, keepdim=True)
        for_mean = (mean_q @ some.k_GHKD[:, 0].transpose(1, 2))[:, 0] * scale  # (G, M)
        for_mean = for_mean - parts.slopes[0] * to_centre
        mean_query = _mark(for_mean.masked_fill(~exists, -math.inf).topk(K).indices, exists)
        oracle_keys += int(oracle.sum())
        sums["selected"] += float((chosen & oracle).sum())
        sums["nearest"] += float((nearest & oracle).sum())
        sums["nearest_share"] += float((near & chosen).sum())
        sums["chance"] += float((oracle.sum(1).square() / exists.sum(1)).sum())
        own = parts.parts(groups, relevance, every).probability(scale)
        own = (own * some.real_GN[:, None, :, None]).sum((1, 2))
        mass = mass.clamp(min=0)
        total += float(mass.sum())
        held["selected"] += float(mass[chosen].sum())
        held["oracle"] += float(mass[oracle].sum())
        held["mean_query"] += float(mass[mean_query].sum())
        held["nearest"] += float(mass[nearest].sum())
        held["chance"] += float((mass.sum(1) * oracle.sum(1) / exists.sum(1)).sum())
        held["selected_of_own"] += float(own[chosen].sum())
        values = content.flatten(0, 2)[groups].masked_fill(~exists, math.nan)
        spreads.append((values - values.nanmean(1, keepdim=True)).square().nanmean(1).sqrt())
    result = {name: value / max(1, oracle_keys) for name, value in sums.items()}
    shares = {name: value / max(1e-12, total) for name, value in held.items()}
    return result | {"relevance_std": float(torch.cat(spreads).mean())}, AttentionMass(**shares)


def _mark(index: Tensor, exists: Tensor) -> Tensor:
    """Indices (G, K) as a mask (G, M) of the candidates that exist."""
    return torch.zeros_like(exists).scatter_(1, index, True) & exists


def _gradients(layer: SparseAttention, x: Tensor, seed: int) -> dict[str, float]:
    """Gradients of a random projection of the attention output; see LayerStatistics.gradients.

    The training loss would not do: its gradient is zero as long as the output projection is, as in a fresh network.
    """
    g = layer.group_size
    top, left = (max(0, (n - _GRADIENT_SIDE) // 2 // g * g) for n in x.shape[2:])
    x = x[:, :, top : top + _GRADIENT_SIDE, left : left + _GRADIENT_SIDE]
    weights = {n: p.detach().clone() for n, p in layer.named_parameters()}
    wanted = [weights[n].requires_grad_() for n in ("q.weight", "kv.weight", "predictor.weight")]
    with torch.enable_grad(), _tapped(layer) as taken:
        torch.func.functional_call(layer, weights, (x.detach(),))
        out = taken[0]
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(out.shape, generator=generator).to(out)
        q, kv, predictor = torch.autograd.grad(
            (out * direction).sum(), wanted, allow_unused=True, materialize_grads=True
        )
    size = float(out.detach().norm().clamp(min=1e-12))
    pairs = {
        "q": (q, weights["q.weight"]),
        "k": (kv.chunk(2)[0], weights["kv.weight"].chunk(2)[0]),
        "v": (kv.chunk(2)[1], weights["kv.weight"].chunk(2)[1]),
        "predictor": (predictor, weights["predictor.weight"]),
    }
    return {n: float(d.norm()) * float(w.detach().norm()) / size for n, (d, w) in pairs.items()}


def _std(x: Tensor) -> float:
    return float(x.float().std(correction=0)) if x.numel() else 0.0


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())
