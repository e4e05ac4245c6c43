"""Tests of attacks on the NSQ gateway: under each of them the gateway's memory stays bounded, and
an honest client is served.

`python -m pytest tests/attacks/test_nsq.py -s` prints a table, which docs/evidence.md sums up. The
limits that the tests assert are generous, because other work may run on the same machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import secrets
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import cramjam
import pytest
from support import certificates
from support.broker import Broker, wait_for
from support.nsq_socket import NsqSocket
from support.small_web import Question, SmallWeb, said

import zsq
from zsq.actors.security.access import token_hash
from zsq.actors.settings.options import NsqOptions
from zsq.transport.nsq.limits import (
    BYTES_BEFORE_AUTH_MAX,
    IDENTITY_BYTES_MAX,
    STRING_BYTES_MAX,
    NsqLimits,
)

pytestmark = pytest.mark.slow

MIB: Final = 1 << 20
# The token of a user who may publish to `honest` and to `own`.
TOKEN: Final = secrets.token_hex(16)
USERS: Final = f"""
[users.worker]
tokens = ["{token_hash(TOKEN)}"]
publish = ["honest", "own"]
subscribe = ["own"]
"""
# The number of publishes of the honest client that must be answered while all attackers are
# connected.
PUBLISHES: Final = 20
# The time limit for each of these publishes. An attack that blocks the gateway for longer fails the
# test.
ANSWER_S: Final = 30.0

Row = tuple[str, float, float, float]


class Door:
    """A broker with an access file and a certificate, and the figures that were measured."""

    def __init__(self, folder: Path, *options: str) -> None:
        made = certificates.make(folder)
        self.broker = Broker(
            folder / "data",
            *options,
            "--nsq-tls-cert",
            made.cert,
            "--nsq-tls-key",
            made.key,
            nsq=True,
        )
        self.rows: list[Row] = []
        self.descriptors_before = 0

    def start(self) -> Self:
        self.broker.start()
        (self.pid,) = self.broker.pids("nsq_gateway")
        with authenticated(self.port) as client:  # from now on the links to both topics exist
            assert client.ask("PUB honest", b"message") == client.ask("PUB own", b"message") == "OK"
        self.descriptors_before = self.descriptors
        return self

    @property
    def port(self) -> int:
        return self.broker.nsq

    @property
    def memory(self) -> float:
        """Return how many MiB of memory the gateway's process uses."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024

    def print(self) -> None:
        print(
            "\n\n| attack | memory of the gateway, MiB more | honest client, median | honest "
            "client, longest |\n|---|---|---|---|"
        )
        for name, memory, median, longest in self.rows:
            print(f"| {name} | {memory:.0f} | {median * 1000:.1f} ms | {longest * 1000:.0f} ms |")

    @property
    def descriptors(self) -> int:
        """Return the number of open files and sockets of the gateway's process."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))


class Honest(threading.Thread):
    """A client that authenticates and publishes one message after the other until it is stopped."""

    def __init__(self, door: Door) -> None:
        super().__init__(daemon=True)
        self._door = door
        self._over = threading.Event()
        self.delays: list[float] = []
        self.peak = door.memory
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with authenticated(self._door.port, ANSWER_S) as client:
                while not self._over.is_set():
                    began = time.monotonic()
                    assert client.ask("PUB honest", b"message") == "OK"
                    self.delays.append(time.monotonic() - began)
                    self.peak = max(self.peak, self._door.memory)
        except BaseException as error:
            self.failure = error

    def serve(self, more: int) -> None:
        """Wait until `more` further publishes are answered."""
        want = len(self.delays) + more
        wait_for(
            lambda: len(self.delays) >= want or self.failure,
            ANSWER_S * 2,
            f"{more} answers to the honest client",
        )
        if self.failure is not None:
            raise AssertionError("the honest client was not served") from self.failure

    def stop(self) -> None:
        self._over.set()
        self.join(ANSWER_S)
        assert not self.is_alive()


class Attackers:
    """Connections that send their data and ignore the answers. They go on even if the gateway
    closes them.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.sockets: list[socket.socket] = []

    def connect(self, *words: bytes, magic: bool = True) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_S)
        made.settimeout(0.5)
        self.sockets.append(made)
        self.say(made, *([b"  V2"] if magic else []), *words)
        return made

    def say(self, to: socket.socket, *words: bytes) -> None:
        # The connection was closed, or the gateway does not read from it any more.
        with contextlib.suppress(OSError):
            for data in words:
                to.sendall(data)

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def authenticated(port: int, timeout_s: float = 10.0) -> NsqSocket:
    client = NsqSocket(port, timeout_s)
    client.identify()
    assert client.ask("AUTH", TOKEN.encode()).startswith("{")
    return client


def command(line: str, size: int, body: bytes = b"") -> bytes:
    """Return a command that announces `size` bytes, with as much of the body as is given."""
    return line.encode() + b"\n" + struct.pack(">i", size) + body


def identify(**asked: Any) -> bytes:
    body = json.dumps({"feature_negotiation": True} | asked).encode()
    return command("IDENTIFY", len(body), body)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    (folder / "access.toml").write_text(USERS)
    made = Door(folder, "--access", str(folder / "access.toml"), "--no-listen")
    try:
        yield made.start()
    finally:
        made.broker.close()
        made.print()


def attacked(door: Door, name: str, attack: Callable[[Attackers], object], most_mib: int) -> None:
    """Serve an honest client during the attack and while all attackers stay connected. The
    gateway's memory may grow by `most_mib` at most.
    """
    before = door.memory
    honest = Honest(door)
    honest.start()
    honest.serve(1)
    attackers = Attackers(door.port)
    try:
        honest.delays.clear()
        attack(attackers)
        honest.serve(PUBLISHES)
    finally:
        attackers.close()
        honest.stop()
    delays = sorted(honest.delays)
    door.rows.append((name, max(0.0, honest.peak - before), delays[len(delays) // 2], delays[-1]))
    assert honest.peak - before < most_mib, f"the gateway grew by {honest.peak - before:.0f} MiB"


# Clients that have not authenticated


def nothing(_: Attackers) -> None:
    pass


def test_memory_stays_bounded_without_an_attack(door: Door) -> None:
    attacked(door, "none", nothing, 30)


def test_unfinished_auth_bodies_do_not_fill_the_gateways_memory(door: Door) -> None:
    """Bodies that are too large are refused before they are read. The number of bodies of the
    largest accepted size is limited.
    """

    def attack(them: Attackers) -> None:
        for _ in range(150):
            them.connect(command("AUTH", 5 * MIB, bytes(300_000)))
            them.connect(
                identify(heartbeat_interval=-1),
                command("AUTH", IDENTITY_BYTES_MAX, bytes(IDENTITY_BYTES_MAX - 1)),
            )

    attacked(door, "300 unfinished bodies of AUTH", attack, 60)


def test_large_identify_bodies_do_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        body = json.dumps({"user_agent": "x" * 4_900_000}).encode()
        for _ in range(40):
            them.connect(command("IDENTIFY", len(body), body))

    attacked(door, "40 x IDENTIFY with a user_agent of 4.9 MB", attack, 60)


def test_deep_and_wide_json_does_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        bodies = [
            b"[" * 16_000,
            b'{"a":' * 3_000,
            b'{"x":[' + b"[]," * 5_300 + b"1]}",
            b'{"a":"' + b'\\"' * 8_000 + b'"}',
        ]
        for _ in range(25):
            for body in bodies:
                them.connect(command("IDENTIFY", len(body), body))

    attacked(door, "100 x IDENTIFY with deep and wide JSON", attack, 60)


def test_publishes_without_auth_do_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        for _ in range(100):
            them.connect(
                command("MPUB honest", 5 * MIB, struct.pack(">ii", 6, MIB) + bytes(300_000))
            )
            them.connect(command("PUB honest", MIB, bytes(300_000)))

    attacked(door, "200 bodies of publishes without AUTH", attack, 60)


def test_packed_commands_before_auth_do_not_fill_the_gateways_memory(door: Door) -> None:
    """Half a megabyte of deflate unpacks to 500 MB of NOP commands. A client that has not
    authenticated may send at most BYTES_BEFORE_AUTH_MAX bytes of them.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = packer.compress(b"NOP\n" * (2 * MIB)) + packer.flush(zlib.Z_SYNC_FLUSH)
    other = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    words = other.compress(b"NOP x\n" * MIB) + other.flush(zlib.Z_SYNC_FLUSH)

    def attack(them: Attackers) -> None:
        for _ in range(40):
            for packed in (bomb, words):
                made = them.connect(identify(deflate=True))
                with contextlib.suppress(OSError):
                    made.recv(65536)
                them.say(made, packed * 8)

    attacked(door, "80 deflate bombs of NOPs", attack, 60)


def snappy_chunk(kind: int, data: bytes) -> bytes:
    return struct.pack("<I", kind | len(data) << 8) + data


def test_snappy_bombs_do_not_fill_the_gateways_memory(door: Door) -> None:
    """The streams contain commands that compress well, chunks that announce gigabytes, and empty
    chunks.
    """
    stream = b"\xff\x06\x00\x00sNaPpY"
    bombs = [
        bytes(cramjam.snappy.compress(b"NOP x\n" * MIB)),
        stream + snappy_chunk(0x00, b"0000\xff\xff\xff\xff\x0f" + b"a" * 9) * 1000,
        stream + snappy_chunk(0xFE, b"") * 200_000,
        stream + struct.pack("<I", 0xFE | 0xFFFFFF << 8) + bytes(500_000),
        stream + snappy_chunk(0x00, bytes(60_000))[:-1],
    ]

    def attack(them: Attackers) -> None:
        for _ in range(16):
            for bomb in bombs:
                made = them.connect(identify(snappy=True))
                with contextlib.suppress(OSError):
                    made.recv(65536)
                them.say(made, bomb)

    attacked(door, "80 snappy bombs", attack, 60)


def test_unused_compression_does_not_fill_the_gateways_memory(door: Door) -> None:
    """A deflate layer takes 100 KiB or more. The layers of clients that have not authenticated
    count as bytes that these clients hold.
    """

    def attack(them: Attackers) -> None:
        for _ in range(1_200):
            them.connect(identify(deflate=True, heartbeat_interval=-1))

    attacked(door, "1,200 deflate connections that stay silent", attack, 180)


def test_unfinished_handshakes_do_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(incoming, outgoing).do_handshake()
        hello = outgoing.read()
        for number in range(300):
            made = them.connect(identify(tls_v1=True, heartbeat_interval=-1))
            with contextlib.suppress(OSError):
                made.recv(65536)
            them.say(made, hello if number % 2 else hello[:-1])

    attacked(door, "300 TLS handshakes that are not finished", attack, 90)


def test_unread_answers_do_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        for _ in range(200):
            them.connect(identify() * 5_000)

    attacked(door, "200 x 5,000 IDENTIFY without reading the answers", attack, 60)


def test_silent_connections_do_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        for number in range(3_000):
            them.connect(
                *((b"  V2", b"IDENT") if number % 3 == 0 else (b"  ",) if number % 3 == 1 else ()),
                magic=False,
            )

    attacked(door, "3,000 connections that send nothing or an unfinished command", attack, 90)


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 12_000,
    reason="it takes 10,100 sockets here and in the gateway",
)
def test_a_client_that_authenticates_gets_in_when_strangers_use_all_connections(door: Door) -> None:
    """Each new connection displaces the unauthenticated connection that has been idle for longest,
    so a client that authenticates gets in.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 12_000), hard))

    def attack(them: Attackers) -> None:
        for _ in range(NsqOptions().connections_max + 100):
            them.connect()
        with authenticated(door.port, ANSWER_S) as other:
            assert other.ask("PUB own", b"message") == "OK"

    attacked(door, "10,100 strangers at 10,000 connections", attack, 250)


def test_endless_lines_do_not_fill_the_gateways_memory(door: Door) -> None:
    def attack(them: Attackers) -> None:
        made = [them.connect() for _ in range(300)]
        for _ in range(20):
            for one in made:
                them.say(one, b"x" * 700)

    attacked(door, "300 lines without an end", attack, 60)


def test_clients_that_do_not_authenticate_are_disconnected_in_time(door: Door) -> None:
    """Neither a heartbeat interval of -1 nor a byte now and then keeps such clients connected. They
    get the reason and are disconnected.
    """
    limit_s = NsqLimits().auth_deadline_ms / 1000
    with (
        NsqSocket(door.port, timeout_s=limit_s + ANSWER_S) as silent,
        NsqSocket(door.port, timeout_s=limit_s + ANSWER_S) as talking,
    ):
        silent.identify(heartbeat_interval=-1)
        talking.send("NOP")
        assert silent.frame() == (1, f"E_AUTH_FIRST AUTH required within {limit_s:g} s".encode())
        assert talking.frame() == (1, f"E_AUTH_FIRST AUTH required within {limit_s:g} s".encode())
        for one in (silent, talking):
            with pytest.raises(EOFError):
                one.frame()


# Answers to clients that have not authenticated


def test_a_refusal_is_sent_although_the_body_was_not_read(door: Door) -> None:
    """The whole body is sent before the answer is read. If the gateway closed a socket with unread
    bytes, the answer would be lost.
    """
    sent = [
        (
            command("AUTH", 5 * MIB, bytes(5 * MIB)),
            f"E_BAD_BODY AUTH body too big {5 * MIB} > {IDENTITY_BYTES_MAX}",
        ),
        (command("PUB honest", MIB, bytes(MIB)), "E_AUTH_FIRST AUTH required before PUB"),
        (
            command("MPUB honest", 5 * MIB, struct.pack(">ii", 5, MIB) + bytes(5 * MIB - 8)),
            "E_AUTH_FIRST AUTH required before MPUB",
        ),
        (
            b"NOP x\n" * 40_000,
            f"E_AUTH_FIRST AUTH required before more than {BYTES_BEFORE_AUTH_MAX} bytes",
        ),
    ]
    for data, answer in sent:
        with NsqSocket(door.port) as client:
            client.socket.sendall(data)
            assert client.frame() == (1, answer.encode())
            with pytest.raises(EOFError):
                client.frame()


def test_a_publish_without_permission_is_refused_before_its_body_is_sent(door: Door) -> None:
    with authenticated(door.port) as client:
        client.socket.sendall(command("PUB others", MIB, b"x"))
        assert client.frame() == (1, b'E_UNAUTHORIZED AUTH failed for PUB on "others" ""')
    with authenticated(door.port) as client:
        client.socket.sendall(command("PUB own", 7, b"message"))
        assert client.frame() == (0, b"OK")


def test_texts_of_an_unauthenticated_client_are_cut(door: Door) -> None:
    fields = ("client_id", "hostname", "user_agent", "topology_region", "topology_zone")
    with NsqSocket(door.port) as client:
        client.identify(**dict.fromkeys(fields, "ä" * 300))
        assert client.ask("AUTH", TOKEN.encode()).startswith("{")
        assert client.ask("PUB own", b"message") == "OK"
        with zsq.Admin(door.broker.ipc) as admin:
            (row,) = (one for one in admin.stats()["producers"] if one["client_id"].startswith("ä"))
        assert {len(row[name].encode()) for name in fields} == {STRING_BYTES_MAX}


# Clients that have authenticated and misbehave


def test_unfinished_bodies_of_a_user_do_not_fill_the_gateways_memory(door: Door) -> None:
    """All connections together may hold 128 MiB. If more than half of that is held, the slowest are
    disconnected.
    """

    unfinished = struct.pack(">i", 5) + (struct.pack(">i", MIB - 100) + bytes(MIB - 100)) * 5
    unfinished = unfinished[:-1]

    def attack(them: Attackers) -> None:
        for _ in range(60):
            client = authenticated(door.port)
            them.sockets.append(client.socket)
            client.socket.settimeout(0.5)
            them.say(client.socket, command("MPUB own", 5 * MIB, unfinished))

    attacked(door, "a user's 60 unfinished MPUBs of 5 MiB", attack, 260)


def test_packed_commands_of_a_user_do_not_fill_the_gateways_memory(door: Door) -> None:
    """A user's bombs are unpacked piece by piece, in turns with the work of other clients."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bomb = packer.compress(b"NOP x\n" * (2 * MIB)) + packer.flush(zlib.Z_SYNC_FLUSH)

    def attack(them: Attackers) -> None:
        packers = []
        for _ in range(40):
            made = them.connect(identify(deflate=True))
            with contextlib.suppress(OSError):
                made.recv(65536)
            own = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
            them.say(
                made,
                own.compress(command("AUTH", len(TOKEN), TOKEN.encode()))
                + own.flush(zlib.Z_SYNC_FLUSH),
            )
            packers.append(made)
        for made in packers:
            them.say(made, bomb * 4)

    attacked(door, "a user's 40 deflate bombs of commands", attack, 90)


def test_attackers_that_left_hold_no_connection_and_no_memory(door: Door) -> None:
    """When all attackers have left, their connections and their unfinished work must be gone."""
    wait_for(
        lambda: door.descriptors <= door.descriptors_before, ANSWER_S, "the end of all connections"
    )
    attacked(door, "none, after all of these", nothing, 30)


# NSQ's auth servers


class AuthServer:
    """An auth server in a thread of its own. It knows one secret. `answer` is the answer to all
    other clients, and None leaves them waiting.
    """

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.asked = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    async def _main(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with SmallWeb(self._answer) as web:
            self.address = web.address
            self._ready.set()
            await self._over.wait()

    def _answer(self, question: Question) -> bytes | None:
        self.asked += 1
        if question.parameters["secret"] != TOKEN:
            return self.answer
        allowed = {
            "topic": "honest|own",
            "channels": [".*"],
            "permissions": ["publish", "subscribe"],
        }
        return said(
            {"ttl": 2, "identity": "worker", "identity_url": "", "authorizations": [allowed]}
        )

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)


@pytest.fixture(scope="module")
def auth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Door, AuthServer]]:
    server = AuthServer()
    made = Door(tmp_path_factory.mktemp("auth"), "--nsq-auth-http-address", server.address)
    try:
        yield made.start(), server
    finally:
        made.broker.close()
        server.close()
        made.print()


def granted(**more: Any) -> dict[str, Any]:
    return {
        "ttl": 60,
        "identity": "i",
        "authorizations": [{"topic": ".*", "channels": [".*"], "permissions": ["publish"]}],
    } | more


def grown(pattern: str, count: int) -> dict[str, Any]:
    return granted(
        authorizations=[
            {"topic": pattern + str(n), "channels": [".*"], "permissions": ["publish"]}
            for n in range(count)
        ]
    )


ANSWERS: Final[dict[str, bytes | None]] = {
    "nothing": None,
    "garbage": secrets.token_bytes(5_000),
    "half an answer": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
    "2 MiB": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(2 * MIB),
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
    "a redirect": (
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    ),
    "deep JSON": said(b'{"ttl":60,"authorizations":' + b"[" * 500_000),
    "ttl 0": said(granted(ttl=0)),
    "a negative ttl": said(granted(ttl=-1)),
    "a ttl that is no number": said(granted(ttl="60")),
    "a ttl of 1e400": said(json.dumps(granted()).encode().replace(b"60", b"1e400")),
    "costly patterns": said(grown("([a-z]|b?){90}", 1_000)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_bad_answers_of_an_auth_server_admit_and_delay_no_client(
    auth: tuple[Door, AuthServer], name: str
) -> None:
    """In the meantime, clients that the server knows authenticate. The answers about them are valid
    for two seconds. Then the gateway asks the server again.
    """
    door, server = auth
    server.answer = ANSWERS[name]

    def attack(them: Attackers) -> None:
        for number in range(40):
            secret = f"{name} {number}".encode()
            them.connect(
                identify(), command("AUTH", len(secret), secret), command("PUB own", 1, b"x")
            )
        with authenticated(door.port, ANSWER_S) as other:
            assert other.ask("PUB own", b"message") == "OK"
        if server.answer is not None:
            for one in them.sockets:
                one.settimeout(ANSWER_S)
                got = b""
                while data := one.recv(65536):
                    got += data
                assert got.endswith(b"E_AUTH_FAILED AUTH failed"), got[-100:]

    attacked(door, f"an auth server that answers 40 clients with {name}", attack, 90)


def test_a_bounded_number_of_unknown_clients_is_authorized_at_a_time(
    auth: tuple[Door, AuthServer],
) -> None:
    """The server does not answer unknown clients. They may use at most half of the slots, and no
    client waits for ever.
    """
    door, server = auth
    server.answer = None
    before = server.asked

    def attack(them: Attackers) -> None:
        for number in range(500):
            secret = f"{number}".encode() + b"x" * 4_000
            them.connect(identify(heartbeat_interval=-1), command("AUTH", len(secret), secret))

    attacked(door, "500 clients that an auth server does not answer for", attack, 90)
    assert server.asked - before < 500
