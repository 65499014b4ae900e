"""The checkpoint format, the registry of known checkpoints, and the only place that reads or writes either.

A checkpoint is one ``.safetensors`` file: float32 contiguous EMA weights under the keys of the bare
network, and string metadata ``format``, ``format_version``, ``config`` (JSON), ``metrics`` (JSON),
``data``, ``license``, ``commit``, ``kind``. Files that hold pickled Python objects (``.pth``, ``.ckpt``) can run
code when they are opened and are refused. torch is imported inside the functions that need it, so
that listing models stays fast.

Some checkpoints travel inside the wheel, others are downloaded into a folder of the user's. Nothing
here uses the network; ``srnet download`` does, when asked.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from srnet.atomic import atomic_output
from srnet.config import network_config_from_dict
from srnet.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from srnet.network import SRNet

Kind = Literal["classical", "photo"]
"""What inputs weights are for: clean images shrunk with bicubic, or compressed and noisy photographs."""

FORMAT = "srnet"
FORMAT_VERSION = "1"
_PICKLE_SUFFIXES = {".pth", ".pt", ".ckpt", ".bin", ".pkl", ".pickle"}
_MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself


@dataclass(frozen=True)
class ModelEntry:
    """One known checkpoint, as listed in ``registry.json``.

    Attributes:
        name: What commands take.
        file: File name, in the folder of shipped or of downloaded checkpoints.
        bytes: Size of the file.
        sha256: Its hash.
        scale: Enlargement factor.
        kind: What inputs it is for.
        shipped: Whether it travels inside the wheel.
        parameters: Number of weights.
        psnr_y: Measured PSNR-Y in dB, by data set.
        data: What it was trained on.
        license: Licence of the weights.
    """

    name: str
    file: str
    bytes: int
    sha256: str
    scale: int
    kind: Kind = "classical"
    shipped: bool = True
    parameters: int | None = None
    psnr_y: dict[str, float] = field(default_factory=dict)
    data: str = ""
    license: str = ""


@dataclass(frozen=True)
class Header:
    """What a checkpoint says about itself: its metadata and each tensor's shape."""

    metadata: dict[str, str]
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint; the network is in eval mode, float32, on the CPU."""

    name: str
    path: Path
    sha256: str
    network: SRNet
    metadata: dict[str, str]


def checkpoint_folder() -> Path:
    """Returns the folder of the shipped checkpoints, of an installed wheel or of a source checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_checkpoints"
    return installed if installed.is_dir() else package.parent / "checkpoints"


def download_folder() -> Path:
    """Returns where downloaded checkpoints lie: below ``SRNET_HOME``, else in the platform's cache folder."""
    home = os.environ.get("SRNET_HOME")
    if home:
        return Path(home).expanduser() / "checkpoints"
    import platformdirs

    return platformdirs.user_cache_path("srnet", appauthor=False) / "checkpoints"


def base_url() -> str | None:
    """Returns the address below which checkpoints can be fetched, None where there is none.

    ``SRNET_BASE_URL`` wins over the ``base_url`` of ``registry.json``.

    Raises:
        CheckpointError: The registry is missing or damaged.
    """
    return os.environ.get("SRNET_BASE_URL") or _registry()[0]


def known_models() -> list[ModelEntry]:
    """Returns the known checkpoints, shipped and not, in the order of ``registry.json``.

    Raises:
        CheckpointError: The registry is missing or damaged.
    """
    return _registry()[1]


def shipped_models() -> list[ModelEntry]:
    """Returns the checkpoints that travel inside the wheel, in the order of ``registry.json``.

    Raises:
        CheckpointError: The registry is missing or damaged.
    """
    return [model for model in known_models() if model.shipped]


def local_files(model: ModelEntry) -> list[Path]:
    """Returns the files of this name that are on this machine, the shipped one first, whole or not."""
    places = [checkpoint_folder()] if model.shipped else []
    paths = [folder / model.file for folder in (*places, download_folder())]
    return [path for path in paths if path.is_file()]


def _registry() -> tuple[str | None, list[ModelEntry]]:
    """Reads ``registry.json``: the base URL and the models."""
    path = checkpoint_folder() / "registry.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content.get("base_url"), [ModelEntry(**model) for model in content["models"]]
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}; reinstall srnet") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged registry ({error}); reinstall srnet") from error


def usable_model(scale: int, kind: Kind) -> str | None:
    """Returns the name of the first model of a scale and kind that is here, shipped ones first; None for none.

    Raises:
        CheckpointError: The registry is missing or damaged.
    """
    for model in sorted(known_models(), key=lambda model: not model.shipped):
        if (model.scale, model.kind) == (scale, kind) and (model.shipped or local_files(model)):
            return model.name
    return None


def default_model(scale: int) -> str:
    """Returns the name of the model used when none is asked for: the first classical one of that scale.

    Raises:
        CheckpointError: No model that is here has this scale.
    """
    name = usable_model(scale, "classical")
    if name is not None:
        return name
    models = known_models()
    elsewhere = [m.name for m in models if (m.scale, m.kind) == (scale, "classical")]
    if elsewhere:
        raise CheckpointError(
            f"no model here upscales x{scale}; run: srnet download {elsewhere[0]}"
        )
    scales = ", ".join(f"x{known}" for known in sorted({m.scale for m in models if m.shipped}))
    raise CheckpointError(
        f"no shipped model upscales x{scale}; shipped scales: {scales or 'none'}; "
        f"give a .safetensors file of your own"
    )


def read_header(path: Path) -> Header:
    """Reads a checkpoint's metadata and shapes without its weights and without torch.

    Raises:
        CheckpointError: The file is missing, is no safetensors file, or is cut short.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
            text = file.read(length) if length <= _MAX_HEADER_BYTES else b""
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    return _parse_header(path, start, text, size)


def _parse_header(path: Path, start: bytes, text: bytes, size: int) -> Header:
    """Checks the first 8 bytes, the JSON header and the file's size against each other."""
    if size == 0:
        raise CheckpointError(f"{path}: the file is empty; copy or download it again")
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER_BYTES + 1
    if length > _MAX_HEADER_BYTES or (text and not text.startswith(b"{")):
        raise CheckpointError(f"{path}: not a safetensors file ({_describe(start)})")
    if len(text) < length:
        raise CheckpointError(
            f"{path}: cut short, its header alone needs {8 + length} bytes but the file has {size}; "
            f"copy or download it again"
        )
    try:
        entries: dict[str, Any] = json.loads(text)
        metadata = {str(key): str(value) for key, value in entries.pop("__metadata__", {}).items()}
        shapes = {key: tuple(map(int, entry["shape"])) for key, entry in entries.items()}
        ends = [int(entry["data_offsets"][1]) for entry in entries.values()]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"{path}: damaged safetensors header ({error})") from error
    expected = 8 + length + max(ends, default=0)
    if size != expected:
        what = "cut short" if size < expected else "too long"
        raise CheckpointError(
            f"{path}: {what}, needs {expected} bytes but the file has {size}; "
            f"copy or download it again"
        )
    return Header(metadata, shapes)


def _describe(start: bytes) -> str:
    """Says what a file that is no safetensors file looks like."""
    if start.lstrip()[:1] == b"<":
        return "it looks like a web page; the download went wrong, fetch the file itself"
    if start.startswith((b"PK", b"\x80")):
        return "it looks like a pickled .pth or .ckpt file, which srnet does not open"
    return f"it starts with {start!r}"


def load_checkpoint(name_or_path: str | Path, *, scale: int | None = None) -> Checkpoint:
    """Loads a shipped or downloaded model by name, or a ``.safetensors`` file by path.

    Args:
        name_or_path: For example ``srnet-small-x4`` or ``runs/mine/best.safetensors``. A known
            name wins over a file of the same name; write ``./srnet-small-x4`` for such a file.
        scale: The smallest scale that will do; None takes any.

    Returns:
        The checkpoint with its network in eval mode, float32, on the CPU.

    Raises:
        CheckpointError: The name is unknown; or the file is missing, of another format, damaged,
            not the one in the registry, of a smaller scale, or its weights do not fit its network.
    """
    name, path, entry = _resolve(name_or_path)
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{path}: srnet opens only .safetensors files, because a {path.suffix} file can run "
            f"code when it is opened; export the weights with srnet.checkpoint.save_checkpoint"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if entry is not None and sha256 != entry.sha256:
        raise CheckpointError(
            f"{path}: not the registered {name}: sha256 {sha256[:12]}... ({len(data)} bytes) instead "
            f"of {entry.sha256[:12]}... ({entry.bytes} bytes); "
            f"{'restore the file or reinstall srnet' if entry.shipped else f'run: srnet download {name}'}"
        )
    length = struct.unpack("<Q", data[:8])[0] if len(data) >= 8 else 0
    text = data[8 : 8 + length] if length <= _MAX_HEADER_BYTES else b""
    header = _parse_header(path, data[:8], text, len(data))
    network = _build(path, header, data, scale)
    return Checkpoint(name, path, sha256, network, header.metadata)


def _resolve(name_or_path: str | Path) -> tuple[str, Path, ModelEntry | None]:
    """Finds the file of a known name or of a path: its name, its path, its registry entry."""
    if isinstance(name_or_path, str):
        for model in known_models():
            if model.name == name_or_path:
                return model.name, _whole_file(model), model
    path = Path(name_or_path)
    if path.is_file():
        return path.stem, path, None
    if path.is_dir():
        raise CheckpointError(f"{path}: is a folder; give the .safetensors file inside it")
    text = str(name_or_path)
    if path.suffix.lower() in _PICKLE_SUFFIXES | {".safetensors"} or path.name != text:
        raise CheckpointError(f"{path}: no such file")
    raise _unknown(text)


def find_model(name: str) -> ModelEntry:
    """Returns the registry's entry of a name.

    Raises:
        CheckpointError: The name is unknown; the message suggests near ones.
    """
    for model in known_models():
        if model.name == name:
            return model
    raise _unknown(name)


def _unknown(name: str) -> CheckpointError:
    """The error about a name that is not in the registry."""
    known = [model.name for model in known_models()]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f", did you mean {close[0]}?" if close else ";"
    return CheckpointError(
        f"unknown model {name!r}{hint} known models: {', '.join(known) or 'none'}; "
        f"or give a .safetensors file"
    )


def psnr_of(metadata: Mapping[str, str]) -> dict[str, float]:
    """Returns the PSNR-Y in dB of each data set that a checkpoint's metadata names."""
    try:
        metrics = json.loads(metadata.get("metrics", "{}"))
    except ValueError:
        return {}
    values = {
        name: value.get("psnr_y") for name, value in metrics.items() if isinstance(value, dict)
    }
    return {name: float(v) for name, v in values.items() if isinstance(v, int | float)}


def _whole_file(model: ModelEntry) -> Path:
    """The file with the registered hash, or one that is damaged where there is no other."""
    paths = local_files(model)
    if paths:
        return next((path for path in paths if file_sha256(path) == model.sha256), paths[0])
    if model.shipped:
        path = checkpoint_folder() / model.file
        raise CheckpointError(f"{path}: {model.name} is missing; reinstall srnet")
    raise CheckpointError(
        f"{model.name} does not come with srnet and is not in {download_folder()}; "
        f"run: srnet download {model.name}"
    )


def file_sha256(path: Path) -> str:
    """Returns the hash of a file.

    Raises:
        CheckpointError: It cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from error


def check_scale(model: str | Path, scale: int, wanted: int) -> None:
    """Refuses a model whose scale does not reach the one that is wanted.

    Raises:
        CheckpointError: It does not.
    """
    if scale < wanted:
        raise CheckpointError(
            f"{model}: upscales x{scale}, but x{wanted} is wanted; "
            f"take an x{wanted} model or ask for x{scale}"
        )


def _build(path: Path, header: Header, data: bytes, scale: int | None) -> SRNet:
    """Makes the network that the metadata describes and fills it with the file's weights."""
    metadata = header.metadata
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: not an srnet checkpoint: metadata format is {metadata.get('format')!r}, not "
            f"{FORMAT!r}; its first tensors are {', '.join(sorted(header.shapes)[:3]) or 'none'}"
        )
    if metadata.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: format_version {metadata.get('format_version')!r}, this srnet reads "
            f"{FORMAT_VERSION!r}; update srnet"
        )
    try:
        config = network_config_from_dict(json.loads(metadata["config"]))
    except KeyError as error:
        raise CheckpointError(f"{path}: metadata lacks {error}") from error
    except (ValueError, ConfigError) as error:
        raise CheckpointError(f"{path}: its config is unusable: {error}") from error
    if scale is not None:
        check_scale(path, config.scale, scale)

    import safetensors.torch
    import torch

    from srnet.network import SRNet

    with torch.random.fork_rng(devices=[]):  # the initial weights are thrown away
        network = SRNet(config)
    _check_keys(path, header.shapes, network.state_dict())
    weights = safetensors.torch.load(data)
    bad = [key for key, value in weights.items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise CheckpointError(f"{path}: {_first(bad)} hold NaN or infinity; training went wrong")
    network.load_state_dict(weights)
    return network.float().eval()


def _check_keys(
    path: Path, shapes: Mapping[str, tuple[int, ...]], expected: Mapping[str, Tensor]
) -> None:
    """Raises when the file's tensors are not exactly the network's."""
    wrong = [
        f"{key} is {list(shapes[key])} instead of {list(value.shape)}"
        for key, value in expected.items()
        if key in shapes and shapes[key] != tuple(value.shape)
    ]
    missing = [f"{key} is missing" for key in expected if key not in shapes]
    extra = [f"{key} is unknown" for key in shapes if key not in expected]
    problems = missing + wrong + extra
    if problems:
        matching = len(expected) - len(missing) - len(wrong)
        raise CheckpointError(
            f"{path}: its weights do not fit its config, {matching} of {len(expected)} tensors "
            f"match: {_first(problems)}"
        )


def _first(items: list[str]) -> str:
    """Names the first three of a list and counts the rest."""
    rest = f" and {len(items) - 3} more" if len(items) > 3 else ""
    return ", ".join(items[:3]) + rest


def save_checkpoint(
    path: str | Path,
    network: SRNet,
    *,
    state_dict: Mapping[str, Tensor] | None = None,
    metrics: Mapping[str, object],
    data: str,
    license: str,
    commit: str,
    kind: Kind = "classical",
) -> str:
    """Writes a checkpoint to a temporary name and moves it into place.

    Args:
        path: Target, with suffix ``.safetensors``.
        network: The network whose config is stored.
        state_dict: Weights to store, such as the EMA's; None takes the network's own.
        metrics: What was measured, such as ``{"Set5": {"psnr_y": 31.5}}``; plain JSON values.
        data: What the weights were trained on.
        license: Licence of the weights, an SPDX name.
        commit: The commit that trained them.
        kind: What inputs they are for.

    Returns:
        The file's sha256.

    Raises:
        CheckpointError: Another suffix, weights of another network, weights or metrics that are
            not finite, or a folder that cannot be written.
    """
    import safetensors.torch
    import torch

    path = Path(path)
    if path.suffix.lower() != ".safetensors":
        raise CheckpointError(f"{path}: a checkpoint's name must end in .safetensors")
    weights = network.state_dict() if state_dict is None else state_dict
    shapes = {key: tuple(value.shape) for key, value in weights.items()}
    _check_keys(path, shapes, network.state_dict())
    bad = [key for key, value in weights.items() if not bool(torch.isfinite(value).all())]
    if bad:
        raise CheckpointError(f"{path}: not written, {_first(bad)} hold NaN or infinity")
    try:
        metrics_text = json.dumps(metrics, allow_nan=False, sort_keys=True)
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{path}: metrics are not plain finite JSON ({error})") from error
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "config": json.dumps(dataclasses.asdict(network.config), sort_keys=True),
        "metrics": metrics_text,
        "data": data,
        "license": license,
        "commit": commit,
        "kind": kind,
    }
    # safetensors stores memory as it lies: channels_last weights must become contiguous first.
    tensors = {
        key: (value.detach().float() if value.is_floating_point() else value.detach())
        .cpu()
        .contiguous()
        .clone(memory_format=torch.contiguous_format)
        for key, value in weights.items()
    }
    content = safetensors.torch.save(tensors, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror}") from error
    return hashlib.sha256(content).hexdigest()
