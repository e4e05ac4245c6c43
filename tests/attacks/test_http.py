"""Tests of attacks on the HTTP gateway of a real broker: how much memory each of them costs the
gateway, and how long an honest client waits in the meantime.

Unless a test says otherwise, its attackers have no token, and an honest client publishes beside
them. The section "Attacks" of `docs/evidence.md` sums the figures up. The option `-s` prints the
figures of a run.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.broker import Broker, wait_for
from support.http_api import served
from support.memory import private_bytes

from zsq.actors.gateways.http.web.limits import HttpLimits
from zsq.actors.gateways.limiter import Bound

pytestmark = pytest.mark.slow

MIB = 1024 * 1024
TOKEN = "an-honest-token-of-some-length-0123456789"
LOW_TOKEN = "a-token-of-a-user-with-few-permissions-0123"
ACCESS = f"""
[users.low]
tokens = ["sha256:{hashlib.sha256(LOW_TOKEN.encode()).hexdigest()}"]
publish = ["carrier"]
subscribe = ["carrier"]

[users.honest]
tokens = ["sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}"]
publish = ["*"]
subscribe = ["*"]
admin = ["*"]
"""
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
LOW_HEADERS = {"Authorization": f"Bearer {LOW_TOKEN}"}
LOW = f"Host: localhost\r\nAuthorization: Bearer {LOW_TOKEN}\r\n".encode()
# The limit on the growth of the gateway's memory: 64 MiB of bodies, and the memory for 1,024
# connections and their buffers.
MEMORY_MAX = 120 * MIB
# The longest time of an honest publish while other tests may keep the machine busy. Without the
# limits it is 6 to 12 s.
DELAY_S_MAX = 5.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("attacked")
    access = folder / "access.toml"
    access.write_text(ACCESS)
    access.chmod(0o600)
    with Broker(folder / "data", "--access", str(access), "--no-listen", http=True) as broker:
        yield broker


def gateway(broker: Broker) -> int:
    (pid,) = (actor["pid"] for actor in broker.actors() if actor["name"].startswith("http"))
    return int(pid)


def dial(broker: Broker) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", broker.http), 20)
    sock.settimeout(20)
    return sock


def ask(
    broker: Broker,
    method: str,
    target: str,
    body: bytes = b"",
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.http, timeout=30)
    try:
        connection.request(method, target, body, HEADERS if headers is None else headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def defects(broker: Broker) -> str:
    """Return the first traceback in the broker's log."""
    return b"".join(broker.log.read_bytes().partition(b"Traceback")[1:])[:4_000].decode()


class Honest:
    """A client that publishes again and again, each time on a new connection. It also measures the
    gateway's memory in the meantime.
    """

    def __init__(self, broker: Broker) -> None:
        self.worst_s = 0.0
        self.published = 0
        self.failed: list[str] = []
        self.pid = gateway(broker)
        self.first = self.most = private_bytes(self.pid)
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                status, _ = ask(self._broker, "POST", "/pub?topic=honest", b"x")
                if status != 200:
                    self.failed.append(str(status))
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(repr(error))
            self.worst_s = max(self.worst_s, time.monotonic() - begun)
            self.published += 1
            self.most = max(self.most, private_bytes(self.pid))
            self._stop.wait(0.02)

    def end(self, attack: str, memory_max: int = MEMORY_MAX) -> None:
        self._stop.set()
        self._thread.join(60)
        assert gateway(self._broker) == self.pid, "the gateway lives on"
        grown = (self.most - self.first) / MIB
        print(
            f"\n| {attack} | {grown:.0f} MiB | {self.worst_s * 1000:.0f} ms at most, of "
            f"{self.published} publishes |"
        )
        assert not self.failed
        assert self.published
        assert self.most - self.first < memory_max
        assert self.worst_s < DELAY_S_MAX


@contextlib.contextmanager
def attacked(broker: Broker, attack: str, memory_max: int = MEMORY_MAX) -> Iterator[Honest]:
    honest = Honest(broker)
    try:
        wait_for(lambda: honest.published, 30, "the first publish")
        yield honest
    finally:
        honest._stop.set()
    honest.end(attack, memory_max)


def closed(sock: socket.socket, timeout_s: float) -> bool:
    """Return True if the gateway closes the connection within `timeout_s` seconds."""
    sock.settimeout(timeout_s)
    try:
        while sock.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def all_closed(sockets: list[socket.socket], timeout_s: float) -> bool:
    end = time.monotonic() + timeout_s
    return all(closed(sock, max(0.01, end - time.monotonic())) for sock in sockets)


def close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def send(sock: socket.socket, data: bytes) -> bool:
    """Send the data. Return False if the gateway has closed the connection."""
    try:
        sock.sendall(data)
    except TimeoutError:
        return True  # for now, the gateway reads nothing more
    except OSError:
        return False
    return True


# Requests that two readers may divide differently

SMUGGLED = (
    b"POST /topic/create?topic=smuggled HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    + TOKEN.encode()
    + b"\r\n\r\n"
)
BEGIN = (
    b"POST /pub?topic=carrier HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
    + TOKEN.encode()
    + b"\r\n"
)
CHUNKED = b"1\r\nx\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("name", "request_bytes"),
    [
        (
            "both lengths",
            BEGIN + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED + SMUGGLED,
        ),
        (
            "both, the other way round",
            BEGIN + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + CHUNKED + SMUGGLED,
        ),
        (
            "both, a length of 0",
            BEGIN + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED + SMUGGLED,
        ),
        (
            "chunked in HTTP/1.0",
            BEGIN.replace(b"HTTP/1.1", b"HTTP/1.0")
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + CHUNKED
            + SMUGGLED,
        ),
        ("two lengths", BEGIN + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nx" + SMUGGLED),
        ("a length with a sign", BEGIN + b"Content-Length: +1\r\n\r\nx" + SMUGGLED),
        ("a length in hex", BEGIN + b"Content-Length: 0x1\r\n\r\nx" + SMUGGLED),
        (
            "a coding that is none",
            BEGIN + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED + SMUGGLED,
        ),
        ("two codings", BEGIN + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED + SMUGGLED),
        (
            "a space before the colon",
            BEGIN + b"Transfer-Encoding : chunked\r\nContent-Length: 1\r\n\r\nx" + SMUGGLED,
        ),
        ("a bare LF", BEGIN + b"X: a\nContent-Length: 1\r\n\r\nx" + SMUGGLED),
        ("a folded line", BEGIN + b"X: a\r\n Content-Length: 1\r\n\r\nx" + SMUGGLED),
        (
            "a trailer",
            BEGIN
            + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nContent-Length: 1\r\n\r\n"
            + SMUGGLED,
        ),
        ("a bare CR", BEGIN + b"Content-Length: 1\rTransfer-Encoding: chunked\r\n\r\nx" + SMUGGLED),
        ("a NUL", BEGIN + b"X: \0\r\nContent-Length: 1\r\n\r\nx" + SMUGGLED),
        (
            "a chunk without its end",
            BEGIN + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxYZ0\r\n\r\n" + SMUGGLED,
        ),
        (
            "a chunk of minus one",
            BEGIN + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n" + SMUGGLED,
        ),
        (
            "a chunk that is too large",
            BEGIN
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"f" * 21
            + b"\r\nx\r\n0\r\n\r\n"
            + SMUGGLED,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_with_two_readings_is_refused_and_ends_its_connection(
    broker: Broker, name: str, request_bytes: bytes
) -> None:
    with dial(broker) as sock:
        sock.sendall(request_bytes)
        data = b""
        with contextlib.suppress(OSError):
            while piece := sock.recv(65_536):
                data += piece
    assert data.count(b"HTTP/1.1 ") <= 1, "nothing behind it is taken for a request"
    assert data[9:12] in (b"400", b"501", b""), data
    assert b'"smuggled"' not in ask(broker, "GET", "/topics")[1]


# Slow, silent and many connections


def test_slow_heads_and_silent_connections_cost_time_only_themselves(broker: Broker) -> None:
    """There are 600 connections: one third sends nothing, one third sends its head one byte at a
    time, and one third stops in the middle and shuts down its sending side.
    """
    with attacked(broker, "600 connections: silent, a byte a second, half-open") as honest:
        sockets = [dial(broker) for _ in range(600)]
        drips, halves = sockets[200:400], sockets[400:]
        for sock in drips + halves:
            send(sock, b"GET /ping HT")
        for sock in halves:
            sock.shutdown(socket.SHUT_WR)
        assert all_closed(halves, 10), "who has sent his last is not waited for"
        head = b"TP/1.1\r\nHost: localhost\r\nX-" + b"a" * 30
        for at in range(14):
            living = [sock for sock in drips if send(sock, head[at : at + 1])]
            honest._stop.wait(1)
            if not living:
                break
        assert all_closed(sockets, 10), "a head must come within 10 s"
        close(sockets)


def test_more_connections_than_there_are_places_lock_nobody_out(broker: Broker) -> None:
    """There are 1,500 unknown clients that send nothing. The oldest connection is closed for each
    new one, so that a client with a request gets a connection.
    """
    sockets: list[socket.socket] = []
    try:
        with attacked(broker, "1,500 silent connections, more than there are places"):
            for _ in range(1_500):
                with contextlib.suppress(OSError):
                    sockets.append(dial(broker))
            for _ in range(5):
                assert ask(broker, "GET", "/ping")[0] == 200
    finally:
        close(sockets)


# Large requests


def large_head(broker: Broker, sock: socket.socket, number: int) -> None:
    kinds: tuple[bytes, ...] = (
        b"GET /" + b"a" * MIB,
        b"GET /ping HTTP/1.1\r\nX: " + b"a" * MIB,
        b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 100_000,
    )
    send(sock, kinds[number % 3])


def large_body(broker: Broker, sock: socket.socket, number: int) -> None:
    """Send 5 MiB for a topic to which the sender may not publish, either with a Content-Length or
    in chunks.
    """
    head = b"POST /pub?topic=honest HTTP/1.1\r\nHost: localhost\r\n"
    if number % 2:
        send(sock, head + b"Content-Length: %d\r\n\r\n" % (5 * MIB) + bytes(4 * MIB))
    else:
        send(
            sock,
            head
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"10000\r\n"
            + bytes(65_536)
            + b"\r\n100000\r\n"
            + bytes(MIB),
        )


def tiny_chunks(broker: Broker, sock: socket.socket, number: int) -> None:
    send(
        sock,
        b"POST /pub?topic=honest HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"1\r\nx\r\n" * 200_000,
    )


def endless_trailers(broker: Broker, sock: socket.socket, number: int) -> None:
    send(
        sock,
        (
            b"POST /pub?topic=honest HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            b"\r\n0\r\n"
        )
        + b"X: y\r\n" * 200_000,
    )


def pipelined(broker: Broker, sock: socket.socket, number: int) -> None:
    send(sock, b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5_000)


@pytest.mark.parametrize(
    ("attack", "connections", "name"),
    [
        (large_head, 30, "30 heads of a MiB"),
        (large_body, 60, "60 bodies of 1 to 5 MiB without a token, unfinished"),
        (tiny_chunks, 20, "20 bodies of 200,000 chunks of a byte"),
        (endless_trailers, 20, "20 bodies with 200,000 trailers"),
        (pipelined, 20, "20 times 5,000 requests in one go, no answer read"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_publishes_go_on_during_many_large_requests(
    broker: Broker,
    attack: Callable[[Broker, socket.socket, int], None],
    connections: int,
    name: str,
) -> None:
    with attacked(broker, name) as honest:
        sockets = [dial(broker) for _ in range(connections)]
        threads = [
            threading.Thread(target=attack, args=(broker, sock, number))
            for number, sock in enumerate(sockets)
        ]
        for thread in threads:
            thread.start()
        for sock in sockets:
            sock.settimeout(4)
        wait_for(lambda: honest.published >= 20, 30, "20 publishes")
        for thread in threads:
            thread.join(30)
        close(sockets)


# Clients with a token


def test_event_streams_that_never_read_hold_up_nobody(broker: Broker) -> None:
    sockets: list[socket.socket] = []
    try:
        with attacked(
            broker, "100 event streams and 100 answers of which nothing is read, with a token"
        ) as honest:
            for target in (b"/api/live", b"/metrics"):
                for _ in range(100):
                    sock = socket.socket()
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
                    sock.connect(("127.0.0.1", broker.http))
                    send(
                        sock,
                        (
                            b"GET "
                            + target
                            + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer "
                            + TOKEN.encode()
                            + b"\r\n\r\n"
                        )
                        * 3,
                    )
                    sockets.append(sock)
            honest._stop.wait(3)
    finally:
        close(sockets)


def test_unfinished_bodies_of_a_user_keep_nobody_out(broker: Broker) -> None:
    """A user who may publish begins more bodies than there are places and connections."""
    sockets: list[socket.socket] = []
    try:
        with attacked(broker, "1,200 unfinished bodies of a user"):
            for _ in range(1_200):
                with contextlib.suppress(OSError):
                    sockets.append(dial(broker))
                    request = b"POST /pub?topic=carrier HTTP/1.1\r\n" + LOW
                    send(sockets[-1], request + b"Content-Length: 1000\r\n\r\nxx")
            assert ask(broker, "GET", "/ping", headers={}) == (200, b"OK")
            # The user's own requests, too, find places.
            assert ask(broker, "POST", "/pub?topic=carrier", b"x", LOW_HEADERS)[0] == 200
            first, newest = sockets[0], sockets[-1]
            assert closed(first, 1), "the oldest one made room for another connection"
            newest.settimeout(20)
            assert newest.recv(65_536).startswith(b"HTTP/1.1 408"), "it came too slowly"
    finally:
        close(sockets)


def vanish(sock: socket.socket) -> None:
    """Let the system drop all packets that come for this socket, so that none is acknowledged.

    The socket filter is one BPF instruction: return 0 bytes.
    """
    instruction = struct.pack("=HBBI", 0x06, 0, 0, 0)
    address = ctypes.create_string_buffer(instruction)
    program = struct.pack("HL", 1, ctypes.addressof(address))
    sock.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER


def test_a_connection_of_a_vanished_client_ends() -> None:
    with served(HttpLimits(vanished_s=2.0)) as site, site.dial() as sock:
        sock.sendall(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert sock.recv(65_536).startswith(b"HTTP/1.1 200")
        vanish(sock)
        assert site.server.connections
        wait_for(lambda: not site.server.connections, 30, "the end of the connection")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_streams_of_vanished_clients_end(broker: Broker) -> None:
    """Nothing closes their connections, and nothing comes that a stream could fail to send."""
    bound = HttpLimits().tails
    assert ask(broker, "POST", "/pub?topic=carrier", b"x")[0] == 200
    stream = b"GET /api/tail?topic=carrier HTTP/1.1\r\n" + LOW + b"\r\n"
    sockets = [dial(broker) for _ in range(bound.each)]
    try:
        for sock in sockets:
            sock.sendall(stream)
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200")
            vanish(sock)

        def has_place() -> bool:
            with dial(broker) as sock:
                sock.sendall(stream)
                return sock.recv(65_536).startswith(b"HTTP/1.1 200")

        assert not has_place()
        wait_for(has_place, HttpLimits().vanished_s + 30, "a place for another stream")
    finally:
        close(sockets)


@pytest.mark.parametrize(
    ("path", "bound"),
    [
        ("/api/tail?topic=carrier", HttpLimits().tails),
        ("/api/live", HttpLimits().live_views),
    ],
)
def test_a_user_takes_only_a_share_of_the_streams(broker: Broker, path: str, bound: Bound) -> None:
    """All requests come at the same time, and more than one user may have."""
    assert ask(broker, "POST", "/pub?topic=carrier", b"x")[0] == 200
    sockets = [dial(broker) for _ in range(bound.each + 30)]
    try:
        for sock in sockets:
            sock.sendall(f"GET {path} HTTP/1.1\r\n".encode() + LOW + b"\r\n")
        answers = {sock: sock.recv(65_536) for sock in sockets}
        refused = [sock for sock, answer in answers.items() if answer.startswith(b"HTTP/1.1 503")]
        assert len(refused) == 30
        answer = answers[refused[0]]
        while b"for user low is reached; close some" not in answer:
            more = refused[0].recv(65_536)  # the body may come apart from the head
            assert more, answer
            answer += more
        with dial(broker) as sock:
            sock.sendall(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
            assert sock.recv(65_536).startswith(b"HTTP/1.1 200"), "others have a share of their own"
    finally:
        close(sockets)


@pytest.mark.parametrize(
    "body",
    [b"[" * 60_000, b'{"a":' * 12_000, b"1" * 60_000, b'"\\ud800' * 9_000],
    ids=["lists", "objects", "digits", "text"],
)
def test_deep_json_is_refused_and_no_defect(broker: Broker, body: bytes) -> None:
    with attacked(broker, f"deep JSON, {len(body)} bytes of {body[:5]!r}"):
        for method, target in (
            ("POST", "/api/topics"),
            ("PUT", "/config/log_level"),
            ("POST", "/pub?topic=honest"),
        ):
            status, _ = ask(broker, method, target, body)
            assert status in (200, 400, 403, 404, 405, 413), (method, target)
    assert not defects(broker)


def test_a_compressed_body_is_not_unpacked(broker: Broker) -> None:
    import gzip

    bomb = gzip.compress(bytes(50 * MIB))
    with attacked(broker, "a gzip bomb of 50 MiB in 50 KB"):
        status, _ = ask(
            broker, "POST", "/pub?topic=honest", bomb, HEADERS | {"Content-Encoding": "gzip"}
        )
        assert status == 200, "a body is bytes"


def test_the_broker_is_well_after_all(broker: Broker, tmp_path: Path) -> None:
    assert ask(broker, "GET", "/ping") == (200, b"OK")
    assert not defects(broker)
