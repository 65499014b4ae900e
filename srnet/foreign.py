"""Loads any model for upscaling: srnet's own checkpoints, its weights in other wrappings, and other architectures.

Networks of other projects (ESRGAN, SwinIR, HAT, DAT, SPAN and about forty more) are recognised by their tensors and
built by spandrel, https://github.com/chaiNNer-org/spandrel, the optional extra ``models``. Files are read as plain
tensors only: a pickle that wants to run anything is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from srnet.checkpoint import (
    Header,
    checkpoint_folder,
    load_checkpoint,
    read_header,
    shipped_models,
)
from srnet.config import NetworkConfig, network_config_from_dict
from srnet.errors import CheckpointError, ConfigError
from srnet.network import SRNet

_AVERAGES = ("params_ema", "params-ema", "ema_state_dict", "state_dict_ema", "model_ema", "ema")
_WRAPPINGS = (
    *_AVERAGES,
    "params",
    "state_dict",
    "model_state_dict",
    "model",
    "network",
    "net",
    "netG",
    "generator",
)
_PREFIXES = ("module.", "_orig_mod.", "netG.")  # never part of a network's own names
_LARGEST_GRID = 64  # LR pixels; tiles are no smaller
_OWN_PREFIXES = (*_PREFIXES, "network.", "model.", "net.", "generator.")


class ForeignNetwork(nn.Module):
    """A network of another architecture with the manners of `SRNet`.

    Attributes:
        scale: Enlargement factor, 1 for restoration.
        group_size: Sides of windows, LR pixels, that tiles have to start on.
        channels: Widest layer, for the estimate of memory.
        architecture: Its name.
        precisions: Those that give a usable picture.

    Args:
        descriptor: What spandrel's registry returned.
    """

    def __init__(self, descriptor: Any) -> None:
        super().__init__()
        self.module = descriptor.model
        self.scale: int = descriptor.scale
        self.group_size = _grid(descriptor)
        self.channels = max(value.shape[0] for value in self.module.parameters() if value.ndim > 1)
        self.architecture: str = descriptor.architecture.name
        self.precisions = {"fp32"}
        self.precisions |= {"fp16"} if descriptor.supports_half else set()
        self.precisions |= {"bf16"} if descriptor.supports_bfloat16 else set()
        self._single = descriptor.input_channels == 1
        self._call = descriptor  # no module, so its weights are not counted twice

    def forward(self, lr: Tensor) -> Tensor:
        """Enlarges images, (B, 3, H, W) in [0, 1] to (B, 3, H * scale, W * scale)."""
        if not self._single:
            return self._call(lr)  # type: ignore[no-any-return]
        planes = lr.reshape(-1, 1, *lr.shape[2:])
        sr: Tensor = self._call(planes)
        return sr.reshape(-1, 3, *sr.shape[2:])


def _grid(descriptor: Any) -> int:
    """What positions of tiles must be multiples of, so that windows lie where those of the whole image lie."""
    grid: int = descriptor.size_requirements.multiple_of
    for module in descriptor.model.modules():
        size = getattr(module, "window_size", 1)
        for side in size if isinstance(size, (tuple, list)) else (size,):
            if isinstance(side, int) and 1 < side <= _LARGEST_GRID:
                grid = math.lcm(grid, side)
    return min(grid, _LARGEST_GRID)


@dataclass(frozen=True)
class Model:
    """A loaded model.

    Attributes:
        name: Shipped name or stem of the file, with the architecture where it is another.
        network: In eval mode, float32, on the CPU.
        notes: What the user should know about how it was found.
    """

    name: str
    network: SRNet | ForeignNetwork
    notes: tuple[str, ...] = ()


def load_model(name_or_path: str | Path) -> Model:
    """Loads a model for upscaling.

    Args:
        name_or_path: Name of a shipped checkpoint, or a ``.safetensors``, ``.pth``, ``.pt`` or ``.ckpt`` file.

    Returns:
        The model.

    Raises:
        CheckpointError: The file is missing, damaged, wants to run code, or is of no known architecture; or spandrel
            is needed and not installed.
    """
    path = Path(name_or_path)
    shipped = isinstance(name_or_path, str) and name_or_path in {m.name for m in shipped_models()}
    pickled = not shipped and path.is_file() and _is_pickle(path)
    header = None if shipped or pickled or not path.is_file() else read_header(path)
    if not pickled and (header is None or header.metadata.get("format") == "srnet"):
        checkpoint = load_checkpoint(name_or_path)
        return Model(checkpoint.name, checkpoint.network)
    content = _read_pickle(path) if header is None else _read_safetensors(path, header)
    weights, config = _unwrap(path, content)
    model = _own(path, weights, config) or _other(path, weights)
    model.network.float().eval()
    return model


def _is_pickle(path: Path) -> bool:
    """Whether a file's first bytes are those of torch.save, by content and not by suffix."""
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    return start.startswith((b"PK\x03\x04", b"\x80"))


def _read_pickle(path: Path) -> Mapping[str, Any]:
    """Reads what torch.save wrote, without running anything."""
    try:
        with path.open("rb") as file:  # a name would choose another reader by its suffix
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        line = next((x for x in str(error).splitlines() if "GLOBAL" in x or "Unsupported" in x), "")
        raise CheckpointError(
            f"{path}: holds Python objects that could run code when opened, so nothing is loaded"
            f"{f' ({line.strip()[:150]})' if line else ''}; save its weights alone, best as .safetensors"
        ) from error
    except Exception as error:  # damaged archives raise whatever their parser meets
        if "TorchScript" in str(error):
            raise CheckpointError(
                f"{path}: a TorchScript program, not weights; take the .pth or .safetensors file"
            ) from error
        reason = " ".join(str(error).split())[:150]
        raise CheckpointError(f"{path}: damaged or cut short ({reason})") from error
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{path}: holds a {type(content).__name__} instead of named tensors")
    return content


def _read_safetensors(path: Path, header: Header) -> Mapping[str, Any]:
    import safetensors.torch

    content: dict[str, Any] = dict(safetensors.torch.load_file(path))
    if "config" in header.metadata:
        with contextlib.suppress(ValueError):  # another program's field of that name
            content["config"] = json.loads(header.metadata["config"])
    return content


def _unwrap(path: Path, content: Mapping[str, Any]) -> tuple[dict[str, Tensor], object]:
    """Finds the weights, averages before raw ones, and the network's configuration if there is one."""
    config: object = None
    for _ in range(4):
        config = content.get("srnet_config", content.get("config", config))
        inner = next((k for k in _WRAPPINGS if isinstance(content.get(k), Mapping)), None)
        if inner is None:
            break
        content = content[inner]
    if isinstance(config, Mapping) and isinstance(config.get("network"), Mapping):
        config = config["network"]
    weights = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    if not weights:
        raise CheckpointError(
            f"{path}: no weights in it; it holds {', '.join(map(str, list(content)[:5])) or 'nothing'}"
        )
    bad = [k for k, v in weights.items() if v.is_floating_point() and not v.isfinite().all()]
    if bad:
        raise CheckpointError(f"{path}: {bad[0]} holds NaN or infinity; training went wrong")
    weights = {k: v.float() if v.is_floating_point() else v for k, v in weights.items()}
    return _strip(weights, _PREFIXES), config


def _strip(weights: dict[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Takes off what stands before every name."""
    found: str | None = ""
    while found is not None:
        weights = {key[len(found) :]: value for key, value in weights.items()}
        found = next((p for p in prefixes if all(key.startswith(p) for key in weights)), None)
    return weights


def _own(path: Path, weights: dict[str, Tensor], stated: object) -> Model | None:
    """Fills an `SRNet` if these are the weights of one; None if they are of another architecture.

    Raises:
        CheckpointError: If they are of an `SRNet` whose configuration is unknown.
    """
    weights = _strip(weights, _OWN_PREFIXES)
    if not {"head.weight", "tail.weight", "upsampler.weight"} <= weights.keys():
        return None
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    candidates: dict[str, NetworkConfig] = {}
    if isinstance(stated, Mapping):
        try:
            candidates["its own"] = network_config_from_dict(dict(stated))
        except ConfigError as error:
            raise CheckpointError(f"{path}: its config is unusable: {error}") from error
    else:
        for entry in shipped_models():
            text = read_header(checkpoint_folder() / entry.file).metadata["config"]
            candidates[entry.name] = network_config_from_dict(json.loads(text))
    best = (0, "", 0)
    for name, config in candidates.items():
        with torch.random.fork_rng(devices=[]):  # the initial weights are thrown away
            network = SRNet(config)
        expected = {key: tuple(value.shape) for key, value in network.state_dict().items()}
        if expected == shapes:
            network.load_state_dict(weights)
            note = f"the file states no configuration; that of {name} fits all its tensors"
            return Model(path.stem, network, () if stated is not None else (note,))
        matching = sum(shapes.get(key) == shape for key, shape in expected.items())
        best = max(best, (matching, name, len(expected)))
    blocks = len({key.split(".")[1] for key in weights if key.startswith("blocks.")})
    scale = (shapes["upsampler.weight"][0] // 3) ** 0.5
    raise CheckpointError(
        f"{path}: looks like an srnet network of {shapes['head.weight'][0]} channels and {blocks} blocks, "
        f"x{scale:g}, but fits no known configuration: {best[0]} of {best[2]} tensors match {best[1]}; "
        f"export it with srnet.checkpoint.save_checkpoint"
    )


def _other(path: Path, weights: dict[str, Tensor]) -> Model:
    """Lets spandrel recognise and build the network."""
    first = ", ".join(f"{key} {list(value.shape)}" for key, value in list(weights.items())[:3])
    looks = f"{len(weights)} tensors, the first {first}"
    try:
        from spandrel import ImageModelDescriptor, ModelLoader, UnsupportedModelError
    except ImportError as error:
        raise CheckpointError(
            f"{path}: not an srnet network ({looks}); other architectures need spandrel: "
            f"pip install 'srnet[models]'"
        ) from error
    found: Any = None
    for candidate in (weights, _strip(weights, _OWN_PREFIXES)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about how other projects call torch
                found = ModelLoader().load_from_state_dict(dict(candidate))
            break
        except UnsupportedModelError:
            continue
        except Exception as error:  # spandrel guesses by a few names; the rest need not fit
            reason = " ".join(str(error).split())[:150]
            raise CheckpointError(
                f"{path}: looks like an architecture that spandrel knows but does not fit it ({looks}; {reason})"
            ) from error
    if found is None:
        raise CheckpointError(
            f"{path}: neither an srnet network nor one that spandrel knows; it holds {looks}"
        )
    name = found.architecture.name
    if not isinstance(found, ImageModelDescriptor) or found.purpose not in ("SR", "Restoration"):
        raise CheckpointError(
            f"{path}: {name} is for {found.purpose}, not for enlarging any picture; take another model"
        )
    channels = (found.input_channels, found.output_channels)
    if channels not in ((1, 1), (3, 3)):
        raise CheckpointError(
            f"{path}: {name} turns {channels[0]} channels into {channels[1]}; grey and RGB models are supported"
        )
    note = f"{name} looks at the whole image; tiles may show, --tile 0 avoids them"
    notes = () if found.tiling.name == "SUPPORTED" else (note,)
    return Model(f"{path.stem} ({name})", ForeignNetwork(found), notes)
