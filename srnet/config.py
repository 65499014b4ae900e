"""Every setting of a run, as frozen dataclasses; YAML in, checked by pydantic, no torch.

A run is one complete YAML file (see ``configs/``). Words after it, ``key.path=value``, override single values:
``srnet train configs/small_x4.yaml optim.learning_rate=1e-3``. Unknown keys are errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from srnet.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML in which ``on``, ``off``, ``yes`` and ``no`` are words, as in YAML 1.2; settings have them as values."""


_Loader.yaml_implicit_resolvers = {
    letter: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:bool"]
    for letter, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)

Scale = Literal[2, 3, 4]
SCALES: tuple[int, ...] = get_args(Scale)

_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Shape of one SRNet; travels inside the checkpoint."""

    __pydantic_config__ = _STRICT

    scale: Scale
    """Enlargement factor."""
    embed_dim: int = 48
    """Channels C of the feature map."""
    num_blocks: int = 6
    """Number of residual blocks."""
    convs_per_block: int = 3
    """Dense 3x3 convolutions in the feed-forward of a block."""
    attention_blocks: tuple[int, ...] = (3,)
    """Blocks (counted from 0) that start with sparse attention; empty for none."""
    num_heads: int = 3
    """Attention heads."""
    head_dim: int | None = None
    """Channels of a head's queries, keys and values; none for embed_dim / num_heads."""
    group_size: int = 8
    """Side g of a query group in pixels; 1 selects keys for each query on its own."""
    region_size: int = 32
    """Side r of the square of candidate keys, centred on the group, in pixels."""
    top_k: int = 64
    """Keys K that a query group attends to."""
    predictor_dim: int = 8
    """Channels p of the predictor's projections."""
    predictor_slope: float = 0.1
    """Relevance lost per pixel of distance from the group's centre (m0)."""

    def __post_init__(self) -> None:
        for name in (
            "embed_dim",
            "num_blocks",
            "convs_per_block",
            "num_heads",
            "group_size",
            "top_k",
            "predictor_dim",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"network.{name} is {getattr(self, name)}; use at least 1")
        if self.head_dim is not None and self.head_dim < 1:
            raise ConfigError(f"network.head_dim is {self.head_dim}; use at least 1")
        if self.head_dim is None and self.embed_dim % self.num_heads:
            near = self.num_heads * max(1, round(self.embed_dim / self.num_heads))
            raise ConfigError(
                f"network.embed_dim {self.embed_dim} is not divisible by num_heads {self.num_heads}; "
                f"use e.g. embed_dim {near}"
            )
        if self.region_size < self.group_size or (self.region_size - self.group_size) % 2:
            raise ConfigError(
                f"network.region_size {self.region_size} cannot be centred on a group of {self.group_size} pixels; "
                f"use {self.group_size} plus an even number, e.g. {self.group_size + 24}"
            )
        wrong = [b for b in self.attention_blocks if not 0 <= b < self.num_blocks]
        if wrong:
            raise ConfigError(
                f"network.attention_blocks names block {wrong[0]}, but the blocks are 0 to {self.num_blocks - 1}"
            )
        if len(set(self.attention_blocks)) < len(self.attention_blocks):
            once = list(dict.fromkeys(self.attention_blocks))
            raise ConfigError(
                f"network.attention_blocks {list(self.attention_blocks)} names a block twice; use {once}"
            )


@dataclass(frozen=True, kw_only=True)
class DegradationConfig:
    """How LR patches are spoiled, so that the network learns to enlarge photographs as they really are.

    Each patch is spoiled in its own way; ranges are drawn from uniformly.
    """

    __pydantic_config__ = _STRICT

    clean: float = 0.15
    """Share of patches that stay plain bicubic."""
    remade: float = 0.3
    """Share, of the others, shrunk anew from HR with a random kernel, after blur, noise or JPEG in random order; the
    rest start from the bicubic LR."""
    blur: tuple[float, float] = (0.1, 0.7)
    """Standard deviation of the Gaussian blur of remade patches along each of two turned axes, LR pixels."""
    noise_share: float = 0.25
    """Share of patches that get noise, half of it grey."""
    noise: tuple[float, float] = (1.0, 8.0)
    """Standard deviation of the noise, levels of 255."""
    jpeg_share: float = 0.9
    """Share of patches that end as JPEG."""
    jpeg_quality: tuple[int, int] = (30, 95)
    """Quality of these, as libjpeg counts it."""
    validation_quality: tuple[int, int] = (40, 80)
    """Validation images are shrunk with bicubic, then compressed with a quality of this range that their name fixes."""

    def __post_init__(self) -> None:
        for name in ("clean", "remade", "noise_share", "jpeg_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"data.degradation.{name} is {getattr(self, name)}; use 0 to 1")
        limits = {"blur": 4, "noise": 255, "jpeg_quality": 100, "validation_quality": 100}
        for name, most in limits.items():
            low, high = getattr(self, name)
            least = 1 if most == 100 else 0
            if not least <= low <= high <= most:
                raise ConfigError(
                    f"data.degradation.{name} is [{low}, {high}]; use two values from {least} to {most}, "
                    "the smaller first"
                )


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train and validate on."""

    __pydantic_config__ = _STRICT

    train: tuple[str, ...]
    """Folders of training images; LR files are used where a folder has them, else made by MATLAB bicubic."""
    validation: dict[str, str] = field(default_factory=dict)
    """Name and folder of each validation set; the first decides which checkpoint is best."""
    patch_size: int = 32
    """Side of a training crop in LR pixels; the HR crop is scale times as large."""
    batch_size: int = 16
    """Crops in one step, per device."""
    cache_dir: str = "data/cache"
    """Folder for the packed uint8 copy of the training images."""
    allow_orphans: bool = False
    """Accept HR files without LR file and the reverse, leaving them out."""
    skip_small: bool = False
    """Leave out images smaller than a crop instead of refusing to start."""
    hr_scales: tuple[float, ...] = (1.0,)
    """Sizes at which every training image is used, as factors of its own; those below 1 are shrunk copies, which show
    the network more and sharper content. Copies smaller than a crop are left out."""
    informative: int = 1
    """Places drawn for each patch, of which the one that bicubic restores worst is taken; 1 takes what is drawn."""
    degradation: DegradationConfig | None = None
    """Spoil the LR patches, which trains a model of the kind photo; none for the classical kind."""
    description: str = ""
    """What the training images are, for the checkpoint; empty for the names of the folders."""
    weights_license: str = "unknown"
    """Licence of the trained weights, an SPDX name, for the checkpoint."""

    def __post_init__(self) -> None:
        for name in ("patch_size", "batch_size", "informative"):
            if getattr(self, name) < 1:
                raise ConfigError(f"data.{name} is {getattr(self, name)}; use at least 1")
        factors = self.hr_scales
        if not factors or len(set(factors)) < len(factors) or not all(0 < f <= 1 for f in factors):
            raise ConfigError(
                f"data.hr_scales is {list(factors)}; use different factors above 0 and up to 1, e.g. [1, 0.75, 0.5]"
            )


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Loss, optimiser and the warmup-stable-decay schedule."""

    __pydantic_config__ = _STRICT

    loss: Literal["l1", "mse", "l1+fft"] = "l1+fft"
    """Mean absolute error; mean squared error; or mean absolute error plus 0.05 times that of the spectrum."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the body's weight matrices, AdamW for the two ends, norms and biases. adamw: AdamW for all."""
    learning_rate: float = 2.5e-3
    """Rate of the stable phase (Muon: update of RMS 0.2 * rate; AdamW about 1e-3)."""
    adam_ratio: float = 0.4
    """With muon: rate of the AdamW part as a fraction of learning_rate."""
    betas: tuple[float, float] = (0.9, 0.99)
    """AdamW's averages."""
    momentum: float = 0.95
    """Muon's momentum."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    warmup_steps: int = 100
    """Steps of linear rise from 0 to learning_rate."""
    decay_steps: int = 0
    """Last steps of the run, in which the rate falls linearly to 0."""
    ema_decay: float = 0.999
    """Decay of the exponential moving average of the weights; the average is what is validated and published."""
    gradient_clip: float = 0.0
    """Largest gradient norm; 0 for no clipping."""
    loss_limit: float = 0.0
    """A step with a larger loss ends the run, and its last saved state is kept; 0 for the largest loss that images in
    [0, 1] can have."""

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate < math.inf:
            raise ConfigError(
                f"optim.learning_rate is {self.learning_rate}; it must be above 0, e.g. 1e-3"
            )
        for name in (
            "adam_ratio",
            "weight_decay",
            "warmup_steps",
            "decay_steps",
            "gradient_clip",
            "loss_limit",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"optim.{name} is {getattr(self, name)}; use at least 0")
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise ConfigError(f"optim.betas holds {beta}; use values in [0, 1), e.g. 0.9")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"optim.momentum is {self.momentum}; use [0, 1), e.g. 0.95")
        if not 0 <= self.ema_decay < 1:
            raise ConfigError(
                f"optim.ema_decay is {self.ema_decay}; it must be in [0, 1), e.g. 0.999"
            )


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How long, where, and how often things are written."""

    __pydantic_config__ = _STRICT

    max_steps: int
    """Optimiser steps at which the run is finished, counted over all sittings."""
    val_every_n_steps: int = 500
    """Steps between validations."""
    save_every_n_steps: int = 500
    """Steps between saves of the resumable state (last.ckpt)."""
    log_every_n_steps: int = 50
    """Steps between rows of metrics.csv."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to train."""
    devices: int = 1
    """Devices of this machine, each with a process and a batch of its own; gradients are averaged over all."""
    num_nodes: int = 1
    """Machines."""
    compile: bool = False
    """torch.compile the training step's forward pass."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bfloat16 autocast where the hardware computes it natively, else float32."""
    channels_last: Literal["auto", "on", "off"] = "auto"
    """Memory layout; auto: on together with bfloat16 and Winograd's convolutions, where it is faster, else off."""
    winograd: Literal["auto", "on", "off"] = "auto"
    """3x3 convolutions by Winograd's algorithm, in C that is compiled when the run starts, which makes a step up
    to twice as fast. auto: on a CPU in float32 without torch.compile, where there is a C compiler."""
    seed: int = 0
    """Seed of initialisation, crops and flips."""

    def __post_init__(self) -> None:
        for name in (
            "max_steps",
            "val_every_n_steps",
            "save_every_n_steps",
            "log_every_n_steps",
            "devices",
            "num_nodes",
        ):
            if getattr(self, name) < 1:
                raise ConfigError(f"trainer.{name} is {getattr(self, name)}; use at least 1")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"trainer.seed is {self.seed}; use 0 to 2**63 - 1")


@dataclass(frozen=True, kw_only=True)
class LoggerConfig:
    """Where metrics go besides metrics.csv, which is always written."""

    __pydantic_config__ = _STRICT

    wandb: Literal["off", "offline", "online"] = "off"
    """Weights & Biases."""
    project: str = "srnet"
    """Weights & Biases project."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run."""

    __pydantic_config__ = _STRICT

    name: str
    """Name of the run; its files go to output_dir/name."""
    network: NetworkConfig
    data: DataConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    output_dir: str = "runs"
    """Folder of run folders."""
    init_from: str | None = None
    """Checkpoint (name or file) to start the weights from. Only the upsampler (another scale) and attention layers
    that the checkpoint does not have may start fresh, only attention layers may be left out, and the run says which
    did."""

    def __post_init__(self) -> None:
        if (
            self.name in ("", ".", "..")
            or not self.name.isprintable()
            or set(self.name) & set("/\\")
        ):
            raise ConfigError(
                f"name is {self.name!r}; it names one folder below output_dir, use e.g. small_x4"
            )


def _keys(config: Any, prefix: str = "") -> Iterator[str]:
    """Every setting below a class of settings, as in ``optim.loss``."""
    for name, kind in get_type_hints(config).items():
        yield prefix + name
        for section in (kind, *get_args(kind)):  # a section may be one of several types
            if is_dataclass(section):
                yield from _keys(section, f"{prefix}{name}.")


def _first_problem(error: ValidationError, config: type) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "file"
    cause = first.get("ctx", {}).get("error")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "unexpected_keyword_argument":
        near = get_close_matches(where, _keys(config), 1)
        return f"{where} is no setting{f'; did you mean {near[0]}?' if near else ''}{more}"
    given = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r}"
    return (
        f"{cause}{more}"
        if isinstance(cause, ConfigError)
        else f"{where}: {first['msg']}{given}{more}"
    )


def network_config_from_dict(values: dict[str, Any]) -> NetworkConfig:
    """Checks plain values and makes a NetworkConfig.

    Raises:
        ConfigError: A key is unknown or missing, or a value does not fit.
    """
    try:
        return TypeAdapter(NetworkConfig).validate_python(values)
    except ValidationError as error:
        raise ConfigError(
            f"network configuration: {_first_problem(error, NetworkConfig)}"
        ) from None


def _override(values: dict[str, Any], word: str) -> None:
    """Sets one ``key.path=value`` in nested dictionaries."""
    path, separator, text = word.removeprefix("--").partition("=")
    if not separator or not path:
        raise ConfigError(
            f"'{word}' is not of the form key.path=value, e.g. trainer.max_steps=1000"
        )
    *parents, last = path.split(".")
    node = values
    for key in parents:
        node = node.setdefault(key, {})
        if not isinstance(node, dict):
            raise ConfigError(f"'{word}': {key} holds a value, not a section")
    try:
        node[last] = yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise ConfigError(f"'{word}': the value is not valid YAML") from None


def load_config(path: str | Path, overrides: tuple[str, ...] = ()) -> RunConfig:
    """Reads a run's YAML file and applies overrides.

    Args:
        path: YAML file with every section of RunConfig.
        overrides: Words ``key.path=value``; values are read as YAML. A leading ``--`` is accepted.

    Raises:
        ConfigError: The file is missing or not YAML, a key is unknown or missing, or a value does not fit.
    """
    try:
        values = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; pass a YAML file such as configs/smoke.yaml"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}: not a YAML file: {' '.join(str(error).split())[:120]}"
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: holds {type(values).__name__}, not the sections of a run; see configs/smoke.yaml"
        )
    for word in overrides:
        _override(values, word)
    try:
        return TypeAdapter(RunConfig).validate_python(values)
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first_problem(error, RunConfig)}") from None
