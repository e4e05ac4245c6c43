"""Standbys: the objects in which standbys announce themselves, and what the primary makes of them.

    PREFIX/standby/COPY.COUNT        a standby: its identity, its addresses, and its patience

A standby takes over when the log of ticks has had no new number for its *patience*. It announces
itself when it begins, and with the next COUNT every `ANNOUNCE_S`, or every `UNKNOWN_S` while the
primary knows no standby. So the primary learns from the names alone who is still there. While it
knows standbys, the primary does two things:

* It creates a tick at least once in each *heartbeat*, also if there is nothing new.
* It has a *lease*: it acknowledges publishes only for `lease_ms` after it began to create the last
  tick that exists. All ticks say how long that is.

The lease is shorter than the patience, and a standby begins to count later than the primary. So
when a standby takes over, the lease is over. No clocks are compared. What decides who is primary is
the number that is created, and not the lease: without it, a process that was stopped for a while
could still acknowledge some publishes that its successor does not have.

The ticks of a primary that knows no standby have no lease. After such a tick, a standby waits for
`STRANGER_S`, because the primary may not have heard of it yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ... import documents
from ...errors import Damaged
from ..bucket import Bucket, BucketError, ObjectExists, ObjectMissing

VERSION: Final = 1
STANDBYS: Final = "standby"
ANNOUNCE_S: Final = 600.0
CREATES_MAX: Final = 5  # attempts to create a notice
# A standby whose name has not changed for so long is forgotten.
FORGET_S: Final = 3 * ANNOUNCE_S
LOOK_S: Final = 20.0  # the primary looks for new standbys this often
UNKNOWN_S: Final = 45.0  # by then the primary has looked
# When a broker has become primary, or a standby is gone, another one usually comes soon. Until the
# primary knows it, a takeover waits for `STRANGER_S`. So at first the primary looks more often.
SOON_LOOK_S: Final = 2.0
SOON_LOOKS: Final = 60
STRANGER_S: Final = 60.0
HEARTBEAT_S_MAX: Final = 2.0
# The shares of the patience.
HEARTBEATS: Final = 5  # in one patience
LEASE: Final = 0.7
# A standby waits so much longer than the lease, if the primary has another idea of its patience.
BEYOND_LEASE: Final = 1.25


class Notice(NamedTuple):
    """The notice of a standby. `addresses` are those of its gateway, once it is primary."""

    copy: str
    host: str
    addresses: tuple[str, ...]
    patience_s: float
    time_ns: int


def notice_object(copy: str, count: int) -> str:
    return f"{STANDBYS}/{copy}.{count:012d}"


def parse_notice(name: str) -> tuple[str, int]:
    """Return the copy and the count in a name, or ("", -1) for another name."""
    copy, dot, digits = name.removeprefix(f"{STANDBYS}/").rpartition(".")
    if not copy or not dot or not (digits.isascii() and digits.isdecimal()):
        return "", -1
    return copy, int(digits)


def encode_notice(notice: Notice) -> bytes:
    return documents.encode_line("standby", VERSION, notice._asdict())


def decode_notice(data: bytes) -> Notice:
    """Return the notice. Raises `Damaged` or `ForeignDirectory`."""
    row = documents.decode_line(data, "standby", VERSION)
    try:
        return Notice(
            str(row["copy"]), str(row["host"]), tuple(map(str, row["addresses"])),
            float(row["patience_s"]), int(row["time_ns"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the standby object has a wrong form: {error!r}") from error


def announce(bucket: Bucket, notice: Notice) -> None:
    """Create the next notice of this standby, and remove its older ones.

    Raises `BucketError`. It may be repeated.
    """
    older = {name: parse_notice(name) for name in bucket.names(f"{STANDBYS}/")}
    older = {name: earlier for name, earlier in older.items() if earlier[0] == notice.copy}
    first = max((count for _, count in older.values()), default=0) + 1
    for count in range(first, first + CREATES_MAX):
        name = notice_object(notice.copy, count)
        try:
            bucket.create(name, encode_notice(notice))
        except ObjectExists:
            # S3 says so, too, while an earlier request for this name is under way, also if that one
            # fails then. Without a notice, the primary would not know this standby.
            try:
                bucket.size(name)
            except ObjectMissing:
                continue
        break
    else:
        raise BucketError(
            f"{bucket.url}: the notice of a standby was taken {CREATES_MAX} times, and is missing"
        )
    bucket.remove(sorted(older))


def withdraw(bucket: Bucket, copy: str) -> None:
    """Remove the notices of a standby that ends."""
    names = bucket.names(f"{STANDBYS}/")
    bucket.remove(sorted(name for name in names if parse_notice(name)[0] == copy))


class Terms(NamedTuple):
    """The terms of a primary: its heartbeat and its lease, both 0 without a standby."""

    heartbeat_ns: int
    lease_ns: int


NO_STANDBY: Final = Terms(0, 0)


def terms_for(patience_s: float) -> Terms:
    """Return the terms that are right for a standby with this patience."""
    heartbeat_s = min(HEARTBEAT_S_MAX, patience_s / HEARTBEATS)
    return Terms(int(heartbeat_s * 1e9), int(patience_s * LEASE * 1e9))


def patience_ns(terms: Terms) -> int:
    """Return the patience of the standby for which these terms are right."""
    return round(terms.lease_ns / LEASE)


def wait_ns(patience_s: float, lease_ms: int) -> int:
    """Return how long a standby waits after a tick that says this lease."""
    own_ns = int(patience_s * 1e9)
    if not lease_ms:
        return max(own_ns, int(STRANGER_S * 1e9))
    return max(own_ns, int(lease_ms * 1e6 * BEYOND_LEASE))


class StandbyWatch:
    """The standbys that a primary knows. `look` blocks, and runs in a thread."""

    def __init__(self, own: str) -> None:
        self._own = own  # this broker's copy may have been a standby before
        self._notices: dict[str, Notice] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # the count of each, and since when it is so

    def look(self, bucket: Bucket, now_ns: int) -> Mapping[str, Notice]:
        """Return the notices of all standbys that are there, by their copies."""
        newest: dict[str, int] = {}
        for name in bucket.names(f"{STANDBYS}/"):
            copy, count = parse_notice(name)
            if copy and copy != self._own:
                newest[copy] = max(count, newest.get(copy, count))
        for copy, count in newest.items():
            if self._seen.get(copy, (-1, 0))[0] == count:
                continue
            try:
                notice = decode_notice(bucket.read(notice_object(copy, count)))
            except (ObjectMissing, Damaged):
                continue  # its next notice is there by now, or it is none of ours
            self._notices[copy], self._seen[copy] = notice, (count, now_ns)
        gone = self._notices.keys() - newest.keys()
        gone |= {
            copy for copy, seen in self._seen.items() if now_ns - seen[1] > int(FORGET_S * 1e9)
        }
        for copy in gone:
            self._notices.pop(copy, None)
            if copy not in newest:
                self._seen.pop(copy, None)
        return dict(self._notices)


def terms_of(notices: Iterable[Notice]) -> Terms:
    """Return the terms for all of these standbys together."""
    patience_s = min((one.patience_s for one in notices), default=0.0)
    return terms_for(patience_s) if patience_s > 0 else NO_STANDBY
