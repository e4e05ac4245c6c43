"""A client of NSQ's TCP protocol on a real socket, without an NSQ library. It sends and returns
plain bytes, so that no library hides an error.
"""

from __future__ import annotations

import json
import socket
import struct
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, cast


class Message(NamedTuple):
    id: bytes
    attempts: int
    timestamp_ns: int
    body: bytes


class Codec(Protocol):
    """The compression of a connection, in both directions."""

    def pack(self, data: bytes) -> bytes: ...

    def unpack(self, data: bytes) -> bytes: ...


class PackedSocket:
    """A socket whose bytes are compressed."""

    def __init__(self, below: socket.socket, codec: Codec) -> None:
        self._below = below
        self._codec = codec

    def sendall(self, data: bytes) -> None:
        self._below.sendall(self._codec.pack(data))

    def recv(self, size: int) -> bytes:
        while data := self._below.recv(size):
            if plain := self._codec.unpack(data):
                return plain
        return b""

    def close(self) -> None:
        self._below.close()


class NsqSocket:
    """A blocking socket with a time-out. `place` is a port of this machine, or the path of a unix
    socket.
    """

    def __init__(self, place: int | str, timeout_s: float = 10.0, host: str = "127.0.0.1") -> None:
        if isinstance(place, int):
            self.socket = socket.create_connection((host, place), timeout=timeout_s)
        else:
            self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.socket.settimeout(timeout_s)
            self.socket.connect(place)
        self._got = b""
        self.socket.sendall(b"  V2")

    def send(self, line: str, body: bytes | None = None) -> None:
        self.socket.sendall(
            f"{line}\n".encode() + (b"" if body is None else struct.pack(">i", len(body)) + body)
        )

    def frame(self) -> tuple[int, bytes]:
        """Return the next frame that is not a heartbeat. Raise `EOFError` at the end."""
        while True:
            size, kind = struct.unpack(">ii", self._read(8))
            data = self._read(size - 4)
            if (kind, data) != (0, b"_heartbeat_"):
                return kind, data
            self.send("NOP")

    def ask(self, line: str, body: bytes | None = None) -> str:
        """Send a command and return its answer, or "E_..." if the answer is an error."""
        self.send(line, body)
        return self.frame()[1].decode()

    def identify(self, **asked: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(
            self.ask("IDENTIFY", json.dumps({"feature_negotiation": True} | asked).encode())
        )
        return answer

    def compress(self, codec: Codec) -> None:
        """Compress all further bytes, after an IDENTIFY that has asked for it."""
        self.socket = cast("socket.socket", PackedSocket(self.socket, codec))
        self._got = codec.unpack(self._got)

    def mpub(self, topic: str, *bodies: bytes) -> str:
        packed = struct.pack(">i", len(bodies)) + b"".join(
            struct.pack(">i", len(body)) + body for body in bodies
        )
        return self.ask(f"MPUB {topic}", packed)

    def subscribe(self, topic: str, channel: str, ready: int = 0) -> Self:
        assert self.ask(f"SUB {topic} {channel}") == "OK"
        if ready:
            self.send(f"RDY {ready}")
        return self

    def message(self) -> Message:
        kind, data = self.frame()
        assert kind == 2, data
        timestamp_ns, attempts = struct.unpack(">qH", data[:10])
        return Message(data[10:26], attempts, timestamp_ns, data[26:])

    def answer(self, command: str, message: Message, *more: object) -> None:
        self.send(" ".join([command, message.id.decode(), *map(str, more)]))

    def _read(self, count: int) -> bytes:
        while len(self._got) < count:
            came = self.socket.recv(65536)
            if not came:
                raise EOFError
            self._got += came
        found, self._got = self._got[:count], self._got[count:]
        return found

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
