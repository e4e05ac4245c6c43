"""Tests that docs/api.md agrees with the code: it is generated from signatures and docstrings, and
every public name has a docstring.

Run this file to write it again: python tests/docs/test_api_md.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pytest

import zsq
import zsq.inbox
import zsq.outbox
from zsq.transport.client.core import handling
from zsq.transport.client.core.message import Fetched, StoredMessage
from zsq.transport.client.core.peeking import Peek, Peeked
from zsq.transport.client.core.reading import Archive, Measured
from zsq.transport.settings import NewChannelOptions, TopicOptions
from zsq.transport.wire import answers

DOCUMENT: Final = Path(__file__).resolve().parents[2] / "docs" / "api.md"
SECTIONS: Final = {
    "Publishing": ("Producer", "Receipt"),
    "Consuming": ("Consumer", "Backoff", "Retries", "RetryAfter", "MessageBatch", "Batch", "Message"),
    "Reading by offset": ("Reader", "RangeReader"),
    "Administration": ("Admin",),
    "Exactly once into a topic": ("StageWriter", "StageCommitter"),
    "Embedded": ("DiskQueue", "StorageError"),
    "Errors": (
        "ZsqError", "UsageError", "BrokerUnreachable", "Refused", "NotFound", "LeaseLost", "CorruptBlock", "DataLoss", "MessageFailed",
    ),
}  # fmt: skip
BREAK: Final = "\n\n"
# Arguments that mean the same everywhere. `Producer` has their types and texts.
SHARED: Final = ("url", "timeout", "key_file", "transport", "heartbeat_ms", "db")
TEXTS: Final = ("topic", "channel", "name")
CLOSES: Final = "Close the connections to the brokers."  # the head of the page says it
# More docstrings that belong to a section, without their first lines.
MORE: Final = {
    "Consuming": (
        ("What run does with a handler", handling),
        ("Why run ends", handling.RunnerBase),
    )
}
DATABASES: Final = (zsq.inbox.Inbox, zsq.inbox.Positions, zsq.outbox.Outbox)
GIVEN: Final = {"Receipt", "Batch", "Message"}  # users do not create these themselves
RECORDS: Final = (
    NewChannelOptions,
    TopicOptions,
    Fetched,
    Archive,
    Measured,
    Peek,
    Peeked,
    StoredMessage,
)
ANSWERS: Final = (
    answers.Made, answers.TopicConfigured, answers.ChannelConfigured, answers.Closed, answers.Moved, answers.Nothing, answers.DelayedRow,
    answers.DelayedCount, answers.OverviewAnswer, answers.BrokerSummary, answers.OverviewAlarms, answers.AuditEntry, answers.Chunks,
    answers.ChunkRow, answers.ChunkSum, answers.Committed, answers.Aborted,
)  # fmt: skip
# What only ZSQ itself uses, as in tests/compat/promised.py.
INSIDE: Final = {
    "Admin": {"redrive_to"},
    "Backoff": {"wait_s"},
    "Retries": {"delay_s", "is_over"},
}
# Descriptors of fields. The docstring of the class describes the fields.
FIELDS: Final = ("member_descriptor", "_tuplegetter")
HEAD: Final = """# API reference

Reference of the Python API, for readers of the [tutorial](tutorial.md) and the guides. It is generated
from the docstrings of `zsq` {version}, and a test keeps it current. Everything on this page is public,
and everything else may change. [testing.md](testing.md) has the names of `zsq.testing`.

Times are in seconds unless a name ends in another unit. `zsq.aio` has the same names for asyncio. There,
the calls that ask the broker are awaited. `url`, `timeout`, `key_file`, `transport` and `heartbeat_ms`
are those of `Producer`. Other arguments without a type are text, or have the type of their default.
`x: T = None` means `T | None`. Each client has `close()`, which closes its connections.
"""


def drawn() -> str:
    parts = [HEAD.format(version=zsq.__version__)]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_class(name, getattr(zsq, name)) for name in names]
        for caption, described in MORE.get(title, ()):
            parts.append(f"### {caption}\n\n{_text(described).partition(BREAK)[2]}\n")
    parts.append(
        "## Databases\n\nImport these from `zsq.inbox` and `zsq.outbox`. `db` is a connection of "
        "the user's. [databases.md](databases.md) is the guide.\n"
    )
    parts += [_class(kind.__name__, kind) for kind in DATABASES]
    parts.append("## Records and options\n")
    parts += [_record(kind) for kind in RECORDS]
    parts.append(
        "## Answers\n\nEach is a dict with these keys; `zsq.transport.wire.answers` has their "
        "types.\n"
    )
    parts.append(
        "\n".join(
            f"- **`{kind.__name__}`** {{{', '.join(kind.__annotations__)}}}: {_flat(_text(kind))}"
            for kind in ANSWERS
        )
        + "\n"
    )
    parts.append("## asyncio\n")
    parts.append(_asyncio())
    return "\n".join(parts).rstrip() + "\n"


def _class(name: str, kind: type) -> str:
    lines = [f"### {name}", ""]
    if not issubclass(kind, Exception) and name not in GIVEN:
        lines += [f"    {name}{_signature(kind)}", ""]
    lines += [_text(kind), ""]
    for member, value, doc in _members(kind):
        if doc == CLOSES:
            continue
        if isinstance(value, property | cached_property) or not callable(value):
            lines += [f"- **`{member}`**: {_flat(doc)}"]
        else:
            lines += [f"- **`{member}{_signature(value)}`**: {_flat(doc)}"]
    return "\n".join(lines).rstrip() + "\n"


def _record(kind: Any) -> str:
    """Return the text of a NamedTuple or TypedDict: its fields, with the texts of its base classes.
    Where each field may be None, this is left out.
    """
    bases = [
        base
        for base in getattr(kind, "__orig_bases__", ())
        if inspect.getdoc(base) and hasattr(base, "__required_keys__")
    ]
    hints = _annotations(kind)
    if all(str(hint).endswith(" | None") for hint in hints.values()):
        hints = {name: hint.removesuffix(" | None") for name, hint in hints.items()}
    fields = ", ".join(f"{name}: {hint}" for name, hint in hints.items())
    texts = [_text(one) for one in (kind, *bases)]
    return "\n".join([f"### {kind.__name__}", "", f"    {fields}", "", *texts]) + "\n"


def _annotations(kind: Any) -> dict[str, Any]:
    found = inspect.get_annotations(kind)
    return {
        name: getattr(hint, "__forward_arg__", None) or getattr(hint, "__name__", hint)
        for name, hint in found.items()
    }


def _asyncio() -> str:
    """Return a line for each name of `zsq.aio`: which calls are awaited, or which are not."""
    lines = []
    for name in zsq.aio.__all__:
        if any(name == one.__name__ for one in RECORDS):
            continue
        kind = getattr(zsq.aio, name)
        shown = getattr(zsq, name, None)
        if shown is None:
            lines.append(f"- **`aio.{name}{_signature(kind)}`**: {_flat(_text(kind))}")
            continue
        own = list(_members(kind)) if inspect.isclass(kind) else []
        lines.append(f"- **`aio.{name}`**: as `{name}`.{_awaited(own)}")
        lines += [
            f"  Besides: `{member}{_signature(value) if callable(value) else ''}`: {_flat(doc)}"
            for member, value, doc in own
            if not hasattr(shown, member)
        ]
    return "\n".join(lines) + "\n"


def _awaited(members: list[tuple[str, Any, str]]) -> str:
    calls = [
        (f"`{member}`", inspect.iscoroutinefunction(value))
        for member, value, _ in members
        if callable(value)
    ]
    awaited = [member for member, is_awaited in calls if is_awaited]
    others = [member for member, is_awaited in calls if not is_awaited]
    if len(awaited) <= len(others):
        return f" Awaited: {', '.join(awaited)}." if awaited else ""
    return f" All calls are awaited{', except ' + ', '.join(others) if others else ''}."


def _members(kind: type) -> Iterator[tuple[str, Any, str]]:
    """Yield the public members in the order of the source, with inherited members last."""
    seen = set()
    for home in kind.__mro__:
        if home in (object, Exception, BaseException, Sequence):
            continue
        for name, value in vars(home).items():
            if (
                name.startswith("_")
                or name in seen
                or name in INSIDE.get(kind.__name__, ())
                or inspect.isclass(value)
                or type(value).__name__ in FIELDS
            ):
                continue
            seen.add(name)
            value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            doc = (
                inspect.getdoc(value)
                if callable(value) or isinstance(value, property | cached_property)
                else None
            )
            if doc is not None or callable(value) or isinstance(value, property | cached_property):
                yield name, value, doc or ""


def _signature(value: Any) -> str:
    """Return the signature without `self` and without quotes around annotations, on one line
    however long it is. Shared arguments have no types, and `T | None = None` is `T = None`.
    """
    target = inspect.unwrap(value) if not inspect.isclass(value) else value
    found = inspect.signature(target)
    parameters = [one for name, one in found.parameters.items() if name != "self"]
    returns = inspect.Signature.empty if inspect.isclass(value) else found.return_annotation
    is_producer = getattr(value, "__name__", "") == "Producer"
    parameters = [one.replace(annotation=_hint(one, is_producer)) for one in parameters]
    text = str(found.replace(parameters=parameters, return_annotation=_bare(returns)))
    return re.sub(r" -> (None|Nothing)$", "", text.replace("zsq.transport.", ""))


def _hint(parameter: inspect.Parameter, is_producer: bool) -> Any:
    """Return the type to show, if the head of the page or the default does not say it."""
    hint, default = parameter.annotation, parameter.default
    if parameter.name in SHARED and not is_producer:
        return inspect.Parameter.empty
    if hint == type(default).__name__ or (hint == "str" and parameter.name in TEXTS):
        return inspect.Parameter.empty
    if default is None and isinstance(hint, str):
        hint = hint.removesuffix(" | None")
    return _bare(hint)


class _Bare:
    """An annotation that is shown as it was written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _bare(annotation: Any) -> Any:
    return _Bare(annotation.strip("'")) if isinstance(annotation, str) else annotation


def _text(kind: Any) -> str:
    return re.sub(r"\n{3,}", "\n\n", inspect.getdoc(kind) or "")


def _flat(text: str) -> str:
    """Return the text as one paragraph."""
    return " ".join(text.split())


def test_the_document_is_drawn_from_the_code() -> None:
    assert DOCUMENT.read_text() == drawn(), "run python tests/docs/test_api_md.py"


def test_every_public_name_is_in_it() -> None:
    shown = {name for names in SECTIONS.values() for name in names}
    assert shown == set(zsq.__all__) - {"__version__", "aio"}


@pytest.mark.parametrize("name", sorted(set(zsq.__all__) - {"__version__", "aio"}))
def test_nothing_public_lacks_a_docstring(name: str) -> None:
    kind = getattr(zsq, name)
    assert (inspect.getdoc(kind) or "").strip()
    assert [member for member, _, doc in _members(kind) if not doc.strip()] == []


def test_nothing_of_the_databases_lacks_a_docstring() -> None:
    assert {*zsq.inbox.__all__, *zsq.outbox.__all__} == {kind.__name__ for kind in DATABASES}
    for kind in DATABASES:
        assert [member for member, _, doc in _members(kind) if not doc.strip()] == []


if __name__ == "__main__":
    DOCUMENT.write_text(drawn())
