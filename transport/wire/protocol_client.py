"""The words between clients and the broker, and the limits both keep. Pure.

The words of delayed publish: producer to topic, topic to storage. Pure.

The words of staging: how PUSH producers (Spark executors) put blocks into a topic exactly once. Pure.

A *stage* is what one writer sends, named by 16 random bytes. Its blocks go one way over PUSH, numbered from 0; a second link
(Open kind "stage") says what has arrived, seals it, and commits or aborts. A *transaction* is (`app`, `version`): versions
of an app ascend, and one is committed at most once. Nothing of a stage is visible before the commit that names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from crc32c import crc32c

from ..errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError
from ..names import check_name, is_ephemeral

__all__ = [
    "BACKOFF",
    "DEAD",
    "DEFAULT_URL",
    "DELAY_MS_MAX",
    "ERROR_TEXT_MAX",
    "EXPIRED",
    "FRAMES_MAX",
    "FRAME_BYTES_MAX",
    "HEARTBEAT_MS",
    "HEARTBEAT_MS_MAX",
    "HEARTBEAT_MS_MIN",
    "LOCAL_HEARTBEAT_MS",
    "MESSAGE_TIMEOUT_MS",
    "MESSAGE_TIMEOUT_MS_MAX",
    "MESSAGE_TIMEOUT_MS_MIN",
    "OPTIONS_BYTES_MAX",
    "OPTIONS_NESTED_MAX",
    "PRODUCER_WINDOW_BYTES",
    "PROTOCOL_VERSION",
    "RANGES_MAX",
    "READY_MAX",
    "REQUEUE_DELAY_MS_MAX",
    "RUN_BYTES_MAX",
    "SAMPLE_RATE_MAX",
    "STAGE_BYTES",
    "STAGE_PARTS_MAX",
    "TRANSACTION_APP_BYTES_MAX",
    "TRANSACTION_KINDS",
    "WINDOW_BLOCKS_MAX",
    "Abort",
    "Answer",
    "AppendDelayed",
    "Beat",
    "Blocks",
    "Bye",
    "Commit",
    "Delayed",
    "Deliver",
    "Done",
    "Failed",
    "Fetch",
    "Fin",
    "Hello",
    "Kept",
    "Lookup",
    "Manage",
    "Measure",
    "Missing",
    "OffsetAt",
    "Open",
    "OpenStage",
    "Pub",
    "PubDelayed",
    "Push",
    "Range",
    "Ready",
    "Req",
    "Run",
    "Seal",
    "StagePart",
    "Staged",
    "Stats",
    "Stored",
    "Sub",
    "Subscribed",
    "Touch",
    "Unstored",
    "Welcome",
    "Wire",
    "check_stage_topic",
    "check_transaction",
    "checksum_after",
]


# fmt: off
# fmt: on

PROTOCOL_VERSION: Final = 1

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # MAXMSGSIZE of bound sockets: a frame over our limits still gets its E_TOO_BIG
OPTIONS_BYTES_MAX: Final = 64 * 1024  # of a control frame with options (Open, Lookup, Manage) or names (Stats): more is E_TOO_BIG
OPTIONS_NESTED_MAX: Final = 1_000  # lists and maps in such a frame
FRAMES_MAX: Final = 1024  # of one message
HEARTBEAT_MS: Final = 30_000
HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 60_000
LOCAL_HEARTBEAT_MS: Final = 5_000  # a client on ipc: a dead one is noticed in 10 s, one whose C code holds the interpreter for 9 s lives
MESSAGE_TIMEOUT_MS: Final = 60_000
MESSAGE_TIMEOUT_MS_MIN: Final = 1_000
MESSAGE_TIMEOUT_MS_MAX: Final = 900_000
REQUEUE_DELAY_MS_MAX: Final = 3_600_000
BACKOFF: Final = -1  # a requeue's delay: the channel's own
DEAD: Final = -2  # ... none: to the dead letters
EXPIRED: Final = -3  # ... none, and it counts as a time-out: of who keeps a deadline for each message of a delivery
ERROR_TEXT_MAX: Final = 512
WINDOW_BLOCKS_MAX: Final = 4096  # unanswered blocks of one link; sockets' high-water marks lie above it
READY_MAX: Final = 100_000
SAMPLE_RATE_MAX: Final = 99  # percent; all is 0, as in NSQ
RANGES_MAX: Final = 10_000  # of one answer
RUN_BYTES_MAX: Final = 256 * 1024  # blocks that travel together, unless one alone is larger
PRODUCER_WINDOW_BYTES: Final = 16 * 1024 * 1024
DEFAULT_URL: Final = "tcp://127.0.0.1:4153"

Run = tuple[int, int, int]  # first offset, count, attempts
Range = tuple[int, int]  # first offset, count


@dataclass(frozen=True, slots=True)
class Wire:
    """Base of all messages. `request` 0 means: no answer wanted, or not an answer."""

    op: ClassVar[int] = 0


# Anybody to anybody


@dataclass(frozen=True, slots=True)
class Beat(Wire):
    """I am here. Sent when nothing else was sent for one heartbeat interval; answered with a Beat by brokers to clients."""

    op: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Done(Wire):
    """Request carried out; `data` depends on the request."""

    op: ClassVar[int] = 2
    request: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Wire):
    """Request refused; nothing was changed unless the text says so."""

    op: ClassVar[int] = 3
    request: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Bye(Wire):
    """The sender ends. From a broker: open a new link after a lookup. From a consumer: what it holds is requeued at once."""

    op: ClassVar[int] = 4


# Client to gateway (first message of a link over tcp)


@dataclass(frozen=True, slots=True)
class Open(Wire):
    """Make this link talk to: "supervisor", "topic" (to publish), "reader" (offset reads), "channel", "stage" (to write exactly once).

    Topics and channels are made on first use if `create`; `settings` as in Lookup. Answered by Done or Failed; Done.data has {"uuid": str,
    "node": int} and `settings` as in Lookup, for stages also {"push_port": int, "route": bytes}; nothing for "supervisor".
    """

    op: ClassVar[int] = 10
    request: int
    kind: str
    topic: str
    channel: str
    create: bool
    settings: dict[str, Any] = field(default_factory=dict)


# Client to supervisor


@dataclass(frozen=True, slots=True)
class Lookup(Wire):
    """Where is it? Done.data: {"topic", "reader", "stage", "push": endpoints, "channel": endpoint or "", "uuid": str, "node": int}.

    `settings` of the channel (names in docs/channels.md): a channel that is made takes them; of one that is there, `tags` and `ordered`
    must be the same (E_BAD_ARGUMENT), since they say what its consumers get, and the others are passed over. To who gave some, Done.data
    tells those of the channel as they hold ("settings"). `by`: as with Manage.
    """

    op: ClassVar[int] = 11
    request: int
    topic: str
    channel: str
    create: bool
    settings: dict[str, Any] = field(default_factory=dict)
    by: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manage(Wire):
    """`action`: create, delete, pause, unpause, empty, configure; on the topic, or on the channel if one is named. `options` by action.
    list, of nothing: Done.data has `topics`, a map from names to the names of their channels.
    overview, of nothing: Done.data has rows of topics and channels, those that changed after version `since`; see docs/console.md.

    On topics also: chunks (Done.data: their statistics), delayed (`do`: list, count, cancel), close and open (`to`: publishers, consumers).
    On channels also: seek (to `offset`, or to `time_ns`), peek (Done.data: what waits next, by offset, and what is held).

    `by`, for the audit log: `user`, `from` (an address) and `via` (which gateway). Set by gateways in place of what came from outside.
    """

    op: ClassVar[int] = 12
    request: int
    action: str
    topic: str
    channel: str
    options: dict[str, Any]
    by: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stats(Wire):
    """Done.data: the statistics (see docs), of everything or of one topic or channel, freshly asked from the actors."""

    op: ClassVar[int] = 13
    request: int
    topic: str
    channel: str


# Producer and topic


@dataclass(frozen=True, slots=True)
class Hello(Wire):
    """A producer begins, or begins again on a new socket. Answered by Welcome."""

    op: ClassVar[int] = 20
    version: int
    producer_id: int
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class Welcome(Wire):
    """`expected`: the producer's next sequence. `credit_bytes`: how many bytes of unanswered blocks it may have out."""

    op: ClassVar[int] = 21
    incarnation: int
    expected: int
    credit_bytes: int
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class Pub(Wire):
    """One block (two frames follow); its header carries producer id and sequence. Answered by Stored or Unstored."""

    op: ClassVar[int] = 22


@dataclass(frozen=True, slots=True)
class Stored(Wire):
    """These blocks are as durable as the topic promises: (sequence, first offset or -1 where it is no longer remembered)."""

    op: ClassVar[int] = 23
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Unstored(Wire):
    """Block `sequence` was not taken. `expected` is the sequence that would be, -1 where that is not known. E_HELLO: say Hello first."""

    op: ClassVar[int] = 24
    sequence: int
    expected: int
    code: str
    text: str


# Consumer and channel


@dataclass(frozen=True, slots=True)
class Sub(Wire):
    """A consumer begins with `ready` messages of credit; `message_timeout_ms` 0 is the default. Answered by Subscribed or Failed.

    `sample_rate` 1 to 99: this consumer takes that percentage of what comes its way, the rest is finished and counted; 0: all.
    """

    op: ClassVar[int] = 30
    request: int
    version: int
    ready: int
    message_timeout_ms: int
    heartbeat_ms: int
    label: str
    sample_rate: int = 0


@dataclass(frozen=True, slots=True)
class Subscribed(Wire):
    op: ClassVar[int] = 31
    request: int
    incarnation: int
    message_timeout_ms: int
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class Deliver(Wire):
    """A delivery (one block follows): its lease token, the runs in the block's order, and how long the lease lasts."""

    op: ClassVar[int] = 32
    token: int
    runs: tuple[Run, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Ready(Wire):
    """Credit: how many messages this consumer may hold at a time (NSQ's RDY)."""

    op: ClassVar[int] = 33
    ready: int


@dataclass(frozen=True, slots=True)
class Fin(Wire):
    """Finished: those `ranges` of the delivery, all of it if empty. With a request number, answered by Answer after the commit."""

    op: ClassVar[int] = 34
    request: int
    token: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Req(Wire):
    """Again: those `ranges` (all if empty) after `delay_ms` (0: at once; at most an hour, clamped; BACKOFF: as the channel's settings say).

    DEAD: never again, to the dead letters now; EXPIRED: at once, as if the lease of those had ended. `error`: why, in at most
    ERROR_TEXT_MAX characters; a dead letter tells it.
    """

    op: ClassVar[int] = 35
    request: int
    token: int
    ranges: tuple[Range, ...]
    delay_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Touch(Wire):
    """More time for the delivery: its timeout from now, at most the maximum since it was sent."""

    op: ClassVar[int] = 36
    request: int
    token: int


@dataclass(frozen=True, slots=True)
class Answer(Wire):
    """To Fin, Req, Touch: the ranges that were not under this lease any more and stayed as they were.

    To an answer without a request number it is sent only if there are such. The range (-1, 0) stands for all of a
    delivery that is not known (any more).
    """

    op: ClassVar[int] = 37
    request: int
    token: int
    refused: tuple[Range, ...]


# Offset readers and storage


@dataclass(frozen=True, slots=True)
class Fetch(Wire):
    """Blocks from the one that holds `offset` on, about `bytes_max` of them (at least one, if there is one). Answered by Blocks."""

    op: ClassVar[int] = 40
    request: int
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Blocks(Wire):
    """Blocks follow, consecutive. `start`: oldest offset kept; `head`: the durable end (next offset to come).

    `next_offset`: where reading goes on. It is above the last block where what lies between is lost (damage).
    """

    op: ClassVar[int] = 41
    request: int
    start: int
    head: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class OffsetAt(Wire):
    """To storage's reader. Done.data {"offset": the first one stored at `time_ns` (since 1970) or later, the durable end if there is
    none; "start", "head": as in Blocks}. With `newest` (1 to 10,000) in place of a time: where that many messages lie before the end."""

    op: ClassVar[int] = 42
    request: int
    time_ns: int
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Measure(Wire):
    """To storage's reader: how many bytes lie between two offsets? Done.data {"bytes": about, by the index; "offset": the largest at most
    `end` that has no more than about `bytes_max` between `start` and it, but some; "start", "head"}. `end` -1: the durable end."""

    op: ClassVar[int] = 43
    request: int
    start: int
    end: int
    bytes_max: int


DELAY_MS_MAX: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class PubDelayed(Wire):
    """Producer to topic: one block (two frames follow), to be in the topic `delay_ms` after this arrives, never earlier.

    Its header carries producer id and sequence, from the same row of numbers as Pub's. Answered by Delayed or Unstored.
    """

    op: ClassVar[int] = 25
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Delayed(Wire):
    """Block `sequence` is durable and waits: due time (wall clock) and serial of its first message, -1 where they are no longer remembered.

    The key of message i is due time and serial + i, 8 bytes each, big-endian, in hex: 32 digits.
    """

    op: ClassVar[int] = 26
    sequence: int
    due_ns: int
    serial: int


@dataclass(frozen=True, slots=True)
class AppendDelayed(Wire):
    """Topic to storage: blocks follow, as many as `delays_ms`. Answered by Kept once they are durable, or Failed: then none is kept.

    It has a place among the Appends, and their `epoch`. A failure concerns nothing but these blocks: the topic sends nothing more of
    the same producers before the answer.
    """

    op: ClassVar[int] = 53
    request: int
    epoch: int
    delays_ms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Kept(Wire):
    """Storage to topic: durable, each block with (due time, serial of its first message)."""

    op: ClassVar[int] = 54
    request: int
    keys: tuple[tuple[int, int], ...]


# fmt: off
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
