"""Training patches and validation images as Lightning wants them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from srnet.config import DegradationConfig, RunConfig
from srnet.datasets import PackedPairs, Pair, read_pair, sample_patches, skip_patches
from srnet.degradation import compress, fixed_quality


class PatchBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Endless batches of random patches; batch i depends on (seed, i, rank) alone, so a run resumes exactly.

    Without degradation, several processes cut one large batch into parts: together they train on what one process
    with a batch that many times as large trains on.

    Args:
        packed: The images.
        batch_size: Patches in a batch.
        patch_size: Side of an LR patch.
        seed: Seed of the run.
        first: Index of the first batch.
        rank: Index of this process.
        degradation: How LR is spoiled, if at all.
        informative: Places drawn for each patch, of which the hardest is taken.
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
        informative: int = 1,
    ) -> None:
        self.packed = packed
        self.batch_size = batch_size
        self.patch_size = patch_size
        self.seed = seed
        self.first = first
        self.rank = rank
        self.degradation = degradation
        self.informative = informative

    def batch(self, i: int) -> tuple[Tensor, Tensor]:
        """The i-th batch: uint8 LR (B, 3, p, p) and HR (B, 3, p * scale, p * scale)."""
        # hashed, since torch's CPU generator takes 32 bits of a seed: neighbours must not share them
        own = 0 if self.degradation is None else self.rank
        text = f"{self.seed}/{i}/{own}".encode()
        number = int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big")
        generator = torch.Generator().manual_seed(number)
        if self.degradation is None:
            # those of the processes before
            skip_patches(self.batch_size * self.informative * self.rank, generator)
        return sample_patches(
            self.packed,
            self.batch_size,
            self.patch_size,
            generator,
            self.degradation,
            self.informative,
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches from ``first`` on."""
        i = self.first
        while True:
            yield self.batch(i)
            i += 1


class WholeImages(Dataset[tuple[Tensor, Tensor, int, str]]):
    """Whole LR and HR images as uint8 (3, H, W), with their number and name.

    Several processes share the images out, each image to one process. All get the same count, so that none waits for
    another: where the numbers do not divide, the last entries are empty images of number -1.

    Args:
        pairs: Files; LR is made by MATLAB bicubic where there is none.
        scale: Enlargement factor.
        jpeg: Lowest and highest quality of JPEG that LR goes through, fixed by the image's name; None for none.
        rank: Index of this process.
        processes: Their number.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        scale: int,
        jpeg: tuple[int, int] | None = None,
        rank: int = 0,
        processes: int = 1,
    ) -> None:
        self.pairs = pairs
        self.scale = scale
        self.jpeg = jpeg
        self.rank = rank
        self.processes = processes

    def __len__(self) -> int:
        """Number of entries of this process."""
        return -(-len(self.pairs) // self.processes)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, int, str]:
        """LR, HR, number and name of this process's entry i."""
        if i >= len(self):  # ends a for loop over the images
            raise IndexError(i)
        number = i * self.processes + self.rank
        if number >= len(self.pairs):
            nothing = torch.zeros(3, 0, 0, dtype=torch.uint8)
            return nothing, nothing, -1, ""
        pair = self.pairs[number]
        lr, hr = (torch.from_numpy(a.copy()).permute(2, 0, 1) for a in read_pair(pair, self.scale))
        if self.jpeg is not None:
            lr = compress(lr, fixed_quality(pair.name, self.jpeg))
        return lr, hr, number, pair.name


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
            informative=self.config.data.informative,
        )
        # from pinned memory a copy to the device does not make the host wait
        pin = self.trainer.strategy.root_device.type == "cuda"
        return DataLoader(batches, batch_size=None, pin_memory=pin)

    def val_dataloader(self) -> list[DataLoader[tuple[Tensor, Tensor, int, str]]]:
        """One loader of whole images per validation set."""
        scale, degradation = self.config.network.scale, self.config.data.degradation
        jpeg = None if degradation is None else degradation.validation_quality
        assert self.trainer is not None
        rank, processes = self.trainer.global_rank, self.trainer.world_size
        return [
            DataLoader(WholeImages(pairs, scale, jpeg, rank, processes), batch_size=1)
            for pairs in self.validation.values()
        ]
