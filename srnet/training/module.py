"""The training step, validation step, optimiser and learning-rate schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor

from srnet.config import OptimConfig, RunConfig
from srnet.metrics import psnr_y, ssim_y
from srnet.network import SRNet


def learning_rate_factor(step: int, max_steps: int, optim: OptimConfig) -> float:
    """Warmup-stable-decay: linear rise, constant, linear fall to 0 over the last ``decay_steps``.

    Args:
        step: Optimiser steps taken so far.
        max_steps: Steps at which the run is finished.
        optim: Its warmup_steps and decay_steps.

    Returns:
        Factor in (0, 1] on the learning rate.

    Example:
        >>> optim = OptimConfig(warmup_steps=10, decay_steps=4)
        >>> [round(learning_rate_factor(s, 100, optim), 2) for s in (0, 9, 50, 96, 97, 99)]
        [0.1, 1.0, 1.0, 1.0, 0.75, 0.25]
    """
    rise = min(1.0, (step + 1) / optim.warmup_steps) if optim.warmup_steps else 1.0
    left = max_steps - step
    fall = min(1.0, max(left, 1) / optim.decay_steps) if optim.decay_steps else 1.0
    return rise * fall


def build_optimizer(network: SRNet, optim: OptimConfig) -> torch.optim.Optimizer:
    """AdamW for everything, or Muon for the body's weight matrices and AdamW for the ends, norms and biases."""
    parameters = dict(network.named_parameters())
    if optim.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters.values(),
            lr=optim.learning_rate,
            betas=optim.betas,
            weight_decay=optim.weight_decay,
        )
    # timm's Muon: kept up, handles convolutions, and carries its own AdamW for the rest
    from timm.optim.muon import Muon

    ends = ("head.", "upsampler.")
    body = [p for name, p in parameters.items() if p.ndim >= 2 and not name.startswith(ends)]
    rest = [p for name, p in parameters.items() if p.ndim < 2 or name.startswith(ends)]
    groups: list[dict[str, Any]] = [
        {"params": body, "lr": optim.learning_rate},
        {"params": rest, "lr": optim.learning_rate * optim.adam_ratio, "use_fallback": True},
    ]
    return Muon(
        groups,
        lr=optim.learning_rate,
        momentum=optim.momentum,
        betas=optim.betas,
        nesterov=True,
        weight_decay=optim.weight_decay,
    )


class SRModule(LightningModule):
    """Trains an SRNet with an L1 loss on uint8 patch pairs; validates with PSNR-Y and SSIM-Y on whole images.

    Args:
        config: The run.
        network: The network to train; its weights are whatever the caller put there.
    """

    def __init__(self, config: RunConfig, network: SRNet) -> None:
        super().__init__()
        self.config = config
        self.network = network
        self.set_names = tuple(config.data.validation)
        # per validation set: PSNR-Y and SSIM-Y of each image
        self.scores: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Batch is uint8 LR (B, 3, p, p) and HR (B, 3, p * scale, p * scale)."""
        lr, hr = (t.float().div_(255) for t in batch)
        loss = F.l1_loss(self.network(lr).float(), hr)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Logs the rate that this step uses."""
        self.log("train/learning_rate", self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_epoch_start(self) -> None:
        """Forgets the last validation."""
        self.scores.clear()

    def validation_step(
        self, batch: tuple[Tensor, Tensor], batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Batch is one whole uint8 LR image (1, 3, h, w) and its HR."""
        lr, hr = (t.float().div_(255) for t in batch)
        sr = self.network(lr).float()
        border = self.config.network.scale
        score = (psnr_y(sr, hr, border).item(), ssim_y(sr, hr, border).item())
        self.scores[self.set_names[dataloader_idx]].append(score)

    def validation_means(self) -> dict[str, dict[str, float]]:
        """Mean PSNR-Y and SSIM-Y over the images of each set validated last: {set: {"psnr_y": ..., "ssim_y": ...}}."""
        return {
            name: {
                key: math.fsum(values) / len(values)
                for key, values in zip(("psnr_y", "ssim_y"), zip(*scores, strict=True), strict=True)
            }
            for name, scores in self.scores.items()
        }

    def configure_optimizers(self) -> Any:
        """Optimiser and per-step schedule."""
        optim, max_steps = self.config.optim, self.config.trainer.max_steps
        optimizer = build_optimizer(self.network, optim)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, max_steps, optim)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Adds the run's settings as plain values, so that the file loads with weights_only=True."""
        checkpoint["srnet_config"] = asdict(self.config)
