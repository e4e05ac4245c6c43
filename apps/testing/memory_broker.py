"""The in-memory broker: a thread of the test's process that speaks ZSQ's protocol on loopback.

All clients work with it unchanged, because it answers what a broker's gateway and the processes
behind it answer. A client cannot tell it from a broker, except by what it does not support. So
there is no second implementation of producers, consumers and their errors that could differ.

Rejected: objects with the methods of the clients and no socket. They would repeat 3,000 lines of
the client library, or they would not raise the same errors. Code under test that makes its own
clients could not use them, and each of the blocking and the asyncio clients would need one.

Time stands still: a delay, a lease or a backoff ends only when the test moves the clock. The thread
carries out one message or call after the other, so `advance` returns when everything is done that
is due.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NoReturn, Self, TypeVar

import zmq

from ...actors.channel.admission import consumer_of
from ...actors.channel.lease import Departure, OutgoingDelivery
from ...actors.settings import channel_settings, closing, options
from ...actors.settings.options import ServeOptions
from ...actors.supervisor.commands.topic_settings import checked
from ...storage.delayed.delayed_format import DelayedKey, parse_key
from ...storage.retention import resolve
from ...transport.block.block import Block
from ...transport.block.block_format import UNIQUE
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_CLOSED,
    E_HELLO,
    E_NOT_EMPTY,
    E_NOT_FOUND,
    E_SEQUENCE,
    E_UNSUPPORTED,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import check_name, is_ephemeral, part_of
from ...transport.system import Waker
from ...transport.units import NS_PER_MS
from ...transport.wire import admin_requests as r
from ...transport.wire import protocol as p
from ...transport.wire.admin_codec import request_of
from ...transport.wire.admin_requests import END
from ...transport.wire.codec import frames_blocks
from ...transport.wire.sockets import open_frames, recv_frames, send_word
from ...transport.wire.unique import DELAYED_TEXT
from .clients import BrokerForTests
from .local import QUIET_S, as_ns
from .memory import MemoryChannel, MemoryTopic

_T = TypeVar("_T")
CALL_S: Final = 30.0
CREDIT_BYTES: Final = 8 * 1024 * 1024
READ_BLOCKS_MAX: Final = 1_000
QUIET_MS: Final = int(QUIET_S * 1000)
QUIETS_MAX: Final = 200


def _unsupported(feature: str) -> NoReturn:
    text = (
        f"the in-memory broker does not support {feature}; use LocalBroker, which is a real broker"
    )
    raise UsageError(E_UNSUPPORTED, text)


class _Link:
    """A client's link to one target, as its Open described it."""

    def __init__(self, opened: p.Open) -> None:
        self.opened = opened
        self.producer_id = 0

    @property
    def kind(self) -> str:
        return self.opened.kind


class MemoryBroker(BrokerForTests):
    """A broker in memory with a clock that stands still, for unit tests. It starts in milliseconds.

    All clients work with it: give them its `url`, or make them with `producer`, `consumer`,
    `reader` and `admin`. It listens on a free port of 127.0.0.1, with no access control. It is
    started with `start` or on entering `with`, and everything is gone after `stop`.

    It supports publishing (also with delays, ids and unique keys), channels with all of their
    settings, dead letters, reading by offset, and these calls of `Admin`: create, configure,
    delete, pause, unpause, empty, seek and skip for channels; create, delete, close, open, pause
    and unpause for topics; `topics`, `cancel`, `revoke`, and the calls for delayed messages.
    Everything else raises `UsageError` with the code E_UNSUPPORTED: `#ephemeral` names, parts,
    stages, statistics, peeks at channels, and changes of a topic's settings. The retention of a
    topic is checked, but no message is ever removed.
    """

    def __init__(self) -> None:
        self.url = ""
        self._now_ns = time.time_ns()
        self._topics: dict[str, MemoryTopic] = {}
        self._deleted: set[str] = set()  # names of topics
        self._links: dict[bytes, _Link] = {}
        self._numbers = 0
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._handlers: Mapping[type[r.AdminRequest[Any]], Callable[[Any], dict[str, Any]]] = {
            r.ListTopicsRequest: self._list_topics,
            r.CreateTopicRequest: self._create_topic,
            r.CreateChannelRequest: self._create_channel,
            r.ConfigureChannelRequest: self._configure_channel,
            r.DeleteRequest: self._delete,
            r.CloseRequest: self._close_or_open,
            r.OpenRequest: self._close_or_open,
            r.PauseRequest: self._pause,
            r.UnpauseRequest: self._pause,
            r.EmptyRequest: self._empty,
            r.SeekRequest: self._seek,
            r.CountDelayedRequest: self._count_delayed,
            r.ListDelayedRequest: self._list_delayed,
            r.CancelDelayedRequest: self._cancel_delayed,
            r.SkipRequest: self._skip,
            r.PreviewSkipRequest: self._skip,
            r.RevokeRequest: self._revoke,
        }

    # Life

    def start(self) -> Self:
        """Begin to listen. `url` is known from now on."""
        if self._thread is not None:
            return self
        self._stopping = False
        self._context: zmq.Context[Any] = zmq.Context()
        self._socket: zmq.Socket[Any] = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.url = f"tcp://127.0.0.1:{port}"
        self._waker = Waker()
        self._thread = threading.Thread(target=self._run, name="zsq memory broker", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Forget everything, and listen no more."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        self._waker.wake()
        thread.join(CALL_S)
        self._socket.close(0)
        self._context.destroy(0)
        self._waker.close()
        self._topics.clear()
        self._links.clear()

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._waker.fileno(), zmq.POLLIN)
        while not self._stopping:
            poller.poll()
            self._waker.drain()
            self._receive()
            while self._calls:
                call, future = self._calls.popleft()
                try:
                    result = call()
                    self._settle()
                    future.set_result(result)
                except Exception as error:
                    future.set_exception(error)

    def _receive(self) -> None:
        while (frames := recv_frames(self._socket)) is not None:
            self._on_frames(frames)
            self._settle()

    def _receive_all(self) -> None:
        """Receive what clients have sent until now, until nothing arrives for QUIET_S."""
        for _ in range(QUIETS_MAX):
            if not self._socket.poll(QUIET_MS):
                return
            self._receive()

    def _call(self, call: Callable[[], _T]) -> _T:
        """Let the broker's thread make this call, and return its result."""
        if self._thread is None:
            raise UsageError(
                E_BAD_ARGUMENT, "the in-memory broker does not run; call start() first"
            )
        future: Future[_T] = Future()
        self._calls.append((call, future))
        self._waker.wake()
        return future.result(CALL_S)

    # For tests

    def now_ns(self) -> int:
        """Return the time by the broker's clock, in nanoseconds since 1970."""
        return self._now_ns

    def advance(self, step: float | timedelta) -> None:
        """Move the clock forward by `step` (seconds or a timedelta). Nothing else moves it.

        Everything is done that is due by then: delayed messages are in their topics, leases have
        ended, and requeued messages are delivered again. It happens at the new time. Consumers of
        other threads receive it soon after.
        """
        ns = as_ns(step)

        def move() -> None:
            self._receive_all()
            self._now_ns += ns

        self._call(move)

    def depth(self, topic: str, channel: str) -> int:
        """Return the number of messages of a channel that wait for a consumer, as `depth` of
        `Admin.stats` does.

        Messages that consumers hold, or that are deferred, do not count: see `unfinished`. Raises
        `NotFound`.
        """

        def count() -> int:
            self._receive_all()
            return self._channel(topic, channel).depth()

        return self._call(count)

    def unfinished(self, topic: str, channel: str) -> int:
        """Return the number of messages that a channel has not finished, see `Admin.unfinished`."""

        def count() -> int:
            self._receive_all()
            return self._channel(topic, channel).unfinished()

        return self._call(count)

    # Work that is due

    def _settle(self) -> None:
        """Do what is due, until nothing is."""
        busy = True
        while busy:
            busy = False
            for topic in list(self._topics.values()):
                busy = topic.move_due(self._now_ns) or busy
                self._expire_held(topic)
                for channel in list(topic.channels.values()):
                    busy = channel.work(self._now_ns, self._publish) or busy

    def _expire_held(self, topic: MemoryTopic) -> None:
        for channel in topic.channels.values():
            for (client,), ranges in channel.core.expire_held(self._now_ns):
                self._send(client, p.Cancelled(tuple(ranges), (), 0))

    def _publish(self, topic: str, blocks: Sequence[Block]) -> None:
        """Publish dead letters."""
        memory_topic = self._topic(topic, create=True)
        self._check_publish(memory_topic)
        for block in blocks:
            memory_topic.append(block, self._now_ns)

    # Incoming messages

    def _send(self, client: bytes, message: p.Wire, blocks: Sequence[Block] = ()) -> None:
        try:
            send_word(self._socket, (client,), message, blocks)
        except zmq.ZMQError:
            self._forget(client)  # the client is gone

    def _forget(self, client: bytes, how: Departure = Departure.LOST) -> None:
        link = self._links.pop(client, None)
        if link is not None and link.kind == "channel":
            with contextlib.suppress(NotFound):
                self._channel(link.opened.topic, link.opened.channel).core.unsubscribe(
                    (client,), how
                )

    def _on_frames(self, frames: list[Any]) -> None:
        request = 0
        client = bytes(frames[0].bytes)
        try:
            _, message, rest = open_frames(frames)
            request = getattr(message, "request", 0)
            self._on_message(client, message, frames_blocks(rest) if rest else [])
        except ZsqError as error:
            self._send(client, p.Failed(request, error.code, error.text))

    def _on_message(self, client: bytes, message: p.Wire, blocks: list[Block]) -> None:
        link = self._links.get(client)
        if isinstance(message, p.Open):
            self._open(client, message)
        elif link is None:
            raise UsageError(E_HELLO, "this connection has no open link: send Open first")
        elif isinstance(message, p.Bye):
            self._forget(client, Departure.LOST if message.is_lost else Departure.LEFT)
        elif isinstance(message, p.Beat):
            self._send(client, p.Beat())
        elif link.kind == "topic":
            self._on_producer(client, link, message, blocks)
        elif link.kind == "channel":
            self._on_consumer(client, link, message)
        elif link.kind == "reader":
            self._on_reader(client, self._topic(link.opened.topic), message)
        elif isinstance(message, p.Manage):
            self._send(client, p.Done(message.request, self._manage(message)))
        else:
            _unsupported("statistics (Admin.stats and ping)")

    # Topics and channels

    def _topic(self, name: str, create: bool = False) -> MemoryTopic:
        check_name(name)
        topic = self._topics.get(name)
        if topic is None:
            if not create:
                raise NotFound(E_NOT_FOUND, f"topic {name!r} does not exist")
            if is_ephemeral(name) or part_of(name) is not None:
                _unsupported("#ephemeral topics and parts")
            topic = self._topics[name] = MemoryTopic(name)
        return topic

    def _channel(self, topic: str, name: str) -> MemoryChannel:
        check_name(name, "channel")
        channel = self._topic(topic).channels.get(name)
        if channel is None:
            raise NotFound(E_NOT_FOUND, f"channel {name!r} of topic {topic!r} does not exist")
        return channel

    def _make_channel(self, topic: str, name: str, settings: Mapping[str, Any]) -> bool:
        """Create a channel with its topic. Return False if it exists, with the same settings."""
        check_name(name, "channel")
        values, start = channel_settings.made(settings, topic, name)
        if is_ephemeral(name):
            _unsupported("#ephemeral channels")
        memory_topic = self._topic(topic, create=True)
        channel = memory_topic.channels.get(name)
        if channel is not None:
            channel_settings.check_same(channel.own, settings, topic, name)
            return False
        self._numbers += 1
        memory_topic.channels[name] = MemoryChannel(
            memory_topic, name, values, memory_topic.begin(start), self._numbers, self._deliver
        )
        return True

    def _open(self, client: bytes, message: p.Open) -> None:
        data: dict[str, Any] = {}
        if message.kind == "stage":
            _unsupported("stages")
        if message.is_back and message.topic in self._deleted - self._topics.keys():
            text = f"topic {message.topic!r} was deleted while this client used it"
            raise NotFound(E_NOT_FOUND, text)
        if message.kind == "channel" and message.create:
            self._make_channel(message.topic, message.channel, message.settings)
        if message.kind == "channel" and message.settings:
            data["settings"] = self._channel(message.topic, message.channel).core.settings.as_dict()
        if message.kind != "supervisor":
            topic = self._topic(message.topic, message.create)
            data |= {"uuid": topic.uuid, "node": 0}
        self._forget(client)
        self._links[client] = _Link(message)
        self._send(client, p.Done(message.request, data))

    # Producers

    def _check_publish(self, topic: MemoryTopic) -> None:
        if closing.to_publishers(topic.closed):
            raise Refused(E_CLOSED, closing.TO_PUBLISHERS)

    def _on_producer(
        self, client: bytes, link: _Link, message: p.Wire, blocks: list[Block]
    ) -> None:
        topic = self._topic(link.opened.topic)
        if isinstance(message, p.Hello):
            link.producer_id = message.producer_id
            expected = topic.producer(link.producer_id).expected
            self._send(client, p.Welcome(1, expected, CREDIT_BYTES, message.heartbeat_ms))
        elif isinstance(message, p.Pub | p.PubDelayed):
            delay_ms = message.delay_ms if isinstance(message, p.PubDelayed) else 0
            for block in blocks:
                self._take(client, link, topic, block, delay_ms)

    def _take(
        self, client: bytes, link: _Link, topic: MemoryTopic, block: Block, delay_ms: int
    ) -> None:
        block.check()
        producer, sequence = topic.producer(link.producer_id), block.header.sequence
        if sequence > producer.expected:
            why = "the block is not the next one of its producer"
            self._send(client, p.Unstored(sequence, producer.expected, E_SEQUENCE, why))
            return
        if sequence == producer.expected:
            try:
                self._check_publish(topic)
                producer.answers[sequence] = self._store(topic, block, delay_ms)
            except (Refused, UsageError) as error:
                self._send(client, p.Unstored(sequence, sequence, error.code, error.text))
                return
            producer.expected += 1
        self._send(client, producer.answers[sequence])

    def _store(self, topic: MemoryTopic, block: Block, delay_ms: int) -> p.Wire:
        """Store a block without its duplicates, and return the answer."""
        sequence, left = block.header.sequence, None
        if delay_ms and block.header.flags & UNIQUE:
            raise UsageError(E_UNSUPPORTED, DELAYED_TEXT)
        sifted = topic.ids.sift(block, self._now_ns)
        kept = [block] if sifted is None else sifted.blocks
        first, key = -1, (-1, -1)
        for rest in kept:
            if delay_ms:
                key = topic.delay(rest, self._now_ns + delay_ms * NS_PER_MS)
            else:
                first = topic.append(rest, self._now_ns)
        if sifted is not None:
            left = topic.ids.stored(sifted, first, self._now_ns)
        if left is not None:
            return p.Duplicates(sequence, first, *key, left.repeats)
        return p.Delayed(sequence, *key) if delay_ms else p.Stored(((sequence, first),))

    # Consumers

    def _on_consumer(self, client: bytes, link: _Link, message: p.Wire) -> None:
        channel = self._channel(link.opened.topic, link.opened.channel)
        core, peer = channel.core, (client,)
        if isinstance(message, p.Sub):
            if closing.to_consumers(channel.topic.closed):
                raise Refused(E_CLOSED, closing.TO_CONSUMERS)
            consumer = consumer_of(message, peer, core, self._now_ns, self._now_ns)
            answer = p.Subscribed(
                message.request,
                1,
                consumer.timeout_ns // NS_PER_MS,
                consumer.heartbeat_ns // NS_PER_MS,
                core.settings.ordered,
                options.FAIR_BUFFER_MS if core.settings.is_fair else 0,
            )
            # A step of the clock is longer than heartbeats, and no consumer is lost by it.
            consumer.heartbeat_ns = 1 << 60
            core.subscribe(consumer)
            self._send(client, answer)
            return
        if peer not in core.consumers:
            raise UsageError(E_HELLO, "this connection is not subscribed; subscribe again")
        if isinstance(message, p.Ready):
            probe_ns = self._now_ns + message.backoff_ms * NS_PER_MS if message.backoff_ms else 0
            core.set_ready(peer, message.ready, probe_ns)
        elif isinstance(message, p.Fin | p.Req | p.Touch | p.Begun):
            refused = self._answered(channel, peer, message)
            if message.request or refused:
                self._send(client, p.Answer(message.request, message.token, tuple(refused)))

    def _answered(
        self,
        channel: MemoryChannel,
        peer: tuple[bytes, ...],
        message: p.Fin | p.Req | p.Touch | p.Begun,
    ) -> Sequence[p.Range]:
        core = channel.core
        if message.token == 0:
            return ()
        if isinstance(message, p.Fin):
            return core.fin(peer, message.token, message.ranges, self._now_ns)
        if isinstance(message, p.Touch):
            return core.touch(peer, message.token, self._now_ns, message.ranges)
        if isinstance(message, p.Begun):
            return core.note_begun(peer, message.token, message.ranges, self._now_ns)
        return core.req(
            peer,
            message.token,
            message.ranges,
            message.delay_ms,
            self._now_ns,
            message.error,
            message.traceback,
            defer=message.defer,
        )

    def _deliver(self, delivery: OutgoingDelivery) -> None:
        message = p.Deliver(delivery.token, delivery.runs, delivery.timeout_ns // NS_PER_MS)
        self._send(delivery.peer[0], message, [delivery.block])

    # Readers

    def _on_reader(self, client: bytes, topic: MemoryTopic, message: p.Wire) -> None:
        if isinstance(message, p.Fetch):
            blocks: list[Block] = []
            size = 0
            for block in topic.blocks:
                if block.next_offset > message.offset and size < message.max_bytes:
                    blocks.append(block)
                    size += block.length
                if len(blocks) >= READ_BLOCKS_MAX:
                    break
            after = blocks[-1].next_offset if blocks else min(message.offset, topic.head)
            self._send(client, p.Blocks(message.request, 0, topic.head, after), blocks)
        elif isinstance(message, p.OffsetAt):
            offset = topic.offset_at(message.time_ns)
            if message.newest:
                offset = max(0, topic.head - message.newest)
            ends = {"offset": offset, "start": 0, "head": topic.head}
            self._send(client, p.Done(message.request, ends))
        else:
            _unsupported("Reader.measure")

    # Orders of Admin

    def _manage(self, message: p.Manage) -> dict[str, Any]:
        request = request_of(message)
        handler = self._handlers.get(type(request))
        if handler is None:
            _unsupported(f"the request {message.action!r}")
        return handler(request)

    def _list_topics(self, request: r.ListTopicsRequest) -> dict[str, Any]:
        return {"topics": {name: tuple(topic.channels) for name, topic in self._topics.items()}}

    def _create_topic(self, request: r.CreateTopicRequest) -> dict[str, Any]:
        if request.parts is not None:
            _unsupported("parts")
        checked(request.topic, request.sync, request.settings, ServeOptions(data_dir=Path()))
        existed = request.topic in self._topics
        topic = self._topic(request.topic, create=True)
        if not existed:
            given = {name: value for name, value in request.settings.items() if value is not None}
            retention = resolve(given)
            topic.ids.window_s = retention.dedupe_window_s
            topic.expires_s = retention.expires_s
        return {"existed": existed}

    def _create_channel(self, request: r.CreateChannelRequest) -> dict[str, Any]:
        made = self._make_channel(request.topic, request.channel, request.settings)
        return {"existed": not made}

    def _configure_channel(self, request: r.ConfigureChannelRequest) -> dict[str, Any]:
        topic, name = request.topic, request.channel
        channel = self._channel(topic, name)
        channel.own = channel_settings.changed(channel.own, request.settings, topic, name)
        channel.core.configure(channel_settings.resolve(channel.own))
        return {"settings": channel.core.settings.as_dict()}

    def _delete(self, request: r.DeleteRequest) -> dict[str, Any]:
        return self._delete_channel(request) if request.channel else self._delete_topic(request)

    def _delete_topic(self, message: r.DeleteRequest) -> dict[str, Any]:
        topic = self._topic(message.topic)
        self._check_empty(f"topic {message.topic!r}", topic.unfinished(), message)
        for name in list(topic.channels):
            self._close_channel(message.topic, name)
        for client, link in list(self._links.items()):
            if link.opened.topic == message.topic:
                self._send(client, p.Bye())
                self._links.pop(client, None)
        del self._topics[message.topic]
        self._deleted.add(message.topic)
        return {}

    def _delete_channel(self, message: r.DeleteRequest) -> dict[str, Any]:
        channel = self._channel(message.topic, message.channel)
        caption = f"channel {message.channel!r} of topic {message.topic!r}"
        self._check_empty(caption, channel.unfinished(), message)
        self._close_channel(message.topic, message.channel)
        topic = channel.topic
        if not topic.channels:
            topic.waiting = topic.visible_end
        return {}

    def _close_channel(self, topic: str, name: str) -> None:
        channel = self._topics[topic].channels.pop(name)
        self._topics[topic].ids.locks.forget_channel(name)
        for (client,) in list(channel.core.consumers):
            self._send(client, p.Bye())
            self._links.pop(client, None)

    def _check_empty(self, caption: str, left: int, message: r.DeleteRequest) -> None:
        if left and not message.force:
            text = (
                f"{caption} has {left} messages that are not finished; drain it, or delete it with "
                "force and lose them"
            )
            raise Refused(E_NOT_EMPTY, text)

    def _close_or_open(self, message: r.CloseRequest | r.OpenRequest) -> dict[str, Any]:
        topic = self._topic(message.topic)
        topic.closed = closing.after(topic.closed, message)
        if closing.to_consumers(topic.closed):
            for channel in topic.channels.values():
                for (client,) in list(channel.core.consumers):
                    self._send(client, p.Failed(0, E_CLOSED, closing.TO_CONSUMERS))
                    self._forget(client)
        return {"closed": topic.closed}

    def _pause(self, request: r.PauseRequest | r.UnpauseRequest) -> dict[str, Any]:
        is_paused = isinstance(request, r.PauseRequest)
        if request.channel:
            self._channel(request.topic, request.channel).core.paused = is_paused
            return {}
        topic = self._topic(request.topic)
        if not is_paused:
            topic.paused_at = -1
        elif topic.paused_at < 0:
            topic.paused_at = topic.head
        return {}

    def _empty(self, request: r.EmptyRequest) -> dict[str, Any]:
        if not request.channel:
            _unsupported("emptying a topic")
        channel = self._channel(request.topic, request.channel)
        channel.core.seek(max(channel.topic.visible_end, channel.core.supply.next_offset))
        return {}

    def _seek(self, request: r.SeekRequest) -> dict[str, Any]:
        channel = self._channel(request.topic, request.channel)
        offset, end = request.offset, channel.topic.visible_end
        if offset is None:
            offset = channel.topic.offset_at(request.time_ns or 0)
        if end < offset < END and not request.clamp:
            text = f"offset {offset} is beyond the end of topic {request.topic!r} at offset {end}"
            raise UsageError(E_BAD_ARGUMENT, f"{text}; seek to latest or set clamp")
        offset = min(offset, end)
        if not request.forward or offset > channel.core.supply.next_offset:
            channel.core.seek(offset)
        return {"offset": channel.core.supply.next_offset}

    def _count_delayed(self, request: r.CountDelayedRequest) -> dict[str, Any]:
        return self._topic(request.topic).delayed_count()

    def _list_delayed(self, request: r.ListDelayedRequest) -> dict[str, Any]:
        after = _key(request.after) if request.after else None
        rows = self._topic(request.topic).delayed_rows(after, request.limit)
        return {"messages": tuple(rows)}

    def _cancel_delayed(self, request: r.CancelDelayedRequest) -> dict[str, Any]:
        topic = self._topic(request.topic)
        if request.all:
            return {"cancelled": len(topic.cancel(None)), "more": False}
        return {"cancelled": tuple(topic.cancel([_key(text) for text in request.keys]))}

    def _skip(self, request: r.SkipRequest) -> dict[str, Any]:
        channel = self._channel(request.topic, request.channel)
        ranges, told = channel.skip(
            request.offsets, preview=isinstance(request, r.PreviewSkipRequest)
        )
        for (client,), cancelled in told:
            self._send(client, p.Cancelled(tuple(cancelled), (), 0))
        return {
            "offsets": tuple(
                offset for first, count in ranges for offset in range(first, first + count)
            )
        }

    def _revoke(self, request: r.RevokeRequest) -> dict[str, Any]:
        topic = self._topic(request.topic)
        if not topic.channels:
            text = f"topic {request.topic!r} has no channel, which would keep the keys"
            raise NotFound(E_NOT_FOUND, f"{text}; create it first")
        delayed = topic.cancel_with(frozenset(request.keys))
        for channel in topic.channels.values():
            channel.core.revoke(request.keys, topic.head)
            for (client,), consumer in channel.core.consumers.items():
                if consumer.in_flight:
                    self._send(client, p.Cancelled((), request.keys, topic.head))
        return {"delayed": delayed}


def _key(text: str) -> DelayedKey:
    key = parse_key(text)
    if key is None:
        raise UsageError(E_BAD_ARGUMENT, f"{text!r} is not the key of a delayed message")
    return key
