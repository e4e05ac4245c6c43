"""Format of NSQ's files: data, metadata, the list of topics, and the message in a record.

    NAME.diskqueue.000007.dat    records: int32 length, then so many bytes; no header, no checksum
    NAME.diskqueue.meta.dat      depth \\n read file,position \\n write file,position \\n,
                                 as decimal text
    nsqd.dat                     JSON: topics and their channels, and which of them are paused

NAME is the name of a topic, or TOPIC:CHANNEL. All integers are big-endian. A record of nsqd
contains a message: int64 time, uint16 attempts, 16 bytes of id (hex digits), the body. NSQ defines
these formats (nsqd 1.3, go-diskqueue 1.1), so they must not change here. Nothing here does I/O.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from .. import documents
from ..errors import Damaged, ForeignDirectory

LENGTH_BYTES: Final = 4
NSQ_HEAD_BYTES: Final = 26  # the size of a message's head: time, attempts, id
NSQ_ID_BYTES: Final = 16
NSQ_ATTEMPTS_MAX: Final = 2**16 - 1
BAD_SUFFIX: Final = ".bad"
NSQD_NAME: Final = "nsqd.dat"
META_BYTES_MAX: Final = 256
_INFIX: Final = ".diskqueue."
_META_SUFFIX: Final = f"{_INFIX}meta.dat"
_DATA_SUFFIX: Final = ".dat"
_DIGITS: Final = 6  # the smallest number of digits; file 1,000,000 has seven
_DIGITS_MAX: Final = 19  # the number of digits of the largest number in nsqd
_LENGTH: Final = struct.Struct(">i")
_MESSAGE: Final = struct.Struct(">qH16s")
assert _MESSAGE.size == NSQ_HEAD_BYTES
assert _LENGTH.size == LENGTH_BYTES

# A reader that has lost its position accepts only messages with a time between 2010 and 2100.
_TIME_MIN: Final = 1_262_304_000 * 10**9
_TIME_MAX: Final = 4_102_444_800 * 10**9
_HEX: Final = frozenset(b"0123456789abcdef")


class Meta(NamedTuple):
    """The read and write positions of a queue.

    `depth` is the number of records between them, but the count may be wrong.
    """

    depth: int = 0
    read_file: int = 0
    read_position: int = 0
    write_file: int = 0
    write_position: int = 0


class NsqMessage(NamedTuple):
    """A message in nsqd's form. `attempts` is the number of times that it was sent."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class NsqdChannel:
    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class NsqdTopic:
    name: str
    paused: bool = False
    channels: tuple[NsqdChannel, ...] = ()


@dataclass(frozen=True, slots=True)
class NsqdList:
    """The content of nsqd.dat."""

    topics: tuple[NsqdTopic, ...] = ()
    version: str = ""


# Names


def data_name(name: str, number: int) -> str:
    return f"{name}{_INFIX}{number:0{_DIGITS}d}{_DATA_SUFFIX}"


def meta_name(name: str) -> str:
    return f"{name}{_META_SUFFIX}"


def queue_name(topic: str, channel: str = "") -> str:
    """Return nsqd's name for the queue of a topic or of a channel."""
    return f"{topic}:{channel}" if channel else topic


def parse_data_name(file_name: str) -> tuple[str, int] | None:
    """Return (queue, number), or None if this is not the name of a data file.

    Names of queues may contain `.diskqueue.` too, so this uses the last one.
    """
    stem = file_name.removesuffix(_DATA_SUFFIX)
    name, infix, digits = stem.rpartition(_INFIX)
    number_like = digits.isascii() and digits.isdigit() and _DIGITS <= len(digits) <= _DIGITS_MAX
    if stem == file_name or not infix or not name or not number_like:
        return None
    number = int(digits)
    return (name, number) if file_name == data_name(name, number) else None


def parse_meta_name(file_name: str) -> str | None:
    """Return the queue, or None if this is not the name of a metadata file."""
    name = file_name.removesuffix(_META_SUFFIX)
    return name if name and name != file_name else None


# Metadata


def encode_meta(meta: Meta) -> bytes:
    return (
        f"{meta.depth}\n{meta.read_file},{meta.read_position}\n"
        f"{meta.write_file},{meta.write_position}\n"
    ).encode()


_INT64_MAX: Final = (1 << 63) - 1


def decode_meta(data: bytes) -> Meta:
    """Return the metadata. Raises `Damaged` if the data are not three lines of whole numbers.

    A negative depth is a known error of nsqd, and is returned unchanged.
    """
    try:
        depth, reading, writing, rest = data.decode("ascii").split("\n")
        read_file, read_position = map(int, reading.split(","))
        write_file, write_position = map(int, writing.split(","))
        meta = Meta(int(depth), read_file, read_position, write_file, write_position)
    except ValueError as error:
        raise Damaged(f"not the metadata of a disk queue: {data[:80]!r} ({error})") from None
    if rest or min(meta[1:]) < 0 or max(map(abs, meta)) > _INT64_MAX:  # nsqd uses Go's int64
        raise Damaged(f"not the metadata of a disk queue: {data[:80]!r}")
    return meta


# Records


def encode_record(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def decode_length(buffer: bytes | memoryview, at: int = 0) -> int:
    """Return the value of the length field, which may be impossible."""
    length: int = _LENGTH.unpack_from(buffer, at)[0]
    return length


# Messages


def encode_message(message: NsqMessage) -> bytes:
    """Return the payload of a record.

    If the number of attempts does not fit into two bytes, the largest number is stored.
    """
    return (
        _MESSAGE.pack(message.timestamp_ns, min(message.attempts, NSQ_ATTEMPTS_MAX), message.id)
        + message.body
    )


def decode_message(payload: bytes | memoryview) -> NsqMessage:
    """Return the message. Raises `Damaged` if the payload is too short for a message's head."""
    if len(payload) < NSQ_HEAD_BYTES:
        raise Damaged(f"a message of nsqd has at least {NSQ_HEAD_BYTES} bytes, not {len(payload)}")
    timestamp_ns, attempts, id_ = _MESSAGE.unpack_from(payload)
    return NsqMessage(timestamp_ns, attempts, id_, bytes(payload[NSQ_HEAD_BYTES:]))


def may_be_message(buffer: bytes | memoryview, at: int, size_max: int) -> bool:
    """Return True if a record with a message of nsqd may begin at `at`.

    Its length and id must be as nsqd writes them. Its time may have any value, because it comes
    from the producer's clock or from a backup, and a wrong time is no reason to lose a message.
    """
    if at + LENGTH_BYTES + NSQ_HEAD_BYTES > len(buffer):
        return False
    if not NSQ_HEAD_BYTES <= decode_length(buffer, at) <= size_max:
        return False
    return _HEX.issuperset(_MESSAGE.unpack_from(buffer, at + LENGTH_BYTES)[2])


def looks_like_message(buffer: bytes | memoryview, at: int, size_max: int) -> bool:
    """Return True if a record with a message of nsqd probably begins at `at`.

    This is for a reader that has lost its position, so the time must be plausible too. The format
    has no checksum. But 16 hex digits and a time of this century match random bytes only at one of
    10^22 positions.
    """
    return (
        may_be_message(buffer, at, size_max)
        and _TIME_MIN <= _MESSAGE.unpack_from(buffer, at + LENGTH_BYTES)[0] < _TIME_MAX
    )


# nsqd.dat


def encode_nsqd(listed: NsqdList) -> bytes:
    """Return the JSON in nsqd's order of keys, without spaces."""
    topics = [
        {
            "name": t.name,
            "paused": t.paused,
            "channels": [{"name": c.name, "paused": c.paused} for c in t.channels],
        }
        for t in listed.topics
    ]
    return json.dumps({"topics": topics, "version": listed.version}, separators=(",", ":")).encode()


def decode_nsqd(data: bytes) -> NsqdList:
    """Return the list of topics. Raises `ForeignDirectory` if the data are not as nsqd writes them.

    nsqd writes null for a topic without channels.
    """
    try:
        document = documents.loads(data)
        topics = tuple(
            NsqdTopic(
                str(topic["name"]),
                bool(topic.get("paused")),
                tuple(
                    NsqdChannel(str(channel["name"]), bool(channel.get("paused")))
                    for channel in topic.get("channels") or ()
                ),
            )
            for topic in document["topics"] or ()
        )
        return NsqdList(topics, str(document.get("version", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ForeignDirectory(f"{NSQD_NAME} does not have the format of nsqd: {error!r}") from None
