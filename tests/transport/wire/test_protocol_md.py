"""Tests of PROTOCOL.md against the code: its tables are generated from the code, and its example
bytes are decoded by it.

Run this file to write the generated parts again: python tests/transport/wire/test_protocol_md.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints, is_typeddict

import pytest

from zsq.transport.block.block import HEADER_BYTES, check_block, open_block
from zsq.transport.client.core.consumer_session import CONSUMER_TABLE
from zsq.transport.client.core.producer_session import PRODUCER_TABLE
from zsq.transport.client.core.stage_table import STAGE_TABLE
from zsq.transport.client.link.link_table import LINK_TABLE
from zsq.transport.client.link.reaction import Reaction
from zsq.transport.wire import protocol
from zsq.transport.wire.admin_codec import SETTINGS
from zsq.transport.wire.admin_requests import REQUESTS, AdminRequest
from zsq.transport.wire.codec import decode, encode

DOCUMENT: Final = Path(__file__).resolve().parents[3] / "transport" / "PROTOCOL.md"
GROUPS: Final = {
    "Anybody to anybody": range(1, 10),
    "Links": range(10, 17),
    "Producer and topic": range(20, 27),
    "Consumer and channel": (*range(30, 38), 27, 28, 39),
    "Offset readers and storage": range(40, 44),
    "Stages": (38, *range(44, 50)),
}
# Words between the broker's own processes. They are not promised, and their docstrings say it all.
INSIDE: Final = range(128, 256)


def words() -> str:
    lines = []
    for title, ops in GROUPS.items():
        lines += [f"### {title}", "", "| op | word | fields | meaning |", "|---|---|---|---|"]
        for op, message in sorted(protocol.WORDS.items()):
            if op in ops:
                hints = get_type_hints(message)
                fields = (
                    ", ".join(
                        f"{f.name}: {_kind(hints[f.name])}" for f in dataclasses.fields(message)
                    )
                    or "none"
                )
                meaning = " ".join((inspect.getdoc(message) or "").split())
                if meaning.startswith(f"{message.__name__}("):
                    meaning = "The answer to the request before it."
                lines.append(
                    f"| {op} | {message.__name__} | {fields} | {meaning} |".replace(
                        " | | ", " |  | "
                    )
                )
        lines.append("")
    return "\n".join(lines).rstrip()


def _kind(hint: Any) -> str:
    """Return a type as text: `tuple[tuple[int, int], ...]` as `((int, int), ...)`."""
    if getattr(hint, "__origin__", None) is tuple:
        inner = [_kind(part) if part is not Ellipsis else "..." for part in hint.__args__]
        return f"({', '.join(inner)})"
    return (
        "map"
        if is_typeddict(hint) or getattr(hint, "__origin__", hint) is dict
        else str(hint.__name__)
    )


def requests() -> str:
    """Return the table of administrative requests."""
    lines = [
        "| action | about | options | answer | needs | | meaning |",
        "|---|---|---|---|---|---|---|",
    ]
    base = {field.name for field in dataclasses.fields(AdminRequest)}
    for row in REQUESTS:
        hints = get_type_hints(row.kind)
        options = [
            "..."
            if field.name == SETTINGS
            else f"{field.name}{'' if _is_required(field) else '?'}: {_option(hints[field.name])}"
            for field in dataclasses.fields(row.kind)
            if field.name not in base
        ]
        marks = [] if row.is_repeatable else ["once"]
        marks += ["each part"] if row.each_part else []
        answer = _answer(row.kind)
        meaning = " ".join((inspect.getdoc(row.kind) or "").split())
        cells = (row.name, row.scope.value, ", ".join(options) or "none", answer, row.action.value)
        lines.append(f"| {' | '.join(cells)} | {', '.join(marks)} | {meaning} |")
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING


def _option(hint: Any) -> str:
    """Return the type of an option as text."""
    if get_origin(hint) is Literal:
        return " or ".join(get_args(hint))
    if get_origin(hint) in (tuple, Mapping):
        return "map" if get_origin(hint) is Mapping else _kind(hint)
    if get_args(hint):  # an option that may be missing
        return _option(get_args(hint)[0])
    return str(hint.__name__)


def _answer(kind: type[AdminRequest[Any]]) -> str:
    """Return the name of the answer's type: the parameter of the first base that has one."""
    (parameter,) = get_args(vars(kind).get("__orig_bases__", (None,))[0]) or (None,)
    if parameter is None:
        return _answer(kind.__bases__[0])
    return "map" if get_origin(parameter) is dict else str(parameter.__name__)


def table(rows: dict[Any, dict[Any, Any]]) -> str:
    """Return a state table as a diagram that markdown viewers draw, and that can be searched as
    text.
    """
    lines = ["```mermaid", "stateDiagram-v2"]
    first = next(iter(rows))
    lines.append(f"    [*] --> {_name(first)}")
    for state, row in rows.items():
        events: dict[tuple[Any, str], list[str]] = {}
        for event, transition in row.items():
            after, does = _transition(transition)
            events.setdefault((after, does), []).append(event.value)
        lines += [
            f"    {_name(state)} --> {_name(after)}: {' / '.join(names)}{does}"
            for (after, does), names in events.items()
        ]
    return "\n".join([*lines, "```"])


def _transition(transition: Any) -> tuple[Enum, str]:
    """Return the next state of a transition, and its actions and reaction as text."""
    does = [action.value for action in transition.actions]
    reaction = getattr(transition, "reaction", Reaction.NOTHING)
    if reaction is not Reaction.NOTHING:
        does.append(f"link: {reaction.value}")
    return transition.after, f" ({', '.join(does)})" if does else ""


def _name(state: Enum) -> str:
    return str(state.value)


def limits() -> str:
    lines = ["| limit | value |", "|---|---|"]
    for name, value in vars(protocol).items():
        if name.isupper() and isinstance(value, int):
            lines.append(f"| {name} | {value:,} |")
    return "\n".join(lines)


PARTS: Final = {
    "words": words,
    "requests": requests,
    "producer": lambda: table(PRODUCER_TABLE),
    "consumer": lambda: table(CONSUMER_TABLE),
    "link": lambda: table(LINK_TABLE),
    "stage": lambda: table(STAGE_TABLE),
    "limits": limits,
}


def drawn(text: str) -> str:
    """Return the document with its generated parts made again."""
    for name, render in PARTS.items():
        pattern = rf"(<!-- {name}: drawn from the code -->\n).*?(<!-- end -->)"
        assert len(re.findall(pattern, text, re.DOTALL)) == 1, name
        text = re.sub(
            pattern,
            lambda found, render=render: f"{found[1]}{render()}\n{found[2]}",  # type: ignore[misc]
            text,
            flags=re.DOTALL,
        )
    return text


def test_the_drawn_parts_are_current() -> None:
    text = DOCUMENT.read_text()
    assert drawn(text) == text, "run python tests/transport/wire/test_protocol_md.py"


def example(name: str) -> bytes:
    """Return the bytes of a hex dump with lines `offset  bytes  what they are`."""
    [dump] = re.findall(
        rf"<!-- example: {name} -->\n```\n(.*?)```", DOCUMENT.read_text(), re.DOTALL
    )
    found = bytearray()
    for line in dump.splitlines():
        position, data = re.fullmatch(
            r"([0-9a-f]{4})  ((?:[0-9a-f]{2} ?)+)(?:  .*)?", line.rstrip()
        ).groups()  # type: ignore[union-attr]
        assert int(position, 16) == len(found), line
        found += bytes.fromhex(data)
    return bytes(found)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hello", protocol.Hello(1, 0x1122334455667788, 30_000)),
        ("pub", protocol.Pub()),
        ("stored", protocol.Stored(((0, 41),))),
        ("deliver", protocol.Deliver(7, ((41, 2, 1),), 60_000)),
        ("fin", protocol.Fin(0, 7, ())),
    ],
)
def test_each_example_message_has_the_bytes_of_the_codec(name: str, message: protocol.Wire) -> None:
    assert encode(message) == example(name)
    assert decode(example(name)) == message


def test_the_example_block_is_read_as_documented() -> None:
    block = open_block(example("header"), example("columns"))
    check_block(block)
    assert block.header.producer_id == 0x1122334455667788
    assert (block.count, block.length) == (2, HEADER_BYTES + len(example("columns")))
    assert block.body.values() == [b"hi", b"you"]
    assert block.key is not None
    assert block.key.values() == [b"k", None]


def test_every_message_is_in_a_group_of_the_document() -> None:
    assert all(any(op in ops for ops in (*GROUPS.values(), INSIDE)) for op in protocol.WORDS)


if __name__ == "__main__":
    DOCUMENT.write_text(drawn(DOCUMENT.read_text()))
