"""The words of staging: how PUSH producers (Spark executors) put blocks into a topic exactly once. Pure.

A *stage* is what one writer sends, named by 16 random bytes. Its blocks go one way over PUSH, numbered from 0; a second link
(Open kind "stage") says what has arrived, seals it, and commits or aborts. A *transaction* is (`app`, `version`): versions
of an app ascend, and one is committed at most once. Nothing of a stage is visible before the commit that names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from crc32c import crc32c

from .errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError
from .names import check_name, is_ephemeral
from .protocol_client import Wire

# fmt: off
__all__ = [
    "STAGE_BYTES", "STAGE_PARTS_MAX", "TRANSACTION_APP_BYTES_MAX", "TRANSACTION_KINDS", "Abort", "Commit", "Missing",
    "OpenStage", "Push", "Seal", "StagePart", "Staged", "check_stage_topic", "check_transaction", "checksum_after",
]
# fmt: on

STAGE_BYTES: Final = 16  # of a stage's name: a uuid
STAGE_PARTS_MAX: Final = 10_000  # of one commit
TRANSACTION_APP_BYTES_MAX: Final = 256  # of the app's name as UTF-8
TRANSACTION_KINDS: Final = ("app", "job")  # remembered for good; for 7 days

StagePart = tuple[bytes, int, int, int, int]  # stage, blocks, messages, bytes (as blocks), checksum


def checksum_after(checksum: int, columns_crc: int) -> int:
    """A stage's checksum with one more block (0 at first): CRC-32C over the blocks' own checksums, so what counts is content and order."""
    return int(crc32c(columns_crc.to_bytes(4, "little"), checksum))


def check_stage_topic(name: str) -> str:
    """`name` itself if transactions can go there; asked before anything is sent, for a topic that is not there would be made.

    `UsageError` E_BAD_NAME; E_UNSUPPORTED for an ephemeral one.
    """
    if is_ephemeral(check_name(name)):
        text = f"a topic in memory takes no transactions, and {name!r} is one: they are kept until they are durable; use one on disk"
        raise UsageError(E_UNSUPPORTED, text)
    return name


def check_transaction(app: str, version: int, kind: str) -> None:
    """`UsageError` E_BAD_ARGUMENT for what names no transaction."""
    try:
        size = len(app.encode()) if isinstance(app, str) else 0
    except UnicodeEncodeError:
        size = 0  # lone surrogates, as of file names, cannot be sent
    if not 1 <= size <= TRANSACTION_APP_BYTES_MAX:
        raise UsageError(E_BAD_ARGUMENT, f"a transaction's app is text of 1 to {TRANSACTION_APP_BYTES_MAX} bytes, not {app!r:.60}")
    if not isinstance(version, int) or not 0 <= version < 1 << 63:
        raise UsageError(E_BAD_ARGUMENT, f"a transaction's version is a number from 0 to 2^63 - 1, not {version!r:.60}")
    if kind not in TRANSACTION_KINDS:
        raise UsageError(E_BAD_ARGUMENT, f"a transaction is of kind {' or '.join(TRANSACTION_KINDS)}, not {kind!r:.60}")


@dataclass(frozen=True, slots=True)
class OpenStage(Wire):
    """A writer begins, or goes on after the link was lost.

    Done.data: {"expected": next block number to push (what is below it is durable or has arrived), "sealed": blocks that are
    durable, "credit_bytes": unarrived bytes it may have out, "committed": True where this transaction is committed already
    (then nothing is staged)}.
    """

    op: ClassVar[int] = 44
    request: int
    stage: bytes
    app: str
    version: int
    kind: str
    partition: int


@dataclass(frozen=True, slots=True)
class Push(Wire):
    """Over PUSH, one block follows; its header's sequence is its number in the stage. Nothing answers, and what does not fit is dropped:
    the writer learns from Staged and Missing what has arrived. One frame of routing goes before: see OpenStage."""

    op: ClassVar[int] = 45
    stage: bytes


@dataclass(frozen=True, slots=True)
class Staged(Wire):
    """Blocks below `received` have arrived (not yet durable). Sent when that grew, to where the stage was opened."""

    op: ClassVar[int] = 46
    stage: bytes
    received: int


@dataclass(frozen=True, slots=True)
class Seal(Wire):
    """Make durable what was pushed: `blocks` of `size_bytes` with this `checksum` since the stage began. `final`: there will be no more.

    Answered when all of it has arrived and is on disk: Done {"messages": count, "superseded": True where the
    transaction was committed without this stage}; Missing where something has not come within a bounded wait.
    """

    op: ClassVar[int] = 47
    request: int
    stage: bytes
    blocks: int
    size_bytes: int
    checksum: int
    final: bool


@dataclass(frozen=True, slots=True)
class Missing(Wire):
    """Push again from block `expected` on. `request` is a Seal's, or 0 where a gap was seen."""

    op: ClassVar[int] = 48
    request: int
    stage: bytes
    expected: int


@dataclass(frozen=True, slots=True)
class Commit(Wire):
    """All `parts` (finally sealed stages) become part of the topic at once, in this order, or nothing does; other stages of the
    transaction are dropped. Done.data: {"first_offset", "messages", "repeated": True where it was committed before}.

    E_NOT_FOUND: a part is not there (any more); E_BAD_ARGUMENT: it is not sealed or not as described.
    """

    op: ClassVar[int] = 49
    request: int
    app: str
    version: int
    kind: str
    parts: tuple[StagePart, ...]


@dataclass(frozen=True, slots=True)
class Abort(Wire):
    """Drop `stages`, and with `app` all of that transaction. After the commit it changes nothing. Done.data: {"dropped", "committed"}."""

    op: ClassVar[int] = 38
    request: int
    app: str
    version: int
    stages: tuple[bytes, ...]
