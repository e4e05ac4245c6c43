"""What is remembered of transactions and of their stages: rows of the state store. Pure.

A transaction is (`app`, `version`): the versions of an app ascend, and each is committed at most once. So one row an app is enough:
what was committed last. What stands in a group's mark (log) goes into the row when the state is committed; the mark is the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

JOB: Final = "job"  # a kind whose app is the uuid of one job: nobody asks for it again after the retries
JOB_KEPT_NS: Final = 7 * 86_400 * 1_000_000_000
TRANSACTIONS_MAX: Final = 100_000  # rows of about 100 bytes, all of them in memory: jobs make one each, queries one in all


class Transaction(NamedTuple):
    """`kind` is "app" (remembered for good) or "job"."""

    app: str
    version: int
    kind: str


class TransactionRow(NamedTuple):
    """The last committed version of an app. Without messages (an empty commit) `first_offset` is where they would be."""

    version: int
    kind: str
    first_offset: int
    messages: int
    time_ns: int


class StagedFile(NamedTuple):
    """A file of a stage: a chunk whose base is not known yet. `data_end`: where its blocks end; `seed`: of its checksums."""

    number: int
    seed: int
    blocks: int
    messages: int
    data_end: int


class StageRow(NamedTuple):
    """A stage as of its last seal; all of it is on disk. `bytes`: of its blocks; `final`: nothing comes any more."""

    app: str
    version: int
    kind: str
    partition: int
    blocks: int
    messages: int
    bytes: int
    checksum: int
    final: bool
    files: tuple[StagedFile, ...]
    used_ns: int

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.app, self.version, self.kind)


def later_of(old: TransactionRow | None, new: TransactionRow) -> TransactionRow:
    """The row that counts: of the higher version. Marks are replayed in any state of the row, so this is idempotent."""
    return new if old is None or new.version > old.version else old


def superseded(stages: Mapping[bytes, StageRow], app: str, version: int) -> list[bytes]:
    """Stages that can never be committed any more once this version of the app is: its own and older ones."""
    return [stage for stage, row in stages.items() if row.app == app and row.version <= version]


def forgettable(rows: Mapping[str, TransactionRow], now_ns: int) -> list[str]:
    """Apps whose row may go: jobs after 7 days, and the oldest jobs where there would be no room for one more.

    If TRANSACTIONS_MAX are left even so, a new app is to be refused.
    """
    jobs = sorted((row.time_ns, app) for app, row in rows.items() if row.kind == JOB)
    old = sum(time_ns < now_ns - JOB_KEPT_NS for time_ns, _ in jobs)
    too_many = len(rows) + 1 - TRANSACTIONS_MAX
    return [app for _, app in jobs[: max(old, too_many, 0)]]
