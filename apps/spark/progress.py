"""Progress: how far a query is behind its topics, and where Spark reports it.

PySpark's Python sources cannot define metrics. But Spark shows in each `StreamingQueryProgress`
what a source reports as its latest offset, and it compares this text with nothing. So the source
adds there what waits behind the end of the batch that was planned last:

    {"version": 1, "topics": …, "uuids": …, "behind":
     {"rows": 12, "bytes": 3072, "topics": {"clicks": {"rows": 12, "bytes": 3072}}}}

PySpark 4.2 and later ask for it, once for each trigger and right after they have planned its batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

__all__ = ["BEHIND", "Behind", "behind", "behind_as_json"]

BEHIND: Final = "behind"


class Behind(NamedTuple):
    """Rows that wait in topics and are in no batch yet: their number, and their size in bytes."""

    rows: int
    bytes: int

    def __add__(self, other: object) -> Behind:
        if not isinstance(other, Behind):
            return NotImplemented
        return Behind(self.rows + other.rows, self.bytes + other.bytes)


NOTHING: Final = Behind(0, 0)


def behind(progress: Mapping[str, Any] | None) -> Behind | None:
    """Return how far a streaming query is behind its topics, over all of its zsq sources.

    `progress` is `query.lastProgress`, or the `progress` of an event of Spark's
    `StreamingQueryListener`, or one of them as a dict. Returns None if it does not say that: there
    is no progress yet, the query reads no topic, PySpark is older than 4.2, or the broker did not
    answer.

    - `rows`: messages after the last batch, by their offsets. Offsets that have no message, because
      the broker was restored or its disk was damaged, count too.
    - `bytes`: approximately their size on disk.
    """
    behind_all = None
    for source in (progress or {}).get("sources", ()):
        latest = source.get("latestOffset")
        try:
            read = json.loads(latest) if isinstance(latest, str) else latest
            counts = read[BEHIND]
            log_behind = Behind(int(counts["rows"]), int(counts["bytes"]))
        except (KeyError, TypeError, ValueError, RecursionError):
            continue  # another source, or one that could not say it
        behind_all = (behind_all or NOTHING) + log_behind
    return behind_all


def behind_as_json(logs: Iterable[tuple[str, Behind]]) -> dict[str, object]:
    """Return the report of these topics. A topic with several parts is given once for each part."""
    topics: dict[str, Behind] = {}
    for topic, log_behind in logs:
        topics[topic] = topics.get(topic, NOTHING) + log_behind
    total = sum(topics.values(), NOTHING)
    return {
        **total._asdict(),
        "topics": {name: topics[name]._asdict() for name in sorted(topics) if topics[name].rows},
    }
