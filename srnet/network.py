"""The network: dense 3x3 convolutions with a few far-seeing sparse attention layers.

conv 3x3 -> residual blocks (sparse attention in some, then a convolutional feed-forward) -> conv 3x3 and long skip ->
conv 3x3 and pixel shuffle, plus the bicubic enlargement of the input. SwinIR's outline (Liang et al., 2021) with
few attention layers, since on a CPU dense convolutions run near the matrix-multiply peak and small-head attention
does not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from srnet.attention import SparseAttention
from srnet.config import NetworkConfig

_LEAK = 0.1  # slope of the leaky ReLU for negative inputs


def _conv(in_channels: int, out_channels: int, gain: float) -> nn.Conv2d:
    """3x3 convolution that keeps the variance of a rectified input times gain^2; zero bias."""
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
    nn.init.kaiming_normal_(conv.weight, a=_LEAK, nonlinearity="leaky_relu")
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    with torch.no_grad():
        conv.weight.mul_(gain)
    return conv


def bicubic_kernels(scale: int) -> Tensor:
    """The 5x5 filters that give each of the scale^2 sub-pixels of a bicubic enlargement, (scale^2, 1, 5, 5).

    Keys' kernel, a = -0.5, as MATLAB's imresize has it.
    """
    phase = (torch.arange(scale, dtype=torch.float64) + 0.5) / scale - 0.5
    x = (torch.arange(-2, 3, dtype=torch.float64) - phase[:, None]).abs()  # (scale, 5)
    near = 1.5 * x**3 - 2.5 * x**2 + 1
    far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    line = torch.where(x <= 1, near, torch.where(x < 2, far, 0.0))
    return torch.einsum("yi,xj->yxij", line, line).reshape(scale * scale, 1, 5, 5).float()


class Block(nn.Module):
    """Optional sparse attention with residual, then dense convolutions with residual."""

    def __init__(self, config: NetworkConfig, attention: bool) -> None:
        super().__init__()
        self.attention = (
            SparseAttention(
                config.embed_dim,
                config.num_heads,
                config.head_dim or config.embed_dim // config.num_heads,
                config.group_size,
                config.region_size,
                config.top_k,
                config.predictor_dim,
                config.predictor_slope,
            )
            if attention
            else None
        )
        n = config.convs_per_block
        # small residual branches: near the identity at first, which leaves the plateau of a linear filter
        self.convs = nn.ModuleList(
            _conv(config.embed_dim, config.embed_dim, 0.3 if i == n - 1 else 1.0) for i in range(n)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, C, H, W)."""
        if self.attention is not None:
            x = x + self.attention(x)
        y = x
        for i, conv in enumerate(self.convs):
            y = conv(F.leaky_relu(y, _LEAK) if i else y)
        return x + y


class SRNet(nn.Module):
    """Super-resolution network.

    Attributes:
        config: The shape it was built from.
        scale: Enlargement factor.
        group_size: Query groups sit on a grid of this many LR pixels anchored at the image origin.
        receptive_field: Largest distance in LR pixels (Chebyshev) between an output pixel and an input it depends on.
            A tile that starts on the grid and is extended by at least this much gives exactly the whole image's result.
    """

    skip_kernels: Tensor

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        self.scale: int = config.scale
        dim = config.embed_dim
        self.head = _conv(3, dim, 1.0)
        self.blocks = nn.ModuleList(
            Block(config, i in config.attention_blocks) for i in range(config.num_blocks)
        )
        self.tail = _conv(dim, dim, 1.0)
        # starts close to plain bicubic
        self.upsampler = _conv(dim, 3 * config.scale**2, 0.01)
        self.register_buffer("skip_kernels", bicubic_kernels(config.scale), persistent=False)

        attention = [
            b.attention for b in self.blocks if isinstance(b, Block) and b.attention is not None
        ]
        self.group_size: int = config.group_size if attention else 1
        convolutions = config.num_blocks * config.convs_per_block + 3
        self.receptive_field: int = convolutions + sum(a.reach() for a in attention)

    def forward(self, lr: Tensor) -> Tensor:
        """Enlarges images.

        Args:
            lr: RGB in [0, 1], (B, 3, H, W), any H and W from 1.

        Returns:
            (B, 3, H * scale, W * scale), not clamped.
        """
        feature = self.head(lr)
        x = feature
        for block in self.blocks:
            x = block(x)
        x = feature + self.tail(x)
        return F.pixel_shuffle(self.upsampler(x) + self.bicubic_skip(lr), self.scale)

    def bicubic_skip(self, lr: Tensor) -> Tensor:
        """Bicubic enlargement before pixel shuffle, (B, 3 * scale^2, H, W).

        Fixed filters rather than F.interpolate, whose positions round differently in a tile than in the whole image.
        Channels go into the batch: grouped convolutions round differently with the image's width.
        """
        B, C, H, W = lr.shape
        padded = F.pad(lr, (2, 2, 2, 2), mode="replicate").reshape(B * C, 1, H + 4, W + 4)
        return F.conv2d(padded, self.skip_kernels.to(lr.dtype)).reshape(B, -1, H, W)
