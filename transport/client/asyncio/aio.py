"""The asyncio clients. They have the names and arguments of the blocking clients, with await.

They run the same engines as the blocking clients, in the thread of the event loop, without locks.

    async with zsq.aio.Producer(url) as producer:
        await producer.publish("clicks", b"hello")

A client belongs to the loop in which it is first used. `run(main())` runs a program on uvloop, or
where there is none, on the event loop of asyncio that can watch sockets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from ...block.block import MESSAGE_BYTES_MAX
from ...system import woken_by_signals
from ...wire.codec import HeaderValue
from ..blocking.producer import Pending, ProducerBase, ReceiptView
from ..core.dedupe_arguments import Id, with_id, with_id_of_each
from ..core.deferral import Delay
from ..core.message import Fetched
from ..core.packing import one_block
from ..core.producer_engine import QUEUE_BYTES_MAX, ProducerEngine
from ..core.publish_arguments import (
    Text,
    as_attributes,
    as_body,
    as_delay_ms,
    lifetime_of,
    with_headers,
    with_headers_of_each,
)
from ..core.reading import Archive, Measured
from ..core.unique_arguments import with_unique_key
from ..link.engine import Steps
from .aio_asker import AsyncioClient, Turner
from .aio_client import Admin, Reader
from .aio_consumer import Batch, Consumer, Message

__all__ = [
    "Admin",
    "Archive",
    "Batch",
    "Consumer",
    "Fetched",
    "Measured",
    "Message",
    "Producer",
    "Reader",
    "Receipt",
    "run",
]

_T = TypeVar("_T")


def run(main: Coroutine[Any, Any, _T], *, debug: bool | None = None) -> _T:
    """Run a program on uvloop until it returns, like `asyncio.run`.

    Without uvloop (on Windows) it runs on `asyncio.SelectorEventLoop`. The default loop of Windows
    cannot watch sockets.
    """
    try:
        import uvloop
    except ImportError:
        uvloop = None  # type: ignore[assignment]
    if uvloop is not None:
        result: _T = uvloop.run(main, debug=debug)
        return result
    runner = asyncio.Runner(debug=debug, loop_factory=asyncio.SelectorEventLoop)
    with runner, woken_by_signals(runner.get_loop()):
        return runner.run(main)


class Receipt(ReceiptView):
    """The receipt that `Producer.publish` and `Producer.publish_many` return."""

    __slots__ = ()

    async def wait(self, timeout: float | None = None) -> int:
        """Wait until all messages are durable, and return the first offset.

        `timeout` is in seconds. The default is the producer's timeout. Raises the error if the
        publish failed.
        """
        if not self.done:
            await self._owner._await(self._pending, timeout)
        return self._outcome()


class Producer(ProducerBase[Turner[ProducerEngine]], AsyncioClient[Turner[ProducerEngine]]):
    """Publish messages to any number of topics. See `zsq.Producer` for the arguments."""

    async def publish(
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
        """Publish one message. It is durable when this returns, unless `linger_ms` is above 0.

        `delay`, `expires_in`: seconds or a timedelta. See `zsq.Producer.publish`.
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
        payload = as_body(body)
        if len(payload) > MESSAGE_BYTES_MAX:
            await self._check_size(topic, len(payload))
        attributes = (
            None
            if key is None and tag is None and headers is None
            else as_attributes(key, tag, headers)
        )
        turner = self._drive()
        if not self._lingers or delay_ms:
            block = one_block(payload, attributes, delay_ms)
            steps = turner.engine.push(topic, (block,), delay_ms, self._timeout)
            return await self._receipt(steps, not self._lingers)
        pending, index = turner.engine.linger(topic, payload, attributes)
        turner.settle()
        lane = turner.engine.fullest(turner.engine.lanes[topic])
        if lane.session.queue_bytes > QUEUE_BYTES_MAX:
            await turner.carry_out(turner.engine.make_room(lane, self._timeout))
        return Receipt(self, (pending,), index, 1)

    async def publish_many(
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
        """Publish messages in order, divided into blocks.

        With `wait=False` this returns when the messages are queued. See
        `zsq.Producer.publish_many`.
        """
        delay_ms = as_delay_ms(delay)
        if expires_in is not None or revoke_key is not None:
            headers = with_headers_of_each(headers, lifetime_of(expires_in, delay_ms, revoke_key))
        if dedupe_ids is not None:
            bodies = bodies if isinstance(bodies, list | tuple) else list(bodies)
            headers = with_id_of_each(headers, dedupe_ids, len(bodies))
        if size := self._drive().engine.size_to_check(topic, bodies):
            await self._check_size(topic, size)
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
        return await self._receipt(steps, wait)

    async def _receipt(self, queueing: Steps[Pending], wait: bool) -> Receipt:
        pending_blocks = await self._store(queueing, wait)
        receipt = Receipt(self, pending_blocks, 0, sum(pending.count for pending in pending_blocks))
        if wait:
            receipt._outcome()
        return receipt

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything that was published is durable.

        Raises an error if messages failed and no call has raised that yet. See
        `zsq.Producer.flush`.
        """
        turner = self._made
        if turner is not None:
            await turner.carry_out(
                turner.engine.flush(self._timeout if timeout is None else timeout)
            )

    async def close(self, timeout: float | None = None) -> None:
        """Flush, then close the producer.

        See `zsq.Producer.close` for the time-out. If the task is cancelled
        meanwhile, a thread sends the rest, as for a producer that is dropped.
        """
        turner = self._leave()
        if turner is None:
            return
        try:
            await self.flush(self._close_timeout(timeout))
        except asyncio.CancelledError:
            turner.end_in_thread()
            raise
        except BaseException as error:
            self._log_unfinished(turner.engine, error)
            raise
        finally:
            turner.stop(turner.engine.farewell_ms)
