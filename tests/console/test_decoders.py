"""Tests of the decoders of bodies, in the browser: against the libraries that write these forms,
and with bodies that are made to break them.
"""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import fastavro
import msgpack
import pytest
from support.broker import Broker
from support.browser import Window

RUN: Final = """async ([kind, cases]) => {
  const { decodeJson } = await import("/console/decode/json.js");
  const { decodeMsgpack } = await import("/console/decode/msgpack.js");
  const { decodeAvro, parseSchema } = await import("/console/decode/avro.js");
  return cases.map(([body, schema]) => {
    const data = Uint8Array.from(atob(body), (one) => one.charCodeAt(0));
    try {
      if (kind === "json") return decodeJson(data);
      if (kind === "msgpack") return decodeMsgpack(data);
      return decodeAvro(data, schema === null ? null : parseSchema(schema));
    } catch (error) {
      return { error: error.message, kind: error.constructor.name };
    }
  });
}"""

Decode = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def decode(browser: Any, broker: Broker) -> Iterator[Decode]:
    window = Window(browser, f"http://127.0.0.1:{broker.http}")
    page = window.open("#/")

    def run(kind: str, *cases: bytes | tuple[bytes, Any]) -> list[dict[str, Any]]:
        """Return what a decoder makes of each body. With Avro, each body has its schema."""
        told = []
        for case in cases:
            body, schema = case if isinstance(case, tuple) else (case, None)
            text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
            told.append([base64.b64encode(body).decode(), text])
        found: list[dict[str, Any]] = page.evaluate(RUN, [kind, told])
        return found

    yield run
    window.close()
    assert window.complaints == []


def avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


# JSON

EXACT: Final = '{"10": 12345678901234567890, "2": 1.0, "2": -0.0, "e": 1e400, "s": "a\\u0000\\"é"}'


def test_json_is_shown_exactly(decode: Decode) -> None:
    nested = b"[" * 60 + b"]" * 60
    exact, empty, text, deep = decode("json", EXACT.encode(), b' {"a":[],"b":{}} ', b'"x"', nested)
    assert exact["text"] == (
        '{\n  "10": 12345678901234567890,\n  "2": 1.0,\n  "2": -0.0,\n  "e": 1e400,\n'
        '  "s": "a\\u0000\\"é"\n}'
    )
    assert (empty["text"], text["text"]) == ('{\n  "a": [],\n  "b": {}\n}', '"x"')
    assert json.loads(deep["text"]) == json.loads(nested)


def test_bodies_that_are_no_json_say_why(decode: Decode) -> None:
    found = decode("json", b"{", b"\xff{}", b"", b"{'a': 1}", b"[1,]")
    assert all(one["kind"] == "Undecodable" for one in found)
    assert found[1]["error"] == "It is not UTF-8."


# MessagePack


def test_msgpack_is_shown_as_json(decode: Decode) -> None:
    chance = random.Random(5)

    def value(depth: int) -> Any:
        if depth and chance.random() < 0.5:
            size = chance.choice([0, 1, 3, 17])
            if chance.random() < 0.5:
                return [value(depth - 1) for _ in range(size)]
            return {f"k{at}": value(depth - 1) for at in range(size)}
        integer = chance.choice([1, -1]) * chance.getrandbits(chance.randrange(1, 64))
        text = "é\u20ac\0" * chance.choice([0, 1, 20, 300])
        return chance.choice([None, True, False, integer, 1.5, -1e300, text])

    values = [value(4) for _ in range(100)]
    for one, found in zip(values, decode("msgpack", *map(msgpack.packb, values)), strict=True):
        assert json.loads(found["text"]) == one
        assert found["note"] == ""


def test_special_values_of_msgpack(decode: Decode) -> None:
    then = datetime(2026, 11, 27, 12, 0, 0, 500_000, tzinfo=UTC)
    value = {
        "bytes": b"\x00\xff",
        "time": then,
        "kind": msgpack.ExtType(5, b"ab"),
        7: float("nan"),
        (1, 2): {},
        "big": (1 << 64) - 1,
        "small": -(1 << 63),
        "single": struct.pack(">f", 0.5),
    }
    body = msgpack.packb(value, datetime=True)
    [found] = decode("msgpack", body)
    shown = json.loads(found["text"])
    assert shown == {
        "bytes": {"$bytes": "00ff"}, "time": "2026-11-27T12:00:00.500Z", "kind": {"$ext 5": "6162"}, "7": "NaN", "[ 1, 2 ]": {},
        "big": (1 << 64) - 1, "small": -(1 << 63), "single": {"$bytes": "3f000000"},
    }  # fmt: skip
    no_text, rest = decode("msgpack", b"\xa1\xff", b"\x01\x02\x03")
    assert json.loads(no_text["text"]) == {"$bytes": "ff"}
    assert rest["kind"] == "Undecodable"
    assert "2 bytes follow after the first value" in rest["error"]


# Avro

SCHEMA: Final[dict[str, Any]] = {
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "lines", "type": {"type": "array", "items": {
            "type": "record", "name": "Line", "fields": [{"name": "n", "type": "int"}, {"name": "price", "type": "double"}]}}},
        {"name": "tags", "type": {"type": "map", "values": "boolean"}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "raw", "type": "bytes"},
        {"name": "small", "type": "float"},
        {"name": "then", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "next", "type": ["null", "shop.Order"]},
    ],
}  # fmt: skip


def order(**more: Any) -> dict[str, Any]:
    return {
        "id": -(1 << 63), "who": "é<script>", "state": "PAID", "lines": [{"n": -5, "price": 1.5}, {"n": 1 << 30, "price": -0.0}],
        "tags": {"a": True}, "hash": b"\x01\xff", "raw": b"", "small": 0.5, "then": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "day": date(1969, 12, 31), "sum": Decimal("-12.05"), "next": None, **more,
    }  # fmt: skip


SHOWN: Final = {
    "id": -(1 << 63), "who": "é<script>", "state": "PAID", "lines": [{"n": -5, "price": 1.5}, {"n": 1 << 30, "price": -0.0}],
    "tags": {"a": True}, "hash": {"$bytes": "01ff"}, "raw": {"$bytes": ""}, "small": 0.5, "then": "2026-01-02T03:04:05.000Z",
    "day": "1969-12-31", "sum": -12.05, "next": None,
}  # fmt: skip


def test_avro_is_shown_with_a_schema(decode: Decode) -> None:
    plain, nested = avro(SCHEMA, order()), avro(SCHEMA, order(next=order()))
    file = io.BytesIO()
    fastavro.writer(file, fastavro.parse_schema(SCHEMA), [order(), order()])
    found = decode(
        "avro",
        (plain, SCHEMA),
        (nested, SCHEMA),
        (b"\0\0\0\0\x07" + plain, SCHEMA),
        (b"\xc3\x01" + b"f" * 8 + plain, SCHEMA),
        (file.getvalue(), None),
    )
    values = [json.loads(one["text"]) for one in found]
    assert values == [SHOWN, {**SHOWN, "next": SHOWN}, SHOWN, SHOWN, [SHOWN, SHOWN]]
    assert [one["note"] for one in found] == [
        "",
        "",
        "Its first 5 bytes name the schema 7 of a registry.",
        "Its first 10 bytes are the fingerprint of its schema.",
        "It is an Avro file with its own schema.",
    ]
    assert '"sum": -12.05' in found[0]["text"]


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ("{", "The schema is not JSON"),
        ('"text"', "The schema names the type “text”, which it does not define."),
        ("5", "A type must be a name, an object or a list."),
        ('{"type": "record"}', "A record has no name."),
        ('{"type": "record", "name": "a"}', "The list “fields” of the record a is missing."),
        ('{"type": "fixed", "name": "a", "size": -1}', "The fixed a has no size."),
        ('{"type": "array"}', "A type must be a name"),
        ("[" * 200 + "]" * 200, "The schema is nested deeper than 64 levels."),
        ('"' + "x" * 300_000 + '"', "at most 262144 letters"),
    ],
)
def test_a_wrong_schema_says_what_is_wrong(decode: Decode, schema: str, text: str) -> None:
    [found] = decode("avro", (b"\0", schema))
    assert (found["kind"], text in found["error"]) == ("BadSchema", True), found


@pytest.mark.parametrize(
    ("body", "schema", "text"),
    [
        (b"\x05", None, "Avro needs a schema."),
        (b"", '"int"', "It ends too early"),
        (b"\x02\x02", '"int"', "1 bytes follow after the value"),
        (b"\xff" * 11, '"long"', "a number has more than 10 bytes"),
        (b"\x7f", '"string"', "a text of -64 bytes"),
        (b"\x7e", '"string"', "a text of 63 bytes"),
        (b"\x04", ["null", "int"], "the number of a union is 2"),
        (b"\x02", '"boolean"', "a boolean is 2"),
        (b"Obj\x01\x02\x14avro.codec\x0edeflate\0" + b"s" * 16, None, "compressed by deflate"),
        (b"Obj\x01\0" + b"s" * 16, None, "It is an Avro file. The schema is not JSON"),
    ],
)
def test_a_body_that_does_not_fit_says_why(
    decode: Decode, body: bytes, schema: Any, text: str
) -> None:
    [found] = decode("avro", (body, schema))
    assert (found["kind"], text in found["error"]) == ("Undecodable", True), found


# Hostile bodies


def many_records(levels: int) -> Any:
    """Return a schema whose value has 8 to the power of `levels` parts, without any byte."""
    kind: Any = "null"
    for level in range(levels):
        named = kind if level == 0 else f"R{level - 1}"
        fields = [{"name": f"f{at}", "type": named if at else kind} for at in range(8)]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    return kind


LIST: Final = {
    "type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}],
}  # fmt: skip
BOMBS: Final[list[tuple[str, bytes, Any]]] = [
    ("json", b"[" * 100_000 + b"]" * 100_000, None),
    ("json", b"[" + b"1," * 400_000 + b"1]", None),
    ("json", b'{"a":' * 1_000 + b"1" + b"}" * 1_000, None),
    ("msgpack", b"\x91" * 100_000 + b"\xc0", None),
    ("msgpack", b"\xdd\xff\xff\xff\xff" + b"\x01" * 100_000, None),
    ("msgpack", b"\xdf\xff\xff\xff\xff" * 10_000, None),
    ("msgpack", b"\x81" * 50_000 + b"\xc0", None),  # names that are maps
    ("msgpack", b"\xc6\xff\xff\xff\xff", None),
    ("avro", b"\x80" + b"\xff" * 7 + b"\x7f\0", {"type": "array", "items": "null"}),
    ("avro", b"", many_records(20)),
    ("avro", b"\x02" * 100_000 + b"\0", LIST),
    ("avro", b"\xfe\xff\xff\xff\x0f" + b"x" * 100, '"bytes"'),
    ("avro", b"x", {"type": "fixed", "name": "f", "size": 1 << 40}),
]


def test_bombs_are_bounded(decode: Decode) -> None:
    """Each of these bodies is decoded or refused within a moment, and its text is bounded."""
    for kind, body, schema in BOMBS:
        begun_s = time.monotonic()
        [found] = decode(kind, (body, schema))
        assert time.monotonic() - begun_s < 10
        if "error" in found:
            assert found["kind"] in ("Undecodable", "Limit"), (kind, body[:10], found)
        else:
            assert len(found["text"]) <= 400_000
            assert "Only the beginning is shown." in found["note"], (kind, body[:10])


def test_random_bytes_never_break_a_decoder(decode: Decode) -> None:
    chance = random.Random(11)
    bodies = [chance.randbytes(chance.randrange(60)) for _ in range(1_000)]
    plain = avro(SCHEMA, order(next=order()))
    for _ in range(500):
        changed = bytearray(plain)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        bodies.append(bytes(changed))
    for kind in ("json", "msgpack", "avro"):
        for found in decode(kind, *((body, SCHEMA) for body in bodies)):
            assert found.get("kind") in (None, "Undecodable"), found
