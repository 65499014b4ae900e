"""Statistics of the attention layers on a real image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from srnet.attention import SparseAttention
from srnet.network import SRNet


@dataclass(frozen=True)
class ProjectionStatistics:
    """Standard deviation of the queries and keys of one layer."""

    layer: str
    q_std: float
    k_std: float

    @property
    def unit_variance(self) -> bool:
        """True when both are within 10 % of 1, as scores divided by sqrt(head_dim) presume at initialisation."""
        return abs(self.q_std - 1) <= 0.1 and abs(self.k_std - 1) <= 0.1


@torch.no_grad()
def projection_statistics(network: SRNet, lr: Tensor) -> list[ProjectionStatistics]:
    """Measures q and k of every attention layer.

    Args:
        network: The network; left as it was.
        lr: RGB in [0, 1], (B, 3, H, W).

    Returns:
        One entry per attention layer, in order; values are root mean squares about 0, which is what a score's
        variance depends on.
    """
    found: list[ProjectionStatistics] = []
    handles = []

    for name, layer in network.named_modules():
        if isinstance(layer, SparseAttention):

            def measure(module: SparseAttention, inputs: tuple[Tensor], name: str = name) -> None:
                normed = module.norm(inputs[0].permute(0, 2, 3, 1))
                q = module.q(normed)
                k, _ = module.kv(normed).chunk(2, dim=-1)
                found.append(ProjectionStatistics(name, _rms(q), _rms(k)))

            handles.append(layer.register_forward_pre_hook(measure))
    try:
        network(lr)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())
