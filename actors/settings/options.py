"""Options: every tunable of the broker, with its unit, default and reason. Pure.

`AlarmOptions` say which backlog raises an alarm, and who receives it. `NsqOptions`,
`HttpOptions` and `TlsOptions` are for the gateways for NSQ and HTTP; their names and defaults are
nsqd's where nsqd has them (docs/coming-from-nsq.md compares them). `SecurityOptions` say who may
connect.

Secrets are never part of a command line, where every user of the machine can read them: see
`apps/cli/run/option_table.py`.
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

HOLD_S: Final = 10.0  # a backlog counts when it stays above or below its threshold for this time
HOLD_S_MAX: Final = 86_400.0
RECEIVERS_MAX: Final = 16  # each has a thread
_BEHIND_HOST: Final = re.compile(r"[/?#\\;\s]")


@dataclass(frozen=True, slots=True)
class AlarmOptions:
    """Thresholds and receivers of alarms.

    `depth` and `age_s` are the thresholds of channels that set none; -1 is none. A backlog is
    reported when it has stayed above its threshold (to clear the alarm: below it) for `hold_s`.
    `webhooks` are URLs that get a JSON POST with `webhook_token` as bearer. Each of `commands` is
    an argv that gets JSON on stdin.
    """

    depth: int = -1
    age_s: float = -1
    hold_s: float = HOLD_S
    webhooks: tuple[str, ...] = ()
    webhook_token: str = field(default="", repr=False)
    commands: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        check(
            0 <= self.hold_s <= HOLD_S_MAX,
            (
                f"the hold time of alarms must be 0 to {HOLD_S_MAX:g} s, not {self.hold_s} "
                "(--alarm-hold)"
            ),
        )
        for url in self.webhooks:
            check_url(url)
        check(all(self.commands), "an alarm command is empty; name a program (--alarm-command)")
        count = len(self.webhooks) + len(self.commands)
        check(
            count <= RECEIVERS_MAX,
            (
                f"alarms can have at most {RECEIVERS_MAX} receivers, not {count} (--alarm-webhook, "
                "--alarm-command)"
            ),
        )

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
    check(
        good,
        (
            f"the URL of a webhook must be http://... or https://..., not {shown_url(url)!r} "
            "(--alarm-webhook)"
        ),
    )
    check(
        "@" not in place,
        (
            "the URL of a webhook must not contain a user or password; set a token with "
            "ZSQ_ALARM_WEBHOOK_TOKEN"
        ),
    )


def shown_url(url: str) -> str:
    """Return scheme and host: for many services the rest is the secret."""
    scheme, _, rest = url.partition("://")
    host = _BEHIND_HOST.split(rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme[:10]}://{host[:100]}" if rest else "a URL without a scheme"


NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """TLS of a gateway: paths of PEM files and modes.

    `client_auth` is "", "require" or "require-verify"; `required` is "", "true" or "tcp-https".
    """

    cert: str = ""
    key: str = ""
    root_ca: str = ""
    client_auth: str = ""
    required: str = ""
    min_version: str = "tls1.2"


@dataclass(frozen=True, slots=True)
class NsqOptions:
    """Options of the NSQ gateway; times are in ms.

    Each of `listen` is HOST:PORT or unix:PATH. `given` is True if the user set `listen`. Then an
    address that cannot be used is an error and not a warning.
    """

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
    http_port: int = 0  # port of the HTTP gateway of this broker; 0 without one
    topology_region: str = ""
    topology_zone: str = ""
    connections_max: int = 10_000


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """Options of the HTTP gateway.

    `listen` is HOST:PORT; `given` is as above. `nsq` is the NSQ gateway that /info, /lookup and
    /nodes describe, or None without an NSQ gateway. `tls_cert` and `tls_key` are paths of PEM
    files, both or none. `allowed_hosts` are host names that clients may use, besides those of this
    machine. `console` is the folder of the console's static files, "" for none.
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
    """Access control. Files are paths here, so that only the process that needs a file reads it.

    No message contains the secrets. `access_file` holds the rules (`access.py`); "" allows
    everything to every client. `curve_key_file` is the key pair of the ZeroMQ gateway, made by `zsq
    keys server`; with it, clients must encrypt. `insecure` allows listening beyond loopback without
    authentication.
    """

    access_file: str = ""
    curve_key_file: str = ""
    insecure: bool = False


KIB: Final = 1024
MIB: Final = 1024 * 1024

# whose first use creates topics; with `never`, first use creates no channels either
AUTO_CREATE: Final = ("always", "publishers", "never")
SYNC_INTERVAL_MS: Final = 100  # mode `interval`: EQueue's value; NSQ waits 2 s

# Channel
# Blocks ahead of consumers: 20 of 200 KB hide the delay between processes.
WINDOW_BYTES_MAX: Final = 4 * MIB
# blocks kept for requeued messages; older ones are read from storage
CACHE_BYTES_MAX: Final = 4 * MIB
# blocks that were corrupted in a channel's memory within CORRUPT_S; with more, the process is
# restarted
CORRUPT_MAX: Final = 10
CORRUPT_S: Final = 60
HOLE_ROWS_MAX: Final = 10_000  # beyond it no new messages are delivered until old ones are finished
# requeued with a delay, on disk, about 200 bytes each; beyond it no new messages are delivered
DEFERRED_ROWS_MAX: Final = 10_000_000
# due deferred rows are read only while fewer are held, so that new messages are still delivered
DUE_HELD_MAX: Final = HOLE_ROWS_MAX // 2
DUE_ROWS_MAX: Final = 1_000  # rows of one answer
# no requeue is due later; it includes a minute in case the clock is changed
DUE_LATEST_NS: Final = (REQUEUE_DELAY_MS_MAX + 60_000) * 1_000_000
# redeliveries whose attempt number one commit records; the rest of a long range waits
PROMISED_MAX: Final = 50_000
# while more rows than this, or half of PROMISED_MAX messages, are ready, nothing more is recorded
PROMISED_ROWS_LOW: Final = 4_000
SAVE_ROWS_MAX: Final = 50_000  # rows of one frame: 36 bytes each at most, so under 2 MB
# pages of one commit: enough for a few million in flight with every second one answered
SAVE_PAGES_MAX: Final = 200
SAVE_INTERVAL_MS: Final = 200  # a cursor's changes are committed a few times a second
GATHER_COUNT_MAX: Final = 1_000  # messages of one delivery that are not contiguous
GATHER_BYTES_MAX: Final = 1 * MIB
LOOKS_MAX: Final = 20_000  # messages that a channel filters in one turn of its loop: about 2 ms
LOOK_BLOCK: Final = 10  # a block counts as this many messages of LOOKS_MAX
# messages that an ordered channel reads before it may send them: up to 10 MB
ORDERED_PARKED_MAX: Final = 50_000
# with this many messages ready to send, an ordered channel reads no further messages
ORDERED_AHEAD: Final = 2_000
# with fewer messages in flight or ready, an ordered channel reads beyond the blocks that it holds
ORDERED_BUSY: Final = 64
ORDERED_LOOK: Final = 4  # sorting a message counts as this many of LOOKS_MAX: its key is hashed
# this many contiguous messages without a key are sent without being gathered
ORDERED_ALONE: Final = 64
ORDERED_MISSED_MAX: Final = 64  # messages of one delivery whose blocks must be read first
# one read for parked messages, which lie close together, unlike redeliveries
ORDERED_READ_BYTES: Final = 256 * KIB
ORDERED_DEFERRED_ROWS_MAX: Final = 100_000  # requeued with a delay; a start must sort them first
FETCHES_MAX: Final = 4  # outstanding reads of blocks for redelivery
CONSUMERS_MAX: Final = 10_000
# characters of error texts kept for dead letters under way; beyond it dead letters are sent without
# their error text
DYING_TEXT_MAX: Final = 1 * MIB
DEAD_TICK_MS: Final = 100  # interval of checks of the link while dead letters are under way
# delay before refused dead letters (a full topic or disk) are tried again; each try doubles it
DEAD_RETRY_S: Final = 1.0
DEAD_RETRY_S_MAX: Final = 30.0
DEAD_SILENT_S: Final = 5.0  # a longer wait for an answer is shown in health
# the link to the dead-letter topic is closed this long after the last dead letter
DEAD_IDLE_S: Final = 10.0
# a channel that ends waits this long for dead letters under way, so that they do not come twice
DEAD_STOP_S: Final = 1.0
PEEK_MAX: Final = 1_000  # messages of each kind in a peek: its answer is one small frame
# consumers of a channel with separate percentiles: 20 KB each while they finish
CONSUMER_LATENCIES_MAX: Final = 200
# coarser than the channel's: a fifth of its memory; the window is 10 to 12 minutes
CONSUMER_LATENCY_SLOT_S: Final = 120
# in flight to one consumer: ready counts limit messages, this limits memory
CONSUMER_BYTES_MAX: Final = 16 * MIB

# Ephemeral channels and topics: in memory
# lifetime of a channel without any consumer; others end with the last one
EPHEMERAL_UNUSED_S: Final = 60.0
EPHEMERAL_DEFERRED_ROWS_MAX: Final = 100_000  # rows of a channel, in storage's memory: about 30 MB
# a topic's unfinished messages; and as much again for finished ones that are kept
EPHEMERAL_BYTES_MAX: Final = 64 * MIB
EPHEMERAL_SHARE: Final = 8  # or the size of the memory file system divided by this, if that is less
# a smaller memory file system is not used: one topic would fill it
EPHEMERAL_SHM_BYTES_MIN: Final = 32 * MIB

# Topic
# Newest blocks, for channels a little behind; others read from the storage.
RING_BYTES_MAX: Final = 2 * MIB
CREDIT_POOL_BYTES: Final = 256 * MIB  # unanswered blocks of all producers
CREDIT_BYTES: Final = 8 * MIB  # of one producer
CREDIT_BYTES_MIN: Final = 256 * KIB
# when the pool is used up, by about 140 producers, all others get this much and are slower
CREDIT_BYTES_LEAST: Final = 16 * KIB
APPEND_BYTES_MAX: Final = 2 * MIB  # blocks given to storage as one append
APPEND_BYTES_LITTLE: Final = 64 * KIB  # less than that waits while another append is under way
APPENDS_OUT_MAX: Final = 8  # appends under way; more blocks wait in the topic and are gathered
# producers that a topic remembers; beyond it the least recently used one is forgotten
PRODUCERS_MAX: Final = 20_000
RECENT_SEQUENCES: Final = 256  # answers of each producer that are remembered for repeated blocks
PRODUCER_KEPT_S: Final = 7 * 86_400

# Storage
CHECKPOINT_INTERVAL_MS: Final = 1_000
# a small lone append is synced in the loop: two wake-ups of a thread cost more
INLINE_SYNC_BYTES_MAX: Final = 64 * KIB
# after a sync that took longer, the thread does the next one, so that producers and channels do not
# wait
INLINE_SYNC_NS_MAX: Final = 1_000_000
READ_BYTES_MAX: Final = 4 * MIB  # one answer to a channel
READER_BYTES_MAX: Final = 1 * MIB  # one answer to a reader
# unread answers of a reader; more are dropped, and the reader asks again
READER_ANSWERS_MAX: Final = 32
RETENTION_TICK_MS: Final = 1_000  # space is free again within seconds
RETRY_S_MAX: Final = 60.0  # longest delay between attempts to start a topic that cannot start
# delay before an actor that found no free descriptor is started again; each try doubles it
FILES_RETRY_S: Final = 0.25
FILES_RETRY_S_MAX: Final = 1.0
FILES_WAIT_S: Final = 10.0  # a request for such a topic waits this long before it fails
LOCK_WAIT_S: Final = 10.0
# an actor that failed ends this much later, so that its last messages are sent
LAST_WORDS_S: Final = 0.2

# Delayed messages
DELAYED_MOVE_BYTES: Final = 2 * MIB  # moved at once: publishers wait no longer than the write takes
DELAYED_MOVE_ROWS: Final = (
    2_000  # and at most this many blocks: blocks of one message cost 10 microseconds each
)
DELAYED_RETRY_NS: Final = 1_000_000_000  # delay after a full disk
# longest time between scans while messages wait, in case the wall clock is put forward
DELAYED_LOOK_NS: Final = 10_000_000_000
DELAYED_LIST_MAX: Final = 1_000
DELAYED_LIST_BODY_BYTES: Final = 200
DELAYED_CANCEL_MAX: Final = 1_000  # keys of one order
DELAYED_CANCEL_ROWS: Final = 5_000  # rows of one step, if all are cancelled
# bytes of one such step: LMDB reads them all, and publishers wait meanwhile
DELAYED_CANCEL_BYTES: Final = 32 * MIB

# Staging
STAGE_CREDIT_POOL_BYTES: Final = 32 * MIB  # blocks under way to one topic, of all writers
STAGE_CREDIT_BYTES: Final = 4 * MIB  # of one writer
# less than one of Spark's blocks: a writer then sends one block at a time, but all executors of a
# large cluster make progress
STAGE_CREDIT_BYTES_MIN: Final = 64 * KIB
# writers with credit; those with the least credit may exceed the pool
STAGE_WRITERS_MAX: Final = 256
STAGE_SEAL_WAIT_S: Final = 5.0  # a seal waits this long for pushes that are still under way
STAGE_GAP_RETELL_S: Final = (
    1.0  # a gap is reported again after this: blocks that were sent again may be lost too
)
# an unused stage that was not finally sealed is kept this long
STAGE_OPEN_KEPT_S: Final = 15 * 60.0
# an unused stage that was finally sealed is kept this long: its driver may come back to commit it
STAGE_SEALED_KEPT_S: Final = 24 * 3600.0
STAGES_MAX: Final = 20_000  # of a topic: twice as many as one commit may name
STAGES_PER_LINK_MAX: Final = 64
STAGE_LINKS_MAX: Final = 10_000
STAGE_SEALS_MAX: Final = 16  # waiting seals of one stage
STAGE_ANSWERS_MAX: Final = 10_000  # unread answers of a writer
STAGE_TICK_MS: Final = 1_000
STAGE_EXPIRE_MS: Final = 1_000
# written in one turn of the loop: publishers wait no longer than this write takes
STAGE_TURN_BYTES: Final = 4 * MIB
# unread pushes of one writer that exceeds its credit; more wait at the writer
PUSH_MARK: Final = 128
# for blocks of the size that Spark's sink makes
assert PUSH_MARK * 256 * KIB <= STAGE_CREDIT_POOL_BYTES
# Pushes for one storage that a gateway holds. More are dropped, and pushed again. It is above the
# credit of all writers unless there are very many.
PUSH_GATEWAY_BYTES: Final = 48 * MIB
PUSH_GATEWAY_MARK: Final = 10_000  # the same limit as a number of pushes
# the gateway holds at least this many pushes of any size, so that the small blocks of one writer
# are not dropped because of the large blocks of another
PUSH_GATEWAY_MARK_MIN: Final = 32
assert PUSH_GATEWAY_BYTES > STAGE_CREDIT_POOL_BYTES

# Scan: NSQ's values (nsqd's queueScanLoop), except the interval. NSQ finds what is due only by
# scanning, every 100 ms. In ZSQ each channel reports when its next message is due, and scans at
# random find only what was missed because such a report was lost.
SCAN_IDLE_MS: Final = 1_000
SCAN_INTERVAL_MS: Final = 100  # while an order has no complete report, or no worker is free
SCAN_REFRESH_MS: Final = 5_000
SCAN_SELECTION: Final = 20
SCAN_WORKERS_MAX: Final = 4
SCAN_WORKER_SHARE: Final = 0.25
SCAN_DIRTY_SHARE: Final = 0.25
SCAN_ANSWER_MS: Final = 1_000
# a round waits this long for an answer: half an interval, and much longer than an answer takes
SCAN_SOON_MS: Final = 50
# time limit of a worker's report: the worker waits SCAN_SOON_MS for answers, so if it takes longer
# than this, it is slow or hangs
SCAN_REPORT_MS: Final = 250
# between attempts to reach an actor that is down; the supervisor reports its end
SCAN_RECONNECT_MAX_MS: Final = 5_000
SCAN_MISSED_MAX: Final = 3
SCAN_HUNG_S: Final = 10.0

# Processes
PUBLISHERS_SHOWN: Final = 200  # publishers of one topic in a report
PULSE_MS: Final = 1_000
# details of one actor (rows of clients): about 5,000 clients; others are only counted
DETAILS_BYTES_MAX: Final = 4 * MIB
# rows of clients and publishers in one answer about the whole broker
STATS_DETAILS_BYTES_MAX: Final = 8 * MIB
# characters of an actor's failure text, which is part of many answers
FAILURE_CHARS_MAX: Final = 1_000
# an actor must answer new settings within this time; a gateway that does not is restarted
RELOAD_S: Final = 10.0
# first repeat of such an order, as a connection that breaks may lose it
RELOAD_FIRST_S: Final = 1.0
RELOAD_HEALTH_S: Final = 1.0  # an actor may have old settings this long before health is bad
# between two lists of actors to scan, plus a tenth of a millisecond for each actor
TELL_SCAN_MS: Final = 20
# pulse of an actor without messages: a thousand idle channels must cost almost nothing
IDLE_PULSE_MS: Final = 10_000
REPORT_S: Final = 1.0  # time in which all actors must answer a request for pulses
# plus this for each actor: an answer with details takes 1.5 ms of a processor
REPORT_EACH_S: Final = 0.005
# a request that waits for the next round takes up to twice this, which is below a client's timeout
REPORT_S_MAX: Final = 9.0
STARTS_MAX: Final = 32  # channels of a topic that start at the same time
# time for starts in one turn of the supervisor: a fork takes 2 ms, or over 20 ms on a busy machine
STARTS_TURN_MS: Final = 20
# after this many starts, ends and reports, the supervisor gives memory back once it is quiet
LARGE_CHANGE: Final = 50
MEMORY_LOOK_MS: Final = 5_000  # interval of that check
START_TIMEOUT_S: Final = 120.0  # recovery reads the last chunk
STOP_TIMEOUT_S: Final = 10.0
SLEEP_AFTER_S: Final = 60.0
SLEEP_LOOK_MS: Final = 1_000
# a channel that ends waits this long for its last commit: storage may have no space
STOP_COMMIT_S: Final = 5.0
RESTARTS_MAX: Final = 20
RESTARTS_WITHIN_S: Final = 60.0
PROCESSES_MAX: Final = 2_500
PROCESSES_MAX_LEAST: Final = 64  # on a machine of any size
# Memory for each process, by default: it holds 6 to 11 MiB, the rest is for the page cache.
PROCESS_MEMORY_BYTES: Final = 16 * MIB
TOPICS_MAX: Final = 10_000
# ranges that were emptied while the topic was paused, and that a channel has not reached yet
EMPTIED_MAX: Final = 100
CHANNELS_MAX: Final = 1_000
WAITERS_MAX: Final = 10_000
# unanswered requests to the supervisor; beyond it the oldest get no answer
ASKED_MAX: Final = 100_000
SOCKETS_MAX: Final = 16_384
DRAIN_MAX: Final = 256  # messages read from one socket in one turn of the loop


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of `zsq serve`.

    `gateway` is host:port of the ZeroMQ gateway, "" for none. `gateway_push` is its address for
    PUSH writers, "" for the port that `push_listen` chooses. `nsq` and `http` are None for no
    gateway. `sync` is the mode of topics that are created without a mode. `auto_create` is one of
    AUTO_CREATE. `stage_timeout_s` is how long an unused stage is kept, sealed or not; 0 means
    STAGE_OPEN_KEPT_S and STAGE_SEALED_KEPT_S. `retention` applies to topics without settings, by
    the names of `transport.settings.Retention`. A topic or channel is made only while fewer than
    `processes_max` processes run; 0 takes the limit from the machine's memory. `message_bytes_max`
    is the size of the largest message that is accepted. The processes of a topic that nobody uses
    end after `sleep_after_s`; 0 is never.
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
    sleep_after_s: float = SLEEP_AFTER_S
    retention: Mapping[str, object] = field(default_factory=dict)
    alarms: AlarmOptions = field(default_factory=AlarmOptions)
    security: SecurityOptions = field(default_factory=SecurityOptions)


def push_listen(serve_options: ServeOptions) -> str:
    """Return host:port for PUSH writers.

    It is `gateway_push` if set, port 4154 beside the usual 4153, or any free port (0) of the
    same host.
    """
    if serve_options.gateway_push or not serve_options.gateway:
        return serve_options.gateway_push
    host, _, port = serve_options.gateway.rpartition(":")
    return f"{host}:{4154 if port == '4153' else 0}"
