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
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, TQDMProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger
from torch import Tensor

from srnet.checkpoint import load_checkpoint
from srnet.config import NetworkConfig, RunConfig
from srnet.datasets import PackedPairs, Pair, find_pairs, find_pairs_in_roots, scan, summarise
from srnet.degradation import MARGIN
from srnet.device import resolve_precision
from srnet.diagnostics import projection_statistics
from srnet.errors import CheckpointError, ConfigError, DataError
from srnet.network import SRNet
from srnet.training.callbacks import ExportWeights, ProgressLines, SaveState, report_line
from srnet.training.datamodule import SRDataModule
from srnet.training.module import SRModule

_STATE = "last.ckpt"


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    folder: Path
    step: int
    stopped_by: str | None
    """Name of the signal that stopped it, None when it reached max_steps."""
    metrics: dict[str, dict[str, float]]
    """Last validation: {set: {"psnr_y": ..., "ssim_y": ...}}."""


def initialise_from(network: SRNet, weights: dict[str, Tensor], source: str) -> list[str]:
    """Copies weights of a related network.

    Only the upsampler (another scale) and attention layers that the source does not have may stay fresh.

    Args:
        network: Network to fill.
        weights: State dict of the source.
        source: Name of the source for messages.

    Returns:
        Names of the tensors that stay fresh.

    Raises:
        CheckpointError: Any other tensor is missing, left over, or of another shape.
    """
    own = network.state_dict()
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
    left_over = sorted(weights.keys() - own.keys())
    if left_over:
        raise CheckpointError(
            f"{source} has {len(left_over)} tensors that this network lacks, e.g. {left_over[0]}; "
            "use the same num_blocks and attention_blocks"
        )
    network.load_state_dict({k: own[k] if k in fresh else weights[k] for k in own})
    return fresh


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


def _read_state(path: Path, network: NetworkConfig) -> int:
    """Step of a saved state, after a check that it belongs to this network."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        saved, step = state["srnet_config"]["network"], int(state["global_step"])
    except Exception as error:
        raise CheckpointError(
            f"{path}: not a saved training state ({error}); move it away to start anew"
        ) from None
    wanted = asdict(network)
    differing = [k for k in wanted if saved.get(k) != wanted[k]]
    if differing:
        key = differing[0]
        raise ConfigError(
            f"{path} was trained with network.{key}={saved.get(key)}, the configuration says {wanted[key]}; "
            "use another name for the new run"
        )
    return step


def _commit() -> str:
    """Commit of the source tree, or 'unknown' for an installed package."""
    here = Path(__file__).resolve().parent
    result = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() if result.returncode == 0 else "unknown"


def _loggers(config: RunConfig, folder: Path, report: Callable[[str], None]) -> list[Logger]:
    # one numbered folder per sitting, since CSVLogger starts its file anew
    loggers: list[Logger] = [CSVLogger(folder, name="logs", flush_logs_every_n_steps=1)]
    if config.logger.wandb != "off":
        from lightning.pytorch.loggers import WandbLogger

        report(f"Weights & Biases: {config.logger.wandb}, project {config.logger.project}")
        loggers.append(
            WandbLogger(
                project=config.logger.project,
                name=config.name,
                save_dir=folder,
                offline=config.logger.wandb == "offline",
            )
        )
    return loggers


def _quiet_lightning() -> None:
    """Lightning's advice is for its own users; what concerns ours is told in our words."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",  # cutting patches from a memory map needs none
        ".*your dataloader is not resumable.*",  # it is: batches are numbered by step
        ".*treespec, LeafSpec.*",  # Lightning 2.6 calls what torch 2.14 deprecates
    ):
        warnings.filterwarnings("ignore", message)


def train(config: RunConfig, report: Callable[[str], None] = report_line) -> RunResult:
    """Trains from the start, or from the saved state in the run's folder if there is one.

    Writes to ``output_dir/name``: config.json, last.ckpt (resumable state), last.safetensors and best.safetensors
    (averaged weights), logs/version_N/metrics.csv for each sitting.

    Args:
        config: The run.
        report: Receives lines of text.

    Returns:
        How it ended.

    Raises:
        ConfigError: The saved state belongs to another network.
        DataError: The data has problems; the message lists them.
        CheckpointError: init_from or the saved state cannot be used.
    """
    _quiet_lightning()
    folder = Path(config.output_dir) / config.name
    state = folder / _STATE
    steps = config.trainer.max_steps
    done = _read_state(state, config.network) if state.exists() else 0
    if done >= steps:
        report(
            f"{state} has {done} steps, trainer.max_steps is {steps}: nothing to do; raise it to go on"
        )
        return RunResult(folder, done, None, {})

    packed, validation = collect(config, report)
    torch.manual_seed(config.trainer.seed)
    network = SRNet(config.network)
    if config.init_from is not None and not done:
        fresh = initialise_from(
            network, load_checkpoint(config.init_from).network.state_dict(), config.init_from
        )
        layers = dict.fromkeys(
            name.rsplit(".", 2 if ".attention." in name else 1)[0] for name in fresh
        )
        report(f"weights from {config.init_from}; starting fresh: {', '.join(layers) or 'nothing'}")

    data = SRDataModule(config, packed, validation)
    for line in _unit_variance_warnings(config, network, packed):
        report(line)
    device = config.trainer.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    precision = resolve_precision(config.trainer.precision, device)
    channels_last = config.trainer.channels_last
    if channels_last == "on" or (channels_last == "auto" and precision == "bf16"):
        network.to(memory_format=torch.channels_last)

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(asdict(config), indent=2) + "\n", encoding="utf-8"
    )
    module = SRModule(config, network)
    batch_size, every = config.data.batch_size, config.trainer.log_every_n_steps
    save = SaveState(state, config.trainer.save_every_n_steps, report)
    weights = ExportWeights(
        folder,
        data=config.data.description or ", ".join(Path(root).name for root in config.data.train),
        license=config.data.weights_license,
        commit=_commit(),
        kind="classical" if config.data.degradation is None else "photo",
        report=report,
    )
    callbacks: list[Callback] = [
        weights,
        # buffers left alone: averaging integer buffers in float and truncating corrupts them
        EMAWeightAveraging(decay=config.optim.ema_decay, use_buffers=False),
        save,
        TQDMProgressBar() if sys.stderr.isatty() else ProgressLines(every, batch_size, report),
    ]
    trainer = Trainer(
        accelerator=device,
        devices=1,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
        max_steps=steps,
        max_epochs=-1,
        # the whole run is one epoch, which gives the progress bar its total
        limit_train_batches=steps,
        val_check_interval=min(config.trainer.val_every_n_steps, steps),
        limit_val_batches=1.0 if validation else 0,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        log_every_n_steps=every,
        gradient_clip_val=config.optim.gradient_clip or None,
        logger=_loggers(config, folder, report),
        callbacks=callbacks,
        default_root_dir=folder,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stderr.isatty(),
    )
    parameters = sum(p.numel() for p in network.parameters())
    report(
        f"{'resuming at step ' + str(done) if done else 'starting'}: x{network.scale}, {parameters} parameters, "
        f"{len(packed)} images, {precision}, {torch.get_num_threads()} threads, up to step {steps}; writing {folder}"
    )
    trainer.fit(module, datamodule=data, ckpt_path=str(state) if done else None, weights_only=True)
    if save.stopped_by is None and weights.exported_step != trainer.global_step:
        # max_steps is no multiple of val_every_n_steps, or nothing validates; the module holds the average by now
        if validation:
            trainer.validate(module, datamodule=data, verbose=False)
        else:
            weights.export("last.safetensors", module, trainer.global_step)
    stopped_by = save.stopped_by.name if save.stopped_by else None
    return RunResult(
        folder, trainer.global_step, stopped_by, module.validation_means() if module.scores else {}
    )


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
