"""What happens around the steps: state that can be resumed, weights that can be published, lines that tell."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from srnet.atomic import atomic_output, remove_leftovers
from srnet.checkpoint import Kind, save_checkpoint
from srnet.errors import TrainingError
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
        start: Step at which this sitting starts.
        best: Best PSNR-Y of earlier sittings.
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
        start: int = 0,
        best: float = -math.inf,
    ) -> None:
        self.folder = folder
        self.data = data
        self.license = license
        self.commit = commit
        self.kind: Kind = kind
        self.report = report
        self.start = start
        self.best = best
        self.exported_step = -1

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Logs the means, exports the averaged weights."""
        assert isinstance(pl_module, SRModule)
        if trainer.sanity_checking or pl_module.skip_validation or not pl_module.set_names:
            return
        pl_module.gather_scores()
        # before the first step of a sitting the trainer still counts from 0
        step = max(trainer.global_step, self.start)
        pl_module.log("step", float(step))
        means = pl_module.validation_means()
        flat = {f"{name}/{key}": v for name, mean in means.items() for key, v in mean.items()}
        pl_module.log_dict({f"val/{key}": v for key, v in flat.items()})
        for name in pl_module.images_without_ssim:
            self.report(f"{name} is too small for SSIM's window of 11 pixels; its SSIM is left out")
        if not trainer.is_global_zero:
            return
        first = means[pl_module.set_names[0]]["psnr_y"]
        improved = first > self.best
        self.best = max(first, self.best)
        for name in ("last", "best") if improved else ("last",):
            self.export(f"{name}.safetensors", pl_module, step)
        text = "  ".join(f"{key} {v:.4f}" for key, v in flat.items())
        self.report(f"step {step}: {text}{'  (best)' if improved else ''}")

    def export(self, file: str, module: SRModule, step: int) -> None:
        """Writes the weights that the module holds now, with what they were last measured at.

        The same tensors go into a .pth beside it, without prefix, for programs that do not read safetensors.
        """
        path = self.folder / file
        # first, since the .safetensors says that a step is published
        weights = {key: value.float().cpu() for key, value in module.network.state_dict().items()}
        AtomicCheckpointIO().save_checkpoint(weights, path.with_suffix(".pth"))
        save_checkpoint(
            path,
            module.network,
            metrics={"step": step, **finite(module.validation_means())},
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
        """Takes the best PSNR-Y of the stopped run, unless a later one is known from best.safetensors."""
        self.best = max(self.best, state_dict["best"])


class StopOnBadLoss(Callback):
    """Ends the run with one line when the loss is not a number or explodes, before anything bad is saved.

    On a CPU every step is looked at; elsewhere asking for the value would stop the device, so losses are looked at
    together every n steps and before each save.

    Args:
        every_n_steps: Steps between looks.
        folder: The run's folder, for the message.
        seed: The run's seed, for the message.
        limit: Largest loss that is not bad.
    """

    def __init__(self, every_n_steps: int, folder: Path, seed: int, limit: float) -> None:
        self.limit = limit
        self.every_n_steps = every_n_steps
        self.folder = folder
        self.seed = seed
        self.saved_step: int | None = None
        self._losses: list[tuple[int, Tensor]] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keeps the loss, looks when it is time."""
        step = trainer.global_step
        self._losses.append((step, outputs["loss"].detach()))
        alone_on_cpu = trainer.world_size == 1 and pl_module.device.type == "cpu"
        if alone_on_cpu or step % self.every_n_steps == 0:
            self.look(trainer)

    def look(self, trainer: Trainer, module: LightningModule | None = None) -> None:
        """Looks at the losses since the last look, and at a module's weights.

        Raises:
            TrainingError: Something is not finite or too large, on any rank.
        """
        values = torch.stack([loss for _, loss in self._losses]).tolist() if self._losses else []
        problem = next(
            (
                f"step {step}: the loss is {value:.3g} (limit {self.limit:.3g}) at batch {step - 1} of seed {self.seed}"
                for (step, _), value in zip(self._losses, values, strict=True)
                if not value <= self.limit  # also when it is not a number
            ),
            None,
        )
        self._losses.clear()
        if problem is None and module is not None:
            sums = torch.stack([p.detach().float().sum() for p in module.parameters()])
            if not bool(torch.isfinite(sums).all()):
                step = trainer.global_step
                problem = f"step {step}: weights are not finite after batch {step - 1} of seed {self.seed}"
        if trainer.strategy.reduce_boolean_decision(problem is not None, all=False):
            kept = (
                "nothing was saved yet"
                if self.saved_step is None
                else f"the state of step {self.saved_step} is kept in {self.folder / 'last.ckpt'}"
            )
            raise TrainingError(
                f"{problem or 'another process has a bad loss'}; {kept}; "
                "lower optim.learning_rate or set optim.gradient_clip, and run again; if it comes again, train from "
                "the start with drawn pictures, too (`srnet data graphics`), or raise optim.loss_limit"
            )


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a state beside its name and moves it there, so that a kill or a full disk leaves the old one.

    Lightning's own way writes to the folder for temporary files, which may be another file system: the move is then a
    copy, and a kill in its midst leaves half a file.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Writes the file.

        Raises:
            OSError: It cannot be written; the old file is as it was.
        """
        target = Path(path)
        remove_leftovers(target.parent)
        with atomic_output(target) as partial, partial.open("wb") as file:
            torch.save(checkpoint, file)


class SaveState(Callback):
    """Writes last.ckpt every n steps, before each validation, at the end, and when the process is asked to stop.

    Ctrl-C or SIGTERM lets the running step finish, saves, and ends the run; a second Ctrl-C ends it at once, and the
    state of the last save remains.

    Args:
        path: The file.
        every_n_steps: Steps between saves.
        validate_every_n_steps: Steps between validations.
        guard: Looks at losses and weights before they are saved.
        report: Receives a line when a stop is asked for.
    """

    def __init__(
        self,
        path: Path,
        every_n_steps: int,
        validate_every_n_steps: int,
        guard: StopOnBadLoss,
        report: Callable[[str], None],
    ) -> None:
        self.path = path
        self.every_n_steps = every_n_steps
        self.validate_every_n_steps = validate_every_n_steps
        self.guard = guard
        self.report = report
        self.stopped_by: signal.Signals | None = None
        self._previous: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Takes the signals; Lightning has taken them before, for other ends."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopped_by is not None:
                raise KeyboardInterrupt
            self.stopped_by = signal.Signals(number)
            assert isinstance(pl_module, SRModule)
            pl_module.skip_validation = True  # who asked to stop does not wait for it
            self.report(f"{self.stopped_by.name}: finishing this step and saving")

        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, stop)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Saves when it is time."""
        if self._asked_to_stop(trainer):
            self._end(trainer)
        step = trainer.global_step
        due = any(step % n == 0 for n in (self.every_n_steps, self.validate_every_n_steps))
        if trainer.should_stop or step >= trainer.max_steps or due:
            self.guard.look(trainer, pl_module)
            try:
                trainer.save_checkpoint(self.path)
            except (OSError, RuntimeError) as error:  # torch says RuntimeError when a disk is full
                cause = error.strerror if isinstance(error, OSError) else str(error).split("\n")[0]
                raise TrainingError(
                    f"{self.path}: the state of step {step} cannot be saved: {cause}; "
                    f"{'that of step ' + str(self.guard.saved_step) if self.guard.saved_step else 'none'} is kept"
                ) from None
            self.guard.saved_step = step

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends the run when a stop was asked for meanwhile; its state was saved before the validation."""
        if trainer.state.fn == TrainerFn.FITTING and self._asked_to_stop(trainer):
            self._end(trainer)

    def _asked_to_stop(self, trainer: Trainer) -> bool:
        """Whether any process was asked to."""
        asked = self.stopped_by is not None
        if trainer.world_size == 1:
            return asked
        asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked and self.stopped_by is None:
            self.stopped_by = signal.SIGTERM
        return asked

    def _end(self, trainer: Trainer) -> None:
        trainer.should_stop = True
        trainer.limit_val_batches = 0  # Lightning validates on its way out

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Gives the signals back."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()


class ProgressLines(Callback):
    """Throughput into the log, and one line of text every n steps with loss, rate, throughput and time left.

    Args:
        every_n_steps: Steps between lines.
        batch_size: Patches in a step, of all processes.
        report: Receives the lines, which suit logs and pipes; None for none.
    """

    def __init__(
        self, every_n_steps: int, batch_size: int, report: Callable[[str], None] | None
    ) -> None:
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
        if self.report is None:
            return
        loss = float(outputs["loss"])
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        left = (trainer.max_steps - step) * seconds
        self.report(
            f"step {step}/{trainer.max_steps}  loss {loss:.5f}  rate {rate:.2e}  "
            f"{self.batch_size / seconds:.1f} patches/s  {left / 60:.0f} min left"
        )


def finite(means: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The means without those that are infinite or undefined, which JSON does not know."""
    return {
        name: {key: value for key, value in mean.items() if math.isfinite(value)}
        for name, mean in means.items()
    }


def report_line(text: str) -> None:
    """Writes one line to stderr at once."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
