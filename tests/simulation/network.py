"""Connections of the simulated network, as libzmq makes them: a queue at each end, a transfer time
between them, and reconnection by the end that connected.

A connection belongs to the socket that connected. Its queue lives as long as that socket. If the
server dies, the messages that had not left the queue are sent to the next server at that endpoint.
Messages that had left and not arrived are lost with the connection.

Faults: `clogged` (nothing leaves either queue for a while), `jammed` (a queue accepts nothing: the
peer's queue is full), `cut` (everything that is sent from now on is lost, and each end notices the
cut at the time that the nemesis chooses). Between two processes of the broker a connection ends
only if one of them ends. The nemesis cuts connections of clients.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zmq

from .world import MS, World

if TYPE_CHECKING:
    from .sockets import SimSocket

Message = list[bytes]
_numbers = itertools.count(1)
RETRY_MS: Final = 100  # libzmq's default
NO_DESCRIPTOR: Final = 1 << 30


class Flight:
    """One direction: messages that wait at the sender, and messages that are being transferred, as
    (time of leaving, time of arrival, message).
    """

    def __init__(self) -> None:
        self.queue: deque[Message] = deque()
        self.moving: deque[tuple[int, int, Message]] = deque()
        self.last_leave_ns = 0
        self.last_arrive_ns = 0

    def __len__(self) -> int:
        return len(self.queue) + len(self.moving)


class Connection:
    """`near` is the socket that connected, `far` the bound one. `far` is None while there is no
    server.
    """

    def __init__(self, network: Network, near: SimSocket, endpoint: str, routing_id: bytes) -> None:
        self.network = network
        self.near = near
        self.endpoint = endpoint
        self.far: SimSocket | None = None
        self.number = next(_numbers)
        # No real descriptor has this number.
        self.descriptor = NO_DESCRIPTOR + self.number
        self.epoch = 0  # grows each time the connection is established or ends
        self.closed = False
        self.id_at_near = routing_id  # the other end's routing id at a ROUTER that connected
        self.id_at_far = b""
        self.out = Flight()  # from near to far
        self.back = Flight()
        self.clogged_until_ns = 0
        self.jammed_until_ns = 0
        self.cut = False
        self.retry_ms = 0
        self.low_ns, self.high_ns = network.latency(endpoint)

    # Sending

    def send(self, sender: SimSocket, message: Message) -> bool:
        """Send a message. Return False if there is no room."""
        world = self.network.world
        flight = self.out if sender is self.near else self.back
        if world.now_ns < self.jammed_until_ns or len(flight) >= sender.send_mark:
            return False
        flight.queue.append(message)
        if self.far is not None:
            self.pump(flight)
        return True

    def pump(self, flight: Flight) -> None:
        """Plan the transfer of the waiting messages. They arrive in order."""
        world = self.network.world
        if self.far is None:
            return
        if world.now_ns < self.clogged_until_ns:
            world.at(self.clogged_until_ns + 1, partial(self.pump_again, flight, self.epoch))
            return
        rng = world.rng
        while flight.queue:
            leave = max(world.now_ns + rng.randrange(3_000, 60_000), flight.last_leave_ns + 500)
            arrive = max(
                leave + rng.randrange(self.low_ns, self.high_ns), flight.last_arrive_ns + 500
            )
            flight.last_leave_ns, flight.last_arrive_ns = leave, arrive
            flight.moving.append((leave, arrive, flight.queue.popleft()))
            world.at(arrive, partial(self._arrive, flight, self.epoch))

    def pump_again(self, flight: Flight, epoch: int) -> None:
        if epoch == self.epoch and not self.closed:
            self.pump(flight)

    def _arrive(self, flight: Flight, epoch: int) -> None:
        if epoch != self.epoch or not flight.moving:
            return
        _, _, message = flight.moving.popleft()
        if self.cut:
            return
        if flight is self.out:
            assert self.far is not None
            self.far.take(self, self.id_at_far, message)
        else:
            self.near.take(self, self.id_at_near, message)

    # Establishing

    def dial(self, delay_ns: int) -> None:
        self.network.world.after(delay_ns, partial(self._dial, self.epoch))

    def _dial(self, epoch: int) -> None:
        if self.closed or epoch != self.epoch or not self.near.alive:
            return
        network = self.network
        found = network.bound.get(self.endpoint)
        if found is not None and found.alive and network.reachable(self):
            self.epoch += 1
            self.far = found
            self.cut = False
            self.retry_ms = 0
            self.out.last_leave_ns = self.back.last_leave_ns = self.out.last_arrive_ns = (
                self.back.last_arrive_ns
            ) = 0
            found.accept(self)
            self.near.connected(self)
            self.pump(self.out)
            return
        ivl, ivl_max = self.near.retry_marks()
        self.retry_ms = (
            min(max(ivl, self.retry_ms * 2), ivl_max) if self.retry_ms and ivl_max else ivl
        )
        self.near.tell(zmq.EVENT_CLOSED)
        self.near.tell(zmq.EVENT_CONNECT_RETRIED)
        if self.near.watched or network.faulty:
            self.dial(int(self.retry_ms * MS * network.world.rng.uniform(1.0, 1.3)))
        else:
            network.waiting.setdefault(self.endpoint, []).append(self)

    # Ending

    def lose(self, *, near_sees_ns: int, far_sees_ns: int) -> None:
        """Cut the connection: messages that are being transferred are lost, and each end notices it
        at the given time.
        """
        if self.far is None or self.cut:
            return
        world = self.network.world
        self.cut = True
        world.after(near_sees_ns, partial(self._near_sees, self.epoch))
        world.after(far_sees_ns, partial(self._far_sees, self.far, self.epoch))

    def _near_sees(self, epoch: int) -> None:
        if epoch == self.epoch and not self.closed:
            self._part(dial=True)

    def _far_sees(self, far: SimSocket, epoch: int) -> None:
        if far.peers.get(self.id_at_far) is self and (epoch == self.epoch or self.far is not far):
            far.forget(self)

    def _part(self, *, dial: bool) -> None:
        """Leave the near end without a peer. Its queue keeps the messages that had not left."""
        world = self.network.world
        self.epoch += 1
        stays = [message for leave, _, message in self.out.moving if leave > world.now_ns]
        self.out.moving.clear()
        self.out.queue.extendleft(reversed(stays))
        self.back.moving.clear()
        self.back.queue.clear()
        self.far = None
        self.near.tell(zmq.EVENT_DISCONNECTED)
        self.near.parted(self)
        if dial:
            ivl, _ = self.near.retry_marks()
            self.dial(int(ivl * MS * world.rng.uniform(1.0, 1.3)))

    def end_near(self, *, linger: bool, killed: bool) -> None:
        """End the connection because the near socket is closed or its process died. A part of what
        it sent still arrives.
        """
        if self.closed:
            return
        world = self.network.world
        self.closed = True
        far, self.far = self.far, None
        last = world.now_ns
        if far is not None and not self.cut:
            if linger:
                while self.out.queue:
                    self.out.moving.append(
                        (world.now_ns, world.now_ns + self.high_ns, self.out.queue.popleft())
                    )
            sent = [one for one in self.out.moving if linger or one[0] <= world.now_ns]
            if killed:
                sent = sent[: world.rng.randrange(len(sent) + 1)]
            for _, arrive, message in sent:
                world.at(arrive, partial(_hand_over, far, self, self.id_at_far, message))
                last = max(last, arrive)
        self.epoch += 1
        if far is not None:
            seen = last + world.rng.randrange(self.low_ns, self.high_ns) + 1
            if not self.cut:
                world.at(seen, partial(self._far_gone, far))

    def _far_gone(self, far: SimSocket) -> None:
        if far.peers.get(self.id_at_far) is self:
            far.forget(self)

    def end_far(self, *, linger: bool, killed: bool) -> None:
        """End the connection because the bound socket is closed or its process died. The near end
        keeps what has not left, and connects again.
        """
        if self.closed or self.far is None:
            return
        world = self.network.world
        self.far.forget(self)
        last = world.now_ns
        if not self.cut:
            if linger:
                while self.back.queue:
                    self.back.moving.append(
                        (world.now_ns, world.now_ns + self.high_ns, self.back.queue.popleft())
                    )
            sent = [one for one in self.back.moving if linger or one[0] <= world.now_ns]
            if killed:
                sent = sent[: world.rng.randrange(len(sent) + 1)]
            for _, arrive, message in sent:
                world.at(arrive, partial(self._late, self.epoch, message))
                last = max(last, arrive)
            self.back.moving.clear()
            self.cut = True
            world.at(
                last + world.rng.randrange(self.low_ns, self.high_ns) + 1,
                partial(self._near_sees, self.epoch),
            )

    def _late(self, epoch: int, message: Message) -> None:
        if epoch == self.epoch and not self.closed:
            self.near.take(self, self.id_at_near, message)


def _hand_over(far: SimSocket, connection: Connection, routing_id: bytes, message: Message) -> None:
    if far.alive:
        far.take(connection, routing_id, message)


class Network:
    """All bound endpoints and all connections."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bound: dict[str, SimSocket] = {}
        # By endpoint: the connections that have no server and no monitor. They connect again when a
        # server binds the endpoint.
        self.waiting: dict[str, list[Connection]] = {}
        self.connections: list[Connection] = []
        self.faulty = False
        self.slow_tcp_ns = (100_000, 900_000)
        # Name of a client's process -> the time until which it can reach no server.
        self.unreachable_until: dict[str, int] = {}
        # Name of a client without the number of its life -> the address of a broker, and True if
        # the client can reach only this address, or False if it can reach all but this one.
        self.split: dict[str, tuple[str, bool]] = {}

    def latency(self, endpoint: str) -> tuple[int, int]:
        return self.slow_tcp_ns if endpoint.startswith("tcp") else (4_000, 80_000)

    def reachable(self, connection: Connection) -> bool:
        near = connection.near.process.name
        place, keeps = self.split.get(near.rpartition(".")[0], ("", False))
        if place and (place in connection.endpoint) != keeps:
            return False
        return self.world.now_ns >= self.unreachable_until.get(connection.near.process.name, 0)

    def dial(self, near: SimSocket, endpoint: str, routing_id: bytes) -> Connection:
        connection = Connection(self, near, endpoint, routing_id)
        self.connections.append(connection)
        connection.dial(self.world.rng.randrange(10_000, 200_000))
        return connection

    def bind(self, socket: SimSocket, endpoint: str) -> None:
        # With ipc, a new server takes the endpoint from the old one without an error.
        self.bound[endpoint] = socket
        for connection in self.waiting.pop(endpoint, []):
            connection.dial(int(self.world.rng.uniform(0, RETRY_MS) * MS))

    def of_clients(self, wanted: Callable[[Any], bool]) -> list[Connection]:
        """Return the live connections whose near process fulfils the condition."""
        self.connections = [one for one in self.connections if not one.closed and one.near.alive]
        return [
            one
            for one in self.connections
            if one.far is not None and not one.cut and wanted(one.near.process)
        ]
