"""Exactly-once writing: a StageWriter sends blocks to a stage, a StageCommitter commits stages.

    with StageWriter("clicks", app, version, url=url) as writer:      # in each task and each retry
        for block in blocks:
            writer.push(block)
        part = writer.seal()
    StageCommitter("clicks", url=url).commit(app, version, parts)  # in one place; may be repeated

Nothing of a stage is visible before a commit names it. A stage that no commit names is dropped
after some time.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...block.block import Block
from ...block.block_format import STAGED, UNIQUE
from ...errors import E_BAD_ARGUMENT, E_CLOSING, BrokerUnreachable, Refused, UsageError
from ...wire.address import Target
from ...wire.addresses import Url, parse_all
from ...wire.answers import Aborted, Committed
from ...wire.codec import HeaderValue
from ...wire.credentials import KeyFile
from ...wire.protocol import (
    AFTER_ANY,
    STAGE_PARTS_MAX,
    VERSION_ASKED,
    VERSION_ON_DISK,
    Abort,
    Commit,
    StagePart,
    check_stage_topic,
    check_transaction,
)
from ...wire.unique import UniqueKey
from ..core.asking import Question, ask
from ..core.packing import pack_many
from ..core.publish_arguments import Text
from ..core.stage_engine import StageEngine
from ..core.stage_session import WINDOW_BYTES, StageSession
from ..core.stage_table import StageState
from ..link.timeouts import FAR_NS, check_timeout
from .asker import Asker
from .client_base import BlockingClient
from .drive import Drive
from .producer import check_times
from .program_end import name_of

__all__ = ["STAGE_TIMEOUT_S", "DiskCommitter", "StageCommitter", "StagePart", "StageWriter"]

STAGE_TIMEOUT_S: Final = 60.0


class StageWriter(BlockingClient[Drive[StageEngine]]):
    """One stage of the transaction (`app`, `version`): push blocks, then seal.

    A stage writer is thread-safe. After a fork, only the process that made the first push can use
    it. The first push waits for the broker's answer.

    - `kind`: "app" (versions of an app only increase, and the last one is remembered permanently)
      or "job" (remembered for 7 days).
    - `partition`: The number of the writer's partition. It is only shown to people.
    - `timeout`: The seconds without any progress, including reconnects, after which a call raises
      `BrokerUnreachable`, or `Refused` if the broker gave the reason.
    - `window_bytes`: The limit for blocks that are not durable yet, which are kept in memory.
    - `create`: Create the topic if it does not exist when the writer begins. If it is deleted
      later, it is not created again.
    """

    def __init__(
        self,
        topic: str,
        app: str,
        version: int,
        *,
        url: Url = None,
        kind: str = "app",
        partition: int = 0,
        timeout: float | None = STAGE_TIMEOUT_S,
        window_bytes: int = WINDOW_BYTES,
        create: bool = True,
        heartbeat_ms: int | None = None,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        check_times(timeout, heartbeat_ms)
        check_transaction(app, version, kind)
        if window_bytes < 1:
            raise UsageError(E_BAD_ARGUMENT, f"window_bytes must be at least 1, not {window_bytes}")
        self._client_name = name_of(self, topic)
        self._address = parse_all(url, key_file, transport)
        self._target = Target("stage", check_stage_topic(topic), create=create)
        self._transaction = (app, version, kind, partition, window_bytes)
        self._timeout = timeout
        self._heartbeat_ms = heartbeat_ms
        self._sealed = False
        self._closed = False
        self._is_foreign = False  # True in a child of the process that made the first push
        super().__init__()

    @property
    def committed(self) -> bool:
        """True if the broker reported that the transaction is already committed.

        This is known after the first push. Pushes then do nothing.
        """
        return self._made is not None and self._made.engine.session.state is StageState.COMMITTED

    def write(
        self,
        bodies: Sequence[bytes],
        *,
        key: Text = None,
        keys: Sequence[Text] | None = None,
        tag: Text = None,
        tags: Sequence[Text] | None = None,
        headers: Mapping[str, HeaderValue]
        | Sequence[Mapping[str, HeaderValue] | None]
        | None = None,
    ) -> None:
        """Add messages to the stage, in order. The arguments are those of `Producer.publish_many`.

        It waits as `push` does.
        """
        for block in pack_many(bodies, keys, tags, headers, key=key, tag=tag):
            self.push(block)

    def push(self, block: Block, *, has_key: bool = False) -> None:
        """Add a block to the stage and send it, for example one of `Fetched.blocks`.

        With `has_key`, its one message keeps its unique key, which the commit must name. Do not
        change the block's columns afterwards. The call returns at once while the window has room,
        and otherwise waits. Raises `NotFound` if the stage no longer exists.
        """
        drive = self._drive()
        with drive.lock:
            engine = drive.engine
            session = engine.session
            if session.final:
                raise UsageError(
                    E_BAD_ARGUMENT, "this stage is sealed; make a new writer for more blocks"
                )
            length = block.length
            if not session.window.total.blocks or not session.window.has_room(length):
                session.pressed = True
                engine.go(time.monotonic_ns())
                self._wait(
                    drive,
                    lambda: session.ended or (engine.link.up and session.window.has_room(length)),
                )
                session.pressed = False
            if session.error is not None:
                raise session.error
            session.add(block, STAGED | UNIQUE if has_key else STAGED)
            engine.go(time.monotonic_ns())
            drive.settle()

    def seal(self) -> StagePart | None:
        """Wait until all blocks are durable, and return the part to pass to the commit.

        No more blocks can be pushed. Returns None if nothing was pushed, or the transaction is
        already committed.
        """
        if self._made is None and not (self._closed or self._is_foreign):
            self._sealed = True
            return None
        drive = self._drive()
        with drive.lock:
            engine = drive.engine
            session = engine.session
            session.finish()
            if not session.window.total.blocks:
                return None
            engine.go(time.monotonic_ns())
            self._wait(drive, lambda: session.ended)
            drive.settle()
        if session.error is not None:
            raise session.error
        return session.part() if session.state is StageState.SEALED else None

    def close(self, timeout: float | None = None) -> None:
        """Close the writer.

        If the stage is not sealed, it is abandoned. The writer tells the broker if it can reach it.
        """
        if self._closed:
            return
        self._closed = True
        drive = self._made
        if drive is None:
            return
        with drive.lock:
            if not drive.engine.session.ended:
                drive.engine.abandon(time.monotonic_ns())
        drive.leave(drive.engine.farewell_ms)

    # Internal

    _keeper = "zsq stage"

    def _is_hasty(self) -> bool:
        # A broker that is starting again must not fail a batch of an outbox.
        return False

    def _drive(self) -> Drive[StageEngine]:
        if self._closed:
            raise Refused(E_CLOSING, "this writer is closed; make a new one")
        if self._sealed:
            raise UsageError(
                E_BAD_ARGUMENT, "this stage is sealed; make a new writer for more blocks"
            )
        if self._made is None and self._is_foreign:
            raise UsageError(
                E_BAD_ARGUMENT,
                "this stage belongs to the process that started it; make a writer in each process",
            )
        return super()._drive()

    def _forked(self) -> None:
        self._is_foreign = self._is_foreign or self._last_drive is not None
        super()._forked()

    def _engine(self) -> StageEngine:
        # The stage's id is created here, not in the constructor. So a writer that a fork copies
        # before its first push gets another id in each process.
        session = StageSession(uuid.uuid4().bytes, *self._transaction)
        return StageEngine(self._address, self._target, session, self._heartbeat_ms)

    def _wait(self, drive: Drive[StageEngine], done: Callable[[], bool]) -> None:
        """Wait until `done()` is true.

        Raises `BrokerUnreachable` or `Refused` after the time-out without progress.
        """
        engine = drive.engine
        began_ns = time.monotonic_ns()
        seconds = check_timeout(self._timeout)
        timeout_ns = FAR_NS if seconds is None else int(seconds * 1e9)
        while not drive.wait(done, deadline := max(began_ns, engine.progress_ns) + timeout_ns):
            if drive.stopped:
                raise Refused(
                    E_CLOSING, "this writer was closed while a call waited; make a new one"
                )
            if max(began_ns, engine.progress_ns) + timeout_ns <= deadline:
                raise engine.too_late(self._timeout)


def _commit(
    app: str,
    version: int,
    parts: Sequence[StagePart | None],
    kind: str,
    *,
    dry_run: bool = False,
    after: int | None = None,
    unique: UniqueKey | None = None,
) -> Question:
    """Return the request. Raises `UsageError` if an argument is wrong."""
    check_transaction(app, version, kind)
    rows: tuple[Any, ...] = tuple(tuple(part) for part in parts if part is not None)
    if len(rows) > STAGE_PARTS_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"{len(rows)} parts are over the limit of {STAGE_PARTS_MAX}; write with fewer "
                "partitions"
            ),
        )
    last = AFTER_ANY if after is None else after
    name, while_working = (b"", False) if unique is None else unique

    def message(number: int) -> Commit:
        return Commit(
            number, app, version, kind, rows, dry_run, last,
            unique_key=name, while_working=while_working,
        )  # fmt: skip

    return Question(message)


class StageCommitter(Asker):
    """Commit and abort transactions of a topic.

    You can repeat both calls. After a lost connection, they are sent again automatically.
    """

    def __init__(
        self,
        topic: str,
        *,
        url: Url = None,
        timeout: float | None = STAGE_TIMEOUT_S,
        create: bool = True,
        key_file: KeyFile = None,
        transport: str | None = None,
    ) -> None:
        super().__init__(
            url,
            Target("stage", check_stage_topic(topic), create=create),
            timeout,
            key_file=key_file,
            transport=transport,
        )

    def commit(
        self,
        app: str,
        version: int,
        parts: Sequence[StagePart | None],
        *,
        kind: str = "app",
        after: int | None = None,
    ) -> Committed:
        """Add all `parts` to the topic, in this order, or none of them.

        None in `parts` (an empty partition) is left out. Returns {"first_offset", "messages",
        "repeated"}, see `Committed`. The commit is durable when this returns. With `after`, it
        raises `Refused` (E_SEQUENCE) if the app's last version is another one (-1: none). Raises
        `NotFound` if a part no longer exists (aborted, or unused for too long), and `UsageError` if
        a part does not match its description, or if there are too many.
        """
        answer: Committed = self._carry_out(ask(_commit(app, version, parts, kind, after=after)))
        return answer

    def check(
        self, app: str, version: int, parts: Sequence[StagePart | None], *, kind: str = "app"
    ) -> None:
        """Check that `commit` with the same arguments would be carried out now, or was already.

        A transaction of several topics asks all of them before it commits in the first one. Raises
        the errors of `commit`.
        """
        self._carry_out(ask(_commit(app, version, parts, kind, dry_run=True)))

    def version_of(self, app: str) -> int:
        """Return the last version of the app that the topic has committed, or -1.

        If the broker ships its topics to a bucket, this waits until the bucket has the commit.
        """
        return self.abort(app, VERSION_ASKED)["version"]

    def abort(self, app: str, version: int, stages: Sequence[bytes] = ()) -> Aborted:
        """Drop all stages of the transaction, and also `stages`.

        With an empty `app`, this drops only `stages`. After the commit, a call changes nothing.
        Returns {"dropped", "committed", "version"}, see `Aborted`.
        """
        if app:
            check_transaction(app, version, "app")
        answer: Aborted = self._carry_out(
            ask(Question(lambda number: Abort(number, app, version, tuple(stages))))
        )
        return answer


class DiskCommitter(StageCommitter):
    """A committer of the broker's own programs, whose commits are done when they are on disk."""

    def commit_here(
        self,
        app: str,
        version: int,
        parts: Sequence[StagePart | None],
        *,
        unique: UniqueKey | None = None,
    ) -> None:
        """Commit as `commit` does, but do not wait for the bucket, which takes up to
        `--bucket-lag`.

        When this returns, the topic has this version or a later one on its disk. `unique`: the key
        that the one message of the parts holds. If an earlier message holds it, the transaction is
        committed without the parts.
        """
        request = self._send(_commit(app, version, parts, "app", unique=unique))
        if self.version_here(app) >= version:
            self._give_up(request)
            return
        try:
            self._reply(request)
        except BrokerUnreachable:  # it waited for the bucket before it was carried out
            if self.version_here(app) < version:
                raise

    def is_held(self, app: str, version: int, unique: UniqueKey) -> bool:
        """Return True if an earlier message holds the key, and the version is not committed."""
        question = _commit(app, version, [], "app", dry_run=True, unique=unique)
        answer: Committed = self._carry_out(ask(question))
        return answer.get("held", False)

    def version_here(self, app: str) -> int:
        """Return the last version of the app that the topic has on its disk, or -1.

        A takeover by a standby may lose the commit, until the bucket has it.
        """
        return self.abort(app, VERSION_ON_DISK)["version"]
