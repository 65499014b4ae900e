"""Training patches and validation images as Lightning wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from srnet.config import DegradationConfig, RunConfig
from srnet.datasets import PackedPairs, Pair, read_pair, sample_patches
from srnet.degradation import compress, fixed_quality


class PatchBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless batches of random patches; batch i depends on (seed, i, rank) alone, so a run resumes exactly.

    Args:
        packed: The images.
        batch_size: Patches in a batch.
        patch_size: Side of an LR patch.
        seed: Seed of the run.
        first: Index of the first batch.
        rank: Index of this process.
        degradation: How LR is spoiled, if at all.
    """

    def __init__(
        self,
        packed: PackedPairs,
        batch_size: int,
        patch_size: int,
        seed: int,
        first: int = 0,
        rank: int = 0,
        degradation: DegradationConfig | None = None,
    ) -> None:
        self.packed = packed
        self.batch_size = batch_size
        self.patch_size = patch_size
        self.seed = seed
        self.first = first
        self.rank = rank
        self.degradation = degradation

    def batch(self, i: int) -> tuple[Tensor, Tensor]:
        """The i-th batch: uint8 LR (B, 3, p, p) and HR (B, 3, p * scale, p * scale)."""
        # hashed, since torch's CPU generator takes 32 bits of a seed: neighbours must not share them
        text = f"{self.seed}/{i}/{self.rank}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
        generator = torch.Generator().manual_seed(number)
        return sample_patches(
            self.packed, self.batch_size, self.patch_size, generator, self.degradation
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches from ``first`` on."""
        i = self.first
        while True:
            yield self.batch(i)
            i += 1


class WholeImages(Dataset[tuple[Tensor, Tensor]]):
    """Whole LR and HR images as uint8 (3, H, W).

    Args:
        pairs: Files; LR is made by MATLAB bicubic where there is none.
        scale: Enlargement factor.
        jpeg: Lowest and highest quality of JPEG that LR goes through, fixed by the image's name; None for none.
    """

    def __init__(
        self, pairs: Sequence[Pair], scale: int, jpeg: tuple[int, int] | None = None
    ) -> None:
        self.pairs = pairs
        self.scale = scale
        self.jpeg = jpeg

    def __len__(self) -> int:
        """Number of images."""
        return len(self.pairs)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """LR and HR of image i."""
        lr, hr = (
            torch.from_numpy(a.copy()).permute(2, 0, 1)
            for a in read_pair(self.pairs[i], self.scale)
        )
        if self.jpeg is not None:
            lr = compress(lr, fixed_quality(self.pairs[i].name, self.jpeg))
        return lr, hr


class SRDataModule(LightningDataModule):
    """Loaders over data that was checked and packed before the trainer started.

    Args:
        config: The run.
        packed: Training images.
        validation: Pairs of each validation set.
    """

    def __init__(
        self, config: RunConfig, packed: PackedPairs, validation: dict[str, list[Pair]]
    ) -> None:
        super().__init__()
        self.config = config
        self.packed = packed
        self.validation = validation

    def train_dataloader(self) -> DataLoader[tuple[Tensor, Tensor]]:
        """Batches from the step at which training stands.

        No workers: cutting patches from the memory map takes about a hundredth of a training step.
        """
        assert self.trainer is not None
        batches = PatchBatches(
            self.packed,
            self.config.data.batch_size,
            self.config.data.patch_size,
            self.config.trainer.seed,
            first=self.trainer.global_step,
            rank=self.trainer.global_rank,
            degradation=self.config.data.degradation,
        )
        return DataLoader(batches, batch_size=None)

    def val_dataloader(self) -> list[DataLoader[tuple[Tensor, Tensor]]]:
        """One loader of whole images per validation set."""
        scale, degradation = self.config.network.scale, self.config.data.degradation
        jpeg = None if degradation is None else degradation.validation_quality
        return [
            DataLoader(WholeImages(pairs, scale, jpeg), batch_size=1)
            for pairs in self.validation.values()
        ]
