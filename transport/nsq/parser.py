"""Parser of NSQ commands: it turns bytes, in pieces of any size, into commands.

    command     NAME [ parameter]* \n          a \r before the end is dropped
    with body   command | int32 size | body     IDENTIFY, AUTH, PUB, DPUB
    MPUB        command | int32 size | int32 count | count x (int32 size | body)

`push` adds bytes. `take` returns the next command or None. The parser never parses the bytes after
that command. So they are still available after the command was carried out (`take_rest`). This is
necessary because the bytes after an IDENTIFY may belong to another layer.

The work for single messages runs in C if possible. A busy consumer sends runs of FINs. A run
becomes one `Fins`: the fixed bytes of all its FINs are compared at once, and `struct` cuts out the
ids. An MPUB with messages of equal size is cut in the same way. For different sizes, a slower
method is used. A run of NOPs becomes one `Nop`.

A line has at most LINE_BYTES_MAX bytes. A size is checked as soon as it can be read, before the
bytes that it counts have arrived. The bytes of an incomplete command are kept in one bytearray.
They are parsed again only when the bytes known to be missing have arrived. So a command that
arrives one byte at a time is not parsed again for each byte. Before the body of a publish has
arrived, the parser calls `before_body` with the command's name and topic, and `before_body` may
raise. So a client without permission cannot make this process keep megabytes of a body.

As in nsqd, the size of an MPUB is only compared with the limit. The MPUB ends after its last
message, even if the size says otherwise. So clients that do not count the four bytes of the message
count correctly still work. Unlike in nsqd, all messages together must not exceed max_body_size.
Nothing here does I/O.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise, repeat
from re import compile as regex
from typing import Final

from ..errors import UsageError
from ..names import check_name
from .commands import Auth, Cls, Command, Dpub, Fins, Identify, Mpub, Nop, Pub, Rdy, Req, Sub, Touch
from .errors import (
    E_BAD_BODY,
    E_BAD_CHANNEL,
    E_BAD_MESSAGE,
    E_BAD_TOPIC,
    E_INVALID,
    NsqError,
    quoted,
    shown,
)
from .limits import LINE_BYTES_MAX, NsqLimits
from .wire import ID_BYTES

FIN_BYTES: Final = len(b"FIN ") + ID_BYTES + len(b"\n")
_FIN_RUN: Final = regex(rb"(?:FIN [^ \r\n]{16}\n)++")  # `++` matches without backtracking
_FIN_FRAME: Final = ((0, b"F"), (1, b"I"), (2, b"N"), (3, b" "), (FIN_BYTES - 1, b"\n"))
_CUT_MAX: Final = 1024  # the most messages that one format cuts; formats are compiled and cached


@lru_cache(32)
def _equal(size: int, count: int) -> struct.Struct:
    return struct.Struct(">" + f"i{size}s" * count)


def cut_equal(data: bytes, first: int, count: int, size_max: int) -> list[bytes] | None:
    """Return the bodies of `count` messages, or None if one is incomplete or sizes differ."""
    if len(data) < first + 4:
        return None
    size = _int(data, first)[0]
    last = first + (4 + size) * (count - 1)
    if not 0 < size <= size_max or len(data) < last + 4 + size or _int(data, last)[0] != size:
        return None
    bodies: list[bytes] = []
    for done in range(0, count, _CUT_MAX):
        now = min(count - done, _CUT_MAX)
        values = _equal(size, now).unpack_from(data, first + (4 + size) * done)
        if values[::2].count(size) != now:
            return None
        bodies += values[1::2]
    return bodies


def cut_any(data: bytes, first: int, count: int, size_max: int) -> list[bytes] | None:
    """Return the bodies of `count` messages if all are complete and valid, else None.

    After None, `Walk` finds the fault, or waits for more bytes.
    """
    bodies: list[bytes] = []
    append = bodies.append
    at, last = first, len(data) - 4
    for _ in repeat(None, count):
        if at > last:
            return None
        size = _int(data, at)[0]
        if not 0 < size <= size_max:
            return None
        at += 4
        stop = at + size
        append(data[at:stop])
        at = stop
    return bodies if at <= len(data) else None


_FIN_CUTS: Final = {
    1 << bits: struct.Struct("4x16sx" * (1 << bits)) for bits in range(_CUT_MAX.bit_length())
}


def cut_fins(data: bytes, at: int) -> list[bytes]:
    """Return the ids of consecutive FINs from `at`.

    The FINs must have the usual form. To be fast, this may return fewer ids than the run has. It
    finds the length of the run by doubling a guess. A search to the end of the data would be slow
    for a client that mixes FINs with other commands, because each FIN would scan all bytes after
    it.
    """
    count = 1
    while data.startswith(b"FIN ", at + count * FIN_BYTES):
        count *= 2
    count = min(count, (len(data) - at) // FIN_BYTES)
    run = data[at : at + count * FIN_BYTES]
    if not _only_fins(run, count):
        match = _FIN_RUN.match(run)
        if match is None:
            return []
        run = match.group()
        count = len(run) // FIN_BYTES
    ids: list[bytes] = []
    done = 0
    while done < count:
        now = min(1 << (count - done).bit_length() - 1, _CUT_MAX)
        ids += _FIN_CUTS[now].unpack_from(run, done * FIN_BYTES)
        done += now
    return ids


def _only_fins(run: bytes, count: int) -> bool:
    """Return True if `run` is `count` times `FIN <16 bytes>\\n`.

    The ids may not contain a space or a line end.
    """
    return (
        all(run[place::FIN_BYTES] == char * count for place, char in _FIN_FRAME)
        and len(run.translate(None, b" \r\n")) == len(run) - 2 * count
    )


class Walk:
    """The positions of the messages in an incomplete MPUB, as far as they are known.

    Positions count from the command's first byte.
    """

    def __init__(self, limits: NsqLimits, first: int, count: int) -> None:
        self._limits = limits
        self._first = first
        self._count = count
        self.stops = array("i")  # the ends of messages; an array, because there may be a million

    def on(self, buffer: bytearray | memoryview) -> bool:
        """Find the ends of further messages, as far as the received bytes allow.

        Return True if all messages are complete. After an error, a repeated call raises it again.
        """
        size_max, have = self._limits.max_msg_size, len(buffer)
        stop_max = self._first - 4 + self._limits.max_body_size
        stops = self.stops
        at = stops[-1] if stops else self._first
        for index in range(len(stops), self._count):
            if at + 4 > have:
                return False
            size = _int(buffer, at)[0]
            if size <= 0:
                raise NsqError(E_BAD_MESSAGE, f"MPUB invalid message({index}) body size {size}")
            if size > size_max:
                raise NsqError(E_BAD_MESSAGE, f"MPUB message too big {size} > {size_max}")
            at += 4 + size
            if at > stop_max:
                raise _too_big(at - self._first + 4, self._limits)
            if at > have:
                return False
            stops.append(at)
        return True

    def missing(self, have: int) -> str:
        """Return the name of the part that is incomplete if no more than `have` bytes arrive."""
        done = len(self.stops)
        if have < (self.stops[-1] if done else self._first) + 4:
            return f"message({done}) body size"
        return "message body"


def _too_big(size: int, limits: NsqLimits) -> NsqError:
    return NsqError(E_BAD_BODY, f"MPUB body too big {size} > {limits.max_body_size}")


_INT_DIGITS_MAX: Final = 18
_int = struct.Struct(">i").unpack_from


Check = Callable[[bytes], object]
BeforeBody = Callable[[str, str], object]


class Parser:
    """The parser of one connection.

    The parser calls `check` with a command's name before it checks the rest of the command. `check`
    may raise. So errors are found in the same order as in nsqd.
    """

    def __init__(
        self, limits: NsqLimits, check: Check | None = None, before_body: BeforeBody | None = None
    ) -> None:
        self._limits = limits
        self._check = check
        self._before_body = before_body
        self.ignores_ready = False  # True after the client has sent CLS
        self._data = b""
        self._at = 0  # the position in `_data` where the next command begins
        self._held = bytearray()  # the beginning of a command; `_data` is empty then
        self._need = 0  # the length that `_held` must have before it is parsed again
        # The code, the command and the missing part, for the error if no more bytes arrive.
        self._missing = (
            "",
            "",
            "",
        )
        self._walk: Walk | None = None  # the positions of the messages, if `_held` is an MPUB
        self._forms: Final[dict[bytes, Callable[[list[bytes], int], Command | None]]] = {
            b"RDY": self._rdy,
            b"PUB": self._pub,
            b"MPUB": self._mpub,
            b"REQ": self._req,
            b"TOUCH": self._touch,
            b"NOP": self._nop,
            b"FIN": self._fin,
            b"DPUB": self._dpub,
            b"IDENTIFY": self._identify,
            b"SUB": self._sub,
            b"CLS": self._cls,
            b"AUTH": self._auth,
        }

    def feed(self, data: bytes) -> Iterator[Command]:
        """Yield the complete commands, each parsed after the previous one was carried out."""
        self.push(data)
        return iter(self.take, None)

    def push(self, data: bytes) -> None:
        if self._held:
            self._held += data
            if len(self._held) < self._need or not self._walked():
                return
            self._data = bytes(self._held)
            self._held.clear()
        elif self._at < len(self._data):
            self._data = self._data[self._at :] + data
        else:
            self._data = data
        self._at = 0

    def _walked(self) -> bool:
        """Return False if the held command is an MPUB whose messages are incomplete.

        Otherwise return True. If the MPUB is invalid, `take` raises the error.
        """
        try:
            return self._walk is None or self._walk.on(self._held)
        except NsqError:
            return True

    def take_rest(self) -> bytes:
        """Return the bytes that were not parsed, and forget them."""
        rest = self._data[self._at :] + bytes(self._held)
        self._data, self._at, self._walk = b"", 0, None
        self._held.clear()
        return rest

    def unfinished(self) -> NsqError:
        """Return nsqd's error for an incomplete command of a client that sends no more bytes.

        If the bytes end between two commands or within a line, the error has no code. In that case
        nothing is sent to the client.
        """
        code, name, missing = self._missing
        if self._walk is not None:
            missing = self._walk.missing(len(self._held))
        return (
            NsqError(code, f"{name} failed to read {missing}")
            if self._held and code
            else NsqError("")
        )

    @property
    def held(self) -> int:
        """The bytes that wait in the parser, for the rest of their command or for `take`."""
        return len(self._data) - self._at + len(self._held)

    def take(self) -> Command | None:
        """Return the next command, or None if it is incomplete.

        Raises `NsqError` if it is malformed. `take` must not be called again then.
        """
        data, at = self._data, self._at
        if at >= len(data):
            return None
        end = data.find(b"\n", at, at + LINE_BYTES_MAX)
        if end < 0:
            if len(data) - at >= LINE_BYTES_MAX:
                raise NsqError("", "the line of a command is too long")
            self._hold(len(data) - at + 1, "", "", "")
            return None
        stop = end - 1 if end > at and data[end - 1] == 0x0D else end
        words = data[at:stop].split(b" ")
        name = words[0]
        if self._check is not None:
            self._check(name)
        form = self._forms.get(name)
        if form is None:
            raise NsqError(E_INVALID, f"invalid command {shown(name)}")
        return form(words, end + 1)

    def _hold(self, need: int, code: str, name: str, missing: str) -> None:
        """Keep the bytes of the command until there are `need` bytes.

        The other arguments describe the error for a client that sends no more.
        """
        self._missing = code, name, missing
        self._held += memoryview(self._data)[self._at :]
        self._need = need
        self._data, self._at = b"", 0

    # Commands of one line

    def _nop(self, words: list[bytes], after: int) -> Nop:
        run = _NOP_RUN.match(self._data, after)
        self._at = after if run is None else run.end()
        return _NOP

    def _cls(self, words: list[bytes], after: int) -> Cls:
        self._at = after
        return _CLS

    def _rdy(self, words: list[bytes], after: int) -> Rdy:
        count = 1
        if self.ignores_ready:
            self._at = after
            return Rdy(0)
        if len(words) > 1:
            count = _number(words[1], "RDY could not parse count")
        if count > self._limits.max_rdy_count:
            raise NsqError(
                E_INVALID, f"RDY count {count} out of range 0-{self._limits.max_rdy_count}"
            )
        self._at = after
        return Rdy(count)

    def _sub(self, words: list[bytes], after: int) -> Sub:
        if len(words) < 3:
            raise NsqError(E_INVALID, "SUB insufficient number of parameters")
        topic = _name(words[1]) or _refuse(E_BAD_TOPIC, "SUB topic", words[1])
        channel = _name(words[2]) or _refuse(E_BAD_CHANNEL, "SUB channel", words[2])
        self._at = after
        return Sub(topic, channel)

    def _fin(self, words: list[bytes], after: int) -> Fins:
        if len(words) < 2:
            raise NsqError(E_INVALID, "FIN insufficient number of params")
        first = _id(words[1])
        data, at = self._data, self._at
        if data.startswith(b"FIN ", after):
            ids = cut_fins(data, at)
            if ids:
                self._at = at + FIN_BYTES * len(ids)
                return Fins(ids)
        self._at = after
        return Fins([first])

    def _req(self, words: list[bytes], after: int) -> Req:
        if len(words) < 3:
            raise NsqError(E_INVALID, "REQ insufficient number of params")
        id = _id(words[1])
        timeout_ms = _number(words[2], "REQ could not parse timeout")
        self._at = after
        return Req(id, min(timeout_ms, self._limits.max_req_timeout_ms))

    def _touch(self, words: list[bytes], after: int) -> Touch:
        if len(words) < 2:
            raise NsqError(E_INVALID, "TOUCH insufficient number of params")
        id = _id(words[1])
        self._at = after
        return Touch(id)

    # Commands with a body

    def _identify(self, words: list[bytes], after: int) -> Identify | None:
        body = self._body("IDENTIFY", after)
        return None if body is None else Identify(body)

    def _auth(self, words: list[bytes], after: int) -> Auth | None:
        if len(words) != 1:
            raise NsqError(E_INVALID, "AUTH invalid number of parameters")
        body = self._body("AUTH", after)
        return None if body is None else Auth(body)

    def _pub(self, words: list[bytes], after: int) -> Pub | None:
        if len(words) < 2:
            raise NsqError(E_INVALID, "PUB insufficient number of parameters")
        topic = _name(words[1]) or _refuse(E_BAD_TOPIC, "PUB topic", words[1])
        data, start = self._data, after + 4
        if len(data) >= start:  # try the usual case first: the body is complete and valid
            size = _int(data, after)[0]
            stop = start + size
            if 0 < size <= self._limits.max_msg_size and stop <= len(data):
                self._at = stop
                return Pub(topic, data[start:stop])
        body = self._message("PUB", topic, after)
        return None if body is None else Pub(topic, body)

    def _dpub(self, words: list[bytes], after: int) -> Dpub | None:
        if len(words) < 3:
            raise NsqError(E_INVALID, "DPUB insufficient number of parameters")
        topic = _name(words[1]) or _refuse(E_BAD_TOPIC, "DPUB topic", words[1])
        defer_ms = _number(words[2], "DPUB could not parse timeout")
        if defer_ms > self._limits.max_req_timeout_ms:
            raise NsqError(
                E_INVALID,
                f"DPUB timeout {defer_ms} out of range 0-{self._limits.max_req_timeout_ms}",
            )
        body = self._message("DPUB", topic, after)
        return None if body is None else Dpub(topic, defer_ms, body)

    def _message(self, name: str, topic: str, after: int) -> bytes | None:
        """Return the message of a command whose line ends before `after`."""
        size = self._size(after, E_BAD_MESSAGE, name, "message body size")
        if size is None:
            return None
        if size <= 0:
            raise NsqError(E_BAD_MESSAGE, f"{name} invalid message body size {size}")
        if size > self._limits.max_msg_size:
            raise NsqError(
                E_BAD_MESSAGE, f"{name} message too big {size} > {self._limits.max_msg_size}"
            )
        if self._before_body is not None and len(self._data) < after + 4 + size:
            self._before_body(name, topic)
        return self._sized(after + 4, size, E_BAD_MESSAGE, name, "message body")

    def _body(self, name: str, after: int) -> bytes | None:
        size = self._size(after, E_BAD_BODY, name, "body size")
        if size is None:
            return None
        if size > self._limits.identity_bytes_max:
            raise NsqError(
                E_BAD_BODY, f"{name} body too big {size} > {self._limits.identity_bytes_max}"
            )
        if size <= 0:
            raise NsqError(E_BAD_BODY, f"{name} invalid body size {size}")
        return self._sized(after + 4, size, E_BAD_BODY, name, "body")

    def _size(self, at: int, code: str, name: str, missing: str) -> int | None:
        """Return the number at `at`, or None if its bytes have not arrived."""
        if len(self._data) < at + 4:
            self._hold(at + 4 - self._at, code, name, missing)
            return None
        size: int = _int(self._data, at)[0]
        return size

    def _sized(self, at: int, size: int, code: str, name: str, missing: str) -> bytes | None:
        stop = at + size
        if len(self._data) < stop:
            self._hold(stop - self._at, code, name, missing)
            return None
        self._at = stop
        return self._data[at:stop]

    def _mpub(self, words: list[bytes], after: int) -> Mpub | None:
        if len(words) < 2:
            raise NsqError(E_INVALID, "MPUB insufficient number of parameters")
        # nsqd sends the code twice here. This does so too, for clients that compare the text.
        topic = _name(words[1]) or _refuse(E_BAD_TOPIC, "E_BAD_TOPIC MPUB topic", words[1])
        size = self._size(after, E_BAD_BODY, "MPUB", "body size")
        if size is None:
            return None
        if size <= 0:
            raise NsqError(E_BAD_BODY, f"MPUB invalid body size {size}")
        if size > self._limits.max_body_size:
            raise NsqError(E_BAD_BODY, f"MPUB body too big {size} > {self._limits.max_body_size}")
        count = self._size(after + 4, E_BAD_BODY, "MPUB", "message count")
        if count is None:
            return None
        if not 0 < count <= self._limits.mpub_count_max:
            raise NsqError(E_BAD_BODY, f"MPUB invalid message count {count}")
        return self._messages(topic, after + 8, count)

    def _messages(self, topic: str, first: int, count: int) -> Mpub | None:
        """Return the messages of an MPUB. The size of the first one is at `first`."""
        data, base, limits = self._data, self._at, self._limits
        walk, self._walk = self._walk, None
        bodies = cut_equal(data, first, count, limits.max_msg_size)
        if bodies is None and walk is None:
            bodies = cut_any(data, first, count, limits.max_msg_size)
        if bodies is not None:
            size = sum(map(len, bodies))
            if size + 4 * count + 4 <= limits.max_body_size:
                self._at = first + size + 4 * count
                return Mpub(topic, bodies, size)
        walk = walk or Walk(limits, first - base, count)
        if not walk.on(memoryview(data)[base:]):
            if self._before_body is not None:
                self._before_body("MPUB", topic)
            self._hold(0, E_BAD_MESSAGE, "MPUB", "")
            self._walk = walk
            return None
        bodies = [
            data[start + 4 : stop]
            for start, stop in pairwise([first, *map(base.__add__, walk.stops)])
        ]
        self._at = base + walk.stops[-1]
        return Mpub(topic, bodies, self._at - first - 4 * count)


_NOP: Final = Nop()
_NOP_RUN: Final = regex(rb"(?:NOP\n)*+")
_CLS: Final = Cls()


@lru_cache(4096)
def _name(raw: bytes) -> str:
    """Return the name of a topic or channel, or an empty text if it is invalid."""
    try:
        return check_name(raw.decode("ascii"))
    except (UnicodeDecodeError, UsageError):
        return ""


def _refuse(code: str, what: str, raw: bytes) -> str:
    raise NsqError(code, f"{what} name {quoted(raw)} is not valid")


def _id(raw: bytes) -> bytes:
    if len(raw) != ID_BYTES:
        raise NsqError(E_INVALID, "invalid message ID")
    return raw


def _number(raw: bytes, failed: str) -> int:
    """Return digits as a number, or 0 for an empty text.

    If the number has too many digits, return a number that is above every limit.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        raise NsqError(E_INVALID, f"{failed} {shown(raw)}")
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _INT_DIGITS_MAX else (1 << 63) - 1
