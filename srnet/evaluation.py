"""Measures a network on image pairs and states how: the one way in which every number of this project is made."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from srnet import __version__
from srnet.datasets import Pair, read_pair
from srnet.degradation import compress, fixed_quality
from srnet.device import Precision
from srnet.errors import DataError, ImageError
from srnet.inference import Upscaler
from srnet.metrics import psnr_y, ssim_y
from srnet.network import SRNet
from srnet.resize import imresize, upscale


@dataclass(frozen=True)
class Row:
    """One image, or the mean of all: dB and structural similarity, of the network and of bicubic."""

    name: str
    psnr_y: float
    ssim_y: float
    bicubic_psnr_y: float
    bicubic_ssim_y: float

    @property
    def gain(self) -> float:
        """PSNR-Y ahead of bicubic, dB."""
        return self.psnr_y - self.bicubic_psnr_y


@dataclass(frozen=True)
class Report:
    """Rows, their mean, and the protocol that made them."""

    rows: list[Row]
    mean: Row
    protocol: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps; what is infinite (equal images) or undefined becomes None."""
        return {
            "protocol": self.protocol,
            "images": [_finite(asdict(row)) for row in self.rows],
            "mean": _finite({k: v for k, v in asdict(self.mean).items() if k != "name"}),
        }

    def to_table(self) -> str:
        """A line per image, the mean, and the protocol in words."""
        width = max(len(row.name) for row in [*self.rows, self.mean])
        lines = [f"{'image':{width}}  PSNR-Y  SSIM-Y   bicubic          gain"]
        for row in [*self.rows, self.mean]:
            lines.append(
                f"{row.name:{width}}  {row.psnr_y:6.2f}  {_ssim(row.ssim_y)}   {row.bicubic_psnr_y:6.2f}  "
                f"{_ssim(row.bicubic_ssim_y)}  {row.gain:+6.2f}"
            )
        lines += ["", *(f"{key}: {value}" for key, value in self.protocol.items())]
        return "\n".join(lines)


def _ssim(value: float) -> str:
    return "   n/a" if math.isnan(value) else f"{value:.4f}"


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()
    }


def evaluate(
    network: SRNet | None,
    pairs: Sequence[Pair],
    scale: int,
    *,
    model: str,
    data: str,
    sha256: str | None = None,
    device: str = "auto",
    precision: Precision | Literal["auto"] = "fp32",
    jpeg: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
    keep: Callable[[str, Tensor], None] | None = None,
) -> Report:
    """Enlarges every LR image as a whole and measures PSNR-Y and SSIM-Y against its HR image.

    Args:
        network: The network; None measures bicubic alone, in both columns. If its scale is larger than the one that
            is measured, its results are shrunk with MATLAB's bicubic.
        pairs: Images; LR is made by MATLAB bicubic where there is no file.
        scale: Enlargement factor; also the crop_border.
        model: Name for the report.
        data: Name of the data set for the report.
        sha256: Hash of the checkpoint for the report.
        device: "auto", "cpu", "cuda", "cuda:1" or "mps".
        precision: "fp32", "bf16", "fp16" or "auto".
        jpeg: Lowest and highest quality of the JPEG that each LR image becomes first, fixed by its name; None for none.
        progress: Called with images done and their total.
        keep: Called with each image's name and result (1, 3, H, W), float32, not clamped.

    Returns:
        The report; means are means of the images' values.

    Raises:
        ConfigError: The device or precision does not exist.
        DataError: There is no image, or one cannot be used.
        ImageError: The network fails on an image.
    """
    if not pairs:
        raise DataError(f"{data}: no images to measure; give a folder that holds some")
    # tile 0: the whole image at once
    upscaler = None
    if network is not None:
        upscaler = Upscaler(network, device=device, precision=precision, tile=0)
    rows = []
    for done, pair in enumerate(pairs):
        lr, hr = (_tensor(pixels) for pixels in read_pair(pair, scale))
        if jpeg is not None:
            lr = compress(lr[0], fixed_quality(pair.name, jpeg))[None]
        true = hr.float() / 255
        bicubic = upscale(lr, scale).float() / 255
        try:
            sr = bicubic if upscaler is None else upscaler.upscale(lr.float() / 255)
        except ImageError as error:
            raise ImageError(f"{pair.hr}: {error}") from error
        sr = imresize(sr, (hr.shape[2], hr.shape[3]))  # as it is where the scales are the same
        if keep is not None:
            keep(pair.name, sr)
        scores = [f(x, true, scale).item() for x in (sr, bicubic) for f in (psnr_y, ssim_y)]
        rows.append(Row(pair.name, *scores))
        if progress is not None:
            progress(done + 1, len(pairs))
    columns = [[getattr(row, k) for row in rows] for k in list(asdict(rows[0]))[1:]]
    mean = Row("mean", *map(_mean, columns))
    native = scale if network is None else network.scale
    published = sum(pair.lr is not None for pair in pairs)
    protocol = {
        "model": model,
        "sha256": sha256,
        "data": data,
        "images": len(rows),
        "scale": scale,
        "result": "as computed"
        if native == scale
        else f"x{native}, shrunk to x{scale} with the kernel below",
        "lr": f"{published} from files, {len(rows) - published} made from HR"
        + (f"; then JPEG of quality {jpeg[0]} to {jpeg[1]} by the image's name" if jpeg else ""),
        "kernel": "MATLAB imresize bicubic, a = -0.5, antialiased, rounded to 8 bits after each pass",
        "channel": "Y of BT.601 studio range, of the 8-bit rounded result; grey images as RGB",
        "crop_border": scale,
        "mean": "of the images' values" + _too_small(rows),
        "precision": upscaler.precision if upscaler is not None else "8-bit",
        "device": str(upscaler.device) if upscaler is not None else "cpu",
        "threads": torch.get_num_threads(),
        "versions": ", ".join(
            [f"srnet {__version__}", f"Python {platform.python_version()}"]
            + [f"{package} {version(package)}" for package in ("torch", "numpy", "pyvips")]
        ),
    }
    return Report(rows, mean, protocol)


def _mean(values: Sequence[float]) -> float:
    """Mean of the values that are defined; NaN where none is."""
    defined = [value for value in values if not math.isnan(value)]
    return math.fsum(defined) / len(defined) if defined else math.nan


def _too_small(rows: Sequence[Row]) -> str:
    """Names images that are smaller than SSIM's window."""
    names = [row.name for row in rows if math.isnan(row.ssim_y)]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    listed = f"{', '.join(names[:3])}{more}"
    return f"; SSIM without {listed}: below 11 pixels after the crop" if names else ""


def _tensor(pixels: np.ndarray[Any, Any]) -> Tensor:
    """(H, W, 3) uint8 array to (1, 3, H, W) tensor."""
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]


def write_png(path: Path, sr: Tensor) -> None:
    """Writes (1, 3, H, W) in [0, 1], clamped and rounded half up, as an 8-bit PNG.

    Raises:
        ImageError: The file cannot be written.
    """
    from srnet.images.encode import write

    pixels = sr[0].clamp(0, 1).mul(255).add(0.5).byte().permute(1, 2, 0).contiguous().numpy()
    write(path, pixels, "png")
