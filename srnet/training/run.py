"""One training run from its configuration to its weights."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import Tensor

from srnet.atomic import atomic_output
from srnet.checkpoint import load_checkpoint
from srnet.config import RunConfig, TrainerConfig
from srnet.datasets import (
    PackedPairs,
    Pair,
    find_pairs,
    find_pairs_in_roots,
    read_pair,
    scan,
    summarise,
    with_shrunk,
)
from srnet.degradation import MARGIN
from srnet.device import Precision, resolve_precision, select_device
from srnet.diagnostics import projection_statistics
from srnet.errors import CheckpointError, ConfigError, DataError, TrainingError
from srnet.network import SRNet
from srnet.training.callbacks import (
    AtomicCheckpointIO,
    ExportWeights,
    ProgressLines,
    SaveState,
    StopOnBadLoss,
    report_line,
)
from srnet.training.datamodule import SRDataModule
from srnet.training.health import AttentionHealth
from srnet.training.module import SRModule, largest_loss
from srnet.training.resume import STATE, Earlier, read_folder
from srnet.training.tracking import Panel, Tracker, name_in_sweep, open_tracker
from srnet.training.winograd import accelerate

_LIGHTNING_PRECISION: dict[Precision, Literal["32-true", "bf16-mixed", "16-mixed"]] = {
    "fp32": "32-true",
    "bf16": "bf16-mixed",
    "fp16": "16-mixed",
}


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    step: int
    stopped_by: str | None
    """Name of the signal that stopped it, None when it reached max_steps."""
    metrics: dict[str, dict[str, float]]
    """Last validation: {set: {"psnr_y": ..., "ssim_y": ...}}."""
    rank: int = 0
    """Of this process among several."""


def initialise_from(
    network: SRNet, weights: dict[str, Tensor], source: str
) -> tuple[list[str], list[str]]:
    """Copies weights of a related network.

    Only the upsampler (another scale) and attention layers that the source does not have may stay fresh, and only
    whole attention layers may be left out.

    Args:
        network: Network to fill.
        weights: State dict of the source.
        source: Name of the source for messages.

    Returns:
        Names of the tensors that stay fresh, and of those left out.

    Raises:
        CheckpointError: Any other tensor is missing, left over, or of another shape.
    """
    own = network.state_dict()
    with_attention = {k.split(".attention.")[0] for k in own if ".attention." in k}
    left_out = [
        k for k in weights if ".attention." in k and k.split(".attention.")[0] not in with_attention
    ]
    fresh = [
        k
        for k, v in own.items()
        if (k.startswith("upsampler.") and (k not in weights or weights[k].shape != v.shape))
        or (".attention." in k and k not in weights)
    ]
    for key in (k for k in own if k not in fresh):
        if key not in weights:
            raise CheckpointError(
                f"{source} has no {key}; init_from needs a network with the same trunk"
            )
        if weights[key].shape != own[key].shape:
            raise CheckpointError(
                f"{source}: {key} is {tuple(weights[key].shape)}, this network needs {tuple(own[key].shape)}; "
                "use the same embed_dim and blocks"
            )
    left_over = sorted(weights.keys() - own.keys() - set(left_out))
    if left_over:
        raise CheckpointError(
            f"{source} has {len(left_over)} tensors that this network lacks, e.g. {left_over[0]}; "
            "use the same num_blocks"
        )
    network.load_state_dict({k: own[k] if k in fresh else weights[k] for k in own})
    return fresh, left_out


def collect(
    config: RunConfig, report: Callable[[str], None]
) -> tuple[PackedPairs, dict[str, list[Pair]]]:
    """Finds, checks and packs the data; every problem is told before training.

    Args:
        config: The run.
        report: Receives lines of text.

    Returns:
        The training images, and the pairs of each validation set.

    Raises:
        DataError: The data has problems; the message lists them.
    """
    data, scale = config.data, config.network.scale
    crop = data.patch_size + (0 if data.degradation is None else MARGIN)
    pairs = find_pairs_in_roots(
        [Path(root) for root in data.train], scale, allow_orphans=data.allow_orphans
    )
    problems = scan(pairs, scale, crop)
    if problems and data.skip_small:
        unusable = {p.name for p in scan(pairs, scale, 1)}
        small = {p.name for p in problems} - unusable
        problems = [p for p in problems if p.name in unusable]
        pairs = [p for p in pairs if p.name not in small]
        if small:
            report(
                f"left out {len(small)} images smaller than a crop of {crop} LR pixels, e.g. {min(small)}"
            )
    if problems:
        raise DataError(summarise(problems))
    if not pairs:
        raise DataError(
            f"no image of {', '.join(data.train)} is as large as a crop of {crop} LR pixels"
        )
    pairs = with_shrunk(pairs, data.hr_scales, scale, crop)
    if not pairs:
        raise DataError(
            f"no image of {', '.join(data.train)} is as large as a crop of {crop} LR pixels once shrunk by "
            f"{', '.join(f'{f:g}' for f in data.hr_scales)}; add 1 to data.hr_scales"
        )
    validation = {
        name: find_pairs(Path(root), scale, allow_orphans=data.allow_orphans)
        for name, root in data.validation.items()
    }
    for name, found in validation.items():
        problems = scan(found, scale, 1)
        if problems:
            raise DataError(f"validation set {name}: {summarise(problems)}")
    packed = PackedPairs.build(pairs, scale, Path(data.cache_dir), progress=_every_tenth(report))
    return packed, validation


def _every_tenth(report: Callable[[str], None]) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done == total or done % max(1, total // 10) == 0:
            report(f"packing training images: {done}/{total}")

    return progress


def _commit() -> str:
    """Commit of srnet's own source tree; 'unknown' for an installed package, also inside another repository."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "rev-parse", "--show-toplevel", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    top, _, commit = found.strip().rpartition("\n")
    return commit if top and Path(top).resolve() == root else "unknown"


def _quiet_lightning() -> None:
    """Lightning's advice is for its own users; what concerns ours is told in our words."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*smaller than the logging interval.*",  # a short run
        ".*does not have many workers.*",  # cutting patches from a memory map needs none
        ".*your dataloader is not resumable.*",  # it is: batches are numbered by step
        ".*treespec, LeafSpec.*",  # Lightning 2.6 calls what torch 2.14 deprecates
    ):
        warnings.filterwarnings("ignore", message)


def train(config: RunConfig, report: Callable[[str], None] = report_line) -> RunResult:
    """Trains from the start, or from the saved state in the run's folder if there is one.

    Writes to ``output_dir/name``: config.json, last.ckpt (resumable state), last.safetensors and best.safetensors
    (averaged weights, also as .pth), logs/version_N/metrics.csv for each sitting.

    Args:
        config: The run.
        report: Receives lines of text.

    Returns:
        How it ended.

    Raises:
        ConfigError: The saved state belongs to another network or optimiser, or the device does not exist.
        DataError: The data has problems; the message lists them.
        CheckpointError: init_from or the saved state cannot be used.
        TrainingError: The loss exploded or nothing can be written; the last good state is kept.
    """
    _quiet_lightning()
    rank: int = getattr(rank_zero_only, "rank", 0)
    if rank:
        report = _silence
    config = name_in_sweep(config)
    device = select_device(config.trainer.device).type
    folder = Path(config.output_dir) / config.name
    steps = config.trainer.max_steps
    earlier = read_folder(folder, config)
    done = earlier.step
    if done >= steps and earlier.published >= done:
        report(
            f"{folder / STATE} has {done} steps, trainer.max_steps is {steps}: nothing to do; raise it to go on"
        )
        return RunResult(folder, done, None, {})

    packed, validation = collect(config, report)
    torch.manual_seed(config.trainer.seed)
    network = SRNet(config.network)
    if done:
        if earlier.changed:
            report(f"changed since step {done}: {', '.join(earlier.changed)}")
    else:
        if config.init_from is not None:
            _start_from(network, config.init_from, report)
        for line in _unit_variance_warnings(config, network, packed):
            report(line)
    precision = resolve_precision(config.trainer.precision, device)
    prepare(network, config.trainer, device, precision, report)

    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(config), indent=2) + "\n"
        with atomic_output(folder / "config.json") as partial:
            partial.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TrainingError(f"{folder}: cannot be written: {error.strerror}") from error
    tracker = None if rank else open_tracker(config, folder, earlier.run_id, report)
    failed = True
    try:
        result = _fit(
            config, network, packed, validation, folder, device, precision, earlier, tracker, report
        )
        failed = False
    except OSError as error:
        raise TrainingError(
            f"{error.filename or folder}: cannot be written: {error.strerror}; the last saved state is kept in "
            f"{folder / STATE}; free space and run the same command again"
        ) from error
    finally:
        if tracker is not None:
            tracker.close([folder / "best.safetensors", folder / "last.safetensors"], failed=failed)
    return result


def prepare(
    network: SRNet,
    options: TrainerConfig,
    device: str,
    precision: Precision,
    report: Callable[[str], None],
) -> None:
    """Gives the network the convolutions and the memory layout that make training fast; same results but for rounding.

    Args:
        network: Changed in place.
        options: Its winograd and channels_last are obeyed.
        device: Kind of device that it trains on.
        precision: Precision that it trains in.
        report: Told when Winograd's convolutions could be used, had this machine a compiler.

    Raises:
        ConfigError: winograd is on and cannot be had.
    """
    fits = device == "cpu" and precision == "fp32" and not options.compile
    if options.winograd == "on" and not fits:
        raise ConfigError(
            f"trainer.winograd is on, but is for a CPU in float32 without torch.compile, and this is {device} in "
            f"{precision}{' with it' if options.compile else ''}; use auto"
        )
    fast = fits and options.winograd != "off"
    if fast:
        try:
            fast = accelerate(network)
        except OSError as error:
            if options.winograd == "on":
                raise ConfigError(f"trainer.winograd is on, but {error}; use auto") from error
            report(f"a C compiler would make a step of training up to twice as fast: {error}")
            fast = False
    layout = options.channels_last
    if layout == "on" or (layout == "auto" and (precision == "bf16" or fast)):
        network.to(memory_format=torch.channels_last)


def _silence(line: str) -> None:
    """Only the first of several processes speaks."""


def _start_from(network: SRNet, source: str, report: Callable[[str], None]) -> None:
    """Fills the network from a checkpoint and says which layers start fresh and which are left out."""
    fresh, left_out = initialise_from(network, load_checkpoint(source).network.state_dict(), source)
    line = f"weights from {source}; starting fresh: {_layers(fresh) or 'nothing'}"
    report(f"{line}; left out: {_layers(left_out)}" if left_out else line)


def _layers(names: list[str]) -> str:
    """The layers that these tensors belong to; an attention layer counts as one."""
    layers = (name.rsplit(".", 2 if ".attention." in name else 1)[0] for name in names)
    return ", ".join(dict.fromkeys(layers))


def _fit(
    config: RunConfig,
    network: SRNet,
    packed: PackedPairs,
    validation: dict[str, list[Pair]],
    folder: Path,
    device: str,
    precision: Precision,
    earlier: Earlier,
    tracker: Tracker | None,
    report: Callable[[str], None],
) -> RunResult:
    """Sets up Lightning, catches up on a validation that was cut off, trains, publishes."""
    options, steps, done = config.trainer, config.trainer.max_steps, earlier.step
    processes = options.devices * options.num_nodes
    data = SRDataModule(config, packed, validation)
    module = SRModule(config, network)
    module.run_id = tracker.experiment.id if tracker is not None else earlier.run_id
    every = options.log_every_n_steps
    limit = config.optim.loss_limit or largest_loss(
        config.data.patch_size * config.network.scale, config.optim.loss
    )
    guard = StopOnBadLoss(every, folder, options.seed, limit)
    guard.saved_step = done or None
    save = SaveState(
        folder / STATE, options.save_every_n_steps, options.val_every_n_steps, guard, report
    )
    weights = ExportWeights(
        folder,
        data=config.data.description or ", ".join(Path(root).name for root in config.data.train),
        license=config.data.weights_license,
        commit=_commit(),
        kind="classical" if config.data.degradation is None else "photo",
        report=report,
        start=done,
        best=earlier.best,
    )
    bar = sys.stderr.isatty() and report is not _silence
    callbacks: list[Callback] = [
        guard,
        weights,
        # buffers left alone: averaging integer buffers in float and truncating corrupts them
        EMAWeightAveraging(decay=config.optim.ema_decay, use_buffers=False),
        save,
        AttentionHealth(_fixed_lr(config, packed, validation), options.val_every_n_steps, report),
        Panel(),
        ProgressLines(every, config.data.batch_size * processes, None if bar else report),
        *([TQDMProgressBar()] if bar else []),
    ]
    # one numbered folder per sitting, since CSVLogger starts its file anew
    loggers: list[Logger] = [CSVLogger(folder, name="logs", flush_logs_every_n_steps=1)]
    trainer = Trainer(
        accelerator=device,
        devices=options.devices,
        num_nodes=options.num_nodes,
        strategy="ddp" if processes > 1 else "auto",
        use_distributed_sampler=False,  # it would repeat validation images; ours share them out
        precision=_LIGHTNING_PRECISION[precision],
        max_steps=steps,
        max_epochs=-1,
        # the whole run is one epoch, which gives the progress bar its total
        limit_train_batches=steps,
        val_check_interval=min(options.val_every_n_steps, steps),
        limit_val_batches=1.0 if validation else 0,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=every,
        gradient_clip_val=config.optim.gradient_clip or None,
        logger=[*loggers, *([tracker] if tracker is not None else [])],
        callbacks=callbacks,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=bar,
    )
    parameters = sum(p.numel() for p in network.parameters())
    report(
        f"{'resuming at step ' + str(done) if done else 'starting'}: x{network.scale}, {parameters} parameters, "
        f"{len(packed)} images, {device}{f' x {processes}' if processes > 1 else ''}, {precision}, "
        f"{torch.get_num_threads()} threads, up to step {steps}; writing {folder}"
    )

    def validate(step: int) -> None:
        """Measures and publishes the averaged weights, which the module holds."""
        if validation:
            trainer.validate(module, datamodule=data, verbose=False)
        elif trainer.is_global_zero:
            weights.export("last.safetensors", module, step)

    cut_off = validation and done % options.val_every_n_steps == 0
    if earlier.published < done and (done >= steps or cut_off):
        report(f"step {done} was saved but not validated: doing that now")
        network.load_state_dict(earlier.average)
        validate(done)
    if done < steps:
        path = str(folder / STATE) if done else None
        trainer.fit(module, datamodule=data, ckpt_path=path, weights_only=True)
        if save.stopped_by is None and weights.exported_step != trainer.global_step:
            # max_steps is no multiple of val_every_n_steps, or nothing validates
            validate(trainer.global_step)
    stopped_by = save.stopped_by.name if save.stopped_by else None
    step = max(trainer.global_step, done)
    return RunResult(folder, step, stopped_by, module.validation_means(), trainer.global_rank)


def _fixed_lr(config: RunConfig, packed: PackedPairs, validation: dict[str, list[Pair]]) -> Tensor:
    """The middle of one LR image that stays the same over the run, (1, 3, h, w), at most 96 pixels a side."""
    pairs = next(iter(validation.values()), [])
    pixels = read_pair(pairs[0], config.network.scale)[0] if pairs else packed.image(0)[0]
    top, left = (max(0, n - 96) // 2 for n in pixels.shape[:2])
    part = torch.from_numpy(pixels[top : top + 96, left : left + 96].copy())
    return part.permute(2, 0, 1)[None].float() / 255


def _unit_variance_warnings(config: RunConfig, network: SRNet, packed: PackedPairs) -> list[str]:
    """Lines about layers whose q or k is more than 10 % off unit standard deviation at the start."""
    lr = (
        torch.from_numpy(packed.image(0)[0].copy()).permute(2, 0, 1)[None, :, :128, :128].float()
        / 255
    )
    return [
        f"warning: {s.layer}: standard deviation of q {s.q_std:.2f} and k {s.k_std:.2f}, expected 1 within 10 %; "
        "scores divided by sqrt(head_dim) will be off by as much"
        for s in projection_statistics(network, lr)
        if not s.unit_variance and config.init_from is None
    ]
