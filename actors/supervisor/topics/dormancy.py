"""Dormancy: when the processes of a topic may end because it is not used. Pure.

A topic that is not used still costs a process for itself and one for each channel. So it is put to
sleep: its processes stop as at the end of the broker, and the next request for it starts them
again. A stop loses nothing, so this decision may be wrong at any time. It then costs a client one
new link.

A topic may sleep when for a while
* no client asked the supervisor for it, and its processes got no message,
* nothing is left to copy to the bucket,
* it has no producer, consumer, reader or stage, and no message that is being delivered,
* nothing is wrong with it, because a start would hide that.

It is woken without a request when a delayed message is due, and once an hour if its retention
depends on time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ....transport.settings import NONE, Retention
from ...runtime.pulses import ChannelPulse, StoragePulse, TopicPulse, is_troubled

_NS: Final = 1_000_000_000
# A topic wakes this long before its first delayed message is due, so that its start is complete by
# then.
EARLY_NS: Final = 2 * _NS
RETENTION_NS: Final = 3_600 * _NS
NEVER: Final = 1 << 62
_RATES: Final = frozenset({"rates", "rates_recent"})
_OF_PROCESS: Final = frozenset({
    "appends", "alarms", "state_alarm", "delayed_alarm", "delayed_full", "disk_full", "topic_full", "extension_refusal",
    "dead_letter_alarm", "deferred_full",
})  # fmt: skip


def is_unused(
    topic: TopicPulse, channels: Iterable[ChannelPulse], now_ns: int, after_ns: int
) -> bool:
    """Return True if the last pulses of a topic's processes show no use for `after_ns`.

    `now_ns` is monotonic time. A process without a pulse has just started, so it is in use.
    """
    limit = now_ns - after_ns
    storage = topic.get("storage")
    if storage is None or topic["stirred_ns"] > limit:
        return False
    if topic["producers"] or topic["pending_appends"] or topic["queued_blocks"]:
        return False
    if storage["extension_busy"] or is_troubled(storage):
        return False
    if storage["stage_links"] or storage["stages"] or storage["backup"]:
        return False
    return all(
        "next_offset" in channel
        and channel["stirred_ns"] <= limit
        and not channel["client_count"]
        and not channel["in_flight_count"]
        and not channel["dying_count"]
        and not channel["dead_letter_alarm"]
        for channel in channels
    )


def may_move(topic: TopicPulse) -> bool:
    """Return True if another process may continue the topic at any time.

    A backup would have to begin again, and a start would hide what is wrong.
    """
    storage = topic.get("storage")
    return storage is None or not (storage["backup"] or is_troubled(storage))


def due_ns(storage: StoragePulse) -> int:
    """Return the wall-clock time before which a topic must wake for its delayed messages.

    It is `NEVER` if there are none.
    """
    return storage["delayed_next_due_ns"] - EARLY_NS if storage["delayed_count"] else NEVER


def last_known(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last pulse of a process that has ended, until the next process reports.

    Its counts are better than none. Its troubles ended with it.
    """
    known = {name: value for name, value in at_rest(stats).items() if name not in _OF_PROCESS}
    if "storage" in known:
        known["storage"] = last_known(known["storage"])
    return known


def at_rest(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last pulse of a process that sleeps: without rates, because nothing happens."""
    kept = {name: value for name, value in stats.items() if name not in _RATES}
    if "storage" in kept:
        kept["storage"] = at_rest(kept["storage"])
    return kept


def sleep_ns(storage: StoragePulse, retention: Retention, share: float) -> int:
    """Return how long a topic may sleep at most because of its retention, or `NEVER`.

    `share` is a random number from 0 to 1. It spreads the starts of many topics over an hour.
    """
    limits = (retention.keep_time_s, retention.max_age_s, retention.bucket_keep_time_s)
    by_time = any(limit != NONE for limit in limits)
    kept = storage["start"] < storage["head"]
    return int(RETENTION_NS * (1.0 - share / 2)) if by_time and kept else NEVER
