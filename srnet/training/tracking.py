"""Weights & Biases: never asks, never stops a run, goes on where the last sitting stopped."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import WandbLogger

from srnet.config import RunConfig
from srnet.training.module import SRModule

_SECONDS = 30  # for a server to answer at the start, and for the last upload at the end


class Tracker(WandbLogger):
    """Lightning's logger over a run that is open already; steps never run backwards, as the service demands."""

    _step = 0

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Logs values at a step."""
        self._step = max(self._step, step or 0)
        values = {**metrics, "trainer/global_step": step}
        self.experiment.log(values, step=self._step)

    def close(self, files: list[Path], *, failed: bool) -> None:
        """Adds the checkpoints as an artifact and ends the run; what goes wrong there is left at that."""
        import wandb

        present = [path for path in files if path.is_file()]
        if present and not failed:
            artifact = wandb.Artifact(f"{self.experiment.name}-{self.experiment.id}", type="model")
            for path in present:
                artifact.add_file(str(path))
            self.experiment.log_artifact(artifact)
        self.experiment.finish(exit_code=1 if failed else 0)


class Panel(Callback):
    """Logs the first validation image at each validation: LR, bicubic, SR and HR side by side."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the picture, if there is one and somewhere to log it."""
        assert isinstance(pl_module, SRModule)
        for logger in trainer.loggers:
            if isinstance(logger, Tracker) and pl_module.panel is not None:
                import wandb

                picture = wandb.Image(
                    pl_module.panel.permute(1, 2, 0).numpy(), caption="LR | bicubic | SR | HR"
                )
                # the step of the scores that were logged just now
                logger.experiment.log({"val/panel": picture}, step=logger._step)


def name_in_sweep(config: RunConfig) -> RunConfig:
    """Gives each run of ``wandb sweep`` a folder of its own: the name with the run's id behind it."""
    run_id = os.environ.get("WANDB_RUN_ID")
    if config.logger.wandb == "off" or not run_id or "WANDB_SWEEP_ID" not in os.environ:
        return config
    return dataclasses.replace(config, name=f"{config.name}_{run_id}")


def open_tracker(
    config: RunConfig, folder: Path, run_id: str | None, report: Callable[[str], None]
) -> Tracker | None:
    """Opens the run that the configuration asks for, offline where online does not work.

    Args:
        config: The run.
        folder: Its folder, which the service's files go to.
        run_id: Id of the run of an earlier sitting.
        report: Receives a line about what is used, and why.

    Returns:
        The logger; None where tracking is off or impossible.
    """
    mode = config.logger.wandb
    if mode == "off":
        return None
    wanted = os.environ.get("WANDB_MODE", mode)
    if wanted == "disabled":
        return None
    if wanted in ("offline", "dryrun"):
        mode = "offline"
    try:
        import wandb
    except ImportError:
        report("Weights & Biases: the package wandb is not installed; metrics go to metrics.csv")
        return None
    problem = ""
    for attempt in dict.fromkeys((mode, "offline")):
        try:
            with _no_questions():
                run = wandb.init(
                    project=config.logger.project,
                    name=config.name,
                    id=run_id or os.environ.get("WANDB_RUN_ID"),
                    resume="allow",
                    dir=folder,
                    config=dataclasses.asdict(config),
                    mode=attempt,
                    settings=wandb.Settings(
                        init_timeout=_SECONDS,
                        login_timeout=1,
                        finish_timeout=_SECONDS,
                        silent=True,
                        console="off",
                    ),
                )
        except Exception as error:  # a tracking service must not stop a training
            problem = f" ({' '.join(str(error).split())[:160] or type(error).__name__})"
            continue
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        where = f"project {config.logger.project}, run {run.id}"
        later = f"; upload with: wandb sync {folder}/wandb/offline-run-*"
        report(
            f"Weights & Biases: {attempt}{problem}, {where}{later if attempt == 'offline' else ''}"
        )
        return Tracker(experiment=run)
    report(f"Weights & Biases: not used{problem}; metrics go to metrics.csv")
    return None


@contextmanager
def _no_questions() -> Iterator[None]:
    """Takes the terminal away from a library that asks for a key where it sees one."""
    before: Any = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = before
