"""Protocol messages between clients and the broker, and the limits that both sides keep.

Staging lets PUSH producers (Spark executors) put blocks into a topic exactly once. A *stage* is the
sequence of blocks that one writer sends. 16 random bytes identify it. Its blocks are numbered from
0 and go over a PUSH socket, which gets no replies. On a second link (Open kind "stage"), storage
reports which blocks have arrived, and the writer seals, commits or aborts the stage. A
*transaction* is (`app`, `version`). The versions of an app increase, and each is committed at most
once. No part of a stage is visible before the commit that names it.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar, Final

from ..checksum import crc32c
from ..errors import E_BAD_ARGUMENT, E_UNSUPPORTED, UsageError
from ..names import check_name, is_ephemeral
from ..records import Record, record

__all__ = [
    "AFTER_ANY",
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
    "RUN_BYTES_MAX",
    "SAMPLE_RATE_MAX",
    "SKIPPED_MAX",
    "STAGE_BYTES",
    "STAGE_PARTS_MAX",
    "TRACEBACK_TEXT_MAX",
    "TRANSACTION_APP_BYTES_MAX",
    "TRANSACTION_KINDS",
    "UNBEGUN",
    "VERSION_ASKED",
    "VERSION_ON_DISK",
    "WINDOW_BLOCKS_MAX",
    "Abort",
    "Answer",
    "Beat",
    "Begun",
    "Blocks",
    "Bye",
    "Cancelled",
    "Commit",
    "Delayed",
    "Deliver",
    "Done",
    "Duplicates",
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
    "Recall",
    "Req",
    "Run",
    "Seal",
    "Settled",
    "Spread",
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

# MAXMSGSIZE of bound sockets. ZeroMQ closes the connection of a peer that sends a larger frame.
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
# The largest control frame with options (Open, Lookup, Manage) or names (Stats). A larger one is
# refused with E_TOO_BIG.
OPTIONS_BYTES_MAX: Final = 64 * 1024
OPTIONS_NESTED_MAX: Final = 1_000  # the most lists and maps in such a frame
FRAMES_MAX: Final = 1024  # the most frames of one message
HEARTBEAT_MS: Final = 30_000
HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 60_000
# The heartbeat interval of clients on ipc. The broker notices a dead client within 10 s, but keeps
# a client whose C code blocks Python for 9 s.
LOCAL_HEARTBEAT_MS: Final = 5_000
MESSAGE_TIMEOUT_MS: Final = 60_000
MESSAGE_TIMEOUT_MS_MIN: Final = 1_000
# As long as a time-out of nsqd may be that anybody sets. A consumer that has ended loses its leases
# at once, so a long one only delays what a stuck handler holds.
MESSAGE_TIMEOUT_MS_MAX: Final = 24 * 3_600_000
DELAY_MS_MAX: Final = 366 * 86_400_000  # the longest delay of a publish, a requeue or a deferral
# Special values for the delay of a requeue. BACKOFF means the channel's backoff. DEAD sends the
# messages to the dead letters. EXPIRED requeues them without delay and counts this as a time-out.
# It is for a consumer that has a deadline for each message of a delivery. UNBEGUN gives back
# messages that no handler has begun.
BACKOFF: Final = -1
DEAD: Final = -2
EXPIRED: Final = -3
UNBEGUN: Final = -4
ERROR_TEXT_MAX: Final = 512
TRACEBACK_TEXT_MAX: Final = 4096  # its oldest frames are left out first
# The most unanswered blocks of one link. The high-water marks of sockets are above this number.
WINDOW_BLOCKS_MAX: Final = 4096
READY_MAX: Final = 100_000
SAMPLE_RATE_MAX: Final = 99  # percent; 0 means all messages, as in NSQ
SKIPPED_MAX: Final = 1_000  # the most messages that one order skips
RANGES_MAX: Final = 10_000  # the most ranges of one answer
# The most bytes of blocks in one message, unless a single block is larger.
RUN_BYTES_MAX: Final = 256 * 1024
PRODUCER_WINDOW_BYTES: Final = 16 * 1024 * 1024
DEFAULT_URL: Final = "tcp://127.0.0.1:4153"

Run = tuple[int, int, int]  # first offset, count, attempts
Range = tuple[int, int]  # first offset, count


@record
class Wire(Record):
    """Base of all protocol messages.

    `request` 0 means that no reply is wanted, or that the message is not a reply.
    """

    op: ClassVar[int] = 0


# Between any processes


@record
class Beat(Wire):
    """A heartbeat, sent when nothing else was sent for one heartbeat interval.

    Brokers answer each Beat of a client with a Beat.
    """

    op: ClassVar[int] = 1


@record
class Done(Wire):
    """The reply to a request that was carried out. `data` depends on the request."""

    op: ClassVar[int] = 2
    request: int
    data: dict[str, Any]


@record
class Failed(Wire):
    """The reply to a request that was refused. Nothing was changed unless the text says so."""

    op: ClassVar[int] = 3
    request: int
    code: str
    text: str


@record
class Bye(Wire):
    """The sender ends the link.

    If a broker sends it, the client looks up the target again and opens a new link. If a consumer
    sends it, the channel at once requeues the messages that the consumer holds. With `is_lost`, a
    gateway says that the consumer did not leave by itself.
    """

    op: ClassVar[int] = 4
    is_lost: bool = False


# Client to gateway (first message of a link over tcp)


@record
class Open(Wire):
    """Connect this link to a target: "supervisor", "topic" (to publish), "reader" (offset reads),
    "channel", "stage" (to write exactly once).

    With `create`, topics and channels are created on first use. `settings` and `is_back` are as in
    Lookup.
    The reply is Done or Failed. Done.data has {"uuid": str, "node": int}, and `epoch` and
    `settings` as in Lookup. For stages it also has {"push_port": int, "route": bytes}. For
    "supervisor" it has none of these. A broker without access control adds {"run": str, "run_id":
    str}: the path of its run directory, and the content of the file `run_id` in it. A client that
    finds this file on its own machine may use the run directory instead of the gateway.
    """

    op: ClassVar[int] = 10
    request: int
    kind: str
    topic: str
    channel: str
    create: bool
    settings: dict[str, Any] = field(default_factory=dict)
    is_back: bool = False


# Client to supervisor


@record
class Lookup(Wire):
    """Ask for the endpoints of a topic. Done.data: {"topic", "reader", "stage", "push": endpoints,
    "channel": endpoint or "", "uuid": str, "node": int, "epoch": int}. Each takeover begins a new
    epoch. It is missing if the broker has no bucket, or does not know it yet.

    `settings` are settings of the channel (names in docs/channel-reference.md). A new channel gets
    them. An existing channel must have the same `tags`, `ordered` and `priorities` (else
    E_BAD_ARGUMENT), because they decide which messages its consumers get, and in which order. Its
    other settings do not change. If the request has settings, Done.data contains those of the
    channel that are in effect ("settings"). `by`: as in Manage. With `is_back`, the client used
    this topic before. If the topic was deleted since, the request does not create it.
    """

    op: ClassVar[int] = 11
    request: int
    topic: str
    channel: str
    create: bool
    settings: dict[str, Any] = field(default_factory=dict)
    by: dict[str, Any] = field(default_factory=dict)
    is_back: bool = False


@record
class Manage(Wire):
    """Carry out an administrative request about the broker, a topic, or a channel.

    `admin_requests.py` has the actions with their options and answers.

    `by`, for the audit log: `user`, `from` (an address) and `via` (the gateway). Gateways set it
    and replace a value that a client sent.
    """

    op: ClassVar[int] = 12
    request: int
    action: str
    topic: str
    channel: str
    options: dict[str, Any]
    by: dict[str, str] = field(default_factory=dict)


@record
class Stats(Wire):
    """Ask for statistics of everything, or of one topic or channel.

    Done.data: the statistics, which the supervisor collects from the actors for this request.
    """

    op: ClassVar[int] = 13
    request: int
    topic: str
    channel: str


@record
class Spread(Wire):
    """The reply to Open, Lookup, Manage or Stats if the topic has parts, and the request is not
    about a part that lies at this broker. The client then asks the right brokers.

    `parts`: (number, number of its broker) of each part. `brokers`: (number, addresses) of each
    broker that has a part. Without addresses, it is the broker that answers. `closed`: the numbers
    of the parts that take no more messages. `removed`: those of the parts that were removed, which
    are not in `parts`.
    """

    op: ClassVar[int] = 14
    request: int
    topic: str
    uuid: str
    parts: tuple[tuple[int, int], ...]
    brokers: tuple[tuple[int, tuple[str, ...]], ...]
    closed: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()


# Producer and topic


@record
class Hello(Wire):
    """The first message of a producer on each link.

    The reply is Welcome.
    """

    op: ClassVar[int] = 20
    version: int
    producer_id: int
    heartbeat_ms: int


@record
class Welcome(Wire):
    """The reply to Hello.

    `expected`: the producer's next sequence. `credit_bytes`: the largest number of bytes in its
    unanswered blocks.
    """

    op: ClassVar[int] = 21
    incarnation: int
    expected: int
    credit_bytes: int
    heartbeat_ms: int


@record
class Pub(Wire):
    """Publish one block (two frames follow).

    Its header carries producer id and sequence. The reply is Stored or Unstored.
    """

    op: ClassVar[int] = 22


@record
class Stored(Wire):
    """These blocks, as (sequence, first offset), are as durable as the topic promises.

    The offset is -1 if the topic no longer remembers it.
    """

    op: ClassVar[int] = 23
    blocks: tuple[tuple[int, int], ...]


@record
class Duplicates(Wire):
    """Block `sequence` is as durable as the topic promises, but some of its messages were not
    stored, because messages with the same ids are stored already. This answer takes the place of
    Stored or Delayed.

    `first_offset` is that of the first message that was stored, or `due_ns` and `serial` are those
    of the first one that was delayed. They are -1 if there is none. `duplicates` are (index,
    offset) of the messages that were not stored, ascending. The offset is that of the earlier
    message, or -1 if that one was delayed, or if its offset is not known.
    """

    op: ClassVar[int] = 16
    sequence: int
    first_offset: int
    due_ns: int
    serial: int
    duplicates: tuple[tuple[int, int], ...]


@record
class Unstored(Wire):
    """Block `sequence` was refused.

    `expected`: the sequence that the topic would accept, or -1 if it is not known. E_HELLO means
    that the producer must send Hello first.
    """

    op: ClassVar[int] = 24
    sequence: int
    expected: int
    code: str
    text: str


# Consumer and channel


@record
class Sub(Wire):
    """The first message of a consumer. `ready`: its credit in messages. `message_timeout_ms`: 0 for
    the default. The reply is Subscribed or Failed.

    With a `sample_rate` from 1 to 99, this consumer gets only that percentage of the messages
    selected for it. The channel finishes and counts the others. With 0, it gets all messages.

    With `reports`, the consumer reports by Begun which messages its handlers have begun, and
    answers Recall. Otherwise each message counts as begun when it is sent.

    `session` is a random number, or 0. If the channel has a consumer with the same number, that one
    has left: its connection is dead, and its client is back over another one. The one with the
    higher number of its request is the later one.
    """

    op: ClassVar[int] = 30
    request: int
    version: int
    ready: int
    message_timeout_ms: int
    heartbeat_ms: int
    label: str
    sample_rate: int = 0
    reports: bool = False
    session: int = 0


@record
class Subscribed(Wire):
    """The answer to Sub. `ordered`: the channel delivers the messages of a key in order.

    `buffer_ms`: the consumer should hold no more messages than its handlers need for this time. 0:
    as many as it wants.
    """

    op: ClassVar[int] = 31
    request: int
    incarnation: int
    message_timeout_ms: int
    heartbeat_ms: int
    ordered: bool = False
    buffer_ms: int = 0


@record
class Deliver(Wire):
    """A delivery (one block follows): its lease token, its runs in the block's order, and the
    duration of the lease, which runs from Begun on.

    With `alone`, it is one message that may have ended an earlier consumer. The consumer sends
    Begun with a request number, and waits for the answer before the handler begins.
    """

    op: ClassVar[int] = 32
    token: int
    runs: tuple[Run, ...]
    timeout_ms: int
    alone: bool = False


@record
class Begun(Wire):
    """Handlers have begun these `ranges` of the delivery, or the whole delivery if they are empty.

    Their lease runs from now on, and an end of the consumer uses one of their attempts. With a
    request number, it is answered by Answer at once.
    """

    op: ClassVar[int] = 39
    request: int
    token: int
    ranges: tuple[Range, ...]


@record
class Recall(Wire):
    """Channel to consumer: give back up to `count` messages that no handler has begun, by Req with
    UNBEGUN, because another consumer is idle. The consumer may give back fewer, or none.
    """

    op: ClassVar[int] = 27
    count: int


@record
class Cancelled(Wire):
    """Channel to consumer: these messages must not be begun any more, as far as it holds some.

    Those of `ranges` were cancelled, or expired before a handler had begun them. They are finished,
    and need no answer. Those with one of the revoke keys `keys` below offset `end` stay with the
    handlers that have begun them. Others are given back by Req with UNBEGUN, and the channel gives
    them up.
    """

    op: ClassVar[int] = 6
    ranges: tuple[Range, ...]
    keys: tuple[str, ...]
    end: int


@record
class Settled(Wire):
    """Channel to consumer: this link ends, and the first `finishes` messages that were finished
    on it are committed. Finishes that were refused do not count.
    """

    op: ClassVar[int] = 28
    finishes: int


@record
class Ready(Wire):
    """The consumer's credit: how many messages it may hold at a time (NSQ's RDY).

    `backoff_ms`: 0, or the consumer backs off because its handlers fail, and this is the time until
    its next probe. 1 also means that the probe is under way. It is only shown in statistics.
    """

    op: ClassVar[int] = 33
    ready: int
    backoff_ms: int = 0


@record
class Fin(Wire):
    """Finish these `ranges` of the delivery, or the whole delivery if they are empty.

    With a request number, it is answered by Answer after the commit.
    """

    op: ClassVar[int] = 34
    request: int
    token: int
    ranges: tuple[Range, ...]


@record
class Req(Wire):
    """Requeue these `ranges` of the delivery, or the whole delivery if they are empty, after
    `delay_ms` (0: at once; more than DELAY_MS_MAX counts as DELAY_MS_MAX).

    Four values of `delay_ms` are special. With BACKOFF, the channel's settings decide. With DEAD,
    the messages become dead letters now and are not delivered again. With EXPIRED, they are
    requeued at once, as if their lease had ended. With UNBEGUN, no handler has begun them, so they
    are requeued at once and use no attempt. `error`: the reason, at most ERROR_TEXT_MAX
    characters, and `traceback`: where it was raised, at most TRACEBACK_TEXT_MAX characters. A dead
    letter contains both.

    With `defer`, the handlers have begun the messages and put them off: that uses no attempt and is
    no failure.
    """

    op: ClassVar[int] = 35
    request: int
    token: int
    ranges: tuple[Range, ...]
    delay_ms: int
    error: str = ""
    traceback: str = ""
    defer: bool = False


@record
class Touch(Wire):
    """Restart the timeout of these `ranges` of the delivery now, or of the whole delivery if they
    are empty, up to the maximum time since they were begun.
    """

    op: ClassVar[int] = 36
    request: int
    token: int
    ranges: tuple[Range, ...] = ()


@record
class Answer(Wire):
    """The reply to Fin, Req, Touch and Begun. `refused`: the ranges that were no longer under this
    lease and so were not changed.

    For a message without a request number, it is sent only if a range was refused. The range (-1,
    0) means the whole delivery, because the channel does not know it, or no longer knows it.
    """

    op: ClassVar[int] = 37
    request: int
    token: int
    refused: tuple[Range, ...]


# Offset readers and storage


@record
class Fetch(Wire):
    """Read blocks of about `max_bytes` bytes, beginning with the block that contains `offset`. The
    reply has at least one block if any exists. Without `bodies`, all bodies in it are empty.

    The reply is Blocks.
    """

    op: ClassVar[int] = 40
    request: int
    offset: int
    max_bytes: int
    bodies: bool = True


@record
class Blocks(Wire):
    """The reply to Fetch. Consecutive blocks follow. `start`: the oldest kept offset. `head`: the
    durable end of the topic (the next offset).

    `next_offset`: the offset at which to continue. It is above the end of the last block if the
    messages after that block cannot be read. `lost`: the damaged messages from the requested offset
    to `next_offset`, as (first offset, count). Offsets that are neither in a block nor in `lost`
    were removed by retention, or were never given to a message.
    """

    op: ClassVar[int] = 41
    request: int
    start: int
    head: int
    next_offset: int
    lost: tuple[tuple[int, int], ...] = ()


@record
class OffsetAt(Wire):
    """Ask storage for an offset by time. Done.data {"offset": the first one stored at `time_ns`
    (since 1970) or later, or the durable end if there is none; "start", "head": as in Blocks}. With
    `newest` (1 to 10,000) instead of a time, "offset" is the offset at which that number of newest
    messages begins. If the broker has a bucket, "archive" is {"url": of the bucket; "end": the
    offset up to which the bucket has all kept messages}.
    """

    op: ClassVar[int] = 42
    request: int
    time_ns: int
    newest: int = 0


@record
class Measure(Wire):
    """Ask storage for the number of bytes between two offsets (`end` -1: the durable end).

    Done.data {"bytes": approximate, from the index; "offset": see below; "start", "head",
    "messages": those that exist}. The messages from `start` to "offset" have at most about
    `max_bytes` bytes. "offset" is the largest such offset up to `end`, but always above `start` if
    there is any message.
    """

    op: ClassVar[int] = 43
    request: int
    start: int
    end: int
    max_bytes: int


@record
class PubDelayed(Wire):
    """Publish one block (two frames follow), which the topic adds to its log `delay_ms` after the
    arrival of this message, never earlier.

    Its header carries producer id and sequence. Pub and PubDelayed share one series of sequences.
    The reply is Delayed or Unstored.
    """

    op: ClassVar[int] = 25
    delay_ms: int


@record
class Delayed(Wire):
    """Block `sequence` is durable and waits for its due time. `due_ns` (wall clock) and `serial`
    are those of its first message, or -1 if the topic no longer remembers them.

    The key of message i is `due_ns` and `serial` + i, 8 bytes each, big-endian, as 32 hex digits.
    """

    op: ClassVar[int] = 26
    sequence: int
    due_ns: int
    serial: int


STAGE_BYTES: Final = 16  # the size of a stage's name, which is a uuid
STAGE_PARTS_MAX: Final = 10_000  # the most parts of one commit
TRANSACTION_APP_BYTES_MAX: Final = 256  # the largest size of the app's name as UTF-8
TRANSACTION_KINDS: Final = ("app", "job")  # "app" is remembered permanently, "job" for 7 days
# Versions in an `Abort` that only asks. No app gets so far, so nothing is dropped.
VERSION_ON_DISK: Final = (1 << 63) - 1
VERSION_ASKED: Final = VERSION_ON_DISK - 1
# This value of `Commit.after` accepts any last version.
AFTER_ANY: Final = -2

StagePart = tuple[bytes, int, int, int, int]  # stage, blocks, messages, bytes (as blocks), checksum


def checksum_after(checksum: int, columns_crc: int) -> int:
    """Return a stage's checksum after one more block (0 at first).

    It is CRC-32C over the checksums of the blocks, so it depends only on their content and order.
    """
    return int(crc32c(columns_crc.to_bytes(4, "little"), checksum))


def check_stage_topic(name: str) -> str:
    """Return `name` if a transaction can write to this topic.

    The client calls this before it sends anything, because the broker would create a missing topic.
    Raises `UsageError` for a bad name (E_BAD_NAME) or an ephemeral topic (E_UNSUPPORTED).
    """
    if is_ephemeral(check_name(name)):
        text = (
            f"topic {name!r} exists only in memory and cannot take transactions, which must be "
            "durable; use one on disk"
        )
        raise UsageError(E_UNSUPPORTED, text)
    return name


def check_transaction(app: str, version: int, kind: str) -> None:
    """Raise `UsageError` (E_BAD_ARGUMENT) if this is not a valid transaction."""
    try:
        size = len(app.encode()) if isinstance(app, str) else 0
    except UnicodeEncodeError:
        size = 0  # a name with lone surrogates, as in file names, cannot be sent
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


@record
class OpenStage(Wire):
    """The first message of a writer on each link.

    Done.data: {"expected": next block number to push (blocks below it are durable or have arrived),
    "sealed": the number of durable blocks, "credit_bytes": how many bytes may be on their way,
    "committed": True if this transaction is committed already (then nothing is staged)}.
    """

    op: ClassVar[int] = 44
    request: int
    stage: bytes
    app: str
    version: int
    kind: str
    partition: int


@record
class Push(Wire):
    """Send one block over PUSH; the block follows. The sequence in its header is its number in the
    stage. Push has no reply, and a block that does not fit is dropped. Staged and Missing tell the
    writer which blocks have arrived. One routing frame precedes this message: `route` in Done.data
    of Open.
    """

    op: ClassVar[int] = 45
    stage: bytes


@record
class Staged(Wire):
    """Blocks below `received` have arrived (they are not durable yet).

    Storage sends it to the link that opened the stage, whenever that number grows.
    """

    op: ClassVar[int] = 46
    stage: bytes
    received: int


@record
class Seal(Wire):
    """Make the pushed blocks durable: since the stage began, these are `blocks` blocks of
    `size_bytes` bytes together, with this `checksum`. `final`: True if no more blocks will follow.

    When all these blocks have arrived and are on disk, the reply is Done {"messages": count,
    "superseded": True if the transaction was committed without this stage}. If a block has not
    arrived within a bounded time, the reply is Missing.
    """

    op: ClassVar[int] = 47
    request: int
    stage: bytes
    blocks: int
    size_bytes: int
    checksum: int
    final: bool


@record
class Missing(Wire):
    """Storage asks the writer to push again, from block `expected` on.

    `request` is the number of a Seal, or 0 if storage noticed a missing block.
    """

    op: ClassVar[int] = 48
    request: int
    stage: bytes
    expected: int


@record
class Commit(Wire):
    """Make all `parts` (stages with a final seal) part of the topic at once, in this order, or none
    of them. Other stages of the transaction are dropped. Done.data: {"first_offset", "messages",
    "repeated": True if it was committed before}.

    With `dry_run`, nothing is committed: the answer is Done if the commit would be carried out now,
    or was before, and otherwise the error. A transaction of several topics asks all of them first.

    With `after`, the app's last version must be exactly this one (-1: the app has none), unless
    the transaction is committed already. So of several writers that continue at the same version,
    only one commits.

    With `unique_key`, the one message of the parts holds this key, which its headers must name.
    While an earlier message holds the key (with `while_working`, also one that is begun), the
    transaction is committed without the parts. The answer to `dry_run` then has "held": True.

    E_NOT_FOUND: a part does not exist, or no longer exists. E_BAD_ARGUMENT: a part is not sealed,
    or it differs from its description. E_SEQUENCE: the app has another last version than `after`.
    """

    op: ClassVar[int] = 49
    request: int
    app: str
    version: int
    kind: str
    parts: tuple[StagePart, ...]
    dry_run: bool = False
    after: int = AFTER_ANY
    unique_key: bytes = b""
    while_working: bool = False


@record
class Abort(Wire):
    """Drop `stages`. If `app` is not empty, also drop all stages of that transaction.

    After the commit it changes nothing. Done.data: {"dropped", "committed", "version": the last
    committed version of the app, or -1}. If the topic is shipped to a bucket, an answer that a
    transaction is committed, and the answer to `VERSION_ASKED`, come when the bucket has it,
    because a takeover may lose it before. `VERSION_ON_DISK` is answered at once.
    """

    op: ClassVar[int] = 38
    request: int
    app: str
    version: int
    stages: tuple[bytes, ...]
