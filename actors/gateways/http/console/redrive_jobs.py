"""Redrives of dead letters as background jobs with progress.

Their number is limited, and each dead-letter topic has at most one. Jobs exist only in the
gateway's memory. If the gateway dies, dead letters that were published but not finished are sent
back a second time, as with the command line. None is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, TypedDict, TypeVar

from .....transport.client.asyncio.aio import Admin, Consumer, Message, Producer, Reader
from .....transport.client.core.letter_groups import LetterConditions
from .....transport.client.core.message import StoredMessage
from .....transport.client.core.redrive import (
    CHANNEL,
    HOLD_S,
    NOT_COME,
    POLL_S,
    READY,
    SETTLED,
    Pace,
    Redrive,
    still_held,
)
from .....transport.errors import NotFound, ZsqError
from .....transport.whole_topic import whole_topic
from .....transport.wire.actions import Action
from ....security.policy import (
    Principal,
    check_address,
)
from ...limiter import Limiter
from ..api.broker import SharedStats
from ..web.authority import Rights
from ..web.permissions import actions_of
from ..web.responses import ApiError

log = logging.getLogger("zsq")

KEPT: Final = 20  # rows of jobs that have ended
TIMEOUT_S: Final = 20.0
HELD_MAX: Final = 10_000  # the dead letters that a job with conditions holds
REASONS_MAX: Final = 20  # the most reasons, and the most places, in a job's row


class JobPlace(TypedDict):
    topic: str
    channel: str | None
    count: int


class JobRow(TypedDict):
    """A job as pages get it.

    `places` are the destinations of dead letters that the page's user may see. `reasons` count the
    dead letters that stayed, by reason.
    """

    id: int
    kind: str
    topic: str
    state: str
    sent: int
    left: int
    total: int | None
    places: list[JobPlace]
    reasons: dict[str, int]
    error: str
    started_ms: int
    ended_ms: int
    by: str


class RedriveJob:
    """A redrive. Its `state` is running, done, stopped or failed."""

    def __init__(
        self,
        number: int,
        topic: str,
        to: str | None,
        channel: str | None,
        count: int | None,
        rights: Rights,
        offsets: Sequence[int] | None = None,
        rate: float | None = None,
        conditions: LetterConditions | None = None,
    ) -> None:
        self.number = number
        self.rate = rate
        self.conditions = conditions
        self.offsets = offsets
        self.topic = topic
        self.count = count
        self.rights = rights
        self.plan = Redrive(to, channel, 0)
        self.given = to, channel
        self.total: int | None = None
        self.state = "running"
        self.error = ""
        self.stopping = asyncio.Event()
        self.started_s = time.time()
        self.ended_s = 0.0

    def row(self, viewer: Principal) -> JobRow:
        """Return the row. `viewer` sees only the places that they may view."""
        plan = self.plan
        reasons = sorted(plan.left.items(), key=lambda reason: -reason[1])[:REASONS_MAX]
        return {
            "id": self.number, "kind": "redrive", "topic": self.topic, "state": self.state, "sent": plan.total,
            "left": sum(plan.left.values()), "total": self.total,
            "places": [
                {"topic": place.topic, "channel": place.channel, "count": count}
                for place, count in [*plan.sent.items()][:REASONS_MAX] if viewer.may(Action.SEE, place.topic)
            ],
            "reasons": dict(reasons), "error": self.error, "started_ms": int(self.started_s * 1000), "ended_ms": int(self.ended_s * 1000),
            "by": self.rights.principal.name,
        }  # fmt: skip


SentT = TypeVar("SentT", Message, StoredMessage)


async def _finish_each(messages: Sequence[Message]) -> None:
    for message in messages:
        await message.finish()


class RedriveJobs:
    """The redrives of a gateway.

    `url` is the run directory. With it, the jobs read and publish as clients. `source` checks the
    destinations on behalf of the job's user.
    """

    def __init__(self, url: str, stats: SharedStats, source: Admin, running: Limiter) -> None:
        self._url = url
        self._running = running
        self._source = source
        self._stats = stats
        self._jobs: deque[RedriveJob] = deque(maxlen=KEPT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self.version = 0
        self.changed: Callable[[], None] = lambda: None

    def rows(self, principal: Principal) -> list[JobRow]:
        return [
            job.row(principal)
            for job in reversed(self._jobs)
            if principal.may(Action.SEE, job.topic)
        ]

    def start(
        self,
        topic: str,
        to: str | None,
        channel: str | None,
        count: int | None,
        rights: Rights,
        holder: str,
        offsets: Sequence[int] | None = None,
        rate: float | None = None,
        conditions: LetterConditions | None = None,
    ) -> RedriveJob:
        if any(job.topic == topic and job.state == "running" for job in self._jobs):
            raise ApiError(
                409,
                f"E_IN_USE a redrive of topic {topic} is running; stop it, or wait until it ends",
            )
        self._running.take(holder)
        if len(self._jobs) == KEPT:
            self._jobs.remove(next(job for job in self._jobs if job.state != "running"))
        self._number += 1
        job = RedriveJob(self._number, topic, to, channel, count, rights, offsets, rate, conditions)
        self._jobs.append(job)
        task = asyncio.get_running_loop().create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._running.give_back(holder))
        task.add_done_callback(self._tasks.discard)
        self._note()
        return job

    def stop(self, number: int, principal: Principal) -> RedriveJob:
        for job in self._jobs:
            if job.number == number and principal.may(Action.MANAGE_TOPIC, job.topic):
                job.stopping.set()
                return job
        raise ApiError(404, f"E_NOT_FOUND job {number} does not exist")

    def _note(self) -> None:
        self.version += 1
        self.changed()

    async def _work(self, job: RedriveJob) -> None:
        try:
            await self._redrive(job)
            job.state = "stopped" if job.stopping.is_set() else "done"
        except ZsqError as error:
            job.state, job.error = "failed", f"{error.code} {error.text}"
        except Exception as error:
            log.exception("the redrive of topic %s failed", job.topic)
            job.state, job.error = "failed", f"E_INTERNAL {error!r}"
        finally:
            job.ended_s = time.time()
            self._note()

    async def _redrive(self, job: RedriveJob) -> None:
        url, topic = self._url, job.topic
        async with Reader(topic, url=url, timeout=TIMEOUT_S) as reader:
            ready = READY if job.conditions is None else HELD_MAX
            job.plan = Redrive(*job.given, (await reader.bounds())[1], ready=ready)
            if job.offsets is not None:
                await self._send_chosen(job, job.offsets, reader)
                return
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(url, timeout=TIMEOUT_S))
            label = f"redrive {job.number} (console)"
            taking = Consumer(
                topic,
                CHANNEL,
                url=url,
                start="earliest",
                ready=READY if job.conditions is None else HELD_MAX,
                message_timeout=HOLD_S,
                timeout=TIMEOUT_S,
                label=label,
            )
            consumer = await stack.enter_async_context(taking)
            waiting = await self._waiting(job)
            # With conditions, nobody knows how many fit.
            if job.conditions is None:
                job.total = waiting if job.count is None else min(waiting, job.count)
            self._note()
            try:
                await self._take(job, consumer, producer)
            finally:
                await consumer.flush()

    async def _take(self, job: RedriveJob, consumer: Consumer, producer: Producer) -> None:
        """Send dead letters.

        It ends when the count is reached, no dead letter waits, none arrived within TIMEOUT_S, or
        the job is stopped.
        """
        plan, deadline_s = job.plan, time.monotonic() + TIMEOUT_S
        pace = Pace(job.rate, time.monotonic())
        while (
            not job.stopping.is_set()
            and not plan.at_end
            and (job.count is None or plan.total < job.count)
        ):
            batch = await consumer.receive_batch(timeout=POLL_S)
            if batch is not None:
                messages = batch.messages()
                for at in range(0, len(messages), pace.size):
                    if plan.at_end or plan.total == job.count:
                        break
                    if wait_s := pace.wait_s(time.monotonic()):
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(job.stopping.wait(), wait_s)
                    if job.stopping.is_set():
                        break
                    before = plan.total
                    letters = still_held(messages[at : at + pace.size])
                    await self._send(job, letters, producer, _finish_each)
                    pace.sent(plan.total - before, time.monotonic())
                deadline_s = time.monotonic() + TIMEOUT_S
                continue
            await consumer.flush()
            waiting = await self._waiting(job)
            if not waiting:
                return
            if plan.is_blocked:
                plan.left[plan.behind] = waiting
                return
            if time.monotonic() > deadline_s:
                plan.left[NOT_COME] = waiting
                return

    async def _send_chosen(self, job: RedriveJob, offsets: Sequence[int], reader: Reader) -> None:
        """Send the dead letters with these offsets, one by one, until the job is stopped."""
        job.total = len(offsets)
        self._note()

        async def finish(letters: Sequence[StoredMessage]) -> None:
            await self._source.skip(job.topic, CHANNEL, [letter.offset for letter in letters])

        async with Producer(self._url, timeout=TIMEOUT_S) as producer:
            for offset in offsets:
                if job.stopping.is_set():
                    return
                if not await self._source.skip(job.topic, CHANNEL, [offset], preview=True):
                    job.plan.leave(SETTLED)
                    continue
                try:
                    letter = await reader.message(offset)
                except NotFound as error:
                    job.plan.leave(error.text)
                    continue
                await self._send(job, [letter], producer, finish)

    async def _send(
        self,
        job: RedriveJob,
        messages: Sequence[SentT],
        producer: Producer,
        finish: Callable[[Sequence[SentT]], Awaitable[None]],
    ) -> None:
        """Send these messages. `finish` finishes those that are durable in their target."""
        plan = job.plan
        principal = await self._permitted(job)
        selected = None
        if job.conditions is not None:
            fitting = (one for one in messages if job.conditions.fit(one.headers, one.timestamp_ns))
            selected = frozenset(one.offset for one in fitting)
        chosen = [one for one in messages if selected is None or one.offset in selected]
        for route in plan.unknown(chosen):
            # Any publisher may have written the origin in the dead letter.
            try:
                principal.require(Action.PUBLISH, route.place.topic)
                if route.place.channel:
                    check_address(principal, route.place.topic)
                await self._source.redrive_to(
                    job.topic, *route.place, route.origin, chosen=route.chosen
                )
            except ZsqError as error:
                plan.known(route, error)
            else:
                plan.known(route)
        limit = READY if job.count is None else job.count - plan.total
        for group in plan.groups(messages, limit, selected):
            principal.require(Action.PUBLISH, group.place.topic)
            await producer.publish_many(
                group.place.topic,
                [message.body for message in group.messages],
                keys=[message.key for message in group.messages],
                tags=[message.tag for message in group.messages],
                headers=group.headers,
            )
            await finish(group.messages)
            plan.was_sent(group)
        self._note()

    @staticmethod
    async def _permitted(job: RedriveJob) -> Principal:
        """Return the user of the job, by the rules that apply now.

        Raises `Refused` (E_FORBIDDEN) if they no longer permit the redrive. The job then fails. The
        dead letters that it has received and not sent stay in their topic.
        """
        principal = await job.rights.now()
        for action in actions_of("POST", "/api/redrive"):
            principal.require(action, job.topic)
        return principal

    async def _waiting(self, job: RedriveJob) -> int:
        row = whole_topic(await self._stats.fresh(job.topic), job.topic).channel(CHANNEL)
        assert row is not None
        return job.plan.waiting(row)

    async def close(self) -> None:
        """Stop the jobs after their current batch. Unanswered dead letters stay in their topic."""
        for job in self._jobs:
            job.stopping.set()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)
        for task in self._tasks:
            task.cancel()
