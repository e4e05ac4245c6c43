"""One NSQ client's connection: bytes in and out, its layers, its subscription. What it means is `transport/nsq/session.py`'s.

What one turn of the loop makes goes out in one write: uvloop gathers until the turn is over, and what layers are to pack waits here for
that long, or until it is as much as one write. So output_buffer_timeout is kept as an upper bound without a timer. What a client does not
read is bounded by the channel's credit: while its socket takes nothing more, deliveries stay where they are, and the channel gives a
consumer only so many bytes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ...transport.nsq.backend import Authorized
from ...transport.nsq.identify import Identity
from ...transport.nsq.layers import Layer, LayerError, Layers
from ...transport.nsq.session import Session
from ..nsq_rows import label_of
from .consuming import Subscription

if TYPE_CHECKING:
    from .gateway import NsqGateway

_Told = TypeVar("_Told")
log = logging.getLogger("zsq")

HIGH_WATER: Final = 1024 * 1024  # bytes the socket has not taken: beyond it nothing more is handed out
_FLUSH_BYTES: Final = 64 * 1024


class Connection(asyncio.Protocol):
    def __init__(self, gateway: NsqGateway) -> None:
        self.gateway = gateway
        self.loop = gateway.loop
        self.session = Session(gateway.limits, self, self._write, time.monotonic_ns())
        self.layers = Layers()
        self._bare = True  # no layer was ever laid
        self.subscription: Subscription | None = None
        self.remote = self.remote_ip = self._label = ""
        self.connected_s = int(time.time())
        self._handshake: Callable[[str], None] | None = None  # told when TLS is ready
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flushing = False
        self._reading = True
        self._rest: deque[tuple[Layer | None, bytes]] = deque()
        self._planned = False
        self._eof = False
        self._stuck = False
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = own = cast("asyncio.Transport", transport)
        own.set_write_buffer_limits(HIGH_WATER)
        peer = own.get_extra_info("peername")
        self.remote = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unix")
        self.remote_ip = str(peer[0]) if isinstance(peer, tuple) else ""
        if not self.gateway.admit(self):
            own.abort()
            return
        self._on_time()

    def data_received(self, data: bytes) -> None:
        if self._waiting:  # reading is paused, and this was on its way
            self._rest.append((None, data))
        elif self._bare:
            self.session.receive(data, time.monotonic_ns())
            self.look()
        else:
            self._take(None, data)

    def eof_received(self) -> bool:
        """It may still read: what it sent before is carried out and answered, and the session says when that is the end."""
        self._eof = True
        self.look()
        return not self._closing

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self.session.on_closed()
        if self.subscription is not None:
            self.subscription.stop()
            self.subscription = None
        self.gateway.forget(self)

    def pause_writing(self) -> None:
        """The client does not read: nothing is handed out to it, and nothing that would have to be answered is taken from it."""
        self._stuck = True
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
        return self.session.reading and not self._stuck and not self.gateway.publishing.full

    # In

    @property
    def _waiting(self) -> bool:
        """Something was received that is not taken yet."""
        return bool(self._rest) or (not self._bare and self.layers.held)

    def _take(self, layer: Layer | None, data: bytes) -> None:
        """Bytes from the socket (None), or such as are for this layer: those below it have had them already."""
        try:
            plain = self.layers.receive(data) if layer is None else layer.receive(data)
            self._send(self.layers.take_out())
            if self._handshake is not None and self.layers.tls is not None and self.layers.tls.ready:
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
        """Read on, or stop reading, as session and gateway want it.

        What is packed comes out piece by piece, one in a turn of the loop: 64 KiB of deflate may be 67 MB of commands, and others want
        their turn too.
        """
        if self._transport is None or self._closing:
            return
        free = self._free
        waiting = self._waiting
        if free and waiting and not self._planned:
            self._planned = True
            self.loop.call_soon(self._take_next)
        elif self._eof and not waiting:
            self._eof = False
            self.session.on_eof()
        if (free and not waiting) != self._reading and self._transport is not None and not self._closing:
            self._reading = not self._reading
            if self._reading:
                self.gateway.paused.pop(self, None)
                self._transport.resume_reading()
            else:
                self.gateway.paused[self] = None
                self._transport.pause_reading()

    def _take_next(self) -> None:
        self._planned = False
        if self._closing or not self._free:
            return  # whoever changes that looks again
        if self._rest and (self._rest[0][0] is not None or not self.layers.held):
            self._take(*self._rest.popleft())
        else:
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
            self._transport.write(data)

    def _on_time(self) -> None:
        if self._closing:
            return
        now = time.monotonic_ns()
        due = self.session.on_time(now, reading=self._reading or self._stuck)  # who does not read us is silent by its own fault
        self._timer = self.loop.call_later(min(3600.0, max(0.001, (due - now) / 1e9)), self._on_time)

    # The session's backend

    def publish(self, topic: str, bodies: list[bytes], defer_ms: int, answer: Callable[[str], None]) -> None:
        self.gateway.publish(topic, bodies, defer_ms, answer)  # with the answer those that do not read are looked at

    def _then_look(self, answer: Callable[[_Told], None]) -> Callable[[_Told], None]:
        """The session may read on once it has its answer."""

        def answered(why: _Told) -> None:
            answer(why)
            self.look()

        return answered

    def subscribe(self, topic: str, channel: str, identity: Identity, answer: Callable[[str], None]) -> None:
        refusal = self.gateway.refuses(topic, channel)
        if refusal:
            answer(refusal)
            return
        self._label = label_of(identity.client_id or identity.hostname, self.remote)
        self.subscription = Subscription(
            self.gateway.url, topic, channel, self._label, identity.msg_timeout_ms, self.gateway.limits.max_msg_timeout_ms,
            identity.sample_rate, self._hand, self._then_look(answer), self.session.on_refused, self._lost,
            {"user": self.session.authorized.identity if self.session.authorized else "", "from": self.remote_ip, "via": "nsq"},
        )  # fmt: skip

    def _hand(self, frames: bytes, count: int) -> None:
        self.session.on_messages(frames, count)

    def _lost(self, why: str) -> None:
        log.info("%s: %s is closed: %s", self.gateway.title, self.remote, why)
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

    def leave(self) -> None:
        if self.subscription is not None:
            self.subscription.leave()

    def authenticate(self, secret: bytes, identity: Identity, answer: Callable[[Authorized | str], None]) -> None:
        self.gateway.permits.authenticate(self, secret, self._then_look(answer))

    def permitted(self, permission: str, topic: str, channel: str, answer: Callable[[str], None]) -> None:
        self.gateway.permits.permitted(self, permission, topic, channel, self._then_look(answer))

    def upgrade(self, layer: str, identity: Identity, rest: bytes, answer: Callable[[str], None]) -> None:
        """What was written before goes out as it is; from here on through the layer, in both directions."""
        self._flush()
        made = self.gateway.new_layer(layer, identity)
        self._bare = False
        self.layers.push(made)
        if layer == "tls":
            self._handshake = answer
        else:
            self._then_look(answer)("")
        if rest:
            self._rest.appendleft((made, rest))
            self.look()

    def close(self) -> None:
        """After what was written is out."""
        if self._closing:
            return
        self._flush()
        self._send(self.layers.close())
        self._closing = True
        if self.subscription is not None:
            self.subscription.stop()
            self.subscription = None
        if self._transport is not None:
            self._transport.close()
            self.loop.call_later(CLOSE_S, self._abort)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def fail(self, why: str) -> None:
        log.info("%s: %s is closed: %s", self.gateway.title, self.remote, why)
        self.close()

    def statistics(self) -> dict[str, Any]:
        """Names as in nsqd's statistics of clients."""
        session, identity, tls = self.session, self.session.identity, self.layers.tls
        return {
            "client_id": identity.client_id or self.remote.rpartition(":")[0],
            "hostname": identity.hostname or self.remote.rpartition(":")[0],
            "version": "V2",
            "remote_address": self.remote,
            "state": int(session.state) if session.state >= 0 else 0,
            "ready_count": session.ready,
            "in_flight_count": self.subscription.in_flight if self.subscription is not None else 0,
            "message_count": session.messages,
            "finish_count": session.finishes,
            "requeue_count": session.requeues,
            "connect_ts": self.connected_s,
            "sample_rate": identity.sample_rate,
            "deflate": identity.deflate,
            "snappy": identity.snappy,
            "user_agent": identity.user_agent,
            "authed": session.authorized is not None,
            "auth_identity": session.authorized.identity if session.authorized is not None else "",
            "auth_identity_url": session.authorized.identity_url if session.authorized is not None else "",
            "topology_region": identity.topology_region,
            "topology_zone": identity.topology_zone,
            "pub_counts": [{"topic": topic, "count": count} for topic, count in session.published.items()],
            "tls": tls is not None,
            "tls_cipher_suite": tls.cipher if tls is not None else "",
            "tls_version": tls.version if tls is not None else "",
            "tls_negotiated_protocol": "",
            "tls_negotiated_protocol_is_mutual": False,
            "topic": session.topic,
            "channel": session.channel,
            "label": self._label,
        }


CLOSE_S: Final = 5.0  # for what a client that is told to go still has to read
