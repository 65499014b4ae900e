"""Images for training and tests: decoded pairs, packed in one file for fast random crops.

`PackedPairs` keeps every decoded image in one memory-mapped file, so that a training step never waits for a PNG
decoder. LR images that are not published are made by `srnet.resize.downscale`, once. Finding and checking pairs
(`srnet.pairs`) is offered here too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from srnet.atomic import atomic_output, remove_leftovers
from srnet.config import DegradationConfig
from srnet.degradation import MARGIN, degrade_patches
from srnet.errors import DataError, ImageError
from srnet.images.decode import read_rgb8
from srnet.pairs import (
    Pair,
    Problem,
    by,
    check_ratio,
    find_pairs,
    find_pairs_in_roots,
    format_problems,
    hr_size,
    scan,
    shrunk_size,
    summarise,
    with_shrunk,
)
from srnet.resize import downscale, imresize

__all__ = [
    "PackedPairs",
    "Pair",
    "Problem",
    "find_pairs",
    "find_pairs_in_roots",
    "format_problems",
    "read_pair",
    "sample_patches",
    "scan",
    "summarise",
    "with_shrunk",
]

_FORMAT_VERSION = (
    1  # raised when the packed pixels of the same files change, also by resize or images.decode
)
_MAGIC = b"srnpack1"
_TRAILER = struct.Struct("<8sQII")

_Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _Entry:
    """Where one pair lies in the packed file: `size` is (height, width) in LR pixels, offsets are in bytes."""

    name: str
    size: tuple[int, int]
    lr_offset: int
    hr_offset: int


class PackedPairs:
    """All images of a data set as uint8, in one memory-mapped file that processes share.

    Every HR image is cut to a multiple of the scale from its top left corner. The file holds the pixels, then a
    JSON index, then a fixed trailer with checksums, so that it is complete or not there at all.
    """

    def __init__(self, path: Path) -> None:
        """Open the packed file `path`.

        Raises:
            DataError: The file is missing, damaged, or of another format version.
        """
        self.path = Path(path)
        index, self._data = _open_packed(self.path)
        self.scale: int = index["scale"]
        self.fingerprint: str = index["fingerprint"]
        self._entries = [
            _Entry(name, (height, width), lr_offset, hr_offset)
            for name, height, width, lr_offset, hr_offset in index["images"]
        ]
        self.names = [entry.name for entry in self._entries]
        sizes = np.array([entry.size for entry in self._entries], dtype=np.int64)
        self.sizes: npt.NDArray[np.int64] = sizes
        self.cumulative_area: npt.NDArray[np.int64] = np.cumsum(sizes[:, 0] * sizes[:, 1])

    @classmethod
    def build(
        cls,
        pairs: Sequence[Pair],
        scale: int,
        cache_dir: Path,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> PackedPairs:
        """Open the packed file of `pairs`, making it first where it is missing, damaged or out of date.

        The file is written under a temporary name and moved, so two processes may build at the same time.

        Args:
            pairs: What `find_pairs` returned.
            scale: Upscaling factor.
            cache_dir: Folder for the packed file; made when missing.
            progress: Called with (images done, images in all) after each image that is packed.

        Raises:
            DataError: A pair cannot be used, or the file cannot be written.
        """
        if not pairs:
            raise DataError("no images to pack")
        cache_dir = Path(cache_dir)
        path = cache_dir / f"{_identity(pairs, scale)}-x{scale}.pack"
        fingerprint = _fingerprint(pairs, scale)
        packed = _open_if_current(path, fingerprint)
        if packed is not None:
            return packed
        problems = scan(pairs, scale, 1)
        if problems:
            raise DataError(summarise(problems))
        _write_packed(path, pairs, scale, fingerprint, progress)
        return cls(path)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._entries)

    def __reduce__(self) -> tuple[type[PackedPairs], tuple[Path]]:
        """Pickle the path, not the pixels: a worker process maps the same file."""
        return (PackedPairs, (self.path,))

    def image(self, i: int) -> tuple[_Pixels, _Pixels]:
        """Return pair `i` as read-only views: LR (h, w, 3) and HR (h*scale, w*scale, 3), RGB uint8."""
        entry = self._entries[i]
        height, width = entry.size
        return (
            self._view(entry.lr_offset, height, width),
            self._view(entry.hr_offset, height * self.scale, width * self.scale),
        )

    def _view(self, offset: int, height: int, width: int) -> _Pixels:
        return self._data[offset : offset + height * width * 3].reshape(height, width, 3)


def _open_if_current(path: Path, fingerprint: str) -> PackedPairs | None:
    """Return the packed file when it is whole and up to date; otherwise nothing keeps it open."""
    try:
        packed = PackedPairs(path)
    except DataError:
        return None
    return packed if packed.fingerprint == fingerprint else None


def _identity(pairs: Sequence[Pair], scale: int) -> str:
    """Return a short hash of which files are packed, so that a changed file replaces its old packed file."""
    files = [
        [pair.name, pair.hr_scale, *(str(path.resolve()) for path in _files(pair))]
        for pair in pairs
    ]
    return hashlib.sha256(json.dumps([scale, files]).encode()).hexdigest()[:16]


def _fingerprint(pairs: Sequence[Pair], scale: int) -> str:
    """Return a hash of the files and of their sizes and times of change."""
    seen = []
    for pair in pairs:
        for path in _files(pair):
            try:
                status = path.stat()
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
            seen.append(
                [
                    pair.name,
                    pair.hr_scale,
                    str(path.resolve()),
                    status.st_size,
                    status.st_mtime_ns,
                ]
            )
    return hashlib.sha256(json.dumps([_FORMAT_VERSION, scale, seen]).encode()).hexdigest()


def _files(pair: Pair) -> list[Path]:
    return [pair.hr] if pair.lr is None else [pair.hr, pair.lr]


def _write_packed(
    path: Path,
    pairs: Sequence[Pair],
    scale: int,
    fingerprint: str,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the packed file under a temporary name beside `path`, then move it there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent)
        needed = sum(_packed_bytes(hr_size(pair), scale) for pair in pairs)
        free = shutil.disk_usage(path.parent).free
        if needed > free:
            raise DataError(
                f"packing {len(pairs)} images needs {needed / 2**20:.0f} MiB but {path.parent} has "
                f"{free / 2**20:.0f} MiB free; free space or choose another cache folder"
            )
        with atomic_output(path) as partial, partial.open("wb") as file:
            _write_body(file, pairs, scale, fingerprint, progress)
    except OSError as error:
        raise DataError(
            f"cannot write the packed images to {path}: {error.strerror}; "
            "free space or choose another cache folder"
        ) from error


def _write_body(
    file: BinaryIO,
    pairs: Sequence[Pair],
    scale: int,
    fingerprint: str,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write pixels, index and trailer."""
    images: list[tuple[str, int, int, int, int]] = []
    checksum = 0
    offset = 0
    for done, pair in enumerate(pairs, start=1):
        lr, hr = read_pair(pair, scale)
        height, width = lr.shape[:2]
        images.append((pair.name, height, width, offset, offset + lr.size))
        for pixels in (lr, hr):
            block = np.ascontiguousarray(pixels).data
            checksum = zlib.crc32(block, checksum)
            file.write(block)
            offset += pixels.size
        if progress is not None:
            progress(done, len(pairs))
    index = json.dumps({"scale": scale, "fingerprint": fingerprint, "images": images}).encode()
    file.write(index)
    file.write(_TRAILER.pack(_MAGIC, len(index), zlib.crc32(index), checksum))


def _read_rgb(path: Path) -> _Pixels:
    try:
        return read_rgb8(path)
    except ImageError as error:
        raise DataError(f"{error}; replace or remove it") from error


def read_pair(pair: Pair, scale: int) -> tuple[_Pixels, _Pixels]:
    """Decode one pair: LR (h, w, 3) and HR (h*scale, w*scale, 3), RGB uint8; HR is cut from its top left corner.

    Raises:
        DataError: A file cannot be decoded, the sizes do not fit, or HR is smaller than `scale`.
    """
    whole = _read_rgb(pair.hr)
    if pair.hr_scale != 1:
        pixels = torch.from_numpy(whole.copy()).permute(2, 0, 1)[None]  # (1, 3, h, w)
        smaller = imresize(pixels, shrunk_size(whole.shape[:2], pair.hr_scale))
        whole = smaller[0].permute(1, 2, 0).numpy()
    height, width = whole.shape[0] // scale, whole.shape[1] // scale
    if min(height, width) < 1:
        raise DataError(f"{pair.hr} is {by(whole.shape[:2])}, smaller than the scale {scale}")
    hr = whole[
        : height * scale, : width * scale
    ].copy()  # contiguous, and writable as torch wants it
    if pair.lr is None:
        made = downscale(torch.from_numpy(hr).permute(2, 0, 1)[None], scale)  # (1, 3, h, w)
        return made[0].permute(1, 2, 0).contiguous().numpy(), hr
    lr = _read_rgb(pair.lr)
    try:
        check_ratio(whole.shape[:2], lr.shape[:2], scale)
    except DataError as error:
        raise DataError(f"{pair.lr}: {error}") from error
    return lr, hr


def _packed_bytes(hr_size: tuple[int, int], scale: int) -> int:
    height, width = hr_size[0] // scale, hr_size[1] // scale
    return 3 * height * width * (1 + scale * scale)


def _open_packed(path: Path) -> tuple[dict[str, Any], _Pixels]:
    """Return the index of a packed file and its pixels, mapped read-only, after checking both checksums."""
    try:
        data: _Pixels = np.memmap(path, dtype=np.uint8, mode="r")
        data = data.view(np.ndarray)  # slicing a memmap costs several times as much
    except (OSError, ValueError) as error:
        raise DataError(f"packed images {path} cannot be opened: {error}") from error
    damaged = DataError(f"packed images {path} are damaged; delete the file, it will be made again")
    end = data.size - _TRAILER.size
    if end < 0:
        raise damaged
    magic, index_bytes, index_checksum, checksum = _TRAILER.unpack(data[end:].tobytes())
    if magic != _MAGIC or index_bytes > end:
        raise damaged
    pixels = data[: end - index_bytes]
    index = data[end - index_bytes : end].tobytes()
    if zlib.crc32(index) != index_checksum or zlib.crc32(pixels.data) != checksum:
        raise damaged
    return json.loads(index), pixels


def sample_patches(
    packed: PackedPairs,
    batch_size: int,
    patch_size: int,
    generator: torch.Generator,
    degradation: DegradationConfig | None = None,
    informative: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cut random aligned patches, each turned into one of the 8 flips and transposes, and spoil LR where asked to.

    An image is drawn with a probability proportional to its area, then a place in it uniformly. The result depends
    on the generator's state alone.

    Args:
        packed: The images.
        batch_size: Number of patches, B.
        patch_size: Side of an LR patch in LR pixels, p.
        generator: CPU generator; without degradation it is advanced by the same amount in every call with this
            `batch_size` and `informative`.
        degradation: How LR is spoiled; the images must be `degradation.MARGIN` larger than the patch for that.
        informative: Places drawn for each patch, of which the one that bicubic restores worst is taken.

    Returns:
        LR (B, 3, p, p) and HR (B, 3, p*scale, p*scale), RGB uint8, contiguous.

    Raises:
        DataError: An image is smaller than the patch.
    """
    p = patch_size + (0 if degradation is None else MARGIN)
    q = p * packed.scale
    small = int(packed.sizes.min(axis=1).argmin())
    if packed.sizes[small].min() < p:
        height, width = packed.sizes[small]
        raise DataError(
            f"LR of {packed.names[small]} is {width}x{height}, smaller than "
            f"patch_size {patch_size}{'' if degradation is None else f' and a margin of {MARGIN}'}; "
            f"use patch_size {packed.sizes[small].min() - p + patch_size} or remove the image"
        )
    # One draw for all choices: u * n rounded down is below n for every u < 1 in float64.
    draws = _draw(batch_size * informative, generator).numpy()
    area = packed.cumulative_area
    chosen = np.searchsorted(area, np.floor(draws[:, 0] * area[-1]), side="right")
    corners = (draws[:, 1:3] * (packed.sizes[chosen] - p + 1)).astype(np.int64)
    if informative > 1:
        errors = _bicubic_errors(packed, chosen, corners, p).reshape(batch_size, informative)
        kept = errors.argmax(axis=1) + np.arange(batch_size) * informative
        draws, chosen, corners = draws[kept], chosen[kept], corners[kept]
    symmetries = (draws[:, 3] * 8).astype(np.int64)
    lr = np.empty((batch_size, 3, p, p), dtype=np.uint8)
    hr = np.empty((batch_size, 3, q, q), dtype=np.uint8)
    for b, (i, (y, x), symmetry) in enumerate(
        zip(chosen.tolist(), corners.tolist(), symmetries.tolist(), strict=True)
    ):
        lr_image, hr_image = packed.image(i)
        top, left = y * packed.scale, x * packed.scale
        lr[b] = _turned(lr_image[y : y + p, x : x + p], symmetry)
        hr[b] = _turned(hr_image[top : top + q, left : left + q], symmetry)
    patches = torch.from_numpy(lr), torch.from_numpy(hr)
    if degradation is None:
        return patches
    return degrade_patches(*patches, packed.scale, degradation, generator)


def _bicubic_errors(
    packed: PackedPairs, chosen: npt.NDArray[Any], corners: npt.NDArray[Any], p: int
) -> npt.NDArray[Any]:
    """Return the mean absolute error of enlarging each LR patch with bicubic, (n,), from green alone."""
    s = packed.scale
    lr = np.empty((len(chosen), 1, p, p), dtype=np.float32)
    hr = np.empty((len(chosen), 1, p * s, p * s), dtype=np.float32)
    for b, (i, (y, x)) in enumerate(zip(chosen.tolist(), corners.tolist(), strict=True)):
        lr_image, hr_image = packed.image(i)
        lr[b, 0] = lr_image[y : y + p, x : x + p, 1]
        hr[b, 0] = hr_image[y * s : (y + p) * s, x * s : (x + p) * s, 1]
    enlarged = torch.nn.functional.interpolate(torch.from_numpy(lr), scale_factor=s, mode="bicubic")
    errors: npt.NDArray[Any] = (enlarged - torch.from_numpy(hr)).abs().mean((1, 2, 3)).numpy()
    return errors


def skip_patches(count: int, generator: torch.Generator) -> None:
    """Advance the generator as `sample_patches` without degradation does for `count` patches."""
    _draw(count, generator)


def _draw(count: int, generator: torch.Generator) -> torch.Tensor:
    """Return the numbers that choose `count` patches, (count, 4) in [0, 1)."""
    return torch.rand(count, 4, generator=generator, dtype=torch.float64)


def _turned(patch: _Pixels, symmetry: int) -> _Pixels:
    """Return view (3, p, p) of `patch` (p, p, 3); the bits of `symmetry` (0 to 7) flip rows, columns, transpose."""
    if symmetry & 1:
        patch = patch[::-1]
    if symmetry & 2:
        patch = patch[:, ::-1]
    return patch.transpose(2, 1, 0) if symmetry & 4 else patch.transpose(2, 0, 1)
