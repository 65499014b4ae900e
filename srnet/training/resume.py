"""What a run's folder says about earlier sittings, and what may change between them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from srnet.checkpoint import read_header
from srnet.config import RunConfig, network_config_from_dict
from srnet.errors import CheckpointError, ConfigError, SRNetError

STATE = "last.ckpt"
FROZEN = ("optim.optimizer",)
"""Settings besides ``network.*`` that a resumed run must keep; every other may change, and the run says which did."""


@dataclass(frozen=True)
class Earlier:
    """Earlier sittings of a run."""

    step: int
    """Of the saved state; 0 where there is none."""
    published: int
    """Step of last.safetensors; 0 where there is none."""
    best: float
    """Best PSNR-Y of the first validation set, dB."""
    run_id: str | None
    """Of the tracking service."""
    changed: tuple[str, ...]
    """Settings that differ now, ``key old -> new``."""
    average: dict[str, Tensor]
    """Averaged weights of the network; empty where there is no state."""


def read_folder(folder: Path, config: RunConfig) -> Earlier:
    """Reads the state and the published weights of a run.

    Args:
        folder: The run's folder, which need not exist.
        config: The run as it is wanted now.

    Raises:
        CheckpointError: The state is damaged.
        ConfigError: It belongs to another network or optimiser.
    """
    path = folder / STATE
    if not path.exists():
        return Earlier(0, 0, -math.inf, None, (), {})
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        saved, step = state["srnet_config"], int(state["global_step"])
        # through the dataclass, so that a setting that did not exist then has its default
        saved |= {"network": asdict(network_config_from_dict(saved["network"]))}
        best = float(state["callbacks"]["ExportWeights"]["best"])
        average = {
            key.removeprefix("network."): value
            for key, value in state["state_dict"].items()
            if key.startswith("network.")
        }
    except Exception as error:
        raise CheckpointError(
            f"{path}: not a saved training state ({' '.join(str(error).split())[:120]}); "
            "move it away to start anew"
        ) from None
    changed = _changed(path, _flat(saved), _flat(asdict(config)))
    first = next(iter(config.data.validation), "")
    published = _metrics(folder / "last.safetensors")
    found = _metrics(folder / "best.safetensors").get(first, {})
    return Earlier(
        step,
        int(published.get("step", 0)),
        # a kill after a validation leaves a better file than the state knows of
        max(best, float(found.get("psnr_y", -math.inf))),
        state.get("srnet_run_id"),
        changed,
        average,
    )


def _changed(path: Path, saved: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, ...]:
    """Settings that differ, after a check that they may."""
    differing = [key for key in wanted if key in saved and saved[key] != wanted[key]]
    for key in differing:
        if key.startswith("network.") or key in FROZEN:
            raise ConfigError(
                f"{path} was trained with {key}={saved[key]}, the configuration says {wanted[key]}; "
                f"a resumed run keeps network.* and {', '.join(FROZEN)}: use another name, "
                f"with init_from={path.parent / 'last.safetensors'} where the weights fit"
            )
    plumbing = ("output_dir", "init_from", "trainer.max_steps", "logger.")
    return tuple(
        f"{key} {saved[key]} -> {wanted[key]}" for key in differing if not key.startswith(plumbing)
    )


def _flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and key != "validation":
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = list(value) if isinstance(value, tuple) else value
    return flat


def _metrics(path: Path) -> dict[str, Any]:
    """What a published checkpoint was measured at; empty where it cannot be read."""
    try:
        metrics: dict[str, Any] = json.loads(read_header(path).metadata["metrics"])
    except (SRNetError, KeyError, ValueError):
        return {}
    return metrics
