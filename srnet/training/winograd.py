"""3x3 convolutions for training on CPUs by Winograd's algorithm, in C that is compiled when the run starts.

Three quarters of a training step are 3x3 convolutions of a few dozen channels. oneDNN computes them on AVX2 by the
definition, near the processor's peak; Winograd's F(4x4, 3x3) needs a quarter of the products. No library for torch
has it for training on CPUs (NNPACK's has no gradients), hence `winograd.c`. Upscaling and evaluation keep torch's own
convolutions, whose result does not depend on where a tile starts.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SOURCE = Path(__file__).with_name("winograd.c")
_OUT, _BLOCK = 16, 24  # as in winograd.c
_FREQUENCIES = 36


def _filter_transform() -> Tensor:
    """Turns a filter of 9 weights into 36 frequencies, (36, 9)."""
    points = [[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]
    line = torch.tensor(points, dtype=torch.float64) / 24
    return torch.kron(line, line).float()


class Kernels:
    """The compiled functions of winograd.c."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._convolve = library.winograd_convolve
        self._filter_gradient = library.winograd_filter_gradient
        pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
        others = (size, size, size, size, size, pointer, size)  # n, h, w, C, K, work, threads
        self._convolve.argtypes = (pointer, pointer, pointer, pointer, *others)
        self._filter_gradient.argtypes = (pointer, pointer, pointer, *others)
        self._convolve.restype = self._filter_gradient.restype = None
        self._transform = _filter_transform()

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """``F.conv2d(x, weight, bias, padding=1)``.

        Args:
            x: (B, C, H, W), float32 in the channels_last layout; C a multiple of 8.
            weight: (K, C, 3, 3); K a multiple of 16.
            bias: (K,), contiguous.

        Returns:
            (B, K, H, W), channels_last.
        """
        B, C, H, W = x.shape
        K = weight.shape[0]
        y = torch.empty((B, K, H, W), memory_format=torch.channels_last)
        filters = weight.reshape(K * C, 9) @ self._transform.T
        filters = filters.view(K // _OUT, _OUT, C, _FREQUENCIES).permute(0, 3, 2, 1).contiguous()
        threads = torch.get_num_threads()
        work = torch.empty(threads, _FREQUENCIES * _BLOCK * (C + _OUT) + C)
        pointers = (t.data_ptr() for t in (x, filters, bias, y))
        self._convolve(*pointers, B, H, W, C, K, work.data_ptr(), threads)
        return y

    def filter_gradient(self, x: Tensor, grad: Tensor) -> Tensor:
        """Gradient to the weight of ``convolve``.

        Args:
            x: Its input (B, C, H, W), channels_last.
            grad: The gradient to its output (B, K, H, W), channels_last.

        Returns:
            (K, C, 3, 3).
        """
        B, C, H, W = x.shape
        K = grad.shape[1]
        threads = torch.get_num_threads()
        sums = torch.zeros(threads, K // _OUT, _FREQUENCIES, C, _OUT)
        work = torch.empty(threads, _FREQUENCIES * _BLOCK * (C + K) + max(C, K))
        pointers = (t.data_ptr() for t in (x, grad, sums))
        self._filter_gradient(*pointers, B, H, W, C, K, work.data_ptr(), threads)
        filters = sums.sum(0).permute(0, 3, 2, 1).reshape(K * C, _FREQUENCIES)
        return (filters @ self._transform).view(K, C, 3, 3)


class _Convolution(torch.autograd.Function):
    """`Kernels.convolve` with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        ctx.save_for_backward(x, weight)
        return load_kernels().convolve(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        kernels = load_kernels()
        grad = grad.contiguous(memory_format=torch.channels_last)
        to_input = None
        if ctx.needs_input_grad[0]:
            turned = weight.transpose(0, 1).flip(2, 3)
            to_input = kernels.convolve(grad, turned, grad.new_zeros(x.shape[1]))
        return to_input, kernels.filter_gradient(x, grad), grad.sum((0, 2, 3))


class WinogradConv2d(nn.Conv2d):
    """A 3x3 convolution that is computed by Winograd's algorithm in training, and by torch otherwise."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, K, H, W)."""
        if not self.training:
            return super().forward(x)
        y: Tensor = _Convolution.apply(x, self.weight, self.bias)
        return y


def _suits(layer: nn.Module) -> bool:
    """Whether the kernels can compute the layer, and its gradient, in which the channels change places."""
    return (
        type(layer) is nn.Conv2d
        and layer.kernel_size == (3, 3)
        and layer.stride == layer.dilation == layer.padding == (1, 1)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and layer.bias is not None
        and layer.in_channels % _OUT == 0
        and layer.out_channels % _OUT == 0
    )


def accelerate(network: nn.Module) -> bool:
    """Lets the network's 3x3 convolutions be computed by Winograd's algorithm while it trains on a CPU in float32.

    Parameters stay the same objects under the same names. Layers whose channels are no multiples of 16 stay as they
    are.

    Args:
        network: Changed in place.

    Returns:
        Whether there was a layer to change.

    Raises:
        OSError: There is no C compiler, or what it makes cannot be used; the message says which.
    """
    layers = [layer for layer in network.modules() if _suits(layer)]
    if layers:
        load_kernels()
    for layer in layers:
        layer.__class__ = WinogradConv2d
    return bool(layers)


@cache
def load_kernels() -> Kernels:
    """Compiles winograd.c for this processor, loads it, and tries it on small numbers.

    It is compiled anew in each process: that takes a second, and a file kept for later could meet another processor.

    Raises:
        OSError: There is no C compiler, or what it makes cannot be used; the message says which.
    """
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    if not compiler:
        raise OSError("no C compiler (cc, gcc or clang) is here")
    # GNU's OpenMP library, by its name, is the one that torch has loaded already: one set of threads serves both.
    flags = [
        "-O3",
        "-march=native",
        "-ffp-contract=fast",
        "-std=gnu11",
        "-fopenmp",
        "-shared",
        "-fPIC",
    ]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # Windows holds it
        library = Path(folder) / "winograd.so"
        command = [*shlex.split(compiler), *flags, str(_SOURCE), "-o", str(library)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise OSError(f"{compiler} cannot be started: {error.strerror}") from error
        if done.returncode:
            reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[0]
            raise OSError(f"{compiler} cannot compile {_SOURCE.name}: {reason}")
        kernels = Kernels(ctypes.CDLL(str(library)))
    if not _is_right(kernels):
        raise OSError(f"what {compiler} made of {_SOURCE.name} gives wrong results")
    return kernels


def _is_right(kernels: Kernels) -> bool:
    """Whether the kernels agree with torch on a small image."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(2, c, 5, 7, generator=generator) for c in (16, 32))
    x, grad = (t.contiguous(memory_format=torch.channels_last) for t in (x, grad))
    weight = torch.randn(32, 16, 3, 3, generator=generator, requires_grad=True)
    bias = torch.randn(32, generator=generator)
    with torch.enable_grad():
        y = F.conv2d(x, weight, bias, padding=1)
        (to_weight,) = torch.autograd.grad(y, weight, grad)
    with torch.no_grad():
        return torch.allclose(kernels.convolve(x, weight, bias), y, atol=1e-3) and torch.allclose(
            kernels.filter_gradient(x, grad), to_weight, atol=1e-3
        )
