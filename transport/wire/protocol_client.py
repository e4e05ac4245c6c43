"""Protocol messages between clients and the broker, and the limits that both sides keep.

Delayed publish has messages from producer to topic and from topic to storage.

Staging lets PUSH producers (Spark executors) put blocks into a topic exactly once. A *stage* is
what one writer sends, named by 16 random bytes. Its blocks go one way over PUSH, numbered from 0. A
second link (Open kind "stage") reports what has arrived, seals the stage, and commits or aborts it.
A *transaction* is (`app`, `version`): versions of an app ascend, and each is committed at most
once. Nothing of a stage is visible before the commit that names it.
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


PROTOCOL_VERSION: Final = 1

# MAXMSGSIZE of bound sockets: a frame over the limits below still gets its E_TOO_BIG.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# Of a control frame with options (Open, Lookup, Manage) or names (Stats): more is E_TOO_BIG.
OPTIONS_BYTES_MAX: Final = 64 * 1024
OPTIONS_NESTED_MAX: Final = 1_000  # lists and maps in such a frame
FRAMES_MAX: Final = 1024  # of one message
HEARTBEAT_MS: Final = 30_000
HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 60_000
# For clients on ipc: a dead one is noticed in 10 s; one whose C code blocks Python for 9 s is kept.
LOCAL_HEARTBEAT_MS: Final = 5_000
MESSAGE_TIMEOUT_MS: Final = 60_000
MESSAGE_TIMEOUT_MS_MIN: Final = 1_000
MESSAGE_TIMEOUT_MS_MAX: Final = 900_000
REQUEUE_DELAY_MS_MAX: Final = 3_600_000
BACKOFF: Final = -1  # a requeue's delay: the channel's backoff
DEAD: Final = -2  # ... no delay: to the dead letters
# ... no delay, and it counts as a time-out: for a consumer that keeps a deadline for each message
# of a delivery.
EXPIRED: Final = -3
ERROR_TEXT_MAX: Final = 512
WINDOW_BLOCKS_MAX: Final = (
    4096  # unanswered blocks of one link; sockets' high-water marks lie above it
)
READY_MAX: Final = 100_000
SAMPLE_RATE_MAX: Final = 99  # percent; 0 means all messages, as in NSQ
RANGES_MAX: Final = 10_000  # of one answer
RUN_BYTES_MAX: Final = 256 * 1024  # of blocks that travel together, unless one alone is larger
PRODUCER_WINDOW_BYTES: Final = 16 * 1024 * 1024
DEFAULT_URL: Final = "tcp://127.0.0.1:4153"

Run = tuple[int, int, int]  # first offset, count, attempts
Range = tuple[int, int]  # first offset, count


@dataclass(frozen=True, slots=True)
class Wire:
    """Base of all protocol messages.

    `request` 0 means that no reply is wanted, or that the message is not a reply.
    """

    op: ClassVar[int] = 0


# Between any processes


@dataclass(frozen=True, slots=True)
class Beat(Wire):
    """A sign of life, sent when nothing else was sent for one heartbeat interval.

    Brokers answer each Beat of a client with a Beat.
    """

    op: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Done(Wire):
    """The reply to a request that was carried out. `data` depends on the request."""

    op: ClassVar[int] = 2
    request: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed(Wire):
    """The reply to a request that was refused. Nothing was changed unless the text says so."""

    op: ClassVar[int] = 3
    request: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Bye(Wire):
    """The sender ends.

    If a broker sends it, the client looks up the target again and opens a new link. If a consumer
    sends it, the channel at once requeues the messages that the consumer holds.
    """

    op: ClassVar[int] = 4


# Client to gateway (first message of a link over tcp)


@dataclass(frozen=True, slots=True)
class Open(Wire):
    """Connect this link to a target: "supervisor", "topic" (to publish), "reader" (offset reads),
    "channel", "stage" (to write exactly once).

    With `create`, topics and channels are created on first use. `settings` is as in Lookup.
    Answered by Done or Failed. Done.data has {"uuid": str, "node": int}, and `settings` as in
    Lookup. For stages it also has {"push_port": int, "route": bytes}. For "supervisor" it has
    neither. A broker without access control adds {"run": str, "run_id": str}: the path of its run
    directory, and what the file `run_id` in it contains. A client that finds this file on its own
    machine may go there in place of the gateway.
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
    """Ask for the endpoints of a topic. Done.data: {"topic", "reader", "stage", "push": endpoints,
    "channel": endpoint or "", "uuid": str, "node": int}.

    `settings` are settings of the channel (names in docs/channels.md). A new channel takes them. An
    existing channel must have the same `tags` and `ordered` (else E_BAD_ARGUMENT), since they
    decide what its consumers get. The other settings are ignored then. If the request has settings,
    Done.data contains those of the channel that are in effect ("settings"). `by`: as in Manage.
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
    """Manage a topic, or a channel if one is named. `action`: create, delete, pause, unpause,
    empty, configure. `options` depend on the action.

    Only on topics: chunks (Done.data: their statistics), delayed (`do`: list, count, cancel), close
    and open (`to`: publishers, consumers). Only on channels: seek (to `offset`, or to `time_ns`),
    peek (Done.data: what waits next, by offset, and what is held). Without a topic: list (Done.data
    has `topics`, a map from names to the names of their channels), and overview (Done.data has rows
    of topics and channels, those that changed after version `since`; see docs/console.md).

    `by`, for the audit log: `user`, `from` (an address) and `via` (the gateway). Gateways set it
    and replace what came from outside.
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
    """Ask for statistics of everything, or of one topic or channel.

    Done.data: the statistics (see docs), freshly collected from the actors.
    """

    op: ClassVar[int] = 13
    request: int
    topic: str
    channel: str


# Producer and topic


@dataclass(frozen=True, slots=True)
class Hello(Wire):
    """The first message of a producer on a link, also when it begins again on a new socket.

    Answered by Welcome.
    """

    op: ClassVar[int] = 20
    version: int
    producer_id: int
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class Welcome(Wire):
    """The reply to Hello.

    `expected`: the producer's next sequence. `credit_bytes`: how many bytes of unanswered blocks it
    may have out.
    """

    op: ClassVar[int] = 21
    incarnation: int
    expected: int
    credit_bytes: int
    heartbeat_ms: int


@dataclass(frozen=True, slots=True)
class Pub(Wire):
    """Publish one block (two frames follow).

    Its header carries producer id and sequence. Answered by Stored or Unstored.
    """

    op: ClassVar[int] = 22


@dataclass(frozen=True, slots=True)
class Stored(Wire):
    """These blocks are as durable as the topic promises: (sequence, first offset).

    The offset is -1 if it is no longer remembered.
    """

    op: ClassVar[int] = 23
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Unstored(Wire):
    """Block `sequence` was refused.

    `expected`: the sequence that the topic would take, or -1 if it is not known. E_HELLO: send
    Hello first.
    """

    op: ClassVar[int] = 24
    sequence: int
    expected: int
    code: str
    text: str


# Consumer and channel


@dataclass(frozen=True, slots=True)
class Sub(Wire):
    """The first message of a consumer, with `ready` messages of credit. `message_timeout_ms` 0 is
    the default. Answered by Subscribed or Failed.

    `sample_rate` 1 to 99: this consumer takes that percentage of the messages selected for it, and
    the others are finished and counted. 0: all.
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
    """A delivery (one block follows): its lease token, its runs in the block's order, and the
    duration of the lease.
    """

    op: ClassVar[int] = 32
    token: int
    runs: tuple[Run, ...]
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Ready(Wire):
    """The consumer's credit: how many messages it may hold at a time (NSQ's RDY)."""

    op: ClassVar[int] = 33
    ready: int


@dataclass(frozen=True, slots=True)
class Fin(Wire):
    """Finish these `ranges` of the delivery, or all of it if empty.

    With a request number, it is answered by Answer after the commit.
    """

    op: ClassVar[int] = 34
    request: int
    token: int
    ranges: tuple[Range, ...]


@dataclass(frozen=True, slots=True)
class Req(Wire):
    """Requeue these `ranges` of the delivery (all if empty) after `delay_ms` (0: at once; at most
    an hour, clamped; BACKOFF: by the channel's settings).

    DEAD: make them dead letters now and do not deliver them again. EXPIRED: at once, as if the
    lease of these messages had ended. `error`: the reason, at most ERROR_TEXT_MAX characters, which
    a dead letter contains.
    """

    op: ClassVar[int] = 35
    request: int
    token: int
    ranges: tuple[Range, ...]
    delay_ms: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Touch(Wire):
    """Restart the timeout of the delivery from now, up to the maximum since it was sent."""

    op: ClassVar[int] = 36
    request: int
    token: int


@dataclass(frozen=True, slots=True)
class Answer(Wire):
    """The reply to Fin, Req and Touch: the ranges that were no longer under this lease and stayed
    as they were.

    For a message without a request number it is sent only if there are such ranges. The range (-1,
    0) stands for all of a delivery that the channel does not know, or no longer knows.
    """

    op: ClassVar[int] = 37
    request: int
    token: int
    refused: tuple[Range, ...]


# Offset readers and storage


@dataclass(frozen=True, slots=True)
class Fetch(Wire):
    """Read blocks from the one that contains `offset` on, about `bytes_max` bytes (at least one
    block if any exists).

    Answered by Blocks.
    """

    op: ClassVar[int] = 40
    request: int
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Blocks(Wire):
    """The reply to Fetch. Consecutive blocks follow. `start`: oldest offset kept. `head`: the
    durable end (next offset to come).

    `next_offset`: where to continue reading. It is above the end of the last block if messages in
    between are lost (damage).
    """

    op: ClassVar[int] = 41
    request: int
    start: int
    head: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class OffsetAt(Wire):
    """Ask storage for an offset by time. Done.data {"offset": the first one stored at `time_ns`
    (since 1970) or later, or the durable end if there is none; "start", "head": as in Blocks}. With
    `newest` (1 to 10,000) instead of a time, "offset" is where the newest messages of that number
    begin.
    """

    op: ClassVar[int] = 42
    request: int
    time_ns: int
    newest: int = 0


@dataclass(frozen=True, slots=True)
class Measure(Wire):
    """Ask storage for the number of bytes between two offsets (`end` -1: the durable end).

    Done.data {"bytes": approximate, by the index; "offset": see below; "start", "head"}. From
    `start` to "offset" there are at most about `bytes_max` bytes. "offset" is the largest such
    offset up to `end`, but always above `start` if there is any message.
    """

    op: ClassVar[int] = 43
    request: int
    start: int
    end: int
    bytes_max: int


DELAY_MS_MAX: Final = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class PubDelayed(Wire):
    """Publish one block (two frames follow) that comes into the topic `delay_ms` after the arrival
    of this message, never earlier.

    Its header carries producer id and sequence, from the same series of sequences as Pub's.
    Answered by Delayed or Unstored.
    """

    op: ClassVar[int] = 25
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Delayed(Wire):
    """Block `sequence` is durable and waits: due time (wall clock) and serial of its first message,
    -1 if they are no longer remembered.

    The key of message i is due time and serial + i, 8 bytes each, big-endian, in hex: 32 digits.
    """

    op: ClassVar[int] = 26
    sequence: int
    due_ns: int
    serial: int


STAGE_BYTES: Final = 16  # of a stage's name: a uuid
STAGE_PARTS_MAX: Final = 10_000  # of one commit
TRANSACTION_APP_BYTES_MAX: Final = 256  # of the app's name as UTF-8
TRANSACTION_KINDS: Final = ("app", "job")  # remembered permanently; for 7 days

StagePart = tuple[bytes, int, int, int, int]  # stage, blocks, messages, bytes (as blocks), checksum


def checksum_after(checksum: int, columns_crc: int) -> int:
    """Return a stage's checksum after one more block (0 at first).

    It is CRC-32C over the blocks' own checksums, so it depends on their content and order only.
    """
    return int(crc32c(columns_crc.to_bytes(4, "little"), checksum))


def check_stage_topic(name: str) -> str:
    """Return `name` if a transaction can write to this topic.

    Called before anything is sent, because an absent topic would be created. Raises `UsageError`
    for a bad name (E_BAD_NAME) or an ephemeral topic (E_UNSUPPORTED).
    """
    if is_ephemeral(check_name(name)):
        text = (
            f"topic {name!r} exists only in memory and cannot take transactions, which must be "
            "durable; use one on disk"
        )
        raise UsageError(E_UNSUPPORTED, text)
    return name


def check_transaction(app: str, version: int, kind: str) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if this is no valid transaction."""
    try:
        size = len(app.encode()) if isinstance(app, str) else 0
    except UnicodeEncodeError:
        size = 0  # lone surrogates, as in file names, cannot be sent
    if not 1 <= size <= TRANSACTION_APP_BYTES_MAX:
        raise UsageError(
            E_BAD_ARGUMENT,
            (
                f"a transaction's app must be text of 1 to {TRANSACTION_APP_BYTES_MAX} bytes, not "
                f"{app!r:.60}"
            ),
        )
    if not isinstance(version, int) or not 0 <= version < 1 << 63:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"a transaction's version must be a number from 0 to 2^63 - 1, not {version!r:.60}",
        )
    if kind not in TRANSACTION_KINDS:
        raise UsageError(
            E_BAD_ARGUMENT,
            f"a transaction's kind must be {' or '.join(TRANSACTION_KINDS)}, not {kind!r:.60}",
        )


@dataclass(frozen=True, slots=True)
class OpenStage(Wire):
    """The first message of a writer on a link, also when it continues after a lost link.

    Done.data: {"expected": next block number to push (blocks below it are durable or have arrived),
    "sealed": blocks that are durable, "credit_bytes": how many bytes may be sent and not arrived,
    "committed": True if this transaction is committed already (then nothing is staged)}.
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
    """Send one block over PUSH; the block follows. The sequence in its header is its number in the
    stage. It has no reply, and a block that does not fit is dropped: the writer learns from Staged
    and Missing what has arrived. One frame of routing precedes it, see OpenStage.
    """

    op: ClassVar[int] = 45
    stage: bytes


@dataclass(frozen=True, slots=True)
class Staged(Wire):
    """Blocks below `received` have arrived (they are not durable yet).

    Sent when that number grew, to the link that opened the stage.
    """

    op: ClassVar[int] = 46
    stage: bytes
    received: int


@dataclass(frozen=True, slots=True)
class Seal(Wire):
    """Make durable what was pushed: `blocks` of `size_bytes` with this `checksum` since the stage
    began. `final`: no more blocks will come.

    Answered when everything has arrived and is on disk: Done {"messages": count, "superseded": True
    if the transaction was committed without this stage}. Answered by Missing if a block has not
    come within a bounded wait.
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
    """Push again from block `expected` on.

    `request` is that of a Seal, or 0 if storage found a gap.
    """

    op: ClassVar[int] = 48
    request: int
    stage: bytes
    expected: int


@dataclass(frozen=True, slots=True)
class Commit(Wire):
    """All `parts` (finally sealed stages) become part of the topic at once, in this order, or none
    does. Other stages of the transaction are dropped. Done.data: {"first_offset", "messages",
    "repeated": True if it was committed before}.

    E_NOT_FOUND: a part does not exist, or no longer. E_BAD_ARGUMENT: a part is not sealed, or not
    as described.
    """

    op: ClassVar[int] = 49
    request: int
    app: str
    version: int
    kind: str
    parts: tuple[StagePart, ...]


@dataclass(frozen=True, slots=True)
class Abort(Wire):
    """Drop `stages`, and with `app` all stages of that transaction.

    After the commit it changes nothing. Done.data: {"dropped", "committed"}.
    """

    op: ClassVar[int] = 38
    request: int
    app: str
    version: int
    stages: tuple[bytes, ...]
