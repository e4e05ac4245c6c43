"""JetStream as a peer in the benchmarks, if nats-server is on PATH.

The server stores messages in files and syncs each message. The client is plain Python, like ZSQ's
client, and speaks NATS's text protocol. A publish names a reply subject, and the server answers on
it when the message is stored. A push consumer acknowledges each message explicitly.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..harness.crew import MemberFailed
from ..harness.loads import Start
from ..harness.pace import LEAD_S, Arrivals, Load, Sent
from .nsq_peers import READY_S, free_port
from .paced_clients import WAIT_S, received, send_paced

HELLO: Final = (
    b'CONNECT {"verbose": false, "pedantic": false, "lang": "python", "version": "0"}\r\nPING\r\n'
)
ANSWERS: Final = b"answers"
CONSUMER: Final = "bench"
# The most messages that are delivered and not acknowledged, as with ZSQ's consumer.
UNFINISHED_MAX: Final = 5_000
BUFFERED_MAX: Final = 10_000_000  # the most publishes that the server keeps before it refuses more
CONFIGURATION: Final = """
listen: "127.0.0.1:{port}"
ping_interval: "1h"
jetstream {{
  store_dir: "{place}"
  sync_interval: always
  max_buffered_msgs: {buffered}
}}
"""


def find() -> str | None:
    return shutil.which("nats-server")


@contextlib.contextmanager
def jetstream(program: str, folder: Path) -> Iterator[int]:
    """Run a server that syncs each message before its answer, and yield its port."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="nats-", dir=folder) as place:
        configuration = Path(place, "server.conf")
        configuration.write_text(
            CONFIGURATION.format(port=port, place=f"{place}/data", buffered=BUFFERED_MAX)
        )
        process = subprocess.Popen(
            [program, "-c", str(configuration)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + READY_S
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise MemberFailed("nats-server did not start")
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()
            process.wait(READY_S)


class Delivery(NamedTuple):
    """A message of a subscription, and the subject for its answer."""

    body: bytes
    reply: bytes


class Parser:
    """Parses the server's messages from a stream that arrives in pieces of any size.

    A PING is not answered: the server closes a connection only after several of them, and they are
    an hour apart.
    """

    def __init__(self) -> None:
        self.pongs = 0
        self._rest = b""

    def take(self, data: bytes) -> list[Delivery]:
        data = self._rest + data
        found = []
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = data[at:end]
            after = end + 2
            if line.startswith(b"MSG "):
                _, _, _, *reply, size = line.split(b" ")
                if len(data) < after + int(size) + 2:
                    break
                found.append(Delivery(data[after : after + int(size)], reply[0] if reply else b""))
                after += int(size) + 2
            elif line == b"PONG":
                self.pongs += 1
            elif not line.startswith((b"INFO ", b"+OK", b"PING")):
                raise MemberFailed(f"nats-server sent {line[:200].decode(errors='replace')}")
            at = after
        self._rest = data[at:]
        return found


class Link:
    """A connection that the server has accepted."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), READY_S)
        self.parser = Parser()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.sendall(HELLO)
            while not self.parser.pongs:
                self.parser.take(received(self.socket))
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> Link:  # noqa: PYI034
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def read(self) -> list[Delivery]:
        return self.parser.take(received(self.socket))

    def request(self, subject: str, options: dict[str, Any]) -> None:
        """Ask JetStream's API, and wait for its answer."""
        payload = json.dumps(options).encode()
        self.socket.sendall(
            b"SUB %s 1\r\nPUB $JS.API.%s %s %d\r\n%s\r\n"
            % (ANSWERS, subject.encode(), ANSWERS, len(payload), payload)
        )
        while not (answers := self.read()):
            pass
        accepted(answers)


def accepted(answers: list[Delivery]) -> int:
    """Return the number of answers. Raises `MemberFailed` if one is an error."""
    for answer in answers:
        if b'"error"' in answer.body:
            raise MemberFailed(f"JetStream answered {answer.body.decode(errors='replace')}")
    return len(answers)


def prepare_jetstream(port: str, topic: str) -> None:
    consumer = {
        "durable_name": CONSUMER,
        "deliver_subject": f"deliver.{topic}",
        "ack_policy": "explicit",
        "max_ack_pending": UNFINISHED_MAX,
    }
    with Link(int(port)) as link:
        link.request(
            f"STREAM.CREATE.{topic}", {"name": topic, "subjects": [topic], "storage": "file"}
        )
    with Link(int(port)) as link:
        link.request(
            f"CONSUMER.DURABLE.CREATE.{topic}.{CONSUMER}",
            {"stream_name": topic, "config": consumer},
        )


def remove_jetstream(port: str, topic: str) -> None:
    with Link(int(port)) as link:
        link.request(f"STREAM.DELETE.{topic}", {})


def publish_jetstream(start: Start, port: str, topic: str, load: Load) -> Sent:
    with Link(int(port)) as link:
        link.socket.sendall(b"SUB %s 1\r\n" % ANSWERS)
        head = b"PUB %s %s %d\r\n" % (topic.encode(), ANSWERS, load.size)
        command = lambda number: head + load.body(number) + b"\r\n"  # noqa: E731
        return send_paced(
            link.socket, load, start() + LEAD_S, command, lambda: accepted(link.read())
        )


def consume_jetstream(start: Start, port: str, topic: str, load: Load) -> array[float]:
    with Link(int(port)) as link:
        link.socket.sendall(b"SUB deliver.%s 1\r\n" % topic.encode())
        arrivals = Arrivals(load, start() + LEAD_S)
        link.socket.settimeout(WAIT_S)
        while not arrivals.over:
            try:
                deliveries = link.read()
            except TimeoutError:
                continue
            for body, _ in deliveries:
                arrivals.add(body)
            if deliveries:
                link.socket.sendall(
                    b"".join([b"PUB %s 4\r\n+ACK\r\n" % reply for _, reply in deliveries])
                )
    return arrivals.times


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError, MemberFailed), Link(port):
        return True
    return False
