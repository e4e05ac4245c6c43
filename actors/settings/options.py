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
from dataclasses import field, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

from ...transport.block.block_format import MESSAGE_BYTES_MAX
from ...transport.records import Record, record
from ...transport.settings import check

# An alarm changes when a backlog has stayed above or below its threshold for this time.
HOLD_S: Final = 10.0
HOLD_S_MAX: Final = 86_400.0
RECEIVERS_MAX: Final = 16  # each receiver has a thread
_BEHIND_HOST: Final = re.compile(r"[/?#\\;\s]")


@record
class AlarmOptions(Record):
    """Thresholds and receivers of alarms.

    `depth` and `age_s` are the thresholds of channels that set none; -1 means no threshold.
    `topic_depth` is for the depth of all channels of a topic together, and `total_depth` for that
    of all topics. `held_bytes` is for the log files that unfinished messages of a topic hold.
    `dead_letters` is for the letters of a dead-letter topic whose channels set none, and
    `total_dead_letters` for those of all dead-letter topics. An
    alarm is raised when a backlog has stayed above its threshold for `hold_s`, and cleared when it
    has stayed at or below 80% of the threshold for that time.
    `webhooks` are URLs that get a JSON POST with `webhook_token` as bearer. Each of `commands` is
    an argv that gets JSON on stdin.
    """

    depth: int = -1
    age_s: float = -1
    topic_depth: int = -1
    total_depth: int = -1
    held_bytes: int = -1
    dead_letters: int = -1
    total_dead_letters: int = -1
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
    """Return scheme and host of a URL. For many services the rest of the URL is a secret."""
    scheme, _, rest = url.partition("://")
    host = _BEHIND_HOST.split(rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme[:10]}://{host[:100]}" if rest else "a URL without a scheme"


NSQ_LISTEN: Final = "127.0.0.1:4150"
HTTP_LISTEN: Final = "127.0.0.1:4151"


@record
class TlsOptions(Record):
    """TLS of a gateway: paths of PEM files and modes.

    `client_auth` is "", "require" or "require-verify"; `required` is "", "true" or "tcp-https".
    """

    cert: str = ""
    key: str = ""
    root_ca: str = ""
    client_auth: str = ""
    required: str = ""
    min_version: str = "tls1.2"


@record
class NsqOptions(Record):
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


@record
class HttpOptions(Record):
    """Options of the HTTP gateway.

    `listen` is HOST:PORT. `given` is True if the user set `listen`. `nsq` is the NSQ gateway that
    /info, /lookup and /nodes describe, or None without an NSQ gateway. `tls_cert` and `tls_key` are
    paths of PEM files, both or none. `allowed_hosts` are host names that clients may use, besides
    those of this machine. `console` is the folder of the console's static files, "" for none.
    """

    listen: str = HTTP_LISTEN
    given: bool = False
    nsq: NsqOptions | None = None
    tls_cert: str = ""
    tls_key: str = ""
    allowed_hosts: tuple[str, ...] = ()
    console: str = ""


@record
class SecurityOptions(Record):
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

# The clients whose first use of a topic creates it. With `never`, first use creates no channels
# either.
AUTO_CREATE: Final = ("always", "publishers", "never")
# The topics that have processes of their own. The others share some.
OWN_PROCESS: Final = ("always", "busy", "never")
# The time between syncs in the mode `interval`. EQueue uses this value; NSQ waits 2 s.
SYNC_INTERVAL_MS: Final = 100

# Channel
# The blocks that a channel holds ahead of its consumers. 20 blocks of 200 KB hide the delay between
# the processes.
WINDOW_BYTES_MAX: Final = 4 * MIB
# The blocks that a channel keeps for requeued messages. Older blocks are read from the storage.
CACHE_BYTES_MAX: Final = 4 * MIB
# A channel's process is restarted when more than CORRUPT_MAX blocks changed in its memory within
# CORRUPT_S.
CORRUPT_MAX: Final = 10
CORRUPT_S: Final = 60
# With this many rows behind its cursor, a channel delivers no new messages. Deferred rows have a
# separate limit.
HOLE_ROWS_MAX: Final = 10_000
# With this many deferred rows, a channel delivers no new messages. A row takes about 200 bytes on
# disk.
DEFERRED_ROWS_MAX: Final = 10_000_000
# A channel reads due deferred rows only while it holds fewer rows than this, so that it can still
# deliver new messages.
DUE_HELD_MAX: Final = HOLE_ROWS_MAX // 2
DUE_ROWS_MAX: Final = 1_000  # the most due rows that one reply of the state store contains
SAVE_ROWS_MAX: Final = 50_000  # rows of one frame; a row has at most 36 bytes, so it is below 2 MB
# The most frames of one commit. This is enough for a few million messages in flight, if every
# second one is answered.
SAVE_PAGES_MAX: Final = 200
SAVE_INTERVAL_MS: Final = 200  # the longest time before a change of the cursor is committed
GATHER_COUNT_MAX: Final = 1_000  # the most messages of one delivery that are not contiguous
GATHER_BYTES_MAX: Final = 1 * MIB
LOOKS_MAX: Final = 20_000  # messages that a channel filters in one turn of its loop: about 2 ms
LOOK_BLOCK: Final = 10  # a block counts as this many messages of LOOKS_MAX
# The most messages that wait in an ordered channel until they may be sent. They take up to 10 MB.
ORDERED_PARKED_MAX: Final = 50_000
# With this many messages ready to send, an ordered channel reads no further messages.
ORDERED_AHEAD: Final = 2_000
# With fewer messages in flight or ready to send, an ordered channel reads further than the blocks
# that it can hold.
ORDERED_BUSY: Final = 64
# Sorting a message counts as this many messages of LOOKS_MAX, because its key is hashed.
ORDERED_LOOK: Final = 4
# This many contiguous messages without a key are sent as a separate delivery.
ORDERED_ALONE: Final = 64
# An ordered channel stops gathering a delivery when the blocks of this many messages are missing.
ORDERED_MISSED_MAX: Final = 64
# The size of one read for parked messages. They lie close together, unlike redeliveries.
ORDERED_READ_BYTES: Final = 256 * KIB
# The limit of deferred rows of an ordered channel. It is lower than DEFERRED_ROWS_MAX, because a
# start must sort these rows first.
ORDERED_DEFERRED_ROWS_MAX: Final = 100_000
# A channel with priorities, or a fair one, reads no further messages while its parked messages are
# in this many runs. A run is adjacent messages of one priority, or of one key.
PARKED_ROWS_MAX: Final = 20_000
# The part of LOOKS_MAX that reading ahead may use. The rest is left for deliveries.
PARKED_LOOKS: Final = LOOKS_MAX // 2
# A block is kept for its first delivery if fewer messages than this wait before its own.
PARKED_KEPT: Final = 2_000
# This many contiguous parked messages are sent as a separate delivery.
PARKED_ALONE: Final = GATHER_COUNT_MAX
# When consumers want messages again, such a channel waits at most this long for the newest ones,
# which may go first.
PARKED_HOLD_NS: Final = 200_000_000
# The size of one read for parked messages. They lie close together, unlike redeliveries.
PARKED_READ_BYTES: Final = 256 * KIB
# The blocks that a fair channel keeps. The next messages of its keys are in different ones.
FAIR_CACHE_BYTES_MAX: Final = 16 * MIB
# The next blocks of all keys are read ahead if the runs of adjacent messages of a key are shorter.
FAIR_SHORT_RUN: Final = 64
# A fair channel stops gathering a delivery when the next blocks of this many keys are missing.
FAIR_MISSED_MAX: Final = 64
# The messages without a key that a fair channel delivers in one round. Each key has one, or its
# weight.
FAIR_LOOSE_WEIGHT: Final = 16
# The most keys without messages whose buckets (`max_rate_per_key`) are remembered until they are
# full. Beyond that, those that are longest without messages are forgotten, and begin full.
FAIR_BUCKETS_MAX: Final = 100_000
# The time of handlers for which a consumer of a fair channel should hold messages. What it holds
# goes before the first message of a new key.
FAIR_BUFFER_MS: Final = 50
TENANTS_SHOWN: Final = 5  # the most keys in the statistics of a fair channel
FETCHES_MAX: Final = 4  # the most unanswered reads of blocks for redelivery
CONSUMERS_MAX: Final = 10_000
# The most characters of error texts that a channel keeps for messages on their way to the dead
# letters. Further dead letters are sent without their error text.
DYING_TEXT_MAX: Final = 1 * MIB
FAILURES_MAX: Final = 200  # the last failed deliveries whose errors a channel remembers
BLOCKERS_SHOWN: Final = 3  # the most blocking messages in the statistics of a channel
DEAD_TICK_MS: Final = 100  # interval between checks of the link while dead letters are being sent
# The delay before refused dead letters (a full topic or disk) are sent again. It doubles with each
# try, up to DEAD_RETRY_S_MAX.
DEAD_RETRY_S: Final = 1.0
DEAD_RETRY_S_MAX: Final = 30.0
DEAD_SILENT_S: Final = 5.0  # a longer wait for an answer is shown in health
# The link to the dead-letter topic is closed this long after the last dead letter.
DEAD_IDLE_S: Final = 10.0
# A channel that ends waits this long for dead letters that are being sent. Otherwise they would be
# sent a second time.
DEAD_STOP_S: Final = 1.0
PEEK_MAX: Final = 1_000  # messages of each state in a peek, so that its answer is one small frame
# The most consumers of a channel that have separate percentiles. Each consumer that finishes
# messages takes 20 KB.
CONSUMER_LATENCIES_MAX: Final = 200
# The length of a slot of time in a consumer's percentiles. It is longer than the channel's slot, so
# the slots take a fifth of the memory. The window covers 10 to 12 minutes.
CONSUMER_LATENCY_SLOT_S: Final = 120
# The most bytes in flight to one consumer. A ready count limits only the number of messages.
CONSUMER_BYTES_MAX: Final = 16 * MIB

# Ephemeral channels and topics, which are in memory
# The lifetime of a channel that never had a consumer. Other channels end with their last consumer.
EPHEMERAL_UNUSED_S: Final = 60.0
# The limit of a channel's deferred rows. They are in the storage's memory and take about 30 MB.
EPHEMERAL_DEFERRED_ROWS_MAX: Final = 100_000
# The most bytes of a topic's unfinished messages. Finished messages that are kept may take as much
# again.
EPHEMERAL_BYTES_MAX: Final = 64 * MIB
# The limit is lower on a small memory file system: the size of the file system divided by this.
EPHEMERAL_SHARE: Final = 8
# A smaller memory file system is not used, because one topic would fill it.
EPHEMERAL_SHM_BYTES_MIN: Final = 32 * MIB

# Topic
# The newest blocks, for channels that are only a little behind. Other channels read from the
# storage.
RING_BYTES_MAX: Final = 2 * MIB
CREDIT_POOL_BYTES: Final = 256 * MIB  # unanswered blocks of all producers together
CREDIT_BYTES: Final = 8 * MIB  # unanswered blocks of one producer
# The same in a topic with --sync bucket. Its answers take tens of milliseconds more.
CREDIT_BYTES_SHIPPED: Final = 16 * MIB
CREDIT_BYTES_MIN: Final = 256 * KIB
# About 140 producers use up the pool. All further producers get this much and are slower.
CREDIT_BYTES_LEAST: Final = 16 * KIB
APPEND_BYTES_MAX: Final = 2 * MIB  # the most bytes that storage gets as one append
# A smaller amount of blocks waits while another append is being stored.
APPEND_BYTES_LITTLE: Final = 64 * KIB
# The most appends that are being stored. Further blocks wait in the topic and are gathered.
APPENDS_OUT_MAX: Final = 8
APPENDS_OUT_SHIPPED: Final = 64  # the same in a topic with --sync bucket
# The most producers that a topic remembers. If there are more, it forgets the least recently used.
PRODUCERS_MAX: Final = 20_000
RECENT_SEQUENCES: Final = 256  # answers of each producer that are remembered for repeated blocks
PRODUCER_KEPT_S: Final = 7 * 86_400

# Storage
CHECKPOINT_INTERVAL_MS: Final = 1_000
# With a bucket, a topic reserves at least this many offsets ahead in the log of ticks.
SHIP_RESERVE: Final = 1 << 16
# A small append is synced in the loop if no other sync is under way. To wake the thread and then
# the loop would cost more.
INLINE_SYNC_BYTES_MAX: Final = 64 * KIB
# After a sync that took longer than this, the thread does the next one, so that producers and
# channels do not wait.
INLINE_SYNC_NS_MAX: Final = 1_000_000
READ_BYTES_MAX: Final = 4 * MIB  # the size of one answer to a channel
READER_BYTES_MAX: Final = 1 * MIB  # the size of one answer to a reader
# The most unread answers of a reader. Further answers are dropped, and the reader asks again.
READER_ANSWERS_MAX: Final = 32
# The default size of a topic's cache of archived chunks: one chunk of the usual size.
BUCKET_CACHE_BYTES: Final = 256 * MIB
# The interval at which retention is applied. So space is free again within seconds.
RETENTION_TICK_MS: Final = 1_000
RETRY_S_MAX: Final = 60.0  # longest delay between attempts to start a topic that cannot start
# The delay before an actor that found no free descriptor is started again. It doubles with each
# try, up to FILES_RETRY_S_MAX.
FILES_RETRY_S: Final = 0.25
FILES_RETRY_S_MAX: Final = 1.0
FILES_WAIT_S: Final = 3.0  # a request for such a topic waits this long before it fails
LOCK_WAIT_S: Final = 10.0
# An actor that failed ends this much later, so that its last messages are sent.
LAST_WORDS_S: Final = 0.2

# Delayed messages
# The size of one move to the log. Publishers wait no longer than its write takes.
DELAYED_MOVE_BYTES: Final = 2 * MIB
# The number of blocks of one move. A block of one message costs 10 microseconds.
DELAYED_MOVE_ROWS: Final = 2_000
DELAYED_RETRY_NS: Final = 1_000_000_000  # delay after a full disk
# The longest time between scans while messages wait, in case the wall clock is put forward.
DELAYED_LOOK_NS: Final = 10_000_000_000
DELAYED_LIST_MAX: Final = 1_000
DELAYED_LIST_BODY_BYTES: Final = 200
DELAYED_CANCEL_MAX: Final = 1_000  # the most keys in one order to cancel
DELAYED_CANCEL_ROWS: Final = 5_000  # rows of one step when all delayed messages are cancelled
# The size of one such step. LMDB reads all its bytes, and publishers wait meanwhile.
DELAYED_CANCEL_BYTES: Final = 32 * MIB

# Staging
STAGE_CREDIT_POOL_BYTES: Final = 32 * MIB  # blocks of all writers that are under way to one topic
STAGE_CREDIT_BYTES: Final = 4 * MIB  # blocks of one writer that are under way
# This is less than one of Spark's blocks. A writer then sends one block at a time, but all
# executors of a large cluster make progress.
STAGE_CREDIT_BYTES_MIN: Final = 64 * KIB
# The most writers with credit. Writers with the least credit may exceed the pool.
STAGE_WRITERS_MAX: Final = 256
STAGE_SEAL_WAIT_S: Final = 5.0  # a seal waits this long for pushes that are still under way
# A gap is reported again after this time, because blocks that were sent again may be lost too.
STAGE_GAP_RETELL_S: Final = 1.0
# An unused stage that was not finally sealed is kept this long.
STAGE_OPEN_KEPT_S: Final = 15 * 60.0
# An unused stage that was finally sealed is kept this long, because its driver may come back to
# commit it.
STAGE_SEALED_KEPT_S: Final = 24 * 3600.0
STAGES_MAX: Final = 20_000  # stages of a topic: twice as many as one commit may name
STAGES_PER_LINK_MAX: Final = 64
STAGE_LINKS_MAX: Final = 10_000
STAGE_SEALS_MAX: Final = 16  # waiting seals of one stage
STAGE_ANSWERS_MAX: Final = 10_000  # unread answers of a writer
STAGE_TICK_MS: Final = 1_000
STAGE_EXPIRE_MS: Final = 1_000
# The size of the blocks that one turn of the loop writes. Publishers wait no longer than this write
# takes.
STAGE_TURN_BYTES: Final = 4 * MIB
# The most unread pushes of one writer, even if it exceeds its credit. Further pushes wait at the
# writer.
PUSH_MARK: Final = 128
# 256 KiB is the size of the blocks that Spark's sink makes.
assert PUSH_MARK * 256 * KIB <= STAGE_CREDIT_POOL_BYTES
# The pushes for one storage that a gateway holds. Further pushes are dropped, and the writers send
# them again. The limit is above the credit of all writers unless there are very many.
PUSH_GATEWAY_BYTES: Final = 48 * MIB
PUSH_GATEWAY_MARK: Final = 10_000  # the most pushes that a gateway holds for one storage
# A gateway holds at least this many pushes, whatever their size. So the small blocks of one writer
# are not dropped because of the large blocks of another.
PUSH_GATEWAY_MARK_MIN: Final = 32
assert PUSH_GATEWAY_BYTES > STAGE_CREDIT_POOL_BYTES

# Scan. These are NSQ's values (nsqd's queueScanLoop), except the interval. NSQ finds what is due
# only by scanning, every 100 ms. In ZSQ each channel reports when its next message is due. Scans at
# random find only what was missed because such a report was lost.
SCAN_IDLE_MS: Final = 1_000
# The interval while the report on an order is not complete, or no worker is free.
SCAN_INTERVAL_MS: Final = 100
SCAN_REFRESH_MS: Final = 5_000
SCAN_SELECTION: Final = 20
SCAN_WORKERS_MAX: Final = 4
SCAN_WORKER_SHARE: Final = 0.25
SCAN_DIRTY_SHARE: Final = 0.25
SCAN_ANSWER_MS: Final = 1_000
# A round waits this long for the answers of channels. This is half an interval, and much longer
# than an answer takes.
SCAN_SOON_MS: Final = 50
# The time limit of a worker's report. A worker waits only SCAN_SOON_MS for answers. So if its
# report takes longer than this, the worker is slow or hangs.
SCAN_REPORT_MS: Final = 250
# The longest time between attempts to reach an actor that is down. It may be long, because the
# supervisor reports the end of an actor.
SCAN_RECONNECT_MAX_MS: Final = 5_000
SCAN_MISSED_MAX: Final = 3
SCAN_HUNG_S: Final = 10.0

# Processes
PUBLISHERS_SHOWN: Final = 200  # the most publishers of one topic in a report
PULSE_MS: Final = 1_000
# The size of one actor's details (rows of clients). This is enough for about 5,000 clients. Further
# clients are only counted.
DETAILS_BYTES_MAX: Final = 4 * MIB
# The size of the rows of clients and publishers in one answer about the whole broker.
STATS_DETAILS_BYTES_MAX: Final = 8 * MIB
# The length of an actor's failure text. The text is part of many answers.
FAILURE_CHARS_MAX: Final = 1_000
# An actor must answer new settings within this time. A gateway that does not answer is restarted.
RELOAD_S: Final = 10.0
# The first order with new settings is repeated after this time, because a connection that breaks
# may lose it.
RELOAD_FIRST_S: Final = 1.0
RELOAD_HEALTH_S: Final = 1.0  # an actor may have old settings this long before health is bad
# The time between two lists of the actors to scan. A tenth of a millisecond is added for each
# actor.
TELL_SCAN_MS: Final = 20
# The first time between the pulses of an actor without messages. It doubles up to the longest. A
# thousand idle channels must cost almost nothing.
IDLE_PULSE_MS: Final = 10_000
IDLE_PULSE_MS_MAX: Final = 160_000
# Actors must answer a request for pulses within REPORT_S plus REPORT_EACH_S for each actor, but
# within REPORT_S_MAX. An answer with details takes 1.5 ms of processor time.
REPORT_S: Final = 1.0
REPORT_EACH_S: Final = 0.005
# A request that waits for the next gathering takes up to twice this time. That is below a client's
# timeout.
REPORT_S_MAX: Final = 9.0
# The longest turns of the supervisor, while something is under way and while nothing is.
TURN_MS: Final = 100
IDLE_TURN_MS: Final = 300
STARTS_MAX: Final = 32  # channels of a topic that start at the same time
# The time for starts in one turn of the supervisor. A fork takes 2 ms, and more than 20 ms on a
# busy machine.
STARTS_TURN_MS: Final = 20
# After this many starts, ends and reports, the supervisor gives memory back once it is quiet.
LARGE_CHANGE: Final = 50
MEMORY_LOOK_MS: Final = 5_000  # interval of that check
START_TIMEOUT_S: Final = 120.0  # this is long, because recovery reads the last chunk
STOP_TIMEOUT_S: Final = 10.0
STOP_TOLD_S: Final = 2.0  # a stop that takes longer says what it waits for
SIGNALS_AS_ONE_S: Final = 1.0  # signals to stop within this time count as one
SLEEP_AFTER_S: Final = 60.0
SLEEP_LOOK_MS: Final = 1_000
# A channel that ends waits at most this long for its last commit, because storage may have no
# space.
STOP_COMMIT_S: Final = 5.0
RESTARTS_MAX: Final = 20
RESTARTS_WITHIN_S: Final = 60.0
# A topic whose process, or the process of a channel, was restarted so often within this time is
# unwell, although it is up.
UNSTEADY_RESTARTS: Final = 5
UNSTEADY_S: Final = 300.0
PROCESSES_MAX: Final = 2_500
PROCESSES_MAX_LEAST: Final = 64  # the default limit is at least this, on any machine
# The memory that the default limit allows for each process. A process holds 6 to 11 MiB. The rest
# is for the page cache.
PROCESS_MEMORY_BYTES: Final = 16 * MIB
BUSY_AT: Final = 0.15  # the processor time of a busy topic, in cores
SHARE_AFTER_S: Final = 60.0
# A channel that is to move gives out nothing for so long at most. Its topic moves only if consumers
# hold no message of any channel after MOVE_PATIENCE_S.
HOLD_MS: Final = 500
MOVE_PATIENCE_S: Final = 0.05
# The time between two tries to move a topic. It doubles with each try that fails, to the longest.
MOVE_AGAIN_S: Final = 1.0
MOVE_AGAIN_S_MAX: Final = 60.0
MOVES_FAILED: Final = 3  # after so many tries, the neighbours of a busy topic leave it
# So many actors of shared hosts count as one process. An actor takes 0.3 to 0.7 MiB there.
SHARED_AS_ONE: Final = 16
SHARED_HOST_SOCKETS: Final = 8_192  # a topic with 1,000 channels needs 4,100
# The stack of an actor's thread in a shared host. Only the pages that are used take memory.
ACTOR_STACK_BYTES: Final = MIB
TOPICS_MAX: Final = 10_000
# The most ranges that were emptied while the topic was paused and that a channel has not reached
# yet.
EMPTIED_MAX: Final = 100
DELAYED_LOOK_ROWS: Final = 10_000  # rows that one order to revoke keys looks at
# The most revoked keys of a channel. They are in its row, which each commit writes.
REVOKED_MAX: Final = 1_000
CHANNELS_MAX: Final = 1_000
WAITERS_MAX: Final = 10_000
# The most unanswered requests to the supervisor. If there are more, the oldest get no answer.
ASKED_MAX: Final = 100_000
SOCKETS_MAX: Final = 16_384
DRAIN_MAX: Final = 256  # messages read from one socket in one turn of the loop
DRAIN_NS: Final = 20_000_000  # after this time no more blocks are read from it in this turn


BUCKET_LAG_S: Final = 1.0
PATIENCE_S: Final = 10.0  # of a standby


_OptionsT = TypeVar("_OptionsT")


@record
class ServeOptions(Record):
    """Options of `zsq serve`.

    `gateway` is host:port of the ZeroMQ gateway, "" for none. `gateway_push` is its address for
    PUSH writers, "" for the port that `push_listen` chooses. `sync` is the mode of topics that are
    created without a mode. `auto_create` is one of AUTO_CREATE. `stage_timeout_s` is how long an
    unused stage is kept, sealed or not; 0 means
    STAGE_OPEN_KEPT_S and STAGE_SEALED_KEPT_S. `retention` applies to topics without settings, by
    the names of `transport.settings.Retention`. A topic or channel is made only while fewer than
    `processes_max` processes run; 0 takes the limit from the machine's memory. `max_msg_size`
    is the size of the largest message that is accepted. If a topic is not used for `sleep_after_s`
    seconds, its processes end. 0 means that they never end. `own_process` is one of OWN_PROCESS. A
    topic is busy if it takes `busy_at` cores of processor time, and shares a process again when it
    was quiet for `share_after_s` seconds. `bucket` is the URL of the bucket in
    which full log files are archived, "" for none. `bucket_cache_bytes` is the size of the cache on
    the disk, for each topic, for what is read from the bucket. `bucket_lag_s` is the bound within
    which everything newer is shipped to the bucket. 0 means that it is not shipped. `bucket_costs`
    are the costs of 1,000 requests that write, and of 1,000 that read. As a standby, the broker
    takes over when the primary was quiet for `patience_s` seconds. `cluster` is the bucket URL of
    the cluster's directory, "" for none. `advertise` are the addresses at which clients reach the
    broker, () for that of the gateway. `is_probed` is True if this process has found out as a
    standby that the bucket is fit. `extensions` has the options of extensions, at most one
    object of each class. The core does not know these classes.
    """

    data_dir: Path
    gateway: str = "127.0.0.1:4153"
    gateway_push: str = ""
    node_id: int = 0
    chunk_bytes: int = 256 * MIB
    max_msg_size: int = MESSAGE_BYTES_MAX
    log_level: str = "info"
    log_format: str = "text"
    sync: str = "always"
    auto_create: str = "always"
    stage_timeout_s: float = 0.0
    processes_max: int = 0
    sleep_after_s: float = SLEEP_AFTER_S
    own_process: str = "busy"
    busy_at: float = BUSY_AT
    share_after_s: float = SHARE_AFTER_S
    retention: Mapping[str, object] = field(default_factory=dict)
    security: SecurityOptions = field(default_factory=SecurityOptions)
    bucket: str = ""
    bucket_cache_bytes: int = BUCKET_CACHE_BYTES
    bucket_lag_s: float = BUCKET_LAG_S
    bucket_costs: tuple[float, float] = (0.0, 0.0)
    patience_s: float = PATIENCE_S
    cluster: str = ""
    advertise: tuple[str, ...] = ()
    is_probed: bool = False
    extensions: tuple[object, ...] = ()

    @property
    def ships(self) -> bool:
        """True if everything newer than the full log files goes to the bucket, too."""
        return bool(self.bucket and self.bucket_lag_s)

    def of(self, kind: type[_OptionsT]) -> _OptionsT | None:
        """Return the options of an extension, or None if it is not used."""
        return next((options for options in self.extensions if isinstance(options, kind)), None)

    def having(self, options: object) -> ServeOptions:
        """Return these options with those of an extension replaced or added."""
        kept = {type(extension): extension for extension in (*self.extensions, options)}
        return replace(self, extensions=tuple(kept.values()))


def push_listen(serve_options: ServeOptions) -> str:
    """Return host:port for PUSH writers.

    It is `gateway_push` if that is set. Otherwise it is a port of the gateway's host: 4154 if the
    gateway has the usual port 4153, else any free port (0).
    """
    if serve_options.gateway_push or not serve_options.gateway:
        return serve_options.gateway_push
    host, _, port = serve_options.gateway.rpartition(":")
    return f"{host}:{4154 if port == '4153' else 0}"
