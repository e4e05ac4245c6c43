"""Detectors of the code that `scripts/mutate` removes. For each class of code that keeps a promise,
a small function finds that code in the syntax tree.

A detector takes a node and its parents. It returns how the node is removed, or None. It does not
use a list of files or lines, so it also finds a new sync, a new limit or a new comparison of
checksums. The ways to remove something:

* `drop`: the call is not made (it is a statement, so its value is not used).
* `false`, `true`: the comparison is evaluated, and its result is replaced by this value, so that
the check never refuses.
* `unbounded`: `min(value, LIMIT)` and similar calls become the value.
* `unsynced`: an LMDB environment is opened so that its commits are not synced.
* `elsewhere`: a lock is taken on another file, so that it excludes nobody.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

Parents = dict[ast.AST, ast.AST]
Detector = Callable[[ast.AST, Parents], str | None]

_LIMIT: Final = re.compile(
    r"_?[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|_?\w+_(max|min|limit)|_?(max|min)_\w+|_?limit"
    r"|_?credit_bytes|room"
)
_LEAST: Final = re.compile(r"\w*(_MIN|_LOW|_min|_low)|_?min_\w+")
_MEASURE: Final = re.compile(r"\w*(HEADER|TRAILER|FOOTER|LENGTH|HEAD|COPY|ENTRY)_BYTES|\w*DIGITS")
_LEASES: Final = frozenset(
    {
        "token",
        "tokens",
        "lease",
        "leases",
        "incarnation",
        "epoch",
        "holder",
        "request",
        "requests",
        "peer",
    }
)
_SEQUENCES: Final = frozenset(
    {"sequence", "expected", "next_sequence", "next_offset", "first_offset"}
)
_IDENTITIES: Final = frozenset({"uuid", "seed", "magic", "version"})
_CHECKSUMS: Final = frozenset({"crc", "crc32c", "checksum", "checksums"})


def name_of(node: ast.AST) -> str:
    """Return the last name of a name, an attribute or a call, or "" for any other node."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def outer_names(node: ast.AST) -> Iterator[str]:
    """Yield the names of which an operand is made, without the arguments of a call."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
        yield from outer_names(node.value)
    elif isinstance(node, ast.Subscript | ast.Starred | ast.NamedExpr):
        yield from outer_names(node.value)
    elif isinstance(node, ast.Call):
        yield from outer_names(node.func)
    elif isinstance(node, ast.BinOp):
        yield from outer_names(node.left)
        yield from outer_names(node.right)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        for one in node.elts:
            yield from outer_names(one)


def words(node: ast.AST) -> set[str]:
    """Return all names below the node, and their parts: `columns_crc` gives `columns_crc`,
    `columns` and `crc`.
    """
    found = {
        one.id if isinstance(one, ast.Name) else one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Name | ast.Attribute)
    }
    return found | {word for name in found for word in name.split("_")}


def is_statement(node: ast.AST, parents: Parents) -> bool:
    return isinstance(parents.get(node), ast.Expr)


def operands(node: ast.Compare) -> list[ast.expr]:
    return [node.left, *node.comparators]


def refuses(node: ast.AST, parents: Parents) -> bool:
    """Return True if the node is in the condition of an `if` that raises. Then the result False
    never refuses.
    """
    inner, turned = node, False
    while isinstance(outer := parents.get(inner), ast.BoolOp | ast.UnaryOp):
        turned ^= isinstance(outer, ast.UnaryOp)
        inner = outer
    return (
        isinstance(outer, ast.If)
        and outer.test is inner
        and isinstance(outer.body[-1], ast.Raise)
        and not turned
    )


def silenced(node: ast.Compare, parents: Parents) -> str:
    """Return the result with which a comparison never refuses."""
    if refuses(node, parents):
        return "false"
    equal = all(isinstance(op, ast.Eq | ast.Is | ast.In) for op in node.ops)
    chain = len(node.ops) > 1  # `low <= value <= high` is true if the value is allowed
    return "true" if equal or chain else "false"


def sync(node: ast.AST, parents: Parents) -> str | None:
    """Detect a call that makes bytes durable, or the opening of an LMDB environment whose commits
    must be durable.
    """
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) == "lmdb.open"
        and not any(
            word.arg == "sync" and isinstance(word.value, ast.Constant) for word in node.keywords
        )
    ):
        readonly = any(
            one.arg == "readonly"
            and isinstance(one.value, ast.Constant)
            and one.value.value is True
            for one in node.keywords
        )
        return None if readonly else "unsynced"
    if (
        isinstance(node, ast.Call)
        and re.fullmatch(r"_?(sync|sync_all|fsync|fdatasync)", name_of(node))
        and is_statement(node, parents)
    ):
        return "drop"
    return None


def folder(node: ast.AST, parents: Parents) -> str | None:
    """Detect a call that makes names in a folder durable."""
    return (
        "drop"
        if isinstance(node, ast.Call)
        and name_of(node) == "sync_folder"
        and is_statement(node, parents)
        else None
    )


def truncation(node: ast.AST, parents: Parents) -> str | None:
    """Detect a call that cuts off bytes that must not be read again."""
    if (
        isinstance(node, ast.Call)
        and re.fullmatch(r"_?(f?truncate|cut|cut_(back|off))", name_of(node))
        and is_statement(node, parents)
    ):
        return "drop"
    return None


def rename(node: ast.AST, parents: Parents) -> str | None:
    """Detect a rename, by which a change takes effect as a whole."""
    return (
        "drop"
        if isinstance(node, ast.Call) and name_of(node) == "rename" and is_statement(node, parents)
        else None
    )


def lock(node: ast.AST, parents: Parents) -> str | None:
    """Detect a call that takes a lock, which excludes a second owner."""
    if not isinstance(node, ast.Call):
        return None
    if name_of(node) in {"flock", "lockf"}:
        return "drop" if is_statement(node, parents) else None
    if name_of(node) == "lock" and isinstance(node.func, ast.Attribute) and node.args:
        return "elsewhere"
    return None


def fate(node: ast.AST, parents: Parents) -> str | None:
    """Detect a call that ends a process together with another one, or before the next starts."""
    if (
        isinstance(node, ast.Call)
        and name_of(node) in {"kill", "pidfd_send_signal", "prctl", "_exit"}
        and is_statement(node, parents)
    ):
        return "drop"
    return None


def checksum(node: ast.AST, parents: Parents) -> str | None:
    """Detect a comparison of checksums."""
    if isinstance(node, ast.Compare) and words(node) & _CHECKSUMS and not _only_none(node):
        return silenced(node, parents)
    return None


def identity(node: ast.AST, parents: Parents) -> str | None:
    """Detect a comparison that finds out to whom bytes belong, or which format they have."""
    if isinstance(node, ast.Compare) and not _only_none(node):
        found = {
            word
            for one in operands(node)
            for name in outer_names(one)
            for word in name.lower().split("_")
        }
        if found & _IDENTITIES:
            return silenced(node, parents)
    return None


def lease(node: ast.AST, parents: Parents) -> str | None:
    """Detect a comparison that refuses a client whose right has ended: of tokens, incarnations,
    epochs, or requests.
    """
    if isinstance(node, ast.Compare) and not _only_none(node):
        found = {
            word for one in operands(node) for name in outer_names(one) for word in name.split("_")
        }
        if found & _LEASES:
            return silenced(node, parents)
    return None


def sequence(node: ast.AST, parents: Parents) -> str | None:
    """Detect a comparison with the number that must come next."""
    if isinstance(node, ast.Compare) and not _only_none(node):  # noqa: SIM102
        if {name.lstrip("_") for one in operands(node) for name in outer_names(one)} & _SEQUENCES:
            return silenced(node, parents)
    return None


def bound(node: ast.AST, parents: Parents) -> str | None:
    """Detect a comparison with a limit: a named constant, or a name such as `max_bytes`, `rows_max`
    or `limit`.
    """
    if not isinstance(node, ast.Compare) or _at_import(node, parents):
        return None
    ordered = [isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for op in node.ops]
    limits = [limit_of(one) for one in operands(node)]
    lengths = any(isinstance(one, ast.Call) and name_of(one) == "len" for one in operands(node))
    if not any(limits) or not (
        all(ordered)
        or (lengths and not any(isinstance(op, ast.In | ast.NotIn | ast.Is) for op in node.ops))
    ):
        return None
    if refuses(node, parents) or not all(ordered):
        return silenced(node, parents)
    if len(node.ops) > 1:
        return "true"
    less = isinstance(node.ops[0], ast.Lt | ast.LtE)
    limit = limits[1] or limits[0]
    # For the size of a structure, a strict comparison refuses (`len(data) < HEADER_BYTES`), and
    # another one accepts.
    if _MEASURE.fullmatch(limit):
        return "true" if isinstance(node.ops[0], ast.LtE | ast.GtE) else "false"
    # `value < LIMIT_MAX` accepts, and `value > LIMIT_MAX` refuses. The meaning is reversed if the
    # limit is on the left, or if it is a lower limit.
    turned = (not limits[1]) ^ bool(_LEAST.fullmatch(limit))
    return "true" if less ^ turned else "false"


def clamp(node: ast.AST, parents: Parents) -> str | None:
    """Detect a call `min(value, LIMIT)` or `max(value, LEAST)`."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in {"min", "max"}
        and len(node.args) == 2
    ):
        if node.keywords or _at_import(node, parents):
            return None
        limits = [limit_of(one) for one in node.args]
        value = node.args[1] if limits[0] else node.args[0]
        # `max(1, X_MAX // 20)` limits no input.
        if sum(map(bool, limits)) == 1 and not isinstance(value, ast.Constant):
            return "unbounded"
    return None


def limit_of(node: ast.AST) -> str:
    """Return the limit that an operand names, or "" if it names none."""
    return next((name for name in outer_names(node) if _LIMIT.fullmatch(name)), "")


def _only_none(node: ast.Compare) -> bool:
    return all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops)


def _at_import(node: ast.AST, parents: Parents) -> bool:
    """Return True if the node is outside of every function, where constants are compared with each
    other, or in an assert, which checks for errors of the programmer.
    """
    one: ast.AST | None = node
    while one is not None:
        if isinstance(one, ast.Assert):
            return True
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return False
        one = parents.get(one)
    return True


DETECTORS: Final[dict[str, Detector]] = {
    "sync": sync,
    "folder": folder,
    "truncation": truncation,
    "rename": rename,
    "lock": lock,
    "fate": fate,
    "checksum": checksum,
    "identity": identity,
    "lease": lease,
    "sequence": sequence,
    "bound": bound,
    "clamp": clamp,
}
