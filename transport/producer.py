"""The blocking producer: publish, and know when it is durable."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from .address import ADVICE, Address, parse
from .block import MESSAGE_BYTES_MAX, Block
from .codec import HeaderValue
from .credentials import KeyFile
from .drive import Drive, inherit, ours, remember
from .errors import E_BAD_ARGUMENT, E_CLOSING, E_TIMEOUT, BrokerUnreachable, Refused, UsageError
from .lane import QUEUE_BYTES_MAX, Lane, ProducerEngine, Text, as_attributes, as_body, as_delay_ms, pack_many, packed
from .protocol import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from .session import Parcel

TIMEOUT_S: Final = 30.0
WHEN_FULL: Final = ("fail", "wait")


class ReceiptView:
    """What became of a publish: of one message, or of those of one `publish_many`."""

    __slots__ = ("_index", "_owner", "_parcels", "count")

    def __init__(self, owner: Any, parcels: tuple[Parcel, ...], index: int, count: int) -> None:
        self._owner = owner
        self._parcels = parcels
        self._index = index
        self.count = count

    @property
    def done(self) -> bool:
        """Whether the outcome is known: durable, or failed."""
        return all(parcel.done for parcel in self._parcels)

    @property
    def error(self) -> Exception | None:
        """Why it failed, or None."""
        return next((parcel.error for parcel in self._parcels if parcel.error is not None), None)

    @property
    def offset(self) -> int | None:
        """The first message's offset; None while it is not known, -1 where it is stored but the broker no longer remembers where.

        A delayed message has none before it is due: -1, and a `key`.
        """
        first = self._parcels[0]
        if not first.done or first.error is not None:
            return None
        return first.first_offset + self._index if first.first_offset >= 0 else -1

    @property
    def key(self) -> str | None:
        """The first delayed message's key, 32 hex digits, by which it can be cancelled; None where there is none (yet)."""
        return next(iter(self.delayed_keys()), None)

    def delayed_keys(self) -> list[str]:
        """The keys of all delayed messages of which it is known by now that they wait; empty for a publish without delay.

        Also empty where an answer was lost and the broker no longer remembers them when asked again: `zsq delayed list` shows them.
        """
        found = []
        for parcel in self._parcels:
            if parcel.key is not None:
                due_ns, serial = parcel.key
                found += [f"{due_ns:016x}{serial + index:016x}" for index in range(parcel.count)]
        return found

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """(first offset, count) of each block that is stored."""
        if len(self._parcels) == 1:
            offset = self.offset
            return () if offset is None else ((offset, self.count),)
        return tuple((parcel.first_offset, parcel.count) for parcel in self._parcels if parcel.done and parcel.error is None)

    def _outcome(self) -> int:
        for parcel in self._parcels:
            if parcel.error is not None:
                parcel.raised = True
                raise parcel.error
        offset = self.offset
        assert offset is not None
        return offset

    def __repr__(self) -> str:
        where = f"offset {self.offset}" if self.key is None else f"delayed, {self.key}"
        state = where if self.done and not self.error else f"{self.error}" if self.done else "on its way"
        return f"<Receipt of {self.count}: {state}>"


class Receipt(ReceiptView):
    """Of a blocking producer."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> int:
        """The first offset, once all of it is durable. `timeout` in seconds, default: the producer's. Raises what went wrong."""
        if not self.done:
            self._owner._await(self._parcels, timeout)
        return self._outcome()


def check_times(timeout: float | None, heartbeat_ms: int | None) -> None:
    if timeout is not None and timeout <= 0:
        raise UsageError(E_BAD_ARGUMENT, f"a time-out of {timeout} s is none; give seconds above 0")
    if heartbeat_ms is not None and not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"a heartbeat of {heartbeat_ms} ms is outside of {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}")


def make_engine(
    address: Address, linger_ms: float, batch_bytes: int, batch_count: int, heartbeat_ms: int | None, when_full: str
) -> ProducerEngine:
    if when_full not in WHEN_FULL:
        raise UsageError(E_BAD_ARGUMENT, f"when_full is {' or '.join(WHEN_FULL)}, not {when_full!r}")
    if linger_ms < 0 or batch_bytes < 1 or batch_count < 1:
        raise UsageError(E_BAD_ARGUMENT, "linger_ms is 0 or more, batch_bytes and batch_count are 1 or more")
    return ProducerEngine(address, int(linger_ms * 1e6), batch_bytes, batch_count, heartbeat_ms, when_full == "wait")


def too_late(engine: ProducerEngine, timeout: float, sent: bool) -> BrokerUnreachable:
    """The error of a publish that was not answered in time."""
    what = "whether it is stored is not known: it was sent, and is sent again if the broker comes back" if sent else "nothing was sent"
    why = engine.trouble() or "no answer"
    text = f"{engine.address.url} did not confirm within {timeout:g} s ({why}); {what}. {ADVICE}"
    return BrokerUnreachable(E_TIMEOUT, text)


class Producer:
    """Publishes to any number of topics. Thread-safe; after a fork the child has links and a producer id of its own.

    `url`: tcp://host:4153 or ipc:///DATA_DIR/run; default $ZSQ_URL, else tcp://127.0.0.1:4153.
    `linger_ms` 0: each publish is durable when it returns. Above 0 it returns at once, and messages are gathered into blocks until
    that time, `batch_count` or `batch_bytes` is reached; `Receipt.wait` and `flush` wait for durability.
    `timeout`: seconds that any call waits for the broker, reconnects included. A resend never stores twice.
    `when_full`: what a publish does where there is no room (the topic's bound is reached, the disk is full): "fail" at once, or "wait" for
    it as long as for a broker. Either way memory is bounded: with lingering, publishing stops while 16 MiB wait.
    `key_file`: what `zsq keys client` wrote, for a gateway that encrypts and wants to know who comes; default $ZSQ_KEY_FILE.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        linger_ms: float = 0.0,
        batch_bytes: int = 256 * 1024,
        batch_count: int = 1000,
        timeout: float = TIMEOUT_S,
        heartbeat_ms: int | None = None,
        when_full: str = "fail",
        key_file: KeyFile = None,
    ) -> None:
        check_times(timeout, heartbeat_ms)
        self._options = (parse(url, key_file), linger_ms, batch_bytes, batch_count, heartbeat_ms, when_full)
        self._timeout = timeout
        self._lingers = linger_ms > 0
        self._closed = False
        make_engine(*self._options)  # a wrong argument is told here
        self._made: Drive[ProducerEngine] | None = None
        self._pid = os.getpid()
        remember(self)

    def _drive(self) -> Drive[ProducerEngine]:
        """This process's drive: made when first needed."""
        if self._closed:
            raise Refused(E_CLOSING, "this producer is closed; make a new one")
        made = self._made
        return made if made is not None and made.pid == os.getpid() else ours(lambda: self._made, self._make)

    def _make(self, inherited: Drive[ProducerEngine] | None) -> Drive[ProducerEngine]:
        self._made = Drive(make_engine(*self._options), keeper="zsq producer")
        return self._made

    def publish(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        key: Text = None,
        tag: Text = None,
        headers: Mapping[str, HeaderValue] | None = None,
        delay: float | None = None,
    ) -> Receipt:
        """Publish one message. `UsageError` for a bad name or what is too large, `Refused` if the broker cannot take it now,
        `BrokerUnreachable` after the time-out.

        `delay`: seconds (at most 366 days) after which it comes into the topic, never earlier. It is durable as any other when this
        returns, does not linger, and its receipt has a `key` in place of an offset.
        """
        delay_ms = as_delay_ms(delay)
        payload = body if type(body) is bytes and len(body) <= MESSAGE_BYTES_MAX else as_body(body)
        attributes = None if key is None and tag is None and headers is None else as_attributes(key, tag, headers)
        if not self._lingers or delay_ms:
            columns = [None if value is None else [value] for value in attributes or (None, None, None)]
            time_ns = time.time_ns() if delay_ms else None
            block = packed([payload], time_ns, *columns)
            receipt = self._push(topic, (block,), delay_ms)
            if not self._lingers:
                receipt.wait()
            return receipt
        drive = self._drive()
        with drive.lock:
            engine = drive.engine
            parcel, index = engine.linger(topic, payload, attributes)
            if not index or engine.waiters:
                drive.settle()
            if engine.lanes[topic].session.queue_bytes > QUEUE_BYTES_MAX:
                self._make_room(drive, engine.lanes[topic])
        return Receipt(self, (parcel,), index, 1)

    def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[Text] | None = None,
        tags: Sequence[Text] | None = None,
        headers: Sequence[Mapping[str, HeaderValue] | None] | None = None,
        delay: float | None = None,
        wait: bool = True,
    ) -> Receipt:
        """Publish messages in order, cut into blocks of at most 10,000 messages and about 5 MiB. `delay`: of all of them, see `publish`.

        With `wait=False` it returns when they are handed over (at most 16 MiB wait to be sent); use the receipt, or `flush`.
        """
        delay_ms = as_delay_ms(delay)
        receipt = self._push(topic, pack_many(bodies, keys, tags, headers, time.time_ns() if delay_ms else None), delay_ms)
        if wait:
            receipt.wait()
        return receipt

    def _push(self, topic: str, blocks: Iterable[Block], delay_ms: int) -> Receipt:
        drive = self._drive()
        parcels = []
        count = 0
        with drive.lock:
            lane = drive.engine.lane(topic)
            if lane.gather is not None:
                lane.seal(time.monotonic_ns())  # what was published before goes before
            for block in blocks:
                if lane.session.queue_bytes > QUEUE_BYTES_MAX:
                    self._make_room(drive, lane)
                parcel = Parcel(block, delay_ms)
                parcels.append(parcel)
                count += block.count
                lane.push(parcel, time.monotonic_ns())
            drive.settle()
        return Receipt(self, tuple(parcels), 0, count)

    def _make_room(self, drive: Drive[ProducerEngine], lane: Lane) -> None:
        session = lane.session
        if not drive.wait(lambda: session.queue_bytes <= QUEUE_BYTES_MAX, time.monotonic_ns() + int(self._timeout * 1e9)):
            raise too_late(drive.engine, self._timeout, False)

    def _await(self, parcels: tuple[Parcel, ...], timeout: float | None) -> None:
        """Wait until all are answered, or raise."""
        drive = self._made
        timeout = self._timeout if timeout is None else timeout
        if drive is None or drive.pid != os.getpid():
            raise UsageError(E_BAD_ARGUMENT, "this receipt belongs to the process that published; wait for it there")
        with drive.lock:
            engine = drive.engine
            if any(parcel.block is None and not parcel.done for parcel in parcels):
                engine.seal_all(time.monotonic_ns())  # somebody waits: no more lingering
            last = parcels[-1]
            done = (lambda: last.done) if len(parcels) == 1 else (lambda: last.done and all(parcel.done for parcel in parcels))
            if drive.wait(done, time.monotonic_ns() + int(timeout * 1e9)):
                drive.settle()
                return
            error = engine.give_up(parcels, lambda sent: too_late(engine, timeout, sent))
            drive.settle()
        raise error

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was published is durable; raises the first error that nobody was told of."""
        if self._made is None or self._made.pid != os.getpid():
            return
        timeout = self._timeout if timeout is None else timeout
        drive = self._made
        with drive.lock:
            engine = drive.engine
            engine.seal_all(time.monotonic_ns())
            if not drive.wait(lambda: not engine.unanswered, time.monotonic_ns() + int(timeout * 1e9)):
                raise too_late(engine, timeout, True)
            drive.settle()
            engine.raise_failed()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end. What `flush` raises is raised after the end."""
        if self._closed:
            return
        self._closed = True
        drive = self._made
        if drive is None:
            return
        if drive.pid != os.getpid():
            inherit(drive)
            return
        try:
            self.flush(timeout)
        finally:
            with drive.lock:
                drive.stop(linger_ms=1000)
            drive.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
