"""srnet: image super-resolution with predicted top-k sparse self-attention.

The public names are loaded on first use, so that ``import srnet`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from srnet.checkpoint import load_checkpoint
    from srnet.inference import Upscaler
    from srnet.network import SRNet

__version__ = "0.1.0"
__all__ = ["SRNet", "Upscaler", "__version__", "load_checkpoint"]

_HOME = {
    "SRNet": "srnet.network",
    "Upscaler": "srnet.inference",
    "load_checkpoint": "srnet.checkpoint",
}


def __getattr__(name: str) -> object:
    """Imports a public name from its module when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'srnet' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
