"""Which device and which precision: one answer for training, evaluation and upscaling."""

from __future__ import annotations

from typing import Literal

import torch

from srnet.errors import ConfigError

Precision = Literal["fp32", "bf16", "fp16"]


def select_device(name: str) -> torch.device:
    """Returns the device of that name; "auto" takes a GPU where there is one.

    Raises:
        ConfigError: If the name is unknown or this machine has no such device.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if cuda else "mps" if mps else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            f"device {name!r} is unknown; use auto, cpu, cuda, cuda:1 or mps"
        ) from error
    count = {"cpu": 1, "cuda": torch.cuda.device_count() if cuda else 0, "mps": int(mps)}.get(
        device.type, 0
    )
    if (device.index or 0) >= count:
        raise ConfigError(
            f"device {name!r}: this machine has {count} of type {device.type}; use auto or cpu"
        )
    return device


def has_native_bf16(device_type: str) -> bool:
    """Whether bfloat16 is faster than float32 there.

    On a CPU without AVX512-BF16 or AMX, oneDNN emulates bfloat16, which is tens of times slower than float32.
    """
    if device_type == "cpu":
        # private in torch, so their absence in some version must read as no
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        checks = [getattr(torch.cpu, name, None) for name in names]
        return any(check() for check in checks if check is not None)
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def resolve_precision(precision: str, device_type: str) -> Precision:
    """Turns ``auto`` into bf16 where the hardware computes it natively, else fp32; other names pass through."""
    if precision == "auto":
        return "bf16" if has_native_bf16(device_type) else "fp32"
    if precision in ("fp32", "bf16", "fp16"):
        return precision  # type: ignore[return-value]
    raise ValueError(f"precision is {precision!r}; use auto, fp32, bf16 or fp16")
