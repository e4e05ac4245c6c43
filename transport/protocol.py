"""The words: every message between processes as a frozen dataclass with a fixed opcode.

PROTOCOL.md shows each byte by byte. A message is one control frame (msgpack array: opcode, then the fields
in this order), then its blocks, two frames each (64-byte header, columns). Envelope: routing ids, an empty frame, the control frame.

Opcodes are never reused; a released message never changes meaning: a new one gets a new opcode.
Field types allowed: int, str, bytes, bool, float, tuple, dict (msgpack's own).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

PROTOCOL_VERSION: Final = 1

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024  # MAXMSGSIZE of bound sockets: a frame over our limits still gets its E_TOO_BIG
FRAMES_MAX: Final = 1024  # of one message
HEARTBEAT_MS: Final = 30_000
HEARTBEAT_MS_MIN: Final = 1_000
HEARTBEAT_MS_MAX: Final = 60_000
LOCAL_HEARTBEAT_MS: Final = 1_000
MESSAGE_TIMEOUT_MS: Final = 60_000
MESSAGE_TIMEOUT_MS_MIN: Final = 1_000
MESSAGE_TIMEOUT_MS_MAX: Final = 900_000
REQUEUE_DELAY_MS_MAX: Final = 3_600_000
READY_MAX: Final = 100_000
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
    """Make this link talk to: "supervisor", "topic" (to publish), "reader" (offset reads), "channel". Answered by Done or Failed.

    Topics and channels are made on first use if `create`.
    """

    op: ClassVar[int] = 10
    request: int
    kind: str
    topic: str
    channel: str
    create: bool


# Client to supervisor


@dataclass(frozen=True, slots=True)
class Lookup(Wire):
    """Where is it? Done.data: {"topic": endpoint, "reader": endpoint, "channel": endpoint or "", "uuid": str}."""

    op: ClassVar[int] = 11
    request: int
    topic: str
    channel: str
    create: bool


@dataclass(frozen=True, slots=True)
class Manage(Wire):
    """`action`: create, delete, pause, unpause, empty; on the topic, or on the channel if one is named. `options` by action."""

    op: ClassVar[int] = 12
    request: int
    action: str
    topic: str
    channel: str
    options: dict[str, Any]


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
    """A consumer begins with `ready` messages of credit; `message_timeout_ms` 0 is the default. Answered by Subscribed or Failed."""

    op: ClassVar[int] = 30
    request: int
    version: int
    ready: int
    message_timeout_ms: int
    heartbeat_ms: int
    label: str


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
    """Again: those `ranges` (all if empty) after `delay_ms` (0: at once; at most an hour, clamped)."""

    op: ClassVar[int] = 35
    request: int
    token: int
    ranges: tuple[Range, ...]
    delay_ms: int


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
    """Blocks follow, consecutive. `start`: oldest offset kept; `head`: the durable end (next offset to come)."""

    op: ClassVar[int] = 41
    request: int
    start: int
    head: int


# Topic and storage


@dataclass(frozen=True, slots=True)
class Append(Wire):
    """Blocks follow, in order. Answered by Appended or Failed; of a failed append nothing is stored.

    After a failure storage takes only appends of the next `epoch`, so that those already on their way fail too
    and no producer's sequence gets a gap.
    """

    op: ClassVar[int] = 50
    request: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Appended(Wire):
    """Stored as the topic's sync mode promises: first offset of the append (its blocks follow on), and the time of all of them."""

    op: ClassVar[int] = 51
    request: int
    first_offset: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Head(Wire):
    """Storage to its topic and topic to its channels: the durable end is now here."""

    op: ClassVar[int] = 52
    head: int


# Channel, topic and storage


@dataclass(frozen=True, slots=True)
class OpenTopic(Wire):
    """Topic to storage: what was recovered. Done.data: {"producers": {id: (next sequence, recent)}, "head": int, "visible_end": int}."""

    op: ClassVar[int] = 59
    request: int


@dataclass(frozen=True, slots=True)
class OpenChannel(Wire):
    """Channel to storage: my row, made now if it is not there. Done.data: {"channel": row, "holes": [...], "head": int, "start": int}."""

    op: ClassVar[int] = 60
    request: int
    channel: str


@dataclass(frozen=True, slots=True)
class Save(Wire):
    """Channel to storage: commit these rows. `holes_put`: (start, count, attempts, due_ns); `holes_gone`: starts. Done after the commit."""

    op: ClassVar[int] = 61
    request: int
    channel: str
    row: dict[str, Any]
    holes_put: tuple[tuple[int, int, int, int], ...]
    holes_gone: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attach(Wire):
    """Channel to topic: I want blocks from `next_offset` on; Offers follow, or Behind.

    `credit_bytes` is the total granted since the link began.
    """

    op: ClassVar[int] = 62
    channel: str
    next_offset: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Credit(Wire):
    """Channel to topic: the total of bytes granted since the link began is now this."""

    op: ClassVar[int] = 63
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class Offer(Wire):
    """Topic to channel: blocks follow, consecutive."""

    op: ClassVar[int] = 64
    head: int


@dataclass(frozen=True, slots=True)
class Behind(Wire):
    """Topic to channel: what you want next is not in my hands; read from storage, then attach again."""

    op: ClassVar[int] = 65
    head: int


@dataclass(frozen=True, slots=True)
class Pause(Wire):
    """Topic to storage: fix (or free) the end that channels may see. Done.data: {"visible_end": int, -1 if free}."""

    op: ClassVar[int] = 66
    request: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Empty(Wire):
    """Topic to storage: what waits for a first channel is cleared."""

    op: ClassVar[int] = 67
    request: int


# Scan


@dataclass(frozen=True, slots=True)
class ScanOrder(Wire):
    """Scan loop to a worker: ask these (key, endpoint) to process what is due."""

    op: ClassVar[int] = 70
    request: int
    targets: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Scan(Wire):
    """Scan worker to a channel: process what is due now."""

    op: ClassVar[int] = 71
    request: int


@dataclass(frozen=True, slots=True)
class Scanned(Wire):
    """Channel to scan worker: whether something was due, and the next due time (monotonic ns of this machine, 0 for none)."""

    op: ClassVar[int] = 72
    request: int
    dirty: bool
    next_due_ns: int


@dataclass(frozen=True, slots=True)
class ScanReport(Wire):
    """Worker to scan loop: (key, 1 dirty / 0 clean / -1 no answer, next due) of each target."""

    op: ClassVar[int] = 73
    request: int
    results: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Hint(Wire):
    """Channel to scan loop: my next due time became earlier."""

    op: ClassVar[int] = 74
    key: int
    next_due_ns: int


# Supervisor and children


@dataclass(frozen=True, slots=True)
class Born(Wire):
    """Child to supervisor: up; where it listens, and what it recovered."""

    op: ClassVar[int] = 80
    key: int
    incarnation: int
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pulse(Wire):
    """Child to supervisor, each second or when asked: alive, with statistics. `request` echoes Ask, else 0."""

    op: ClassVar[int] = 81
    key: int
    request: int
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ask(Wire):
    """Supervisor to child: send a Pulse now."""

    op: ClassVar[int] = 82
    request: int


@dataclass(frozen=True, slots=True)
class Stop(Wire):
    """Supervisor to child: finish what is in progress, answer who waits, end."""

    op: ClassVar[int] = 83


@dataclass(frozen=True, slots=True)
class Order(Wire):
    """Supervisor to a topic or channel: carry out a Manage action (pause, unpause, empty). Answered by Done or Failed."""

    op: ClassVar[int] = 84
    request: int
    action: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Targets(Wire):
    """Supervisor to scan loop: the channels there are, as (key, endpoint); workers as endpoints."""

    op: ClassVar[int] = 85
    channels: tuple[tuple[int, str], ...]
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolSize(Wire):
    """Scan loop to supervisor: this many workers are wanted."""

    op: ClassVar[int] = 86
    workers: int


@dataclass(frozen=True, slots=True)
class Hung(Wire):
    """Scan loop to supervisor: this channel missed its scans."""

    op: ClassVar[int] = 87
    key: int


@dataclass(frozen=True, slots=True)
class Gone(Wire):
    """Supervisor to gateways: an endpoint's owner died. To topics and channels: a gateway died, and all peers behind its routing id."""

    op: ClassVar[int] = 88
    who: str


WORDS: Final[dict[int, type[Wire]]] = {
    word.op: word
    for word in (
        Beat, Done, Failed, Bye, Open, Lookup, Manage, Stats, Hello, Welcome, Pub, Stored, Unstored,
        Sub, Subscribed, Deliver, Ready, Fin, Req, Touch, Answer, Fetch, Blocks, Append, Appended, Head,
        OpenTopic, OpenChannel, Save, Attach, Credit, Offer, Behind, Pause, Empty, ScanOrder, Scan, Scanned,
        ScanReport, Hint, Born, Pulse, Ask, Stop, Order, Targets, PoolSize, Hung, Gone,
    )
}  # fmt: skip
