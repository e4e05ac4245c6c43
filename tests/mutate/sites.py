"""The sites of a source: what the detectors find in it, and the source again with a switch at each
of them.

All removals go into one tree: a removed call is `(None if switch.off(17) else CALL)`, a silenced
comparison `switch.false(17, COMPARISON)`. Which one is off is told by a variable of the
environment, so that every process of a broker under test knows it; and the same switches tell which
test runs over which site, without a tracer. So a removal costs no copy and no new import, only a
fork of a process that has collected the tests.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mutate.detectors import DETECTORS, Parents, limit_of

LAYERS: Final = ("storage", "actors", "transport", "apps")
# What measures and advises promises nothing that could be lost.
SPARED: Final = ("apps/doctor",)


class Site(NamedTuple):
    """`key` names it in any version of the source: file, function, class, code, and which of
    several alike.
    """

    key: str
    path: str
    line: int
    function: str
    kind: str
    how: str
    code: str


@dataclass(frozen=True, slots=True)
class _Found:
    node: ast.expr
    kind: str
    how: str
    function: str


def sources(root: Path) -> list[Path]:
    found = [
        path
        for layer in LAYERS
        for path in sorted((root / layer).rglob("*.py"))
        if "__pycache__" not in path.parts
    ]
    return [path for path in found if not path.relative_to(root).as_posix().startswith(SPARED)]


OTHER: Final = {"true": "false", "false": "true"}


def find(source: str, *, other: bool = False) -> list[_Found]:
    """In the order of the text. Where detectors agree on a node, the first one in their table has
    it.

    `other`: only the comparisons, each with the answer on whose side it always fires. A detector
    may be wrong about which side that is.
    """
    tree = ast.parse(source)
    parents: Parents = {}
    names: dict[ast.AST, str] = {tree: ""}
    found = []
    waiting: list[ast.AST] = [tree]
    while waiting:  # parents before children
        node = waiting.pop()
        # Positions in f-strings are known from 3.12 on; asserts are for our own mistakes.
        if isinstance(node, ast.JoinedStr | ast.Assert):
            continue
        name = names[node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}".lstrip(".")
        for child in ast.iter_child_nodes(node):
            parents[child] = node
            names[child] = name
            waiting.append(child)
        if isinstance(node, ast.Call | ast.Compare):
            hit = next(
                (
                    (kind, how)
                    for kind, detect in DETECTORS.items()
                    if (how := detect(node, parents)) is not None
                ),
                None,
            )
            if hit is not None and other:
                hit = (f"{hit[0]} (other)", OTHER[hit[1]]) if hit[1] in OTHER else None
            if hit is not None:
                found.append(_Found(node, *hit, name))
    return sorted(
        found,
        key=lambda one: (
            one.node.lineno,
            one.node.col_offset,
            -_end(one.node)[0],
            -_end(one.node)[1],
        ),
    )


def _end(node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset


def _span(node: ast.expr, starts: list[int]) -> tuple[int, int]:
    """Where it begins and ends, in bytes of the source."""
    line, column = _end(node)
    return starts[node.lineno - 1] + node.col_offset, starts[line - 1] + column


def switched(
    source: str, path: str, first: int, head: str, *, other: bool = False
) -> tuple[str, list[Site]]:
    """(the source with switches numbered from `first` on, its sites). `head` makes the name
    `_switch`; it goes to the imports.
    """
    data = source.encode()
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    # Position; closing before opening; inner before outer, or outer before inner; text.
    edits: list[tuple[int, int, int, str]] = []
    sites: list[Site] = []
    seen = Counter[str]()
    for one in find(source, other=other):
        begin, end = _span(one.node, starts)
        code = " ".join(data[begin:end].decode().split())
        before, after = _around(one, data, starts, first + len(sites))
        if one.how == "elsewhere":
            assert isinstance(one.node, ast.Call)
            begin, end = _span(one.node.args[0], starts)
        elif one.how == "unsynced":
            assert isinstance(one.node, ast.Call)
            last = [*one.node.args, *(keyword.value for keyword in one.node.keywords)]
            begin = end = max(_span(argument, starts)[1] for argument in last)
        edits += [(begin, 1, begin - end, before), (end, 0, end - begin, after)]
        key = f"{path}:{one.function}:{one.kind}:{code}"
        seen[key] += 1
        sites.append(
            Site(f"{key}:{seen[key]}", path, one.node.lineno, one.function, one.kind, one.how, code)
        )
    for position, _, _, text in sorted(edits, reverse=True):
        data = data[:position] + text.encode() + data[position:]
    return _with_head(data.decode(), head) if sites else source, sites


def _around(one: _Found, data: bytes, starts: list[int], number: int) -> tuple[str, str]:
    """What stands before and behind the code of a site."""
    if one.how == "drop":
        return f"(None if _switch.off({number}) else ", ")"
    if one.how == "unbounded":
        assert isinstance(one.node, ast.Call)
        begin, end = _span(kept(one.node), starts)
        text = data[begin:end].decode()
        return f"(({text}) if _switch.off({number}) else ", ")"
    if one.how == "unsynced":
        return f", sync=not _switch.off({number})", ""
    return f"_switch.{one.how}({number}, ", ")"


def kept(node: ast.Call) -> ast.expr:
    """Of `min(value, LIMIT)` the value."""
    return node.args[1] if limit_of(node.args[0]) else node.args[0]


def _with_head(source: str, head: str) -> str:
    """`head` stands where imports may stand, on a line that is there already: the lines keep their
    numbers.
    """
    lines = source.split("\n")
    tree = ast.parse(source)
    future = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    assert future, "every file of the product begins with `from __future__ import annotations`"
    last = future[-1].end_lineno or future[-1].lineno
    lines[last - 1] += f"; {head}"
    return "\n".join(lines)
