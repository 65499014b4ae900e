"""Runs trainings that end badly. Started once as a process of its own; forks for each run, before torch has threads.

Reads one JSON object a line: ``config``, ``words``, ``fault`` (name of a function below, or null) and ``at``; answers
with the exit code, negative for a signal. A run's lines go to ``log``.
"""

import hashlib
import json
import os
import resource
import signal
import sys
import traceback

import timm.optim.muon  # noqa: F401  takes seconds, so once for all runs
import torch

from srnet.config import load_config
from srnet.training.callbacks import AtomicCheckpointIO, ExportWeights
from srnet.training.module import SRModule
from srnet.training.run import train


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def record(diary):
    """Every step writes its number, rate and a hash of its patches; a killed process keeps what it wrote."""

    def write(self):
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        patches = b"".join(t.numpy().tobytes() for t in self.noted)
        with open(diary, "a") as file:
            print(
                self.trainer.global_step, repr(rate), hashlib.sha256(patches).hexdigest(), file=file
            )

    step = SRModule.training_step

    def training_step(self, batch, batch_idx):
        self.noted = batch
        write(self)
        return step(self, batch, batch_idx)

    SRModule.training_step = training_step


def before(owner, name, act):
    """Calls ``act`` with a method's arguments before the method."""
    original = getattr(owner, name)

    def method(self, *words, **named):
        act(self, *words)
        return original(self, *words, **named)

    setattr(owner, name, method)


def kill_in_step(at):
    before(SRModule, "training_step", lambda s, *_: die() if s.trainer.global_step >= at else None)


def kill_in_validation(at):
    before(SRModule, "validation_step", lambda s, *_: die() if s.trainer.global_step >= at else 0)


def kill_in_export(at):
    before(ExportWeights, "export", lambda s, f, m, step: die() if step >= at else None)


def kill_in_write(at):
    def half(self, checkpoint, path, *rest):
        if checkpoint.get("global_step", -1) >= at:  # weights alone have no step
            torch.save = lambda state, file: (file.write(b"half a state"), file.flush(), die())

    before(AtomicCheckpointIO, "save_checkpoint", half)


def stop_in_step(at):
    def stop(self, *_):
        if self.trainer.global_step == at:
            os.kill(os.getpid(), signal.SIGTERM)

    before(SRModule, "training_step", stop)


def stop_in_validation(at):
    def stop(self, *_):
        if self.trainer.global_step == at:
            os.kill(os.getpid(), signal.SIGTERM)

    before(SRModule, "validation_step", stop)


def fill_disk(at):
    def starve(self, *_):
        if self.trainer.global_step == at:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    before(SRModule, "training_step", starve)


def run(job):
    record(job["diary"])
    if job["fault"] is not None:
        globals()[job["fault"]](job["at"])

    def report(line):
        with open(job["log"], "a") as file:
            print(line, file=file)

    try:
        result = train(load_config(job["config"], tuple(job["words"])), report)
    except Exception as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        report(f"{type(error).__name__}: {error}")
        if not type(error).__module__.startswith("srnet."):
            traceback.print_exc()
        return 1
    report(f"ended at {result.step} by {result.stopped_by}")
    return 0


def main():
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(run(job))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
