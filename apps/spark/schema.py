"""Columns that the source makes and the sink accepts, with their Spark types. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...transport.errors import E_BAD_ARGUMENT, UsageError

__all__ = [
    "COLUMNS",
    "HEADERS",
    "SINK_COLUMNS",
    "SOURCE_COLUMNS",
    "check_sink_columns",
    "ddl",
    "simple",
]

HEADERS: Final = "headers"
_TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "tag": "string",
    HEADERS: "array<struct<key:string,value:binary>>",
}
COLUMNS: Final = tuple(_TYPES)
# Headers cost a Python object for each row, so they are optional, as in the Kafka connector.
SOURCE_COLUMNS: Final = tuple(name for name in COLUMNS if name != HEADERS)

SINK_COLUMNS: Final = ("value", "key", "tag", HEADERS, "topic")
_TEXT: Final = ("string", "varchar", "char")
_ACCEPTED: Final = {
    "value": ("binary", *_TEXT),
    "key": ("binary", *_TEXT, "void"),
    "tag": (*_TEXT, "binary", "void"),
    "topic": (*_TEXT, "void"),
    HEADERS: ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>",
              "map<string,binary>", "map<string,string>", "void"),
}  # fmt: skip


def ddl(columns: Sequence[str]) -> str:
    """Return the source's schema as DDL."""
    return ", ".join(f"{name} {_TYPES[name]}" for name in columns)


def simple(columns: Sequence[str]) -> str:
    """Return the source's schema in the form of Spark's `simpleString`.

    Parsing DDL needs a Spark session, which Spark's Python processes do not have.
    """
    return f"struct<{','.join(f'{name}:{_TYPES[name]}' for name in columns)}>"


def check_sink_columns(fields: Sequence[tuple[str, str]], topic: str) -> None:
    """Check the names and types of the sink's columns.

    Names are the same in small and capital letters, as they are in Spark by default. `fields` are
    names and Spark's simpleString of the types. `topic` is the option's value. Raises `UsageError`
    (E_BAD_ARGUMENT), which names the column and the accepted types.
    """
    names = [name.lower() for name, _ in fields]
    for column, kind in fields:
        name = column.lower()
        if name not in _ACCEPTED:
            raise _wrong(
                f"the sink has no column {column!r} ({kind}): it takes {', '.join(SINK_COLUMNS)}; "
                "select only those before you write"
            )
        if not kind.lower().startswith(_ACCEPTED[name]):
            accepted = " or ".join(
                kind_name
                for kind_name in _ACCEPTED[name]
                if kind_name not in {"varchar", "char", "void"}
            )
            raise _wrong(
                f"column {column!r} is of type {kind}; the sink takes {accepted}: cast it, or use "
                "to_json for a struct"
            )
    for name in set(names):
        if names.count(name) > 1:
            raise _wrong(
                f"column {name!r} occurs twice, in small or capital letters; select it once"
            )
    if "value" not in names:
        columns = ", ".join(f"{name} {kind}" for name, kind in fields) or "none"
        raise _wrong(
            f"the sink needs a column 'value' (binary or string); the columns are: {columns}."
            " Use for example select(to_json(struct('*')).alias('value'))"
        )
    if not topic and "topic" not in names:
        raise _wrong(
            "no topic is given: use .option('topic', NAME), in SQL INSERT INTO TABLE WITH (topic "
            "'NAME') ..., or add a column 'topic' that names the topic of each row"
        )


def _wrong(text: str) -> UsageError:
    return UsageError(E_BAD_ARGUMENT, text)
