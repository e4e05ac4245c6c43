"""What a consumer hands to a person: a batch is a lazy view of a delivered block, a message is one of its rows.

Both hold the delivery's bytes and nothing else; keys, tags and headers are read from the columns when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from .block import Block
from .codec import HeaderValue, unpack_headers
from .delivery import EVERY, Delivery
from .errors import E_BAD_ARGUMENT, UsageError
from .protocol import DEAD
from .reasons import Reason, as_error, when_again


class Holder(Protocol):
    """The consumer a message came by."""

    topic: str
    channel: str

    def _noted(self) -> None:
        """There are finishes to be told."""

    def _finish_sync(self, delivery: Delivery, indexes: Sequence[int]) -> Any: ...

    def _requeue(self, delivery: Delivery, indexes: Sequence[int], delay_ms: int, error: str) -> None: ...

    def _touch(self, delivery: Delivery) -> None: ...


class MessageView:
    """One message: what it says. `body` is bytes."""

    __slots__ = ("_answered", "_batch", "_index", "body")

    def __init__(self, batch: Any, index: int, body: bytes) -> None:
        self._batch = batch
        self._index = index
        self._answered = False
        self.body = body

    @property
    def key(self) -> bytes | None:
        """As published; None where it has none."""
        column = self._batch.block.key
        return None if column is None else column.value(self._index)

    @property
    def tag(self) -> str | None:
        """As published; None where it has none."""
        column = self._batch.block.tag
        value = None if column is None else column.value(self._index)
        return None if value is None else value.decode(errors="replace")

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """{} where there are none; not shared between calls."""
        column = self._batch.block.headers
        return {} if column is None else unpack_headers(column.value(self._index))

    @property
    def offset(self) -> int:
        """Its place in its topic, dense from 0, the same for every channel and reader."""
        return self._batch.delivery.offset(self._index)  # type: ignore[no-any-return]

    @property
    def timestamp_ns(self) -> int:
        """When it was stored (or the time of its own that it was published with), nanoseconds since 1970."""
        return self._batch.block.time_of(self._index)  # type: ignore[no-any-return]

    @property
    def attempts(self) -> int:
        """1 for the first delivery."""
        return self._batch.delivery.attempts(self._index)  # type: ignore[no-any-return]

    @property
    def topic(self) -> str:
        """Its topic's name."""
        return self._batch.owner.topic  # type: ignore[no-any-return]

    @property
    def channel(self) -> str:
        """The channel's name that it came through."""
        return self._batch.owner.channel  # type: ignore[no-any-return]

    @property
    def answered(self) -> bool:
        """Whether it was finished, requeued or rejected by this object."""
        return self._answered

    def _answer(self) -> None:
        if self._answered:
            raise UsageError(E_BAD_ARGUMENT, f"message {self.offset} was answered before; finish, requeue or reject it once")
        self._answered = True

    def _give_back(self, delay_ms: int, error: Reason) -> None:
        text = as_error(error)
        self._answer()
        self._batch.owner._requeue(self._batch.delivery, (self._index,), delay_ms, text)

    def __repr__(self) -> str:
        return f"<Message {self.topic}/{self.channel} offset {self.offset}, attempt {self.attempts}, {len(self.body)} bytes>"


class Message(MessageView):
    """One message, to be answered once: `finish`, `requeue`, or `reject`."""

    __slots__ = ()

    def finish(self, sync: bool = False) -> None:
        """Done with it. Plain: told to the broker soon (within 20 ms, or at the next receive), confirmed by `flush` or `close`.

        `sync=True` waits until it is committed: `LeaseLost` if the lease ended before, `BrokerUnreachable` after the time-out.
        """
        if self._answered:
            self._answer()
        self._answered = True
        batch = self._batch
        if sync:
            batch.owner._finish_sync(batch.delivery, (self._index,))
        elif batch.delivery.finish(self._index):
            batch.owner._noted()

    def requeue(self, delay: float = 0.0, *, backoff: bool = False, error: Reason = "") -> None:
        """Again, to whichever consumer, after `delay` seconds (at most an hour), or with `backoff` when the channel's settings say.

        `error`: why, a text or an exception, at most 512 characters. Where this was the last of the channel's `max_attempts`, the message
        goes to the dead letters instead, at once, and they tell it.
        """
        self._give_back(when_again(delay, backoff), error)

    def reject(self, error: Reason = "") -> None:
        """Never again: to the dead letters, now, whatever its attempts. `error`: why, a text or an exception, at most 512 characters."""
        self._give_back(DEAD, error)

    def touch(self) -> None:
        """More time, for it and all that came with it: the message timeout from now on (15 minutes at most in all)."""
        self._batch.owner._touch(self._batch.delivery)


_MessageT = TypeVar("_MessageT", bound=MessageView)


class BatchView(Generic[_MessageT]):
    """A delivery: messages of one block, or of several where some are delivered again."""

    __slots__ = ("_bodies", "block", "delivery", "owner")
    message: type[_MessageT]

    def __init__(self, owner: Any, delivery: Delivery) -> None:
        self.owner = owner
        self.delivery = delivery
        self.block: Block = delivery.block
        self._bodies: list[bytes] | None = None

    def __len__(self) -> int:
        return self.block.count

    @property
    def bodies(self) -> list[bytes]:
        """All bodies; made at the first use, then kept."""
        if self._bodies is None:
            self._bodies = self.block.body.values()  # type: ignore[assignment]
        return self._bodies  # type: ignore[return-value]

    @property
    def offsets(self) -> list[int]:
        """Of each message, in order."""
        return [offset for first, count, _ in self.delivery.runs for offset in range(first, first + count)]

    @property
    def attempts(self) -> list[int]:
        """Of each message: 1 for the first delivery."""
        return [attempts for _, count, attempts in self.delivery.runs for _ in range(count)]

    def messages(self) -> list[_MessageT]:
        """One object a message; answer each by itself, or the batch as a whole."""
        make = self.message
        return [make(self, index, body) for index, body in enumerate(self.bodies)]

    def _give_back(self, delay_ms: int, error: Reason) -> None:
        self.owner._requeue(self.delivery, self.delivery.unanswered(), delay_ms, as_error(error))

    def __repr__(self) -> str:
        return f"<Batch {self.owner.topic}/{self.owner.channel} from offset {self.delivery.runs[0][0]}, {len(self)} messages>"


class Batch(BatchView[Message]):
    """A delivery of a blocking consumer. What was answered message by message is left out of an answer to the whole."""

    __slots__ = ()
    message = Message

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def finish(self, sync: bool = False) -> None:
        """Done with all of it, as one range; see `Message.finish`."""
        if sync:
            self.owner._finish_sync(self.delivery, (EVERY,))
        elif self.delivery.finish(EVERY):
            self.owner._noted()

    def requeue(self, delay: float = 0.0, *, backoff: bool = False, error: Reason = "") -> None:
        """All that is not answered comes again; see `Message.requeue`."""
        self._give_back(when_again(delay, backoff), error)

    def reject(self, error: Reason = "") -> None:
        """All that is not answered goes to the dead letters, now; see `Message.reject`."""
        self._give_back(DEAD, error)

    def touch(self) -> None:
        """More time: the message timeout from now on (15 minutes at most in all)."""
        self.owner._touch(self.delivery)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """Finish, or requeue if the body raised."""
        if kind is None:
            self.finish()
        else:
            self.requeue(error=error or "")
