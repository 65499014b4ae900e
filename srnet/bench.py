"""Times networks, the attention operator and other projects' networks against what the machine can do at best.

Everything runs in one process and in rounds: each round calls every case once, the next round in reverse order, so
that a slow minute of the machine hits all of them alike. Reported are medians. The roofline, a matrix multiplication
in the same precision with the same threads, is one more case of every round.

Axes as in ``srnet.attention``.
"""

from __future__ import annotations

import ctypes
import math
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from srnet import __version__
from srnet.attention import SparseAttention, query_distance
from srnet.device import has_native_bf16, select_device
from srnet.network import SRNet

Section = Literal["roofline", "networks", "peers", "operator", "growth"]
Direction = Literal["forward", "backward"]

SECTIONS: tuple[Section, ...] = ("networks", "peers", "operator", "growth")
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")

_MATRIX = 1024  # side of the roofline's matrices: larger ones are no faster per operation
_AGAIN = 1.0  # seconds; a case that is faster is called once more for its memory, when all its tables exist


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to time.

    Attributes:
        section: Part of the report.
        name: Row of the report.
        run: Takes what `prepare` returned; only this is timed.
        prepare: Called before each run, untimed: the forward pass of a backward pass.
        direction: What `run` computes.
        height: Of the input, pixels.
        width: Of the input, pixels.
        pixels: Output pixels of one run, 0 where that has no meaning.
        parameters: Of the network, None where that has no meaning.
        precision: "fp32" or "bf16" (autocast).
        threads: Threads of PyTorch.
        psnr: Name of a test set to PSNR-Y in dB.
        published: Whether `psnr` is what the authors published, rather than ours.
    """

    section: Section
    name: str
    run: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None
    direction: Direction = "forward"
    height: int
    width: int
    pixels: int
    parameters: int | None = None
    precision: str = "fp32"
    threads: int = 1
    psnr: dict[str, float] = field(default_factory=dict)
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class Result:
    """What was measured of one case."""

    section: Section
    name: str
    direction: Direction
    precision: str
    threads: int
    height: int
    width: int
    pixels: int
    """Output pixels."""
    parameters: int | None
    seconds: float
    """Median."""
    runs: int
    """Timed runs that the median is of."""
    megapixels_per_second: float | None
    """Millions of output pixels a second."""
    gflop: float
    """Multiplications and additions of matrix products and convolutions, 1e9; nothing else is counted."""
    gflop_per_second: float
    roofline_share: float
    """Of the speed of the matrix multiplication in the same precision with the same threads."""
    peak_bytes: int | None
    """Memory beyond that of weights and input; None where it cannot be measured."""
    psnr: dict[str, float]
    published: bool


@dataclass(frozen=True)
class Bench:
    """Everything that one run measured."""

    results: list[Result]
    protocol: dict[str, Any]
    notes: list[str]
    """What was left out, and why."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps."""
        return {
            "protocol": self.protocol,
            "notes": self.notes,
            "results": [asdict(result) for result in self.results],
            "ratios": [
                {"precision": precision, "threads": threads, **found}
                for (precision, threads), found in self.ratios().items()
            ],
        }

    def ratios(self) -> dict[tuple[str, int], dict[str, float]]:
        """`ratios` of the rows of each precision and thread count."""
        settings = dict.fromkeys((r.precision, r.threads) for r in self.results)
        return {
            key: ratios([r for r in self.results if (r.precision, r.threads) == key])
            for key in settings
        }


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
        return kind(channels, heads, group, region, top_k, predictor_dim=8, predictor_slope=0.1)

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


@dataclass(frozen=True)
class Peer:
    """Another project's network in the shape that its authors published for x4.

    Attributes:
        name: As in its paper.
        build: Makes it, with random weights.
        psnr: Published PSNR-Y, dB, x4.
    """

    name: str
    build: Callable[[], nn.Module]
    psnr: dict[str, float]


def peers() -> list[Peer]:
    """Networks of other projects, as spandrel builds them.

    PSNR is that of each paper's or repository's own table; that of SPAN-28 was measured with its public weights.

    Raises:
        ImportError: spandrel is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of spandrel's dependencies
        from spandrel.architectures import ATD, CRAFT, DAT, HAT, SAFMN, SPAN, OmniSR, SwinIR

    def span(channels: int) -> nn.Module:
        network: nn.Module = SPAN.SPAN(
            num_in_ch=3, num_out_ch=3, feature_channels=channels, upscale=4
        )
        # It merges the branches of its convolutions anew in each call: once is enough, as in its authors' speed test.
        module: Any
        for module in network.eval().modules():
            if hasattr(module, "update_params"):
                module.update_params()
                module.update_params = lambda: None
                del module.sk, module.conv
        return network

    four, six = [6] * 4, [6] * 6
    direct = {"upscale": 4, "upsampler": "pixelshuffledirect"}
    return [
        Peer("SPAN-28", lambda: span(28), {"Set5": 31.74, "Set14": 28.40}),
        Peer("SPAN-48", lambda: span(48), {"Set14": 28.66}),
        Peer(
            "SAFMN",
            lambda: SAFMN.SAFMN(dim=36, n_blocks=8, ffn_scale=2.0, upscaling_factor=4),
            {"Set5": 32.18, "Set14": 28.60, "Urban100": 25.97},
        ),
        Peer(
            "OmniSR",
            lambda: OmniSR.OmniSR(num_feat=64, block_num=1, res_num=5, window_size=8, up_scale=4),
            {"Set5": 32.49, "Set14": 28.78, "Urban100": 26.64},
        ),
        Peer(
            "SwinIR-light",
            lambda: SwinIR.SwinIR(
                img_size=64,
                embed_dim=60,
                depths=four,
                num_heads=four,
                window_size=8,
                mlp_ratio=2,
                **direct,
            ),
            {"Set5": 32.44, "Set14": 28.77, "Urban100": 26.47},
        ),
        Peer(
            "CRAFT",
            lambda: CRAFT.CRAFT(embed_dim=48, depths=[2] * 4, num_heads=four, upscale=4),
            {"Set5": 32.52, "Set14": 28.85, "Urban100": 26.56},
        ),
        Peer(
            "DAT-light",
            lambda: DAT.DAT(
                img_size=64,
                embed_dim=60,
                split_size=[8, 32],
                depth=[18],
                num_heads=[6],
                expansion_factor=2,
                resi_connection="3conv",
                **direct,
            ),
            {"Set5": 32.57, "Set14": 28.87, "Urban100": 26.64},
        ),
        Peer(
            "ATD-light",
            lambda: ATD.ATD(
                embed_dim=48,
                depths=four,
                num_heads=[4] * 4,
                window_size=16,
                category_size=128,
                num_tokens=64,
                reducted_dim=8,
                convffn_kernel_size=7,
                mlp_ratio=1,
                **direct,
            ),
            {"Set5": 32.63, "Set14": 28.89, "Urban100": 26.97},
        ),
        Peer(
            "HAT-S",
            lambda: HAT.HAT(
                img_size=64,
                embed_dim=144,
                depths=six,
                num_heads=six,
                window_size=16,
                compress_ratio=24,
                squeeze_factor=24,
                mlp_ratio=2,
                upscale=4,
            ),
            {},
        ),
    ]


def built(found: Sequence[Peer]) -> list[tuple[Peer, nn.Module]]:
    """Builds peers, without the warnings of their code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other projects' code
        return [(peer, peer.build()) for peer in found]


def roofline_case(precision: str, threads: int, device: torch.device) -> Case:
    """A matrix multiplication, which nothing built of matrix products and convolutions can beat."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(_MATRIX, _MATRIX, device=device).to(dtype) for _ in range(2))
    return Case(
        section="roofline",
        name=f"matrix product, {_MATRIX} a side",
        run=lambda _: a @ b,
        height=_MATRIX,
        width=_MATRIX,
        pixels=0,
        precision=precision,
        threads=threads,
    )


def network_case(
    section: Section,
    name: str,
    network: nn.Module,
    scale: int,
    size: int,
    precision: str,
    threads: int,
    device: torch.device,
    *,
    psnr: dict[str, float] | None = None,
    published: bool = False,
) -> Case:
    """A network on a square image of random pixels, as ``srnet upscale`` runs it: channels_last, whole, no autograd."""
    network = network.eval().to(device).to(memory_format=torch.channels_last)
    lr = torch.rand(1, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    return Case(
        section=section,
        name=name,
        run=lambda _: network(lr),
        height=size,
        width=size,
        pixels=(size * scale) ** 2,
        parameters=sum(p.numel() for p in network.parameters()),
        precision=precision,
        threads=threads,
        psnr=psnr or {},
        published=published,
    )


def layer_case(
    section: Section,
    name: str,
    layer: SparseAttention,
    size: int,
    direction: Direction,
    precision: str,
    threads: int,
    device: torch.device,
) -> Case:
    """An attention layer, norm and projections included, on a square map of random features."""
    layer = layer.to(device)
    x = torch.randn(1, layer.q.in_features, size, size, device=device)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_(direction == "backward")

    def forward() -> Tensor:
        return layer(x)  # type: ignore[no-any-return]

    def backward(out: Tensor) -> None:
        torch.autograd.backward(out, torch.ones_like(out))
        layer.zero_grad()
        x.grad = None

    return Case(
        section=section,
        name=name,
        run=backward if direction == "backward" else lambda _: layer(x),
        prepare=forward if direction == "backward" else lambda: None,
        direction=direction,
        height=size,
        width=size,
        pixels=size * size,
        precision=precision,
        threads=threads,
    )


def measure(
    cases: Sequence[Case],
    runs: int,
    *,
    limit: float = 30.0,
    device: torch.device | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> list[Result]:
    """Times cases in interleaved rounds.

    Args:
        cases: With one roofline case for each precision and thread count among them.
        runs: Rounds, at least 1. The first call of a case only warms up and measures memory and operations.
        limit: Seconds that a case may take of all rounds; a slower one is in fewer of them. One whose first call
            takes that long is not called again.
        device: Where the cases run; None for the CPU.
        progress: Called with steps done, all steps, and the name of the next case.

    Returns:
        One result per case, in their order.
    """
    device = device or torch.device("cpu")
    before = torch.get_num_threads()
    times: list[list[float]] = [[] for _ in cases]
    total, done = len(cases) * (runs + 1), 0
    flops: list[int] = []
    peaks: list[int | None] = []
    try:
        for case, taken in zip(cases, times, strict=True):
            if progress is not None:
                progress(done, total, case.name)
            done += 1
            seconds, count, peak = _observe(case, device)
            if seconds < _AGAIN:
                _, _, peak = _observe(case, device)
            elif seconds >= limit:
                taken.append(seconds)
            flops.append(count)
            peaks.append(peak)
        for number in range(runs):
            order = range(len(cases))
            for i in reversed(order) if number % 2 else order:
                if progress is not None:
                    progress(done, total, cases[i].name)
                done += 1
                if sum(times[i]) < limit:
                    times[i].append(_timed(cases[i], device))
    finally:
        torch.set_num_threads(before)
    medians = [statistics.median(taken) for taken in times]
    best = {
        (case.precision, case.threads): count / seconds
        for case, count, seconds in zip(cases, flops, medians, strict=True)
        if case.section == "roofline"
    }
    return [
        Result(
            section=case.section,
            name=case.name,
            direction=case.direction,
            precision=case.precision,
            threads=case.threads,
            height=case.height,
            width=case.width,
            pixels=case.pixels,
            parameters=case.parameters,
            seconds=seconds,
            runs=len(taken),
            megapixels_per_second=case.pixels / seconds / 1e6 if case.pixels else None,
            gflop=count / 1e9,
            gflop_per_second=count / seconds / 1e9,
            roofline_share=count / seconds / best[case.precision, case.threads],
            peak_bytes=peak,
            psnr=case.psnr,
            published=case.published,
        )
        for case, count, peak, seconds, taken in zip(
            cases, flops, peaks, medians, times, strict=True
        )
    ]


def count_flops(work: Callable[[], object]) -> int:
    """Operations of the matrix products, convolutions and attention kernels that a call runs."""

    def attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_flop_count(q, k, v))  # type: ignore[no-untyped-call]

    def attention_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
        return int(sdpa_backward_flop_count(grad, q, k, v))  # type: ignore[no-untyped-call]

    aten = torch.ops.aten
    mapping = {  # torch's table lacks the CPU's kernel
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        work()
    return int(counter.get_total_flops())


def _autocast(case: Case, device: torch.device) -> AbstractContextManager[Any]:
    if case.precision == "fp32" or case.section == "roofline":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


def _prepared(case: Case, device: torch.device) -> Any:
    if torch.get_num_threads() != case.threads:
        torch.set_num_threads(case.threads)
    with _autocast(case, device):
        return case.prepare()


def _run(case: Case, given: Any, device: torch.device) -> object:
    with _autocast(case, device), torch.set_grad_enabled(case.direction == "backward"):
        out = case.run(given)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return out


def _timed(case: Case, device: torch.device) -> float:
    given = _prepared(case, device)
    start = time.perf_counter()
    _run(case, given, device)
    return time.perf_counter() - start


def _observe(case: Case, device: torch.device) -> tuple[float, int, int | None]:
    """Seconds and operations of an untimed call, and the most memory it took, its preparation included."""
    _give_back()
    held = _restart_peak(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other projects' networks; they say it once
        given = _prepared(case, device)
        start = time.perf_counter()
        flops = count_flops(lambda: _run(case, given, device))
        seconds = time.perf_counter() - start
    peak = _peak(device)
    return seconds, flops, None if held is None or peak is None else max(0, peak - held)


def _give_back() -> None:
    """Lets the allocator return freed memory, which would hide what the next call takes."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def _restart_peak(device: torch.device) -> int | None:
    """Forgets the highest memory so far; returns the present one in bytes, None where the system cannot tell."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return _memory("VmRSS")


def _peak(device: torch.device) -> int | None:
    """Highest memory since `_restart_peak`, bytes."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return _memory("VmHWM")


def _memory(entry: str) -> int | None:
    """An entry of /proc/self/status in bytes."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith(f"{entry}:"):
            return int(line.split()[1]) * 1024
    return None


def ratios(results: Sequence[Result]) -> dict[str, float]:
    """How the rows of one precision and thread count compare; a comparison whose rows are absent is left out.

    Args:
        results: Of one precision and thread count.

    Returns:
        What is compared, in words, to the quotient.
    """
    rows = {(r.section, r.name, r.direction): r for r in results}

    def seconds(section: Section, *names: str, direction: Direction = "forward") -> float | None:
        """The shortest of the rows that are there."""
        found = [rows.get((section, name, direction)) for name in names]
        return min((r.seconds for r in found if r is not None), default=None)

    def memory(name: str) -> int | None:
        row = rows.get(("operator", name, "forward"))
        return None if row is None else row.peak_bytes

    def network(size: str) -> Result | None:
        """The x4 network of that size."""
        return next(
            (
                r
                for r in results
                if r.section == "networks"
                and size in r.name
                and r.pixels == 16 * r.height * r.width
            ),
            None,
        )

    sparse, window = seconds("operator", SPARSE), seconds("operator", WINDOW)
    compared: dict[str, tuple[float | None, float | None]] = {
        "time of dense 32x32 (the faster) / operator": (
            seconds("operator", DENSE, DENSE_PARTS),
            sparse,
        ),
        "time of operator / dense 8x8 windows": (sparse, window),
        "time of per query / operator": (seconds("operator", PER_QUERY), sparse),
        "backward of dense 32x32 (the faster) / operator": (
            seconds("operator", DENSE, DENSE_PARTS, direction="backward"),
            seconds("operator", SPARSE, direction="backward"),
        ),
        "memory of operator / dense 32x32": (memory(SPARSE), memory(DENSE)),
        "memory of operator / dense 32x32 by groups": (memory(SPARSE), memory(DENSE_PARTS)),
    }
    for size in ("tiny", "small", "base"):
        ours = network(size)
        if ours is not None:
            span, swin = seconds("peers", "SPAN-28"), seconds("peers", "SwinIR-light")
            compared[f"time of {size} / SPAN-28"] = (ours.seconds, span)
            compared[f"time of SwinIR-light / {size}"] = (swin, ours.seconds)
            compared[f"{size}'s share of the roofline"] = (ours.roofline_share, 1.0)
    for name in dict.fromkeys(r.name for r in results if r.section == "growth"):
        grown = sorted((r for r in results if r.section == "growth" and r.name == name), key=_area)
        if len(grown) > 1:
            speeds = (grown[-1].megapixels_per_second, grown[0].megapixels_per_second)
            ends = f"{grown[-1].width} / at {grown[0].width}"
            compared[f"MP/s of {name} at {ends}"] = speeds
    return {
        name: top / bottom for name, (top, bottom) in compared.items() if top is not None and bottom
    }


def _area(result: Result) -> int:
    return result.height * result.width


def bench(
    networks: dict[str, tuple[SRNet, dict[str, float]]],
    *,
    sections: Sequence[Section] = SECTIONS,
    precisions: Sequence[str],
    threads: Sequence[int],
    size: int = 256,
    sizes: Sequence[int] = (64, 128, 256, 512),
    operator_size: int = 128,
    runs: int = 7,
    limit: float = 30.0,
    device: str = "cpu",
    progress: Callable[[int, int, str], None] | None = None,
) -> Bench:
    """Measures our networks, the attention operator, other projects' networks, and the growth with size.

    Args:
        networks: Name to network and its PSNR-Y in dB for each test set that is known.
        sections: What to measure; the roofline always is.
        precisions: "fp32" and "bf16".
        threads: Thread counts of PyTorch; without meaning on a GPU, where one is enough.
        size: Side of the input of networks and peers, pixels.
        sizes: Sides of the inputs whose speeds show the growth.
        operator_size: Side of the feature map that the operator is measured on.
        runs: Rounds.
        limit: Seconds after which a case is left out of the later rounds.
        device: "cpu", "cuda" or "cuda:1".
        progress: Called with steps done, all steps, and the name of the next case.

    Returns:
        All results, in the order in which they should be read.

    Raises:
        ConfigError: The device does not exist.
    """
    where = select_device(device)
    notes = []
    used = [p for p in precisions if p == "fp32" or has_native_bf16(where.type)]
    if len(used) < len(precisions):
        notes.append("bf16 is left out: this machine does not compute it natively")
    others: list[tuple[Peer, nn.Module]] = []
    if "peers" in sections:
        try:
            others = built(peers())
        except ImportError:
            notes.append(
                "peers are left out: spandrel is not installed; pip install 'srnet[bench]'"
            )
    cases: list[Case] = []
    for precision in used or ["fp32"]:
        for count in threads:
            setting = (precision, count, where)
            cases.append(roofline_case(*setting))
            if "networks" in sections:
                cases += [
                    network_case("networks", name, n, n.scale, size, *setting, psnr=psnr)
                    for name, (n, psnr) in networks.items()
                ]
            cases += [
                network_case(
                    "peers", peer.name, module, 4, size, *setting, psnr=peer.psnr, published=True
                )
                for peer, module in others
            ]
            if "operator" in sections:
                cases += [
                    layer_case("operator", name, layer, operator_size, direction, *setting)
                    for direction in _DIRECTIONS
                    for name, layer in operator_layers().items()
                ]
            if "growth" in sections:
                for side in sizes:
                    layer = operator_layers()[SPARSE]
                    cases.append(layer_case("growth", "operator", layer, side, "forward", *setting))
                    cases += [
                        network_case("growth", name, n, n.scale, side, *setting)
                        for name, (n, _) in networks.items()
                    ]
    results = measure(cases, runs, limit=limit, device=where, progress=progress)
    protocol = {
        "processor": processor() if where.type == "cpu" else torch.cuda.get_device_name(where),
        "rounds": runs,
        "input": f"one image of {size}x{size} random pixels; operator: {operator_size}x{operator_size}, "
        "64 channels, 4 heads, norm and projections included",
        "latency": "median of interleaved rounds; whole image, channels_last, no autograd",
        "weights": "peers: random",
        "versions": f"srnet {__version__}, Python {platform.python_version()}, torch {torch.__version__}",
    }
    return Bench(results, protocol, notes)


def processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
