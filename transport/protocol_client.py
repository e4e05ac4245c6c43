"""The words between clients and the broker, and the limits both keep. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

# fmt: off
__all__ = [
    "BACKOFF",
    "DEAD",
    "DEFAULT_URL",
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
    "PRODUCER_WINDOW_BYTES",
    "PROTOCOL_VERSION",
    "RANGES_MAX",
    "READY_MAX",
    "REQUEUE_DELAY_MS_MAX",
    "RUN_BYTES_MAX",
    "SAMPLE_RATE_MAX",
    "Answer",
    "Beat",
    "Blocks",
    "Bye",
    "Deliver",
    "Done",
    "Failed",
    "Fetch",
    "Fin",
    "Hello",
    "Lookup",
    "Manage",
    "Measure",
    "OffsetAt",
    "Open",
    "Pub",
    "Range",
    "Ready",
    "Req",
    "Run",
    "Stats",
    "Stored",
    "Sub",
    "Subscribed",
    "Touch",
    "Unstored",
    "Welcome",
    "Wire",
]
# fmt: on

PROTOCOL_VERSION: Final = 1

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # MAXMSGSIZE of bound sockets: a frame over our limits still gets its E_TOO_BIG
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

    Topics and channels are made on first use if `create`; `settings` as in Lookup. Answered by Done or Failed; Done.data has for readers
    and stages {"uuid": str}, for stages also {"push_port": int, "route": bytes}.
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
    """Where is it? Done.data: {"topic", "reader", "stage", "push": endpoints, "channel": endpoint or "", "uuid": str}.

    `settings` of the channel (names in docs/channels.md): a channel that is made takes them; of one that is there, `tags` and `ordered`
    must be the same (E_BAD_ARGUMENT), since they say what its consumers get, and the others are passed over. `by`: as with Manage.
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
