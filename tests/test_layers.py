"""Tests of the imports: which room may import which, and which files must be pure. They read the
source, so they need not import it.

A room is a folder. `python tests/test_layers.py` writes the tables of rooms to the end of
`HACKING.md`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
LAYERS: Final = ("actors", "apps", "storage", "transport")

# The other layers that a layer may import. An entry that names a file allows only that file.
MAY_IMPORT: Final = {
    "transport": (),
    "storage": (
        "transport.block",
        "transport.checksum",
        "transport.errors",
        "transport.names",
        "transport.settings",
        "transport.memory",
        "transport.units",
        "transport.wire.codec",
        "transport.wire.dedupe",
        "transport.wire.unique",
    ),
    "actors": ("transport", "storage"),
    "apps": ("transport", "storage", "actors"),
}
# For each room, the other rooms of its layer that it may import. Imports for type annotations count
# too. A room comes after the rooms that it may import. A room that must call a higher room declares
# a small Protocol, or takes a callback, and is given an implementation.
ROOMS_MAY_IMPORT: Final[dict[str, tuple[str, ...]]] = {
    "transport": (),
    "transport.block": ("transport",),
    "transport.wire": ("transport", "transport.block"),
    "transport.arrow": ("transport", "transport.block", "transport.wire"),
    "transport.nsq": ("transport", "transport.wire"),
    "transport.client": (),
    "transport.client.link": ("transport", "transport.block", "transport.wire"),
    "transport.client.core": ("transport", "transport.block", "transport.client.link", "transport.wire"),
    "transport.client.blocking": (
        "transport", "transport.arrow", "transport.block", "transport.client.core", "transport.client.link", "transport.wire",
    ),
    "transport.client.asyncio": (
        "transport", "transport.block", "transport.client.blocking", "transport.client.core", "transport.client.link", "transport.wire",
    ),
    "storage": (),
    "storage.log": ("storage",),
    "storage.bucket": ("storage",),
    "storage.bucket.archive": ("storage", "storage.bucket", "storage.log"),
    "storage.cluster": ("storage", "storage.bucket"),
    "storage.dedupe": ("storage",),
    "storage.state": ("storage", "storage.log"),
    "storage.delayed": ("storage", "storage.log", "storage.state"),
    "storage.staging": ("storage", "storage.log", "storage.state"),
    "storage.directory": ("storage", "storage.dedupe", "storage.delayed", "storage.log", "storage.staging", "storage.state"),
    "storage.bucket.shipping": (
        "storage", "storage.bucket", "storage.bucket.archive", "storage.delayed", "storage.directory", "storage.log", "storage.state",
    ),
    "storage.checks": ("storage", "storage.dedupe", "storage.delayed", "storage.directory", "storage.log", "storage.state"),
    "storage.nsq": ("storage", "storage.log"),
    "actors": (),
    "actors.settings": (),
    "actors.primitives": (),
    "actors.runtime": ("actors.settings",),
    "actors.security": ("actors.runtime", "actors.settings"),
    "actors.topic": ("actors.primitives", "actors.runtime", "actors.settings", "actors.storage"),
    "actors.channel": ("actors.primitives", "actors.runtime", "actors.settings", "actors.statistics"),
    "actors.storage": ("actors.primitives", "actors.runtime", "actors.settings"),
    "actors.scan": ("actors.primitives", "actors.runtime", "actors.settings"),
    "actors.statistics": ("actors.primitives", "actors.runtime", "actors.settings"),
    "actors.gateways": ("actors.runtime", "actors.security", "actors.settings", "actors.statistics"),
    "actors.gateways.shared": ("actors.gateways", "actors.runtime", "actors.security", "actors.settings"),
    "actors.gateways.nsq": (
        "actors.gateways", "actors.gateways.shared", "actors.runtime", "actors.security", "actors.settings", "actors.statistics",
    ),
    "actors.gateways.http.web": ("actors.gateways", "actors.gateways.shared", "actors.security"),
    "actors.gateways.http.api": (
        "actors.gateways.http.web", "actors.gateways.shared", "actors.runtime", "actors.security", "actors.settings", "actors.statistics",
    ),
    "actors.gateways.http.console": (
        "actors.gateways", "actors.gateways.http.api", "actors.gateways.http.web", "actors.runtime", "actors.security", "actors.statistics",
    ),
    "actors.gateways.http.consume": (
        "actors.gateways", "actors.gateways.http.console", "actors.gateways.http.web", "actors.gateways.shared", "actors.settings",
    ),
    "actors.gateways.http.messages": ("actors.gateways.http.console", "actors.gateways.http.web"),
    "actors.gateways.http": (
        "actors.gateways", "actors.gateways.http.api", "actors.gateways.http.console", "actors.gateways.http.consume",
        "actors.gateways.http.messages", "actors.gateways.http.web", "actors.gateways.shared", "actors.runtime", "actors.security",
        "actors.settings",
    ),
    "actors.supervisor.topics": ("actors.runtime", "actors.settings", "actors.statistics"),
    "actors.supervisor.cluster": ("actors.settings", "actors.supervisor.topics"),
    "actors.supervisor.commands": (
        "actors.runtime", "actors.security", "actors.settings", "actors.statistics", "actors.supervisor.cluster",
        "actors.supervisor.topics",
    ),
    "actors.supervisor": (
        "actors.channel", "actors.runtime", "actors.security", "actors.settings", "actors.statistics", "actors.storage",
        "actors.supervisor.commands",
        "actors.supervisor.topics",
    ),
    "actors.alarms": (
        "actors.runtime", "actors.settings", "actors.statistics", "actors.supervisor", "actors.supervisor.commands",
        "actors.supervisor.topics",
    ),
    "actors.schedules": (
        "actors.runtime", "actors.settings", "actors.statistics", "actors.supervisor", "actors.supervisor.commands",
        "actors.supervisor.topics",
    ),
    "actors.bucket": (
        "actors.channel", "actors.primitives", "actors.runtime", "actors.settings", "actors.statistics", "actors.supervisor",
    ),
    "actors.bucket.topic": ("actors.bucket", "actors.primitives", "actors.runtime", "actors.settings", "actors.storage"),
    "actors.bucket.archive": ("actors.bucket", "actors.primitives", "actors.runtime", "actors.settings"),
    "actors.bucket.standby": ("actors.runtime", "actors.security", "actors.settings", "actors.supervisor", "actors.supervisor.topics"),
    "apps.spark": (),
    "apps": ("apps.spark",),
    "apps.integrations": (),
    "apps.integrations.database": (),
    "apps.integrations.kombu": ("apps.integrations",),
    "apps.cli": (),
    "apps.nsqd": (),
    "apps.dump": ("apps.nsqd",),
    "apps.forward": ("apps",),
    "apps.doctor": (),
    "apps.cli.manage": ("apps.cli",),
    "apps.cli.inspect": ("apps", "apps.cli", "apps.cli.manage"),
    "apps.cli.messages": ("apps.cli", "apps.cli.inspect", "apps.cli.manage", "apps.forward"),
    "apps.cli.files": ("apps", "apps.cli", "apps.cli.manage", "apps.dump", "apps.nsqd"),
    "apps.cli.run": ("apps.cli", "apps.cli.manage", "apps.doctor"),
    "apps.testing": ("apps.cli",),
}  # fmt: skip
# Modules that a layer must not import, because it must not access files, sockets or processes in
# this way.
NOT_IN: Final = {
    "transport": frozenset({"lmdb", "fcntl", "shutil", "tempfile"}),  # this layer accesses no files
    # This layer uses no sockets and no actors.
    "storage": frozenset({"zmq", "socket", "asyncio", "multiprocessing", "uvloop"}),
}
IMPURE: Final = frozenset(
    {
        "zmq",
        "os",
        "time",
        "random",
        "socket",
        "threading",
        "multiprocessing",
        "asyncio",
        "select",
        "signal",
        "subprocess",
    }
)
PURE_BY_NAME: Final = (
    "transport/block/block.py",
    "transport/names.py",
    "transport/errors.py",
    "transport/wire/protocol.py",
    "transport/wire/codec.py",
    "transport/client/core/producer_session.py",
    "transport/client/core/stage_session.py",
    "transport/nsq/session.py",
    "storage/cluster/directory.py",
    "actors/primitives/deadlines.py",
    "actors/channel/core.py",
    "actors/topic/ordering.py",
    "actors/scan/scan_plan.py",
    "actors/scan/scan_rounds.py",
    "actors/runtime/child.py",
)


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_of(name: str) -> str:
    """Return the dotted name of a module: transport/block/block.py -> transport.block;
    transport/__init__.py -> transport.
    """
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@cache
def imported(name: str, source: str, *, types_too: bool = True) -> frozenset[str]:
    """Return what a file imports: modules of this package by their dotted name within it, other
    modules by their top-level name.
    """
    package = (
        module_of(name).split(".")
        if name.endswith("__init__.py")
        else module_of(name).split(".")[:-1]
    )
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
                base = ".".join(
                    [
                        *package[: len(package) - node.level + 1],
                        *([node.module] if node.module else []),
                    ]
                )
            else:
                base = node.module or ""
                if base.split(".")[0] != "zsq":
                    found.add(base.split(".")[0])
                    continue
                base = base.removeprefix("zsq").removeprefix(".")
            candidates = [f"{base}.{alias.name}".strip(".") for alias in node.names]
            found.update(one if _is_module(one) else base for one in candidates)
    return frozenset(found - {""})


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
    return {
        named(path): path.read_text()
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


def room_of(name: str) -> str:
    return module_of(name) if name.endswith("__init__.py") else module_of(name).rpartition(".")[0]


@cache
def modules() -> dict[str, tuple[str, frozenset[str]]]:
    """Return for each module of the layers, by its dotted name, its file and the other modules of
    the layers that it imports.
    """
    every = {module_of(name): (name, source) for name, source in sources(*LAYERS).items()}
    return {
        module: (name, (imported(name, source) & every.keys()) - {module})
        for module, (name, source) in every.items()
    }


def wrong_arrows(room: str, others: set[str]) -> list[str]:
    """Return the imports that are not allowed. `others`: the rooms that the room imports. Imports
    between layers have separate rules (`MAY_IMPORT`).
    """
    own = {other for other in others - {room} if other.split(".")[0] == room.split(".")[0]}
    may = ROOMS_MAY_IMPORT.get(room, ())
    return [
        f"{room} imports {other}: it may import only {', '.join(may) or 'nothing'}"
        for other in sorted(own - set(may))
    ]


def circle_of(arrows: Mapping[str, AbstractSet[str]]) -> list[str]:
    """Return one circle of imports, or [] if there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


HACKING_MARK: Final = (
    "`python tests/test_layers.py` writes the tables from here on. "
    "Which rooms a room may import is in\nthe table `ROOMS_MAY_IMPORT` of that file."
)


def hacking() -> str:
    """Return `HACKING.md` as it should be: the text that people wrote up to `HACKING_MARK`, and the
    tables of rooms after it.
    """
    head, mark, _ = (ROOT / "HACKING.md").read_text().partition(HACKING_MARK)
    assert mark, f"HACKING.md has lost its line {HACKING_MARK!r}"
    lines = [head + mark]
    for layer in LAYERS:
        lines += [
            "",
            f"### {layer}/",
            "",
            "| room | purpose |",
            "|---|---|",
        ]
        for room in ROOMS_MAY_IMPORT:
            if room.split(".")[0] == layer:
                caption = (ROOT / room.replace(".", "/") / "__init__.py").read_text()
                paragraphs = (ast.get_docstring(ast.parse(caption)) or "").split("\n\n")
                purpose = paragraphs[0].replace("\n", " ")
                lines.append(f"| `{room.replace('.', '/')}` | {purpose} |")
    return "\n".join([*lines, ""])


def pure_files() -> list[str]:
    """Return the files listed above, and all files whose caption ends with "Pure."."""
    every = sources("actors", "storage", "transport")
    says = [
        name
        for name, source in every.items()
        if "Pure." in source  # saves the time for parsing all others
        and (ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].endswith("Pure.")
    ]
    return sorted({*says, *PURE_BY_NAME})


def impurities(name: str) -> list[str]:
    """Return each impure module that a file imports, directly or through other files of this
    package.
    """
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
                if (
                    module.split(".")[0] in LAYERS
                    and candidate not in seen
                    and (ROOT / candidate).is_file()
                ):
                    seen.add(candidate)
                    ways.append((*way, candidate))
    return found


def test_layers_import_only_what_they_may() -> None:
    assert not [
        line for name, source in sources(*LAYERS).items() for line in wrong_imports(name, source)
    ]


def test_layers_import_each_other_relatively() -> None:
    absolute = []
    for name, source in sources(*LAYERS).items():
        for node in ast.walk(ast.parse(source)) if "from zsq" in source else ():
            if (
                isinstance(node, ast.ImportFrom)
                and not node.level
                and (node.module or "").split(".")[0] == "zsq"
            ):
                absolute.append(f"{name}:{node.lineno}")
    assert not absolute, "inside the package imports are relative"


def test_rooms_import_only_what_the_table_allows() -> None:
    arrows: dict[str, set[str]] = {}
    every = modules()
    for name, others in every.values():
        arrows.setdefault(room_of(name), set()).update(room_of(every[other][0]) for other in others)
    assert not [line for room, others in arrows.items() for line in wrong_arrows(room, others)]


def test_the_table_of_rooms_is_the_folders_and_has_no_circle() -> None:
    folders = {room_of(name) for name, _ in modules().values()}
    assert folders == ROOMS_MAY_IMPORT.keys()
    assert not circle_of({room: set(others) for room, others in ROOMS_MAY_IMPORT.items()})


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports that are needed only for type annotations count too."""
    assert not circle_of({module: others for module, (_, others) in modules().items()})


def test_hacking_prints_the_table_as_it_is() -> None:
    assert (ROOT / "HACKING.md").read_text() == hacking(), "run: python tests/test_layers.py"


def test_the_rules_of_rooms_can_fail() -> None:
    assert wrong_arrows("actors.statistics", {"actors.supervisor"})
    assert wrong_arrows(
        "actors.runtime", {"actors.supervisor.topics", "actors.channel", "actors.settings"}
    )[1:]
    assert wrong_arrows("storage.log", {"storage.a_new_room"})
    assert not wrong_arrows(
        "actors.statistics", {"actors.statistics", "actors.primitives", "transport.wire", "storage"}
    )
    assert set(circle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}})) == {"b", "c"}
    assert not circle_of({"a": {"b", "c"}, "b": {"c"}})


def test_no_other_layer_imports_apps() -> None:
    others = sources("actors", "storage", "transport") | {
        "__init__.py": (ROOT / "__init__.py").read_text()
    }
    assert not [
        name
        for name, source in others.items()
        if any(module.split(".")[0] == "apps" for module in imported(name, source))
    ]


@pytest.mark.parametrize("name", pure_files())
def test_pure_files_are_pure(name: str) -> None:
    assert not impurities(name), "a pure file takes time, randomness and bytes as arguments"


def names_of_files(text: str) -> set[str]:
    """Return the file names in backquotes, such as `block.py` and `storage/FORMAT.md`. Patterns
    such as `session*.py` do not count, and names of users' files do not count either.
    """
    return set(re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md))`", text))


def test_every_file_that_the_source_or_a_document_names_exists() -> None:
    documents = {
        named(path): path.read_text()
        for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    }
    every = sources(*LAYERS) | sources("tests") | documents
    there = {
        named(path)
        for folder in (*LAYERS, "tests", "scripts", "docs", "pyspark_zsq")
        for path in (ROOT / folder).rglob("*.*")
    }
    ends = {
        "/".join(name.split("/")[at:]) for name in there for at in range(name.count("/") + 1)
    } | {
        "README.md",
        "CHANGELOG.md",
        "HACKING.md",
    }
    said = {
        name: text if name.endswith(".md") else docstrings(text)
        for name, text in every.items()
        if names_of_files(text) - ends  # saves the time for parsing all others
    }
    assert not {
        f"{name} names {file}"
        for name, text in said.items()
        for file in names_of_files(text) - ends
    }
    assert names_of_files("see `actors/restart.py`, `a*.py` and `b.py`") == {
        "actors/restart.py",
        "b.py",
    }


def docstrings(source: str) -> str:
    nodes = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def test_msgpack_is_known_in_one_place() -> None:
    knowing = [
        name for name, source in sources(*LAYERS).items() if "msgpack" in imported(name, source)
    ]
    assert knowing == ["transport/wire/codec.py"]


def test_the_package_crc32c_is_loaded_in_one_place() -> None:
    """Its import takes long; `transport/checksum.py` loads only what is needed of it."""
    loading = [
        name
        for name, source in sources(*LAYERS).items()
        if "crc32c" in imported(name, source, types_too=False)
    ]
    assert loading == ["transport/checksum.py"]


def test_no_zeromq_at_import_of_the_package() -> None:
    assert imported("__init__.py", (ROOT / "__init__.py").read_text(), types_too=False).isdisjoint(
        {"zmq", "transport.client.blocking.client"}
    )


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
        (
            "actors/a.py",
            "from ..transport.client import Producer\nfrom ..storage import log\nimport zmq\n",
        ),
        ("apps/nsqd/a.py", "from ...transport.block import pack\nfrom . import b\n"),
    ],
)
def test_the_layer_rules_allow_what_is_right(name: str, source: str) -> None:
    assert not wrong_imports(name, source)


if __name__ == "__main__":
    (ROOT / "HACKING.md").write_text(hacking())
