"""Statistics of the bucket: rows of the broker and of each topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..settings.starts import ActorStart, ArchiveStart
from ..statistics.statistic import ExtensionStatistics, Section
from ..statistics.statistic import Statistic as _S

_ARCHIVE: Final = "bucket/topic/archiving.py"
_SHIPPING: Final = "bucket/topic/shipping.py"
_SHIPPER: Final = "bucket/archive/shipper.py"
_ARCHIVE_ACTOR: Final = "bucket/archive/archive_actor.py"

_ROWS: Final = (
    _S("broker", "bucket", "row", "bucket/statistics.py", "the bucket; left out without one", default={}),
    _S("bucket", "url", "text", _ARCHIVE_ACTOR, "URL of the bucket", default=""),
    _S("bucket", "trouble", "text", _ARCHIVE_ACTOR, "1: the bucket can be used; 0: it cannot", metric="zsq_bucket_healthy", default="",
       is_trouble=True, note="why the bucket cannot be used; `\"\"` while it can. In `/metrics` 1 while it can"),
    _S("bucket", "shipping", "text", _SHIPPER, "`open` while changes are shipped, `closed` or `taking over` before, `lost` after another"
       " copy of the broker took over, `off` without shipping", default="off"),
    _S("bucket", "lag_s", "s", _SHIPPER, "age of the oldest change that waits to be shipped", metric="zsq_bucket_lag_seconds",
       default=0.0),
    _S("bucket", "cost", "money", _ARCHIVE_ACTOR, "cost of the requests so far, by --bucket-cost; 0 without it",
       metric="zsq_bucket_cost_total", default=0.0),
    _S("bucket", "shipped_bytes", "bytes", _SHIPPER, "bytes of ticks that were shipped", metric="zsq_bucket_shipped_bytes_total"),
    _S("bucket", "shipped_ticks", "ticks", _SHIPPER, "ticks that were shipped", metric="zsq_bucket_shipped_ticks_total"),
    _S("bucket", "epoch", "number", _SHIPPER, "takeovers and starts of a primary so far", metric="zsq_bucket_epoch", default=0),
    _S("bucket", "standbys", "standbys", _SHIPPER, "standbys that follow this broker", metric="zsq_bucket_standbys", default=0),
    _S("bucket", "standby_addresses", "text", _SHIPPER, "addresses of the standbys that follow this broker", default=""),
    _S("bucket", "addresses", "text", _ARCHIVE_ACTOR, "addresses at which clients reach this broker", default=""),
    _S("bucket", "cluster", "text", _ARCHIVE_ACTOR, "URL of the cluster's directory; `\"\"` without one", default=""),
    _S("bucket", "write_requests", "requests", _ARCHIVE_ACTOR,
       "requests that stored or listed objects, since the archive's process began", metric="zsq_bucket_write_requests_total"),
    _S("bucket", "read_requests", "requests", _ARCHIVE_ACTOR, "requests that read objects", metric="zsq_bucket_read_requests_total"),
    _S("bucket", "remove_requests", "requests", _ARCHIVE_ACTOR, "requests that removed objects", metric="zsq_bucket_remove_requests_total"),
    _S("bucket", "sent_bytes", "bytes", _ARCHIVE_ACTOR, "bytes of stored objects", metric="zsq_bucket_sent_bytes_total"),
    _S("bucket", "received_bytes", "bytes", _ARCHIVE_ACTOR, "bytes that were read", metric="zsq_bucket_received_bytes_total"),
    _S("topic", "archived_chunks", "files", _ARCHIVE, "files of the log in the bucket", metric="zsq_topic_archived_chunks",
       view="archived_chunks"),
    _S("topic", "archived_bytes", "bytes", _ARCHIVE, "their size", metric="zsq_topic_archived_bytes", view="archived_bytes",
       title="in bucket", rare=6, top="in bucket"),
    _S("topic", "unarchived_bytes", "bytes", _ARCHIVE, "full files of the log that are not in the bucket yet; 0 without a bucket",
       metric="zsq_topic_unarchived_bytes", view="unarchived_bytes", title="not yet", rare=6),
    _S("topic", "shipping", "text", _SHIPPING, "`open` while the topic is shipped, `catching up` until the bucket has its history, `closed`"
       " or `opening` while it cannot, `fenced` after another copy of the broker took over, `off` without shipping", default="off"),
    _S("topic", "shipped_end", "offset", _SHIPPING, "the bucket has all messages below this offset; 0 without shipping",
       metric="zsq_topic_shipped_end"),
    _S("topic", "ship_lag_s", "s", _SHIPPING, "age of the oldest change that the bucket does not have; 0 if it has all",
       metric="zsq_topic_ship_lag_seconds", default=0.0),
)  # fmt: skip


def _before(start: ActorStart) -> Mapping[str, Any]:
    """Return what the archive actor was started with. Counts are 0."""
    if not isinstance(start, ArchiveStart):
        return {}
    return {
        "url": start.url,
        "addresses": ",".join(start.addresses),
        "cluster": start.cluster,
        "shipping": "closed" if start.ship_lag_s else "off",
    }


def _shows_cluster(row: Mapping[str, Any]) -> bool:
    """Return True if the broker belongs to a cluster, or a standby follows it."""
    return bool(row["cluster"] or row["standbys"])


STATISTICS: Final = ExtensionStatistics(
    _ROWS,
    (Section("bucket", "archive", _before, in_overview=True, shows_cluster=_shows_cluster),),
)
