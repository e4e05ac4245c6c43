"""Mirror: copy what a channel gets to a topic of another broker, in order and exactly once.

It reads the source by offset, and takes no leases. So the order is that of the log, and blocks are
not unpacked. Rejected: a consumer of the channel. Redeliveries may overtake each other, so no
single number could say what the target has.

Each transaction of the target carries the offset at which the mirror continues, as its version. The
target accepts it only if its last version is the one at which this mirror began to read
(`Commit.after`). The target is the only place that says how far the mirror is. After a crash
between any two steps, the mirror asks it and reads on there. Of two mirrors of one channel, one
commits, and the other waits.

The channel only follows: it keeps the messages until the target has them, shows the backlog, can be
paused, and takes the dead letters.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from ...transport.block.block import LARGEST, Block, pack
from ...transport.block.block_format import ADDRESSED, STAGED
from ...transport.client.blocking.client import Admin, Consumer, Reader
from ...transport.client.blocking.stage_writer import StageCommitter, StageWriter
from ...transport.client.core.message import Fetched, missing_in
from ...transport.errors import (
    E_BAD_ARGUMENT,
    E_BAD_BLOCK,
    E_FORBIDDEN,
    E_IN_USE,
    E_NOT_FOUND,
    E_SEQUENCE,
    E_TOO_BIG,
    BrokerUnreachable,
    CorruptBlock,
    NotFound,
    Refused,
    UsageError,
    ZsqError,
)
from ...transport.names import base_of, part_name
from ...transport.settings import split_tags
from ...transport.whole_topic import whole_topic
from ...transport.wire.codec import CHANNEL_HEADER, pack_headers, unpack_headers
from ...transport.wire.dead_letter import addressee, addressees
from ...transport.wire.lifetime import with_lifetime
from ...transport.wire.spread import HasParts, KeyParts, parts_of_keys
from ..export import logs_of

READ_BYTES: Final = 4 * 1024 * 1024  # about the size of one transaction
STEP_MAX: Final = 1 << 62  # messages of one transaction, if the target refused none
FOLLOW_S: Final = 0.1  # seconds between reads at the end of the topic
LOOK_S: Final = 1.0  # seconds between looks whether the channel is paused
MOVE_S: Final = 5.0  # seconds between moves of the channel: the audit log has each
PARTS_S: Final = 60.0  # seconds between looks whether the source has more parts
ATTEMPT_S: Final = 10.0  # seconds until a call is given up and tried again
REST_S: Final = 0.5  # seconds of the first rest after an error; each further one is twice as long
REST_MAX_S: Final = 30.0
STANDBY_S: Final = 5.0  # seconds between looks whether the other mirror of the channel goes on
DEAD_S: Final = 30.0  # seconds until a dead letter must be stored
RUN_OFFSETS: Final = 1024  # so many messages without a key go to one part of the target

Say = Callable[[str], None]


class Stop(Protocol):
    """The flag that a signal sets."""

    def is_set(self) -> bool: ...

    def wait(self, timeout_s: float | None = None) -> bool: ...

    def interruptible(self) -> contextlib.AbstractContextManager[None]:
        """Let the signal also raise `KeyboardInterrupt` inside the context."""
        ...


@dataclass(frozen=True)
class MirrorPlan:
    """The source, the target, and how to connect to them.

    `timeout`: the seconds of the first calls to the source and to the target. `idle_s`: end when no
    message came for so long. None means never. `settings`: those of the channel, if it is new.
    """

    url: str
    topic: str
    channel: str
    to_url: str
    to_topic: str
    to_key_file: str | None = None
    timeout: float = 30.0
    idle_s: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class MirrorReport:
    """The result of a run. `lost`: messages that could not be read. `rejected`: dead letters."""

    messages: int = 0
    lost: int = 0
    rejected: int = 0


def app_of(uuid: str, channel: str) -> str:
    """Return the name under which the target remembers how far a mirror is.

    It has the uuid of the source (of each part, in a topic with parts), so a topic that was created
    again is another source.
    """
    return f"zsq-forward {uuid} {channel}"


def mirror(
    plan: MirrorPlan, stopping: Stop, say: Say, advance: Callable[[int], None] = lambda done: None
) -> MirrorReport:
    """Copy until the flag is set, or until no message came for `idle_s`.

    Errors of the first connections are raised. Later ones are told and tried again, unless the
    same call would always fail.
    """
    report = MirrorReport()
    with contextlib.ExitStack() as stack:
        admin = stack.enter_context(Admin(plan.url, timeout=plan.timeout))
        logs: dict[str, LogMirror] = {}

        def find_logs() -> None:
            names = logs_of(plan.topic, plan.url, plan.timeout)
            for name in names:
                if name not in logs:
                    log = LogMirror(plan, name, admin, report, say)
                    logs[name] = stack.enter_context(contextlib.closing(log))
            for name in [name for name in logs if name not in names]:
                say(f"{name}: this part was removed")
                logs.pop(name).close()

        try:
            with stopping.interruptible():
                if not channel_exists(admin, plan.topic, plan.channel):
                    admin.create_channel(plan.topic, plan.channel, **plan.settings)
                find_logs()
                for log in logs.values():
                    log.check_no_circle()
                    log.open()
        except KeyboardInterrupt:
            return report  # nothing was copied
        looked_s = busy_s = time.monotonic()
        while not stopping.is_set():
            moved = sum([_step(log, stopping) for log in [*logs.values()]])
            now_s = time.monotonic()
            if moved:
                busy_s = now_s
                advance(moved)
            elif any(log.rests for log in logs.values()):
                busy_s = now_s  # messages may wait, so the mirror is not idle
                stopping.wait(FOLLOW_S)
            elif plan.idle_s is not None and now_s - busy_s >= plan.idle_s:
                break
            else:
                stopping.wait(FOLLOW_S)
            if now_s - looked_s >= (
                LOOK_S if any(log.is_gone for log in logs.values()) else PARTS_S
            ):
                looked_s = now_s
                with contextlib.suppress(BrokerUnreachable, Refused):
                    find_logs()
    return report


def channel_exists(admin: Admin, topic: str, channel: str) -> bool:
    channels = whole_topic(admin.stats(topic, partial=True), topic).row["channels"]
    return any(row["channel_name"] == channel for row in channels)


def _step(log: LogMirror, stopping: Stop) -> int:
    """Do one transaction. After an error that may pass, the log rests."""
    if stopping.is_set():
        return 0
    try:
        return log.step()
    except NotFound as error:
        if not log.is_part:
            raise
        log.rest(error)
        return 0
    except (BrokerUnreachable, Refused, CorruptBlock) as error:
        if error.code == E_FORBIDDEN:
            raise
        log.rest(error)
        return 0


def uuid_of(topic: str, url: str, key_file: str | None, timeout: float) -> str:
    """Return the uuid of a topic, with or without parts."""
    try:
        with Reader(topic, url=url, key_file=key_file, timeout=timeout) as reader:
            return reader.uuid()
    except HasParts as error:
        return error.spread.uuid


class _SmallerStep(Exception):
    """The target refused one of several messages. The next transactions have fewer."""


class _Superseded(Exception):
    """The target has a version that another mirror of the channel wrote."""


class LogMirror:
    """The mirror of one log: of the source, or of one part of it."""

    def __init__(
        self, plan: MirrorPlan, name: str, admin: Admin, report: MirrorReport, say: Say
    ) -> None:
        self._plan = plan
        self._name = name
        self._admin = admin
        self._report = report
        self._say = say
        self._reader = Reader(name, url=plan.url, timeout=plan.timeout, on_data_loss="ignore")
        self._target = MirrorTarget(plan)
        self._uuid = ""
        self._tags: frozenset[bytes] = frozenset()
        self._offset = -1  # where to read on; -1 before the target was asked
        self._moved_to = -1  # the place of the channel, as far as this mirror moved it
        self._moved_s = 0.0
        self._looked_s = 0.0
        self._is_paused = False
        self._step_max = STEP_MAX
        self._rest_s = REST_S
        self._rests_until_s = 0.0
        self._told = ""
        self.is_gone = False  # the broker does not know it: the part may have been removed
        self._standby_at = -1  # the offset of the other mirror, when it was last looked at

    @property
    def is_part(self) -> bool:
        """True for a part that may be removed while the mirror of the topic goes on."""
        return self._name != self._plan.topic

    @property
    def rests(self) -> bool:
        """True after an error, and while another mirror of the channel works."""
        return self._offset < 0

    def close(self) -> None:
        """Let the channel follow, and close the connections."""
        try:
            if self._offset >= 0 and not self._told:
                with contextlib.suppress(ZsqError):
                    self._follow()
        finally:
            self._target.close()
            self._reader.close()

    def check_no_circle(self) -> None:
        """Raise `UsageError` if the target is this topic, under whatever address."""
        plan = self._plan
        with contextlib.suppress(NotFound, Refused):  # or the target may not be read
            target = uuid_of(plan.to_topic, plan.to_url, plan.to_key_file, plan.timeout)
            source = uuid_of(base_of(plan.topic), plan.url, None, plan.timeout)
            if target in (source, self._reader.uuid()):
                text = f"the target is topic {plan.topic} itself, so the mirror would never end"
                raise UsageError(E_BAD_ARGUMENT, text)

    def open(self) -> None:
        """Ask the target how far it is, and read on there. The channel may be behind."""
        plan = self._plan
        self._uuid = self._reader.uuid()
        row = self._channel_row()
        if row["settings"]["priorities"]:
            text = (
                f"channel {self._name}/{plan.channel} has priorities, and a mirror keeps the order "
                "of the topic; use a channel without them"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        self._tags = frozenset(tag.encode() for tag in split_tags(row["settings"]["tags"] or ""))
        begin = self._first_unfinished(row["next_offset"])
        offset = self._target.open(app_of(self._uuid, plan.channel), begin)
        head = self._reader.bounds()[1]
        if offset > head:
            # Else the next messages would be taken for those that the target has.
            text = (
                f"the target has the messages of {self._name} up to offset {offset}, but the topic "
                f"ends at {head}: it lost messages, or was restored to an earlier state. Forward "
                "from a new channel; with --start earliest, all that the topic has is sent again"
            )
            raise UsageError(E_BAD_ARGUMENT, text)
        self._offset, self._moved_to = offset, row["next_offset"]

    def _channel_row(self) -> Any:
        plan = self._plan
        for topic_row in self._admin.stats(self._name, plan.channel)["topics"]:
            for row in topic_row["channels"]:
                if row["client_count"] and self._offset < 0:
                    text = (
                        f"channel {self._name}/{plan.channel} has consumers, which would take "
                        "messages away from the mirror; give it a channel of its own"
                    )
                    raise Refused(E_IN_USE, text)
                return row
        raise NotFound(E_NOT_FOUND, f"topic {self._name} has no channel {plan.channel!r}")

    def _first_unfinished(self, next_offset: int) -> int:
        """Return the first offset that the channel has not finished.

        Only the first run needs it. Consumers of before may have left messages behind the cursor.
        """
        peek = self._admin.peek(self._name, self._plan.channel, count=1000)
        return min([next_offset, *(message.offset for message in peek.messages)])

    def rest(self, error: ZsqError) -> None:
        """Rest after an error, and then ask the target again how far it is."""
        if error.text != self._told:
            self._say(f"{self._name}: waiting: {error.text}")
            self._told = error.text
        self._offset = -1
        self.is_gone = isinstance(error, NotFound)
        self._rests_until_s = time.monotonic() + self._rest_s
        self._rest_s = min(REST_MAX_S, 2 * self._rest_s)

    def step(self) -> int:
        """Copy the next messages in one transaction. Return how many offsets it has passed."""
        now_s = time.monotonic()
        if now_s < self._rests_until_s:
            return 0
        if self._offset < 0:
            self.open()
            if self._is_standby():
                return 0
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            if now_s - self._moved_s >= MOVE_S:
                self._follow()
            self._is_paused = self._channel_row()["paused"]
        if self._is_paused:
            return 0
        first = self._offset
        fetched = self._reader.read(first, READ_BYTES)
        stop = min(fetched.next_offset, first + self._step_max)
        if stop <= first:
            self._recovered()
            return 0
        if self._reader.uuid() != self._uuid:  # created again: other messages, another app
            self._offset = -1
            return 0
        choices = [
            choice
            for block in fetched.blocks
            if (choice := choose(block, first, stop, self._plan.channel, self._tags)) is not None
        ]
        try:
            self._store(choices, first, stop)
        except _SmallerStep:
            return 0
        except _Superseded:
            self._stand_by()
            return 0
        self._note_missing(fetched, first, stop)
        self._recovered()
        return stop - first

    def _store(self, choices: Sequence[Choice], first: int, stop: int) -> None:
        count = sum(len(choice.indexes) for choice in choices)
        try:
            self._target.store(choices, stop)
        except UsageError as error:
            if error.code not in (E_TOO_BIG, E_BAD_BLOCK) or not count:
                raise
            # The whole stage is refused because of one message. Smaller ones find it.
            if stop - first > 1:
                self._step_max = max(1, min(count, stop - first) // 2)
                raise _SmallerStep from None
            self._reject(first, error)
        else:
            self._report.messages += count
            self._step_max = min(STEP_MAX, 2 * self._step_max)
        self._offset = stop

    def _reject(self, offset: int, error: ZsqError) -> None:
        """Send a message that the target refuses for good to the dead letters of the channel.

        The channel is moved to the message, so that it is the next one that a consumer gets. Only
        the channel can make a dead letter, and it finishes the message when that is durable.
        """
        plan, name = self._plan, self._name
        self._admin.seek(name, plan.channel, offset, forward=True, clamp=True)
        peek = self._admin.peek(name, plan.channel, count=1)
        states = {peeked.state for peeked in peek.messages if peeked.offset == offset}
        if "dying" not in states:
            if not states:
                self._note_absent(offset, error, is_finished=peek.next_offset > offset)
                return
            dead = self._channel_row()["dead_letter_count"]
            with Consumer(name, plan.channel, url=plan.url, ready=1) as consumer:
                message = consumer.receive(ATTEMPT_S)
                consumer.set_ready(0)
                if message is None or message.offset != offset:
                    text = f"message {offset} was not delivered, so it could not be rejected"
                    raise Refused(E_IN_USE, f"{text}: another consumer has it, or it is paused")
                message.reject(f"the target refused it: {error}")
                self._wait_for_dead_letter(dead)
        else:
            self._wait_for_dead_letter(self._channel_row()["dead_letter_count"])
        self._report.rejected += 1
        self._say(f"{name}: message {offset} is now a dead letter: {error.text}")

    def _note_absent(self, offset: int, error: ZsqError, *, is_finished: bool) -> None:
        """Tell of a message that the channel has no more, so that it can make no dead letter.

        It was rejected before the process was killed, or it has expired, or was cancelled.
        """
        text = f"{self._name}: message {offset} was left out: {error.text}"
        if is_finished:
            self._say(f"{text}. The channel has finished it, or made a dead letter before")
            return
        self._report.lost += 1
        self._say(f"{text}. The channel skips it: it has expired, or was cancelled")

    def _wait_for_dead_letter(self, count: int) -> None:
        """Wait until the channel has stored one more dead letter than `count`."""
        until_s = time.monotonic() + DEAD_S
        while self._channel_row()["dead_letter_count"] <= count:
            if time.monotonic() >= until_s:
                text = "the dead letter of a message that the target refuses is not stored yet"
                raise Refused(E_IN_USE, f"{text}; see the health of the channel in zsq stats")
            time.sleep(FOLLOW_S)

    def _note_missing(self, fetched: Fetched, first: int, stop: int) -> None:
        for missing in missing_in(fetched, first or fetched.start, stop):
            self._report.lost += missing.stop - missing.first
            self._say(missing.text(self._name))

    def _recovered(self) -> None:
        self._rest_s = REST_S
        if self._told:
            self._say(f"{self._name}: going on")
            self._told = ""

    def _stand_by(self) -> None:
        text = "another zsq forward writes for this channel; waiting until it stops"
        if self._told != text:
            self._say(f"{self._name}: {text}")
            self._told = text
        self._standby_at = self._offset
        self._offset = -1
        self._rests_until_s = time.monotonic() + STANDBY_S

    def _is_standby(self) -> bool:
        """Return True if the other mirror went on since the last look."""
        if self._standby_at < 0 or self._offset == self._standby_at:
            self._standby_at = -1
            return False
        self._stand_by()
        return True

    def _follow(self) -> None:
        """Move the channel to the place that the target has. It never moves back."""
        if self._offset > self._moved_to:
            self._admin.seek(self._name, self._plan.channel, self._offset, forward=True, clamp=True)
            self._moved_to = self._offset
            self._moved_s = time.monotonic()


class Choice(NamedTuple):
    """Messages of one block, by their indexes, at least one."""

    block: Block
    indexes: Sequence[int]

    def rows(self) -> Block:
        """Return a block with these messages. An address is left out, because it names a channel of
        the source.
        """
        block, indexes = self
        is_addressed = bool(block.header.flags & ADDRESSED)
        if len(indexes) == block.count and not is_addressed:
            flags = block.header.flags & STAGED
            return Block(block.header._replace(flags=flags), block.payload, block.columns)
        keys, tags, headers = (
            None if column is None else [column.value(index) for index in indexes]
            for column in (block.key, block.tag, block.headers)
        )
        if headers is not None and is_addressed:
            headers = [_without_address(packed) for packed in headers]
        times = block.times
        rows = pack(
            [block.body.value(index) or b"" for index in indexes],
            keys=keys,
            tags=tags,
            headers=headers,
            times=None if times is None else [times[index] for index in indexes],
            limits=LARGEST,
        )
        return with_lifetime(rows, headers)


def choose(
    block: Block, first: int, stop: int, channel: str, tags: frozenset[bytes]
) -> Choice | None:
    """Choose the messages of a block that the target gets, or return None. Pure.

    They are between two offsets, have one of the tags (if there are any), and are not addressed to
    another channel.
    """
    low, high = max(0, first - block.first_offset), min(block.count, stop - block.first_offset)
    indexes: Sequence[int] = range(low, high)
    if tags:
        column = block.tag
        indexes = [] if column is None else [i for i in indexes if column.value(i) in tags]
    others = {index for index, name in addressees(block) if name != channel}
    if others:
        indexes = [index for index in indexes if index not in others]
    return Choice(block, indexes) if indexes else None


def _without_address(packed: bytes | None) -> bytes | None:
    if addressee(packed) is None:
        return packed
    headers = unpack_headers(packed)
    headers.pop(CHANNEL_HEADER, None)
    return pack_headers(headers) if headers else None


class MirrorTarget:
    """The topic of the target: one log, or one for each of its open parts.

    Each log has a version of its own. All get the version of each transaction, also those without
    messages of it, so that the lowest one says where to read on.
    """

    def __init__(self, plan: MirrorPlan) -> None:
        self._plan = plan
        self._timeout = plan.timeout  # of the first contact
        self._keys: KeyParts | None = None
        self._logs: dict[int, TargetLog] = {}  # by the number of the part

    def open(self, app: str, begin: int) -> int:
        """Return the offset at which to read on. `begin`: for logs without a version."""
        self.close()
        plan, timeout = self._plan, self._timeout
        try:
            self._keys = None
            self._logs = {0: TargetLog(plan, plan.to_topic, app, timeout)}
            self._logs[0].ask()
        except HasParts as error:
            self.close()
            self._keys = parts_of_keys(error.spread)
            for number in self._keys.open:
                name = part_name(plan.to_topic, number)
                self._logs[number] = TargetLog(plan, name, app, timeout)
                self._logs[number].ask()
        self._timeout = ATTEMPT_S
        versions = [log.version for log in self._logs.values()]
        return min(begin if version < 0 else version for version in versions)

    def store(self, choices: Sequence[Choice], stop: int) -> None:
        """Commit the messages. The mirror continues at `stop`."""
        if self._keys is None:
            if choices:  # without a message, the next transaction passes the offsets, too
                self._logs[0].store([choice.rows() for choice in choices], stop)
            return
        for number, log in self._logs.items():
            if log.version < stop:
                parts = (part_of(choice, number, log.version, self._keys) for choice in choices)
                log.store([part.rows() for part in parts if part is not None], stop)

    def close(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def part_of(choice: Choice, number: int, version: int, keys: KeyParts) -> Choice | None:
    """Choose the messages for one part of the target that it does not have yet. Pure.

    Messages without a key go to the parts in turn. The offset decides, so that a message goes to
    the same part when it is sent again.
    """
    block = choice.block
    first, column = block.first_offset, block.key

    def part(index: int) -> int:
        key = None if column is None else column.value(index)
        if key is not None:
            return keys.of(key)
        return keys.open[(first + index) // RUN_OFFSETS % len(keys.open)]

    indexes = [i for i in choice.indexes if first + i >= version and part(i) == number]
    return Choice(block, indexes) if indexes else None


class TargetLog:
    """One log of the target: its last version, and the transactions that follow it."""

    def __init__(self, plan: MirrorPlan, name: str, app: str, timeout: float) -> None:
        self._place: dict[str, Any] = {"url": plan.to_url, "key_file": plan.to_key_file}
        self._name = name
        self._app = app
        self._committer = StageCommitter(topic=name, timeout=timeout, **self._place)
        self.version = -1

    def ask(self) -> None:
        """Ask for the last version."""
        self.version = self._committer.version_of(self._app)

    def store(self, blocks: Sequence[Block], stop: int) -> None:
        """Commit the blocks with the version `stop`, unless another mirror was faster."""
        app, part = self._app, None
        try:
            with contextlib.ExitStack() as stack:
                if blocks:
                    writer = StageWriter(
                        topic=self._name, app=app, version=stop, timeout=ATTEMPT_S, **self._place
                    )
                    stack.callback(writer.close, 1.0)
                    for block in blocks:
                        writer.push(block)
                    part = writer.seal()
                done = self._committer.commit(app, stop, [part], after=self.version)
        except NotFound as error:  # the stage, or the topic, was removed meanwhile
            raise Refused(E_IN_USE, error.text) from None
        except Refused as error:
            if error.code == E_SEQUENCE:
                raise _Superseded from None
            raise
        if done["repeated"] and done["messages"] != sum(block.count for block in blocks):
            raise _Superseded
        self.version = stop

    def close(self) -> None:
        self._committer.close()
