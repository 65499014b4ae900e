"""What happens around the steps: state that can be resumed, weights that can be published, lines that tell."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from srnet.checkpoint import Kind, save_checkpoint
from srnet.training.module import SRModule


class ExportWeights(Callback):
    """Writes last.safetensors at every validation and best.safetensors when the first set's PSNR-Y improves.

    Must stand before the EMA callback in the list: at the end of validation the averaged weights are still in place.

    Args:
        folder: The run's folder.
        data: Description of the training data for the checkpoint.
        license: Licence of the weights.
        commit: Commit of the code.
        kind: What inputs the weights are for.
        report: Receives one line per validation.
    """

    def __init__(
        self,
        folder: Path,
        *,
        data: str,
        license: str,
        commit: str,
        kind: Kind,
        report: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.data = data
        self.license = license
        self.commit = commit
        self.kind: Kind = kind
        self.report = report
        self.best = -float("inf")
        self.exported_step = -1

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the means, exports the averaged weights."""
        assert isinstance(pl_module, SRModule)
        if trainer.sanity_checking or not pl_module.scores:
            return
        means = pl_module.validation_means()
        flat = {f"{name}/{key}": v for name, mean in means.items() for key, v in mean.items()}
        pl_module.log_dict({f"val/{key}": v for key, v in flat.items()})
        if not trainer.is_global_zero:
            return
        first = means[pl_module.set_names[0]]["psnr_y"]
        improved = first > self.best
        self.best = max(first, self.best)
        for name in ("last", "best") if improved else ("last",):
            self.export(f"{name}.safetensors", pl_module, trainer.global_step)
        text = "  ".join(f"{key} {v:.4f}" for key, v in flat.items())
        self.report(f"step {trainer.global_step}: {text}{'  (best)' if improved else ''}")

    def export(self, file: str, module: SRModule, step: int) -> None:
        """Writes the weights that the module holds now, with what they were last measured at."""
        save_checkpoint(
            self.folder / file,
            module.network,
            metrics={"step": step, **module.validation_means()},
            data=self.data,
            license=self.license,
            commit=self.commit,
            kind=self.kind,
        )
        self.exported_step = step

    def state_dict(self) -> dict[str, Any]:
        """The best PSNR-Y so far."""
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the best PSNR-Y of the stopped run."""
        self.best = state_dict["best"]


class SaveState(Callback):
    """Writes last.ckpt every n steps, at the end, and when the process is asked to stop.

    Ctrl-C or SIGTERM lets the running step finish, saves, and ends the run; a second Ctrl-C ends it at once, and the
    state of the last save remains (Lightning writes to a temporary name and moves).

    Args:
        path: The file.
        every_n_steps: Steps between saves.
        report: Receives a line when a stop is asked for.
    """

    def __init__(self, path: Path, every_n_steps: int, report: Callable[[str], None]) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.report = report
        self.stopped_by: signal.Signals | None = None
        self._previous: dict[int, Any] = {}
        self._saved_step = -1

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.stopped_by is not None:
            raise KeyboardInterrupt
        self.stopped_by = signal.Signals(number)
        self.report(f"{self.stopped_by.name}: finishing this step and saving")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._stop)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves when it is time."""
        if self.stopped_by is not None:
            trainer.should_stop = True
            trainer.limit_val_batches = (
                0  # Lightning validates on its way out; who asked to stop does not wait for it
            )
        step = trainer.global_step
        last = step >= trainer.max_steps
        if step != self._saved_step and (
            trainer.should_stop or last or step % self.every_n_steps == 0
        ):
            trainer.save_checkpoint(self.path)
            self._saved_step = step

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()


class ProgressLines(Callback):
    """One line of text every n steps with loss, rate, throughput and time left; for logs and pipes.

    Args:
        every_n_steps: Steps between lines.
        batch_size: Patches in a step.
        report: Receives the lines.
    """

    def __init__(self, every_n_steps: int, batch_size: int, report: Callable[[str], None]) -> None:
        self.every_n_steps = every_n_steps
        self.batch_size = batch_size
        self.report = report
        self._since: tuple[int, float] = (0, 0.0)
        self._paused = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Starts the clock."""
        self._since = (trainer.global_step, time.perf_counter())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stops the clock: validation does not count as training."""
        self._paused = time.perf_counter()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Goes on with the clock."""
        step, start = self._since
        self._since = (step, start + time.perf_counter() - self._paused)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Reports when it is time."""
        step = trainer.global_step
        if step % self.every_n_steps:
            return
        before, start = self._since
        seconds = (time.perf_counter() - start) / max(1, step - before)
        self._since = (step, time.perf_counter())
        pl_module.log("train/patches_per_second", self.batch_size / seconds)
        loss = float(outputs["loss"])
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        left = (trainer.max_steps - step) * seconds
        self.report(
            f"step {step}/{trainer.max_steps}  loss {loss:.5f}  rate {rate:.2e}  "
            f"{self.batch_size / seconds:.1f} patches/s  {left / 60:.0f} min left"
        )


def report_line(text: str) -> None:
    """Writes one line to stderr at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
