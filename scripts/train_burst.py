"""Trains as much as a device allows in a few minutes: everything on the device, bfloat16, compiled, large batches.

    python scripts/train_burst.py pack data/cid22 data/photos data/graphics -o burst.zip     # at most 40 MiB
    python scripts/train_burst.py train configs/small_x4.yaml burst.zip runs/burst --minutes 8 --batch 256 \
        --decay 0.25 --set optim.learning_rate=3e-3 init_from=srnet-small-x4

For a machine that is lent for minutes and reached by copying files: images travel as the files they are and are
decoded once. `train` leaves in its folder state.pt, from which the same command goes on (also on another kind of
device), and last.safetensors, the averaged weights, in srnet's format. The rate rises over optim.warmup_steps, is
constant, and falls to 0 in the last --decay of the time; state.pt is that of the constant phase. Without a GPU the same
steps run slowly.
"""

import argparse
import hashlib
import io
import json
import math
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from srnet.atomic import atomic_output, remove_leftovers
from srnet.checkpoint import load_checkpoint, save_checkpoint
from srnet.config import RunConfig, load_config
from srnet.device import has_native_bf16, select_device
from srnet.errors import ConfigError, DataError, SRNetError
from srnet.network import SRNet
from srnet.pairs import images_in, shrunk_size
from srnet.resize import downscale, imresize

LIMIT_MIB = 40.0
SAVE_SECONDS = 60.0
LOG_STEPS = 50


def pack(folders: list[Path], target: Path, limit: float) -> tuple[int, int]:
    """Puts image files into a zip file as they are, as many as fit, in an order that their names fix.

    Returns:
        Images taken and images found.

    Raises:
        DataError: There are none.
    """
    files = [path for folder in folders for path in images_in(folder).values()]
    if not files:
        raise DataError(f"no images in {', '.join(map(str, folders))}")
    files.sort(key=lambda path: hashlib.sha256(path.name.encode()).digest())
    room, taken = limit * 2**20, 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        atomic_output(target) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive,
    ):
        for path in files:
            needed = path.stat().st_size + 2 * len(path.name) + 400  # twice a header, at most
            if needed > room:
                continue
            archive.write(path, f"{taken:05d}{path.suffix.lower()}")
            room -= needed
            taken += 1
    return taken, len(files)


@dataclass
class Images:
    """All pixels of a data set on one device, in two flat tensors.

    Attributes:
        lr: (LR pixels of all images, 3) uint8, row after row.
        hr: (HR pixels, 3) uint8.
        sizes: (n, 2) LR height and width.
        scale: Enlargement factor.
    """

    lr: Tensor
    hr: Tensor
    sizes: Tensor
    scale: int

    @classmethod
    def read(
        cls,
        path: Path,
        scale: int,
        smallest: int,
        device: torch.device,
        hr_scales: Sequence[float] = (1,),
    ) -> "Images":
        """Decodes a packed file, every image at each of the sizes; those with an LR side below `smallest` are left out.

        Raises:
            DataError: It is no zip file of images, or no image is large enough.
        """
        import numpy as np
        from PIL import Image

        lrs, hrs, sizes = [], [], []
        try:
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    with Image.open(io.BytesIO(archive.read(name))) as file:
                        pixels = torch.from_numpy(np.array(file.convert("RGB")))
                    whole = pixels.to(device).permute(2, 0, 1)[None]
                    for factor in hr_scales:
                        size = shrunk_size((whole.shape[2], whole.shape[3]), factor)
                        height, width = (side // scale for side in size)
                        if min(height, width) < smallest:
                            continue
                        image = whole if factor == 1 else imresize(whole, size)
                        hr = image[..., : height * scale, : width * scale]
                        lr = downscale(hr, scale)
                        lrs.append(lr[0].permute(1, 2, 0).reshape(-1, 3))
                        hrs.append(hr[0].permute(1, 2, 0).reshape(-1, 3))
                        sizes.append((height, width))
        except (OSError, zipfile.BadZipFile, ValueError) as error:
            raise DataError(f"{path}: not a packed file of images: {error}") from None
        if not sizes:
            raise DataError(
                f"{path}: no image has LR of {smallest} x {smallest} pixels at x{scale}"
            )
        return cls(torch.cat(lrs), torch.cat(hrs), torch.tensor(sizes, device=device), scale)

    def sample(self, count: int, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random aligned patches, turned into one of the 8 flips and transposes, images drawn by area.

        Returns:
            LR (count, 3, side, side) and HR (count, 3, side * scale, side * scale), float32 in [0, 1].
        """
        device, s = self.lr.device, self.scale
        draws = torch.rand(5, count, generator=generator, device=device, dtype=torch.float64)
        area = self.sizes.prod(1)
        ends = area.cumsum(0)
        chosen = torch.searchsorted(ends, (draws[0] * ends[-1]).long(), right=True)
        height, width = self.sizes[chosen].T
        first = ends[chosen] - area[chosen]
        top = (draws[1] * (height - side + 1)).long()
        left = (draws[2] * (width - side + 1)).long()
        turn = (draws[3] * 8).long()

        def cut(pixels: Tensor, factor: int) -> Tensor:
            n = side * factor
            step = torch.arange(n, device=device)
            row = step[:, None].expand(n, n)
            column = row.T
            rows, columns = (x.expand(count, n, n) for x in (row, column))
            swapped = (turn & 4).bool()[:, None, None]
            rows, columns = rows.where(~swapped, column), columns.where(~swapped, row)
            rows = rows.where(~(turn & 1).bool()[:, None, None], n - 1 - rows)
            columns = columns.where(~(turn & 2).bool()[:, None, None], n - 1 - columns)
            start = first * factor**2
            rows = rows + (top * factor)[:, None, None]
            columns = columns + (left * factor)[:, None, None]
            index = start[:, None, None] + rows * (width * factor)[:, None, None] + columns
            return pixels[index].permute(0, 3, 1, 2).float().div_(255)

        return cut(self.lr, 1), cut(self.hr, s)


@dataclass
class Burst:
    """A training in progress; what it holds is what state.pt holds.

    Attributes:
        network: Being trained.
        average: EMA of its parameters, by name.
        optimizer: Its optimiser.
        step: Steps taken.
        patches: Patches seen.
    """

    network: SRNet
    average: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    step: int = 0
    patches: int = 0

    def save(self, path: Path) -> None:
        """Writes the state under a temporary name and moves it into place."""
        state = {
            "network": self.network.state_dict(),
            "average": self.average,
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "patches": self.patches,
        }
        remove_leftovers(path.parent)
        with atomic_output(path) as partial, partial.open("wb") as file:
            torch.save(state, file)

    def load(self, path: Path, device: torch.device) -> None:
        """Takes a saved state.

        Raises:
            ConfigError: It belongs to another network or optimiser.
        """
        state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        try:
            self.network.load_state_dict(state["network"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            text = " ".join(str(error).split())[:120]
            raise ConfigError(
                f"{path}: another network or optimiser ({text}); use another folder"
            ) from None
        self.average = state["average"]
        self.step, self.patches = state["step"], state["patches"]


def start(config: RunConfig, folder: Path, device: torch.device) -> Burst:
    """Makes the network and its optimiser, from the saved state where there is one."""
    from srnet.training.module import build_optimizer

    torch.manual_seed(config.trainer.seed)
    network = SRNet(config.network)
    if config.init_from is not None:
        from srnet.training.run import initialise_from

        weights = load_checkpoint(config.init_from).network.state_dict()
        initialise_from(network, weights, config.init_from)
    layout = torch.channels_last if device.type == "cuda" else torch.contiguous_format
    network.to(device).to(memory_format=layout)
    average = {name: p.detach().clone() for name, p in network.named_parameters()}
    burst = Burst(network, average, build_optimizer(network, config.optim))
    if (folder / "state.pt").exists():
        burst.load(folder / "state.pt", device)
    return burst


def train(
    burst: Burst,
    config: RunConfig,
    images: Images,
    folder: Path,
    *,
    seconds: float,
    batch: int,
    decay: float,
    last_step: int | None,
    compiled: bool,
    report: Callable[[str], None],
) -> None:
    """Steps until time is up or `last_step` is reached; leaves state.pt and last.safetensors.

    Raises:
        DataError: The loss is not finite; the last saved state is kept.
    """
    from srnet.training.module import restoration_loss

    device = images.lr.device
    half = has_native_bf16(device.type)
    network: Callable[[Tensor], Tensor] = (
        torch.compile(burst.network) if compiled else burst.network
    )
    rates = [
        (group, config.optim.learning_rate * (config.optim.adam_ratio if group.get("use_fallback") else 1))
        for group in burst.optimizer.param_groups
    ]  # fmt: skip
    parameters = dict(burst.network.named_parameters())
    names = list(parameters)
    generator = torch.Generator(device)
    state = folder / "state.pt"
    began = saved = logged = time.monotonic()
    falling, first_patches = False, burst.patches
    while last_step is None or burst.step < last_step:
        used = (time.monotonic() - began) / seconds
        if used >= 1:
            break
        left = 1 - used
        if last_step is not None and burst.step > 0:
            left = min(left, (last_step - burst.step) / last_step)
        if not falling and left <= decay:
            burst.save(state)
            falling = True
        rise = min(1.0, (burst.step + 1) / max(1, config.optim.warmup_steps))
        fall = min(1.0, left / decay) if falling else 1.0
        for group, rate in rates:
            group["lr"] = rate * rise * fall
        # by step alone, so that a resumed run sees what an uninterrupted one would
        seed = hashlib.blake2b(f"{config.trainer.seed}/{burst.step}".encode(), digest_size=4)
        generator.manual_seed(int.from_bytes(seed.digest(), "big"))
        lr, hr = images.sample(batch, config.data.patch_size, generator)
        if device.type == "cuda":
            lr = lr.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            sr = network(lr)
        loss = restoration_loss(sr.float(), hr, config.optim.loss)
        burst.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if config.optim.gradient_clip:
            torch.nn.utils.clip_grad_norm_(parameters.values(), config.optim.gradient_clip)
        burst.optimizer.step()
        burst.step += 1
        burst.patches += batch
        weight = 1 - min(config.optim.ema_decay, (1 + burst.step) / (10 + burst.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                [burst.average[name] for name in names],
                [parameters[name] for name in names],
                weight,
            )
        now = time.monotonic()
        due = not falling and now - saved > SAVE_SECONDS
        if burst.step % LOG_STEPS == 0 or due:
            value = loss.item()
            if not math.isfinite(value) or value > 1:
                raise DataError(f"loss {value} at step {burst.step}; lower the rate; kept: {state}")
            rate = (burst.patches - first_patches) / max(1e-9, now - began)
            if now - logged > 5 or burst.step % (20 * LOG_STEPS) == 0:
                report(
                    f"step {burst.step}  loss {value:.5f}  {rate:.0f} patches/s  {100 * used:.0f} %"
                )
                logged = now
        if due:
            burst.save(state)
            saved = now
    if not falling:
        burst.save(state)
    publish(burst, config, folder)
    report(
        f"{burst.step} steps, {burst.patches} patches in all, "
        f"{(burst.patches - first_patches) / max(1e-9, time.monotonic() - began):.0f} patches/s; {folder}"
    )


def publish(burst: Burst, config: RunConfig, folder: Path) -> None:
    """Writes the averaged weights as a checkpoint."""
    save_checkpoint(
        folder / "last.safetensors",
        burst.network,
        state_dict=burst.network.state_dict() | burst.average,
        metrics={"step": burst.step, "patches": burst.patches},
        data=config.data.description or "unknown",
        license=config.data.weights_license,
        commit="unknown",
    )


def main(argv: list[str] | None = None) -> int:
    """Packs or trains; returns 2 when something is wrong with what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    action = actions.add_parser("pack", help="put images into one file")
    action.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    action.add_argument("-o", "--output", type=Path, required=True, metavar="FILE")
    action.add_argument("--limit", type=float, default=LIMIT_MIB, metavar="MIB", help="default: 40")
    action = actions.add_parser("train", help="train on a packed file")
    action.add_argument(
        "config", help="YAML file of a run; its network, optim, patch_size and hr_scales count"
    )
    action.add_argument("data", type=Path, help="packed file")
    action.add_argument("folder", type=Path, help="for the state and the weights")
    action.add_argument("--minutes", type=float, required=True)
    action.add_argument("--batch", type=int, metavar="N", help="default: the configuration's")
    action.add_argument(
        "--decay", type=float, default=0.0, metavar="SHARE", help="of the time, default: 0"
    )
    action.add_argument("--steps", type=int, metavar="N", help="stop at this step")
    action.add_argument(
        "--compile", choices=("auto", "on", "off"), default="auto", help="auto: on GPUs"
    )
    action.add_argument("--device", default="auto")
    action.add_argument("--set", nargs="+", action="extend", default=[], metavar="key.path=value")
    args = parser.parse_args(argv)

    def report(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    try:
        if args.action == "pack":
            taken, found = pack(args.folders, args.output, args.limit)
            size = args.output.stat().st_size / 2**20
            print(f"{args.output}: {taken} of {found} images, {size:.1f} MiB")
            return 0
        config = load_config(args.config, tuple(args.set))
        if config.data.degradation is not None:
            raise ConfigError("a burst trains classical models; leave data.degradation out")
        device = select_device(args.device)
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
        args.folder.mkdir(parents=True, exist_ok=True)
        data = config.data
        images = Images.read(
            args.data, config.network.scale, data.patch_size, device, data.hr_scales
        )
        burst = start(config, args.folder, device)
        report(f"{len(images.sizes)} images on {device}, at step {burst.step}")
        train(
            burst,
            config,
            images,
            args.folder,
            seconds=60 * args.minutes,
            batch=args.batch or config.data.batch_size,
            decay=args.decay,
            last_step=args.steps,
            compiled=args.compile == "on" or (args.compile == "auto" and device.type == "cuda"),
            report=report,
        )
    except SRNetError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps({"step": burst.step, "patches": burst.patches}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
