"""Which device and which precision: one answer for training, evaluation and upscaling."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["fp32", "bf16", "fp16"]


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
