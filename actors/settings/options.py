"""Every tunable of the broker, with its unit, default and reason. Pure.

`AlarmOptions`: from which backlog on an alarm is raised, and who receives it.

Secrets never stand in a command line, where every user of the machine can read them: see
`apps/cli/run/option_table.py`.

`NsqOptions`, `HttpOptions`, `TlsOptions`: the gateways for NSQ and HTTP.

The names and defaults are nsqd's wherever it has them; docs/coming-from-nsq.md sets them side by side.

`SecurityOptions`: who may connect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ...transport.block.block_format import MESSAGE_BYTES_MAX
from ...transport.settings import check
from ...transport.wire.protocol import REQUEUE_DELAY_MS_MAX

HOLD_S: Final = 10.0  # above or below for so long until it counts
HOLD_S_MAX: Final = 86_400.0
RECEIVERS_MAX: Final = 16  # a thread each
_BEHIND_HOST: Final = re.compile(r"[/?#\\;\s]")


@dataclass(frozen=True, slots=True)
class AlarmOptions:
    """`depth`, `age_s`: thresholds of channels that have none of their own, -1: none. `hold_s`: how long a backlog is above (or, to be
    cleared, below) before that is told. `webhooks`: URLs that get a JSON POST, with `webhook_token` as bearer. `commands`: argv
    each, JSON on stdin."""

    depth: int = -1
    age_s: float = -1
    hold_s: float = HOLD_S
    webhooks: tuple[str, ...] = ()
    webhook_token: str = field(default="", repr=False)
    commands: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        check(0 <= self.hold_s <= HOLD_S_MAX, f"an alarm is held 0 to {HOLD_S_MAX:g} s, not {self.hold_s}")
        for url in self.webhooks:
            check_url(url)
        check(all(self.commands), "an alarm's command is empty")
        count = len(self.webhooks) + len(self.commands)
        check(count <= RECEIVERS_MAX, f"alarms are told to at most {RECEIVERS_MAX} receivers, not {count}")

    @property
    def tells(self) -> bool:
        return bool(self.webhooks or self.commands)


def check_url(url: str) -> None:
    place = ""
    try:
        parts = urlsplit(url)
        place = parts.netloc
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    good = good and url.isascii() and url.isprintable() and " " not in url
    check(good, f"a webhook is http://... or https://..., not {shown_url(url)!r}")
    check("@" not in place, "a webhook's URL holds no password: give a token by ZSQ_ALARM_WEBHOOK_TOKEN")


def shown_url(url: str) -> str:
    """Scheme and host: of many services the rest is the secret."""
    scheme, _, rest = url.partition("://")
    host = _BEHIND_HOST.split(rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme[:10]}://{host[:100]}" if rest else "a URL without a scheme"


NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Paths of PEM files; `client_auth`: "", "require" or "require-verify"; `required`: "", "true" or "tcp-https"."""

    cert: str = ""
    key: str = ""
    root_ca: str = ""
    client_auth: str = ""
    required: str = ""
    min_version: str = "tls1.2"


@dataclass(frozen=True, slots=True)
class NsqOptions:
    """`listen`: HOST:PORT or unix:PATH, each; `given`: a person said so, and what cannot be had is an error, not a warning. Times in ms."""

    listen: tuple[str, ...] = (NSQ_LISTEN,)
    given: bool = False
    tls: TlsOptions = TlsOptions()
    deflate: bool = True
    snappy: bool = True
    max_deflate_level: int = 6
    max_rdy_count: int = 2500
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    max_req_timeout_ms: int = 3_600_000
    max_heartbeat_interval_ms: int = 60_000
    max_output_buffer_size: int = 65_536
    max_output_buffer_timeout_ms: int = 30_000
    max_channel_consumers: int = 0
    auth_http_addresses: tuple[str, ...] = ()
    auth_http_method: str = "get"
    lookupd_tcp_addresses: tuple[str, ...] = ()
    broadcast_address: str = ""
    broadcast_tcp_port: int = 0
    broadcast_http_port: int = 0
    http_port: int = 0  # where the HTTP gateway beside it listens; 0 without one
    topology_region: str = ""
    topology_zone: str = ""
    connections_max: int = 10_000


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """`listen`: HOST:PORT; `given` as above; `nsq`: what /info, /lookup and /nodes say of the NSQ gateway beside this one, None without.

    `tls_cert`, `tls_key`: paths of PEM files, both or none. `allowed_hosts`: names under which clients may call, besides those of this
    machine. `console`: the folder of the console's static files, "" for none.
    """

    listen: str = HTTP_LISTEN
    given: bool = False
    nsq: NsqOptions | None = None
    tls_cert: str = ""
    tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    console: str = ""


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """Paths, so that what they hold is read by the process that needs it and is in no message.

    `access_file`: who may do what (`access.py`), "" for everybody everything. `curve_key_file`: the ZeroMQ gateway's own key pair, made by
    `zsq keys server`; with it its clients must encrypt. `insecure`: listen beyond loopback without authentication.
    """

    access_file: str = ""
    curve_key_file: str = ""
    insecure: bool = False


KIB: Final = 1024
MIB: Final = 1024 * 1024

AUTO_CREATE: Final = ("always", "publishers", "never")  # on whose first use topics are made; by never, channels neither
SYNC_INTERVAL_MS: Final = 100  # `interval`: EQueue's number; NSQ waits 2 s

# Channel
WINDOW_BYTES_MAX: Final = 4 * MIB  # blocks a channel holds ahead of its consumers: 20 of 200 KB hide a hop's latency
CACHE_BYTES_MAX: Final = 4 * MIB  # blocks kept for messages that are requeued; older ones are read from storage again
CORRUPT_MAX: Final = 10  # blocks that a channel finds changed in its memory within CORRUPT_S; beyond it the process ends and starts anew
CORRUPT_S: Final = 60
HOLE_ROWS_MAX: Final = 10_000  # beyond it no new messages are taken until old ones are done
DEFERRED_ROWS_MAX: Final = 10_000_000  # requeued with a delay, on disk: about 200 bytes each; beyond it no new messages are taken
DUE_HELD_MAX: Final = HOLE_ROWS_MAX // 2  # deferred rows that are due come back while fewer are held, so that new messages still come
DUE_ROWS_MAX: Final = 1_000  # of one answer
DUE_LATEST_NS: Final = (REQUEUE_DELAY_MS_MAX + 60_000) * 1_000_000  # no requeue is due later; a minute for clocks that are set
PROMISED_MAX: Final = 50_000  # messages to be delivered again whose next number one commit promises; the rest of a long run waits
PROMISED_ROWS_LOW: Final = 4_000  # rows (and half of those messages) that are ready; while there are more, nothing is promised
SAVE_ROWS_MAX: Final = 50_000  # of one frame: 36 bytes a row at most, so under 2 MB
SAVE_PAGES_MAX: Final = 200  # of one commit; what a channel holds of a few million in flight, every second one answered
SAVE_INTERVAL_MS: Final = 200  # a cursor's changes are committed a few times a second
GATHER_COUNT_MAX: Final = 1_000  # messages of one delivery that do not lie together
GATHER_BYTES_MAX: Final = 1 * MIB
LOOKS_MAX: Final = 20_000  # messages that a channel passes in one turn of its loop, looking which of them it wants: some 2 ms
LOOK_BLOCK: Final = 10  # ... as so many of them counts a block
ORDERED_PARKED_MAX: Final = 50_000  # messages that an ordered channel passes before it may send them: up to 10 MB
ORDERED_AHEAD: Final = 2_000  # ... that may be sent: with so many at hand it does not look farther ahead
ORDERED_BUSY: Final = 64  # messages that are out or could be: with fewer it looks beyond what its blocks on the shelf hold
ORDERED_LOOK: Final = 4  # to sort a message counts as so many looks (LOOKS_MAX): its key is hashed
ORDERED_ALONE: Final = 64  # messages without a key that lie together go without being gathered
ORDERED_MISSED_MAX: Final = 64  # of one delivery, whose blocks have to be read first
ORDERED_READ_BYTES: Final = 256 * KIB  # of one read for what is parked: it lies close together, unlike what comes again
ORDERED_DEFERRED_ROWS_MAX: Final = 100_000  # requeued with a delay: they are sorted before a start can go on
FETCHES_MAX: Final = 4  # outstanding reads of blocks for redelivery
CONSUMERS_MAX: Final = 10_000
DYING_TEXT_MAX: Final = 1 * MIB  # characters of errors kept for messages on their way to the dead letters; beyond it they go without
DEAD_TICK_MS: Final = 100  # a channel with dead letters on their way looks after its link so often
DEAD_RETRY_S: Final = 1.0  # until dead letters that were refused (a full topic, a full disk) are tried again; doubled by each try
DEAD_RETRY_S_MAX: Final = 30.0
DEAD_SILENT_S: Final = 5.0  # an answer that takes longer is said in health
DEAD_IDLE_S: Final = 10.0  # a channel's link to its dead-letter topic is closed so long after its last dead letter
DEAD_STOP_S: Final = 1.0  # a channel that ends waits so long for dead letters on their way, so that they do not come twice
PEEK_MAX: Final = 1_000  # messages of each kind that a peek names: its answer is one small frame
CONSUMER_LATENCIES_MAX: Final = 200  # consumers of a channel that get percentiles of their own: 20 KB each while they finish
CONSUMER_LATENCY_SLOT_S: Final = 120  # coarser than the channel's: a fifth of its memory; the window reaches over 10 to 12 minutes
CONSUMER_BYTES_MAX: Final = 16 * MIB  # delivered to one consumer and unanswered: credit counts messages, memory counts bytes

# Ephemeral channels and topics: in memory
EPHEMERAL_UNUSED_S: Final = 60.0  # a channel to which no consumer came; one that had some ends with the last
EPHEMERAL_DEFERRED_ROWS_MAX: Final = 100_000  # of a channel, in storage's memory: some 30 MB
EPHEMERAL_BYTES_MAX: Final = 64 * MIB  # of a topic's messages that are not finished, and again of those kept to be read again
EPHEMERAL_SHARE: Final = 8  # ... or this part of the memory file system, where that is less
EPHEMERAL_SHM_BYTES_MIN: Final = 32 * MIB  # a smaller memory file system is not used: one topic would fill it

# Topic
RING_BYTES_MAX: Final = 2 * MIB  # newest blocks, for channels a little behind; the others read from storage
CREDIT_POOL_BYTES: Final = 256 * MIB  # all producers' unanswered blocks together
CREDIT_BYTES: Final = 8 * MIB  # one producer's
CREDIT_BYTES_MIN: Final = 256 * KIB
CREDIT_BYTES_LEAST: Final = 16 * KIB  # when the pool is given out, to some 140: so many more as there may be get on, slower
APPEND_BYTES_MAX: Final = 2 * MIB  # blocks handed to storage as one append
APPEND_BYTES_LITTLE: Final = 64 * KIB  # less than that waits while another append is on its way
APPENDS_OUT_MAX: Final = 8  # appends on their way; more wait in the topic and are gathered
PRODUCERS_MAX: Final = 20_000  # remembered a topic; beyond it the one not used for longest is forgotten
RECENT_SEQUENCES: Final = 256  # answers remembered for repeated blocks, by producer
PRODUCER_KEPT_S: Final = 7 * 86_400

# Storage
CHECKPOINT_INTERVAL_MS: Final = 1_000
INLINE_SYNC_BYTES_MAX: Final = 64 * KIB  # a small lone append is synced in line: a thread's two wake-ups cost more than it gains
READ_BYTES_MAX: Final = 4 * MIB  # of one answer to a channel
READER_BYTES_MAX: Final = 1 * MIB  # of one answer to an offset reader
READER_ANSWERS_MAX: Final = 32  # unread ones a reader; further ones are dropped, and asked for again
RETENTION_TICK_MS: Final = 1_000  # space is back within seconds
RETRY_S_MAX: Final = 60.0  # between tries to start a topic that cannot start
FILES_RETRY_S: Final = 0.25  # until what found no free descriptor is started again; doubled by each try
FILES_RETRY_S_MAX: Final = 1.0
FILES_WAIT_S: Final = 10.0  # who asks for such a topic waits so long before an error comes
LOCK_WAIT_S: Final = 10.0
LAST_WORDS_S: Final = 0.2  # a storage that failed, or who cannot start, ends so much later, that its last words go out

# Delayed messages
DELAYED_MOVE_BYTES: Final = 2 * MIB  # moved to the log at a time: publishers wait no longer than writing it takes
DELAYED_MOVE_ROWS: Final = 2_000  # ... and in blocks; singles cost 10 microseconds each
DELAYED_RETRY_NS: Final = 1_000_000_000  # after a full disk
DELAYED_LOOK_NS: Final = 10_000_000_000  # something waits: its storage is scanned at least so often, in case the wall clock is put forward
DELAYED_LIST_MAX: Final = 1_000
DELAYED_LIST_BODY_BYTES: Final = 200
DELAYED_CANCEL_MAX: Final = 1_000  # keys of one order
DELAYED_CANCEL_ROWS: Final = 5_000  # rows of one turn, where all are cancelled
DELAYED_CANCEL_BYTES: Final = 32 * MIB  # ... and in bytes: LMDB reads them all, and publishers wait meanwhile

# Staging
STAGE_CREDIT_POOL_BYTES: Final = 32 * MIB  # what all writers may have on their way to one topic
STAGE_CREDIT_BYTES: Final = 4 * MIB  # one writer's
STAGE_CREDIT_BYTES_MIN: Final = 64 * KIB  # less than a block of Spark's: one at a time, but the executors of a large cluster all get on
STAGE_WRITERS_MAX: Final = 256  # with credit at a time; the pool may be passed by those with the least
STAGE_SEAL_WAIT_S: Final = 5.0  # a seal waits so long for pushes that are still on their way
STAGE_GAP_RETELL_S: Final = 1.0  # what was sent again for a gap may have been lost as well
STAGE_OPEN_KEPT_S: Final = 15 * 60.0  # a stage that is not used any more, and was not finally sealed
STAGE_SEALED_KEPT_S: Final = 24 * 3600.0  # ... that was: its driver may be down, and come back to commit it
STAGES_MAX: Final = 20_000  # of a topic: twice what one commit may name
STAGES_PER_LINK_MAX: Final = 64
STAGE_LINKS_MAX: Final = 10_000
STAGE_SEALS_MAX: Final = 16  # of one stage that wait
STAGE_ANSWERS_MAX: Final = 10_000  # unread ones a writer
STAGE_TICK_MS: Final = 250
STAGE_EXPIRE_MS: Final = 1_000
STAGE_TURN_BYTES: Final = 4 * MIB  # taken in one turn of the loop: publishers wait no longer than writing it takes
PUSH_MARK: Final = 128  # pushes of one writer that storage holds unread, should it send more than its credit; more wait with the writer
assert PUSH_MARK * 256 * KIB <= STAGE_CREDIT_POOL_BYTES  # in blocks of the size that Spark's sink makes
# Pushes for one storage that a gateway holds; further ones are dropped, and pushed again: above the credit of all but very many writers.
PUSH_GATEWAY_BYTES: Final = 48 * MIB
PUSH_GATEWAY_MARK: Final = 10_000  # ... and in number
PUSH_GATEWAY_MARK_MIN: Final = 32  # however large: one writer's large blocks shall not drop the others' small ones
assert PUSH_GATEWAY_BYTES > STAGE_CREDIT_POOL_BYTES

# Scan: NSQ's numbers (nsqd's queueScanLoop)
SCAN_INTERVAL_MS: Final = 100
SCAN_REFRESH_MS: Final = 5_000
SCAN_SELECTION: Final = 20
SCAN_WORKERS_MAX: Final = 4
SCAN_WORKER_SHARE: Final = 0.25
SCAN_DIRTY_SHARE: Final = 0.25
SCAN_ANSWER_MS: Final = 1_000
SCAN_SOON_MS: Final = 50  # a round waits so long for one that does not answer: half an interval, and many times what an answer takes
SCAN_REPORT_MS: Final = 250  # for a worker that does not report: it has waited the time above, and is slow or hangs
SCAN_RECONNECT_MAX_MS: Final = 5_000  # between two attempts to reach one that is down; its end is told
SCAN_MISSED_MAX: Final = 3
SCAN_HUNG_S: Final = 10.0

# Processes
PUBLISHERS_SHOWN: Final = 200  # of one topic, to who asks
PULSE_MS: Final = 1_000
DETAILS_BYTES_MAX: Final = 4 * MIB  # of one actor's details (rows of clients): some 5,000 clients; the others are counted only
STATS_DETAILS_BYTES_MAX: Final = 8 * MIB  # of all rows of clients and publishers in one answer about the whole broker
FAILURE_CHARS_MAX: Final = 1_000  # of what an actor says as it fails: it is part of many answers
RELOAD_S: Final = 10.0  # until an actor that was told new settings has answered; a gateway that has not is started again
RELOAD_FIRST_S: Final = 1.0  # ... and for the first time: an order is lost where a connection breaks in the same moment
RELOAD_HEALTH_S: Final = 1.0  # ... and so long it may have the old ones before health is bad
TELL_SCAN_MS: Final = 20  # between two lists of what there is to be scanned, and a tenth of a millisecond for each that is there
IDLE_PULSE_MS: Final = 10_000  # of an actor to whom nobody says anything: a thousand idle channels shall cost next to nothing
REPORT_S: Final = 1.0  # until those who were asked for a pulse have answered, and ...
REPORT_EACH_S: Final = 0.005  # ... so much for each: an answer with details takes 1.5 ms of a processor
REPORT_S_MAX: Final = 9.0  # twice it, for who waits for the next gathering, is below a client's patience
STARTS_MAX: Final = 32  # channels of a topic that are on their way up at a time
STARTS_TURN_MS: Final = 20  # for starts in one turn of the supervisor: forking one takes 2 ms of it, and 20 and more on a busy machine
LARGE_CHANGE: Final = 50  # processes started, ended or asked for details, after which the supervisor gives memory back once it is quiet
MEMORY_LOOK_MS: Final = 5_000  # ... which it looks after so often
START_TIMEOUT_S: Final = 120.0  # recovery reads the last chunk
STOP_TIMEOUT_S: Final = 10.0
STOP_COMMIT_S: Final = 5.0  # a channel that ends waits so long for its last commit: storage may have no space for it
RESTARTS_MAX: Final = 20
RESTARTS_WITHIN_S: Final = 60.0
PROCESSES_MAX: Final = 2_500
PROCESSES_MAX_LEAST: Final = 64  # on a machine of any size
# Of the machine's memory for each process, by default: 6 to 11 MiB are its own, the rest is the page cache's.
PROCESS_MEMORY_BYTES: Final = 16 * MIB
TOPICS_MAX: Final = 10_000
EMPTIED_MAX: Final = 100  # ranges that a topic was emptied of while paused, and that a channel still has to pass
CHANNELS_MAX: Final = 1_000
WAITERS_MAX: Final = 10_000
ASKED_MAX: Final = 100_000  # questions to the supervisor without an answer; of more the oldest get none
SOCKETS_MAX: Final = 16_384
DRAIN_MAX: Final = 256  # messages taken from one socket in one turn of the loop


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What `zsq serve` is told.

    `gateway`: host:port of the ZeroMQ gateway, "" for none; `gateway_push`: where it takes what PUSH writers send, "" for the
    port that `push_listen` chooses. `nsq`, `http`: None for none. `sync`: mode of topics made without one. `auto_create`: one of
    AUTO_CREATE. `stage_timeout_s`: how long an unused stage is kept, sealed or not; 0: STAGE_OPEN_KEPT_S and STAGE_SEALED_KEPT_S.
    `retention`: what holds for topics that have no setting of their own, by the names of `transport.settings.Retention`. `processes_max`:
    how many processes may run when a topic or channel is made; 0: by the machine's memory.
    `message_bytes_max`: the largest message that is taken.
    """

    data_dir: Path
    gateway: str = "127.0.0.1:4153"
    gateway_push: str = ""
    nsq: NsqOptions | None = None
    http: HttpOptions | None = None
    node_id: int = 0
    chunk_bytes: int = 256 * MIB
    message_bytes_max: int = MESSAGE_BYTES_MAX
    log_level: str = "info"
    log_format: str = "text"
    sync: str = "always"
    auto_create: str = "always"
    stage_timeout_s: float = 0.0
    processes_max: int = 0
    retention: Mapping[str, object] = field(default_factory=dict)
    alarms: AlarmOptions = field(default_factory=AlarmOptions)
    security: SecurityOptions = field(default_factory=SecurityOptions)


def push_listen(serve_options: ServeOptions) -> str:
    """host:port for PUSH writers: as told, else 4154 beside the usual 4153, else any free port (0) of the same host."""
    if serve_options.gateway_push or not serve_options.gateway:
        return serve_options.gateway_push
    host, _, port = serve_options.gateway.rpartition(":")
    return f"{host}:{4154 if port == '4153' else 0}"
