"""Upscales images of any size with a network: tiles of bounded memory, every pixel kind, nothing silently wrong.

>>> from srnet.config import NetworkConfig
>>> from srnet.network import SRNet
>>> network = SRNet(NetworkConfig(scale=2, embed_dim=12, num_blocks=2, attention_blocks=(1,)))
>>> Upscaler(network).upscale(np.zeros((5, 7, 3), dtype=np.uint8)).shape
(10, 14, 3)
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from srnet.device import Precision, resolve_precision, select_device
from srnet.errors import ConfigError, ImageError
from srnet.network import SRNet
from srnet.tiling import Region, round_up, split, window_of

if TYPE_CHECKING:
    from PIL import Image

    from srnet.foreign import ForeignNetwork
    from srnet.images.picture import Pixels

Progress = Callable[[int, int], None]
"""Called with the LR pixels done and their total."""
ImageT = TypeVar("ImageT", "np.ndarray[Any, Any]", "Image.Image", Tensor)

DEFAULT_OVERLAP = 16
"""LR pixels that a window extends beyond its core unless asked otherwise."""

_FASTEST_TILE = {
    "cpu": 256,
    "mps": 256,
    "cuda": 1024,
}  # larger ones gain nothing, on CPUs they lose
_BYTES_PER_PIXEL = (
    90  # working memory per LR pixel of a window and channel of the network; measured: 88
)
_SMALLEST_TILE = 32
_LARGEST = 1e30  # of float pixels; beyond it float32 cannot hold sums, and files mean missing data
_FAR_APART = 1e4  # float_contrast from which nothing but the network's error would be left
_FAINT = 1 / 16  # float pixels below it use too little of [0, 1] for the network
_FARTHEST = 4.0  # from [0, 1]: results overshoot at edges of strong colours, but not this far
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_log = logging.getLogger("srnet")


class Upscaler:
    """Upscales images with one network; safe to share between threads.

    Attributes:
        network: The network, in eval mode, on `device`.
        scale: Enlargement factor.
        device: Where tiles are computed.
        precision: "fp32", "bf16" or "fp16"; 16-bit and float images are computed in "fp32" if it was "auto".
        tile: Largest side of a tile's core, LR pixels; 0 for the whole image at once.
        overlap: LR pixels that the network sees beyond a core; `network.receptive_field` gives exactly the result of
            the whole image.

    Args:
        network: A network, or the name or path of a model as `srnet.foreign.load_model` takes it. Moved to the
            device in place.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        precision: "auto" takes bfloat16 where the device computes it natively, else float32.
        tile: "auto" takes what is fastest and fits in the device's free memory.
        overlap: None takes the default.
        self_ensemble: Take the mean over eight flipped and turned views; eight times slower.

    Raises:
        ConfigError: If the device does not exist or a number is out of range.
        CheckpointError: If the checkpoint cannot be loaded.
    """

    def __init__(
        self,
        network: SRNet | ForeignNetwork | str | Path,
        *,
        device: str = "auto",
        precision: Precision | Literal["auto"] = "auto",
        tile: int | Literal["auto"] = "auto",
        overlap: int | None = None,
        self_ensemble: bool = False,
    ) -> None:
        if isinstance(network, (str, Path)):
            from srnet.foreign import load_model

            network = load_model(network).network
        self.device = select_device(device)
        if precision not in ("auto", *_DTYPES):
            raise ConfigError(f"precision is {precision!r}; use auto, {', '.join(_DTYPES)}")
        self.precision = resolve_precision(precision, self.device.type)
        usable = set(_DTYPES) if isinstance(network, SRNet) else network.precisions
        if self.precision not in usable:
            if precision != "auto":
                raise ConfigError(
                    f"precision is {precision!r}, this network computes in {', '.join(sorted(usable))} only"
                )
            self.precision = "fp32"
        self._deep_precision = "fp32" if precision == "auto" else self.precision
        # measured on CPUs: channels_last is 10 to 20 % faster than contiguous
        self.network: SRNet | ForeignNetwork = (
            network.eval().to(self.device).to(memory_format=torch.channels_last)
        )
        self.scale: int = network.scale
        self.self_ensemble = self_ensemble
        self.overlap = DEFAULT_OVERLAP if overlap is None else overlap
        if self.overlap < 0:
            raise ConfigError(f"overlap is {self.overlap}; use 0 or more LR pixels")
        self.tile: int = self._auto_tile() if tile == "auto" else tile
        if self.tile < 0:
            raise ConfigError(
                f"tile is {tile}; use auto, 0 (the whole image at once), or 1 or more LR pixels"
            )
        self.tile = round_up(self.tile, network.group_size)

    def __call__(self, image: ImageT, progress: Progress | None = None) -> ImageT:
        """Same as `upscale`."""
        return self.upscale(image, progress)

    def upscale(self, image: ImageT, progress: Progress | None = None) -> ImageT:
        """Upscales one image.

        Args:
            image: One of
                an array (H, W) or (H, W, C) of uint8, uint16 (full range) or float32, C 1 grey, 2 grey and alpha,
                3 RGB, 4 RGB and alpha; float white is 1, and where values leave [0, 1] or fill less than a sixteenth
                of it, the network sees their own range stretched to [0, 1];
                a PIL image (modes other than L, LA, RGB, RGBA and I;16 are converted);
                a float tensor (B, 3, H, W) or (3, H, W), RGB in [0, 1], on any device.
            progress: Called after each tile with the LR pixels done and their total.

        Returns:
            The same kind, type and channels, both sides `scale` times as long; a tensor is not clamped.

        Raises:
            ImageError: If the shape or type is none of these, or the network gives no result that can be a picture.
        """
        if isinstance(image, Tensor):
            return self._tensor(image, progress)
        if isinstance(image, np.ndarray):
            return self._array(image, progress)
        return self._pillow(image, progress)

    @cached_property
    def recipe(self) -> dict[str, object]:
        """What decides the pixels besides the input; not the tile size, which follows the free memory."""
        digest = hashlib.sha256()
        for name, value in sorted(self.network.state_dict().items()):
            digest.update(name.encode())
            digest.update(
                value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
            )
        return {
            "weights": digest.hexdigest(),
            "overlap": self.overlap,
            "precision": [self.precision, self._deep_precision],
            "self_ensemble": self.self_ensemble,
        }

    def bands(
        self, pixels: Pixels, progress: Progress | None = None
    ) -> Iterator[tuple[int, Pixels]]:
        """Upscales an image strip by strip: only one tile is on the device, only one strip of the result in memory.

        Args:
            pixels: (H, W, C) of uint8, uint16 or float32, as `upscale` takes.
            progress: Called after each tile with the LR pixels done and their total.

        Yields:
            First row of a strip, HR pixels, and the strip (rows, W * scale, C), from top to bottom.

        Raises:
            ImageError: If the network gives no result that can be a picture.
        """
        height, width, channels = pixels.shape
        scale = self.scale
        job = self._job(height, width, pixels.dtype != np.uint8)
        alpha = pixels[..., -1:] if channels in (2, 4) else None
        flat_alpha = alpha is not None and bool(alpha.min() == alpha.max())
        colour = pixels if alpha is None else pixels[..., :-1]
        if alpha is not None and not flat_alpha:
            colour = fill_hidden(colour, alpha)
        levels = _Levels.of(colour)
        alpha_levels = levels if alpha is None else _Levels.of(alpha)
        grey = colour.shape[2] == 1 or is_grey(colour)
        cores = split(Region(0, height, 0, width), job.limit, self.network.group_size)
        for top, row in groupby(cores, key=lambda core: core.top):
            strip: Pixels | None = None
            for core in row:
                if strip is None:
                    strip = np.empty((core.height * scale, width * scale, channels), pixels.dtype)
                area = strip[:, core.left * scale : core.right * scale]
                area[..., : colour.shape[2]] = self._plane(colour, core, job, levels, grey)
                if alpha is not None:
                    area[..., -1:] = (
                        alpha[0, 0]
                        if flat_alpha
                        else self._plane(alpha, core, job, alpha_levels, True)
                    )
                job.done += core.height * core.width
                if progress is not None:
                    progress(job.done, height * width)
            assert strip is not None
            yield top * scale, strip

    def _array(
        self, image: np.ndarray[Any, Any], progress: Progress | None
    ) -> np.ndarray[Any, Any]:
        pixels = image[..., None] if image.ndim == 2 else image
        if pixels.ndim != 3 or not 1 <= pixels.shape[2] <= 4 or 0 in pixels.shape:
            raise ImageError(
                f"cannot upscale an array of shape {image.shape}; give (H, W) or (H, W, 1 to 4)"
            )
        if pixels.dtype not in (np.uint8, np.uint16, np.float32):
            raise ImageError(
                f"cannot upscale pixels of type {image.dtype}; convert to uint8, uint16 or float32"
            )
        height, width, channels = pixels.shape
        result = np.empty((height * self.scale, width * self.scale, channels), pixels.dtype)
        for top, strip in self.bands(pixels, progress):
            result[top : top + len(strip)] = strip
        return result.reshape(result.shape[: image.ndim])

    def _pillow(self, image: Image.Image, progress: Progress | None) -> Image.Image:
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise ImageError(
                f"cannot upscale a {type(image).__name__}; give an array, a PIL image or a tensor"
            )
        if image.mode.startswith("I;16"):
            return Image.fromarray(self._array(np.asarray(image).astype(np.uint16), progress))
        if image.mode not in ("L", "LA", "RGB", "RGBA"):
            image = image.convert(
                "RGBA" if image.has_transparency_data else "L" if image.mode == "1" else "RGB"
            )
        return Image.fromarray(self._array(np.asarray(image), progress))

    def _tensor(self, image: Tensor, progress: Progress | None) -> Tensor:
        batch = image[None] if image.ndim == 3 else image
        if (
            batch.ndim != 4
            or batch.shape[1] != 3
            or 0 in batch.shape
            or not image.is_floating_point()
        ):
            raise ImageError(
                f"cannot upscale a tensor {tuple(image.shape)} of {image.dtype}; give (B, 3, H, W) or (3, H, W), "
                f"float, in [0, 1]"
            )
        count, _, height, width = batch.shape
        scale = self.scale
        result = batch.new_empty((count, 3, height * scale, width * scale))
        job = self._job(height, width, False)
        for index in range(count):

            def read(window: Region, lr: Tensor = batch[index : index + 1]) -> Tensor:
                return lr[..., window.top : window.bottom, window.left : window.right]

            for core in split(Region(0, height, 0, width), job.limit, self.network.group_size):
                for part, sr in self._parts(read, core, job):
                    rows = slice(part.top * scale, part.bottom * scale)
                    result[index, :, rows, part.left * scale : part.right * scale] = sr[0].to(
                        result
                    )
                job.done += core.height * core.width
                if progress is not None:
                    progress(job.done, height * width * count)
        return result.reshape(result.shape[-image.ndim :])

    def _plane(self, plane: Pixels, core: Region, job: _Job, levels: _Levels, grey: bool) -> Pixels:
        """Upscales the core of a plane of 1 or 3 channels; returns (rows, columns, channels)."""
        scale = self.scale
        result = np.empty((core.height * scale, core.width * scale, plane.shape[2]), plane.dtype)

        def read(window: Region) -> Tensor:
            return levels.to_tensor(plane[window.top : window.bottom, window.left : window.right])

        for part, sr in self._parts(read, core, job):
            if grey:
                sr = sr.mean(dim=1, keepdim=True).expand(1, plane.shape[2], -1, -1)
            rows = slice((part.top - core.top) * scale, (part.bottom - core.top) * scale)
            columns = slice((part.left - core.left) * scale, (part.right - core.left) * scale)
            result[rows, columns] = levels.to_pixels(sr)
        return result

    def _parts(
        self, read: Callable[[Region], Tensor], core: Region, job: _Job
    ) -> Iterator[tuple[Region, Tensor]]:
        """Runs the network over a core, in smaller parts from the moment that memory runs out.

        Args:
            read: Gives the pixels of a window, (1, 3, h, w) in [0, 1].
            core: What is wanted.
            job: The image's size and the largest tile that is still tried.

        Yields:
            A part of the core and its result, (1, 3, rows * scale, columns * scale).
        """
        grid, scale = self.network.group_size, self.scale
        for part in split(core, job.limit, grid):
            if max(part.height, part.width) > job.limit:  # shrunk since the split
                yield from self._parts(read, part, job)
                continue
            window = window_of(part, job.height, job.width, self.overlap, grid)
            try:
                sr = self._network(read(window), job.dtype)
            except (RuntimeError, MemoryError) as error:
                if not _is_out_of_memory(error):
                    raise
                job.shrink(max(part.height, part.width), round_up(_SMALLEST_TILE, grid), grid)
            else:
                top, left = (part.top - window.top) * scale, (part.left - window.left) * scale
                yield (
                    part,
                    sr[..., top : top + part.height * scale, left : left + part.width * scale],
                )
                continue
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            yield from self._parts(read, part, job)

    @torch.inference_mode()
    def _network(self, lr: Tensor, dtype: torch.dtype) -> Tensor:
        """Runs one window; in float32 again if a lower precision gives what cannot be a picture.

        Raises:
            ImageError: In float32, too, values are not finite or far out of range.
        """
        lr = lr.to(self.device, torch.float32).contiguous(memory_format=torch.channels_last)
        low_in, high_in = (value.item() for value in lr.aminmax())
        for attempt in dict.fromkeys((dtype, torch.float32)):
            with torch.autocast(self.device.type, attempt, enabled=attempt != torch.float32):
                sr = self._mean_of_views(lr) if self.self_ensemble else self.network(lr).float()
            low, high = (value.item() for value in sr.aminmax())
            # false if anything is not finite
            if min(low_in, 0.0) - _FARTHEST <= low and high <= max(high_in, 1.0) + _FARTHEST:
                result: Tensor = sr
                return result
            if attempt != torch.float32:
                _log.warning(
                    "a tile left the range of pictures in %s; computed again in float32",
                    str(attempt)[6:],
                )
        if not math.isfinite(low + high):
            raise ImageError(
                "the network gives values that are not finite, also in float32; its weights are damaged"
            )
        raise ImageError(
            f"the network fails on this picture: its values reach from {low:.3g} to {high:.3g}, where 0 is black and "
            f"1 is white; use another model (-n), or train this one with drawn pictures, too (srnet data graphics)"
        )

    def _mean_of_views(self, lr: Tensor) -> Tensor:
        """Mean over the eight symmetries of the square, each turned back."""
        total: Tensor | None = None
        for turns in range(4):
            for flip in (False, True):
                view = torch.rot90(lr.flip(-1) if flip else lr, turns, (-2, -1))
                sr = self.network(view.contiguous(memory_format=torch.channels_last)).float()
                sr = torch.rot90(sr, -turns, (-2, -1))
                sr = sr.flip(-1) if flip else sr
                total = sr if total is None else total + sr
        assert total is not None
        return total / 8

    def _job(self, height: int, width: int, deep: bool) -> _Job:
        dtype = _DTYPES[self._deep_precision if deep else self.precision]
        return _Job(height, width, self.tile or max(height, width), dtype)

    def _auto_tile(self) -> int:
        """The fastest tile that leaves half of the free memory alone."""
        fastest = _FASTEST_TILE.get(self.device.type, _FASTEST_TILE["cpu"])
        free = free_memory(self.device)
        if free is None:
            return fastest
        network = self.network
        channels = network.config.embed_dim if isinstance(network, SRNet) else network.channels
        window = math.isqrt(free // 2 // (_BYTES_PER_PIXEL * channels))
        return max(min(window - 2 * self.overlap, fastest), _SMALLEST_TILE)


@dataclass
class _Job:
    """One image on its way: its size and the largest tile that memory allows."""

    height: int
    width: int
    limit: int
    dtype: torch.dtype
    done: int = 0
    tried: list[int] = field(default_factory=list)

    def shrink(self, failed: int, floor: int, grid: int) -> None:
        """Halves the tile after one of `failed` LR pixels a side did not fit.

        Raises:
            ImageError: If it was already the smallest.
        """
        self.tried.append(failed)
        if self.limit <= floor:
            raise ImageError(
                f"out of memory; tiles of {', '.join(map(str, self.tried))} pixels were tried; "
                f"close other programs or use --device cpu"
            )
        self.limit = max(min(self.limit, failed) // 2 // grid * grid, floor)
        _log.warning("out of memory with a tile of %d pixels; trying %d", failed, self.limit)


@dataclass(frozen=True)
class _Levels:
    """The pixel values that stand for 0 and 1 in the network."""

    dtype: np.dtype[Any]
    low: float
    high: float

    @classmethod
    def of(cls, pixels: Pixels) -> _Levels:
        """Full range of integers; of float pixels [0, 1] if they fill some of it, else the image's own range.

        Raises:
            ImageError: If float values are so far apart that the network's error would hide most of the picture.
        """
        if pixels.dtype != np.float32:
            return cls(pixels.dtype, 0.0, float(np.iinfo(pixels.dtype).max))
        low, high = float(pixels.min()), float(pixels.max())
        if max(-low, high) > _LARGEST or float_contrast(pixels) > _FAR_APART:
            raise ImageError(
                f"float values reach from {low:g} to {high:g}, too far for one picture; "
                f"replace those that stand for missing data"
            )
        if (low >= 0 and _FAINT <= high <= 1) or low == high:
            low, high = min(low, 0.0), max(high, 1.0)
        return cls(pixels.dtype, low, high)

    def to_tensor(self, pixels: Pixels) -> Tensor:
        """(h, w, 1 or 3) to (1, 3, h, w) in [0, 1], grey repeated."""
        x = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None]
        return ((x - self.low) / (self.high - self.low)).expand(1, 3, -1, -1)

    def to_pixels(self, x: Tensor) -> Pixels:
        """(1, C, h, w) to (h, w, C); integers are clipped and rounded, floats left alone."""
        x = x[0].permute(1, 2, 0)
        x = (
            x * (self.high - self.low) + self.low
            if self.dtype == np.float32
            else x.clamp(0, 1).mul(self.high).round()
        )
        return x.cpu().numpy().astype(self.dtype)


def float_contrast(pixels: Pixels) -> float:
    """How many times the whole range of float pixels is that of their middle half; 1 if all are within [0, 1].

    The network's error is in proportion to the whole range, so that a few extreme values cost the others their detail.
    """
    span = float(pixels.max()) - float(pixels.min())
    if span <= 1:
        return 1.0
    step = max(pixels.size // 1_000_000, 1)
    quarter, rest = np.percentile(pixels.reshape(-1)[::step].astype(np.float64), (25, 75))
    return span / float(rest - quarter) if rest > quarter else 1.0


def is_grey(pixels: Pixels) -> bool:
    """Tells whether all three channels are equal everywhere; (H, W, 3)."""
    return all(
        bool((rows[..., 0] == rows[..., 1]).all() and (rows[..., 0] == rows[..., 2]).all())
        for rows in (pixels[top : top + 64] for top in range(0, len(pixels), 64))
    )


def fill_hidden(colour: Pixels, alpha: Pixels) -> Pixels:
    """Replaces the colour of fully transparent pixels, which may be anything, by that of visible ones nearby.

    Without it the network would mix hidden colours into the visible edge.

    Args:
        colour: (H, W, C).
        alpha: (H, W, 1); 0 is fully transparent.

    Returns:
        (H, W, C); visible pixels are unchanged.
    """
    hidden = alpha[..., 0] == 0
    if not hidden.any():
        return colour
    # pull: halve while averaging what is visible; push: fill the gaps of each level from the coarser one
    weight = (~hidden[..., None]).astype(np.float32)
    levels = [(colour.astype(np.float32) * weight, weight)]
    while max(levels[-1][1].shape[:2]) > 1:
        levels.append((_halve(levels[-1][0]), _halve(levels[-1][1])))
    total, weight = levels.pop()
    filled = total / np.maximum(weight, 1e-12)
    while levels:
        total, weight = levels.pop()
        coarse = filled.repeat(2, axis=0).repeat(2, axis=1)[: total.shape[0], : total.shape[1]]
        filled = np.where(weight > 0, total / np.maximum(weight, 1e-12), coarse)
    result = colour.copy()
    result[hidden] = filled[hidden] if colour.dtype == np.float32 else np.round(filled[hidden])
    return result


def _halve(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Sums 2x2 blocks of (H, W, C), the last row and column with zeros."""
    x = np.pad(x, ((0, x.shape[0] % 2), (0, x.shape[1] % 2), (0, 0)))
    total: np.ndarray[Any, Any] = x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]
    return total


def _is_out_of_memory(error: Exception) -> bool:
    """Knows the three ways in which PyTorch says that memory ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return any(
        words in str(error) for words in ("allocate memory", "not enough memory", "out of memory")
    )


def free_memory(device: torch.device) -> int | None:
    """Returns the bytes that can still be allocated on a device, None where that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        pages, size = "SC_AVPHYS_PAGES", "SC_PAGE_SIZE"
        known = pages in getattr(os, "sysconf_names", {})
        return os.sysconf(pages) * os.sysconf(size) if known else None
    fields = dict(line.split(":", 1) for line in text.splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
