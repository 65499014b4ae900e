"""Trains a checkpoint for one sitting and publishes the result if it is better than what ships.

    python scripts/train_sitting.py start srnet-small-x4 configs/small_x4_open.yaml --hours 2 \
        --validation data/validation [--decay 1000] [--set key.path=value ...]
    python scripts/train_sitting.py publish srnet-small-x4 runs/small_x4_open/best.safetensors \
        --hours 2 --patches 96000 --validation data/validation [--init-from srnet-small-x2] [--anyway]

`start` goes on where the last sitting of this name stopped, in the background, on one thread, with low priority. The
rate stays constant over all sittings; with --decay, a copy of the run lets it fall to 0 over so many more steps, and
that copy is what is published. `publish` does the last part alone, for weights trained in another way.

Published means: measured on the validation set, for photo models after JPEG compression; copied to checkpoints/ and
entered into registry.json if the mean PSNR-Y is above that of the file there, or with --anyway. Either way the sitting
is added to docs/training-log.csv, with the checkpoint that it started from where that is another one.
"""

import argparse
import csv
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from register_checkpoint import describe, register

from srnet.checkpoint import known_models, load_checkpoint, save_checkpoint
from srnet.config import DegradationConfig, RunConfig, load_config
from srnet.datasets import find_pairs
from srnet.errors import SRNetError
from srnet.evaluation import Row, evaluate

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = (
    "checkpoint",
    "date",
    "hours",
    "patches",
    "validation_psnr_y",
    "published",
    "weights",
    "init_from",
)
VALIDATION_JPEG = DegradationConfig.validation_quality
ENDLESS = 10_000_000


def parser() -> argparse.ArgumentParser:
    """Declares the command line."""
    top = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = top.add_subparsers(dest="action", required=True)
    start = actions.add_parser("start", help="train for a while, then publish")
    start.add_argument("name", help="name of the checkpoint, e.g. srnet-small-x4")
    start.add_argument("config", help="YAML file of the run")
    start.add_argument(
        "--set",
        dest="overrides",
        nargs="+",
        action="extend",
        default=[],
        metavar="key.path=value",
        help="change single values of the configuration",
    )
    start.add_argument("--decay", type=int, default=0, metavar="STEPS", help="default: none")
    start.add_argument("--foreground", action="store_true", help="stay until it is done")
    publish = actions.add_parser("publish", help="publish weights trained in another way")
    publish.add_argument("name")
    publish.add_argument("weights", type=Path, help=".safetensors file")
    publish.add_argument("--patches", type=int, required=True, help="patches of this sitting")
    publish.add_argument(
        "--init-from",
        default="",
        metavar="NAME",
        help="checkpoint that this sitting started from; default: what the last sitting left",
    )
    publish.add_argument(
        "--anyway",
        action="store_true",
        help="also if validation is no better, for weights that mend a fault",
    )
    start.set_defaults(anyway=False)
    for action in (start, publish):
        action.add_argument("--hours", type=float, required=True, help="of training")
        action.add_argument("--validation", type=Path, required=True, metavar="DIR")
        action.add_argument("--checkpoints", type=Path, default=ROOT / "checkpoints")
        action.add_argument("--ledger", type=Path, default=ROOT / "docs" / "training-log.csv")
    return top


def report(text: str) -> None:
    """Writes one line with the time."""
    print(f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M:%S} {text}", flush=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Holds a lock on a run's folder; a second sitting of the same run would spoil it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "sitting.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"{folder}: another sitting is using this run")
        yield


def train(config: str, overrides: list[str], seconds: float | None) -> None:
    """Runs ``srnet train`` on one thread and asks it to stop when time is up, or when this process is asked to.

    Raises:
        SystemExit: The training failed.
    """
    command = [sys.executable, "-m", "srnet", "train", config, *overrides]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # finishes the step and saves
        code = process.wait()
    if code not in (0, 130):
        sys.exit(f"training failed with exit code {code}")


def average(folder: Path, config: RunConfig) -> tuple[Path | None, int]:
    """Writes the averaged weights of the saved state, newer than the last validation's; returns file and step."""
    from srnet.network import SRNet
    from srnet.training.resume import read_folder

    earlier = read_folder(folder, config)
    if not earlier.average:
        return None, 0
    path = folder / "average.safetensors"
    like = load_checkpoint(folder / "last.safetensors") if earlier.published else None
    metadata = like.metadata if like else {}
    save_checkpoint(
        path,
        SRNet(config.network),
        state_dict=earlier.average,
        metrics={"step": earlier.step},
        data=metadata.get("data") or config.data.description,
        license=metadata.get("license") or config.data.weights_license,
        commit=metadata.get("commit", "unknown"),
        kind="classical" if config.data.degradation is None else "photo",
    )
    return path, earlier.step


def measure(path: Path, validation: Path) -> tuple[Row, str]:
    """Mean scores on the validation set, and the name of what was measured."""
    loaded = load_checkpoint(path)
    scale = loaded.network.scale
    jpeg = VALIDATION_JPEG if loaded.metadata.get("kind") == "photo" else None
    pairs = find_pairs(validation, scale)
    result = evaluate(
        loaded.network, pairs, scale, model=loaded.name, data=validation.name, jpeg=jpeg
    )
    low, high = VALIDATION_JPEG
    return result.mean, f"{validation.name} JPEG {low}-{high}" if jpeg else validation.name


def publish(
    args: argparse.Namespace, candidates: list[Path], hours: float, patches: int, init_from: str
) -> None:
    """Measures the candidates and the shipped file; replaces the latter if one is better; extends the ledger."""
    scores = {path: measure(path, args.validation) for path in candidates}
    best = max(scores, key=lambda path: scores[path][0].psnr_y)
    mean, what = scores[best]
    target = args.checkpoints / f"{args.name}.safetensors"
    old = measure(target, args.validation)[0].psnr_y if target.exists() else None
    better = old is None or mean.psnr_y > old or args.anyway
    if better:
        loaded = load_checkpoint(best)
        save_checkpoint(
            target,
            loaded.network,
            metrics={what: {"psnr_y": mean.psnr_y, "ssim_y": mean.ssim_y}},
            data=loaded.metadata["data"],
            license=loaded.metadata["license"],
            commit=loaded.metadata["commit"],
            kind="photo" if loaded.metadata.get("kind") == "photo" else "classical",
        )
        register([describe(target, shipped=True)], args.checkpoints / "registry.json")
    before = "nothing" if old is None else f"{old:.3f} dB"
    verdict = "published" if better else "not published"
    report(f"{args.name}: {what} {mean.psnr_y:.3f} dB, shipped before: {before}; {verdict}")
    new = not args.ledger.exists()
    args.ledger.parent.mkdir(parents=True, exist_ok=True)
    with args.ledger.open("a", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        if new:
            rows.writerow(COLUMNS)
        date = f"{datetime.now(timezone.utc):%Y-%m-%d}"
        score = f"{mean.psnr_y:.3f}"
        published = "yes" if better else "no"
        run = run_name(best)
        rows.writerow((args.name, date, f"{hours:.2f}", patches, score, published, run, init_from))


def run_name(weights: Path) -> str:
    """What the log calls weights: their run, or a file of another name by that name."""
    usual = weights.stem in ("average", "best", "last")
    return weights.resolve().parent.name if usual else weights.stem


def other_checkpoint(init_from: str | None, name: str) -> str:
    """The registered checkpoint that a run starts from, if that is another one than its own; else nothing."""
    others = {model.name for model in known_models()} - {name}
    return init_from if init_from in others else ""


def sit(args: argparse.Namespace, config: RunConfig) -> None:
    """Trains until time is up, lets the rate decay in a copy where asked to, publishes."""
    folder = Path(config.output_dir) / config.name
    with alone(folder):
        _, before = average(folder, config)
        started = time.monotonic()
        constant = ["optim.decay_steps=0", f"trainer.max_steps={ENDLESS}", *args.overrides]
        train(args.config, constant, args.hours * 3600)
        newest, step = average(folder, load_config(args.config, tuple(constant)))
        if newest is None:
            sys.exit(f"{folder}: the sitting was too short for a single save")
        steps = step - before
        candidates = [newest]
        if args.decay:
            copy = folder.with_name(f"{folder.name}_decay")
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            shutil.copy(folder / "last.ckpt", copy)
            falling = [f"name={copy.name}", f"optim.decay_steps={args.decay}"]
            falling.append(f"trainer.max_steps={step + args.decay}")
            train(args.config, [*args.overrides, *falling], None)
            steps += args.decay
            candidates = [copy / "last.safetensors"]
        if (folder / "best.safetensors").exists():
            candidates.append(folder / "best.safetensors")
        hours = (time.monotonic() - started) / 3600
        start = "" if before else other_checkpoint(config.init_from, args.name)
        publish(args, candidates, hours, steps * config.data.batch_size, start)


def main(argv: list[str] | None = None) -> int:
    """Runs one action; returns 2 when something is wrong with what was asked for."""
    args = parser().parse_args(argv)
    try:
        if args.action == "publish":
            publish(args, [args.weights], args.hours, args.patches, args.init_from)
            return 0
        config = load_config(args.config, tuple(args.overrides))
        if args.foreground:
            sit(args, config)
            return 0
    except SRNetError as error:
        print(error, file=sys.stderr)
        return 2
    folder = Path(config.output_dir) / config.name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "sitting.log"
    command = [
        "nice",
        "-n",
        "10",
        sys.executable,
        __file__,
        *(argv or sys.argv[1:]),
        "--foreground",
    ]
    with log.open("a") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    print(f"{args.name}: process {process.pid}, log {log}; to end it early: kill {process.pid}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
