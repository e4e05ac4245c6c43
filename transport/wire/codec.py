"""Codec: converts protocol messages to frames and back. No other module uses msgpack.

`encode` and `decode` are inverse for every message of `protocol.py`. The codec does not trust the
data of a peer. A frame that is not msgpack, an unknown opcode, and a wrong number or type of fields
each raise `UsageError` (E_BAD_COMMAND) with the reason. Data that is nested too deeply raises it
too, because Python could not print it, and msgpack could not pack it again for another actor. A
list takes memory for its actual elements, not for the number that its header claims (see
`_unpack`).
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from inspect import get_annotations
from itertools import accumulate, chain
from operator import attrgetter
from typing import Any, Final, cast

import msgpack

from ..block.block import Block, Column, Header, decode_header
from ..errors import E_BAD_ARGUMENT, E_BAD_BLOCK, E_BAD_COMMAND, E_TOO_BIG, UsageError
from ..records import field_names
from .protocol import (
    FRAMES_MAX,
    OPTIONS_BYTES_MAX,
    OPTIONS_NESTED_MAX,
    WORDS,
    Lookup,
    Manage,
    Open,
    Stats,
    Wire,
)

HEADERS_MAX: Final = 64  # the most headers of one message
NESTED_MAX: Final = 32  # the most levels of lists and maps in a protocol message; statistics have 9
# The most lists and maps in a value of a database, a file or an object.
VALUE_CONTAINERS_MAX: Final = 1_000_000
_SMALL_BYTES: Final = 1024
_FIRST_BYTES: Final = 13  # an array's head, an opcode and a request have at most so many
_UINT8: Final = 0xCC  # the first byte of such a number in msgpack
_UINT16: Final = 0xCD
_UINT_BYTES: Final = {_UINT8: 1, _UINT16: 2, 0xCE: 4, 0xCF: 8}  # bytes that follow the first one
# Each list and each map begins with one of these bytes.
_NESTING: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
# The control frames of these messages have at most OPTIONS_BYTES_MAX bytes.
_ASKING: Final[frozenset[type[Wire]]] = frozenset({Open, Lookup, Manage, Stats})
_ASKING_OPS: Final = frozenset(message.op for message in _ASKING)
_CONTAINERS: Final = frozenset({tuple, dict})
HeaderValue = str | bytes | int | float | bool | None
_PACKABLE: Final = (str, bytes, bytearray, memoryview, int, float)
_NAMES: Final[frozenset[type]] = frozenset({str})
_VALUES: Final[frozenset[type]] = frozenset({str, bytes, int, float, bool, type(None)})
CHECKED_BYTES: Final = 128 * 1024  # of headers that are unpacked at the same time
# The header of a message that is for one channel only (see dead_letter.py). It is an address, and
# no header that users see.
CHANNEL_HEADER: Final = "zsq-channel"
EXPIRES_HEADER: Final = "zsq-expires-ms"
DEDUPE_HEADER: Final = "zsq-dedupe-id"  # see dedupe.py
UNIQUE_KEY_HEADER: Final = "zsq-unique-key"  # see unique.py
UNIQUE_HEADER: Final = "zsq-unique"
UNREADABLE: Final = "zsq-unreadable"  # the name under which headers are shown that are not valid


_KINDS: Final = {kind.__name__: kind for kind in (bool, bytes, dict, float, int, str, tuple)}


def field_kinds(message: type[Wire]) -> dict[str, type]:
    """Return the type of each field of a message as msgpack unpacks it.

    It is read from the text of the annotation: `get_type_hints` for all messages would take longer
    than the rest of this module. A name that is none of msgpack's types is that of a `TypedDict`.
    """
    texts: dict[str, str] = {}
    for base in message.__mro__:
        texts = get_annotations(base) | texts
    return {name: _KINDS.get(texts[name].partition("[")[0], dict) for name in field_names(message)}


_PLANS: Final = {op: (message, (*field_kinds(message).values(),)) for op, message in WORDS.items()}


def _getter(message: type[Wire]) -> Callable[[Any], tuple[Any, ...]]:
    names = field_names(message)
    # With one name, `attrgetter` returns no tuple.
    return attrgetter("op", *names) if names else lambda bare: (bare.op,)


_GETTERS: Final = {message: _getter(message) for message in WORDS.values()}


def encode(message: Wire) -> bytes:
    """Return the control frame of a message.

    Raises `UsageError` (E_TOO_BIG) if its options exceed OPTIONS_BYTES_MAX, because the receiver
    would refuse it.
    """
    frame = bytes(msgpack.packb(_GETTERS[type(message)](message)))
    if len(frame) > OPTIONS_BYTES_MAX and type(message) in _ASKING:
        raise _too_large(type(message).__name__, len(frame))
    return frame


# Messages without fields, such as Pub and Beat, are always the same bytes.
_BARE: Final = {
    encode(message()): message() for message in WORDS.values() if not field_names(message)
}


def opcode(frame: Any) -> int:
    """Return the opcode of a control frame without unpacking it, or 0 if it has none.

    It is read only as `encode` packs it: an array of at most 15 values whose first one is a
    positive fixint (below 128), uint8 or uint16 in its shortest form. `decode` would accept a
    longer form of a small number, too, and then a gateway could take one message for another.
    """
    head = bytes(frame[:4])
    if len(head) < 2 or head[0] & 0xF0 != 0x90:
        return 0
    if head[1] < 0x80:
        return head[1]
    if head[1] == _UINT8 and len(head) > 2 and head[2] > 0x7F:
        return head[2]
    if head[1] == _UINT16 and len(head) > 3 and head[2]:
        return head[2] << 8 | head[3]
    return 0


def decode(frame: Any) -> Wire:
    """Return the message of a control frame.

    Raises `UsageError` (E_BAD_COMMAND) if it is invalid.
    """
    if type(frame) is bytes and (known := _BARE.get(frame)) is not None:
        return known
    if len(frame) > OPTIONS_BYTES_MAX:
        _check_large(frame)
    try:
        fields = _unpack(frame, use_list=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise UsageError(E_BAD_COMMAND, f"a control frame is not msgpack: {error}") from None
    if (
        type(fields) is not tuple
        or not fields
        or type(fields[0]) is not int
        or fields[0] not in _PLANS
    ):
        raise UsageError(E_BAD_COMMAND, f"unknown command {reprlib.repr(fields)[:60]}")
    message, kinds = _PLANS[fields[0]]
    if len(fields) != len(kinds) + 1:
        raise UsageError(
            E_BAD_COMMAND,
            f"{message.__name__} must have {len(kinds)} fields, not {len(fields) - 1}",
        )
    for value, kind in zip(fields[1:], kinds, strict=True):
        if type(value) is not kind:
            text = (
                f"a field of {message.__name__} must be of type {kind.__name__}, not "
                f"{reprlib.repr(value)[:40]}"
            )
            raise UsageError(E_BAD_COMMAND, text)
        if kind is dict and len(frame) > NESTED_MAX:
            _check_nested(bytes(frame), value)
            if message in _ASKING:
                _check_count(message, value)
    return message(*fields[1:])


def request_of(frame: Any) -> int:
    """Return the request of a control frame, also of one that `decode` refuses, or 0 without one.

    So a client that is newer than the broker learns which of its requests the broker does not know.
    A word that this version does not know has its request first, see "Versions" in PROTOCOL.md.
    """
    head = bytes(frame[:_FIRST_BYTES])
    op = opcode(head)
    known = WORDS.get(op)
    if not op or (known is not None and field_names(known)[:1] != ("request",)):
        return 0
    at = 2 if op < 0x80 else 3 if op <= 0xFF else 4
    # It is read by hand. msgpack would also make the lists and maps that a hostile peer puts here.
    first = head[at] if at < len(head) else 0
    size = _UINT_BYTES.get(first, 0)
    digits = head[at + 1 : at + 1 + size]
    if first < 0x80:
        return first
    return int.from_bytes(digits, "big") if size and len(digits) == size else 0


def _too_large(name: str, size: int) -> UsageError:
    return UsageError(
        E_TOO_BIG,
        (
            f"{name} of {size} bytes is over the limit of {OPTIONS_BYTES_MAX} bytes for a command "
            "with options"
        ),
    )


def _check_large(frame: Any) -> None:
    """Refuse a large frame before it is unpacked.

    It is refused if it is a message with options, or if `encode` would pack it differently.
    """
    op = opcode(frame)
    if not op:
        raise UsageError(E_BAD_COMMAND, f"unknown command of {len(frame)} bytes")
    if op in _ASKING_OPS:
        raise _too_large(WORDS[op].__name__, len(frame))


def _check_count(message: type[Wire], options: Any) -> None:
    """Refuse options with too many lists and maps.

    An empty map takes one byte in a frame and 64 bytes in memory.
    """
    level: list[Any] = [options]
    count = 0
    while level:
        count += len(level)
        if count > OPTIONS_NESTED_MAX:
            raise UsageError(
                E_TOO_BIG,
                (
                    f"the options of {message.__name__} must not have more than "
                    f"{OPTIONS_NESTED_MAX} lists and maps"
                ),
            )
        parts = chain.from_iterable(
            (*value, *value.values()) if type(value) is dict else value for value in level
        )
        level = [part for part in parts if type(part) in _CONTAINERS]


def _unpack(data: Any, **options: Any) -> Any:
    """Unpack bytes of an untrusted peer.

    msgpack before 1.2.4 allocates memory for as many values as a list claims to have, limited only
    by the number of bytes. It does so on each of 1,024 levels, so 1 MiB of data can take 8 GiB of
    memory. So this first skips over the data, which creates no values and shows whether the data is
    complete. The skip takes a sixth of the time of the unpacking.
    """
    if len(data) > _SMALL_BYTES:
        stepping = msgpack.Unpacker(None, max_buffer_size=len(data))
        stepping.feed(data)
        try:
            stepping.skip()
        except msgpack.exceptions.OutOfData:
            raise ValueError("Unpack failed: incomplete input") from None
    return msgpack.unpackb(data, **options)


def _check_nested(frame: bytes, fields: Any) -> None:
    """Refuse a map that is nested too deeply, because the broker passes maps on or writes them.

    The receivers of rows (ranges, runs) check them, and require numbers. A frame with at most
    NESTED_MAX lists and maps cannot be nested too deeply, so this does not check its contents.
    """
    if len(frame) - len(frame.translate(None, _NESTING)) <= NESTED_MAX:
        return
    level = [fields]
    for _ in range(NESTED_MAX):
        if dict in {*map(type, level)}:
            level = [(*value, *value.values()) if type(value) is dict else value for value in level]
        kinds = {*map(type, chain.from_iterable(level))}
        if not kinds & _CONTAINERS:
            return
        parts = chain.from_iterable(level)
        level = (
            [*parts] if kinds == {tuple} else [part for part in parts if type(part) in _CONTAINERS]
        )
    raise UsageError(
        E_BAD_COMMAND, f"a control frame is nested deeper than the limit of {NESTED_MAX} levels"
    )


def block_frames(blocks: Sequence[Block]) -> list[Any]:
    """Return two frames for each block: its header in wire form, and its payload object."""
    frames: list[Any] = []
    for block in blocks:
        frames.append(block.wire_header())
        frames.append(block.payload)
    return frames


def frames_blocks(frames: Sequence[Any]) -> list[Block]:
    """Return blocks from their frames (bytes, or anything with a `buffer` like a zmq.Frame).

    Only headers are checked.
    """
    if len(frames) % 2 or len(frames) > FRAMES_MAX:
        raise UsageError(
            E_BAD_COMMAND,
            (
                f"a message must have two frames for each block and at most {FRAMES_MAX} frames, "
                f"not {len(frames)}"
            ),
        )
    blocks = []
    for i in range(0, len(frames), 2):
        head, payload = frames[i], frames[i + 1]
        columns = memoryview(getattr(payload, "buffer", payload))
        header: Header = decode_header(getattr(head, "buffer", head))
        if header.length != len(columns) + len(getattr(head, "buffer", head)):
            raise UsageError(
                E_BAD_COMMAND,
                (
                    f"the header of a block says {header.length} bytes, but {len(columns) + 64} "
                    "bytes arrived"
                ),
            )
        blocks.append(Block(header, payload, columns))
    return blocks


def pack_headers(headers: Mapping[str, HeaderValue]) -> bytes:
    """Return message headers as one msgpack map, as a block contains them.

    Raises `UsageError`: E_TOO_BIG for more than HEADERS_MAX headers, and E_BAD_ARGUMENT for a name
    that is not text, or a value of another type than `HeaderValue`.
    """
    if len(headers) > HEADERS_MAX:
        raise UsageError(
            E_TOO_BIG, f"a message has {len(headers)} headers; the limit is {HEADERS_MAX}"
        )
    for name, value in headers.items():
        if not isinstance(name, str):
            raise UsageError(E_BAD_ARGUMENT, f"the name of a header must be text, not {name!r:.40}")
        if value is not None and not isinstance(value, _PACKABLE):
            text = (
                f"header {name!r:.40} must be text, bytes, a number, a boolean or None, not "
                f"{type(value).__name__}"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
    try:
        return bytes(msgpack.packb(dict(headers)))
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            E_BAD_ARGUMENT, f"headers must map text to text, bytes or numbers: {error}"
        ) from None


def user_headers(data: bytes | None, *, address: bool = False) -> dict[str, HeaderValue]:
    """Return the headers of one message as users see them. This never raises.

    A client of another kind may have stored headers that are not valid, before the broker refused
    them. They are shown unchanged under the name UNREADABLE, because one message must not stop a
    reader. The address of a message for one channel is left out, unless `address` is True.
    """
    try:
        headers = unpack_headers(data)
    except UsageError:
        return {UNREADABLE: data or b""}
    if not address:
        headers.pop(CHANNEL_HEADER, None)
    kinds = {type(value) for value in headers.values()}
    if not (kinds <= _VALUES and {type(name) for name in headers} <= _NAMES):
        return {UNREADABLE: data or b""}
    return headers


def check_headers(column: Column) -> None:
    """Check the headers of all messages of a block, which a client has packed.

    Raises `UsageError` (E_BAD_BLOCK) unless each value is one msgpack map from text to text, bytes,
    numbers, booleans or nil. Values that are equal are checked once. The maps are unpacked one
    after the other by one unpacker, and their types are compared as sets. For a thousand different
    messages with two headers each this takes half of the time of a loop over the messages.
    """
    distinct = {*column.values()}
    distinct -= {None, b""}
    maps = cast("list[bytes]", list(distinct))
    if len(column.data) <= CHECKED_BYTES:
        _check_maps(maps)
        return
    begin = size = 0
    for end, packed in enumerate(maps, 1):
        size += len(packed)
        if size >= CHECKED_BYTES or end == len(maps):
            _check_maps(maps[begin:end])
            begin, size = end, 0


def _check_maps(maps: Sequence[bytes]) -> None:
    """Check some headers. They are short, because a map of one byte takes 64 bytes in memory."""
    unpacker = msgpack.Unpacker(
        None, max_buffer_size=0, max_array_len=0, max_map_len=HEADERS_MAX, max_ext_len=0
    )
    unpacker.feed(b"".join(maps))
    unpack, tell = unpacker.unpack, unpacker.tell
    found: list[dict[Any, Any]] = []
    try:
        for end in accumulate(map(len, maps)):
            found.append(unpack())
            if tell() != end:
                raise ValueError("headers must be one map")
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise _bad_headers(str(error) or "they end too early") from None
    if {*map(type, found)} - {dict}:
        raise _bad_headers("they are not a map")
    if {*map(type, chain.from_iterable(found))} - _NAMES:
        raise _bad_headers("a name is not text")
    kinds = {*map(type, chain.from_iterable(map(dict.values, found)))} - _VALUES
    if kinds:
        raise _bad_headers(f"a value is of type {kinds.pop().__name__}")


def _bad_headers(why: str) -> UsageError:
    return UsageError(
        E_BAD_BLOCK,
        (
            f"the headers of a message are not valid ({why}); they map text to text, bytes, "
            "numbers, true, false or nil"
        ),
    )


def unpack_headers(data: bytes | None) -> dict[str, HeaderValue]:
    """Return the headers of one message, or {} if it has none."""
    if not data:
        return {}
    try:
        headers = _unpack(data)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise UsageError(
            E_BAD_ARGUMENT, f"message headers are not a msgpack map: {error}"
        ) from None
    if type(headers) is not dict:
        raise UsageError(E_BAD_ARGUMENT, "message headers are not a msgpack map")
    return headers


def pack_value(value: Any) -> bytes:
    """Pack a value of msgpack's types, for a database or a file."""
    return bytes(msgpack.packb(value))


def unpack_body(data: bytes) -> Any:
    """Unpack the body of a message, which any publisher may have written.

    Lists become tuples. Raises `ValueError` if the body is not one complete msgpack value.
    """
    try:
        return _unpack(data, use_list=False, strict_map_key=False)
    except (TypeError, msgpack.exceptions.UnpackException) as error:
        raise ValueError(f"not msgpack: {error}") from None


def unpack_value(data: Any) -> Any:
    """Unpack bytes from a database, a file or an object. Lists become tuples.

    Raises `ValueError` if they are not one complete msgpack value, or if that has more than
    VALUE_CONTAINERS_MAX lists and maps. An empty one has one byte, and 64 in memory.
    """
    hooks: dict[str, Any] = {}
    if len(data) > VALUE_CONTAINERS_MAX:
        limit = _ContainerLimit()
        hooks = {"list_hook": limit.count, "object_hook": limit.count}
    try:
        return _unpack(data, use_list=False, strict_map_key=False, **hooks)
    except msgpack.exceptions.UnpackException as error:
        raise ValueError(f"not msgpack: {error}") from None


class _ContainerLimit:
    """Refuses a value while it is unpacked, when it has too many lists and maps."""

    def __init__(self) -> None:
        self._left = VALUE_CONTAINERS_MAX

    def count(self, container: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ValueError(f"more than {VALUE_CONTAINERS_MAX} lists and maps")
        return container


def fitting(values: Mapping[str, object], max_bytes: int) -> dict[str, object]:
    """Cut the lists of rows (maps) in `values` to `max_bytes` bytes together.

    `NAME_left_out` is the number of rows that are missing in a list.
    """
    cut: dict[str, object] = {}
    for name, value in values.items():
        cut[name] = value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Mapping):
            rows, max_bytes = first_rows(value, max_bytes)
            cut[name] = rows
            if len(rows) < len(value):
                cut[f"{name}_left_out"] = len(value) - len(rows)
    return cut


def first_rows(rows: Sequence[Any], max_bytes: int) -> tuple[Sequence[Any], int]:
    """Return the first rows that take at most `max_bytes` bytes in a frame, and the bytes left."""
    for number, row in enumerate(rows):
        size = len(pack_value(row))
        if size > max_bytes:
            return rows[:number], max_bytes
        max_bytes -= size
    return rows, max_bytes
