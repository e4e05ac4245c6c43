"""Runs: what a thread does for one schedule, from the question what the topic has to the publishes.

Each due time is a transaction of the topic: the schedule's uuid is the application, and the due
time is the version. Theory of operation:

| step | a kill here | and then |
|---|---|---|
| 1 ask the topic for the last due time that it has | nothing has changed | the next process asks |
| 2 plan: which due times are published now | nothing has changed | the next process asks |
| 3 push the message to a stage, and seal it | the stage has no effect, and expires | due times are planned again |
| 4 commit the stage | the topic has the message, or not | the topic says which |
| 5 go on with the next due time | the topic has the message | the topic says so |

The topic carries out each version once, and never one before its last version. It remembers the
last version permanently, in its log, with the message. So nothing else has to be stored, a due time
is published at most once, and two processes that do this at the same time do no harm. After a
takeover, the log in the bucket says what was published.

Rejected: a delayed message for the next due time. The delayed store has no transactions, so the
message would have to be stored again after a crash, although it may be there already. And what is
in the delayed store would have to be found and cancelled when a schedule is removed or paused.

Rejected: the last due time in the registry. It would be written before or after the message, so a
crash between the two would lose a message or publish it twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from ...transport.block.block import Block
from ...transport.client.blocking.producer import Producer
from ...transport.client.blocking.stage_writer import DiskCommitter, StageWriter
from ...transport.client.core.packing import pack_many
from ...transport.errors import E_EXISTS, Refused, ZsqError
from ...transport.wire.codec import UNIQUE_HEADER, UNIQUE_KEY_HEADER, HeaderValue
from ...transport.wire.protocol import RunSchedule
from ...transport.wire.unique import UniqueKey
from ..settings.schedule_settings import DUE_HEADER, NAME_HEADER, NEVER, Schedule, from_row
from .book import Outcome, Run
from .plan import plan

# A call to a topic that does not answer ends after this time. It is tried again later.
CALL_S: Final = 5.0


class TopicTransactions:
    """The transactions of the topics of the broker at `url`. All methods raise `ZsqError`."""

    def __init__(self, url: str) -> None:
        self._url = url

    def last(self, topic: str, app: str) -> int:
        """Return the last version of the app that the topic has on its disk, or -1."""
        with self._committer(topic) as committer:
            return committer.version_here(app)

    def is_held(self, topic: str, app: str, version: int, key: UniqueKey) -> bool:
        """Return True if an earlier message holds the key. Then the version is committed empty."""
        with self._committer(topic) as committer:
            if not committer.is_held(app, version, key):
                return False
            committer.commit_here(app, version, [])
        return True

    def commit(
        self, topic: str, app: str, version: int, block: Block, key: UniqueKey | None = None
    ) -> bool:
        """Commit the block. Return False if the topic had this version or a later one before.

        If a message came in between that holds the key, the topic commits the version without the
        block.
        """
        with StageWriter(
            topic, app, version, url=self._url, timeout=CALL_S, create=False
        ) as writer:
            writer.push(block, has_key=key is not None)
            part = writer.seal()
        if part is None:
            return False
        with self._committer(topic) as committer:
            # What the bucket does not have at a takeover, the new primary publishes again.
            committer.commit_here(app, version, [part], unique=key)
        return True

    def _committer(self, topic: str) -> DiskCommitter:
        return DiskCommitter(topic, url=self._url, timeout=CALL_S, create=False)


def carry_out(run: Run, transactions: TopicTransactions, now_s: Callable[[], float]) -> Outcome:
    """Publish what is due now. Errors of the topic are in the outcome."""
    app, last, published, left_out, held = run.schedule.app, run.last, 0, 0, 0
    key = run.schedule.unique_key(run.name)
    handled, trouble = max(run.handled, run.schedule.since), ""
    try:
        if last is None:
            last = transactions.last(run.topic, app)
        handled = max(handled, last)
        decision = plan(run.cron, run.schedule.missed, handled, int(now_s()))
        for due in decision.publish:
            if run.is_cancelled:
                break
            if key is None:
                published += transactions.commit(run.topic, app, due, message(run, due))
            elif transactions.is_held(run.topic, app, due, key):
                held += 1
            else:
                published += transactions.commit(run.topic, app, due, message(run, due), key)
            last = handled = due
            left_out = (
                decision.left_out
            )  # those that are left out are before all that are published
        else:
            left_out, handled = decision.left_out, decision.handled
    except ZsqError as error:
        last, trouble = None, str(error)
    next_due = run.cron.first_after(handled)
    return Outcome(last, handled, next_due, published, left_out + held, trouble, held)


def publish_once(url: str, order: RunSchedule, now_s: Callable[[], float]) -> None:
    """Publish the message of a schedule now. This is no due time, so the schedule does not change.

    Raises `ZsqError`.
    """
    schedule = from_row(order.row)
    with Producer(url, timeout=CALL_S) as producer:
        receipt = producer.publish(
            order.topic,
            schedule.body,
            key=schedule.key,
            tag=schedule.tag,
            headers=_headers(order.name, schedule, int(now_s())),
        )
        if receipt.duplicate:
            text = (
                f"the message at offset {receipt.offset} holds the key of schedule {order.name!r}"
            )
            raise Refused(E_EXISTS, f"{text} ({schedule.unique}), so nothing was published")


def message(run: Run, due: int) -> Block:
    """Return the message of a due time."""
    schedule = run.schedule
    headers = _headers(run.name, schedule, due)
    [block] = pack_many([schedule.body], None, None, [headers], key=schedule.key, tag=schedule.tag)
    return block


def _headers(name: str, schedule: Schedule, due: int) -> dict[str, HeaderValue]:
    when = datetime.fromtimestamp(due, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    own = {NAME_HEADER: name, DUE_HEADER: when}
    if schedule.unique != NEVER:
        own |= {UNIQUE_KEY_HEADER: name, UNIQUE_HEADER: schedule.unique}
    return {**schedule.headers, **own}
