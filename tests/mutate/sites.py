"""The sites of a source file: what the detectors find in it, and the same source with a switch at
each site.

All removals are put into one tree. A removed call is `(None if switch.off(17) else CALL)`, a
silenced comparison is `switch.false(17, COMPARISON)`. An environment variable says which one is
off, so that every process of a broker under test knows it. The same switches record which test
executes which site, without a tracer. So a removal needs no copy and no new import, only a fork of
a process that has collected the tests.
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from mutate.detectors import DETECTORS, Parents, limit_of

LAYERS: Final = ("storage", "actors", "transport", "apps")
# The doctor only measures and advises. It makes no promise that could be broken.
SPARED: Final = ("apps/doctor",)


class Site(NamedTuple):
    """`key` identifies the site in any version of the source: file, function, class of code, the
    code itself, and a number if several are equal.
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
    """Return the sites in the order of the text. If several detectors find a node, the first one in
    their table counts.

    `other`: return only the comparisons, each with the opposite result. This is for the case that a
    detector is wrong about the result that never refuses.
    """
    tree = ast.parse(source)
    parents: Parents = {}
    names: dict[ast.AST, str] = {tree: ""}
    found = []
    waiting: list[ast.AST] = [tree]
    while waiting:  # parents before children
        node = waiting.pop()
        # Leave out f-strings, whose positions are known only from Python 3.12 on, and asserts,
        # which check for errors of the programmer.
        if isinstance(
            node,
            ast.JoinedStr | ast.Assert,
        ):
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
    """Return where a node begins and ends, in bytes of the source."""
    line, column = _end(node)
    return starts[node.lineno - 1] + node.col_offset, starts[line - 1] + column


def switched(
    source: str, path: str, first: int, head: str, *, other: bool = False
) -> tuple[str, list[Site]]:
    """Return (the source with switches numbered from `first` on, its sites). `head` is a statement
    that defines `_switch`. It is added to the imports.
    """
    data = source.encode()
    starts = [0]
    for line in data.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    # The texts to insert are sorted by position. In one place, closing texts come before opening
    # ones, the inner closing text first, and the outer opening text first.
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
    """Return the text to put before and after the code of a site."""
    if one.how == "drop":
        return f"(None if _switch.off({number}) else ", ")"
    if one.how == "unbounded":
        assert isinstance(one.node, ast.Call)
        begin, end = _span(kept(one.node), starts)
        text = data[begin:end].decode()
        return f"(({text}) if _switch.off({number}) else ", ")"
    if one.how == "unsynced":
        assert isinstance(one.node, ast.Call)
        named = [keyword.arg for keyword in one.node.keywords]
        text = " and" if "sync" in named else ", sync="  # `sync` is the last argument
        return f"{text} not _switch.off({number})", ""
    return f"_switch.{one.how}({number}, ", ")"


def kept(node: ast.Call) -> ast.expr:
    """Return the value of `min(value, LIMIT)`."""
    return node.args[1] if limit_of(node.args[0]) else node.args[0]


def _with_head(source: str, head: str) -> str:
    """Add `head` to an existing line after the first imports, so that the lines keep their
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
