"""nsqlookupd's TCP protocol, as a node uses it, and nsqlookupd's HTTP replies.

A node sends `  V1`, then IDENTIFY with its addresses as JSON after a length of four bytes. It sends
`REGISTER topic [channel]` for each topic and channel that it has, `UNREGISTER` for each that it
removes, and PING every 15 seconds. The reply to each command is a length of four bytes and then
`OK`, JSON, or an error as `E_CODE text`. After an error, nsqlookupd closes the connection. When a
connection ends, all its registrations end.

There is no queue of commands that could grow. Instead, the session compares `wanted` with the
registrations of this connection, and sends the difference, at most UNANSWERED_MAX commands at a
time. If a topic is added and removed while nsqlookupd does not reply, no command is sent for it.
Nothing here does I/O.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from ..names import NAME_CHARS_MAX, base_of, is_ephemeral

MAGIC: Final = b"  V1"
PING_NS: Final = 15_000_000_000
# The time for one reply. nsqd waits only 1 s, but it sends one command at a time.
ANSWER_NS: Final = 5_000_000_000
UNANSWERED_MAX: Final = 64  # the most commands that wait for their reply
ANSWER_MAX: Final = 65_536  # the most bytes of a reply; the longest reply is the one to IDENTIFY
NAMES_MAX: Final = 10_000  # the most names from one HTTP reply; more names are left out

_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?", re.ASCII)
_PING: Final = b"PING\n"
_REGISTER: Final = b"REGISTER"
_UNREGISTER: Final = b"UNREGISTER"

Registration = tuple[str, str]  # a topic, and a channel of it or ""


class LookupFailed(Exception):
    """nsqlookupd refused a command or broke the protocol. The connection is no longer usable."""


@dataclass(frozen=True, slots=True)
class Node:
    """The description of a node in IDENTIFY, sent as JSON with its fields in this order."""

    broadcast_address: str
    hostname: str
    tcp_port: int
    http_port: int
    version: str
    topology_region: str = ""
    topology_zone: str = ""


def by_topic(names: Mapping[str, Collection[str]]) -> dict[str, set[str]]:
    """Return the topics and channels of this broker as NSQ's tools see them.

    The parts of a topic are one topic, with the channels of all of them.
    """
    by_name: dict[str, set[str]] = {}
    for name, channels in names.items():
        by_name.setdefault(base_of(name), set()).update(channels)
    return by_name


def registrations(topics: Mapping[str, Collection[str]]) -> frozenset[Registration]:
    """Return the topics and channels of a node whose names nsqlookupd accepts."""
    named = {
        topic: [channel for channel in channels if is_name(channel)]
        for topic, channels in topics.items()
        if is_name(topic)
    }
    return frozenset(
        (topic, channel) for topic, channels in named.items() for channel in ("", *channels)
    )


def is_name(name: object) -> bool:
    return (
        isinstance(name, str) and len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name) is not None
    )


class LookupSession:
    """One connection. `take_out` returns the bytes to write after each call.

    After `LookupFailed`, the connection must be closed.
    """

    def __init__(self, node: Node, now_ns: int) -> None:
        body = json.dumps(asdict(node)).encode()
        self._out = [MAGIC + b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body]
        self._buffer = b""
        # The commands that wait for their reply. None stands for IDENTIFY or PING.
        self._unanswered: deque[Registration | None] = deque([None])
        self._answer_due_ns = now_ns + ANSWER_NS
        self._ping_ns = now_ns + PING_NS
        self._wanted: frozenset[Registration] = frozenset()
        self._said: set[Registration] = set()
        self._plan: deque[tuple[bytes, Registration]] = deque()
        self._refused: Registration | None = None
        self.identified = False
        # The HTTP address of nsqlookupd, from its reply to IDENTIFY.
        self.peer_host, self.peer_port = "", 0

    @property
    def registered(self) -> int:
        return len(self._said)

    @property
    def settled(self) -> bool:
        """True if everything is registered and every reply has arrived."""
        return self.identified and not self._unanswered and self._said == self._wanted

    @property
    def refused(self) -> Registration | None:
        """The registration whose error ended this connection.

        The next connection must not repeat it.
        """
        return self._refused

    def want(self, wanted: frozenset[Registration], now_ns: int) -> None:
        """Set the wanted registrations.

        The channels of a topic are unregistered before the topic and registered after it, because
        nsqlookupd removes the channels of a topic with the topic.
        """
        self._wanted = wanted
        gone, new = sorted(self._said - wanted, reverse=True), sorted(wanted - self._said)
        self._plan = deque(
            [(_UNREGISTER, name) for name in gone] + [(_REGISTER, name) for name in new]
        )
        self._say(now_ns)

    def take_out(self) -> bytes:
        out, self._out = b"".join(self._out), []
        return out

    def receive(self, data: bytes, now_ns: int) -> None:
        buffer = self._buffer + data
        at = 0
        while len(buffer) - at >= 4:
            size = int.from_bytes(buffer[at : at + 4], "big")
            if size > ANSWER_MAX:
                raise LookupFailed(f"its reply has {size} bytes; the limit is {ANSWER_MAX}")
            if len(buffer) - at - 4 < size:
                break
            self._answer(buffer[at + 4 : at + 4 + size])
            self._answer_due_ns = now_ns + ANSWER_NS
            at += 4 + size
        self._buffer = buffer[at:]
        self._say(now_ns)

    def on_time(self, now_ns: int) -> int:
        """Check the deadline of the reply, and send a PING if it is due.

        Return the time of the next call.
        """
        if self._unanswered and now_ns >= self._answer_due_ns:
            raise LookupFailed(f"it did not answer within {ANSWER_NS / 1e9:g} s")
        if now_ns >= self._ping_ns:
            self._ping_ns = now_ns + PING_NS
            if not self._unanswered:  # otherwise a pending reply shows that nsqlookupd is alive
                self._send(_PING, None, now_ns)
        return min(self._ping_ns, self._answer_due_ns) if self._unanswered else self._ping_ns

    def _answer(self, answer: bytes) -> None:
        if not self._unanswered:
            raise LookupFailed(f"it sent an unexpected reply: {_shown(answer)}")
        about = self._unanswered.popleft()
        if answer.startswith(b"E_"):
            self._refused = about
            raise LookupFailed(
                f"it refused {' '.join(about).strip() if about else 'this node'}: {_shown(answer)}"
            )
        if self.identified:
            if answer != b"OK":
                raise LookupFailed(f"it replied {_shown(answer)} instead of OK")
            return
        reply = _object(answer) if answer != b"OK" else {}
        port = reply.get("http_port")
        self.peer_host, self.peer_port = (
            str(reply.get("broadcast_address", "")),
            port if type(port) is int and 0 < port < 65_536 else 0,
        )
        self.identified = True

    def _say(self, now_ns: int) -> None:
        """Send commands of the plan, up to the limit of unanswered commands."""
        while self.identified and self._plan and len(self._unanswered) < UNANSWERED_MAX:
            command, about = self._plan.popleft()
            if command == _REGISTER:
                self._said.add(about)
            else:
                self._said.discard(about)
            self._send(_line(command, about), about, now_ns)

    def _send(self, line: bytes, about: Registration | None, now_ns: int) -> None:
        if not self._unanswered:
            self._answer_due_ns = now_ns + ANSWER_NS
        self._unanswered.append(about)
        self._out.append(line)


def _line(command: bytes, about: Registration) -> bytes:
    topic, channel = about
    return (
        b" ".join([command, topic.encode("ascii"), *([channel.encode("ascii")] if channel else [])])
        + b"\n"
    )


def _shown(answer: bytes) -> str:
    return repr(answer[:100].decode(errors="replace"))


def _object(body: bytes) -> dict[str, object]:
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        raise LookupFailed(f"its reply is not JSON: {_shown(body)}") from None
    if not isinstance(reply, dict):
        raise LookupFailed("its reply is not a JSON object")
    return reply


# HTTP


def parse_channels(body: bytes) -> list[str]:
    """Return the channels that a new topic should have, from a reply to `/channels?topic=`.

    Ephemeral channels are left out, as in nsqd, because their consumers create them.
    """
    names = _object(body).get("channels")
    if not isinstance(names, list):
        raise LookupFailed("its reply has no list of channels")
    return sorted({name for name in names[:NAMES_MAX] if is_name(name) and not is_ephemeral(name)})
