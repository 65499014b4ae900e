"""Attention health: the measurements of ``srnet diagnose``, at a low rate, while a network trains."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from srnet.diagnostics import LayerStatistics, examine
from srnet.training.module import SRModule
from srnet.verdicts import saturation_warning


class AttentionHealth(Callback):
    """Measures every attention layer on one fixed image and logs the means over heads.

    Logs ``attention/LAYER/NAME`` for the names of ``layer_metrics`` and ``attention/seconds``, what it cost. The
    weights are those that train, not their average.

    Args:
        lr: RGB in [0, 1], (1, 3, h, w).
        every_n_steps: Steps between measurements; the last step is measured, too.
        report: Receives one line when heads begin to look at a single key.
    """

    def __init__(self, lr: Tensor, every_n_steps: int, report: Callable[[str], None]) -> None:
        self.lr = lr
        self.every_n_steps = every_n_steps
        self.report = report
        self._saturated = False

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measures when it is time."""
        step = trainer.global_step
        if not trainer.is_global_zero or (step % self.every_n_steps and step < trainer.max_steps):
            return
        assert isinstance(pl_module, SRModule)
        start = time.perf_counter()
        layers = [e.statistics for e in examine(pl_module.network, self.lr.to(pl_module.device))]
        if not layers:
            return
        values = layer_metrics(layers) | {"attention/seconds": time.perf_counter() - start}
        for logger in trainer.loggers:
            logger.log_metrics(values, step)
        warning = saturation_warning(layers)
        if warning is not None and not self._saturated:
            self.report(f"warning: step {step}: {warning}")
        self._saturated = warning is not None


def layer_metrics(layers: Sequence[LayerStatistics]) -> dict[str, float]:
    """Flat names and values for a log, each layer's heads averaged.

    Returns:
        ``attention/LAYER/`` and q_std, k_std, score_std, largest_probability, entropy (share of its maximum),
        saturated (share of queries that give one key more than 0.99), recall (share of the oracle's keys found).
    """
    values = {}
    for layer in layers:
        prefix = f"attention/{layer.layer.removesuffix('.attention')}"
        for name in ("q_std", "k_std", "score_std", "largest_probability", "entropy", "saturated"):
            heads = [getattr(head, name) for head in layer.heads]
            values[f"{prefix}/{name}"] = sum(heads) / len(heads)
        values[f"{prefix}/recall"] = layer.recall
    return values
