"""The blocking producer: publish, and wait until messages are durable."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from ...block.block import MESSAGE_BYTES_MAX
from ...errors import E_BAD_ARGUMENT, E_CLOSING, Refused, UsageError, from_wire, in_command, option
from ...settings import check_type
from ...wire.address import DefaultTimeout
from ...wire.addresses import Url, parse_all
from ...wire.codec import HeaderValue
from ...wire.credentials import KeyFile
from ...wire.protocol import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from ..core.dedupe_arguments import Id, with_id, with_id_of_each
from ..core.deferral import Delay
from ..core.packing import one_block
from ..core.producer_engine import QUEUE_BYTES_MAX, ProducerEngine, flat
from ..core.producer_session import PendingBlock
from ..core.publish_arguments import (
    Text,
    as_attributes,
    as_body,
    as_delay_ms,
    lifetime_of,
    with_headers,
    with_headers_of_each,
)
from ..core.unique_arguments import with_unique_key
from ..link.engine import Steps
from ..link.timeouts import check_timeout
from .client_base import BlockingClient, ClientBase
from .drive import Drive
from .program_end import name_of

log = logging.getLogger("zsq")

TIMEOUT_S: Final = DefaultTimeout(30.0)
CLOSE_S: Final = 10.0  # how long `close` waits, unless it gets a time-out
WHEN_FULL: Final = ("fail", "wait")
FOREIGN_RECEIPT: Final = (
    "this receipt belongs to the process that published the message; wait for it there"
)

_DriveT = TypeVar("_DriveT")
Pending = tuple[PendingBlock, ...]


class Published(NamedTuple):
    """One message of a publish.

    With `duplicate`, it was not stored, because a message with its `dedupe_id` was stored before,
    and `offset` is the offset of that one. The offset is -1 if it is not known, or if that message
    was delayed.
    """

    offset: int
    duplicate: bool


class ReceiptView:
    """The state of a publish: of one message, or of all messages of one `publish_many`."""

    __slots__ = ("_index", "_owner", "_pending", "count")

    def __init__(self, owner: Any, pending_blocks: Pending, index: int, count: int) -> None:
        self._owner = owner
        self._pending = pending_blocks
        self._index = index
        self.count = count

    @property
    def done(self) -> bool:
        """True when the result is known: durable or failed."""
        return all(pending.done for pending in self._blocks())

    def _blocks(self) -> list[PendingBlock]:
        """Return the blocks that have the messages. They may have messages of others, too."""
        if self.count == 1:
            return [self._pending[0].leaf(self._index)[0]]
        return flat(self._pending)

    @property
    def error(self) -> Exception | None:
        """The error of a failed publish, or None.

        If only some messages of a `publish_many` have failed, the error says how many, and the
        others are stored.
        """
        failed = [pending for pending in self._blocks() if pending.error is not None]
        if not failed:
            return None
        first = failed[0].error
        assert first is not None
        count = sum(pending.count for pending in failed)
        if self.count == 1 or count == self.count or not self.done:
            return first
        text = f"{first.text}; {count} of the {self.count} messages failed, the others are stored"
        return from_wire(first.code, text)

    @property
    def offset(self) -> int | None:
        """The offset of the first message. It is None while it is not known.

        It is -1 if the message is delayed, if the broker no longer remembers the offset, or if the
        messages went to several parts. In a topic with parts, it counts in `part`.
        """
        first, index = self._pending[0], self._index
        if self.count == 1:
            first, index = first.leaf(index)
        if not first.done or first.error is not None:
            return None
        return first.offset_of(index)

    @property
    def duplicate(self) -> bool:
        """True if nothing was stored, because each message is known. See `results`."""
        if self.count == 1:
            leaf, index = self._pending[0].leaf(self._index)
            return index in leaf.duplicates
        return all(pending.done and not pending.stored_count for pending in self._blocks())

    @property
    def duplicates(self) -> int:
        """The number of messages that are known to be duplicates."""
        if self.count == 1:
            return int(self.duplicate)
        return sum(len(pending.duplicates) for pending in self._blocks())

    @property
    def results(self) -> tuple[Published, ...]:
        """The offset of each message, and whether it is a duplicate, in the order of the publish.

        It is empty while that is not known, and if a message has failed.
        """
        if any(not leaf.done or leaf.error is not None for leaf in self._blocks()):
            return ()
        if self.count == 1:
            leaf, index = self._pending[0].leaf(self._index)
            return (Published(leaf.offset_of(index), index in leaf.duplicates),)
        results: dict[int, Published] = {}
        first = 0
        for pending in self._pending:
            # The messages of a topic with parts were sorted, and `order` has their indexes.
            order = pending.order or range(first, first + pending.count)
            first += pending.count
            for index, place in enumerate(order):
                leaf, row = pending.leaf(index)
                results[place] = Published(leaf.offset_of(row), row in leaf.duplicates)
        return tuple(results[place] for place in sorted(results))

    @property
    def part(self) -> int | None:
        """The part of the topic that has the messages, or None: no parts, several, or not known."""
        parts = {pending.part for pending in self._blocks()}
        return next(iter(parts)) if len(parts) == 1 and parts != {-1} else None

    @property
    def places(self) -> tuple[tuple[int, int, int], ...]:
        """The (part, first offset, count) of each stored block of a topic with parts."""
        return tuple(
            (pending.part, pending.first_offset, pending.stored_count)
            for pending in self._blocks()
            if pending.part >= 0 and pending.done and pending.error is None and pending.stored_count
        )

    @property
    def delayed_key(self) -> str | None:
        """The key of the first delayed message (32 hex digits), for `Admin.delayed_cancel`, or
        None.
        """
        return next(iter(self.delayed_keys()), None)

    def delayed_keys(self) -> list[str]:
        """Return the keys of all delayed messages of this publish that the broker has confirmed.

        The list may be empty after a lost connection. `zsq delayed list` shows the keys in that
        case.
        """
        keys = []
        for pending in self._blocks():
            if pending.key is not None:
                due_ns, serial = pending.key
                keys += [
                    f"{due_ns:016x}{serial + index:016x}" for index in range(pending.stored_count)
                ]
        return keys

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The (first offset, count) of each stored block."""
        if self.count == 1 or (len(self._pending) == 1 and not self._pending[0].pieces):
            offset = self.offset
            if not any(pending.duplicates for pending in self._blocks()):
                return () if offset is None else ((offset, self.count),)
        if self.count == 1:
            return () if self.duplicate or self.offset is None else ((self.offset, 1),)
        return tuple(
            (pending.first_offset, pending.stored_count)
            for pending in self._blocks()
            if pending.done and pending.error is None and pending.stored_count
        )

    def _outcome(self) -> int:
        error = self.error
        if error is not None:
            for pending in self._blocks():
                pending.raised = True
            raise error
        offset = self.offset
        assert offset is not None
        return offset

    def __repr__(self) -> str:
        where = (
            f"offset {self.offset}" if self.delayed_key is None else f"delayed, {self.delayed_key}"
        )
        state = (
            where
            if self.done and not self.error
            else f"{self.error}"
            if self.done
            else "not answered yet"
        )
        return f"<Receipt of {self.count}: {state}>"


class Receipt(ReceiptView):
    """The receipt that `Producer.publish` and `Producer.publish_many` return."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all messages are durable, and return the first offset.

        `timeout` is in seconds. The default is the producer's timeout. Raises the error if the
        publish failed.
        """
        if not self.done:
            self._owner._await(self._pending, timeout)
        return self._outcome()


def check_times(timeout: float | None, heartbeat_ms: int | None) -> None:
    seconds = check_timeout(timeout)
    if seconds is not None and seconds <= 0:
        text = (
            f"{option('timeout')} must be a number of seconds above 0, or None to wait without "
            f"limit, not {timeout!r}"
        )
        raise UsageError(E_BAD_ARGUMENT, text)
    if heartbeat_ms is not None:
        check_type("heartbeat_ms", heartbeat_ms)
    if heartbeat_ms is not None and not HEARTBEAT_MS_MIN <= heartbeat_ms <= HEARTBEAT_MS_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"heartbeat_ms must be {HEARTBEAT_MS_MIN} to {HEARTBEAT_MS_MAX}, not {heartbeat_ms}",
        )


def _check_options(linger_ms: float, batch_bytes: int, batch_count: int, when_full: str) -> None:
    if when_full not in WHEN_FULL:
        raise UsageError(
            E_BAD_ARGUMENT, f"when_full must be {' or '.join(WHEN_FULL)}, not {when_full!r}"
        )
    check_type("linger_ms", linger_ms, whole=False)
    check_type("batch_bytes", batch_bytes)
    check_type("batch_count", batch_count)
    if linger_ms < 0 or batch_bytes < 1 or batch_count < 1:
        values = f"{linger_ms}, {batch_bytes} and {batch_count}"
        raise UsageError(
            E_BAD_ARGUMENT,
            f"linger_ms must be at least 0, batch_bytes and batch_count at least 1, not {values}",
        )


class ProducerBase(ClientBase[_DriveT]):
    """The base of the blocking and the asyncio producer."""

    def __init__(
        self,
        url: Url = None,
        *,
        linger_ms: float = 0.0,
        batch_bytes: int = 256 * 1024,
        batch_count: int = 1000,
        timeout: float | None = TIMEOUT_S,
        heartbeat_ms: int | None = None,
        when_full: str = "fail",
        create: bool = True,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        check_times(timeout, heartbeat_ms)
        _check_options(linger_ms, batch_bytes, batch_count, when_full)
        self._client_name = name_of(self)
        self._options = (
            parse_all(url, key_file, transport),
            linger_ms,
            batch_bytes,
            batch_count,
            heartbeat_ms,
            when_full,
            create,
        )
        self._timeout = timeout
        self._lingers = linger_ms > 0
        self._closed = False
        super().__init__()

    def _engine(self) -> ProducerEngine:
        address, linger_ms, batch_bytes, batch_count, heartbeat_ms, when_full, create = (
            self._options
        )
        return ProducerEngine(
            address,
            int(linger_ms * 1e6),
            batch_bytes,
            batch_count,
            heartbeat_ms,
            patient=when_full == "wait",
            splits=True,
            creates=create,
        )

    def _drive(self) -> _DriveT:
        if self._closed:
            raise Refused(E_CLOSING, "this producer is closed; make a new one")
        return super()._drive()

    def _check_size(self, topic: str, size: int) -> Any:
        drive: Any = self._drive()
        return drive.carry_out(drive.engine.check_size(topic, size, self._timeout))

    def _store(self, queueing: Steps[Pending], wait: bool) -> Any:
        """Return the pending blocks. With `wait`, the topic has answered them."""
        drive: Any = self._drive()
        return drive.carry_out(drive.engine.answer(queueing, self._timeout) if wait else queueing)

    def _await(self, pending_blocks: Pending, timeout: float | None) -> Any:
        """Wait until these blocks are answered.

        Raises `BrokerUnreachable` (E_TIMEOUT) after the timeout. Raises `UsageError` in a process
        that did not publish them.
        """
        drive: Any = self._made
        if drive is None:
            raise UsageError(E_BAD_ARGUMENT, FOREIGN_RECEIPT)
        seconds = self._timeout if timeout is None else timeout
        return drive.carry_out(drive.engine.answered(pending_blocks, seconds))

    def _leave(self) -> Any:
        """Publish no more. Return the drive that must be closed, if there is one."""
        drive = None if self._closed else self._made
        self._closed = True
        return drive

    def _close_timeout(self, timeout: float | None) -> float:
        if timeout is None:
            timeout = min(CLOSE_S, CLOSE_S if self._timeout is None else self._timeout)
        return timeout

    def _log_unfinished(self, engine: ProducerEngine, error: BaseException) -> None:
        """Log how many messages `close` leaves unconfirmed. The caller may drop its error."""
        if engine.unfinished and not in_command():
            why = "was interrupted" if isinstance(error, KeyboardInterrupt) else "ends"
            log.warning("%s: close() %s: %s", self._client_name, why, engine.unfinished)


class Producer(ProducerBase[Drive[ProducerEngine]], BlockingClient[Drive[ProducerEngine]]):
    """Publish messages to any number of topics.

    In a topic with parts, a message with a key goes to the part of its key. All others go to the
    parts in turn. A producer is thread-safe. After a fork, the child process opens its own
    connections.

    - `url`: The address of the broker, tcp://host:4153 or ipc:///DATA_DIR/run. The default is
      $ZSQ_URL, else tcp://127.0.0.1:4153. For a broker with a standby, give both addresses, as a
      list or with commas between them, see docs/connections.md.
    - `linger_ms`: With 0, each publish is durable when it returns. With a larger value, a publish
      returns at once, and messages are collected into blocks until this time has passed, or until
      `batch_count` or `batch_bytes` is reached. `Receipt.wait` and `flush` wait until they are
      durable.
    - `timeout`: The seconds that a call waits for the broker, including reconnects. None or
      `math.inf` means no limit. While a call waits, the log (`zsq`) gets warnings. If `url` names
      this machine and nothing listens there, a producer with the default timeout raises
      `BrokerUnreachable` after 1 s, unless it has reached a broker before.
    - `when_full`: What a publish does while the topic's bound is reached or the disk is full:
      "fail" raises an error at once, "wait" waits up to `timeout`. With a `linger_ms` above 0, a
      publish also waits while 16 MiB of messages wait to be sent.
    - `create`: Create a topic that does not exist, unless the broker forbids it (`zsq serve
      --auto-create`). With False, a publish to it raises `NotFound`.
    - `key_file`: The file that `zsq keys client` wrote, for a gateway with encryption. The default
      is $ZSQ_KEY_FILE.
    - `transport`: With "auto", a client of the broker's user on its machine talks to the broker's
      processes directly over ipc, if there is no access control. "tcp" always uses the gateway. The
      default is $ZSQ_TRANSPORT, else "auto".
    """

    _keeper = "zsq producer"

    def publish(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        key: Text = None,
        tag: Text = None,
        headers: Mapping[str, HeaderValue] | None = None,
        delay: Delay | None = None,
        expires_in: Delay | None = None,
        revoke_key: str | None = None,
        dedupe_id: Id | None = None,
        unique_key: Id | None = None,
        unique: str | None = None,
    ) -> Receipt:
        """Publish one message.

        `delay`: seconds or a timedelta (at most 366 days). The message is added to the topic after
        this time, never earlier, and its receipt has a `delayed_key` instead of an offset. It is
        sent at once, also with a `linger_ms`. `expires_in`: seconds or a timedelta, above the
        delay, and `revoke_key`: a text of at most 256 bytes, by which `Admin.revoke` cancels the
        message, see docs/lifetimes.md. `dedupe_id`, `unique_key`: text or bytes of at most 256
        bytes. `unique`: "while-waiting" or "while-working". If an earlier message has the id or
        holds the key, nothing is stored, and the receipt has the offset of that message and
        `duplicate` True, see docs/dedupe.md.

        Raises `UsageError` for a bad name or a message that is too large, `Refused` if the broker
        cannot accept it now, and `BrokerUnreachable` after the timeout.
        """
        delay_ms = as_delay_ms(delay)
        if expires_in is not None or revoke_key is not None:
            headers = with_headers(headers, lifetime_of(expires_in, delay_ms, revoke_key))
        if dedupe_id is not None:
            headers = with_id(headers, dedupe_id)
        if unique_key is not None or unique is not None:
            headers = with_unique_key(
                headers, unique_key, unique, delay_ms=delay_ms, has_id=dedupe_id is not None
            )
        payload = body if type(body) is bytes and len(body) <= MESSAGE_BYTES_MAX else as_body(body)
        if len(payload) > MESSAGE_BYTES_MAX:
            self._check_size(topic, len(payload))
        attributes = (
            None
            if key is None and tag is None and headers is None
            else as_attributes(key, tag, headers)
        )
        drive = self._drive()
        engine = drive.engine
        if not self._lingers or delay_ms:
            block = one_block(payload, attributes, delay_ms)
            steps = engine.push(topic, (block,), delay_ms, self._timeout)
            return self._receipt(steps, not self._lingers)
        with drive.lock:
            pending, index = engine.linger(topic, payload, attributes)
            if not index or engine.waiters:
                drive.settle()
            lane = engine.fullest(engine.lanes[topic])
        if lane.session.queue_bytes > QUEUE_BYTES_MAX:
            drive.carry_out(engine.make_room(lane, self._timeout))
        return Receipt(self, (pending,), index, 1)

    def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        key: Text = None,
        keys: Sequence[Text] | None = None,
        tag: Text = None,
        tags: Sequence[Text] | None = None,
        headers: Mapping[str, HeaderValue]
        | Sequence[Mapping[str, HeaderValue] | None]
        | None = None,
        delay: Delay | None = None,
        expires_in: Delay | None = None,
        revoke_key: str | None = None,
        dedupe_ids: Sequence[Id | None] | None = None,
        wait: bool = True,
    ) -> Receipt:
        """Publish messages in order, in blocks of at most 10,000 messages and about 5 MiB.

        `key`, `tag`: one value for all messages. `keys`, `tags`, `dedupe_ids`: one for each, or
        None. `headers`: one mapping for all, or a sequence with one for each. `delay`,
        `expires_in`, `revoke_key`: those of all messages, see `publish`. With `wait=False` this
        returns when the messages are queued.

        If a message is over the limit of a broker that this producer has reached before,
        `UsageError` is raised and nothing is sent. If the broker refuses a message later, only that
        message fails, and the error says how many failed.
        """
        delay_ms = as_delay_ms(delay)
        if expires_in is not None or revoke_key is not None:
            headers = with_headers_of_each(headers, lifetime_of(expires_in, delay_ms, revoke_key))
        if dedupe_ids is not None:
            bodies = bodies if isinstance(bodies, list | tuple) else list(bodies)
            headers = with_id_of_each(headers, dedupe_ids, len(bodies))
        if size := self._drive().engine.size_to_check(topic, bodies):
            self._check_size(topic, size)
        steps = self._drive().engine.push_many(
            topic,
            bodies,
            delay_ms,
            self._timeout,
            keys=keys,
            tags=tags,
            headers=headers,
            key=key,
            tag=tag,
            has_ids=dedupe_ids is not None,
        )
        return self._receipt(steps, wait)

    def _receipt(self, queueing: Steps[Pending], wait: bool) -> Receipt:
        pending_blocks = self._store(queueing, wait)
        receipt = Receipt(self, pending_blocks, 0, sum(pending.count for pending in pending_blocks))
        if wait:
            receipt._outcome()
        return receipt

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was published is durable.

        Raises an error if messages failed and no call has raised that yet, with the code of the
        first failure, how many messages of which topics failed, and why.
        """
        drive = self._made
        if drive is not None:
            drive.carry_out(drive.engine.flush(self._timeout if timeout is None else timeout))

    def close(self, timeout: float | None = None) -> None:
        """Flush, then close the producer.

        The flush waits at most `timeout` seconds, by default the producer's timeout, but at most 10
        s. If messages are not confirmed by then, the error of the flush is raised after the
        producer is closed.
        """
        drive = self._leave()
        if drive is None:
            return
        try:
            self.flush(self._close_timeout(timeout))
        except BaseException as error:
            self._log_unfinished(drive.engine, error)
            raise
        finally:
            drive.leave(drive.engine.farewell_ms)
