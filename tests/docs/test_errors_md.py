"""Tests that docs/errors.md has every error code that the code uses, with its class, and no other
code.
"""

from __future__ import annotations

import re
from typing import Final

from zsq.transport import errors
from zsq.transport.nsq import errors as nsq

from .walking import ROOT

TEXT: Final = (ROOT / "docs" / "errors.md").read_text()
ROW: Final = re.compile(r"^\| `(E_\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
# Codes of the command line, and of a process that cannot start.
ELSEWHERE: Final = {
    "E_INTERRUPTED",
    "E_START",
}
HTTP: Final = {"E_CHANGED", "E_HOST", "E_ORIGIN"}
LAYERS: Final = ("actors", "apps", "storage", "transport")


def codes_of(module: object) -> set[str]:
    return {name for name in vars(module) if name.startswith("E_")}


def rows(title: str) -> dict[str, str]:
    """Return the second column for each code, in the section with this title."""
    section = re.split(r"^## ", TEXT, flags=re.MULTILINE)
    [found] = [one for one in section if one.startswith(title)]
    codes = [row[0] for row in ROW.findall(found)]
    assert len(codes) == len(set(codes)), "a code stands there twice"
    return {row[0]: row[1].strip() for row in ROW.findall(found)}


def test_every_code_of_the_broker_has_a_row_with_its_class() -> None:
    found = rows("Codes of the broker")
    assert found.keys() == codes_of(errors) | ELSEWHERE | HTTP
    for code in codes_of(errors):
        assert found[code] == f"`{type(errors.from_wire(code, '')).__name__}`", code


def test_every_code_of_the_nsq_protocol_has_a_row() -> None:
    assert rows("Codes of the NSQ protocol").keys() == codes_of(nsq)


def test_no_source_uses_a_code_that_the_page_lacks() -> None:
    known = rows("Codes of the broker").keys() | rows("Codes of the NSQ protocol").keys()
    used = {
        code
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        for code in re.findall(r"""["'](E_[A-Z_]+[A-Z])\b""", path.read_text())
    }
    assert used <= known
    assert len(used) > 40


def test_the_classes_are_explained() -> None:
    explained = set(re.findall(r"^\| `([A-Z]\w+)` \| [^|]+ \| \d \|$", TEXT, re.MULTILINE))
    assert explained == {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.ZsqError)
    } - {"ZsqError"}
