"""The training step, validation step, optimiser and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor

from srnet.config import OptimConfig, RunConfig
from srnet.device import has_native_bf16
from srnet.metrics import psnr_y, ssim_y
from srnet.network import SRNet
from srnet.resize import upscale

_PANEL_SIDE = 96  # LR pixels of the picture that is logged at each validation
_SPECTRUM_WEIGHT = 0.05  # of the loss l1+fft; that of SAFMN (Sun et al., ICCV 2023)


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


def restoration_loss(sr: Tensor, hr: Tensor, kind: Literal["l1", "mse", "l1+fft"]) -> Tensor:
    """What training makes small.

    Args:
        sr: Enlarged patches (B, 3, H, W), float32, about [0, 1].
        hr: True patches, of the same shape.
        kind: As in ``OptimConfig.loss``; the spectrum's part is that of SAFMN (Sun et al., ICCV 2023).

    Returns:
        The loss, a scalar.
    """
    if kind == "mse":
        return F.mse_loss(sr, hr)
    loss = F.l1_loss(sr, hr)
    if kind == "l1+fft":
        spectrum = torch.view_as_real(torch.fft.fft2(sr - hr))
        loss = loss + _SPECTRUM_WEIGHT * spectrum.abs().mean()
    return loss


def largest_loss(side: int, kind: Literal["l1", "mse", "l1+fft"]) -> float:
    """A loss that no two images in [0, 1] exceed: above it, the network's results are no images.

    Args:
        side: Height and width of the patches, in pixels.
        kind: As in ``OptimConfig.loss``.

    Returns:
        1, and with the spectrum's part what Parseval's theorem allows: the mean square of real and imaginary parts is
        half of side² times the mean square of the differences, and no mean exceeds the root of the mean square.

    Example:
        >>> largest_loss(192, "l1"), round(largest_loss(192, "l1+fft"), 2)
        (1.0, 7.79)
    """
    return 1 + _SPECTRUM_WEIGHT * side / math.sqrt(2) if kind == "l1+fft" else 1.0


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
    from timm.optim import muon

    if not has_native_bf16(next(network.parameters()).device.type):
        # It orthogonalises in bfloat16 and has no setting for that; emulated, this took an eighth of the step.
        muon.zeropower_via_newtonschulz = partial(
            muon.zeropower_via_newtonschulz, dtype=torch.float32
        )
    ends = ("head.", "upsampler.")
    body = [p for name, p in parameters.items() if p.ndim >= 2 and not name.startswith(ends)]
    rest = [p for name, p in parameters.items() if p.ndim < 2 or name.startswith(ends)]
    groups: list[dict[str, Any]] = [
        {"params": body, "lr": optim.learning_rate},
        {"params": rest, "lr": optim.learning_rate * optim.adam_ratio, "use_fallback": True},
    ]
    return muon.Muon(
        groups,
        lr=optim.learning_rate,
        momentum=optim.momentum,
        betas=optim.betas,
        nesterov=True,
        weight_decay=optim.weight_decay,
    )


class SRModule(LightningModule):
    """Trains an SRNet on uint8 patch pairs; validates with PSNR-Y and SSIM-Y on whole images.

    Args:
        config: The run.
        network: The network to train; its weights are whatever the caller put there.
    """

    def __init__(self, config: RunConfig, network: SRNet) -> None:
        super().__init__()
        self.config = config
        self.network = network
        self.set_names = tuple(config.data.validation)
        self.skip_validation = False
        """Validation ends without results: someone asked the run to stop."""
        self.run_id: str | None = None
        """Of the tracking service; travels in the state so that a resumed run goes on there."""
        self.panel: Tensor | None = None
        """First validation image, (3, H, 4 W) uint8: LR, bicubic, SR and HR side by side."""
        # per validation set: image number to name, PSNR-Y and SSIM-Y
        self.scores: dict[str, dict[int, tuple[str, float, float]]] = {}
        self._forward: Callable[[Tensor], Tensor] = network

    def on_fit_start(self) -> None:
        """Compiles the training step's forward pass where that is asked for; validation has images of any size."""
        if self.config.trainer.compile:
            # past nn.Module's bookkeeping, or the compiled copy would show in the state dict
            object.__setattr__(self, "_forward", torch.compile(self.network))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Batch is uint8 LR (B, 3, p, p) and HR (B, 3, p * scale, p * scale)."""
        lr, hr = (t.float().div_(255) for t in batch)
        loss = restoration_loss(self._forward(lr).float(), hr, self.config.optim.loss)
        self.log("train/loss", loss, prog_bar=True, sync_dist=self.trainer.world_size > 1)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Logs the rate that this step uses; rows carry the number of steps taken, as validation's do."""
        self.log("step", float(self.trainer.global_step + 1))
        self.log("train/learning_rate", self.trainer.optimizers[0].param_groups[0]["lr"])

    def on_validation_epoch_start(self) -> None:
        """Forgets the last validation."""
        self.scores = {name: {} for name in self.set_names}

    def validation_step(
        self,
        batch: tuple[Tensor, Tensor, list[int], list[str]],
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Batch is one whole uint8 LR image (1, 3, h, w), its HR, its number (-1: none) and its name."""
        (number,), (name,) = batch[2:]
        if self.skip_validation or number < 0:
            return
        lr, hr = (t.float().div_(255) for t in batch[:2])
        sr = self.network(lr).float()
        border = self.config.network.scale
        score = (name, psnr_y(sr, hr, border).item(), ssim_y(sr, hr, border).item())
        self.scores[self.set_names[dataloader_idx]][number] = score
        if number == dataloader_idx == 0:
            self.panel = _panel(batch[0], sr, batch[1], border)

    def gather_scores(self) -> None:
        """Brings together what several processes measured; to be called by all of them."""
        if self.trainer.world_size == 1:
            return
        everyone: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(everyone, self.scores)
        self.scores = {
            name: dict(sorted(entry for part in everyone for entry in part[name].items()))
            for name in self.set_names
        }

    def validation_means(self) -> dict[str, dict[str, float]]:
        """Means over the images of each set validated last: {set: {"psnr_y": ..., "ssim_y": ...}}.

        Images without SSIM are left out of its mean; a set without any has none (NaN).
        """
        means = {}
        for name, scores in self.scores.items():
            if scores:
                _, psnr, ssim = zip(*scores.values(), strict=True)
                defined = [value for value in ssim if not math.isnan(value)]
                means[name] = {
                    "psnr_y": math.fsum(psnr) / len(psnr),
                    "ssim_y": math.fsum(defined) / len(defined) if defined else math.nan,
                }
        return means

    @property
    def images_without_ssim(self) -> list[str]:
        """Images of the last validation that are smaller than SSIM's window."""
        return [
            f"{name}/{image}"
            for name, scores in self.scores.items()
            for image, _, ssim in scores.values()
            if math.isnan(ssim)
        ]

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
        checkpoint["srnet_run_id"] = self.run_id

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes the optimiser's settings from the configuration, its averages from the state.

        Lightning restores both from the state: a rate changed for the resumed run would be without effect.
        """
        optim, step = self.config.optim, checkpoint["global_step"]
        factor = learning_rate_factor(step, self.config.trainer.max_steps, optim)
        fresh = build_optimizer(self.network, optim).param_groups
        saved = checkpoint["optimizer_states"][0]["param_groups"]
        for new, old in zip(fresh, saved, strict=True):
            old.update({key: value for key, value in new.items() if key != "params"})
            old |= {"initial_lr": new["lr"], "lr": new["lr"] * factor}
        schedule = checkpoint["lr_schedulers"][0]
        schedule["base_lrs"] = [group["lr"] for group in fresh]
        schedule["_last_lr"] = [group["lr"] for group in saved]


def _panel(lr: Tensor, sr: Tensor, hr: Tensor, scale: int) -> Tensor:
    """The middle of LR (1, 3, h, w) uint8, bicubic, SR and HR (1, 3, H, W) uint8 side by side, (3, H, 4 W) uint8."""
    h, w = (min(n, _PANEL_SIDE) for n in lr.shape[2:])
    top, left = (lr.shape[2] - h) // 2, (lr.shape[3] - w) // 2
    bottom, right = top + h, left + w
    part = lr[..., top:bottom, left:right]
    enlarged = part.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    rows, columns = (slice(a * scale, b * scale) for a, b in ((top, bottom), (left, right)))
    bicubic = upscale(lr, scale)[..., rows, columns]
    result = sr[..., rows, columns].clamp(0, 1).mul(255).add(0.5).byte()
    return torch.cat([enlarged, bicubic, result, hr[..., rows, columns]], 3)[0].cpu()
