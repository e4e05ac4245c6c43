"""What takes longer than a request: redrives, as tasks with progress. Bounded: so many at a time, one a topic of dead letters.

They live in the gateway's memory. If that dies in between, letters that were published and not finished yet go back once more, as with the
command line; none is lost.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final

from ....transport.aio import Batch, Consumer, Producer, Reader
from ....transport.errors import E_LIMIT, NotFound, Refused, ZsqError
from ....transport.redrive import CHANNEL, NOT_COME, POLL_S, READY, Redrive
from ..errors import ApiError
from ..rights import Rights
from ..sharing import SharedStats

log = logging.getLogger("zsq")

RUNNING_MAX: Final = 4
KEPT: Final = 20
TIMEOUT_S: Final = 20.0
REASONS_MAX: Final = 20  # that are told


class Job:
    """`state`: running, done, stopped, failed."""

    def __init__(self, number: int, topic: str, to: str | None, channel: str | None, count: int | None, rights: Rights) -> None:
        self.number = number
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

    def row(self) -> dict[str, Any]:
        plan = self.plan
        reasons = sorted(plan.left.items(), key=lambda one: -one[1])[:REASONS_MAX]
        return {
            "id": self.number, "kind": "redrive", "topic": self.topic, "state": self.state, "sent": plan.total,
            "left": sum(plan.left.values()), "total": self.total,
            "places": [
                {"topic": place.topic, "channel": place.channel, "count": count}
                for place, count in [*plan.sent.items()][:REASONS_MAX] if self.rights.may_view(place.topic)
            ],
            "reasons": dict(reasons), "error": self.error, "started_ms": int(self.started_s * 1000), "ended_ms": int(self.ended_s * 1000),
            "by": self.rights.name,
        }  # fmt: skip


class Jobs:
    """`url`: of the run directory, to read and publish as a client."""

    def __init__(self, url: str, stats: SharedStats) -> None:
        self._url = url
        self._stats = stats
        self._jobs: deque[Job] = deque(maxlen=KEPT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self.version = 0
        self.changed: Callable[[], None] = lambda: None

    def rows(self, rights: Rights) -> list[dict[str, Any]]:
        return [job.row() for job in reversed(self._jobs) if rights.may_view(job.topic)]

    def start(self, topic: str, to: str | None, channel: str | None, count: int | None, rights: Rights) -> Job:
        running = [job for job in self._jobs if job.state == "running"]
        if any(job.topic == topic for job in running):
            raise ApiError(409, f"E_IN_USE a redrive of {topic} is at work; stop it, or wait for its end")
        if len(running) >= RUNNING_MAX:
            raise Refused(E_LIMIT, f"{RUNNING_MAX} redrives are at work; wait for the end of one")
        if len(self._jobs) == KEPT:
            self._jobs.remove(next(job for job in self._jobs if job.state != "running"))
        self._number += 1
        job = Job(self._number, topic, to, channel, count, rights)
        self._jobs.append(job)
        task = asyncio.get_running_loop().create_task(self._work(job))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._note()
        return job

    def stop(self, number: int, rights: Rights) -> Job:
        for job in self._jobs:
            if job.number == number and rights.may_admin(job.topic):
                job.stopping.set()
                return job
        raise ApiError(404, f"E_NOT_FOUND there is no job {number}")

    def _note(self) -> None:
        self.version += 1
        self.changed()

    async def _work(self, job: Job) -> None:
        try:
            await self._redrive(job)
            job.state = "stopped" if job.stopping.is_set() else "done"
        except ZsqError as error:
            job.state, job.error = "failed", f"{error.code} {error.text}"
        except Exception as error:
            log.exception("a redrive of %s failed", job.topic)
            job.state, job.error = "failed", f"E_INTERNAL {error!r}"
        finally:
            job.ended_s = time.time()
            self._note()

    async def _redrive(self, job: Job) -> None:
        url, topic = self._url, job.topic
        async with Reader(url, topic, timeout=TIMEOUT_S) as reader:
            job.plan = Redrive(*job.given, (await reader.head())[1])
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(Producer(url, timeout=TIMEOUT_S))
            settings = {"ready": READY, "timeout": TIMEOUT_S, "label": f"redrive {job.number} (console)"}
            consumer = await stack.enter_async_context(Consumer(url, topic, CHANNEL, start="earliest", **settings))  # type: ignore[arg-type]
            waiting = await self._waiting(job)
            job.total = waiting if job.count is None else min(waiting, job.count)
            self._note()
            try:
                await self._take(job, consumer, producer)
            finally:
                await consumer.flush()

    async def _take(self, job: Job, consumer: Consumer, producer: Producer) -> None:
        """Until so many are sent, nothing more waits, nothing more came within the time-out, or somebody stops it."""
        plan, deadline_s = job.plan, time.monotonic() + TIMEOUT_S
        while not job.stopping.is_set() and not plan.at_end and (job.count is None or plan.total < job.count):
            batch = await consumer.receive_batch(timeout=POLL_S)
            if batch is not None:
                deadline_s = time.monotonic() + TIMEOUT_S
                await self._send(job, batch, producer)
                continue
            await consumer.flush()
            waiting = await self._waiting(job)
            if not waiting:
                return
            if time.monotonic() > deadline_s:
                plan.left[NOT_COME] = waiting
                return

    async def _send(self, job: Job, batch: Batch, producer: Producer) -> None:
        plan, messages = job.plan, batch.messages()
        for place in plan.unknown(messages):
            if not job.rights.may_publish(place.topic):  # the letter says where it died, and anybody may have written that
                plan.refuse(place, f"for topic {place.topic!r}: publishing there is not permitted to {job.rights.name or 'you'}")
                continue
            try:
                plan.known(place, await self._stats.fresh(place.topic))
            except NotFound as error:
                plan.known(place, error)
        for group in plan.groups(messages, READY if job.count is None else job.count - plan.total):
            await producer.publish_many(
                group.place.topic,
                [message.body for message in group.messages],
                keys=[message.key for message in group.messages],
                tags=[message.tag for message in group.messages],
                headers=group.headers,
            )
            for message in group.messages:
                await message.finish()
            plan.was_sent(group)
        self._note()

    async def _waiting(self, job: Job) -> int:
        rows = (await self._stats.fresh(job.topic))["topics"][0]["channels"]
        return job.plan.waiting(next(row for row in rows if row["channel_name"] == CHANNEL))

    async def close(self) -> None:
        """Those at work end with their batch; what is not answered waits in its topic."""
        for job in self._jobs:
            job.stopping.set()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=5)
        for task in self._tasks:
            task.cancel()
