"""Format of shipping: names of objects, ticks, tails of topics, and boundaries. No I/O.

    PREFIX/log/NUMBER                a tick: what is new in all topics since the tick before
    PREFIX/boundary/NUMBER           nothing below this number in log/ counts
    PREFIX/state/TOPIC-UUID/NAME     the rows of a topic's stores, if they are too large for a tick

NUMBER has 20 digits. The numbers of ticks ascend by 1, except after a takeover.

    tick = head (32 bytes)  index (msgpack)  pieces
    piece = ranges of chunk files  frames of changed rows (`row_changes.py`)

A *piece* is the part of a tick that belongs to one topic. Its ranges are bytes of the topic's chunk
files, each with its place in its file. So a restore writes them to the same places, and the
checksums of the blocks, which contain these places, stay valid. Its frames are the changes of the
topic's stores, in the order of their commits. A store never runs ahead of the log. So the pieces up
to any tick are a state in which a power cut could have left the topic's directory, and the ordinary
recovery reads it.

If `begins` is True, the changes begin with all rows of both stores. A topic begins anew when its
process starts, and when the ticks with its older changes should be removed.

A *takeover* is a tick that begins an epoch. Each process that ships creates one before its first
tick. Each tick names the one before it (`previous`). `WINDOW` ticks may be on their way at once. If
their sender dies, some of the requests may take effect much later. So after a takeover with number
T, the next number is T + 1 + WINDOW, and whatever appears between the two does not count.
Takeovers are never removed. Otherwise a process that was stopped for a long time could create the
number that it wanted, although another process has taken over. `tests/models/shipping_model.py`
checks these rules.

The *tail* of a topic says what the log of ticks has of it. Takeovers, and every `TAILS_EVERY`th
tick, contain the tails of all topics, so a start reads only the ticks after the last of these.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from ....transport.checksum import crc32c
from ....transport.wire.codec import pack_value, unpack_value
from ... import documents
from ...errors import Damaged, newer
from ...foreign import text_of, uuid_of, whole_number
from ...log.log_format import CHUNK_FILE_BYTES_MAX

VERSION: Final = 1
LOG: Final = "log"
BOUNDARIES: Final = "boundary"
STATES: Final = "state"
WINDOW: Final = 4
TAILS_EVERY: Final = 64
# A tick is sent when it has this many bytes, and a piece has at most this many bytes of ranges.
TICK_BYTES: Final = 4 * 1024 * 1024
# The most bytes of changes in a piece. Larger ones are an object.
CHANGES_BYTES_MAX: Final = 4 * 1024 * 1024
INDEX_BYTES_MAX: Final = 64 * 1024 * 1024
REGISTRY_BYTES_MAX: Final = 64 * 1024 * 1024
# One read of this size returns head and index of most ticks.
INDEX_READ_BYTES: Final = 64 * 1024

NEVER: Final = 1 << 62

TICK_MAGIC: Final = b"ZSQT"
TICK: Final = 0
TAKEOVER: Final = 1
# magic, version, kind, number, bytes of the index, crc of the index
_HEAD: Final = struct.Struct("<4sHHqII4s")
_CRC: Final = struct.Struct("<I")
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1
_BASE: Final = re.compile(rf"{STATES}/[0-9a-f]{{32}}/[0-9a-f]{{16}}\.[0-9a-f]{{8}}", re.ASCII)
HEAD_BYTES: Final = _HEAD.size + _CRC.size
assert HEAD_BYTES == 32


class Range(NamedTuple):
    """The bytes from `start` to `stop` of the chunk file that begins at `base_offset`."""

    base_offset: int
    start: int
    stop: int


class Piece(NamedTuple):
    """The part of one topic in a tick.

    * `uuid`: the topic's, with 32 hex digits.
    * `stream`, `sequence`: the stream is a random number of each process of the topic, and the
      sequences of its pieces ascend by 1 from 1.
    * `begins`: the changes begin with all rows.
    * `base`: the name of the object with these rows, or "" if they are in the piece.
    * `end`: the ranges of all pieces so far contain all messages below this offset.
    * `reserved`: the topic gives out no offset from here on before a later piece reserves more.
    * `kept_from`: the chunks below this offset are in the archive.
    * `ranges`: what the piece has of the log.
    * `change_bytes`: the size of the frames behind the ranges.
    * `position`, `crc`: place in the tick, and checksum of all bytes of the piece.
    """

    uuid: str
    stream: int
    sequence: int
    begins: bool
    base: str
    end: int
    reserved: int
    kept_from: int
    ranges: tuple[Range, ...]
    change_bytes: int
    position: int = 0
    crc: int = 0

    @property
    def range_bytes(self) -> int:
        return sum(one.stop - one.start for one in self.ranges)

    @property
    def size(self) -> int:
        return self.range_bytes + self.change_bytes


class Tail(NamedTuple):
    """The tail of a topic: what the log of ticks has of it.

    `chunk` and `position` are the place in the log up to which it was shipped: `chunk` is the first
    offset of the file. `base_number` is the tick in which its changes began, or -1 if there is none
    yet, and `chunk_numbers` maps each chunk that is not archived to the tick with its first bytes.
    """

    stream: int
    sequence: int
    end: int
    reserved: int
    chunk: int
    position: int
    base_number: int
    base: str
    chunk_numbers: Mapping[int, int]

    @property
    def needed(self) -> int:
        """The oldest tick that a restore of the topic needs."""
        numbers = [self.base_number, *self.chunk_numbers.values()]
        return min((number for number in numbers if number >= 0), default=NEVER)


class Index(NamedTuple):
    """The index of a tick.

    * `epoch`: counts the takeovers.
    * `archive`: the identity of the archive, see `claim.py`.
    * `copy`: the identity of the data directory. A restored directory has a new one.
    * `host`, `time_ns`: who wrote it, and when, for people.
    * `previous`: the digest of the tick before it, "" for the first one.
    * `takeover`: the number of the last takeover, or of the one before it for a takeover. -1: none.
    * `registry`: (position, size, crc) of the registry in this tick, or () without one.
    * `registry_number`: the tick that has the newest registry, -1 if there is none.
    * `tails`: of all topics, or None.
    * `addresses`: where clients reach the writer.
    * `lease_ms`: how long it may acknowledge publishes after this tick, 0 if no standby limits it.
    * `is_released`: the writer has stopped, and acknowledges nothing more.
    * `is_ended`: a takeover by nobody. The broker was forgotten by its cluster, and no process may
      continue its log (`log_end.py`).
    """

    kind: int
    number: int
    epoch: int
    archive: str
    copy: str
    host: str
    time_ns: int
    previous: str
    takeover: int
    registry: tuple[int, ...]
    registry_number: int
    pieces: tuple[Piece, ...]
    tails: Mapping[str, Tail] | None = None
    addresses: tuple[str, ...] = ()
    lease_ms: int = 0
    is_released: bool = False
    is_ended: bool = False


def log_object(number: int) -> str:
    return f"{LOG}/{number:020d}"


def boundary_object(number: int) -> str:
    return f"{BOUNDARIES}/{number:020d}"


def state_folder(uuid: str) -> str:
    return f"{STATES}/{uuid}/"


def state_object(uuid: str, stream: int, crc: int) -> str:
    return f"{state_folder(uuid)}{stream:016x}.{crc:08x}"


def number_of(name: str) -> int:
    """Return the number in the name of a tick or of a boundary, or -1 for another name."""
    digits = name.rpartition("/")[2]
    return int(digits) if len(digits) == 20 and digits.isascii() and digits.isdecimal() else -1


def after(index: Index) -> int:
    """Return the number that follows this tick."""
    return index.number + 1 + (WINDOW if index.kind == TAKEOVER else 0)


def digest_of(encoded: bytes) -> str:
    """Return the digest of an encoded index. It covers the checksums of all pieces."""
    return blake2b(encoded, digest_size=16).hexdigest()


def _tail_row(tail: Tail) -> tuple[Any, ...]:
    return (*tail[:-1], tuple(tail.chunk_numbers.items()))


def _encode_index(index: Index) -> bytes:
    row = index._asdict()
    if index.tails is not None:
        row["tails"] = {uuid: _tail_row(tail) for uuid, tail in index.tails.items()}
    return pack_value(row)


@dataclass(frozen=True, slots=True)
class EncodedTick:
    """A tick as bytes, and the digest that the next one names."""

    data: bytes
    digest: str
    index: Index


def encode_tick(
    index: Index, bodies: Sequence[bytes | memoryview], registry: bytes = b""
) -> EncodedTick:
    """Encode a tick. `bodies` has the bytes of each piece of the index.

    Positions and checksums of the pieces are filled in here. They are relative to the end of the
    index, so that they do not depend on its size.
    """
    position = len(registry)
    placed = []
    for piece, body in zip(index.pieces, bodies, strict=True):
        assert len(body) == piece.size
        placed.append(piece._replace(position=position, crc=crc32c(body)))
        position += len(body)
    place = (0, len(registry), crc32c(registry)) if registry else ()
    index = index._replace(pieces=tuple(placed), registry=place)
    encoded = _encode_index(index)
    head = _HEAD.pack(
        TICK_MAGIC, VERSION, index.kind, index.number, len(encoded), crc32c(encoded), b""
    )
    pieces = [head, _CRC.pack(crc32c(head)), encoded, registry, *bodies]
    return EncodedTick(b"".join(pieces), digest_of(encoded), index)


class Head(NamedTuple):
    """The head of a tick: what it is, and where its pieces begin."""

    kind: int
    number: int
    index_bytes: int
    index_crc: int

    @property
    def body(self) -> int:
        """The position of the first byte behind the index."""
        return HEAD_BYTES + self.index_bytes


def decode_head(data: bytes) -> Head:
    """Return the head of a tick. Raises `Damaged` or `ForeignDirectory`."""
    head = data[: _HEAD.size]
    if len(data) < HEAD_BYTES or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        raise Damaged("the head of the tick is damaged")
    magic, version, kind, number, size, crc, _ = _HEAD.unpack(head)
    if magic != TICK_MAGIC or kind not in (TICK, TAKEOVER):
        raise Damaged("the object is not a tick")
    if version != VERSION:
        raise newer("the tick", version, VERSION)
    if size > INDEX_BYTES_MAX:
        raise Damaged("the head of the tick is damaged: its index is too large")
    return Head(kind, number, size, crc)


@dataclass(frozen=True, slots=True)
class DecodedIndex:
    """An index, its digest, and where the pieces begin in the object."""

    index: Index
    digest: str
    body: int


def decode_index(data: bytes) -> DecodedIndex:
    """Return the index from the first bytes of a tick. Raises `Damaged` or `ForeignDirectory`."""
    head = decode_head(data)
    encoded = data[HEAD_BYTES : head.body]
    if len(encoded) != head.index_bytes or crc32c(encoded) != head.index_crc:
        raise Damaged("the index of the tick is damaged")
    try:
        row = unpack_value(encoded)
        row["pieces"] = tuple(_piece(one) for one in row["pieces"])
        row["registry"] = _registry(row["registry"])
        row["addresses"] = tuple(map(text_of, row["addresses"]))
        if row["tails"] is not None:
            row["tails"] = {
                uuid_of(uuid): _tail(str(uuid), one) for uuid, one in row["tails"].items()
            }
        for name in ("archive", "copy", "host", "previous"):
            text_of(row[name])
        index = Index(**row)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the index of the tick has a wrong form: {error!r}") from error
    if index.number != head.number or index.kind != head.kind:
        raise Damaged("the head of the tick contradicts its index")
    return DecodedIndex(index, digest_of(encoded), head.body)


def _registry(row: Sequence[Any]) -> tuple[int, ...]:
    if not row:
        return ()
    position, size, crc = row
    return (
        whole_number(position),
        whole_number(size, REGISTRY_BYTES_MAX),
        whole_number(crc, _U32_MAX),
    )


def _piece(row: Sequence[Any]) -> Piece:
    """Return a piece. Raises `ValueError` or `TypeError` if a field cannot be what it says."""
    piece = Piece(*row)
    _check_base(uuid_of(piece.uuid), piece.base)
    for number in (piece.sequence, piece.end, piece.reserved, piece.kept_from, piece.position):
        whole_number(number)
    whole_number(piece.change_bytes, CHANGES_BYTES_MAX)
    whole_number(piece.stream, _U64_MAX)
    return piece._replace(ranges=tuple(_range(one) for one in piece.ranges))


def _range(row: Sequence[Any]) -> Range:
    base_offset, start, stop = row
    stop = whole_number(stop, CHUNK_FILE_BYTES_MAX)
    return Range(whole_number(base_offset), whole_number(start, stop), stop)


def _check_base(uuid: str, base: object) -> None:
    """Check the name of the object with all rows of a topic. Raises `ValueError`."""
    name = text_of(base)
    if name and not (name.startswith(state_folder(uuid)) and _BASE.fullmatch(name)):
        raise ValueError(f"{name!r:.120} is not an object with rows of topic {uuid}")


def _tail(uuid: str, row: Sequence[Any]) -> Tail:
    *fields, chunk_numbers = row
    numbers = {whole_number(chunk): whole_number(number) for chunk, number in chunk_numbers}
    tail = Tail._make((*fields, numbers))
    _check_base(uuid, tail.base)
    whole_number(tail.stream, _U64_MAX)
    for number in (tail.sequence, tail.end, tail.reserved, tail.chunk):
        whole_number(number)
    whole_number(tail.position, CHUNK_FILE_BYTES_MAX)
    return tail


def advanced(tail: Tail | None, piece: Piece, number: int) -> Tail:
    """Return the tail of a topic after this piece, which is in tick `number`."""
    numbers = {} if tail is None else dict(tail.chunk_numbers)
    chunk, position = (0, 0) if tail is None else (tail.chunk, tail.position)
    for one in piece.ranges:
        numbers.setdefault(one.base_offset, number)
        chunk, position = one.base_offset, one.stop
    numbers = {base: first for base, first in numbers.items() if base >= piece.kept_from}
    base_number, base = (-1, "") if tail is None else (tail.base_number, tail.base)
    if piece.begins:
        base_number, base = number, piece.base
    return Tail(
        piece.stream,
        piece.sequence,
        piece.end,
        piece.reserved,
        chunk,
        position,
        base_number,
        base,
        numbers,
    )


class Boundary(NamedTuple):
    """A boundary: no tick below `number` counts.

    `digest` is that of the last tick below it that counts, and `epoch` that of the tick with this
    number. A restore to a
    point in time needs a point at or after tick `complete`, because some of the ticks that an
    earlier point needs may be gone.
    """

    number: int
    digest: str
    epoch: int
    complete: int
    time_ns: int


def encode_boundary(boundary: Boundary) -> bytes:
    return documents.encode_line("boundary", VERSION, boundary._asdict())


def decode_boundary(data: bytes) -> Boundary:
    """Return the boundary. Raises `Damaged` or `ForeignDirectory`."""
    row = documents.decode_line(data, "boundary", VERSION)
    try:
        return Boundary(
            int(row["number"]), str(row["digest"]), int(row["epoch"]), int(row["complete"]),
            int(row["time_ns"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the boundary has a wrong form: {error!r}") from error


class Copy(NamedTuple):
    """The file `DATA_DIR/shipping.json`: which log of ticks this data directory may continue.

    `archive` is the identity of the archive, and `copy` that of this data directory. A restored
    directory continues only if the log still ends at number `after`, after the tick with `digest`.
    For a directory that shipped before, `after` is -1.
    """

    archive: str
    copy: str
    after: int = -1
    digest: str = ""


COPY_NAME: Final = "shipping.json"
STANDBY_NAME: Final = "standby.json"  # the same file in the directory of a standby


def encode_copy(copy: Copy) -> bytes:
    return documents.encode_line("shipping", VERSION, copy._asdict())


def decode_copy(data: bytes) -> Copy:
    """Return the content of the file. Raises `Damaged` or `ForeignDirectory`."""
    row = documents.decode_line(data, "shipping", VERSION)
    try:
        return Copy(str(row["archive"]), str(row["copy"]), int(row["after"]), str(row["digest"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the file has a wrong form: {error!r}") from error
