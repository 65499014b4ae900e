"""Holds the layer table of CONTRIBUTING.md: who may import whom, and which packages where."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "srnet"

# Layer of each module, lowest first. A module imports from lower layers, and sideways only as listed below.
LAYERS = [
    {"errors", "config", "atomic"},
    {"color", "resize", "tiling", "attention", "device", "download", "report_file"},
    {"metrics", "network", "degradation", "graphics"},
    {
        "images",
        "checkpoint",
        "foreign",
        "pairs",
        "datasets",
        "diagnostics",
        "attribution",
        "verdicts",
    },
    {
        "inference",
        "compare",
        "evaluation",
        "training",
        "bench",
        "choice",
        "diagnose_page",
        "div2k",
    },
    {"files"},
    {"commands"},
    {"cli", "__main__", "__init__"},
]
SIDEWAYS = {
    ("config", "errors"),
    ("datasets", "images"),
    ("datasets", "pairs"),
    ("pairs", "images"),
    ("verdicts", "diagnostics"),
    ("evaluation", "inference"),
    ("bench", "inference"),
    ("foreign", "checkpoint"),
    ("__main__", "cli"),
}

# Packages besides the standard library that a module may import at its top, and inside functions.
TOP = {
    "errors": set(),
    "atomic": set(),
    "config": {"yaml", "pydantic"},
    "metrics": {"torch"},
    "network": {"torch"},
    "degradation": {"torch"},
    "graphics": {"torch"},
    "images": {"numpy", "pyvips"},
    "checkpoint": set(),
    "foreign": {"torch"},
    "pairs": set(),
    "datasets": {"torch", "numpy"},
    "diagnostics": {"torch"},
    "verdicts": set(),
    "attribution": {"torch"},
    "diagnose_page": {"torch", "numpy"},
    "inference": {"torch", "numpy"},
    "compare": {"torch", "numpy", "PIL"},
    "evaluation": {"torch", "numpy"},
    "bench": {"torch"},
    "files": {"numpy", "torch"},
    "div2k": set(),
    "training": {"torch", "numpy", "yaml", "pydantic", "lightning", "timm", "wandb", "safetensors"},
    "commands": set(),
    "choice": set(),
    "cli": set(),
    "__main__": set(),
    "__init__": set(),
    "download": set(),
    "report_file": set(),
} | {name: {"torch"} for name in LAYERS[1] - {"download", "report_file"}}
INSIDE = {
    "network": {"kornia", "timm"},
    "degradation": {"kornia", "PIL", "numpy"},
    "graphics": {"PIL", "numpy"},
    "images": {"PIL"},
    "checkpoint": {"torch", "safetensors", "platformdirs"},
    "foreign": {"safetensors", "spandrel"},
    "inference": {"PIL"},
    "choice": {"PIL"},
    "training": {"kornia", "torchvision"},
    "bench": {"spandrel"},
    "commands": {"torch", "numpy", "matplotlib"},
}

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def module_files():
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in PACKAGE.rglob("*.py")
        if "_checkpoints" not in path.parts
    }


def unit(module):
    """The name in the table: srnet.training.run -> training, srnet.color -> color."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(source, module, package=False):
    """Yields (imported module, inside a function, only for type checkers) for each import statement."""

    def walk(node, inside, typing_only):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, inside, typing_only
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parent = parts[: len(parts) - node.level + (1 if package else 0)]
                base = ".".join(parent + ([node.module] if node.module else []))
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield (
                    (full if full in module_files() or base == "srnet" else base),
                    inside,
                    typing_only,
                )
        for child in ast.iter_child_nodes(node):
            function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from walk(
                child, inside or function, typing_only or (guarded and child in node.body)
            )

    yield from walk(ast.parse(source), False, False)


def violations(source, module, package=False):
    """Returns what a module's imports break, one sentence each."""
    own = unit(module)
    found = []
    for target, inside, typing_only in imports(source, module, package):
        top = target.split(".")[0]
        if target == "srnet.__version__" or target == "__future__":
            continue
        if top == "srnet":
            other = unit(target)
            if other not in LEVEL:
                found.append(f"{module} imports {target}, which is not in the table")
            elif other == own:
                continue
            elif LEVEL[other] >= LEVEL[own] and (own, other) not in SIDEWAYS:
                found.append(f"{module} imports {target}, which is not below it")
        elif top not in sys.stdlib_module_names:
            allowed = TOP[own] | (INSIDE.get(own, set()) if inside or typing_only else set())
            if top not in allowed:
                found.append(
                    f"{module} imports {target} {'inside a function' if inside else 'at its top'}"
                )
    return found


def cycle(graph):
    """Returns one cycle of a graph {node: set of nodes} as a list, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        path.append(node)
        for target in sorted(graph.get(node, ())):
            found = visit(target)
            if found:
                return found
        done.add(path.pop())
        return None

    return next(filter(None, map(visit, sorted(graph))), None)


def test_every_module_is_in_the_table():
    assert {unit(module) for module in module_files()} - set(LEVEL) == set()


@pytest.mark.parametrize("module", sorted(module_files()))
def test_imports_keep_the_layers(module):
    path = module_files()[module]
    assert violations(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


def test_commands_import_only_errors_at_their_top():
    for module, path in module_files().items():
        if unit(module) == "commands":
            for target, inside, typing_only in imports(path.read_text(encoding="utf-8"), module):
                if target.startswith("srnet.") and not inside and not typing_only:
                    assert target == "srnet.errors", module


def test_there_are_no_cycles():
    files = module_files()
    graph = {
        module: {
            target
            for target, _, typing_only in imports(path.read_text(encoding="utf-8"), module)
            if target in files and target != module and not typing_only
        }
        for module, path in files.items()
    }
    assert cycle(graph) is None


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("srnet.color", "import numpy"),
        ("srnet.images.decode", "import PIL.Image"),
        ("srnet.color", "from srnet.network import SRNet"),
        ("srnet.color", "from srnet import network"),
        ("srnet.color", "from . import network"),
        ("srnet.color", "from .network import SRNet"),
        ("srnet.color", "def f():\n    import srnet.network"),
        ("srnet.color", "from srnet.resize import imresize"),
        ("srnet.network", "from srnet.checkpoint import load_checkpoint"),
        ("srnet.network", "import timm"),
        ("srnet.checkpoint", "import torch"),
        ("srnet.inference", "import lightning"),
        ("srnet.errors", "import srnet.unheard_of"),
        ("srnet.training.run", "from srnet.commands import train"),
    ],
)
def test_the_check_refuses(module, source):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("srnet.network", "def f():\n    from timm.layers import DropPath"),
        (
            "srnet.checkpoint",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torch import Tensor",
        ),
        ("srnet.training.run", "from srnet.training.module import SRModule"),
        ("srnet.evaluation", "from srnet import __version__"),
    ],
)
def test_the_check_allows(module, source):
    assert violations(source, module) == []


def test_cycles_are_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": set()}) is None
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
