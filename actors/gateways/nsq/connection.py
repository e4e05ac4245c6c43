"""Connection of one NSQ client: its bytes, layers and subscription.

The protocol logic is in `transport/nsq/session.py`.

All output of one turn of the event loop is sent in one write. uvloop collects bytes until the turn
ends. Output for layers waits here for the same time, or until it fills a write. So
output_buffer_timeout is never exceeded, and no timer is needed. The channel's credit limits the
bytes for a client that does not read: while its socket is full, deliveries wait, and the channel
sends no more than the credit.

One client's input must not delay the others, and its unfinished commands must not fill the memory:
`intake.py` shares time and bytes among all connections. A connection that fails, or whose gateway
stops, sends its last answers and the end, and then discards input for a short time. Closing a
socket with unread bytes would reset the connection and destroy what the client has not read yet,
and there are clients that never notice a reset (ansq).

A client may close its socket right behind its last commands. Deliveries that cross them then reset
the connection. The commands that were received before are carried out all the same.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeVar, cast

from ....transport.nsq.backend import Authorized
from ....transport.nsq.identify import ClientIdentity, cut_string
from ....transport.nsq.layers import Layer, LayerError, Layers
from ....transport.nsq.limits import BYTES_BEFORE_AUTH_MAX, NsqLimits
from ....transport.nsq.session import Session
from ...runtime.listening import join_place
from ...runtime.pulses import NsqClientReport
from ...statistics.statistics import label_of
from ..shared.auth import Who
from ..shared.gatherer import Gatherer
from .intake import Intake
from .local_parts import LocalParts
from .permits import Permits
from .subscription import Subscription
from .trunks import Trunks

_Told = TypeVar("_Told")
log = logging.getLogger("zsq")

# Deliveries wait while the socket has not taken more bytes than this.
HIGH_WATER: Final = 1024 * 1024
# A client that reads slowly is still read from, because its FINs free what it holds. It is not when
# this many bytes of answers wait behind the deliveries, because each command may add an answer.
ANSWERS_MAX: Final = 1024 * 1024
# The most topics in a client's `pub_counts`. They are those with the most messages.
TOPICS_SHOWN_MAX: Final = 10
_FLUSH_BYTES: Final = 64 * 1024
# The most bytes that a client may send before it authenticates, if authentication is required.
_GUEST_BYTES_MAX: Final = 2 * BYTES_BEFORE_AUTH_MAX


class Gateway(Protocol):
    """The gateway as seen by its connections."""

    loop: asyncio.AbstractEventLoop
    limits: NsqLimits
    url: str
    title: str
    stopping: bool
    intake: Intake
    local_parts: LocalParts
    permits: Permits
    trunks: Trunks
    gatherer: Gatherer
    paused: dict[Connection, None]  # connections that read again when publishes are answered

    def admit(self, connection: Connection) -> bool: ...

    def forget(self, connection: Connection) -> None: ...

    def refuses(self, topic: str, channel: str) -> str: ...

    def holds(self, but: Subscription, message_id: bytes) -> bool: ...

    def new_layer(self, name: str, identity: ClientIdentity) -> Layer: ...

    def publish(
        self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]
    ) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.loop = gateway.loop
        self.session = Session(gateway.limits, self, self._write, time.monotonic_ns())
        self.layers = Layers()
        self._bare = True  # True until a layer is added
        self.subscription: Subscription | None = None
        self.remote = self.remote_ip = self._label = ""
        self._secret = ""  # of AUTH, to renew what the auth server has answered
        self.connected_s = int(time.time())
        self._handshake: Callable[[str], None] | None = None  # called when TLS is ready
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._reading = True
        self._rest: deque[tuple[Layer | None, bytes]] = deque()
        self._rest_bytes = 0
        self._eof = False
        self._stuck = False
        # Of the output: all that was written, when deliveries stopped, and what the client had read
        # at the last look.
        self._sent_bytes = self._stuck_bytes = self._taken_bytes = 0
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None
        self._discard_bytes = 0  # bytes that may still arrive after an error
        self._guest_bytes = 0
        # The next three attributes are for the gateway's intake. `strange` is True while the client
        # counts as a stranger: it has neither authenticated nor shown its purpose (see intake.py).
        self.strange = False
        self.held_bytes = 0
        self.half_closed = False  # True if the client stopped sending while nothing was read

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = tcp = cast("asyncio.Transport", transport)
        tcp.set_write_buffer_limits(HIGH_WATER)
        peer = tcp.get_extra_info("peername")
        self.remote = (
            join_place(str(peer[0]), peer[1]) if isinstance(peer, tuple) else str(peer or "unix")
        )
        self.remote_ip = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self.gateway.admit(self):
            tcp.abort()
            return
        self._on_time()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._discard(len(data))
            return
        if self.strange and not self._let_speak(len(data)):
            return
        if self._waiting or self.gateway.intake.spent:
            self._keep(None, data)
            self.look()
        elif self._bare:
            self.session.receive(data, time.monotonic_ns())
            self.look()
        else:
            self._take(None, data)

    def eof_received(self) -> bool:
        """Note that the client sends no more.

        It may still read. So its earlier commands are executed and answered, and then the session
        ends the connection.
        """
        if self._closing:
            return False
        self._eof = True
        self.look()
        return not self._closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stuck = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.subscription is not None and self._waiting:
            self.subscription.set_ready(0)
            self.subscription.pause(True)
        self.look()

    def _end(self) -> None:
        """Forget everything, because the connection is gone."""
        self._closing = True
        self._rest.clear()
        self._rest_bytes = 0
        self.session.on_closed()
        if self.subscription is not None:
            self.subscription.stop(is_lost=True)
            self.subscription = None
        self.gateway.forget(self)

    def pause_writing(self) -> None:
        """Stop deliveries, because the client does not read fast enough."""
        self._stuck = True
        self._stuck_bytes = self._sent_bytes
        if self.subscription is not None:
            self.subscription.pause(True)
        self.look()

    def resume_writing(self) -> None:
        self._stuck = False
        if self.subscription is not None:
            self.subscription.pause(False)
        self.look()

    @property
    def _free(self) -> bool:
        return self.session.reading and not self._full and not self.gateway.gatherer.full

    @property
    def _full(self) -> bool:
        """True if the client leaves so many answers unread that it is not read from."""
        return self._stuck and self._sent_bytes - self._stuck_bytes >= ANSWERS_MAX

    # In

    @property
    def _waiting(self) -> bool:
        """True if received bytes can be processed and are not processed yet."""
        return bool(self._rest) or self.session.more or (not self._bare and self.layers.held)

    @property
    def waits_for_client(self) -> bool:
        """True if held bytes are freed only when the client sends more or reads its answers."""
        return self._full or (self._free and not self._waiting)

    def _keep(self, layer: Layer | None, data: bytes) -> None:
        self._rest.append((layer, data))
        self._rest_bytes += len(data)

    def _let_speak(self, count: int) -> bool:
        """Note that a stranger sent `count` bytes.

        Return False if it sent too many and its connection was closed.
        """
        self.gateway.intake.seen(self)
        if self.gateway.limits.auth_required:
            self._guest_bytes += count
            if self._guest_bytes > _GUEST_BYTES_MAX:
                self.fail(f"it sent more than {_GUEST_BYTES_MAX} bytes before it authenticated")
                return False
        return True

    def _discard(self, count: int) -> None:
        self._discard_bytes -= count
        if self._discard_bytes < 0:
            self._abort()

    def _take(self, layer: Layer | None, data: bytes) -> None:
        """Process bytes from the socket (`layer` is None), or bytes that this layer must unpack."""
        try:
            plain = self.layers.receive(data) if layer is None else layer.receive(data)
            self._send(self.layers.take_out())
            if (
                self._handshake is not None
                and self.layers.tls is not None
                and self.layers.tls.ready
            ):
                ready, self._handshake = self._handshake, None
                ready("")
            if plain:
                self.session.receive(plain, time.monotonic_ns())
        except LayerError as error:
            self._send(self.layers.take_out())
            self.fail(str(error))
            return
        self.look()

    def look(self) -> None:
        """Schedule the waiting bytes, and read on only if session and gateway allow it.

        Compressed input is unpacked piece by piece, because 64 KiB of deflate may contain 67 MB of
        commands and must not delay other connections.
        """
        if self._transport is None:
            if self._waiting and self._free and not self.strange and not self._closing:
                self.gateway.intake.plan(self)
            else:
                self._end()
            return
        if self._closing:
            return
        self._count()
        waiting = self._waiting
        if waiting:
            if self._free:
                self.gateway.intake.plan(self)
        elif self._eof:
            self._eof = False
            self.session.on_eof()
        if self._transport is None or self._closing:
            return
        reading = self._free and not waiting and not self.gateway.intake.full
        if not reading or not self._reading:
            self._pause(not reading)

    def _pause(self, pause: bool) -> None:
        assert self._transport is not None
        if pause and (self.session.pending or self.gateway.gatherer.full):
            self.gateway.paused[self] = None
        else:
            self.gateway.paused.pop(self, None)
        if pause != self._reading:
            return
        self._reading = not pause
        if pause:
            self.gateway.intake.pause(self)
            self._transport.pause_reading()
        else:
            self.gateway.intake.unread.pop(self, None)
            self._transport.resume_reading()

    def _count(self) -> None:
        """Report the bytes held here to the intake, and when the client stops being a stranger."""
        if self.strange and not self.session.stranger:
            self.gateway.intake.known(self)
        held = self.session.held + self._rest_bytes
        if not self._bare:
            held += self.layers.kept + (self.layers.cost if self.strange else 0)
        if held != self.held_bytes:
            self.gateway.intake.count(self, held)

    def take_piece(self) -> None:
        """Process the next piece: commands, output of the layers, or bytes that were read last."""
        if self._closing or not self._free:
            self.look()
        elif self.session.more:
            self.session.go_on(time.monotonic_ns())
            self.look()
        elif self._rest and (self._rest[0][0] is not None or not self.layers.held):
            layer, data = self._rest.popleft()
            self._rest_bytes -= len(data)
            self._take(layer, data)
        elif not self._bare:
            self._take(None, b"")

    # Out

    def _write(self, data: bytes) -> None:
        if self._bare:
            self._send(data)
            return
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self._flush()
        elif not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flushing = False
        self._flush()

    def _flush(self) -> None:
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self._out_bytes = 0
        self._send(self.layers.send(data))

    def _send(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._sent_bytes += len(data)
            self._transport.write(data)

    def _takes_output(self) -> bool:
        """Return True if the client has read some of the output that was waiting.

        On a slow link, one message may take longer than two heartbeats, and its answer comes after
        it.
        """
        assert self._transport is not None
        before = self._taken_bytes
        self._taken_bytes = self._sent_bytes - self._transport.get_write_buffer_size()
        return self._stuck and self._taken_bytes > before

    def _on_time(self) -> None:
        if self._closing:
            return
        now = time.monotonic_ns()
        # A client that does not read counts as silent, but not while it reads slowly.
        reading = (self._reading or self._full) and not self._takes_output()
        due = self.session.on_time(now, reading=reading)
        self._timer = self.loop.call_later(
            min(3600.0, max(0.001, (due - now) / 1e9)), self._on_time
        )

    # The session's backend

    def publish(
        self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]
    ) -> None:
        # The answer also resumes paused connections.
        self.gateway.publish(topic, bodies, defer_ms, answer)

    def _then_look(self, answer: Callable[[_Told], None]) -> Callable[[_Told], None]:
        """Wrap `answer` so that the connection continues to read after it."""

        def answered(why: _Told) -> None:
            answer(why)
            self.look()

        return answered

    def subscribe(
        self, topic: str, channel: str, identity: ClientIdentity, answer: Callable[[str], None]
    ) -> None:
        refusal = self.gateway.refuses(topic, channel)
        if refusal:
            answer(refusal)
            return
        self._label = label_of(identity.client_id or identity.hostname, self.remote)
        self.subscription = Subscription(
            self.gateway.trunks, self.gateway.url, topic, channel, self._label, identity.msg_timeout_ms,
            self.gateway.limits.max_msg_timeout_ms, identity.sample_rate, self.session.on_messages,
            self._then_look(answer), self.session.on_refused, self._lost,
            {"user": self.session.authorized.identity if self.session.authorized else "", "from": self.remote_ip, "via": "nsq"},
            self.gateway.local_parts.of,
        )  # fmt: skip

    def _lost(self, why: str) -> None:
        log.info("%s: the connection from %s is closed: %s", self.gateway.title, self.remote, why)
        self.close()

    def set_ready(self, count: int) -> None:
        if self.subscription is not None:
            self.subscription.set_ready(count)

    def finish(self, ids: list[bytes]) -> list[bytes]:
        return self.subscription.finish(ids) if self.subscription is not None else ids

    def requeue(self, id: bytes, delay_ms: int) -> bool:
        return self.subscription is not None and self.subscription.requeue(id, delay_ms)

    def touch(self, id: bytes) -> bool:
        return self.subscription is not None and self.subscription.touch(id)

    def held_by_other(self, id: bytes) -> bool:
        return self.subscription is not None and self.gateway.holds(self.subscription, id)

    def leave(self) -> None:
        if self.subscription is not None:
            self.subscription.leave()

    def authenticate(
        self, secret: bytes, identity: ClientIdentity, answer: Callable[[Authorized | str], None]
    ) -> None:
        who = self.who._replace(secret=secret.decode(errors="surrogateescape"))

        def answered(state: Authorized | str) -> None:
            if not isinstance(state, str):
                self._secret = who.secret
            answer(state)

        self.gateway.permits.authenticate(who, self.remote, self._then_look(answered))

    def permitted(
        self, permission: str, topic: str, channel: str, answer: Callable[[str], None]
    ) -> None:
        self.gateway.permits.permitted(
            self.who, self.remote, permission, topic, channel, self._then_look(answer)
        )

    def upgrade(
        self, layer: str, identity: ClientIdentity, rest: bytes, answer: Callable[[str], None]
    ) -> None:
        """Add a layer for all later input and output. Earlier output is sent without it."""
        self._flush()
        added = self.gateway.new_layer(layer, identity)
        self._bare = False
        self.layers.push(added)
        if layer == "tls":
            self._handshake = answer
        else:
            self._then_look(answer)("")
        if rest:
            self._rest.appendleft((added, rest))
            self._rest_bytes += len(rest)
        self.look()

    def close(self) -> None:
        """Close the connection after sending all output."""
        if self._closing:
            return
        self._flush()
        self._send(self.layers.close())
        self._closing = True
        self._rest.clear()
        self._rest_bytes = 0
        if self.subscription is not None:
            self.subscription.stop()
            self.subscription = None
        transport = self._transport
        if transport is None:
            self._end()
            return
        self.gateway.intake.leave(self)
        if self._timer is not None:
            self._timer.cancel()
        is_client_busy = self.session.failed or self.gateway.stopping
        if is_client_busy and not self._eof and transport.can_write_eof():
            self._discard_bytes = DISCARD_BYTES_MAX
            transport.write_eof()
            if not self._reading:
                self._reading = True
                transport.resume_reading()
            self._timer = self.loop.call_later(DISCARD_S, self._abort)
        else:
            transport.close()
            self._timer = self.loop.call_later(CLOSE_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        """End the connection at once and free its memory, even if output is not sent yet."""
        transport, self._transport = self._transport, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end()
        if transport is not None:
            transport.abort()

    @property
    def who(self) -> Who:
        """The client as the auth server and the access file know it."""
        tls = self.layers.tls
        common_name = tls.common_name if tls is not None else ""
        return Who(self.remote_ip, tls is not None, common_name, self._secret)

    def hung_up(self, *, gone: bool) -> None:
        """Note that the client stopped sending while nothing is read here.

        `gone` means that it does not read either.
        """
        if gone or self.strange:
            self.abort()
            return
        self.half_closed = True
        self.session.probe()

    def fileno(self) -> int:
        """Return the socket's descriptor, or -1 if the socket is closed."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return int(sock.fileno()) if sock is not None else -1

    def fail(self, why: str) -> None:
        text = "nsq gateway: the connection from %s is closed: %s"
        self.gateway.intake.complaints.add(text, self.remote, why)
        self.close()

    def statistics(self) -> NsqClientReport:
        """Return the client's row, with the names of nsqd's statistics of clients.

        It has about 3 KiB at most, because texts from clients and auth servers are cut.
        """
        session, identity, tls = self.session, self.session.identity, self.layers.tls
        consumption = session.consumption
        counts = heapq.nlargest(TOPICS_SHOWN_MAX, session.published.items(), key=lambda one: one[1])
        return {
            "client_id": identity.client_id or self.remote_ip,
            "hostname": identity.hostname or self.remote_ip,
            "version": "V2",
            "remote_address": self.remote,
            "state": max(0, session.state),
            "ready_count": consumption.ready,
            "in_flight_count": self.subscription.in_flight if self.subscription is not None else 0,
            "message_count": consumption.messages,
            "finish_count": consumption.finishes,
            "requeue_count": consumption.requeues,
            "connect_ts": self.connected_s,
            "sample_rate": identity.sample_rate,
            "deflate": identity.deflate,
            "snappy": identity.snappy,
            "user_agent": identity.user_agent,
            "authed": session.authorized is not None,
            "auth_identity": cut_string(session.authorized.identity)
            if session.authorized is not None
            else "",
            "auth_identity_url": cut_string(session.authorized.identity_url)
            if session.authorized is not None
            else "",
            "topology_region": identity.topology_region,
            "topology_zone": identity.topology_zone,
            "pub_counts": [{"topic": topic, "count": count} for topic, count in counts],
            "tls": tls is not None,
            "tls_cipher_suite": tls.cipher if tls is not None else "",
            "tls_version": tls.version if tls is not None else "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
            "topic": consumption.topic,
            "channel": consumption.channel,
            "label": self._label,
        }


CLOSE_S: Final = 5.0  # seconds in which a client can read the last output
DISCARD_S: Final = 2.0  # seconds in which a client can stop sending
# Bytes that the client may send in this time: the largest body and some more.
DISCARD_BYTES_MAX: Final = 6 * 1024 * 1024
