"""Statistics table: one row for each statistic, from which every view is derived.

A new counter of a channel is one row here, one line where it is counted, and its type in
`transport/reports.py`, which has the shapes of whole rows. The row defines the counter itself
(`COUNTERS`), its default before the first report, and its place in `zsq stats` and `--json`, in the
overview (console, `zsq top`), in nsqd's `/stats`, in `/metrics`, and in the tables of
docs/statistics.md. An extension adds its rows (`ExtensionStatistics`).

The rows are in the order of the families in `/metrics`. If NSQ has the same statistic, it has NSQ's
name here. So the field `nsq` contains only the position of a statistic in nsqd's answer.
"""

from __future__ import annotations

from typing import Any, Final

from ..runtime.extensions import filled
from .statistic import ExtensionStatistics, Section, Statistic

_S = Statistic
_VIEW: Final = "statistics/statistics.py"
_METRICS: Final = "gateways/http/api/metrics.py"
_RETENTION: Final = "storage/retention.py"
_DELAYED: Final = "storage/delayed.py"
_DEDUPE: Final = "storage/dedupe.py"
_ROW: Final = "statistics/channel_rows.py"
_CORE: Final = "channel/core.py"
_MEASURED: Final = "channel/measurements.py"
_SUPPLY: Final = "channel/supply.py"
_OVERVIEW: Final = "statistics/overview.py"
NSQ_CLIENT: Final = "gateways/nsq/connection.py"
LATENCY: Final = "e2e_processing_latency"
_NO_LATENCY: Final = {"count": 0, "percentiles": []}

_BROKER: Final = (
    _S("broker", "", "flag", _METRICS, "1 if the broker answers; otherwise 0, and all other metrics are missing", metric="zsq_up"),
    _S("broker", "", "flag", _METRICS, "always 1; the labels identify the broker", metric="zsq_info", more_labels=("version", "uuid")),
    _S("broker", "version", "text", _VIEW, "version of ZSQ", default=""),
    _S("broker", "node", "number", _VIEW, "number of the node, part of each message's id"),
    _S("broker", "uuid", "text", _VIEW, "identity of the data directory", default=""),
    _S("broker", "pid", "number", _VIEW, "process id of the supervisor"),
    _S("broker", "start_time", "s", _VIEW, "when the broker started, since 1970", metric="zsq_start_time_seconds"),
    _S("broker", "", "flag", _METRICS, "1: OK; 0: the disk is full, or a topic failed or cannot write (see /ping)", metric="zsq_healthy"),
    _S("broker", "health", "text", _VIEW, "`OK`, or what is wrong with the broker as a whole", default="OK"),
    _S("disk", "full", "text", "supervisor/disk_watch.py", "1: the disk is full and publishes are refused", metric="zsq_disk_full",
       default="", note="why publishes are refused; `\"\"` while the disk has space. In `/metrics` 1 while publishes are refused"),
    _S("disk", "free_bytes", "bytes", "supervisor/disk_watch.py", "free space for the data directory", metric="zsq_disk_free_bytes"),
    _S("disk", "reserve_bytes", "bytes", "supervisor/disk_watch.py", "free space that is kept: publishes do not use it",
       metric="zsq_disk_reserve_bytes"),
    _S("disk", "directory", "text", "supervisor/disk_watch.py", "the data directory", default=""),
    _S("disk", "refused_count", "publishes", "supervisor/disk_watch.py", "publishes refused while the disk was full, of all topics"),
    _S("broker", "alarms", "rows", _VIEW, "alarms that are raised now", metric="zsq_alarms", default=[]),
    _S("broker", "recent_alarms", "rows", _VIEW, "alarms that were raised or cleared lately", default=[]),
    _S("broker", "alarm_receivers", "rows", _VIEW, "receivers of alarms", default=[]),
    _S("broker", "topics", "rows", _VIEW, "the topics", metric="zsq_topics", default=[]),
    _S("broker", "producers", "rows", _VIEW, "NSQ clients that publish: rows as those of consumers", default=[]),
    _S("broker", "processes", "rows", _VIEW, "processes of the broker", default=[]),
    _S("broker", "gateways", "rows", _VIEW, "NSQ gateways that are up", default=[]),
    _S("broker", "disk", "row", _VIEW, "the file system of the data directory", default={}),
    _S("broker", "clients_left_out", "rows", _VIEW, "rows of clients that the answer had no room for; left out where it is 0"),
    _S("gateway", "name", "text", _VIEW, "name of the gateway's process", default=""),
    _S("gateway", "kind", "text", _VIEW, "`nsq_gateway`", default=""),
    _S("gateway", "connections", "connections", "gateways/nsq/gateway.py", "open connections of NSQ clients", metric="zsq_nsq_connections"),
    _S("gateway", "connections_accepted", "connections", "gateways/nsq/gateway.py", "connections of NSQ clients that were accepted",
       metric="zsq_nsq_connections_accepted_total"),
    _S("gateway", "connections_refused", "connections", "gateways/nsq/gateway.py",
       "connections of NSQ clients refused at the limit of connections", metric="zsq_nsq_connections_refused_total"),
    _S("gateway", "strangers", "connections", "gateways/nsq/intake.py",
       "connections that have neither authenticated nor begun to publish or consume"),
    _S("gateway", "held_bytes", "bytes", "gateways/nsq/intake.py",
       "memory for unfinished commands of NSQ clients, and for answers that they have not read", metric="zsq_nsq_held_bytes"),
    _S("gateway", "connections_evicted", "connections", "gateways/nsq/intake.py",
       "connections of NSQ clients closed because they held too much", metric="zsq_nsq_connections_evicted_total"),
    _S("broker", "", "s", _METRICS, "how long the broker took to answer this scrape", metric="zsq_scrape_duration_seconds"),
)  # fmt: skip

_TOPIC: Final = (
    _S("topic", "topic_name", "text", _VIEW, "name of the topic", nsq=1, default=""),
    _S("topic", "uuid", "text", _VIEW, "identity of the topic: another one when it was deleted and created again", default=""),
    _S("topic", "", "text", _OVERVIEW, "`up`; `asleep` if it was not used for a while; or what its processes wait for", view="state"),
    _S("topic", "health", "text", _VIEW, "`OK`, or all that is wrong with the topic", view="health", default="OK"),
    _S("topic", "write_trouble", "text", _VIEW, "1: what is published is kept; 0: it failed, or cannot write", metric="zsq_topic_healthy",
       is_trouble=True, default="",
       note="why publishes are not stored now; `\"\"` if they are. `/ping` depends on it. In `/metrics` 1 if they are"),
    _S("topic", "full", "text", _VIEW, "`disk` or `topic` while publishes are refused for lack of space", default=""),
    _S("topic", "sync", "text", _VIEW, "when publishes are synced to disk", view="sync", default=""),
    _S("topic", "message_count", "messages", "topic/topic.py", "messages published", metric="zsq_topic_messages_total", view="messages",
       nsq=4, title="messages", top="messages"),
    _S("topic", "message_bytes", "bytes", "topic/topic.py", "bytes of blocks published", metric="zsq_topic_message_bytes_total",
       view="bytes", nsq=5, title="bytes"),
    _S("topic", "depth", "messages", _VIEW, "messages that wait for a first channel, or for the topic to be unpaused",
       metric="zsq_topic_depth", view="waiting", nsq=2, title="depth"),
    _S("topic", "backend_depth", "messages", _VIEW, "the same as `depth`", nsq=3),
    _S("topic", "", "messages", _OVERVIEW, "the largest backlog of its channels; without a channel, what waits for a first one",
       view="backlog"),
    _S("topic", "oldest_message_age_s", "s", _VIEW, "age of the oldest message that not all channels have finished",
       metric="zsq_topic_oldest_message_age_seconds",
       view="oldest_ns", note="age of the oldest message that a channel has not finished, or that waits for a first one. The overview has"
       " the time at which it was stored"),
    _S("topic", "paused", "flag", "topic/topic.py", "1: paused", metric="zsq_topic_paused", view="paused", nsq=6, default=False),
    _S("topic", "asleep", "flag", _VIEW, "1: no process of it runs, because it is not used", metric="zsq_topic_asleep", default=False),
    _S("topic", "closed", "text", _VIEW, "1: closed to publishers", metric="zsq_topic_closed", view="closed", default="",
       note="to whom the topic is closed: `publishers`, or `consumers` and publishers; `\"\"` for nobody. In `/metrics` 1 if it is closed"),
    _S("topic", "start", "offset", "storage/storage_actor.py", "first offset in the log", view="start", title="start"),
    _S("topic", "head", "offset", _VIEW, "offset of the next message", view="head", title="head"),
    _S("topic", "rates", "a second", "topic/topic.py", "growth of each counter over the last minute", default={}),
    _S("topic", "", "messages a second", _OVERVIEW, "messages published, over the last minute", view="in_rate"),
    _S("topic", "", "bytes a second", _OVERVIEW, "bytes published, over the last minute", view="in_bytes_rate"),
    _S("topic", LATENCY, "ns", _VIEW, "latency of all its channels together", nsq=7, default=_NO_LATENCY),
    _S("topic", "log_bytes", "bytes", _RETENTION, "size of the log on disk", metric="zsq_topic_log_bytes", view="log_bytes",
       title="on disk", top="on disk"),
    _S("topic", "finished_bytes", "bytes", _RETENTION, "bytes of the log that all channels have finished"),
    _S("topic", "held_bytes", "bytes", _RETENTION,
       "bytes of the log's files from the oldest unfinished message on, which retention keeps",
       metric="zsq_topic_held_bytes", view="held_bytes"),
    _S("topic", "held_by", "text", "storage/storage_actor.py",
       "the channel that has not finished that message; `\"\"` if no channel holds one", default=""),
    _S("topic", "held_offset", "offset", "storage/storage_actor.py", "its offset; `oldest_message_age_s` says how old it is"),
    _S("topic", "chunks", "files", _RETENTION, "files of the log", metric="zsq_topic_log_chunks", view="chunks", top="files"),
    _S("topic", "settings", "row", _RETENTION, "its settings in effect", default={}),
    _S("topic", "recovery", "row", _RETENTION, "what the last start found in the log, and how long that took", default={}),
    _S("topic", "kept_count", "messages", "storage/storage_actor.py",
       "messages from `start` to `head`, without lost ones and without offsets that a takeover skipped", view="kept"),
    _S("topic", "removed_bytes", "bytes", _RETENTION, "bytes of the log that retention removed",
       metric="zsq_topic_removed_bytes_total"),
    _S("topic", "dropped_count", "messages", _RETENTION, "unfinished messages that retention dropped",
       metric="zsq_topic_dropped_messages_total", view="dropped", title="dropped, up to", rare=1, top="dropped"),
    _S("topic", "refused_count", "publishes", _RETENTION, "publishes refused because the topic was full",
       metric="zsq_topic_refused_publishes_total", view="refused", title="refused: full topic", rare=3, top="refused"),
    _S("topic", "disk_refused_count", "publishes", "storage/storage_actor.py", "publishes refused because the disk was full",
       metric="zsq_topic_disk_refused_publishes_total", title="full disk", rare=3),
    _S("topic", "lost_messages", "messages", _RETENTION, "messages lost to damage on disk", metric="zsq_topic_lost_messages",
       view="lost", title="lost", rare=4),
    _S("topic", "damaged_blocks", "blocks", _RETENTION, "blocks found damaged", metric="zsq_topic_damaged_blocks", view="damaged"),
    _S("topic", "delayed_count", "messages", _DELAYED, "messages published with a delay that are not due",
       metric="zsq_topic_delayed_messages", view="delayed", title="delayed", rare=2),
    _S("topic", "delayed_bytes", "bytes", _DELAYED, "their size", metric="zsq_topic_delayed_bytes", view="delayed_bytes"),
    _S("topic", "delayed_next_due_ns", "ns", _DELAYED, "when the first of them is due", view="delayed_next_due_ns"),
    _S("topic", "delayed_lost", "messages", _DELAYED, "delayed messages lost to damage on disk"),
    _S("topic", "delayed_moved", "messages", _DELAYED, "delayed messages that were due and came into the log"),
    _S("topic", "duplicate_count", "messages", _DEDUPE, "messages not stored because their ids were known, since the topic started",
       metric="zsq_topic_duplicates_total", title="duplicates", rare=6),
    _S("topic", "dedupe_ids", "ids", _DEDUPE, "ids that the topic knows, within its window or a little older",
       metric="zsq_topic_dedupe_ids"),
    _S("topic", "stages", "stages", "storage/stages.py", "stages of Spark writers that are open or sealed", metric="zsq_topic_stages",
       view="stages", title="stages", rare=5, top="stages"),
    _S("topic", "staged_bytes", "bytes", "storage/stages.py", "their size", metric="zsq_topic_staged_bytes", view="staged_bytes",
       title="staged bytes", rare=5),
    _S("topic", "transactions", "apps", "storage/staging.py", "apps whose last transaction is known"),
    _S("topic", "", "restarts", _OVERVIEW, "number of times that its processes were started again after a failure", view="restarts"),
    _S("topic", "", "messages", _OVERVIEW, "dead letters that were not sent back; -1 if it is no dead-letter topic", view="dead_letters"),
    _S("topic", "", "ms", _OVERVIEW, "time of the last report of its process", view="pulsed_ms"),
    _S("topic", "publishers", "rows", _VIEW, "ZSQ clients that publish", default=()),
    _S("topic", "channels", "rows", _VIEW, "its channels", default=[]),
    _S("publisher", "producer", "text", "topic/ordering.py", "identity of the producer", default=""),
    _S("publisher", "via", "text", "topic/ordering.py", "`tcp` or `ipc`", default=""),
    _S("publisher", "blocks", "blocks", "topic/ordering.py", "blocks accepted from it"),
    _S("publisher", "unanswered_bytes", "bytes", "topic/ordering.py", "bytes that it has sent and that are not stored yet"),
    _S("publisher", "silent_ms", "ms", "topic/ordering.py", "time since its last message"),
)  # fmt: skip

_CHANNEL: Final = (
    _S("channel", "channel_name", "text", _ROW, "name of the channel", nsq=1, default=""),
    _S("channel", "health", "text", _ROW, "1: OK; 0: its health says what is wrong", metric="zsq_channel_healthy", view="health",
       default="OK", note="`OK`, or what is wrong with the channel. In `/metrics` 1 for `OK`"),
    _S("channel", "depth", "messages", _SUPPLY, "messages that wait to be delivered", metric="zsq_channel_depth", view="depth", nsq=2,
       note="messages that wait: not in flight, not deferred"),
    _S("channel", "backend_depth", "messages", _SUPPLY, "waiting messages that are not in the channel's window", nsq=3),
    _S("channel", "in_flight_count", "messages", _CORE, "messages delivered and not finished", metric="zsq_channel_in_flight",
       view="in_flight", nsq=4),
    _S("channel", "deferred_count", "messages", _SUPPLY, "messages requeued for later", metric="zsq_channel_deferred", view="deferred",
       nsq=5, note="messages requeued with a delay that is not over"),
    _S("channel", "dying_count", "messages", _SUPPLY, "messages on their way to the dead letters", view="dying", title="dying", rare=2,
       note="messages on their way to the dead letters; not in `depth`, and not finished"),
    _S("channel", "next_offset", "offset", _SUPPLY, "offset up to which messages were handed out or passed over", view="next_offset"),
    _S("channel", "blocked_by", "rows", _CORE, "failed messages for which others of their key wait", default=(),
       note="of an ordered channel: up to three failed messages for which others of their key wait, with `offset`, `waiting` (how"
       " many), `attempts`, and the last `error`. Forgotten at a restart"),
    _S("channel", "oldest_message_age_s", "s", _ROW, "age of the oldest message that is not finished", default=0.0, view="oldest_ns",
       metric="zsq_channel_oldest_message_age_seconds", note="age of the oldest message that is not finished, also in flight or"
       " deferred; 0: there is none; `null`: not known yet. At most two seconds behind. The overview has the time at which it was stored"),
    _S("channel", "client_count", "consumers", _CORE, "consumers connected", metric="zsq_channel_clients", view="consumers", nsq=9),
    _S("channel", "backing_off_count", "consumers", _CORE, "consumers that back off because their handlers fail",
       metric="zsq_channel_backing_off"),
    _S("channel", "limited_since_s", "s", _CORE, "1: its `max_rate` withholds messages", metric="zsq_channel_limited", default=None,
       note="since when its `max_rate` withholds messages, in seconds since 1970; `null`: it does not, or its consumers are slower. In"
       " `/metrics` 1 if it does, and otherwise 0"),
    _S("channel", "tenants", "rows", "channel/fair.py", "keys of a fair channel with the most waiting messages", default=(),
       note="of a fair channel: at most five keys (or tags) with the most waiting messages: `key`, `waiting`, and `limited` (`rate`,"
       " `in flight`, or `\"\"`)"),
    _S("channel", "tenant_count", "keys", "channel/fair.py", "keys of a fair channel that have messages in what was read ahead", default=0,
       metric="zsq_channel_tenants"),
    _S("channel", "clients", "rows", _MEASURED, "its consumers", nsq=10, default=[]),
    _S("channel", "paused", "flag", _CORE, "1: paused", metric="zsq_channel_paused", view="paused", nsq=11, default=False),
    _S("channel", "message_count", "messages", _ROW, "messages that came to the channel", metric="zsq_channel_messages_total",
       view="came", nsq=6, title="came", note="messages that came to the channel since its creation. A `seek` backwards counts them again"),
    _S("channel", "delivery_count", "deliveries", _CORE, "deliveries, repeated ones too", metric="zsq_channel_deliveries_total",
       view="delivered", title="delivered", counter=True),
    _S("channel", "delivery_bytes", "bytes", _CORE, "their size", metric="zsq_channel_delivery_bytes_total", counter=True),
    _S("channel", "finish_count", "messages", _CORE, "messages finished", metric="zsq_channel_finished_total", view="finished",
       title="finished", counter=True, ends=True),
    _S("channel", "requeue_count", "deliveries", _CORE, "deliveries given back", metric="zsq_channel_requeued_total", view="requeued",
       nsq=7, title="requeued", top="requeued", counter=True),
    _S("channel", "defer_count", "deliveries", _CORE, "deliveries put off without an attempt", metric="zsq_channel_deferrals_total",
       view="put_off", title="put off", rare=7, counter=True),
    _S("channel", "timeout_count", "deliveries", _CORE, "deliveries not finished in time", metric="zsq_channel_timeouts_total",
       view="timed_out", nsq=8, title="timed out", top="timed out", counter=True),
    _S("channel", "dead_letter_count", "messages", _SUPPLY, "messages moved to the dead-letter topic",
       metric="zsq_channel_dead_letters_total", view="dead", title="dead", rare=1, top="dead", counter=True, ends=True),
    _S("channel", "expired_count", "messages", "channel/filters.py", "messages that expired, or were too old for the channel",
       metric="zsq_channel_expired_total", view="expired", title="expired", rare=3, counter=True, ends=True),
    _S("channel", "sampled_count", "messages", _SUPPLY, "messages that were not in the sample", view="passed_over", title="not sampled",
       rare=4, counter=True, ends=True),
    _S("channel", "tag_skipped_count", "messages", "channel/filters.py", "messages with other tags", view="passed_over",
       title="other tags", rare=5, counter=True, ends=True),
    _S("channel", "addressed_skipped_count", "messages", "channel/filters.py", "messages meant for another channel", view="passed_over",
       title="others'", rare=6, counter=True, ends=True),
    _S("channel", "skipped_count", "messages", _CORE, "messages that a user skipped", metric="zsq_channel_skipped_total",
       view="skipped", title="skipped", rare=7, counter=True, ends=True),
    _S("channel", "cancelled_count", "messages", "channel/filters.py", "messages that were cancelled by their key",
       metric="zsq_channel_cancelled_total", view="cancelled", title="cancelled", rare=7, counter=True, ends=True),
    _S("channel", "dropped_count", "messages", _SUPPLY, "messages that retention dropped unfinished", metric="zsq_channel_dropped_total",
       view="dropped", title="dropped", rare=7, counter=True),
    _S("channel", "lost_count", "messages", _SUPPLY, "messages lost to damage on disk unfinished", metric="zsq_channel_lost_total",
       view="lost", title="lost", rare=8, counter=True),
    _S("channel", "rates", "a second", "channel/channel.py", "growth of each counter that grew", default={},
       note="growth of each counter that grew, a second, over the last minute"),
    _S("channel", "", "messages a second", _OVERVIEW, "messages that the channel got, over the last minute", view="in_rate"),
    _S("channel", "", "messages a second", _OVERVIEW, "messages finished or moved to the dead letters, over the last minute",
       view="out_rate"),
    _S("channel", "drain_s", "s", _ROW, "time until the backlog is finished", view="drain_s", default=0.0,
       note="time until nothing waits, at the rates of the last ten seconds; 0: nothing waits; `null`: the backlog does not shrink"),
    _S("channel", LATENCY, "ns", _MEASURED, "from storing to finishing, of the messages finished in the last ten minutes", nsq=12,
       metric="zsq_channel_processing_latency_seconds", more_labels=("quantile",), default=_NO_LATENCY,
       note="time from storing a message (a delayed one: when it was due) to its finish, of those finished in the last ten minutes:"
       " `count` and `percentiles` (`quantile` 0.5, 0.9, 0.95, 0.99, 1.0; `value` in ns, within 1%)"),
    _S("channel", "", "ns", _OVERVIEW, "processing latency, median", view="p50_ns"),
    _S("channel", "", "ns", _OVERVIEW, "processing latency, 95%", view="p95_ns"),
    _S("channel", "", "ns", _OVERVIEW, "processing latency, 99%", view="p99_ns"),
    _S("channel", "", "flag", _OVERVIEW, "whether it keeps the order of each key", view="ordered"),
    _S("channel", "", "ms", _OVERVIEW, "time of the last report of its process", view="pulsed_ms"),
    _S("channel", "settings", "row", "channel/channel.py", "settings that apply, defaults included", default={}),
)  # fmt: skip

_CONSUMER: Final = (
    _S("consumer", "client_id", "text", NSQ_CLIENT, "name of the consumer", nsq=1, default="", view="name"),
    _S("consumer", "hostname", "text", NSQ_CLIENT, "host name that it reports", nsq=2, default=""),
    _S("consumer", "version", "text", NSQ_CLIENT, "version of NSQ's protocol", nsq=3, default="V2"),
    _S("consumer", "remote_address", "text", NSQ_CLIENT, "address that it connects from", nsq=4, default="", view="address"),
    _S("consumer", "state", "number", NSQ_CLIENT, "state of its connection, as nsqd numbers them", nsq=5, default=3),
    _S("consumer", "user_agent", "text", NSQ_CLIENT, "library that it uses", nsq=15, default="", view="agent"),
    _S("consumer", "ready_count", "messages", "channel/lease.py", "messages that it takes at once", nsq=6, view="ready", title="ready"),
    _S("consumer", "backoff_s", "s", "channel/lease.py", "time until its next probe, if it backs off", view="backoff_s", default=None,
       note="time until its next probe, if it backs off; 0: the probe is under way; `null`: it does not back off"),
    _S("consumer", "in_flight_count", "messages", "channel/lease.py", "messages that it holds", nsq=7, view="in_flight",
       title="in flight"),
    _S("consumer", "message_count", "deliveries", "channel/lease.py", "deliveries sent to it", nsq=8, view="delivered",
       title="delivered"),
    _S("consumer", "message_bytes", "bytes", "channel/lease.py", "their size"),
    _S("consumer", "finish_count", "messages", "channel/lease.py", "messages that it finished", nsq=9, view="finished",
       title="finished"),
    _S("consumer", "requeue_count", "deliveries", "channel/lease.py", "deliveries that it gave back", nsq=10, view="requeued",
       title="requeued"),
    _S("consumer", "timeout_count", "deliveries", "channel/lease.py", "deliveries that it did not finish in time", view="timed_out",
       title="timed out"),
    _S("consumer", "sampled_count", "messages", "channel/lease.py", "messages left out of its sample"),
    _S("consumer", "rates", "a second", _MEASURED, "growth of each counter over the last minute", default={}),
    _S("consumer", LATENCY, "ns", _MEASURED, "latency of the messages that it finished; `null` beyond the first 200 consumers of a channel",
       default=None),
    _S("consumer", "connect_ts", "s", "channel/lease.py", "when it connected, since 1970", nsq=11),
    _S("consumer", "sample_rate", "percent", "channel/lease.py", "share of the messages that it takes; 0: all", nsq=12,
       view="sample_rate"),
    _S("consumer", "deflate", "flag", NSQ_CLIENT, "whether its connection uses this compression", nsq=13, default=False),
    _S("consumer", "snappy", "flag", NSQ_CLIENT, "whether its connection uses this compression", nsq=14, default=False),
    _S("consumer", "authed", "flag", NSQ_CLIENT,
       "result of the auth server: whether it accepted the client, the identity and its URL", nsq=23, default=False),
    _S("consumer", "auth_identity", "text", NSQ_CLIENT,
       "result of the auth server: whether it accepted the client, the identity and its URL", nsq=24, default=""),
    _S("consumer", "auth_identity_url", "text", NSQ_CLIENT,
       "result of the auth server: whether it accepted the client, the identity and its URL", nsq=25, default=""),
    _S("consumer", "topology_region", "text", NSQ_CLIENT, "region and zone that it reports", nsq=16, default=""),
    _S("consumer", "topology_zone", "text", NSQ_CLIENT, "region and zone that it reports", nsq=17, default=""),
    _S("consumer", "pub_counts", "rows", NSQ_CLIENT, "messages that it published, by topic; nsqd: of producers alone", nsq=26, default=[]),
    _S("consumer", "tls", "flag", NSQ_CLIENT,
       "whether its connection is encrypted, the cipher, the version of TLS", nsq=18, default=False),
    _S("consumer", "tls_cipher_suite", "text", NSQ_CLIENT,
       "whether its connection is encrypted, the cipher, the version of TLS", nsq=19, default=""),
    _S("consumer", "tls_version", "text", NSQ_CLIENT,
       "whether its connection is encrypted, the cipher, the version of TLS", nsq=20, default=""),
    _S("consumer", "tls_negotiated_protocol", "text", NSQ_CLIENT, "always empty and false", nsq=21, default=""),
    _S("consumer", "tls_negotiated_protocol_is_mutual", "flag", NSQ_CLIENT, "always empty and false", nsq=22, default=False),
)  # fmt: skip

_PROCESS: Final = (
    _S("process", "", "processes", _METRICS, "processes of the broker", metric="zsq_processes"),
    _S("process", "name", "text", _VIEW, "kind of the process, with its topic and channel", default=""),
    _S("process", "kind", "text", _VIEW, "kind of process, such as `topic`", default=""),
    _S("process", "pid", "number", _VIEW, "process id"),
    _S("process", "state", "text", _VIEW, "`starting`, `up`, `stopping` or `ended`; missing for supervisor and forkserver", default=""),
    _S("process", "host", "text", _VIEW, "shared process in which a quiet topic or channel is, if any", default=""),
    _S("process", "cpu_s", "s", _VIEW, "processor time since its start; in a shared process, that of its thread", default=0.0),
    _S("process", "uptime_s", "s", _VIEW, "time since its start", default=0.0),
    _S("process", "private_bytes", "bytes", "runtime/actor.py", "memory that no other process shares, the sum for all processes of a kind",
       metric="zsq_process_private_bytes", note="memory that no other process shares. In `/metrics` the sum for all processes of a kind"),
    _S("process", "restarts", "restarts", _VIEW, "times that processes of topics were started again", metric="zsq_process_restarts_total"),
    _S("request", "", "requests", _METRICS, "requests answered", metric="zsq_http_requests_total", more_labels=("path", "status")),
    _S("request", "", "histogram of s", _METRICS, "from the head of a request to the end of its answer",
       metric="zsq_http_request_duration_seconds", more_labels=("path",)),
    _S("request", "", "requests", _METRICS, "requests under way", metric="zsq_http_requests_active"),
    _S("request", "", "connections", _METRICS, "open connections", metric="zsq_http_connections"),
    _S("request", "", "bytes", _METRICS, "bodies of requests in memory", metric="zsq_http_body_bytes"),
)  # fmt: skip

_EXTENSIONS: Final[tuple[ExtensionStatistics, ...]] = filled("STATISTICS")
STATISTICS: Final[tuple[Statistic, ...]] = (
    *_BROKER, *_TOPIC, *_CHANNEL, *_CONSUMER, *_PROCESS,
    *(row for extension in _EXTENSIONS for row in extension.rows),
)  # fmt: skip
SECTIONS: Final[tuple[Section, ...]] = tuple(
    section for extension in _EXTENSIONS for section in extension.sections
)
METRICS: Final = tuple(row for row in STATISTICS if row.metric)


def rows_of(level: str) -> tuple[Statistic, ...]:
    return tuple(row for row in STATISTICS if row.level == level)


def defaults(level: str) -> dict[str, Any]:
    """Return, by name, each statistic of `Admin.stats` before its process has reported."""
    return {row.name: row.default for row in STATISTICS if row.level == level and row.name}


COUNTERS: Final = tuple(row.name for row in _CHANNEL if row.counter)
ENDS: Final = tuple(row.name for row in _CHANNEL if row.ends)
