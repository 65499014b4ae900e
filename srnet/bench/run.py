"""A whole benchmark: which cases it has, and how their results compare."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from srnet import __version__
from srnet.bench.dense import DENSE, DENSE_PARTS, PER_QUERY, SPARSE, WINDOW, operator_layers
from srnet.bench.measure import (
    Case,
    Direction,
    Result,
    Section,
    layer_case,
    measure,
    network_case,
    roofline_case,
)
from srnet.bench.peers import Peer, built, peers
from srnet.device import has_native_bf16, select_device
from srnet.network import SRNet

SECTIONS: tuple[Section, ...] = ("networks", "peers", "operator", "growth")
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")


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
            "results": [result.to_json() for result in self.results],
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
        found = (r for r in results if r.section == "networks" and size in r.name)
        return next((r for r in found if r.pixels == 16 * r.height * r.width), None)

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
        grown = sorted(
            (r for r in results if r.section == "growth" and r.name == name), key=lambda r: r.height
        )
        if len(grown) > 1:
            speeds = (grown[-1].megapixels_per_second, grown[0].megapixels_per_second)
            ends = f"{grown[-1].width} / at {grown[0].width}"
            compared[f"MP/s of {name} at {ends}"] = speeds
    return {
        name: top / bottom for name, (top, bottom) in compared.items() if top is not None and bottom
    }


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
