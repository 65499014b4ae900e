"""A contact sheet of what a network is shown in training."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from srnet.config import RunConfig
from srnet.training.datamodule import PatchBatches
from srnet.training.run import collect

_GAP = 4  # HR pixels between the pictures


def contact_sheet(config: RunConfig, count: int, report: Callable[[str], None]) -> Tensor:
    """The first patches of a run: each LR patch, its pixels enlarged to squares, left of its HR patch.

    Args:
        config: The run.
        count: Pairs, at least 1.
        report: Receives lines of text while the images are packed.

    Returns:
        (H, W, 3) uint8, four pairs in a row.

    Raises:
        DataError: The data has problems; the message lists them.
    """
    packed, _ = collect(config, report)
    data, scale = config.data, config.network.scale
    batches = iter(
        PatchBatches(
            packed,
            data.batch_size,
            data.patch_size,
            config.trainer.seed,
            degradation=data.degradation,
            informative=data.informative,
        )
    )
    lr = torch.empty(0, 3, data.patch_size, data.patch_size, dtype=torch.uint8)
    hr = torch.empty(0, 3, data.patch_size * scale, data.patch_size * scale, dtype=torch.uint8)
    while len(lr) < count:
        lr, hr = (torch.cat(both) for both in zip((lr, hr), next(batches), strict=True))
    squares = lr.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    side = squares.shape[-1]
    columns = min(4, count)
    rows = -(-count // columns)
    sheet = torch.full(
        (3, rows * (side + _GAP) + _GAP, columns * (2 * side + 2 * _GAP) + _GAP),
        255,
        dtype=torch.uint8,
    )
    for i in range(count):
        top = _GAP + (i // columns) * (side + _GAP)
        left = _GAP + (i % columns) * (2 * side + 2 * _GAP)
        both = torch.cat((squares[i], hr[i]), 2)
        sheet[:, top : top + side, left : left + 2 * side] = both
    return sheet.permute(1, 2, 0).contiguous()
