"""Who may import whom, and that pure files are pure: read from the source, so no import has to run."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LAYERS: Final = ("actors", "apps", "storage", "transport")

# What a layer may import of the others; a file name without its folder means: only that file.
MAY_IMPORT: Final = {
    "transport": (),
    "storage": ("transport.block", "transport.errors", "transport.codec"),
    "actors": ("transport", "storage"),
    "apps": ("transport", "storage", "actors"),
}
# Layers that must not touch the world at all, or only in some way.
NOT_IN: Final = {
    "transport": frozenset({"lmdb", "fcntl", "shutil", "tempfile"}),  # knows no file
    "storage": frozenset({"zmq", "socket", "asyncio", "multiprocessing", "uvloop"}),  # knows no socket, no actor
}
IMPURE: Final = frozenset(
    {"zmq", "os", "time", "random", "socket", "threading", "multiprocessing", "asyncio", "select", "signal", "subprocess"}
)
PURE_BY_NAME: Final = (
    "transport/block.py",
    "transport/names.py",
    "transport/errors.py",
    "transport/protocol.py",
    "transport/codec.py",
    "actors/in_flight.py",
    "actors/delivery.py",
    "actors/ordering.py",
    "actors/scan_orders.py",
    "actors/scan_plan.py",
    "actors/scan_rounds.py",
    "actors/child.py",
    "actors/restart.py",
)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(name: str) -> str:
    """transport/block.py -> transport.block; transport/__init__.py -> transport."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def imported(name: str, source: str, *, types_too: bool = True) -> set[str]:
    """What a file imports: modules of this package by their dotted name within it, others by their top name."""
    package = module_of(name).split(".") if name.endswith("__init__.py") else module_of(name).split(".")[:-1]
    found: set[str] = set()
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not types_too:
            skipped.update(inner for statement in node.body for inner in ast.walk(statement))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(_own(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ".".join([*package[: len(package) - node.level + 1], *([node.module] if node.module else [])])
            else:
                base = node.module or ""
                if base.split(".")[0] != "zsq":
                    found.add(base.split(".")[0])
                    continue
                base = base.removeprefix("zsq").removeprefix(".")
            candidates = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            found.update(one if _is_module(one) else base for one in candidates)
    return found - {""}


def _own(name: str) -> str:
    top, _, rest = name.partition(".")
    return (rest or "") if top == "zsq" else top


@cache
def _is_module(dotted: str) -> bool:
    path = ROOT / dotted.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def wrong_imports(name: str, source: str) -> list[str]:
    layer = name.split("/")[0]
    wrong = []
    for module in sorted(imported(name, source)):
        other = module.split(".")[0]
        if other in LAYERS and other != layer and not module.startswith(tuple(MAY_IMPORT[layer])):
            wrong.append(f"{name} imports {module}: {layer} may import only {MAY_IMPORT[layer]}")
        if module in NOT_IN.get(layer, ()):
            wrong.append(f"{name} imports {module}, which {layer} must not know")
    return wrong


def sources(*folders: str) -> dict[str, str]:
    return {named(path): path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))}


def pure_files() -> list[str]:
    """Those listed above that exist, every session*.py, and all whose caption ends with "Pure."."""
    every = sources("actors", "storage", "transport")
    says = [name for name, source in every.items() if (ast.get_docstring(ast.parse(source)) or "").split("\n")[0].endswith("Pure.")]
    sessions = [name for name in every if name.startswith("transport/session")]
    return sorted({*says, *sessions, *(name for name in PURE_BY_NAME if name in every)})


def impurities(name: str) -> list[str]:
    """Each impure module that a file imports, itself or through other files of this package."""
    found: list[str] = []
    seen: set[str] = set()
    ways: list[tuple[str, ...]] = [(name,)]
    while ways:
        way = ways.pop()
        for module in imported(way[-1], (ROOT / way[-1]).read_text(), types_too=False):
            if module in IMPURE:
                found.append(f"{' -> '.join(way)} imports {module}")
            path = module.replace(".", "/")
            for candidate in (f"{path}.py", f"{path}/__init__.py"):
                if module.split(".")[0] in LAYERS and candidate not in seen and (ROOT / candidate).is_file():
                    seen.add(candidate)
                    ways.append((*way, candidate))
    return found


def test_layers_import_only_what_they_may() -> None:
    assert not [line for name, source in sources(*LAYERS).items() for line in wrong_imports(name, source)]


def test_layers_import_each_other_relatively() -> None:
    absolute = []
    for name, source in sources(*LAYERS).items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "zsq":
                absolute.append(f"{name}:{node.lineno}")
    assert not absolute, "inside the package imports are relative"


def test_nobody_imports_apps() -> None:
    others = sources("actors", "storage", "transport") | {"__init__.py": (ROOT / "__init__.py").read_text()}
    assert not [name for name, source in others.items() if any(module.split(".")[0] == "apps" for module in imported(name, source))]


@pytest.mark.parametrize("name", pure_files())
def test_pure_files_are_pure(name: str) -> None:
    assert not impurities(name), "a pure file takes time, randomness and bytes as arguments"


def test_msgpack_is_known_in_one_place() -> None:
    knowing = [name for name, source in sources(*LAYERS).items() if "msgpack" in imported(name, source)]
    assert knowing == ["transport/codec.py"]


def test_no_zeromq_at_import_of_the_package() -> None:
    assert imported("__init__.py", (ROOT / "__init__.py").read_text(), types_too=False).isdisjoint({"zmq", "transport.client"})


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("transport/a.py", "from ..storage.log import Log\n"),
        ("transport/a.py", "from .. import actors\n"),
        ("transport/a.py", "import lmdb\n"),
        ("storage/a.py", "from ..transport.client import Producer\n"),
        ("storage/a.py", "import zmq\n"),
        ("actors/a.py", "from ..apps.cli import main\n"),
        ("actors/a.py", "import zsq.apps.cli\n"),
        ("actors/a.py", "def f():\n    from zsq.apps import cli\n"),
    ],
)
def test_the_layer_rules_can_fail(name: str, source: str) -> None:
    assert len(wrong_imports(name, source)) == 1


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("storage/a.py", "from ..transport.block import Block\nfrom .files import Files\n"),
        ("actors/a.py", "from ..transport.client import Producer\nfrom ..storage import log\nimport zmq\n"),
        ("apps/bench/a.py", "from ...transport.block import pack\nfrom . import b\n"),
    ],
)
def test_the_layer_rules_allow_what_is_right(name: str, source: str) -> None:
    assert not wrong_imports(name, source)
