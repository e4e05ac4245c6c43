"""Tests of the imports in `scripts/`: a package imports only the packages before it in the list.
The same holds for the rooms (subfolders) of the benchmarks.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

SCRIPTS: Final = Path(__file__).resolve().parents[2] / "scripts"
ROOMS: Final = ("harness", "peers", "measures", "budget", "cost", "main", "__main__")
PACKAGES: Final = {
    "docs_site": set(),
    "local_setup": set(),
    "benchmarks": {"local_setup"},
    "pipeline_demo": {"local_setup"},
    "releasing": set(),
}


def imports(path: Path) -> set[tuple[str, ...]]:
    """Return each module that a file imports, as the parts of its dotted name. Relative imports
    count from `scripts/`.
    """
    package = path.relative_to(SCRIPTS).parts[:-1]
    found: set[tuple[str, ...]] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (*package[: len(package) - node.level + 1],) if node.level else ()
            base += tuple((node.module or "").split(".")) if node.module else ()
            found.update((*base, alias.name) for alias in node.names)
    return found


def test_a_package_imports_only_what_it_may() -> None:
    assert {path.name for path in SCRIPTS.iterdir() if (path / "__init__.py").is_file()} == set(
        PACKAGES
    )
    wrong = [
        f"{path.relative_to(SCRIPTS)} imports {'.'.join(module)}"
        for package, allowed in PACKAGES.items()
        for path in (SCRIPTS / package).rglob("*.py")
        for module in imports(path)
        if module[0] in PACKAGES.keys() - allowed - {package}
    ]
    assert not wrong


def test_a_room_of_the_benchmarks_imports_only_those_before_it() -> None:
    wrong = []
    for path in (SCRIPTS / "benchmarks").rglob("*.py"):
        room = path.relative_to(SCRIPTS / "benchmarks").parts[0].removesuffix(".py")
        later = ROOMS[ROOMS.index(room) + 1 :] if room in ROOMS else ROOMS
        wrong += [
            f"{room}: {path.name} imports {'.'.join(module)}"
            for module in imports(path)
            if module[:1] == ("benchmarks",) and module[1] in later
        ]
    assert not wrong
