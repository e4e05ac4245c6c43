"""End of a log: a broker that its cluster has forgotten can never ship again, and others find its
parts in its bucket.

The end is a takeover by nobody. It is created as each takeover is (`ship_log.py`), so the broker, a
standby of it, and a copy of its data directory find it before they can add anything. Whoever has
created it, or has found it, knows that what the bucket has of the broker never changes again.

What the broker has acknowledged and not shipped is not in its bucket. It is at most what
`--bucket-lag` permits, and nothing in topics with --sync bucket. If its disk is found again,
`zsq rescue` publishes it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...documents import loads
from ...errors import Damaged
from ..bucket import Bucket, BucketRefuses
from .part_taking import GIVEN, LEFT
from .ship_log import ShipLog, find_chain
from .tick_reader import TickReader


class StillWrites(BucketRefuses):
    """The broker whose log was to be ended has shipped meanwhile. So it is not gone."""


class FoundPart(NamedTuple):
    """A part in the bucket of a broker that was forgotten. `log` is the uuid of its log."""

    log: str
    tick: int


NOTHING: Final = FoundPart("", -1)


def end_log(
    bucket: Bucket, host: str, time_ns: int, reserve: int, quiet: Callable[[], object]
) -> int:
    """End the log of the broker that ships to this bucket. Return the number of the last tick.

    `quiet` waits for some time, in which the broker must ship nothing. It may be repeated. Raises
    `StillWrites`, or another `BucketError`.
    """
    chain = find_chain(bucket)
    if chain.last is not None and chain.last.index.is_ended:
        return chain.last.index.number
    quiet()
    if (again := find_chain(bucket)).number != chain.number:
        if again.last is not None and again.last.index.is_ended:
            return again.last.index.number
        raise StillWrites(
            f"{bucket.url}: its broker has shipped tick {again.number - 1} just now, so it lives"
        )
    archive = chain.last.index.archive if chain.last is not None else ""
    ship_log = ShipLog(bucket, archive, uuid.uuid4().hex, host)
    taken = ship_log.take_over(None, time_ns, reserve, is_end=True)
    return taken.takeover.number


def find_part(bucket: Bucket, name: str, of_topic: str, hold: int, given: str = "") -> FoundPart:
    """Return where a part is that a broker had in this hold, or NOTHING if its bucket lacks it.

    `given`: the log that the broker had released, and got back before another one had it. It may
    have been lost before its bucket had the new hold.

    Raises `BucketRefuses` if its log has not ended, or another `BucketError`.
    """
    reader = TickReader(bucket)
    try:
        reader.read()
        last = reader.last.index
        if not last.is_ended:
            raise BucketRefuses(f"{bucket.url}: the log of its broker has not ended")
        row = _row(reader, name) if last.registry_number >= 0 else {}
        own = row.get("hold", 0)
        is_back = own < hold and row.get("state") == GIVEN and row.get("uuid") == given
        is_it = own == hold or is_back
        if (
            row.get("part_of", "") != of_topic
            or not is_it
            or row.get("state") not in (GIVEN, *LEFT)
        ):
            return NOTHING
        log = str(row.get("uuid"))
        shipped = reader.topics.get(log)
        if shipped is None or shipped.begins < 0:
            return NOTHING
        return FoundPart(log, last.number)
    finally:
        reader.close()


def _row(reader: TickReader, name: str) -> dict[str, Any]:
    try:
        row = loads(reader.registry())["topics"].get(name, {})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"the registry of topics cannot be read: {error!r}") from error
    return row if isinstance(row, dict) else {}
