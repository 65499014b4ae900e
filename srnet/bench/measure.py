"""Times cases in rounds, counts their operations, and finds the memory that they take.

Everything runs in one process: each round calls every case once, the next round in reverse order, so that a slow minute
of the machine hits all of them alike. Reported are medians. The roofline, a matrix multiplication in the same precision
with the same threads, is one more case of every round.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from srnet.attention import SparseAttention

Section = Literal["roofline", "networks", "peers", "operator", "growth"]
Direction = Literal["forward", "backward"]

_MATRIX = 1024  # side of the roofline's matrices: larger ones are no faster per operation
_AGAIN = 1.0  # seconds; a case that is faster is called once more for its memory, when all its tables exist


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a case and its result have in common.

    Attributes:
        section: Part of the report.
        name: Row of the report.
        direction: What is computed.
        precision: "fp32" or "bf16" (autocast).
        threads: Threads of PyTorch.
        height: Of the input, pixels.
        width: Of the input, pixels.
        pixels: Output pixels of one run, 0 where that has no meaning.
        parameters: Of the network, None where that has no meaning.
        psnr: Name of a test set to PSNR-Y in dB.
        published: Whether `psnr` is what the authors published, rather than ours.
    """

    section: Section
    name: str
    direction: Direction = "forward"
    precision: str = "fp32"
    threads: int = 1
    height: int
    width: int
    pixels: int
    parameters: int | None = None
    psnr: dict[str, float] = field(default_factory=dict)
    published: bool = False


@dataclass(frozen=True, kw_only=True)
class Case(Row):
    """One thing to time.

    Attributes:
        run: Takes what `prepare` returned; only this is timed.
        prepare: Called before each run, untimed: the forward pass of a backward pass.
    """

    run: Callable[[Any], object]
    prepare: Callable[[], Any] = lambda: None


@dataclass(frozen=True, kw_only=True)
class Result(Row):
    """What was measured of one case.

    Attributes:
        seconds: Median of the timed runs.
        runs: Timed runs.
        gflop: Multiplications and additions of matrix products and convolutions, 1e9; nothing else is counted.
        roofline_share: Of the speed of the matrix multiplication in the same precision with the same threads.
        peak_bytes: Memory beyond that of weights and input; None where it cannot be measured.
    """

    seconds: float
    runs: int
    gflop: float
    roofline_share: float
    peak_bytes: int | None

    @property
    def megapixels_per_second(self) -> float | None:
        """Millions of output pixels a second."""
        return self.pixels / self.seconds / 1e6 if self.pixels else None

    @property
    def gflop_per_second(self) -> float:
        """Speed in the operations that are counted."""
        return self.gflop / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps."""
        speeds = ("megapixels_per_second", "gflop_per_second")
        return asdict(self) | {name: getattr(self, name) for name in speeds}


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
    counted: list[tuple[int, int | None]] = []  # operations, bytes
    rounds = [range(len(cases))[:: -1 if number % 2 else 1] for number in range(runs)]
    steps = [*range(len(cases)), *(i for order in rounds for i in order)]
    try:
        for done, i in enumerate(steps):
            case, taken = cases[i], times[i]
            if progress is not None:
                progress(done, len(steps), case.name)
            if done >= len(cases):
                if sum(taken) < limit:
                    taken.append(_timed(case, device))
                continue
            seconds, flops, peak = _observe(case, device)
            if seconds < _AGAIN:
                _, _, peak = _observe(case, device)
            elif seconds >= limit:
                taken.append(seconds)
            counted.append((flops, peak))
    finally:
        torch.set_num_threads(before)
    measured = [
        (case, len(taken), statistics.median(taken), flops, peak)
        for case, taken, (flops, peak) in zip(cases, times, counted, strict=True)
    ]
    best = {
        (case.precision, case.threads): flops / seconds
        for case, _, seconds, flops, _ in measured
        if case.section == "roofline"
    }
    return [
        Result(
            **{key.name: getattr(case, key.name) for key in fields(Row)},
            seconds=seconds,
            runs=count,
            gflop=flops / 1e9,
            roofline_share=flops / seconds / best[case.precision, case.threads],
            peak_bytes=peak,
        )
        for case, count, seconds, flops, peak in measured
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
