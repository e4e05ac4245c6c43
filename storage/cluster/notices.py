"""Notices of brokers: objects by which the brokers of a cluster show each other that they live.

    CLUSTER/alive/UUID.COUNT    a broker: its uuid, and the free and all bytes of its disk

They exist only while the cluster needs them: while a broker drains, or `auto` is on. Each broker
creates its next one every `NOTICE_S`, and removes its older ones. A broker is up if its COUNT has
grown within `UP_S`, by the clock of whoever looks. So no clocks of two machines are compared. A
broker that was seen for the first time counts as up until `UP_S` later. So do all of them when
whoever looks could not look for a while: the others may have had the same trouble.

A standby has the uuid of its primary, so a takeover does not make a broker look gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from .. import documents
from ..bucket.bucket import Bucket, ObjectExists, ObjectMissing
from ..errors import Damaged, ForeignDirectory
from ..foreign import is_uuid
from .balance import UP_S

VERSION: Final = 1
ALIVE: Final = "alive"
NOTICE_S: Final = 10.0
NS_PER_S: Final = 1_000_000_000


class BrokerNotice(NamedTuple):
    """The content of a notice. `free` and `total` are bytes of the disk."""

    uuid: str
    free: int
    total: int


class BrokerSeen(NamedTuple):
    """A broker as its notices show it. `quiet_s`: how long it has created none."""

    notice: BrokerNotice
    quiet_s: float

    @property
    def is_up(self) -> bool:
        return self.quiet_s < UP_S


def notice_object(uuid: str, count: int) -> str:
    return f"{ALIVE}/{uuid}.{count:012d}"


def parse_notice(name: str) -> tuple[str, int]:
    """Return the uuid and the count in a name, or ("", -1) for another name."""
    uuid, _, digits = name.removeprefix(f"{ALIVE}/").rpartition(".")
    if not is_uuid(uuid) or not (digits.isascii() and digits.isdecimal()):
        return "", -1
    return uuid, int(digits)


def encode_notice(notice: BrokerNotice) -> bytes:
    return documents.encode_line("alive", VERSION, notice._asdict())


def decode_notice(data: bytes) -> BrokerNotice:
    """Return the notice. Raises `Damaged` or `ForeignDirectory`."""
    row = documents.decode_line(data, "alive", VERSION)
    try:
        return BrokerNotice(str(row["uuid"]), int(row["free"]), int(row["total"]))
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the notice of a broker has a wrong form: {error!r}") from error


class BrokerWatch:
    """The notices of a cluster. `exchange` blocks, and runs in a thread."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._notices: dict[str, BrokerNotice] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # the count of each, and since when it is so
        self._looked_ns = 0

    def exchange(self, own: BrokerNotice, now_ns: int) -> Mapping[str, BrokerSeen]:
        """Create the next notice of this broker, and return what is known of all, by their uuids.

        Raises `BucketError`. It may be repeated.
        """
        newest: dict[str, int] = {}
        older: list[str] = []
        for name in self._bucket.names(f"{ALIVE}/"):
            uuid, count = parse_notice(name)
            if uuid:
                newest[uuid] = max(count, newest.get(uuid, count))
            if uuid == own.uuid:
                older.append(name)
        # If another process of this broker has created it meanwhile, it does the same.
        newest[own.uuid] = newest.get(own.uuid, 0) + 1
        with contextlib.suppress(ObjectExists):
            self._bucket.create(notice_object(own.uuid, newest[own.uuid]), encode_notice(own))
        self._bucket.remove(sorted(older))
        if now_ns - self._looked_ns > int(UP_S * NS_PER_S):
            self._seen = {uuid: (count, now_ns) for uuid, (count, _) in self._seen.items()}
        self._looked_ns = now_ns
        for uuid, count in newest.items():
            if self._seen.get(uuid, (-1, 0))[0] == count:
                continue
            notice = own if uuid == own.uuid else self._read(uuid, count)
            self._notices[uuid] = notice
            self._seen[uuid] = count, now_ns
        return {
            uuid: BrokerSeen(self._notices[uuid], (now_ns - since_ns) / NS_PER_S)
            for uuid, (_, since_ns) in self._seen.items()
        }

    def withdraw(self, uuid: str) -> None:
        """Remove the notices of this broker, because the cluster needs none any more."""
        names = [name for name in self._bucket.names(f"{ALIVE}/") if parse_notice(name)[0] == uuid]
        self._bucket.remove(sorted(names))
        self._notices.clear()
        self._seen.clear()

    def _read(self, uuid: str, count: int) -> BrokerNotice:
        """Return a notice, or what is known without it: its name shows that a broker lives."""
        try:
            return decode_notice(self._bucket.read(notice_object(uuid, count)))
        except (ObjectMissing, Damaged, ForeignDirectory):
            return self._notices.get(uuid, BrokerNotice(uuid, 0, 0))
