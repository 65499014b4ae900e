"""Compares network shapes and recipes on equal terms: same start, same data, same seed, same training time.

    python scripts/search.py --trunk runs/trunk_x4/last.safetensors --train data/cid22 data/photos \
        --validation data/validation --test data/Urban100 --steps 1000 --arms none window one
    python scripts/search.py --recipes --train data/cid22 data/photos \
        --validation data/validation --test data/Urban100 --steps 2400 --arms muon adamw

Shapes are compared from one trained convolutional trunk, to which what they add is added as the identity.
Recipes, and width against depth, are compared from random weights, on the convolutions of `tiny`. Time is what is
equal, not steps: a training step of each arm, from drawing patches to updating weights, is timed, interleaved with the
others in one process, and an arm gets `--steps` times (step of the reference / its own step) steps; the reference is
`none` or `muon`. Every run is `srnet train` and every score `srnet eval`; the commands are printed and kept. Results go
to --output as JSON lines, one for each arm and seed; what is already there is not run again. --table FILE writes them
as a table between the markers of a Markdown file.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from predictor_study import write_section

from srnet.attention import SparseAttention
from srnet.checkpoint import load_checkpoint, save_checkpoint
from srnet.config import load_config
from srnet.datasets import sample_patches
from srnet.network import SRNet
from srnet.training.module import build_optimizer, restoration_loss
from srnet.training.run import collect

CONFIG = "configs/small_x4_open.yaml"
RECIPE_CONFIG = "configs/tiny_x4_open.yaml"


class Arm(NamedTuple):
    """One network shape and how its attention layers start, or one recipe."""

    title: str
    changes: tuple[str, ...] = ()
    """What it changes in the configuration."""
    apart: bool = False
    """Keys start with projections of their own, not those of the queries."""


THREE = "network.attention_blocks=[1, 3, 5]"
ONE = "network.attention_blocks=[3]"
ARMS = {
    "none": Arm("no attention", ("network.attention_blocks=[]",)),
    "deeper": Arm(
        "no attention, a seventh block", ("network.attention_blocks=[]", "network.num_blocks=7")
    ),
    "window": Arm(
        "8x8 windows, the group's own 64 pixels, three layers, keys' start apart",
        (THREE, "network.region_size=8", "network.top_k=64"),
        apart=True,
    ),
    "three": Arm("top-64 of 32x32, three layers", (THREE,)),
    "one": Arm("top-64 of 32x32, one layer", (ONE,)),
    "thin": Arm(
        "top-64 of 32x32, one layer, one head of 16 channels",
        (ONE, "network.num_heads=1", "network.head_dim=16"),
    ),
    "late": Arm(
        "top-64 of 32x32, one layer, after the last block",
        ("network.attention_blocks=[5]",),
    ),
    "few": Arm(
        "top-32 of 24x24, one layer",
        (ONE, "network.region_size=24", "network.top_k=32"),
    ),
    "group": Arm(
        "one choice of top-64 of 32x32 for 16x16 queries, one layer",
        (ONE, "network.group_size=16"),
    ),
}
RECIPES = {
    "muon": Arm("Muon, rate 2.5e-3, 16 patches of 32x32"),
    "muon-1e-3": Arm("Muon, rate 1e-3", ("optim.learning_rate=1e-3",)),
    "adamw": Arm("AdamW, rate 1e-3", ("optim.optimizer=adamw", "optim.learning_rate=1e-3")),
    "batch-8": Arm("8 patches of 32x32", ("data.batch_size=8",)),
    "patch-48": Arm("7 patches of 48x48", ("data.patch_size=48", "data.batch_size=7")),
    "mse": Arm("mean squared error", ("optim.loss=mse",)),
    "fft": Arm("mean absolute error plus 0.05 of the spectrum's", ("optim.loss=l1+fft",)),
    "informative": Arm("worst of 4 places for each patch", ("data.informative=4",)),
    "wide": Arm(
        "40 channels, 8 convolutions", ("network.embed_dim=40", "network.convs_per_block=2")
    ),
}


def settings(args: argparse.Namespace, arm: str) -> list[str]:
    """The words that make an arm's run of the configuration, but for its name, length and first weights."""
    common = [
        f"data.train=[{','.join(map(str, args.train))}]",
        f"data.validation.validation={args.validation}",
        f"data.cache_dir={args.output.parent / 'cache'}",
        f"trainer.seed={args.seed}",
        f"output_dir={args.output.parent}",
    ]
    if args.recipes:
        return [*common, "network.attention_blocks=[]", *RECIPES[arm].changes]
    return [
        *common,
        f"data.patch_size={args.patch_size}",
        f"data.batch_size={args.batch_size}",
        f"optim.learning_rate={args.rate}",
        *ARMS[arm].changes,
    ]


def write_start(args: argparse.Namespace, arm: str) -> Path:
    """Writes the trunk with what the arm adds, which changes nothing yet: the run's first weights."""
    trunk = load_checkpoint(args.trunk)
    config = load_config(CONFIG, tuple(settings(args, arm)))
    torch.manual_seed(args.seed)
    network = SRNet(config.network)
    network.load_state_dict({**network.state_dict(), **trunk.network.state_dict()})
    added = f"blocks.{trunk.network.config.num_blocks}.convs.{config.network.convs_per_block - 1}."
    for name, parameter in network.named_parameters():
        if name.startswith(added):
            torch.nn.init.zeros_(parameter)
    if ARMS[arm].apart:
        for layer in (m for m in network.modules() if isinstance(m, SparseAttention)):
            torch.nn.init.orthogonal_(layer.kv.weight.chunk(2)[0])
            torch.nn.init.orthogonal_(layer.predictor.weight.chunk(2)[1])
    path: Path = args.output.parent / f"start_{arm}_{args.seed}.safetensors"
    save_checkpoint(
        path,
        network,
        metrics={},
        data=trunk.metadata["data"],
        license=trunk.metadata["license"],
        commit=trunk.metadata["commit"],
    )
    return path


def time_steps(args: argparse.Namespace, rounds: int = 15) -> dict[str, tuple[float, float]]:
    """Seconds of a training step, and of upscaling 256x256 pixels: medians over interleaved rounds, by arm."""
    configs = {arm: load_config(args.config, tuple(settings(args, arm))) for arm in args.arms}
    networks = {arm: SRNet(config.network) for arm, config in configs.items()}
    optimizers = {arm: build_optimizer(networks[arm], configs[arm].optim) for arm in args.arms}
    packed, _ = collect(configs[args.arms[0]], print)
    image = torch.rand(1, 3, 256, 256).contiguous(memory_format=torch.channels_last)
    seconds: dict[str, tuple[list[float], list[float]]] = {arm: ([], []) for arm in args.arms}
    for _ in range(rounds):
        for arm, network in networks.items():
            data = configs[arm].data
            start = time.perf_counter()
            lr, hr = sample_patches(
                packed,
                data.batch_size,
                data.patch_size,
                torch.Generator(),
                informative=data.informative,
            )
            optimizers[arm].zero_grad()
            torch.autograd.backward(
                restoration_loss(network(lr / 255), hr / 255, configs[arm].optim.loss)
            )
            optimizers[arm].step()
            middle = time.perf_counter()
            with torch.inference_mode():
                network(image)
            seconds[arm][0].append(middle - start)
            seconds[arm][1].append(time.perf_counter() - middle)
    return {arm: (statistics.median(a), statistics.median(b)) for arm, (a, b) in seconds.items()}


def run(command: list[str]) -> None:
    """Prints and runs one srnet command."""
    print(f"$ {shlex.join(command)}", flush=True)
    subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)


def score(args: argparse.Namespace, weights: Path, folder: Path) -> float:
    """Mean PSNR-Y of a checkpoint over a folder, dB."""
    report = args.output.parent / "report.json"
    run(["srnet", "eval", str(weights), "--data", str(folder), "--json", str(report)])
    return float(json.loads(report.read_text(encoding="utf-8"))["mean"]["psnr_y"])


def results(path: Path) -> list[dict[str, Any]]:
    """The lines of a results file; none if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def search(args: argparse.Namespace) -> None:
    """Runs the arms that the results lack."""
    done = {(row["arm"], row["seed"]) for row in results(args.output)}
    missing = [arm for arm in args.arms if (arm, args.seed) not in done]
    if not missing:
        return
    seconds = time_steps(args)
    reference = seconds[args.arms[0]]
    for arm in missing:
        steps = round(args.steps * reference[0] / seconds[arm][0])
        # with the length in it, since a run of the same name would be gone on with
        name = f"search_{arm}_{args.seed}_{steps}"
        words = [
            *settings(args, arm),
            f"name={name}",
            f"trainer.max_steps={steps}",
            f"trainer.val_every_n_steps={max(1, steps // 3)}",
            f"optim.decay_steps={round(args.decay * steps)}",
            "optim.warmup_steps=50",
        ]
        if not args.recipes:
            words.append(f"init_from={write_start(args, arm)}")
        start = time.perf_counter()
        run(["srnet", "train", args.config, *words])
        minutes = (time.perf_counter() - start) / 60
        weights = args.output.parent / name / "last.safetensors"
        row = {
            "arm": arm,
            "seed": args.seed,
            "steps": steps,
            "minutes": round(minutes, 1),
            "step_time": round(seconds[arm][0] / reference[0], 2),
            "upscale_time": round(seconds[arm][1] / reference[1], 2),
            "validation": round(score(args, weights, args.validation), 3),
            "test": round(score(args, weights, args.test), 3),
        }
        with args.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def table(rows: list[dict[str, Any]], test: str, recipes: bool) -> str:
    """Markdown, best first."""
    config, arms = (RECIPE_CONFIG, RECIPES) if recipes else (CONFIG, ARMS)
    lines = [
        f"| {'recipe' if recipes else 'network'} | seed | steps | step time | upscaling time | validation "
        f"| {test} | changes to `{config}` |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    known = [row for row in rows if row["arm"] in arms]  # an arm may be gone since it was run
    for row in sorted(known, key=lambda row: -float(row["validation"])):
        arm = arms[row["arm"]]
        changes = " ".join(f"`{change}`" for change in arm.changes) or "none"
        lines.append(
            f"| {arm.title} | {row['seed']} | {row['steps']} | {row['step_time']:.2f} | "
            f"{row['upscale_time']:.2f} | {row['validation']:.3f} | {row['test']:.3f} | "
            f"{changes} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Reads the command line, runs the arms, writes the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipes", action="store_true", help="compare recipes, not shapes")
    parser.add_argument("--trunk", help="checkpoint without attention, for shapes")
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--validation", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True, help="a folder for the second score")
    parser.add_argument("--steps", type=int, default=1000, help="of the reference")
    parser.add_argument("--decay", type=float, default=0.5, help="share of steps with falling rate")
    parser.add_argument("--rate", type=float, default=1e-3, help="for shapes")
    parser.add_argument("--patch-size", type=int, default=48, help="for shapes")
    parser.add_argument("--batch-size", type=int, default=8, help="for shapes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", nargs="+", choices=[*ARMS, *RECIPES])
    parser.add_argument("--output", type=Path, default=Path("runs/search/results.jsonl"))
    parser.add_argument("--table", type=Path, help="Markdown file with the two markers")
    args = parser.parse_args()
    if not args.recipes and args.trunk is None:
        parser.error("shapes are compared from a --trunk")
    args.config, known = (RECIPE_CONFIG, RECIPES) if args.recipes else (CONFIG, ARMS)
    wrong = [arm for arm in args.arms or () if arm not in known]
    if wrong:
        parser.error(
            f"{wrong[0]} is no {'recipe' if args.recipes else 'shape'}: {', '.join(known)}"
        )
    args.arms = list(dict.fromkeys([next(iter(known)), *(args.arms or known)]))
    args.output.parent.mkdir(parents=True, exist_ok=True)
    search(args)
    text = table(results(args.output), args.test.name, args.recipes)
    print(text)
    if args.table is not None:
        section = "recipes" if args.recipes else "search"
        begin, end = (f"<!-- {section}: {word} -->" for word in ("begin", "end"))
        write_section(args.table, f"{text}\n", begin, end)


if __name__ == "__main__":
    main()
