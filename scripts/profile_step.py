"""Where a training step's time goes: patches a second, and the share of each part.

    python scripts/profile_step.py configs/smoke.yaml --steps 20
    python scripts/profile_step.py configs/small_x4.yaml data.batch_size=8
    python scripts/profile_step.py configs/small_x4.yaml data.batch_size=8 --against trainer.winograd=off

Modules are timed with hooks around their forward and backward passes, the device is waited for at each, so the sum is
a little slower than training; what logging and the attention measurements cost is spread over their intervals.
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from srnet.attention import SparseAttention
from srnet.config import RunConfig, load_config
from srnet.device import resolve_precision, select_device
from srnet.diagnostics import examine
from srnet.errors import SRNetError
from srnet.network import SRNet
from srnet.training.datamodule import PatchBatches
from srnet.training.health import layer_metrics
from srnet.training.module import build_optimizer, restoration_loss
from srnet.training.run import collect, prepare


class Clock:
    """Seconds by part."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)
        self._started: list[float] = []

    def now(self) -> float:
        """The time at which the device has done what it was told to."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds what happens inside to a part."""
        start = self.now()
        yield
        self.seconds[name] += self.now() - start

    def watch(self, module: nn.Module, name: str) -> None:
        """Adds a module's forward and backward passes to a part."""

        def begin(*_: Any) -> None:
            self._started.append(self.now())

        def end(*_: Any) -> None:
            self.seconds[name] += self.now() - self._started.pop()

        module.register_forward_pre_hook(begin)
        module.register_forward_hook(end)
        module.register_full_backward_pre_hook(begin)
        module.register_full_backward_hook(end)


def measure(config: RunConfig, steps: int, report: Callable[[str], None]) -> dict[str, float]:
    """Trains a fresh network for some steps; seconds a step by part, and ``step`` for the whole."""
    packed, _ = collect(config, report)
    device = select_device(config.trainer.device)
    precision = resolve_precision(config.trainer.precision, device.type)
    bf16 = precision == "bf16"
    torch.manual_seed(config.trainer.seed)
    network = SRNet(config.network).to(device)
    prepare(network, config.trainer, device.type, precision, report)
    optimizer = build_optimizer(network, config.optim)
    ema = get_ema_multi_avg_fn(config.optim.ema_decay)  # type: ignore[no-untyped-call]
    average = AveragedModel(network, multi_avg_fn=ema)
    data = config.data
    batches = iter(
        PatchBatches(
            packed,
            data.batch_size,
            data.patch_size,
            0,
            degradation=data.degradation,
            informative=data.informative,
        )
    )
    clock = Clock(device)
    for module in network.modules():
        if isinstance(module, SparseAttention):
            clock.watch(module, "attention")
        elif isinstance(module, nn.Conv2d):
            clock.watch(module, "convolution")

    def step() -> None:
        with clock.part("data"):
            lr, hr = (t.to(device).float().div_(255) for t in next(batches))
        lr.requires_grad_()  # or the backward pass of the first convolution would not be seen
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = restoration_loss(network(lr).float(), hr, config.optim.loss)
        torch.autograd.backward(loss)
        with clock.part("optimiser"):
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(network)

    for _ in range(3):
        step()
    clock.seconds.clear()
    start = clock.now()
    for _ in range(steps):
        step()
    whole = clock.now() - start
    result = {name: seconds / steps for name, seconds in clock.seconds.items()}
    result["other"] = whole / steps - sum(result.values())

    side = min(96, *packed.sizes[0].tolist())
    lr = torch.from_numpy(packed.image(0)[0][:side, :side].copy()).permute(2, 0, 1)[None]
    image = lr.float().div(255).to(device)
    for _ in range(2):  # the first call is slower, and one among many
        start = clock.now()
        layers = [e.statistics for e in examine(network, image)]
        health = clock.now() - start
    with tempfile.TemporaryDirectory() as folder:
        logger = CSVLogger(folder, flush_logs_every_n_steps=1)
        start = time.perf_counter()
        for i in range(20):
            logger.log_metrics({**layer_metrics(layers), "train/loss": 0.1}, i)
            logger.save()
        row = (time.perf_counter() - start) / 20
    result["logging"] = row / config.trainer.log_every_n_steps
    result["attention health"] = health / config.trainer.val_every_n_steps
    result["step"] = whole / steps + result["logging"] + result["attention health"]
    return result


def main() -> int:
    """Measures and prints; returns 2 when something is wrong with what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key.path=value")
    parser.add_argument("--steps", type=int, default=10, help="steps measured (default: 10)")
    parser.add_argument(
        "--against",
        nargs="+",
        metavar="key.path=value",
        help="other settings to measure in turn with these, for the ratio of the times",
    )
    args = parser.parse_args()
    try:
        compare(args.config, tuple(args.overrides), tuple(args.against or ()), args.steps)
    except SRNetError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def compare(path: Path, words: tuple[str, ...], against: tuple[str, ...], steps: int) -> None:
    """Measures a configuration, and where ``against`` names other settings those too, in turn."""
    config = load_config(path, words)
    if not against:
        tell(config, measure(config, steps, print))
        return
    other = load_config(path, (*words, *against))
    times: dict[str, list[dict[str, float]]] = defaultdict(list)
    for _ in range(3):  # in turn, since the machine's speed changes
        times["these"].append(measure(config, steps, print))
        times["others"].append(measure(other, steps, print))
    best = {name: min(found, key=lambda f: f["step"]) for name, found in times.items()}
    tell(config, best["these"])
    print(f"with {' '.join(against)}:")
    tell(other, best["others"])
    print(f"ratio of the steps' times: {best['others']['step'] / best['these']['step']:.2f}")


def tell(config: RunConfig, found: dict[str, float]) -> None:
    """Prints patches a second and the table."""
    whole = found["step"]
    rate = config.data.batch_size / whole
    print(
        f"{config.name}: {rate:.1f} patches/s, {whole * 1e3:.1f} ms a step of {config.data.batch_size}"
    )
    for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
        if name != "step":
            print(f"  {name:17} {seconds * 1e3:9.2f} ms  {seconds / whole:6.2%}")


if __name__ == "__main__":
    sys.exit(main())
