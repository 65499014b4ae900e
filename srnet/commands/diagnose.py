"""``srnet diagnose``: what the attention layers of a network do on an image, and whether that is healthy."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srnet.errors import CheckpointError, ConfigError, ImageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from srnet.diagnostics import LayerStatistics
    from srnet.network import SRNet
    from srnet.verdicts import Finding

_SIDE = 192  # LR pixels of the examined square: 576 groups of 8 x 8, a few seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``srnet diagnose``."""
    add = parser.add_argument
    add(
        "model",
        nargs="?",
        metavar="MODEL|FILE|RUN|CONFIG",
        help="shipped model, .safetensors file, folder of a training run, or .yaml configuration, which is "
        "built afresh (default: the shipped x4 model)",
    )
    add("--image", type=Path, metavar="FILE", help="photograph (default: a made-up picture)")
    add(
        "--pixel",
        type=_pixel,
        metavar="X,Y",
        help=f"pixel of the image to look from; the {_SIDE} x {_SIDE} pixels around it are examined "
        "(default: the middle)",
    )
    add("--html", type=Path, metavar="FILE", help="write a page with pictures to open in a browser")
    add("--json", type=Path, metavar="FILE", help="write every number")
    add("--seed", type=int, default=0, help="seed of a network built afresh (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Measures, judges, prints, and writes what was asked for.

    Returns:
        0, whatever the verdict.

    Raises:
        SRNetError: The model or the image cannot be used, or the network has no attention layers.
    """
    import torch

    from srnet.diagnostics import examine
    from srnet.report_file import check_report, write_report
    from srnet.verdicts import findings

    for path in (args.html, args.json):
        if path is not None:
            check_report(path)
    pixels, title = _image(args.image)
    network, name, fresh = _network(args.model, args.seed)
    height, width = pixels.shape[:2]
    x, y = args.pixel or (width // 2, height // 2)
    if not (0 <= x < width and 0 <= y < height):
        raise ImageError(f"{title}: --pixel {x},{y} lies outside its {width} x {height} pixels")
    left, top = (
        _window(centre, length, network.group_size) for centre, length in ((x, width), (y, height))
    )
    crop = pixels[top : top + _SIDE, left : left + _SIDE]
    lr = torch.tensor(crop).permute(2, 0, 1)[None].float() / 255
    examined = examine(network, lr)
    if not examined:
        raise ConfigError(
            f"{name}: the network has no attention layers (attention_blocks is empty); nothing to diagnose"
        )
    statistics = [e.statistics for e in examined]
    found = findings(statistics, fresh=fresh)

    print(f"{name} ({'fresh weights' if fresh else 'trained'}) on {title},", end=" ")
    print(f"{crop.shape[1]} x {crop.shape[0]} pixels from ({left}, {top})")
    for line in _table(statistics):
        print(line)
    for line in _verdict(found):
        print(line)
    report: dict[str, Any] = {
        "model": name,
        "fresh": fresh,
        "image": title,
        "window": {"left": left, "top": top, "width": crop.shape[1], "height": crop.shape[0]},
        "layers": [asdict(s) for s in statistics],
        "findings": [asdict(f) for f in found],
        "healthy": all(f.severity == "note" for f in found),
    }
    if args.html is not None:
        from srnet.attribution import local_attribution
        from srnet.diagnose_page import render

        place = (x - left, y - top)
        attribution = local_attribution(network, lr, *place)
        config = network.config
        page = render(
            report, examined, pixels, place, attribution, config.group_size, config.region_size
        )
        write_report(args.html, page)
        print(f"wrote {args.html}")
    if args.json is not None:
        write_report(args.json, json.dumps(report, indent=1, allow_nan=False) + "\n")
        print(f"wrote {args.json}")
    return 0


def _pixel(text: str) -> tuple[int, int]:
    """Reads ``X,Y``."""
    try:
        x, y = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no pixel; write X,Y, e.g. 120,80") from None
    return x, y


def _window(centre: int, length: int, grid: int) -> int:
    """First pixel of the examined stretch, on the grid of query groups."""
    return max(0, min(centre - _SIDE // 2, length - _SIDE)) // grid * grid


def _image(path: Path | None) -> tuple[NDArray[np.uint8], str]:
    """Pixels (H, W, 3) and a name for them."""
    if path is not None:
        from srnet.images.decode import read_rgb8

        return read_rgb8(path), path.name
    import numpy as np

    # Noise whose amplitude falls with frequency, as in photographs, cut by edges of a few discs.
    random = np.random.default_rng(0)
    frequency = np.hypot(np.fft.fftfreq(_SIDE)[:, None], np.fft.rfftfreq(_SIDE)[None])
    frequency[0, 0] = 1
    rows, columns = np.mgrid[:_SIDE, :_SIDE]
    picture = np.zeros((_SIDE, _SIDE, 3))
    for i in range(13):
        noise = random.normal(size=(_SIDE, _SIDE, 3))
        spectrum = np.fft.rfft2(noise, axes=(0, 1)) / frequency[..., None]
        texture = np.fft.irfft2(spectrum, s=(_SIDE, _SIDE), axes=(0, 1))
        texture = random.uniform(40, 215, 3) + texture * random.uniform(3, 20) / texture.std()
        centre, radius = random.uniform(0, _SIDE, 2), random.uniform(12, 60)
        disc = np.hypot(rows - centre[0], columns - centre[1]) < (radius if i else np.inf)
        picture[disc] = texture[disc]
    return picture.clip(0, 255).astype(np.uint8), "a made-up picture (--image gives a real one)"


def _network(model: str | None, seed: int) -> tuple[SRNet, str, bool]:
    """The network, its name, and whether its weights are fresh."""
    from srnet.checkpoint import default_model, load_checkpoint

    path = Path(model) if model is not None else None
    if model is None or path is None:
        model = default_model(4)
    elif path.suffix.lower() in (".yaml", ".yml"):
        from srnet.config import load_config

        return _fresh(load_config(path).network, seed), path.name, True
    elif path.is_dir():
        for file in ("best.safetensors", "last.safetensors"):
            if (path / file).is_file():
                return load_checkpoint(path / file).network, f"{path.name}/{file}", False
        return _fresh(_run_config(path), seed), path.name, True
    checkpoint = load_checkpoint(model)
    return checkpoint.network, checkpoint.name, False


def _run_config(folder: Path) -> Any:
    """Network configuration of a run that has no weights yet."""
    from srnet.config import network_config_from_dict

    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["network"]
    except OSError:
        raise CheckpointError(
            f"{folder}: no run: it has neither best.safetensors, last.safetensors nor config.json"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: no configuration of a run ({error})") from None
    return network_config_from_dict(values)


def _fresh(config: Any, seed: int) -> SRNet:
    import torch

    from srnet.network import SRNet

    torch.manual_seed(seed)
    return SRNet(config).eval()


def _table(layers: list[LayerStatistics]) -> list[str]:
    """Lines of text: a row for each head and one for each layer."""
    lines = []
    for s in layers:
        scale = "unknown" if s.scale is None else f"{s.scale:.4f}"
        lines += [
            "",
            f"{s.layer}: scale {scale} (1/sqrt({s.head_dim}) = {s.head_dim**-0.5:.4f}), "
            f"{s.top_k} of {s.candidates} keys, rms of q {s.q_rms:.2f}, k {s.k_rms:.2f}, "
            f"adds {s.contribution:.3f} of its input",
            f"  predictor: recall {s.recall:.0%} (nearest keys {s.recall_nearest:.0%}, chance "
            f"{s.recall_chance:.0%}), {s.nearest_share:.0%} of its keys are the nearest, relevance varies by "
            f"{s.relevance_std:.2f}; {s.never_selected:.0%} of pixels never selected",
            "  gradients: "
            + ", ".join(f"{name} {value:.2g}" for name, value in s.gradients.items()),
            "  head  slope  q mean/std   k mean/std   v mean/std   score std  beyond 5  largest  entropy  distance",
        ]
        lines += [
            f"  {i:4d}  {h.slope:5.3f}  {h.q_mean:5.2f}/{h.q_std:5.2f}  {h.k_mean:5.2f}/{h.k_std:5.2f}  "
            f"{h.v_mean:5.2f}/{h.v_std:5.2f}  {h.score_std:9.2f}  {h.beyond_limit:8.1%}  "
            f"{h.largest_probability:7.2f}  {h.entropy:7.1%}  {h.distance:5.1f} px"
            for i, h in enumerate(s.heads)
        ]
    return lines


def _verdict(found: list[Finding]) -> list[str]:
    """Lines of text: one for each finding, and the sum."""
    lines = [""] + [f"{f.severity}: {f.layer}: {f.text}" for f in found]
    faults = sum(f.severity == "fault" for f in found)
    warnings = sum(f.severity == "warning" for f in found)
    if faults or warnings:
        return [*lines, f"verdict: {_count(faults, 'fault')}, {_count(warnings, 'warning')}"]
    return [*lines, "verdict: healthy"]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
