"""What dividing attention scores by sqrt(d_k) does, claim by claim: measures, and writes docs/attention-scaling.md.

    python scripts/scaling_study.py            # some ten minutes on one core; goes on where it was stopped
    python scripts/scaling_study.py --quick    # seconds, to see that it works; its figures mean nothing
    python scripts/scaling_study.py --reuse    # writes page and plots again from the saved measurements

The operator of srnet takes one scale; every other way of scaling lives here, as a variant of the layer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

# beside this file; Python finds it when the script is run
from scaling_page import SCALE, SQRT_D, claims, page, plots
from torch import Tensor, nn

from srnet.attention import SparseAttention, pixel_index, query_distance
from srnet.config import NetworkConfig
from srnet.metrics import psnr_y
from srnet.network import SRNet
from srnet.report_file import write_report
from srnet.resize import downscale

ROOT = Path(__file__).resolve().parents[1]
TRAIN = [
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/coffee.png"),
    ("sklearn", "datasets/images/china.jpg"),
]
VALIDATION = [("skimage", "data/chelsea.png"), ("sklearn", "datasets/images/flower.jpg")]


@dataclass(frozen=True)
class Budget:
    """How much is computed."""

    samples: int = 10_000
    sequences: int = 400
    toy_steps: int = 400
    toy_seeds: int = 3
    steps: int = 120
    every: int = 30
    seeds: int = 3
    only: tuple[str, ...] = ()


QUICK = Budget(1000, 8, 4, 2, 2, 1, 2, ("sqrt(d_k)", "no scale", "no attention"))


def log(text: str) -> None:
    """Prints progress to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- scores and softmax, without a network


def monte_carlo(samples: int) -> dict[str, Any]:
    """Standard deviation and mean size of q.k for independent unit-variance q and k."""
    generator = torch.Generator().manual_seed(0)
    rows = {}
    for d in (16, 32, 64, 128):
        q, k = (torch.randn(samples, d, generator=generator, dtype=torch.float64) for _ in range(2))
        score = (q * k).sum(1)
        rows[str(d)] = {"std": float(score.std()), "mean_abs": float(score.abs().mean())}
    return rows


def weights(kind: str, out: int, d_model: int, generator: torch.Generator) -> Tensor:
    """A projection (out, d_model) by one of the usual initialisations."""
    weight = torch.empty(out, d_model, dtype=torch.float64)
    if kind == "Xavier":
        return nn.init.xavier_uniform_(weight, generator=generator)
    if kind == "PyTorch's default":
        return nn.init.uniform_(weight, -(d_model**-0.5), d_model**-0.5, generator=generator)
    return nn.init.orthogonal_(weight, generator=generator)


def initial_variance(sequences: int) -> list[dict[str, Any]]:
    """Variance of q and of the scaled scores for unit-variance inputs, by initialisation and d_k."""
    rows = []
    generator = torch.Generator().manual_seed(1)
    for kind in ("Xavier", "PyTorch's default", "orthogonal"):
        for d in (16, 32, 64, 128):
            q, score = [], []
            for _ in range(max(4, sequences // 20)):
                x = torch.randn(200, 128, generator=generator, dtype=torch.float64)
                a, b = (x @ weights(kind, d, 128, generator).T for _ in range(2))
                q.append(a.flatten())
                score.append((a @ b.T).flatten() / math.sqrt(d))
            rows.append(
                {
                    "init": kind,
                    "d_k": d,
                    "q_variance": float(torch.cat(q).var()),
                    "score_std": float(torch.cat(score).std()),
                }
            )
    return rows


class Toy:
    """Self-attention on sequences of 10 with d_model 128 and d_k 32, as the claims have it."""

    def __init__(self, generator: torch.Generator, gain: float = 1.0) -> None:
        q, k, v = (weights("Xavier", 32, 128, generator) for _ in range(3))
        self.parameters = [
            (q * gain).requires_grad_(),
            (k * gain).requires_grad_(),
            v.requires_grad_(),
        ]

    def __call__(self, x: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        """Scores, probabilities and output of sequences (B, 10, 128)."""
        q, k, v = (x @ w.T for w in self.parameters)
        score = q @ k.transpose(1, 2) * scale
        probability = score.softmax(-1)
        return score, probability, probability @ v


def sequence_of_ten(sequences: int) -> dict[str, Any]:
    """Probabilities, scores and gradients at initialisation, with and without the scale."""
    result = {}
    for name, scale in (("unscaled", 1.0), ("scaled", 32**-0.5)):
        generator = torch.Generator().manual_seed(2)
        first, second, inside, projection = [], [], [], []
        for _ in range(sequences):
            toy = Toy(generator)
            x = torch.randn(1, 10, 128, generator=generator, dtype=torch.float64)
            target = torch.randn(1, 10, 32, generator=generator, dtype=torch.float64)
            score, probability, out = toy(x, scale)
            ranked = probability.detach().sort(-1, descending=True).values
            first.append(float(ranked[..., 0].mean()))
            second.append(float(ranked[..., 1].mean()))
            inside.append(float((score.detach().abs() <= 12.5).double().mean()))
            gradient = torch.autograd.grad((out - target).square().mean(), toy.parameters[0])[0]
            projection.append(float(gradient.square().mean().sqrt()))
        result[name] = {
            "first": statistics.fmean(first),
            "second": statistics.fmean(second),
            "within_12.5": statistics.fmean(inside),
            "gradient": statistics.fmean(projection),
            "gradient_median": statistics.median(projection),
        }
    return result


def gradient_sweep(sequences: int) -> list[dict[str, float]]:
    """Gradient of a loss to the scores and to W_q while the scores' standard deviation grows."""
    rows = []
    for spread in (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128):
        generator = torch.Generator().manual_seed(3)
        to_score, to_weight = [], []
        for _ in range(max(4, sequences // 4)):
            toy = Toy(generator, gain=1 / math.sqrt(1.6))  # unit-variance q and k
            x = torch.randn(1, 10, 128, generator=generator, dtype=torch.float64)
            target = torch.randn(1, 10, 32, generator=generator, dtype=torch.float64)
            score, _, out = toy(x, spread * 32**-0.5)
            loss = (out - target).square().mean()
            a, b = torch.autograd.grad(loss, [score, toy.parameters[0]])
            to_score += a.norm(dim=-1).flatten().tolist()
            to_weight.append(float(b.square().mean().sqrt()))
        rows.append(
            {
                "spread": spread,
                "score_mean": statistics.fmean(to_score),
                "score_median": statistics.median(to_score),
                "weight": statistics.fmean(to_weight),
                "weight_median": statistics.median(to_weight),
            }
        )
    return rows


def toy_training(steps: int, seeds: int) -> dict[str, Any]:
    """Learns another attention's output (scaled teacher), with and without the scale; Adam 3e-3."""
    result: dict[str, Any] = {}
    for name, scale in (("unscaled", 1.0), ("scaled", 32**-0.5)):
        runs = []
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(100 + seed)
            teacher, toy = Toy(generator), Toy(generator)
            optimizer = torch.optim.Adam(toy.parameters, lr=3e-3)
            curve = []
            for step in range(steps + 1):
                x = torch.randn(32, 10, 128, generator=generator, dtype=torch.float64)
                with torch.no_grad():
                    target = teacher(x, 32**-0.5)[2]
                score, probability, out = toy(x, scale)
                loss = (out - target).square().mean()
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                if step % max(1, steps // 12) == 0:
                    gradient = toy.parameters[0].grad
                    assert gradient is not None
                    curve.append(
                        {
                            "step": step,
                            "loss": loss.item(),
                            "gradient": float(gradient.square().mean().sqrt()),
                            "largest": float(probability.detach().amax(-1).mean()),
                            "spread": float(score.detach().std()),
                        }
                    )
                optimizer.step()
            runs.append(curve)
        result[name] = runs
    return result


def kept_keys(sequences: int) -> list[dict[str, Any]]:
    """Largest probability and entropy over k kept of 256 keys, scores over sqrt(k) and over sqrt(d_k)."""
    rows = []
    for d in (16, 32, 64):
        for k in (4, 8, 16, 64):
            generator = torch.Generator().manual_seed(4)
            row: dict[str, Any] = {"d_k": d, "k": k}
            q = torch.randn(sequences, 1, d, generator=generator, dtype=torch.float64)
            keys = torch.randn(sequences, 256, d, generator=generator, dtype=torch.float64)
            # kept by a predictor that knows nothing of the scores, and by the scores themselves
            for choice in ("random", "best"):
                score = (q * keys).sum(-1)
                kept = score[:, :k] if choice == "random" else score.topk(k).values
                for name, divisor in (("k", math.sqrt(k)), ("d", math.sqrt(d))):
                    p = (kept / divisor).softmax(-1)
                    entropy = torch.special.entr(p).sum(-1).mean() / math.log(k)
                    row[f"{choice}_{name}"] = [float(p.amax(-1).mean()), float(entropy)]
            rows.append(row)
    return rows


# ---------------------------------------------------------------- variants in a network


@dataclass(frozen=True)
class Variant:
    """One way to scale, and the shape it is tried with."""

    name: str
    power: float = 0.5
    """Scores are divided by head_dim to this power."""
    constant: float | None = None
    """Scores are divided by this number instead."""
    rule: str = ""
    """A further change: layernorm, learned, v, near-far, or slopes none and learned."""
    top_k: int = 64
    dim: int = 16
    """Channels, and d_k: the layers have one head."""
    attention: bool = True


VARIANTS = [
    Variant(SQRT_D),
    Variant("no scale", power=0),
    Variant("layer norm on the scores", power=0, rule="layernorm"),
    Variant("learned scalar", rule="learned"),
    Variant("no scale, v over sqrt(d_k)", power=0, rule="v"),
    Variant("far keys over 2 sqrt(d_k)", rule="near-far"),
    Variant("constant 10, d_k 16", constant=10),
    Variant("exponent 0.6", power=0.6),
    Variant("exponent 0.8", power=0.8),
    Variant("no slopes", rule="slopes none"),
    Variant("learned slopes", rule="slopes learned"),
    Variant("no attention", attention=False),
    Variant("k 4, sqrt(d_k)", top_k=4),
    Variant("k 4, sqrt(k)", top_k=4, constant=2),
    Variant("k 16, sqrt(d_k) = sqrt(k)", top_k=16),
    Variant("k 64, sqrt(k)", constant=8),
    Variant("sqrt(d_k), d_k 64", dim=64),
    Variant("no scale, d_k 64", power=0, dim=64),
    Variant("constant 10, d_k 64", constant=10, dim=64),
]


class VariantAttention(SparseAttention):
    """The layer with its scores written out, so that they can be scaled in other ways."""

    def __init__(self, variant: Variant, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.variant = variant
        self.factor = nn.Parameter(torch.zeros(()), requires_grad=variant.rule == "learned")
        slopes = torch.tensor(self.slopes)
        if variant.rule == "slopes none":
            slopes.zero_()
        self.slope = nn.Parameter(slopes, requires_grad=variant.rule == "slopes learned")
        self.largest = 0.0
        self.spread = 0.0

    def reset_parameters(self) -> None:
        """As the layer, but keys with projections of their own, since the claims are about independent q and k."""
        with torch.no_grad():
            for weight in (
                self.q.weight,
                *self.kv.weight.chunk(2),
                *self.predictor.weight.chunk(2),
            ):
                nn.init.orthogonal_(weight)
            nn.init.zeros_(self.out.weight)
            nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W); H and W are multiples of the group size."""
        v_ = self.variant
        normed = self.norm(x.permute(0, 2, 3, 1))
        relevance, index = self.select(normed)
        b, height, width, c = normed.shape
        _, rows, columns, k = index.shape
        g, h = self.group_size, len(self.slopes)
        d = c // h
        flat = pixel_index(index, height, width, g, self.region_size).flatten()
        kv = self.kv(normed).reshape(-1, 2 * c).index_select(0, flat)
        keys, values = kv.view(-1, k, 2, h, d).permute(2, 0, 3, 1, 4)
        q = self.q(normed).view(b, rows, g, columns, g, h, d).permute(0, 1, 3, 5, 2, 4, 6)
        score = q.reshape(-1, h, g * g, d) @ keys.transpose(-1, -2)
        score = score / (v_.constant or d**v_.power)
        distance = query_distance(index.view(-1, k), g, self.region_size, x.dtype)[:, None]
        if v_.rule == "layernorm":
            score = F.layer_norm(score, (k,))
        elif v_.rule == "learned":
            score = score * self.factor.exp()
        elif v_.rule == "v":
            values = values / math.sqrt(d)
        elif v_.rule == "near-far":
            score = torch.where(distance > 6, score / 2, score)
        kept = relevance.view(-1, 1, 1, k)
        probability = (score + kept - self.slope.view(-1, 1, 1) * distance).softmax(-1)
        if not self.training:
            self.largest = float(probability.detach().amax(-1).mean())
            self.spread = float(score.detach().std())
        out = probability @ values
        out = out.view(b, rows, columns, h, g, g, d).permute(0, 1, 4, 2, 5, 3, 6)
        projected: Tensor = self.out(out.reshape(b, height, width, c))
        return projected.permute(0, 3, 1, 2)


def build(variant: Variant, seed: int) -> SRNet:
    """A small network of the project with the variant's attention, its output projection not at zero."""
    torch.manual_seed(seed)
    config = NetworkConfig(
        scale=SCALE,
        embed_dim=variant.dim,
        num_blocks=2,
        convs_per_block=1,
        attention_blocks=(0, 1) if variant.attention else (),
        num_heads=1,
        group_size=8,
        region_size=24,
        top_k=variant.top_k,
    )
    network = SRNet(config)
    for block in network.blocks:
        old = block.attention
        if isinstance(old, SparseAttention):
            new = VariantAttention(
                variant,
                config.embed_dim,
                config.num_heads,
                config.embed_dim // config.num_heads,
                config.group_size,
                config.region_size,
                config.top_k,
                config.predictor_dim,
                config.predictor_slope,
            )
            # From zero, a run this short would hardly use the layer, and nothing could differ.
            nn.init.orthogonal_(new.out.weight, gain=0.3)
            block.attention = new
    return network


def photographs(names: list[tuple[str, str]]) -> list[tuple[Tensor, Tensor]]:
    """LR and HR, (1, 3, H, W) in [0, 1], LR sides multiples of 8."""
    pairs = []
    for package, file in names:
        found = importlib.util.find_spec(package)  # importing the packages would take seconds
        if found is None or found.origin is None:
            raise SystemExit(f"{package} is not installed; pip install -e '.[dev]'")
        with Image.open(Path(found.origin).parent / file) as image:
            hr = torch.tensor(np.asarray(image.convert("RGB"))).permute(2, 0, 1)[None]
        grid = 8 * SCALE
        hr = hr[:, :, : hr.shape[2] // grid * grid, : hr.shape[3] // grid * grid]
        pairs.append((downscale(hr, SCALE).float() / 255, hr.float() / 255))
    return pairs


def train(
    variant: Variant,
    seed: int,
    budget: Budget,
    pairs: list[tuple[Tensor, Tensor]],
    validation: list[tuple[Tensor, Tensor]],
) -> dict[str, Any]:
    """One run: AdamW, L1, 4 crops of 24 x 24 a step, the same for all variants of a seed."""
    network = build(variant, seed)
    layers = [m for m in network.modules() if isinstance(m, VariantAttention)]
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3, weight_decay=0)
    rate = torch.optim.lr_scheduler.LambdaLR(  # rises for a tenth, falls in the last third
        optimizer,
        lambda i: min(1.0, (i + 1) / (budget.steps / 10), 3 * (1 - i / (budget.steps + 1))),
    )
    generator = torch.Generator().manual_seed(1000 + seed)
    curve: list[dict[str, Any]] = []
    running: list[float] = []
    for step in range(budget.steps + 1):
        if step % budget.every == 0:
            network.eval()
            with torch.no_grad():
                scores = [float(psnr_y(network(lr), hr, SCALE)) for lr, hr in validation]
            curve.append(
                {
                    "step": step,
                    "loss": statistics.fmean(running) if running else None,
                    "psnr_y": statistics.fmean(scores),
                    "largest": max((m.largest for m in layers), default=None),
                    "spread": max((m.spread for m in layers), default=None),
                }
            )
            running = []
            network.train()
        lr_crops, hr_crops = [], []
        for _ in range(4):
            lr, hr = pairs[int(torch.randint(len(pairs), (), generator=generator))]
            y, x = (int(torch.randint(n - 23, (), generator=generator)) for n in lr.shape[2:])
            lr_crops.append(lr[:, :, y : y + 24, x : x + 24])
            hr_crops.append(hr[:, :, y * SCALE : (y + 24) * SCALE, x * SCALE : (x + 24) * SCALE])
        loss = F.l1_loss(network(torch.cat(lr_crops)), torch.cat(hr_crops))
        if not math.isfinite(loss.item()):
            return {"curve": curve, "diverged": True}
        running.append(loss.item())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        rate.step()
    return {"curve": curve, "diverged": curve[-1]["psnr_y"] < curve[0]["psnr_y"] - 0.5}


def super_resolution(budget: Budget, result: dict[str, Any], save: Callable[[], None]) -> None:
    """Adds the runs of every variant that is not there yet, seed by seed."""
    pairs = photographs(TRAIN)
    validation = [
        (lr[:, :, 40:120, 40:136], hr[:, :, 40 * SCALE : 120 * SCALE, 40 * SCALE : 136 * SCALE])
        for lr, hr in photographs(VALIDATION)
    ]
    for variant in VARIANTS:
        if variant.name in result or (budget.only and variant.name not in budget.only):
            continue
        start = time.perf_counter()
        runs = [train(variant, seed, budget, pairs, validation) for seed in range(budget.seeds)]
        result[variant.name] = runs
        save()
        final = ", ".join(f"{run['curve'][-1]['psnr_y']:.3f}" for run in runs)
        log(f"{variant.name}: {final} dB, {time.perf_counter() - start:.0f} s")


def measure(budget: Budget, saved: Path) -> dict[str, Any]:
    """Everything that the page is written from; each part is saved at once, and one that is there is not repeated."""
    start = time.perf_counter()
    result: dict[str, Any] = {"budget": asdict(budget), "torch": torch.__version__, "seconds": 0.0}
    if saved.exists():
        before = json.loads(saved.read_text(encoding="utf-8"))
        if before["budget"] == rounded(asdict(budget)):
            result = before
            log(f"going on from {saved}")
    spent = result["seconds"]

    def save() -> None:
        result["seconds"] = spent + time.perf_counter() - start
        write_report(saved, json.dumps(rounded(result), indent=1) + "\n")

    for name, part in (
        ("monte_carlo", lambda: monte_carlo(budget.samples)),
        ("initial_variance", lambda: initial_variance(budget.sequences)),
        ("sequence_of_ten", lambda: sequence_of_ten(budget.sequences)),
        ("gradient_sweep", lambda: gradient_sweep(budget.sequences)),
        ("toy_training", lambda: toy_training(budget.toy_steps, budget.toy_seeds)),
        ("kept_keys", lambda: kept_keys(budget.sequences)),
    ):
        if name not in result:
            log(name)
            result[name] = part()
            save()
    super_resolution(budget, result.setdefault("super_resolution", {}), save)
    result["complete"] = True
    save()
    done: dict[str, Any] = json.loads(saved.read_text(encoding="utf-8"))
    return done


def main() -> int:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="seconds; its figures mean nothing")
    parser.add_argument("--reuse", action="store_true", help="write again from saved measurements")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs", metavar="DIR", help="default: docs"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    folder = args.out / "attention-scaling"
    saved = folder / "measurements.json"
    if args.reuse:
        result = json.loads(saved.read_text(encoding="utf-8"))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        result = measure(QUICK if args.quick else Budget(), saved)
    plots(result, folder)
    (args.out / "attention-scaling.md").write_text(page(result), encoding="utf-8")
    for claim, figure, verdict in claims(result):
        print(f"{verdict}: {claim}\n    {figure}")
    print(f"wrote {args.out / 'attention-scaling.md'}")
    return 0


def rounded(value: Any) -> Any:
    """The same with six significant digits."""
    if isinstance(value, dict):
        return {key: rounded(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
