"""Fuzz targets for the bytes on the wire: control frames, messages of several frames, blocks,
packed headers, names and URLs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import struct
from collections.abc import Sequence
from random import Random
from typing import Any, Final

import msgpack
from crc32c import crc32c
from faults.fuzzing import Target, Trial
from faults.mutation import Mutator, deep_frame

from zsq.apps.spark.planning import StreamPosition
from zsq.storage.delayed.delayed_format import parse_key
from zsq.storage.log.log_format import parse_bad_name, parse_chunk_name
from zsq.storage.nsq.disk_queue_format import parse_data_name, parse_meta_name
from zsq.transport.block.block import (
    Block,
    Header,
    check_block,
    check_columns,
    cut,
    decode_header,
    encode_header,
    gather,
    pack,
)
from zsq.transport.block.block_format import HEADER_BYTES, HEADERS_BYTES_MAX, WIRE_MAGIC
from zsq.transport.client.core import message as message_module
from zsq.transport.errors import UsageError, ZsqError
from zsq.transport.names import check_name
from zsq.transport.wire import address, codec, sockets
from zsq.transport.wire.dead_letter import addressees, pack_dead, redriven
from zsq.transport.wire.protocol import WORDS, Wire, check_transaction

Buffers = tuple[bytes, ...]


# Protocol messages

_NAMED: Final[dict[str, Any]] = {  # by field name: values that the field has in practice
    "ranges": ((5, 3), (9, 1)), "refused": ((5, 3),), "runs": ((5, 3, 1), (9, 1, 2)), "blocks": ((3, 100), (4, -1)),
    "parts": ((bytes(range(16)), 2, 10, 4_000, 77), (bytes(16), 1, 1, 128, 5)), "stages": (bytes(range(16)),), "keys": ((5, 6), (7, 8)),
    "delays_ms": (1, 1_000), "holes_put": ((5, 2, 1, 0), (9, 1, 1, 10**18)), "holes_gone": (5, 9), "endpoints": ("ipc:///run/zsq/5",),
    "targets": ((5, "ipc:///run/zsq/5"),), "results": ((5, 1, 0), (6, -1, 10**15)), "channels": ((5, "ipc:///run/zsq/5"),),
    "workers": ("ipc:///run/zsq/9",), "events": ({"event": "backlog", "topic": "clicks"},), "topic": "clicks", "channel": "archive",
    "stage": bytes(range(16)), "app": "query", "kind": "app", "action": "pause", "code": "E_LIMIT", "text": "too many", "version": 1,
    "heartbeat_ms": 30_000, "ready": 100, "request": 7, "label": "me", "row": {"next": 5, "paused": False, "counters": {"a": 1}},
    "settings": {"tags": "a||b", "ordered": True, "max_attempts": 3, "start": "earliest"},
    "options": {"offset": 5, "sync": "always", "max_age_s": 5.0, "do": "list", "limit": 10, "to": "publishers"},
    "data": {"uuid": "00" * 16, "head": 5, "rows": ((5, 1, 1, 10**18),), "producers": {7: (3, ((2, 100),))}},
}  # fmt: skip
_DEFAULTS: Final[dict[type, Any]] = {
    int: 5,
    str: "text",
    bytes: b"bytes",
    bool: True,
    float: 0.5,
    tuple: ((1, 2),),
    dict: {"a": 1},
}


def usual_fields(message: type[Wire]) -> list[Any]:
    """Return fields with values that such a message has in practice."""
    kinds = codec.field_kinds(message).items()
    return [
        _NAMED[name] if type(_NAMED.get(name)) is kind else _DEFAULTS[kind] for name, kind in kinds
    ]


USUAL: Final = {op: usual_fields(message) for op, message in WORDS.items()}
FRAMES: Final = [codec.encode(WORDS[op](*fields)) for op, fields in USUAL.items()]


def typed_word(mutator: Mutator, op: int) -> Wire:
    """Return a message whose fields have the right types and any values."""
    fields: list[Any] = []
    for value in USUAL[op]:
        made = mutator.like(value)
        while type(made) is not type(value):
            made = mutator.like(value)
        fields.append(made)
    return WORDS[op](*fields)


def word_frame(mutator: Mutator, ops: Sequence[int] = tuple(USUAL)) -> bytes:
    """Return the control frame of a nearly correct message: its bytes or its fields are changed."""
    op = mutator.one(ops)
    if mutator.chance(2):
        return mutator.bytes_like([codec.encode(WORDS[op](*USUAL[op])), mutator.one(FRAMES)])
    fields = [mutator.like(value) for value in USUAL[op]]
    if mutator.chance(10):
        levels = mutator.one((20, 31, 32, 33, 100, 500, 1_000, 1_020, 1_022, 1_023, 5_000))
        return deep_frame(op, max(1, len(fields)), levels, mutator.below(max(1, len(fields))))
    with contextlib.suppress(ValueError):
        return bytes(msgpack.packb((op, *fields)))
    return FRAMES[0]


def _try_word(frame: bytes) -> bool:
    try:
        message = codec.decode(frame)
    except UsageError as error:
        return _refused(error)
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        # Dicts are passed on unchanged, and shown. Rows are checked by the code that uses them.
        if type(value) is dict:
            assert codec.pack_value(
                codec.unpack_value(codec.pack_value(value))
            ) == codec.pack_value(value)
            repr(value)
    return True


def _refused(error: ZsqError) -> bool:
    assert len(str(error)) < 1_000, "an error names what was wrong, and does not repeat it all"
    return False


def _words(mutator: Mutator) -> Trial:
    return Trial(lambda: word_frame(mutator), _try_word)


class Part:
    """A message part as ZeroMQ returns it."""

    def __init__(self, data: bytes) -> None:
        self.bytes = data
        self.buffer = memoryview(data)

    def __len__(self) -> int:
        return len(self.bytes)


def _try_message(parts: Buffers) -> bool:
    try:
        envelope, message, rest = sockets.open_frames([Part(part) for part in parts])
        codec.frames_blocks(rest)
    except ZsqError:
        return False
    assert len(envelope) + 2 + len(rest) == len(parts)
    return type(message) in WORDS.values()


def message_frames(mutator: Mutator) -> Buffers:
    """Return a whole, nearly correct message: envelope, empty frame, control frame, blocks."""
    parts = [b"client"] * mutator.below(3) + [
        b"",
        mutator.one(FRAMES) if mutator.chance(2) else word_frame(mutator),
    ]
    for _ in range(mutator.below(3)):
        parts += block_frames(mutator)
    while mutator.chance(3):
        at = mutator.below(len(parts) + 1)
        parts[at:at] = [mutator.random.randbytes(mutator.below(70))] * (
            1 if not mutator.chance(50) else mutator.below(1_100)
        )
    while mutator.chance(3) and parts:
        del parts[mutator.below(len(parts))]
    return tuple(parts)


# Blocks


def _corpus() -> list[Block]:
    headers = [
        codec.pack_headers({"a": 1, "zsq-channel": "archive"}),
        None,
        codec.pack_headers({"zsq-dead-topic": "x"}),
    ]
    return [
        pack([b"hello"]),
        pack([b"hello", b"zsq"], keys=[b"k", None], producer_id=77, sequence=5),
        pack([b"", b"x" * 100, b"y"], tags=[b"a", None, b"b"], headers=headers, times=[1, 2, 3]),
        pack(
            [b"%d" % i for i in range(40)],
            keys=[b"%d" % i for i in range(40)],
            tags=[None] * 40,
            times=list(range(40)),
        ),
        pack([b"same"] * 17, headers=headers[:1] * 17),
        cut(pack([b"%d" % i for i in range(30)], keys=[None, b"k"] * 15), 7, 25),
    ]


BLOCKS: Final = _corpus()
BLOCK_FRAMES: Final = [(block.wire_header(), bytes(block.columns)) for block in BLOCKS]


def block_frames(mutator: Mutator) -> tuple[bytes, bytes]:
    """Return a nearly correct header and columns. In most cases the checksums are correct, so that
    the code after the check is tried too.
    """
    head, columns = mutator.one(BLOCK_FRAMES)
    if mutator.chance(3):
        columns = mutator.changed(columns)
        columns += bytes(-len(columns) % 8)
    header = decode_header(head)
    if mutator.chance(3):
        return mutator.changed(head), columns
    if mutator.chance(2):
        header = changed_header(mutator, header)
    if mutator.chance(6):
        return _head(header), columns
    length = HEADER_BYTES + len(columns)
    columns = (
        columns[:-8] + struct.pack("<II", length, 0x42515A5F) if len(columns) >= 8 else columns
    )
    return _head(header._replace(length=length, columns_crc=crc32c(columns[:-8]))), columns


def changed_header(mutator: Mutator, header: Header) -> Header:
    name = mutator.one(header._fields)
    bits = {
        "columns": 0xFF,
        "flags": 0xFFFF,
        "first_offset": 1 << 63,
        "time_ns": 1 << 63,
        "producer_id": 1 << 64,
        "sequence": 1 << 64,
    }
    limit: int = bits.get(name, 0xFFFF_FFFF)
    if name in ("columns", "flags"):
        return header._replace(
            **{name: getattr(header, name) ^ 1 << mutator.below(limit.bit_length())}
        )
    return header._replace(**{name: mutator.whole() % limit})


def _head(header: Header) -> bytes:
    return encode_header(header._replace(length=header.length & 0xFFFF_FFFF), magic=WIRE_MAGIC)


def read_all(block: Block) -> list[tuple[Any, ...]]:
    """Read every value of a block that has passed its check, in both ways that exist. The results
    must agree.
    """
    columns = [block.body, block.key, block.tag, block.headers]
    rows = [[None] * block.count if column is None else column.values() for column in columns]
    for column, values in zip(columns, rows, strict=True):
        if column is not None:
            for index in {0, block.count // 2, block.count - 1}:
                assert column.value(index) == values[index]
    times = [block.time_of(index) for index in range(block.count)]
    return list(zip(*rows, times, strict=True))


def _try_block(random: Random, frames: tuple[bytes, bytes]) -> bool:
    try:
        (block,) = codec.frames_blocks(frames)
        check_columns(block.header, block.columns)
        check_block(block)
    except ZsqError:
        return False
    if not block.count:
        return False  # a block without messages (a mark): a topic refuses blocks with its flag
    rows = read_all(block)
    start = int(random.random() * block.count)
    stop = start + 1 + int(random.random() * (block.count - start))
    piece = cut(block, start, stop)
    check_block(piece)
    assert read_all(piece) == rows[start:stop]
    both = gather([(block, start, stop), (block, 0, 1)])
    check_block(both)
    assert read_all(both) == rows[start:stop] + rows[:1]
    for _ in addressees(block):
        pass
    for *_, headers, _ in rows[:3]:
        _try_headers(headers or b"")
    return True


def _blocks(mutator: Mutator) -> Trial:
    return Trial(lambda: block_frames(mutator), lambda frames: _try_block(mutator.random, frames))


# Headers, names, endpoints

HEADERS: Final = [
    codec.pack_headers({"a": 1, "b": b"x", "c": "ä", "d": None, "e": 1.5}),
    codec.pack_headers(
        {
            "zsq-dead-topic": "t",
            "zsq-dead-error": "x" * 400,
            "zsq-channel": "c",
            "zsq-redriven-topic": "t",
        }
    ),
    codec.pack_headers({str(i): i for i in range(64)}),
    bytes(msgpack.packb({"a": {"b": (1, 2, {"c": None})}})),
    bytes(msgpack.packb({b"bytes": 1, "zsq-channel": 5})),
    b"",
]
_ABOUT: Final[dict[str, codec.HeaderValue]] = {
    "zsq-dead-topic": "t",
    "zsq-dead-error": "ä" * 512,
    "zsq-dead-offset": 5,
}


def _try_headers(data: bytes) -> bool:
    if len(data) <= HEADERS_BYTES_MAX:
        assert len(pack_dead(data, _ABOUT)) <= HEADERS_BYTES_MAX
    try:
        found = codec.unpack_headers(data)
    except UsageError:
        return False
    codec.unpack_headers(pack_dead(data, _ABOUT)) if len(data) <= HEADERS_BYTES_MAX else None
    with contextlib.suppress(UsageError):
        codec.pack_headers(redriven(found, "archive"))
    return True


def packed_headers(mutator: Mutator) -> bytes:
    if mutator.chance(2):
        return mutator.bytes_like(HEADERS)
    with contextlib.suppress(ValueError):
        return bytes(
            msgpack.packb(
                mutator.like({"a": 1, "zsq-channel": "c", "b": b"x", "zsq-dead-error": "e"})
            )
        )
    return b"\x81\xa1a" + b"\x91" * mutator.below(1_030) + b"\x80"


def _headers(mutator: Mutator) -> Trial:
    return Trial(lambda: packed_headers(mutator), _try_headers)


_NAMES: Final = [
    b"clicks", b"c.d-e_f", b"temp#ephemeral", b"x" * 64, b"00000000000000001000.chunk", b"00000000000000001000-128.bad",
    b"q.diskqueue.000007.dat", b"a:b.diskqueue.meta.dat", b"tcp://127.0.0.1:4153", b"ipc:///var/lib/zsq/run", b"tcp://[::1]:4153",
    b"0123456789abcdef", b"0123456789abcdef0123456789abcdef", b"12345", "ä١²".encode(),
]  # fmt: skip


def _names(mutator: Mutator) -> Trial:
    return Trial(
        lambda: mutator.bytes_like(_NAMES).decode(
            errors="surrogateescape" if mutator.chance(2) else "replace"
        ),
        _try_name,
    )


def _try_name(text: str) -> bool:
    for parse in (parse_chunk_name, parse_bad_name, parse_data_name, parse_meta_name, parse_key):
        parse(text)
    refused = 0
    for check in (
        check_name,
        address.parse,
        message_module.parse_id,
        lambda name: check_transaction(name, 1, "app"),
    ):
        try:
            check(text)
        except UsageError:
            refused += 1
    return refused < 4


_PLACES: Final = [
    b'{"version": 1, "topics": {"clicks": {"0": 1234}}, "uuids": {"clicks": "00112233445566778899aabbccddeeff"}}',
    b'{"version": 1, "topics": {"a": {"0": 0}, "b": {"0": 99999999999}}, "uuids": {"a": "", "b": ""}}',
    b'{"version": 2}', b"[]", b"null", b"1e400", b"[[[[{}]]]]",
]  # fmt: skip


def _try_place(data: bytes) -> bool:
    try:
        StreamPosition.from_json(data.decode(errors="replace"))
    except UsageError:
        return False
    return True


def _places(mutator: Mutator) -> Trial:
    return Trial(lambda: mutator.bytes_like(_PLACES), _try_place)


def messages(mutator: Mutator) -> Trial:
    return Trial(lambda: message_frames(mutator), _try_message)


TARGETS: Final[Sequence[Target]] = (
    Target("words", _words, 30),
    Target("messages", messages, 10),
    Target("blocks", _blocks, 20),
    Target("headers", _headers, 6),
    Target("names", _names, 4),
    Target("places", _places, 4),
)
