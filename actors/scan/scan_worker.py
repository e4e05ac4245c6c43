"""Scan worker: asks channels and topics to process what is due, and reports the results."""

from __future__ import annotations

import time
from typing import Any

import zmq

from ...transport.units import NS_PER_MS
from ...transport.wire import protocol as p
from ..runtime.actor import Actor
from ..runtime.port import Mail, Port
from ..settings import options
from ..settings.starts import ActorStart
from .scan_rounds import ScanOrders

_IDLE_NS = 60_000 * NS_PER_MS  # a channel that was not asked for this long is disconnected


class ScanWorker(Actor[ActorStart]):
    """The actor that asks channels and topics, and reports to the scan loop.

    Its setting `front` is the endpoint to which the scan loop sends orders.
    """

    sockets_max = options.SOCKETS_MAX

    def on_start(self) -> dict[str, Any]:
        self.front = self.open_router(self.given.front)
        self.front.route(p.ScanOrder, self.scan)
        self.front.route(p.HangUp, self.hang_up)
        self._asking = self.open_asking()
        self._asking.route(p.Scanned, self.on_scanned)
        self._asking.socket.setsockopt(zmq.RECONNECT_IVL_MAX, options.SCAN_RECONNECT_MAX_MS)
        # Endpoint -> its name here, time of last use.
        self._channels: dict[str, tuple[bytes, int]] = {}
        self._names = 0
        self.orders = ScanOrders()
        self.every(10_000, self._forget)
        return {"front": self.given.front}

    def scan(self, port: Port, mail: Mail, message: p.ScanOrder) -> None:
        now = time.monotonic_ns()
        for number, endpoint in self.orders.begin(
            (mail.envelope, message.request), message.targets, now
        ):
            self._asking.send((self._name_of(endpoint, now),), p.Scan(number))

    def _name_of(self, endpoint: str, now: int) -> bytes:
        known = self._channels.get(endpoint)
        if known:
            name = known[0]
        else:
            self._names += 1
            name = b"%d" % self._names
            self._asking.socket.setsockopt(zmq.CONNECT_ROUTING_ID, name)
            self._asking.socket.connect(endpoint)
        self._channels[endpoint] = (name, now)
        return name

    def on_scanned(self, port: Port, mail: Mail, message: p.Scanned) -> None:
        self.orders.answered(message.request, message.dirty, message.next_due_ns)

    def on_turn(self) -> None:
        for (envelope, request), results in self.orders.reports(time.monotonic_ns()):
            self.front.send(envelope, p.ScanReport(request, tuple(results)))

    def _wait_ms(self) -> int:
        usual = super()._wait_ms()
        return min(usual, self.orders.wait_ms(time.monotonic_ns())) if len(self.orders) else usual

    def hang_up(self, port: Port, mail: Mail, message: p.HangUp) -> None:
        for endpoint in message.endpoints:
            self._hang_up(endpoint)

    def _hang_up(self, endpoint: str) -> None:
        self.orders.hang_up(endpoint)
        if self._channels.pop(endpoint, None):
            # Read everything that has arrived before the disconnect. A poll looks ahead to the
            # first frame of a message. If the pipe of its peer is closed at that moment, libzmq
            # ends the process at the next read ("Assertion failed: !_more").
            for mail in self._asking.receive(options.WAITERS_MAX):
                if isinstance(mail, Mail) and isinstance(mail.message, p.Scanned):
                    self.on_scanned(self._asking, mail, mail.message)
            self._asking.socket.disconnect(endpoint)

    def _forget(self) -> None:
        """Disconnect channels that were not asked for a while.

        The scan loop reports removed channels, but it may have done so before this worker started.
        """
        limit = time.monotonic_ns() - _IDLE_NS
        for endpoint in [e for e, (_, used) in self._channels.items() if used < limit]:
            self._hang_up(endpoint)

    def statistics(self) -> dict[str, int]:
        return {"channels_known": len(self._channels)}
