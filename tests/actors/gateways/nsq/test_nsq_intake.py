"""Tests of what NSQ connections share: turns, bytes, slots and lines of the log. Further tests end
connections that the gateway does not read from.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest
from support.broker import wait_for

import zsq.aio
from zsq.actors.gateways.nsq import intake as module
from zsq.actors.gateways.nsq.connection import Connection as RealConnection
from zsq.actors.gateways.nsq.intake import Intake
from zsq.transport.nsq.limits import NsqLimits

HEARTBEAT = b"\0\0\0\x0f\0\0\0\0_heartbeat_"


class Connection:
    """A connection that holds as many bytes as a test says and records its turns."""

    def __init__(
        self, room: Room, name: str, *, strange: bool = False, heard_ns: int = 0, slow: bool = False
    ) -> None:
        self.room, self.remote, self.strange = room, name, strange
        self.held_bytes = 0
        self.session = SimpleNamespace(heard_ns=heard_ns)
        self.waits_for_client = slow
        self.pieces = 0
        self.looks = 0
        room.connections[cast("Any", self)] = None
        if strange:
            room.intake.seen(cast("Any", self))

    def hold(self, size: int) -> None:
        self.room.intake.count(cast("Any", self), size)

    def take_piece(self) -> None:
        self.room.done.append(self.remote)
        self.pieces -= 1
        if self.pieces > 0:
            self.room.intake.plan(cast("Any", self))

    def work(self, pieces: int) -> None:
        self.pieces = pieces
        self.room.intake.plan(cast("Any", self))

    def look(self) -> None:
        self.looks += 1

    def abort(self) -> None:
        self.room.gone.append(self.remote)
        self.room.connections.pop(cast("Any", self))
        self.room.intake.forget(cast("Any", self))


class Room:
    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []
        self.connections: dict[Any, None] = {}
        self.intake = Intake(
            cast("Any", SimpleNamespace(call_soon=self.later.append)), self.connections
        )
        self.done: list[str] = []
        self.gone: list[str] = []

    def turn(self) -> list[str]:
        """Return what was done in one turn of the loop."""
        later, self.later[:] = [*self.later], []
        for one in later:
            one()
        done, self.done = self.done, []
        return done


@pytest.fixture
def room() -> Room:
    return Room()


def test_unauthenticated_connections_do_not_delay_the_others(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_NS", 0)  # each turn does only one piece of work
    strangers = [Connection(room, f"stranger {number}", strange=True) for number in range(3)]
    for one in strangers:
        one.work(5)
    assert room.turn() == ["stranger 0"]
    users = [Connection(room, "a"), Connection(room, "b")]
    for user in users:
        user.work(2)
    done = [name for _ in range(9) for name in room.turn()]
    assert done == [
        "a",
        "stranger 1",
        "b",
        "stranger 2",
        "a",
        "stranger 0",
        "b",
        "stranger 1",
        "stranger 2",
    ]


def test_a_turn_does_as_much_as_there_is_time_for(room: Room) -> None:
    Connection(room, "a").work(3)
    assert room.turn() == ["a"] * 3
    assert room.later == [], "nothing is planned where nothing waits"


def test_the_time_for_reading_in_one_turn_is_bounded(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not room.intake.spent
    monkeypatch.setattr(module, "TURN_NS", -1)
    assert room.intake.spent
    room.turn()
    assert not room.intake.spent, "the next turn has time again"


def test_unauthenticated_clients_that_hold_too_much_are_closed_idle_first(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRANGERS_BYTES_MAX", 100)
    user = Connection(room, "user")
    user.hold(1_000)
    empty, first, second, third = (
        Connection(room, name, strange=True) for name in ("empty", "first", "second", "third")
    )
    for one in (first, second, third):
        one.hold(33)
    first.hold(34)  # the first one has sent something, so the second one has been idle for longer
    assert room.gone == []
    third.hold(60)
    assert room.gone == ["second"]
    assert (room.intake.strangers_bytes, room.intake.held_bytes) == (94, 1_094)
    room.intake.known(cast("Any", third))
    assert (room.intake.strangers_bytes, room.intake.held_bytes) == (34, 1_094)
    assert [one.remote for one in room.intake.strangers] == [empty.remote, first.remote]


def test_slow_connections_may_hold_half_of_the_memory_for_input(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 1_000)
    waiting = Connection(room, "waits for us")
    slow = [
        Connection(room, f"slow {number}", slow=True, heard_ns=10 - number) for number in range(4)
    ]
    for one in slow:
        one.hold(200)
    assert room.gone == []
    waiting.hold(190)
    assert room.gone == []
    waiting.hold(250)
    assert room.gone == ["slow 3", "slow 2"], (
        "those whose last command is oldest, until the others hold half of it"
    )
    assert (room.intake.full, room.intake.held_bytes) == (False, 650)
    waiting.hold(700)
    assert room.intake.full
    assert waiting.looks == slow[0].looks == 1
    waiting.hold(400)
    assert room.intake.full
    waiting.hold(300)
    assert not room.intake.full
    assert waiting.looks == slow[0].looks == 2
    assert room.gone == ["slow 3", "slow 2"], (
        "who waits for us is not cut off, nor who holds little"
    )


# On a real loop


class Gateway:
    title = "nsq gateway"

    def __init__(self, limits: NsqLimits) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.connections: dict[RealConnection, None] = {}
        self.paused: dict[RealConnection, None] = {}
        self.intake = Intake(self.loop, self.connections)
        self.gatherer = SimpleNamespace(full=False)
        self.made: list[RealConnection] = []
        self.clients: list[socket.socket] = []
        self.published: list[Callable[[str], None]] = []

    async def __aenter__(self) -> Self:
        self.server = await self.loop.create_server(
            lambda: RealConnection(cast("Any", self)), "127.0.0.1", 0
        )
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for client in self.clients:
            client.close()
        for one in list(self.connections):
            one.abort()
        await self.server.wait_closed()

    def admit(self, connection: RealConnection) -> bool:
        self.connections[connection] = None
        connection.strange = True
        self.intake.seen(connection)
        self.made.append(connection)
        return True

    def forget(self, connection: RealConnection) -> None:
        self.connections.pop(connection, None)
        self.paused.pop(connection, None)
        self.intake.forget(connection)

    def publish(
        self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]
    ) -> None:
        self.published.append(answer)

    async def dial(self) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        self.clients.append(made)
        await self.loop.sock_connect(made, ("127.0.0.1", self.port))
        return made

    async def until(self, condition: Callable[[], object]) -> None:
        await asyncio.to_thread(wait_for, condition, 20)


def run(main: Any) -> None:
    zsq.aio.run(asyncio.wait_for(main, 60))


def pub(size: int) -> bytes:
    return b"PUB t\n" + size.to_bytes(4, "big") + bytes(size)


@pytest.mark.parametrize("how", ["reset", "closed"])
def test_the_end_of_a_client_is_noticed_while_it_is_not_read_from(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's unfinished work is dropped, and its bytes are freed."""
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    async def main() -> None:
        async with Gateway(NsqLimits()) as gateway:
            client = await gateway.dial()
            # This sends more publishes than may wait for their answers.
            await gateway.loop.sock_sendall(client, b"  V2" + pub(1) * 1_500)
            await gateway.until(lambda: gateway.intake.unread)
            await gateway.until(lambda: gateway.intake.held_bytes)
            if how == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.close()
            await gateway.until(lambda: not gateway.connections)
            assert (gateway.intake.held_bytes, len(gateway.intake.unread), len(gateway.paused)) == (
                0,
                0,
                0,
            )

    run(main())


def test_a_client_that_only_ends_its_sending_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.01)

    async def main() -> None:
        async with Gateway(NsqLimits()) as gateway:
            client = await gateway.dial()
            await gateway.loop.sock_sendall(client, b"  V2" + pub(1) * 1_500)
            client.shutdown(socket.SHUT_WR)
            await gateway.until(lambda: gateway.made and gateway.made[0].half_closed)
            answered = 0
            while answered < 1_500:
                await gateway.until(lambda: gateway.published)
                while gateway.published:
                    gateway.published.pop(0)("")
                    answered += 1
                gateway.made[0].look()  # the gateway does the same when answers arrive
            got = b""
            while data := await asyncio.wait_for(gateway.loop.sock_recv(client, 65536), 20):
                got += data
            assert got.count(b"\0\0\0\x06\0\0\0\0OK") == 1_500
            assert got.count(HEARTBEAT) == 1
            client.close()

    run(main())


def test_work_that_is_left_over_is_done_later_and_in_order() -> None:
    async def main() -> None:
        async with Gateway(NsqLimits()) as gateway:
            client = await gateway.dial()
            many = 50_000
            await gateway.loop.sock_sendall(
                client, b"  V2" + b"NOP x\n" * many + pub(1) + b"NOP x\n" * many + b"WHAT\n"
            )
            await gateway.until(lambda: gateway.published)
            gateway.published.pop()("")
            got = b""
            while data := await asyncio.wait_for(gateway.loop.sock_recv(client, 65536), 20):
                got += data
            assert got.startswith(b"\0\0\0\x06\0\0\0\0OK")
            assert got.endswith(b"E_INVALID invalid command WHAT")
            client.close()
            await gateway.until(lambda: not gateway.connections)
            assert gateway.intake.held_bytes == 0

    run(main())
