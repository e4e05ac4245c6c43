"""Publishing of rescue files: each message once, also if the command is killed and run again.

    FILE               not published
    FILE.publishing    where FILE is published to, and which blocks its producers have sent again
    FILE.published     its messages that are certain are published

Messages go to a stage, and one transaction commits them. The topic remembers a transaction of this
kind permanently, so a repetition adds nothing. Messages that were delayed and are not due cannot be
staged. They are published with a producer id and sequences that follow from the file, and the topic
answers a repeated sequence as it did the first time. It forgets a producer that was not used for a
week.

A producer that had no answer from the old broker sends the same block again to the new one, with
the same sequence. So a block is left out if the topic already expects a higher sequence of its
producer. The decision is written to `FILE.publishing` before anything is sent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Final, NamedTuple

from ..storage.bucket.shipping.rescue_file import (
    RescuedBlock,
    RescuedMessage,
    RescueHead,
    check_rescue,
    rescued_blocks,
)
from ..storage.bucket.shipping.set_aside import PUBLISHED
from ..storage.errors import Damaged
from ..storage.files import Files
from ..transport.block.block import Block
from ..transport.client.blocking.drive import Drive
from ..transport.client.blocking.stage_writer import StageCommitter, StageWriter
from ..transport.client.core.lane import Lane
from ..transport.client.core.packing import pack_many
from ..transport.client.core.producer_engine import ProducerEngine
from ..transport.client.core.producer_session import (
    UNKNOWN_OFFSET,
    PendingBlock,
    ProducerEvent,
    ProducerSession,
)
from ..transport.client.link.engine import Steps
from ..transport.client.link.link import Link
from ..transport.client.link.reaction import Reaction
from ..transport.client.link.timeouts import deadline_of
from ..transport.errors import (
    E_BAD_ARGUMENT,
    E_NOT_FOUND,
    E_SEQUENCE,
    Refused,
    UsageError,
    ZsqError,
)
from ..transport.units import NS_PER_MS
from ..transport.wire.address import Target
from ..transport.wire.addresses import parse_all
from ..transport.wire.protocol import DELAY_MS_MAX, Welcome
from ..transport.wire.rows import heartbeat

PUBLISHING: Final = ".publishing"
STATE_BYTES_MAX: Final = 256 * 1024 * 1024
BATCH_BYTES: Final = 1024 * 1024
BATCH_COUNT: Final = 1_000
CERTAIN: Final = 0
UNCERTAIN: Final = 1

Advance = Callable[[int], object]


@dataclass(slots=True)
class PublishedFile:
    """Result for one file: messages in the topic, and messages that are delayed there.

    `known` were sent again by their producers before, and `left` are not certain.
    """

    path: str
    topic: str
    messages: int = 0
    delayed: int = 0
    known: int = 0
    left: int = 0


class PublishPlan(NamedTuple):
    """The way to publish. `to` "" means the topic that the messages had."""

    url: str
    to: str = ""
    timeout: float = 30.0
    with_uncertain: bool = False
    advance: Advance = lambda count: None


class _State(NamedTuple):
    """The content of `FILE.publishing`. `known` has the numbers of the blocks to leave out."""

    topic: str
    known: frozenset[int]


def plain_path(path: str) -> str:
    """Return the name that a file had before it was published."""
    return path.removesuffix(PUBLISHED)


def publish(files: Files, path: str, plan: PublishPlan) -> PublishedFile:
    """Publish the messages of a file that are certain, or all of them.

    Raises `ZsqError`, `StorageError` or `OSError`. It may be repeated then.
    """
    rescue = check_rescue(files, path)
    state = _decide(files, path, rescue.head, plan)
    done = PublishedFile(path, state.topic)
    is_published = path.endswith(PUBLISHED)
    for number, (facts, messages) in enumerate(rescued_blocks(files, path)):
        if number in state.known:
            done.known += len(messages)
        elif facts.why and not plan.with_uncertain:
            done.left += len(messages)
    parts = [] if is_published else [CERTAIN]
    parts += [UNCERTAIN] if plan.with_uncertain else []
    for part in parts:
        now = _chosen(files, path, state, part, is_delayed=False)
        blocks = _packed(entry for block in now for entry in block.messages)
        done.messages += _stage(rescue.head, part, state.topic, blocks, plan)
        later = _chosen(files, path, state, part, is_delayed=True)
        rows = ((block.facts.due_ns, entry) for block in later for entry in _packed(block.messages))
        done.delayed += _publish_delayed(rescue.head, part, state.topic, rows, plan)
    if not is_published:
        done.path = path + PUBLISHED
        files.rename(path, done.path)
        files.sync_folder(path.rpartition("/")[0] or ".")
    return done


def _chosen(
    files: Files, path: str, state: _State, part: int, *, is_delayed: bool
) -> Iterator[RescuedBlock]:
    """Yield the blocks of one part that the topic does not have."""
    for number, block in enumerate(rescued_blocks(files, path)):
        is_part = bool(block.facts.why) == (part == UNCERTAIN)
        if is_part and number not in state.known and bool(block.facts.due_ns) == is_delayed:
            yield block


def _identity(head: RescueHead) -> str:
    return f"{head.topic_uuid}-{head.copy}-{head.takeover}"


# What the producers have sent again


def _decide(files: Files, path: str, head: RescueHead, plan: PublishPlan) -> _State:
    """Return the state, and write it if there is none yet."""
    name = plain_path(path) + PUBLISHING
    topic = plan.to or head.topic
    if files.exists(name):
        state = _read_state(files, name)
        if plan.to and plan.to != state.topic:
            raise UsageError(
                E_BAD_ARGUMENT,
                f"{path} was begun to be published to topic {state.topic}, not to {plan.to}; "
                f"finish that first with --to {state.topic}",
            )
        return state
    expected = _expected(plan, head.topic, _producers(files, path))
    known = frozenset(
        number
        for number, (facts, _) in enumerate(rescued_blocks(files, path))
        if facts.producer and facts.sequence < expected.get(facts.producer, 0)
    )
    row = {"zsq": "publishing", "version": 1, "topic": topic, "known": sorted(known)}
    files.replace_file(name, json.dumps(row).encode() + b"\n")
    return _State(topic, known)


def _read_state(files: Files, name: str) -> _State:
    try:
        row = json.loads(files.read_file(name, STATE_BYTES_MAX))
        return _State(str(row["topic"]), frozenset(map(int, row["known"])))
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged(f"{name} is damaged: {error}") from error


def _producers(files: Files, path: str) -> set[int]:
    return {facts.producer for facts, _ in rescued_blocks(files, path) if facts.producer}


class _FixedSession(ProducerSession):
    """A session whose producer id does not change. One block is on its way at a time.

    Its block fails if the topic forgot the blocks before it, because another id could store a block
    twice.
    """

    expected = -1

    def on_welcome(self, message: Welcome) -> Reaction:
        self.expected = message.expected
        if self.queue and message.expected < self.queue[0].sequence:
            self._step(ProducerEvent.FORGOTTEN)
            self._renumber()
            return Reaction.RESTART
        self._step(ProducerEvent.WELCOME)
        self.credit_bytes = message.credit_bytes
        self.heartbeat_ms = heartbeat(message.heartbeat_ms)
        return Reaction.UP

    def _renumber(self) -> None:
        while self.queue:
            pending = self.queue.popleft()
            self.queue_bytes -= pending.length
            text = "the topic has lost blocks that it had confirmed; run the command again"
            pending.settle(UNKNOWN_OFFSET, Refused(E_SEQUENCE, text))
        self._cut = -1


class _FixedLane(Lane):
    """A lane with a fixed producer id. Without `create`, it does not create the topic."""

    def __init__(
        self, engine: ProducerEngine, topic: str, producer_id: int, *, create: bool
    ) -> None:
        super().__init__(engine, topic)
        self.session: _FixedSession = _FixedSession(iter((producer_id,)))
        if not create:
            engine.links.remove(self.link)
            self.link = Link(engine, engine.rotation, Target("topic", topic, create=False), self)
            self.link.heartbeat_ms = self._heartbeat_ms()
            self.link.busy = self.link.needed = lambda: self.asked > 0
            engine.add(self.link)

    def on_refused(self, error: ZsqError) -> None:
        self.session.fail(error)
        self.refused = error
        self._note_refused()


def _expected(plan: PublishPlan, topic: str, producers: Collection[int]) -> dict[int, int]:
    """Return the sequence that the topic expects next from each producer."""
    sequences: dict[int, int] = {}
    for producer_id in sorted(producers):
        engine = _engine(plan)
        lane = engine.lanes[topic] = _FixedLane(engine, topic, producer_id, create=False)
        drive = Drive(engine)
        try:
            sequences[producer_id] = drive.carry_out(_ask(engine, lane, plan.timeout))
        except ZsqError as error:
            if error.code != E_NOT_FOUND:
                raise
            return {}  # there is no such topic
        finally:
            drive.leave(linger_ms=200)
    return sequences


def _engine(plan: PublishPlan) -> ProducerEngine:
    return ProducerEngine(parse_all(plan.url, None, None), 0, BATCH_BYTES, BATCH_COUNT, None)


def _ask(engine: ProducerEngine, lane: _FixedLane, timeout: float) -> Steps[int]:
    lane.asked += 1
    lane.link.start(time.monotonic_ns())
    session = lane.session
    met = yield (lambda: session.expected >= 0 or lane.refused is not None, deadline_of(timeout))
    lane.asked -= 1
    if lane.refused is not None:
        raise lane.refused
    if not met:
        raise engine.too_late(timeout, False)
    return session.expected


# Publishing


def _packed(messages: Iterable[RescuedMessage]) -> Iterator[Block]:
    """Pack messages into blocks, in order."""
    batch: list[RescuedMessage] = []
    size = 0
    for message in messages:
        batch.append(message)
        size += len(message.body)
        if size >= BATCH_BYTES or len(batch) >= BATCH_COUNT:
            yield from _blocks(batch)
            batch, size = [], 0
    if batch:
        yield from _blocks(batch)


def _blocks(batch: Sequence[RescuedMessage]) -> Iterator[Block]:
    keys = [entry.key for entry in batch]
    tags = [entry.tag for entry in batch]
    headers = [entry.headers for entry in batch]
    return pack_many(
        [entry.body for entry in batch],
        keys if any(entry is not None for entry in keys) else None,
        tags if any(entry is not None for entry in tags) else None,
        headers if any(headers) else None,
    )


def _stage(
    head: RescueHead, part: int, topic: str, blocks: Iterable[Block], plan: PublishPlan
) -> int:
    """Commit messages in one transaction. Return how many it has."""
    app = f"zsq-rescue-{_identity(head)}-{part}"
    with StageWriter(topic, app, 0, url=plan.url, timeout=plan.timeout) as writer:
        count = 0
        for block in blocks:
            writer.push(block)
            if writer.committed:
                break
            count += block.count
            plan.advance(block.count)
        if writer.committed:
            sealed = None
        elif not count:
            return 0
        else:
            sealed = writer.seal()
        with StageCommitter(topic, url=plan.url, timeout=plan.timeout, create=False) as committer:
            return int(committer.commit(app, 0, [sealed])["messages"])


def _publish_delayed(
    head: RescueHead,
    part: int,
    topic: str,
    rows: Iterable[tuple[int, Block]],
    plan: PublishPlan,
) -> int:
    """Publish blocks with their due times, one after the other."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        return 0  # nothing connects to a broker
    name = f"zsq-rescue-{_identity(head)}-{part}".encode()
    producer_id = int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1 or 1
    engine = _engine(plan)
    lane = engine.lanes[topic] = _FixedLane(engine, topic, producer_id, create=True)
    drive = Drive(engine)
    count = 0
    try:
        for sequence, (due_ns, block) in enumerate(chain((first,), rows)):
            delay_ms = min(max(1, (due_ns - time.time_ns()) // NS_PER_MS), DELAY_MS_MAX)
            pending = PendingBlock(block, delay_ms)
            pending.sequence = sequence
            drive.carry_out(_send(engine, lane, pending, plan.timeout))
            count += block.count
            plan.advance(block.count)
    finally:
        drive.leave(linger_ms=200)
    return count


def _send(
    engine: ProducerEngine, lane: _FixedLane, pending: PendingBlock, timeout: float
) -> Steps[None]:
    lane.session.next_sequence = pending.sequence + 1
    lane.push(pending, time.monotonic_ns())
    yield from engine.answered((pending,), timeout)
    if pending.error is not None:
        raise pending.error
